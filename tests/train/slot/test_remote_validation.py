"""Validation parts at several nodes: models visit them, and scores are those of the whole."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import shoal
from shoal.core.trial import Trial, Visit
from shoal.train.recipe.recipe_data import bring
from shoal.train.recipe.unit import TrialError, Unit
from shoal.train.slot.setup import TrainerSetup
from shoal.train.slot.trainer import SlotTrainer
from shoal.train.tools.verify import compare

HOLDERS = {"s0": "ab", "v0": "a", "v1": "b", "v2": "b"}
UNIT = Unit(Trial("t", 60.0, {"width": 4, "lr": 1e-2}), (), Visit(0, "s0", 0, 0))


class Scores(shoal.Recipe):
    batch_size = 8

    def __init__(self, folder, breaks=False):
        self.folder, self.breaks = folder, breaks

    def data(self):
        places = {
            part: {node: str(self.folder / f"{part}.npz") for node in ("local", *nodes)}
            for part, nodes in HOLDERS.items()
        }
        return shoal.Data.shards(
            {"s0": places.pop("s0")}, {part: places[part] for part in ("v0", "v1", "v2")}
        )

    def configure_model(self, config):
        return torch.nn.Sequential(
            torch.nn.Linear(5, 4), torch.nn.Dropout(0.5), torch.nn.Linear(4, 3)
        )

    def configure_optimizers(self, model, config):
        optimizer = torch.optim.Adam(model.parameters(), lr=config["lr"])
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
        return optimizer, plateau

    def training_step(self, model, batch):
        return torch.nn.functional.cross_entropy(model(batch[0]), batch[1])

    def validation_step(self, model, batch):
        if self.breaks and len(batch[1]) == 19:
            raise ArithmeticError("all of v2")
        logits = model(batch[0])
        return {
            "loss": torch.nn.functional.cross_entropy(logits, batch[1]),
            "accuracy": (logits.argmax(1) == batch[1]).float(),
        }


class Whole(Scores):
    """With a score that needs all outputs."""

    def validation_step(self, model, batch):
        return {"logits": model(batch[0]), "target": batch[1]}

    def validation_epoch(self, outputs):
        right = outputs["logits"].argmax(1) == outputs["target"]
        order = torch.arange(1, len(right) + 1)  # so that their order matters
        return {"right": (right * order).sum() / order.sum()}


class Median:
    """A metric object."""

    def reset(self):
        self.seen = []

    def update(self, values, target):
        self.seen += values[:, 0].tolist()

    def compute(self):
        return float(np.median(self.seen))


class Metrics(Scores):
    def configure_metrics(self, config):
        return {"median": Median()}

    def validation_step(self, model, batch):
        logits = model(batch[0])
        return {"median": (logits, batch[1]), **super().validation_step(model, batch)}


class There:
    """The trainers of other nodes, in this process."""

    def __init__(self, trainer):
        self.trainer = trainer
        self.asked = []

    def begin(self, unit, parts):
        self.asked += parts
        return lambda: self.trainer.validation_records(unit, parts)


@pytest.fixture
def folder(tmp_path):
    drawn = np.random.default_rng(0)
    for part, rows in {"s0": 60, "v0": 37, "v1": 50, "v2": 19}.items():
        x = drawn.normal(size=(rows, 5)).astype("float32")
        np.savez(tmp_path / f"{part}.npz", x, drawn.integers(0, 3, rows))
    return tmp_path


def made(recipe, elsewhere=None, names=None):
    data = bring(recipe)
    if names is not None:
        data = data.at(names)
    setup = TrainerSetup(metric="loss")
    trainer = SlotTrainer(recipe, data, None, setup, remote_validation=elsewhere)
    done = None
    for _, news in trainer.train_pack([replace(UNIT, evaluate=True, last=True, carry=True)]):
        if isinstance(news, TrialError):
            raise news
        done = news
    return done


@pytest.mark.parametrize("kind", [Scores, Whole, Metrics])
def test_scores_and_state_are_those_of_one_process_to_the_bit(kind, folder):
    recipe = kind(folder)
    there = There(SlotTrainer(recipe, bring(recipe).at(("b",)), None, TrainerSetup(metric="loss")))
    whole = made(recipe)
    parts = made(recipe, there, ("a",))
    assert there.asked == ["v1", "v2"]
    assert parts.scores == whole.scores
    assert compare(parts.state, whole.state).equal


def test_what_raises_at_another_node_is_the_trials_error(folder):
    recipe = Scores(folder, breaks=True)
    there = There(SlotTrainer(recipe, bring(recipe).at(("b",)), None, TrainerSetup(metric="loss")))
    with pytest.raises(TrialError, match="all of v2"):
        made(recipe, there, ("a",))
