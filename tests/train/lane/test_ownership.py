"""What one trial trains, no other trial may have: refused before any work; frozen parts are shared.

Each case is a recipe whose trials share something in another way, with what the error says of it.
"""

import copy
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from fused_kit import alone, gap, lanes, together
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from train_kit import blobs, drive, planned, trainer, trial

import shoal
from shoal.core.errors import StudyError
from shoal.train.fuse.fused import Fused
from shoal.train.recipe.recipe import Recipe
from shoal.train.recipe.unit import TrialError, Unit

DATA = blobs(shards=1)
ROWS = DATA.read(DATA.shards[0])
Model = Callable[[Mapping[str, Any]], nn.Module]


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def frozen(model: nn.Module) -> nn.Module:
    return model.requires_grad_(False).eval()


class Body(nn.Module):
    """A backbone, which may be of several models, and a head of its own."""

    def __init__(self, backbone: nn.Module, evaluating: bool = True) -> None:
        super().__init__()
        self.backbone = backbone
        self.evaluating = evaluating
        self.head = nn.Linear(3, 3)

    def train(self, mode: bool = True) -> "Body":
        super().train(mode)
        if self.evaluating:
            self.backbone.eval()
        return self

    def forward(self, x: Any) -> Any:
        return self.head(self.backbone(x))


class Table(nn.Module):
    """Trains a table that lies in the memory of a given one."""

    def __init__(self, table: Any) -> None:
        super().__init__()
        self.head = nn.Linear(6, 3)
        self.table = nn.Embedding.from_pretrained(table, freeze=False)

    def forward(self, x: Any) -> Any:
        return self.head(x) + self.table((x[:, 0] > 0).long())


class Noting(nn.Module):
    """Notes something in training, in a way that is part of no state dict."""

    def __init__(self, note: Callable[["Noting"], Any]) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3).requires_grad_(False)
        self.calls = 0
        self.notes = torch.zeros(1)
        self.note = note

    def forward(self, x: Any) -> Any:
        if torch.is_grad_enabled():
            self.note(self)
        return self.layer(x)


def whole() -> Model:
    model = net()
    return lambda config: model


def sometimes_frozen() -> Model:
    layer = nn.Linear(6, 3)

    def build(config: Mapping[str, Any]) -> nn.Module:
        return Body(layer.requires_grad_(config["lr"] > 0.05))

    return build


def backbone(made: nn.Module, evaluating: bool = True) -> Model:
    return lambda config: Body(made, evaluating)


def copies() -> Model:
    made = net()
    return lambda config: copy.deepcopy(made)


def table() -> Model:
    values = torch.zeros(2, 3)
    return lambda config: Table(values)


def parameter() -> Model:
    weight = nn.Parameter(torch.zeros(3, 6))

    def build(config: Mapping[str, Any]) -> nn.Module:
        layer = nn.Linear(6, 3)
        layer.weight = weight
        return layer

    return build


def thawed() -> Model:
    """A shared backbone that is trained after the first step."""
    made = net().requires_grad_(False)

    def build(config: Mapping[str, Any]) -> nn.Module:
        model = Body(made)
        model.head.weight.register_hook(lambda _: made.requires_grad_(True) and None)
        made.requires_grad_(False)
        return model

    return build


def set_calls(model: Noting) -> None:
    model.calls += 1


REFUSED: dict[str, tuple[Callable[[], Model], str]] = {
    "whole model": (whole, r"'{}0.weight' \(8, 6\), which an earlier call returned"),
    "backbone": (lambda: backbone(net()), "'{}backbone.0.weight'"),
    "embedding's memory": (table, "'{}table.weight'"),
    "parameter": (parameter, "'{}weight'"),
    "thawed in training": (thawed, "requires_grad of '{}backbone.0.weight'"),
    "batch norm that averages": (
        lambda: backbone(net().requires_grad_(False), evaluating=False),
        "the values of '{}backbone.1.num_batches_tracked'",
    ),
    "attribute": (
        lambda: backbone(Noting(set_calls)),
        "attributes or flags of the model's {}backbone",
    ),
    "tensor attribute": (
        lambda: backbone(Noting(lambda model: model.notes.add_(1))),
        "'{}backbone.notes'",
    ),
}
ALLOWED: dict[str, Callable[[], Model]] = {
    "new models": lambda: lambda config: net(),
    "copies": copies,
    "frozen backbone": lambda: backbone(frozen(net())),
    "constants": lambda: backbone(frozen(Noting(lambda model: None))),
}


class Sharing(Recipe):
    """Builds its models with a function that may share something between them."""

    batch_size = 16

    def __init__(self, make: Callable[[], Model]) -> None:
        self.build = make()

    def data(self) -> Any:
        return blobs(shards=1)

    def configure_model(self, config: Mapping[str, Any]) -> nn.Module:
        return self.build(config)

    def configure_optimizers(self, model: nn.Module, config: Mapping[str, Any]) -> Any:
        return torch.optim.SGD(model.parameters(), lr=config["lr"])

    def training_step(self, model: Any, batch: Any) -> Any:
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    def validation_step(self, model: nn.Module, batch: Any) -> Any:
        return {"accuracy": (model(batch[0]).argmax(1) == batch[1]).float()}


def lightning(make: Callable[[], Model]) -> Recipe:
    """The same as a function of LightningModules."""
    package = pytest.importorskip("lightning")
    build = make()

    class Module(package.LightningModule):  # type: ignore[misc,name-defined]
        def __init__(self, net: nn.Module, lr: float) -> None:
            super().__init__()
            self.net = net
            self.lr = lr

        def training_step(self, batch: Any, number: int) -> Any:
            return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

        def validation_step(self, batch: Any, number: int) -> None:
            score = (self.net(batch[0]).argmax(1) == batch[1]).float().mean()
            self.log("accuracy", score)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.net.parameters(), lr=self.lr)

    rows = DataLoader(TensorDataset(*map(torch.from_numpy, ROWS)), 16)
    return shoal.lightning(
        lambda config: Module(build(config), config["lr"]), train=rows, valid=rows
    )


def searched(recipe: Recipe, storage: Path, **options: Any) -> Any:
    made = shoal.create_study(
        recipe,
        storage=storage,
        metric="accuracy",
        mode="max",
        search_space={"lr": shoal.grid([0.01, 0.1, 0.2])},
    )
    made.optimize(max_epochs=2, progress=False, workers=0, **options)
    return made


@pytest.mark.parametrize("form", [Sharing, lightning])
@pytest.mark.parametrize("case", REFUSED)
def test_what_trials_train_together_is_refused_before_any_work(
    case: str, form: Any, tmp_path: Path
) -> None:
    make, what = REFUSED[case]
    what = what.format("net." if form is lightning else "")
    with pytest.raises(StudyError, match=what) as refused:
        searched(form(make), tmp_path / "study")
    assert "\n" not in str(refused.value)
    assert not list((tmp_path / "study").rglob("*.pt"))


@pytest.mark.parametrize("form", [Sharing, lightning])
@pytest.mark.parametrize("policy", ["fifo", "pack", "auto"])
def test_what_some_configurations_train_fails_their_trials_only(
    form: Any, policy: str, tmp_path: Path
) -> None:
    own = searched(form(sometimes_frozen), tmp_path / "study", policy=policy)
    first, *others = (each.status for each in own.trials)
    assert first == "finished"
    assert all("backbone.weight' (3, 6), which an earlier" in each for each in others)


@pytest.mark.parametrize("form", [Sharing, lightning])
@pytest.mark.parametrize("case", ALLOWED)
@pytest.mark.parametrize("policy", ["fifo", "pack"])
def test_what_no_trial_trains_may_be_shared(
    case: str, form: Any, policy: str, tmp_path: Path
) -> None:
    own = searched(form(ALLOWED[case]), tmp_path / "study", policy=policy)
    assert [each.status for each in own.trials] == ["finished"] * 3
    one = own.load_model("t000").state_dict()
    two = own.load_model("t001").state_dict()
    assert not all(torch.equal(one[name], two[name]) for name in one)


@pytest.mark.parametrize("at_once", [True, False])
def test_a_slot_refuses_what_another_trial_of_it_had(at_once: bool) -> None:
    recipe = Sharing(whole)
    one = trainer(recipe, DATA)
    (visit,) = planned(DATA, 1)
    drive(one.train(Unit(trial("a", lr=0.1), (), visit)))
    if not at_once:
        one.forget("a")
    with pytest.raises(TrialError, match="which an earlier call returned"):
        drive(one.train(Unit(trial("b", lr=0.1), (), visit)))


def test_optimizers_and_metrics_belong_to_one_trial(tmp_path: Path) -> None:
    kept: list[Any] = []

    class Optimized(Sharing):
        def configure_optimizers(self, model: Any, config: Mapping[str, Any]) -> Any:
            made = super().configure_optimizers(model, config)
            kept.append(kept[0] if kept else made)
            kept[0].param_groups[0]["params"] = list(model.parameters())
            return kept[0]

    with pytest.raises(StudyError, match="configure_optimizers returned a SGD that"):
        searched(Optimized(lambda: lambda config: net()), tmp_path / "study")

    class Mean:
        def update(self, *_: Any) -> None:
            pass

        def reset(self) -> None:
            pass

        def compute(self) -> float:
            return 0.5

    class Measured(Sharing):
        one = Mean()

        def configure_metrics(self, config: Mapping[str, Any]) -> Any:
            return {"accuracy": self.one}

        def validation_step(self, model: nn.Module, batch: Any) -> Any:
            return {"accuracy": (batch[1], batch[1])}

    with pytest.raises(StudyError, match="configure_metrics returned a Mean that"):
        searched(Measured(lambda: lambda config: net()), tmp_path / "other")


def test_a_shared_backbone_is_there_once_in_a_fused_pack() -> None:
    body = frozen(net())
    recipe = Sharing(lambda: backbone(body))
    samples = tuple(map(torch.from_numpy, ROWS))
    settings = [{"lr": 0.05}, {"lr": 0.1}]
    fused = Fused(lanes(recipe, settings))
    together(fused, samples)
    separate = lanes(recipe, settings)
    for one, other in zip(fused.lanes, separate, strict=True):
        alone(other, samples)
        assert gap(one, other) < 1e-5
        assert one.model.backbone[0].weight is body[0].weight
