"""Hyperband on four slots: whoever is left of a rung gets the slots that would stand idle.

R = 27, brackets one after the other as in the paper: the last rungs of a bracket have fewer trials
than there are slots. "fixed": each trial has one slot (`fifo`). "widened": each may have one to
four (`waterfill`). Both run by turns, on real slots of the `ray` backend, with real
gradients, real sums of them over the slots of a wide trial and real validation. The time of a
step is emulated (`emulated.py`). The batch is the same at any width, so both must have the same
trials in the same rungs with the same scores; the script ends with an error if they have not.

    python benchmarks/rungs.py [--quick] [--rounds 2]   # --quick: R = 9
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import torch
from emulated import Emulated, Found, own_process, rate, times
from torch import nn

import shoal
from shoal.core.fold import fold
from shoal.core.state import State

SLOTS, SEED = 4, 7
STEP = {"model": 0, "fixed": 40.0, "per_sample": 16.0}  # milliseconds: 0.55 s alone
SAMPLES = 64  # two steps an epoch
POLICIES = {"fixed": "fifo", "widened": "waterfill"}
CLOSE = 1e-9  # between scores at two widths: sums in another order, in float64
SPACE = {**STEP, "lr": shoal.loguniform(1e-3, 1e-1)}


class Rungs(Emulated):
    """A small model whose learning rate is searched; it is validated on 512 samples."""

    def data(self) -> shoal.Data:
        rng = np.random.default_rng(0)
        x = rng.normal(size=(self.samples + 512, 64))
        y = (np.sin(x[:, 0]) + x[:, 1] * x[:, 2] > 0).astype(np.int64)
        held = slice(self.samples, None)
        return shoal.Data.arrays(
            x[: self.samples], y[: self.samples], validation=(x[held], y[held])
        )

    def augment(self, samples: Any, rng: np.random.Generator) -> Any:
        return samples

    def configure_model(self, config: Mapping[str, Any]) -> nn.Module:
        return super().configure_model(config).double()

    def configure_optimizers(self, model: Any, config: Mapping[str, Any]) -> Any:
        model.emulated = (config["fixed"], config["per_sample"])
        return torch.optim.SGD(model.parameters(), lr=config["lr"], momentum=0.9)

    def validation_step(self, model: Any, batch: Any) -> Any:
        x, y = batch
        return {"loss": nn.functional.cross_entropy(model(x), y, reduction="none")}


def run(way: str, folder: Path, epochs: int) -> Found:
    """One study: its times, its rungs, and each trial's scores."""
    study = shoal.create_study(
        Rungs(SAMPLES),
        storage=folder / "study",
        search_space=SPACE,
        metric="loss",
        mode="min",
        seed=SEED,
    )
    widths = (1, 1) if way == "fixed" else (1, SLOTS)
    study.optimize(
        shoal.Hyperband(max_epochs=epochs, concurrent=False),
        policy=POLICIES[way],
        widths=widths,
        backend="ray",
        slots=SLOTS,
        feeders=0,
        progress=False,
    )
    state = study.state
    scores = {
        trial: [(epoch, values["loss"]) for epoch, values in found]
        for trial, found in state.scores.items()
    }
    rungs = {trial: state.known[trial].samples / SAMPLES for trial in state.known}
    return times(study.lines()) | {
        "scores": scores,
        "rungs": rungs,
        "slot_seconds": slot_seconds(study.lines()),
    }


def slot_seconds(lines: Any) -> dict[int, float]:
    """Seconds of all slots together that trials of each width held."""
    found: Counter[int] = Counter()
    state, before = State(), 0.0
    for line in lines:
        for gang in state.gangs:
            found[len(gang.slots)] += len(gang.slots) * (line.time - before)
        before = line.time
        state = fold(state, [line.entry])
    return {width: round(found[width], 1) for width in sorted(found)}


def difference(one: Found, other: Found) -> float:
    """The largest difference of two scores; an error unless rungs and scores are equal."""
    if one["rungs"] != other["rungs"]:
        raise SystemExit("widening changed who went on")
    worst = 0.0
    for trial, scores in one["scores"].items():
        pairs = zip(scores, other["scores"][trial], strict=True)
        for (epoch, mine), (at, theirs) in pairs:
            if epoch != at:
                raise SystemExit(f"{trial}: validated after {epoch} and {at} epochs")
            worst = max(worst, abs(mine - theirs))
    if worst > CLOSE:
        raise SystemExit(f"widening changed a score by {worst:.3g}")
    return worst


def compare(quick: bool, rounds: int) -> None:
    from common import write

    begin = time.perf_counter()
    epochs = 9 if quick else 27
    runs: dict[str, list[Found]] = {way: [] for way in POLICIES}
    for _ in range(rounds):
        for way in POLICIES:
            found = own_process(__file__, way, "--epochs", str(epochs))
            runs[way].append(found)
            print(f"{way:8} {found['makespan_s']:7.1f} s", flush=True)
    first = runs["fixed"][0]
    others = [found for way in runs.values() for found in way]
    worst = max(difference(first, found) for found in others)
    took = {way: mean(f["makespan_s"] for f in found) for way, found in runs.items()}
    rows = [
        {
            "way": way,
            "policy": POLICIES[way],
            "trials": runs[way][0]["trials"],
            "makespan_s": took[way],
            "rounds_s": [round(found["makespan_s"], 1) for found in runs[way]],
            "slot_seconds_by_width": runs[way][0]["slot_seconds"],
        }
        for way in POLICIES
    ]
    ratios: dict[str, Any] = {
        "fixed_over_widening": took["fixed"] / took["widened"],
        "speedup_of_four_slots": rate(STEP, SLOTS) / rate(STEP, 1),
        "largest_difference_of_scores": worst,
        "minutes": (time.perf_counter() - begin) / 60,
    }
    write("rungs" + ("-quick" if quick else ""), rows, ratios)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="to see that it works")
    parser.add_argument("--rounds", type=int, default=2, help="of both ways, by turns")
    parser.add_argument("--run", choices=POLICIES)
    parser.add_argument("--epochs", type=int, default=27)
    parser.add_argument("--folder", type=Path)
    args = parser.parse_args()
    if args.run:
        print(json.dumps(run(args.run, args.folder, args.epochs)))
    else:
        compare(args.quick, args.rounds)


if __name__ == "__main__":
    main()
