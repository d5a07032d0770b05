"""Planned schedules for shards with replicas: LP-quota, scarcest shard, and a guard against slow holders.

Section 5.5 of Nakandala et al., VLDB 2020, leaves replicas to chance; that costs an eighth to a third of the epoch.
"""

from collections.abc import Iterator

import numpy as np

from shoal.core.trial import Seconds
from shoal.policy.openshop import Planned
from shoal.policy.quota import shares
from shoal.policy.rules import scarce, variation
from shoal.policy.shop import Floats, Rule, Shop, dispatch

GUARDS = (1.0, 1.05, 1.15, 1.3)  # targets tried, as multiples of the bound
ENOUGH = 1.005  # of the bound
TRIES, UNITS = 64, 12_000  # variations, and units planned in all of them


def replica_shares(shop: Shop) -> tuple[Seconds, Floats]:
    """No epoch is shorter; and the part of each shard's work (shards, slots) that each slot does at the LP's optimum.

    The bound is the larger of the LP's (work is divided among holders at will) and the longest trial's, at the fastest holders.
    """
    found = shares(np.where(shop.holds, shop.work, np.inf).tolist())
    return max(found.bound, float(shop.fastest.sum(axis=1).max())), np.array(found.share)


def quota(shop: Shop, epochs: int = 1) -> Planned:
    """The shortest of LP-quota and largest-remaining-work with the scarcest shard, each with and without guards.

    Each is simulated; the first that nearly meets the bound is taken. Where trials are few, variations as well.
    """
    least, share = replica_shares(shop)
    chosen: Planned | None = None
    for how, rule in _rules(shop, least * epochs, share):
        plan = Planned(dispatch(shop, rule, epochs), how)
        if chosen is None or plan.schedule.makespan < chosen.schedule.makespan:
            chosen = plan
        if chosen.schedule.makespan <= least * epochs * ENOUGH:
            break
    assert chosen is not None
    return chosen


def _rules(shop: Shop, least: Seconds, share: Floats) -> Iterator[tuple[str, Rule]]:
    yield "quota", scarce(share)
    yield "scarcest shard", scarce()
    for guard in GUARDS:
        yield f"scarcest shard, guard {guard:g}", scarce(target=guard * least)
        yield f"quota, guard {guard:g}", scarce(share, guard * least)
    for number in range(min(TRIES, UNITS // shop.fastest.size)):
        factor, guard = variation(number, len(shop.seconds)), GUARDS[number // 2 % len(GUARDS)]
        how, part = ("quota", share) if number % 2 == 0 else ("scarcest shard", None)
        yield f"{how}, guard {guard:g}, variation {number}", scarce(part, guard * least, factor)
