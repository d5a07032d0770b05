"""Trials whose data is prepared otherwise share a slot, with a stream each, and learn what they
learn alone.
"""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import shoal
from shoal.core.event import Planned
from shoal.train.tools.check import check_recipe


class Sizes(shoal.Recipe):
    """`side` is of the data as well as of the model; `noise` is an attribute that a
    configuration may replace.
    """

    metric, mode, data_keys, noise = "hits", "max", ("side", "noise"), 0.0

    def __init__(self) -> None:
        self.prepared: Counter[Any] = Counter()

    def data(self) -> shoal.Data:
        rng = np.random.default_rng(0)
        x = rng.normal(size=(192, 8, 8)).astype("float32")
        data = shoal.Data.arrays(x, (x.mean((1, 2)) > 0).astype("int64"), validation=0.25, shards=2)
        data.chunk = 32
        return data

    def prepare(self, samples: Any, side: int, noise: float) -> Any:
        self.prepared[side] += len(samples[0])
        return samples[0][:, :side, :side], samples[1]

    def augment(self, samples: Any, rng: np.random.Generator, side: int, noise: float) -> Any:
        x, y = samples
        return x + np.float32(noise) * rng.normal(size=x.shape).astype("float32"), y

    def configure_model(self, config: Any) -> Any:
        return nn.Sequential(
            nn.Flatten(), nn.Linear(config["side"] ** 2, 8), nn.Tanh(), nn.Linear(8, 2)
        )

    def configure_optimizers(self, model: Any, config: Any) -> Any:
        return torch.optim.Adam(model.parameters(), lr=config.get("lr", 0.01))

    def training_step(self, model: Any, batch: Any) -> Any:
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    def validation_step(self, model: Any, batch: Any) -> Any:
        return {"hits": (model(batch[0]).argmax(1) == batch[1]).float()}


class Still(Sizes):
    """Nothing is augmented."""

    augment = shoal.Recipe.augment  # type: ignore[assignment]


def test_unlike_data_in_one_pack_is_as_alone(tmp_path: Path) -> None:
    recipe = Sizes()
    space = {
        "side": shoal.grid([4, 8]),
        "lr": shoal.grid([0.003, 0.03]),
        "noise": shoal.grid([0.0, 0.1]),
    }
    study = shoal.create_study(recipe, storage=tmp_path / "s", search_space=space)
    study.optimize(max_epochs=3, policy="pack", fuse=False, progress=False)
    assert {trial.status for trial in study.trials} == {"finished"}
    assert any(len(gang.lanes) == 8 for gang in _gangs(study))
    assert all(row["equal"] for row in study.replay())


def test_what_is_prepared_alike_is_prepared_once(tmp_path: Path) -> None:
    recipe = Still()
    space = {"side": shoal.grid([4, 8]), "lr": shoal.grid([0.01, 0.02, 0.03])}
    study = shoal.create_study(recipe, storage=tmp_path / "s", search_space=space)
    study.optimize(max_epochs=4, policy="pack", progress=False)
    assert {trial.status for trial in study.trials} == {"finished"}
    assert recipe.prepared == {4: 192, 8: 192}  # training and validation data
    assert len(study.state.figures) == 2  # they do not cost the same


def test_the_largest_batch_is_tried_on_such_data(tmp_path: Path) -> None:
    recipe = Still()
    space = {"side": shoal.grid([4, 8]), "batch_size": "max"}
    study = shoal.create_study(recipe, storage=tmp_path / "s", search_space=space)
    study.optimize(max_epochs=1, progress=False)
    assert {trial.status for trial in study.trials} == {"finished"}


def test_the_check_of_a_recipe_prepares_as_the_configuration_says() -> None:
    recipe = Sizes()
    assert check_recipe(recipe, recipe.data(), {"side": 4})["ok"]


def test_a_key_that_is_nowhere_is_named(tmp_path: Path) -> None:
    study = shoal.create_study(
        Sizes(), storage=tmp_path / "s", search_space={"lr": shoal.grid([0.01])}
    )
    with pytest.raises(shoal.StudyError, match="data_keys names side"):
        study.optimize(max_epochs=1, progress=False)
    assert not study.trials, "found before any trial starts"


def _gangs(study: Any) -> Any:
    return [
        gang
        for line in study.lines()
        if isinstance(line.entry, Planned)
        for gang in line.entry.start
    ]
