"""An attribute that is read in the place of a dimension of the same name: one error before work."""

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import shoal
from shoal.core.errors import StudyError

X = np.random.default_rng(3).normal(size=(48, 6)).astype("float32")
Y = (X.sum(1) > 0).astype("int64")
ROWS = DataLoader(TensorDataset(torch.tensor(X), torch.tensor(Y)), 16)


class Base(shoal.Recipe):
    batch_size = 16

    def data(self) -> Any:
        return shoal.Data.arrays(X, Y, validation=0.25)

    def configure_model(self, config: Mapping[str, Any]) -> nn.Module:
        return nn.Linear(6, 2)

    def rate(self, config: Mapping[str, Any]) -> float:
        return float(config["lr"])

    def configure_optimizers(self, model: nn.Module, config: Mapping[str, Any]) -> Any:
        return torch.optim.SGD([{"params": model.parameters(), "lr": self.rate(config)}])

    def training_step(self, model: Any, batch: Any) -> Any:
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    def validation_step(self, model: nn.Module, batch: Any) -> Any:
        return {"accuracy": (model(batch[0]).argmax(1) == batch[1]).float()}


class Plain(Base):
    lr = 0.1

    def rate(self, config: Mapping[str, Any]) -> float:
        return self.lr


class OnInstance(Plain):
    def __init__(self) -> None:
        self.lr = 0.3


class ByName(Plain):
    def rate(self, config: Mapping[str, Any]) -> float:
        rate: float = getattr(self, "lr")
        return rate


class InStep(Plain):
    scale = 1.0

    def rate(self, config: Mapping[str, Any]) -> float:
        return float(config["lr"])

    def training_step(self, model: Any, batch: Any) -> Any:
        return self.scale * super().training_step(model, batch)


class Large(Plain):
    """Not rehearsed."""

    def features(self, samples: Any) -> Any:
        return samples

    def configure_optimizers(self, model: nn.Module, config: Mapping[str, Any]) -> Any:
        return torch.optim.SGD(model.parameters(), lr=self.lr)


class Read(Plain):
    def rate(self, config: Mapping[str, Any]) -> float:
        return float(config["lr"])


class Both(Plain):
    def rate(self, config: Mapping[str, Any]) -> float:
        return float(config.get("lr", self.lr))


class ReadInStep(Plain):
    def rate(self, config: Mapping[str, Any]) -> float:
        return self.lr

    def training_step(self, model: Any, batch: Any, config: Any) -> Any:  # type: ignore[override]
        return config["lr"] * nn.functional.cross_entropy(model(batch[0]), batch[1])


class InObject(Base):
    def __init__(self) -> None:
        self.args = SimpleNamespace(lr=0.1)

    def rate(self, config: Mapping[str, Any]) -> float:
        return float(self.args.lr)


class InClass(Base):
    class hp:  # noqa: N801
        lr = 0.1

    def rate(self, config: Mapping[str, Any]) -> float:
        return self.hp.lr


class InDict(Base):
    def __init__(self) -> None:
        self.config = {"lr": 0.1}

    def rate(self, config: Mapping[str, Any]) -> float:
        return self.config["lr"]


class Got(InDict):
    def rate(self, config: Mapping[str, Any]) -> float:
        return self.config.get("lr", 0.0)


class Spread(Base):
    options: Mapping[str, Any] = {"lr": 0.1}

    def rate(self, config: Mapping[str, Any]) -> float:
        return 0.0

    def configure_optimizers(self, model: nn.Module, config: Mapping[str, Any]) -> Any:
        return torch.optim.SGD(model.parameters(), **self.options)


scale = 1.0


class Global(Base):
    def rate(self, config: Mapping[str, Any]) -> float:
        return float(config["lr"])

    def training_step(self, model: Any, batch: Any) -> Any:
        return scale * super().training_step(model, batch)


class OfTheModel(Base):
    def configure_model(self, config: Mapping[str, Any]) -> nn.Module:
        model = super().configure_model(config)
        model.lr = 0.1  # type: ignore[assignment]
        return model

    def rate(self, config: Mapping[str, Any]) -> float:
        return 0.0

    def configure_optimizers(self, model: Any, config: Mapping[str, Any]) -> Any:
        return torch.optim.SGD(model.parameters(), lr=model.lr)


class Defaults(Base):
    """Read where the configuration says so, or has none."""

    defaults: Mapping[str, Any] = {"lr": 0.1, "scale": 1.0}

    def rate(self, config: Mapping[str, Any]) -> float:
        return float({**self.defaults, **config}["lr"])


class Late(Defaults):
    def rate(self, config: Mapping[str, Any]) -> float:
        if config.get("scale") == 7:
            return float(config["lr"])
        return float(self.defaults["lr"])


class Looped(Base):
    def rate(self, config: Mapping[str, Any]) -> float:
        return sum(config[name] for name in ("lr",))


def modules() -> dict[str, Any]:
    package = pytest.importorskip("lightning")

    class Module(package.LightningModule):  # type: ignore[misc,name-defined]
        lr = 0.1

        def __init__(self, width: int = 6) -> None:
            super().__init__()
            self.net = nn.Linear(width, 2)

        def training_step(self, batch: Any, number: int) -> Any:
            return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

        def validation_step(self, batch: Any, number: int) -> None:
            score = (self.net(batch[0]).argmax(1) == batch[1]).float().mean()
            self.log("accuracy", score)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=self.lr)

    class Ignoring(Module):
        def __init__(self, lr: float = 0.1) -> None:
            super().__init__()

    class Taking(Module):
        def __init__(self, lr: float = 0.1) -> None:
            super().__init__()
            self.lr = lr

    class Saving(Module):
        def __init__(self, lr: float = 0.1) -> None:
            super().__init__()
            self.save_hyperparameters()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=self.hparams.lr)

    return {
        "ignored argument": Ignoring,
        "function": lambda config: Module(),
        "taken argument": Taking,
        "saved argument": Saving,
        "reading function": lambda config: Taking(config["lr"]),
    }


def searched(recipe: Any, storage: Path, name: str = "lr") -> Any:
    space = {name: shoal.grid([0.01, 0.1])}
    if name != "lr":
        space["lr"] = shoal.grid([0.1])
    study = shoal.create_study(
        recipe, storage=storage, metric="accuracy", mode="max", search_space=space
    )
    study.optimize(max_epochs=1, progress=False, workers=0)
    return study


@pytest.mark.parametrize("kind", [InObject, InClass, InDict, Got, Spread])
def test_a_value_that_an_attribute_holds_is_refused(kind: Any, tmp_path: Path) -> None:
    with pytest.raises(StudyError, match=f"of {kind.__name__} has a value 'lr' of its"):
        searched(kind(), tmp_path / "study")
    assert not (tmp_path / "study" / "journal.jsonl").exists()


def test_a_global_variable_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="the code has a variable 'scale' of its own"):
        searched(Global(), tmp_path / "study", "scale")


def test_what_the_model_has_is_warned_of(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="OfTheModel does not read 'lr'"):
        searched(OfTheModel(), tmp_path / "study")


@pytest.mark.parametrize("kind", [Plain, OnInstance, ByName, Large])
def test_an_attribute_in_the_place_of_a_dimension_is_refused(kind: Any, tmp_path: Path) -> None:
    with pytest.raises(StudyError, match=f"{kind.__name__} has an attribute 'lr' of"):
        searched(kind(), tmp_path / "study")
    assert not (tmp_path / "study" / "journal.jsonl").exists()


def test_one_that_a_step_reads_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="has an attribute 'scale' of its own"):
        searched(InStep(), tmp_path / "study", "scale")


@pytest.mark.parametrize("kind", [Read, Both, ReadInStep, Defaults, Late, Looped])
def test_a_recipe_that_reads_its_configuration_may_have_it(kind: Any, tmp_path: Path) -> None:
    study = searched(kind(), tmp_path / "study")
    assert [trial.status for trial in study.trials] == ["finished"] * 2


@pytest.mark.parametrize("case", ["ignored argument", "function"])
def test_a_module_that_reads_its_attribute_is_refused(case: str, tmp_path: Path) -> None:
    recipe = shoal.lightning(modules()[case], train=ROWS, valid=ROWS)
    with pytest.raises(StudyError, match="has an attribute 'lr' of its own"):
        searched(recipe, tmp_path / "study")


@pytest.mark.parametrize("case", ["taken argument", "saved argument", "reading function"])
def test_a_module_that_takes_the_value_may_have_it(case: str, tmp_path: Path) -> None:
    recipe = shoal.lightning(modules()[case], train=ROWS, valid=ROWS)
    study = searched(recipe, tmp_path / "study")
    assert [trial.status for trial in study.trials] == ["finished"] * 2


def with_default(config: Mapping[str, Any], lr: float = 0.1) -> float:
    return lr + config["other"]


def with_both(config: Mapping[str, Any], lr: float = 0.1) -> float:
    return float(config.get("lr", lr)) + config["other"]


def test_a_function_that_reads_its_default_is_refused(tmp_path: Path) -> None:
    space = {"lr": shoal.grid([0.01, 0.1]), "other": 1}
    study = shoal.create_study(search_space=space, storage=tmp_path / "study")
    with pytest.raises(StudyError, match="with_default has an argument 'lr' and reads"):
        study.optimize(with_default, progress=False, workers=0)
    study = shoal.create_study(search_space=space, storage=tmp_path / "both")
    study.optimize(with_both, progress=False, workers=0)
    assert [trial.status for trial in study.trials] == ["finished"] * 2


# -- of other libraries ------------------------------------------------------------------------


class Loss(nn.Module):
    """In the form of Hugging Face's."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Dropout(dropout), nn.Linear(6, 2))

    def forward(self, x: Any, labels: Any) -> Any:
        logits = self.net(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def of_hugging_face(folder: Path, name: str, model: Any = None, **args: Any) -> Any:
    """Search over that name, where the arguments have a fixed value of it, too."""
    pytest.importorskip("transformers")
    rows = [{"x": x, "labels": int(y)} for x, y in zip(X, Y, strict=True)]
    model = model or (lambda config: Loss())
    recipe = shoal.huggingface(model, rows, rows[:16], args=args)
    space = {name: shoal.grid([0.1, 0.5])}
    study = shoal.create_study(
        recipe, storage=folder, metric="eval_loss", mode="min", search_space=space
    )
    study.optimize(max_epochs=2, progress=False, workers=0)
    return len({trial.value for trial in study.trials})


@pytest.mark.parametrize("name", ["learning_rate", "weight_decay", "warmup_ratio"])
def test_an_argument_of_hugging_face_gives_way_to_the_dimension(
    name: str, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    fixed = {"learning_rate": 0.01, name: 0.3}
    assert of_hugging_face(tmp_path, name, **fixed) == 2
    assert not [each for each in recwarn if "train alike" in str(each.message)]


@pytest.mark.parametrize("name", ["lr", "label_smoothing_factor", "dropout"])
def test_what_nothing_of_hugging_face_reads_is_warned_of(name: str, tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=f"does not read '{name}' .* train alike"):
        assert of_hugging_face(tmp_path, name, learning_rate=0.01) == 1


def test_what_the_users_function_reads_is_not(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    def model(config: Any) -> nn.Module:
        return Loss(config["dropout"])

    assert of_hugging_face(tmp_path, "dropout", model, learning_rate=0.01) == 2
    assert not [each for each in recwarn if "train alike" in str(each.message)]


def test_a_ratio_that_steps_stand_in_for_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="warmup_ratio, and warmup_steps=3 counts"):
        of_hugging_face(tmp_path, "warmup_ratio", warmup_steps=3)


def test_what_a_modules_function_does_not_read_is_warned_of(tmp_path: Path) -> None:
    kind = modules()["taken argument"]
    recipe = shoal.lightning(lambda config: kind(0.1), train=ROWS, valid=ROWS)
    space = {"dropout": shoal.grid([0.1, 0.5])}
    study = shoal.create_study(
        recipe, storage=tmp_path, metric="accuracy", mode="max", search_space=space
    )
    with pytest.warns(UserWarning, match="does not read 'dropout' .* train alike"):
        study.optimize(max_epochs=1, progress=False, workers=0)
