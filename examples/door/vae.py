"""PyTorch's vae: a variational autoencoder, here of scikit-learn's handwritten digits.

shoal run examples/door/vae.py
"""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional

import shoal


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


class VariationalAutoencoder(shoal.Recipe):
    """The images are their own targets."""

    search_space = {"latent": shoal.grid([4, 8]), "lr": shoal.grid([1e-3, 3e-3])}
    metric, mode, max_epochs, batch_size = "loss", "min", 8, 64
    shuffle = "each"

    def data(self):
        return shoal.Data.arrays(images(), validation=0.2)

    def configure_model(self, config):
        return VAE(config["latent"])

    def configure_optimizers(self, model, config):
        return torch.optim.Adam(model.parameters(), lr=config["lr"])

    def training_step(self, model, batch):
        return self.validation_step(model, batch)["loss"].mean()

    def validation_step(self, model, batch):
        (x,) = batch
        reconstructed, mu, logvar = model(x)
        return {"loss": losses(reconstructed, x, mu, logvar)}
