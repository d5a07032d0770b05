"""What `shoal run` and `shoal resume` do; as a batch job, also after its time limit."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

import shoal
from shoal.study.folder import Folder, StudyPaused
from shoal.study.holder import command_to_go_on, was_harvested
from shoal.study.slurm_job import check_requeue, requeue_job, why_not_requeued
from shoal.tools.arguments import open_study, run_options
from shoal.tools.outcome import concluded, errors

if TYPE_CHECKING:
    from shoal.study.study import Study


@errors()
def run(
    file: str | None,
    command: str | None,
    storage: Path | None,
    space: list[str] | None,
    metric: str | None,
    mode: str | None,
    seed: int,
    as_json: bool,
    **options: Any,
) -> None:
    """Train a search. `options`: what else `Study.optimize` takes, some of it as text."""
    study = open_study(file, storage, space, metric, mode, seed, command)
    requeue = options.pop("requeue")
    with going_on(study, requeue), concluded(study, as_json):
        study.optimize(progress=not as_json, **run_options(study, options))


@errors()
def resume(
    directory: Path,
    timeout: float | None,
    requeue: bool,
    retry_failed: bool,
    trust: bool,
    checkpoints: str | None,
    as_json: bool,
) -> None:
    """Go on with a study that was stopped or killed."""
    study = shoal.load_study(directory, trust=trust, checkpoints=checkpoints)
    command = command_to_go_on(study.folder)
    with going_on(study, requeue), _harvest_over(study.folder), concluded(study, as_json, command):
        study.resume(timeout=timeout, progress=not as_json, retry_failed=retry_failed)


@contextmanager
def _harvest_over(folder: Folder) -> Iterator[None]:
    """Say what to do if the cluster that does not answer was that of a harvest.

    Raises:
        StudyPaused: it was.
    """
    try:
        yield
    except StudyPaused as error:
        if isinstance(error.__cause__, ConnectionError) and was_harvested(folder):
            raise StudyPaused(
                f"the study in {folder.path} was harvested, and its cluster ended with that: go "
                f"on with {command_to_go_on(folder)}, or without harvesting with `shoal run "
                f"FILE.py --storage {folder.path}`"
            ) from error
        raise


@contextmanager
def going_on(study: "Study", requeue: bool) -> Iterator[None]:
    """Submit the job again after a run that its time limit stopped; nothing without `requeue`.

    Raises:
        StudyError: this is no batch job, the runs make no progress, or Slurm refuses.
        Exit: as of the run; the job is submitted again before.
    """
    if not requeue:
        yield
        return
    check_requeue()
    run_exit: typer.Exit | None = None
    try:
        yield
    except typer.Exit as ending:
        if ending.exit_code == 1:  # all trials failed
            raise
        run_exit = ending
    why = why_not_requeued(study.lines())
    if why is None:
        typer.echo("the job is submitted again: it goes on when Slurm starts it", err=True)
        sys.stdout.flush()
        requeue_job()
    else:
        typer.echo(f"the job is not submitted again: {why}", err=True)
    if run_exit is not None:
        raise run_exit
