"""Why fused models in Hyperband score otherwise than models alone: is it rounding?

The searches of `hyperband.py --space rates` without times: unpacked and fused, in single and in
double precision. If fusing did anything but round otherwise, double precision would leave the
differences as they are. Then an unpacked search in single precision whose first weights are all
larger by one part in eight million, the least that single precision can hold: how far apart do
two searches come that differ by rounding alone?

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

NUDGE = 2.0**-23


class Precise(Mlp3):
    """`double`: train in double precision. `nudge`: first weights are larger by this part."""

    def __init__(self, images: int | None, double: bool, nudge: float = 0.0) -> None:
        super().__init__(images)
        self.double, self.nudge = double, nudge

    def configure_model(self, config: Mapping[str, Any]) -> nn.Module:
        model = super().configure_model(config)
        with torch.no_grad():
            for each in model.parameters():
                each.mul_(1 + self.nudge)
        return model.double() if self.double else model

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
                round(study.state.known[trial.id].samples / epoch)
                for trial in study.trials
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
        "promotion_points": max((row["points"] for row in apart), default=0.0),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="R = 9 and 500 images")
    args = parser.parse_args()
    epochs, images = (9, 500) if args.quick else (81, None)
    torch.set_num_threads(1)

    alone = search(Precise(images, False), False, epochs)
    fused = search(Precise(images, False), True, epochs)
    nudged = search(Precise(images, False, NUDGE), False, epochs)
    alone_double = search(Precise(images, True), False, epochs)
    fused_double = search(Precise(images, True), True, epochs)
    rows = [
        compared("fused, single precision", alone, fused, epochs),
        compared("weights nudged, single precision", alone, nudged, epochs),
        compared("fused, double precision", alone_double, fused_double, epochs),
    ]
    ratios = {
        f"{key}_{name}": row[key]
        for name, row in zip(("fused", "nudged", "fused_double"), rows, strict=True)
        for key in ("unequal", "score_points", "other_promotions", "promotion_points")
    }
    write("hyperband_rounding" + ("-quick" if args.quick else ""), rows, ratios)


if __name__ == "__main__":
    main()
