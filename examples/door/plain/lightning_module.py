"""A LightningModule trained by Lightning's Trainer: a grid of four configurations."""

import itertools

import lightning
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

EPOCHS = 2


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


def train(width, lr):
    lightning.seed_everything(0)
    trainer = lightning.Trainer(
        max_epochs=EPOCHS,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Classifier(width, lr), datamodule=Digits())
    return float(trainer.callback_metrics["val_acc"])


for width, lr in itertools.product((32, 64), (1e-3, 1e-2)):
    print(f"width {width}, lr {lr:g}: val_acc {train(width, lr):.3f}")
