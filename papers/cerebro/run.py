"""Nakandala et al. 2020: its scheduling simulations again, and better schedules. `python
papers/cerebro/run.py [--short]`.
"""

import sys
import tomllib
from collections.abc import Callable, Iterator
from itertools import product
from math import inf
from pathlib import Path
from time import process_time
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

import numpy as np  # noqa: E402
from common import write  # noqa: E402
from hops import SIZE, Outcome, simulate, slot_name  # noqa: E402
from reference import milp, vector_rearrangement  # noqa: E402
from rules import by_lot  # noqa: E402
from workload import FLOPS, Cell, cell  # noqa: E402

from shoal.core.cluster import ShardId, Slot, proportional  # noqa: E402
from shoal.core.event import Joined, Left  # noqa: E402
from shoal.policy.fifo import Fifo  # noqa: E402
from shoal.policy.hop.hop import Hop  # noqa: E402
from shoal.policy.hop.hybrid import division  # noqa: E402
from shoal.policy.hop.rotation import spread  # noqa: E402
from shoal.policy.hop.schedules import (  # noqa: E402
    bound,
    most_left,
    quick4,
    replica_shares,
)
from shoal.policy.hop.shop import Shop, check_schedule, dispatch  # noqa: E402
from shoal.policy.reference.baselines import Fixed  # noqa: E402
from shoal.search.batch import trial_id  # noqa: E402
from shoal.search.halving import Hyperband  # noqa: E402
from shoal.search.space import randint  # noqa: E402

Rows = list[dict[str, Any]]
Goal = dict[str, Any]
CELLS = [
    (alike, trials, slots) for alike in (True, False) for trials in (16, 256) for slots in (8, 16)
]


MILP_SECONDS = 20.0  # ours; the paper gave Gurobi five minutes
MILP = f"MILP, {MILP_SECONDS:g} s of HiGHS"
CONSTRUCTED = "true by construction"


def kind(alike: bool) -> str:
    return "homogeneous" if alike else "heterogeneous"


def timed(make: Callable[[], Any]) -> tuple[Any, float]:
    began = process_time()
    return make(), process_time() - began


def figure6(seeds: range, short: bool) -> tuple[Rows, Goal]:
    """A-1: the paper's eight cells, and a sweep over the number of trials."""
    rows, worst, slowest = [], 0.0, 0.0
    for alike, trials, slots in CELLS:
        found: dict[str, list[float]] = {
            name: []
            for name in ("random", "LRW", "vector rearrangement", MILP, "quick4", "seconds")
        }
        for seed in seeds:
            here = cell(trials, slots, seed, alike)
            shop, least = Shop.open(here.times), bound(here.times)
            planned, seconds = timed(lambda here=here: quick4(here.times))
            check_schedule(planned.schedule, shop)
            found["quick4"].append(planned.schedule.makespan / least)
            found["seconds"].append(seconds)
            found["random"] += [
                dispatch(shop, by_lot(s)).makespan / least
                for s in (seeds if trials < 100 else seeds[:1])
            ]
            found["LRW"].append(dispatch(shop, most_left).makespan / least)
            if seed == 0 or trials < 100:
                found["vector rearrangement"].append(
                    vector_rearrangement(here.times).schedule.makespan / least
                )
            if seed == 0 and trials < 100 and not short:
                makespan = milp(here.times, None, MILP_SECONDS).found
                found[MILP].append(makespan / least)
        worst, slowest = (
            max(worst, *found["quick4"]),
            max(slowest, float(np.median(found["seconds"]))),
        )
        means: dict[str, Any] = {
            name: float(np.mean(values)) if values else None for name, values in found.items()
        }
        if means[MILP] == inf:
            means[MILP] = "none found"
        rows.append(
            {
                "what": f"Figure 6, {kind(alike)}, {trials} trials, {slots} "
                "slots, makespan / bound",
                **means,
                "random, worst": max(found["random"]),
            }
        )
    for alike, trials in product(
        (True, False), (8, 16, 64) if short else (8, 9, 10, 12, 16, 24, 32, 48, 64, 128)
    ):
        ratios = []
        for seed in seeds:
            here = cell(trials, 8, seed, alike)
            ratios.append(quick4(here.times).schedule.makespan / bound(here.times))
        worst = max(worst, *ratios)
        rows.append(
            {
                "what": f"sweep, {kind(alike)}, {trials} trials, 8 slots",
                "quick4": float(np.mean(ratios)),
                "worst": max(ratios),
            }
        )
    text = (
        "quick4: largest makespan / bound (<= 1.001); slowest cell to plan "
        f"{slowest:.2f} s (<= 1 s)"
    )
    return rows, {"figure": worst, "holds": worst <= 1.001 and slowest <= 1.0, "text": text}


def online(seeds: range, short: bool) -> tuple[Rows, Goal]:
    """A-2: times that nobody foresaw, through the engine."""
    rows, every, thought = [], [], []
    shapes = (
        [(12, 8), (16, 8)]
        if short
        else [(12, 8), (16, 8), (24, 8), (32, 8), (24, 16), (32, 16), (64, 16)]
    )
    for alike, (trials, slots), noise in product((True, False), shapes, (0.1, 0.3)):
        found: dict[str, list[float]] = {"lrw": [], "random": [], "rotation": [], "quick4": []}
        for seed in seeds:
            here = cell(trials, slots, seed, alike)
            for rule, values in found.items():
                values.append(_against_truth(rule, here, noise, seed, thought))
        rows.append(
            {
                "what": f"noise {noise:.0%}, {kind(alike)}, {trials} x {slots}",
                **{k: float(np.mean(v)) for k, v in found.items()},
            }
        )
        every += found["lrw"]
    millis = 1e3 * float(np.median(thought))
    text = (
        "LRW online, noise of 10 and 30 %, trials >= 1.5 slots: mean makespan "
        f"/ bound (<= 1.02); decision {millis:.2f} ms (<= 1)"
    )
    return rows, {
        "figure": float(np.mean(every)),
        "holds": bool(np.mean(every) <= 1.02 and millis <= 1.0),
        "text": text,
    }


def _against_truth(rule: Any, here: Cell, noise: float, seed: int, thought: list[float]) -> float:
    """Makespan against the bound of the times that really passed."""
    outcome = simulate(Hop(rule, seed), here, noise=noise, seed=seed)
    if rule == "lrw":
        thought += outcome.thought
    return outcome.makespan / bound(actual(here, noise, seed))


def actual(here: Cell, noise: float, seed: int) -> list[list[float]]:
    """The times that pass in `simulate` with that noise."""
    from noisy import Noisy

    from shoal.core.plan import solo
    from shoal.core.trial import Trial, TrialId
    from shoal.profile.table import Row, Table

    names = [trial_id(i, len(here.flops)) for i in range(len(here.flops))]
    known = {TrialId(n): Trial(n, 1, {"m": i}) for i, n in enumerate(names)}
    speeds = {slot_name(w): s for w, s in enumerate(here.speeds)}
    truth = Noisy(
        Table([Row((SIZE / f,), {"m": i}) for i, f in enumerate(here.flops)], speeds).of(known),
        noise,
        seed,
    )
    slots = range(len(here.speeds))
    return [
        [SIZE / truth.rates(solo(n, slot_name(w), 0, ShardId(f"s{w:02d}")))[n] for w in slots]
        for n in names
    ]


def replicas(seeds: range, short: bool) -> tuple[Rows, Goal]:
    """A-3: two and three copies of each shard, heterogeneous slots, through the engine.

    "learnt": the policy knows no times but those that the run itself has measured.
    """
    rows, few, many, gains = [], [], [], []
    for trials, slots in (
        [(16, 8), (64, 16)] if short else [(16, 8), (16, 16), (64, 16), (256, 8), (256, 16)]
    ):
        cells = [_copies(trials, slots, copies, seeds) for copies in (2, 3)]
        rows += cells
        (many if trials >= 64 else few).extend(row["quick4"] for row in cells)
        gains.append(float(np.mean([row["random / quick4"] for row in cells])))
    holds = max(many) <= 1.02 and max(few) <= 1.08 and min(gains) >= 1.12
    spans = f"64 trials or more {max(many):.3f} (<= 1.02), 16 {max(few):.3f} (<= 1.08)"
    text = (
        "least gain of quick4 over the paper's rule, 2 and 3 copies (>= "
        f"1.12); its makespan / bound: {spans}"
    )
    return rows, {"figure": min(gains), "holds": holds, "text": text}


def _copies(trials: int, slots: int, copies: int, seeds: range) -> dict[str, Any]:
    ways = [("quick4", False), ("lrw", False), ("random", False)]
    if trials <= 64:
        ways += [("quick4", True), ("lrw", True)]
    found: dict[str, list[float]] = {}
    for seed in seeds:
        here = cell(trials, slots, seed, copies=copies)
        least, _ = replica_shares(Shop(here.seconds))
        for rule, learnt in ways:
            policy = Hop(rule, seed)  # type: ignore[arg-type]
            makespan = simulate(policy, here, learnt=learnt).makespan
            name = f"{rule}, learnt" if learnt else rule
            found.setdefault(name, []).append(makespan / least)
    means = {name: float(np.mean(values)) for name, values in found.items()}
    what = {"what": f"{copies} copies, {trials} x {slots}, makespan / bound", **means}
    return {
        **what,
        "quick4, worst": max(found["quick4"]),
        "random / quick4": means["random"] / means["quick4"],
    }


RULES = {
    "random, barrier": Hop("random", barrier=True),
    "random": Hop("random"),
    "LRW, barrier": Hop("lrw", barrier=True),
    "LRW": Hop("lrw"),
    "early": Hop("early"),
    "quick4": Hop("quick4"),
}


def barrier(seeds: range, short: bool) -> tuple[Rows, Goal]:
    """A-4: five epochs with and without a barrier between them, through the engine."""
    rows, spans, means = [], [], []
    shapes = [(False, 8, 8), (False, 16, 16)]
    if not short:
        shapes += [(False, 16, 8), (False, 64, 16), (True, 8, 8), (True, 16, 16), (True, 16, 8)]
    for alike, trials, slots in shapes:
        found: dict[str, list[float]] = {}
        for seed in seeds:
            here = cell(trials, slots, seed, alike)
            least = 5 * bound(here.times)
            for name in ("LRW, barrier", "LRW", "early") if short else RULES:
                outcome = simulate(RULES[name], here, 5)
                found.setdefault(name, []).append(outcome.makespan / least)
                found.setdefault(f"{name}, mean end", []).append(outcome.mean_end / least)
        average = {name: float(np.mean(values)) for name, values in found.items()}
        ratio = average["early, mean end"] / average["LRW, barrier, mean end"]
        rows.append(
            {
                "what": f"5 epochs, {kind(alike)}, {trials} x {slots}, of the bound",
                **average,
                "early / barrier, mean end": ratio,
            }
        )
        if not alike and trials == slots:
            spans.append(average["early"])
            means.append(ratio)
    span = f"makespan / bound {max(spans):.3f} (<= 1.03)"
    text = f"early, heterogeneous, trials = slots: mean completion of barrier's (<= .65); {span}"
    return rows, {
        "figure": max(means),
        "holds": max(spans) <= 1.03 and max(means) <= 0.65,
        "text": text,
    }


def levers(seeds: range, short: bool) -> tuple[Rows, Goal]:
    """A-5: shards as large as slots are fast, and groups of slots where trials are few."""
    rows, gains = [], []
    for trials, slots in [(16, 8), (64, 8), (64, 16)] + (
        [] if short else [(16, 16), (256, 8), (256, 16)]
    ):
        ratios = []
        for seed in seeds:
            here = cell(trials, slots, seed)
            sizes = proportional(SIZE * slots, here.speeds)
            equal, even = (simulate(Hop("lrw"), here, sizes=s).makespan for s in (None, sizes))
            ratios.append(equal / even)
        rows.append(
            {
                "what": f"proportional shards, {trials} x {slots}, epoch of equal "
                "shards / of these",
                "ratio": float(np.mean(ratios)),
            }
        )
        if trials >= 64:
            gains.append(float(np.mean(ratios)))
    best = max(_hybrid(rows, rho) for rho in (0.05, 0.25, 1.0))
    holds = float(np.mean(gains)) >= 1.7 and best <= 1.0
    text = (
        "mean gain of proportional shards, 64 trials or more (>= 1.7), which is the mean speed of "
        "the slots over the slowest one's; hybrid / better of the two, at worst "
        f"{best:.3f} (<= 1), "
        f"for it may choose either: both {CONSTRUCTED}"
    )
    return rows, {"figure": float(np.mean(gains)), "holds": holds, "text": text}


def _hybrid(rows: Rows, rho: float) -> float:
    """Figure 17's three ways, on 8 slots; the worst of the hybrid against the better of the
    other two.
    """

    def efficiency(width: int) -> float:
        return 1 / (1 + rho * 2 * (width - 1) / width)

    worst = 0.0
    for trials in range(1, 9):
        speeds = [lambda width: width * efficiency(width)] * trials
        count, takes = division(lambda _, each=[8.0] * trials: each, speeds, 8)
        hopping, parallel = 8.0, trials / efficiency(8)
        paper = hopping if trials > 4 else parallel
        worst = max(worst, takes / min(hopping, parallel))
        ways = {
            "groups": count,
            "ours": takes,
            "hopping": hopping,
            "data-parallel": parallel,
            "paper's rule / ours": paper / takes,
            "note": CONSTRUCTED,
        }
        rows.append(
            {"what": f"Figure 17, {trials} trials on 8 slots, communication {rho:g}", **ways}
        )
    return worst


def others(expected: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Table 7's moments, stragglers (Figures 5, 14, 15), scaling and failures (Figure 8),
    Hyperband (Figures 18, 19).
    """
    flops = list(FLOPS.values())
    for name, ours in (("mean", np.mean(flops)), ("deviation", np.std(flops))):
        yield {
            "what": f"Table 7, {name}, MFLOP",
            "paper": expected["table7"][name],
            "ours": float(ours),
        }
    yield from _stragglers()
    one = simulate(Hop(), cell(8, 1, alike=True), 5, sizes=[8 * SIZE]).makespan
    for slots in (2, 4, 8):
        several = simulate(
            Hop(), cell(8, slots, alike=True), 5, sizes=[8 * SIZE // slots] * slots
        ).makespan
        yield {
            "what": f"Figure 8 (A), speed-up on {slots} slots",
            "paper": "linear",
            "ours": one / several,
            "note": f"{CONSTRUCTED}: like slots, and hops cost nothing here",
        }
    yield from _failures()
    yield from _hyperband(expected)


def _stragglers() -> Iterator[dict[str, Any]]:
    """Whole trials as they come, whole trials in the best order, and hops: 24 networks on 8
    like slots, 5 draws.
    """
    found: dict[str, list[float]] = {
        "task-parallel, as they come": [],
        "task-parallel, best list": [],
        "hop": [],
    }
    for seed in range(5):
        here = Cell(cell(24, 8, seed).flops, (11.3,) * 8, tuple((q,) for q in range(8)))
        whole = [8 * flops / 11.3 for flops in here.flops]
        seats = spread(whole, 8)
        order = sorted(range(24), key=lambda i: -whole[i])
        listed = Fixed({trial_id(i, 24): slot_name(seats[i]) for i in order})
        everywhere = Cell(here.flops, here.speeds, (tuple(range(8)),) * 8)
        least = max(sum(whole) / 8, *whole)
        for values, policy, at in zip(
            found.values(),
            (Fifo(), listed, Hop("quick4")),
            (everywhere, everywhere, here),
            strict=True,
        ):
            values.append(simulate(policy, at).makespan / least)
    for name, values in found.items():
        row = {
            "what": f"Figures 5, 14, 15 in kind: {name}, makespan / bound",
            "ours": float(np.mean(values)),
            "worst": max(values),
        }
        yield row


def _failures() -> Iterator[dict[str, Any]]:
    here = cell(8, 8, alike=True, copies=3)
    calm = simulate(Hop("quick4"), here, 5)
    away = [slot_name(2), slot_name(5)]
    epoch = calm.makespan / 5
    back = tuple(
        Slot(
            s,
            shards=frozenset(
                ShardId(f"s{q:02d}") for q, at in enumerate(here.holders) if int(s[1:]) in at
            ),
        )
        for s in away
    )
    script = [(1.2 * epoch, Left(frozenset(away), died=True)), (3.0 * epoch, Joined(back))]
    hit: Outcome = simulate(Hop("quick4"), here, 5, script=script)
    done = all(
        len(v) == 40 and how == "finished"
        for v, how in zip(hit.state.visits.values(), hit.state.ended.values(), strict=True)
    )
    yield {
        "what": "Figure 8 (B), two of 8 slots fail and return, 3 copies: run / undisturbed run",
        "all visits made": done,
        "ours": hit.makespan / calm.makespan,
    }


def _hyperband(expected: dict[str, Any]) -> Iterator[dict[str, Any]]:
    here = cell(54, 8, alike=True)
    everywhere = Cell(here.flops, here.speeds, tuple(tuple(range(8)) for _ in range(8)))
    space = {"m": randint(0, 54)}
    spans = {}
    for name, policy, at, concurrent in (
        ("fifo", Fifo(), everywhere, False),
        ("hop", Hop("lrw"), here, False),
        ("hop, brackets at once", Hop("lrw"), here, True),
    ):
        searcher = Hyperband(space, 25, 3, "accuracy", "max", concurrent=concurrent)
        spans[name] = simulate(policy, at, searcher=searcher).makespan
    hours = expected["hyperband"]["hours"]
    yield {
        "what": "Figure 19, Hyperband: hopping / task-parallel",
        "paper": hours[1] / hours[0],
        "ours": spans["hop"] / spans["fifo"],
    }
    yield {
        "what": "the same, brackets at once",
        "ours": spans["hop, brackets at once"] / spans["fifo"],
    }


SEEDS = {
    "A-1": (5, 2),
    "A-2": (3, 2),
    "A-3": (5, 2),
    "A-4": (5, 5),
    "A-5": (5, 2),
}  # in full, and in the short form


def main(short: bool) -> bool:
    expected = tomllib.loads((HERE / "expected.toml").read_text())
    rows: Rows = []
    goals: dict[str, Goal] = {}
    parts = {"A-1": figure6, "A-2": online, "A-3": replicas, "A-4": barrier, "A-5": levers}
    for name, part in parts.items():
        found, goals[name] = part(range(SEEDS[name][short]), short)
        rows += found
    rows += others(expected)
    if not short:
        rows += [
            {"what": f"{name}, on record", "expected": f, "ours": goals[name]["figure"]}
            for name, f in expected["ours"].items()
        ]
    return write("cerebro-short" if short else "cerebro", rows, goals)


if __name__ == "__main__":
    sys.exit(0 if main("--short" in sys.argv[1:]) else 1)
