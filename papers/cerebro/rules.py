"""List rules of an open shop that only comparisons need: the paper's Algorithm 1, and rules of
size.

Nakandala et al., VLDB 2020. Shoal's live form of Algorithm 1 is
`shoal.policy.hop.live_rules.by_lot`.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from shoal.policy.hop.schedules import greedy
from shoal.policy.hop.shop import Floor, Pick, Rule

# Longest and shortest processing time of the unit at hand.
longest = greedy(lambda floor, slot, trials: floor.shop.seconds[trials, slot, slot])
shortest = greedy(lambda floor, slot, trials: -floor.shop.seconds[trials, slot, slot])


def by_lot(seed: int = 0) -> Rule:
    """Algorithm 1: each idle slot draws evenly from the pending units of idle trials it can
    serve.
    """

    def rule(floor: Floor, slots: Sequence[int]) -> Iterable[Pick]:
        rng = np.random.default_rng([seed, floor.turn])
        idle = floor.idle.copy()
        for slot in slots:
            here = floor.pending & floor.shop.holds[:, slot]
            units = np.argwhere(here & idle[:, None])
            if len(units):
                trial, shard = units[int(rng.integers(len(units)))]
                idle[trial] = False
                yield int(trial), int(shard), slot

    return rule
