"""Searches whose trials are widened as rungs thin out: who goes on, and what each trial learns."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from ray_wide_kit import Exact, check_replay, gangs_of
from torch import nn

import shoal

pytestmark = pytest.mark.usefixtures("shared_ray")


class Rated(Exact):
    """The learning rate is searched for."""

    def configure_optimizers(self, model: nn.Module, config: Mapping[str, Any]) -> Any:
        return torch.optim.SGD(model.parameters(), lr=config["lr"], momentum=0.9)


def searched(folder: Path, name: str, **options: Any) -> shoal.Study:
    recipe = Rated(folder.parent / "traces", samples=603, slow=0.01)
    study = shoal.create_study(
        recipe,
        storage=folder,
        search_space={"lr": shoal.loguniform(1e-3, 1e-1)},
        metric="accuracy",
        mode="max",
    )
    study.optimize(name, progress=False, **options)
    return study


@pytest.mark.parametrize(
    ("name", "trials", "epochs"),
    [
        pytest.param("halving(reduction_factor=2)", 5, 4, marks=pytest.mark.nightly),
        pytest.param("pbt(perturbation_interval=1)", 2, 2, marks=pytest.mark.slow),
    ],
)
def test_widened_trials_go_on_and_score_as_on_one_slot(
    tmp_path: Path, name: str, trials: int, epochs: int
) -> None:
    more = {"num_samples": trials, "max_epochs": epochs}
    alone = searched(tmp_path / "alone", name, policy="fifo", **more)
    wide = searched(
        tmp_path / "wide", name, policy="waterfill", backend="ray", slots=4, widths=(1, 4), **more
    )
    assert max(len(gang.slots) for gang in gangs_of(wide)) > 1
    one, other = alone.state, wide.state
    assert one.done == other.done and one.scores.keys() == other.scores.keys()
    for trial, scores in one.scores.items():
        for (at, values), (then, others) in zip(scores, other.scores[trial], strict=True):
            assert at == then and values == pytest.approx(others, rel=1e-9)
    assert {t: x.config for t, x in one.known.items()} == {
        t: x.config for t, x in other.known.items()
    }
    check_replay(wide, trials=len(other.known))
