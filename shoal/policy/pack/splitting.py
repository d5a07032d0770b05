"""Who leaves a running pack when a slot is idle and nobody waits. Ours.

The paper's packs stay together until their trials end; so a slot may stand idle beside a crowded
one, as at the end of a study. A pack that gains little by its company is then better parted.
"""

from collections.abc import Iterator, Sequence

from shoal.core.cluster import Slot
from shoal.core.plan import Gang
from shoal.core.trial import Seconds, TrialId
from shoal.policy.idle import fits
from shoal.policy.pack.figures import Figures
from shoal.policy.pack.refill import in_order

EARLIER = 0.05  # a pack is split if all its trials then end earlier by this part
Parts = tuple[Gang, Gang]


def split(figures: Figures, idle: Sequence[Slot]) -> Iterator[tuple[Gang, Parts]]:
    """Packs that give some of their trials to idle slots, and their two parts.

    The packs that take longest come first. A gang with a quota ends by itself, and soon.
    """
    spans: dict[Gang, Seconds] = {}
    for gang in in_order(figures.view.plan.gangs):
        at_work = all(trial in figures.view.trials for trial in gang.trials)
        if gang.quota is None and len(gang.lanes) > len(gang.slots) == 1 and at_work:
            spans[gang] = figures.until_over(gang)
    for slot in idle:
        if not spans:
            return
        longest = max(spans, key=spans.__getitem__)
        parts = _parts(figures, longest, slot, spans.pop(longest) * (1 - EARLIER))
        if parts is not None:
            yield longest, parts


def _slot(figures: Figures, gang: Gang) -> Slot:
    """The one slot of the gang."""
    (name,) = gang.slots
    return figures.view.slots[name]


def _parts(figures: Figures, gang: Gang, idle: Slot, before: Seconds) -> Parts | None:
    """The pack's two parts, the second on the idle slot; None: they do not both end before that.

    Either the shortest or the longest trials go, so many that both parts end as early as can be.
    """
    here = _slot(figures, gang)
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
