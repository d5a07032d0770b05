"""A small CNN on mnist10k whose width changes at a third and at two thirds of its training:
time saved, and accuracy kept.

As Capes et al. 2019, Table 2, with each slot a process of its own on the `ray` backend: fixed
widths, and 1 -> 2 -> 4 slots. "global": the batch stays as it is, and results do not depend on
the width; "per slot": the batch grows with the width, and the learning rate with it (linear
rule, eq. 7), with warm-up and a decay by ten at two thirds. Rows are medians over rounds; more
slots than the machine has cores cannot save more time.

    python benchmarks/rescaled.py [--quick]
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from emulated import Found, own_process, times
from images import divided, images
from torch import Tensor, nn, optim

import shoal
from shoal.search import Trace

SLOTS, EPOCHS, QUICK_EPOCHS, SHARDS, ROUNDS = 4, 6, 3, 4, 3
WAYS = {"1": (1, 1, 1), "2": (2, 2, 2), "4": (4, 4, 4), "1->2->2": (1, 2, 2), "1->2->4": (1, 2, 4)}
BATCHES = ("global", "per slot")


class Cnn(shoal.Recipe):
    batch_size, metric, mode = 32, "accuracy", "max"

    def __init__(self, per_slot: bool, most: int | None, epochs: int) -> None:
        self.batch_per_slot, self.most, self.epochs = per_slot, most, epochs

    def data(self) -> shoal.Data:
        x, y, u, v = divided(self.most)
        side = int(x.shape[1] ** 0.5)
        return shoal.Data.arrays(
            x.reshape(-1, 1, side, side),
            y,
            shards=SHARDS,
            validation=(u.reshape(-1, 1, side, side), v),
        )

    def configure_model(self, config: Mapping[str, Any]) -> nn.Module:
        side = int(divided(1)[0].shape[1] ** 0.5) // 4
        convolutions = [
            nn.Conv2d(1, 16, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
        ]
        return nn.Sequential(
            *convolutions, nn.MaxPool2d(2), nn.Flatten(), nn.Linear(32 * side * side, 10)
        )

    def configure_optimizers(self, model: nn.Module, config: Mapping[str, Any]) -> Any:
        decay = self.epochs * 2 / 3

        def factor(epoch: float) -> float:
            return min(1.0, 0.1 + 1.8 * epoch) * (0.1 if epoch >= decay else 1.0)

        return optim.SGD(model.parameters(), lr=0.02, momentum=0.9), shoal.LRSchedule(factor)

    def training_step(self, model: nn.Module, batch: Any) -> Tensor:
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    def validation_step(self, model: nn.Module, batch: Any) -> dict[str, Tensor]:
        return {"accuracy": (model(batch[0]).argmax(1) == batch[1]).float()}


class Thirds:
    """The one trial at these widths in the first, second and last third of its samples."""

    def __init__(self, widths: Sequence[int]) -> None:
        self.widths = widths

    def start(self) -> None:
        return None

    def decide(self, view: Any, memory: None) -> tuple[Any, None]:
        from shoal.policy.width.place import place

        wanted = {
            t: self.widths[min(2, int(3 * view.done[t] / trial.samples + 1e-9))]
            for t, trial in view.trials.items()
        }
        return place(view, wanted), memory


def run(way: str, batch: str, folder: Path, quick: bool) -> Found:
    epochs = QUICK_EPOCHS if quick else EPOCHS
    study = shoal.create_study(
        Cnn(batch == "per slot", 1000 if quick else None, epochs), storage=folder / "study"
    )
    searcher, rule = (Trace([(0.0, {})], max_epochs=epochs, widths=(1, SLOTS)), Thirds(WAYS[way]))
    study.optimize(searcher, rule, backend="ray", slots=SLOTS, progress=False)
    figures = next(iter(study.state.figures.values()))
    trial = study.trials[0]
    assert trial.status == "finished", trial.status
    told: Found = {"accuracy": trial.value, "samples": trial.samples, "up": figures.get("up")}
    return times(study.lines()) | told


def compare(args: argparse.Namespace) -> None:
    from common import write

    begin = time.perf_counter()
    seen: dict[tuple[str, str], list[Found]] = {}
    for _ in range(args.rounds):
        for batch in BATCHES:
            for way in WAYS:
                found = own_process(
                    __file__, way, "--batch", batch, *(["--quick"] if args.quick else [])
                )
                seen.setdefault((batch, way), []).append(found)
                print(
                    f"{batch:8} {way:8} {found['makespan_s']:6.1f} s, accuracy "
                    f"{found['accuracy']:.4f}",
                    flush=True,
                )
    rows, goals = [], {}
    for (batch, way), runs in seen.items():
        took, best = (median(x["makespan_s"] for x in runs), median(x["accuracy"] for x in runs))
        alone = median(x["makespan_s"] for x in seen[batch, "1"])
        less = median(x["accuracy"] for x in seen["global", "1"])
        ups = [x["up"] for x in runs if x["up"]]
        row = {
            "batch": batch,
            "slots": way,
            "training_s": took,
            "saved": 1 - took / alone,
            "accuracy": best,
        }
        rows.append(
            row
            | {
                "points_from_width_1": 100 * (best - less),
                "rescale_up_s": median(ups) if ups else None,
            }
        )
    goals["points_lost_at_most"] = max(
        -row["points_from_width_1"] for row in rows if "->" in str(row["slots"])
    )
    goals["points_lost_goal"] = 0.5
    epochs = QUICK_EPOCHS if args.quick else EPOCHS
    size = (
        f"{len(divided(1000 if args.quick else None)[0])} images of "
        f"{images()[2]}, {epochs} epochs, batch 32"
    )
    goals |= {"size": size, "rounds": args.rounds, "minutes": (time.perf_counter() - begin) / 60}
    write("rescaled" + ("-quick" if args.quick else ""), rows, goals)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="few images, to see that it works")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--run", choices=WAYS)
    parser.add_argument("--batch", choices=BATCHES)
    parser.add_argument("--folder", type=Path)
    args = parser.parse_args()
    args.rounds = args.rounds or (1 if args.quick else ROUNDS)
    if args.run:
        print(json.dumps(run(args.run, args.batch, args.folder, args.quick)))
    else:
        compare(args)


if __name__ == "__main__":
    main()
