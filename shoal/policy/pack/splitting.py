"""Who leaves a running pack when a slot is idle and nobody waits. Ours.

The paper's packs stay together until their trials end; so a slot may stand idle beside a crowded
one, as at the end of a study. A pack that gains little by its company is then better parted.
"""

from collections.abc import Sequence

from shoal.core.check import in_order
from shoal.core.cluster import Slot
from shoal.core.plan import Gang, Plan
from shoal.core.trial import Seconds, TrialId
from shoal.policy.idle import fits
from shoal.policy.pack.figures import Figures

EARLIER = 0.05  # a pack is split if all its trials then end earlier by this part
Parts = tuple[Gang, Gang]


def split(figures: Figures, idle: Sequence[Slot]) -> Plan:
    """What runs, where packs gave some of their trials to these idle slots.

    The packs that take longest come first. A gang with a quota ends by itself, and soon.
    """
    now = figures.view.plan
    spans: dict[Gang, Seconds] = {}
    for gang in sorted(now.gangs, key=in_order):
        at_work = all(trial in figures.view.trials for trial in gang.trials)
        if gang.quota is None and len(gang.lanes) > len(gang.slots) == 1 and at_work:
            spans[gang] = figures.until_over(gang)
    start: list[Gang] = []
    stop: list[Gang] = []
    for slot in idle[: len(spans)]:
        longest = max(spans, key=spans.__getitem__)
        parts = _parts(figures, longest, slot, spans.pop(longest) * (1 - EARLIER))
        if parts is not None:
            stop.append(longest)
            start += parts
    return now.but(start, stop) if start else now


def _parts(figures: Figures, gang: Gang, idle: Slot, before: Seconds) -> Parts | None:
    """The pack's two parts, the second on the idle slot; None: they do not both end before that.

    Either the shortest or the longest trials go, so many that both parts end as early as can be.
    """
    here = figures.slot(gang)
    best: Parts | None = None
    order: list[TrialId] = sorted(
        gang.trials, key=lambda trial: (figures.alone(trial), trial)
    )
    for cut in range(1, len(order)):
        for stay, go in ((order[:cut], order[cut:]), (order[cut:], order[:cut])):
            if figures.memory(go) > idle.memory:
                continue
            if not all(fits(figures.view, trial, idle) for trial in go):
                continue
            parts = figures.gang(here, stay), figures.gang(idle, go)
            moving = figures.view.profile.switch(gang, parts[1])
            end = max(figures.span(here, stay), figures.span(idle, go) + moving)
            if end < before:
                best, before = parts, end
    return best
