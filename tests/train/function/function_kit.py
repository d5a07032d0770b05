"""Functions that the tests of functions train."""

from pathlib import Path
from typing import Any

import torch

import shoal


def train(config: dict[str, Any]) -> None:
    """A line is fitted to noise; its state is reported every `every` epochs."""
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=config["lr"])
    state = shoal.restore()
    begun = 0
    if state is not None:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        begun = state["epoch"]
    note(config, f"from {begun}")
    try:
        for epoch in range(begun, config.get("epochs", 9)):
            x = torch.randn(16, 3)
            loss = (model(x)[:, 0] - x.sum(1)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            kept = None
            if (epoch + 1) % config.get("every", 1) == 0:
                kept = {
                    "model": model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "epoch": epoch + 1,
                }
            shoal.report({"loss": loss}, checkpoint=kept)
    finally:
        note(config, "over")


def note(config: dict[str, Any], text: str) -> None:
    """Append a line to the configuration's file, if it names one."""
    if "notes" in config:
        with Path(config["notes"]).open("a") as file:
            file.write(text + "\n")


def losses(study: shoal.Study) -> list[list[float]]:
    """The scores of each trial, in their order."""
    return [[values["loss"] for _, values in t.scores] for t in study.trials]
