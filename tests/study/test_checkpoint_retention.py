"""Retention of what other trials start from, and the warning of idle slots."""

import warnings
from dataclasses import replace
from math import nan

import msgspec
import pytest
from simkit import SHARDS, state_of, trial

from shoal.backend.sim.sim import Sim
from shoal.backend.sim.units import SimulatedRecipe
from shoal.core.cluster import Slot, SlotId
from shoal.core.event import Advanced, Evaluated, Finished, Kept, Opened, Retired, Submitted
from shoal.core.fold import fold
from shoal.core.state import State
from shoal.core.trial import TrialId, Visit
from shoal.engine.journal import Journal, Line, replay
from shoal.engine.run import run
from shoal.engine.snapshot import History, Snapshot
from shoal.policy.fifo import Fifo
from shoal.profile.table import Row, Table
from shoal.search import ASHA, SuccessiveHalving
from shoal.search.space import uniform
from shoal.study.checkpoint_retention import Retention
from shoal.study.watchers import IdleWarner
from shoal.train.lane.checkpoints import Checkpoints

A, B = TrialId("a"), TrialId("b")


def by_loss(config):
    """The least loss is the best."""
    return "loss", "min"


class Shelf:
    """Where checkpoints lie."""

    def __init__(self, *names):
        self.held = set(names)

    def names(self):
        return tuple(self.held)

    def size(self, name):
        return 1

    def delete(self, name):
        self.held.remove(name)


def play(moments):
    """(the shelf, the retention, all lines) after these moments; what is kept lies on the shelf."""
    shelf, state, lines = Shelf(), State(), []
    retention = Retention(shelf, by_loss)
    for now, entries in enumerate(moments):
        shelf.held |= {e.name for e in entries if isinstance(e, Kept)}
        state = fold(state, entries)
        retention(float(now), tuple(entries), state)
        lines += [Line(float(now), e) for e in entries]
    return shelf, lines


def kept(name, visits):
    return [
        Advanced({name: 10.0}, visits={name: (Visit(0, list(SHARDS)[visits - 1], 0, 10),)}),
        Kept(name, visits, 10.0 * visits, f"{name}/{visits}"),
    ]


PARENT = trial("a")
CHILD = replace(PARENT, id=B, start=(A, 2))
BEGUN = [
    [Opened(1, SHARDS), Submitted(PARENT)],
    kept(A, 1),
    [*kept(A, 2), Finished(A), Submitted(CHILD)],
]


def test_what_another_trial_starts_from_is_kept_until_it_has_its_own():
    assert play(BEGUN)[0].held == {"a/2"}
    assert play([*BEGUN, kept(A, 3)])[0].held == {"a/2", "a/3"}
    assert play([*BEGUN, kept(A, 3), kept(B, 3)])[0].held == {
        "a/2",  # the former one of b, as long as that trains
        "a/3",
        "b/3",
    }
    ended = [*BEGUN, kept(A, 3), kept(B, 3), [Finished(A), Finished(B)]]
    assert play(ended)[0].held == {"a/3", "b/3"}


def past(lines, since=None):
    """What these lines come to, of which a snapshot has the first."""
    rest = lines[since.lines :] if since else lines
    return History(len(lines), 0.0, (), replay(lines), rest, since)


def test_also_after_a_restart():
    shelf, lines = play([*BEGUN, kept(A, 3)])
    again = Retention(shelf, by_loss)
    again.restore(past(lines), lambda: pytest.fail("they are all there"))
    assert shelf.held == {"a/2", "a/3"}


def by_gain(config):
    return "gain", "max"


def test_also_after_a_restart_from_a_snapshot_wherever_it_was_written():
    """What was learnt is in it; of one that no run wrote, or ranked otherwise, all is read."""
    moments = [
        *BEGUN,
        scored(A, 1, 0.5),
        scored(B, 1, nan),
        scored(A, 2, 0.7),
        scored(B, 2, 0.1),
        [Finished(B)],
        scored(A, 3, 0.6),
    ]
    _, lines = play(moments)
    whole = Retention(Shelf(), by_loss)
    whole.learn(lines)
    for cut in range(len(lines) + 1):
        first = Retention(Shelf(), by_loss)
        first.learn(lines[:cut])
        state = replay(lines[:cut])
        learnt = msgspec.msgpack.decode(msgspec.msgpack.encode(first.learnt()))
        some = past(lines, Snapshot(cut, 0, 0.0, (), state, learnt))
        again = Retention(Shelf(), by_loss)
        again.learn_past(some, lambda: pytest.fail("the snapshot says enough"))
        assert repr(again.learnt()) == repr(whole.learnt())
        assert +again._uses == +whole._uses
        for other in (Snapshot(cut, 0, 0.0, (), state), some.since):
            aim = by_loss if other.learnt is None else by_gain
            anew = Retention(Shelf(), aim)
            expected = Retention(Shelf(), aim)
            expected.learn(lines)
            anew.learn_past(past(lines, other), lambda: lines)
            if cut > 2:  # before it there is no trial, and nothing is ranked
                assert repr(anew.learnt()) == repr(expected.learnt())


def test_a_state_that_vanishes_at_once_is_no_end_but_a_place_that_is_gone_is(tmp_path):
    vault = Checkpoints(tmp_path, run=1)
    vault.mark()
    retention = Retention(vault, by_loss)
    begun = BEGUN[0]
    state = fold(State(), begun)
    retention(0.0, tuple(begun), state)
    one = kept(A, 1)  # what somebody deleted as soon as it was written
    retention(1.0, tuple(one), fold(state, one))
    assert retention.sizes == {"a/1": 0}
    (tmp_path / "RUN").unlink()
    two = kept(A, 2)
    with pytest.raises(FileNotFoundError, match="lacks the file RUN"):
        retention(2.0, tuple(two), fold(state, [*one, *two]))


def scored(name, visits, loss):
    advanced, durable = kept(name, visits)
    return [advanced, Evaluated(name, visits / len(SHARDS), {"loss": loss}), durable]


def test_over_the_limit_the_best_trial_keeps_its_weights():
    """The worst retired trial's go first; a first score of nan is never the best; two units in
    a moment are two.
    """
    names = [TrialId(x) for x in "abc"]
    shelf, state = Shelf(), State()
    retention = Retention(shelf, by_loss, limit_gb=2 / 1024**3)
    moments = [[Opened(1, SHARDS), *(Submitted(replace(PARENT, id=t)) for t in names)]]
    moments += [[*scored(names[0], 1, nan), *scored(names[0], 2, 0.1)], [Retired(names[0])]]
    moments += [
        scored(names[1], 1, 0.9),
        [Retired(names[1])],
        [*scored(names[2], 1, 0.5), *scored(names[2], 2, 0.7)],
    ]
    for now, entries in enumerate(moments):
        shelf.held |= {e.name for e in entries if isinstance(e, Kept)}
        state = fold(state, entries)
        retention(float(now), tuple(entries), state)
        if now == 1:
            assert retention.best[names[0]] == (-0.1, "a/2")
    assert shelf.held == {"a/2", "c/2"}, (
        "not b's, the worst that was retired, nor c's best but not last"
    )


def test_a_state_that_becomes_durable_late_has_its_own_score_or_none():
    begun, (advanced, evaluated, durable) = BEGUN[0], scored(A, 1, 0.1)
    further, later, last = scored(A, 2, 0.9)
    for lines, best in (
        ([advanced, evaluated, further, durable], "a/1"),
        ([advanced, evaluated, further, later, durable], None),
        ([advanced, evaluated, further, later, durable, last], "a/2"),
    ):
        retention = Retention(Shelf("a/1", "a/2"), by_loss)
        retention.learn([Line(0.0, entry) for entry in [*begun, *lines]])
        assert retention.best.get(A, (0, None))[1] == best


def test_a_child_stands_where_its_parent_stood():
    state = fold(State(), [e for moment in [*BEGUN, kept(A, 3)] for e in moment])
    assert (
        state.visits[B] == state.visits[A][:2]
        and state.done[B] == 20.0
        and len(state.pending[B]) == 1
    )
    assert state.kept[B] == Kept(B, 2, 20.0, "a/2")
    assert state_of(Submitted(PARENT)).done[A] == 0.0


def idle(searcher, slots):
    table = Table((Row((10.0,)),))
    sim = Sim(
        table.of,
        [Slot(SlotId(f"g{i}"), shards=frozenset(SHARDS)) for i in range(slots)],
        shards=SHARDS,
        recipe=SimulatedRecipe(lambda c, e: {"s": e}),
    )
    run(
        searcher,
        Fifo(),
        sim,
        table.believe,
        Journal(),
        fold(State(), [Opened(1, SHARDS)]),
        watch=[IdleWarner()],
    )


def test_slots_that_a_rung_leaves_idle():
    x = {"x": uniform(0, 1)}
    with pytest.warns(UserWarning, match="slots stood idle for 50 % of the time so far"):
        idle(SuccessiveHalving(x, 4, 4, reduction_factor=2, metric="s"), 8)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        idle(SuccessiveHalving(x, 4, 4, reduction_factor=2, metric="s"), 2)
        idle(ASHA(x, 12, 4, reduction_factor=2, metric="s"), 3)
