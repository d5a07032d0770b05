"""PyTorch's mnist without Shoal: a grid of four configurations."""

import itertools

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset, random_split

EPOCHS = 2


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


def train_epoch(model, loader, optimizer):
    model.train()
    for images, labels in loader:
        optimizer.zero_grad()
        loss = functional.nll_loss(model(images), labels)
        loss.backward()
        optimizer.step()


def test(model, loader):
    model.eval()
    loss, right = 0.0, 0
    with torch.no_grad():
        for images, labels in loader:
            output = model(images)
            loss += functional.nll_loss(output, labels, reduction="sum").item()
            right += (output.argmax(1) == labels).sum().item()
    return loss / len(loader.dataset), right / len(loader.dataset)


def train(lr, gamma):
    torch.manual_seed(0)
    train_loader, valid_loader = loaders()
    model = Net()
    optimizer = torch.optim.Adadelta(model.parameters(), lr=lr)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma)
    for epoch in range(EPOCHS):
        train_epoch(model, train_loader, optimizer)
        scheduler.step()
        loss, accuracy = test(model, valid_loader)
        print(f"lr {lr:g}, gamma {gamma:g}, epoch {epoch}: {loss:.3f}, {accuracy:.3f}")


for lr, gamma in itertools.product((0.5, 1.0), (0.7, 0.9)):
    train(lr, gamma)
