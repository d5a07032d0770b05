"""Unlike lanes whose losses are differentiated in one pass: each learns what it learns alone."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from pack_kit import OPTIMIZERS, Varied, Zoo, as_alone, by_hand, packed, plan, same, trial
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from train_kit import trainer as slot_trainer

from shoal.core.trial import Trial
from shoal.train.data.data import Data
from shoal.train.fuse.gauge import TRIES, Gauge
from shoal.train.recipe.unit import PackRefused, Unit
from shoal.train.slot import pass_events
from shoal.train.slot.trainer import SlotTrainer

MODELS = ["mlp", "cnn", "transformer", "rnn"]


class Always(Gauge):
    """Sums all lanes there are, and tries nothing."""

    def wants(self, *_: Any, **__: Any) -> int | None:
        return None

    def choose(self, kind: str, lanes: int) -> int:
        return 1 if self.why(kind) is not None else self.room(kind, lanes)


def summing(recipe: Zoo, data: Data, **setup: Any) -> SlotTrainer:
    """A trainer that sums whatever may be; its lanes' steps are known from the first chunk on."""
    trainer = slot_trainer(recipe, data, **setup)
    trainer.pack.summation.gauge = Always()
    return trainer


@pytest.fixture
def widths(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many losses were differentiated at once, each time."""
    found: list[int] = []
    real = torch.autograd.backward

    def noting(tensors: Any, *args: Any, **named: Any) -> None:
        if isinstance(tensors, list):
            found.append(len(tensors))
        real(tensors, *args, **named)

    monkeypatch.setattr(torch.autograd, "backward", noting)
    return found


def check(recipe: Zoo, data: Data, trials: Sequence[Trial]) -> None:
    """All of them learn in sums what they learn alone."""
    found = packed(recipe, data, trials, trainer=summing(recipe, data))
    as_alone(found, recipe, data, trials)


@pytest.mark.parametrize("recipe", [Zoo(chunk=16), Varied(chunk=16, shuffle="each")])
def test_summed_is_alone(recipe: Zoo, widths: list[int]) -> None:
    """Unlike models, optimizers, schedules and batches, which no chunk divides; with dropout."""
    data = recipe.data()
    lanes = zip(MODELS, OPTIMIZERS, ("cosine", "samples", "plateau", "epochs"), (7, 16, 3, 5))
    trials = [
        trial(m, 2, data, model=m, optimizer=o, schedule=s, batch_size=b, drop=0.3)
        for m, o, s, b in lanes
    ]
    check(recipe, data, trials)
    assert max(widths) == 4 and 2 in widths, "those with larger batches are through before"


def test_lanes_with_unlike_ways_to_step(widths: list[int]) -> None:
    """Some accumulate, clip, or drop the last batch; one computes in half precision."""
    recipe = Zoo(chunk=16)
    data = recipe.data()
    extras: list[dict[str, Any]] = [
        {"accumulate_grad_batches": 3, "batch_size": 5},
        {"drop_last": True, "batch_size": 7},
        {"gradient_clip_val": 0.1},
        {"precision": "bf16", "accumulate_grad_batches": 2},
    ]
    trials = [
        trial(
            f"t{i}", 2, data, model="mlp", schedule="steps", drop=0.2, **{"batch_size": 8, **more}
        )
        for i, more in enumerate(extras)
    ]
    check(recipe, data, trials)
    assert max(widths) == 4


def test_long_chunks_are_reported_in_pieces(
    monkeypatch: pytest.MonkeyPatch, widths: list[int]
) -> None:
    """A piece ends with whole steps of all lanes."""
    monkeypatch.setattr(pass_events, "PART_SECONDS", 0.0)
    recipe = Zoo(chunk=30)
    data = recipe.data()
    trials = [
        trial("a", 2, data, model="mlp", batch_size=4, accumulate_grad_batches=2),
        trial("b", 2, data, model="rnn", batch_size=6, drop=0.2),
    ]
    check(recipe, data, trials)
    assert max(widths) == 2


@pytest.mark.parametrize("wrong", [{"fail_at": 5}, {"nan_at": 5, "nan_patience": 2}, {"nan_at": 5}])
def test_a_lane_that_goes_wrong_harms_no_other(wrong: dict[str, int], widths: list[int]) -> None:
    recipe = Zoo(chunk=16)
    data = recipe.data()
    others = [
        trial(m, 2, data, model=m, optimizer=o, batch_size=4, drop=0.2)
        for m, o in zip(MODELS, OPTIMIZERS, strict=True)
    ]
    bad = trial("bad", 2, data, model="cnn", batch_size=4, **wrong)
    trainer = summing(recipe, data)
    found = packed(recipe, data, [*others[:2], bad, *others[2:]], trainer=trainer)
    if "nan_patience" in wrong or "fail_at" in wrong:
        said = "as asked" if "fail_at" in wrong else "diverged"
        assert said in str(found[bad.id].error)
    as_alone(found, recipe, data, others)
    assert {5, 4} <= set(widths)


class Recomputing(Zoo):
    """The model's forward pass is computed again for the backward pass."""

    def training_step(self, model: Any, batch: Any) -> Any:
        x, y = batch
        out = checkpoint(model, x, use_reentrant=bool(self.reentrant), preserve_rng_state=self.kept)
        return {"loss": nn.functional.cross_entropy(out, y)}

    reentrant = False
    kept = True


def test_a_forward_pass_computed_again_has_its_own_random_numbers(widths: list[int]) -> None:
    """Torch's checkpoint restores them, unless it is asked not to."""
    recipe = Recomputing(chunk=16)
    data = recipe.data()
    trials = [trial(m, 2, data, model=m, batch_size=4, drop=0.4) for m in ("mlp", "cnn")]
    check(recipe, data, trials)
    assert max(widths) == 2


class Noisy(torch.autograd.Function):
    """The identity, whose gradient gets noise; or raises."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, raises: bool) -> Tensor:
        ctx.raises = raises
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:  # type: ignore[override]
        if ctx.raises:
            raise ArithmeticError("in the backward pass")
        return gradient + torch.randn_like(gradient), None


class Noised(Zoo):
    def training_step(self, model: Any, batch: Any) -> Any:
        made = super().training_step(model, batch)
        if self.noise is not None:
            made["loss"] = Noisy.apply(made["loss"], self.noise == "raises")
        return made

    noise: str | None = None


@pytest.mark.parametrize("noise", ["draws", "raises"])
def test_what_no_lane_can_be_told_of_voids_the_round_and_is_not_tried_again(noise: str) -> None:
    recipe = Noised(chunk=16)
    data = recipe.data()
    trials = [trial(m, 1, data, model=m, batch_size=4) for m in ("mlp", "cnn")]
    trainer = summing(recipe, data)
    first, second = plan(data, 1)
    units = [Unit(each, (), first) for each in trials]
    visits = {}
    for name, news in trainer.train_pack(units):
        visits[name] = getattr(news, "visit", None)
    recipe.noise = noise
    after = [Unit(each, (visits[each.id],), second) for each in trials]
    last = dict(trainer.train_pack(after))
    assert all(isinstance(news, PackRefused) and news.begun for news in last.values())
    assert not any(trainer.holds(each.id, 1) for each in trials)
    again = packed(recipe, data, trials, trainer=trainer)  # in turns, from the beginning
    for each in trials:
        if noise == "raises":
            assert "in the backward pass" in str(again[each.id].error)
        else:
            same(again[each.id], by_hand(recipe, data, each))


def test_recipes_that_step_by_themselves_take_turns(widths: list[int]) -> None:
    class Own(Zoo):
        def training_step(self, model: Any, batch: Any, optimizers: Any) -> Any:  # type: ignore[override]
            (optimizer,) = optimizers
            made = super().training_step(model, batch)

            def closure() -> Tensor:
                optimizer.zero_grad()
                loss: Tensor = super(Own, self).training_step(model, batch)["loss"]
                loss.backward()
                return loss

            optimizer.step(closure)
            return {"loss": made["loss"].detach()}

    recipe = Own(chunk=16)
    data = recipe.data()
    check(recipe, data, [trial(m, 2, data, model=m, batch_size=4) for m in ("mlp", "cnn")])
    assert widths == []


# -- the choice


def clocked(trainer: SlotTrainer, seconds: Callable[[int], float], monkeypatch: Any) -> None:
    """By the clock of measurements, a step of so many lanes takes so long."""
    now = 0.0
    real = torch.autograd.backward

    def later(tensors: Any, *args: Any, **named: Any) -> None:
        nonlocal now
        now += seconds(len(tensors) if isinstance(tensors, list) else 1)
        real(tensors, *args, **named)

    monkeypatch.setattr(torch.autograd, "backward", later)
    monkeypatch.setattr(trainer.context.meter, "now", lambda: now)


@pytest.mark.parametrize(("of_three", "chosen"), [(2.0, 3), (2.98, 1)])
def test_lanes_are_summed_only_where_that_was_measured_to_be_quicker(
    of_three: float, chosen: int, widths: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step alone takes a second; a sum of two as long as two alone."""
    recipe = Zoo(samples=400, chunk=64)
    data = recipe.data()
    trials = [
        trial(m, 2, data, model=m, batch_size=b)
        for m, b in (("mlp", 4), ("rnn", 5), ("transformer", 6))
    ]
    trainer = slot_trainer(recipe, data)
    clocked(trainer, lambda lanes: {1: 1.0, 2: 2.0, 3: of_three}[lanes], monkeypatch)
    found = packed(recipe, data, trials, trainer=trainer)
    as_alone(found, recipe, data, trials)
    threes = widths.count(3)
    if chosen == 3:
        assert threes > 50
        figures = [record.figures["summed"] for record in found.values()]
        assert figures == pytest.approx([2 / 3] * 3)
    else:
        assert 0 < threes <= 3 * (TRIES + 2)
        assert {record.figures["summed"] for record in found.values()} == {1.0}
