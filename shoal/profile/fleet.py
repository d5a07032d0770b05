"""How fast an ensemble's models go on many slots, from a short profile on few.

Source: Guan et al., "FLEET", MLSys 2020, appendix B.3. Rates are measured at widths 1..Mt and
extrapolated beyond (eq. 5). The preprocessors are as few as keep up with the trainers.
"""

from collections.abc import Mapping, Sequence
from math import ceil

from shoal.core.trial import Seconds

WORTH = 0.05  # the part of a sample's processor time that sharing must save to be worth it


def widths_to_profile(alone: Sequence[float], per_node: int) -> int:
    """Mt: the widths 1..Mt are to be measured.

    That is enough for the slowest model to reach the fastest one's rate on one slot if it scaled
    perfectly, and at least two nodes. `alone`: samples/s of each model on one slot.

    Raises:
        ValueError: there are no rates, or one is not positive.
    """
    if not alone or not min(alone) > 0:
        raise ValueError(f"rates on one slot must be > 0, one a model or more; got {list(alone)!r}")
    return max(ceil(max(alone) / min(alone)), 2 * per_node)


def extrapolate(measured: Sequence[float], per_node: int, upto: int) -> tuple[float, ...]:
    """Samples/s at widths 1..upto: as measured, and by eq. 5 beyond.

    The efficiency per slot goes on falling by the factor q of the last step within
    Mb = 2 `per_node` slots, also if more was measured. With q < 1 the rate is greatest at about
    -1/ln q slots and falls after that.

    Raises:
        ValueError: more rates are asked for, and fewer than 2 `per_node` were measured.
    """
    known = tuple(map(float, measured[:upto]))
    if upto <= len(known):
        return known
    base = 2 * per_node
    if len(measured) < base:
        raise ValueError(
            f"to extrapolate, rates at widths 1..{base} (two nodes) are needed; got {len(measured)}"
        )
    at = measured[base - 1]
    before = measured[base - 2]
    q = at / before * (base - 1) / base
    beyond = range(len(known) + 1, upto + 1)
    return known + tuple(width * at / base * q ** (width - base) for width in beyond)


def feeders(alone: Sequence[float], throughput: Mapping[int, float]) -> int:
    """The fewest preprocessors that keep up with any models on one slot each.

    The models share one stream, so it must deliver the fastest model's rate, however many there
    are. `throughput`: samples/s by the number of preprocessors, as measured (in the paper: 1, 2, 4
    … 32 cores).

    Raises:
        ValueError: not even the largest number measured keeps up.
    """
    need = max(alone, default=0.0)
    enough = [count for count, rate in throughput.items() if rate >= need]
    if not enough:
        most = max(throughput.values(), default=0.0)
        raise ValueError(
            f"{need:g} samples/s are needed; measured at most {most:g}: measure more feeders"
        )
    return min(enough)


def feeders_wanted(prepare: Seconds, train: Sequence[Seconds], made: float, most: int) -> int:
    """How many feeders a node's slots should have; 0 if each slot should prepare its own data.

    This is `feeders` with a throughput that grows with their number. If the slots read unlike data,
    the demand is the sum of the rates, less what they have in common.

    `prepare`: seconds per sample of one feeder. `train`: seconds per sample of each slot. `made`:
    chunks to be prepared for each chunk asked for, in (0, 1]; if all slots read one stream it is
    one over the number of slots. `most`: feeders allowed.

    Raises:
        ValueError: there are no slots, a time is not positive, `made` is out of its range, or no
            feeder is allowed.
    """
    if not train or not min(prepare, *train) > 0 or not 0 < made <= 1 or most < 1:
        raise ValueError(
            "need times > 0 (of a slot at least), 0 < made <= 1 and most >= 1; "
            f"got {prepare}, {list(train)}, {made}, {most}"
        )
    rates = [1.0 / seconds for seconds in train]
    throughput = {number: number / prepare for number in range(1, most + 1)}
    try:
        count = feeders([*rates, made * sum(rates)], throughput)
    except ValueError:
        count = most
        if most < made * len(train):  # the slots prepare more by themselves than so few could
            count = 0
    saves = (1.0 - made) * prepare >= WORTH * (prepare + max(train))
    if saves or count > len(train):
        return count
    # A slot that prepares its own data does so beside training, as one feeder would.
    return 0
