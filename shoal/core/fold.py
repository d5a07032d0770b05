"""The fold: from a journal's entries to the state of the study.

Folding is pure: replaying a journal rebuilds the state of the run that wrote it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import takewhile
from math import inf
from typing import Any

from shoal.core.cluster import Slot
from shoal.core.draft import Draft
from shoal.core.event import (
    Advanced,
    Commanded,
    Decided,
    Ended,
    Entry,
    Evaluated,
    Failed,
    Fed,
    Fell,
    Finished,
    Joined,
    Kept,
    Left,
    Measured,
    Opened,
    Planned,
    Remembered,
    Retired,
    Submitted,
    Unread,
    trials_of,
)
from shoal.core.plan import Gang
from shoal.core.profile import SETTLED, added, is_same, kind_of
from shoal.core.state import Score, State, durable, start_of
from shoal.core.trial import Samples, Seconds, Trial, TrialId, priority_of

Scores = tuple[Score, ...]
# After so many strikes a trial runs alone. Company never gives it more.
STRIKES_OF_COMPANY = 2


def step(state: State, entry: Entry) -> State:
    """The state after one more entry."""
    return fold(state, (entry,))


def fold(state: State, entries: Iterable[Entry]) -> State:
    """The state after these entries, applied in order.

    The given state stays as it is. A table that changes is copied once, however many of the
    entries change it.
    """
    draft = Draft(state)
    changed: list[TrialId] = []
    for entry in entries:
        apply = _FOLDS[type(entry)]
        apply(draft, entry)
        changed += trials_of(entry)
    if changed:
        draft.scalars["news"] = state.news.after(changed)
    return draft.done()


# -- what each kind of entry changes


def _opened(draft: Draft, entry: Opened) -> None:
    draft.scalars["run"] = entry.run
    draft.scalars["shards"] = entry.shards
    draft.scalars["stopped"] = None
    draft.begin_run()


def _submitted(draft: Draft, entry: Submitted) -> None:
    trial = entry.trial
    former = draft.read("known").get(trial.id)
    how = draft.read("ended").get(trial.id)
    if former is not None and how == "finished" and trial.samples <= former.samples:
        return  # it has trained that far already
    draft.submit(trial)
    draft.set_priority(trial.id, priority_of(trial))
    draft.forget("ended", trial.id)
    if how is not None and how.startswith("failed"):  # it is tried again
        draft.forget("strikes", trial.id)
        draft.forget("strikes_of_slots", trial.id)
        # What comes after the trial's durable state comes for the first time again.
        visits, _ = durable(draft.read("kept").get(trial.id))
        scores = draft.read("scores")[trial.id]
        draft.write("first_scores")[trial.id] = _until(scores, visits, trial)
    if former is None:
        _begin(draft, trial)


def _until(scores: Scores, visits: int, trial: Trial) -> Scores:
    """The scores that a trial had after so many visits."""
    epochs = visits / max(1, len(trial.shards))
    return tuple(score for score in scores if score[0] <= epochs)


def _begin(draft: Draft, trial: Trial) -> None:
    """The first entries of a new trial in the tables."""
    draft.write("done")[trial.id] = 0.0
    draft.write("scores")[trial.id] = ()
    draft.write("pending")[trial.id] = frozenset()
    draft.set_visits(trial.id, ())
    if trial.start is None:
        return
    # It has its parent's visits and durable state, until it has one of its own.
    kept = start_of(trial, draft.read("known"), draft.read("kept"))
    visits = draft.read("visits")[trial.start[0]]
    draft.set_visits(trial.id, visits[: kept.visits])
    draft.write("done")[trial.id] = kept.samples
    draft.write("kept")[trial.id] = replace(kept, trial=trial.id)


def _advanced(draft: Draft, entry: Advanced) -> None:
    """Samples and visits add up."""
    known = draft.read("known")
    done = draft.write("done")
    for trial, samples in entry.samples.items():
        if trial in known:
            done[trial] += samples
    for trial, visits in entry.visits.items():
        if trial in known:
            draft.set_visits(trial, draft.read("visits")[trial] + visits)
    for trial, spent in entry.spent.items():
        samples = entry.samples.get(trial, 0.0)
        _clock(draft, trial, samples, spent.get("train", 0.0))


def _clock(draft: Draft, trial: TrialId, samples: Samples, seconds: Seconds) -> None:
    """Note how fast the trial's gang goes on its slot; nothing of gangs on several slots."""
    gang = draft.read("running").get(trial)
    if gang is None or len(gang.slots) != 1 or min(samples, seconds) <= 0:
        return
    place = (kind_of(gang, draft.read("signature")), *gang.slots)
    worked = draft.write("worked")
    worked[place] = added(worked.get(place), samples, seconds)
    rate = worked[place][0] / worked[place][1]
    if len(gang.lanes) > 1 and not _is_settled(draft, gang, worked[place][1]):
        return
    if not is_same(draft.read("speeds").get(place), rate):
        draft.write("speeds")[place] = rate


def _is_settled(draft: Draft, gang: Gang, seconds: Seconds) -> bool:
    """Whether it is known what kind of pack it is, and it has trained for more than a moment.

    In its first steps a pack tries which way of training is quickest.
    """
    signature = draft.read("signature")
    return seconds >= SETTLED and all(trial in signature for trial in gang.trials)


def _kept(draft: Draft, entry: Kept) -> None:
    if entry.trial not in draft.read("known"):
        return
    newest = draft.read("kept").get(entry.trial)
    if newest is not None and newest.visits < entry.visits:
        draft.write("former")[entry.trial] = newest
    draft.write("kept")[entry.trial] = entry
    draft.forget("strikes", entry.trial)
    draft.forget("strikes_of_slots", entry.trial)


def _fell(draft: Draft, entry: Fell) -> None:
    trial = entry.trial
    known = draft.read("known")
    if trial not in known:
        return
    draft.write("done")[trial] = entry.samples
    newest = draft.read("kept").get(trial)
    if newest is not None and entry.visits < newest.visits:
        # The trial's newest durable state cannot be read: it has the one before, or none.
        former = draft.read("former").get(trial)
        draft.forget("former", trial)
        if former is not None and former.visits == entry.visits:
            draft.write("kept")[trial] = former
        else:
            draft.forget("kept", trial)
    visits = draft.read("visits")[trial][: entry.visits]
    draft.set_visits(trial, visits)
    if known[trial].shards:
        # Evaluations after the epoch that it fell back to will come again.
        before = draft.read("scores")[trial]
        scores = _until(before, len(visits), known[trial])
        if len(scores) < len(before):
            draft.write("scores")[trial] = scores
            if trial not in draft.read("first_scores"):
                draft.write("first_scores")[trial] = before


def _evaluated(draft: Draft, entry: Evaluated) -> None:
    if entry.trial not in draft.read("known"):
        return
    score = (entry.epoch, entry.values)
    scores = draft.read("scores")[entry.trial]
    if scores[-1:] == (score,):
        return  # a function was killed before its end was known, and has returned this again
    scores = (*scores, score)
    draft.write("scores")[entry.trial] = scores
    first = draft.read("first_scores").get(entry.trial)
    if first is None:
        return
    last = first[-1][0] if first else -inf
    # A function that returns a value has two scores of its last epoch.
    if last <= entry.epoch and _count(scores, entry.epoch) > _count(first, entry.epoch):
        draft.write("first_scores")[entry.trial] = (*first, score)


def _count(scores: Scores, epoch: float) -> int:
    """How many of the newest scores are of that epoch."""
    return sum(1 for _ in takewhile(lambda score: score[0] == epoch, reversed(scores)))


def _measured(draft: Draft, entry: Measured) -> None:
    draft.write("signature")[entry.trial] = entry.signature
    gang = draft.read("running").get(entry.trial)
    if gang is not None and len(gang.slots) == 1:
        (slot,) = gang.slots
        # What was clocked of a trial counts for its signature from now on.
        before = (str(entry.trial), slot)
        after = (entry.signature, slot)
        for name in ("worked", "speeds"):
            if before in draft.read(name):
                table = draft.write(name)
                table[after] = table.pop(before)
        if "rate" in entry.figures:
            draft.write("rated")[entry.signature] = slot
            # Else nothing would tell a slow slot from a slow kind, if only packs ran there.
            place = (entry.signature, slot)
            if place not in draft.read("speeds"):
                draft.write("speeds")[place] = entry.figures["rate"]
    if not entry.figures:
        return
    figures = draft.write("figures")
    figures[entry.signature] = {**figures.get(entry.signature, {}), **entry.figures}


def _joined(draft: Draft, entry: Joined) -> None:
    for slot in entry.slots:
        draft.join(slot)


def _left(draft: Draft, entry: Left) -> None:
    """Gangs go on with the slots that they still have."""
    busy = draft.read("busy")
    hit = {busy[slot] for slot in entry.slots if slot in busy}
    for slot in entry.slots:
        _note_gone(draft, draft.leave(slot))
    for gang in hit:
        if entry.died:
            # Count a strike for each trial that lost all its slots: with one left, it goes on.
            for lane in gang.lanes:
                if not entry.slots.issuperset(lane.slots):
                    continue
                for name in ("strikes", "strikes_of_slots"):
                    strikes = draft.write(name)
                    strikes[lane.trial] = strikes.get(lane.trial, 0) + 1
        draft.shrink(gang, slots=entry.slots)


def _note_gone(draft: Draft, slot: Slot | None) -> None:
    """Note where the shards of a slot that left lay."""
    if slot is None or not slot.shards:
        return
    gone = draft.write("gone")
    for shard in sorted(slot.shards):
        gone[shard] = gone.get(shard, frozenset()) | {slot.node}


def _unread(draft: Draft, entry: Unread) -> None:
    """The slot loses the shard, or the trials wait for it."""
    unread = draft.write("unread")
    unread[entry.shard] = {**unread.get(entry.shard, {}), entry.slot: entry.why}
    if entry.trials:
        draft.write("held_back").update(dict.fromkeys(entry.trials, entry.shard))
        return
    slots = draft.write("slots")
    slot = slots.get(entry.slot)
    if slot is not None:
        slots[entry.slot] = replace(slot, shards=slot.shards - {entry.shard})


def _ended(draft: Draft, entry: Ended) -> None:
    draft.stop(entry.gang)
    if not entry.why:
        return
    strikes = draft.write("strikes")
    for trial in entry.gang.trials:
        so_far = strikes.get(trial, 0)
        more = min(so_far + 1, STRIKES_OF_COMPANY)
        strikes[trial] = max(so_far, more)


def _planned(draft: Draft, entry: Planned) -> None:
    for gang in entry.stop:
        draft.stop(gang)
    for gang in entry.start:
        draft.start(gang)
    draft.scalars["turn"] = draft.scalars.get("turn", draft.base.turn) + 1


def _remembered(draft: Draft, entry: Remembered) -> None:
    draft.write("memory")[entry.who] = entry.memory


def _commanded(draft: Draft, entry: Commanded) -> None:
    stopped = draft.scalars.get("stopped", draft.base.stopped)
    if entry.what == "stop" and stopped is None:  # what came first is the reason
        draft.scalars["stopped"] = entry.why


def _retired(draft: Draft, entry: Retired) -> None:
    draft.end(entry.trial, "retired")


def _finished(draft: Draft, entry: Finished) -> None:
    draft.end(entry.trial, "finished")


def _failed(draft: Draft, entry: Failed) -> None:
    draft.end(entry.trial, f"failed: {entry.why}")


def _reported(draft: Draft, entry: Fed | Decided) -> None:
    """Only the report uses it."""


_FOLDS: Mapping[type[Any], Callable[[Draft, Any], None]] = {
    Opened: _opened,
    Submitted: _submitted,
    Retired: _retired,
    Advanced: _advanced,
    Kept: _kept,
    Fell: _fell,
    Evaluated: _evaluated,
    Measured: _measured,
    Ended: _ended,
    Finished: _finished,
    Failed: _failed,
    Joined: _joined,
    Left: _left,
    Unread: _unread,
    Fed: _reported,
    Decided: _reported,
    Planned: _planned,
    Remembered: _remembered,
    Commanded: _commanded,
}
