"""PyTorch's vision_transformer, here on scikit-learn's handwritten digits.

shoal run examples/door/vision_transformer.py
"""

import torch
from sklearn.datasets import load_digits
from torch import nn

import shoal


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


class VisionTransformer(shoal.Recipe):
    """Ten digits."""

    search_space = {"depth": shoal.grid([1, 2]), "lr": shoal.grid([1e-3, 3e-3])}
    metric, mode, max_epochs, batch_size = "accuracy", "max", 3, 64

    def data(self):
        images, labels = digits()
        return shoal.Data.arrays(images[:600], labels[:600], validation=0.25)

    def configure_model(self, config):
        return ViT(32, config["depth"])

    def configure_optimizers(self, model, config):
        optimizer = torch.optim.AdamW(model.parameters(), lr=config["lr"])
        return optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.7)

    def training_step(self, model, batch):
        images, labels = batch
        return nn.functional.cross_entropy(model(images), labels)

    def validation_step(self, model, batch):
        images, labels = batch
        return {"accuracy": (model(images).argmax(1) == labels).float()}
