"""A trial that was moved, saved or interleaved goes on as if nothing had happened, to the last
bit.
"""

import warnings
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from device_kit import HERE
from torch import nn
from train_kit import (
    OPTIMIZERS,
    SCHEDULES,
    Small,
    blobs,
    copied,
    drive,
    go,
    planned,
    trainer,
    trial,
)

from shoal.train.lane import tree
from shoal.train.lane.checkpoints import Checkpoints
from shoal.train.lane.lane import TrainingLane
from shoal.train.slot.trainer import Unit
from shoal.train.tools.verify import compare, differences

ID = trial().id
CUTS = (1, 3, 4)  # within an epoch, at its end, within the next


# Each with one of the cuts, by turns.
@pytest.mark.parametrize(
    ("optimizer", "schedule", "cut"),
    [(*pair, CUTS[n % len(CUTS)]) for n, pair in enumerate(product(OPTIMIZERS, SCHEDULES))],
)
def test_a_moved_or_saved_trial_goes_on_as_if_undisturbed(
    optimizer: str, schedule: str, cut: int, tmp_path: Path
) -> None:
    data, what = blobs(chunk=13), trial(optimizer=optimizer, schedule=schedule)
    plan = planned(data, 2)
    undisturbed = trainer(Small(), data)
    go(undisturbed, what, plan)
    vault = Checkpoints(tmp_path, 1)
    first = trainer(Small(), data, vault)
    made = go(first, what, plan[:cut])
    moved = trainer(Small(), data)
    go(moved, what, plan[cut:], made, source=copied(first.state(ID)))
    assert compare(moved.state(ID), undisturbed.state(ID)).equal
    saved = trainer(Small(), data, vault)
    go(saved, what, plan[cut:], made, source=first.keep(ID))
    assert compare(saved.state(ID), undisturbed.state(ID)).equal
    assert not compare(first.state(ID), undisturbed.state(ID)).equal  # it could have differed


@pytest.mark.parametrize(
    "settings", [{"shuffle": "each"}, {"accumulate_grad_batches": 3}, {"precision": "bf16"}]
)
def test_every_visit_at_another_trainer(settings: dict[str, Any]) -> None:
    data, what = blobs(chunk=11), trial(optimizer="adamw", schedule="epochs")
    plan = planned(data, 3)
    alone = trainer(Small(**settings), data)
    go(alone, what, plan)
    trainers = [trainer(Small(**settings), data) for _ in range(3)]
    state, made = None, ()
    for i, visit in enumerate(plan):
        at = trainers[(i * 2) % 3]  # comes back to lanes that hold an older state of it
        made = go(at, what, [visit], made, source=state, carry=True)
        state = copied(at.state(ID))
    assert compare(state, alone.state(ID)).equal


def test_two_trials_taking_turns_at_one_trainer_equal_each_alone() -> None:
    data, one, other = (
        blobs(chunk=9),
        trial("a", seed=1),
        trial("b", seed=2, optimizer="momentum"),
    )
    plan = planned(data, 2)
    shared = trainer(Small(), data)
    made: dict[str, Any] = {"a": (), "b": ()}
    for visit in plan:
        units = {
            t.id: shared.train(Unit(t, made[t.id], visit, evaluate=True)) for t in (one, other)
        }
        while units:  # a chunk of one, a chunk of the other
            for name in tuple(units):
                try:
                    next(units[name])
                except StopIteration as stop:
                    made[name] += (stop.value.visit,)
                    del units[name]
    for what in (one, other):
        alone = trainer(Small(), data)
        so_far: Any = ()
        for visit in plan:
            _, done = drive(alone.train(Unit(what, so_far, visit, evaluate=True)))
            so_far += (done.visit,)
        assert compare(shared.state(what.id), alone.state(what.id)).equal


def test_load_copies_and_reuses_the_memory_it_has() -> None:
    one, other = (TrainingLane(Small(), {}, seed=s, device=HERE, epoch=9.0) for s in (1, 2))
    for lane in (one, other):
        lane.begin(8)
        with lane.rng:
            list(lane.feed((torch.randn(8, 6), torch.zeros(8, dtype=torch.int64))))
    held = {name: value.data_ptr() for name, value in _tensors(other).items()}
    given = copied(one.state())
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # none about memory that may not be written to
        other.load(given)
    assert compare(other.state(), given).equal
    assert {name: value.data_ptr() for name, value in _tensors(other).items()} == held
    fresh = TrainingLane(Small(), {}, seed=3, device=HERE, epoch=9.0)
    fresh.load(given)
    assert compare(fresh.state(), given).equal
    for value in _tensors(fresh).values():
        value.add_(1)  # would fail, or show, if it were the given memory
    assert compare(copied(one.state()), given).equal


def _tensors(lane: TrainingLane) -> dict[str, torch.Tensor]:
    own = {
        f"{i}.{key}": value
        for i, state in lane.optimizer.state_dict()["state"].items()
        for key, value in state.items()
    }
    return {**lane.model.state_dict(), **own}


def test_state_is_a_view_of_the_models_memory() -> None:
    lane = TrainingLane(Small(), {}, seed=1, device=HERE, epoch=9.0)
    state = lane.state()
    assert state["model"]["0.weight"].ctypes.data == lane.model[0].weight.data_ptr()


def test_the_state_of_another_model_is_refused() -> None:
    lane = TrainingLane(Small(), {}, seed=1, device=HERE, epoch=9.0)
    state = lane.state()
    for model in (
        {**state["model"], "more": np.zeros(1)},
        {**state["model"], "0.weight": np.zeros((2, 2), "f4")},
        {**state["model"], "0.weight": state["model"]["0.weight"].astype("f8")},
    ):
        with pytest.raises(ValueError, match="the state is not this model's"):
            lane.load({**state, "model": model})


class Odd(nn.Module):
    """Dtypes that NumPy lacks, ties, views, and a state of its own making."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 3).to(torch.bfloat16))
        self.tied = self.weight
        self.register_buffer("turned", torch.randn(3, 4).t())
        self.register_buffer("eighth", torch.randn(4).to(torch.float8_e5m2))
        self.register_buffer("count", torch.tensor(3))
        self.more = {"seen": 0}

    def get_extra_state(self) -> Any:
        return self.more

    def set_extra_state(self, state: Any) -> None:
        self.more = dict(state)


@pytest.mark.parametrize("durable", [False, True])
def test_unusual_states_are_kept_to_the_last_bit(durable: bool, tmp_path: Path) -> None:
    class Recipe(Small):
        def configure_model(self, config: Any) -> nn.Module:
            return Odd()

    one, other = (TrainingLane(Recipe(), {}, seed=s, device=HERE, epoch=9.0) for s in (1, 2))
    one.model.more = {"seen": 7}
    state = one.state()
    if durable:
        vault = Checkpoints(tmp_path, 1)
        vault.save("a/000001-1.pt", state)
        state = vault.load("a/000001-1.pt")
    other.load(state)
    for name in ("weight", "turned", "eighth", "count"):
        a, b = getattr(one.model, name), getattr(other.model, name)
        assert a.dtype == b.dtype and tree.view_of(a).tobytes() == tree.view_of(b).tobytes()
    assert other.model.more == {"seen": 7}
    assert other.model.tied is other.model.weight


def test_what_cannot_be_kept_is_told() -> None:
    with pytest.raises(
        TypeError, match="may hold tensors, arrays, numbers, texts, lists and dicts; got object"
    ):
        tree.to_numpy({"a": [object()]})


@pytest.mark.parametrize(
    "name",
    ["Adagrad", "Adadelta", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop", "ASGD", "Adafactor"],
)
def test_other_optimizers_move_too(name: str) -> None:
    class Recipe(Small):
        def configure_optimizers(self, model: nn.Module, config: Any) -> Any:
            return getattr(torch.optim, name)(model.parameters(), lr=0.01)

    data, what = blobs(), trial()
    plan = planned(data, 2)
    alone, first, then = (trainer(Recipe(), data) for _ in range(3))
    go(alone, what, plan)
    made = go(first, what, plan[:2])
    made = go(then, what, plan[2:4], made, source=copied(first.state(ID)))
    go(first, what, plan[4:], made, source=copied(then.state(ID)))
    assert compare(first.state(ID), alone.state(ID)).equal


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("NAdam", torch.float64), ("NAdam", torch.bfloat16), ("ASGD", torch.bfloat16)],
)
def test_states_of_another_dtype_than_the_parameters_keep_it(name: str, dtype: torch.dtype) -> None:
    """Torch's own loading rounds them to the parameter's."""

    class Recipe(Small):
        def configure_model(self, config: Any) -> nn.Module:
            return super().configure_model(config).to(dtype)

        def configure_optimizers(self, model: nn.Module, config: Any) -> Any:
            return getattr(torch.optim, name)(model.parameters(), lr=0.01)

        def training_step(self, model: nn.Module, batch: Any) -> Any:
            return super().training_step(model, (batch[0].to(dtype), batch[1]))

        def validation_step(self, model: nn.Module, batch: Any) -> Any:
            return super().validation_step(model, (batch[0].to(dtype), batch[1]))

    data, what = blobs(), trial()
    plan = planned(data, 2)
    alone, first, then = (trainer(Recipe(), data) for _ in range(3))
    go(alone, what, plan)
    made = go(first, what, plan[:2])
    go(then, what, plan[2:], made, source=copied(first.state(ID)))
    assert list(differences(then.state(ID), alone.state(ID))) == []
    states = (then.state(ID)["optimizer"]["state"][0], alone.state(ID)["optimizer"]["state"][0])
    kinds = [
        {key: getattr(value, "dtype", type(value)) for key, value in state.items()}
        for state in states
    ]
    assert kinds[0] == kinds[1]


lr = torch.optim.lr_scheduler


@pytest.mark.parametrize(
    "make",
    [
        lambda o: lr.LambdaLR(o, lambda epoch: 0.5**epoch),
        lambda o: lr.OneCycleLR(o, 0.1, total_steps=90),
        lambda o: lr.CosineAnnealingWarmRestarts(o, 2),
        lambda o: lr.SequentialLR(o, [lr.ConstantLR(o, 0.1, 1), lr.ExponentialLR(o, 0.5)], [1]),
        lambda o: lr.ChainedScheduler([lr.StepLR(o, 1), lr.LinearLR(o)]),
        lambda o: lr.CyclicLR(o, 0.01, 0.1, 2, cycle_momentum=False),
    ],
)
def test_other_schedulers_move_too(make: Any, tmp_path: Path) -> None:
    class Recipe(Small):
        def configure_optimizers(self, model: nn.Module, config: Any) -> Any:
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
            return optimizer, make(optimizer)

    data, what = blobs(shards=1), trial()
    plan = planned(data, 6)
    vault = Checkpoints(tmp_path, 1)
    alone, first, then = (
        trainer(Recipe(), data),
        trainer(Recipe(), data, vault),
        trainer(Recipe(), data, vault),
    )
    go(alone, what, plan)
    made = go(first, what, plan[:2])
    go(then, what, plan[2:], made, source=first.keep(ID))
    assert compare(then.state(ID), alone.state(ID)).equal
    assert not compare(first.state(ID)["scheduler"], alone.state(ID)["scheduler"]).equal
