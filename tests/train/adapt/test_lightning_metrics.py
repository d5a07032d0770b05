"""Metric objects, hyper-parameters, what an epoch's end logs: scores and weights as the Trainer's.

Each module is trained at once, and epoch by epoch by the same command given anew.
"""

from collections import deque
from pathlib import Path
from typing import Any

import adapt_kit as kit
import pytest
import torch
import torchmetrics
from adapt_kit import L
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

import shoal
from shoal.core.errors import StudyError

EPOCHS = 3
CLASSES = {"task": "multiclass", "num_classes": 2}


class Classifier(kit.Net):
    """Counts `seen` in its training steps, and logs that as `log` says."""

    log_seen: dict[str, Any] = {"on_step": False, "on_epoch": True}

    def __init__(self, lr: float = 0.1) -> None:
        super().__init__(lr=lr)
        self.seen = self.metric()

    def metric(self) -> Any:
        return torchmetrics.F1Score(**CLASSES, average="macro")

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        out = self(batch[0])
        self.seen(out, batch[1])
        self.log("seen", self.seen, **self.log_seen)
        return nn.functional.cross_entropy(out, batch[1])


class OfStepAndEpoch(Classifier):
    log_seen = {"on_step": True, "on_epoch": True}


class LoggedAtEnd(Classifier):
    """As the pages of torchmetrics do it."""

    log_seen = {}

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        out = self(batch[0])
        self.seen(out, batch[1])
        self.log("of_step", self.seen)
        return nn.functional.cross_entropy(out, batch[1])

    def on_train_epoch_end(self) -> None:
        self.log("seen", self.seen)


class Collected(Classifier):
    def metric(self) -> Any:
        both = torchmetrics.MetricCollection(
            {
                "seen": torchmetrics.F1Score(**CLASSES, average="macro"),
                "accuracy": torchmetrics.Accuracy(**CLASSES),
            }
        )
        self.valid = both.clone(prefix="val_")
        return both

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        out = self(batch[0])
        self.seen(out, batch[1])
        self.log_dict(self.seen, **self.log_seen)
        return nn.functional.cross_entropy(out, batch[1])

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        super().validation_step(batch, batch_idx)
        self.valid.update(self(batch[0]), batch[1])

    def on_validation_epoch_end(self) -> None:
        self.log_dict(self.valid.compute())
        self.valid.reset()


class Extremes(Classifier):
    """Its smallest and largest value are no states of torchmetrics'."""

    def metric(self) -> Any:
        return torchmetrics.MinMaxMetric(torchmetrics.MeanMetric())

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = nn.functional.cross_entropy(self(batch[0]), batch[1])
        self.seen.update(loss.detach())
        return loss

    def on_train_epoch_end(self) -> None:
        found = self.seen.compute()
        self.log("seen", found["max"] - found["min"])


class Windowed(Classifier):
    """Its steps depend on the last steps', also those before a validation."""

    def metric(self) -> Any:
        return torchmetrics.wrappers.Running(torchmetrics.MeanMetric(), window=7)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = nn.functional.cross_entropy(self(batch[0]), batch[1])
        self.seen.update(loss.detach())
        return loss * (1 + self.seen.compute())

    def on_train_epoch_end(self) -> None:
        self.log("seen", self.seen.compute())


class Cooling(kit.Net):
    """Changes its hyper-parameters while it trains."""

    def on_train_epoch_end(self) -> None:
        self.hparams.lr *= 0.5
        self.hparams["epochs"] = self.current_epoch + 1
        self.log("seen", self.hparams.lr)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = nn.functional.cross_entropy(self(batch[0]), batch[1])
        return loss * self.hparams.get("epochs", 0.5) * self.hparams.lr


class Follows(kit.Net):
    """Its rate follows what is logged at the epoch's end."""

    def on_train_epoch_end(self) -> None:
        self.log("seen", 1.0 + self.current_epoch)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=self.lr)
        plateau = ReduceLROnPlateau(optimizer, patience=0)
        options = {"scheduler": plateau, "monitor": "seen"}
        return {"optimizer": optimizer, "lr_scheduler": options}


class Rows(L.Callback):  # type: ignore[misc,name-defined]
    """What the Trainer has at the end of each epoch, after the hooks of modules."""

    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []

    def on_train_epoch_start(self, trainer: Any, _: Any) -> None:
        if trainer.current_epoch:
            self.on_train_end(trainer, _)

    def on_train_end(self, trainer: Any, _: Any) -> None:
        values = trainer.callback_metrics.items()
        self.rows.append({name: float(value) for name, value in values})


KINDS = [Classifier, OfStepAndEpoch, LoggedAtEnd, Collected, Extremes, Windowed, Cooling, Follows]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", KINDS)
def test_scores_and_weights_are_the_trainers(kind: Any, tmp_path: Path) -> None:
    def recipe() -> shoal.Recipe:
        return shoal.lightning(kind, train=training, valid=valid, batch_size=16)

    training, valid = kit.dots(72, 0), kit.dots(40, 1)
    plain, rows = kind(), Rows()
    plain.load_state_dict(kit.begun(recipe(), {"lr": 0.1}))
    loader = torch.utils.data.DataLoader(valid, batch_size=64)
    batches = kit.batches(recipe().data(), 16)
    kit.fitted(plain, batches, loader, EPOCHS, callbacks=[rows])
    for lengths in ([EPOCHS], range(1, EPOCHS + 1)):
        folder = tmp_path / str(len(lengths))
        for epochs in lengths:
            study = shoal.create_study(
                recipe(),
                storage=folder,
                metric="seen",
                mode="min",
                search_space={"lr": shoal.grid([0.1])},
                load_if_exists=True,
            )
            study.optimize(max_epochs=epochs, progress=False, workers=0)
        (row,) = study.replay()
        assert row["verdict"] == "equal", row
        trained = study.load_model("t000").state_dict()
        for name, value in plain.state_dict().items():
            torch.testing.assert_close(trained[name], value, rtol=0, atol=2e-6)
        scores = [score for _, score in study.trials[0].scores]
        names = {"seen", "val_loss", "val_seen", "val_accuracy", "accuracy"}
        for ours, theirs in zip(scores, rows.rows, strict=True):
            for name in names & theirs.keys():
                assert ours[name] == pytest.approx(theirs[name], abs=2e-6), name


class Deque(torchmetrics.MeanMetric):
    def __init__(self) -> None:
        super().__init__()
        self.newest: deque[float] = deque()

    def update(self, value: Any, *more: Any) -> None:
        super().update(value)
        self.newest.append(float(value))


class Scaled(L.LightningModule):  # type: ignore[misc,name-defined]
    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.save_hyperparameters()


class Holder:
    factor = 1.0


class Losing(kit.Net):
    """Changes, in training, what no state of a trial holds; `held` says what."""

    held = "list"

    def __init__(self, lr: float = 0.1) -> None:
        super().__init__(lr=lr)
        self.listed = [torchmetrics.MeanMetric()]
        self.recent = Deque()
        self.inner = Scaled()
        self.hparams["object"] = Holder()

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if self.held == "list":
            self.listed[0].update(float(batch_idx + 1))
        elif self.held == "metric's object":
            self.recent.update(float(batch_idx))
        elif self.held == "inner":
            self.inner.hparams.factor += 0.1
        elif self.held == "object":
            self.hparams.object.factor += 0.1
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.listed[0].update(1.0)  # and is reset: that does no harm
        super().validation_step(batch, batch_idx)
        self.listed[0].reset()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("held", "says"),
    [
        ("list", "attribute 'listed' of the model"),
        ("metric's object", "attribute 'newest' of the model's recent"),
        ("inner", "attribute '_hparams' of the model's inner"),
        ("object", "attribute '_hparams' of the model"),
        ("nothing", ""),
    ],
)
def test_what_no_state_holds_is_refused(held: str, says: str, tmp_path: Path) -> None:
    kind = type("Losing", (Losing,), {"held": held})
    recipe = shoal.lightning(kind, train=kit.dots(72, 0), valid=kit.dots(40, 1))
    grid = {"lr": shoal.grid([0.1])}
    if not says:
        study = kit.searched(recipe, tmp_path, grid, max_epochs=2)
        assert study.replay()[0]["verdict"] == "equal"
        return
    with pytest.raises(StudyError, match=says):
        kit.searched(recipe, tmp_path, grid, max_epochs=2)


class Two(kit.Net):
    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD(layer.parameters(), 0.1) for layer in self.net[::3]]


class Closing(kit.Net):
    def configure_optimizers(self) -> Any:
        return torch.optim.LBFGS(self.parameters())


class ClosingRecipe(shoal.Recipe):
    def data(self) -> shoal.Data:
        return shoal.Data.dataset(kit.dots(72, 0))

    def configure_model(self, config: Any) -> nn.Module:
        return nn.Linear(8, 2)

    def configure_optimizers(self, model: nn.Module, config: Any) -> Any:
        return torch.optim.LBFGS(model.parameters())

    def training_step(self, model: nn.Module, batch: Any) -> Any:
        return nn.functional.cross_entropy(model(batch[0]), batch[1])


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (Two, r"returned 2 optimizers.*set self.automatic_optimization = False"),
        (Closing, r"LBFGS steps by a closure.*self.automatic_optimization = False"),
        (ClosingRecipe, r"LBFGS steps by a closure.*training_step\(self, model, batch"),
    ],
)
def test_optimizers_that_the_step_must_step_are_refused_with_the_remedy(
    kind: Any, says: str, tmp_path: Path
) -> None:
    recipe = kind()
    if not isinstance(recipe, shoal.Recipe):
        recipe = shoal.lightning(kind, train=kit.dots(72, 0), valid=kit.dots(40, 1))
    with pytest.raises(StudyError, match=says):
        kit.searched(recipe, tmp_path, {"lr": 0.1}, metric="loss", max_epochs=1)
