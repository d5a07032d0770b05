"""PyTorch's time_sequence_prediction: sine waves, an LSTM, and LBFGS with its closure.

shoal run examples/door/time_sequence_prediction.py
"""

import numpy as np
import torch
from torch import nn

import shoal


class Sequence(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.hidden = hidden
        self.lstm1 = nn.LSTMCell(1, hidden)
        self.lstm2 = nn.LSTMCell(hidden, hidden)
        self.linear = nn.Linear(hidden, 1)

    def forward(self, waves):
        zeros = waves.new_zeros(len(waves), self.hidden)
        first, second = (zeros, zeros), (zeros, zeros)
        outputs = []
        for value in waves.split(1, dim=1):
            first = self.lstm1(value, first)
            second = self.lstm2(first[0], second)
            outputs.append(self.linear(second[0]))
        return torch.cat(outputs, dim=1)


def sine_waves():
    shifts = np.random.default_rng(2).integers(-80, 80, (24, 1))
    return np.sin((np.arange(40) + shifts) / 6.0)


class SineWaves(shoal.Recipe):
    """All training waves are one batch."""

    search_space = {"hidden": shoal.grid([8, 16]), "lr": shoal.grid([0.4, 0.8])}
    metric, mode, max_epochs, batch_size = "loss", "min", 5, 21

    def data(self):
        waves = sine_waves()
        held_out, training = waves[:3], waves[3:]
        return shoal.Data.arrays(training, validation=(held_out,))

    def configure_model(self, config):
        return Sequence(config["hidden"]).double()

    def configure_optimizers(self, model, config):
        return torch.optim.LBFGS(model.parameters(), lr=config["lr"], max_iter=4)

    def training_step(self, model, batch, optimizers):
        (waves,) = batch

        def closure():
            optimizers[0].zero_grad()
            loss = nn.functional.mse_loss(model(waves[:, :-1]), waves[:, 1:])
            loss.backward()
            return loss

        return optimizers[0].step(closure)

    def validation_step(self, model, batch):
        (waves,) = batch
        return {"loss": (model(waves[:, :-1]) - waves[:, 1:]).square().mean(1)}
