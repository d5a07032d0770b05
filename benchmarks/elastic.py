"""Deciding who gets how many nodes: Shoal's allocator against the paper's program, and against
the same over counts.

`python benchmarks/elastic.py [--short]`. HiGHS (through SciPy) solves both programs; the
node-level one has 60 s, and counts as 60 s where it needs more; all else is the quickest of
three goes. `decision`: a whole one of the policy, its inputs and its plan included.
"""

import sys
from collections.abc import Callable
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
from common import write

from shoal.core.cluster import Slot, SlotId
from shoal.core.event import Joined, Left, Planned, Submitted
from shoal.core.fold import fold
from shoal.core.state import State, view
from shoal.core.trial import Trial, TrialId
from shoal.policy.elastic.elastic import Elastic
from shoal.policy.elastic.knapsack import best_counts, best_counts_dp
from shoal.policy.elastic.table import gains, value
from shoal.policy.reference.milp import Effort, count_milp, first_map, node_milp
from shoal.profile.table import Row, Table

WIDTHS = [0, 1, 2, 4, 8, 16, 32, 64]
SPEEDS = [  # BFTrainer Table 2, thousands of samples/s
    [7.1, 13.1, 21.1, 40.5, 74.0, 130.8, 202.1],
    [5.2, 10.6, 20.4, 39.6, 78.0, 144.8, 262.7],
    [3.2, 6.0, 11.5, 23.1, 43.9, 83.5, 160.5],
    [3.0, 5.9, 11.4, 22.0, 42.5, 82.3, 155.2],
    [2.8, 5.3, 10.0, 20.4, 38.9, 74.1, 145.1],
    [1.2, 2.4, 4.7, 9.3, 18.3, 36.2, 70.2],
    [1.0, 2.0, 3.8, 7.6, 15.0, 28.8, 57.8],
]
HORIZON, LIMIT = 120.0, 60.0


def curves(trials: int) -> np.ndarray:
    rows = [np.interp(np.arange(65), WIDTHS, [0.0, *SPEEDS[j % 7]]) * 1000.0 for j in range(trials)]
    return np.array(rows)


def instances(trials: int, nodes: int, count: int, seed: int = 0) -> list[tuple[np.ndarray, ...]]:
    """What trials hold: at random, and after an event that took or brought some nodes."""
    rng = np.random.default_rng(seed)
    up, down = rng.uniform(10.0, 20.0, trials), rng.uniform(8.0, 14.0, trials)
    found, curve = [], curves(trials)
    held = np.zeros(trials, np.int64)
    for k in range(count):
        if k % 2 == 0:
            held = rng.integers(0, 65, trials)
            while held.sum() > nodes:
                held[rng.integers(trials)] = 0
        else:
            held = best_counts(gains(curve, held, up, down, HORIZON), nodes)
            for _ in range(nodes // 50):
                held[rng.choice(np.flatnonzero(held))] -= 1
        found.append((curve, held.copy(), up, down))
    return found


def quickest(call: Callable[[], Any], goes: int = 3) -> tuple[float, Any]:
    """Seconds, and what it gives; on a busy machine only the quickest go says something of the
    code.
    """
    best = float("inf")
    for _ in range(goes):
        begin = perf_counter()
        found = call()
        best = min(best, perf_counter() - begin)
    return best, found


def solver(trials: int, nodes: int, programs: int, short: bool) -> dict[str, object]:
    listed = instances(trials, nodes, 40)
    ours, dp, count, node, same, solved = [], [], [], [], True, 0
    for k, (curve, held, up, down) in enumerate(listed):
        table = gains(curve, held, up, down, HORIZON)
        took, counts = quickest(lambda table=table: best_counts(table, nodes))
        ours.append(took)
        best = value(table, counts)
        if k < 2:
            took, counts = quickest(lambda table=table: best_counts_dp(table, nodes), 1)
            dp.append(took)
            same &= abs(value(table, counts) - best) <= 1e-9 * best
            took, found = quickest(
                lambda c=curve, h=held, up=up, down=down: count_milp(
                    c, h, up, down, HORIZON, nodes, Effort(limit=LIMIT)
                ),
                1,
            )
            count.append(took)
            same &= not found.optimal or abs(found.objective - best) <= 1e-6 * best
        if k < programs:
            begin = perf_counter()
            found = node_milp(
                curve,
                first_map(held, nodes),
                up,
                down,
                HORIZON,
                Effort(limit=10.0 if short else LIMIT),
            )
            node.append(
                perf_counter() - begin if found.optimal else max(LIMIT, perf_counter() - begin)
            )
            solved += found.optimal
            same &= not found.optimal or abs(found.objective - best) <= 1e-6 * best
            same &= found.objective <= best * (1 + 1e-6)
    return {
        "trials": trials,
        "nodes": nodes,
        "shoal_ms": 1e3 * median(ours),
        "shoal_max_ms": 1e3 * max(ours),
        "dp_ms": 1e3 * median(dp),
        "count_milp_ms": 1e3 * median(count),
        "node_milp_s": median(node) if node else None,
        "node_milp_solved": f"{solved} of {len(node)}",
        "same_optimum": bool(same),
    }


def decision(trials: int, nodes: int, placement: str) -> float:
    """Milliseconds of a decision after an event, with its inputs: the median of twenty."""
    slots = [
        Slot(SlotId(f"a{i // 18:03d}n{i % 18:02d}"), f"a{i // 18:03d}n{i % 18:02d}")
        for i in range(nodes)
    ]
    made = [Trial(TrialId(f"t{i:03d}"), 1e9, {"kind": i % 7}, (1, 64)) for i in range(trials)]
    rows = tuple(Row(tuple(curves(7)[k][1:]), {"kind": k}, up=18.0, down=12.0) for k in range(7))
    state = fold(State(), [Joined(tuple(slots)), *map(Submitted, made)])
    profile, rule = Table(rows).of(state.known), Elastic(placement=placement)  # type: ignore[arg-type]
    rng, took = np.random.default_rng(0), []
    away = np.zeros(0, np.int64)
    for k in range(21):
        look = view(state, float(k), profile)
        spent, (plan, _) = quickest(lambda look=look: rule.decide(look, {}), 5)
        took.append(spent)
        now = state.plan.gangs
        state = fold(state, [Planned(tuple(now - plan.gangs), tuple(plan.gangs - now))])
        gone = rng.choice(nodes, 20, replace=False)
        state = fold(
            state,
            [
                Left(frozenset(slots[i].id for i in gone)),
                *([Joined(tuple(slots[i] for i in gone))] if k % 2 else []),
            ],
        )
        if not k % 2:
            away = gone
        else:
            state = fold(state, [Joined(tuple(slots[i] for i in away))])
    return 1e3 * median(took[1:])


def main(short: bool) -> None:
    sizes = [
        (10, 100, 2),
        (20, 400, 1),
        (50, 800, 0 if short else 2),
        (100, 2000, 0),
        (200, 10000, 0),
    ]
    rows = [solver(trials, nodes, programs, short) for trials, nodes, programs in sizes]
    big, last = rows[2], rows[-1]
    ratios: dict[str, object] = {
        "count_milp_over_elastic": min(r["count_milp_ms"] / r["shoal_ms"] for r in rows),  # type: ignore[operator]
        "solver_ms_200x10000": last["shoal_ms"],
        "decision_ms_200x10000": decision(200, 10000, "index"),
        "decision_spatial_ms_200x10000": decision(200, 10000, "spatial"),
        "same_optimum": all(r["same_optimum"] for r in rows),
    }
    if big["node_milp_s"] is not None:
        ratios["milp_over_elastic"] = 1e3 * big["node_milp_s"] / big["shoal_ms"]  # type: ignore[operator]
    write("elastic-short" if short else "elastic", rows, ratios)


if __name__ == "__main__":
    main("--short" in sys.argv)
