"""PyTorch's vision_transformer without Shoal: a grid of four configurations."""

import itertools

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

EPOCHS = 2


class ViT(nn.Module):
    """Patches of 2 x 2 pixels, a class token, positions, an encoder, a linear head."""

    def __init__(self, width, depth, heads=4):
        super().__init__()
        self.patches = nn.Conv2d(1, width, kernel_size=2, stride=2)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(0.02 * torch.randn(1, 17, width))
        layer = nn.TransformerEncoderLayer(
            width, heads, 2 * width, dropout=0.1, batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 10)

    def forward(self, x):
        patches = self.patches(x).flatten(2).transpose(1, 2)
        token = self.token.expand(len(x), -1, -1)
        seen = self.encoder(torch.cat([token, patches], dim=1) + self.positions)
        return self.head(self.norm(seen[:, 0]))


def digits():
    data = load_digits()
    return (data.images[:, None] / 16).astype("float32"), data.target


def train_epoch(model, loader, optimizer):
    model.train()
    for images, labels in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()


def accuracy_of(model, loader):
    model.eval()
    right = 0
    with torch.no_grad():
        for images, labels in loader:
            right += (model(images).argmax(1) == labels).sum().item()
    return right / len(loader.dataset)


def train(depth, lr):
    torch.manual_seed(0)
    data = TensorDataset(*(torch.tensor(part[:600]) for part in digits()))
    training, validation = random_split(data, [0.75, 0.25])
    shuffled = DataLoader(training, batch_size=64, shuffle=True)
    held_out = DataLoader(validation, batch_size=64)
    model = ViT(32, depth)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.7)
    for epoch in range(EPOCHS):
        train_epoch(model, shuffled, optimizer)
        scheduler.step()
        accuracy = accuracy_of(model, held_out)
        print(f"depth {depth}, lr {lr:g}, epoch {epoch}: accuracy {accuracy:.3f}")


for depth, lr in itertools.product((1, 2), (1e-3, 3e-3)):
    train(depth, lr)
