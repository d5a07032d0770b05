"""A LightningModule and a LightningDataModule as they are, searched by Shoal.

shoal run examples/door/lightning_module.py
"""

import lightning
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import shoal


class Digits(lightning.LightningDataModule):
    def setup(self, stage):
        x, y = load_digits(return_X_y=True)
        x, y = torch.tensor(x / 16, dtype=torch.float32), torch.tensor(y)
        self.training = TensorDataset(x[:1400], y[:1400])
        self.held_out = TensorDataset(x[1400:], y[1400:])

    def train_dataloader(self):
        return DataLoader(self.training, batch_size=32, shuffle=True)

    def val_dataloader(self):
        return DataLoader(self.held_out, batch_size=128)


class Classifier(lightning.LightningModule):
    def __init__(self, width, lr):
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(
            nn.Linear(64, width), nn.ReLU(), nn.Dropout(0.1), nn.Linear(width, 10)
        )

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = nn.functional.cross_entropy(self(x), y)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        logits = self(x)
        self.log("val_loss", nn.functional.cross_entropy(logits, y))
        self.log("val_acc", (logits.argmax(1) == y).float().mean())

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=self.hparams.lr)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)]


recipe = shoal.lightning(
    Classifier,
    datamodule=Digits,
    search_space={"width": shoal.grid([32, 64]), "lr": shoal.grid([1e-3, 1e-2])},
    metric="val_acc",
    mode="max",
    max_epochs=6,
)
