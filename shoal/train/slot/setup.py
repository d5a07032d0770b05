"""What a slot needs to know of the study. Without torch, for the driver makes it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf

from shoal.core.cluster import GiB
from shoal.core.trial import Samples, Seconds, Trial
from shoal.train.recipe.unit import CallLimits

Pace = Callable[[Trial, Samples], Seconds]
RESTING = 0.25  # part of the memory that models at rest may take
GROUP_LIMIT = "/sys/fs/cgroup/memory.max"


@dataclass(frozen=True, slots=True)
class StationSetup:
    """The options of one slot, the same for a slot of this process, of Ray and of the tools.

    Raises:
        ValueError: the seed is negative.
    """

    # of the study
    seed: int = 0
    # how often the study was started
    run: int = 0
    device: str = "cpu"
    threads: int = 1
    # the study's metric, which ReduceLROnPlateau follows
    metric: str | None = None
    # "min" or "max": its best values; None: that is not checked
    mode: str | None = None
    # that metric after so many visits, as a run of the trial trained here recorded it: what follows
    # the metric follows this one, which may be rounded otherwise than what is measured here
    recorded: Mapping[int, float] | None = None
    # seconds of training between durable states; 0: after every unit
    checkpoint_every: Seconds = 30.0
    # whether a state is durable wherever a unit's end was evaluated, too: a callback takes it
    keep_evaluated: bool = False
    # for prepared chunks
    data_memory_gb: GiB = 2.0
    # for models; None: a quarter of the device's memory
    state_memory_gb: GiB | None = None
    # of the slot in all; if it is known, models at rest make room for those that train
    slot_memory_gb: GiB = inf
    # gives the seconds of training instead of the clock
    pace: Pace | None = None
    # how long calls of the recipe's code may take
    calls: CallLimits = CallLimits()

    def __post_init__(self) -> None:
        if self.seed < 0:
            raise ValueError(f"a study's seed must be >= 0; got {self.seed}")

    @property
    def clocked(self) -> bool:
        """Whether seconds are taken by the clock, and costs measured."""
        return self.pace is None


def machine_memory() -> GiB:
    """This machine's main memory, or what this process's control group may use of it if less."""
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(whole, _group_limit()) / 2**30


def _group_limit() -> float:
    """Bytes that this process's control group may use; infinite if there is no limit."""
    try:
        with open(GROUP_LIMIT, encoding="ascii") as file:
            limit = file.read().strip()
    except OSError:  # not Linux, or an older kind of control group
        return inf
    if not limit.isdigit():
        return inf
    return int(limit)


def resting_memory(slots: int = 1) -> GiB:
    """What models at rest may take of main memory, at each of so many slots of this machine."""
    return RESTING * machine_memory() / slots
