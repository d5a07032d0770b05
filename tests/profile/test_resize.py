"""What changing a trial's width costs, by a table."""

from shoal.core.cluster import SlotId
from shoal.core.plan import Gang, Lane
from shoal.core.trial import TrialId
from shoal.profile.table import Row, Table


def gang(*slots: str) -> Gang:
    return Gang((Lane(TrialId("t"), tuple(map(SlotId, slots))),))


def test_growing_and_shrinking_cost_what_the_row_says() -> None:
    table = Table((Row(up=18.0, down=12.0, switch=3.0),))
    assert table.switch(gang("a"), gang("a", "b")) == 18.0
    assert table.switch(gang("a", "b"), gang("b")) == 12.0
    assert table.switch(gang("a"), gang("b")) == 3.0  # a move
    assert table.switch(gang("a"), gang("a")) == 0.0
    assert table.switch(gang("a"), None) == 0.0


def test_without_them_a_resize_costs_a_switch() -> None:
    table = Table((Row(switch=3.0),))
    assert table.switch(gang("a"), gang("a", "b")) == 3.0
    assert table.switch(gang("a", "b"), gang("b")) == 3.0
