"""What a slot may take of a GPU or keeps of main memory, and what happens when a GPU does
nothing any more. No GPU is needed.
"""

from math import inf
from pathlib import Path
from typing import Any

import pytest
import torch
from pack_kit import Zoo

import shoal
from shoal.train.lane import device
from shoal.train.lane.blame import blaming
from shoal.train.lane.device import CONTEXT, limit_memory
from shoal.train.recipe.unit import DeviceLost, OutOfMemory, TrialError

FRACTION = "set_per_process_memory_fraction"


@pytest.mark.parametrize(
    ("where", "most", "share", "room", "limit"),
    [
        ("cuda:2", None, 1.0, 30.0, None),
        ("cuda:2", 50.0, 1.0, 30.0, (30.0 / 80.0, 2)),
        ("cuda:2", None, 0.5, 30.0, (30.0 / 80.0, 2)),
        ("cuda:2", 8.0, 1.0, 8.0, (0.1, 2)),
        ("cpu", None, 1.0, inf, None),
        ("cpu", 2.0, 1.0, 2.0, None),
        ("cuda", None, 1.0, 80.0, None),
        ("cuda", 100.0, 1.0, 80.0, None),
        ("cuda", 8.0, 1.0, 8.0, (0.1, None)),
        ("cuda:1", 8.0, 1.0, 8.0, (0.1, 1)),
        ("cuda", None, 0.25, 20.0 - CONTEXT, ((20.0 - CONTEXT) / 80.0, None)),
        ("cuda", 8.0, 0.25, 8.0, (0.1, None)),
        ("cuda", None, 0.01, 0.4, (0.005, None)),
    ],
)
def test_a_slot_gets_what_it_may_take_and_no_more(
    where: str,
    most: float | None,
    share: float,
    room: float,
    limit: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[tuple[float, int | None]] = []
    monkeypatch.setattr(device, "memory_of", lambda name: 80.0 if name.startswith("cuda") else inf)
    free = {"cuda": 80.0, "cuda:1": 80.0, "cuda:2": 30.0}  # others use the last one
    monkeypatch.setattr(device, "free_memory", free.__getitem__)
    monkeypatch.setattr(torch.cuda, FRACTION, lambda part, index: told.append((part, index)))
    assert limit_memory(where, most, share) == pytest.approx(room)
    assert told == ([] if limit is None else [(pytest.approx(limit[0]), limit[1])])
    left = room - 2.0 if room >= 4.0 else room / 2
    if not where.startswith("cuda"):
        left = room
    assert limit_memory(where, most, share, chunks=2.0) == pytest.approx(left)


def test_free_memory_is_what_the_device_says_and_what_this_process_keeps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gib = 2**30
    asked: list[Any] = []
    monkeypatch.setattr(
        torch.cuda, "mem_get_info", lambda where: asked.append(where) or (10 * gib, 80 * gib)
    )
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda where: 2 * gib)
    assert device.free_memory("cuda:3") == 12.0
    assert asked == [torch.device("cuda:3")]


def test_the_gpu_that_trains_is_the_one_that_is_probed(monkeypatch: pytest.MonkeyPatch) -> None:
    current: list[torch.device] = []
    probed: list[torch.device] = []
    bad: set[torch.device] = set()

    def ones(_size: int, device: torch.device) -> torch.Tensor:
        probed.append(device)
        if device in bad:
            raise RuntimeError("CUDA error: device-side assert triggered")
        return torch.zeros(1) + 1

    monkeypatch.setattr(device, "_in_use", set())
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    monkeypatch.setattr(torch, "ones", ones)
    assert device.works() and probed == [torch.device("cuda")]
    assert device.use("cpu") == torch.device("cpu") and not current
    third = device.use("cuda:3")
    assert current == [third]
    probed.clear()
    assert device.works() and probed == [third]
    bad.add(third)
    assert not device.works()


def test_trials_on_unlike_gpus_are_of_unlike_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda where: f"model {where.index}")
    assert device.kind_of(torch.device("cpu")) == "cpu"
    assert device.kind_of(torch.device("cuda:1")) == "model 1"


def test_a_gpu_that_is_lost_is_no_trials_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def raised(error: Exception) -> type[BaseException]:
        with pytest.raises(Exception) as caught, blaming():
            raise error
        return caught.type

    assert raised(RuntimeError("CUDA error: invalid argument")) is TrialError, (
        "the next one may do better"
    )
    monkeypatch.setattr(device, "works", lambda: False)
    assert raised(RuntimeError("CUDA error: device-side assert triggered")) is DeviceLost
    assert raised(RuntimeError("CUDA error: out of memory")) is OutOfMemory
    assert raised(ValueError("its own")) is TrialError


def test_a_study_pauses_when_its_gpu_is_lost_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Harsh(Zoo):
        search_space = {"lr": shoal.grid([0.01, 0.02, 0.05])}
        steps = 0

        def training_step(self, model: Any, batch: Any) -> Any:
            Harsh.steps += 1
            if Harsh.steps == 20:
                raise RuntimeError("CUDA error: device-side assert triggered")
            return super().training_step(model, batch)

    study = shoal.create_study(Harsh(), storage=tmp_path, metric="accuracy", mode="max")
    with monkeypatch.context() as patch:
        patch.setattr(device, "works", lambda: Harsh.steps < 20)
        with pytest.raises(
            shoal.StudyPaused, match="does not work any more in this process, after CUDA error"
        ):
            study.optimize(policy="fifo", max_epochs=2, progress=False)
    assert not any(trial.status.startswith("failed") for trial in study.trials)
    study.optimize(policy="fifo", max_epochs=2, progress=False)
    assert [trial.status for trial in study.trials] == ["finished"] * 3
    assert all(row["equal"] for row in study.replay())
