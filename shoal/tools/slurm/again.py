"""A batch job that goes on after its time limit."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

from shoal.study.slurm_job import check_requeue, requeue_job, why_not_requeued

if TYPE_CHECKING:
    from shoal.study.study import Study


@contextmanager
def going_on(study: "Study", asked: bool) -> Iterator[None]:
    """Submit the job again after a run that its time limit stopped, if that is `asked` for.

    Raises:
        StudyError: this is no batch job, the runs make no progress, or Slurm refuses.
        Exit: as of the run; the job is submitted again before.
    """
    if not asked:
        yield
        return
    check_requeue()
    left: typer.Exit | None = None
    try:
        yield
    except typer.Exit as ending:
        if ending.exit_code == 1:  # all trials failed
            raise
        left = ending
    _submit_unless_done(study)
    if left is not None:
        raise left


def _submit_unless_done(study: "Study") -> None:
    why = why_not_requeued(study.lines())
    if why is not None:
        typer.echo(f"the job is not submitted again: {why}", err=True)
        return
    typer.echo("the job is submitted again: it goes on when Slurm starts it", err=True)
    sys.stdout.flush()
    requeue_job()
