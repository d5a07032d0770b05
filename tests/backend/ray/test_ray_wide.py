"""Gangs over several slots that really train: lanes whose width changes on the way, also by
force, and flotillas.
"""

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from ray_kit import Bench, Given
from ray_wide_kit import (
    SLOTS,
    Exact,
    Script,
    check_equal,
    figures,
    moved_on,
    steps,
    trial_of,
    watchdog,
)

from shoal.backend.ray.backend import Ray
from shoal.core.cluster import SlotId
from shoal.core.event import Advanced, Fell, Finished, Kept, Left
from shoal.core.plan import Gang, Lane, Plan
from shoal.core.trial import TrialId
from shoal.testing.journals import check_journal

pytestmark = pytest.mark.usefixtures("shared_ray")


def bench_of(folder: Path, **settings: Any) -> Bench:
    return Bench(folder, Exact(folder / "traces", **settings))  # type: ignore[arg-type]


def slots(*numbers: int) -> tuple[SlotId, ...]:
    return tuple(SlotId(f"slot{n}") for n in numbers)


@pytest.mark.slow
def test_a_lane_changes_its_width_while_it_trains_also_by_force(tmp_path: Path) -> None:
    """1, 2, 4, 2, 1 slots, then 4 of which one is killed, all within two passes; equal to width
    1, and on record.
    """
    bench = bench_of(tmp_path, samples=4003)
    places = [(0,), (0, 1), (0, 1, 2, 3), (0, 1), (0,), (0, 1, 2, 3), (0, 1, 3)]
    Script(tmp_path / "traces", places, kills={5: [2]}).run(bench, trial_of(bench.data))
    units = [entry.visits for entry in bench.events(Advanced)]  # and in between, how far they are
    assert sum(map(bool, units)) == 2 and not all(units)  # the places were seen within passes
    assert not bench.events(Fell)
    assert bench.events(Left) == [Left(frozenset(slots(2)), died=True)]
    check_equal(bench, 2)
    check_journal(bench.lines)
    found = figures(bench)
    assert {"rate", "rate@2", "rate@4", "up", "down", "memory"} <= found.keys()
    assert all(0 < found[name] < 60 for name in ("up", "down"))


@pytest.mark.slow
def test_rank_0_is_killed(tmp_path: Path) -> None:
    """The next one reports, at width 2 and at width 4."""
    bench = bench_of(tmp_path, samples=4003)
    places = [(0, 1), (1,), (1, 2, 3), (2, 3)]
    Script(tmp_path / "traces", places, kills={0: [0], 2: [1]}).run(bench, trial_of(bench.data))
    assert not bench.events(Fell)
    assert len(bench.events(Left)) == 2
    check_equal(bench, 2)


class Fleet:
    """All trials together, on these slots."""

    def __init__(self, **lanes: tuple[SlotId, ...]) -> None:
        self.lanes = lanes

    def start(self) -> None:
        return None

    def decide(self, view: Any, memory: None) -> tuple[Plan, None]:
        if view.plan.gangs or view.turn:
            return view.plan, memory
        return Plan(
            frozenset(
                [Gang(tuple(Lane(TrialId(t), at) for t, at in self.lanes.items()), since=view.turn)]
            )
        ), memory


@pytest.mark.slow
def test_a_flotilla_advances_together_and_each_learns_as_alone(tmp_path: Path) -> None:
    """Three unequal models, one of them on two slots; one is through earlier, and the others go
    on.
    """
    bench = bench_of(tmp_path, samples=603, shards=2, slow=0.01)
    trials = [
        trial_of(bench.data, n, name, width=w)
        for name, n, w in (("a", 3, 8), ("b", 1, 4), ("c", 3, 16))
    ]
    bench.run(Given(trials), Fleet(a=slots(0), b=slots(1), c=slots(2, 3)), **SLOTS)
    check_journal(bench.lines)
    made = [trial for entry in bench.events(Advanced) for trial in entry.visits]
    for n in range(4):  # nobody is a unit ahead of the others
        seen = made[: 3 * (n + 1)] if n < 2 else made[6 + 2 * (n - 2) : 8 + 2 * (n - 2)]
        assert sorted(seen[-3:] if n < 2 else seen) == (["a", "b", "c"] if n < 2 else ["a", "c"])
    ends = [entry.trial for entry in bench.events(Finished)]
    assert ends[0] == "b" and len(ends) == 3
    for trial, known in bench.state.known.items():
        assert len(bench.state.visits[trial]) == 2 * known.samples / bench.data.samples
    check_equal(bench, 0)


@pytest.mark.slow
def test_a_batch_for_each_slot(tmp_path: Path) -> None:
    """Widths are part of the visit; replay follows them; the rate falls at the same epoch."""
    bench = bench_of(tmp_path, samples=6003, batch_per_slot=True)
    places = [(0,), (0, 1), (0, 1, 2, 3)]
    Script(tmp_path / "traces", places).run(bench, trial_of(bench.data))
    first, second = bench.state.visits[TrialId("t")]
    assert [width for _, width in first.widths][:3] == [1, 2, 4] and first.widths[0] == (0, 1)
    assert second.widths == ((0, 4),)
    assert bench.events(Kept)
    check_equal(bench, 2, follow=True)


@pytest.mark.nightly
def test_a_batch_for_each_slot_and_then_for_one(tmp_path: Path) -> None:
    """Visits at width 1 after wider ones are made, and made again, with the batch and the rate
    of width 1.
    """
    bench = bench_of(tmp_path, samples=6003, batch_per_slot=True)
    Script(tmp_path / "traces", [(0,), (0, 1, 2, 3), (0,)]).run(bench, trial_of(bench.data, 3))
    first, second, third = bench.state.visits[TrialId("t")]
    assert [width for _, width in first.widths][:3] == [1, 4, 1]
    assert second.widths == third.widths == ()
    check_equal(bench, 3, follow=True)


class Borrowed:
    """One trial on two slots, one in a long unit on the third; then the third is promised to
    the first.
    """

    def __init__(self, traces: Path, kill: bool) -> None:
        self.traces, self.kill, self.made, self.pids = traces, kill, 0, dict[str, int]()

    def start(self) -> None:
        return None

    def decide(self, view: Any, memory: None) -> tuple[Plan, None]:
        t, u = TrialId("t"), TrialId("u")
        if not view.trials:
            return Plan(), memory
        wanted = {t: slots(0, 1), u: slots(2)}
        if self.made or moved_on({}, self.traces, 5) == 3:
            self.made = self.made or len(view.visits[t]) + 1
            wanted = {t: slots(0, 1, 2)} if t in view.trials else {u: slots(0)}
        if self.kill and self.made and len(view.visits[t]) >= self.made:
            os.kill(self.pids["slot1"], signal.SIGKILL)
            self.kill = False
        gangs = set()
        for trial, at in wanted.items():
            lane = Lane(trial, tuple(slot for slot in at if slot in view.slots))
            now = view.running.get(trial)
            if trial in view.trials and lane.slots:
                gangs.add(
                    now
                    if now is not None and now.lanes == (lane,)
                    else Gang((lane,), since=view.turn)
                )
        return Plan(frozenset(gangs), view.now + 0.03), memory


@pytest.mark.nightly
@pytest.mark.parametrize("kill", [pytest.param(False, marks=pytest.mark.soak), True])
def test_a_slot_that_is_busy_joins_when_it_comes_free(tmp_path: Path, kill: bool) -> None:
    """The lane trains on meanwhile, beyond the end of its unit; also when another of its slots
    is killed there.
    """
    bench = bench_of(tmp_path)
    policy = Borrowed(tmp_path / "traces", kill)

    def watch(backend: Ray) -> Any:
        def look(*_: Any) -> None:
            policy.pids = dict(backend.pids())

        return look

    with watchdog(400.0, tmp_path):
        bench.run(
            Given([trial_of(bench.data, 10), trial_of(bench.data, 1, "u", width=64)]),
            policy,
            watch,
            **SLOTS,
        )
    of_u = -(-bench.data.samples // 10)
    assert steps(tmp_path / "traces")[policy.pids["slot2"]] > of_u + 3
    assert len(bench.events(Left)) == kill and policy.kill is False
    ends = [trial for entry in bench.events(Advanced) for trial in entry.visits]
    assert (
        ends.index("u") >= 2
    )  # the first one ended units while its third slot was at work for the other
    check_equal(bench, 0)
    check_journal(bench.lines)
