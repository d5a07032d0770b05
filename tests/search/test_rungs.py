"""What was decided at a rung stays decided, whatever a restart voids of the scores."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.backend.sim.sim import Sim
from shoal.backend.sim.units import SimulatedRecipe, no_fault
from shoal.core.cluster import ShardId, Slot, SlotId
from shoal.core.event import Advanced, Evaluated, Failed, Fell, Kept, Opened, Submitted
from shoal.core.fold import fold
from shoal.core.state import State, durable, view
from shoal.core.trial import Trial, TrialId, Visit
from shoal.engine.journal import Line, replay
from shoal.engine.run import run
from shoal.policy.fifo import Fifo
from shoal.profile.table import Row, Table
from shoal.search import ASHA, PBT, Hyperband, SuccessiveHalving
from shoal.search.rank import cost_at
from shoal.search.space import uniform
from shoal.testing.journals import resumed

SHARDS = {ShardId("all"): 100}
TABLE = Table((Row((100.0,)),))
SPACE = {"x": uniform(0, 1)}
AIM: Any = {"metric": "score", "mode": "max"}


def killed_again_and_again(searcher: Any, cuts: list[int], noise: list[float]) -> Any:
    """The end of a study that was killed after so many entries of each run.

    Nothing of its trials is durable, as of functions that give no checkpoint, and trained once
    more they score otherwise.
    """
    lines: list[Line] = []
    for number in range(len(cuts) + 1):

        def curve(config: Any, epochs: float, off: int = number) -> Any:
            moved = (config["x"] + noise[off % len(noise)] * epochs) % 1
            return {"score": config["x"] if off == 0 else moved}

        journal, state, since = resumed(lines, SHARDS)
        before = len(journal.lines)
        slots = [Slot(SlotId(f"w{i}"), shards=frozenset(SHARDS)) for i in range(3)]
        sim = Sim(
            TABLE.of,
            slots,
            shards=SHARDS,
            former=(state, since),
            recipe=SimulatedRecipe(curve, no_fault),
            checkpoint_every=1e9,
        )
        state = run(searcher(), Fifo(), sim, TABLE.believe, journal, state)
        if number < len(cuts):
            lines = journal.lines[: before + cuts[number]]
            lines = [line for line in lines if not isinstance(line.entry, Kept)]
            known = replay(lines).known
            lines += [Line(lines[-1].time, Fell(trial, 0, 0.0)) for trial in known]
    assert not state.trials
    return state


def came_to(state: State) -> dict[int, int]:
    """How many trials were sent to so many epochs and no further."""
    return dict(Counter(int(t.samples / 100) for t in state.known.values()))


CUTS = st.lists(st.integers(1, 200), min_size=1, max_size=4)
NOISE = st.lists(st.floats(0, 1), min_size=1, max_size=4)


@settings(deadline=None, max_examples=15)
@given(CUTS, NOISE)
def test_halving_and_hyperband_send_on_as_many_as_their_rungs_say(
    cuts: list[int], noise: list[float]
) -> None:
    state = killed_again_and_again(lambda: SuccessiveHalving(SPACE, 27, 9, **AIM), cuts, noise)
    assert came_to(state) == {1: 18, 3: 6, 9: 3}
    state = killed_again_and_again(lambda: Hyperband(SPACE, 9, **AIM), cuts, noise)
    assert came_to(state) == {1: 6, 3: 6, 9: 5}


SEARCHERS: dict[str, Any] = {
    "halving": lambda: SuccessiveHalving(SPACE, 9, 9, **AIM),
    "hyperband": lambda: Hyperband(SPACE, 9, concurrent=False, **AIM),
    "asha": lambda: ASHA(SPACE, 20, 9, **AIM),
    "asha by stopping": lambda: ASHA(SPACE, 20, 9, stopping=True, **AIM),
    "pbt": lambda: PBT(SPACE, 6, 4, **AIM),
    "asynchronous pbt": lambda: PBT(SPACE, 6, 4, asynchronous=True, **AIM),
}


def undisturbed(name: str) -> list[Line]:
    """The journal of a whole study."""
    journal, state, since = resumed([], SHARDS)
    slots = [Slot(SlotId(f"w{i}"), shards=frozenset(SHARDS)) for i in range(3)]
    recipe = SimulatedRecipe(lambda config, _: {"score": config["x"]}, no_fault)
    sim = Sim(
        TABLE.of, slots, shards=SHARDS, former=(state, since), recipe=recipe, checkpoint_every=1e9
    )
    run(SEARCHERS[name](), Fifo(), sim, TABLE.believe, journal, state)
    return journal.lines


def asked(searcher: Any, state: State) -> Any:
    """What a searcher that saw nothing before proposes."""
    memory = state.memory.get("searcher") or searcher.start()
    proposal, _ = searcher.propose(view(state, 0.0, TABLE.believe(state)), memory)
    return proposal.submit


@pytest.mark.parametrize("name", SEARCHERS)
@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_what_is_voided_and_scored_otherwise_changes_no_decision(name: str, data: Any) -> None:
    """Trials under way fall back, and are evaluated anew with other values."""
    lines = undisturbed(name)
    cut = data.draw(st.integers(1, len(lines)))
    before = fold(State(), [line.entry for line in lines[:cut]])
    after = before
    for _ in range(data.draw(st.integers(1, 3))):
        for trial in before.trials:
            # Copies start from what is durable.
            least, _ = durable(before.kept.get(trial) if "pbt" in name else None)
            visits = data.draw(st.integers(least, len(after.visits[trial])))
            after = fold(after, [Fell(trial, visits, 100.0 * visits)])
            scored = [round(epoch) for epoch, _ in before.scores[trial]]
            most = max(scored, default=visits)
            again = data.draw(st.integers(visits, max(visits, most)))
            for epoch in range(visits, again):
                visit = before.visits[trial][epoch]
                worth = data.draw(st.floats(0, 1))
                after = fold(
                    after,
                    [
                        Advanced({trial: 100}, visits={trial: (visit,)}),
                        Evaluated(trial, epoch + 1.0, {"score": worth}),
                    ],
                )
    assert asked(SEARCHERS[name](), after) == asked(SEARCHERS[name](), before)


def test_a_trial_that_is_tried_again_is_judged_anew() -> None:
    trial = TrialId("t000")
    aimed = Submitted(Trial(trial, 300, {"x": 0.5}, shards=frozenset(SHARDS)))

    def trained(epoch: int, score: float) -> list[Any]:
        visit = Visit(epoch, ShardId("all"), epoch, 100)
        return [
            Advanced({trial: 100}, visits={trial: (visit,)}),
            Evaluated(trial, epoch + 1.0, {"score": score}),
        ]

    state = fold(State(), [Opened(1, SHARDS), aimed, *trained(0, 0.1)])
    state = fold(state, [Kept(trial, 1, 100, "t000/1"), *trained(1, float("nan"))])
    state = fold(state, [Failed(trial, "diverged"), Opened(2, SHARDS), aimed])
    state = fold(state, [Fell(trial, 1, 100), *trained(1, 0.7)])
    seen = view(state, 0.0, TABLE.believe(state))
    costs = [cost_at(seen, trial, epoch, "score", "max") for epoch in (1, 2)]
    assert costs == [-0.1, -0.7]
