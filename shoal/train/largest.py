"""`batch_size="max"`: the largest power of two that fits, found out by trying."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

from shoal.core.trial import Value
from shoal.train import columns as cols
from shoal.train.account import blaming
from shoal.train.columns import Columns
from shoal.train.lane import Lane
from shoal.train.measure import Extra
from shoal.train.recipe import Recipe
from shoal.train.scoring import EVALUATION_BATCHES
from shoal.train.unit import OutOfMemory

LARGEST = 1024  # where no limit of memory is known
LEAST = 2  # batch norm needs two samples

Make = Callable[[Mapping[str, Value]], Lane]


def is_open(recipe: Recipe, config: Mapping[str, Any]) -> bool:
    """Whether the batch size is to be found out."""
    return bool(config.get("batch_size", recipe.batch_size) == "max")


def with_size(config: Mapping[str, Value], size: int) -> dict[str, Value]:
    """The configuration, once it was found out."""
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
    """The largest power of two, at most `most`, with which a step fits the device and, as far as can be told, `room` bytes.

    Tried by steps of a lane that is thrown away, on batches of twice the size each, made of these samples (again and again), and
    by scores of `validation` data, if there are any: they are computed for several batches at once.

    Raises:
        TrialError: the recipe's code raised, or not even the smallest batch fits.
    """
    most = most if room < float("inf") or device.type == "cuda" else min(most, LARGEST)
    size = min(LEAST, most)
    lane = make(with_size(config, size))
    found = 0
    while size <= most:
        try:
            with blaming():
                batch = _batch(samples, size)
            fits = _step(lane, batch, size, device) <= room
            del batch
            if validation is not None and fits:
                lane.settings = replace(lane.settings, batch_size=size)
                with blaming():
                    lane.evaluate([cols.cut(validation, 0, EVALUATION_BATCHES * size)])
        except OutOfMemory:
            if not found:
                raise
            fits = False
        if not fits:
            break
        found, size = size, 2 * size
    del lane
    gc.collect()
    if device.type == "cuda":  # others may share the GPU
        torch.cuda.empty_cache()
    return max(found, 1)


def _step(lane: Lane, batch: Columns, size: int, device: torch.device) -> float:
    """Bytes that a step takes, with the lane's own."""
    lane.begin(size)
    extra = Extra(lane, device)
    with blaming(), lane.rng, extra:
        lane.step(batch, size)
        lane.close()
    return lane.bytes + extra.bytes


def _batch(samples: Columns, size: int) -> Columns:
    """So many samples, over and over."""
    rows = torch.arange(size) % cols.rows(samples)
    return cols.apply(samples, lambda column: column[rows.to(column.device)])
