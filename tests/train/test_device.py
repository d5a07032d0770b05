"""What a slot may take of a GPU or keeps of main memory, and what happens when a GPU does nothing any more. No GPU is needed."""

import ctypes
import os
import sys
from math import inf
from pathlib import Path
from typing import Any

import pytest
import torch
from pack_kit import Zoo

import shoal
from shoal.train import account, device
from shoal.train.account import blaming
from shoal.train.device import CONTEXT, HELD, keep_freed, limit_memory
from shoal.train.unit import DeviceLost, OutOfMemory, TrialError

FRACTION = "set_per_process_memory_fraction"


@pytest.mark.parametrize(
    ("where", "most", "share", "room", "limit"),
    [
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
    where: str, most: float | None, share: float, room: float, limit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[float, int | None]] = []
    monkeypatch.setattr(device, "memory_of", lambda name: 80.0 if name.startswith("cuda") else inf)
    monkeypatch.setattr(torch.cuda, FRACTION, lambda part, index: told.append((part, index)))
    assert limit_memory(where, most, share) == pytest.approx(room)
    assert told == ([] if limit is None else [(pytest.approx(limit[0]), limit[1])])


def test_a_gpu_that_is_lost_is_no_trials_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def raised(error: Exception) -> type[BaseException]:
        with pytest.raises(Exception) as caught, blaming():
            raise error
        return caught.type

    assert raised(RuntimeError("CUDA error: invalid argument")) is TrialError, "the next one may do better"
    monkeypatch.setattr(account, "_works", lambda: False)
    assert raised(RuntimeError("CUDA error: device-side assert triggered")) is DeviceLost
    assert raised(RuntimeError("CUDA error: out of memory")) is OutOfMemory
    assert raised(ValueError("its own")) is TrialError


def test_a_study_pauses_when_its_gpu_is_lost_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
        patch.setattr(account, "_works", lambda: Harsh.steps < 20)
        with pytest.raises(shoal.StudyPaused, match="does not work any more in this process, after CUDA error"):
            study.optimize(policy="fifo", max_epochs=2, progress=False)
    assert not any(trial.status.startswith("failed") for trial in study.trials)
    study.optimize(policy="fifo", max_epochs=2, progress=False)
    assert [trial.status for trial in study.trials] == ["finished"] * 3
    assert all(row["equal"] for row in study.replay())


@pytest.mark.parametrize(
    ("name", "calls"), [(None, [(-3, 32 * 2**20), (-1, HELD)]), ("MALLOC_ARENA_MAX", []), ("GLIBC_TUNABLES", [])]
)
def test_freed_memory_is_kept_unless_the_user_has_said_something(
    name: str | None, calls: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, int]] = []

    class Library:
        def mallopt(self, option: int, value: int) -> int:
            asked.append((option, value))
            return 1

    for option in [option for option in os.environ if option.startswith("MALLOC_") or option == "GLIBC_TUNABLES"]:
        monkeypatch.delenv(option)
    if name is not None:
        monkeypatch.setenv(name, "2")
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(ctypes, "CDLL", lambda _: Library())
    keep_freed()
    assert asked == calls
    monkeypatch.setattr(ctypes, "CDLL", lambda _: object())  # another C library
    keep_freed()
    monkeypatch.setattr(sys, "platform", "darwin")
    keep_freed()
    assert asked == calls
