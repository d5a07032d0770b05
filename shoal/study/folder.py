"""A study's folder: its journal, its lock, its recipe by value; and how a recipe is found again."""

import hashlib
import importlib.util
import inspect
import json
import platform
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from shoal.core.event import Opened
from shoal.core.state import State
from shoal.engine.files import write_durably
from shoal.engine.journal import Line, newest, read
from shoal.engine.lock import Taken, held
from shoal.engine.own import make_folder
from shoal.train.recipe import pickled
from shoal.train.recipe.several.parts import parts_of

if TYPE_CHECKING:
    from shoal.train.recipe.recipe import Recipe


class StudyError(RuntimeError):
    """The study cannot be opened, or cannot do what is asked for.

    The message gives the rule, the values and the remedy.
    """


class StudyBusy(StudyError):  # noqa: N818 - a state of the study, as its user names it
    """Another process has the study open."""


class TrialsFailed(StudyError):  # noqa: N818 - a state of the study, as its user names it
    """Every trial of the study failed; the message gives the first reasons."""


class StudyPaused(RuntimeError):  # noqa: N818 - a state of the study, as its user names it
    """Something outside the trials went wrong: the disk, the data or the folder.

    Durable work is kept; mend the cause and run again.
    """


class Folder:
    """Where a study lives. `checkpoints`: another place for the weights, any fsspec URL."""

    def __init__(self, path: str | Path, checkpoints: str | None = None) -> None:
        if "://" in str(path):
            raise StudyError(
                f"storage must be a folder that this process can append to; got {str(path)!r}: "
                "give a folder, and checkpoints=URL for the weights"
            )
        self.path = Path(path)
        self.journal = self.path / "journal.jsonl"
        self.report = self.path / "report.html"
        self.log = self.path / "log.txt"
        # The slots of a run, while it runs.
        self.board = self.path / "slots.json"
        # The place of the weights, if they are not in the folder itself.
        self.elsewhere: str | None = None
        # The study's state while its run calls a callback here; None: no callback is called.
        self.live: State | None = None
        if checkpoints:
            self.elsewhere = _whole(checkpoints)

    @property
    def checkpoints(self) -> str:
        """Where the weights lie, as any process finds them that sees the same files."""
        return self.elsewhere or _whole(self.path / "checkpoints")

    def go_on(self, head: Mapping[str, Any]) -> None:
        """Take the weights from where the run of this head had them, unless told another place.

        Weights in the folder itself move with the folder.
        """
        place = head.get("checkpoints")
        if self.elsewhere is not None or place is None:
            return
        # Heads of the first version named the place also if it was in the folder itself.
        parts = Path(place).parts[-2:]
        inside = "://" not in place and parts == (head.get("study"), "checkpoints")
        if not (inside and (self.path / "checkpoints").exists()):
            self.elsewhere = place

    def make(self) -> None:
        """Create the folder, and see that it can be written to.

        Raises:
            StudyError: it cannot.
        """
        try:
            make_folder(self.path)
            probe = self.path / ".writable"
            probe.write_text("")
            probe.unlink()
        except OSError as error:
            raise StudyError(
                f"the study's folder {self.path} cannot be written to ({error}): "
                "choose another storage="
            ) from error

    def check_begun(self) -> None:
        """Raise StudyError unless there is a study's journal here."""
        if not self.journal.exists():
            raise StudyError(f"there is no study in {self.path}: no journal.jsonl")

    def lines(self) -> list[Line]:
        """The journal; empty if there is none."""
        if not self.journal.exists():
            return []
        return list(read(self.journal))

    def slots(self) -> Any:
        """What the run of the study wrote of its slots last; None if it has no run."""
        with suppress(OSError, ValueError):
            return json.loads(self.board.read_text())
        return None

    def head(self) -> Mapping[str, Any]:
        """The head of the newest run, as `last_head`; quicker than to read all of the journal."""
        opened = None
        if self.journal.exists():
            opened = newest(self.journal, Opened)
        if opened is None:
            return {}
        return opened.head

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the study alone.

        Raises:
            StudyBusy: another process has it open; the message says which.
        """
        with ExitStack() as open_:
            try:
                open_.enter_context(
                    held(self.path / "study.lock", self.path / "holder.json")
                )
            except Taken as taken:
                raise StudyBusy(
                    f"the study in {self.path} is open already, held by {taken.who}: "
                    f"wait for it, or end it{taken.remedy}"
                ) from None
            yield

    # -- the recipe ----------------------------------------------------------------------------

    def save_recipe(self, recipe: "Recipe") -> None:
        """Keep the recipe by value, so that runs can be resumed without its file.

        Raises:
            StudyError: it holds something that cannot be pickled, such as a lock.
        """
        try:
            blob = pickled.dumps(recipe)
        except Exception as error:
            raise StudyError(
                f"{code_name(recipe)} cannot be stored: {pickled.culprit(recipe)} cannot be "
                f"pickled ({error}); make it where it is used, in data() or in a step, not on "
                "the recipe or beside its class"
            ) from error
        target = self.path / "recipe.pkl"
        if not target.exists() or target.read_bytes() != blob:
            write_durably(target, blob)

    def load_recipe(self, head: Mapping[str, Any]) -> "Recipe":
        """The recipe as saved; from its file if that has changed since (with a warning).

        Raises:
            StudyError: the folder has no recipe, or it cannot be loaded.
        """
        saved = self.path / "recipe.pkl"
        if not saved.exists():
            raise StudyError(
                f"{self.path} has no recipe.pkl: give the recipe's file again "
                f"(shoal run FILE.py --storage {self.path})"
            )
        about = head.get("recipe", {})
        parts = about.get("parts", {})
        for each in (about, *parts.values()):
            file = Path(each.get("file") or "")
            if file.is_file():
                pickled.import_from(file.parent)
        recipe = _unpickled(saved)
        own = parts_of(recipe)
        if own:
            recipe.parts = {
                name: _as_now(part, parts.get(name, {})) for name, part in own.items()
            }
        return _as_now(recipe, about)


def _as_now(recipe: "Recipe", about: Mapping[str, Any]) -> "Recipe":
    """The recipe as its file has it, if that has changed since (with a warning)."""
    file = Path(about.get("file") or "")
    if not file.is_file() or about.get("sha256") in (None, _sha256(file)):
        return recipe
    warnings.warn(
        f"{file} has changed since the study began; going on with the code as it is now",
        stacklevel=4,
    )
    if function_in(recipe) is not None:
        return _renewed(recipe, load_module(file), about.get("name"))
    if hasattr(recipe, "renew"):
        kind = getattr(load_module(file), str(about.get("name")), None)
        if kind is not None:
            recipe.renew(kind)
        return recipe
    fresh = recipe_class(load_module(file), about.get("name"))
    renewed = fresh.__new__(fresh)
    renewed.__dict__.update(recipe.__dict__)
    return renewed


def studies_in(path: Path) -> dict[str, Path]:
    """The folders of studies at most two levels below this one, by name."""
    found = {}
    for depth in ("*", "*/*"):
        for journal in sorted(path.glob(f"{depth}/journal.jsonl")):
            place = journal.parent
            found[place.relative_to(path).as_posix()] = place
    return found


def _renewed(recipe: "Recipe", module: ModuleType, name: str | None) -> "Recipe":
    """The same kind of recipe with the module's function of that name, if there is one."""
    function = getattr(module, name or "", None)
    if callable(function):
        vars(recipe)["function"] = function
    return recipe


def _unpickled(saved: Path) -> "Recipe":
    """The recipe in this file.

    Raises:
        StudyError: what its code imports is not there.
    """
    try:
        recipe: Recipe = pickled.loads(saved.read_bytes())
    except ImportError as error:
        raise StudyError(
            f"the recipe in {saved} cannot be loaded: {error}: put the modules that it imports "
            "where they were, or on PYTHONPATH"
        ) from error
    return recipe


def _whole(place: str | Path) -> str:
    if "://" in str(place):
        return str(place)
    return str(Path(place).expanduser().resolve())


def timestamp() -> str:
    """Now, as ISO 8601 in UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def load_module(file: Path) -> ModuleType:
    """Import a Python file under a name of its own; it may import what lies beside it.

    Raises:
        StudyError: there is no such file, or it raises when imported.
    """
    if not file.is_file():
        raise StudyError(
            f"there is no file {file}: give the path of a Python file with a shoal.Recipe in it"
        )
    name = f"shoal_recipe_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise StudyError(
            f"{file} is not a Python file: give one with a shoal.Recipe in it"
        )
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    pickled.import_from(file.parent)
    try:
        spec.loader.exec_module(module)
    except SystemExit as error:
        raise StudyError(
            f"{file} ended with {error.code} when it was imported; a script that reads its command "
            f'line is run as one: shoal run --command "python {file} --lr {{lr}}" '
            '--space "lr=…" --metric …'
        ) from error
    except Exception as error:
        raise StudyError(
            f"{file} raised {type(error).__name__} when it was imported: {error}"
        ) from error
    return module


def recipe_class(module: ModuleType, name: str | None = None) -> "type[Recipe]":
    """The recipe of that name in a module; without a name, the only one.

    Raises:
        StudyError: there is none, several without a name, or none of that name.
    """
    from shoal.train.recipe.recipe import Recipe

    found: dict[str, type[Recipe]] = {}
    for key, value in vars(module).items():
        is_recipe = inspect.isclass(value) and issubclass(value, Recipe)
        if is_recipe and value.__module__ == module.__name__:
            found[key] = value
    if name is None and len(found) == 1:
        return next(iter(found.values()))
    if name is not None and name in found:
        return found[name]
    ask = "say which one with FILE.py:NAME"
    if name is not None:
        ask = f"there is no {name}"
    listed = ", ".join(found) or "(none)"
    raise StudyError(f"{module.__file__} has the recipes {listed}: {ask}")


def function_in(recipe: Any) -> Any:
    """The function that the recipe calls, if it is a `FunctionRecipe`, which needs torch."""
    return vars(recipe).get("function") if hasattr(recipe, "run") else None


def code_name(recipe: "Recipe") -> str:
    """What the user calls what is trained: a function's name, or that of a recipe's class."""
    if function_in(recipe) is not None:
        return str(recipe.name)  # type: ignore[attr-defined]
    return str(getattr(_named(recipe), "__name__", type(recipe).__name__))


def _named(recipe: Any) -> Any:
    """The class or function that an adapted recipe is made of; None of other recipes."""
    return recipe.named() if hasattr(recipe, "named") else None


def describe_recipe(recipe: "Recipe") -> dict[str, Any]:
    """What the journal's head says of a recipe: file, name and a hash of the source."""
    code = function_in(recipe) or _named(recipe) or type(recipe)
    about: dict[str, Any] = {
        "name": code_name(recipe),
        "file": None,
        "sha256": None,
    }
    parts = parts_of(recipe)
    if parts:
        about["parts"] = {name: describe_recipe(each) for name, each in parts.items()}
        return about
    if isinstance(code, str):
        about["command"] = code
    try:
        file = inspect.getsourcefile(code)
    except (TypeError, OSError):
        file = None
    if file is not None and Path(file).is_file():
        about["file"] = str(Path(file).resolve())
        about["sha256"] = _sha256(Path(file))
    return about


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


def last_head(lines: Sequence[Line]) -> Mapping[str, Any]:
    """The head of the newest run in a journal; empty if there is none."""
    for line in reversed(lines):
        if isinstance(line.entry, Opened):
            return line.entry.head
    return {}
