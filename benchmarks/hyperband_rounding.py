"""Why fused models in Hyperband score otherwise than models alone: is it rounding?

The searches of `hyperband.py --space rates` without times: unpacked and fused. Beside them an
unpacked search whose first weights are all larger by one part in eight million, the least that
single precision can hold: how far apart do two searches come that differ by rounding alone? Then
the same in double precision, where the least part is 2^29 times smaller.

    python benchmarks/hyperband_rounding.py [--quick]
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from common import write
from hyperband import ETA, SEED, Found, differences
from images import RATES, Mlp3
from torch import Tensor, nn

import shoal
from shoal.policy import Fifo, Pack
from shoal.search import Hyperband

NUDGES = {False: 2.0**-23, True: 2.0**-52}  # of single and of double precision
KEYS = ("scores", "unequal", "score_points", "other_promotions")


class Precise(Mlp3):
    """`double`: train in double precision. `nudged`: first weights are larger by the least."""

    def __init__(self, images: int | None, double: bool, nudged: bool = False) -> None:
        super().__init__(images)
        self.double = double
        self.nudge = NUDGES[double] if nudged else 0.0

    def configure_model(self, config: Mapping[str, Any]) -> nn.Module:
        model = super().configure_model(config)
        if self.double:
            model.double()
        with torch.no_grad():
            for each in model.parameters():
                each.mul_(1 + self.nudge)
        return model

    def training_step(self, model: nn.Module, batch: Any) -> Tensor:
        return super().training_step(model, self._in_precision(batch))

    def validation_step(self, model: nn.Module, batch: Any) -> dict[str, Tensor]:
        return super().validation_step(model, self._in_precision(batch))

    def _in_precision(self, batch: Any) -> Any:
        return (batch[0].double(), batch[1]) if self.double else batch


def search(recipe: Precise, fused: bool, epochs: int) -> Found:
    """What each trial reached, its scores, and how many packs were fused."""
    policy: Any = Pack(most=16, fuse=True) if fused else Fifo()
    with tempfile.TemporaryDirectory() as folder:
        study = shoal.create_study(
            recipe,
            storage=Path(folder) / "study",
            metric="accuracy",
            mode="max",
            search_space=RATES,
            seed=SEED,
        )
        searcher = Hyperband(max_epochs=epochs, reduction_factor=ETA, concurrent=fused)
        study.optimize(searcher, policy, progress=False)
        epoch = sum(recipe.data().sizes.values())
        return {
            "reached": [
                round(study.state.known[trial.id].samples / epoch) for trial in study.trials
            ],
            "scores": [
                {round(at): values["accuracy"] for at, values in trial.scores}
                for trial in study.trials
            ],
        }


def compared(what: str, one: Found, other: Found, epochs: int) -> dict[str, Any]:
    """How many scores and promotions differ, and by how many points of accuracy at most."""
    gaps = [
        abs(a[at] - b[at])
        for a, b in zip(one["scores"], other["scores"], strict=True)
        for at in a.keys() & b.keys()
    ]
    apart = differences(one, other, epochs)
    return {
        "what": what,
        "scores": len(gaps),
        "unequal": sum(gap > 0 for gap in gaps),
        "score_points": 100 * max(gaps),
        "other_promotions": len(apart),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="R = 9 and 500 images")
    args = parser.parse_args()
    epochs, images = (9, 500) if args.quick else (81, None)
    torch.set_num_threads(1)

    rows = []
    ratios: dict[str, Any] = {}
    for double, precision in ((False, "single"), (True, "double")):
        alone = search(Precise(images, double), False, epochs)
        fused = search(Precise(images, double), True, epochs)
        nudged = search(Precise(images, double, nudged=True), False, epochs)
        for how, other in (("fused", fused), ("nudged", nudged)):
            row = compared(f"{how}, {precision} precision", alone, other, epochs)
            rows.append(row)
            ratios |= {f"{key}_{how}_{precision}": row[key] for key in KEYS}
    write("hyperband_rounding" + ("-quick" if args.quick else ""), rows, ratios)


if __name__ == "__main__":
    main()
