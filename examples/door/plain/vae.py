"""PyTorch's vae without Shoal: a grid of four configurations."""

import itertools

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, random_split

EPOCHS = 2


class VAE(nn.Module):
    def __init__(self, latent):
        super().__init__()
        self.fc1 = nn.Linear(64, 48)
        self.fc21 = nn.Linear(48, latent)
        self.fc22 = nn.Linear(48, latent)
        self.fc3 = nn.Linear(latent, 48)
        self.fc4 = nn.Linear(48, 64)

    def encode(self, x):
        hidden = functional.relu(self.fc1(x))
        return self.fc21(hidden), self.fc22(hidden)

    def reparameterize(self, mu, logvar):
        std = torch.exp(0.5 * logvar)
        return mu + torch.randn_like(std) * std

    def decode(self, z):
        return torch.sigmoid(self.fc4(functional.relu(self.fc3(z))))

    def forward(self, x):
        mu, logvar = self.encode(x)
        return self.decode(self.reparameterize(mu, logvar)), mu, logvar


def losses(reconstructed, x, mu, logvar):
    bce = functional.binary_cross_entropy(reconstructed, x, reduction="none").sum(1)
    kld = -0.5 * (1 + logvar - mu.pow(2) - logvar.exp()).sum(1)
    return bce + kld


def images():
    return (load_digits().images.reshape(-1, 64) / 16).astype("float32")


def epoch_of(model, loader, optimizer=None):
    total = 0.0
    for x in loader:
        reconstructed, mu, logvar = model(x)
        loss = losses(reconstructed, x, mu, logvar)
        if optimizer is not None:
            optimizer.zero_grad()
            loss.mean().backward()
            optimizer.step()
        total += loss.sum().item()
    return total / len(loader.dataset)


def train(latent, lr):
    torch.manual_seed(0)
    training, validation = random_split(torch.tensor(images()), [0.8, 0.2])
    shuffled = DataLoader(training, batch_size=64, shuffle=True)
    held_out = DataLoader(validation, batch_size=64)
    model = VAE(latent)
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    for epoch in range(EPOCHS):
        model.train()
        epoch_of(model, shuffled, optimizer)
        model.eval()
        with torch.no_grad():
            loss = epoch_of(model, held_out)
        print(f"latent {latent}, lr {lr:g}, epoch {epoch}: loss {loss:.3f}")


for latent, lr in itertools.product((4, 8), (1e-3, 3e-3)):
    train(latent, lr)
