"""Scores of the whole validation set at once: `validation_epoch` and `configure_metrics`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pack_kit import Zoo, packed
from pack_kit import trial as packed_trial
from torch import nn
from torch.nn.functional import cross_entropy
from train_kit import Small, blobs, copied, go, planned, trainer, trial

from shoal.core.trial import TrialId
from shoal.train.data.data import Data
from shoal.train.lane.lane import TrainingLane
from shoal.train.recipe.recipe import Recipe
from shoal.train.recipe.unit import TrialError
from shoal.train.slot.trainer import SlotTrainer
from shoal.train.tools.check import check_recipe
from shoal.train.tools.verify import differences

torchmetrics = pytest.importorskip("torchmetrics", reason="torchmetrics is optional")
sklearn = pytest.importorskip("sklearn.metrics", reason="pip install scikit-learn")


def of_outputs(outputs: Mapping[str, torch.Tensor]) -> dict[str, float]:
    logits, target = outputs["logits"], outputs["target"]
    right = torch.softmax(logits, 1)
    return {
        "f1": sklearn.f1_score(target, logits.argmax(1), average="macro"),
        "auc": sklearn.roc_auc_score(target, right, multi_class="ovr"),
        "perplexity": cross_entropy(logits, target).exp(),  # type: ignore[dict-item]
    }


class Whole(Small):
    def validation_step(self, model: nn.Module, batch: Any) -> dict[str, Any]:
        x, y = batch
        return {"logits": model(x), "target": y}

    def validation_epoch(self, outputs: Any) -> Any:
        torch.rand(3)  # changes no random state
        return of_outputs(outputs)


class Objects(Small):
    """Metric objects beside a mean."""

    def configure_metrics(self, config: Mapping[str, Any]) -> Mapping[str, Any]:
        torch.rand(2)
        several = {
            "recall": torchmetrics.Recall("multiclass", num_classes=3, average="macro"),
            "precision": torchmetrics.Precision("multiclass", num_classes=3),
        }
        return {
            "f1": torchmetrics.F1Score("multiclass", num_classes=3, average="macro"),
            "of": torchmetrics.MetricCollection(several),
        }

    def validation_step(self, model: nn.Module, batch: Any) -> dict[str, Any]:
        x, y = batch
        logits = model(x)
        right = (logits.argmax(1) == y).float()
        return {"f1": (logits, y), "of": (logits, y), "accuracy": right}


class Both(Objects):
    def validation_step(self, model: nn.Module, batch: Any) -> dict[str, Any]:
        x, y = batch
        logits = model(x)
        return {"f1": (logits, y), "of": (logits, y), "logits": logits, "target": y}

    def validation_epoch(self, outputs: Any) -> Any:
        return {"perplexity": of_outputs(outputs)["perplexity"]}


def scores_of(at: SlotTrainer, name: str = "a") -> dict[str, float]:
    found = at.evaluate([TrialId(name)])[TrialId(name)]
    assert not isinstance(found, TrialError), found.text
    return found


def by_hand(at: SlotTrainer, data: Data, name: str = "a") -> dict[str, float]:
    """The scores of all validation samples in one batch."""
    held = at.lanes.get(TrialId(name))
    assert held is not None
    lane: TrainingLane = held.lane
    parts = list(at.context.streams.of(()).validation())
    x, y = (torch.cat([part[column] for part in parts]) for column in (0, 1))
    with torch.no_grad():
        logits = lane.model.eval()(x)
    lane.model.train()
    found = of_outputs({"logits": logits.cpu(), "target": y.cpu()})
    return {name: float(value) for name, value in found.items()}


def files(place: Path) -> Data:
    """Training and validation data in files of their own: several validation parts."""
    for number in range(6):
        rng = np.random.default_rng(number)
        y = rng.integers(0, 3, 20)
        x = (rng.normal(size=(20, 6)) + np.eye(3, 6)[y]).astype(np.float32)
        np.savez(place / f"{number}.npz", x, y)
    return Data.folder(place, validation=0.5)


@pytest.mark.parametrize("chunk", [None, 7, 32])
@pytest.mark.parametrize("parts", [1, 3])
def test_scores_are_those_of_the_whole_set(tmp_path: Path, parts: int, chunk: int | None) -> None:
    made = files(tmp_path) if parts > 1 else blobs()
    assert len(made.validation) == parts
    made.chunk = chunk or made.chunk
    at = trainer(Whole(), made)
    go(at, trial("a"), planned(made, 1))
    found, wanted = scores_of(at), by_hand(at, made)
    assert found == pytest.approx(wanted, abs=1e-6)

    at = trainer(Objects(), made)
    go(at, trial("a"), planned(made, 1))
    assert set(found := scores_of(at)) == {"f1", "of_recall", "of_precision", "accuracy"}
    assert found["f1"] == pytest.approx(by_hand(at, made)["f1"], abs=1e-6)


def test_both_ways_go_together() -> None:
    data = blobs()
    at = trainer(Both(), data)
    go(at, trial("a"), planned(data, 1))
    wanted = by_hand(at, data)
    found = scores_of(at)
    assert set(found) == {"f1", "of_recall", "of_precision", "perplexity"}
    assert found["f1"] == pytest.approx(wanted["f1"], abs=1e-6)
    assert found["perplexity"] == pytest.approx(wanted["perplexity"], abs=1e-6)


@pytest.mark.parametrize("kind", [Whole, Objects])
def test_they_change_nothing_of_the_training(kind: type[Recipe]) -> None:
    data = blobs()
    with_scores, without = trainer(kind(), data), trainer(kind(), data)
    visits = go(with_scores, trial("a"), planned(data, 2))
    go(without, trial("a"), planned(data, 2), evaluate=False)
    state = copied(with_scores.state(TrialId("a")))
    assert not list(differences(state, without.state(TrialId("a"))))
    assert check_recipe(kind(), data, {})["ok"]

    moved = trainer(kind(), data)
    go(moved, trial("a"), planned(data, 3)[6:7], visits, source=state)
    assert scores_of(moved) != {}


class Fusable(Zoo):
    """One graph, so that lanes are fused; its scores are of the whole set."""

    def validation_step(self, model: nn.Module, batch: Any) -> dict[str, Any]:
        x, y = batch
        return {"logits": model(x), "target": y}

    def validation_epoch(self, outputs: Any) -> Any:
        right = outputs["logits"].argmax(1) == outputs["target"]
        assert len(right) == self.validation
        return {"accuracy": right.float().mean()}


@pytest.mark.parametrize("pace", [None, lambda what, samples: samples / 1000])
def test_a_fused_pack_scores_one_by_one(pace: Any) -> None:
    recipe, plain = Fusable(model="mlp"), Zoo(model="mlp")
    data = recipe.data()
    trials = [packed_trial(name, 2, data, lr=lr) for name, lr in (("a", 0.1), ("b", 0.01))]
    found = packed(recipe, data, trials, fuse=True, pace=pace)
    wanted = packed(plain, data, trials, fuse=False, pace=pace)
    for each in trials:
        assert found[each.id].error is None
        for mine, theirs in zip(found[each.id].scores, wanted[each.id].scores, strict=True):
            assert mine["accuracy"] == pytest.approx(theirs["accuracy"], abs=0.03)


class Wrong(Whole):
    returned: Any = None

    def validation_epoch(self, outputs: Any) -> Any:
        return self.returned


class WrongStep(Small):
    metrics: Any = None
    returned: Any = None

    def configure_metrics(self, config: Mapping[str, Any]) -> Mapping[str, Any]:
        return self.metrics or {"f1": torchmetrics.MeanMetric()}

    def validation_step(self, model: nn.Module, batch: Any) -> Any:
        return self.returned


@pytest.mark.parametrize(
    ("recipe", "why"),
    [
        (Wrong(), "validation_epoch must return {name: one number}; got NoneType"),
        (Wrong(returned={"f1": torch.zeros(3)}), "one number}; f1: got shape"),
        (WrongStep(returned={"f1": torch.zeros(3)}), "'f1': .predictions, targets.}; got"),
        (WrongStep(returned={"loss": 0.0}), "returned nothing under that name"),
        (WrongStep(metrics={"f1": 3}, returned={}), "f1: int has no update"),
    ],
)
def test_what_is_refused(recipe: Recipe, why: str) -> None:
    data = blobs()
    with pytest.raises(TrialError, match=why):
        go(trainer(recipe, data), trial("a"), planned(data, 1))


def test_outputs_have_a_row_for_each_sample() -> None:
    class Odd(Whole):
        def validation_step(self, model: nn.Module, batch: Any) -> dict[str, Any]:
            x, y = batch
            return {"logits": model(x)[:2], "target": y}

    data = blobs()
    with pytest.raises(TrialError, match=r"logits: got shape \(2, 3\) for 30 samples"):
        go(trainer(Odd(), data), trial("a"), planned(data, 1))


def test_a_batchs_mean_counts_for_each_of_its_samples() -> None:
    class Mean(Small):
        def validation_step(self, model: nn.Module, batch: Any) -> dict[str, Any]:
            _, y = batch
            return {"mean": y.float().mean(), "size": float(len(y))}

        def validation_epoch(self, outputs: Any) -> Any:
            return {"mean": outputs["mean"].mean(), "rows": len(outputs["size"])}

    data = blobs()
    at = trainer(Mean(), data)
    go(at, trial("a"), planned(data, 1))
    parts = list(at.context.streams.of(()).validation())
    y = torch.cat([part[1] for part in parts]).float()
    assert scores_of(at) == {"mean": pytest.approx(y.mean().item()), "rows": 30}


@pytest.mark.parametrize("trials", [1, 3])
def test_validation_epoch_gets_the_model_in_evaluation_mode(trials: int) -> None:
    class OfModel(Whole):
        def validation_epoch(  # type: ignore[override]
            self, model: nn.Module, outputs: Any, epoch: int
        ) -> Any:
            largest = max(p.abs().max() for p in model.parameters())
            modes = [module.training for module in model.modules()]
            assert not any(modes) and not torch.is_grad_enabled()
            return {**of_outputs(outputs), "largest": largest, "epoch": float(epoch)}

    data = blobs()
    at = trainer(OfModel(), data)
    names = [f"t{number}" for number in range(trials)]
    for number, name in enumerate(names):
        go(at, trial(name, seed=number), planned(data, 1))
    found = at.evaluate([TrialId(name) for name in names])
    for name in names:
        held = at.lanes.get(TrialId(name))
        assert held is not None
        own = max(p.abs().max().item() for p in held.lane.model.parameters())
        scores = found[TrialId(name)]
        assert not isinstance(scores, TrialError), scores.text
        assert (scores["largest"], scores["epoch"]) == (pytest.approx(own), 1.0)
        assert held.lane.model.training
