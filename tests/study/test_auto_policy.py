"""The automatic policy as a study wires it: what it chooses among, what it writes down, and
that nothing is lost by a change.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from search_kit import simulate
from simkit import SHARDS, rates, slots, started, study, trial, view_of
from small_studies import nodes, simulated
from test_mixed import TABLE, ensemble, is_mixed, moments

import shoal
from shoal import reporting
from shoal.backend.sim.lookahead import Ahead
from shoal.backend.sim.sim import Sim
from shoal.core.check import check
from shoal.core.cluster import ShardId, Slot, SlotId
from shoal.core.errors import StudyError
from shoal.core.event import Finished, Opened, Planned, Remembered
from shoal.core.fold import fold
from shoal.core.plan import Plan
from shoal.core.ports import Moment
from shoal.core.state import State, View
from shoal.engine.journal import Journal, Line, read
from shoal.engine.run import reopened, run
from shoal.policy import Auto, Explore, Pack, WaterFill, aim
from shoal.policy.combine import Every
from shoal.policy.registry import CANDIDATES, POLICIES, suiting
from shoal.profile.table import Row, Table
from shoal.reporting import accounting as metrics
from shoal.search import Grid
from shoal.study import auto as candidates
from shoal.study.folder import last_head
from shoal.study.speeds import believer
from shoal.testing import check_policy
from shoal.testing.journals import check_journal
from shoal.testing.worlds import World, worlds
from shoal.tools.plan import forecast, forecast_lines

WIDE = [name for name in CANDIDATES if POLICIES[name].wide]
SHARING = [name for name in WIDE if POLICIES[name].shares]
USUAL = [name for name in CANDIDATES if name not in WIDE]

HOPPING = Table((Row((10.0,), switch=0.01),))
STAYING = Table((Row((10.0,), switch=20.0),))


def auto(said: str = "auto") -> Auto:
    """As wired, but that simulating costs nothing: these studies are over in seconds."""
    made = candidates.auto(said, lambda name: candidates.policy_of(name, True, 0))  # type: ignore[arg-type]
    free = Ahead(part=inf, objective=made.objective)
    return replace(made, simulate=free, price=free.price, share=inf)


def memories(lines: list[Line]) -> list[dict[str, Any]]:
    return [
        line.entry.memory
        for line in lines
        if isinstance(line.entry, Remembered) and line.entry.who == "policy"
    ]


def choices(lines: list[Line]) -> list[tuple[str, str]]:
    """What was followed and why, at each entry of the policy's memory."""
    return [(memory["follows"], memory["why"]) for memory in memories(lines)]


@pytest.mark.parametrize(
    "said",
    [
        "pack",
        "pack(most=4)",
        "hop-packs",
        "packed(policy=hop)",
        "auto:pack(most=4)",
        "every(seconds=60, policy=pack)",
    ],
)
def test_packs_fuse_as_the_study_is_told_however_the_policy_is_named(said: str) -> None:
    def fuses(said: str, fuse: bool) -> bool:
        made: Any = candidates.policy_of(said, fuse, 0)  # type: ignore[arg-type]
        made = next(iter(made.candidates.values())) if isinstance(made, Auto) else made
        return bool(made.policy.fuse if isinstance(made, Every) else made.fuse)

    assert fuses(said, True) and not fuses(said, False)
    assert fuses("pack(fuse=True)", False) and not fuses("packed(policy=hop, fuse=False)", True)


def test_the_candidates_follow_from_slots_and_shards() -> None:
    among = partial(suiting, ("fifo", "hop", "hop-quick4", "pack"))
    look = view_of(started(trial("t")))
    here = list(look.slots.items())
    assert among(look) == ("hop", "hop-quick4", "fifo", "pack")
    assert among(replace(look, slots=dict(here[:1]))) == ("fifo", "pack")
    assert among(replace(look, shards={})) == ("fifo", "pack")
    assert among(replace(look, shards=dict(list(look.shards.items())[:2]))) == (
        "fifo",
        "pack",
        "hop",
        "hop-quick4",
    )
    assert suiting(("hop",), replace(look, shards={})) == ("hop",)


def test_it_hops_only_where_some_slot_lacks_data() -> None:
    arrays = shoal.Data.arrays(np.zeros((8, 1), "float32"), shards=4, validation=None)
    assert candidates.needs_hops(arrays, hop_cost_known=False) is False
    assert candidates.needs_hops(arrays, hop_cost_known=True) is None

    def names(said: str, hopping: bool | None) -> set[str]:
        made: Any = candidates.policy_of(said, True, 0, hopping=hopping)
        return set(made.candidates)

    everywhere = names("auto", False)
    assert {"pack", "fifo"} <= everywhere
    assert not any(name.startswith(("hop", "hybrid")) for name in everywhere)
    assert names("auto:fifo,hop", False) == {"fifo", "hop"}  # as the user said
    assert names("auto", True) == {"hop-packs", "hop", "hop-quick4", "hybrid"}
    assert names("auto", None) >= everywhere | names("auto", True)


def test_the_objective_is_an_argument_by_name() -> None:
    for said in ("auto(objective=mean_completion)", "auto(objective='mean_completion')"):
        made = auto(said)
        assert made.objective == "mean_completion"
        assert candidates.describe(said) == {"name": "auto", "objective": "mean_completion"}
    assert auto("auto").objective == auto("auto(objective=makespan)").objective == "makespan"
    both = "auto(objective=first_result):fifo,hop-lrw"
    assert tuple(auto(both).candidates) == ("fifo", "hop-lrw")
    assert candidates.policy_text(candidates.describe(both)) == both


@pytest.mark.parametrize(
    ("said", "says"),
    [
        ("auto(objective=best)", "auto's objective is one of makespan, mean_completion, "),
        ("auto(objective=3)", "auto's objective is one of makespan, mean_completion, "),
        ("auto(fewest=3)", "auto takes an objective alone, as in "),
        ("auto(3):fifo", "auto takes an objective alone, as in "),
        ("auto(objective=", "auto takes an objective alone, as in "),
    ],
)
def test_a_wrong_objective_is_refused_before_anything_is_written(
    said: str, says: str, tmp_path: Path, blobs: Any
) -> None:
    made = shoal.create_study(blobs(), storage=tmp_path / "s")
    with pytest.raises(ValueError, match=says):
        made.optimize(policy=said, max_epochs=1, progress=False)
    assert not made.lines()


@pytest.mark.parametrize(("objective", "follows"), [("makespan", "hop"), ("first_result", "fifo")])
def test_the_objective_decides_what_is_followed(objective: str, follows: str) -> None:
    """Five trials on three slots: hopping ends all of them sooner, fifo the first one."""
    made = auto(f"auto(objective={objective}):hop,fifo")
    lines, _ = study(made, HOPPING, count=5, epochs=2)
    assert choices(lines)[0][0] == follows
    ends = {
        name: study(auto(f"auto:{name}"), HOPPING, count=5, epochs=2) for name in ("hop", "fifo")
    }
    at = {
        name: [line.time for line in found if isinstance(line.entry, Finished)]
        for name, (found, _) in ends.items()
    }
    assert max(at["hop"]) < max(at["fifo"]) and min(at["fifo"]) < min(at["hop"])


@pytest.mark.parametrize("said", ["auto", "auto:fifo,hop-lrw", "auto(objective=mean_completion)"])
def test_a_head_gives_back_what_was_said(said: str) -> None:
    assert candidates.policy_text(candidates.describe(said)) == said
    if "(" in said:
        return
    usual = CANDIDATES
    assert tuple(auto(said).candidates) == (usual if said == "auto" else ("fifo", "hop-lrw"))


def test_candidates_may_have_arguments() -> None:
    said = "auto:every(seconds=60, policy=explore(seconds=9, most=4)), fifo"
    made = auto(said).candidates
    assert list(made) == ["every(seconds=60, policy=explore(seconds=9, most=4))", "fifo"]
    assert made[next(iter(made))] == Every(60, Explore(9, 4))
    assert candidates.candidate_names(candidates.policy_text(candidates.describe(said))) == tuple(
        made
    )


def test_wide_lanes_are_looked_at_where_trials_may_have_several_slots() -> None:
    among = partial(suiting, CANDIDATES)
    narrow = view_of(started(trial("a"), trial("b")))
    assert not set(WIDE) & set(among(narrow))
    may = view_of(started(*(replace(trial(name), widths=(1, 3)) for name in "ab")))
    wide = among(may)[: len(WIDE)]
    assert wide[0] == "hybrid", "each slot may have a shard of its own"
    assert set(wide) == set(WIDE)
    assert set(among(may)) == set(CANDIDATES)
    assert among(replace(may, shards={}))[0] == "doubling", "it measures as it goes"
    many = view_of(started(*(replace(trial(name), widths=(1, 3)) for name in "abcd")))
    assert among(many)[0] == "hop-packs", "trials enough: the usual choice is as it was"
    assert set(among(view_of(started(replace(trial("a"), widths=(2, 3)))))) == set(WIDE)
    assert "hybrid" not in among(replace(may, shards={})), "it hops"


def test_a_candidate_with_arguments_suits_where_its_name_does() -> None:
    names = ("doubling(every=600)", "hop(rule=lrw)", "fifo")
    narrow = view_of(started(trial("a"), trial("b")))
    assert suiting(names, narrow) == ("hop(rule=lrw)", "fifo")
    assert suiting(names, view_of(started(replace(trial("a"), widths=(2, 3))))) == (names[0],)


@pytest.mark.parametrize(("widths", "crowd"), [((1, 3), True), ((2, 3), False)])
def test_in_a_crowd_only_the_few_that_pack_or_fill_are_simulated(
    widths: tuple[int, int], crowd: bool
) -> None:
    """More than four trials a slot; but who needs several slots has no other choice."""
    among = partial(suiting, CANDIDATES)
    for trials in (12, 13):
        names = [replace(trial(f"t{i}"), widths=widths) for i in range(trials)]
        left_out = set(SHARING) - set(among(view_of(started(*names))))
        expected = crowd and trials == 13
        assert left_out == (set(SHARING) if expected else set())


@pytest.mark.parametrize(
    ("scaling", "gains"), [((10.0, 19.0, 27.0), True), ((10.0, 7.0, 6.0), False)]
)
def test_two_trials_on_three_slots_are_wide_where_the_profile_says_so(
    scaling: tuple[float, ...], gains: bool
) -> None:
    table = Table((Row(scaling, switch=0.01),))
    search = Grid({"x": shoal.grid(range(2))}, 6, widths=(1, 3))
    lines, state = study(auto(), table, searcher=search)
    assert not state.trials
    widest = max(
        len(lane.slots)
        for line in lines
        if isinstance(line.entry, Planned)
        for g in line.entry.start
        for lane in g.lanes
    )
    assert (widest > 1) == gains
    narrow, _ = study(auto(), table, searcher=replace(search, widths=None))
    assert lines[-1].time < narrow[-1].time * (0.8 if gains else 1.001)


def test_small_and_large_trials_are_mixed() -> None:
    lines = simulated(auto(), ensemble(6, 1), nodes(4), TABLE)
    assert choices(lines)[0][0] == "mixed"
    assert any(map(is_mixed, moments(lines)))


def test_it_widens_whoever_is_left_of_a_rung() -> None:
    """It looks again when trials become fewer than slots."""
    x = {"x": shoal.uniform(0, 1)}
    search = shoal.SuccessiveHalving(x, 9, 9, metric="score", mode="max", widths=(1, 4))
    rates = (100.0, 190.0, 270.0, 350.0)
    _, lines = simulate(search, auto(), slots=4, rates=rates)
    _, filled = simulate(search, WaterFill(), slots=4, rates=rates)
    assert lines[-1].time <= filled[-1].time * 1.05
    assert len({memory["few"] for memory in memories(lines)}) == 2


@pytest.mark.parametrize(
    ("said", "says"),
    [("auto:", "say what to choose among"), ("auto:best", "unknown policy 'best'")],
)
def test_names_that_are_none_are_refused(said: str, says: str) -> None:
    with pytest.raises(StudyError, match=says):
        auto(said)


def test_the_better_policy_is_followed_in_opposite_situations_and_the_journal_says_why() -> None:
    for table, follows in ((HOPPING, "hop"), (STAYING, "fifo")):
        lines, state = study(auto("auto:hop,hop-quick4,fifo"), table, count=4, epochs=2)
        assert not state.trials
        assert {name for name, _ in choices(lines)} == {follows}
        assert choices(lines)[0][1].startswith("the 4 trials left would take ")
        assert len(memories(lines)) == 1, "once a change, not once a decision"


def test_a_resumed_study_goes_on_with_the_choice_it_made() -> None:
    whole, _ = study(auto("auto:hop,hop-quick4,fifo"), HOPPING, count=4, epochs=2)
    stopped, _ = study(
        auto("auto:hop,hop-quick4,fifo"),
        HOPPING,
        count=4,
        epochs=2,
        deadline=4.0,
        checkpoint_every=0,
    )
    assert stopped[-1].time < whole[-1].time
    lines, state = study(
        auto("auto:hop,hop-quick4,fifo"),
        HOPPING,
        count=4,
        epochs=2,
        former=stopped,
        checkpoint_every=0,
    )
    assert not state.trials and memories(lines) == memories(stopped) == memories(whole)


def measured(policy: Auto, truth: Table, count: int = 6) -> list[Line]:
    """A study whose profile is made of its own measurements."""
    journal, state = Journal(), State()
    for entry in reopened(State(), SHARDS, {"policy": {"name": "auto"}}):
        journal.append(0.0, entry)
        state = fold(state, [entry])
    sim = Sim(truth.of, slots(SHARDS), shards=SHARDS, former=(state, 0.0))
    state = run(
        Grid({"x": shoal.grid(range(count))}, 2), policy, sim, believer(None), journal, state
    )
    assert not state.trials
    check_journal(journal.lines, state)
    return journal.lines


def test_it_begins_with_the_usual_choice_and_decides_once_there_are_figures() -> None:
    lines = measured(auto("auto:fifo,hop"), Table((Row((10.0,), evaluate=1.0, build=1.5),)))
    (first, why), *later = choices(lines)
    assert (first, why) == (
        "hop",
        "it is the usual choice for 3 slots and 3 shards, and nothing is measured yet",
    )
    assert later and "would take" in later[0][1]
    assert len(set(choices(lines))) == len({why for _, why in choices(lines)}) <= 4
    assert later[0][0] == "fifo", "building each model at each slot takes longer than to train it"
    found = reporting.summary(lines)
    assert found["policy"] == {
        "objective": "makespan",
        "follows": later[-1][0],
        "why": later[-1][1],
    }
    assert (
        f"policy   auto (makespan): {later[-1][0]}, because {later[-1][1]}"
        in reporting.status_lines(found)
    )
    page = reporting.page(lines)
    assert (
        "auto: fifo" in page and "What auto followed" in page and "nothing is measured yet" in page
    )


def test_the_local_backend_writes_the_choice_down_and_resumes_with_it(
    tmp_path: Path, blobs: Any, late_after: Any
) -> None:
    made = shoal.create_study(blobs(samples=600), storage=tmp_path / "s")
    with late_after(3):
        made.optimize(max_epochs=4, timeout=5_000, progress=False)
    assert last_head(made.lines())["policy"] == {"name": "auto"}
    assert choices(made.lines())[0] == (
        "pack",
        "it is the usual choice for 1 slot and 3 shards, and nothing is measured yet",
    )
    made.resume(progress=False)
    assert all(each.status == "finished" for each in made.trials)
    assert {name for name, _ in choices(made.lines())} == {"pack"} and made.state.run == 2
    said = "auto(objective=first_result):fifo,hop"
    made.optimize(policy=said, max_epochs=4, progress=False)
    assert last_head(made.lines())["policy"] == {
        "name": "auto",
        "objective": "first_result",
        "candidates": ["fifo", "hop"],
    }


def test_plan_compares_the_candidates_and_says_what_auto_would_follow(
    tmp_path: Path, blobs: Any
) -> None:
    for name, switch, follows in (("quick", 0.0, ("hop", "fifo")), ("slow", 30.0, "pack")):
        profile = tmp_path / f"{name}.toml"
        costs = "".join(f"{name} = 0.0\n" for name in ("memory", "build", "evaluate", "save"))
        profile.write_text(f"[[rows]]\nrates = [1.0]\nswitch = {switch}\n{costs}")
        made = shoal.create_study(
            blobs(),
            storage=tmp_path / name,
            search_space={"width": shoal.grid([4, 6, 8]), "lr": 1e-2},
        )
        found = forecast(
            made, (), None, None, profile, {"backend": "ray", "slots": 2}, tmp_path / f"{name}-plan"
        )
        rows = {row["policy"]: row for row in found["policies"]}
        assert list(rows) == ["auto", *USUAL, "hop-lrw"]
        seconds = {name: row["seconds"] for name, row in rows.items()}
        assert seconds.pop("auto") <= 1.001 * min(seconds.values())
        assert rows["auto"]["follows"].startswith(follows)
        assert forecast_lines(found)[
            -1
        ] == f"\nauto: {rows['auto']['follows']}, because {rows['auto']['why']}".strip("\n")
        written = list(read(tmp_path / f"{name}-plan" / "auto" / "journal.jsonl"))
        assert choices(written)[-1] == (rows["auto"]["follows"], rows["auto"]["why"])
        assert last_head(written)["policy"] == {"name": "auto"}


@pytest.mark.parametrize(("every", "times"), [(1, 4), (2, 2), (0.5, 8)])
def test_a_plan_and_a_run_foresee_the_evaluations_that_were_asked_for(
    every: float, times: int, tmp_path: Path, blobs: Any
) -> None:
    profile = tmp_path / "given.toml"
    costs = "".join(f"{name} = 0.0\n" for name in ("memory", "build", "save"))
    profile.write_text(f"[[rows]]\nrates = [100.0]\nswitch = 0.0\nevaluate = 50.0\n{costs}")
    made = shoal.create_study(
        blobs(samples=600), storage=tmp_path / "s", search_space={"width": 4, "lr": 1e-2}
    )
    samples = sum(made.recipe.data().sizes.values())
    seconds = 4 * samples / 100.0 + times * 50.0
    asked: dict[str, Any] = {"validate_every": every}
    found = forecast(made, ("auto",), 1, 4, profile, asked)["policies"][0]
    made.optimize(num_samples=1, max_epochs=4, profile=profile, progress=False, **asked)
    assert found["seconds"] == pytest.approx(seconds)
    for why in (found["why"], choices(made.lines())[0][1]):
        assert why.startswith(f"the 1 trial left would take {seconds:.3g} s on 1 slot")


@pytest.mark.parametrize("said", ["auto", "auto:fifo,hop-quick4,hop-lrw"])
def test_it_holds_the_contract_of_policies_and_finishes_every_study(said: str) -> None:
    check_policy(lambda: auto(said), examples=4)


class Checked:
    """The policy, with each plan held to the rules, and the memory made as it will be read back."""

    def __init__(self, inner: Auto) -> None:
        self.inner = inner

    def start(self) -> Any:
        return self.inner.start()

    def decide(self, view: View, memory: Any) -> tuple[Plan, Any]:
        plan, after = self.inner.decide(view, memory)
        check(plan, view)
        assert all(gang in plan.gangs for gang in view.plan.gangs), "a change of mind stops nothing"
        assert json.loads(json.dumps(after)) == after
        return plan, after


@settings(
    max_examples=8,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
@given(worlds())
def test_with_its_own_measurements_too_everything_finishes(world: World) -> None:
    """Choices change in the middle: after the usual one come figures, slots that go, and shards
    that move.
    """
    sim = Sim(world.table.of, world.slots, world.script, shards=world.shards, seed=world.seed)
    journal, opened = Journal(), Opened(1, world.shards)
    journal.append(0.0, opened)
    state = run(
        world.searcher, Checked(auto()), sim, believer(None), journal, fold(State(), [opened])
    )
    check_journal(journal.lines, state)
    assert not state.trials
    assert all(how == "finished" or "died under it" in how for how in state.ended.values())
    assert len(memories(journal.lines)) <= 1 + len(journal.lines) // 2


class EndsLater(Sim):
    """Trials are finished a moment after their last samples, as on the real backends."""

    def moments(self) -> Iterator[Moment]:
        for now, events in super().moments():
            ends = tuple(event for event in events if isinstance(event, Finished))
            yield now, tuple(event for event in events if event not in ends)
            if ends:
                yield now, ends


@pytest.mark.slow
@settings(max_examples=10, deadline=None, derandomize=True, database=None)
@given(
    st.integers(1, 12),
    st.integers(1, 2),
    st.integers(1, 3),
    st.integers(1, 12),
    st.sampled_from([inf, 0.3, 0.004]),
)
def test_in_ordinary_studies_each_candidate_would_finish(
    count: int, here: int, parts: int, epochs: int, most: float
) -> None:
    """At each moment all candidates are simulated, in whole or as an estimate."""
    shards = {ShardId(f"s{i}"): 10 for i in range(parts)}
    whole = tuple(Slot(SlotId(f"w{i}"), shards=frozenset(shards)) for i in range(here))
    table = rates(*(10.0 + i for i in range(count)), evaluate=0.1, save=0.1)
    sim = EndsLater(table.of, whole, shards=shards)
    near = Ahead(most, part=inf)
    usual = auto()
    opened = Opened(1, shards)

    class Asking(Pack):
        def decide(self, view: View, memory: Any) -> tuple[Plan, Any]:
            if view.trials and near.price(view) < inf:
                for name in partial(suiting, USUAL)(view):
                    assert near(view, usual.candidates[name]) < inf, name
            return super().decide(view, memory)

    search = Grid({"x": shoal.grid(range(count))}, epochs)
    state = fold(State(), [opened])
    state = run(search, Asking(), sim, table.believe, Journal(), state)
    assert len(state.ended) == count


def test_packing_by_nearness_counts_in_the_levels_of_the_space() -> None:
    space = {"batch_size": shoal.grid([20, 25, 30]), "lr": shoal.uniform(0, 1), "depth": 2}
    made = candidates.policy_of("pack(grouping='nearest', within=3)", False, 0)  # type: ignore[arg-type]
    levelled: Any = candidates.with_levels(made, space)
    assert levelled.levels == {"batch_size": [20, 25, 30]}
    assert candidates.with_levels(levelled, {}) is levelled


def test_one_line_says_objective_choice_and_reason_where_little_is_to_be_compared(
    tmp_path: Path, blobs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nothing is worth a comparison, also where the machine makes the training slow.
    monkeypatch.setattr(Ahead, "price", lambda self, view: inf)
    one = shoal.create_study(
        blobs(samples=60), storage=tmp_path / "one", search_space={"width": 4, "lr": 0.1}
    )
    one.optimize(max_epochs=1, policy="auto(objective=mean_completion)", progress=False)
    assert _policy_line(one).startswith(
        "policy   auto (mean_completion): pack, because it is the usual choice for 1 slot and "
    )
    called = shoal.create_study(
        lambda config: config["x"],
        storage=tmp_path / "called",
        search_space={"x": shoal.grid([1.0, 2.0])},
    )
    called.optimize(progress=False)
    assert metrics.AUTO_MAKES_SHORT == aim.MAKESPAN
    assert _policy_line(called) == (
        "policy   auto (makespan): fifo, because it is the only candidate"
    )


def _policy_line(study: shoal.Study) -> str:
    lines = reporting.status_lines(reporting.summary(study.lines()))
    (line,) = [line for line in lines if line.startswith("policy")]
    return line
