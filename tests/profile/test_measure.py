import pytest
from simkit import SHARDS, rates, slots, started, study, trial

from shoal.backend.sim import Sim
from shoal.core.cluster import SlotId
from shoal.core.event import Measured as Was
from shoal.core.event import Submitted
from shoal.core.plan import Gang, Lane, solo
from shoal.core.state import State, fold
from shoal.core.trial import TrialId
from shoal.engine.journal import Journal
from shoal.engine.run import reopened, run
from shoal.policy.hop import Hop
from shoal.profile.measure import RATE, Believer, believe
from shoal.search.grid import Grid
from shoal.search.space import grid
from shoal.testing import check_profile

W = [SlotId(f"w{i}") for i in range(3)]


def rate(state: State, name: str) -> float:
    return float(believe(state).rates(solo(TrialId(name), W[0], 0))[TrialId(name)])


STATE = fold(
    started(
        trial("a", width=64, lr=0.1), trial("b", width=64, lr=0.01), trial("c", width=512, lr=0.1), trial("d", width=90, lr=0.3),
        trial("e", width=400, lr=1e-4), trial("f"),
    ),
    [
        Was(TrialId("a"), "small", {"rate": 100.0, "memory": 0.5, "build": 0.25, "first": 1.0, "evaluate": 0.125}),
        Was(TrialId("c"), "large", {"rate": 25.0, "memory": 2.0, "switch": 0.5}),
    ],
)  # fmt: skip


def test_contract() -> None:
    check_profile(believe(STATE), [TrialId(x) for x in "abcdef"], W)
    check_profile(believe(started(trial("a"))), [TrialId("a"), TrialId("nobody")], W)


def test_nothing_known() -> None:
    state = started(trial("a"), trial("b"))
    assert rate(state, "a") == rate(state, "b") == RATE
    assert believe(state).cost(TrialId("a")).memory == 0.0
    assert believe(state).switch(None, solo(TrialId("a"), W[0], 0)) == 0.0


def test_measured_trials_have_the_figures_of_their_signature() -> None:
    assert rate(STATE, "a") == 100.0 and rate(STATE, "c") == 25.0
    newer = fold(STATE, [Was(TrialId("b"), "small", {"rate": 110.0})])
    assert rate(newer, "a") == 110.0, "one signature, one figure: the newest"


def test_others_have_those_of_the_nearest_configuration() -> None:
    assert rate(STATE, "b") == 100.0, "a learning rate says nothing of speed"
    assert rate(STATE, "d") == 100.0 and rate(STATE, "e") == 25.0
    assert rate(STATE, "f") == pytest.approx(2 / (1 / 100 + 1 / 25)), "as far from both: their mean, of seconds per sample"


def test_keys_that_differ_within_a_signature_do_not_count() -> None:
    state = started(*(trial(n, noise=x, width=w) for n, x, w in [("a", 1, 8), ("b", 1000, 8), ("c", 1, 64), ("d", 1000, 60)]))
    state = fold(state, [Was(TrialId("a"), "s", {"rate": 9.0}), Was(TrialId("c"), "t", {"rate": 3.0})])
    near = rate(state, "d")
    state = fold(state, [Was(TrialId("b"), "s", {})])
    assert rate(state, "d") == 3.0
    assert near == 3.0


def test_missing_figures_are_the_mean_of_the_known() -> None:
    cost = believe(STATE).cost(TrialId("c"))
    assert (cost.memory, cost.build, cost.evaluate, cost.save, cost.first) == (2.0, 0.25, 0.125, 0.0, 1.0)
    assert believe(STATE).switch(None, solo(TrialId("a"), W[0], 0)) == 0.5


def test_wide_and_shared() -> None:
    a, c = TrialId("a"), TrialId("c")
    assert 100.0 < believe(STATE).rates(Gang((Lane(a, (W[0], W[1])),)))[a] < 200.0
    assert believe(STATE).rates(Gang((Lane(a, (W[0],)), Lane(c, (W[0],))))) == {a: pytest.approx(20.0), c: pytest.approx(20.0)}
    gang = Gang((Lane(a, (W[0],)), Lane(c, (W[1],))))
    assert believe(STATE).switch(gang, Gang((gang.lanes[0],))) == 0.0


def test_for_other_trials_of_like_configurations() -> None:
    other = {TrialId("x"): trial("x", width=500, lr=3.0), TrialId("a"): trial("a", width=512, lr=0.1)}
    moved = believe(STATE).of(other)
    assert moved.curve(TrialId("x"), 1)[0] == 25.0
    assert moved.curve(TrialId("a"), 1)[0] == 25.0, "by configuration, not by name"


def test_believer_looks_up_once() -> None:
    believer = Believer()
    first = believer(STATE)
    assert believer(STATE) is first
    more = fold(STATE, [Submitted(trial("new", width=70, lr=0.2))])
    assert believer(more) is not first and believer(more).curve(TrialId("new"), 1)[0] == 100.0
    newer = fold(more, [Was(TrialId("a"), "small", {"rate": 50.0})])
    assert believer(newer).curve(TrialId("new"), 1)[0] == 50.0


def test_a_study_learns_its_speeds_as_it_goes() -> None:
    """Simulated with the truth, decided with belief: in the end all is believed as it is."""
    table = rates(1.0, 2.0, 4.0, memory=0.25, evaluate=0.5)
    state = fold(State(), reopened(State(), SHARDS, {}))
    final = run(
        Grid({"x": grid(range(3))}, 2), Hop("lrw"), Sim(table.of, slots(SHARDS), shards=SHARDS), Believer(), Journal(), state
    )
    assert {t: believe(final).curve(t, 1)[0] for t in final.known} == {"t000": 1.0, "t001": 2.0, "t002": 4.0}
    assert believe(final).cost(TrialId("t001")).evaluate == 0.5
    _, known = study(Hop("lrw"), table, count=3, epochs=2)
    assert known.ended == final.ended
