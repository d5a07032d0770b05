"""What `shoal ui` and `shoal pool` do: they serve until Ctrl-C."""

from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import typer

from shoal.core.errors import StudyError
from shoal.core.install import install
from shoal.core.trial import is_in_file
from shoal.pool.folder import PoolFolder
from shoal.tools.outcome import errors
from shoal.tools.status import collect_rarely


@errors()
def ui(directory: Path, port: int | None) -> None:
    """Serve the live page until Ctrl-C.

    Raises:
        StudyError: what serves pages is not installed.
    """
    why = f"the live page needs Starlette and uvicorn: {install('starlette', 'uvicorn')}"
    serve = _needing("shoal.ui.serve", ("starlette", "uvicorn"), why).serve
    collect_rarely()
    serve(directory, port, lambda address: typer.echo(f"live page: {address}"))


@errors()
def pool(directory: Path, objective: str | None, **options: Any) -> None:
    """Lend slots to studies until Ctrl-C. `options`: what else `serve` takes.

    Raises:
        StudyError: Ray is not installed.
        ValueError: the objective is no name of one, and no function that could be one.
    """
    from shoal.pool.division import try_on_claim  # imports NumPy
    from shoal.simulate.policy_files import objective_in

    aim: Any = objective
    if is_in_file(objective):
        aim = objective_in(str(objective))
    if aim is not None:
        try_on_claim(aim)
    folder = PoolFolder(directory)
    folder.make()
    folder.begin()  # studies wait for it from now on: to import Ray takes a while, too
    why = f"a pool needs Ray: {install('ray')}"
    serve = _needing("shoal.pool.pool", ("ray",), why).serve
    serve(directory, say=typer.echo, objective=aim, **options)


def _needing(module: str, libraries: tuple[str, ...], why: str) -> ModuleType:
    """The module, which needs these libraries.

    Raises:
        StudyError: one of them is not installed; `why` says so.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name not in libraries:
            raise
        raise StudyError(why) from error
