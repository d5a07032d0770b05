"""LightningModules as people write them, and ways to train them in Shoal and in a Trainer."""

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import shoal
from shoal.train.data.data import Data
from shoal.train.lane.lane import TrainingLane
from shoal.train.stream.stream import Stream

L = pytest.importorskip("lightning", reason="lightning is not installed: pip install lightning")
torchmetrics = pytest.importorskip(
    "torchmetrics", reason="torchmetrics is not installed: pip install torchmetrics"
)


def dots(count: int, seed: int) -> TensorDataset:
    """Points in eight dimensions, and on which side of a plane they lie."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 8, generator=generator)
    return TensorDataset(x, (x.sum(1) > 0).long())


class Dots(L.LightningDataModule):
    def __init__(self, batch_size: int = 16) -> None:
        super().__init__()
        self.batch_size = batch_size

    def setup(self, stage: str) -> None:
        self.training = dots(100, 0)
        self.held_out = dots(50, 1)

    def train_dataloader(self) -> Any:
        return DataLoader(self.training, batch_size=self.batch_size, shuffle=True)

    def val_dataloader(self) -> Any:
        return DataLoader(self.held_out, batch_size=32)


class Net(L.LightningModule):
    """A usual module: nothing in it is made for Shoal."""

    def __init__(self, width: int = 8, lr: float = 0.1, drop: float = 0.0) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.lr = lr
        self.net = nn.Sequential(
            nn.Linear(8, width), nn.ReLU(), nn.Dropout(drop), nn.Linear(width, 2)
        )

    def forward(self, x: Any) -> Any:
        return self.net(x)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        loss = nn.functional.cross_entropy(self(x), y)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        x, y = batch
        out = self(x)
        self.log("val_loss", nn.functional.cross_entropy(out, y), prog_bar=True)
        self.log_dict({"val_acc": (out.argmax(1) == y).float().mean()}, on_epoch=True)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=self.hparams.lr, momentum=0.9)


class OneCycle(Net):
    """Its schedule goes over all steps that its trainer is to make."""

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters(), lr=self.lr)
        steps = self.trainer.estimated_stepping_batches
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, self.lr, total_steps=int(steps))
        options = {"scheduler": schedule, "interval": "step"}
        return {"optimizer": optimizer, "lr_scheduler": options}


class WithMetrics(Net):
    def __init__(self, width: int = 8, lr: float = 0.1) -> None:
        super().__init__(width, lr)
        self.train_f1 = torchmetrics.F1Score(task="multiclass", num_classes=2)
        self.val_f1 = torchmetrics.F1Score(task="multiclass", num_classes=2, average="macro")

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        out = self(x)
        self.train_f1(out, y)
        return nn.functional.cross_entropy(out, y)

    def on_train_epoch_end(self) -> None:
        self.log("train_f1", self.train_f1.compute())
        self.train_f1.reset()

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        x, y = batch
        self.val_f1(self(x), y)
        self.log("val_f1", self.val_f1)


class Manual(Net):
    """Two optimizers that it steps by itself."""

    def __init__(self, width: int = 8, lr: float = 0.1) -> None:
        super().__init__(width, lr)
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> None:
        x, y = batch
        first, second = self.optimizers()
        loss = nn.functional.cross_entropy(self(x), y)
        first.zero_grad()
        second.zero_grad()
        self.manual_backward(loss)
        first.step()
        if batch_idx % 2 == 0:
            second.step()
        if self.trainer.is_last_batch:
            self.lr_schedulers().step()
        self.log("train_loss", loss)

    def configure_optimizers(self) -> Any:
        first = torch.optim.SGD(self.net[0].parameters(), lr=self.lr)
        second = torch.optim.Adam(self.net[3].parameters(), lr=self.lr / 10)
        return [first, second], [torch.optim.lr_scheduler.StepLR(first, 1, 0.5)]


def begun(recipe: Any, config: dict[str, Any]) -> dict[str, Any]:
    """The first weights of a trial."""
    data = recipe.data()
    cpu = torch.device("cpu")
    lane = TrainingLane(recipe, config, seed=0, device=cpu, epoch=float(data.samples))
    return {name: value.clone() for name, value in lane.model.state_dict().items()}


def batches(data: Data, size: int, seed: int = 0) -> list[list[torch.Tensor]]:
    """The batches of an epoch in Shoal's order, of data in one shard."""
    recipe = shoal.Recipe()
    device = torch.device("cpu")
    stream = Stream(recipe, data, seed=seed, device=device, memory_gb=1.0)
    return _cut(stream.chunks(data.shards[0], 0), size)


def _cut(chunks: Iterator[Any], size: int) -> list[list[torch.Tensor]]:
    columns = [torch.cat(column) for column in zip(*chunks, strict=True)]
    return [list(part) for part in zip(*(c.split(size) for c in columns), strict=True)]


def fitted(module: Any, train: list[Any], valid: Any, epochs: int, **options: Any) -> Any:
    """The trainer that has trained the module on these batches; without any files."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = L.Trainer(
            max_epochs=epochs,
            accelerator="cpu",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            num_sanity_val_steps=0,
            **options,
        )
        trainer.fit(module, DataLoader(train, batch_size=None), valid)  # type: ignore[arg-type]
    return trainer


def searched(
    recipe: shoal.Recipe, folder: Path, space: dict[str, Any], **options: Any
) -> shoal.Study:
    """A study of the recipe, trained."""
    metric = options.pop("metric", "val_loss")
    study = shoal.create_study(
        recipe, storage=folder, metric=metric, mode=options.pop("mode", "min"), search_space=space
    )
    study.optimize(progress=False, **options)
    return study
