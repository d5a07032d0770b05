"""What a slot is asked to do, and what it answers. Without torch, for the driver uses it, too."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any

from shoal.core.cluster import ShardId
from shoal.core.event import Evaluated, Sum
from shoal.core.trial import Samples, Seconds, Trial, TrialId, Value, Visit

# How long a call may take, in terms of the longest such call, of `hang_after` if such calls were
# made before, and of `hang_after` for the first of its kind, which may compile or download.
TIMES = 10.0
LEAST_KNOWN = 2.0
LEAST_NEW = 40.0
# Characters of the reason of a failure, which journal and page have; the traceback has all of it.
LONGEST_REASON = 2000


class Overdue(BaseException):
    """Raised in the recipe's code where it did not return for far longer than usual.

    It is no Exception, so that code which catches those and goes on does not catch it.
    """


@dataclass(frozen=True, slots=True)
class CallLimits:
    """How long a call of the recipe's code may take.

    `least`: `hang_after` of the study. `fixed`: `stuck_after`, which counts instead if it is given.
    """

    least: Seconds = 30.0
    fixed: Seconds | None = None

    def allowed(self, longest: Seconds | None) -> Seconds:
        """Seconds that a call may take.

        `longest`: the longest such call so far; None: this is the first of its kind.
        """
        if self.fixed is not None:
            return self.fixed
        if longest is None:
            return LEAST_NEW * self.least
        return max(LEAST_KNOWN * self.least, TIMES * longest)

    @property
    def watched(self) -> bool:
        """Whether any call can take too long."""
        return min(self.least, self.fixed or inf) < inf


# What the recipe's code may raise: it ends the trial, and nothing else.
RAISED = (Exception, SystemExit, Overdue)
NOTHING: Mapping[str, float] = {}
# A lane's state: nested dicts and lists of NumPy arrays and plain values.
Tree = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Unit:
    """One visit of one trial, or one to several shards together, and what to do around it."""

    trial: Trial
    # made before this one, oldest first
    visits: tuple[Visit, ...]
    # the one to make; its field `samples` is 0, for it is not yet known
    visit: Visit
    # the state before it, or the name of its checkpoint;
    # None: the slot has it, or the trial begins here
    source: str | Tree | None = None
    # whether to validate after it
    evaluate: bool = False
    # parts of the visit, between 0 and 1, after which to validate, too
    within: tuple[float, ...] = ()
    # validate after each so many optimizer steps of the trial, too; 0: steps do not count
    steps: int = 0
    # seconds of training since the trial's last durable state
    age: Seconds = 0.0
    # whether the trial has all its samples after it, so that its state is made durable
    last: bool = False
    # whether to return the state, so that the trial can go on at another slot
    carry: bool = False
    # of a visit to several shards together: the shard that each slot of the lane reads, in order;
    # empty: one process reads all of them
    reads: tuple[ShardId, ...] = ()

    def is_made_in(self, visits: tuple[Visit, ...]) -> bool:
        """Whether these visits are those before the unit, and the unit."""
        return visits[: -len(self.visit.shards)] == self.visits


@dataclass(frozen=True, slots=True)
class Scored:
    """An evaluation within the unit."""

    # the part of the visit that was made, between 0 and 1
    part: float
    # None: there is nothing to validate with
    scores: Mapping[str, float] | None
    # the means of the epoch's training values so far
    trained: Mapping[str, float] = field(default_factory=dict)

    def event(self, trial: TrialId, visits: int, shards: int) -> Evaluated:
        """The event of the evaluation, after so many visits; an epoch has so many `shards`."""
        scores = dict(self.scores or {})
        trained = named_apart(self.trained, scores)
        epoch = (visits + self.part) / shards
        if self.part < 1.0:
            epoch = round(epoch, 6)
        return Evaluated(trial, epoch, scores | trained, tuple(trained))


@dataclass(frozen=True, slots=True)
class Reached:
    """How far a unit under way is."""

    samples: Samples
    # its evaluations so far
    within: tuple[Scored, ...] = ()
    # the trial's signature, and what was measured in the unit so far: rates, and the seconds that
    # the last changes of width took
    signature: str = ""
    rates: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of the unit was trained: one chunk, or about a second of it; or it was evaluated."""

    samples: Samples
    values: Mapping[str, Sum] = field(default_factory=dict)
    # by switch, data, train, evaluate, save
    spent: Mapping[str, Seconds] = field(default_factory=dict)
    scored: Scored | None = None

    def evaluations(self, trial: TrialId, visits: int, shards: int) -> list[Evaluated]:
        """The evaluation after this part, if there was one, as an event."""
        if self.scored is None:
            return []
        return [self.scored.event(trial, visits, shards)]


@dataclass(frozen=True, slots=True)
class Done:
    """The unit was made."""

    # with its samples, those of all shards that it read
    visit: Visit
    # that were not yet reported in a Part
    spent: Mapping[str, Seconds] = field(default_factory=dict)
    # None: they were not asked for, or there is nothing to validate with
    scores: Mapping[str, float] | None = None
    # if scores were asked for: the means of the epoch's training values so far
    trained: Mapping[str, float] = field(default_factory=dict)
    # evaluations within the unit that were not yet reported in a Part
    within: tuple[Scored, ...] = ()
    # the name of the checkpoint that was written
    kept: str | None = None
    # seconds of training since the trial's last durable state
    age: Seconds = 0.0
    signature: str = ""
    # empty if nothing new was measured
    figures: Mapping[str, float] = field(default_factory=dict)
    # if it was asked for; views, valid until this slot trains the trial again
    state: Tree | None = None
    # bytes of samples that were dealt to its shards from other nodes, and not yet reported
    dealt: int = 0
    # what trials share beside their models, and were seen to change
    shared: tuple[str, ...] = ()
    # whether the trial has nothing left to train, although it has not all its samples
    over: bool = False
    # the trial's configuration, if it drew some of that itself
    config: Mapping[str, Value] | None = None

    def evaluations(self, trial: TrialId, visits: int, shards: int) -> list[Evaluated]:
        """The evaluations of the unit, which was made after so many visits, in their order."""
        scored = [*self.within]
        if self.scores is not None or self.trained:
            scored.append(Scored(1.0, self.scores, self.trained))
        return [evaluation.event(trial, visits, shards) for evaluation in scored]


@dataclass(frozen=True, slots=True)
class Returned:
    """The trial's function is over. It made no visit, and has nothing left to train."""

    # whether it gave the trial up
    pruned: bool = False
    # as in `Done`
    config: Mapping[str, Value] | None = None
    # what it returned: scores of its last visit
    scores: Mapping[str, float] = field(default_factory=dict)
    # as in `Done`
    spent: Mapping[str, Seconds] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Made:
    """The unit's pass was made by several processes, of which another one reports the unit."""


def named_apart(trained: Mapping[str, float], scores: Mapping[str, float]) -> dict[str, float]:
    """The training values by names that validation does not have: train_<name> where it does."""
    return {f"train_{name}" if name in scores else name: value for name, value in trained.items()}


class TrialError(Exception):
    """A trial cannot go on: its recipe raised, or its loss diverged. Other trials can."""

    def __init__(self, why: str, text: str = "", signature: str = "") -> None:
        super().__init__(why, text, signature)
        self.why = why  # one line; of a long one the beginning and the end
        if len(why) > LONGEST_REASON:
            self.why = f"{why[: LONGEST_REASON // 2]} … {why[-LONGEST_REASON // 4 :]}"
        self.text = text  # the traceback
        self.signature = signature  # the trial's, where it is known
        # as in `Done`
        self.config: Mapping[str, Value] | None = None

    def __str__(self) -> str:
        return self.why


class PackRefused(TrialError):  # noqa: N818
    """The unit does not count: its slot learnt something about the pack first. Nobody failed.

    `figures`: as in `Done`. `begun`: the unit was begun, so that the trial's state is lost here;
    otherwise it is as before.
    """

    def __init__(
        self,
        why: str,
        signature: str = "",
        figures: Mapping[str, float] = NOTHING,
        begun: bool = False,
    ) -> None:
        super().__init__(why, "", signature)
        self.args = (why, signature, figures, begun)
        self.figures = figures
        self.begun = begun


class StateLost(TrialError):  # noqa: N818
    """The durable state that the unit was to go on from is damaged or missing.

    Nobody failed: the trial goes on from the durable state before that one.
    """


class Diverged(Exception):  # noqa: N818
    """The loss was not finite for more steps in a row than the recipe's patience."""


class DeviceLost(OSError):  # noqa: N818
    """The device does not work any more in this process; no trial can go on here."""


class OutOfMemory(TrialError):  # noqa: N818
    """The device had too little memory. A trial among several on a slot may have enough alone.

    `freed`: models at rest were given up, so that there may be room when the trial is tried again.
    """

    def __init__(self, why: str, text: str = "", signature: str = "", freed: bool = False) -> None:
        super().__init__(why, text, signature)
        self.args = (why, text, signature, freed)
        self.freed = freed
