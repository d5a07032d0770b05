"""A study's folder: its journal, its lock, the recipe by value, logs; and how a recipe is found again."""

import hashlib
import importlib.util
import inspect
import json
import os
import platform
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from shoal.core.event import Opened
from shoal.engine.journal import Line, read

if TYPE_CHECKING:
    from shoal.train.recipe import Recipe


class StudyError(RuntimeError):
    """The study cannot be opened or asked for that; the message gives the rule, the values and the remedy."""


class StudyBusy(StudyError):  # noqa: N818 - a state of the study, as its user names it
    """Another process has the study open."""


class Folder:
    """Where a study lives. `checkpoints`: another place (any fsspec URL) for the weights."""

    def __init__(self, path: str | Path, checkpoints: str | None = None) -> None:
        if "://" in str(path):
            raise StudyError(
                f"storage must be a folder that this process can append to; got {str(path)!r}: "
                "give a folder, and checkpoints=URL for the weights"
            )
        self.path = Path(path)
        self.journal = self.path / "journal.jsonl"
        self.report = self.path / "report.html"
        self.elsewhere = _whole(checkpoints) if checkpoints else None  # the weights, where they are not in the folder itself

    @property
    def checkpoints(self) -> str:
        """Where the weights lie, good in any process that sees the same files."""
        return self.elsewhere or _whole(self.path / "checkpoints")

    def go_on(self, head: Mapping[str, Any]) -> None:
        """Take the weights where that run had them, unless told another place. In the folder itself they move with it."""
        place = head.get("checkpoints")
        if self.elsewhere is not None or place is None:
            return
        as_once_written = "://" not in place and Path(place).parts[-2:] == (head.get("study"), "checkpoints")
        if not (as_once_written and (self.path / "checkpoints").exists()):
            self.elsewhere = place

    def make(self) -> None:
        """Create the folder, and see that it can be written to.

        Raises:
            StudyError: it cannot.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            probe = self.path / ".writable"
            probe.write_text("")
            probe.unlink()
        except OSError as error:
            raise StudyError(f"the study's folder {self.path} cannot be written to ({error}): choose another storage=") from error

    def check_begun(self) -> None:
        """Raise StudyError unless there is a study's journal here."""
        if not self.journal.exists():
            raise StudyError(f"there is no study in {self.path}: no journal.jsonl")

    def lines(self) -> list[Line]:
        return list(read(self.journal)) if self.journal.exists() else []

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the study alone.

        Raises:
            StudyBusy: another process has it open; says which.
        """
        from filelock import FileLock, Timeout

        holder = self.path / "holder.json"
        lock = FileLock(self.path / "study.lock", timeout=0)
        try:
            lock.acquire()
        except Timeout:
            who = holder.read_text() if holder.exists() else "an unknown process"
            raise StudyBusy(f"the study in {self.path} is open already, held by {who}: wait for it, or end it") from None
        try:
            holder.write_text(json.dumps({"pid": os.getpid(), "host": platform.node(), "since": timestamp()}))
            yield
        finally:
            lock.release()

    # -- the recipe ----------------------------------------------------------------------------------------------------

    def save_recipe(self, recipe: "Recipe") -> None:
        """Keep the recipe by value, so that weights can be loaded and runs resumed without its file."""
        blob = dumps(recipe)
        target = self.path / "recipe.pkl"
        if not target.exists() or target.read_bytes() != blob:
            beside = target.with_suffix(".part")
            beside.write_bytes(blob)
            beside.replace(target)  # never half of it

    def load_recipe(self, head: Mapping[str, Any]) -> "Recipe":
        """The recipe as saved; from its file where that has changed since (with a warning).

        Raises:
            StudyError: neither is there.
        """
        import cloudpickle

        saved = self.path / "recipe.pkl"
        if not saved.exists():
            raise StudyError(
                f"{self.path} has no recipe.pkl: give the recipe's file again (shoal run FILE.py --storage {self.path})"
            )
        recipe: Recipe = cloudpickle.loads(saved.read_bytes())
        about = head.get("recipe", {})
        file = about.get("file")
        if file and about.get("sha256") and Path(file).exists() and _sha256(Path(file)) != about["sha256"]:
            import warnings

            warnings.warn(f"{file} has changed since the study began; going on with the code as it is now", stacklevel=3)
            fresh = recipe_class(load_module(Path(file)), about.get("name"))
            renewed = fresh.__new__(fresh)
            renewed.__dict__.update(recipe.__dict__)
            return renewed
        return recipe


def _whole(place: str | Path) -> str:
    return str(place) if "://" in str(place) else str(Path(place).expanduser().resolve())


def timestamp() -> str:
    """Now, as ISO 8601 in UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def dumps(recipe: "Recipe") -> bytes:
    """The recipe by value: its module too, unless it is an installed package."""
    import cloudpickle

    module = sys.modules.get(type(recipe).__module__)
    by_value = module is not None and module.__name__ != "__main__" and not _installed(module)
    if by_value and module is not None:
        cloudpickle.register_pickle_by_value(module)
    try:
        return bytes(cloudpickle.dumps(recipe))
    finally:
        if by_value and module is not None:
            cloudpickle.unregister_pickle_by_value(module)


def _installed(module: ModuleType) -> bool:
    file = getattr(module, "__file__", None) or ""
    return "site-packages" in file or "dist-packages" in file or module.__name__.split(".")[0] == "shoal"


def load_module(file: Path) -> ModuleType:
    """Import a Python file under its own name.

    Raises:
        StudyError: no such file, or it raises when imported.
    """
    if not file.is_file():
        raise StudyError(f"there is no file {file}: give the path of a Python file with a shoal.Recipe in it")
    name = f"shoal_recipe_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise StudyError(f"{file} is not a Python file: give one with a shoal.Recipe in it")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        sys.path.insert(0, str(file.parent.resolve()))
        spec.loader.exec_module(module)
    except Exception as error:
        raise StudyError(f"{file} raised {type(error).__name__} when it was imported: {error}") from error
    finally:
        sys.path.remove(str(file.parent.resolve()))
    return module


def recipe_class(module: ModuleType, name: str | None = None) -> "type[Recipe]":
    """The recipe of that name in a module; without a name, the only one.

    Raises:
        StudyError: none, several without a name, or none of that name.
    """
    from shoal.train.recipe import Recipe

    found = {
        key: value
        for key, value in vars(module).items()
        if inspect.isclass(value) and issubclass(value, Recipe) and value.__module__ == module.__name__
    }
    if name is None and len(found) == 1:
        return next(iter(found.values()))
    if name is None or name not in found:
        ask = f"there is no {name}" if name else "say which one with FILE.py:NAME"
        raise StudyError(f"{module.__file__} has the recipes {', '.join(found) or '(none)'}: {ask}")
    return found[name]


def describe_recipe(recipe: "Recipe") -> dict[str, Any]:
    """What the journal's head says of a recipe: file, name and a hash of the source."""
    try:
        file = inspect.getsourcefile(type(recipe))
    except (TypeError, OSError):
        file = None
    known = file is not None and Path(file).is_file()
    return {
        "name": type(recipe).__name__,
        "file": str(Path(file).resolve()) if known and file else None,
        "sha256": _sha256(Path(file)) if known and file else None,
    }


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def versions() -> dict[str, str]:
    """Versions of what decides the numbers."""
    found = {"python": platform.python_version()}
    for name in ("shoal", "torch", "numpy", "ray"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def last_head(lines: list[Line]) -> Mapping[str, Any]:
    """The head of the newest run in a journal; empty if there is none."""
    for line in reversed(lines):
        if isinstance(line.entry, Opened):
            return line.entry.head
    return {}
