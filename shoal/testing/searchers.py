"""The contract of a searcher."""

import json
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

from shoal.backend.sim.sim import Sim
from shoal.core.cluster import ShardId, Slot, SlotId
from shoal.core.plan import Proposal
from shoal.core.ports import Searcher
from shoal.core.state import State, View
from shoal.core.trial import TrialId
from shoal.engine.journal import Line
from shoal.engine.run import run
from shoal.policy.fifo import Fifo
from shoal.profile.table import Row, Table
from shoal.search.registry import KNOWN, describe, rebuild
from shoal.testing.journals import check_journal, resumed, through_json
from shoal.testing.worlds import World, in_random_worlds

# One profile for all configurations: a row that holds for every one of them.
TABLE = Table((Row((1.0,)),))
SHARDS = {ShardId("s0"): 8, ShardId("s1"): 4}


def check_searcher(
    make: Callable[[], Searcher[Any]], examples: int = 20, settled: bool = False
) -> None:
    """Run the searcher in small random studies, and check that it keeps its contract.

    Proposing must be pure, and its memory JSON-able. A trial may be submitted again only with more
    samples, and only known trials may be retired. Equal runs must give equal journals. If the
    searcher has a name, what `describe` says of it must rebuild it. A study that was killed after
    any entry of its journal must come to its end.

    `examples`: the number of studies. `settled`: which trials there are in the end, and how far
    they train, does not depend on times, so it must be the same after each kill. Configurations
    must not matter to the study: all of them take the same time.
    """

    def holds(world: World) -> None:
        study = replace(world, table=Table())
        lines, state, stalled = study.run(Fifo(), WatchedSearcher(make()))
        check_journal(lines, state)
        assert not stalled, f"stalled with {sorted(state.trials)} unfinished"
        again, _, _ = study.run(Fifo(), make())
        assert lines == again, "two runs of one study made different journals"

    in_random_worlds(examples, holds)
    _check_resume(make, settled)
    if type(make()) in KNOWN.values():
        _check_rebuilt(make)


def _check_rebuilt(make: Callable[[], Searcher[Any]]) -> None:
    """What the searcher says of itself is enough to rebuild it."""
    described = describe(make())
    data = json.loads(json.dumps(described))
    again = describe(rebuild(data))
    assert again == described, f"rebuilt from {data}, it describes itself as {again}"


def _check_resume(make: Callable[[], Searcher[Any]], settled: bool) -> None:
    """A study that was killed after any entry comes to its end."""
    whole, end = _run(make(), [])
    wanted = _trials(end)
    for cut in range(1, len(whole)):
        _, state = _run(WatchedSearcher(make()), whole[:cut])
        killed = f"killed after entry {cut}, {whole[cut - 1]}"
        left = sorted(state.trials)
        assert not left, f"{killed}: left unfinished are {left}"
        if settled:
            same = _trials(state)
            assert same == wanted, f"{killed}: {same} instead of {wanted}"


def _trials(state: State) -> dict[TrialId, tuple[Any, ...]]:
    """What a searcher asked for: samples, configuration and start of each trial."""
    asked: dict[TrialId, tuple[Any, ...]] = {}
    for name, trial in state.known.items():
        asked[name] = trial.samples, trial.config, trial.start
    return asked


def _run(searcher: Searcher[Any], former: Sequence[Line]) -> tuple[list[Line], State]:
    """Run a study on two slots of one speed, after the lines of a `former` run."""
    journal, state, since = resumed(former, SHARDS)
    slots = [Slot(SlotId(f"w{i}"), shards=frozenset(SHARDS)) for i in range(2)]
    sim = Sim(TABLE.of, slots, shards=SHARDS, former=(state, since), checkpoint_every=1e9)
    state = run(searcher, Fifo(), sim, TABLE.believe, journal, state)
    check_journal(journal.lines, state)
    return journal.lines, state


class WatchedSearcher:
    """A searcher that is asked everything twice: the second time a copy that saw nothing before."""

    def __init__(self, inner: Searcher[Any]) -> None:
        self.inner = inner
        self._unused = deepcopy(inner)

    def start(self) -> Any:
        memory = self.inner.start()
        assert memory == self.inner.start(), "start() must always give the same memory"
        return memory

    def propose(self, view: View, memory: Any) -> tuple[Proposal, Any]:
        read = through_json(memory)
        before = deepcopy(memory)
        proposal, remembered = self.inner.propose(view, memory)
        assert memory == before, "a searcher must not change the memory that it is given"
        again = deepcopy(self._unused).propose(view, read)
        assert again == (proposal, remembered), (
            f"asked twice about the same view, it answered {proposal} and {again[0]}"
        )
        _check_proposal(proposal, view)
        return proposal, remembered


def _check_proposal(proposal: Proposal, view: View) -> None:
    """Trials are new or extended, each once; and only known ones are retired."""
    names = [trial.id for trial in proposal.submit]
    assert len(set(names)) == len(names), f"trials submitted twice at once: {names}"
    for trial in proposal.submit:
        known = view.known.get(trial.id)
        if known is not None:
            extended = known.samples < trial.samples
            assert extended, f"{trial.id} submitted again, but not extended"
    unknown = sorted(proposal.retire - view.known.keys())
    assert not unknown, f"retires unknown trials: {unknown}"
