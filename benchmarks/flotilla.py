"""An ensemble of unequal models on four slots: FLEET's flotillas and water-fill against rounds
and one slot for each model.

Guan et al. 2020, section 6: eight models of unlike pace, each trained until it has converged,
over one preprocessing stream (a feeder makes each chunk once for all slots). "random": a slot for
each model, the next one when a slot is free; "rounds": as many models as slots, then the next
ones (Pittman et al., SC'18); "flotilla": local and global, which measure the models first;
"waterfill": ours. No policy is told how fast a model is, nor when it converges. Real slots of the
`ray` backend, real gradients, losses and scores, device time emulated (`emulated.py`). All ways by
turns, several rounds: ratios are of one round's runs, and their medians are given with the least
and the greatest.

With --nets: eight real CNNs on images (`flotilla_nets.py`), on slots that share this machine's
cores; each way with one stream for all ("shared": a feeder makes each chunk once), and with a
preprocessor for each model ("own"), so that what sharing gains is told apart from what widths gain.

    # FOLDER gets each study with its report
    python benchmarks/flotilla.py [--nets] [--quick] [--rounds 3] [--keep FOLDER]
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import flotilla_nets
import numpy as np
import torch
from emulated import BATCH, SAMPLES, Emulated, Found, own_process, times
from torch import nn

SLOTS, MODELS, SEED = 4, 8, 3
EPOCHS, PATIENCE = 12, 2  # at most, and without a better score
WAYS = ("random", "rounds", "flotilla local", "flotilla global", "waterfill")
NETS = ("random, own", "random, shared", "flotilla, own", "flotilla, shared", "waterfill, shared")
VISITS = 2  # that each of the nets makes, to a shard each


def ensemble(quick: bool) -> Any:
    """Paces as unlike as those of FLEET's models (20 to 176 images/s). Each model leaves when it
    has converged.
    """
    from shoal.search import Trace
    from shoal.search.stopping import Patience

    rng = np.random.default_rng(SEED)
    given = []
    for i in range(MODELS):
        slow = float(np.exp(rng.uniform(0.0, np.log(8.0))))
        lr = float(np.exp(rng.uniform(np.log(0.1), np.log(1.0))))
        config = {"model": i, "fixed": 20.0, "per_sample": round(2.5 * slow, 2)}
        config["lr"] = round(lr, 4)
        epochs = 2 if quick else EPOCHS
        given.append((0.0, config, float(SAMPLES * epochs)))
    return Patience(Trace(given, widths=(1, SLOTS)), PATIENCE, metric="accuracy", mode="max")


class Converging(Emulated):
    """Its models get no better after some epochs: at noisy labels there is an end to that."""

    def data(self) -> Any:
        import shoal

        rng = np.random.default_rng(0)
        x = rng.normal(size=(self.samples + 1000, 64)).astype(np.float32)
        y = x.sum(1) + rng.normal(scale=4.0, size=len(x)) > 0
        data = shoal.Data.arrays(
            x[:-1000],
            y[:-1000].astype(np.int64),
            validation=(x[-1000:], y[-1000:].astype(np.int64)),
        )
        data.chunk = 2 * BATCH
        return data

    def configure_optimizers(self, model: Any, config: Mapping[str, Any]) -> Any:
        model.emulated = (float(config["fixed"]), float(config["per_sample"]))
        return torch.optim.SGD(model.parameters(), lr=config["lr"])

    def validation_step(self, model: Any, batch: Any) -> Any:
        x, y = batch
        scores = model(x)
        right = (scores.argmax(1) == y).float().mean()
        return {"loss": nn.functional.cross_entropy(scores, y), "accuracy": right}


@dataclass
class Timed:
    """A policy, and the seconds that its decisions take: by the clock, and of the processor."""

    inner: Any
    spent: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)

    def start(self) -> Any:
        return self.inner.start()

    def decide(self, view: Any, memory: Any) -> Any:
        begin, before = time.perf_counter(), time.thread_time()
        made = self.inner.decide(view, memory)
        self.processor.append(time.thread_time() - before)
        self.spent.append(time.perf_counter() - begin)
        return made


def policy(way: str) -> Any:
    from shoal.policy import Fifo
    from shoal.policy.reference.baselines import Rounds
    from shoal.policy.width.flotilla import Flotilla
    from shoal.policy.width.waterfill import WaterFill

    way = way.partition(",")[0]
    if way.startswith("flotilla"):
        return Flotilla("local" if way.endswith("local") else "global")
    return {"random": Fifo, "rounds": lambda: Rounds(SEED), "waterfill": WaterFill}[way]()


def nets(quick: bool) -> Any:
    """Each of the nets makes a few visits."""
    from shoal.search import Trace

    visits = 1 if quick else VISITS
    given = [
        (0.0, config, float(visits * flotilla_nets.SHARD))
        for config in flotilla_nets.block_sizes(MODELS, SEED)
    ]
    return Trace(given, widths=(1, SLOTS))


def run(way: str, folder: Path, quick: bool, keep: Path | None, images: Path | None) -> Found:
    """One study; of nets, if there are images."""
    import shoal
    from shoal import reporting
    from shoal.core.event import Fed
    from shoal.reporting.accounting import OverheadTally

    searcher, rule = ensemble(quick), Timed(policy(way))
    recipe: Any = Converging(prepare_ms=0.5)
    if images is not None:
        searcher, recipe = nets(quick), flotilla_nets.Nets(images)
    study = shoal.create_study(recipe, storage=folder / "study")
    study.optimize(
        searcher,
        rule,
        backend="ray",
        slots=SLOTS,
        feeders=0 if way.endswith("own") else 1,
        progress=False,
    )
    if keep is not None:
        study.report()
        shutil.copytree(
            folder / "study", keep / way.replace(",", "").replace(" ", "-"), dirs_exist_ok=True
        )
    lines = study.lines()
    told = reporting.account(lines)
    tally = OverheadTally(forms=True)
    for line in lines:
        tally.take(line.time, line.entry)
    found = times(lines)
    fed = {entry.node: entry.figures for _, entry in lines if isinstance(entry, Fed)}
    there, waiting = (
        sum(told.used.values()),
        told.used.get("idle", 0.0) + told.used.get("other", 0.0),
    )
    return found | {
        "idle_share": told.used.get("idle", 0.0) / there,
        "waiting_share": waiting / there,  # without work, or for the others of a round
        "save_s": told.used.get("save", 0.0),
        "deciding_s": sum(rule.spent),
        "deciding_cpu_s": sum(rule.processor),
        "decisions": len(rule.spent),
        "flotillas": [each._asdict() for each in tally.so_far().formed],
        "samples": told.trained,
        "chunks": {
            name: sum(each.get(name, 0.0) for each in fed.values()) for name in ("made", "served")
        },
    }


def all_rounds(ways: Sequence[str], args: argparse.Namespace, *more: str) -> dict[str, list[Found]]:
    """The runs of each way, round by round; each round in the other order."""
    runs: dict[str, list[Found]] = {way: [] for way in ways}
    more += ("--quick",) if args.quick else ()
    more += ("--keep", str(args.keep.resolve())) if args.keep else ()
    for number in range(args.rounds):
        for way in ways if number % 2 == 0 else ways[::-1]:
            found = own_process(__file__, way, *more)
            runs[way].append(found)
            print(
                f"{way:17} {found['makespan_s']:7.1f} s, slots wait "
                f"{100 * found['waiting_share']:.0f} %",
                flush=True,
            )
    return runs


def spread(ratios: Sequence[float]) -> list[float]:
    """The least and the greatest."""
    return [min(ratios), max(ratios)]


def row(way: str, runs: Sequence[Found]) -> dict[str, Any]:
    """The medians of a way's runs."""

    def middle(pick: Callable[[Found], float]) -> float:
        return median(pick(found) for found in runs)

    return {
        "way": way,
        "finished": min(found["finished"] for found in runs),
        "makespan_s": middle(lambda found: found["makespan_s"]),
        "mean_completion_s": middle(lambda found: found["mean_completion_s"]),
        "idle_share": middle(lambda found: found["idle_share"]),
        "waiting_per_slot_s": middle(lambda found: found["waiting_share"] * found["makespan_s"]),
        "decisions": middle(lambda found: found["decisions"]),
        "deciding_share": middle(lambda found: found["deciding_s"] / found["makespan_s"]),
        "deciding_cpu_share": middle(lambda found: found["deciding_cpu_s"] / found["makespan_s"]),
        "saving_share": middle(lambda found: found["save_s"] / (SLOTS * found["makespan_s"])),
    }


def compare(args: argparse.Namespace) -> None:
    """The emulated ensemble."""
    from common import write

    begin = time.perf_counter()
    runs = all_rounds(WAYS, args)
    rows = [row(way, runs[way]) for way in WAYS]
    took = [{way: runs[way][k]["makespan_s"] for way in WAYS} for k in range(args.rounds)]
    ratios: dict[str, Any] = {}

    def note(name: str, each: Sequence[float]) -> None:
        ratios[name] = median(each)
        ratios[f"{name}_spread"] = spread(each)

    for base in WAYS[:2]:
        for way in WAYS[2:]:
            name = f"{base}_over_{way.replace(' ', '_')}"
            ratios[name] = median(at[base] / at[way] for at in took)
    # What no schedule beats: a lane takes the least of its slots' time while it has only one.
    bounds = [bound([runs[way][k]["flotillas"] for way in WAYS[:2]]) for k in range(args.rounds)]
    others = [min(at[way] for way in WAYS[:-1]) for at in took]
    ratios["bound_s"] = median(bounds)
    note("best_other_over_bound", [a / b for a, b in zip(others, bounds, strict=True)])
    note("waterfill_over_bound", [at["waterfill"] / b for at, b in zip(took, bounds, strict=True)])
    # FLEET-G against the rounds of SC'18 (in the paper 1.23 to 1.97), ours against all of theirs
    note("rounds_over_flotilla", [at["rounds"] / at["flotilla global"] for at in took])
    ratios["rounds_over_flotilla_goal"] = 1.5
    note(
        "best_other_over_waterfill",
        [other / at["waterfill"] for other, at in zip(others, took, strict=True)],
    )
    ratios["best_other_over_waterfill_goal"] = 1.15
    ratios["deciding_share"] = max(row["deciding_share"] for row in rows)
    ratios["deciding_cpu_share"] = max(row["deciding_cpu_share"] for row in rows)
    ratios["deciding_share_goal"] = 0.005
    ratios["run_lengths"] = {way: lengths(runs[way][0]["flotillas"]) for way in WAYS}
    ratios["minutes"] = (time.perf_counter() - begin) / 60
    write("flotilla" + ("-quick" if args.quick else ""), rows, ratios)


def compare_nets(args: argparse.Namespace) -> None:
    """The real ensemble. Sharing gains own over shared, widths gain random over flotillas."""
    from common import write

    with tempfile.TemporaryDirectory() as folder:
        images = Path(folder)
        flotilla_nets.make_images(images, 2 if args.quick else flotilla_nets.SHARDS)
        alone = flotilla_nets.seconds_alone(images, MODELS, SEED)
        runs = all_rounds(NETS, args, "--images", folder)
        size = (images / "images.npy").stat().st_size
    rows = [
        row(way, runs[way])
        | {"chunks_made": median(found["chunks"]["made"] for found in runs[way])}
        for way in NETS
    ]
    pairs = {
        "sharing_at_random": ("random, own", "random, shared"),
        "sharing_in_flotillas": ("flotilla, own", "flotilla, shared"),
        "widths_own": ("random, own", "flotilla, own"),
        "widths_shared": ("random, shared", "flotilla, shared"),
        "waterfill_over_flotilla": ("flotilla, shared", "waterfill, shared"),
        "both": ("random, own", "flotilla, shared"),
    }
    ratios: dict[str, Any] = {}
    for name, (base, way) in pairs.items():
        each = [
            a["makespan_s"] / b["makespan_s"] for a, b in zip(runs[base], runs[way], strict=True)
        ]
        ratios[name] = median(each)
        ratios[f"{name}_spread"] = spread(each)
    p, t = alone["prepare_ms"], sum(alone["train_ms"]) / MODELS
    # if all slots read each chunk that one prepared, and nothing else took time
    ratios["sharing_bound"] = SLOTS * (p + t) / (p + SLOTS * t)
    ratios |= alone | {"images_mb": size / 1e6}
    ratios["run_lengths"] = {way: lengths(runs[way][0]["flotillas"]) for way in NETS}
    write("flotilla-nets" + ("-quick" if args.quick else ""), rows, ratios, ("pillow",))


def bound(runs: Sequence[Sequence[Mapping[str, Any]]]) -> float:
    """Seconds that all models need if each takes as long as alone on one slot, and no slot waits.

    `runs`: of policies that give each model one slot. The shortest counts.
    """
    return min(
        sum(len(each["trials"]) * each["mean"] for each in flotillas) / SLOTS for flotillas in runs
    )


def lengths(flotillas: Sequence[Mapping[str, Any]]) -> list[str]:
    """How long the models that started at one time ran (FLEET, Table 3)."""
    return [
        f"{len(f['trials'])} on {f['slots']} slots: {f['mean']:.1f} s +- {f['deviation']:.1f}"
        for f in flotillas
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="short lengths, to see that it works")
    parser.add_argument("--keep", type=Path, help="where the studies and their reports go")
    parser.add_argument("--nets", action="store_true", help="real CNNs on images")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--run", choices=WAYS + NETS)
    parser.add_argument("--images", type=Path)
    parser.add_argument("--folder", type=Path)
    args = parser.parse_args()
    if args.run:
        found = run(args.run, args.folder, args.quick, args.keep, args.images)
        print(json.dumps(found))
    elif args.nets:
        compare_nets(args)
    else:
        compare(args)


if __name__ == "__main__":
    main()
