"""What any policy, searcher and profile must do."""

import json
from collections.abc import Callable, Collection, Sequence
from copy import deepcopy
from dataclasses import replace
from itertools import combinations
from math import inf, isfinite
from typing import Any

from shoal.backend.sim.sim import Sim
from shoal.core.check import check
from shoal.core.cluster import ShardId, Slot, SlotId
from shoal.core.plan import Gang, Lane, Plan, Proposal
from shoal.core.ports import Policy, Searcher
from shoal.core.profile import Profile
from shoal.core.state import State, View
from shoal.core.trial import TrialId
from shoal.engine.journal import Line
from shoal.engine.run import run
from shoal.policy.fifo import Fifo
from shoal.profile.table import Row, Table
from shoal.search.registry import KNOWN, describe, rebuild
from shoal.testing.journals import check_journal, resumed, through_json
from shoal.testing.worlds import World, in_random_worlds


def check_policy(
    make: Callable[[], Policy[Any]], examples: int = 40, finishes: bool = True
) -> None:
    """Run the policy in small random studies, and check that it keeps its contract.

    In these studies slots come and go, shards have replicas, and memory is short. Every plan must
    pass `check`. Deciding must be pure, and its memory JSON-able. Equal seeds must give equal
    journals, and replaying a journal must give the state.

    `examples`: the number of studies. `finishes`: whether the policy must finish each study that
    can be finished.
    """

    def holds(world: World) -> None:
        lines, state, stalled = world.run(WatchedPolicy(make()))
        check_journal(lines, state)
        rerun, _, _ = world.run(make())
        assert lines == rerun, "two runs of one study made different journals"
        if finishes:
            assert not stalled, (
                f"stalled with {sorted(state.trials)} unfinished on {sorted(state.slots)}"
            )
            for trial, how in state.ended.items():
                assert how == "finished" or "died under it" in how, f"{trial}: {how}"

    in_random_worlds(examples, holds)


class WatchedPolicy:
    """A policy that is asked everything twice."""

    def __init__(self, inner: Policy[Any]) -> None:
        self.inner = inner

    def start(self) -> Any:
        memory = self.inner.start()
        assert memory == self.inner.start(), "start() must always give the same memory"
        return memory

    def decide(self, view: View, memory: Any) -> tuple[Plan, Any]:
        read = through_json(memory)
        before = deepcopy(memory)
        plan, remembered = self.inner.decide(view, memory)
        assert memory == before, "a policy must not change the memory that it is given"
        repeated = self.inner.decide(view, read)
        assert repeated == (plan, remembered), (
            f"asked twice about the same view, it answered {plan} and {repeated[0]}"
        )
        check(plan, view)
        old = view.plan.gangs
        turns = {view.turn, *(gang.since for gang in old)}
        for gang in plan.gangs - old:
            assert gang.since in turns, f"new gangs must have since={view.turn}; got {gang}"
        return plan, remembered


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
        rerun, _, _ = study.run(Fifo(), make())
        assert lines == rerun, "two runs of one study made different journals"

    in_random_worlds(examples, holds)
    _check_resume(make, settled)
    if type(make()) in KNOWN.values():
        described = describe(make())
        data = json.loads(json.dumps(described))
        rebuilt = describe(rebuild(data))
        assert rebuilt == described, f"rebuilt from {data}, it describes itself as {rebuilt}"


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
            trials = _trials(state)
            assert trials == wanted, f"{killed}: {trials} instead of {wanted}"


def _trials(state: State) -> dict[TrialId, tuple[Any, ...]]:
    """What a searcher asked for: samples, configuration and start of each trial."""
    known = state.known.items()
    return {name: (trial.samples, trial.config, trial.start) for name, trial in known}


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
        repeated = deepcopy(self._unused).propose(view, read)
        assert repeated == (proposal, remembered), (
            f"asked twice about the same view, it answered {proposal} and {repeated[0]}"
        )
        names = [trial.id for trial in proposal.submit]
        assert len(set(names)) == len(names), f"trials submitted twice at once: {names}"
        for trial in proposal.submit:
            known = view.known.get(trial.id)
            if known is not None:
                extended = known.samples < trial.samples
                assert extended, f"{trial.id} submitted again, but not extended"
        unknown = sorted(proposal.retire - view.known.keys())
        assert not unknown, f"retires unknown trials: {unknown}"
        return proposal, remembered


def check_profile(profile: Profile, trials: Sequence[TrialId], slots: Sequence[SlotId]) -> None:
    """Ask the profile about these trials: alone, on several slots, and two together.

    Speeds must be positive, and costs must not be negative. The same question must have the same
    answer.
    """
    for trial in trials:
        _check_curve(profile, trial, len(slots))
        cost = profile.cost(trial)
        for part in (cost.memory, cost.build, cost.evaluate, cost.save, cost.first):
            assert 0 <= part < inf, f"{trial}: {cost}"
        for width in range(1, len(slots) + 1):
            lane = Lane(trial, tuple(slots[:width]))
            _check_gang(profile, Gang((lane,)))
    for one, other in combinations(trials, 2):
        for slot in {slots[0], slots[-1]}:
            lanes = (Lane(one, (slots[0],)), Lane(other, (slot,)))
            _check_gang(profile, Gang(lanes))


def _check_curve(profile: Profile, trial: TrialId, upto: int) -> None:
    curve = list(profile.curve(trial, upto))
    assert len(curve) == upto, f"{trial}: {len(curve)} rates at widths 1..{upto}"
    _check_rates(trial, curve)
    first = list(profile.curve(trial, 1))
    assert first == curve[:1], f"{trial}: the rate at width 1 changes with `upto`"


def _check_rates(subject: object, rates: Collection[float]) -> None:
    positive = all(isfinite(rate) and rate > 0 for rate in rates)
    assert positive, f"{subject}: rates {rates}"


def _check_gang(profile: Profile, gang: Gang) -> None:
    """Check the rates and the changes of one gang."""
    rates = dict(profile.rates(gang))
    named = rates.keys()
    wanted = set(gang.trials)
    assert named == wanted, f"rates of {sorted(named)} for a gang of {gang.trials}"
    _check_rates(gang, rates.values())
    repeated = dict(profile.rates(gang))
    assert rates == repeated, f"{gang}: asked twice, it answered twice"

    _check_change(profile, None, gang)
    _check_change(profile, gang, gang)
    _check_change(profile, gang, None)
    stop = profile.switch(gang, None)
    assert stop == 0, f"stopping {gang} costs training time of a gang that is not there"


def _check_change(profile: Profile, before: Gang | None, after: Gang | None) -> None:
    seconds = profile.switch(before, after)
    assert seconds >= 0, f"a change from {before} to {after} takes less than no time"
