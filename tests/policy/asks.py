"""Asks from plain numbers, for tests of allocation rules."""

from collections.abc import Mapping, Sequence

from shoal.core.trial import TrialId
from shoal.policy.width.ask import Ask

CAPES = {1: 160 / 368, 2: 170 / 232, 4: 160 / 126, 8: 170 / 84}  # epochs per minute, Table 2


def ask(name: int, left: float, rates: Mapping[int, float], held: int = 0) -> Ask:
    return Ask(TrialId(f"t{name}"), left, tuple(rates), tuple(rates.values()), held)


def asks(lefts: Sequence[float], rates: Mapping[int, float]) -> list[Ask]:
    return [ask(i, left, rates) for i, left in enumerate(lefts)]


def between(rates: Mapping[int, float]) -> dict[int, float]:
    """All widths: seconds per epoch between those known are linear in 1 / width."""
    known = sorted(rates)
    full = {}
    for w in range(known[0], known[-1] + 1):
        lo, hi = max(k for k in known if k <= w), min(k for k in known if k >= w)
        part = 0.0 if lo == hi else (1 / w - 1 / hi) / (1 / lo - 1 / hi)
        full[w] = 1 / (1 / rates[hi] + part * (1 / rates[lo] - 1 / rates[hi]))
    return full


def counts(widths: Mapping[TrialId, int], n: int) -> tuple[int, ...]:
    return tuple(widths.get(TrialId(f"t{i}"), 0) for i in range(n))
