"""What a slot is asked to do, and what it answers. Free of torch, so that a driver can speak it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from shoal.core.event import Sum
from shoal.core.trial import Samples, Seconds, Trial, Visit

RAISED = (Exception, SystemExit)  # what the recipe's code may raise: its trial's error alone
Tree = Mapping[str, Any]  # a lane's state: nested dicts and lists of NumPy arrays and plain values


@dataclass(frozen=True, slots=True)
class Unit:
    """One visit of one trial, and what to do around it."""

    trial: Trial
    visits: tuple[Visit, ...]  # made before it, oldest first
    visit: Visit  # the one to make; its samples field is 0: not yet known
    source: str | Tree | None = None  # the state before it: checkpoint name or state; None: held here, or fresh when visits == ()
    evaluate: bool = False  # validate after it
    age: Seconds = 0.0  # seconds of training since the trial's last durable state
    last: bool = False  # the trial's samples are met by it: keep
    carry: bool = False  # return the state: it may go on at another slot


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of the unit was trained: one chunk, or about a second of it."""

    samples: Samples
    values: Mapping[str, Sum] = field(default_factory=dict)
    spent: Mapping[str, Seconds] = field(default_factory=dict)  # by switch, data, train, evaluate, save


@dataclass(frozen=True, slots=True)
class Done:
    """The unit was made."""

    visit: Visit  # with its samples
    spent: Mapping[str, Seconds] = field(default_factory=dict)  # not yet reported in a Part
    scores: Mapping[str, float] | None = None  # None: not asked for, or nothing to validate with
    kept: str | None = None  # the checkpoint written
    age: Seconds = 0.0  # seconds of training since the trial's last durable state
    signature: str = ""
    figures: Mapping[str, float] = field(default_factory=dict)  # empty when nothing new was measured
    state: Tree | None = None  # when asked to carry; views, valid until this slot trains the trial again


@dataclass(frozen=True, slots=True)
class Made:
    """The unit's pass was made by several, of which another one says what came of it."""


class TrialError(Exception):
    """A trial cannot go on: its recipe raised, or its loss diverged. The other trials are not touched."""

    def __init__(self, why: str, text: str = "", signature: str = "") -> None:
        super().__init__(why, text, signature)
        self.why = why  # one line
        self.text = text  # the traceback
        self.signature = signature  # the trial's, where it is known

    def __str__(self) -> str:
        return self.why


class Diverged(Exception):  # noqa: N818
    """The loss was not finite for more steps in a row than the recipe's patience."""


class DeviceLost(OSError):  # noqa: N818
    """The device does nothing any more for this process; no trial can go on here."""


class OutOfMemory(TrialError):  # noqa: N818
    """The device had no room for it. Of a trial among several on a slot: it may have room alone.

    `freed`: models at rest were given up for it, so that it may have room when tried again.
    """

    def __init__(self, why: str, text: str = "", signature: str = "", freed: bool = False) -> None:
        super().__init__(why, text, signature)
        self.args = (why, text, signature, freed)
        self.freed = freed
