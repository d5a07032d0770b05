"""Objectives that users write into a file and name as FILE.py:NAME."""

from collections.abc import Mapping
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from shoal.core.trial import is_in_file
from shoal.policy.elastic.objective import FileObjective
from shoal.simulate.site.learnt import with_log
from shoal.train.recipe.pickling import import_from

FIELD = "objective"


def objective_in(place: str) -> FileObjective:
    """The function at this place, FILE.py:NAME; the file is imported, and may import others beside.

    Raises:
        ValueError: there is no such file, it raises, or it has no function of that name.
    """
    file, _, name = place.rpartition(":")
    path = Path(file).absolute()
    if not path.is_file():
        raise ValueError(
            f"objective {place}: there is no file {path}: name a function in a file as FILE.py:NAME"
        )
    found = getattr(_imported(path, place), name, None)
    if not callable(found):
        raise ValueError(
            f"objective {place}: {path.name} has no function {name}: define one that takes a trial "
            "and its samples/s at 1, 2, … slots, and gives what each is worth per second"
        )
    return FileObjective(f"{path}:{name}", found)


def _imported(path: Path, place: str) -> ModuleType:
    """The module that the file is, under a name that nothing else imports.

    Raises:
        ValueError: it raises when imported.
    """
    import_from(path.parent)
    spec = spec_from_file_location(f"shoal_objective_{path.stem}", path)
    assert spec is not None and spec.loader is not None, "a file of Python"
    module = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise ValueError(
            f"objective {place}: {path.name} raised {type(error).__name__} when it was imported: "
            f"{error}"
        ) from error
    return module


def with_objective(described: Mapping[str, Any]) -> dict[str, Any]:
    """What a policy is described by, with the function in place of FILE.py:NAME, also within it.

    Only what the user types, or has marked as their own, is given to this: it runs the file.

    Raises:
        ValueError: as of `objective_in`.
    """
    found = {}
    for name, value in described.items():
        if name == FIELD and is_in_file(value):
            value = objective_in(value)
        elif isinstance(value, Mapping):
            value = with_objective(value)
        found[name] = value
    return found


def with_files(described: Mapping[str, Any]) -> dict[str, Any]:
    """What a policy is described by, with what the files say that the user typed.

    A spec of `shoal simulate` names no objective in a file: reading one runs no code.

    Raises:
        ValueError: as of `objective_in`.
        TraceError: as of `with_log`.
        OSError: as of `with_log`.
    """
    return with_objective(with_log(described))
