"""The recipe in a file without a Recipe class: a LightningModule, or an instance."""

from pathlib import Path

import pytest
from adapt_kit import L

import shoal
from shoal.tools.arguments import recipe_of

assert L, "the kit skips these tests where lightning is not installed"

ONE = """
import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Numbers(L.LightningDataModule):
    def setup(self, stage):
        x = torch.arange(32.0).reshape(32, 1) / 32
        self.data = TensorDataset(x, 2 * x)

    def train_dataloader(self):
        return DataLoader(self.data, batch_size=8, shuffle=True)

    def val_dataloader(self):
        return DataLoader(self.data, batch_size=8)


class Line(L.LightningModule):
    def __init__(self, lr=0.1):
        super().__init__()
        self.save_hyperparameters()
        self.line = nn.Linear(1, 1)

    def training_step(self, batch, batch_idx):
        x, y = batch
        return nn.functional.mse_loss(self.line(x), y)

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.training_step(batch, batch_idx))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.hparams.lr)
"""
TWO = (
    ONE
    + """

class Other(Line):
    pass
"""
)
READY = (
    ONE
    + """
import shoal

recipe = shoal.lightning(Line, datamodule=Numbers, batch_size=4)
"""
)


def written(folder: Path, text: str) -> Path:
    file = folder / "lit_numbers.py"
    file.write_text(text)
    return file


@pytest.mark.parametrize(("text", "name"), [(ONE, ""), (TWO, ":Line"), (READY, "")])
def test_trains_the_module_in_a_file(text: str, name: str, tmp_path: Path) -> None:
    file = written(tmp_path, text)
    recipe = recipe_of(f"{file}{name}")
    storage = tmp_path / "study"
    space = {"lr": shoal.grid([0.01, 0.1])}
    study = shoal.create_study(
        recipe, storage=storage, metric="val_loss", mode="min", search_space=space
    )
    study.optimize(max_epochs=2, progress=False)
    assert study.best_trial.config["lr"] == 0.1

    head = study.folder.head()["recipe"] if hasattr(study, "folder") else None
    assert head is None or head["name"] == "Line"
    file.write_text(text.replace("mse_loss", "l1_loss"))
    with pytest.warns(UserWarning, match="has changed since the study began"):
        changed = shoal.load_study(storage).recipe
    assert changed.module is not recipe.module  # type: ignore[attr-defined]


def test_asks_which_module_is_meant(tmp_path: Path) -> None:
    file = written(tmp_path, TWO)
    with pytest.raises(ValueError, match="has Line, Other: say which one"):
        recipe_of(str(file))
