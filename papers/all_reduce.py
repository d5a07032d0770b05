"""What an all-reduce costs, by three algorithms.

Source: Capes et al., "Dynamic Scheduling of MPI-based Distributed Deep Learning Training Jobs",
2019, section 3.2, eq. 2-4.
"""

from dataclasses import dataclass
from math import ceil, log2

from shoal.core.trial import Seconds
from shoal.profile.ring import is_power_of_two


@dataclass(frozen=True, slots=True)
class Link:
    """What a message costs.

    `latency`: seconds each. `transfer`: seconds a byte sent. `add`: seconds a byte summed.
    """

    latency: Seconds
    transfer: Seconds
    add: Seconds = 0.0


def ring(width: int, size: float, link: Link) -> Seconds:
    """All-reduce of `size` bytes by the ring algorithm (eq. 2): steps grow as the width."""
    part = (width - 1) * size / width
    return (
        4 * (width - 1) * link.latency + 4 * part * link.transfer + 2 * part * link.add
    )


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
    return (
        4 * log2(width) * link.latency
        + 4 * size * link.transfer
        + 2.5 * size * link.add
    )


def binary_blocks(width: int, size: float, link: Link) -> Seconds:
    """All-reduce of `size` bytes by binary blocks (eq. 4).

    It is `doubling_halving` for powers of two, and dearer for other widths.
    """
    if is_power_of_two(width):
        return doubling_halving(width, size, link)
    rounds = 5 + 4 * ceil(log2(width))
    return rounds * link.latency + 7 * size * link.transfer + 3 * size * link.add
