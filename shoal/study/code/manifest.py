"""recipe/recipe.json in a study's folder: what the recipe is made of, and whose own it is."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec

from shoal.engine.files import write_durably
from shoal.engine.plain_files import is_there, read_file
from shoal.study.code.files import sha256
from shoal.study.code.mark import Key
from shoal.study.folder import StudyError

FORMAT = 1
PLACE = "recipe"
FILE = "recipe.json"
LARGEST_PICKLE = 2**36  # bytes
LARGEST_TEXT = 64 * 2**20  # bytes of recipe.json, and of each module's text


class Module(msgspec.Struct, frozen=True):
    """A module whose text is stored. `path`: in the folder `recipe`; `file`: where it was."""

    name: str
    path: str
    file: str
    sha256: str
    package: bool = False
    # Of a script: what of it is needed.
    wanted: list[str] | None = None
    values: dict[str, Any] = {}
    later: dict[str, Any] = {}


class Manifest(msgspec.Struct, frozen=True):
    """What a stored recipe consists of: source, or a pickle."""

    format: int
    name: str
    kind: str  # "source" or "pickle"
    recipe: Any = None  # as a form
    modules: list[Module] = []
    pickle: str | None = None  # the file's path
    sha256: str | None = None  # of the pickle
    why: str | None = None  # there is no source
    about: dict[str, Any] = {}  # of a pickle: its file and that file's hash, as in the head
    folders: list[str] = []
    environment: dict[str, str] = {}
    versions: dict[str, str] = {}


@dataclass(frozen=True, slots=True)
class StoredRecipe:
    """A manifest as it was read or is to be written. `plain`: as JSON has it.

    `is_complete`: its packages have no other modules than those that it names.
    """

    place: Path
    manifest: Manifest
    plain: dict[str, Any]
    marks: dict[str, str] = field(default_factory=dict)
    is_complete: bool = False

    @property
    def content(self) -> bytes:
        """What is marked: everything that decides which code is loaded."""
        return json.dumps(self.plain).encode()

    @property
    def essence(self) -> tuple[Any, ...]:
        """Which code it is, wherever that was."""
        texts = [msgspec.structs.replace(m, file="") for m in self.manifest.modules]
        return self.manifest.recipe, texts, self.manifest.sha256

    def standing(self, key: Key) -> str | None:
        """How it has become the own of the key's owner; None if it has not."""
        return key.standing(self.content, self.marks)

    def write(self, key: Key, how: str) -> None:
        """Write it, with the mark of this key beside those of others."""
        marks = dict(self.marks)
        if key.secret is not None:
            marks[key.name] = key.mark(self.content, how)
        text = json.dumps({"recipe": self.plain, "marks": marks}, indent=1)
        write_durably(self.place / FILE, text.encode(), self.place.parent)

    def read(self, path: str, most: int | None = LARGEST_TEXT) -> bytes:
        """The content of a file beside the manifest, of `most` bytes.

        Raises:
            StudyError: it is not there, is no plain file of this folder, or is larger.
        """
        named = PurePosixPath(path)
        outside = named.is_absolute() or ".." in named.parts or "\\" in path
        if outside or not named.parts or ":" in path:
            raise StudyError(
                f"{self.place / FILE} names the file {path!r}: only files below "
                f"{self.place} can be part of a recipe; do not use this study's recipe"
            )
        return read_plain(self.place / path, most, self.place.parent)


def new(place: Path, manifest: Manifest) -> StoredRecipe:
    """A manifest that is to be written there; no marks are taken over."""
    return StoredRecipe(place, manifest, msgspec.to_builtins(manifest))


def read_plain(file: Path, most: int | None, root: Path) -> bytes:
    """The content of a file of the study in the folder `root`.

    Raises:
        StudyError: it is not there, is no plain file, or is larger.
    """
    try:
        return read_file(file, LARGEST_PICKLE if most is None else most, root)
    except OSError as error:
        raise StudyError(f"{file} is part of the recipe: {error}") from error


def read(folder: Path) -> StoredRecipe | None:
    """The manifest of the study in that folder; None if there is none.

    Raises:
        StudyError: it is damaged, or of a later Shoal.
    """
    place = folder / PLACE
    if not is_there(place / FILE, folder):
        return None
    content = read_plain(place / FILE, LARGEST_TEXT, folder)
    try:
        whole = json.loads(content)
        manifest = msgspec.convert(whole["recipe"], Manifest)
        marks = msgspec.convert(whole["marks"], dict[str, str])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise StudyError(
            f"{place / FILE} is damaged ({type(error).__name__}: {error}): give the recipe's file "
            f"again (shoal run FILE.py --storage {folder})"
        ) from error
    if manifest.format > FORMAT or manifest.kind not in ("source", "pickle"):
        raise StudyError(
            f"{place / FILE} is of a later Shoal (format {manifest.format}, kind "
            f"{manifest.kind!r}): use that one"
        )
    return StoredRecipe(place, manifest, whole["recipe"], marks)


def version_of(texts: dict[str, bytes]) -> str:
    """A name for files of these contents, by path."""
    return sha256(b"".join(f"{p} {sha256(c)}\n".encode() for p, c in texts.items()))[:16]
