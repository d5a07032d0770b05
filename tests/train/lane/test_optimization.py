"""What configure_optimizers may return, and when a scheduler is stepped."""

from pathlib import Path
from typing import Any

import pytest
import torch
from device_kit import HERE
from pack_kit import OPTIMIZERS, Zoo, packed
from pack_kit import trial as packed_trial
from torch import nn
from torch.optim import SGD
from torch.optim.lr_scheduler import (
    CyclicLR,
    LambdaLR,
    OneCycleLR,
    ReduceLROnPlateau,
    SequentialLR,
    StepLR,
)
from train_kit import Linear, blobs, go, planned, trainer, trial

import shoal
from shoal.core.errors import StudyError
from shoal.train.lane.lane import TrainingLane
from shoal.train.recipe.recipe import LRSchedule
from shoal.train.recipe.unit import TrialError
from shoal.train.tools.verify import differences


def made(build: Any, **settings: Any) -> TrainingLane:
    """A lane of a recipe with `build(optimizer)` as what configure_optimizers returns."""

    class Optimized(Linear):
        def configure_optimizers(self, model: nn.Module, config: Any) -> Any:
            return build(SGD(model.parameters(), lr=1.0, momentum=0.9))

    return TrainingLane(Optimized(**settings), {}, seed=3, device=HERE, epoch=90.0)


def rates(lane: TrainingLane, epochs: int = 2) -> list[float]:
    """The learning rate of each step: three steps of 8, 8 and 4 samples an epoch."""
    found: list[float] = []
    lane.optimizer.register_step_pre_hook(
        lambda optimizer, *_: found.append(float(optimizer.param_groups[0]["lr"]))
    )
    samples = torch.zeros(20, 6), torch.zeros(20, dtype=torch.int64)
    for _ in range(epochs):
        lane.begin(20)
        with lane.rng:
            list(lane.feed(samples))
            list(lane.flush())
            lane.end_epoch(1.0)
    return found


BY_STEP = [1.0, 0.5, 0.25, 0.125, 0.0625, 0.03125]
BY_EPOCH = [1.0, 1.0, 1.0, 0.5, 0.5, 0.5]


def halving(optimizer: Any) -> LambdaLR:
    return LambdaLR(optimizer, lambda count: 0.5**count)


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (lambda o: o, [1.0] * 6),
        (lambda o: [o], [1.0] * 6),
        (lambda o: ([o], []), [1.0] * 6),
        (lambda o: (o, halving(o)), BY_EPOCH),
        (lambda o: ([o], [halving(o)]), BY_EPOCH),
        (lambda o: {"optimizer": o, "lr_scheduler": halving(o)}, BY_EPOCH),
        (lambda o: {"optimizer": o, "lr_scheduler": {"scheduler": halving(o)}}, BY_EPOCH),
        (lambda o: [{"optimizer": o, "lr_scheduler": halving(o)}], BY_EPOCH),
        (
            lambda o: {
                "optimizer": o,
                "lr_scheduler": {
                    "scheduler": halving(o),
                    "interval": "step",
                    "frequency": 1,
                    "name": "rate",
                },
            },
            BY_STEP,
        ),
        (lambda o: ([o], [{"scheduler": halving(o), "interval": "step"}]), BY_STEP),
        (lambda o: (o, {"scheduler": StepLR(o, 1, 0.5), "interval": "step"}), BY_STEP),
        (lambda o: (o, LRSchedule(lambda samples: 0.5**samples, unit="samples")), None),
    ],
)
def test_forms_of_configure_optimizers(build: Any, expected: list[float] | None) -> None:
    found = rates(made(build))
    if expected is None:
        expected = [0.5**samples for samples in (0, 8, 16, 0, 8, 16)]  # no visit was recorded
    assert found == pytest.approx(expected)


def cycle(optimizer: Any) -> OneCycleLR:
    return OneCycleLR(optimizer, 0.1, total_steps=6)


def test_schedulers_that_count_steps_are_stepped_by_step() -> None:
    plain = SGD([nn.Parameter(torch.zeros(1))], lr=1.0, momentum=0.9)
    scheduler = cycle(plain)
    expected = []
    for _ in range(5):
        expected.append(plain.param_groups[0]["lr"])
        plain.step()
        scheduler.step()
    assert rates(made(lambda o: (o, cycle(o)))) == pytest.approx(
        [*expected, plain.param_groups[0]["lr"]]
    )
    assert made(lambda o: (o, CyclicLR(o, 0.1, 0.2))).schedule.by_step
    assert made(
        lambda o: (o, SequentialLR(o, [StepLR(o, 1), CyclicLR(o, 0.1, 0.2)], [5]))
    ).schedule.by_step
    by_epoch = made(lambda o: (o, {"scheduler": cycle(o), "interval": "epoch"}))
    assert by_epoch.schedule.by_epoch and not by_epoch.schedule.by_step


def test_a_group_of_batches_is_one_step() -> None:
    lane = made(
        lambda o: (o, {"scheduler": halving(o), "interval": "step"}), accumulate_grad_batches=2
    )
    assert rates(lane) == pytest.approx([1.0, 0.5, 0.25, 0.125])


@pytest.mark.parametrize(
    ("build", "error", "rule"),
    [
        (lambda o: None, TypeError, "configure_optimizers must return an optimizer, "),
        (lambda o: [1], TypeError, "configure_optimizers must return an optimizer, "),
        (lambda o: ("x", None), TypeError, "configure_optimizers must return an optimizer, "),
        (lambda o: {"optimizer": 1}, TypeError, "configure_optimizers must return an optimizer, "),
        (
            lambda o: {"optimizer": o, "extra": 1},
            TypeError,
            "a dict with the keys optimizer, extra",
        ),
        (lambda o: (o, "x"), TypeError, "got the scheduler str"),
        (lambda o: (o, o), ValueError, "returned 2 optimizers, so that training_step"),
        (lambda o: [o, o], ValueError, "returned 2 optimizers, so that training_step"),
        (lambda o: ([o, o], []), ValueError, "returned 2 optimizers, so that training_step"),
        (lambda o: (o, o, o), ValueError, "returned 3 optimizers, so that training_step"),
        (lambda o: [], TypeError, "got no optimizer"),
        (
            lambda o: ([o], [halving(o), halving(o)]),
            ValueError,
            "one scheduler; configure_optimizers returned 2",
        ),
        (
            lambda o: (o, {"scheduler": halving(o), "interval": "batch"}),
            ValueError,
            'interval must be "epoch" or "step"; got \'batch\'',
        ),
        (
            lambda o: (o, {"scheduler": halving(o), "frequency": 3}),
            ValueError,
            "frequency 1; got 3",
        ),
        (lambda o: (o, {"scheduler": halving(o), "when": 3}), ValueError, "got scheduler, when"),
        (lambda o: (o, {"interval": "step"}), ValueError, 'needs "scheduler"'),
        (
            lambda o: (o, {"scheduler": ReduceLROnPlateau(o), "interval": "step"}),
            ValueError,
            "ReduceLROnPlateau is stepped once an epoch",
        ),
        (
            lambda o: (o, {"scheduler": LRSchedule(lambda e: 1.0), "interval": "epoch"}),
            ValueError,
            "an LRSchedule is set before every step",
        ),
    ],
)
def test_what_is_refused(build: Any, error: type[Exception], rule: str) -> None:
    with pytest.raises(error, match=rule):
        made(build)


def test_a_plateau_follows_the_studys_metric() -> None:
    def lane(monitor: str) -> TrainingLane:
        return made(
            lambda o: {
                "optimizer": o,
                "lr_scheduler": {"scheduler": ReduceLROnPlateau(o), "monitor": monitor},
            }
        )

    lane("accuracy").schedule.check_metric("accuracy")
    with pytest.raises(ValueError, match="'accuracy'; got monitor='val_loss'"):
        lane("val_loss").schedule.check_metric("accuracy")
    with pytest.raises(ValueError, match="none is set: give metric="):
        lane("accuracy").schedule.check_metric(None)


class Follows(Linear):
    def data(self) -> Any:
        return blobs()

    def configure_optimizers(self, model: nn.Module, config: Any) -> Any:
        optimizer = SGD(model.parameters(), lr=0.1)
        return optimizer, ReduceLROnPlateau(optimizer, mode=config["plateau"])


@pytest.mark.parametrize(
    ("plateau", "mode", "refused"),
    [("min", "max", True), ("max", "min", True), ("max", "max", False)],
)
def test_a_plateau_has_the_metrics_mode(
    plateau: str, mode: str, refused: bool, tmp_path: Path
) -> None:
    space = {"plateau": shoal.grid([plateau])}
    study = shoal.create_study(
        Follows(), storage=tmp_path, metric="accuracy", mode=mode, search_space=space
    )
    if refused:
        rule = rf"mode='{plateau}'\) follows the study's metric, 'accuracy', whose mode is"
        with pytest.raises(StudyError, match=rule):
            study.optimize(max_epochs=1, progress=False)
        assert not study.folder.journal.exists()
    else:
        study.optimize(max_epochs=1, progress=False)
        assert study.trials[0].status == "finished"


def test_a_slot_refuses_a_plateau_of_another_mode() -> None:
    """Not each configuration is rehearsed."""
    what = trial(plateau="min")
    with pytest.raises(TrialError, match="whose mode is 'max'"):
        go(trainer(Follows(), blobs(), mode="max"), what, planned(blobs(), 1))


def test_with_a_batch_per_slot_a_scheduler_may_not_count_steps() -> None:
    """Their number would depend on the widths at which the trial happened to train."""
    with pytest.raises(ValueError, match=r"OneCycleLR counts optimizer steps.*batch_per_slot"):
        made(lambda o: (o, cycle(o)), batch_per_slot=True)
    made(lambda o: (o, halving(o)), batch_per_slot=True)


@pytest.mark.parametrize("schedule", ["one cycle", "each step"])
def test_steps_go_on_counting_after_a_restart_and_a_hop(schedule: str) -> None:
    data, what = blobs(chunk=13), trial(schedule=schedule)
    whole = trainer(Linear(), data)
    go(whole, what, planned(data, 2))
    first, second = trainer(Linear(), data), trainer(Linear(), data)
    visits = go(first, what, planned(data, 2)[:2])
    go(second, what, planned(data, 2)[2:], visits, source=first.state(what.id))
    assert not list(differences(whole.state(what.id), second.state(what.id)))
    assert whole.state(what.id)["scheduler"]["last_epoch"] == 2 * 12


def test_a_scheduler_stepped_too_often_is_its_trials_error() -> None:
    class Short(Linear):
        def configure_optimizers(self, model: nn.Module, config: Any) -> Any:
            optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
            return optimizer, OneCycleLR(optimizer, 0.1, total_steps=20)

    data = blobs()
    with pytest.raises(TrialError, match="total steps is 20"):
        go(trainer(Short(), data), trial(), planned(data, 2))


class Cycling(Zoo):
    def configure_optimizers(self, model: nn.Module, config: Any) -> Any:
        optimizer = OPTIMIZERS["momentum"](model.parameters(), config["lr"])
        return optimizer, OneCycleLR(optimizer, config["lr"], total_steps=config["steps"])


@pytest.mark.parametrize("fuse", [False, True])
def test_the_lanes_of_a_pack_keep_their_own_steps(fuse: bool) -> None:
    """One scheduler of three ends too soon: its trial fails, the others learn what they would
    alone.
    """
    data = Zoo().data()
    trials = [
        packed_trial(f"t{i}", 2, data, model="mlp", lr=0.01 * (i + 1), steps=steps)
        for i, steps in enumerate((1000, 7, 500))
    ]
    found = packed(Cycling(), data, trials, fuse=fuse)
    assert "total steps is 7" in str(found[trials[1].id].error)
    for each in (trials[0], trials[2]):
        alone = packed(Cycling(), data, [each])[each.id]
        counted = [record.state["scheduler"]["last_epoch"] for record in (alone, found[each.id])]
        assert counted[0] == counted[1] > 7
        worst = max((gap for _, gap in differences(alone.state, found[each.id].state)), default=0.0)
        assert worst <= (1e-4 if fuse else 0.0)
