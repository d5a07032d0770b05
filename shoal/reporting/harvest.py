"""The part of the report's page about slots that came and went."""

from shoal.core.trial import Seconds
from shoal.reporting.facts.format import DASH, duration, number, share
from shoal.reporting.facts.harvest import Yield, hours
from shoal.reporting.facts.metrics import Account
from shoal.reporting.tables import Cell, folded, table

HEADS = (
    "from",
    "to",
    "offered",
    "used",
    "slots (eq. 18)",
    "U",
    "lost to preemption",
    "lost to rescaling",
    "return on rescaling",
)
WHAT = (
    "<p>Slots came and went. Offered: the slot-hours that slots were there (eq. 17 of "
    "BFTrainer); used: that trials held them. The next column is how many slots that stay give as "
    "many slot-hours. U is what the trials made, over what the same trials would have made "
    "meanwhile on so many dedicated slots, by their measured speeds. Lost to preemption: units "
    "that were cut, work after the last durable state, and the standing still of trials that went "
    "on with fewer slots. Lost to rescaling: the standing still of trials that a plan gave more "
    "slots or fewer. The return on rescaling is the slot-hours of work for each slot-hour of that "
    "(Fig. 8).</p>"
)
DRAWING = '<div class="drawing" data-drawing="harvest"></div>'


def harvest(account: Account) -> str:
    """The figures of the whole, their drawing, and the bins; nothing if slots stayed."""
    found = account.harvest
    if found is None:
        return ""
    whole = found.whole
    nodes = ""
    if abs(found.nodes - whole.offered) > 1e-6 * whole.offered:
        nodes = f"<p>Node-hours with slots: {number(found.nodes / 3600.0, 4)}.</p>"
    bins = table(HEADS, [_row(each) for each in found.bins])
    length = duration(found.bins[0].end - found.bins[0].start)
    return (
        WHAT
        + table(HEADS, [_row(whole)])
        + nodes
        + DRAWING
        + folded(f"in bins of {length}", bins, len(found.bins))
    )


def _row(each: Yield) -> list[Cell]:
    """One line of figures."""
    return [
        (duration(each.start), each.start),
        (duration(each.end), each.end),
        _hours(each.offered),
        _hours(each.used, each.offered),
        (number(each.slots, 4), each.slots),
        (_percent(each.efficiency), each.efficiency),
        _hours(each.preempted, each.offered),
        _hours(each.rescaled, each.offered),
        (_times(each.returned), each.returned),
    ]


def _hours(amount: Seconds, whole: Seconds | None = None) -> Cell:
    """Slot-hours, with their part of the whole."""
    text = f"{number(hours(amount) or 0.0, 4)} h"
    if whole:
        text += f", {share(amount, whole)}"
    return text, amount


def _percent(part: float | None) -> str:
    if part is None:
        return DASH
    return share(part, 1.0)


def _times(factor: float | None) -> str:
    if factor is None:
        return DASH
    return number(factor, 3)
