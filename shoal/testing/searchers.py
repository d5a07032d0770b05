"""The contract of a searcher."""

import json
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any

from hypothesis import HealthCheck, given, settings

from shoal.backend.sim import Sim
from shoal.core.cluster import ShardId, Slot, SlotId
from shoal.core.plan import Proposal
from shoal.core.ports import Searcher
from shoal.core.state import State, View, fold
from shoal.engine.journal import Journal, Line, replay
from shoal.engine.run import reopened, run
from shoal.policy.fifo import Fifo
from shoal.profile.table import Row, Table
from shoal.search.named import KNOWN, describe, rebuild
from shoal.testing.journals import check_journal
from shoal.testing.worlds import World, worlds


def check_searcher(make: Callable[[], Searcher[Any]], examples: int = 20, settled: bool = False) -> None:
    """Run the searcher in small random studies and hold it to its contract.

    Proposing is pure and its memory JSON-able; a trial is submitted once, or again with more samples; only known trials
    are retired; equal runs give equal journals; if it has a name, what `describe` says of it rebuilds it; a study that was
    killed after any entry of its journal can be brought to its end. `settled`: which trials there are in the end,
    and how far they train, does not depend on times, so it must be the same after each kill.
    Configurations must not matter to the study: a profile with one row for all is used.
    """

    @settings(max_examples=examples, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    @given(worlds())
    def holds(world: World) -> None:
        same = World(**{**vars(world), "table": type(world.table)()})
        lines, state, stalled = same.run(Fifo(), Watched(make()))
        check_journal(lines, state)
        assert not stalled, f"stalled with {sorted(state.trials)} unfinished"
        assert lines == same.run(Fifo(), make())[0], "two runs of one study made different journals"

    holds()
    _check_resume(make, settled)
    if type(make()) in KNOWN.values():
        data = json.loads(json.dumps(describe(make())))
        again = describe(rebuild(data))
        assert again == describe(make()), f"rebuilt from {data}, it describes itself as {again}"


def _check_resume(make: Callable[[], Searcher[Any]], settled: bool) -> None:
    shards = {ShardId("s0"): 8, ShardId("s1"): 4}
    whole, end = _run(make(), shards, [])
    check_journal(whole, end)
    for cut in range(1, len(whole)):
        lines, state = _run(Watched(make()), shards, whole[:cut])
        check_journal(lines, state)
        assert not state.trials, f"killed after entry {cut}, {whole[cut - 1]}: left unfinished are {sorted(state.trials)}"
        same = {t: (x.samples, x.config, x.start) for t, x in state.known.items()}
        if settled:
            wanted = {t: (x.samples, x.config, x.start) for t, x in end.known.items()}
            assert same == wanted, f"killed after entry {cut}, {whole[cut - 1]}: {same} instead of {wanted}"


def _run(searcher: Searcher[Any], shards: Mapping[ShardId, int], former: Sequence[Line]) -> tuple[list[Line], State]:
    """Two slots of one speed; go on after these lines."""
    table, since, journal = Table((Row((1.0,)),)), former[-1].time if former else 0.0, Journal()
    journal.lines += former
    state = replay(journal.lines)
    for entry in reopened(state, shards, {}):
        journal.append(since, entry)
        state = fold(state, [entry])
    slots = [Slot(SlotId(f"w{i}"), shards=frozenset(shards)) for i in range(2)]
    sim = Sim(table.of, slots, shards=shards, state=state, since=since, checkpoint_every=1e9)
    return journal.lines, run(searcher, Fifo(), sim, table.believe, journal, state)


class Watched:
    """A searcher that is asked everything twice."""

    def __init__(self, inner: Searcher[Any]) -> None:
        self.inner = inner

    def start(self) -> Any:
        memory = self.inner.start()
        assert memory == self.inner.start(), "start() must always give the same memory"
        return memory

    def propose(self, view: View, memory: Any) -> tuple[Proposal, Any]:
        assert json.loads(json.dumps(memory)) == memory, f"memory must survive JSON (no tuples, sets, keys but text): {memory!r}"
        before = deepcopy(memory)
        proposal, remembered = self.inner.propose(view, memory)
        assert memory == before, "a searcher must not change the memory that it is given"
        again = self.inner.propose(view, json.loads(json.dumps(memory)))
        assert again == (proposal, remembered), f"asked twice about the same view, it answered {proposal} and {again[0]}"
        names = [trial.id for trial in proposal.submit]
        assert len(set(names)) == len(names), f"trials submitted twice at once: {names}"
        for trial in proposal.submit:
            known = view.known.get(trial.id)
            assert known is None or known.samples < trial.samples, f"{trial.id} submitted again, but not extended"
        assert proposal.retire <= view.known.keys(), f"retires unknown trials: {sorted(proposal.retire - view.known.keys())}"
        return proposal, remembered
