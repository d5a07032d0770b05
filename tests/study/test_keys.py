"""Keys of a configuration that nobody reads, or that are missing, are said before training."""

import warnings
from pathlib import Path
from typing import Any

import pytest
from torch import nn
from torch.optim import SGD, Optimizer

import shoal
from shoal.core.errors import StudyError

SPACE = {"lr": shoal.grid([0.01, 0.1]), "margin": shoal.grid([1.0])}


def hinge(scores: Any, config: Any) -> Any:
    """A loss outside of the recipe, which reads the configuration."""
    return (config["margin"] - scores).clamp(min=0).mean()


class Margins(shoal.Recipe):
    """Reads one key in a method, and one in a function that it calls."""

    search_space: Any = SPACE
    max_epochs, batch_size = 1, 8

    def data(self) -> shoal.Data:
        import numpy as np

        return shoal.Data.arrays(np.ones((16, 2), "float32"), np.zeros(16))

    def configure_model(self, config: Any) -> nn.Module:
        return nn.Linear(2, 1)

    def configure_optimizers(self, model: nn.Module, config: Any) -> Optimizer:
        return SGD(model.parameters(), lr=config["lr"])

    def training_step(self, model: nn.Module, batch: Any, config: Any) -> Any:
        return hinge(model(batch[0]), config)


class HandedOn(Margins):
    """Hands the whole configuration to other code."""

    def configure_model(self, config: Any) -> nn.Module:
        return nn.Linear(**{"in_features": 2, "out_features": 1, **config.get("more", {})})


@pytest.fixture
def study(tmp_path: Path) -> shoal.Study:
    """A study that has trained."""
    made = shoal.create_study(Margins(), storage=tmp_path / "s")
    made.optimize(progress=False)
    return made


@pytest.mark.parametrize(
    ("config", "match"),
    [
        ({"lr": 0.02, "marginn": 1.5}, "'marginn'.*did you mean 'margin'"),
        ({"lr": 0.02}, "Margins reads margin.*has lr: give margin=…"),
        ({"lr": 0.02, "margin": 1.0, "foo": 1}, "nothing reads foo.*has lr, margin"),
    ],
)
def test_an_added_trial_has_the_keys_that_are_read(
    study: shoal.Study, config: dict[str, Any], match: str
) -> None:
    with pytest.raises(StudyError, match=match):
        study.enqueue(config)
    assert len(study.trials) == 2
    study.enqueue({"lr": 0.02, "margin": 1.5, "batch_size": 4, "seed": 3})
    study.optimize(progress=False)
    assert [trial.status for trial in study.trials] == ["finished"] * 3


def test_code_that_hands_the_configuration_on_may_read_anything(tmp_path: Path) -> None:
    study = shoal.create_study(HandedOn(), storage=tmp_path / "s")
    study.optimize(progress=False)
    assert study.enqueue({"lr": 0.02, "margin": 1.5, "foo": 1}) == "added1"


def test_functions_and_commands(tmp_path: Path) -> None:
    def train(config: Any) -> float:
        return float(config["lr"] * config["margin"])

    def objective(trial: Any) -> float:
        return float(trial.suggest_float("momentum", 0, 1))

    of_function = shoal.create_study(
        train, metric="loss", search_space=SPACE, storage=tmp_path / "f"
    )
    with pytest.raises(StudyError, match="train reads margin"):
        of_function.enqueue({"lr": 0.1})
    with pytest.raises(StudyError, match="did you mean 'margin'"):
        of_function.enqueue({"lr": 0.1, "margn": 1.0})
    of_objective = shoal.create_study(objective, storage=tmp_path / "o")
    with pytest.raises(StudyError, match="did you mean 'momentum'"):
        of_objective.enqueue({"momentumm": 0.1})
    command = shoal.create_study(
        command="python x.py {lr} {margin}",
        metric="loss",
        search_space=SPACE,
        storage=tmp_path / "c",
    )
    with pytest.raises(StudyError, match="x reads margin|python reads margin"):
        command.enqueue({"lr": 0.1})
    with pytest.raises(StudyError, match="nothing reads foo"):
        command.enqueue({"lr": 0.1, "margin": 1.0, "foo": 2})


@pytest.mark.parametrize("recipe", [Margins, HandedOn])
def test_a_dimension_that_nobody_reads_is_warned_of(tmp_path: Path, recipe: type[Margins]) -> None:
    space = {**SPACE, "margins": shoal.grid([1, 2])}
    study = shoal.create_study(recipe(), storage=tmp_path / "s", search_space=space)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        study.optimize(progress=False)
    said = [str(each.message) for each in caught if "search space" in str(each.message)]
    assert len(said) == (recipe is Margins)
    assert all("does not read 'margins' (did you mean 'margin'?)" in each for each in said)
