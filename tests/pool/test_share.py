"""How a pool's slots are divided."""

from hypothesis import given
from hypothesis import strategies as st

from shoal.pool.division import shares
from shoal.pool.folder import SlotClaim

claims = st.lists(
    st.builds(
        lambda priority, least, more, since: (priority, least, least + more, since),
        st.sampled_from([0.5, 1.0, 2.0, 3.0]),
        st.integers(1, 4),
        st.integers(0, 12),
        st.integers(0, 3),
    ),
    max_size=7,
).map(
    lambda rows: [
        SlotClaim(f"s{i}", priority, least, most, float(since))
        for i, (priority, least, most, since) in enumerate(rows)
    ]
)


@given(st.integers(0, 24), claims)
def test_no_slot_is_given_twice_or_wasted(slots: int, asked: list[SlotClaim]) -> None:
    found = shares(slots, asked, {})
    assert sum(found.values()) <= slots
    for claim in asked:
        has = found[claim.study]
        assert has == 0 or claim.least <= has <= claim.most
    left = slots - sum(found.values())
    for claim in asked:
        has = found[claim.study]
        assert left == 0 or has == claim.most or (has == 0 and claim.least > left)


@given(st.integers(0, 24), claims)
def test_what_is_divided_stays_divided(slots: int, asked: list[SlotClaim]) -> None:
    found = shares(slots, asked, {})
    assert shares(slots, asked, found) == found


@given(st.integers(0, 24), claims)
def test_a_higher_priority_never_gets_less(slots: int, asked: list[SlotClaim]) -> None:
    found = shares(slots, asked, {})
    for one in asked:
        for other in asked:
            same = (one.least, one.most) == (other.least, other.most)
            if same and one.priority > other.priority:
                assert found[one.study] >= found[other.study]


def test_by_priority() -> None:
    asked = [SlotClaim("a", 1.0, 1, 20, 0.0), SlotClaim("b", 3.0, 1, 20, 1.0)]
    assert shares(8, asked, {}) == {"a": 2, "b": 6}


def test_equal_studies_get_the_same_and_who_has_more_keeps_it() -> None:
    asked = [SlotClaim(name, 1.0, 1, 9, since) for since, name in enumerate("abc")]
    assert shares(6, asked, {}) == {"a": 2, "b": 2, "c": 2}
    assert shares(7, asked, {}) == {"a": 3, "b": 2, "c": 2}
    assert shares(7, asked, {"c": 3}) == {"a": 2, "b": 2, "c": 3}


def test_what_one_cannot_use_others_get() -> None:
    asked = [SlotClaim("few", 5.0, 1, 2, 0.0), SlotClaim("many", 1.0, 1, 9, 1.0)]
    assert shares(8, asked, {}) == {"few": 2, "many": 6}


def test_more_studies_than_slots_wait_in_the_order_of_priority_and_arrival() -> None:
    asked = [
        SlotClaim("first", 1.0, 1, 9, 0.0),
        SlotClaim("second", 1.0, 1, 9, 1.0),
        SlotClaim("urgent", 2.0, 1, 9, 2.0),
    ]
    assert shares(2, asked, {"first": 1, "second": 1}) == {"first": 1, "second": 0, "urgent": 1}
