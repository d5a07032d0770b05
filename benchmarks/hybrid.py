"""Few trials on placed shards: `hybrid` against plain `hop`, in the simulator.

Each slot holds shards that no other has. Loads: equal trials in number from 1 to the slots; unlike
trials that come at different times; Hyperband with its brackets at once and one after another. They
are drawn with unlike models, costs of summing gradients, sizes of shards, copies and slots a node.
"told": the policy knows all speeds; "learnt": it starts without any, as a user's run does. The
ratio is the makespan under `hybrid` over that under `hop`.

    python benchmarks/hybrid.py [--draws 20]
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import mean
from typing import Any

import numpy as np
from common import write

from shoal.backend.sim.sim import Sim
from shoal.core.cluster import ShardId, Slot, SlotId
from shoal.core.event import Finished, Opened
from shoal.core.fold import fold
from shoal.core.state import State
from shoal.engine.journal import Journal
from shoal.engine.run import run
from shoal.policy.hop.hop import Hop
from shoal.policy.hop.hybrid import Hybrid
from shoal.profile.measure import Believer
from shoal.profile.table import Row, Table
from shoal.search.halving import Hyperband
from shoal.search.space import choice
from shoal.search.trace import Trace

SIZE = 1000  # samples of a shard
# What summing gradients costs, against a step of one slot.
COSTS = (0.02, 0.1, 0.3, 1.0)
ALLOWED = 1.02


@dataclass(frozen=True)
class Load:
    """A study of which only the policy is open."""

    shards: dict[ShardId, int]
    slots: list[Slot]
    table: Table
    searcher: Any

    def makespan(self, policy: Any, learnt: bool) -> float:
        """Seconds until the last trial has ended."""
        sim = Sim(self.table.of, self.slots, shards=self.shards, checkpoint_every=1e12)
        journal = Journal()
        state = fold(State(), [Opened(1, self.shards)])
        believe = Believer() if learnt else self.table.believe
        run(self.searcher, policy, sim, believe, journal, state)
        ends = [line.time for line in journal.lines if isinstance(line.entry, Finished)]
        return max(ends)


def cluster(rng: np.random.Generator, uneven: bool) -> tuple[Any, Any, int]:
    """Shards and slots: 3 to 12 slots, one or two a node, one to three shards each."""
    nodes = int(rng.integers(2, 9))
    a_node = int(rng.integers(1, 3)) if nodes <= 6 else 1
    a_slot = int(rng.integers(1, 4))
    names = [ShardId(f"s{q:02d}") for q in range(nodes * a_node * a_slot)]
    sizes = [SIZE] * len(names)
    if uneven:
        sizes = [int(SIZE * rng.uniform(0.5, 1.5)) for _ in names]
    slots = []
    for number in range(nodes * a_node):
        node = number // a_node
        first = node * a_node * a_slot
        here = names[first : first + a_node * a_slot]
        slots.append(Slot(SlotId(f"w{number:02d}"), f"n{node}", shards=frozenset(here)))
    return dict(zip(names, sizes, strict=True)), slots, len(slots)


def table(rng: np.random.Generator, kinds: int, slots: int, hop: float) -> Table:
    """Unlike models; `hop`: seconds that a hop takes, in passes over a shard of the first."""
    rows = []
    for kind in range(kinds):
        rate = 100.0 * float(np.exp(rng.normal(0, 0.7))) if kind else 100.0
        cost = float(rng.choice(COSTS))
        widths = range(1, slots + 1)
        rates = tuple(rate * w / (1 + cost * 2 * (w - 1) / w) for w in widths)
        rows.append(Row(rates, {"m": kind}, switch=hop * SIZE / 100.0))
    return Table(rows)


def load_of(name: str, seed: int) -> Load:
    """One draw of a load."""
    rng = np.random.default_rng([seed, *name.encode()])
    shards, slots, count = cluster(rng, uneven=seed % 3 == 2)
    wide = (1, count)
    hop = float(rng.choice([0.0, 0.02, 0.1]))
    if name == "equal":
        trials = int(rng.integers(1, count + 1))
        arrivals = [(0.0, {"m": 0}) for _ in range(trials)]
        searcher: Any = Trace(arrivals, max_epochs=int(rng.integers(1, 5)), widths=wide)
        return Load(shards, slots, table(rng, 1, count, hop), searcher)
    if name == "unlike":
        trials = int(rng.integers(1, 2 * count + 1))
        kinds = int(rng.integers(1, 5))
        epoch = sum(shards.values())
        arrivals = [
            (
                float(rng.uniform(0, 200)) * int(rng.integers(0, 2)),
                {"m": int(rng.integers(0, kinds))},
                float(epoch * int(rng.integers(1, 6))),
            )
            for _ in range(trials)
        ]
        return Load(shards, slots, table(rng, kinds, count, hop), Trace(arrivals, widths=wide))
    kinds = int(rng.integers(1, 5))
    space = {"m": choice(list(range(kinds)))}
    concurrent = name == "hyperband"
    searcher = Hyperband(space, 9, 3, "accuracy", "max", concurrent=concurrent, widths=wide)
    return Load(shards, slots, table(rng, kinds, count, hop), searcher)


def rows(draws: int) -> Iterator[dict[str, Any]]:
    for name in ("equal", "unlike", "hyperband", "hyperband, brackets in turn"):
        for learnt in (False, True):
            ratios = []
            for seed in range(draws):
                load = load_of(name, seed)
                plain = load.makespan(Hop(), learnt)
                ratios.append(load.makespan(Hybrid(), learnt) / plain)
            yield {
                "load": name,
                "speeds": "learnt" if learnt else "told",
                "draws": draws,
                "mean": mean(ratios),
                "best": min(ratios),
                "worst": max(ratios),
                "slower": sum(ratio > ALLOWED for ratio in ratios),
                "worst_draw": int(np.argmax(ratios)),
            }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=20)
    args = parser.parse_args()
    found = list(rows(args.draws))
    ratios = {
        "hybrid_over_hop": mean(row["mean"] for row in found),
        "hybrid_over_hop_worst": max(row["worst"] for row in found),
    }
    write("hybrid", found, ratios)


if __name__ == "__main__":
    main()
