"""Training again, comparing, and the check of a recipe."""

from math import inf, nan
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import numpy as np
import pytest
import torch
from device_kit import HERE
from train_kit import Small, blobs, go, planned, trainer, trial

from shoal.core.trial import Visit
from shoal.core.visits import counted
from shoal.train.lane.checkpoints import Checkpoints
from shoal.train.recipe.unit import TrialError
from shoal.train.slot.setup import TrainerSetup
from shoal.train.stream.reader import taken_of
from shoal.train.stream.stream import Stream
from shoal.train.tools.check import check_recipe
from shoal.train.tools.verify import compare, differences, model_from, retrain, untrained


@pytest.mark.parametrize("schedule", ["none", "plateau", "samples"])
def test_a_record_of_visits_trains_the_same_again(schedule: str, tmp_path: Path) -> None:
    data, what = blobs(), trial(schedule=schedule)
    held = trainer(Small(), data, Checkpoints(tmp_path, 1))
    made = go(held, what, planned(data, 2))
    saved = Checkpoints(tmp_path, 1).load(held.keep(what.id))
    again = retrain(
        Small(), data, what, made, TrainerSetup(device=str(HERE), seed=3, metric="accuracy")
    )
    assert compare(saved, again) == (True, 0.0)
    swapped = retrain(
        Small(),
        data,
        what,
        (made[1], made[0], *made[2:]),
        TrainerSetup(device=str(HERE), seed=3, metric="accuracy"),
    )
    assert not compare(saved["model"], swapped["model"]).equal
    assert retrain(Small(), data, what, (), TrainerSetup(device=str(HERE), seed=3))["visits"] == []


def test_a_model_comes_back_from_its_state() -> None:
    data, what = blobs(), trial()
    held = trainer(Small(), data)
    go(held, what, planned(data, 1))
    model = model_from(Small(), {}, 3, held.state(what.id))
    assert not model.training
    assert torch.equal(model[0].weight, held.lanes.get(what.id).lane.model[0].weight)
    assert model[0].weight.data_ptr() != held.lanes.get(what.id).lane.model[0].weight.data_ptr()


@pytest.mark.parametrize(
    ("one", "other", "equal", "difference"),
    [
        ({"a": np.array([1.0, 2.0])}, {"a": np.array([1.0, 2.5])}, False, 0.5),
        ({"a": np.array([1.0, nan])}, {"a": np.array([1.0, nan])}, True, 0.0),
        ({"a": np.array([0.0])}, {"a": np.array([-0.0])}, False, 0.0),
        ({"a": np.array([1, 2])}, {"a": np.array([1.0, 2.0])}, False, inf),
        ({"a": 1}, {"b": 1}, False, inf),
        ({"a": [1, (2, nan)]}, {"a": [1, (2, nan)]}, True, 0.0),
        ({"a": [1, 2]}, {"a": [1, 4]}, False, 2.0),
        ({"a": "x"}, {"a": "y"}, False, inf),
        ({"a": None}, {"a": np.zeros(1)}, False, inf),
        ({"a": np.array([200], "u1")}, {"a": np.array([100], "u1")}, False, 100.0),
        ({"a": np.array([nan])}, {"a": np.array([0.0])}, False, inf),
    ],
)
def test_compare(one: Any, other: Any, equal: bool, difference: float) -> None:
    assert compare(one, other) == (equal, difference) == compare(other, one)


def test_differences_tell_where() -> None:
    assert dict(differences({"a": [{"b": 1.0}], "c": 2}, {"a": [{"b": 1.5}], "c": 2})) == {
        "a.0.b": 0.5
    }


def test_a_good_recipe_passes() -> None:
    found = check_recipe(Small(batch_size=4), blobs(), {"optimizer": "adamw"})
    assert found["ok"] and found["steps"] == 3
    assert [name for name, _, _ in found["checks"]] == [
        "trains",
        "repeats itself",
        "same beside another trial",
        "same after a move",
        "validation changes nothing",
    ]


def test_a_recipe_that_accumulates_gradients_passes() -> None:
    config = {"optimizer": "adamw", "accumulate_grad_batches": 2}
    found = check_recipe(Small(batch_size=2), blobs(), config)
    assert found["ok"] and found["steps"] == 3, found


def failing(recipe: Any) -> set[str]:
    found = check_recipe(recipe, blobs(), {})
    assert found["ok"] == (not any(not passed for _, passed, _ in found["checks"]))
    return {name for name, passed, _ in found["checks"] if not passed}


# the last one is larger than the data: each pass is one step
SIZES = pytest.mark.parametrize("size", [4, 99])


@SIZES
def test_a_recipe_that_holds_state_is_found_out(size: int) -> None:
    class Counting(Small):
        steps = 0

        def training_step(self, model: Any, batch: Any) -> Any:
            self.steps += 1
            return super().training_step(model, batch) * self.steps

    assert failing(Counting(batch_size=size)) == {"trains"}

    class Hidden(Small):
        steps: ClassVar[list[int]] = []

        def training_step(self, model: Any, batch: Any) -> Any:
            self.steps.append(1)
            return super().training_step(model, batch) * len(self.steps)

    assert "repeats itself" in failing(Hidden(batch_size=size))


@SIZES
def test_a_recipe_whose_model_hides_state_is_found_out(size: int) -> None:
    class Hiding(Small):
        def training_step(self, model: Any, batch: Any) -> Any:
            calls = vars(model).setdefault("_calls", SimpleNamespace(number=0))
            calls.number += 1
            return super().training_step(model, batch) * calls.number

    assert failing(Hiding(batch_size=size)) == {"trains"}

    class Outside(Small):
        calls: ClassVar[Any] = WeakKeyDictionary()

        def training_step(self, model: Any, batch: Any) -> Any:
            self.calls[model] = self.calls.get(model, 0) + 1
            return super().training_step(model, batch) * self.calls[model]

    assert failing(Outside(batch_size=size)) == {"same after a move"}


@SIZES
def test_a_recipe_that_shares_between_trials_is_found_out(size: int) -> None:
    class Sharing(Small):
        last: ClassVar[dict[str, Any]] = {}

        def configure_model(self, config: Any) -> Any:
            self.last.clear()
            return super().configure_model(config)

        def training_step(self, model: Any, batch: Any) -> Any:
            mixed = self.last.get("model", model) is not model
            self.last["model"] = model
            return super().training_step(model, batch) * (2 if mixed else 1)

    assert "same beside another trial" in failing(Sharing(batch_size=size))


def test_full_batches_are_trained_three_times() -> None:
    class Seen(Small):
        rows: ClassVar[list[int]] = []

        def training_step(self, model: Any, batch: Any) -> Any:
            self.rows.append(len(batch[0]))
            return super().training_step(model, batch)

    size = blobs().sizes["s000"]
    assert check_recipe(Seen(batch_size=99), blobs(), {})["steps"] == 3
    assert Seen.rows[:3] == [size] * 3 and size < 99


def test_what_no_state_can_hold_fails_the_steps() -> None:
    class Closed(Small):
        def training_step(self, model: Any, batch: Any) -> Any:
            model.add = lambda: 1
            return super().training_step(model, batch)

    found = check_recipe(Closed(batch_size=99), blobs(), {})
    assert not found["ok"] and "training changed" in found["checks"][0][2]


def test_a_validation_that_trains_is_found_out() -> None:
    class Training(Small):
        def validation_step(self, model: Any, batch: Any) -> Any:
            model[0].weight.data.add_(1)
            return super().validation_step(model, batch)

    assert failing(Training()) == {"validation changes nothing"}


def test_a_raising_recipe_fails_the_check() -> None:
    class Raising(Small):
        def training_step(self, model: Any, batch: Any) -> Any:
            raise KeyError("x")

    found = check_recipe(Raising(), blobs(), {})
    assert found == {"ok": False, "steps": 0, "checks": [("trains", False, "KeyError: 'x'")]}
    with pytest.raises(TrialError):
        go(trainer(Raising(), blobs()), trial(), planned(blobs(), 1))


class Plain(Small):
    """Nothing random, so that a few lines of torch train the same."""

    def configure_model(self, config: Any) -> Any:
        return torch.nn.Linear(6, 3)

    def configure_optimizers(self, model: Any, config: Any) -> Any:
        return torch.optim.SGD(model.parameters(), lr=0.1)


def test_shards_that_were_read_together_are_trained_again_together() -> None:
    """Each batch has rows of both shards, as a few lines of torch make it; then the epoch goes on
    with the third shard. Read one after the other they teach something else.
    """
    recipe, data = Plain(), blobs(100, shards=3, validation=None)
    s0, s1, s2 = data.shards
    joint = counted(Visit(0, s0, 0, 0, beside=(s1,)), data.sizes)
    visits = (*joint, Visit(0, s2, 0, data.size(s2)))
    setup = TrainerSetup(seed=3)
    again = retrain(recipe, data, trial("t"), visits, setup)
    assert [tuple(visit) for visit in again["visits"]] == [
        tuple(visit.as_list()) for visit in visits
    ]

    weights = untrained(recipe, data, trial("t"), setup)["model"]
    model = torch.nn.Linear(6, 3)
    model.load_state_dict({name: torch.tensor(w) for name, w in weights.items()})
    stream = Stream(recipe, data, seed=3, device=torch.device("cpu"), memory_gb=1.0)
    parts = {q: [torch.cat(c) for c in zip(*stream.chunks(q, 0), strict=True)] for q in data.shards}

    def learn(pieces: Any) -> None:
        x, y = (torch.cat(columns) for columns in zip(*pieces, strict=True))
        model.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        for weight in model.parameters():
            weight.data -= 0.1 * weight.grad

    pair = {q: data.size(q) for q in (s0, s1)}
    for sizes in (pair, {s2: data.size(s2)}):
        for at in range(0, sum(sizes.values()), recipe.batch_size):
            end = min(at + recipe.batch_size, sum(sizes.values()))
            first, last = taken_of(sizes, at), taken_of(sizes, end)
            learn([[c[first[q] : last[q]] for c in parts[q]] for q in sizes])
    for name, weight in model.state_dict().items():
        np.testing.assert_allclose(again["model"][name], weight.numpy(), atol=1e-6)
    alone = tuple(visit._replace(beside=()) for visit in visits)
    other = retrain(recipe, data, trial("t"), alone, setup)
    assert abs(other["model"]["weight"] - again["model"]["weight"]).max() > 1e-3
