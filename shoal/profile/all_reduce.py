"""What it costs to sum gradients over several slots, and how fast a lane is believed to be by it.

Source: Capes et al., "Dynamic Scheduling of MPI-based Distributed Deep Learning Training Jobs",
2019, section 3.2, eq. 2-4. Where the links between the nodes were measured, a width at which nobody
trained yet gets its speed from these, with what the widths that were measured say otherwise:

    seconds of a step = compute / w + visible sum of gradients + fixed * (1 - 1/w)

`Beside` has the two corrections. Measured widths are kept as they are.
"""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, log, log2

from shoal.core.cluster import GiB
from shoal.core.trial import Samples, Seconds

# Of a step at least computes; sums hide behind the rest, which is backward.
LEAST = 1 / 3
GIB = 2**30


def is_power_of_two(width: int) -> bool:
    """Whether the width is 1, 2, 4, 8 …"""
    return width > 0 and width & (width - 1) == 0


@dataclass(frozen=True, slots=True)
class Link:
    """The cost of a message between two slots.

    `latency`: seconds each. `transfer`: seconds a byte sent. `add`: seconds a byte summed.
    """

    latency: Seconds
    transfer: Seconds
    add: Seconds = 0.0


# Seconds of an all-reduce: given the width, the bytes and the link.
AllReduce = Callable[[int, float, Link], Seconds]

# -- eq. 2-4


def ring(width: int, size: float, link: Link) -> Seconds:
    """All-reduce of `size` bytes by the ring algorithm (eq. 2): steps grow as the width."""
    part = (width - 1) * size / width
    return 4 * (width - 1) * link.latency + 4 * part * link.transfer + 2 * part * link.add


def doubling_halving(width: int, size: float, link: Link) -> Seconds:
    """All-reduce of `size` bytes by doubling and halving (eq. 3); for powers of two.

    Raises:
        ValueError: the width is not a power of two.
    """
    if not is_power_of_two(width):
        raise ValueError(
            f"doubling and halving needs a power of two; got width {width}: use binary_blocks"
        )
    if width == 1:
        return 0.0
    return 4 * log2(width) * link.latency + 4 * size * link.transfer + 2.5 * size * link.add


def binary_blocks(width: int, size: float, link: Link) -> Seconds:
    """All-reduce of `size` bytes by binary blocks (eq. 4).

    It is `doubling_halving` for powers of two, and dearer for other widths.
    """
    if is_power_of_two(width):
        return doubling_halving(width, size, link)
    rounds = 5 + 4 * ceil(log2(width))
    return rounds * link.latency + 7 * size * link.transfer + 3 * size * link.add


def quickest(width: int, size: float, link: Link) -> Seconds:
    """All-reduce of `size` bytes by the better algorithm, as libraries choose by size.

    The ring is best for large sizes, the others where latency counts (section 3.1).
    """
    return min(ring(width, size, link), binary_blocks(width, size, link))


def link_of(how: AllReduce, width: int, small: Seconds, large: Seconds, size: float) -> Link:
    """The link on which so many slots summed next to nothing, and `size` bytes, in this time.

    `how`: they sum. A large sum goes round a ring in any case.
    """
    latency = small / how(width, 0.0, Link(1.0, 0.0))
    transfer = max(large - small, 0.0) / ring(width, size, Link(0.0, 1.0))
    return Link(latency, transfer)


# -- the speed of a lane


@dataclass(frozen=True, slots=True)
class Beside:
    """Corrections of eq. 2-4, from measured steps.

    `hidden`: by how much sums go on behind the backward pass, as a part of the slot's compute.
    `fixed`: seconds of a step that do not shrink with the width.
    """

    hidden: float = 0.0
    fixed: Seconds = 0.0


@dataclass(frozen=True, slots=True)
class Sums:
    """The sums of gradients of one kind of trials: how large they are, and `how` they are made.

    `model`: bytes a step. `batch`: its samples.
    """

    model: float
    batch: Samples
    link: Link
    how: AllReduce = quickest

    def seconds(self, width: int) -> Seconds:
        """Seconds of a step's sums, if nothing hides them."""
        return self.how(width, self.model, self.link)

    def alone(self, width: int, rate: float) -> float:
        """Samples/s on one slot, of what makes `rate` at this width."""
        step = self.batch / rate
        compute = max(step - self.seconds(width), step * LEAST) * width
        return self.batch / compute

    def beside(self, alone: float, width: int, rate: float) -> Beside:
        """The corrections that the rate at this width asks for; `alone`: the rate on one slot."""
        compute = self.batch / alone / width
        more = max(self.batch / rate - compute, 0.0) - self.seconds(width)
        if more < 0.0:
            return Beside(hidden=-more / compute)
        return Beside(fixed=more / (1.0 - 1.0 / width))

    def rate(self, alone: float, width: int, beside: Beside) -> float:
        """Samples/s at this width; never more than so many times the rate on one slot."""
        compute = self.batch / alone / width
        visible = max(self.seconds(width) - beside.hidden * compute, 0.0)
        step = compute + visible + beside.fixed * (1.0 - 1.0 / width)
        return self.batch / step


def mean_beside(corrections: Sequence[Beside]) -> Beside:
    """The mean of these; nothing beside eq. 2-4 if there are none."""
    count = len(corrections)
    if not count:
        return Beside()
    hidden = sum(one.hidden for one in corrections) / count
    fixed = sum(one.fixed for one in corrections) / count
    return Beside(hidden, fixed)


def curve_by_links(
    rates: Mapping[int, float], sums: Sums, others: Beside, upto: int
) -> list[float]:
    """Samples/s at widths 1..upto: the `rates` by width, width 1 among them, and between them.

    What was measured wide holds for the widths beside it, between two the nearer one more. Where
    nothing was: `others`.
    """
    alone = rates[1]
    wide = sorted(width for width in rates if width > 1)
    measured = {width: sums.beside(alone, width, rates[width]) for width in wide}
    curve = []
    for width in range(1, upto + 1):
        if width in rates:
            curve.append(rates[width])
        else:
            curve.append(sums.rate(alone, width, _at(width, wide, measured, others)))
    return curve


def _at(width: int, wide: list[int], measured: Mapping[int, Beside], others: Beside) -> Beside:
    """The corrections at this width, by the measured ones around it."""
    if not wide:
        return others
    at = bisect_left(wide, width)
    if at in (0, len(wide)):
        return measured[wide[min(at, len(wide) - 1)]]
    low, high = wide[at - 1], wide[at]
    part = log(width / low) / log(high / low)
    first, second = measured[low], measured[high]
    return Beside(
        first.hidden + part * (second.hidden - first.hidden),
        first.fixed + part * (second.fixed - first.fixed),
    )


# -- from figures


def sums_of(figures: Mapping[str, float], every: Mapping[str, float]) -> Sums | None:
    """The sums of trials with these figures; None if their size, or the links, was not measured.

    `every`: means of all figures of the study, which has the links among them.
    """
    model: GiB = figures.get("model", 0.0)
    batch: Samples = figures.get("batch", 0.0)
    if not (model > 0 and batch > 0 and "latency" in every and "transfer" in every):
        return None
    link = Link(every["latency"], every["transfer"] / GIB)
    return Sums(model * GIB, batch, link, ring if "rings" in every else quickest)
