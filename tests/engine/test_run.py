import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from simkit import SHARDS, rates, slots, study, trial

from shoal.backend.sim.sim import Sim
from shoal.core.check import PlanError
from shoal.core.cluster import ShardId, Slot, SlotId
from shoal.core.event import (
    Commanded,
    Entry,
    Evaluated,
    Failed,
    Fell,
    Finished,
    Joined,
    Kept,
    Left,
    Planned,
    Remembered,
    Retired,
    Submitted,
)
from shoal.core.fold import fold
from shoal.core.plan import Gang, Lane, Plan, Proposal
from shoal.core.state import State, View
from shoal.core.trial import TrialId
from shoal.engine.journal import Journal, read, replay
from shoal.engine.run import MAX_STRIKES, Stalled, reopened, run
from shoal.policy.fifo import Fifo
from shoal.policy.hop.hop import Hop
from shoal.profile.table import Table
from shoal.search.grid import Grid
from shoal.search.space import grid
from shoal.search.trace import Trace
from shoal.testing import World, check_journal, worlds


@settings(max_examples=25, deadline=None)
@given(worlds())
def test_watchers_see_states_that_the_journal_replays(world: World) -> None:
    seen: list[tuple[int, State]] = []
    journal = Journal()
    opening = reopened(State(), world.shards, {})
    for entry in opening:
        journal.append(0.0, entry)
    sim = Sim(
        world.table.of,
        world.slots,
        world.script,
        shards=world.shards,
        checkpoint_every=world.checkpoint_every,
    )
    watch = [lambda now, entries, state: seen.append((len(journal.lines), state))]
    final = run(
        world.searcher,
        Hop(),
        sim,
        world.table.believe,
        journal,
        fold(State(), opening),
        watch=watch,
    )
    for count, state in seen:
        assert replay(journal.lines[:count]) == state
    assert seen[-1][1] == final
    check_journal(journal.lines, final)


def visits(state: State) -> dict[TrialId, Any]:
    return dict(state.visits)


@pytest.mark.parametrize("policy", [Fifo(), Hop()], ids=["fifo", "rotation"])
@pytest.mark.parametrize("most", [None, 2])
def test_cut_anywhere_and_resumed_it_equals_the_undisturbed_run(
    policy: Any, most: int | None
) -> None:
    """Where the order is fixed, it must not matter when a study was killed."""
    table = rates(1.0, 2.0, 5.0, 3.0, save=0.5, switch=0.25, evaluate=0.5)
    search = Grid({"x": grid(range(4))}, 2, most)
    options = {"searcher": search, "checkpoint_every": 7.0, "seed": 3}
    lines, undisturbed = study(policy, table, **options)
    assert set(undisturbed.ended.values()) == {"finished"}
    for cut in range(1, len(lines)):
        more, state = study(policy, table, former=lines[:cut], **options)
        assert visits(state) == visits(undisturbed), f"killed after entry {cut}: {lines[cut - 1]}"
        assert state.ended == undisturbed.ended
        check_journal(more, state)
        for name, lost in _repeated(more).items():
            assert lost <= 7.0 * table.of(state.known).curve(name, 1)[0] + 10, (
                f"{name} repeats more than the interval and a unit"
            )


@pytest.mark.parametrize("rule", ["lrw", "random"])
def test_cut_anywhere_and_resumed_it_ends_well(rule: Any) -> None:
    lines, _ = study(Hop(rule), rates(1.0, 2.0, 5.0), count=3, epochs=2, checkpoint_every=7.0)
    for cut in range(1, len(lines), 3):
        more, state = study(
            Hop(rule),
            rates(1.0, 2.0, 5.0),
            count=3,
            epochs=2,
            checkpoint_every=7.0,
            former=lines[:cut],
        )
        assert set(state.ended.values()) == {"finished"}
        check_journal(more, state)


def _repeated(lines: list[Any]) -> dict[TrialId, float]:
    """Samples that each trial lost, and trains again."""
    state = State()
    lost: dict[TrialId, float] = {}
    for _, entry in lines:
        if isinstance(entry, Fell):
            lost[entry.trial] = lost.get(entry.trial, 0.0) + state.done[entry.trial] - entry.samples
        state = fold(state, [entry])
    return lost


def test_reopening_falls_back_to_what_is_durable() -> None:
    lines, _ = study(Fifo(), rates(1.0), count=1, epochs=3, checkpoint_every=25.0)
    state = replay([line for line in lines if line.time <= 45.0])
    assert (len(state.visits[TrialId("t000")]), state.kept[TrialId("t000")].visits) == (4, 3)
    entries = reopened(state, SHARDS, {"some": "head"})
    assert [type(entry).__name__ for entry in entries] == ["Opened", "Fell"]
    assert entries[0].run == state.run + 1
    assert entries[1] == Fell(TrialId("t000"), 3, 30.0)
    assert reopened(fold(state, entries), SHARDS, {})[1:] == ()


def test_a_deadline_stops_the_study_and_units_come_to_their_end() -> None:
    lines, state = study(Hop(), rates(1.0, 1.0), count=2, epochs=2, deadline=15.0)
    assert state.stopped == "timeout" and state.trials.keys() == {"t000", "t001"}
    stops = [(time, entry) for time, entry in lines if isinstance(entry, Commanded)]
    assert stops == [(15.0, Commanded("stop", "timeout"))]
    assert max(time for time, _ in lines) == 20.0, "the units under way are made to their end"
    assert not [
        entry for time, entry in lines if time > 15.0 and isinstance(entry, Planned) and entry.start
    ]
    assert state.kept.keys() == {"t000", "t001"}, (
        "what is only in memory is made durable at the end"
    )
    more, final = study(Hop(), rates(1.0, 1.0), count=2, epochs=2, former=lines)
    assert set(final.ended.values()) == {"finished"} and not _repeated(more)


def test_a_deadline_stops_a_study_that_only_waits() -> None:
    lines, state = study(
        Fifo(), rates(1.0), searcher=Trace([(0.0, {"x": 0}), (1000.0, {"x": 0})]), deadline=60.0
    )
    assert state.stopped == "timeout" and lines[-1].time == 60.0


def test_a_deadline_stops_whole_data_at_the_end_of_the_visit_under_way() -> None:
    lines, state = study(Fifo(), rates(1.0), count=1, deadline=15.0)
    assert max(time for time, _ in lines) == 20.0
    assert not state.plan.gangs and state.stopped == "timeout"


def test_stalled_without_slots() -> None:
    with pytest.raises(Stalled, match="there is no slot: add one and resume"):
        study(Fifo(), at=[])


def test_stalled_without_a_holder_of_a_shard() -> None:
    with pytest.raises(Stalled, match="shards s2 lie at no slot"):
        study(Hop(), at=slots(SHARDS)[:2])


def test_stalled_after_the_holders_of_a_shard_left_says_where_it_was() -> None:
    script = [(1.0, Left(frozenset({SlotId("w2")}), died=True))]
    here = [replace(slot, node=f"node-{slot.id}") for slot in slots(SHARDS)]
    with pytest.raises(
        Stalled, match="shards s2 lie at no slot since node-w2 left: bring a node back"
    ):
        study(Hop(), rates(1.0, 1.0, 1.0, 1.0), at=here, script=tuple(script))


def test_stalled_because_nothing_fits() -> None:
    small = [Slot(SlotId("w0"), memory=1.0, shards=frozenset(SHARDS))]
    with pytest.raises(Stalled, match="the policy starts none of them on 1 slots"):
        study(Fifo(), rates(1.0, 1.0, 1.0, 1.0, memory=2.0), at=small)


def test_a_trial_whose_slot_dies_under_it_too_often_fails() -> None:
    bad = SlotId("w0")
    here = Slot(bad, shards=frozenset(SHARDS))
    script: list[tuple[float, Any]] = []
    for k in range(MAX_STRIKES):
        script += [
            (10.0 * k + 2, Left(frozenset({bad}), died=True)),
            (10.0 * k + 4, Joined((here,))),
        ]
    lines, state = study(Fifo(), rates(1.0, 1.0), at=[here], script=script, count=2)
    assert state.ended == {"t000": "failed: its slot died under it 3 times", "t001": "finished"}
    assert [time for time, entry in lines if isinstance(entry, Failed)] == [22.0]


def test_a_shard_whose_reader_ends_its_process_is_named() -> None:
    """Its only holder dies each time, 2 s after the trial begins to visit it."""
    sizes = {ShardId("s7"): 10}
    here = slots(sizes)
    script: list[tuple[float, Any]] = []
    for k in range(MAX_STRIKES):
        script += [
            (10.0 * k + 2, Left(frozenset({here[0].id}), died=True)),
            (10.0 * k + 4, Joined(here)),
        ]
    more = {"at": here, "shards": sizes, "script": script, "count": 1}
    _, state = study(Hop(), rates(1.0), **more)
    assert state.ended == {
        "t000": "failed: its slot died under it 3 times, the last time at shard s7"
    }


def test_strikes_count_from_the_last_durable_state() -> None:
    here = Slot(SlotId("w0"), shards=frozenset(SHARDS))
    script: list[tuple[float, Any]] = []
    for k in range(4):
        script += [
            (12.0 + 12 * k, Left(frozenset({here.id}), died=True)),
            (12.5 + 12 * k, Joined((here,))),
        ]
    _, state = study(
        Fifo(), rates(1.0), at=[here], script=script, count=1, epochs=2, checkpoint_every=0.0
    )
    assert state.ended == {"t000": "finished"}


class Wide:
    """One gang over two slots."""

    def start(self) -> None:
        return None

    def decide(self, view: View, memory: None) -> tuple[Plan, None]:
        if view.plan.gangs or not view.trials or len(view.slots) < 2:
            return view.plan, None
        return Plan(
            frozenset({Gang((Lane(next(iter(view.trials)), tuple(view.slots)),), since=view.turn)})
        ), None


@pytest.mark.parametrize(
    ("lost", "how"), [(1, "finished"), (2, "failed: its slot died under it 3 times")]
)
def test_a_wide_trial_fails_when_all_its_slots_died_three_times(lost: int, how: str) -> None:
    """As long as one is left, it goes on there: a node that goes may take several with it, and
    nodes may go often.
    """
    both = slots(dict.fromkeys(list(SHARDS)[:2], 10))
    script: list[tuple[float, Any]] = []
    for k in range(4):
        for gone in both[-lost:]:
            script += [(1.0 + k, Left(frozenset({gone.id}), died=True)), (1.5 + k, Joined((gone,)))]
    searcher = Grid({"x": grid([0])}, 1)
    sim = Sim(Table().of, both, script, shards=SHARDS)
    state = fold(State(), reopened(State(), SHARDS, {}))

    class Regrows(Wide):
        def decide(self, view: View, memory: None) -> tuple[Plan, None]:
            gang = next(iter(view.plan.gangs), None)
            if gang is None or len(gang.slots) == len(view.slots) or not view.trials:
                return super().decide(view, memory)
            return Plan(
                frozenset({Gang((Lane(gang.trials[0], tuple(view.slots)),), since=view.turn)})
            ), None

    sim.truth = Table((type(Table().rows[0])((1.0,)),)).of(sim.known)
    final = run(searcher, Regrows(), sim, Table().believe, Journal(), state)
    assert final.ended == {"t000": how}


class Cuts:
    """Stops a unit that has a quota."""

    def start(self) -> None:
        return None

    def decide(self, view: View, memory: None) -> tuple[Plan, None]:
        return (Plan() if view.now > 0 else Hop().decide(view, {})[0]), None


def test_a_wrong_plan_is_refused() -> None:
    with pytest.raises(PlanError, match="has a quota"):
        study(Cuts(), rates(1.0, 2.0), count=2)


class Stubborn:
    """Asks to be woken, and remembers how often it was asked."""

    def start(self) -> dict[str, int]:
        return {"asked": 0}

    def decide(self, view: View, memory: dict[str, int]) -> tuple[Plan, dict[str, int]]:
        more = {"asked": memory["asked"] + 1}
        if view.now < 30:
            return Plan(view.plan.gangs, wake_at=view.now + 10), more
        return Fifo().decide(view, None)[0], more


def test_wake_and_memory() -> None:
    lines, state = study(Stubborn(), rates(1.0), count=1)
    asked = [
        (time, entry.memory["asked"])
        for time, entry in lines
        if isinstance(entry, Remembered) and entry.who == "policy"
    ]
    assert asked[:4] == [(0.0, 1), (10.0, 2), (20.0, 3), (30.0, 4)]
    assert state.memory["policy"]["asked"] == asked[-1][1]
    assert next(time for time, entry in lines if isinstance(entry, Planned)) == 30.0


def test_arrivals_wake_the_study() -> None:
    lines, _ = study(
        Fifo(),
        rates(1.0),
        searcher=Trace([(0.0, {"x": 0}), (100.0, {"x": 0}), (40.0, {"x": 0}, 10)]),
    )
    assert [time for time, entry in lines if isinstance(entry, Submitted)] == [0.0, 40.0, 100.0]
    assert [time for time, entry in lines if isinstance(entry, Finished)] == [30.0, 50.0, 130.0]


class Extends:
    """Trains a trial for an epoch, then twice that if its score is known; takes a second one
    out at once.
    """

    def start(self) -> int:
        return 0

    def propose(self, view: View, memory: int) -> tuple[Proposal, int]:
        if memory == 0:
            return Proposal((trial("a", x=0), trial("b", x=0))), 1
        if memory == 1 and view.visits[TrialId("b")]:
            return Proposal(retire=frozenset({TrialId("b")})), 2
        if memory == 2 and view.ended.get(TrialId("a")) == "finished":
            assert view.scores[TrialId("a")][-1][0] == 1.0
            return Proposal((trial("a", 60.0, x=0),)), 3
        return Proposal(), memory


def test_extending_and_retiring() -> None:
    lines, state = study(Fifo(), rates(1.0), searcher=Extends())
    assert state.ended == {"a": "finished", "b": "retired"}
    assert [time for time, entry in lines if isinstance(entry, Finished)] == [30.0, 60.0]
    assert len(state.visits[TrialId("a")]) == 6 and len(state.visits[TrialId("b")]) == 1
    assert [entry.epoch for _, entry in lines if isinstance(entry, Evaluated)] == [1.0, 2.0]
    assert state.memory["searcher"] == 3


def test_a_trial_that_was_retired_from_outside_stops() -> None:
    """Whoever tells the backend so; the backend learns of it as of any other change, and the
    slot is free.
    """
    changes: list[tuple[float, Gang | None, Gang | None]] = []

    class Changed(Sim):
        def change(self, before: Gang | None, after: Gang | None) -> None:
            changes.append((self.now, before, after))
            super().change(before, after)

    journal, opening = Journal(), reopened(State(), SHARDS, {})
    sim = Changed(
        rates(1.0, 1.0).of, slots(SHARDS)[:1], [(5.0, Retired(TrialId("t000")))], shards=SHARDS
    )
    table = rates(1.0, 1.0)
    for entry in opening:
        journal.append(0.0, entry)
    final = run(
        Grid({"x": grid(range(2))}, 1), Fifo(), sim, table.believe, journal, fold(State(), opening)
    )
    assert final.ended == {"t000": "retired", "t001": "finished"}
    gone = [
        (now, before.trials)
        for now, before, after in changes
        if before is not None and "t000" in before.trials
    ]
    assert gone == [(5.0, ("t000",))]
    assert len(final.visits[TrialId("t000")]) == 1, "the visit under way is completed"
    check_journal(journal.lines, final)


def test_events_of_gangs_that_no_longer_run_are_journalled_and_ignored() -> None:
    class Late(Sim):
        def moments(self) -> Any:
            for now, events in super().moments():
                yield (now, (*events, Kept(TrialId("nobody"), 1, 1.0), Finished(TrialId("nobody"))))

    journal = Journal()
    state = fold(State(), reopened(State(), SHARDS, {}))
    sim = Late(Table().of, slots(SHARDS), shards=SHARDS)
    final = run(Grid({"x": grid([0])}, 1), Fifo(), sim, Table().believe, journal, state)
    assert final.ended == {"t000": "finished"} and "nobody" not in final.known


def test_a_plan_is_durable_before_it_is_applied(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    seen: list[Entry] = []

    class Looks(Sim):
        def change(self, before: Gang | None, after: Gang | None) -> None:
            seen[:] = [line.entry for line in read(path)]
            starts = [gang for entry in seen if isinstance(entry, Planned) for gang in entry.start]
            assert after is None or after in starts, (
                f"{after} was started before the journal had it"
            )
            super().change(before, after)

    state = fold(State(), reopened(State(), SHARDS, {}))
    sim = Looks(Table().of, slots(SHARDS), shards=SHARDS)
    journal = Journal(path)
    run(Grid({"x": grid(range(3))}, 1), Hop(), sim, Table().believe, journal, state)
    journal.close()
    assert seen


def test_the_same_study_twice_is_the_same_journal_to_the_byte(tmp_path: Path) -> None:
    texts = []
    for name in "ab":
        journal = Journal(tmp_path / name)
        state = fold(State(), reopened(State(), SHARDS, {}))
        sim = Sim(Table().of, slots(SHARDS), shards=SHARDS)
        run(Grid({"x": grid(range(3))}, 2), Hop("random", 5), sim, Table().believe, journal, state)
        journal.close()
        texts.append((tmp_path / name).read_text())
    assert texts[0] == texts[1]
    assert all(json.loads(line) for line in texts[0].splitlines())
