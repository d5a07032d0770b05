"""Torch's optimizers by their one-pass kernels learn what they learn without, also where the
kernels are not up to it.
"""

import copy
import warnings
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

import pytest
import torch
from device_kit import HERE
from torch import Tensor, nn
from torch.optim import SGD, Adagrad, Adam
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from shoal.train.fuse.fused import Fused
from shoal.train.lane import optimizers
from shoal.train.lane.lane import TrainingLane
from shoal.train.recipe.hooks import TrialHooks
from shoal.train.recipe.recipe import Recipe
from shoal.train.tools.verify import compare, in_one_form

MAKERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": lambda p, **k: SGD(p, 0.1, **k),
    "momentum": lambda p, **k: SGD(p, 0.1, momentum=0.9, **k),
    "adagrad": lambda p, **k: Adagrad(p, 0.1, **k),
    "adam": lambda p, **k: Adam(p, 0.1, **k),
}


class Own(torch.optim.Optimizer):
    """As users write them."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                p -= 0.1 * p.grad


class Late(nn.Module):
    """Its second layer is not used before the third call, nor in each one after."""

    def __init__(self, sparse: bool) -> None:
        super().__init__()
        self.words, self.first, self.second = (
            nn.Embedding(6, 4, sparse=sparse),
            nn.Linear(4, 4),
            nn.Linear(4, 4),
        )

    def forward(self, x: Tensor, late: bool) -> Tensor:
        out: Tensor = self.first(self.words(x)).tanh()
        return self.second(out) if late else out


class Words(Recipe):
    batch_size = 4

    def configure_model(self, config: Mapping[str, Any]) -> nn.Module:
        return Late(config["sparse"])

    def configure_optimizers(self, model: nn.Module, config: Mapping[str, Any]) -> Any:
        made = MAKERS[config["optimizer"]](model.parameters(), **config.get("how", {}))
        if config.get("hooked"):
            made.register_step_pre_hook(lambda *_: None)
        return made

    def training_step(self, model: nn.Module, batch: Any) -> Tensor:
        x, late = batch
        return nn.functional.cross_entropy(model(x, bool(late[0])), x % 4)


def lane(optimizer: str, sparse: bool, **config: Any) -> TrainingLane:
    return TrainingLane(
        Words(),
        {"optimizer": optimizer, "sparse": sparse, **config},
        seed=0,
        device=HERE,
        epoch=8.0,
    )


def step(one: TrainingLane, number: int) -> None:
    x = torch.tensor([1, 2, 3, number % 6])
    one.step((x, torch.full((4,), number in (2, 3, 5))), 4)


def gap(one: TrainingLane, other: TrainingLane) -> float:
    return max(
        float((a - b).detach().abs().max())
        for a, b in zip(one.model.parameters(), other.model.parameters(), strict=True)
    )


@pytest.mark.parametrize(
    ("optimizer", "sparse"),
    [
        ("sgd", False),
        ("sgd", True),
        ("momentum", False),
        ("adagrad", False),
        ("adagrad", True),
        ("adam", False),
    ],
)
def test_sparse_and_late_gradients(optimizer: str, sparse: bool) -> None:
    quick, plain = (
        lane(optimizer, sparse),
        lane(optimizer, sparse, how={"foreach": False, "fused": False}),
    )
    again = lane(optimizer, sparse)
    for number in range(7):
        again.load(quick.state())
        for one in (quick, plain, again):
            step(one, number)
        assert gap(quick, plain) < 1e-6
        assert gap(quick, again) == 0.0
        assert all(group["fused"] for group in quick.optimizer.param_groups)


def test_only_parameters_without_a_dense_gradient_so_far_are_looked_at() -> None:
    made, names = lane("momentum", True), []
    for number in range(5):
        step(made, number)
        left = optimizers._waiting[made.optimizer]
        names.append(
            [
                name
                for name, p in made.model.named_parameters()
                if any(p is one for one in left or ())
            ]
        )
    second = ["second.weight", "second.bias"]
    assert names == [["words.weight", *second]] * 2 + [["words.weight"]] * 3


def test_late_gradients_of_optimizers_that_are_stepped_one_by_one() -> None:
    one = lane("momentum", False)
    packed = [lane("momentum", False, hooked=True) for _ in range(2)]
    recipe = packed[0].recipe
    for other in packed:
        other.recipe = recipe
        other.hooks = TrialHooks(recipe, {})
    fused = Fused(packed)
    for number in range(4):
        x = torch.tensor([1, 2, 3, number % 6])
        step(one, number)
        late = number in (2, 3)
        recipe.training_step = lambda model, batch, late=late: nn.functional.cross_entropy(
            model(batch, late), batch % 4
        )  # type: ignore[method-assign]
        fused._draws = None
        fused.step(x, 4)
    assert all(gap(one, other) < 1e-6 for other in packed)


ONE = nn.Parameter(torch.ones(2))


def train(optimizer: torch.optim.Optimizer) -> None:
    before = ONE.detach().clone()
    optimizers.zero(optimizer)
    assert ONE.grad is None
    torch.autograd.backward((ONE * ONE).sum())
    optimizers.step(optimizer)
    assert not torch.equal(ONE, before)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("name", MAKERS)
def test_parameters_of_any_floating_point_dtype_learn_what_they_do_without_the_kernels(
    name: str, dtype: torch.dtype
) -> None:
    """torch's kernel for SGD leaves those of two bytes where they are."""
    quick, plain = (nn.Parameter(torch.zeros(1024, dtype=dtype)) for _ in range(2))
    made = MAKERS[name]([quick]), MAKERS[name]([plain], foreach=False, fused=False)
    optimizers.quicken(made[0], HERE)
    for _ in range(10):
        for parameter, optimizer in zip((quick, plain), made, strict=True):
            parameter.grad = torch.ones_like(parameter) * 0.1
            optimizers.step(optimizer)
    assert plain.abs().mean() > 0.05
    assert torch.allclose(quick, plain, rtol=0.05)


@pytest.mark.parametrize("make", [*MAKERS.values(), Own])
@pytest.mark.parametrize("kernels", [False, True])
def test_torch_does_nothing_around_steps_to_which_nothing_listens(
    make: Callable[..., torch.optim.Optimizer], kernels: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: Any) -> None:
        raise AssertionError("entered")

    optimizer = make([ONE])
    if kernels:
        optimizers.quicken(optimizer, HERE)
    train(optimizer)  # at the first step the kernels ask more
    monkeypatch.setattr(torch.autograd.profiler, "record_function", never)
    train(optimizer)
    with pytest.raises(AssertionError, match="entered"):
        optimizer.step()


def test_hooks_of_steps_are_called() -> None:
    heard: list[str] = []
    adam = Adam([ONE])
    every: list[Callable[[Callable[..., None]], Any]] = [
        adam.register_step_pre_hook,
        adam.register_step_post_hook,
        register_optimizer_step_pre_hook,
        register_optimizer_step_post_hook,
    ]
    for number, register in enumerate(every):
        hook = register(lambda *_, number=number: heard.append(str(number)))
        try:
            train(adam)
        finally:
            hook.remove()
        train(adam)
    assert heard == ["0", "1", "2", "3"]


def test_profilers_see_steps() -> None:
    adam = Adam([ONE])
    with torch.profiler.profile() as profile:
        train(adam)
    names = {event.name for event in profile.events() or ()}
    assert {"Optimizer.step#Adam.step", "Optimizer.zero_grad#Adam.zero_grad"} <= names


def test_steps_that_were_replaced_are_called(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[str] = []

    class Wrapped(Adam):
        @wraps(Adam.step)
        def step(self, closure: Any = None) -> Any:  # type: ignore[override]  # says it is what torch wrapped, which it is not
            heard.append("step")
            return super().step(closure)

        def zero_grad(self, set_to_none: bool = True) -> None:
            heard.append("zero_grad")
            super().zero_grad(set_to_none)

    train(Wrapped([ONE]))
    assert heard == ["zero_grad", "step"]
    adam = Adam([ONE])
    schedule = torch.optim.lr_scheduler.StepLR(adam, 1)  # counts the steps of this one object
    train(adam)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # "scheduler before optimizer"
        schedule.step()
    plain = torch.optim.Optimizer.zero_grad

    def counted(optimizer: torch.optim.Optimizer, set_to_none: bool = True) -> None:
        heard.append("any")
        plain(optimizer, set_to_none)

    monkeypatch.setattr(torch.optim.Optimizer, "zero_grad", counted)
    train(Adam([ONE]))
    assert heard == ["zero_grad", "step", "any"]


def test_a_state_of_earlier_versions_is_this_trials_own() -> None:
    """They also kept which implementation makes the steps. That is no other hyper-parameter."""
    one, other = lane("adam", sparse=False), lane("adam", sparse=False)
    now = one.state()
    assert compare(*in_one_form(now, now)).equal
    then = copy.deepcopy(now)
    then["configured"][0] |= {"fused": True, "capturable": False}
    rates = [0.1 * 0.7**power for power in range(20)]
    assert any(rate * 0.1 / 0.1 != rate for rate in rates), "rounded, if set anew"
    for rate in rates:
        then["optimizer"]["param_groups"][0]["lr"] = rate
        other.load(then)
        assert other.optimizer.param_groups[0]["lr"] == rate
        assert compare(*in_one_form(then, other.state())).equal
