"""A LightningModule and its data, as users have them."""

from typing import Any

import lightning
import torch
from torch import nn


class Points(lightning.LightningDataModule):
    """A few points on a line."""

    def __init__(self, count: int = 12) -> None:
        super().__init__()
        self.count = count

    def _loader(self) -> Any:
        x = torch.linspace(0, 1, 2 * self.count).reshape(self.count, 2)
        data = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))
        return torch.utils.data.DataLoader(data, batch_size=4)

    train_dataloader = val_dataloader = _loader


class Fitted(lightning.LightningModule):
    """A line, with a schedule that asks how long it trains."""

    def __init__(self, lr: float = 0.1) -> None:
        super().__init__()
        self.lr, self.line = lr, nn.Linear(2, 1)

    def training_step(self, batch: Any, at: int) -> Any:
        return nn.functional.mse_loss(self.line(batch[0]), batch[1])

    def validation_step(self, batch: Any, at: int) -> None:
        self.log("loss", nn.functional.mse_loss(self.line(batch[0]), batch[1]))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=self.lr)
        steps = int(self.trainer.estimated_stepping_batches)
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class ByHand(Fitted):
    """It makes its steps itself."""

    def __init__(self, lr: float = 0.1) -> None:
        super().__init__(lr)
        self.automatic_optimization = False

    def training_step(self, batch: Any, at: int) -> None:
        optimizer: Any = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(super().training_step(batch, at))
        optimizer.step()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=self.lr)
