"""The lane: what it learns, and that nothing but its trial's own past decides about it."""

import random
from itertools import count
from math import nan
from typing import Any

import numpy as np
import pytest
import torch
from device_kit import HERE
from torch import nn
from train_kit import Linear, Small, blobs, go, planned, trainer, trial

from shoal.train.lane.lane import TrainingLane
from shoal.train.lane.scoring import evaluate
from shoal.train.recipe.recipe import LRSchedule
from shoal.train.recipe.unit import Diverged, TrialError
from shoal.train.tools.verify import compare


def lane(recipe: Any, **config: Any) -> TrainingLane:
    return TrainingLane(recipe, config, seed=3, device=HERE, epoch=90.0)


def chunk(samples: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.normal(size=(samples, 6)).astype("f4")), torch.from_numpy(
        rng.integers(0, 3, samples)
    )


def train(one: TrainingLane, *chunks: Any) -> tuple[int, Any]:
    one.begin(sum(len(c[0]) for c in chunks))
    with one.rng:
        for part in chunks:
            list(one.feed(part))
        list(one.flush())
        return one.taken()


def weights(one: TrainingLane) -> torch.Tensor:
    return torch.cat([p.detach().reshape(-1) for p in one.model.parameters()])


def test_batches_are_carried_over_chunk_ends() -> None:
    seen: dict[int, list[torch.Tensor]] = {}

    class Recorded(Small):
        def training_step(self, model: nn.Module, batch: Any) -> Any:
            seen[size].append(batch[0].clone())
            return super().training_step(model, batch)

    states = {}
    for size in (5, 7, 8, 30, 1000):  # smaller than a batch, uneven, equal, larger, all at once
        seen[size] = []
        held = trainer(Recorded(), blobs(chunk=size))
        go(held, trial(), planned(blobs(), 2))
        states[size] = held.state(trial().id)
    assert [len(batch) for batch in seen[1000]] == [8, 8, 8, 6] * 6
    for size in (5, 7, 8, 30):
        assert all(torch.equal(a, b) for a, b in zip(seen[size], seen[1000], strict=True))
        assert compare(states[size], states[1000]).equal


@pytest.mark.parametrize(
    "samples", [32, 64, 75, 3]
)  # whole groups; a group cut in the middle, with a smaller last batch
def test_accumulated_batches_make_the_gradient_of_one_large_batch(samples: int) -> None:
    parts, whole = (
        lane(Linear(accumulate_grad_batches=4), optimizer="plain"),
        lane(Linear(batch_size=32), optimizer="plain"),
    )
    train(parts, chunk(samples))
    train(whole, chunk(samples))
    assert torch.allclose(weights(parts), weights(whole), atol=1e-6)
    assert not torch.allclose(weights(parts), weights(lane(Linear())), atol=1e-3)


def test_clipping_limits_the_whole_gradient() -> None:
    free, clipped = (
        lane(Linear(gradient_clip_val=limit), optimizer="plain") for limit in (None, 0.01)
    )
    start = weights(free)
    train(free, chunk(8))
    train(clipped, chunk(8))
    assert (weights(free) - start).norm() > 0.01
    assert (weights(clipped) - start).norm() == pytest.approx(
        0.1 * 0.01, rel=1e-2
    )  # the rate is 0.1


def test_clipping_looks_at_the_accumulated_gradient() -> None:
    parts, whole = (
        lane(Linear(gradient_clip_val=0.01, accumulate_grad_batches=4), optimizer="plain"),
        lane(Linear(gradient_clip_val=0.01, batch_size=32), optimizer="plain"),
    )
    train(parts, chunk(32))
    train(whole, chunk(32))
    assert torch.allclose(weights(parts), weights(whole), atol=1e-7)


def test_drop_last_leaves_out_the_smaller_batch_and_counts_its_samples_as_taken() -> None:
    sizes = []

    class Sized(Linear):
        def training_step(self, model: nn.Module, batch: Any) -> Any:
            sizes.append(len(batch[0]))
            return super().training_step(model, batch)

    samples, values = train(lane(Sized(drop_last=True)), chunk(13), chunk(9, 1))
    assert sizes == [8, 8]
    assert samples == 22 and values["loss"][1] == 16
    with pytest.raises(
        ValueError, match="drop_last leaves nothing to train: the shard has 7 samples, a batch 8"
    ):
        lane(Sized(drop_last=True)).begin(7)


def test_values_are_sums_over_samples() -> None:
    class Noting(Linear):
        def training_step(self, model: nn.Module, batch: Any) -> Any:
            return {
                "loss": super().training_step(model, batch),
                "size": float(len(batch[0])),
                "half": torch.tensor(0.5),
            }

    one = lane(Noting())
    samples, values = train(one, chunk(20))
    assert samples == 20
    assert values["size"] == (8 * 8 + 8 * 8 + 4 * 4, 20)
    assert values["half"] == (10.0, 20)
    assert one.taken() == (0, {})


def test_a_parameter_is_noted_as_it_was_at_the_step() -> None:
    class Noting(Linear):
        def training_step(self, model: Any, batch: Any) -> Any:
            bias = next(p for p in model.parameters() if p.dim() == 1)
            return {
                "loss": super().training_step(model, batch),
                "own": bias[0],
                "same": bias[0] * 1,
            }

    one = lane(Noting(), optimizer="plain")
    values = train(one, chunk(40))[1]
    assert values["own"] == values["same"]


def test_bf16_runs_under_autocast_and_keeps_the_weights_whole() -> None:
    kinds = []

    class Half(Small):
        def training_step(self, model: nn.Module, batch: Any) -> Any:
            kinds.append(model(batch[0]).dtype)
            return super().training_step(model, batch)

    one = lane(Half(precision="bf16"))
    _, values = train(one, chunk(16))
    assert set(kinds) == {torch.bfloat16}
    assert values["loss"][0] > 0
    assert {p.dtype for p in one.model.parameters()} == {torch.float32}
    assert one.signature != lane(Half()).signature


def test_evaluation_changes_nothing() -> None:
    class Intrusive(Small):
        def validation_step(self, model: nn.Module, batch: Any) -> dict[str, Any]:
            model.train()
            with torch.enable_grad():
                super().training_step(
                    model, batch
                ).backward()  # batch norm moves its buffers, dropout draws
            np.random.rand(), random.random()
            return {
                "loss": nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")
            }

    def twice(validates: bool) -> TrainingLane:
        one = lane(Intrusive(accumulate_grad_batches=2))
        one.model[1].eval()  # frozen by its user
        train(one, chunk(20))
        if validates:
            before = one.rng.state()
            scores = evaluate(one, [chunk(9, 7)])
            assert list(scores) == ["loss"]
            assert compare(before, one.rng.state()).equal
            assert [m.training for m in one.model] == [True, False, True, True, True]
        train(one, chunk(20, 1))
        return one

    outer = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    assert compare(twice(True).state(), twice(False).state()).equal
    assert torch.equal(outer[0], torch.get_rng_state())
    assert np.array_equal(outer[1], np.random.get_state()[1]) and outer[2] == random.getstate()


def test_buffers_that_validation_replaces_are_put_back() -> None:
    class Recent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(6, 3)
            self.register_buffer("last", torch.zeros(6))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.inner(x - 0.5 * self.last)
            self.last = x.detach().mean(0)
            return out

    class Recipe(Small):
        def configure_model(self, config: Any) -> nn.Module:
            return Recent()

    one, other = lane(Recipe()), lane(Recipe())
    for number in range(2):
        for each in (one, other):
            train(each, chunk(20, number))
        held = one.model.last
        evaluate(one, [chunk(9, 7)])
        assert one.model.last is held
    assert compare(one.state(), other.state()).equal


def test_evaluation_averages_over_all_samples_in_evaluation_mode() -> None:
    one = lane(Small())
    x, y = chunk(75)
    scores = evaluate(one, [(x[:50], y[:50]), (x[50:], y[50:])])
    with torch.no_grad():
        expected = (one.model.eval()(x).argmax(1) == y).float().mean()
    assert scores["accuracy"] == pytest.approx(float(expected))


class Nans(Linear):
    """A loss that is nan at the steps named."""

    def __init__(self, bad: set[int], patience: int) -> None:
        super().__init__(nan_patience=patience)
        self.bad, self.steps = bad, count()

    def training_step(self, model: nn.Module, batch: Any) -> Any:
        loss = super().training_step(model, batch)
        return loss * 0 + (nan if next(self.steps) in self.bad else 1.0)


def test_nan_patience_counts_steps_in_a_row_across_chunks_and_passes() -> None:
    train(lane(Nans({1, 2, 4, 5}, patience=2)), chunk(24), chunk(24))
    with pytest.raises(Diverged, match="diverged: loss was not finite for 3 steps"):
        train(lane(Nans({2, 3, 4}, patience=2)), chunk(24), chunk(24))
    with pytest.raises(Diverged, match="for 1 steps"):
        train(lane(Nans({0}, patience=0)), chunk(8))
    one, recipe = None, Nans({1, 2, 3}, patience=2)
    one = lane(recipe)
    train(one, chunk(24))
    later = lane(recipe)
    later.load(one.state())  # two bad steps so far are part of the state
    with pytest.raises(Diverged):
        train(later, chunk(8))


def test_own_schedule_sets_the_rate_before_every_step_from_samples_alone() -> None:
    rates: list[float] = []
    made: list[Any] = []

    class Watched(Linear):
        def configure_optimizers(self, model: nn.Module, config: Any) -> Any:
            groups = [{"params": [model.weight], "lr": 1.0}, {"params": [model.bias], "lr": 10.0}]
            made.append(torch.optim.SGD(groups))
            return {
                "optimizer": made[-1],
                "lr_scheduler": LRSchedule(lambda e: 1 - e / 10, config["unit"]),
            }

        def training_step(self, model: nn.Module, batch: Any) -> Any:
            rates.append(made[-1].param_groups[1]["lr"])
            return super().training_step(model, batch) * 0

    one = lane(Watched(), unit="epochs")
    train(one, chunk(24))
    train(one, chunk(16))  # `begin` counts from the visits, of which there are none
    assert rates == pytest.approx(
        [10.0, 10.0, 10 * (1 - 8 / 900), 10 * (1 - 16 / 900), 10.0]
    )  # read before the step sets it
    assert one.optimizer.param_groups[0]["lr"] == pytest.approx(1 - 8 / 900)


@pytest.mark.parametrize("batch_size", [8, 12])
def test_schedules_do_not_depend_on_batch_size_or_shards(batch_size: int) -> None:
    ends = []
    for shards in (1, 3):
        data = blobs(shards=shards)
        held = trainer(Linear(batch_size=batch_size), data)
        go(held, trial(schedule="epochs", optimizer="plain"), planned(data, 2))
        ends.append(held.state(trial().id)["optimizer"]["param_groups"][0]["lr"])
    assert ends[0] == pytest.approx(ends[1], rel=0.1)
    assert ends[0] == pytest.approx(0.1 / (1 + 2 - batch_size / 90), rel=0.05)


def test_torch_schedulers_step_at_the_end_of_each_epoch_only() -> None:
    data = blobs()
    held, rates, made = trainer(Small(), data), [], ()
    for visit in planned(data, 3):
        made = go(held, trial(schedule="steps", optimizer="plain"), [visit], made)
        rates.append(held.state(trial().id)["optimizer"]["param_groups"][0]["lr"])
    assert rates == pytest.approx([0.1, 0.1, 0.01, 0.01, 0.01, 0.001, 0.001, 0.001, 0.001])


def test_plateau_follows_the_metric_and_needs_one() -> None:
    data = blobs()
    held = trainer(Small(), data)
    go(
        held, trial(schedule="plateau", optimizer="plain"), planned(data, 3)
    )  # no epoch is better by 1000 %
    assert held.state(trial().id)["optimizer"]["param_groups"][0]["lr"] < 0.1
    with pytest.raises(TrialError, match="give metric="):
        go(trainer(Small(), data, metric=None), trial(schedule="plateau"), planned(data, 1))


@pytest.mark.parametrize(
    ("outcome", "rule"),
    [
        (1.0, "training_step must return the loss or"),
        ({"accuracy": 1.0}, "training_step must return the loss or"),
        (
            torch.zeros(3, requires_grad=True),
            r"one number, the mean loss over the batch; got shape \(3,\)",
        ),
    ],
)
def test_a_wrong_loss_is_told(outcome: Any, rule: str) -> None:
    class Wrong(Linear):
        def training_step(self, model: nn.Module, batch: Any) -> Any:
            return outcome

    with pytest.raises((TypeError, ValueError), match=rule):
        train(lane(Wrong()), chunk(8))


@pytest.mark.parametrize(
    ("config", "rule"),
    [
        ({"batch_size": 0}, 'batch_size must be a whole number >= 1, or "max"; got 0'),
        ({"batch_size": 1.5}, "batch_size must be a whole number"),
        ({"shuffle": "always"}, 'shuffle must be "once", "each" or "sequential"'),
        ({"precision": "16"}, 'precision must be "32" or "bf16"'),
        ({"gradient_clip_val": -1.0}, "gradient_clip_val must be > 0"),
        ({"accumulate_grad_batches": 0}, "accumulate_grad_batches must be"),
        ({"nan_patience": -1}, "nan_patience must be"),
    ],
)
def test_settings_out_of_range(config: Any, rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        lane(Linear(), **config)


def test_config_goes_before_the_recipe() -> None:
    assert lane(Linear(batch_size=4), batch_size=16.0).settings.batch_size == 16
    assert lane(Linear(batch_size=4)).settings.batch_size == 4


def test_building_draws_from_the_seed_and_leaves_the_global_generators() -> None:
    torch.manual_seed(11)
    outer = torch.get_rng_state()
    one, same = lane(Small()), lane(Small())
    assert torch.equal(torch.get_rng_state(), outer)
    assert torch.equal(weights(one), weights(same))
    other = TrainingLane(Small(), {}, seed=4, device=HERE, epoch=90.0)
    assert not torch.equal(weights(one), weights(other))


def test_signature_tells_what_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    same = lane(Small(), lr=1).signature
    assert lane(Small(), lr=2).signature == same
    assert lane(Small(batch_size=9)).signature != same
    assert lane(Small(), optimizer="adamw").signature != same
    assert lane(Linear()).signature != same
    monkeypatch.setattr("shoal.train.lane.lane.kind_of", lambda device: "NVIDIA H200")
    assert lane(Small(), lr=1).signature != same


class Decay:
    def __init__(self, gamma: float) -> None:
        self.gamma = gamma

    def __call__(self, epoch: int) -> float:
        return self.gamma**epoch


SCHEDULES = {
    "step": lambda o, gamma: torch.optim.lr_scheduler.StepLR(o, 2, gamma),
    "milestones": lambda o, gamma: torch.optim.lr_scheduler.MultiStepLR(o, [2, 4], gamma),
    "cosine": lambda o, gamma: torch.optim.lr_scheduler.CosineAnnealingLR(
        o, 6, eta_min=gamma / 100
    ),
    "in turn": lambda o, gamma: torch.optim.lr_scheduler.SequentialLR(
        o,
        [
            torch.optim.lr_scheduler.LinearLR(o, gamma),
            torch.optim.lr_scheduler.CosineAnnealingLR(o, 6),
        ],
        milestones=[3],
    ),
    "restarts": lambda o, gamma: torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(
        o, 2, 2, eta_min=gamma / 100
    ),
    "cyclic": lambda o, gamma: torch.optim.lr_scheduler.CyclicLR(
        o, 0.01, gamma, 3, mode="exp_range", gamma=gamma, cycle_momentum=False
    ),
    "own": lambda o, gamma: torch.optim.lr_scheduler.LambdaLR(o, Decay(gamma)),
    "plateau": lambda o, gamma: torch.optim.lr_scheduler.ReduceLROnPlateau(
        o, factor=gamma, patience=0
    ),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_goes_on_with_its_own_hyper_parameters(name: str) -> None:
    """From another's state after an epoch: as if this one had been trained from the beginning."""

    class Scheduled(Small):
        def configure_optimizers(self, model: nn.Module, config: Any) -> Any:
            made = torch.optim.SGD(model.parameters(), lr=config["lr"])
            return made, SCHEDULES[name](made, config["gamma"])

    def epochs(one: TrainingLane, count: int) -> list[float]:
        rates = []
        for _ in range(count):
            train(one, chunk(20))
            with one.rng:
                one.end_epoch(1.0)
            rates.append(float(one.optimizer.param_groups[0]["lr"]))
        return rates

    parent, mine, alone = (
        lane(Scheduled(), lr=lr, gamma=gamma)
        for lr, gamma in ((0.1, 0.5), (0.12, 0.25), (0.12, 0.25))
    )
    epochs(parent, 1)
    mine.load(parent.state())
    expected, found = epochs(alone, 6)[1:], epochs(mine, 5)
    if (
        name == "in turn"
    ):  # the factor on the rate that the parent had by then holds to the end of its warm-up
        expected, found = expected[2:], found[2:]
    assert not hasattr(mine.scheduler, "eta_min") or mine.scheduler.eta_min == 0.0025
    if name not in ("cosine", "restarts"):  # which go on from the rate that there is
        assert found == pytest.approx(expected)
    same = lane(Scheduled(), lr=0.1, gamma=0.5)
    same.load(parent.state())
    assert epochs(same, 5) == epochs(parent, 5), "nothing changes for the trial itself"


@pytest.mark.parametrize("torchs", [False, True])
def test_a_state_of_other_hyper_parameters_keeps_its_momenta_only(torchs: bool) -> None:
    """What a copy with a changed learning rate and decay goes on with; a schedule's factor
    holds.
    """

    class Tuned(Small):
        def configure_optimizers(self, model: nn.Module, config: Any) -> Any:
            made = torch.optim.SGD(
                model.parameters(), lr=config["lr"], momentum=0.9, weight_decay=config["decay"]
            )
            return (made, torch.optim.lr_scheduler.ExponentialLR(made, 0.5)) if torchs else made

    one, two = lane(Tuned(), lr=0.1, decay=0.0), lane(Tuned(), lr=0.4, decay=0.25)
    train(one, chunk(20))
    with one.rng:
        one.end_epoch(None)
    two.load(one.state())
    group, factor = two.optimizer.param_groups[0], 0.5 if torchs else 1.0
    assert (group["lr"], group["weight_decay"], group["momentum"]) == (
        pytest.approx(0.4 * factor),
        0.25,
        0.9,
    )
    assert torch.equal(weights(one), weights(two))
    momenta = [[s["momentum_buffer"] for s in x.optimizer.state.values()] for x in (one, two)]
    assert all(torch.equal(a, b) for a, b in zip(*momenta, strict=True))
    with two.rng:
        two.end_epoch(None)
    assert group["lr"] == pytest.approx(0.4 * (0.25 if torchs else 1.0))
    again = lane(Tuned(), lr=0.4, decay=0.25)
    again.load(two.state())
    assert compare(again.state(), two.state()).equal, "from its own kind everything is taken over"
