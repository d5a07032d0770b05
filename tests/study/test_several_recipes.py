"""Recipes by name in one study: models of unlike data sets, losses and optimizers share a slot."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import shoal
from shoal.core.errors import StudyError
from shoal.core.event import Planned
from shoal.core.plan import Gang
from shoal.engine.journal import read
from shoal.study.code.recipe_file import describe_recipe
from shoal.study.setup import data_of
from shoal.tools.arguments import space_of
from shoal.tools.profile import trials_of

Config = dict[str, Any]


class Waves(shoal.Recipe):
    """A classifier of 60 samples in two shards."""

    metric, mode, max_epochs = "accuracy", "max", 2
    search_space = {"width": shoal.grid([4, 8]), "lr": 0.05}
    scale = 1.0

    def data(self) -> shoal.Data:
        rng = np.random.default_rng(0)
        x = self.scale * rng.normal(size=(60, 5)).astype("float32")
        return shoal.Data.arrays(x, (x[:, 0] > 0).astype("int64"), shards=2)

    def configure_model(self, config: Config) -> nn.Module:
        return nn.Sequential(
            nn.Linear(5, config["width"]), nn.Dropout(0.2), nn.Linear(config["width"], 2)
        )

    def configure_optimizers(self, model: nn.Module, config: Config) -> Any:
        return torch.optim.Adam(model.parameters(), lr=config["lr"])

    def training_step(self, model: nn.Module, batch: Any) -> Any:
        x, y = batch
        return nn.functional.cross_entropy(model(x), y)

    def validation_step(self, model: nn.Module, batch: Any) -> Any:
        x, y = batch
        return {"accuracy": (model(x).argmax(1) == y).float()}


class Lines(shoal.Recipe):
    """A regression on 45 samples in three shards, with other batches and another optimizer."""

    metric, mode, max_epochs, batch_size = "accuracy", "max", 2, 7
    search_space = {"lr": shoal.grid([0.1, 0.01])}
    shuffle = "each"

    def data(self) -> shoal.Data:
        x = np.random.default_rng(1).normal(size=(45, 3)).astype("float32")
        return shoal.Data.arrays(x, x.sum(1, keepdims=True), shards=3)

    def augment(self, samples: Any, rng: np.random.Generator) -> Any:
        x, y = samples
        return x + 0.01 * rng.normal(size=x.shape).astype("float32"), y

    def configure_model(self, config: Config) -> nn.Module:
        return nn.Linear(3, 1)

    def configure_optimizers(self, model: nn.Module, config: Config) -> Any:
        return torch.optim.SGD(model.parameters(), lr=config["lr"], momentum=0.9)

    def training_step(self, model: nn.Module, batch: Any) -> Any:
        x, y = batch
        return nn.functional.mse_loss(model(x), y)

    def validation_step(self, model: nn.Module, batch: Any) -> Any:
        x, y = batch
        return {"accuracy": ((model(x) - y).abs() < 0.1).float()[:, 0]}


def both() -> dict[str, shoal.Recipe]:
    return {"waves": Waves(), "lines": Lines()}


def trained(recipe: Any, folder: Path, policy: str = "fifo", **more: Any) -> shoal.Study:
    study = shoal.create_study(recipe, storage=folder)
    study.optimize(policy=policy, progress=False, **more)
    return study


def weights(study: shoal.Study) -> list[list[np.ndarray]]:
    """Of each trial, in their order."""
    models = [study.load_model(trial.id) for trial in study.trials]
    return [[each.numpy() for each in model.state_dict().values()] for model in models]


def are_equal(one: list[list[np.ndarray]], other: list[list[np.ndarray]]) -> bool:
    """Whether all weights are equal to the bit."""
    pairs = zip(one, other, strict=True)
    return all(np.array_equal(a, b) for x, y in pairs for a, b in zip(x, y, strict=True))


def packs(study: shoal.Study) -> set[frozenset[str]]:
    """Which recipes were together in a gang."""
    recipes = {trial.id: str(trial.config["recipe"]) for trial in study.trials}
    gangs: list[Gang] = []
    for line in read(study.folder.journal):
        if isinstance(line.entry, Planned):
            gangs += line.entry.start
    return {frozenset(recipes[each] for each in gang.trials) for gang in gangs}


def test_a_pack_of_unlike_recipes_equals_studies_of_each(tmp_path: Path) -> None:
    packed = trained(both(), tmp_path / "both", "pack(grouping=random, fuse=True)")
    assert frozenset(both()) in packs(packed)
    alone = [
        *weights(trained(Waves(), tmp_path / "waves")),
        *weights(trained(Lines(), tmp_path / "lines")),
    ]
    assert are_equal(weights(packed), alone)
    assert all(row["equal"] for row in packed.replay())


@pytest.mark.slow
def test_each_is_scored_by_its_own_step_on_its_own_data(tmp_path: Path) -> None:
    study = trained(both(), tmp_path / "both", "pack(grouping=random)")
    alone = [trained(r, tmp_path / n) for n, r in both().items()]
    scores = [trial.value for one in alone for trial in one.trials]
    assert [trial.value for trial in study.trials] == scores
    assert {trial.epochs for trial in study.trials} == {2.0}
    assert "lines" in study.report().read_text()


@pytest.mark.slow
@pytest.mark.parametrize("searcher", ["random", "asha", "hyperband"])
def test_epochs_are_those_of_each_recipe(tmp_path: Path, searcher: str) -> None:
    space = {"recipe": shoal.choice(["waves", "lines"]), "width": 4}
    space["lr"] = shoal.loguniform(0.01, 0.1)
    study = shoal.create_study(both(), storage=tmp_path / "s", search_space=space)
    with pytest.warns(UserWarning, match="Lines does not read .width"):
        study.optimize(searcher, "fifo", num_samples=4, max_epochs=3, progress=False)
    assert all(trial.epochs in (1.0, 3.0) for trial in study.trials)
    assert {trial.status for trial in study.trials} == {"finished"}


@pytest.mark.slow
def test_a_run_that_was_cut_goes_on(tmp_path: Path) -> None:
    study = trained(both(), tmp_path / "cut", max_epochs=1)
    study.optimize(policy="fifo", max_epochs=2, progress=False)
    again = shoal.load_study(tmp_path / "cut")
    assert are_equal(weights(again), weights(trained(both(), tmp_path / "whole")))


class Ends(Lines):
    """Its schedule allows no step beyond its end."""

    def configure_optimizers(self, model: nn.Module, config: Config) -> Any:
        optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"])
        rates = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=9)
        return optimizer, rates


def test_the_schedule_of_each_says_whether_trials_can_go_on(tmp_path: Path) -> None:
    recipes = {"waves": Waves(), "ends": Ends()}
    study = trained(recipes, tmp_path / "s", max_epochs=1)
    assert {trial.status for trial in study.trials} == {"finished"}
    with pytest.raises(StudyError, match="2 trials .* cannot grow with OneCycleLR"):
        study.optimize(policy="fifo", max_epochs=2, progress=False)


def test_changed_data_of_one_is_refused(tmp_path: Path) -> None:
    trained(both(), tmp_path / "s")
    other = both()
    other["waves"].scale = 2.0  # type: ignore[attr-defined]
    study = shoal.create_study(other, storage=tmp_path / "s", load_if_exists=True)
    with pytest.raises(StudyError, match="the data of recipe waves changed"):
        study.optimize(progress=False)


def test_an_attribute_parts_makes_no_several_recipes(tmp_path: Path) -> None:
    class Body(Waves):
        parts = ("head", "tail")

    assert "parts" not in describe_recipe(Body())
    assert "depth" in (space_of(Body(), ["depth=grid([1, 2])"]) or {})


def test_the_head_names_the_code_of_each(tmp_path: Path) -> None:
    head = trained(both(), tmp_path / "s").folder.head()
    names = {name: part["name"] for name, part in head["recipe"]["parts"].items()}
    assert names == {"waves": "Waves", "lines": "Lines"}
    assert all(part["sha256"] for part in head["recipe"]["parts"].values())
    assert set(head["data"]["recipes"]) == set(names)


class Unscored(Lines):
    def validation_step(self, model: nn.Module, batch: Any) -> Any:
        return {"error": (model(batch[0]) - batch[1]).abs()[:, 0]}


class Upwards(Lines):
    metric, mode = "error", "up"  # type: ignore[assignment]


class Unsaid(Lines):
    metric, mode = "val_accuracy", None  # type: ignore[assignment]


def test_a_mode_that_looks_forgotten_is_warned_of(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="no mode was given.*val_accuracy"):
        shoal.create_study({"a": Waves(), "b": Unsaid()}, storage=tmp_path / "s")


@pytest.mark.parametrize(
    ("recipes", "more", "words"),
    [
        ({}, {}, "need at least one"),
        ({"a": Waves}, {}, r"give an instance, Waves\(\)"),
        ({"a": 3}, {}, "must be an instance of a shoal.Recipe"),
        ({"a::b": Waves()}, {}, "a text without '::'"),
        ({"a": lambda config: None}, {}, "must be an instance"),
        (both(), {"search_space": {"lr": 0.1}}, "needs a dimension 'recipe'"),
        (both(), {"search_space": {"recipe": shoal.grid(["b"])}}, "got 'b'"),
        ({"a": Waves(), "b": Unscored()}, {}, "accuracy"),
        ({"a": Waves(), "b": Upwards()}, {}, "mode must be .* got 'up'"),
    ],
)
def test_mistakes_are_one_error(
    tmp_path: Path, recipes: Any, more: dict[str, Any], words: str
) -> None:
    with pytest.raises(StudyError, match=words):
        shoal.create_study(recipes, storage=tmp_path / "s", **more).optimize(progress=False)


def test_where_wide_trials_are_evaluated_is_checked_for_each_recipe(tmp_path: Path) -> None:
    """Half an epoch is three of all six shards, but ends within a visit of each recipe."""
    several = {"a": Lines(), "b": Lines()}
    options = {"validate_every": 0.5, "widths": (1, 2), "slots": 2, "backend": "ray"}
    with pytest.raises(StudyError, match="within a pass.* use a multiple of 0.333"):
        trained(several, tmp_path / "s", **options)


def test_the_profile_of_given_values_is_of_the_recipe_that_they_name(tmp_path: Path) -> None:
    study = shoal.create_study(both(), storage=tmp_path / "s")
    data = data_of(study.recipe)
    (trial,) = trials_of(study, data, {"recipe": "lines"})
    assert trial.config.keys() == {"recipe", "recipe.lr"}
    assert trial.shards == {f"lines::s00{number}" for number in range(3)}
    (trial,) = trials_of(study, data, {"recipe": "waves", "recipe.width": 3})
    assert trial.config == {"recipe": "waves", "recipe.width": 3, "recipe.lr": 0.05}
    with pytest.raises(ValueError, match="must be one of lines, waves; got 'x'"):
        trials_of(study, data, {"recipe": "x"})


def test_a_dimension_by_both_of_its_names_is_refused(tmp_path: Path) -> None:
    study = trained(both(), tmp_path / "s", max_epochs=1)
    words = "lr and recipe.lr, which are the same"
    with pytest.raises(ValueError, match=words):
        study.clone("t000", {"lr": 3.0}, warm_start=False)
    with pytest.raises(StudyError, match=words):
        study.enqueue({"recipe": "lines", "lr": 1.0, "recipe.lr": 2.0})


def test_a_copy_with_another_recipe_has_the_values_of_that_recipe(tmp_path: Path) -> None:
    study = trained(both(), tmp_path / "s", max_epochs=1)
    first, *_, last = study.trials
    assert first.config == {"recipe": "waves", "recipe.width": 4, "recipe.lr": 0.05}
    with pytest.raises(ValueError, match="'lines' needs recipe.lr, which the copied trial"):
        study.clone(first.id, {"recipe": "lines"}, warm_start=False)
    other = {"recipe": "lines", "recipe.lr": 0.5}
    copy = study.clone(first.id, other, warm_start=False)
    wide = {"recipe": "waves", "recipe.width": 8}
    back = study.clone(last.id, wide, warm_start=False)
    study.resume(progress=False)
    configs = {each.id: each.config for each in study.trials}
    assert configs[copy] == other
    assert configs[back] == {**wide, "recipe.lr": 0.05}
    assert {each.status for each in study.trials} == {"finished"}


def test_evaluations_at_unlike_times_are_no_default(tmp_path: Path) -> None:
    one, other = Waves(), Lines()
    one.validate_every, other.validate_every = 0.5, "4 steps"  # type: ignore[misc]
    study = shoal.create_study({"one": one, "other": other}, storage=tmp_path / "s")
    with pytest.raises(ValueError, match="one 0.5, other '4 steps'.*validate_every="):
        study.optimize(progress=False)


def test_copies_are_for_one_recipe(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="PBT copies weights"):
        trained(both(), tmp_path / "s", searcher="pbt(mutate=['recipe.lr'])", num_samples=4)


@pytest.mark.usefixtures("shared_ray")
@pytest.mark.slow
@pytest.mark.parametrize("policy", ["pack(grouping=random)", "hop"])
def test_on_ray_each_equals_its_visits_made_again_alone(tmp_path: Path, policy: str) -> None:
    study = trained(both(), tmp_path / "ray", policy, backend="ray", slots=2)
    rows = study.replay()
    assert len(rows) == 4
    assert all(row["verdict"] in ("equal", "agrees") for row in rows)
