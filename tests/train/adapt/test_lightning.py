"""LightningModules in Shoal: they learn what they learn in a Trainer, alone and in packs."""

import pickle
from pathlib import Path
from typing import Any

import adapt_kit as kit
import numpy as np
import pytest
import torch
from adapt_kit import Dots, Manual, Net, OneCycle, WithMetrics, torchmetrics
from torch import nn

import shoal
from shoal.train.lane.lane import TrainingLane
from shoal.train.tools.check import check_recipe

CPU = torch.device("cpu")


def check_as_in_trainer(
    kind: Any, folder: Path, config: dict[str, Any], epochs: int, **attributes: Any
) -> Any:
    """Train in Shoal and in a Trainer, with the same batches; the weights must agree."""
    training = kit.dots(100, 0)
    valid = kit.dots(50, 1)
    recipe = shoal.lightning(
        kind, train=training, valid=valid, batch_size=16, max_epochs=epochs, **attributes
    )
    plain = kind(**config)
    plain.load_state_dict(kit.begun(recipe, config))
    train = kit.batches(recipe.data(), 16)
    options = {
        name: attributes[name]
        for name in ("gradient_clip_val", "gradient_clip_algorithm")
        if name in attributes
    }
    loader = torch.utils.data.DataLoader(valid, batch_size=32)
    trainer = kit.fitted(plain, train, loader, epochs, **options)
    space = {name: shoal.grid([value]) for name, value in config.items()}
    study = kit.searched(recipe, folder, space, num_samples=1, max_epochs=epochs)
    ours = study.best_model().state_dict()
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(ours[name], value, rtol=0, atol=1e-6)
    return study, trainer


def test_learns_what_it_learns_in_a_trainer(tmp_path: Path) -> None:
    study, trainer = check_as_in_trainer(Net, tmp_path, {"lr": 0.1}, 3)
    scores = study.trials_dataframe().iloc[0]
    theirs = trainer.callback_metrics
    assert scores["last.val_loss"] == pytest.approx(float(theirs["val_loss"]), abs=1e-6)
    assert scores["last.val_acc"] == pytest.approx(float(theirs["val_acc"]), abs=1e-6)


class EveryOther(Net):
    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=self.lr)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.7)
        return [optimizer], [{"scheduler": schedule, "interval": "step", "frequency": 3}]


class ByEpoch(Net):
    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=self.lr)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.3)]


class Plateau(Net):
    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=self.lr)
        schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=10.0)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "monitor": "val_loss"},
        }


class Hooked(Net):
    """Hooks that change what is learnt, so that none may be missing or called twice."""

    def on_train_epoch_start(self) -> None:
        self.scale = 1.0 / (1 + self.current_epoch)

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        self.shift = 0.01 * batch_idx

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        return {"loss": loss * self.scale + self.shift * self.net[0].weight.sum()}

    def on_after_backward(self) -> None:
        self.net[0].bias.grad.mul_(0.5)

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        self.net[3].bias.grad.add_(0.001 * self.global_step)

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        with torch.no_grad():
            self.net[3].weight.mul_(0.999)

    def on_train_epoch_end(self) -> None:
        with torch.no_grad():
            self.net[0].weight.mul_(0.9)


@pytest.mark.parametrize("kind", [OneCycle, EveryOther, ByEpoch, Plateau, Hooked])
def test_forms_and_hooks_as_in_a_trainer(kind: Any, tmp_path: Path) -> None:
    check_as_in_trainer(kind, tmp_path, {"lr": 0.05}, 3)


@pytest.mark.parametrize("how", ["norm", "value"])
def test_clips_as_a_trainer(how: Any, tmp_path: Path) -> None:
    clipped = {"gradient_clip_val": 0.05, "gradient_clip_algorithm": how}
    check_as_in_trainer(Net, tmp_path, {"lr": 0.1}, 2, **clipped)


def test_own_steps_as_in_a_trainer(tmp_path: Path) -> None:
    check_as_in_trainer(Manual, tmp_path, {"lr": 0.1}, 3)


def test_metrics_over_the_whole_epoch_as_in_a_trainer(tmp_path: Path) -> None:
    training, valid = kit.dots(100, 0), kit.dots(50, 1)
    recipe = shoal.lightning(WithMetrics, train=training, valid=valid, batch_size=16)
    plain = WithMetrics()
    plain.load_state_dict(kit.begun(recipe, {}))
    loader = torch.utils.data.DataLoader(valid, batch_size=32)
    trainer = kit.fitted(plain, kit.batches(recipe.data(), 16), loader, 2)
    study = kit.searched(
        recipe, tmp_path, {"lr": 0.1}, metric="val_f1", mode="max", max_epochs=2, num_samples=1
    )
    ours = study.trials_dataframe().iloc[0]
    for name in ("val_f1", "train_f1"):
        theirs = float(trainer.callback_metrics[name])
        assert ours[f"last.{name}"] == pytest.approx(theirs, abs=1e-6)


# -- together, moved, replayed ---------------------------------------------------------------------


class Remembering(Net):
    """Keeps state outside of parameters and buffers, on which its steps depend."""

    def __init__(self, lr: float = 0.1) -> None:
        super().__init__(lr=lr, drop=0.2)
        self.losses: list[Any] = []
        self.seen = 0
        self.norm = torch.zeros(2)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        self.losses.append(loss.detach())
        self.seen += len(batch[0])
        self.norm = self.norm + batch[0].mean()
        weight = 1.0 + 0.1 * torch.stack(self.losses).mean() + 0.001 * self.seen
        return loss * weight + self.norm.sum() * self.net[3].bias.sum() * 0.01


@pytest.mark.parametrize("kind", [Net, Remembering, Hooked, Manual])
@pytest.mark.parametrize("policy", ["pack", "hop"])
def test_packed_and_hopped_as_alone(kind: Any, policy: str, tmp_path: Path) -> None:
    recipe = shoal.lightning(kind, datamodule=Dots, shards=2)
    space = {"lr": shoal.grid([0.02, 0.05, 0.1])}
    study = kit.searched(recipe, tmp_path, space, max_epochs=2, policy=policy, fuse=False)
    assert all(row["verdict"] in ("equal", "agrees") for row in study.replay())
    assert all(row["equal"] for row in study.replay())


def test_goes_on_from_its_folder(tmp_path: Path) -> None:
    recipe = shoal.lightning(Remembering, datamodule=Dots)
    study = kit.searched(recipe, tmp_path / "a", {"lr": 0.1}, num_samples=1, max_epochs=1)
    study.extend("t000", max_epochs=3)
    again = shoal.load_study(tmp_path / "a")
    again.resume()
    whole = kit.searched(recipe, tmp_path / "b", {"lr": 0.1}, num_samples=1, max_epochs=3)
    ours, theirs = again.best_model().state_dict(), whole.best_model().state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_fuses_modules_whose_rates_differ(tmp_path: Path) -> None:
    recipe = shoal.lightning(Net, datamodule=Dots)
    space = {"lr": shoal.grid([0.02, 0.05, 0.1, 0.2])}
    study = kit.searched(recipe, tmp_path, space, max_epochs=3, policy="pack", slots=1)
    rows = study.replay()
    assert all(row["fused"] for row in rows)
    assert all(row["verdict"] in ("equal", "agrees") for row in rows)


class ReadsEpoch(Net):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return super().training_step(batch, batch_idx) / (1 + self.current_epoch)


class ReadsIndex(Net):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return super().training_step(batch, batch_idx) / (1 + batch_idx)


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (ReadsEpoch, "how far the trial is"),
        (ReadsIndex, "reads batch_idx"),
        (Hooked, "on_train_batch_start"),
        (Manual, "by itself"),
        (WithMetrics, "self.train_f1"),
        (Net, "are trained at once"),
    ],
)
def test_check_says_whether_models_are_fused(kind: Any, why: str) -> None:
    recipe = shoal.lightning(kind, datamodule=Dots)
    found = check_recipe(recipe, recipe.data(), {"lr": 0.1}, neighbour={"lr": 0.2})
    assert found["ok"], found
    assert why in found["checks"][-1][2]


class Validated(Net):
    """A metric that only validation updates."""

    def __init__(self, lr: float = 0.1) -> None:
        super().__init__(lr=lr)
        self.val_f1 = torchmetrics.F1Score(task="multiclass", num_classes=2)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        x, y = batch
        self.val_f1(self(x), y)
        self.log("val_f1", self.val_f1)


def test_fuses_modules_with_metrics_of_validation(tmp_path: Path) -> None:
    recipe = shoal.lightning(Validated, datamodule=Dots)
    space = {"lr": shoal.grid([0.02, 0.05, 0.1, 0.2])}
    options = {"max_epochs": 2, "policy": "pack", "slots": 1}
    study = kit.searched(recipe, tmp_path, space, metric="val_f1", mode="max", **options)
    assert all(row["fused"] and row["verdict"] in ("equal", "agrees") for row in study.replay())
    scores = study.trials_dataframe()["last.val_f1"]
    x, y = kit.dots(50, 1).tensors
    metric = torchmetrics.F1Score(task="multiclass", num_classes=2)
    best = float(metric(study.best_model()(x), y))
    assert best == pytest.approx(scores.max())


def test_a_rate_that_the_step_reads_keeps_models_apart() -> None:
    from shoal.train.fuse.graph import graph_key

    class Scaled(Net):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return super().training_step(batch, batch_idx) * self.hparams.lr

    for kind, same in ((Net, True), (Scaled, False)):
        recipe = shoal.lightning(kind, datamodule=Dots)
        recipe.data()
        lanes = [
            TrainingLane(recipe, {"lr": lr}, seed=0, device=CPU, epoch=100.0) for lr in (0.1, 0.2)
        ]
        assert (graph_key(lanes[0]) == graph_key(lanes[1])) is same


# -- data as loaders give it -----------------------------------------------------------------------


class Streamed(torch.utils.data.IterableDataset[Any]):
    def __iter__(self) -> Any:
        yield from (kit.dots(60, 0)[number] for number in range(60))


class Halves:
    """Batches of five numbers in a row, in a random order."""

    def __iter__(self) -> Any:
        for at in torch.randperm(20).tolist():
            yield list(range(5 * at, 5 * at + 5))


def loader(**options: Any) -> Any:
    dataset = options.pop("dataset", None) or kit.dots(100, 0)
    return torch.utils.data.DataLoader(dataset, **options)


def by_weights() -> Any:
    weights = 1.0 + kit.dots(100, 0).tensors[1]
    return torch.utils.data.WeightedRandomSampler(weights.tolist(), 100)


def as_list(items: list[Any]) -> list[Any]:
    return torch.utils.data.default_collate(items)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("options", "size", "shuffle"),
    [
        (lambda: {"sampler": by_weights(), "batch_size": 20}, 20, "once"),
        (lambda: {"batch_sampler": Halves()}, 5, "once"),
        (lambda: {"dataset": Streamed(), "batch_size": 12}, 12, "sequential"),
        (lambda: {"batch_size": 30, "drop_last": True}, 30, "sequential"),
        (lambda: {"batch_size": 25, "collate_fn": as_list}, 25, "sequential"),
    ],
)
def test_any_loader_of_a_data_module(options: Any, size: int, shuffle: str, tmp_path: Path) -> None:
    class Given(Dots):
        def train_dataloader(self) -> Any:
            return loader(**options())

    recipe = shoal.lightning(Net, datamodule=Given)
    study = kit.searched(recipe, tmp_path, {"lr": 0.1}, num_samples=1, max_epochs=8)
    recipe = study.recipe
    assert (recipe.batch_size, recipe.shuffle) == (size, shuffle)
    assert recipe.drop_last is bool(options().get("drop_last"))
    assert study.trials_dataframe().iloc[0]["last.val_acc"] > 0.5


def test_learns_in_the_loaders_order_what_it_learns_in_a_trainer(tmp_path: Path) -> None:
    given = loader(batch_size=15)
    valid = loader(dataset=kit.dots(50, 1), batch_size=25)
    recipe = shoal.lightning(Net, train=given, valid=valid)
    plain = Net(lr=0.1)
    plain.load_state_dict(kit.begun(recipe, {"lr": 0.1}))
    kit.fitted(plain, list(given), valid, 2)
    space = {"lr": shoal.grid([0.1])}
    study = kit.searched(recipe, tmp_path, space, num_samples=1, max_epochs=2)
    ours = study.best_model(which="last").state_dict()
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(ours[name], value, rtol=0, atol=1e-6)


def test_validates_on_what_the_validation_loader_gives() -> None:
    class Parted(Dots):
        def val_dataloader(self) -> Any:
            sampler = torch.utils.data.SubsetRandomSampler(range(7))
            return loader(dataset=self.held_out, sampler=sampler, collate_fn=as_list)

    data = shoal.lightning(Net, datamodule=Parted).data()
    assert [data.size(part) for part in data.validation] == [7]
    assert data.scored_collate is as_list


# -- what is refused, and what is said -------------------------------------------------------------


def test_refuses_what_it_cannot_do() -> None:
    class Steps(Net):
        def optimizer_step(self, *args: Any, **kwargs: Any) -> None: ...

    with pytest.raises(ValueError, match="optimizer_step takes over"):
        shoal.lightning(Steps)
    with pytest.raises(TypeError, match="give the class Net"):
        shoal.lightning(Net())
    with pytest.raises(TypeError, match="datamodule="):
        shoal.lightning(Dots)
    with pytest.raises(TypeError, match="no LightningModule"):
        shoal.lightning(nn.Linear)
    with pytest.raises(TypeError, match="no attribute 'batchsize'"):
        shoal.lightning(Net, batchsize=3)
    with pytest.raises(TypeError, match=r"did you mean study.optimize\(callbacks=\)"):
        shoal.lightning(Net, callbacks=[])
    with pytest.raises(TypeError, match="leave it out: Shoal trains without a Trainer"):
        shoal.lightning(Net, trainer=None)
    with pytest.raises(TypeError, match=r"did you mean study.optimize\(device=\)"):
        shoal.lightning(Net, accelerator="gpu")
    with pytest.raises(TypeError, match="did you mean valid="):
        shoal.lightning(Net, val_dataloaders=None)


def test_names_keys_that_init_does_not_take(tmp_path: Path) -> None:
    recipe = shoal.lightning(Net, datamodule=Dots)
    with pytest.raises(shoal.StudyError, match=r"learning_rate.*takes drop, lr, width"):
        kit.searched(recipe, tmp_path, {"learning_rate": 0.1}, max_epochs=1)


def test_warns_of_hooks_that_are_not_called() -> None:
    class Ends(Net):
        def on_fit_end(self) -> None: ...

    with pytest.warns(UserWarning, match="does not call on_fit_end of Ends"):
        shoal.lightning(Ends)


def test_says_what_validation_changes(tmp_path: Path) -> None:
    class Odd(Net):
        def on_validation_epoch_end(self) -> None:
            self.best = 1.0

    recipe = shoal.lightning(Odd, datamodule=Dots)
    with pytest.warns(UserWarning, match="Odd") as told:
        kit.searched(recipe, tmp_path, {"lr": 0.1}, max_epochs=1, num_samples=1)
    texts = " ".join(str(each.message) for each in told)
    assert "validation changes self.best of Odd" in texts


def test_a_function_may_build_the_module_and_its_data(tmp_path: Path) -> None:
    recipe = shoal.lightning(
        lambda config: Net(width=config["width"]), train=lambda: kit.dots(64, 0), validation=0.25
    )
    study = kit.searched(recipe, tmp_path, {"width": shoal.grid([4, 6])}, max_epochs=1)
    assert study.best_model().net[0].out_features in (4, 6)


def test_the_trained_model_is_the_users_own(tmp_path: Path) -> None:
    recipe = shoal.lightning(Net, datamodule=Dots)
    study = kit.searched(recipe, tmp_path, {"width": 5}, max_epochs=1, num_samples=1)
    model = study.best_model()
    assert type(model) is Net
    assert model.hparams.width == 5
    assert pickle.loads(pickle.dumps(model)).net[0].out_features == 5
    assert np.isfinite(model(torch.zeros(1, 8)).detach().numpy()).all()


def test_a_metric_that_no_module_logs_is_an_error_before_training(tmp_path: Path) -> None:
    recipe = shoal.lightning(Net, train=kit.dots(100, 0), valid=kit.dots(50, 1))
    space = {"lr": shoal.grid([0.1, 0.01])}
    study = shoal.create_study(recipe, storage=tmp_path / "s", search_space=space, metric="valloss")
    with pytest.raises(shoal.StudyError, match="did you mean 'val_loss'"):
        study.optimize(max_epochs=1, progress=False)
    assert not study.folder.journal.exists()


class Encoder(Net):
    """Learns from points alone, and is validated on points with labels."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        assert isinstance(batch, torch.Tensor)
        return self(batch).square().mean()

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        x, y = batch
        assert isinstance(batch, list)
        self.log("val_acc", (self(x).argmax(1) == y).float().mean())


class Points(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return 40

    def __getitem__(self, number: int) -> Any:
        return torch.ones(8) * number


def test_validation_batches_may_have_a_form_of_their_own(tmp_path: Path) -> None:
    recipe = shoal.lightning(
        Encoder,
        train=torch.utils.data.DataLoader(Points(), 16),
        valid=torch.utils.data.DataLoader(kit.dots(50, 1), 16),
    )
    space = {"lr": shoal.grid([0.1])}
    study = kit.searched(recipe, tmp_path, space, metric="val_acc", max_epochs=2)
    assert [trial.status for trial in study.trials] == ["finished"]


class Flipped(torch.utils.data.Dataset[Any]):
    """Points that are mirrored at random."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, number: int) -> Any:
        x = torch.linspace(-1, 1, 8) + number / 64
        return (x.flip(0) if np.random.rand() < 0.5 else x), number % 2


class FlippedData(Dots):
    def setup(self, stage: str) -> None:
        self.training, self.held_out = Flipped(), Flipped()


class WithLoaders(Net):
    def train_dataloader(self) -> Any:
        return torch.utils.data.DataLoader(Flipped(), 16, shuffle=True)

    def val_dataloader(self) -> Any:
        return torch.utils.data.DataLoader(Flipped(), 16)


@pytest.mark.parametrize(
    "recipe",
    [lambda: shoal.lightning(Net, datamodule=FlippedData), lambda: shoal.lightning(WithLoaders)],
)
def test_random_transforms_of_loaders_vary_and_replay(recipe: Any, tmp_path: Path) -> None:
    assert recipe().data().anew
    learnt = []
    for name, epochs in (("whole", [3]), ("grown", [1, 3])):
        study = shoal.create_study(
            recipe(),
            storage=tmp_path / name,
            metric="val_loss",
            mode="min",
            search_space={"lr": shoal.grid([0.1])},
        )
        for most in epochs:
            study.optimize(max_epochs=most, progress=False)
        assert [row["equal"] for row in study.replay()] == [True]
        learnt.append(study.load_model(study.trials[0].id).state_dict())
    assert all(torch.equal(learnt[0][name], learnt[1][name]) for name in learnt[0])
