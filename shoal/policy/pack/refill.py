"""Who joins a running pack when it has room, and who leaves it for an idle slot."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from heapq import nsmallest
from math import ceil, inf

from shoal.core.check import in_order
from shoal.core.cluster import Slot
from shoal.core.plan import Gang, Plan
from shoal.core.profile import Profile
from shoal.core.state import View
from shoal.core.trial import Seconds, TrialId
from shoal.policy.idle import fits
from shoal.policy.pack.figures import Figures
from shoal.policy.pack.kinds import distance, graph
from shoal.profile.evidence import clocked_as
from shoal.profile.measure import Belief

JOINING = 16  # waiting trials nearest in configuration, that may join a pack
EPS = 1e-6  # of a pack's speed: what counts as no gain
Trials = Sequence[TrialId]
PacksOf = Mapping[Gang, Trials]
EARLIER = 0.05  # a pack is split if all its trials then end earlier by this part
Parts = tuple[Gang, Gang]


@dataclass(frozen=True, slots=True)
class Refill:
    """One decision: which waiting trials join running packs.

    `most`: trials in a pack; `same`: names of what must be equal, as in `Pack`. `behind`: how many
    trials wait beside those given; they are taken to be like these.
    """

    figures: Figures
    most: int
    same: Sequence[str]
    behind: int

    def joined(
        self, roomy: Collection[Gang], all_packs: Iterable[Gang], waits: Trials
    ) -> Iterator[tuple[Gang, Gang]]:
        """Packs before and after others joined them; who has the most left joins first.

        `roomy`: those that may have more trials. `all_packs`: they and the others.
        """
        if not roomy:
            return
        left = sorted(waits, key=lambda trial: -self.figures.left(trial))
        packs = {gang: gang.trials for gang in all_packs if len(gang.slots) == 1}
        for gang in sorted(roomy, key=in_order):
            slot = self.figures.slot(gang)
            lanes = self._with_more(slot, gang, left, packs)
            if len(lanes) > len(gang.lanes):
                packs[gang] = tuple(lanes)
                left = [trial for trial in left if trial not in lanes]
                yield gang, self.figures.gang(slot, lanes)

    def _with_more(self, slot: Slot, gang: Gang, waits: Trials, packs: PacksOf) -> list[TrialId]:
        """The pack's trials and those that join it: one by one, then all of its form at once."""
        lanes = list(gang.trials)
        first = lanes[0]
        # Those that may share a slot with this trial.
        view = self.figures.view
        wanted = graph(view, first, self.same)
        suits = []
        for trial in waits:
            fewest = view.trials[trial].widths[0]
            if fewest == 1 and graph(view, trial, self.same) == wanted:
                suits.append(trial)
        # Of the trials that were not looked at, as large a part suits.
        waiting = len(suits) * (1 + self.behind / max(1, len(waits)))
        # How many one pack may have, that no slot with others of its form stands idle for it.
        form = self.figures.form(first)
        peers = [pack for pack in packs.values() if self.figures.form(pack[0]) == form]
        all_of_form = sum(map(len, peers)) + waiting
        most = min(self.most, ceil(all_of_form / max(1, len(peers))))
        if len(lanes) >= most or self._nobody_gains(slot, gang, suits, most - len(lanes)):
            return lanes
        near = self._nearest(first, suits)
        for trial in near:
            if len(lanes) < most and self._gains(slot, gang, lanes, [trial]):
                lanes.append(trial)
        # As many trials of the pack's form as it has room for, without those that are in it.
        others = [trial for trial in near if trial not in lanes]
        places = max(0, most - len(lanes))
        crowd = self._of_form(lanes[0], others)[:places]
        if len(crowd) > 1 and self._gains(slot, gang, lanes, crowd):
            lanes += crowd
        return lanes

    def _nobody_gains(self, slot: Slot, gang: Gang, suits: Trials, places: int) -> bool:
        """Whether no trial may join, asked of the first ones, where all are alike.

        Then it does not matter who is nearest: of thousands of tiny trials nobody looks for them.
        """
        profile = self.figures.view.profile
        if len({self.figures.number(trial) for trial in suits}) > 1:
            return False
        if isinstance(profile, Belief) and len({clocked_as(profile, t) for t in suits}) > 1:
            return False  # packs of the one may have been clocked, and of the other not
        crowd = self._of_form(gang.trials[0], suits[: min(JOINING, places)])
        return not any(
            self._gains(slot, gang, gang.trials, few) for few in (suits[:1], crowd) if few
        )

    def _of_form(self, first: TrialId, trials: Trials) -> list[TrialId]:
        """The trials of the same known form as the first."""
        form = self.figures.form(first)
        if form is None:
            return []
        return [trial for trial in trials if self.figures.form(trial) == form]

    def _nearest(self, first: TrialId, suits: Trials) -> list[TrialId]:
        """The few trials most like the first in configuration, in the order given."""
        trials = self.figures.view.trials
        config = trials[first].config

        def far(trial: TrialId) -> int:
            return distance(config, trials[trial].config)

        chosen = set(nsmallest(JOINING, suits, key=far))
        return [trial for trial in suits if trial in chosen]

    def _gains(self, slot: Slot, runs: Gang, lanes: Trials, joining: Trials) -> bool:
        """Whether trials that join fit, and the pack does more with them until one is through.

        What it costs to take them in (the paper's eq. 4) counts, and each sample weighs what it
        takes its trial alone. `runs`: what runs now; `lanes`: with those that join already.
        """
        figures = self.figures
        together = [*lanes, *joining]
        if slot.memory < inf and figures.memory(together) > slot.memory:
            return False
        more = figures.gang(slot, together)
        rates = figures.view.profile.rates(more)
        before = figures.speed(slot, lanes) * (1 + EPS)
        after = figures.work(rates)
        if after <= before:
            return False
        # How long it takes at these rates until the first trial is through.
        left = self.figures.left
        seconds = min(left(trial) / rate for trial, rate in rates.items())
        fewer = figures.gang(slot, lanes)
        profile = self.figures.view.profile
        lost = profile.switch(runs, more)
        if len(fewer.lanes) > len(runs.lanes):
            lost -= profile.switch(runs, fewer)  # some join already, and pay for that
        return after * seconds > before * (seconds + lost)


class Running:
    """The gangs that run, kept by change: which have room, and what tells them apart.

    `packs`: those of several trials on one slot. A gang with a quota ends by itself, and soon: it
    is not among them.
    """

    def __init__(self) -> None:
        self.roomy: dict[Gang, None] = {}
        self.packs: dict[Gang, None] = {}
        self._plan = Plan()
        # A number for each gang that changes with its rates in this profile; and the sum of all.
        self._marks: dict[Gang, int] = {}
        self._unmarked: dict[Gang, None] = {}
        self._profile: Profile | None = None
        self._sum = 0

    def look(self, view: View, most: int) -> None:
        """Take in what started and stopped since the last look."""
        stopped, started = view.plan.since(self._plan)
        self._plan = view.plan
        for gang in stopped:
            self.roomy.pop(gang, None)
            self.packs.pop(gang, None)
            self._unmarked.pop(gang, None)
            self._sum -= self._marks.pop(gang, 0)
        self._unmarked.update(dict.fromkeys(started))
        self.roomy.update((gang, None) for gang in started if has_room(gang, most))
        self.packs.update(
            (gang, None)
            for gang in started
            # Trials share its one slot until one of them ends.
            if gang.quota is None and len(gang.lanes) > len(gang.slots) == 1
        )

    def digest(self, view: View) -> str:
        """A few letters that change with what decides who joins: memories are journalled."""
        if self._profile is not view.profile:
            self._profile = view.profile
            self._unmarked |= dict.fromkeys(self._marks)
            self._marks, self._sum = {}, 0
        for gang in self._unmarked:
            self._marks[gang] = _mark(gang, view.profile)
            self._sum += self._marks[gang]
        self._unmarked.clear()
        facts = len(view.trials), len(view.known), self._sum
        return blake2b(repr(facts).encode(), digest_size=6).hexdigest()


def _mark(gang: Gang, profile: Profile) -> int:
    """A number by the gang's trials, and their samples/s."""
    facts = gang.trials, sorted(profile.rates(gang).values())
    return int.from_bytes(blake2b(repr(facts).encode(), digest_size=8).digest())


def has_room(gang: Gang, most: int) -> bool:
    """Whether the gang is a pack of fewer trials than it may have.

    A pack trains over the whole data set, on one slot.
    """
    whole = gang.quota is None and not gang.shards
    return whole and len(gang.lanes) < most and len(gang.slots) == 1


# -- who leaves a running pack when a slot is idle and nobody waits
#
# Ours. The paper's packs stay together until their trials end; so a slot may stand idle beside a
# crowded one, as at the end of a study. A pack that gains little by its company is then better
# parted.


def split(figures: Figures, packs: Iterable[Gang], idle: Sequence[Slot]) -> Plan:
    """The plan of now, in which packs gave some of their trials to these idle slots.

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
