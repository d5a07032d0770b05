"""What was decided and what happened, newest last, in words."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from shoal.core.event import (
    Commanded,
    Ended,
    Entry,
    Failed,
    Fell,
    Finished,
    Joined,
    Left,
    Opened,
    Planned,
    Remembered,
    Retired,
    Submitted,
    Unread,
)
from shoal.core.plan import Gang
from shoal.core.trial import Seconds, TrialId
from shoal.engine.journal import Line
from shoal.reporting.format import config, described, plural, status_words

MOST = 300  # items that are remembered
NAMED = 4  # names of one item that are listed


@dataclass(slots=True)
class Item:
    """One line of the feed.

    `who`: run, search, policy, slots or trial. `what`: of which kind it is; several of one kind
    at one time are one item, which lists the first few of their `names`.
    """

    time: Seconds
    who: str
    what: str
    names: list[str] = field(default_factory=list)
    count: int = 1

    @property
    def text(self) -> str:
        """The whole item in words."""
        if not self.names:
            return self.what
        listed = ", ".join(self.names)
        more = self.count - len(self.names)
        if more > 0:
            listed += f" and {more:,} more"
        return f"{self.what} {listed}"


class NewsFeed:
    """The newest items of a journal, in words."""

    def __init__(self) -> None:
        self.items: deque[Item] = deque(maxlen=MOST)
        self._known: set[TrialId] = set()
        self._follows: tuple[Any, Any] | None = None

    def take(self, lines: Iterable[Line]) -> None:
        """Add what the lines that come next tell."""
        for time, entry in lines:
            for who, what, name in self._news(entry):
                self._add(time, who, what, name)

    def _add(self, time: Seconds, who: str, what: str, name: str) -> None:
        """One more item, or one more name of the last one."""
        last = self.items[-1] if self.items else None
        if last is None or not name or (last.time, last.what) != (time, what):
            self.items.append(Item(time, who, what, [name][: len(name)]))
            return
        last.count += 1
        if len(last.names) < NAMED:
            last.names.append(name)

    def _news(self, entry: Entry) -> Iterable[tuple[str, str, str]]:
        """Who did what, and the name of whom it was done to."""
        match entry:
            case Opened(run, _, head):
                self._follows = None
                names = ("searcher", "policy", "backend")
                deciders = [
                    f"{name} {text}" for name in names if (text := described(head.get(name)))
                ]
                about = ", ".join(deciders) or "nothing is said of it"
                yield "run", f"run {run} began: {about}", ""
            case Commanded(what, why):
                yield "run", f"{what}: {why or 'asked for'}", ""
            case Submitted(trial):
                yield "search", *self._submitted(entry)
                self._known.add(trial.id)
            case Retired(trial):
                yield "search", f"{status_words('retired')}:", str(trial)
            case Remembered("policy", {"follows": follows, "why": why}):
                if self._follows != (follows, why):
                    self._follows = follows, why
                    yield "policy", f"auto follows {follows}, because {why}", ""
            case Planned(stop, start):
                yield from (("policy", "stopped", _gang(gang)) for gang in stop)
                yield from (("policy", "started", _gang(gang)) for gang in start)
            case _:
                yield from _happened(entry)

    def _submitted(self, entry: Submitted) -> tuple[str, str]:
        """What was asked for, and of which trial."""
        trial = entry.trial
        if trial.id in self._known:
            return f"extended, to {trial.samples:,.0f} samples,", str(trial.id)
        if trial.start is not None:
            values = config(trial.config, 80)
            return f"copied {trial.start[0]} ({values}) to", str(trial.id)
        return "submitted", str(trial.id)


def _gang(gang: Gang) -> str:
    """Who trains together, and where."""
    trials = [str(trial) for trial in gang.trials[:NAMED]]
    names = " + ".join(trials)
    if len(gang.lanes) > NAMED:
        names += f" + {len(gang.lanes) - NAMED} more"
    if gang.fused:
        names += " (fused)"
    slots = sorted(gang.slots)
    where = str(slots[0])
    if len(slots) > 1:
        where = plural(len(slots), "slot")
    return f"{names} on {where}"


def _happened(entry: Entry) -> Iterable[tuple[str, str, str]]:
    """What happened to trials and slots."""
    match entry:
        case Finished(trial):
            yield "trial", "finished", str(trial)
        case Failed(trial, why):
            yield "trial", f"failed ({why or 'no reason given'}):", str(trial)
        case Fell(trial, visits, _):
            yield "trial", f"back to pass {visits}:", str(trial)
        case Ended(gang, why) if why:
            yield "slots", f"ended ({why}):", _gang(gang)
        case Joined(slots):
            for slot in slots:
                yield "slots", "joined:", str(slot.id)
        case Unread(slot, shard, why):
            yield "slots", f"cannot read {shard} ({why}):", str(slot)
        case Left(gone, died, why):
            how = {True: "died:", False: "left:"}[died]
            if why:
                how = f"given up ({why}):"
            for name in sorted(gone):
                yield "slots", how, str(name)
