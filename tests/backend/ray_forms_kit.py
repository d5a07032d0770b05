"""Forms of code and data that people bring, each as a recipe that trains in a second, for the
tests that take them to Ray.
"""

import io
import json
import os
import signal
import tarfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from one_cluster import KILL
from sklearn.linear_model import SGDClassifier
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import (
    DataLoader,
    IterableDataset,
    Sampler,
    TensorDataset,
    WeightedRandomSampler,
)

import shoal
from shoal.train.lane.checkpoints import Checkpoints

SAMPLES = 96


def perhaps_fatal() -> None:
    """Kill this process once, in the middle of a trial that has a checkpoint, if a test asks."""
    asked = Path(os.environ.get(KILL, "nowhere"))
    if asked.exists() and Checkpoints(asked.read_text(), 0).names():
        asked.unlink()
        os.kill(os.getpid(), signal.SIGKILL)


def table(samples: int = SAMPLES) -> tuple[Any, Any]:
    """Points and their classes."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, samples)
    x = rng.normal(size=(samples, 6)) + 2 * np.eye(3, 6)[y]
    return x.astype("float32"), y


class Sentence(NamedTuple):
    """Words, and their label; or a batch of both."""

    words: Tensor
    label: Any


def sentences() -> list[Sentence]:
    """Words of unequal numbers, each sentence with its label."""
    rng = np.random.default_rng(1)
    found = []
    for _ in range(SAMPLES):
        words = torch.from_numpy(rng.integers(1, 20, rng.integers(3, 9)))
        found.append(Sentence(words, int(words.sum()) % 3))
    return found


def padded(items: list[Sentence]) -> Sentence:
    words = nn.utils.rnn.pad_sequence([each.words for each in items], True)
    return Sentence(words, torch.tensor([each.label for each in items]))


class Points(shoal.Recipe):
    """Points with classes, brought as `bring` says."""

    search_space = {"lr": shoal.grid([1e-2, 1e-3])}
    metric, mode, max_epochs = "loss", "min", 4
    batch_size = 8
    inputs = 6

    def __init__(self, bring: Callable[[], Any], **settings: Any) -> None:
        self.bring = bring
        for name, value in settings.items():
            setattr(self, name, value)

    def data(self) -> Any:
        return self.bring()

    def configure_model(self, config: Mapping[str, Any]) -> nn.Module:
        return nn.Sequential(
            nn.Flatten(), nn.Linear(self.inputs, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3)
        )

    def configure_optimizers(self, model: nn.Module, config: Mapping[str, Any]) -> Any:
        return torch.optim.Adam(model.parameters(), lr=config["lr"])

    def training_step(self, model: nn.Module, batch: Any) -> Any:
        perhaps_fatal()
        return self.losses(model, batch).mean()

    def validation_step(self, model: nn.Module, batch: Any) -> Any:
        return {"loss": self.losses(model, batch)}

    def losses(self, model: nn.Module, batch: Any) -> Tensor:
        x, y = batch.values() if isinstance(batch, dict) else batch
        return cross_entropy(model(x.float()), y, reduction="none")


class Sentences(Points):
    """Padded batches."""

    drop = 0.2

    def configure_model(self, config: Mapping[str, Any]) -> nn.Module:
        return nn.Sequential(
            nn.EmbeddingBag(20, 8, padding_idx=0), nn.Dropout(self.drop), nn.Linear(8, 3)
        )

    def losses(self, model: nn.Module, batch: Any) -> Tensor:
        assert isinstance(batch, Sentence), "one class, wherever the data was pickled"
        return cross_entropy(model(batch.words), batch.label, reduction="none")


class Noisy(Sentences):
    """`prepare` and `augment` of ragged columns."""

    def prepare(self, samples: Any) -> Any:
        return [value % 19 + 1 for value in samples[0]], samples[1]

    def augment(self, samples: Any, rng: np.random.Generator) -> Any:
        words = [value[rng.permutation(len(value))][:-1] for value in samples[0]]
        return words, samples[1]


class Carried(shoal.Recipe):
    """A state that goes from batch to batch."""

    search_space = {"lr": shoal.grid([0.5, 0.1])}
    metric, mode, max_epochs = "loss", "min", 4
    batch_size = 4

    def data(self) -> shoal.Data:
        steps = np.random.default_rng(2).integers(0, 5, 4 * SAMPLES)
        return shoal.Data.sequence(steps, window=5, shards=2)

    def configure_model(self, config: Mapping[str, Any]) -> nn.Module:
        return nn.ModuleDict(
            {
                "words": nn.Embedding(5, 6),
                "rnn": nn.GRU(6, 6, batch_first=True),
                "out": nn.Linear(6, 5),
            }
        )

    def configure_optimizers(self, model: nn.Module, config: Mapping[str, Any]) -> Any:
        return torch.optim.SGD(model.parameters(), lr=config["lr"])

    def training_step(self, model: Any, batch: Any, state: Any) -> Any:
        perhaps_fatal()
        inputs, targets = batch
        seen, state = model["rnn"](model["words"](inputs), state)
        return cross_entropy(model["out"](seen).transpose(1, 2), targets), state

    def validation_step(self, model: Any, batch: Any, state: Any) -> Any:
        loss, state = self.training_step(model, batch, state)
        return {"loss": loss}, state


class Rivals(Points):
    """Two optimizers, of which a batch steps one after the other."""

    def configure_model(self, config: Mapping[str, Any]) -> nn.Module:
        return nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.2), nn.Linear(8, 3))

    def configure_optimizers(self, model: Any, config: Mapping[str, Any]) -> Any:
        first = torch.optim.Adam(model[0].parameters(), lr=config["lr"])
        second = torch.optim.SGD(model[2].parameters(), lr=config["lr"])
        return first, (second, torch.optim.lr_scheduler.StepLR(second, 1, 0.5))

    def training_step(self, model: nn.Module, batch: Any, optimizers: Any) -> Any:
        perhaps_fatal()
        for each in optimizers:
            each.zero_grad()
            loss = self.losses(model, batch).mean()
            loss.backward()
            each.step()
        return {"loss": loss}


class Closure(Rivals):
    """LBFGS."""

    def configure_optimizers(self, model: Any, config: Mapping[str, Any]) -> Any:
        return torch.optim.LBFGS(model.parameters(), lr=config["lr"], max_iter=3)

    def training_step(self, model: nn.Module, batch: Any, optimizers: Any) -> Any:
        perhaps_fatal()

        def closure() -> Any:
            optimizers[0].zero_grad()
            loss = self.losses(model, batch).mean()
            loss.backward()  # type: ignore[no-untyped-call]
            return loss

        return optimizers[0].step(closure)


class Recall:
    """A metric object such as those of torchmetrics."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.right, self.count = np.zeros(3), np.zeros(3)

    def update(self, logits: Tensor, target: Tensor) -> None:
        for kind in range(3):
            chosen = target == kind
            self.right[kind] += int((logits.argmax(1)[chosen] == kind).sum())
            self.count[kind] += int(chosen.sum())

    def compute(self) -> float:
        return float((self.right / self.count).mean())


class Whole(Points):
    """Scores of the whole validation set."""

    metric, mode = "recall", "max"

    def configure_metrics(self, config: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"recall": Recall()}

    def validation_step(self, model: nn.Module, batch: Any) -> Any:
        logits = model(batch[0])
        return {"recall": (logits, batch[1]), "logits": logits, "target": batch[1]}

    def validation_epoch(self, outputs: Any) -> Any:
        return {"perplexity": cross_entropy(outputs["logits"], outputs["target"]).exp()}


# -- data ------------------------------------------------------------------------------------------


class Sequential(IterableDataset[Any]):
    """Points, one after another."""

    def __iter__(self) -> Iterator[Any]:
        x, y = table()
        yield from zip(torch.from_numpy(x), y.tolist(), strict=True)


class EvenFirst(Sampler[int]):
    """An order of one's own, drawn from torch's generator."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[int]:
        drawn = torch.randperm(self.count).tolist()
        return iter(sorted(drawn, key=lambda number: number % 2))


def tensors(samples: int = SAMPLES) -> TensorDataset:
    x, y = table(samples)
    return TensorDataset(torch.from_numpy(x), torch.from_numpy(y))


def two_loaders() -> shoal.Data:
    train = DataLoader(tensors(), 8, shuffle=True, drop_last=True)
    return shoal.Data.loader(train, DataLoader(tensors(30), 8), shards=2)


def weighing_loader() -> Any:
    weights = np.arange(1, SAMPLES + 1).tolist()
    sampler = WeightedRandomSampler(weights, SAMPLES)
    return DataLoader(tensors(), 8, sampler=sampler), DataLoader(tensors(30), 8)


def ordering_loader() -> Any:
    loader = DataLoader(tensors(), 8, sampler=EvenFirst(SAMPLES))
    return loader, DataLoader(tensors(30), 8)


def arrays(**how: Any) -> shoal.Data:
    return shoal.Data.arrays(*table(), shards=2, **how)


def weighted() -> shoal.Data:
    return arrays().weighted(np.arange(SAMPLES) + 1.0)


def balanced() -> shoal.Data:
    return arrays().balanced(by=1)


def folded() -> shoal.Data:
    return arrays(validation=None).folds(2, stratify=1)


def in_order() -> shoal.Data:
    return arrays(order="sequential")


def iterable() -> shoal.Data:
    return shoal.Data.dataset(Sequential(), shards=2)


def ragged() -> shoal.Data:
    return shoal.Data.dataset(sentences(), shards=2, collate=padded)


def bucketed() -> shoal.Data:
    return ragged().bucketed(by=0)


class Files:
    """Files of each format in a folder, and data out of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        x, y = table()
        names = [*"abcdef", "kind"]
        rows = np.column_stack([x, y])
        lines = [",".join(f"{value:.4f}" for value in row[:-1]) for row in rows]
        text = [f"{line},k{kind}" for line, kind in zip(lines, y, strict=True)]
        (folder / "t.csv").write_text("\n".join([",".join(names), *text]) + "\n")
        np.save(folder / "x.npy", x)
        np.save(folder / "y.npy", y)
        for part in range(3):
            np.savez(folder / f"part{part}.npz", x=x[part::3], y=y[part::3])
        self._tables(x, y)
        self._pictures(y)

    def _tables(self, x: Any, y: Any) -> None:
        import pyarrow as pa

        rows = pa.FixedSizeListArray.from_arrays(pa.array(x.reshape(-1)), 6)
        held = pa.table({"x": rows, "y": pa.array(y)})
        with pa.ipc.new_file(str(self.folder / "t.arrow"), held.schema) as file:
            file.write_table(held, max_chunksize=20)

    def _pictures(self, y: Any) -> None:
        from PIL import Image

        for part in range(2):
            with tarfile.open(self.folder / f"t-{part}.tar", "w") as file:
                for number in range(part, SAMPLES, 2):
                    kind = int(y[number])
                    picture = io.BytesIO()
                    shade = 80 * kind + number % 50
                    Image.new("RGB", (4, 4), (shade, 0, 0)).save(picture, "PNG")
                    for name, content in (
                        ("png", picture.getvalue()),
                        ("cls", json.dumps(kind).encode()),
                    ):
                        about = tarfile.TarInfo(f"{number:03d}.{name}")
                        about.size = len(content)
                        file.addfile(about, io.BytesIO(content))
                    place = self.folder / "pictures" / f"k{kind}"
                    place.mkdir(parents=True, exist_ok=True)
                    (place / f"{number:03d}.png").write_bytes(picture.getvalue())

    def csv(self) -> shoal.Data:
        how = {"kind": "ordinal"}
        return shoal.Data.csv(self.folder / "t.csv", label="kind", encode=how, shards=2)

    def arrow(self) -> shoal.Data:
        return shoal.Data.arrow(self.folder / "t.arrow", shards=2)

    def images(self) -> shoal.Data:
        return shoal.Data.images(self.folder / "pictures", size=4, shards=2)

    def tar(self) -> shoal.Data:
        return shoal.Data.tar(str(self.folder / "t-*.tar"), columns=("png", "cls"), validation=None)

    def mapped(self) -> shoal.Data:
        x, y = (np.load(self.folder / f"{name}.npy", mmap_mode="r") for name in "xy")
        return shoal.Data.arrays(x, y, shards=2)

    def files(self) -> shoal.Data:
        return shoal.Data.files(str(self.folder / "part*.npz"), read_npz, validation=0.34)


def read_npz(path: Path) -> Any:
    with np.load(path) as file:
        return file["x"], file["y"]


# -- other libraries -------------------------------------------------------------------------------


def lightning_recipe(drop: float = 0.2) -> Any:
    """A LightningModule with a LightningDataModule, which keeps a count of its own."""
    lightning = pytest.importorskip(
        "lightning", reason="lightning is not installed: pip install lightning"
    )

    class Dots(lightning.LightningDataModule):  # type: ignore[misc, name-defined]
        def setup(self, stage: str) -> None:
            self.training, self.held_out = tensors(), tensors(30)

        def train_dataloader(self) -> Any:
            return DataLoader(self.training, batch_size=8, shuffle=True)

        def val_dataloader(self) -> Any:
            return DataLoader(self.held_out, batch_size=8)

    class Net(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self, lr: float) -> None:
            super().__init__()
            self.save_hyperparameters()
            self.net = nn.Sequential(nn.Linear(6, 8), nn.Dropout(drop), nn.Linear(8, 3))
            self.seen = 0

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            perhaps_fatal()
            self.seen += len(batch[0])
            loss = cross_entropy(self.net(batch[0]), batch[1])
            self.log("train_loss", loss)
            self.log("seen", float(self.seen))
            return loss

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.log("val_loss", cross_entropy(self.net(batch[0]), batch[1]))

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.Adam(self.parameters(), lr=self.hparams.lr)
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)]

    return shoal.lightning(
        Net,
        datamodule=Dots,
        shards=2,
        search_space={"lr": shoal.grid([1e-2, 1e-3])},
        metric="val_loss",
        mode="min",
        max_epochs=4,
    )


def huggingface_recipe() -> Any:
    """A small BERT with a collator."""
    transformers = pytest.importorskip(
        "transformers", reason="transformers is not installed: pip install transformers"
    )

    def model() -> Any:
        config = transformers.BertConfig(
            vocab_size=20,
            hidden_size=8,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=8,
            max_position_embeddings=16,
            num_labels=3,
        )
        return transformers.BertForSequenceClassification(config)

    def collator(items: list[Any]) -> dict[str, Tensor]:
        perhaps_fatal()
        batch = padded(items)
        mask = (batch.words != 0).long()
        words = {"input_ids": batch.words, "attention_mask": mask}
        return {**words, "labels": batch.label}

    def accuracy(seen: Any) -> dict[str, float]:
        return {"accuracy": (seen.predictions.argmax(1) == seen.label_ids).mean()}

    return shoal.huggingface(
        model,
        sentences(),
        0.25,
        collator,
        {"per_device_train_batch_size": 8, "num_train_epochs": 4, "warmup_ratio": 0.1},
        compute_metrics=accuracy,
        shards=2,
        search_space={"learning_rate": shoal.grid([1e-2, 1e-3])},
        metric="eval_accuracy",
        mode="max",
    )


class Linear(shoal.ShardRecipe):
    """scikit-learn's partial_fit."""

    search_space = {"alpha": shoal.grid([1e-4, 1e-3])}
    metric, mode, max_epochs, batch_size = "accuracy", "max", 4, 8

    def data(self) -> shoal.Data:
        return arrays()

    def init(self, config: Mapping[str, Any]) -> Any:
        return SGDClassifier(loss="log_loss", alpha=config["alpha"])

    def train_shard(self, state: Any, batches: Any, config: Mapping[str, Any]) -> Any:
        for x, y in batches:
            perhaps_fatal()
            state.partial_fit(x, y, classes=np.arange(3))
        return {}

    def validate_shard(self, state: Any, batches: Any, config: Mapping[str, Any]) -> Any:
        right = count = 0
        for x, y in batches:
            right += int((state.predict(x) == y).sum())
            count += len(y)
        return {"accuracy": (right, count)}

    def save(self, state: Any) -> Any:
        fitted = vars(state).items()
        return {name: value for name, value in fitted if name[-1] == "_" != name[0]}

    def load(self, config: Mapping[str, Any], saved: Any) -> Any:
        state = self.init(config)
        vars(state).update(saved)
        return state


def keras_recipe() -> Any:
    """A Keras 3 model."""
    os.environ.setdefault("KERAS_BACKEND", "torch")
    keras = pytest.importorskip("keras", reason="Keras is not installed: pip install keras")

    class Keras(Linear):
        search_space = {"lr": shoal.grid([1e-2, 1e-3])}

        def init(self, config: Mapping[str, Any]) -> Any:
            layers = keras.layers
            hidden, drop = layers.Dense(8, activation="relu"), layers.Dropout(0.2)
            model = keras.Sequential([layers.Input((6,)), hidden, drop, layers.Dense(3)])
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            model.compile(keras.optimizers.Adam(config["lr"]), loss)
            model.optimizer.build(model.trainable_variables)
            return model

        def train_shard(self, state: Any, batches: Any, config: Mapping[str, Any]) -> Any:
            total = count = 0.0
            for x, y in batches:
                perhaps_fatal()
                total += len(y) * float(state.train_on_batch(x, y))
                count += len(y)
                state.reset_metrics()
            return {"loss": (total, count)}

        def validate_shard(self, state: Any, batches: Any, config: Mapping[str, Any]) -> Any:
            right = count = 0
            for x, y in batches:
                right += int((state.predict_on_batch(x).argmax(1) == y).sum())
                count += len(y)
            return {"accuracy": (right, count)}

        def save(self, state: Any) -> Any:
            variables = state.variables + state.optimizer.variables
            return [keras.ops.convert_to_numpy(each) for each in variables]

        def load(self, config: Mapping[str, Any], saved: Any) -> Any:
            model = self.init(config)
            variables = model.variables + model.optimizer.variables
            for each, value in zip(variables, saved, strict=True):
                each.assign(value)
            return model

    return Keras()
