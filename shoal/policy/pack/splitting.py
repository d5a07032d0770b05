"""Who leaves a running pack when a slot is idle and nobody waits. Ours.

The paper's packs stay together until their trials end; so a slot may stand idle beside a crowded
one, as at the end of a study. A pack that gains little by its company is then better parted.
"""

from collections.abc import Iterable, Sequence
from heapq import nsmallest

from shoal.core.check import in_order
from shoal.core.cluster import Slot
from shoal.core.plan import Gang, Plan
from shoal.core.trial import Seconds, TrialId
from shoal.policy.idle import fits
from shoal.policy.pack.figures import Figures

EARLIER = 0.05  # a pack is split if all its trials then end earlier by this part
Parts = tuple[Gang, Gang]


def split(figures: Figures, packs: Iterable[Gang], idle: Sequence[Slot]) -> Plan:
    """What runs, where packs gave some of their trials to these idle slots.

    `packs`: those that run. The ones that take longest come first.
    """
    spans = {gang: figures.until_over(gang) for gang in packs}

    def rank(gang: Gang) -> tuple[Seconds, int, Sequence[TrialId]]:
        return -spans[gang], *in_order(gang)

    start: list[Gang] = []
    stop: list[Gang] = []
    for slot, longest in zip(idle, nsmallest(len(idle), spans, key=rank), strict=False):
        parts = _parts(figures, longest, slot, spans[longest] * (1 - EARLIER))
        if parts is not None:
            stop.append(longest)
            start += parts
    now = figures.view.plan
    return now.but(start, stop) if start else now


def _parts(figures: Figures, gang: Gang, idle: Slot, before: Seconds) -> Parts | None:
    """The pack's two parts, the second on the idle slot; None: they do not both end before that.

    Either the shortest or the longest trials go, so many that both parts end as early as can be.
    """
    here = figures.slot(gang)
    best: Parts | None = None
    order: list[TrialId] = sorted(gang.trials, key=lambda trial: (figures.alone(trial), trial))
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
