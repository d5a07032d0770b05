"""How fast an ensemble's models go on many slots, from a short profile on few.

Guan et al., "FLEET", MLSys 2020, appendix B.3: rates are measured at widths 1..Mt and extrapolated beyond (eq. 5);
the preprocessors are as few as keep up with the trainers.
"""

from collections.abc import Mapping, Sequence
from math import ceil

from shoal.core.trial import Seconds

WORTH = 0.05  # of the processor's time on a sample, that sharing must save to be done


def widths_to_profile(alone: Sequence[float], per_node: int) -> int:
    """Mt: the widths 1..Mt are to be measured.

    Enough for the slowest model to reach the fastest one's rate on one slot if it scaled perfectly, and two nodes at least.
    `alone`: samples/s of each model on one slot.

    Raises:
        ValueError: no rates, or one that is not positive.
    """
    if not alone or not min(alone) > 0:
        raise ValueError(f"rates on one slot must be > 0, one a model or more; got {list(alone)!r}")
    return max(ceil(max(alone) / min(alone)), 2 * per_node)


def extrapolate(measured: Sequence[float], per_node: int, upto: int) -> tuple[float, ...]:
    """Samples/s at widths 1..upto: as measured, and by eq. 5 beyond.

    The efficiency per slot goes on falling by the factor q of the last step within Mb = 2 `per_node` slots, also where
    more was measured. With q < 1 the rate has its greatest value at about -1/ln q slots and falls after it.

    Raises:
        ValueError: fewer rates than 2 `per_node`, where more are asked for.
    """
    known = tuple(map(float, measured[:upto]))
    if upto <= len(known):
        return known
    base = 2 * per_node
    if len(measured) < base:
        raise ValueError(f"to extrapolate, rates at widths 1..{base} (two nodes) are needed; got {len(measured)}")
    at, before = measured[base - 1], measured[base - 2]
    q = at / before * (base - 1) / base
    return known + tuple(m * at / base * q ** (m - base) for m in range(len(known) + 1, upto + 1))


def feeders(alone: Sequence[float], throughput: Mapping[int, float]) -> int:
    """The fewest preprocessors that keep up with any models on one slot each.

    They share one stream, so that what it must deliver is the fastest model's rate, however many there are.
    `throughput`: samples/s by the number of preprocessors, as measured (the paper: 1, 2, 4 … 32 cores).

    Raises:
        ValueError: not even the largest number measured keeps up.
    """
    need = max(alone, default=0.0)
    enough = [count for count, rate in throughput.items() if rate >= need]
    if not enough:
        most = max(throughput.values(), default=0.0)
        raise ValueError(f"{need:g} samples/s are needed; measured at most {most:g}: measure more feeders")
    return min(enough)


def feeders_wanted(prepare: Seconds, train: Sequence[Seconds], made: float, most: int) -> int:
    """How many feeders a node's slots should have, `most` at most; 0: each slot is as well off preparing its own data.

    `feeders` with a throughput that grows with their number; where the slots read unlike data, the demand is the sum of the
    rates, less what they have in common. `prepare`: seconds per sample of one feeder. `train`: seconds per sample of each slot.
    `made`: chunks to be prepared for each chunk asked for, in (0, 1]: one over the number of slots where all read one stream.

    Raises:
        ValueError: no slots, times that are not positive, a share out of its range, or no feeder allowed.
    """
    if not train or not min(prepare, *train) > 0 or not 0 < made <= 1 or most < 1:
        raise ValueError(
            f"need times > 0 (of a slot at least), 0 < made <= 1 and most >= 1; got {prepare}, {list(train)}, {made}, {most}"
        )
    rates = [1.0 / seconds for seconds in train]
    try:
        count = feeders([*rates, made * sum(rates)], {n: n / prepare for n in range(1, most + 1)})
    except ValueError:
        count = most if most >= made * len(train) else 0  # or the slots by themselves prepare more than so few could
    saves = (1.0 - made) * prepare >= WORTH * (prepare + max(train))
    return (
        count if saves or count > len(train) else 0
    )  # a slot that prepares its own does so beside training, as one feeder would
