"""What holds of every journal, whoever decided and wherever it ran."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import isclose
from typing import Any

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
from shoal.core.state import State, step
from shoal.core.trial import Samples, TrialId, Visit
from shoal.engine.journal import Line, decode, encode, replay

SPENT = frozenset({"switch", "data", "train", "evaluate", "save"})
ORDER: tuple[Any, ...] = (Advanced, Measured, Evaluated, Kept, Ended, (Finished, Failed))  # of the events of one unit


def check_journal(lines: Sequence[Line], state: State | None = None) -> None:
    """Time goes forward; visits and samples add up; units report in order; entries survive being written and read.

    `state`: what the run returned; replaying must give the same.
    """
    assert all(a.time <= b.time for a, b in pairwise(lines)), "a journal's times never go back"
    for line in lines:
        again = decode(encode(*line)).entry
        assert again == line.entry, f"written and read back, {line.entry} is {again}"
    final = replay(list(lines))
    assert state is None or final == state, "replaying the journal does not lead to the state that the run returned"
    _check_entries(lines)
    _check_units(lines)
    for trial in final.known:
        check_visits(final, trial)


def check_visits(state: State, trial: TrialId) -> None:
    """Each epoch visits each shard of the trial once, in whole epochs one after the other; samples are those of the visits."""
    shards, visits = state.known[trial].shards, state.visits[trial]
    if not shards:
        return
    for start in range(0, len(visits), len(shards)):
        epoch = visits[start : start + len(shards)]
        seen = [visit.shard for visit in epoch]
        assert len(set(seen)) == len(seen) and shards.issuperset(seen), f"{trial}, epoch {start // len(shards)}: visits {seen}"
        assert all(visit.epoch == start // len(shards) for visit in epoch), f"{trial}: epochs of {epoch}"
    assert all(visit.samples > 0 for visit in visits), f"{trial}: a visit of no samples in {visits}"
    total = sum(visit.samples for visit in visits)
    part = 0.0 if state.ended.get(trial) == "finished" else max(state.shards.values())  # a unit under way may have reported
    assert total - 1e-6 <= state.done[trial] <= total + part + 1e-6, f"{trial}: {total} samples visited, {state.done[trial]} done"
    if state.ended.get(trial) == "finished":
        assert state.done[trial] >= state.known[trial].samples - 1e-6, f"{trial} finished early: {state.done[trial]} samples"
        assert trial in state.kept, f"{trial} finished without a durable state"
        kept = state.kept[trial]
        assert kept.visits == len(visits), f"{trial} finished after {len(visits)} visits, but {kept} is what is durable"


def _check_entries(lines: Sequence[Line]) -> None:
    state = State()
    for time, entry in lines:
        match entry:
            case Advanced(samples, values, visits, spent):
                _check_advanced(time, samples, visits)
                assert all(SPENT.issuperset(parts) for parts in spent.values()), f"{time}: {spent} beside {sorted(SPENT)}"
                assert all(s >= 0 for parts in spent.values() for s in parts.values()), f"{time}: {spent} is below 0"
                assert all(count > 0 for sums in values.values() for _, count in sums.values()), f"{time}: sums of nothing"
            case Kept(trial, visits=count, samples=done) if trial in state.known:
                here = (len(state.visits[trial]), state.done[trial])  # of a unit under way, some may have been reported
                same = count == here[0] and done <= here[1] + 1e-6 and isclose(done, _of(state.visits[trial]), abs_tol=1e-6)
                assert same, f"{time}: {trial} keeps {count} visits, {done} samples, but is at {here}"
            case Fell(trial, visits=count, samples=done) if trial in state.known:
                kept = state.kept.get(trial)
                at = {(kept.visits, kept.samples) if kept else (0, 0.0), (len(state.visits[trial]), done)}
                assert (count, done) in at, f"{time}: {trial} falls to {count} visits, {done} samples, but durable is {kept}"
            case Ended(gang, why):
                assert gang.quota is not None or why, f"{time}: a gang without a quota ended: {gang}"
            case Joined(slots):
                assert slots, f"{time}: no slot joined"
            case Left(gone):
                assert gone, f"{time}: no slot left"
        state = step(state, entry)


def _of(visits: Sequence[Visit]) -> Samples:
    return sum(visit.samples for visit in visits)


def _check_advanced(time: float, samples: Mapping[TrialId, Samples], visits: Mapping[TrialId, tuple[Visit, ...]]) -> None:
    assert samples.keys() >= visits.keys(), f"{time}: visits of {visits.keys() - samples.keys()} without samples"
    assert all(made >= 0 for made in samples.values()), f"{time}: advanced by less than nothing: {samples}"


def _check_units(lines: Sequence[Line]) -> None:
    """Between two Advanced of a trial its events come in order, and none comes between its gang's end and the next start."""
    reached: dict[TrialId, int] = {}
    over: set[TrialId] = set()
    for time, entry in lines:
        if isinstance(entry, Opened):
            reached.clear()
        elif isinstance(entry, Planned):
            over.difference_update(trial for gang in entry.start for trial in gang.trials)
        elif isinstance(entry, Advanced):
            assert over.isdisjoint(entry.samples), f"{time}: {over & entry.samples.keys()} trained on after the gang's end"
        elif isinstance(entry, (Ended, Finished, Failed)):
            over.update(_trials(entry))
        for trial in _trials(entry):
            rank = next((i for i, kinds in enumerate(ORDER) if isinstance(entry, kinds)), None)
            if rank is None:
                continue
            before = reached.get(trial, 0) if rank else 0
            assert rank >= before or isinstance(entry, Kept), f"{time}: {type(entry).__name__} of {trial} after {ORDER[before]}"
            reached[trial] = rank


def _trials(entry: Entry) -> tuple[TrialId, ...]:
    match entry:
        case Advanced(samples):
            return tuple(samples)
        case Ended(gang):
            return gang.trials
        case Measured(trial) | Evaluated(trial) | Kept(trial) | Finished(trial) | Failed(trial):
            return (trial,)
    return ()
