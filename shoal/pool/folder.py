"""A pool's folder: how studies and their pool find and hear each other.

`pool.json` says where the cluster is. Each study writes its claim into a file of its own about once
a second. The pool writes into `shares.json` how many slots each study is to have.
"""

import hashlib
import json
import os
import platform
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import inf
from pathlib import Path
from time import sleep
from typing import Any, TypeVar

from shoal.core.errors import warn
from shoal.engine.files import whole, write_whole
from shoal.engine.ownership import check_own_file, make_folder
from shoal.engine.plain_files import (
    NotPlainFile,
    TooLarge,
    is_there,
    names_in,
    read_file,
    remove_file,
)
from shoal.engine.process import lives
from shoal.engine.small import decoded


@dataclass(frozen=True, slots=True)
class SlotClaim:
    """What a study asks of its pool.

    `priority`: a study of priority 2 gets about twice the slots of a study of priority 1.
    `least`: the fewest slots with which one of its trials can train. `most`: as many as it can use.
    `since`: when it came, in seconds; only the order counts. `rates`: samples/s that it makes with
    1, 2, … slots, all trials together, 0 where none can run; empty: nothing was measured yet.

    Raises:
        ValueError: a number is out of its range.
    """

    study: str
    priority: float = 1.0
    least: int = 1
    most: int = 1
    since: float = 0.0
    rates: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not self.priority > 0 or not 1 <= self.least <= self.most:
            raise ValueError(f"a claim needs priority > 0 and 1 <= least <= most; got {self}")
        rates = self.rates
        if rates and not (
            len(rates) >= self.least
            and rates[self.least - 1] > 0
            and all(0 <= rate < inf for rate in rates)
        ):
            raise ValueError(
                f"a claim's rates are samples/s, above 0 from {self.least} slots on; got "
                f"{str(rates)[:200]}"
            )


T = TypeVar("T")
POLL = 0.2  # seconds between two looks whether the pool is open


class PoolError(RuntimeError):
    """The pool is not open, or cannot take the study. The message says what to do."""


@dataclass(frozen=True, slots=True)
class OpenPool:
    """A pool that is open.

    `address`: of its Ray cluster. `threads`: CPUs of each slot. `token`: whether who joins the
    cluster must show a token. `token_file`: that holds it; None: the user's. `closing`: its
    studies are to stop. `slots`: all that it has; None: nodes of its cluster come and go.
    `objective`: by which slots are divided; None: by priority.
    """

    address: str
    threads: int
    host: str
    pid: int
    token: bool = False
    closing: bool = False
    slots: int | None = None
    token_file: str | None = None
    objective: str | None = None


@dataclass(frozen=True, slots=True)
class Opening:
    """The process that is about to open the pool."""

    host: str
    pid: int


@dataclass(frozen=True, slots=True)
class StudySign:
    """A sign of life of a study: its claim, and what it has.

    `count`: how many signs it gave before. `slots`: that are ready.
    """

    claim: SlotClaim
    folder: str
    slots: int
    host: str
    pid: int
    count: int

    @property
    def is_dead(self) -> bool:
        """Whether its process is known to be gone."""
        return self.host == platform.node() and lives(self.pid) is False


def check_token(file: str) -> None:
    """See that the file which a pool names holds a token, as it is shown to the pool's cluster.

    Raises:
        PoolError: it may hold anything else of this user's, such as another key.
    """
    try:
        check_own_file(Path(file))
        if re.fullmatch(rb"[0-9a-f]{64}", read_file(Path(file), most=64)):
            return
        why = "it holds something else"
    except OSError as error:
        why = str(error)
    raise PoolError(
        f"the pool's cluster asks for a token, and names {file[:200]!r} as the file with it, which "
        f"must be a token that Shoal made for you: {why}. Join pools of your own only"
    )


class PoolFolder:
    """The files of a pool."""

    def __init__(self, path: str | Path) -> None:
        self.path = whole(path)
        self.lock = self.path / "pool.lock"
        self.holder = self.path / "holder.json"
        self._opened = self.path / "pool.json"
        self._opening = self.path / "opening.json"
        self._shares = self.path / "shares.json"
        self._signs = self.path / "studies"

    def make(self) -> None:
        """Make the folder, for this user alone."""
        make_folder(self._signs, self.path)

    # -- what the pool says ----------------------------------------------------------------------

    def begin(self) -> None:
        """Say that this process is about to open the pool."""
        _write(self._opening, asdict(Opening(platform.node(), os.getpid())))

    def open(self, opened: OpenPool) -> None:
        """Say that the pool is open, or is closing."""
        _write(self._opened, asdict(opened))
        remove_file(self._opening)

    def close(self) -> None:
        """Say that there is no pool any more."""
        remove_file(self._opening)
        remove_file(self._opened)
        remove_file(self._shares)

    def opened(self) -> OpenPool | None:
        """The pool that is open; None if there is none, as far as this machine can tell."""
        opened = _read(self._opened, OpenPool)
        if opened is None:
            return None
        if opened.host == platform.node() and lives(opened.pid) is False:
            return None
        return opened

    def awaited(self) -> OpenPool | None:
        """The open pool, waited for if it is about to open: its Ray takes a while to start."""
        warned = False
        while (opened := self.opened()) is None and self._is_opening():
            if not warned:
                warned = True
                warn(f"the pool in {self.path} is starting: waiting for it. Ctrl-C ends the wait")
            sleep(POLL)
        return opened

    def _is_opening(self) -> bool:
        """Whether a process, of this machine as far as one can tell, is about to open the pool."""
        opening = _read(self._opening, Opening)
        if opening is None:
            return False
        return opening.host == platform.node() and lives(opening.pid) is not False

    def share(self, shares: Mapping[str, int]) -> None:
        """Say how many slots each study is to have."""
        _write(self._shares, shares)

    def shares(self) -> dict[str, int]:
        """How many slots each study is to have."""
        return _read(self._shares, dict[str, int]) or {}

    # -- what the studies say --------------------------------------------------------------------

    def say(self, sign: StudySign) -> None:
        """Leave a sign of life, in place of the one before."""
        _write(self._signs / f"{sign.claim.study}.json", asdict(sign), self.path)

    def unsay(self, study: str) -> None:
        """Remove the sign of a study that has gone."""
        remove_file(self._signs / f"{study}.json", self.path)

    def signs(self) -> list[StudySign]:
        """The newest sign of each study. A file that is no sign is left out, with a warning."""
        signs: list[StudySign] = []
        for name in names_in(self._signs, self.path):
            if not name.endswith(".json"):
                continue
            path = self._signs / name
            try:
                sign = _read(path, StudySign, self.path)
                if sign is not None:
                    signs.append(_checked_sign(sign, path.stem))
            except PoolError as error:
                warn(str(error))
        return signs

    def bury(self) -> None:
        """Remove the signs of studies whose processes are gone."""
        for sign in self.signs():
            if sign.is_dead:
                self.unsay(sign.claim.study)


def summary(path: Path) -> dict[str, Any] | None:
    """How a pool stands, for people and programs; None if the folder never was a pool's."""
    folder = PoolFolder(path)
    if not is_there(folder.lock):
        return None
    shares = folder.shares()
    studies = []
    for sign in folder.signs():
        claim = sign.claim
        row = {
            "study": claim.study,
            "folder": sign.folder,
            "priority": claim.priority,
            "claims": claim.most,
            "share": shares.get(claim.study, 0),
            "slots": sign.slots,
            "alive": not sign.is_dead,
        }
        studies.append(row)
    opened = folder.opened()
    return {
        "pool": str(path),
        "open": opened is not None,
        "objective": None if opened is None else opened.objective,
        "studies": studies,
    }


def summary_lines(pool: Mapping[str, Any]) -> list[str]:
    """A pool's summary as lines."""
    stands = "closed"
    if pool["open"]:
        stands = "open"
    if pool["objective"] is not None:
        stands += f", divided by {pool['objective']}"
    return [f"pool {pool['pool']}: {stands}", *map(_row_line, pool["studies"])]


def _row_line(row: Mapping[str, Any]) -> str:
    line = (
        f"  {row['folder']}: priority {row['priority']:g}, has {row['slots']} slots, "
        f"is to have {row['share']}, can use {row['claims']}"
    )
    if not row["alive"]:
        line += "; gone"
    return line


def name_of(study: Path) -> str:
    """The name of a study in its pool: two folders of one name are two studies."""
    whole = str(study.absolute())
    return f"{study.name}-{hashlib.sha256(whole.encode()).hexdigest()[:6]}"


def _write(place: Path, content: Any, root: Path | None = None) -> None:
    """Write the file whole, or not at all."""
    write_whole(place, json.dumps(content).encode(), root)


def _read(place: Path, kind: type[T], root: Path | None = None) -> T | None:
    """What the file holds; None if it is not there.

    Raises:
        PoolError: it holds something else.
    """
    try:
        return decoded(read_file(place, root=root), kind)
    except FileNotFoundError:
        return None
    except (ValueError, NotPlainFile, TooLarge) as error:
        raise PoolError(f"{place} is not what Shoal writes there ({error}): remove it") from error


def _checked_sign(sign: StudySign, name: str) -> StudySign:
    """The sign, which must be of a study of this name.

    Raises:
        PoolError: it is of another study, whose sign it could bury.
    """
    if sign.claim.study != name:
        raise PoolError(
            f"the sign {name}.json in a pool's folder speaks of {sign.claim.study[:80]!r}: "
            "remove it"
        )
    return sign
