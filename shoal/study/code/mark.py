"""The mark of a user's own recipes and places: a keyed hash that only this user can make.

Files of a folder that was unpacked or downloaded belong to the user, too, so that owner and
permissions cannot tell what the user has made. The key is a file that no archive brings along.
"""

import hashlib
import hmac
import json
import os
import secrets
import stat
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.core.trial import is_in_file
from shoal.engine.ownership import make_folder

KEY = "recipe.key"
BYTES = 32
SNAPSHOT = b"snapshot\0"  # precedes the content of a snapshot that is marked
MADE, TRUSTED = "made", "trusted"  # how a recipe has become a user's own


@dataclass(frozen=True, slots=True)
class Key:
    """The user's key. `secret`: None if there is none to use; `why` then says the reason."""

    file: Path
    secret: bytes | None = None
    why: str = "there is no such file"

    @property
    def name(self) -> str:
        """A name that tells the key from other users' keys, without giving it away."""
        return hashlib.sha256(b"name of " + (self.secret or b"")).hexdigest()[:16]

    def mark(self, content: bytes, how: str) -> str:
        """The mark by this key of content that the user has made, or trusted."""
        marked = f"shoal recipe {how}\0".encode() + content
        return f"{how} {hmac.new(self.secret or b'', marked, 'sha256').hexdigest()}"

    def standing(self, content: bytes, marks: Mapping[str, str]) -> str | None:
        """How the content has become the user's own, by its marks; None if it is not."""
        if self.secret is None:
            return None
        stored = marks.get(self.name, "").encode()
        for how in (MADE, TRUSTED):
            if hmac.compare_digest(stored, self.mark(content, how).encode()):
                return how
        return None


def key_file() -> Path:
    """Where the user's key is: in the folder for programs' state, XDG_STATE_HOME."""
    place = os.environ.get("XDG_STATE_HOME")
    if not place:
        place = os.path.join(os.path.expanduser("~"), ".local", "state")
    return Path(place) / "shoal" / KEY


def read_key() -> Key:
    """The user's key, if there is one that nobody else can read."""
    file = key_file()
    try:
        opened = os.open(file, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
        with os.fdopen(opened, "rb") as stream:
            why = _why_shared(os.fstat(stream.fileno()))
            secret = stream.read(2 * BYTES)
    except FileNotFoundError:
        return Key(file)
    except OSError as error:
        return Key(file, why=str(error))
    if why is None and len(secret) != BYTES:
        why = f"it has {len(secret)} bytes, not {BYTES}"
    if why is not None:
        return Key(file, why=why)
    return Key(file, secret)


def make_key() -> Key:
    """The user's key; a new one if there is none."""
    key = read_key()
    if key.secret is not None or os.path.lexists(key.file):
        return key
    try:
        make_folder(key.file.parent)
        _put(key.file, secrets.token_bytes(BYTES))
    except OSError as error:
        return Key(key.file, why=f"it cannot be made: {error}")
    return read_key()


def _put(file: Path, content: bytes) -> None:
    """Write the file whole, unless another process has made it meanwhile."""
    opened, beside = tempfile.mkstemp(dir=file.parent)  # for this user alone
    try:
        with os.fdopen(opened, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        with suppress(FileExistsError):
            os.link(beside, file)
    finally:
        os.unlink(beside)


def _why_shared(status: os.stat_result) -> str | None:
    """Why others may know what is in the file; None if they do not."""
    if not stat.S_ISREG(status.st_mode):
        return "it is no file"
    if not hasattr(os, "getuid"):  # where files have no such owners
        return None
    if status.st_uid != os.getuid():
        return f"it belongs to user {status.st_uid}"
    mode = stat.S_IMODE(status.st_mode)
    if mode & 0o077:
        return f"others may read it (mode {mode:o}; chmod 600)"
    return None


# -- snapshots of a study's state ------------------------------------------------------------------


def snapshot_marks(content: bytes) -> dict[str, str]:
    """The user's mark of a snapshot of a journal; empty if there can be no key."""
    key = make_key()
    if key.secret is None:
        return {}
    return {key.name: key.mark(SNAPSHOT + content, MADE)}


def is_own_snapshot(content: bytes, marks: Mapping[str, str]) -> bool:
    """Whether the user's own process wrote this snapshot."""
    return read_key().standing(SNAPSHOT + content, marks) is not None


# -- places outside of a study's folder ------------------------------------------------------------


def places_outside(head: Mapping[str, Any]) -> dict[str, Any]:
    """The places outside of the study's folder that a run's head names, by their arguments."""
    options = head.get("options") or {}
    loggers = [each for each in head.get("loggers") or () if ":" in each]
    named = {
        "checkpoints": head.get("checkpoints"),
        "address": options.get("address"),
        "loggers": loggers,
        "profile": head.get("profile"),
        "objective": _objectives(head.get("policy")),
    }
    return {name: place for name, place in named.items() if place}


def _objectives(described: Any) -> list[str]:
    """The objectives that are functions in files, FILE.py:NAME, of a policy and those within it."""
    objectives: list[str] = []
    if isinstance(described, Mapping):
        for name, value in described.items():
            if name == "objective" and is_in_file(value):
                objectives.append(value)
            objectives += _objectives(value)
    return objectives


def places_mark(head: Mapping[str, Any], folder: Path) -> dict[str, str]:
    """The user's mark of the places that the head names, for the study in this folder alone."""
    key = make_key()
    if key.secret is None or not places_outside(head):
        return {}
    return {key.name: key.mark(_places(head, folder), MADE)}


def with_places_mark(head: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The head with the user's mark of the places in it, for the study in this folder."""
    return {**head, "marks": places_mark(head, folder)}


def are_own_places(head: Mapping[str, Any], folder: Path) -> bool:
    """Whether the user's own run named these places, of a study in this folder."""
    marks = head.get("marks")
    if not isinstance(marks, dict):
        return False
    marks = {name: each for name, each in marks.items() if isinstance(each, str)}
    return read_key().standing(_places(head, folder), marks) is not None


def _places(head: Mapping[str, Any], folder: Path) -> bytes:
    """The places as they are marked; with the folder, as a head may be another study's."""
    places = {"folder": str(folder.resolve()), **places_outside(head)}
    return b"places\0" + json.dumps(places, sort_keys=True).encode()
