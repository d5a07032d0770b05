"""Losses that are not finite at a trial's end, and counts that are taken for means."""

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from train_kit import Linear, blobs

import shoal


class Unsteady(Linear):
    """Its loss is not finite from a step on; its accuracy is."""

    batch_size = 40

    def data(self) -> Any:
        return blobs(samples=160, shards=1)  # three steps an epoch

    def configure_model(self, config: Any) -> Any:
        model = super().configure_model(config)
        model.register_buffer("steps", torch.zeros(()))
        return model

    def training_step(self, model: Any, batch: Any) -> Any:
        model.steps += 1
        loss = super().training_step(model, batch)
        return loss * torch.where(model.steps > self.bad_from, float("nan"), 1.0)

    bad_from = 0


def trained(recipe: Any, folder: Path, epochs: int = 2) -> Any:
    space = {"bad": shoal.grid([1])}
    study = shoal.create_study(
        recipe, storage=folder, metric="accuracy", mode="max", search_space=space
    )
    study.optimize(max_epochs=epochs, progress=False)
    return study


@pytest.mark.parametrize(("bad_from", "steps"), [(0, 6), (3, 3), (2, 4)])
def test_a_trial_whose_last_epoch_has_no_finite_loss_has_diverged(
    bad_from: int, steps: int, tmp_path: Path
) -> None:
    recipe = Unsteady()
    recipe.bad_from = bad_from
    with pytest.raises(shoal.StudyError, match=f"the last {steps} steps, among them all"):
        trained(recipe, tmp_path)
    study = shoal.load_study(tmp_path)
    assert study.trials[0].status.startswith("failed: diverged")
    with pytest.raises(shoal.StudyError, match="some failed|has a score"):
        _ = study.best_trial


def test_a_single_step_without_a_finite_loss_is_no_end(tmp_path: Path) -> None:
    recipe = Unsteady()
    recipe.bad_from = 5
    assert trained(recipe, tmp_path).trials[0].status == "finished"


class Counting(Linear):
    def data(self) -> Any:
        return blobs(samples=160, shards=1)

    def validation_step(self, model: Any, batch: Any) -> Any:
        x, y = batch
        right = model(x).argmax(1) == y
        if self.kind == "count":
            return {"accuracy": right.sum()}
        if self.kind == "item":
            return {"accuracy": int(right.sum())}
        return {"accuracy": right.float(), "part": right.float().mean()}

    kind = ""


@pytest.mark.parametrize(("kind", "warned"), [("count", 1), ("item", 1), ("mean", 0)])
def test_a_count_that_is_taken_for_a_mean_is_warned_of(
    kind: str, warned: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.train.lane.scoring._counts", set())
    recipe = Counting()
    recipe.kind = kind
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        trained(recipe, tmp_path, 1)
    texts = [str(each.message) for each in told if "taken for" in str(each.message)]
    assert len(texts) == warned
    assert all("validation gives 'accuracy' = " in text for text in texts)
