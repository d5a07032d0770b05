import json
import tracemalloc
from typing import Any

import pytest
from simkit import SHARDS, started, state_of, study, view_of

from shoal.core.event import Evaluated, Finished, Joined, Opened, Planned, Submitted
from shoal.core.fold import fold
from shoal.core.state import State, View
from shoal.core.trial import Trial, TrialId
from shoal.policy.fifo import Fifo
from shoal.policy.reference.baselines import Width
from shoal.profile.table import Row, Table
from shoal.search import Grid, Random, SuccessiveHalving, Trace, describe, rebuild
from shoal.search.batch import AHEAD
from shoal.search.space import choice, grid, loguniform, uniform
from shoal.testing import check_searcher

SPACE = {"lr": loguniform(1e-4, 1e-1), "width": grid([64, 128]), "depth": grid([1, 2, 3]), "k": "x"}
ARRIVALS = [(5.0, {"a": 2}), (0.0, {"a": 1}), (5.0, {"a": 3}, 15)]


def empty() -> View:
    return view_of(state_of())


@pytest.mark.parametrize(
    "make",
    [
        lambda: Grid({"a": grid([1, 2]), "b": choice({"x": {"n": grid([1, 2])}, "y": None})}, 2),
        lambda: Grid({"a": grid([1, 2, 3])}, 1, max_concurrent=2),
        lambda: Grid({}, 1),
        lambda: Random(SPACE, 2, 1, seed=5),
        lambda: Random({"p": uniform(0, 1)}, 7, 0.5, seed=5, max_concurrent=3),
        lambda: Random({"p": uniform(0, 1)}, 3, 1, seed=5, widths=(1, 4)),
        lambda: Trace(ARRIVALS, 2),
    ],
)
@pytest.mark.parametrize("examples", [5, pytest.param(30, marks=pytest.mark.nightly)])
def test_contract(make: Any, examples: int) -> None:
    check_searcher(make, examples, settled=True)


def test_grid_is_every_combination_once() -> None:
    proposal, came = Grid({"a": grid([1, 2]), "b": 5, "c": grid(["x", "y", "z"])}, 3).propose(
        empty(), 0
    )
    expected = [
        (f"t{i:03d}", a, 5, c)
        for i, (a, c) in enumerate((a, c) for a in (1, 2) for c in ("x", "y", "z"))
    ]
    assert [
        (t.id, t.config["a"], t.config["b"], t.config["c"]) for t in proposal.submit
    ] == expected
    assert came == 6
    assert all(
        t.samples == 90.0 and t.shards == frozenset(SHARDS) and t.widths == (1, 1)
        for t in proposal.submit
    )


@pytest.mark.parametrize(
    "make", [lambda w: Grid({"a": grid([1, 2])}, 3, widths=w), lambda w: Random({}, 2, 3, widths=w)]
)
def test_trials_are_as_wide_as_asked_for(make: Any) -> None:
    proposal, _ = make([2, 4]).propose(empty(), 0)
    assert [t.widths for t in proposal.submit] == [(2, 4)] * 2
    plain = json.loads(json.dumps(describe(make((2, 4)))))
    assert rebuild(plain) == make((2, 4)) and rebuild(plain).widths == (2, 4)
    for bad in ((0, 4), (3, 2), (1,), (1, 2, 3), 4, (1, 2.5), "ab", (True, 2)):
        with pytest.raises(ValueError, match="widths must be"):
            make(bad)


def test_wide_trials_run_wide_on_the_simulator() -> None:
    table = Table((Row((10.0, 20.0, 30.0)),))
    lines, state = study(Width(3), table, searcher=Grid({"a": grid([1, 2])}, 2, widths=(1, 3)))
    widest = {
        len(lane.slots)
        for line in lines
        if isinstance(line.entry, Planned)
        for g in line.entry.start
        for lane in g.lanes
    }
    assert widest == {3} and set(state.ended.values()) == {"finished"}
    assert max(time for time, _ in lines) == pytest.approx(2 * 60 / 30)


def test_names_have_as_many_digits_as_the_last_needs() -> None:
    proposal, _ = Random({}, 1001, 1).propose(empty(), 0)
    names = [t.id for t in proposal.submit]
    assert (names[0], names[-1]) == ("t0000", "t1000") and names == sorted(names)


def test_random_crosses_grids() -> None:
    search = Random(SPACE, 4, 1, seed=2)
    proposal, came = search.propose(empty(), 0)
    configs = [t.config for t in proposal.submit]
    assert came == 24
    assert [(c["width"], c["depth"]) for c in configs] == [
        (w, d) for w in (64, 128) for d in (1, 2, 3)
    ] * 4
    assert len({c["lr"] for c in configs}) == 24, "each trial draws its own"
    assert configs[17] == search.config(17) == Random(SPACE, 99, 7, seed=2).config(17)
    assert configs[17] != Random(SPACE, 4, 1, seed=3).config(17)


@pytest.mark.parametrize(
    "make",
    [
        lambda n: Grid({"a": grid(range(7))}, 1, n),
        lambda n: Random({"a": uniform(0, 1)}, 7, 1, 0, n),
    ],
)
def test_max_concurrent(make: Any) -> None:
    lines, state = study(Fifo(), searcher=make(2))
    assert len(state.ended) == 7
    open_, most = 0, 0
    for _, entry in lines:
        open_ += isinstance(entry, Submitted) - isinstance(entry, Finished)
        most = max(most, open_)
    assert most == 2
    whole, all_ = study(Fifo(), searcher=make(None))
    assert {t: all_.known[t].config for t in all_.known} == {
        t: state.known[t].config for t in state.known
    }
    assert len({time for time, e in whole if isinstance(e, Submitted)}) == 1


def test_trials_that_a_torn_journal_has_already_are_not_sent_again() -> None:
    search = Grid({"a": grid(range(4))}, 1, max_concurrent=3)
    first = search.propose(empty(), 0)[0].submit
    state = started(first[0], first[1])
    proposal, came = search.propose(view_of(state), 0)
    assert [t.id for t in proposal.submit] == ["t002"] and came == 3
    trace = Trace(ARRIVALS, 2)
    early = trace.propose(empty(), 0)[0].submit
    proposal, came = trace.propose(view_of(started(*early)), 0)
    assert proposal.submit == () and came == 1 and proposal.wake_at == 5.0


def test_trace() -> None:
    trace = Trace(ARRIVALS, 2)
    proposal, came = trace.propose(empty(), 0)
    assert [(t.id, t.config, t.samples) for t in proposal.submit] == [("t000", {"a": 1}, 60.0)]
    assert (came, proposal.wake_at) == (1, 5.0)
    proposal, came = trace.propose(view_of(state_of(), now=6.0), came)
    assert [(t.id, t.config, t.samples) for t in proposal.submit] == [
        ("t001", {"a": 2}, 60.0),
        ("t002", {"a": 3}, 15.0),
    ]
    assert (came, proposal.wake_at) == (3, None)


def test_without_data_there_is_nothing_to_train_on() -> None:
    bare = view_of(fold(State(), [Opened(1, {}), Joined(())]))
    with pytest.raises(ValueError, match="sizes of the study's shards"):
        Grid({}, 1).propose(bare, 0)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: Grid({"lr": uniform(0, 1)}, 1), r"lr cannot be listed: use Random\("),
        (lambda: Grid({}, 0), "max_epochs must be > 0"),
        (lambda: Grid({}, 1, 0), "max_concurrent must be >= 1"),
        (lambda: Random({}, 0, 1), "num_samples must be >= 1"),
        (lambda: Random({}, 1, 1, seed=-1), "seed must be >= 0"),
        (lambda: Trace([]), "needs arrivals"),
        (lambda: Trace([(1.0,)]), "an arrival is"),
        (lambda: Trace([(-1.0, {})]), "time must be >= 0"),
    ],
)
def test_wrong_searches_cannot_be_built(make: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        make()


@pytest.mark.parametrize(
    "made", [Grid(SPACE | {"lr": 1}, 3, 2), Random(SPACE, 4, 2.5, 7), Trace(ARRIVALS, 2)]
)
def test_described_as_json_and_rebuilt(made: Any) -> None:
    back: Any = rebuild(json.loads(json.dumps(describe(made), sort_keys=True)))
    assert back == made
    assert back.propose(empty(), 0) == made.propose(empty(), 0)


def test_what_cannot_be_rebuilt() -> None:
    with pytest.raises(ValueError, match="no searcher is named 'best'"):
        rebuild({"name": "best"})
    with pytest.raises(ValueError, match="searcher grid: "):
        rebuild({"name": "grid", "space": {"dimensions": []}, "what": 1})

    class Mine:
        def start(self) -> None: ...
        def propose(self, view: Any, memory: Any) -> Any: ...

    with pytest.raises(ValueError, match="give the searcher again"):
        describe(Mine())


def test_a_trial_that_a_person_added_is_not_the_searchers() -> None:
    state = started(Trial(TrialId("mine"), 10.0, shards=frozenset(SHARDS)))
    proposal, _ = Grid({"a": grid([1, 2])}, 1).propose(view_of(state), 0)
    assert [t.id for t in proposal.submit] == ["t000", "t001"]


MILLIONS: dict[str, Any] = {
    "grid": lambda: Grid({"a": grid(range(1000)), "b": grid(range(2000))}, 1),
    "random": lambda: Random({"a": uniform(0, 1)}, 2_000_000, 1),
    "repetitions": lambda: Random({"a": grid(range(1000))}, 2000, 1),
    "halving": lambda: SuccessiveHalving({"a": uniform(0, 1)}, 2_000_000, 9, metric="m"),
}


@pytest.mark.parametrize("name", MILLIONS)
def test_millions_of_trials_come_in_blocks(name: str) -> None:
    """None is made before its turn: neither memory nor the first look grow with their number."""
    tracemalloc.start()
    searcher = MILLIONS[name]()
    state = state_of()
    memory = searcher.start()
    blocks = []
    for _ in range(3):
        proposal, memory = searcher.propose(view_of(state), memory)
        state = fold(state, [Submitted(trial) for trial in proposal.submit])
        blocks.append(len(proposal.submit))
        ended = [*state.trials][: AHEAD // 2]
        assert searcher.propose(view_of(state), memory)[0].submit == ()
        state = fold(state, [Evaluated(trial, 1.0, {"m": 0.5}) for trial in ended])
        state = fold(state, [Finished(trial) for trial in ended])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert blocks == [AHEAD, AHEAD // 2, AHEAD // 2]
    assert len(state.known) == 2 * AHEAD
    assert peak < 40e6


def test_what_comes_in_blocks_is_what_would_come_at_once() -> None:
    space = {"a": grid(range(50)), "b": choice({"x": {"c": grid([1, 2])}, "y": None})}
    size = 50 * 3
    searcher = Grid(space, 1)
    configs = [searcher.config(number) for number in range(size)]
    assert len({tuple(config.items()) for config in configs}) == size
    first = [configs[149], configs[3], {"a": "another"}, configs[4]]
    more = Grid(space, 1, first=first)
    rest = [config for config in configs if config not in first]
    assert [more.config(number) for number in range(size + 1)] == [*first, *rest]
    assert len(more.propose(empty(), 0)[0].submit) == size + 1
