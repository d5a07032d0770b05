"""A frozen trunk that trials of a slot have in common: held once, and each learns as alone."""

from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from train_kit import S0, Small, blobs, drive, planned, trainer, trial

from shoal.core.profile import SHARED, Cost, MemoryTogether
from shoal.core.trial import Trial, TrialId, Visit
from shoal.train.fuse.fused import Fused
from shoal.train.lane import trunk
from shoal.train.lane.lane import TrainingLane
from shoal.train.lane.trunk import shared_bytes
from shoal.train.recipe.unit import Done, TrialError, Unit
from shoal.train.slot.trainer import SlotTrainer
from shoal.train.tools.verify import differences

WIDTH = 512
GIB = 2**30
FIRST = Visit(0, S0, 0, 0)
pytestmark = pytest.mark.skipif(
    not trunk.POSSIBLE, reason="this system has no private mappings of memory"
)


def ema(weight: torch.Tensor) -> None:
    with torch.no_grad():
        weight.mul_(0.9)


def by_data(weight: torch.Tensor) -> None:
    weight.data.add_(0.01)


def by_numpy(weight: torch.Tensor) -> None:
    weight.detach().numpy()[:] += 0.01


def unfrozen(weight: torch.Tensor) -> None:
    weight.requires_grad_(True)
    weight.data.sub_(0.01)


def loaded(weight: torch.Tensor) -> None:
    holder = nn.Module()
    holder.weight = weight
    holder.load_state_dict({"weight": torch.full_like(weight, 0.01)})


WRITES = {each.__name__: each for each in (ema, by_data, by_numpy, unfrozen, loaded)}


class Tuned(Small):
    """A head on a frozen trunk that each call makes anew, with the values number `of`.

    `unlike`: with values of its own; `tail`: only the last one. `waits`: the optimizer has
    the trunk, too.
    """

    calls = count(1)

    def configure_model(self, config: Mapping[str, Any]) -> nn.Module:
        body = nn.Sequential(nn.Linear(6, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
        of = next(self.calls) if config.get("unlike") else config.get("of", 1)
        numbers = torch.Generator().manual_seed(of)
        for parameter in body.parameters():
            parameter.data = torch.rand(parameter.shape, generator=numbers) - 0.5
        body[2].weight.data[-1, -1] += config.get("tail", 0)
        body.requires_grad_(False)
        head = nn.Linear(WIDTH, config.get("classes", 3))
        return nn.Sequential(body, nn.BatchNorm1d(WIDTH), nn.Dropout(0.1), head)

    def configure_optimizers(self, model: nn.Module, config: Mapping[str, Any]) -> Any:
        if config.get("waits"):
            return torch.optim.Adam(model.parameters(), lr=0.01)
        return torch.optim.Adam([p for p in model.parameters() if p.requires_grad])


class Writing(Tuned):
    """`writes`: how a trial's step writes to the trunk."""

    def training_step(self, model: nn.Module, batch: Any) -> Any:
        writes = getattr(model, "writes", None)
        if writes is not None:
            WRITES[writes](model[0][2].weight)  # type: ignore[index, arg-type]
        return super().training_step(model, batch)

    def configure_model(self, config: Mapping[str, Any]) -> nn.Module:
        model = super().configure_model(config)
        model.writes = config.get("writes")  # type: ignore[assignment]
        return model


class Undrawn(Tuned):
    """Nothing random, so that it may be fused."""

    def configure_model(self, config: Mapping[str, Any]) -> nn.Module:
        body, _, _, head = super().configure_model(config)  # type: ignore[misc]
        return nn.Sequential(body, head)


def lanes_of(held: SlotTrainer, trials: Sequence[Trial]) -> list[TrainingLane]:
    return [held.lanes.get(each.id).lane for each in trials]  # type: ignore[union-attr]


def train(
    held: SlotTrainer, trials: Sequence[Trial], epochs: int = 1, fuse: bool = False
) -> dict[TrialId, Any]:
    """The last news of each trial, after so many epochs together."""
    made: dict[TrialId, tuple[Visit, ...]] = {each.id: () for each in trials}
    news: dict[TrialId, Any] = {}
    for visit in planned(held.context.data, epochs):
        units = [Unit(each, made[each.id], visit) for each in trials]
        for name, each in held.train_pack(units, fuse=fuse):
            assert not isinstance(each, TrialError), each
            if isinstance(each, Done):
                news[name] = each
                made[name] = (*made[name], each.visit)
    return news


def as_alone(held: SlotTrainer, recipe: Small, trials: Sequence[Trial], epochs: int) -> None:
    """Each trial's state is what it is after training alone."""
    for each in trials:
        alone = trainer(recipe, blobs(), device="cpu")
        train(alone, [each], epochs)
        assert list(differences(held.state(each.id), alone.state(each.id))) == []


def here(recipe: Small, **options: Any) -> SlotTrainer:
    return trainer(recipe, blobs(), device="cpu", **options)


def test_equal_trunks_are_held_once_and_learn_as_alone() -> None:
    trials = [trial("a"), trial("b", lr=1), trial("c", classes=5), trial("d", of=2)]
    held = here(Tuned())
    train(held, trials, epochs=2)
    a, b, c, d = lanes_of(held, trials)
    assert a.trunk and b.trunk and c.trunk and d.trunk is None
    assert {a.trunk.trunk} == {b.trunk.trunk, c.trunk.trunk}
    whole = sum(p.nbytes for p in a.model[0].parameters())  # type: ignore[union-attr, operator]
    assert shared_bytes([a, b, c, d]) == pytest.approx(2 * whole, rel=0.01)
    assert all(lane.trunk.is_equal() for lane in (a, b, c))  # type: ignore[union-attr]
    as_alone(held, Tuned(), trials, epochs=2)


@pytest.mark.parametrize("writes", WRITES)
def test_what_a_lane_writes_to_its_trunk_no_other_lane_sees(writes: str) -> None:
    trials = [trial("a"), trial("b", writes=writes), trial("c")]
    held = here(Writing())
    train(held, trials, epochs=2)
    a, b, c = lanes_of(held, trials)
    assert a.trunk is not None and c.trunk is not None
    if writes not in ("by_data", "by_numpy"):  # those only a look at all values shows
        assert b.trunk is None
    as_alone(held, Writing(), trials, epochs=2)


def test_a_state_that_is_loaded_leaves_the_trunk_held_once() -> None:
    """Loading writes to all pages; those with the values that they had are given back."""
    trials = [trial("a"), trial("b")]
    first = here(Tuned())
    train(first, trials)
    states = {each.id: first.state(each.id) for each in trials}
    second = here(Tuned())
    visits = {each.id: tuple(first.lanes.get(each.id).lane.visits) for each in trials}  # type: ignore[union-attr]
    following = Visit(1, S0, 1, 0)
    units = [Unit(each, visits[each.id], following, source=states[each.id]) for each in trials]
    assert all(isinstance(n, Done) for n in dict(second.train_pack(units)).values())
    before = private_bytes()
    list(second.train_pack(units))
    lanes = lanes_of(second, trials)
    assert shared_bytes(lanes) > 0
    assert private_bytes() - before < trunk.LEAST / 2


def private_bytes() -> int:
    """Of the trunks' mappings, those that were written to."""
    found = 0
    inside = False
    with open("/proc/self/smaps") as lines:
        for line in lines:
            if "-" in line.split(" ")[0] and ":" not in line.split(" ")[0]:
                inside = "shoal-trunk" in line
            elif inside and line.startswith("Private_Dirty:"):
                found += int(line.split()[1]) * 1024
    return found


def test_a_state_with_other_values_is_loaded_by_one_lane_only() -> None:
    trials = [trial("a"), trial("b")]
    held = here(Tuned())
    train(held, trials)
    a, b = lanes_of(held, trials)
    before = b.model[0][2].weight.clone()  # type: ignore[union-attr, index, operator]
    state = a.state()
    weight = "0.2.weight"
    state["model"] = {**state["model"], weight: np.zeros_like(state["model"][weight])}
    unit = Unit(trials[0], a.visits, Visit(1, S0, 1, 0), source=state)
    held.lanes.get(trials[0].id).current = False  # type: ignore[union-attr]
    drive(held.train(unit))
    assert a.trunk is None
    assert float(a.model[0][2].weight.abs().sum()) == 0  # type: ignore[union-attr, index, operator, arg-type]
    assert torch.equal(b.model[0][2].weight, before)  # type: ignore[union-attr, index, arg-type]


@pytest.mark.parametrize(
    "config", [{"unlike": True}, {"waits": True}], ids=["unlike", "to be trained later"]
)
def test_other_trunks_stay_each_lanes_own(config: dict[str, Any]) -> None:
    trials = [trial("a", **config), trial("b", **config, lr=1)]
    held = here(Tuned())
    train(held, trials)
    assert [lane.trunk for lane in lanes_of(held, trials)] == [None, None]


@pytest.mark.parametrize("others", [0, 1])
def test_trunks_that_begin_alike_are_compared_whole(others: int) -> None:
    trials = [trial(name, lr=number) for number, name in enumerate("abc"[: others + 1])]
    trials.append(trial("d", tail=1))
    held = here(Tuned())
    train(held, trials)
    lanes = lanes_of(held, trials)
    assert [lane.trunk is not None for lane in lanes] == [others > 0] * len(lanes[:-1]) + [False]
    as_alone(held, Tuned(), trials, epochs=1)


class Aliased(Tuned):
    """Other code holds the trunk's memory."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[Any] = []

    def configure_model(self, config: Mapping[str, Any]) -> nn.Module:
        model = super().configure_model(config)
        big = model[0][2].weight  # type: ignore[index]
        if config.get("numpy"):
            memory = np.array(big.detach().numpy())
            big.data = torch.from_numpy(memory)
            self.kept.append(memory)
        else:
            self.kept.append(big.detach())
        return model


@pytest.mark.parametrize("numpy", [False, True])
def test_memory_that_others_use_stays_where_it_is(numpy: bool) -> None:
    trials = [trial("a", numpy=numpy), trial("b", numpy=numpy)]
    held = here(Aliased())
    train(held, trials)
    assert [lane.trunk for lane in lanes_of(held, trials)] == [None, None]


def test_fused_lanes_hold_the_trunk_once() -> None:
    trials = [trial("a"), trial("b", lr=1)]
    held = here(Undrawn())
    train(held, trials)
    lanes = lanes_of(held, trials)
    fused = Fused(lanes)
    assert all(lane.trunk.is_equal() for lane in lanes)  # type: ignore[union-attr]
    x, y = torch.randn(8, 6), torch.randint(0, 3, (8,))
    plain = here(Undrawn())
    train(plain, trials)
    for each in lanes_of(plain, trials):
        with each.rng:
            each.step((x, y), 8)
    fused.step((x, y), 8)  # type: ignore[arg-type]
    fused.split()
    assert all(lane.trunk.is_equal() for lane in lanes)  # type: ignore[union-attr]
    for mine, theirs in zip(lanes, lanes_of(plain, trials), strict=True):
        for one, other in zip(mine.model.parameters(), theirs.model.parameters(), strict=True):
            torch.testing.assert_close(one, other)


@pytest.mark.parametrize("writes", WRITES)
def test_a_lane_that_wrote_is_fused_no_more_with_the_trunk_of_others(writes: str) -> None:
    trials = [trial("a"), trial("b", lr=1)]
    held = here(Undrawn())
    train(held, trials)
    lanes = lanes_of(held, trials)
    fused = Fused(lanes)
    WRITES[writes](lanes[1].model[0][2].weight)  # type: ignore[union-attr, index, arg-type]
    batch: Any = (torch.randn(8, 6), torch.randint(0, 3, (8,)))
    with pytest.raises(Exception, match="in common differ now"):
        fused.step(batch, 8)


def told(news: Mapping[TrialId, Any]) -> list[tuple[str, float]]:
    return [
        (name, value)
        for done in news.values()
        for name, value in done.figures.items()
        if name.startswith(SHARED)
    ]


def test_what_lanes_share_is_told_once_it_was_seen_and_not_where_trunks_differ() -> None:
    held = here(Tuned())
    alone = dict(held.train_pack([Unit(trial("a"), (), FIRST)]))
    assert told(alone) == []
    both = dict(held.train_pack([Unit(trial("b", lr=1), (), FIRST)]))
    ((name, gib),) = told(both)
    assert gib == pytest.approx(WIDTH * (WIDTH + 1 + 6 + 1) * 4 / GIB, rel=0.01)
    units = [Unit(each, (), FIRST) for each in (trial("a"), trial("b", lr=1))]
    assert told(dict(here(Tuned()).train_pack(units))) == [(name, gib)], "on any slot"
    other = dict(held.train_pack([Unit(trial("c", of=2), (), FIRST)]))
    assert told(other) == [(name, 0.0)]
    more = dict(held.train_pack([Unit(trial("d", lr=2), (), FIRST)]))
    assert told(more) == [], "kinds whose trunks differ are not believed again"


def test_a_slot_counts_a_trunk_once() -> None:
    trials = [trial("a"), trial("b", lr=1), trial("c", lr=2)]
    held = here(Tuned())
    train(held, trials)
    lanes = lanes_of(held, trials)
    meter = held.context.meter
    step = meter.transient(lanes[0])
    sum_of_all = sum(map(meter.memory, lanes)) - 2 * step
    assert meter.together(lanes) == sum_of_all - shared_bytes(lanes)
    room = meter.together(lanes) + step
    assert meter.at_once(lanes, lanes, room) == 2


def test_lanes_at_rest_count_a_trunk_once() -> None:
    trials = [trial("a"), trial("b", lr=1), trial("c", lr=2)]
    held = here(Tuned())
    train(held, trials)
    a, b, c = lanes_of(held, trials)
    assert held.lanes.resting(()) == a.bytes + b.bytes + c.bytes - shared_bytes([a, b, c])
    beside = held.lanes.resting([trials[0].id])
    assert beside == b.bytes + c.bytes - shared_bytes([a, b, c]), "the one at work has it"


def test_a_plan_counts_a_trunk_once() -> None:
    def tuned(trunk: str, memory: float = 5.0) -> Cost:
        return Cost(memory, transient=1.0, shared=3.0, trunk=trunk, in_turns=True)

    assert MemoryTogether([tuned("x")]).now == 5
    assert MemoryTogether([tuned("x"), tuned("x", 6.0)]).now == 3 + 1 + 2 + 1
    assert MemoryTogether([tuned("x"), tuned("y")]).now == 4 + 4 + 1
    assert MemoryTogether([tuned("x")]).with_one(tuned("x")) == 3 + 1 + 1 + 1
