"""PyTorch's dcgan: two networks with an optimizer each, here of scikit-learn's handwritten digits.

shoal run examples/door/dcgan.py
"""

import torch
from sklearn.datasets import load_digits
from torch import nn

import shoal

LATENT = 16


class Generator(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.main = nn.Sequential(
            nn.ConvTranspose2d(LATENT, 2 * width, 4, 1, 0, bias=False),
            nn.BatchNorm2d(2 * width),
            nn.ReLU(),
            nn.ConvTranspose2d(2 * width, 1, 4, 2, 1, bias=False),
            nn.Tanh(),
        )

    def forward(self, noise):
        return self.main(noise)


class Discriminator(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.main = nn.Sequential(
            nn.Conv2d(1, width, 4, 2, 1, bias=False),
            nn.LeakyReLU(0.2),
            nn.Conv2d(width, 1, 4, 1, 0, bias=False),
        )

    def forward(self, images):
        return self.main(images).reshape(-1)


def init_weights(module):
    if isinstance(module, nn.Conv2d | nn.ConvTranspose2d):
        nn.init.normal_(module.weight, 0.0, 0.02)
    elif isinstance(module, nn.BatchNorm2d):
        nn.init.normal_(module.weight, 1.0, 0.02)
        nn.init.zeros_(module.bias)


def digits():
    return (load_digits().images[:, None] / 8 - 1).astype("float32")


def score(output, label):
    target = torch.full_like(output, label)
    return nn.functional.binary_cross_entropy_with_logits(output, target)


class DCGAN(shoal.Recipe):
    """Nothing is validated: trials are ranked by the generator's loss."""

    search_space = {"width": shoal.grid([8, 16]), "lr": shoal.grid([2e-4, 1e-3])}
    metric, mode, max_epochs, batch_size = "loss", "min", 6, 64
    shuffle = "each"

    def data(self):
        return shoal.Data.arrays(digits(), validation=None)

    def configure_model(self, config):
        networks = {
            "generator": Generator(config["width"]),
            "discriminator": Discriminator(config["width"]),
        }
        return nn.ModuleDict(networks).apply(init_weights)

    def configure_optimizers(self, model, config):
        return [
            torch.optim.Adam(network.parameters(), lr=config["lr"], betas=(0.5, 0.999))
            for network in (model["discriminator"], model["generator"])
        ]

    def training_step(self, model, batch, optimizers):
        (real,) = batch
        generator, discriminator = model["generator"], model["discriminator"]
        of_discriminator, of_generator = optimizers
        fake = generator(torch.randn(len(real), LATENT, 1, 1, device=real.device))

        discriminator.zero_grad()
        d_loss = score(discriminator(real), 1.0) + score(discriminator(fake.detach()), 0.0)
        d_loss.backward()
        of_discriminator.step()

        generator.zero_grad()
        loss = score(discriminator(fake), 1.0)
        loss.backward()
        of_generator.step()
        return {"loss": loss, "d_loss": d_loss}
