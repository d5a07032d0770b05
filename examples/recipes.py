"""Models of unlike data sets, losses and optimizers share a slot: two recipes in one study.

python examples/recipes.py
shoal run examples/recipes.py --space "lr=grid([0.01, 0.1])"
"""

from typing import Any

import torch
from digits import Digits
from sklearn.datasets import load_diabetes
from torch import nn

import shoal


class Diabetes(shoal.Recipe):
    """Linear regression on a table of 442 patients, ten figures each."""

    metric, mode, max_epochs, batch_size = "loss", "min", 5, 16
    search_space = {"lr": shoal.grid([1e-2, 1e-3])}

    def data(self) -> shoal.Data:
        x, y = load_diabetes(return_X_y=True)
        target = (y[:, None] - y.mean()) / y.std()
        return shoal.Data.arrays(
            (20 * x).astype("float32"), target.astype("float32"), validation=0.2
        )

    def configure_model(self, config: dict[str, Any]) -> nn.Module:
        return nn.Linear(10, 1)

    def configure_optimizers(self, model: nn.Module, config: dict[str, Any]) -> Any:
        return torch.optim.SGD(model.parameters(), lr=config["lr"], momentum=0.9)

    def training_step(self, model: nn.Module, batch: Any) -> Any:
        return nn.functional.mse_loss(model(batch[0]), batch[1])

    def validation_step(self, model: nn.Module, batch: Any) -> Any:
        return {"loss": (model(batch[0]) - batch[1]).square()[:, 0]}


recipes = {"digits": Digits(), "diabetes": Diabetes()}

if __name__ == "__main__":
    widths = {"width": shoal.grid([32, 64])}
    space = {
        "recipe": shoal.grid({"digits": widths, "diabetes": {}}),
        "lr": shoal.grid([0.01, 0.003]),
    }
    study = shoal.create_study(recipes, search_space=space)
    study.optimize(policy="pack(grouping=random)", max_epochs=3)
    for name, best in study.best_by_recipe.items():
        print(name, best.id, dict(best.config), round(best.value, 3))
    print(study.load_model(study.best_by_recipe["diabetes"], which="best"))
