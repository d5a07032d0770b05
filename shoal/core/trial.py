"""WHAT is trained: one configuration, and how far."""

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite, isnan
from numbers import Integral, Real
from typing import Any, NamedTuple, NewType

from shoal.core.cluster import LONGEST_NAME, ShardId, is_name

TrialId = NewType("TrialId", str)
Samples = float
Seconds = float
# What a configuration may hold: what JSON holds, with lists as tuples.
Value = bool | int | float | str | None | tuple[Any, ...]
MOST_SAMPLES = 2**53
IN_FILE = re.compile(r".*\.py:[^\W\d]\w*", re.DOTALL)
LONGEST_TEXT = 100_000  # characters of what a user types as one value
LONGEST_SHOWN = 200  # characters of a value in a message


def shown(value: object) -> str:
    """The value in a message, where it may be anything."""
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - of a user's own class, or of too many digits
        return f"a value of {type(value).__name__}"
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}…"


def is_number(value: Any) -> bool:
    """Whether it is a number: no truth value, no NaN, and no integer of over 64 bits."""
    if isinstance(value, float) or (_is_numpys(value) and not isinstance(value, Integral)):
        return not isnan(value)
    return is_whole(value)


def is_whole(value: Any) -> bool:
    """Whether it is a whole number of an integer's type, within 64 bits."""
    is_integer = isinstance(value, int) or (isinstance(value, Integral) and _is_numpys(value))
    return is_integer and not isinstance(value, bool) and bool(-(2**63) <= value < 2**63)


def _is_numpys(value: object) -> bool:
    """Whether it is a number of NumPy's, which this module does not import."""
    return isinstance(value, Real) and hasattr(value, "item")


@dataclass(frozen=True, slots=True)
class Trial:
    """One configuration, and how many samples it is to train in all.

    Submit a trial again with more samples to extend it; it goes on from its newest state.
    `start`: another trial, and a number of visits. The trial begins with the state (weights,
    momenta, random state) that the other one had after so many visits, and these visits and their
    samples count as its own. That state must be the other trial's newest, and durable, when this
    trial is submitted.
    `priority`: against other trials, for policies that look at it (docs/policy.md).

    Raises:
        ValueError: there is no id, or one that cannot name a folder; samples or priority are not
            positive and finite; widths are not 1 <= fewest <= most; or the trial starts from
            itself.
    """

    id: TrialId
    samples: Samples
    config: Mapping[str, Value] = field(default_factory=dict, hash=False)
    # The fewest and the most slots.
    widths: tuple[int, int] = (1, 1)
    # The shards that each epoch visits once; empty: the data is not divided.
    shards: frozenset[ShardId] = frozenset()
    start: tuple[TrialId, int] | None = None
    priority: float = 1.0

    def __post_init__(self) -> None:
        if not self.id:
            raise ValueError("a trial needs an id; got an empty one")
        if not is_name(self.id):
            raise ValueError(
                "a trial's id names its folder, within the study's: it must hold no '/', '\\\\' or "
                f"control characters, not be '.' or '..', nor have more than {LONGEST_NAME} "
                f"characters; got {self.id[:40]!r}"
            )
        if not (isfinite(self.samples) and self.samples > 0):
            raise ValueError(
                f"trial {self.id}: samples must be > 0 and finite; got {self.samples!r}"
            )
        if self.samples > MOST_SAMPLES:
            raise ValueError(
                f"trial {self.id}: samples must be at most 2**53, beyond which they cannot be "
                f"counted; got {self.samples!r}: train it for fewer epochs"
            )
        fewest, most = self.widths
        if not 1 <= fewest <= most:
            raise ValueError(
                f"trial {self.id}: widths must be 1 <= fewest <= most; got {self.widths!r}"
            )
        if self.start is not None and self.start[0] == self.id:
            raise ValueError(
                f"trial {self.id} cannot start from itself:"
                " submit it again with more samples to extend it"
            )
        if self.priority != 1.0 and not (isfinite(self.priority) and self.priority > 0):
            raise ValueError(
                f"trial {self.id}: a priority must be > 0 and finite; got {self.priority!r}"
            )
        if any(isinstance(value, (list, tuple)) for value in self.config.values()):
            config = {name: _as_tuple(value) for name, value in self.config.items()}
            object.__setattr__(self, "config", config)


def is_in_file(value: object) -> bool:
    """Whether the value names a function in a file: FILE.py:NAME."""
    return isinstance(value, str) and IN_FILE.fullmatch(value) is not None


def parsed(text: str) -> ast.expr:
    """The one expression that a text is which a user typed; nothing of it is run.

    Raises:
        SyntaxError: it is none, or too long or too deep for one.
    """
    if len(text) > LONGEST_TEXT:
        raise SyntaxError(f"it has {len(text)} characters, over {LONGEST_TEXT}")
    try:
        return ast.parse(text, mode="eval").body
    except (MemoryError, RecursionError, ValueError) as error:  # too deep; a NUL in it
        raise SyntaxError(f"it is too deep, or no text ({error})") from None


def priority_of(trial: Trial) -> float:
    """The number that the trial's configuration has as `priority`, else the trial's own."""
    configured: Any = trial.config.get("priority")
    if isinstance(configured, (int, float)):
        return float(configured)
    return trial.priority


def _as_tuple(value: Any) -> Any:
    """A list, and the lists in it, as tuples; any other value as it is."""
    if isinstance(value, (list, tuple)):
        return tuple(map(_as_tuple, value))
    return value


class Visit(NamedTuple):
    """One pass of one trial over one shard.

    What a trial has learnt is a function of its visits, in order. `turn`: what shuffle="each" and
    augment are drawn from. `samples`: those trained in the visit. `widths`: with a batch per slot,
    the width from each sample of the visit on, as (sample, width); empty: width 1 throughout.
    `beside`: the shards that were read together with this one, of which each batch had its part.
    They follow as visits of their own (`core.visits.counted`); empty: this shard was read alone.
    """

    epoch: int  # counts from 0
    shard: ShardId
    turn: int
    samples: int
    widths: tuple[tuple[int, int], ...] = ()
    beside: tuple[ShardId, ...] = ()

    @property
    def shards(self) -> tuple[ShardId, ...]:
        """The shards that were read: several if they were read together."""
        return (self.shard, *self.beside)

    def as_list(self) -> list[Any]:
        """The visit in a trial's state; as earlier versions stored it, where they could."""
        fields = list(self)
        return fields if self.beside else fields[:-1]
