"""What holds of every journal, whoever decided and wherever it ran."""

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import isclose
from typing import Any

from shoal.core.cluster import ShardId
from shoal.core.event import (
    Advanced,
    Ended,
    Entry,
    Evaluated,
    Failed,
    Fell,
    Finished,
    Joined,
    Kept,
    Left,
    Measured,
    Opened,
    Planned,
)
from shoal.core.fold import fold, step
from shoal.core.state import State, durable
from shoal.core.trial import Samples, Seconds, TrialId, Visit
from shoal.core.visits import EPS
from shoal.engine.journal import Journal, Line, decode, encode, replay
from shoal.engine.run import reopened

SPENT = frozenset({"switch", "data", "train", "evaluate", "save"})
# The order of the events of one unit.
ORDER: tuple[Any, ...] = (Advanced, Measured, Evaluated, Kept, Ended, (Finished, Failed))


def check_journal(lines: Sequence[Line], state: State | None = None) -> None:
    """Raise AssertionError unless the journal is sound.

    Times must not go back. Visits and samples must add up, and the events of a unit must come in
    order. Entries must survive being written and read. `state`: what the run returned; replaying
    the journal must give the same.
    """
    for before, after in pairwise(lines):
        assert before.time <= after.time, "a journal's times never go back"
    for line in lines:
        read = decode(encode(*line)).entry
        assert read == line.entry, f"written and read back, {line.entry} is {read}"
    final = replay(list(lines))
    if state is not None:
        assert final == state, "replaying the journal does not lead to the state that the run gave"
    current = State()
    for line in lines:
        _check_entry(line, current)
        current = step(current, line.entry)
    _check_units(lines)
    for trial in final.known:
        check_visits(final, trial)


def through_json(memory: Any) -> Any:
    """A decider's memory as a journal gives it back.

    Raises AssertionError if that is not equal to the memory.
    """
    read = json.loads(json.dumps(memory))
    assert read == memory, f"memory must survive JSON (no tuples, sets, keys but text): {memory!r}"
    return read


def resumed(
    former: Sequence[Line], shards: Mapping[ShardId, int]
) -> tuple[Journal, State, Seconds]:
    """A journal in memory that goes on after these lines; the state and the time at which it does.

    Without lines it is that of a fresh study.
    """
    since = former[-1].time if former else 0.0
    journal = Journal()
    journal.lines += former
    state = replay(journal.lines)
    opening = reopened(state, shards, {})
    for entry in opening:
        journal.append(since, entry)
    return journal, fold(state, opening), since


# -- visits and samples --------------------------------------------------------------------------


def check_visits(state: State, trial: TrialId) -> None:
    """Each epoch visits each shard of the trial once, one whole epoch after the other.

    The trial's samples are those of its visits.
    """
    shards = state.known[trial].shards
    if not shards:
        return
    visits = state.visits[trial]
    count = len(shards)
    for first in range(0, len(visits), count):
        number = first // count
        epoch = visits[first : first + count]
        seen = [visit.shard for visit in epoch]
        assert len(set(seen)) == len(seen), f"{trial}, epoch {number}: visits {seen}"
        assert shards.issuperset(seen), f"{trial}, epoch {number}: visits {seen}"
        for visit in epoch:
            assert visit.epoch == number, f"{trial}: epochs of {epoch}"
    assert all(visit.samples > 0 for visit in visits), f"{trial}: a visit of no samples in {visits}"
    finished = state.ended.get(trial) == "finished"
    done = state.done[trial]
    visited = _samples(state.visits[trial])
    most = visited
    if not finished:
        most += max(state.shards.values())
    assert visited - EPS <= done <= most + EPS, f"{trial}: {visited} samples visited, {done} done"
    if finished:
        _check_finished(state, trial)


def _check_finished(state: State, trial: TrialId) -> None:
    """A finished trial has all its samples, and its last state is durable."""
    done = state.done[trial]
    assert done >= state.known[trial].samples - EPS, f"{trial} finished early: {done} samples"
    kept = state.kept.get(trial)
    visits = len(state.visits[trial])
    assert kept is not None, f"{trial} finished without a durable state"
    assert kept.visits == visits, (
        f"{trial} finished after {visits} visits, but {kept} is what is durable"
    )


def _samples(visits: Sequence[Visit]) -> Samples:
    return sum(visit.samples for visit in visits)


# -- each entry ----------------------------------------------------------------------------------


def _check_entry(line: Line, state: State) -> None:
    time, entry = line
    match entry:
        case Advanced():
            _check_advanced(time, entry)
        case Kept(trial) if trial in state.known:
            _check_kept(time, entry, state)
        case Fell(trial) if trial in state.known:
            _check_fell(time, entry, state)
        case Ended(gang, why):
            may_end = why or gang.quota is not None
            may_end = may_end or not state.held_back.keys().isdisjoint(gang.trials)
            may_end = may_end or len(gang.lanes) > len(gang.slots)  # a slot refuses packs
            assert may_end, f"{time}: a gang without a quota ended: {gang}"
        case Joined(slots):
            assert slots, f"{time}: no slot joined"
        case Left(slots=gone):
            assert gone, f"{time}: no slot left"


def _check_advanced(time: Seconds, entry: Advanced) -> None:
    """Figures are not negative, and visits come with their samples."""
    unsampled = entry.visits.keys() - entry.samples.keys()
    assert not unsampled, f"{time}: visits of {unsampled} without samples"
    for trial, samples in entry.samples.items():
        assert samples >= 0, f"{time}: {trial} advanced by less than nothing: {samples}"
    for parts in entry.spent.values():
        assert SPENT.issuperset(parts), f"{time}: {parts} beside {sorted(SPENT)}"
        for seconds in parts.values():
            assert seconds >= 0, f"{time}: {parts} is below 0"
    for sums in entry.values.values():
        for _, count in sums.values():
            assert count > 0, f"{time}: sums of nothing"


def _check_kept(time: Seconds, entry: Kept, state: State) -> None:
    """A trial keeps the state that it is in. A unit under way may have reported a part of it."""
    visits = state.visits[entry.trial]
    visited = _samples(visits)
    done = state.done[entry.trial]
    claim = f"{entry.trial} keeps {entry.visits} visits, {entry.samples} samples"
    here = f"{time}: {claim}, but is at"
    assert entry.visits == len(visits), f"{here} {len(visits)} visits"
    assert isclose(entry.samples, visited, abs_tol=EPS), f"{here} {visited}"
    assert entry.samples <= done + EPS, f"{here} {done}"


def _check_fell(time: Seconds, entry: Fell, state: State) -> None:
    """A trial falls back to its durable state, or loses what a unit under way reported."""
    kept = state.kept.get(entry.trial)
    here = (len(state.visits[entry.trial]), entry.samples)
    falls_to = (entry.visits, entry.samples)
    assert falls_to in (durable(kept), here), (
        f"{time}: {entry.trial} falls to {entry.visits} visits, {entry.samples} samples, "
        f"but durable is {kept}"
    )


# -- the order of the entries --------------------------------------------------------------------


def _check_units(lines: Sequence[Line]) -> None:
    """The events of a unit come in order, and none after the end of the trial's gang."""
    reached: dict[TrialId, int] = {}
    over: set[TrialId] = set()
    for line in lines:
        if isinstance(line.entry, Opened):
            reached.clear()
        _check_not_over(line, over)
        _check_rank(line, reached)


def _check_not_over(line: Line, over: set[TrialId]) -> None:
    """No trial trains between the end of its gang and the start of its next one.

    `over`: the trials whose gang has ended; it is brought up to date.
    """
    time, entry = line
    match entry:
        case Planned(start=gangs):
            for gang in gangs:
                over.difference_update(gang.trials)
        case Advanced(samples):
            late = over & samples.keys()
            assert not late, f"{time}: {late} trained on after the gang's end"
        case Ended() | Finished() | Failed():
            over.update(_trials(entry))


def _check_rank(line: Line, reached: dict[TrialId, int]) -> None:
    """Between two Advanced of a trial, its events come in the order of `ORDER`.

    `reached`: the place in `ORDER` of each trial's newest event; it is brought up to date.
    """
    time, entry = line
    ranks = [rank for rank, kinds in enumerate(ORDER) if isinstance(entry, kinds)]
    if not ranks:  # not the event of a unit
        return
    rank = ranks[0]
    for trial in _trials(entry):
        before = reached.get(trial, 0)
        in_order = rank == 0 or rank >= before or isinstance(entry, Kept)
        assert in_order, f"{time}: {type(entry).__name__} of {trial} after {ORDER[before]}"
        reached[trial] = rank


def _trials(entry: Entry) -> tuple[TrialId, ...]:
    """The trials that an event of a unit is about."""
    match entry:
        case Advanced(samples):
            return tuple(samples)
        case Ended(gang):
            return gang.trials
        case Measured(trial) | Evaluated(trial) | Kept(trial) | Finished(trial) | Failed(trial):
            return (trial,)
    return ()
