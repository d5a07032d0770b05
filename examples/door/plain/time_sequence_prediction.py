"""PyTorch's time_sequence_prediction without Shoal: a grid of four configurations."""

import itertools

import numpy as np
import torch
from torch import nn

EPOCHS = 3


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


def train(hidden, lr):
    torch.manual_seed(0)
    waves = torch.tensor(sine_waves())
    held_out, training = waves[:3], waves[3:]
    model = Sequence(hidden).double()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=lr, max_iter=4)
    for epoch in range(EPOCHS):

        def closure():
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(training[:, :-1]), training[:, 1:])
            loss.backward()
            return loss

        optimizer.step(closure)
        with torch.no_grad():
            loss = nn.functional.mse_loss(model(held_out[:, :-1]), held_out[:, 1:])
        print(f"hidden {hidden}, lr {lr:g}, epoch {epoch}: loss {loss.item():.4f}")


for hidden, lr in itertools.product((8, 16), (0.4, 0.8)):
    train(hidden, lr)
