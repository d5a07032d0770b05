"""`batch_size="max"`: found out once, by trying, and from then on the trial's own."""

from pathlib import Path
from typing import Any

import pytest
import torch
from pack_kit import Zoo, by_hand, packed, plan, trial
from train_kit import even_pace
from train_kit import trainer as slot_trainer

import shoal
from shoal.backend.local import Local
from shoal.core.event import Commanded, Measured
from shoal.policy import Fifo, Pack
from shoal.train.lane.checkpoints import Checkpoints
from shoal.train.recipe.unit import Done, TrialError, Unit
from shoal.train.slot.context import Stopwatch
from shoal.train.tools.check import check_recipe
from shoal.train.tools.verify import compare, differences


class Tight(Zoo):
    """No batch of more than `room` samples fits; `steps` are the sizes tried and trained."""

    room = 8

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"samples": 80, "batch_size": "max", **settings})
        self.steps: list[int] = []

    def training_step(self, model: Any, batch: Any) -> Any:
        self.steps.append(len(batch[0]))
        if len(batch[0]) > self.room:
            raise torch.OutOfMemoryError("too large")
        return super().training_step(model, batch)


def equal(state: Any, other: Any) -> bool:
    return [name for name, _ in differences(state, other)] in ([], ["found"])


def test_the_largest_power_of_two_that_fits_once_for_trials_that_are_alike() -> None:
    recipe = Tight()
    data = recipe.data()
    trials = [trial(f"t{i}", 1, data, lr=0.01 * (i + 1)) for i in range(3)]
    found = packed(recipe, data, trials)
    assert (
        recipe.steps[:4] == [2, 4, 8, 16]
        and recipe.steps.count(16) == 1
        and recipe.steps.count(2) == 1
    )
    for each in trials:
        fixed = trial(each.id, 1, data, **each.config, batch_size=8)
        assert found[each.id].state["found"] == 8
        assert equal(found[each.id].state, by_hand(Tight(), data, fixed).state)
        assert found[each.id].scores == by_hand(Tight(), data, fixed).scores


@pytest.mark.parametrize(
    ("room", "shards", "size"), [(1000, 2, 32), (1000, 4, 16), (1000, 1, 64), (2, 1, 2)]
)
def test_bounds(room: int, shards: int, size: int) -> None:
    recipe = Tight(shards=shards)
    recipe.room = room
    data = recipe.data()
    assert packed(recipe, data, [trial("a", 1, data)])["a"].state["found"] == size


def test_validation_must_fit_too() -> None:
    """It takes several batches at once."""

    class Scored(Tight):
        def validation_step(self, model: Any, batch: Any) -> Any:
            if len(batch[0]) > 16:
                raise torch.OutOfMemoryError("too large")
            return super().validation_step(model, batch)

    recipe = Scored(validation=40)
    data = recipe.data()
    found = packed(recipe, data, [trial("a", 1, data)])["a"]
    assert found.state["found"] == 4 and found.scores
    assert recipe.steps[:3] == [2, 4, 8]


def test_without_limit_a_cpu_takes_1024() -> None:
    recipe = Zoo(samples=3000, shards=1, batch_size="max")
    data = recipe.data()
    lane = (
        slot_trainer(recipe, data)
        .lanes.ready(Unit(trial("a", 1, data), (), plan(data, 1)[0]), Stopwatch(False))
        .lane
    )
    assert lane.found_size == lane.settings.batch_size == 1024


def test_within_the_memory_of_the_slot() -> None:
    """As estimated: all outputs of modules, and what the lane holds."""
    recipe = Zoo(samples=600, shards=1, batch_size="max", validation=8)
    data = recipe.data()
    sizes = []
    for memory in (2**-10, 2**-12, 1.0):
        trainer = slot_trainer(recipe, data, slot_memory_gb=memory)
        sizes.append(
            trainer.lanes.ready(
                Unit(trial("a", 1, data, model="cnn"), (), plan(data, 1)[0]), Stopwatch(False)
            ).lane.settings.batch_size
        )
    assert sizes[1] < sizes[0] < sizes[2] == 512


def test_what_does_not_fit_at_all_fails() -> None:
    recipe = Tight()
    recipe.room = 1
    data = recipe.data()
    error = packed(recipe, data, [trial("a", 1, data)])["a"].error
    assert isinstance(error, TrialError) and "too large" in error.why
    data = Zoo().data()
    error = packed(Zoo(batch_size="huge"), data, [trial("a", 1, data)])["a"].error
    assert (
        error is not None
        and "batch_size must be a whole number >= 1, or \"max\"; got 'huge'" in error.why
    )
    assert check_recipe(Tight(), Tight().data(), {})["ok"] is False  # 32 is too large
    assert check_recipe(Zoo(batch_size="max"), data, {})["ok"]


def test_a_trial_goes_on_with_its_own(tmp_path: Path) -> None:
    """At a slot where more would fit, too; and `configure_*` are told the number."""
    told = []

    class Told(Tight):
        def configure_optimizers(self, model: Any, config: Any) -> Any:
            told.append(config["batch_size"])
            return super().configure_optimizers(model, config)

    recipe = Told()
    data = recipe.data()
    what = trial("a", 1, data)
    first = slot_trainer(recipe, data, Checkpoints(tmp_path, 1), checkpoint_every=0.0)
    done: Any = None
    for _, done in first.train_pack([Unit(what, (), plan(data, 1)[0])]):
        pass
    assert isinstance(done, Done) and done.figures["batch_size"] == 8
    recipe.room = 1000
    other = slot_trainer(recipe, data, Checkpoints(tmp_path, 2))
    again: Any = None
    for _, again in other.train_pack(
        [Unit(what, (done.visit,), plan(data, 1)[1], source=done.kept)]
    ):
        pass
    assert again.figures["batch_size"] == 8 and told[-1] == 8
    assert equal(other.state(what.id), packed(Tight(), data, [what])["a"].state)


def test_fused_with_those_that_have_the_same_by_name() -> None:
    recipe = Tight(dtype=torch.float64)
    data = recipe.data()
    trials = [
        trial("max", 1, data),
        trial("eight", 1, data, batch_size=8),
        trial("four", 1, data, batch_size=4),
    ]
    trainer = slot_trainer(recipe, data, pace=even_pace)
    found = packed(recipe, data, trials, fuse=True, trainer=trainer)
    lanes = {name: trainer.lanes.get(name).lane for name in found}
    fused = trainer.pack.stacks.of(lanes[trials[0].id])
    assert fused is not None and set(fused.lanes) == {lanes[trials[0].id], lanes[trials[1].id]}
    alone = by_hand(Tight(dtype=torch.float64), data, trials[1])
    assert compare(found[trials[0].id].state["model"], alone.state["model"]).difference < 1e-8


class Roomy(Tight):
    """Room for 8 in the first run, for all afterwards."""

    search_space = {"lr": shoal.grid([0.02, 0.05]), "model": shoal.grid(["mlp", "cnn"])}


def stopping_after(visits: int) -> Any:
    """`Local.moments` of a run that is told to stop once so many visits are made."""
    usual = Local.moments

    def moments(backend: Local) -> Any:
        asked = False
        for moment in usual(backend):
            yield moment
            made = sum(len(at.visits) for at in backend.course.positions.values())
            if made >= visits and not asked:
                asked = True
                backend.tell(Commanded("stop", "as asked"))

    return moments


@pytest.mark.parametrize("policy", [Fifo(), Pack("random", most=4)])
def test_the_journal_keeps_it_for_resume_and_replay(tmp_path: Path, policy: Any) -> None:
    recipe = Roomy()
    study = shoal.create_study(recipe, storage=tmp_path, metric="accuracy", mode="max")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Local, "moments", stopping_after(visits=3))
        study.optimize(policy=policy, max_epochs=2, progress=False, checkpoint_every=0.0)
    begun = [name for name, visits in study.state.visits.items() if visits]
    assert study.state.stopped is not None and begun
    recipe.room = 1000
    study.optimize(policy=policy, max_epochs=2, progress=False, checkpoint_every=0.0)
    assert {trial.status for trial in study.trials} == {"finished"}
    figures = {
        name: study.state.figures[signature]["batch_size"]
        for name, signature in study.state.signature.items()
    }
    assert all(figures[name] == 8 for name in begun)
    said = [
        line.entry
        for line in study.lines()
        if isinstance(line.entry, Measured) and "batch_size" in line.entry.figures
    ]
    assert len(said) == len({entry.signature for entry in said})
    assert all(row["equal"] for row in study.replay())
    study.best_model()
