"""What modules see in each hook, in Shoal and in Lightning's Trainer: both run, row by row.

docs/lightning.md promises what this table shows. What differs is listed in `DIFFERS`.
"""

import warnings
from pathlib import Path
from typing import Any

import adapt_kit as kit
import pytest
import torch
from adapt_kit import Net
from torch.optim.lr_scheduler import ExponentialLR, ReduceLROnPlateau, StepLR

import shoal

# the rows of each module that was built, in the order of building
RUNS: list[list[dict[str, Any]]] = []
# hooks that Shoal does not call; a warning says so
NOT_CALLED = {"on_train_end", "on_fit_end", "teardown"}
# (hook, column): what Shoal tells in another way
DIFFERS = {
    # the Trainer has not read its data by then
    ("on_fit_start", "batches"),
    # the Trainer's flag stays as the epoch before left it
    ("on_train_epoch_start", "last"),
}
# what the Trainer's schedules by epoch have set already, before validation and the epoch's end
AFTER_SCHEDULE = {
    "on_train_batch_end",
    "on_validation_start",
    "on_validation_epoch_start",
    "on_validation_batch_start",
    "validation_step",
    "on_validation_batch_end",
    "on_validation_epoch_end",
    "on_validation_end",
    "on_train_epoch_end",
}
# plain hooks, called without arguments or with some that are not compared
HOOKS = [
    "on_fit_start",
    "on_train_start",
    "on_train_epoch_start",
    "on_train_epoch_end",
    "on_validation_start",
    "on_validation_epoch_start",
    "on_validation_epoch_end",
    "on_validation_end",
    "on_before_zero_grad",
    "on_before_backward",
    "on_after_backward",
    "on_before_optimizer_step",
    *NOT_CALLED,
]


def note(module: Any, hook: str, **more: Any) -> None:
    """Add a row: what the module sees in this hook."""
    trainer = module.trainer
    optimizers = module.optimizers()
    schedulers = module.lr_schedulers()
    listed = optimizers if isinstance(optimizers, list) else [optimizers]
    module.calls += module.training  # what validation assigns is undone
    row = {
        "hook": hook,
        "epoch": module.current_epoch,
        "step": module.global_step,
        "trainer's": (trainer.current_epoch, trainer.global_step),
        "stage": (trainer.training, trainer.validating, trainer.sanity_checking),
        "other stages": (trainer.testing, trainer.predicting, trainer.should_stop),
        "last": trainer.is_last_batch,
        "batches": trainer.num_training_batches,
        "steps": int(trainer.estimated_stepping_batches),
        "max_epochs": trainer.max_epochs,
        "group": trainer.accumulate_grad_batches,
        "rank": (trainer.is_global_zero, trainer.global_rank, trainer.world_size),
        "training": module.training,
        "gradient": torch.is_grad_enabled(),
        "automatic": module.automatic_optimization,
        "trained": [p.requires_grad for p in module.parameters()],
        "optimizers": [type(optimizers) is list, len(listed), len(trainer.optimizers)],
        "schedulers": (type(schedulers).__name__, len(trainer.lr_scheduler_configs)),
        "rates": [round(float(o.param_groups[0]["lr"]), 9) for o in listed],
        "assigned": module.calls,
        **more,
    }
    RUNS[module.number].append(row)


class Recorded(Net):
    def __init__(self, width: int = 8, lr: float = 0.1, drop: float = 0.0) -> None:
        super().__init__(width, lr, drop)
        self.number = len(RUNS)
        self.calls = 0
        RUNS.append([])

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        note(self, "training_step", batch_idx=batch_idx, rows=len(batch[0]))
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        note(self, "validation_step", batch_idx=batch_idx, rows=len(batch[0]))
        super().validation_step(batch, batch_idx)
        self.log("val_epoch", float(self.current_epoch))

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        note(self, "on_train_batch_start", batch_idx=batch_idx)

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        seen = {name: round(float(value), 5) for name, value in outputs.items()}
        note(self, "on_train_batch_end", batch_idx=batch_idx, outputs=seen)

    def on_validation_batch_start(self, batch: Any, batch_idx: int) -> None:
        note(self, "on_validation_batch_start", batch_idx=batch_idx)

    def on_validation_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        note(self, "on_validation_batch_end", batch_idx=batch_idx, outputs=outputs)

    def setup(self, stage: str) -> None:
        RUNS[self.number].append({"hook": "setup", "stage": str(getattr(stage, "value", stage))})

    def configure_model(self) -> None:
        RUNS[self.number].append({"hook": "configure_model"})

    def configure_optimizers(self) -> Any:
        RUNS[self.number].append({"hook": "configure_optimizers"})
        return self.forms()

    def forms(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=self.lr)


def recorder(hook: str) -> Any:
    def recorded(self: Any, *_: Any, **__: Any) -> None:
        note(self, hook)

    return recorded


for each in HOOKS:
    setattr(Recorded, each, recorder(each))


class ByStep(Recorded):
    def forms(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=self.lr)
        schedule = ExponentialLR(optimizer, 0.7)
        options = {"scheduler": schedule, "interval": "step", "frequency": 2}
        return {"optimizer": optimizer, "lr_scheduler": options}


class ByEpoch(Recorded):
    def forms(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=self.lr)
        return [optimizer], [StepLR(optimizer, 1, 0.5)]


class EveryOther(Recorded):
    def forms(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=self.lr)
        schedule = {"scheduler": StepLR(optimizer, 1, 0.5), "frequency": 2}
        return [optimizer], [schedule]


class ByMetric(Recorded):
    def forms(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=self.lr)
        schedule = ReduceLROnPlateau(optimizer, patience=0, threshold=10.0)
        options = {"scheduler": schedule, "monitor": "val_loss"}
        return {"optimizer": optimizer, "lr_scheduler": options}


class Clips(Recorded):
    def configure_gradient_clipping(
        self, optimizer: Any, gradient_clip_val: Any, gradient_clip_algorithm: Any
    ) -> None:
        given = (gradient_clip_val, gradient_clip_algorithm)
        note(self, "configure_gradient_clipping", given=given)
        self.clip_gradients(optimizer, gradient_clip_val=0.01, gradient_clip_algorithm="norm")


class Manual(Recorded):
    """Two optimizers in turn, each with only its own parameters to train."""

    def __init__(self, width: int = 8, lr: float = 0.1, drop: float = 0.0) -> None:
        super().__init__(width, lr, drop)
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> None:
        for number, optimizer in enumerate(self.optimizers()):
            self.toggle_optimizer(optimizer)
            note(self, "toggled", of=number)
            loss = torch.nn.functional.cross_entropy(self(batch[0]), batch[1])
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
            self.untoggle_optimizer(optimizer)
        note(self, "stepped", batch_idx=batch_idx)
        if self.trainer.is_last_batch:
            self.lr_schedulers().step()

    def forms(self) -> Any:
        first = torch.optim.SGD(self.net[0].parameters(), lr=self.lr)
        second = torch.optim.Adam(self.net[3].parameters(), lr=self.lr / 10)
        return [first, second], [StepLR(first, 1, 0.5)]


def both(
    kind: Any, folder: Path, trainer: dict[str, Any], ours: dict[str, Any]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The rows of the Trainer, and of Shoal, over the same batches of two epochs."""
    options = dict(ours)
    validate_every = options.pop("validate_every", None)
    rows = 64 if validate_every else 72  # the Trainer skips an epoch's odd last batches
    training, valid = kit.dots(rows, 0), kit.dots(40, 1)
    recipe = shoal.lightning(
        kind, train=training, valid=valid, batch_size=16, max_epochs=2, **options
    )
    plain = kind()
    plain.load_state_dict(kit.begun(recipe, {"lr": 0.1}))
    batches = kit.batches(recipe.data(), 16)
    # validation batches are four times as long in Shoal
    loader = torch.utils.data.DataLoader(valid, batch_size=64)
    kit.fitted(plain, batches, loader, 2, **trainer)
    theirs = RUNS[plain.number]
    every = {} if validate_every is None else {"validate_every": validate_every}
    study = kit.searched(recipe, folder, {"lr": shoal.grid([0.1])}, max_epochs=2, **every)
    logged = [scores["val_epoch"] for _, scores in study.trials[0].scores]
    assert logged == sorted([0.0, 1.0] * (len(logged) // 2))
    return theirs, RUNS[-1]  # before it was one that was thrown away


def told(rows: list[dict[str, Any]], by_epoch: bool) -> list[dict[str, Any]]:
    """The rows without what is known to differ."""
    kept = []
    for row in rows:
        if row["hook"] in NOT_CALLED:
            continue
        left = {name: value for name, value in row.items() if (row["hook"], name) not in DIFFERS}
        if by_epoch and row["hook"] in AFTER_SCHEDULE:
            del left["rates"]
        if row.get("group", 1) > 1:
            # of a group cut short the Trainer takes a part of the mean gradient, Shoal the whole
            left.pop("outputs", None)
        kept.append(left)
    return kept


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("kind", "trainer", "ours"),
    [
        (Recorded, {}, {}),
        (Recorded, {"accumulate_grad_batches": 2}, {"accumulate_grad_batches": 2}),
        (
            Recorded,
            {"gradient_clip_val": 0.1, "gradient_clip_algorithm": "norm"},
            {"gradient_clip_val": 0.1},
        ),
        (Recorded, {"val_check_interval": 2}, {"validate_every": "2 steps"}),
        (ByStep, {}, {}),
        (ByEpoch, {}, {}),
        (EveryOther, {}, {}),
        (ByMetric, {}, {}),
        (Clips, {}, {}),
        (Manual, {}, {}),
    ],
)
def test_each_hook_sees_what_it_sees_in_the_trainer(
    kind: Any, trainer: dict[str, Any], ours: dict[str, Any], tmp_path: Path
) -> None:
    theirs, own = both(kind, tmp_path, trainer, ours)
    by_epoch = kind in (ByEpoch, EveryOther)
    theirs, own = told(theirs, by_epoch), told(own, by_epoch)
    assert [row["hook"] for row in own] == [row["hook"] for row in theirs]
    for number, (mine, right) in enumerate(zip(own, theirs, strict=True)):
        assert mine == right, number


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("group", [1, 2])
def test_the_step_of_a_recipe_is_the_trainers_global_step(group: int, tmp_path: Path) -> None:
    together = {"accumulate_grad_batches": group}
    theirs, _ = both(Recorded, tmp_path / "a", together, together)
    seen: list[int] = []

    class Stepping(shoal.Recipe):
        batch_size = 16
        accumulate_grad_batches = group

        def data(self) -> Any:
            return shoal.Data.dataset(kit.dots(72, 0), validation=None)

        def configure_model(self, config: Any) -> Any:
            return torch.nn.Linear(8, 2)

        def configure_optimizers(self, model: Any, config: Any) -> Any:
            return torch.optim.SGD(model.parameters(), lr=0.1)

        def training_step(self, model: Any, batch: Any, step: int) -> Any:
            seen.append(step)
            return torch.nn.functional.cross_entropy(model(batch[0]), batch[1])

    study = shoal.create_study(
        Stepping(), storage=tmp_path / "b", search_space={"x": shoal.grid([1])}
    )
    study.optimize(max_epochs=2, progress=False, workers=0)
    right = [row["step"] for row in theirs if row["hook"] == "training_step"]
    assert len(right) == 10
    assert seen[-10:] == right, "what came before was the rehearsal"


class Fused(Net):
    """What it scores depends on the epoch."""

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        super().validation_step(batch, batch_idx)
        self.log("val_epoch", float(self.current_epoch))


def test_fused_trials_see_their_own_epoch_in_validation(tmp_path: Path) -> None:
    training, valid = kit.dots(64, 0), kit.dots(40, 1)
    recipe = shoal.lightning(Fused, train=training, valid=valid, batch_size=16)
    space = {"lr": shoal.grid([0.05, 0.1, 0.2])}
    study = kit.searched(recipe, tmp_path, space, max_epochs=2, policy="pack", slots=1)
    for trial in study.trials:
        assert [scores["val_epoch"] for _, scores in trial.scores] == [0.0, 1.0]


class Stops(Net):
    def on_train_epoch_end(self) -> None:
        self.trainer.should_stop = True


class ReadsMetrics(Net):
    def on_validation_epoch_end(self) -> None:
        self.seen = self.trainer.callback_metrics["val_loss"]


class Rising(Net):
    """Follows the study's metric the wrong way round."""

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=self.lr)
        schedule = ReduceLROnPlateau(optimizer, mode="max")
        options = {"scheduler": schedule, "monitor": "val_loss"}
        return {"optimizer": optimizer, "lr_scheduler": options}


class Switches(Net):
    def on_train_epoch_start(self) -> None:
        self.automatic_optimization = False


class Sums(Net):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        self.log("right", 1.0, reduce_fx="sum", on_step=False, on_epoch=True)
        return loss


class Weighs(Net):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        self.log("right", 1.0, on_epoch=True, batch_size=len(batch[0]))
        self.log("tokens", 1.0, on_step=False, on_epoch=True, batch_size=3)
        return loss


class ClipsTwice(Clips):
    pass


@pytest.mark.parametrize(
    ("kind", "options", "says"),
    [
        (Stops, {}, "self.trainer.should_stop = True.*patience"),
        (ReadsMetrics, {}, "self.trainer.callback_metrics.*offers accumulate"),
        (Sums, {}, r"self.log\('right', reduce_fx='sum'\) in a training step.*on_train_epoch_end"),
        (Weighs, {}, r"self.log\('tokens', batch_size=3\) in a training step on 32"),
        (Rising, {}, r"ReduceLROnPlateau\(mode='max'\) follows .*'val_loss'.*'min'"),
        (
            ClipsTwice,
            {"gradient_clip_val": 0.5},
            "clips gradients itself, and gradient_clip_val=0.5 is given",
        ),
    ],
)
def test_refuses_what_the_stand_in_does_not_do(
    kind: Any, options: dict[str, Any], says: str, tmp_path: Path
) -> None:
    training, valid = kit.dots(64, 0), kit.dots(40, 1)
    recipe = shoal.lightning(kind, train=training, valid=valid, max_epochs=1, **options)
    with pytest.raises(shoal.StudyError, match=says):
        kit.searched(recipe, tmp_path, {"lr": shoal.grid([0.1])}, max_epochs=1)
    assert not (tmp_path / "journal.jsonl").exists()


@pytest.mark.parametrize("fuse", [True, False])
def test_what_a_step_logs_several_times_is_averaged(fuse: bool, tmp_path: Path) -> None:
    """As the Trainer does it: a loop over heads logs each by one name."""

    class Heads(Net):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            for value in (1.0, 2.0, 6.0):
                self.log("trained", value, on_step=False, on_epoch=True)
            return super().training_step(batch, batch_idx)

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            for value in (1.0, 2.0, 6.0):
                self.log("val_loss", value)

    training, valid = kit.dots(64, 0), kit.dots(40, 1)
    recipe = shoal.lightning(Heads, train=training, valid=valid)
    space = {"lr": shoal.grid([0.1, 0.2])}
    study = kit.searched(recipe, tmp_path, space, max_epochs=1, fuse=fuse)
    for trial in study.trials:
        [(_, scores)] = trial.scores
        assert scores["trained"] == scores["val_loss"] == 3.0


def test_refuses_hooks_and_switches_that_it_cannot_follow(tmp_path: Path) -> None:
    class Modes(Net):
        def on_validation_model_train(self) -> None: ...

    with pytest.raises(ValueError, match="set modes in on_train_epoch_start"):
        shoal.lightning(Modes)
    training, valid = kit.dots(64, 0), kit.dots(40, 1)
    recipe = shoal.lightning(Switches, train=training, valid=valid, automatic_optimization=True)
    with pytest.raises(shoal.StudyError, match="changes automatic_optimization"):
        kit.searched(recipe, tmp_path, {"lr": shoal.grid([0.1])}, max_epochs=1)


def test_says_what_is_logged_in_vain(tmp_path: Path) -> None:
    class Norms(Net):
        def on_before_optimizer_step(self, optimizer: Any) -> None:
            self.log("norm", 1.0)

    training, valid = kit.dots(64, 0), kit.dots(40, 1)
    recipe = shoal.lightning(Norms, train=training, valid=valid)
    with warnings.catch_warnings(record=True) as told_of:
        warnings.simplefilter("always")
        kit.searched(recipe, tmp_path, {"lr": shoal.grid([0.1])}, max_epochs=1)
    texts = [str(each.message) for each in told_of]
    assert sum("self.log('norm', …) is not kept" in text for text in texts) == 1


class Named(Net):
    """Logs as "loss" what it does not return."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = torch.nn.functional.cross_entropy(self(batch[0]), batch[1])
        self.log("loss", 3 * loss)
        return loss


class NamedByHand(Net):
    """Returns nothing; what it logs as "loss" is the only one."""

    def __init__(self, lr: float = 0.1) -> None:
        super().__init__(lr=lr)
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> None:
        loss = torch.nn.functional.cross_entropy(self(batch[0]), batch[1])
        self.optimizers().zero_grad()
        self.manual_backward(loss)
        self.optimizers().step()
        self.log("loss", loss)


def test_the_loss_is_what_the_step_returns_or_else_logs(tmp_path: Path) -> None:
    data = kit.dots(64, 0), kit.dots(40, 1)
    losses = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for kind in (Named, NamedByHand):
            study = kit.searched(
                shoal.lightning(kind, train=data[0], valid=data[1]),
                tmp_path / kind.__name__,
                {"lr": shoal.grid([0.1])},
                metric="loss",
                max_epochs=1,
            )
            losses.append(study.trials[0].scores[-1][1]["loss"])
    assert sum("as 'loss' and returns" in str(each.message) for each in caught) == 1
    assert losses[0] == pytest.approx(losses[1], rel=0.1)
