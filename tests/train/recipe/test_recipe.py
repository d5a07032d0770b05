"""What a recipe's methods get for a trial, and that nothing of a trial stays on the recipe."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from device_kit import HERE
from pack_kit import Zoo, by_hand, packed, plan
from pack_kit import trial as pack_trial
from torch import nn
from train_kit import Linear, Small, blobs, go, planned, trainer, trial

import shoal
from shoal.core.trial import TrialId
from shoal.train.fuse.graph import graph_key
from shoal.train.lane.lane import TrainingLane
from shoal.train.recipe.seat import Orders, Seat
from shoal.train.recipe.unit import TrialError, Unit
from shoal.train.slot.setup import TrainerSetup
from shoal.train.tools.check import check_recipe
from shoal.train.tools.verify import compare, retrain


class OnSelf(Zoo):
    """Takes what it needs in a step from the recipe: the value is that of the trial built last."""

    def configure_model(self, config: Any) -> nn.Module:
        self.alpha = config["alpha"]
        return super().configure_model(config)

    def training_step(self, model: Any, batch: Any) -> Any:
        made = super().training_step(model, batch)
        return {**made, "loss": made["loss"] * self.alpha}


class Given(Zoo):
    """Takes it as an argument."""

    def training_step(self, model: Any, batch: Any, config: Any) -> Any:
        made = super().training_step(model, batch)
        return {**made, "loss": made["loss"] * config["alpha"]}

    def validation_step(self, model: Any, batch: Any, config: Any) -> Any:
        scores = super().validation_step(model, batch)
        return {name: values.float() * config["alpha"] for name, values in scores.items()}


@pytest.mark.parametrize("fuse", [False, True])
def test_a_value_on_the_recipe_is_refused_not_taken_from_a_neighbour(fuse: bool) -> None:
    """Both trials trained with the value of the second."""
    recipe = OnSelf()
    data = recipe.data()
    trials = [pack_trial(f"t{i}", 1, data, alpha=0.5 + i) for i in range(2)]
    found = packed(recipe, data, trials, fuse=fuse, pace=lambda *_: 1.0)
    for record in found.values():
        assert record.error is not None
        why = record.error.why
        assert "configure_model sets self.alpha" in why
        assert "training_step(self, model, batch, config)" in why and "model.alpha" in why


@pytest.mark.parametrize(
    "method", ["configure_model", "configure_optimizers", "training_step", "validation_step"]
)
def test_each_method_of_a_trial_is_kept_from_the_recipe(method: str) -> None:
    class Setting(Small):
        pass

    original = getattr(Small, method)

    def setting(self: Any, *arguments: Any) -> Any:
        self.seen = 1
        return original(self, *arguments)

    setattr(Setting, method, setting)
    with pytest.raises(TrialError, match=f"{method} sets self.seen"):
        go(trainer(Setting(), blobs()), trial(), planned(blobs(), 1))


def test_outside_of_trials_a_recipe_may_be_changed() -> None:
    recipe = Small()
    recipe.batch_size = 4
    del recipe.batch_size
    assert recipe.batch_size == 8


@pytest.mark.parametrize("fuse", [False, True])
def test_steps_get_their_trials_configuration_in_company(fuse: bool) -> None:
    recipe = Given()
    data = recipe.data()
    trials = [pack_trial(f"t{i}", 2, data, alpha=0.5 + i) for i in range(3)]
    found = packed(recipe, data, trials, fuse=fuse, pace=lambda *_: 1.0)
    for each in trials:
        alone = by_hand(Given(), data, each)
        assert compare(found[each.id].state, alone.state).equal
        assert found[each.id].scores == alone.scores
    apart = [found[each.id].state["model"] for each in trials]
    assert not compare(apart[0], apart[1]).equal


def test_steps_that_take_the_configuration_are_not_fused() -> None:
    lane = TrainingLane(Given(), {"alpha": 1.0}, seed=0, device=HERE, epoch=1.0)
    with pytest.raises(ValueError, match="a step takes the configuration"):
        graph_key(lane)


def test_replay_and_wide_lanes_give_it_too() -> None:
    recipe = Given()
    data = recipe.data()
    what = pack_trial("t", 1, data, alpha=0.25)
    held = trainer(recipe, data)
    visits = go(held, what, plan(data, 1))
    again = retrain(
        Given(), data, what, visits, TrainerSetup(device=str(HERE), seed=3, metric="accuracy")
    )
    assert compare(held.state(what.id), again).equal
    wide = trainer(Given(), data)
    made = ()
    for visit in plan(data, 1):
        last = visit.shard == data.shards[-1]
        unit = Unit(what, made, visit, evaluate=last)
        report = wide.gang.run(unit, Seat("t", 1, 0, 1), Orders())
        made = (*made, report[0].visit)
    assert compare(held.state(what.id), wide.state(TrialId("t"))).equal


def test_steps_may_know_the_epoch() -> None:
    seen: list[tuple[str, int]] = []

    class Knowing(Linear):
        def training_step(self, model: Any, batch: Any, epoch: int) -> Any:
            seen.append(("train", epoch))
            return super().training_step(model, batch)

        def validation_step(self, model: Any, batch: Any, epoch: int) -> Any:
            seen.append(("validate", epoch))
            return super().validation_step(model, batch)

    data = blobs()
    held = trainer(Knowing(), data)
    visits = go(held, trial(), planned(data, 1))
    moved = trainer(Knowing(), data)
    go(moved, trial(), planned(data, 2)[3:], visits, source=held.state(trial().id))
    assert list(dict.fromkeys(seen)) == [
        ("train", 0),
        ("validate", 1),
        ("train", 1),
        ("validate", 2),
    ]


@pytest.mark.parametrize("together", [1, 2])
def test_steps_may_know_the_optimizers_step(together: int) -> None:
    """It goes on where the trial goes on, in another slot."""

    class Counting(Linear):
        accumulate_grad_batches = together

        def __init__(self) -> None:
            super().__init__()
            self.seen: list[int] = []

        def training_step(self, model: Any, batch: Any, step: int) -> Any:
            self.seen.append(step)
            return super().training_step(model, batch)

        def validation_step(self, model: Any, batch: Any, step: int) -> Any:
            self.seen.append(-step)
            return super().validation_step(model, batch)

    data, alone, first, then = blobs(), Counting(), Counting(), Counting()
    go(trainer(alone, data), trial(), planned(data, 2))
    held = trainer(first, data)
    visits = go(held, trial(), planned(data, 1))
    rest = planned(data, 2)[3:]
    go(trainer(then, data), trial(), rest, visits, source=held.state(trial().id))
    assert first.seen + then.seen == alone.seen
    trained = [step for step in alone.seen if step >= 0]
    assert trained == sorted(trained)
    assert set(trained) == set(range(max(trained) + 1))
    if together == 1:
        assert trained == list(range(len(trained)))
        assert -len(trained) in alone.seen, "scores see the steps that were made"


class Fading(Linear):
    """Its loss depends on the step, at which it may be killed."""

    dies_at = -1

    def data(self) -> Any:
        return blobs(shards=2)

    def training_step(self, model: Any, batch: Any, step: int) -> Any:
        if step == self.dies_at:
            os._exit(9)
        return super().training_step(model, batch) / (1 + step)


def test_the_step_goes_on_after_a_kill(tmp_path: Path) -> None:
    def study(name: str, epochs: int) -> Any:
        made = shoal.create_study(
            Fading(),
            storage=tmp_path / name,
            search_space={"seed": shoal.grid([1])},
            load_if_exists=True,
        )
        made.optimize(max_epochs=epochs, progress=False, workers=0, checkpoint_every=0)
        return made.load_model("t000").state_dict()

    whole = study("whole", 4)
    study("killed", 1)
    child = os.fork()
    if not child:
        Fading.dies_at = 14
        study("killed", 4)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    again = study("killed", 4)
    assert all(torch.equal(value, whole[name]) for name, value in again.items())


def test_check_finds_what_a_neighbour_of_another_configuration_leaves() -> None:
    """The neighbour had the same configuration, and was built before the trial that is checked."""
    left: dict[str, Any] = {}

    class Leaving(Small):
        def configure_model(self, config: Any) -> nn.Module:
            left["alpha"] = config["alpha"]
            return super().configure_model(config)

        def training_step(self, model: Any, batch: Any) -> Any:
            return super().training_step(model, batch) * left["alpha"]

    recipe = Leaving(batch_size=4)
    found = check_recipe(recipe, blobs(), {"alpha": 0.5}, neighbour={"alpha": 2.0})
    failed = {name for name, passed, _ in found["checks"] if not passed}
    assert failed == {"same beside another trial"}
