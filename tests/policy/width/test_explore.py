"""Exploring where slots come and go: what is believed is what was seen at each width."""

from small_studies import Arrivals, nodes, table, trial

from shoal.backend.sim.sim import Sim
from shoal.core.event import Joined, Left, Planned
from shoal.engine.journal import Journal
from shoal.engine.run import run
from shoal.policy.width.explore import Explore

EIGHT = nodes(8)


def widths(script, first=2, samples=50_000.0):
    """The width of the trial from each time on; it makes 10 samples/s on each slot."""
    rates = table(tuple(10.0 * w for w in range(1, 9)))
    wrong = table(tuple(30.0 for w in range(1, 9)))  # believed to gain nothing from more slots
    sim = Sim(rates.of, EIGHT[:first], script, checkpoint_every=0)
    journal = Journal()
    run(Arrivals((0.0, trial(0, samples))), Explore(80.0), sim, wrong.believe, journal)
    return [
        (round(line.time), len(lane.slots))
        for line in journal.lines
        if isinstance(line.entry, Planned)
        for gang in line.entry.start
        for lane in gang.lanes
    ]


def test_widths_that_slots_allow_later_are_explored_then() -> None:
    """Defect 15: 80 samples/s were believed to be 30, and the slots that joined stood idle for
    good.
    """
    found = widths([(200.0, Joined(EIGHT[2:]))])
    assert found[:2] == [(0, 1), (40, 2)]
    assert found[2:] == [(200, 4), (220, 8)]


def test_slots_that_leave_take_their_widths_along() -> None:
    gone = frozenset(slot.id for slot in EIGHT[4:])
    found = widths([(30.0, Left(gone)), (200.0, Joined(EIGHT[4:]))], first=8)
    assert [width for _, width in found][:3] == [1, 2, 4]
    assert found[-1][1] == 8
