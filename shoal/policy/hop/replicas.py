"""Planned schedules for shards with replicas: LP-quota, scarcest shard, and a guard.

Ours. Section 5.5 of Nakandala et al., VLDB 2020, leaves replicas to chance; that costs an eighth to
a third of the epoch.
"""

from collections.abc import Iterator

import numpy as np

from shoal.core.trial import Seconds
from shoal.policy.hop.openshop import PlannedOrder, first_within
from shoal.policy.hop.quota import shares
from shoal.policy.hop.rules import scarce, variation
from shoal.policy.hop.shop import Floats, Rule, Shop, dispatch

GUARDS = (1.0, 1.05, 1.15, 1.3)  # targets tried, as multiples of the bound
ENOUGH = 1.005  # of the bound
TRIES = 64  # variations
UNITS = 12_000  # planned in all variations together

Named = tuple[str, Rule]  # a rule, and how it is called


def replica_shares(shop: Shop) -> tuple[Seconds, Floats]:
    """A bound: no epoch is shorter; and each slot's part of each shard's work at the LP's optimum.

    The bound is the larger of two: the LP's, where work is divided among holders at will, and the
    longest trial's at the fastest holders. The parts are a table (shards, slots).
    """
    seconds = np.where(shop.holds, shop.work, np.inf)
    found = shares(seconds.tolist())
    longest = float(shop.least.sum(axis=1).max())
    return max(found.bound, longest), np.array(found.share)


def quota(shop: Shop, epochs: int = 1) -> PlannedOrder:
    """The shortest of LP-quota and largest-remaining-work with the scarcest shard.

    Both are tried with and without guards; where trials are few, variations are tried as well. Each
    is simulated, and the first that nearly meets the bound is taken.
    """
    epoch, share = replica_shares(shop)
    least = epoch * epochs
    return first_within(least * ENOUGH, _plans(shop, epochs, least, share))


def _plans(shop: Shop, epochs: int, least: Seconds, share: Floats) -> Iterator[PlannedOrder]:
    """The schedule of each rule, made when it is asked for."""
    for how, rule in _rules(shop, least, share):
        yield PlannedOrder(dispatch(shop, rule, epochs), how)


def _rules(shop: Shop, least: Seconds, share: Floats) -> Iterator[Named]:
    """The rules to try, each with a name, the likeliest first.

    `least`: the bound, over all epochs.
    """
    yield "quota", scarce(share)
    yield "scarcest shard", scarce()
    for guard in GUARDS:
        target = guard * least
        yield f"scarcest shard, guard {guard:g}", scarce(target=target)
        yield f"quota, guard {guard:g}", scarce(share, target)

    trials = len(shop.seconds)
    for number in range(min(TRIES, UNITS // shop.fastest.size)):
        yield _variation(number, trials, least, share)


def _variation(number: int, trials: int, least: Seconds, share: Floats) -> Named:
    """A rule with a guard and trials' work off by some factors; every other one is LP-quota."""
    factor = variation(number, trials)
    guard = GUARDS[number // 2 % len(GUARDS)]
    target = guard * least
    how = f"guard {guard:g}, variation {number}"
    if number % 2 == 0:
        return f"quota, {how}", scarce(share, target, factor)
    return f"scarcest shard, {how}", scarce(None, target, factor)
