"""Commands that try the trials of a recipe before they run: what it raises is one error."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from shoal.cli import app

SOURCE = """
import numpy as np
import torch

import shoal


class Net(shoal.Recipe):
    search_space = {"lr": shoal.grid([0.5, 0.1])}
    metric, mode = "accuracy", "max"
    max_epochs = 1

    def data(self):
        x = np.ones((64, 5), np.float32)
        return shoal.Data.arrays(x, np.arange(64) % 3, validation=0.25)

    def configure_model(self, config):
        return torch.nn.Linear(5, 3)

    def configure_optimizers(self, model, config):
        return torch.optim.SGD(model.parameters(), lr=config["lr"])

    def training_step(self, model, batch):
        raise KeyError("no such layer")  # RAISES

    def validation_step(self, model, batch):
        return {"accuracy": torch.ones(len(batch[0]))}
"""


def said(folder: Path, *command: str) -> str:
    """The one line that the command ends with."""
    file = folder / "net.py"
    file.write_text(SOURCE)
    done = CliRunner().invoke(app, [command[0], str(file), *command[1:]])
    assert done.exit_code == 2, done.output
    [line] = [line for line in done.output.splitlines() if "error" in line]
    number = SOURCE[: SOURCE.index("# RAISES")].count("\n") + 1
    assert f"KeyError: 'no such layer', in training_step ({file}, line {number})" in line
    return line


def test_plan_names_the_trial_the_line_and_the_remedy(tmp_path: Path) -> None:
    line = said(tmp_path, "plan", "--policy", "fifo")
    assert "trial t000 cannot be trained" in line
    assert "its configuration is {'lr': 0.5}" in line
    assert line.endswith("mend the recipe, or leave this configuration out of the space")


@pytest.mark.slow
def test_profile_names_the_line(tmp_path: Path) -> None:
    line = said(tmp_path, "profile", "--out", str(tmp_path / "profile.toml"))
    assert "nothing could be timed" in line
