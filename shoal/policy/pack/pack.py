"""Packing: several trials on one slot, over one stream of data.

Liu et al., "Understanding and Optimizing Packed Neural Network Training for Hyper-Parameter
Tuning", 2020, section 5; the groupings are in `policy.pack.grouping`. Ours: exact grouping by
length, company across rungs and brackets, and lanes that are filled again when a trial ends.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from math import ceil, inf
from typing import Literal

from shoal.core.check import in_order
from shoal.core.cluster import Slot
from shoal.core.plan import Gang, Plan
from shoal.core.state import View
from shoal.core.trial import Seconds, TrialId
from shoal.policy.arguments import check_one_of
from shoal.policy.idle import fits, idle_slots, idle_trials
from shoal.policy.pack.company import GAIN
from shoal.policy.pack.figures import Figures
from shoal.policy.pack.grouping import (
    SOME,
    Groups,
    Levels,
    Member,
    at_random,
    cheapest,
    equal_length,
    nearest,
    places,
)
from shoal.policy.pack.kinds import Graph, Kinds, alike, graph
from shoal.policy.pack.refill import Refill, Running, has_room, split
from shoal.profile.evidence import clocked_as, known_widths

WINDOW = 256  # waiting trials looked at beside those for idle slots: a decision's time has a bound
# A slot is given work for so long, where trials are shorter: to decide, to note and to keep what
# one unit did takes milliseconds, which no profile counts.
SHORT: Seconds = 0.2
Group = list[TrialId]
Grouping = Literal["contiguous", "nearest", "random", "batch_size"]
Trials = Sequence[TrialId]
Packs = Sequence[Group]
Slots = Sequence[Slot]


class _Cache:
    """Results that a decision leaves for the next one, so that it costs what changed.

    All of it could be computed again: no decision depends on the ones before.
    """

    def __init__(self) -> None:
        self.running = Running()
        self.kinds: Kinds | None = None
        self._figures: Figures | None = None

    def figures_in(self, view: View, fuse: bool) -> Figures:
        """The figures in this view, with what is known of them already."""
        before = self._figures or Figures(view, fuse)
        self._figures = before.in_view(view)
        return self._figures


@dataclass(frozen=True, slots=True)
class Pack:
    """A free slot takes a pack of waiting trials that fit its memory together.

    The pack that takes longest goes first. Packs are no larger than it takes to give every idle
    slot one, and no longer than all slots are at work anyway. Trials that were measured to take
    next to nothing are packed with others of the same figures also where they gain nothing by it,
    until their slot has something to do. Where a slot is idle and nobody waits, the running pack
    that takes longest gives it some of its trials, if all then end earlier. A trial that brought
    two slots down runs alone.

    Args:
        grouping: "contiguous" is the cheapest by the profile, and packs only what gains by it;
            "nearest" (kNN), "random" and "batch_size" are the paper's, and fill the memory.
        most: trials in a pack, at most.
        same: names in the configuration that make the model's graph; trials that differ in one are
            not packed.
        batch: the name of the batch size in the configuration.
        refill: a trial that waits joins a running pack that has room, where the profile says that
            all together then go faster.
        fuse: trials of one graph may train in one step, equal to rounding.
        seed: of "nearest" and "random".
        levels: of "nearest": the values that each name may have in the search space, by which
            distances are counted. A name that is left out has the values of the study's trials.
        within: of "nearest": members are no further from the one drawn. None: as far as the memory
            reaches.

    Raises:
        ValueError: no such grouping, or packs of less than one.
    """

    grouping: Grouping = "contiguous"
    most: int = 32
    same: Sequence[str] = ()
    batch: str = "batch_size"
    refill: bool = True
    fuse: bool = False
    seed: int = 0
    levels: Levels = field(default_factory=dict, hash=False)
    within: float | None = None
    cache: _Cache = field(default_factory=_Cache, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_one_of("a pack's grouping", Grouping, self.grouping)
        if self.most < 1:
            raise ValueError(f"a pack has at least one trial; got most={self.most!r}")
        if self.within is not None and not self.within >= 0:
            raise ValueError(f"a distance must be >= 0, or None; got within={self.within!r}")
        object.__setattr__(self, "same", tuple(self.same))

    def start(self) -> str:
        return ""

    def decide(self, view: View, memory: str) -> tuple[Plan, str]:
        slots = idle_slots(view)
        running = self.cache.running
        running.look(view, self.most)
        roomy = list(running.roomy) if self.refill else []
        if not slots and not roomy:
            return view.plan, memory
        waits = idle_trials(view, WINDOW + self.most * len(slots))
        if not waits and not slots:
            return view.plan, memory
        figures = self.cache.figures_in(view, self.fuse)
        if not waits:
            return split(figures, running.packs, slots), memory

        behind = max(0, len(view.trials) - len(view.running) - len(waits))
        if not slots:
            digest = running.digest(view)
            if digest == memory:  # nothing changed since no trial could join
                return view.plan, memory
            memory = digest

        start: set[Gang] = set()
        for slot, pack in _PacksForIdle(view, self, figures, behind).on_idle(slots, waits):
            start.add(figures.gang(slot, pack))
            waits = _without(waits, pack)
        if not self.refill:
            return view.plan.but(start), memory
        roomy += [gang for gang in start if has_room(gang, self.most)]
        everybody = sorted([*view.plan.gangs, *start], key=in_order) if roomy else ()
        refill = Refill(figures, self.most, self.same, behind)
        stop: list[Gang] = []
        for before, after in refill.joined(roomy, everybody, waits):
            stop.append(before)
            start.discard(before)
            start.add(after)
        return (view.plan.but(start, stop) if start else view.plan), memory


def shared_out(work: Seconds, busy: Sequence[Seconds]) -> Seconds:
    """When all end at once, if so much work is shared out among slots that are `busy` so long.

    A slot that is busy longer gets none of it.
    """
    level = 0.0
    for count, until in enumerate(sorted(busy)):
        if count and work <= count * (until - level):
            return level + work / count
        work -= count * (until - level)
        level = until
    return level + work / len(busy)


def _without(trials: Trials, pack: Trials) -> Group:
    """The trials that are not in the pack."""
    taken = set(pack)
    return [trial for trial in trials if trial not in taken]


@dataclass(slots=True)
class _PacksForIdle:
    """One decision: packs for idle slots. `behind`: how many trials wait beside those given."""

    view: View
    rule: Pack
    figures: Figures
    behind: int

    def on_idle(self, slots: Slots, waits: Trials) -> Iterator[tuple[Slot, Group]]:
        """A pack for each idle slot; slots with the most memory choose first."""
        left = list(waits)
        slots = sorted(slots, key=lambda slot: (-slot.memory, slot.id))
        for number, slot in enumerate(slots):
            here = [trial for trial in left if fits(self.view, trial, slot)]
            if here:
                idle = len(slots) - number
                waiting = len(here) + self.behind
                most = min(self.rule.most, ceil(waiting / idle))
                packs = self._packs(slot, here, most)
                pack = self._fair(slot, packs, waiting, idle)
                if self.rule.grouping == "contiguous":
                    pack += self._more_alike(slot, pack, here, most)
                while self.figures.memory(pack) > slot.memory:  # by a rounding error
                    pack.pop()
                left = _without(left, pack)
                yield slot, pack

    def _packs(self, slot: Slot, trials: Trials, most: int) -> Packs:
        """The trials in packs; of very many, only those of them that are to run next."""
        rule, cache = self.rule, self.rule.cache
        if rule.grouping != "contiguous":
            kinds = alike(self.figures, trials, rule.same)
            return _chained(self._as_in_the_paper(slot, kind, most) for kind in kinds)
        cache.kinds = Kinds.of(self.figures, trials, rule.same, rule.most, cache.kinds)
        kinds = cache.kinds.all()
        if len(trials) > SOME:
            # The longest trials, of the kind that has the most work.
            kind = max(kinds, key=lambda kind: sum(map(self.figures.alone, kind)))
            # Equals lie together. Their numbers depend on earlier questions; their order must not.
            numbers = map(self.figures.number, kind)
            place = {number: i for i, number in enumerate(dict.fromkeys(numbers))}
            order = sorted(kind, key=lambda t: (self._steps(t), place[self.figures.number(t)]))
            return self._cheapest(slot, order[-2 * most :], most)
        return _chained(self._cheapest(slot, kind, most) for kind in kinds)

    # -- the cheapest packs

    def _cheapest(self, slot: Slot, trials: Trials, most: int) -> Packs:
        """The trials in packs that take least in all, sorted by steps to go."""
        members = [Member(self.figures.cost(t), self._steps(t)) for t in trials]
        spans = self.figures.spans(slot, trials)
        groups = cheapest(members, slot.memory, most, spans)
        return [[trials[i] for i in group] for group in groups]

    # -- the paper's packs

    def _as_in_the_paper(self, slot: Slot, trials: Trials, most: int) -> Packs:
        """The trials in packs by the paper's section 5.3: kNN, random, or equal batch sizes."""
        if self.rule.grouping == "nearest":
            groups = self._nearest(slot, trials, most)
        elif self.rule.grouping == "random":
            members = [Member(self.figures.cost(trial)) for trial in trials]
            groups = at_random(members, slot.memory, most, self._seed)
        else:
            members = [Member(self.figures.cost(t), self._batch(t)) for t in trials]
            groups = equal_length(members, slot.memory, most)
        return [[trials[i] for i in group] for group in groups]

    def _nearest(self, slot: Slot, trials: Trials, most: int) -> Groups:
        """The trials in packs by kNN, with the distance of configurations."""
        configs = [self.view.trials[trial].config for trial in trials]
        others = (trial.config for trial in self.view.known.values())
        members = []
        for i, place in enumerate(places(configs, self.rule.levels, others)):
            members.append(Member(self.figures.cost(trials[i]), place=place))
        within = inf
        if self.rule.within is not None:
            within = self.rule.within
        return nearest(members, slot.memory, most, self._seed, within)

    @property
    def _seed(self) -> tuple[int, int]:
        """The seed of this decision's draws."""
        return self.rule.seed, self.view.turn

    # -- which one runs

    def _fair(self, slot: Slot, packs: Packs, waiting: int, idle: int) -> Group:
        """The pack that takes longest, without what would keep it at work when nobody else is.

        `waiting`: how many trials wait, those in no pack included. `idle`: slots without work.
        """
        spans = [self.figures.span(slot, pack) for pack in packs]
        chosen = packs[spans.index(max(spans))]
        if len(chosen) == 1 or self.rule.grouping != "contiguous":
            return chosen
        work = sum(spans) * (waiting / sum(map(len, packs)))
        if work >= max(spans) * len(self.view.slots):
            return chosen
        running = [self.figures.until_over(gang) for gang in self.view.plan.gangs]
        return self._shortened(slot, chosen, shared_out(work, [0.0] * idle + running))

    def _shortened(self, slot: Slot, pack: Group, share: Seconds) -> Group:
        """The pack without its shortest trials, until it takes about its share of the time.

        It may take as long as its longest trial alone.
        """
        longest = max(self.figures.span(slot, [trial]) for trial in pack)
        fair = max(share, longest) * (1 + GAIN)
        while len(pack) > 1 and self.figures.span(slot, pack) > fair:
            shortest = min(pack, key=self.figures.left)
            pack = [trial for trial in pack if trial != shortest]
        return pack

    def _more_alike(self, slot: Slot, pack: Group, here: Trials, most: int) -> Group:
        """Trials with the figures of a pack's first one, as many as make it worth a unit.

        Only where the rate was measured: in a simulation a decision takes no time. With several
        slots half of what waits is shared out evenly, and then half of the rest, so that all of
        them end at about the same time (guided self-scheduling).
        """
        figures, first, profile = self.figures, pack[0], self.view.profile
        if 1 not in (known_widths(profile, first) or ()):
            return []
        cost = figures.cost(first)
        unit = figures.alone(first) + cost.build + cost.evaluate + cost.save
        slots = len(self.view.slots)
        share = ceil((len(here) + self.behind) / (2 * slots if slots > 1 else 1))
        count = min(most, share, ceil(SHORT / max(unit, SHORT / most))) - len(pack)
        if count <= 0:
            return []

        def kind(trial: TrialId) -> tuple[int, str, Graph]:
            signature = clocked_as(profile, trial)
            return figures.number(trial), signature, graph(self.view, trial, self.rule.same)

        wanted = kind(first)
        alike = (trial for trial in here if trial not in pack and kind(trial) == wanted)
        more = list(islice(alike, count))
        if more and figures.speed(slot, [*pack, *more]) < 1 - GAIN:
            return []  # they were clocked, and are in each other's way
        return more

    def _batch(self, trial: TrialId) -> float:
        """The trial's batch size; 1 where its configuration does not say."""
        batch = self.view.trials[trial].config.get(self.rule.batch, 1)
        if isinstance(batch, (int, float)) and batch > 0:
            return float(batch)
        return 1.0

    def _steps(self, trial: TrialId) -> float:
        """Steps that the trial has to go."""
        return self.figures.left(trial) / self._batch(trial)


def _chained(packs: Iterable[Packs]) -> Packs:
    """The packs of all kinds."""
    return list(chain.from_iterable(packs))
