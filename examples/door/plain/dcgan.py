"""PyTorch's dcgan without Shoal: a grid of four configurations."""

import itertools

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader

LATENT = 16
EPOCHS = 2


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


def train(width, lr):
    torch.manual_seed(0)
    loader = DataLoader(torch.tensor(digits()), batch_size=64, shuffle=True)
    generator = Generator(width).apply(init_weights)
    discriminator = Discriminator(width).apply(init_weights)
    of_discriminator, of_generator = (
        torch.optim.Adam(network.parameters(), lr=lr, betas=(0.5, 0.999))
        for network in (discriminator, generator)
    )
    for epoch in range(EPOCHS):
        total = d_total = 0.0
        for real in loader:
            fake = generator(torch.randn(len(real), LATENT, 1, 1))

            discriminator.zero_grad()
            d_loss = score(discriminator(real), 1.0) + score(discriminator(fake.detach()), 0.0)
            d_loss.backward()
            of_discriminator.step()

            generator.zero_grad()
            loss = score(discriminator(fake), 1.0)
            loss.backward()
            of_generator.step()
            total += loss.item() * len(real)
            d_total += d_loss.item() * len(real)
        samples = len(loader.dataset)
        print(
            f"width {width}, lr {lr:g}, epoch {epoch}: "
            f"loss {total / samples:.3f}, d_loss {d_total / samples:.3f}"
        )


for width, lr in itertools.product((8, 16), (2e-4, 1e-3)):
    train(width, lr)
