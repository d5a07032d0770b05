"""PyTorch's mnist: a small convolutional net, here on scikit-learn's handwritten digits.

shoal run examples/door/mnist.py
"""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset, random_split

import shoal


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3)
        self.conv2 = nn.Conv2d(16, 32, 3)
        self.dropout1 = nn.Dropout(0.25)
        self.dropout2 = nn.Dropout(0.5)
        self.fc1 = nn.Linear(128, 64)
        self.fc2 = nn.Linear(64, 10)

    def forward(self, x):
        x = functional.relu(self.conv1(x))
        x = functional.relu(self.conv2(x))
        x = self.dropout1(functional.max_pool2d(x, 2)).flatten(1)
        x = self.dropout2(functional.relu(self.fc1(x)))
        return functional.log_softmax(self.fc2(x), dim=1)


def loaders():
    digits = load_digits()
    images = torch.tensor(digits.images[:, None] / 16, dtype=torch.float32)
    data = TensorDataset(images, torch.tensor(digits.target))
    generator = torch.Generator().manual_seed(0)
    training, validation = random_split(data, [0.8, 0.2], generator)
    train_loader = DataLoader(training, batch_size=64, shuffle=True)
    return train_loader, DataLoader(validation, batch_size=256)


class Mnist(shoal.Recipe):
    """The DataLoaders as they are: their items, batch size and order."""

    search_space = {"lr": shoal.grid([0.5, 1.0]), "gamma": shoal.grid([0.7, 0.9])}
    metric, mode, max_epochs = "accuracy", "max", 4

    def data(self):
        return loaders()

    def configure_model(self, config):
        return Net()

    def configure_optimizers(self, model, config):
        optimizer = torch.optim.Adadelta(model.parameters(), lr=config["lr"])
        return optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 1, config["gamma"])

    def training_step(self, model, batch):
        images, labels = batch
        return functional.nll_loss(model(images), labels)

    def validation_step(self, model, batch):
        images, labels = batch
        output = model(images)
        return {
            "loss": functional.nll_loss(output, labels, reduction="none"),
            "accuracy": (output.argmax(1) == labels).float(),
        }
