"""Steps that step their optimizers themselves: the same alone, packed, hopped and resumed."""

from pathlib import Path
from typing import Any

import pytest
import torch
from own_steps_kit import Closure, Gan, Sam
from torch import nn
from torch.optim import SGD
from train_kit import Linear, blobs, copied, go, planned, trainer, trial

from shoal.core.trial import Trial, TrialId
from shoal.train.lane.checkpoints import Checkpoints
from shoal.train.lane.lane import TrainingLane
from shoal.train.recipe.recipe import Recipe
from shoal.train.recipe.seat import Orders, Seat
from shoal.train.recipe.unit import Done, TrialError, Unit
from shoal.train.slot.trainer import SlotTrainer
from shoal.train.tools.check import check_recipe
from shoal.train.tools.verify import differences

CASES = {
    "gan": (Gan, {}),
    "gan with schedules": (Gan, {"schedules": True}),
    "lbfgs": (Closure, {}),
    "lbfgs with a line search": (Closure, {"line_search": "strong_wolfe"}),
    "lbfgs with a schedule": (Closure, {"schedules": True}),
    "sam": (Sam, {}),
}
CASE = pytest.mark.parametrize("case", CASES)
DATA = blobs(chunk=13)


def alone(recipe: Recipe, what: Trial, epochs: int = 2) -> Any:
    at = trainer(recipe, DATA)
    go(at, what, planned(DATA, epochs))
    return copied(at.state(what.id))


def together(at: SlotTrainer, trials: list[Trial], fuse: bool) -> None:
    """Two epochs of all trials, a unit of each at a time."""
    made: dict[TrialId, Any] = {each.id: () for each in trials}
    for visit in planned(DATA, 2):
        units = [
            Unit(each, made[each.id], visit, evaluate=visit.shard == DATA.shards[-1])
            for each in trials
        ]
        for name, news in at.train_pack(units, fuse):
            if isinstance(news, Done):
                made[name] = (*made[name], news.visit)
            elif isinstance(news, TrialError):
                raise news


@CASE
@pytest.mark.parametrize("fuse", [False, True])
def test_packed_is_alone(case: str, fuse: bool) -> None:
    """A pack that may fuse trains them one after the other, so that they stay equal."""
    kind, config = CASES[case]
    trials = [trial("a", **config), trial("b", **config, lr=0.02)]
    at = trainer(kind(), DATA)
    together(at, trials, fuse)
    for each in trials:
        assert not list(differences(at.state(each.id), alone(kind(), each)))


@CASE
def test_hopped_is_alone(case: str) -> None:
    kind, config = CASES[case]
    what = trial("a", **config)
    visits: tuple[Any, ...] = ()
    source = None
    for visit in planned(DATA, 2):
        at = trainer(kind(), DATA)
        visits = go(at, what, [visit], visits, source=source)
        source = copied(at.state(what.id))
    assert not list(differences(source, alone(kind(), what)))


@CASE
def test_resumed_from_a_checkpoint_is_alone(case: str, tmp_path: Path) -> None:
    kind, config = CASES[case]
    what = trial("a", **config)
    vault = Checkpoints(tmp_path, 1)
    vault.mark()
    at = trainer(kind(), DATA, vault)
    visits = go(at, what, planned(DATA, 2)[:3])
    name = at.keep(what.id)
    again = trainer(kind(), DATA, vault)
    go(again, what, planned(DATA, 2)[3:], visits, source=name)
    assert not list(differences(again.state(what.id), alone(kind(), what)))


@CASE
def test_the_check_of_a_recipe_covers_them(case: str) -> None:
    kind, config = CASES[case]
    found = check_recipe(kind(), DATA, config)
    assert found["ok"], found


def test_values_are_noted_and_losses_fall() -> None:
    at = trainer(Closure(batch_size=30), DATA)
    what = trial("a")
    sums = []
    visits: tuple[Any, ...] = ()
    for visit in planned(DATA, 4):
        for _, news in at.train_pack([Unit(what, visits, visit)]):
            if isinstance(news, Done):
                visits = (*visits, news.visit)
            elif not isinstance(news, TrialError) and "loss" in news.values:
                sums.append(news.values["loss"])
    first, last = sums[0], sums[-1]
    assert last[0] / last[1] < 0.5 * first[0] / first[1]

    lane = TrainingLane(Gan(batch_size=30), {}, seed=0, device=torch.device("cpu"), epoch=90)
    lane.begin(30)
    with lane.rng:
        lane.step((torch.zeros(30, 6), torch.zeros(30, dtype=torch.int64)), 30)
    _, values = lane.taken()
    assert set(values) == {"loss", "d_loss"} and values["d_loss"][1] == 30


def test_schedules_go_by_progress_and_by_epoch() -> None:
    at = trainer(Gan(), DATA)
    what = trial("a", schedules=True)
    go(at, what, planned(DATA, 2))
    state = at.state(what.id)
    first, second = state["optimizer"]
    assert first["param_groups"][0]["lr"] == pytest.approx(0.01 / 4)
    before_last = (180 - 6) / 90  # epochs made before the last step, of 6 samples
    assert second["param_groups"][0]["lr"] == pytest.approx(0.01 / (1 + before_last))
    assert state["scheduler"][0]["last_epoch"] == 2 and state["scheduler"][1] is None


def test_a_trial_that_starts_from_another_keeps_its_own_rates() -> None:
    parent = alone(Gan(), trial("a"))
    lane = TrainingLane(Gan(), {"lr": 0.3}, seed=3, device=torch.device("cpu"), epoch=90)
    lane.load(parent)
    rates = [each.param_groups[0]["lr"] for each in lane.optimization.optimizers]
    assert rates == [0.3, 0.3]
    moments = lane.optimization.optimizers[1].state_dict()["state"][0]["momentum_buffer"]
    theirs = parent["optimizer"][1]["state"][0]["momentum_buffer"]
    assert moments.numpy().tobytes() == theirs.tobytes()


def test_gradients_left_behind_do_not_last_beyond_a_pass() -> None:
    """They are no part of a state, so that a trial that hops does not have them."""

    class Leaves(Linear):
        def training_step(  # type: ignore[override]
            self, model: nn.Module, batch: Any, optimizers: Any
        ) -> Any:
            loss = super().training_step(model, batch)
            loss.backward()
            optimizers[0].step()
            return loss

        def configure_optimizers(self, model: nn.Module, config: Any) -> Any:
            return SGD(model.parameters(), lr=0.01)

    what = trial("a")
    first, second = trainer(Leaves(), DATA), trainer(Leaves(), DATA)
    visits = go(first, what, planned(DATA, 1)[:1])
    state = copied(first.state(what.id))
    go(first, what, planned(DATA, 1)[1:2], visits)
    go(second, what, planned(DATA, 1)[1:2], visits, source=state)
    assert not list(differences(first.state(what.id), second.state(what.id)))


def test_several_slots_are_refused() -> None:
    at = trainer(Gan(), DATA)
    unit = Unit(trial("a"), (), planned(DATA, 1)[0])
    with pytest.raises(TrialError, match="one slot: give widths=\\(1, 1\\)"):
        at.gang.run(unit, Seat(TrialId("a"), 1, 0, 1), Orders())


class Wrong(Closure):
    returned: Any = None

    def training_step(self, model: nn.Module, batch: Any, optimizers: Any) -> Any:
        return self.returned


@pytest.mark.parametrize(
    ("returned", "why"),
    [
        (None, "loss: got NoneType"),
        (torch.zeros(2), r"loss: got shape \(2,\)"),
        ({"loss": 1.0, "name": "x"}, "name: got str"),
    ],
)
def test_what_a_step_must_return(returned: Any, why: str) -> None:
    with pytest.raises(TrialError, match=f"must return the values to note.*{why}"):
        go(trainer(Wrong(returned=returned), DATA), trial(), planned(DATA, 1))


@pytest.mark.parametrize(
    "setting",
    [{"gradient_clip_val": 1.0}, {"accumulate_grad_batches": 2}, {"batch_per_slot": True}],
)
def test_settings_of_shoals_steps_are_refused(setting: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="would do nothing: leave it out"):
        TrainingLane(Gan(), setting, seed=0, device=torch.device("cpu"), epoch=1.0)
