"""Packs of unlike lanes, their data, and two ways to train them: in one trainer together, and
by hand, one lane at a time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from device_kit import HERE
from fused_kit import Images, images
from torch import nn
from train_kit import trainer as slot_trainer

from shoal.core.trial import Trial, TrialId, Visit
from shoal.train.data.data import Data
from shoal.train.lane.checkpoints import Checkpoints
from shoal.train.lane.lane import TrainingLane
from shoal.train.lane.scoring import evaluate
from shoal.train.recipe.recipe import LRSchedule, Recipe
from shoal.train.recipe.unit import Done, Part, TrialError, Unit
from shoal.train.slot.trainer import SlotTrainer
from shoal.train.stream.stream import Stream
from shoal.train.tools.verify import differences

SEED = 3  # of `slot_trainer`
OPTIMIZERS: dict[str, Any] = {
    "sgd": lambda p, lr: torch.optim.SGD(p, lr=lr),
    "momentum": lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=0.9, nesterov=True),
    "adam": lambda p, lr: torch.optim.Adam(p, lr=lr / 10),
    "adamw": lambda p, lr: torch.optim.AdamW(p, lr=lr / 10, weight_decay=0.05),
}
SCHEDULES: dict[str, Any] = {
    "none": lambda o: None,
    "cosine": lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 4),
    "steps": lambda o: torch.optim.lr_scheduler.StepLR(o, 1, 0.5),
    "plateau": lambda o: torch.optim.lr_scheduler.ReduceLROnPlateau(o, patience=0, threshold=10.0),
    "epochs": lambda o: LRSchedule(lambda epoch: 1 / (1 + epoch)),
    "samples": lambda o: LRSchedule(lambda samples: 0.99 ** (samples / 10), unit="samples"),
}


class Zoo(Images):
    """`Images` with data, and more to configure: `drop` adds dropout, `fail_at`/`nan_at` the
    step at which a lane goes wrong.
    """

    def __init__(
        self,
        samples: int = 60,
        shards: int = 2,
        chunk: int | None = None,
        validation: int = 40,
        **settings: Any,
    ) -> None:
        super().__init__(**settings)
        self.samples, self.shards, self.chunk, self.validation = (
            samples,
            shards,
            chunk,
            validation,
        )

    def data(self) -> Data:
        x, y = images(self.samples, self.dtype)
        vx, vy = images(self.validation, self.dtype, seed=1)
        data = Data.arrays(
            x.numpy(), y.numpy(), shards=self.shards, validation=(vx.numpy(), vy.numpy())
        )
        data.chunk = self.chunk or data.chunk
        return data

    def configure_model(self, config: Mapping[str, Any]) -> nn.Module:
        model = super().configure_model(config)
        made = nn.Sequential(nn.Dropout(config["drop"]), model) if "drop" in config else model
        made.register_buffer("steps", torch.zeros(()))
        made.wrong = (config.get("fail_at"), config.get("nan_at"))  # type: ignore[assignment]
        return made

    def configure_optimizers(self, model: nn.Module, config: Mapping[str, Any]) -> Any:
        optimizer = OPTIMIZERS[config.get("optimizer", "momentum")](
            model.parameters(), config.get("lr", 0.05)
        )
        return optimizer, SCHEDULES[config.get("schedule", "none")](optimizer)

    def training_step(self, model: Any, batch: Any) -> Any:
        fail_at, nan_at = model.wrong
        made = super().training_step(model, batch)
        if fail_at is None and nan_at is None:
            return made
        model.steps += 1
        if fail_at is not None and model.steps > fail_at:
            raise ArithmeticError("as asked")
        if nan_at is not None and model.steps > nan_at:
            made["loss"] = made["loss"] * float("nan")
        return made


class Varied(Zoo):
    """Augmented, so that each pass sees other chunks."""

    def augment(self, samples: Any, rng: np.random.Generator) -> Any:
        x, y = samples
        return x + 0.1 * rng.standard_normal(x.shape).astype(x.dtype), y


@dataclass
class Record:
    """What came of a trial."""

    state: Any = None
    visits: tuple[Visit, ...] = ()
    scores: list[Mapping[str, float]] = field(default_factory=list)
    loss: list[float] = field(default_factory=list)  # summed, of each unit
    signature: str = ""
    figures: dict[str, float] = field(default_factory=dict)
    error: TrialError | None = None


def trial(name: str, epochs: int, data: Data, **config: Any) -> Trial:
    return Trial(TrialId(name), float(epochs * data.samples), config, shards=frozenset(data.shards))


def epochs_of(what: Trial, data: Data) -> int:
    return round(what.samples / data.samples)


def plan(data: Data, epochs: int) -> list[Visit]:
    return [Visit(epoch, shard, epoch, 0) for epoch in range(epochs) for shard in data.shards]


def packed(
    recipe: Recipe,
    data: Data,
    trials: Sequence[Trial],
    fuse: bool = False,
    vault: Checkpoints | None = None,
    trainer: SlotTrainer | None = None,
    **options: Any,
) -> dict[TrialId, Record]:
    """All trials in one trainer, a unit of each at a time; those that are through, or fail,
    leave.
    """
    trainer = trainer or slot_trainer(recipe, data, vault, **options)
    found = {each.id: Record() for each in trials}
    going = list(trials)
    while going:
        units = []
        for each in going:
            record, visits = found[each.id], plan(data, epochs_of(each, data))
            visit = visits[len(record.visits)]
            units.append(Unit(each, record.visits, visit, evaluate=visit.shard == data.shards[-1]))
        losses: dict[TrialId, float] = {each.id: 0.0 for each in going}
        for name, news in trainer.train_pack(units, fuse):
            record = found[name]
            if isinstance(news, Part):
                losses[name] += news.values["loss"][0] if "loss" in news.values else 0.0
            elif isinstance(news, Done):
                record.visits = (*record.visits, news.visit)
                record.signature, record.figures = (news.signature, record.figures | news.figures)
                record.loss.append(losses[name])
                record.scores += [] if news.scores is None else [news.scores]
                record.state = trainer.state(name)
            else:
                record.error = news
        going = [
            t
            for t in going
            if found[t.id].error is None
            and len(found[t.id].visits) < len(plan(data, epochs_of(t, data)))
        ]
    return found


def by_hand(recipe: Recipe, data: Data, what: Trial) -> Record:
    """A trial by its lane's methods alone, without a trainer."""
    stream = Stream(recipe, data, seed=SEED, device=HERE, memory_gb=1.0)
    lane = TrainingLane(recipe, what.config, seed=SEED, device=HERE, epoch=float(data.samples))
    made = Record()
    for visit in plan(data, epochs_of(what, data)):
        lane.begin(data.size(visit.shard))
        losses: list[float] = []
        for chunk in stream.chunks(visit.shard, visit.turn, lane.settings.shuffle):
            with lane.rng:
                list(lane.feed(chunk))
        with lane.rng:
            list(lane.flush())
        losses.append(lane.taken()[1].get("loss", (0.0, 0.0))[0])
        lane.visits = made.visits = (*lane.visits, visit._replace(samples=data.size(visit.shard)))
        made.loss.append(sum(losses))
        if visit.shard == data.shards[-1]:
            made.scores.append(evaluate(lane, stream.validation()))
            with lane.rng:
                lane.end_epoch(made.scores[-1]["accuracy"])
    made.state = lane.state()
    return made


def as_alone(
    found: Mapping[TrialId, Record], recipe: Recipe, data: Data, trials: Sequence[Trial]
) -> None:
    """Each of the trials learnt what it learns alone."""
    for each in trials:
        same(found[each.id], by_hand(recipe, data, each))


def same(record: Any, alone: Any) -> None:
    """To the last bit, but for the order in which a unit's losses were added up."""
    assert record.error is None
    assert record.visits == alone.visits
    assert list(differences(record.state, alone.state)) == []
    assert record.scores == alone.scores
    assert record.loss == pytest.approx(alone.loss, rel=1e-12)
