"""Trials that end early within a flotilla, on slots of Ray: their slots go to the others."""

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from ray_wide_kit import Exact, check_replay
from torch import nn

import shoal
from shoal.backend.ray import cluster as ray_cluster
from shoal.core.event import Planned, Retired
from shoal.core.plan import goes_on
from shoal.policy.width.flotilla import Flotilla
from shoal.search.stopping import Patience

pytestmark = pytest.mark.nightly
EPOCHS, GOING, STUCK = 8, 8, 4


class Rising(Exact):
    """Its score counts the steps, so that it always rises; that of width 4 stays where it is."""

    metric, mode = "steps", "max"

    def configure_model(self, config: Mapping[str, Any]) -> nn.Module:
        model = super().configure_model(config)
        model.register_buffer("steps", torch.zeros(1))
        return model

    def training_step(self, model: Any, batch: Any) -> Any:
        if not (self.traces / "over").exists():
            time.sleep(0.002 * len(batch[0]))  # two slots halve it
        model.steps += model[0].out_features == GOING
        return super().training_step(model, batch)

    def validation_step(self, model: Any, batch: Any) -> Any:
        return {"steps": model.steps.expand(len(batch[0]))}


class StopStuck:
    """A callback that stops the trial whose score stays where it is."""

    def on_epoch(self, study: Any, trial: Any, epoch: float, values: Any) -> None:
        if epoch >= 2 and trial.config["width"] == STUCK:
            study.stop(trial.id)


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    own, _ = ray_cluster.join(None, 2, 1, 0.3)
    yield
    ray_cluster.leave(own, joined=True)


@pytest.mark.parametrize(
    ("ends_by", "alpha", "formed_again"),
    [("patience", 0.8, True), ("callback", 0.8, True), ("patience", 0.5, False)],
)
def test_who_has_converged_leaves_its_slot_to_the_flotilla_that_is_formed_then(
    tmp_path: Path, ends_by: str, alpha: float, formed_again: bool
) -> None:
    """One of two slots is busy then: fewer than 0.8 of them, and no fewer than 0.5."""
    recipe = Rising(tmp_path / "traces", samples=603, slow=0.0)
    study = shoal.create_study(
        recipe, storage=tmp_path / "study", search_space={"width": shoal.grid([STUCK, GOING])}
    )
    study.optimize(
        Patience(epochs=1) if ends_by == "patience" else "grid",
        policy=Flotilla(alpha=alpha, delta=1e9),
        max_epochs=EPOCHS,
        widths=(1, 2),
        backend="ray",
        slots=2,
        callbacks=[StopStuck()] if ends_by == "callback" else [],
        progress=False,
    )
    epochs = {trial.config["width"]: trial.epochs for trial in study.trials}
    assert epochs[GOING] == EPOCHS and 2 <= epochs[STUCK] < EPOCHS

    entries = [line.entry for line in study.lines()]
    at = next(i for i, entry in enumerate(entries) if isinstance(entry, Retired))
    before, after = widths(entries[:at]), widths(entries[at:])
    assert before == [1, 1], "a slot for each"
    assert after == ([2] if formed_again else [])
    (recipe.traces / "over").touch()
    check_replay(study, trials=2)


def widths(entries: list[Any]) -> list[int]:
    """The slots of each gang that was started; one whose quota was lifted goes on."""
    plans = [entry for entry in entries if isinstance(entry, Planned)]
    return [
        len(gang.slots)
        for plan in plans
        for gang in plan.start
        if not any(goes_on(before, gang) for before in plan.stop)
    ]
