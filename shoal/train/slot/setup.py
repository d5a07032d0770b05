"""What a slot needs to know of the study. Imports no torch, for the driver makes it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from shoal.core.cluster import GiB
from shoal.core.trial import Samples, Seconds, Trial
from shoal.options import DEFAULTS, Options

Pace = Callable[[Trial, Samples], Seconds]
RESTING = 0.25  # part of the memory that models at rest may take
GROUP_LIMIT = "/sys/fs/cgroup/memory.max"


@dataclass(frozen=True, slots=True)
class TrainerSetup:
    """What one slot knows of the study, the same for a slot of this process, of Ray and the tools.

    Raises:
        ValueError: the seed is negative.
    """

    # the study's. The slot reads from them what it has been given: of its memory in all
    # (`slot_memory_gb`, with which models at rest make room for those that train), for models at
    # rest (`state_memory_gb`), and when states become durable
    options: Options = DEFAULTS
    # of the study
    seed: int = 0
    # how often the study was started
    run: int = 0
    # the one that `options.device` means here
    device: str = "cpu"
    # the study's metric, which ReduceLROnPlateau follows
    metric: str | None = None
    # "min" or "max": its best values; None: that is not checked
    mode: str | None = None
    # that metric after so many visits, as a run of the trial trained here recorded it: what follows
    # the metric follows this one, which may be rounded otherwise than what is measured here
    recorded: Mapping[int, float] | None = None
    # whether a state is durable wherever a unit's end was evaluated, too: a callback takes it
    keep_evaluated: bool = False
    # gives the seconds of training instead of the clock
    pace: Pace | None = None

    def __post_init__(self) -> None:
        if self.seed < 0:
            raise ValueError(f"a study's seed must be >= 0; got {self.seed}")

    @property
    def clocked(self) -> bool:
        """Whether seconds are taken by the clock, and costs measured."""
        return self.pace is None

    def with_options(self, **changed: Any) -> TrainerSetup:
        """The setup with other values of these options."""
        return replace(self, options=replace(self.options, **changed))


def machine_memory() -> GiB:
    """This machine's main memory, or what this process's control group may use of it if less."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        with open(GROUP_LIMIT, encoding="ascii") as file:
            limit = file.read().strip()
    except OSError:  # not Linux, or an older kind of control group
        limit = ""
    if limit.isdigit():  # a word: no limit
        total = min(total, int(limit))
    return total / 2**30


def resting_memory(slots: int = 1) -> GiB:
    """Main memory that models at rest may take, at each of so many slots of this machine."""
    return RESTING * machine_memory() / slots
