"""Replay follows how a study was run: its threads, and when it validated."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import shoal


class Plateau(shoal.Recipe):
    """The learning rate falls when the metric stalls, so that it matters when there was a
    validation.
    """

    metric, mode = "loss", "min"

    def data(self) -> shoal.Data:
        rng = np.random.default_rng(0)
        x = rng.normal(size=(96, 64)).astype("float32")
        return shoal.Data.arrays(x, (x.sum(1) > 0).astype("int64"), validation=0.25, shards=2)

    def configure_model(self, config: Any) -> Any:
        return torch.nn.Sequential(
            torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 2)
        )

    def configure_optimizers(self, model: Any, config: Any) -> Any:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        return optimizer, torch.optim.lr_scheduler.ReduceLROnPlateau(
            optimizer, patience=0, factor=0.1
        )

    def training_step(self, model: Any, batch: Any) -> Any:
        return torch.nn.functional.cross_entropy(model(batch[0]), batch[1])

    def validation_step(self, model: Any, batch: Any) -> Any:
        return {
            "loss": torch.nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")
        }


@pytest.mark.parametrize("options", [{"validate_every": 3}, {"threads": 2}])
def test_replay_is_bit_equal(tmp_path: Path, options: dict[str, int]) -> None:
    study = shoal.create_study(Plateau(), storage=tmp_path / "s", search_space={})
    study.optimize(max_epochs=7, progress=False, **options)
    assert [row["equal"] for row in study.replay()] == [True]


class Dropping(Plateau):
    def configure_model(self, config: Any) -> Any:
        return torch.nn.Sequential(
            torch.nn.Linear(64, 16), torch.nn.Dropout(0.5), torch.nn.Linear(16, 2)
        )

    def configure_optimizers(self, model: Any, config: Any) -> Any:
        return torch.optim.SGD(model.parameters(), lr=config["lr"])


@pytest.mark.slow
@pytest.mark.parametrize("allowed", [False, True])
def test_dropout_is_fused_only_where_the_recipe_allows_it(tmp_path: Path, allowed: bool) -> None:
    recipe = Dropping()
    recipe.fuse_random = allowed
    study = shoal.create_study(
        recipe,
        storage=tmp_path / "s",
        search_space={"lr": shoal.grid([0.01 * i for i in range(1, 17)])},
    )
    study.optimize(max_epochs=50, policy="pack", progress=False)  # fusing is tried
    assert {trial.status for trial in study.trials} == {"finished"}
    figures = [name for each in study.state.figures.values() for name in each]
    assert any(name.startswith("fused:") for name in figures) == allowed
    assert ("unfusable" in figures) != allowed
    rows = study.replay(["t000", "t015"])
    wanted = "not comparable" if allowed else "equal"
    assert [row["verdict"] for row in rows] == [wanted, wanted]
