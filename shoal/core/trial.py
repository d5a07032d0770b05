"""WHAT is trained: one configuration, and how far."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, NamedTuple, NewType

from shoal.core.cluster import ShardId

TrialId = NewType("TrialId", str)
Samples = float
Seconds = float
Value = bool | int | float | str | None | tuple[Any, ...]  # of a configuration; what JSON holds, lists as tuples


@dataclass(frozen=True, slots=True)
class Trial:
    """One configuration and how many samples it is to train in all.

    Submit a trial again with more samples to extend it; it goes on from its newest state.
    `start`: it begins with the state (weights, momenta, random state) that this other trial had after so many visits, which
    must be its newest and durable when this one is submitted; these visits and their samples count as its own.
    `priority`: against other trials, for policies that look at it (docs/policy.md).

    Raises:
        ValueError: no id, samples or priority not positive and finite, widths not 1 <= fewest <= most, or a trial that starts
            from itself.
    """

    id: TrialId
    samples: Samples
    config: Mapping[str, Value] = field(default_factory=dict, hash=False)
    widths: tuple[int, int] = (1, 1)  # fewest and most slots
    shards: frozenset[ShardId] = frozenset()  # each visited once an epoch; empty: data is not divided
    start: tuple[TrialId, int] | None = None  # the trial, and after how many visits
    priority: float = 1.0

    def __post_init__(self) -> None:
        if not self.id:
            raise ValueError("a trial needs an id; got an empty one")
        if not (isfinite(self.samples) and self.samples > 0):
            raise ValueError(f"trial {self.id}: samples must be > 0 and finite; got {self.samples!r}")
        fewest, most = self.widths
        if not 1 <= fewest <= most:
            raise ValueError(f"trial {self.id}: widths must be 1 <= fewest <= most; got {self.widths!r}")
        if self.start is not None and self.start[0] == self.id:
            raise ValueError(f"trial {self.id} cannot start from itself: submit it again with more samples to extend it")
        if self.priority != 1.0 and not (isfinite(self.priority) and self.priority > 0):
            raise ValueError(f"trial {self.id}: a priority must be > 0 and finite; got {self.priority!r}")
        if any(isinstance(value, (list, tuple)) for value in self.config.values()):
            object.__setattr__(self, "config", {name: _as_tuple(value) for name, value in self.config.items()})


def _as_tuple(value: Any) -> Any:
    return tuple(map(_as_tuple, value)) if isinstance(value, (list, tuple)) else value


class Visit(NamedTuple):
    """One pass of one trial over one shard: what a trial learnt is a function of its visits in order."""

    epoch: int  # counts from 0
    shard: ShardId
    turn: int  # the pass: what shuffle="each" and augment are drawn from
    samples: int  # trained in it
    widths: tuple[tuple[int, int], ...] = ()  # with a batch per slot: (sample of the pass, width from there on); (): 1 throughout
