"""More or fewer slots for a run that is under way: what is asked for, and who sees to it."""

import re
from collections.abc import Mapping
from typing import Any, Protocol

from shoal.core.event import Commanded, Entry
from shoal.core.state import State
from shoal.core.trial import Seconds
from shoal.reporting.format import plural
from shoal.study.folder import StudyError
from shoal.study.setup import Setup

# "+2": two more; "-1": one fewer; "4": so many.
CHANGE = re.compile(r"([+-]?)(\d+)")


def change_of(add: int | None, remove: int | None, count: int | None) -> str:
    """What is asked for, as the journal writes it.

    Raises:
        StudyError: not exactly one of the three is given, or it is no number of slots.
    """
    asked = {"+": add, "-": remove, "": count}
    given = {sign: number for sign, number in asked.items() if number is not None}
    if len(given) != 1:
        raise StudyError(
            "say one of the three: how many slots to add, to remove, or to have in all"
        )
    ((sign, number),) = given.items()
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise StudyError(
            f"a number of slots must be a whole number above 0; got {number!r}. "
            "To end the run, use stop"
        )
    return f"{sign}{number}"


def changed_count(change: str, now: int) -> int:
    """How many slots there are to be, of a run that has so many `now`.

    Raises:
        ValueError: the text is no change.
    """
    found = CHANGE.fullmatch(change)
    if found is None:
        raise ValueError(f"{change!r} is not +N, -N or N")
    sign, number = found.groups()
    if not sign:
        return int(number)
    return now + int(f"{sign}{number}")


def slots_asked(setup: Setup, state: State, change: str) -> tuple[Entry, ...]:
    """What has the run get more or fewer slots.

    Raises:
        StudyError: the run cannot have so many.
    """
    _check_backend(setup.folder.head())
    there = len(state.slots)
    board = setup.folder.slots() or {}
    asked = board.get("asked") or there  # with those that are starting
    wanted = changed_count(change, max(there, asked))
    if wanted < 1:
        raise StudyError(
            f"the run has {plural(there, 'slot')}, and one must stay: remove fewer, "
            "or end the run with shoal stop"
        )
    room = board.get("room")
    if room is not None and wanted > max(room, there):
        raise StudyError(
            f"there is room for {plural(room, 'slot')} of this size at the nodes of the run, "
            f"and that would be {wanted}: ask for fewer, or start more nodes"
        )
    return (Commanded("slots", change),)


def _check_backend(head: Mapping[str, Any]) -> None:
    """Raise StudyError if the run's slots cannot be told to come or go."""
    if head.get("backend") != "ray":
        raise StudyError(
            "this run has one slot, its own process (backend local), and cannot get more: "
            "stop it, and run it again with --backend ray"
        )
    address = str(head.get("options", {}).get("address") or "")
    if address.startswith("pool:"):
        raise StudyError(
            f"the slots of this run are lent by the pool in {address.removeprefix('pool:')}, "
            "which divides them by priority: other studies that end, or a larger pool, give it more"
        )


class Sizable(Protocol):
    """A backend that can have more or fewer slots."""

    def size(self) -> Any:
        """`asked`: slots that are there or start, without those that leave; and `room`."""
        ...

    def resize(self, n: int) -> None:
        """Have so many slots from now on."""
        ...


def resizing(backend: Any) -> "list[Resizing]":
    """What sees to it that the backend gets the slots that are asked for, if it can."""
    if not hasattr(backend, "resize"):
        return []
    return [Resizing(backend)]


class Resizing:
    """Tells the backend how many slots to have when the journal says what somebody asked for."""

    def __init__(self, backend: Sizable) -> None:
        self._backend = backend

    def __call__(self, now: Seconds, entries: tuple[Entry, ...], state: State) -> None:
        changes = [
            entry.why for entry in entries if isinstance(entry, Commanded) and entry.what == "slots"
        ]
        if not changes:
            return
        wanted = self._backend.size().asked
        for change in changes:
            # The last slot stays, whoever asked at the same time.
            wanted = max(1, changed_count(change, wanted))
        self._backend.resize(wanted)
