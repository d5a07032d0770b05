"""What trials that share a slot take of it at once."""

from itertools import groupby
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from shoal.core.profile import Cost, MemoryTogether, stepping_in_turns

costs = st.lists(
    st.builds(
        lambda state, step, form, turns, shared, trunk: Cost(
            state + step + shared,
            transient=step,
            form=form,
            in_turns=turns,
            shared=shared,
            trunk=trunk,
        ),
        st.integers(0, 9),
        st.integers(0, 9),
        st.sampled_from("abc"),
        st.booleans(),
        st.integers(0, 9),
        st.sampled_from("xy"),
    ),
    max_size=6,
)


def by_its_meaning(pack: list[Cost]) -> float:
    """States, each trunk once, and the dearest step: of a trial, or of a form that may be fused."""
    states = sum(cost.memory - cost.transient - cost.shared for cost in pack)
    for trunk in "xy":
        states += max((c.shared for c in pack if c.trunk == trunk), default=0.0)
    steps = [0.0]
    for _, alike in groupby(sorted(pack, key=str_form), key=str_form):
        of_form = list(alike)
        at_once = sum(cost.transient for cost in of_form if not cost.in_turns)
        steps += [at_once, *(cost.transient for cost in of_form)]
    return states + max(steps)


def str_form(cost: Cost) -> str:
    return str(cost.form)


@given(costs)
def test_it_grows_by_trials_to_what_they_take(pack: list[Cost]) -> None:
    alike = [cost for cost in pack if cost.in_turns == pack[0].in_turns]
    taken = MemoryTogether()
    before = 0.0
    for number, cost in enumerate(alike, start=1):
        expected = taken.with_one(cost)
        assert taken.add(cost) == taken.now == expected
        assert before <= expected == by_its_meaning(alike[:number])
        before = expected


@given(costs)
def test_it_is_between_the_dearest_trial_and_the_sum(pack: list[Cost]) -> None:
    now = MemoryTogether(pack).now
    alone = [cost.memory for cost in pack]
    assert max(alone, default=0) <= now <= sum(alone)
    assert MemoryTogether(map(stepping_in_turns, pack)).now <= now


def test_a_trial_of_which_nothing_is_known_counts_whole() -> None:
    assert MemoryTogether([Cost(3.0), Cost(4.0)]).now == 7.0


def test_lanes_of_one_form_may_step_at_once_and_others_take_turns() -> None:
    def step(form: Any, **more: Any) -> Cost:
        return Cost(5.0, transient=4.0, form=form, **more)

    assert MemoryTogether([step("a"), step("b")]).now == 2 * 1.0 + 4.0
    assert MemoryTogether([step("a"), step("a")]).now == 10.0
    in_turns = [step("a", in_turns=True)] * 2
    assert MemoryTogether(in_turns).now == 2 * 1.0 + 4.0
