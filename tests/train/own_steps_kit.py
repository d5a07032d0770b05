"""Recipes whose training steps step the optimizers themselves."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits as against
from torch.nn.functional import cross_entropy
from torch.optim import LBFGS, SGD, Adam, Optimizer
from torch.optim.lr_scheduler import OneCycleLR, StepLR
from train_kit import Small

from shoal.train.recipe.recipe import LRSchedule


class Gan(Small):
    """A generator and a discriminator of the blobs, each with a schedule of its own kind."""

    def configure_model(self, config: Mapping[str, Any]) -> nn.Module:
        generator = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 6))
        judge = nn.Sequential(nn.Linear(6, 8), nn.LeakyReLU(0.2), nn.Dropout(0.2), nn.Linear(8, 1))
        return nn.ModuleDict({"generator": generator, "judge": judge})

    def configure_optimizers(self, model: Any, config: Mapping[str, Any]) -> Any:
        lr = config.get("lr", 0.01)
        first = Adam(model["judge"].parameters(), lr=lr)
        second = SGD(model["generator"].parameters(), lr=lr, momentum=0.9)
        if config.get("schedules"):
            return [(first, StepLR(first, 1, 0.5)), (second, by_progress())]
        return first, second

    def training_step(  # type: ignore[override]
        self, model: Any, batch: Any, optimizers: Sequence[Optimizer]
    ) -> Any:
        real, _ = batch
        judge, generator = model["judge"], model["generator"]
        of_judge, of_generator = optimizers
        fake = generator(torch.randn(len(real), 4, device=real.device))

        of_judge.zero_grad()
        right = against(judge(real), torch.ones(len(real), 1, device=real.device))
        wrong = against(judge(fake.detach()), torch.zeros(len(real), 1).to(real.device))
        (right + wrong).backward()
        of_judge.step()

        of_generator.zero_grad()
        fooled = against(judge(fake), torch.ones(len(real), 1, device=real.device))
        fooled.backward()
        of_generator.step()
        return {"loss": fooled, "d_loss": (right + wrong).item()}

    def validation_step(self, model: Any, batch: Any) -> dict[str, Any]:
        real, _ = batch
        return {"accuracy": torch.sigmoid(model["judge"](real)).squeeze(1)}


def by_progress() -> LRSchedule:
    return LRSchedule(lambda epoch: 1 / (1 + epoch))


class Closure(Small):
    """LBFGS: one optimizer, stepped with a closure."""

    def configure_model(self, config: Mapping[str, Any]) -> nn.Module:
        return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))

    def configure_optimizers(self, model: nn.Module, config: Mapping[str, Any]) -> Any:
        search = config.get("line_search")
        optimizer = LBFGS(
            model.parameters(),
            lr=config.get("lr", 0.1),
            max_iter=3,
            history_size=4,
            line_search_fn=search,
        )
        if config.get("schedules"):
            return optimizer, OneCycleLR(optimizer, 0.1, total_steps=100, cycle_momentum=False)
        return optimizer

    def training_step(  # type: ignore[override]
        self, model: nn.Module, batch: Any, optimizers: Sequence[Optimizer]
    ) -> Any:
        x, y = batch

        def closure() -> Tensor:
            optimizers[0].zero_grad()
            loss = cross_entropy(model(x), y)
            loss.backward()  # type: ignore[no-untyped-call]
            return loss

        return optimizers[0].step(closure)


class Sharp(Optimizer):
    """Sharpness-aware minimization: a step up, and one down with another optimizer's formula."""

    def __init__(self, parameters: Any, base: type[Optimizer], **options: Any) -> None:
        super().__init__(parameters, dict(options))
        self.base = base(self.param_groups, **options)
        self.param_groups = self.base.param_groups

    @torch.no_grad()
    def up(self) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["before"] = p.clone()
                p.add_(p.grad, alpha=0.05)

    @torch.no_grad()
    def down(self) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                p.copy_(self.state[p]["before"])
        self.base.step()


class Sam(Small):
    def configure_optimizers(self, model: nn.Module, config: Mapping[str, Any]) -> Any:
        return Sharp(model.parameters(), SGD, lr=0.05, momentum=0.9)

    def training_step(  # type: ignore[override]
        self, model: nn.Module, batch: Any, optimizers: Any, epoch: int
    ) -> Any:
        x, y = batch
        (sharp,) = optimizers
        loss = cross_entropy(model(x), y)
        loss.backward()  # type: ignore[no-untyped-call]
        sharp.up()
        sharp.zero_grad()
        cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
        sharp.down()
        sharp.zero_grad()
        return loss
