"""Which lanes may be fused, and which are told why not."""

import gc
import random
from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from device_kit import HERE
from fused_kit import MODELS, Images, configs, images, lanes
from torch import Tensor, nn

from shoal.train.fuse import agreement
from shoal.train.fuse.agreement import Differing, agreements_of
from shoal.train.fuse.fused import Fused, Unfusable
from shoal.train.fuse.graph import graph_key
from shoal.train.lane.lane import TrainingLane
from shoal.train.lane.model_changes import ChangeError
from shoal.train.recipe.recipe import Recipe
from shoal.train.tools.verify import compare

pytestmark = pytest.mark.usefixtures("quiet")


def made(step: Any = None, model: Any = None, **config: Any) -> TrainingLane:
    class Made(Images):
        def configure_model(self, config: Mapping[str, Any]) -> nn.Module:
            net: nn.Module = model() if model else super().configure_model(config)
            return net

        def training_step(self, model: nn.Module, batch: Any) -> Any:
            return step(self, model, batch) if step else super().training_step(model, batch)

    return TrainingLane(Made(), {"lr": 0.1, **config}, seed=0, device=HERE, epoch=1.0)


def test_the_key_tells_graphs_apart_and_nothing_else() -> None:
    alike = [*configs(3), {"lr": 1.0, "gradient_clip_val": 1.0}, {"lr": 1.0, "optimizer": "adamw"}]
    same = {graph_key(lane) for lane in lanes(Images(), alike)}
    assert len(same) == 1
    others: list[dict[str, Any]] = [
        {"optimizer": "adadelta"},  # none of those whose formulas are known
        {"batch_size": 8},
        {"model": "cnn"},
        {"precision": "bf16"},
        {"accumulate_grad_batches": 2},
    ]
    keys = [graph_key(lane) for lane in lanes(Images(), [{"lr": 0.1, **c} for c in others])]
    assert len({*keys, *same}) == len(others) + 1


class Scaled(nn.Module):
    def __init__(self, factor: Any) -> None:
        super().__init__()
        self.inner, self.factor = nn.Linear(64, 4), factor

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.inner(x.flatten(1))
        return self.factor(out) if callable(self.factor) else out * self.factor


def test_attributes_and_functions_are_part_of_the_key() -> None:
    def closure(x: float) -> Any:
        return lambda out: out * x

    def local(x: float) -> nn.Module:
        class Local(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.inner = nn.Linear(64, 4)

            def forward(self, z: Tensor) -> Tensor:
                out: Tensor = self.inner(z.flatten(1)) * x
                return out

        return Local()

    ways = [Scaled, lambda x: Scaled(torch.tensor(x)), lambda x: Scaled(closure(x)), local]
    ways.append(lambda x: Scaled({"a": [x]}["a"][0]))

    def of_parameter(x: float) -> nn.Module:
        model = nn.Linear(2, 2)
        model.weight.scale = x  # type: ignore[assignment]
        return model

    ways.append(of_parameter)
    for way in ways:
        one, same, other = (graph_key(made(model=lambda x=x: way(x))) for x in (1.0, 1.0, 2.0))
        assert one == same != other


def test_modules_in_a_closure_are_told_by_name() -> None:
    """As those that a recipe made in a function has imported there; what they hold is not gone
    through.
    """

    def made_here() -> Recipe:
        import json

        class Here(Images):
            def training_step(self, model: nn.Module, batch: Any) -> Tensor:
                return super().training_step(model, batch) * float(json.dumps(1.0))

        return Here()

    one, other = (graph_key(lanes(made_here(), configs(1))[0]) for _ in range(2))
    assert one == other


def _hooked() -> nn.Module:
    net = MODELS["mlp"]()
    net.register_forward_hook(lambda *_: None)
    return net


def _cell(model: nn.Module, batch: Any) -> Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.calls = nn.Linear(64, 4), 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        out: Tensor = self.inner(x.flatten(1)) / self.calls
        return out


class Held(nn.Module):
    """Keeps a parameter where it cannot be exchanged."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(64, 4)
        self.held = (self.inner.bias,)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x.flatten(1) @ self.inner.weight.mT + self.held[0]
        return out


class Aliased(nn.Module):
    """Reads a parameter's memory by another name."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(64, 4)
        self.plain = self.inner.bias.data

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.inner(x.flatten(1)) + self.plain
        return out


class Shadowed(nn.Module):
    """Follows its weights with a model that is in a list, and so not of its parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(64, 4)
        self.shadow = [nn.Linear(64, 4).requires_grad_(False)]
        for tensor in self.shadow[0].parameters():
            tensor.zero_()

    def forward(self, x: Tensor) -> Tensor:
        self.shadow[0].weight.lerp_(self.inner.weight.detach(), 0.1)
        out: Tensor = self.inner(x.flatten(1)) + self.shadow[0](x.flatten(1))
        return out


def _by_value(recipe: Any, model: nn.Module, batch: Any) -> Tensor:
    loss = _cell(model, batch)
    return loss * 2 if loss.item() > 1 else loss


def _by_chance(recipe: Any, model: nn.Module, batch: Any) -> Tensor:
    return _cell(model, batch) * np.random.rand()


def _by_chance_in_python(recipe: Any, model: nn.Module, batch: Any) -> Tensor:
    return _cell(model, batch) * random.random()


def _counting(recipe: Any, model: nn.Module, batch: Any) -> Tensor:
    """Counts at a parameter, which a fused step has none of."""
    parameter: Any = next(model.parameters())
    parameter.count = getattr(parameter, "count", 0) + 1
    return _cell(model, batch) / parameter.count


def _by_size(recipe: Any, model: nn.Module, batch: Any) -> Tensor:
    """Another loss when vectorized, as where a model looks at what its parameters are."""
    plain = all(isinstance(p, nn.Parameter) for p in model.parameters())
    return _cell(model, batch) * (1 if plain else 1.01)


def _normalizing(recipe: Any, model: Any, batch: Any) -> Tensor:
    """Writes to what is trained, as ArcFace does."""
    with torch.no_grad():
        model[1].weight.div_(model[1].weight.norm())
    return _cell(model, batch)


@pytest.mark.parametrize(
    ("always", "masked", "compared_with"), [(False, False, 4), (True, False, 5), (False, True, 5)]
)
def test_one_sample_at_a_kink_does_not_keep_lanes_from_being_fused(
    always: bool, masked: bool, compared_with: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lane that differs on a batch must agree on a half of it that has a gradient."""
    sizes = []

    def compared(mine: Any, share: Any, relative: Any) -> None:
        sizes.append(len(sizes))
        if len(sizes) == 1 or (always and len(sizes) > 3):
            raise Differing("a unit at its kink")

    monkeypatch.setattr(agreement, "compare", compared)
    if masked:
        monkeypatch.setattr(agreement, "has_gradient", lambda alone: False)
    one = made(None, None)
    lanes = [
        one,
        *(TrainingLane(one.recipe, {"lr": 0.2}, seed=i, device=HERE, epoch=1.0) for i in (1, 2)),
    ]
    if always or masked:
        with pytest.raises(Unfusable, match="kink"):
            Fused(lanes).step(images(16), 16)
    else:
        assert Fused(lanes).step(images(16), 16) == 16
    assert len(sizes) == compared_with, "all lanes on the batch, the first on one half, or both"


@pytest.mark.parametrize(
    ("step", "model", "why"),
    [
        (None, _hooked, "hooks"),
        (None, Counter, "attributes change"),
        (None, Held, "held by other objects"),
        (None, Aliased, "share memory"),
        (None, Shadowed, "attributes change"),
        (_by_value, None, "vectorized"),
        (_by_chance, None, "random"),
        (_by_chance_in_python, None, "random"),
        (_by_size, None, "differ"),
        (_counting, None, "attributes change"),
        (_normalizing, None, "writes to parameters"),
    ],
)
def test_what_cannot_be_fused_is_refused_and_goes_on_alone(step: Any, model: Any, why: str) -> None:
    first = made(step, model)
    packed = [first, TrainingLane(first.recipe, {"lr": 0.2}, seed=1, device=HERE, epoch=1.0)]
    own = [
        TrainingLane(first.recipe, c, seed=s, device=HERE, epoch=1.0)
        for s, c in ((0, {"lr": 0.1}), (1, {"lr": 0.2}))
    ]
    with pytest.raises(Unfusable, match=why):
        Fused(packed).step(images(16), 16)
    for one, other in zip(own, packed, strict=True):
        for lane in (one, other):
            with lane.rng:
                lane.step(images(16), 16)
        if model is Shadowed:  # its state is nowhere
            with pytest.raises(ChangeError, match="'shadow' of the model"):
                one.state()
            continue
        assert compare(one.state(), other.state()).equal


def test_classes_made_in_a_function_are_told_by_all_that_they_hold() -> None:
    def model(powers: tuple[float, ...]) -> nn.Module:
        class Powers(nn.Module):
            exponents = powers

            def __init__(self) -> None:
                super().__init__()
                self.inner = nn.Linear(64, 4)

            def forward(self, x: Tensor) -> Tensor:
                out: Tensor = sum(
                    (self.inner(x.flatten(1)) ** power for power in self.exponents), torch.zeros(())
                )
                return out

        return Powers()

    class Recipe(Images):
        def configure_model(self, config: Mapping[str, Any]) -> nn.Module:
            return model((config["power"],))

    one, same, other = (
        graph_key(lane)
        for lane in lanes(Recipe(), [{"lr": 0.1, "power": p} for p in (1.0, 1.0, 2.0)])
    )
    assert one == same != other


def test_what_a_recipe_that_cannot_be_hashed_agreed_to_is_remembered_while_it_lives() -> None:
    @dataclass
    class Whole(Images):
        depth: int = 2

    recipe = Whole()
    with pytest.raises(TypeError, match="unhashable"):
        hash(recipe)
    agreements_of(recipe)["key", 2] = True
    key, other = id(recipe), Whole()
    assert agreements_of(recipe) == {("key", 2): True} and agreements_of(other) == {}
    del recipe
    gc.collect()
    assert key not in agreement._agreed and id(other) in agreement._agreed


def test_unlike_lanes_are_refused() -> None:
    recipe = Images()
    for config in ({"optimizer": "adadelta"}, {"model": "cnn"}, {"batch_size": 8}):
        with pytest.raises(Unfusable, match="graph"):
            Fused(lanes(recipe, [{"lr": 0.1}, {"lr": 0.1, **config}]))
    with pytest.raises(Unfusable, match="recipes"):
        Fused([*lanes(recipe, configs(1)), *lanes(Images(), configs(1))])


def test_norms_of_several_devices_are_fetched_at_once() -> None:
    """A model without buffers has a norm of nothing, which lies in main memory."""
    norms = [torch.zeros((), device="meta"), torch.zeros(())]
    assert agreement._joined(norms).device.type == "meta"


def test_a_lane_is_compared_without_waiting_for_the_device_more_than_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits: list[int] = []
    fetch = Tensor.tolist

    def counted(tensor: Tensor) -> Any:
        waits.append(tensor.numel())
        return fetch(tensor)

    def refused(*_: Any, **__: Any) -> Any:
        raise AssertionError("copied to the host")

    some = [torch.ones(3), torch.ones(2, 2)]
    alone = agreement.Reference(torch.ones(()), [*some, None], some, False)
    monkeypatch.setattr(Tensor, "tolist", counted)
    for name in ("cpu", "item", "__float__", "__bool__", "numpy"):
        monkeypatch.setattr(Tensor, name, refused)
    agreement.compare(alone, alone, (1e-3, 1e-7))
    assert waits == [6]  # a norm and a gap of loss, gradient and buffers


@pytest.mark.parametrize(
    ("model", "matrices", "layers", "rounds"),
    [
        (nn.Linear(2, 2, device="meta"), False, True, False),
        (nn.Linear(2, 2, device="meta"), True, True, True),
        (nn.Conv2d(1, 1, 3, device="meta"), False, True, True),
        (nn.Conv2d(1, 1, 3, device="meta"), False, False, False),
        (nn.GRU(2, 2, device="meta"), False, True, True),
    ],
)
def test_the_check_is_looser_only_for_models_that_tf32_rounds(
    model: nn.Module, matrices: bool, layers: bool, rounds: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    cublas = SimpleNamespace(allow_tf32=matrices)
    cudnn = SimpleNamespace(allow_tf32=layers)
    monkeypatch.setattr(torch.backends.cuda, "matmul", cublas)
    monkeypatch.setattr(torch.backends, "cudnn", cudnn)
    assert agreement.rounds_to_tf32(model) is rounds
