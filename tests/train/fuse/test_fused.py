"""Fused lanes learn what each would alone, to rounding; and come, go and fail without
disturbing each other.
"""

import weakref
from collections.abc import Iterator, Mapping
from time import sleep
from typing import Any

import pytest
import torch
from device_kit import HERE
from fused_kit import (
    F64,
    MODELS,
    Images,
    alone,
    as_alone,
    configs,
    gap,
    images,
    lanes,
    pair,
    together,
    weights,
)
from torch import Tensor, nn

from shoal.train.fuse.fused import Fused, StepFailed, Unfusable
from shoal.train.fuse.rewrites import Rewritten
from shoal.train.fuse.scores import FusedScores
from shoal.train.fuse.stacked import StackedSteps
from shoal.train.lane.lane import TrainingLane
from shoal.train.lane.scoring import Scoring, evaluate
from shoal.train.recipe.unit import Diverged
from shoal.train.tools.verify import compare, differences

pytestmark = pytest.mark.usefixtures("quiet")


# -- the same as alone


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam", "adamw", "adadelta"])
@pytest.mark.parametrize("model", ["mlp", "cnn", "transformer", "rnn"])
def test_weights_after_three_epochs_are_those_of_training_alone(model: str, optimizer: str) -> None:
    schedule = {"sgd": "steps", "momentum": "samples", "adam": "samples"}.get(optimizer, "none")
    own, packed = pair(model=model, optimizer=optimizer, schedule=schedule)
    data = images(72, F64)
    together(Fused(packed), data, 3)
    for one, other in zip(own, packed, strict=True):
        alone(one, data, 3)
        assert gap(one, other) < 1e-8
        found = list(differences(one.state(), other.state()))
        assert all(far < 1e-8 for _, far in found), found
        assert one.taken()[1]["loss"][0] == pytest.approx(other.taken()[1]["loss"][0], abs=1e-8)


def parameters(lane: TrainingLane) -> Tensor:
    return torch.cat([p.detach().reshape(-1) for p in lane.model.parameters()])


@pytest.mark.parametrize("model", ["mlp", "cnn", "transformer", "rnn", "lstm", "plain"])
def test_each_gradient_from_the_same_state_in_float32(model: str) -> None:
    recipe = Images()
    own, packed = pair(recipe=recipe, model=model, optimizer="sgd", lr=1.0)
    fused = Fused(packed)
    for seed in range(4):
        batch = images(16, seed=seed)
        before = [parameters(lane) for lane in own]
        fused.step(batch, 16)
        fused.loosen()
        for one, other, start in zip(own, packed, before, strict=True):
            with one.rng:
                one.step(batch, 16)
            mine = parameters(one)
            assert float((mine - parameters(other)).norm()) < 1e-5  # the rate is 1
            assert float((mine - start).norm()) > 1e-2
            other.load(one.state())


@pytest.mark.parametrize("model", ["mlp", "cnn", "transformer", "rnn"])
def test_scores_in_float32_are_those_of_training_alone(model: str) -> None:
    own, packed = pair(dtype=torch.float32, model=model, optimizer="momentum")
    data, held = images(200), images(400, seed=1)
    together(Fused(packed), data, 3)
    for one, other in zip(own, packed, strict=True):
        alone(one, data, 3)
        assert abs(evaluate(one, [held])["accuracy"] - evaluate(other, [held])["accuracy"]) <= 0.005


@pytest.mark.parametrize(
    "settings",
    [
        {"accumulate_grad_batches": 3},
        {"gradient_clip_val": 0.05},
        {"drop_last": True},
        {"batch_size": 7},
    ],
)
def test_the_recipes_settings_hold(settings: dict[str, Any]) -> None:
    own, packed = pair(recipe=Images(F64, **settings), model="cnn", schedule="samples")
    data = images(75, F64)
    together(Fused(packed), data, 2)
    for one, other in zip(own, packed, strict=True):
        alone(one, data, 2)
        assert gap(one, other) < 1e-8
        mine, theirs = one.taken(), other.taken()
        assert mine[0] == theirs[0]
        assert {name: n for name, (_, n) in mine[1].items()} == {
            name: n for name, (_, n) in theirs[1].items()
        }


def test_each_lane_is_clipped_at_its_own_limit() -> None:
    limits: list[float | None] = [None, 0.01, 0.5]
    made = [
        {"gradient_clip_val": limit, **c}
        for limit, c in zip(limits, configs(3, optimizer="sgd"), strict=True)
    ]
    own, packed = lanes(Images(F64), made), lanes(Images(F64), made)
    together(Fused(packed), images(48, F64))
    as_alone(own, packed, images(48, F64))


def test_lanes_of_different_ages_with_frozen_tied_and_unused_parameters() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(64, 64), nn.Linear(64, 64)
            self.second.weight = self.first.weight
            self.frozen = nn.Linear(64, 4).requires_grad_(False)
            self.unused = nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.frozen(
                torch.tanh(self.second(torch.tanh(self.first(x.flatten(1)) + self.first.bias)))
            )
            return out

    class Oddly(Images):
        def configure_model(self, config: Mapping[str, Any]) -> nn.Module:
            return Odd().double()

    own, packed = pair(recipe=Oddly(), optimizer="adamw")
    data = images(48, F64)
    for batch in (own, packed):
        alone(batch[1], data)
        alone(batch[2], data, 2)
    together(Fused(packed), data)
    for one, other in zip(own, packed, strict=True):
        alone(one, data)
        assert gap(one, other) < 1e-10
        assert compare(one.state()["optimizer"], other.state()["optimizer"]).difference < 1e-10


def test_bfloat16_stays_near() -> None:
    own, packed = pair(dtype=torch.float32, recipe=Images(precision="bf16"), optimizer="momentum")
    data = images(160)
    together(Fused(packed), data)
    for one, other in zip(own, packed, strict=True):
        alone(one, data)
        assert gap(one, other) < 0.02
        assert next(other.model.parameters()).dtype == torch.float32


def test_a_penalty_on_the_models_parameters_and_train_within_the_step() -> None:
    class Penalty(Images):
        def training_step(self, model: nn.Module, batch: Any) -> Any:
            model.train()
            penalty = sum(p.square().sum() for p in model.parameters())
            return {
                "loss": nn.functional.cross_entropy(model(batch[0]), batch[1]) + 1e-2 * penalty,
                "penalty": penalty,
            }

    own, packed = pair(recipe=Penalty(F64), optimizer="sgd")
    together(Fused(packed), images(48, F64))
    for one, other in zip(own, packed, strict=True):
        alone(one, images(48, F64))
        assert gap(one, other) < 1e-12
        assert one.taken()[1]["penalty"] == pytest.approx(other.taken()[1]["penalty"])


def test_a_buffer_set_anew_is_each_lanes_own() -> None:
    class Average(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(64, 4)
            self.register_buffer("mean", torch.zeros(4))

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.inner(x.flatten(1))
            self.mean = 0.9 * self.mean + 0.1 * out.detach().mean(0)
            return out - self.mean

    class Averaging(Images):
        def configure_model(self, config: Mapping[str, Any]) -> nn.Module:
            return Average().double()

    own, packed = pair(recipe=Averaging(), optimizer="sgd")
    together(Fused(packed), images(48, F64))
    as_alone(own, packed, images(48, F64))


# -- coming, going, failing


def test_a_lane_that_leaves_goes_on_alone_and_the_others_together() -> None:
    own, packed = pair(4, model="cnn", optimizer="adam", schedule="samples")
    data = images(72, F64)
    fused = Fused(packed)
    together(fused, data)
    fused.split()
    held = [
        t.untyped_storage().data_ptr()
        for lane in packed
        for t in [*lane.model.parameters(), *lane.model.buffers()]
    ]
    assert len(set(held)) == len(held)
    frozen = packed[2].state()["model"]["0.weight"].copy()
    together(Fused([packed[0], packed[1], packed[3]]), data)
    assert (packed[2].state()["model"]["0.weight"] == frozen).all()
    alone(packed[2], data)
    as_alone(own, packed, data, 2, within=1e-8)


def test_a_diverging_lane_harms_no_other() -> None:
    own, packed = pair(3, optimizer="sgd")
    for lane in (own[1], packed[1]):
        lane.optimizer.param_groups[0]["lr"] = 1e200
    data = images(320, F64)
    together(Fused(packed), data)
    for one, other in zip(own, packed, strict=True):
        alone(one, data)
    with pytest.raises(Diverged):
        packed[1].taken()
    assert gap(own[0], packed[0]) < 1e-10 and gap(own[2], packed[2]) < 1e-10


class Failing(Images):
    """Raises after the forward pass while `fail` is set."""

    fail = False

    def training_step(self, model: nn.Module, batch: Any) -> Any:
        outcome = super().training_step(model, batch)
        if self.fail:
            raise MemoryError("out of memory")
        return outcome


def kept_by(lane: TrainingLane) -> tuple[Any, ...]:
    noted = len(lane.metrics.by_name["loss"])
    return weights(lane).tolist(), lane.unreported, lane.batches, noted


@pytest.mark.parametrize("group", [1, 2])
def test_a_step_that_raises_is_undone_and_may_be_repeated_lane_by_lane(group: int) -> None:
    recipe = Failing(F64, accumulate_grad_batches=group)
    own, packed = pair(recipe=recipe, model="cnn", schedule="samples")
    data, fused = images(16 * 6, F64), Fused(packed)
    for lane in (*own, *packed):
        lane.begin(len(data[0]))
    for at in range(0, 96, 16):
        batch = (data[0][at : at + 16], data[1][at : at + 16])
        for lane in own:
            lane.step(batch, 16)
        if at == 48:
            before = [kept_by(lane) for lane in packed]
            recipe.fail = True
            with pytest.raises(MemoryError):
                fused.step(batch, 16)
            recipe.fail = False
            assert [kept_by(lane) for lane in packed] == before
            for lane in packed:
                with lane.rng:
                    lane.step(batch, 16)
        else:
            fused.step(batch, 16)
    for one, other in zip(own, packed, strict=True):
        assert gap(one, other) < 1e-8
        assert one.taken()[0] == other.taken()[0]
        assert compare(one.state()["optimizer"], other.state()["optimizer"]).difference < 1e-8


def test_an_optimizer_that_fails_midway_is_never_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some lanes may have made the step by then."""
    _, packed = pair(optimizer="adam")
    fused, batch = Fused(packed), images(16, F64)
    fused.step(batch, 16)

    def full(*_: Any) -> None:
        raise MemoryError("out of memory")

    monkeypatch.setattr(StackedSteps, "step", full)
    with pytest.raises(StepFailed) as failed:
        fused.step(batch, 16)
    assert {lane: str(error) for lane, error in failed.value.errors.items()} == dict.fromkeys(
        range(3), "out of memory"
    )


def test_states_are_those_of_whole_lanes_and_may_be_loaded_in_between() -> None:
    own, packed = pair(model="cnn")
    data, fused = images(48, F64), Fused(packed)
    together(fused, data)
    fresh = lanes(packed[0].recipe, configs(3, model="cnn"))
    for lane, other in zip(fresh, packed, strict=True):
        lane.load(other.state())
        assert compare(lane.state(), other.state()).equal
    together(fused, data)
    fused.loosen()
    for lane, other in zip(fresh, packed, strict=True):
        other.load(lane.state())  # back to after the first pass
    together(fused, data)
    for lane, other, one in zip(fresh, packed, own, strict=True):
        alone(lane, data)
        alone(one, data, 2)
        assert gap(lane, other) < 1e-8 and gap(one, other) < 1e-8


# -- randomness


class Dropping(Images):
    def configure_model(self, config: Mapping[str, Any]) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Dropout(0.5), nn.Linear(16, 4))


def test_dropout_is_fused_only_where_equality_in_distribution_will_do() -> None:
    recipe = Dropping()
    same = [{"lr": 0.0, "optimizer": "sgd"}] * 3
    strict = lanes(recipe, same)
    free = [
        TrainingLane(recipe, {**c, "fuse_random": True}, seed=3, device=HERE, epoch=1.0)
        for c in same
    ]
    states = [lane.rng.state() for lane in strict]
    with pytest.raises(Unfusable, match="random"):
        Fused(strict).step(images(16), 16)
    assert all(
        compare(state, lane.rng.state()).equal for state, lane in zip(states, strict, strict=True)
    )
    fused, batch = Fused(free), images(16)
    for _ in range(200):
        fused.step(batch, 16)
    losses = torch.tensor([[float(v) for _, v in lane.metrics.by_name["loss"]] for lane in free])
    assert len(set(losses[:, 0].tolist())) == 3  # equal weights, unlike masks
    with free[0].rng.untouched(), torch.no_grad():
        own = torch.tensor(
            [float(recipe.training_step(free[0].model, batch)["loss"]) for _ in range(200)]
        )
    error = (own.var() / 200 + losses.var() / 600).sqrt()
    assert abs(losses.mean() - own.mean()) < 5 * error
    assert losses.var(1).mean() == pytest.approx(float(own.var()), rel=0.5)


def test_randomness_is_no_obstacle_where_nothing_is_drawn() -> None:
    own, packed = pair(fuse_random=True)
    together(Fused(packed), images(48, F64))
    for one, other in zip(own, packed, strict=True):
        alone(one, images(48, F64))
        assert gap(one, other) < 1e-12
        assert compare(one.rng.state(), other.rng.state()).equal


# -- evaluation


@pytest.mark.parametrize("model", MODELS)
def test_evaluation_is_each_lanes_own_and_changes_nothing(model: str) -> None:
    _, packed = pair(model=model)
    fused = Fused(packed)
    together(fused, images(48, F64))
    before = [lane.state() for lane in packed]
    copies = [[array.copy() for array in state["model"].values()] for state in before]
    data = images(150, F64, seed=2)
    scores = fused.evaluate((data[0][at : at + 70], data[1][at : at + 70]) for at in (0, 70, 140))
    for lane, got, copy in zip(packed, scores, copies, strict=True):
        assert got == pytest.approx(evaluate(lane, [data]), abs=1e-10)
        assert all(module.training for module in lane.model.modules())
        assert all(
            (a == b).all() for a, b in zip(copy, lane.state()["model"].values(), strict=True)
        )


def test_evaluation_that_cannot_be_vectorized_is_made_lane_by_lane() -> None:
    class ByNumpy(Images):
        def validation_step(self, model: nn.Module, batch: Any) -> dict[str, Tensor]:
            guess = model(batch[0]).numpy().argmax(1)
            return {"accuracy": torch.from_numpy((guess == batch[1].numpy()).astype("f4"))}

    _, packed = pair(recipe=ByNumpy(F64))
    data, fused = images(150, F64), Fused(packed)
    alive: weakref.WeakSet[Tensor] = weakref.WeakSet()

    def chunks() -> Iterator[Any]:
        for _ in range(4):
            x = data[0].clone()
            alive.add(x)
            assert len(alive) <= 2  # never all at once
            yield x, data[1]

    assert fused.evaluate(chunks()) == [evaluate(lane, [data] * 4) for lane in packed]
    together(fused, images(32, F64))
    assert fused.evaluate([]) == [{}, {}, {}]


@pytest.mark.parametrize("slow", ["fused", "alone"])
def test_evaluation_takes_the_quicker_way(slow: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _, packed = pair()
    fused, data, rows = (Fused(packed), images(150, F64), dict.fromkeys(("fused", "alone"), 0))

    def counted(way: str, do: Any) -> Any:
        def done(self: Any, batch: Any, *more: Any) -> Any:
            rows[way] += len(batch[1])
            if slow == way:
                sleep(0.03)
            return do(self, batch, *more)

        return done

    monkeypatch.setattr(FusedScores, "_validated", counted("fused", FusedScores._validated))
    monkeypatch.setattr(Scoring, "add", counted("alone", Scoring.add))
    alone = [evaluate(lane, [data]) for lane in packed]
    fused.evaluate([data], timed=True)  # finds out
    rows.update(fused=0, alone=0)
    scores = fused.evaluate([data], timed=True)
    assert rows == (
        {"fused": 0, "alone": 150 * len(packed)} if slow == "fused" else {"fused": 150, "alone": 0}
    )
    assert all(
        each == pytest.approx(own, abs=1e-10) for each, own in zip(scores, alone, strict=True)
    )
    fused.evaluate([data])
    assert rows["fused"] >= 150, "at once, where nothing is to be timed"


# -- what else is each lane's own


def test_a_buffer_that_is_an_attribute_and_in_a_dict_too_is_not_fused() -> None:
    class Centred(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(64, 4)
            self.register_buffer("mean", torch.zeros(4))
            self.same, self._named = self.mean, {"mean": self.mean}

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.inner(x.flatten(1))
            with torch.no_grad():
                self.mean.mul_(0.9).add_(out.detach().mean(0), alpha=0.1)
            return out - self.same + self._named["mean"] ** 2

    class Recipe(Images):
        def configure_model(self, config: Mapping[str, Any]) -> nn.Module:
            return Centred().double()

    packed = lanes(Recipe(), configs(3, optimizer="sgd"))
    for lane in packed:
        lane.model.same = lane.model.mean  # `double` made a new one
        lane.model._named["mean"] = lane.model.mean
    with pytest.raises(Unfusable, match="held by other objects"):
        Fused(packed)


def test_an_optimizer_that_keeps_the_gradient() -> None:
    """Alone each step's is a new tensor."""

    class Optimistic(torch.optim.Optimizer):
        def __init__(self, parameters: Any, lr: float) -> None:
            super().__init__(parameters, {"lr": lr})

        @torch.no_grad()
        def step(self, closure: Any = None) -> Any:
            for p in self.param_groups[0]["params"]:
                before = self.state[p].get("before", p.grad)
                p.sub_(2 * p.grad - before, alpha=self.param_groups[0]["lr"])
                self.state[p]["before"] = p.grad

    class Recipe(Images):
        def configure_optimizers(self, model: nn.Module, config: Mapping[str, Any]) -> Any:
            return Optimistic(model.parameters(), config["lr"])

    own, packed = pair(recipe=Recipe(F64))
    together(Fused(packed), images(72, F64), 2)
    as_alone(own, packed, images(72, F64), 2)


@pytest.mark.parametrize("where", ["step", "step raises", "optimizer", "optimizer raises"])
def test_the_mode_of_gradients_is_each_step_s_own(where: str) -> None:
    """It would be that of every trial made later in the process."""

    class Switching(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            found = super().step(closure)
            if where.startswith("optimizer"):
                torch.set_grad_enabled(False)
            if where == "optimizer raises":
                raise ArithmeticError("mine")
            return found

    class Recipe(Images):
        def configure_optimizers(self, model: nn.Module, config: Mapping[str, Any]) -> Any:
            return Switching(model.parameters(), config["lr"])

        def training_step(self, model: nn.Module, batch: Any) -> Any:
            torch.set_grad_enabled(True)
            found = super().training_step(model, batch)
            if where.startswith("step"):
                torch.set_grad_enabled(False)
            if where == "step raises" and calls.pop():
                raise ArithmeticError("mine")
            return found

    calls = [
        True,
        *[False] * 8,
    ]  # from the last on: some to compare the lanes, before the one that counts
    own, packed = pair(2, recipe=Recipe(F64))
    fused = Fused(packed)
    if where.endswith("raises"):
        with pytest.raises((ArithmeticError, StepFailed)):
            together(fused, images(48, F64), 6)
        assert torch.is_grad_enabled()
        return
    together(fused, images(48, F64), 2)
    assert torch.is_grad_enabled()
    as_alone(own, packed, images(48, F64), 2)


def test_values_are_told_in_the_order_of_the_steps_also_those_taken_alone() -> None:
    class Noting(Images):
        def training_step(self, model: nn.Module, batch: Any) -> Any:
            return {
                "loss": super().training_step(model, batch)["loss"],
                "steps": float(len(batch[0])),
                "first": batch[1][0] * 1.0,
            }

    own, packed = pair(recipe=Noting(F64))
    fused = Fused(packed)
    for number, size in enumerate((16, 16, 9, 16, 5)):
        batch = images(size, F64, seed=number)
        for lane in own:
            lane.step(batch, size)
        if number == 2:
            fused.loosen()
            for lane in packed:
                lane.step(batch, size)
        else:
            fused.step(batch, size)
        if number == 3:
            packed[1].begin(100)  # what it had noted is dropped, the others' is not
            own[1].begin(100)
    for one, other in zip(own, packed, strict=True):
        mine, theirs = one.metrics.by_name, other.metrics.by_name
        assert mine.keys() == theirs.keys() == {"loss", "steps", "first"}
        for name in mine:
            assert [count for count, _ in mine[name]] == [count for count, _ in theirs[name]]
            assert [float(v) for _, v in theirs[name]] == pytest.approx(
                [float(v) for _, v in mine[name]], abs=1e-8
            )
    assert [len(lane.metrics.by_name["loss"]) for lane in packed] == [5, 1, 5]


def test_a_value_that_is_no_number_fails_its_step_as_alone() -> None:
    class Noting(Images):
        def training_step(self, model: nn.Module, batch: Any) -> Any:
            return {
                "loss": super().training_step(model, batch)["loss"],
                "many": batch[0].flatten()[:3] * next(model.parameters()).sum(),
            }

    own, packed = pair(recipe=Noting(F64))
    with pytest.raises(ValueError, match=r"many: got shape \(3,\)"):
        together(Fused(packed), images(16, F64))
    for lane in own:
        with pytest.raises(ValueError, match=r"many: got shape \(3,\)"):
            alone(lane, images(16, F64))


def test_a_lane_by_itself_and_named_columns() -> None:
    class Named(Images):
        def training_step(self, model: nn.Module, batch: Any) -> Any:
            return super().training_step(model, (batch["x"], batch["y"]))

    own, packed = pair(1, recipe=Named(F64))
    fused, (x, y) = Fused(packed), images(16, F64)
    for _ in range(3):
        with own[0].rng:
            own[0].step({"x": x, "y": y}, 16)
        fused.step({"x": x, "y": y}, 16)
    assert gap(own[0], packed[0]) < 1e-12


def test_a_sample_that_is_ignored_counts_nothing_even_where_its_loss_would_be_infinite() -> None:
    logits = torch.tensor([[-float("inf"), 0.0], [1.0, 2.0]], requires_grad=True)
    target = torch.tensor([-100, 1])
    with Rewritten():
        loss = nn.functional.cross_entropy(logits, target)
    assert float(loss.detach()) == pytest.approx(
        float(nn.functional.cross_entropy(logits, target).detach())
    )
    loss.backward()  # type: ignore[no-untyped-call]
    assert logits.grad is not None and logits.grad.isfinite().all()
