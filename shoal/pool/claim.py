"""What a study asks of its pool. Without NumPy, which takes longer to import than all of this."""

from dataclasses import dataclass
from math import inf


@dataclass(frozen=True, slots=True)
class SlotClaim:
    """What a study asks of its pool.

    `priority`: a study of priority 2 gets about twice the slots of a study of priority 1.
    `least`: the fewest slots with which one of its trials can train. `most`: as many as it can use.
    `since`: when it came, in seconds; only the order counts. `rates`: samples/s that it makes with
    1, 2, … slots, all trials together, 0 where none can run; empty: nothing was measured yet.

    Raises:
        ValueError: a number is out of its range.
    """

    study: str
    priority: float = 1.0
    least: int = 1
    most: int = 1
    since: float = 0.0
    rates: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not self.priority > 0 or not 1 <= self.least <= self.most:
            raise ValueError(f"a claim needs priority > 0 and 1 <= least <= most; got {self}")
        rates = self.rates
        if rates and not (
            len(rates) >= self.least
            and rates[self.least - 1] > 0
            and all(0 <= rate < inf for rate in rates)
        ):
            raise ValueError(
                f"a claim's rates are samples/s, above 0 from {self.least} slots on; got "
                f"{str(rates)[:200]}"
            )
