"""What training changes outside state dicts: a trial that is resumed or moved keeps it, or fails.

Each case is trained for three epochs at one slot, and with its state carried to a new slot after
each visit, as text of a pickle: the states at the end are equal to the bit, or the first unit that
makes the change ends the trial.
"""

import itertools
import os
import pickle
import queue
import warnings
from collections import deque
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, prune
from torch.optim import swa_utils
from torch.utils.data import DataLoader, TensorDataset
from train_kit import blobs, drive, planned, trainer, trial

import shoal
from shoal.train.lane import model_changes
from shoal.train.lane.lane import TrainingLane
from shoal.train.recipe.recipe import Recipe
from shoal.train.recipe.unit import TrialError, Unit
from shoal.train.tools.verify import compare, model_from

DATA = blobs(shards=1)
ROWS = DATA.read(DATA.shards[0])
Change = Callable[[Any, Any], Any]  # of a model, and its optimizer


class Net(nn.Module):
    """With something of every kind that a step can change."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.norm = nn.BatchNorm1d(8)
        self.drop = nn.Dropout(0.2)
        self.unused = nn.Linear(1, 1)
        self.last = nn.Linear(8, 3)
        self.register_buffer("scale", torch.ones(8))
        self.register_buffer("hidden", torch.ones(8), persistent=False)
        self.temperature = 1.0
        self.history = [1.0]
        self.average = torch.zeros(8)
        self.array = np.ones(8, dtype="f4")
        self.number = np.float32(1.0)
        self.act = torch.tanh
        self.helper = SimpleNamespace(factor=1.0)
        self.recent = deque([1.0], maxlen=2)
        self.draws = np.random.default_rng(0)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=16.0, growth_interval=2)
        average = swa_utils.get_ema_multi_avg_fn(0.9)
        self.ema = swa_utils.AveragedModel(self.first, multi_avg_fn=average)

    def forward(self, x: Any) -> Any:
        x = self.drop(self.norm(self.first(x)))
        x = self.act(x) * self.scale * self.hidden * self.helper.factor
        x = x + self.average * sum(self.history) + torch.from_numpy(self.array)
        return self.last(x) / (self.temperature * float(self.number) * sum(self.recent))


def _set(path: str, value: Callable[[Any], Any]) -> Change:
    """Give an attribute the value that comes of the one before."""

    def change(model: Any, _: Any) -> None:
        *owners, name = path.split(".")
        for owner in owners:
            model = getattr(model, owner)
        setattr(model, name, value(getattr(model, name)))

    return change


def _group(model: Any, optimizer: Any) -> None:
    """Move a parameter to a group of its own."""
    last = optimizer.param_groups[0]["params"].pop()
    optimizer.add_param_group({"params": [last], "lr": 0.5})


def _extra(_: Any, optimizer: Any) -> None:
    optimizer.param_groups[0]["lr"] *= 0.5 * optimizer.param_groups[0].get("extra", 1.0)
    optimizer.param_groups[0]["extra"] = 0.9


def _average(model: Any, _: Any) -> None:
    model.average = 0.5 * model.average + model.first.weight.detach().mean(1)


def _non_persistent(model: Any, _: Any) -> None:
    model.hidden.mul_(0.9)


KEPT: dict[str, Change] = {
    "frozen": lambda model, _: model.first.requires_grad_(False),
    "thawed": lambda model, _: model.last.requires_grad_(True),
    "frozen norm": lambda model, _: model.norm.eval(),
    "no dropout": lambda model, _: model.drop.eval(),
    "dropout p": _set("drop.p", lambda p: p * 0.7),
    "momentum": _set("norm.momentum", lambda momentum: momentum * 0.5),
    "temperature": _set("temperature", lambda t: t * 1.1),
    "new attribute": lambda model, _: setattr(model, "temperature", 1 + setdefault(model, "calls")),
    "history": lambda model, _: model.history.append(0.1),
    "average": _average,
    "array": _set("array", lambda array: array * np.float32(1.1)),
    "array in place": lambda model, _: model.array.__imul__(np.float32(1.1)),
    "NumPy number": _set("number", lambda number: number * np.float32(1.1)),
    "buffer": _set("scale", lambda scale: scale * 0.9),
    "non-persistent buffer": _non_persistent,
    "other non-persistent buffer": _set("hidden", lambda hidden: hidden * 0.9),
    "group's numbers": _extra,
    "optimizer's attribute": lambda model, optimizer: setattr(
        model, "temperature", 1 + setdefault(optimizer, "calls")
    ),
}


def _scaled(model: Any, _: Any) -> None:
    """A step of torch's GradScaler, which doubles its scale after each second one."""
    parameter = nn.Parameter(torch.ones(1))
    parameter.grad = torch.ones(1)
    model.scaler.scale(torch.ones(1))
    model.scaler.step(torch.optim.SGD([parameter], lr=0.1))
    model.scaler.update()
    model.temperature = model.scaler.get_scale() / 16


def _ema(model: Any, _: Any) -> None:
    """A step of torch's average of a part of the model, which is a part of the model, too."""
    model.ema.update_parameters(model.first)
    model.scale = model.ema.module.weight.detach().mean(1)


KEPT["GradScaler"] = _scaled
KEPT["AveragedModel"] = _ema
KEPT["number of a parameter"] = lambda model, _: setattr(
    model, "temperature", 1 + setdefault(model.first.weight, "age")
)
KEPT["tensor of a parameter"] = lambda model, _: setattr(
    model, "temperature", 1 + float(_faded(model.first.weight).sum())
)


def _faded(parameter: Any) -> Any:
    """A new tensor that the parameter has as an attribute, changed in place."""
    if not hasattr(parameter, "mask"):
        parameter.mask = torch.ones(2)
    return parameter.mask.mul_(0.9)


class Private:
    """An object that counts by what nobody else should look at."""

    def __init__(self) -> None:
        self._calls = 0

    def count(self) -> None:
        self._calls += 1


class Slots:
    __slots__ = ("calls",)

    def __init__(self) -> None:
        self.calls = 0

    def count(self) -> None:
        self.calls += 1


def _copy_of_first(model: Any) -> list[Any]:
    copy = nn.Linear(6, 8)
    copy.load_state_dict(model.first.state_dict())
    return [copy.requires_grad_(False)]


def _follow(held: Any) -> None:
    with torch.no_grad():
        held[0].weight.mul_(0.9)


# what a model may hold from the beginning, and a change of it that is as good as invisible
HELD: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "deque": (lambda _: deque(), lambda held: held.append(1.0)),
    "set": (lambda _: set(), lambda held: held.add(1)),
    "random generator": (lambda _: np.random.default_rng(0), lambda held: held.random()),
    "torch's generator": (lambda _: torch.Generator(), lambda held: torch.rand(1, generator=held)),
    "namespace": (lambda _: SimpleNamespace(n=0), lambda held: vars(held).update(n=1)),
    "private number": (lambda _: Private(), Private.count),
    "slots": (lambda _: Slots(), Slots.count),
    "queue": (lambda _: queue.Queue(), lambda held: held.put(1)),
    "cycle": (lambda _: itertools.cycle([1.0, 0.5]), next),
    "iterator": (lambda _: iter([1.0, 0.5]), next),
    "generator": (lambda _: (1.0 / n for n in range(1, 9)), next),
    "module in a list": (_copy_of_first, _follow),
    "average in a list": (
        lambda model: [swa_utils.AveragedModel(model.first)],
        lambda held: held[0].update_parameters(nn.Linear(6, 8)),
    ),
    "scaler in a list": (
        lambda _: [torch.amp.GradScaler("cpu", growth_interval=1)],
        lambda held: _scaled(SimpleNamespace(scaler=held[0]), None),
    ),
    "optimizer": (
        lambda model: torch.optim.SGD([model.last.weight], lr=0.1, momentum=0.9),
        lambda held: held.param_groups[0].update(lr=0.2),
    ),
    "schedule": (
        lambda model: torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(
            torch.optim.SGD([model.last.weight], lr=0.1), 5
        ),
        lambda held: held.step(),
    ),
    "parameter in a list": (
        lambda model: [nn.Parameter(torch.ones(2))],
        lambda held: held[0].data.mul_(0.5),
    ),
}


REFUSED: dict[str, tuple[Change, str]] = {
    "function": (_set("act", lambda _: torch.relu), "attribute 'act' of the model"),
    "helper": (lambda model, _: vars(model.helper).update(factor=2.0), "'helper'"),
    "deque": (lambda model, _: model.recent.append(2.0), "'recent'"),
    "generator": (lambda model, _: model.draws.random(), "'draws'"),
    "new object": (lambda model, _: setattr(model, "more", object()), "'more'"),
    "new parameter": (
        lambda model, _: setattr(model, "bias", nn.Parameter(torch.ones(1))),
        "the parameter 'bias' is new",
    ),
    "other parameter": (
        _set("last.weight", lambda weight: nn.Parameter(weight.detach().clone())),
        "last: the parameter 'weight' is another one",
    ),
    "new module": (
        lambda model, _: model.add_module("more", nn.ReLU()),
        "the module 'more' is new",
    ),
    "other module": (_set("last", lambda _: nn.Linear(8, 3)), "the module 'last' is another one"),
    "no module": (_set("norm", lambda _: nn.Identity()), "the module 'norm'"),
    "new buffer": (
        lambda model, _: model.register_buffer("more", torch.ones(1)),
        "the buffer 'more' is new",
    ),
    "other buffer": (
        _set("scale", lambda _: torch.ones(1)),
        r"'scale' was float32 \(8,\) on cpu, and is float32 \(1,\)",
    ),
    "dtype": (lambda model, _: model.unused.double(), "'weight' was"),
    "hook": (
        lambda model, _: model.last.register_forward_hook(lambda *_: None),
        "the hooks of the model.*last",
    ),
    "parameter's hook": (
        lambda model, _: model.last.weight.register_hook(lambda grad: grad * 2),
        "last: the parameter 'weight' was float32.* with 1 hooks",
    ),
    "parametrization": (
        lambda model, _: parametrizations.weight_norm(model.last),
        "the model.*last",
    ),
    "pruning": (
        lambda model, _: prune.l1_unstructured(model.last, "weight", 0.5),
        "the model.*last",
    ),
    "new group": (_group, "had 1 parameter groups, and has 2"),
    "shorter group": (
        lambda _, optimizer: optimizer.param_groups[0]["params"].pop(),
        "the parameters of its group 0",
    ),
    "group's key": (
        lambda _, optimizer: optimizer.param_groups[0].pop("initial_lr"),
        "its group 0 has lost initial_lr",
    ),
    "optimizer's hook": (
        lambda _, optimizer: optimizer.register_step_pre_hook(lambda *_: None),
        "the hooks of the optimizer SGD",
    ),
}


def setdefault(of: Any, name: str) -> int:
    """Count the calls on the object itself."""
    vars(of)[name] = vars(of).get(name, 0) + 1
    return int(vars(of)[name])


class Changing(Recipe):
    """Makes the change at the first step after each epoch."""

    batch_size = 16

    def __init__(self, change: Change) -> None:
        self.change = change

    def configure_model(self, config: Mapping[str, Any]) -> nn.Module:
        return Net()

    def configure_optimizers(self, model: nn.Module, config: Mapping[str, Any]) -> Any:
        if config.get("thawed"):
            model.last.requires_grad_(False)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        optimizer.param_groups[0]["initial_lr"] = 0.1
        model._optimizer = (optimizer,)
        return optimizer

    def training_step(self, model: Any, batch: Any, epoch: int) -> Any:
        if epoch >= 1:
            self.change(model, model._optimizer[0])
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    def validation_step(self, model: nn.Module, batch: Any) -> Any:
        return {"accuracy": (model(batch[0]).argmax(1) == batch[1]).float()}


def lightning(change: Change) -> Recipe:
    """The same as a LightningModule, whose net is within it."""
    package = pytest.importorskip("lightning")

    class Module(package.LightningModule):  # type: ignore[misc,name-defined]
        def __init__(self, thawed: bool = False) -> None:
            super().__init__()
            self.net = Net()
            if thawed:
                self.net.last.requires_grad_(False)

        def on_train_batch_start(self, batch: Any, number: int) -> None:
            if self.current_epoch >= 1:
                change(self.net, self.optimizers())

        def training_step(self, batch: Any, number: int) -> Any:
            return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

        def validation_step(self, batch: Any, number: int) -> None:
            score = (self.net(batch[0]).argmax(1) == batch[1]).float().mean()
            self.log("accuracy", score)

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
            optimizer.param_groups[0]["initial_lr"] = 0.1
            return optimizer

        def train_dataloader(self) -> Any:
            return DataLoader(TensorDataset(*map(torch.from_numpy, ROWS)), 16)

        val_dataloader = train_dataloader

    return shoal.lightning(Module)


def trained(recipe: Recipe, hops: bool, evaluate: bool = True, **config: Any) -> Any:
    """The state after three epochs at one slot, or at a new one for each visit.

    `evaluate`: with a validation after each visit.
    """
    data = DATA if isinstance(recipe, Changing) else recipe.data()
    one = trainer(recipe, data)
    made: tuple[Any, ...] = ()
    state = None
    for visit in planned(data, 3):
        if hops:
            one = trainer(recipe, data)
        source = state if hops else None
        unit = Unit(trial(**config), made, visit, source=source, evaluate=evaluate, carry=True)
        _, done = drive(one.train(unit))
        made = (*made, done.visit)
        state = pickle.loads(pickle.dumps(done.state))
    return state


def assert_model_from(recipe: Recipe, config: dict[str, Any], state: Any) -> None:
    """The model that users get of the state computes what the trial's own does."""
    lane = TrainingLane(recipe, config, seed=0, device=torch.device("cpu"), epoch=len(ROWS[0]))
    lane.load(state)
    mine = lane.model.eval()
    users = model_from(recipe, config, 0, state)
    x = torch.from_numpy(ROWS[0])
    with torch.no_grad():
        assert torch.equal(getattr(users, "net", users)(x), getattr(mine, "net", mine)(x))
    flags = [[p.requires_grad for p in each.parameters()] for each in (users, mine)]
    assert flags[0] == flags[1]


@cache
def unchanged(form: Any, **config: Any) -> Any:
    """The state of a trial that changes nothing."""
    return trained(form(lambda *_: None), False, **config)


@pytest.mark.parametrize("form", [Changing, lightning])
@pytest.mark.parametrize("case", KEPT)
def test_what_can_be_kept_travels_with_the_trial(case: str, form: Any) -> None:
    config = {"thawed": True} if case == "thawed" else {}
    ends = [trained(form(KEPT[case]), hops, **config) for hops in (False, True)]
    assert compare(*ends).equal
    assert not compare(ends[0], unchanged(form, **config)).equal, "the change matters"
    assert_model_from(form(KEPT[case]), config, ends[0])


# validation cannot be undone for what lies in parameters: the rehearsal refuses that
UNDONE = sorted(KEPT.keys() - {"AveragedModel", "group's numbers"})


@pytest.mark.parametrize("case", UNDONE)
def test_what_validation_changes_is_undone(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Validating(Changing):
        def training_step(self, model: Any, batch: Any, epoch: int) -> Any:
            if epoch == 0:
                KEPT["history"](model, None)  # what training changes stays
                KEPT["frozen norm"](model, None)
            return nn.functional.cross_entropy(model(batch[0]), batch[1])

        def validation_step(self, model: Any, batch: Any) -> Any:
            self.change(model, model._optimizer[0])
            return super().validation_step(model, batch)

    monkeypatch.setattr(model_changes, "_warned", set())
    config = {"thawed": True} if case == "thawed" else {}
    never = trained(Validating(KEPT[case]), False, evaluate=False, **config)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        always = trained(Validating(KEPT[case]), False, **config)
    assert compare(never, always).equal
    silent = ("buffer", "norm", "no dropout")  # put back as ever
    if not any(word in case for word in silent):
        assert any("validation changes" in str(each.message) for each in told)


@pytest.mark.parametrize("form", [Changing, lightning])
@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_kept_ends_the_trial_that_changes_it(case: str, form: Any) -> None:
    change, what = REFUSED[case]
    once = []

    def first(model: Any, optimizer: Any) -> None:
        if not once:
            once.append(True)
            change(model, optimizer)

    error = f"(?s)training changed.*{what}.*no state of the trial can hold.*resumed"
    with pytest.raises(TrialError, match=error):
        trained(form(first), False)


@pytest.mark.parametrize("name", ["held", "_held"])
@pytest.mark.parametrize("case", HELD)
def test_objects_that_a_model_holds_cannot_change(case: str, name: str) -> None:
    make, change = HELD[case]

    class Holding(Changing):
        def configure_model(self, config: Mapping[str, Any]) -> nn.Module:
            model = super().configure_model(config)
            vars(model)[name] = make(model)
            return model

    error = f"(?s)training changed the attribute '{name}' of the model"
    with pytest.raises(TrialError, match=error):
        trained(Holding(lambda model, _: change(vars(model)[name])), False)


def test_what_an_optimizer_keeps_privately_cannot_change() -> None:
    class Remembering(torch.optim.SGD):
        def __init__(self, parameters: Any) -> None:
            super().__init__(parameters, lr=0.1)
            self._recent: deque[int] = deque(maxlen=5)

        def step(self, closure: Any = None) -> Any:
            self._recent.append(1)
            return super().step(closure)

    class Own(Changing):
        def configure_optimizers(self, model: Any, config: Mapping[str, Any]) -> Any:
            return Remembering(model.parameters())

        def training_step(self, model: Any, batch: Any, epoch: int) -> Any:
            return nn.functional.cross_entropy(model(batch[0]), batch[1])

    with pytest.raises(TrialError, match="the attribute '_recent' of the optimizer"):
        trained(Own(lambda *_: None), False)


def test_what_the_function_of_a_schedule_counts_cannot_change() -> None:
    class Counting(Changing):
        def configure_optimizers(self, model: Any, config: Mapping[str, Any]) -> Any:
            optimizer = super().configure_optimizers(model, config)
            calls = [0]

            def factor(_: int) -> float:
                calls[0] += 1
                return 1 / calls[0]

            return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, factor)

    with pytest.raises(TrialError, match="LambdaLR, or what they hold"):
        trained(Counting(lambda *_: None), False)


def test_schedules_cannot_get_other_functions() -> None:
    class Scheduled(Changing):
        def configure_optimizers(self, model: Any, config: Mapping[str, Any]) -> Any:
            optimizer = super().configure_optimizers(model, config)
            schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
            model._optimizer = (schedule,)
            return optimizer, schedule

    def change(_: Any, schedule: Any) -> None:
        schedule.lr_lambdas = [lambda _: 0.5]

    with pytest.raises(TrialError, match="the functions of the scheduler LambdaLR"):
        trained(Scheduled(change), False)


@pytest.mark.parametrize("kind", ["recipe", "LightningModule"])
def test_a_study_that_is_grown_and_killed_equals_one_that_was_not(
    tmp_path: Path, kind: str
) -> None:
    dies: list[int] = []

    def change(model: Any, optimizer: Any) -> None:
        if dies and model.temperature > 2.0:
            os._exit(9)
        KEPT["temperature"](model, optimizer)
        KEPT["frozen"](model, optimizer)
        KEPT["no dropout"](model, optimizer)

    recipe = lightning(change) if kind != "recipe" else Changing(change)
    if kind == "recipe":
        recipe.data = partial(blobs, shards=1)  # type: ignore[method-assign]

    def study(name: str, epochs: int) -> Any:
        made = shoal.create_study(
            recipe,
            storage=tmp_path / name,
            metric="accuracy",
            mode="max",
            search_space={"seed": shoal.grid([1])},
            load_if_exists=True,
        )
        made.optimize(max_epochs=epochs, progress=False, workers=0, checkpoint_every=0.0)
        return made.load_model("t000").state_dict()

    whole = study("whole", 4)
    study("grown", 1)
    child = os.fork()
    if not child:
        dies.append(1)
        study("grown", 4)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    assert all(torch.equal(a, whole[name]) for name, a in study("grown", 4).items())


def test_copies_of_a_search_take_it_along(tmp_path: Path) -> None:
    """And the optimizer's step goes on from the copied trial's."""

    class Copied(Changing):
        search_space = {"lr": shoal.uniform(0.01, 0.5)}
        metric, mode = "accuracy", "max"

        def data(self) -> Any:
            return blobs(shards=1)

        def configure_optimizers(self, model: Any, config: Mapping[str, Any]) -> Any:
            model.calls = 0
            return torch.optim.SGD(model.parameters(), lr=config["lr"])

        def training_step(self, model: Any, batch: Any, step: int) -> Any:  # type: ignore[override]
            _scaled(model, None)
            model.calls += 1
            model.first.requires_grad_(step % 2 == 0)
            assert step + 1 == model.calls
            return nn.functional.cross_entropy(model(batch[0]), batch[1])

        def validation_step(self, model: Any, batch: Any) -> Any:
            calls = torch.full((len(batch[0]),), float(model.calls))
            return {**super().validation_step(model, batch), "calls": calls}

    study = shoal.create_study(
        Copied(lambda *_: None),
        storage=tmp_path / "s",
        searcher=shoal.PBT(num_samples=4, max_epochs=4, quantile_fraction=0.5),
    )
    study.optimize(progress=False, workers=0)
    assert any(known.start for known in study.state.known.values())
    steps = -(-len(ROWS[0]) // Copied.batch_size)
    for each in study.trials:
        assert all(v["calls"] == steps * epoch for epoch, v in each.scores)
    assert {row["verdict"] for row in study.replay()} <= {"equal", "agrees"}
