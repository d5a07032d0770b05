"""Studies of recipes with several optimizers, with closures, and with steps of their own."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import shoal
from shoal.core.errors import StudyError


class Two(shoal.Recipe):
    """A body and a head with an optimizer each, and LBFGS for the head if asked for."""

    metric, mode, max_epochs = "loss", "min", 2
    search_space = {"lr": shoal.grid([0.1, 0.02])}
    batch_size = 16

    def data(self) -> shoal.Data:
        rng = torch.Generator().manual_seed(0)
        x = torch.randn(96, 5, generator=rng)
        y = (x[:, 0] > 0).long()
        return shoal.Data.arrays(x.numpy(), y.numpy(), validation=0.25, shards=2)

    def configure_model(self, config: Mapping[str, Any]) -> nn.Module:
        return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 2))

    def configure_optimizers(self, model: Any, config: Mapping[str, Any]) -> Any:
        body = torch.optim.SGD(model[0].parameters(), lr=config["lr"], momentum=0.9)
        head = torch.optim.LBFGS(model[2].parameters(), lr=config["lr"], max_iter=2)
        schedule = torch.optim.lr_scheduler.StepLR(body, 1, 0.5)
        return [body, head], [schedule]

    def training_step(  # type: ignore[override]
        self, model: Any, batch: Any, optimizers: Any
    ) -> Any:
        x, y = batch
        body, head = optimizers

        def closure() -> Any:
            head.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            return loss

        body.zero_grad()
        loss = head.step(closure)
        body.step()
        return loss

    def validation_step(self, model: nn.Module, batch: Any) -> Any:
        x, y = batch
        return nn.functional.cross_entropy(model(x), y, reduction="none")


@pytest.mark.parametrize("policy", ["pack", "hop"])
def test_such_a_study_trains_and_replays(tmp_path: Path, policy: str) -> None:
    study = shoal.create_study(Two(), storage=tmp_path / "s")
    study.optimize(policy=policy, progress=False)
    assert [trial.status for trial in study.trials] == ["finished"] * 2
    assert all(row["equal"] for row in study.replay())


def test_population_based_training_works_with_several_optimizers(tmp_path: Path) -> None:
    space = {"lr": shoal.loguniform(0.01, 0.1)}
    study = shoal.create_study(Two(), storage=tmp_path / "s", search_space=space)
    searcher = shoal.PBT(num_samples=4, max_epochs=3, quantile_fraction=0.5)
    study.optimize(searcher, progress=False)
    assert any(known.start for known in study.state.known.values())
    assert all(row["equal"] for row in study.replay())


class Unstepped(Two):
    def training_step(self, model: nn.Module, batch: Any) -> Any:
        x, y = batch
        return nn.functional.cross_entropy(model(x), y)


class Clipped(Two):
    gradient_clip_val = 1.0


@pytest.mark.parametrize(
    ("recipe", "given", "match"),
    [
        (Unstepped(), {}, "returned 2 optimizers, so that training_step must step"),
        (Clipped(), {}, "gradient_clip_val=1.0 would do nothing: leave it out"),
        (
            Two(),
            {"backend": "ray", "widths": (1, 2)},
            r"such a trial has one slot: give widths=\(1, 1\).* got widths=\(1, 2\)",
        ),
    ],
)
def test_what_does_not_fit_is_refused_before_the_first_line(
    tmp_path: Path, recipe: shoal.Recipe, given: dict[str, Any], match: str
) -> None:
    study = shoal.create_study(recipe, storage=tmp_path / "s")
    with pytest.raises(StudyError, match=match):
        study.optimize(progress=False, **given)
    assert not study.folder.journal.exists()


def test_a_setting_that_does_nothing_is_refused_in_a_space_too(tmp_path: Path) -> None:
    space = {"lr": 0.1, "accumulate_grad_batches": shoal.grid([1, 2])}
    study = shoal.create_study(Two(), storage=tmp_path / "s", search_space=space)
    with pytest.raises(StudyError, match="accumulate_grad_batches=2 would do nothing"):
        study.optimize(progress=False)
