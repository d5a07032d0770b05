"""`batch_size="max"`: the largest power of two that fits, found out by trying."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from shoal.core.trial import Value
from shoal.train.data import columns as cols
from shoal.train.data.columns import Columns
from shoal.train.lane.blame import blaming
from shoal.train.lane.lane import TrainingLane
from shoal.train.lane.measure import Extra
from shoal.train.lane.scoring import EVALUATION_BATCHES, rehearse
from shoal.train.recipe.recipe import Recipe
from shoal.train.recipe.unit import OutOfMemory
from shoal.train.stream.chunks import take_rows

LARGEST = 1024  # where no limit of memory is known
LEAST = 2  # batch norm needs two samples

Make = Callable[[Mapping[str, Value]], TrainingLane]


def is_open(recipe: Recipe, config: Mapping[str, Any]) -> bool:
    """Whether the batch size is to be found out."""
    return bool(config.get("batch_size", recipe.batch_size) == "max")


def with_size(config: Mapping[str, Value], size: int) -> dict[str, Value]:
    """The configuration with the batch size that was found out."""
    return {**config, "batch_size": size}


def largest(
    make: Make,
    config: Mapping[str, Value],
    samples: Columns,
    validation: Columns | None,
    most: int,
    room: float,
    device: torch.device,
) -> int:
    """The largest batch, a power of two and at most `most`, that fits the device and `room` bytes.

    It is tried by steps of a lane that is thrown away, on batches of twice the size each, made of
    these samples again and again. If there is `validation` data, its scores, which are computed for
    several batches at once, must fit, too.

    Raises:
        TrialError: the recipe's code raised, or not even the smallest batch fits.
    """
    if room == float("inf") and device.type != "cuda":
        most = min(most, LARGEST)
    size = min(LEAST, most)
    lane = make(with_size(config, size))
    fitting = 0
    while size <= most:
        try:
            with blaming():
                batch = batch_of(samples, size)
            fits = sum(bytes_of_step(lane, batch, size, device)) <= room
            del batch
            if validation is not None and fits:
                lane.settings = replace(lane.settings, batch_size=size)
                with blaming():
                    rehearse(lane, cols.cut(validation, 0, EVALUATION_BATCHES * size))
        except OutOfMemory:
            if not fitting:
                raise
            fits = False
        if not fits:
            break
        fitting, size = size, 2 * size
    del lane
    gc.collect()
    if device.type == "cuda":  # others may share the GPU
        torch.cuda.empty_cache()
    return max(fitting, 1)


def bytes_of_step(
    lane: TrainingLane, batch: Columns, size: int, device: torch.device
) -> tuple[int, int]:
    """Bytes of the lane's state after a step on this batch, and what the step took beside that.

    Raises:
        TrialError: the recipe's code raised, or memory ran out.
    """
    lane.begin(size)
    extra = Extra(lane, device)
    with blaming(), lane.rng, extra:
        lane.step(batch, size)
        lane.close()
    return lane.bytes, extra.bytes


def batch_of(samples: Columns, size: int) -> Columns:
    """A batch of so many samples, which repeats the given ones."""
    return take_rows(samples, np.arange(size) % cols.rows(samples))
