"""Whether a batch job that was stopped by its time limit is to go on, and how."""

import os
import signal
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from shoal.core.event import Commanded, Failed, Finished, Kept, Opened, Retired
from shoal.engine.journal import Line
from shoal.harvest.allocation import (
    AllocationOver,
    SlurmRefused,
    allocation_now,
    requeue,
)
from shoal.study.allocated.limit import OF_SLURM
from shoal.study.folder import StudyError
from shoal.study.inbox import WARNING

# Runs in a row, stopped by the time limit, that may end without progress.
FRUITLESS = 2


@dataclass(slots=True)
class _Ending:
    """How a run ended. `why`: it was stopped; None: it was not. `further`: it made progress."""

    why: str | None = None
    further: bool = False

    @property
    def by_limit(self) -> bool:
        """Whether Slurm's time limit stopped it, or Slurm's warning of that."""
        why = self.why or ""
        return why == WARNING or why.startswith(OF_SLURM)


def check_requeue(environ: Mapping[str, str] = os.environ) -> None:
    """Raise StudyError unless this is a batch job, which Slurm can start again."""
    rule = "--requeue is for a batch job of Slurm"
    try:
        found = allocation_now(environ)
    except (AllocationOver, ValueError) as error:
        raise StudyError(f"{rule}: {error}") from error
    if found is None:
        raise StudyError(
            f"{rule}, and SLURM_JOB_ID is not set: submit the command with sbatch "
            "(`shoal slurm script` writes the file), or leave --requeue out"
        )
    if not found.batch:
        raise StudyError(
            f"{rule}; job {found.job} is none that scontrol knows as such: submit the command "
            "with sbatch, or leave --requeue out"
        )


def why_not_again(lines: Iterable[Line]) -> str | None:
    """Why the job is not to start again after the last run in the journal; None: it is to.

    Raises:
        StudyError: it made no progress time and again.
    """
    endings = list(_endings(lines))
    if not endings or endings[-1].why is None:
        return "the study is done"
    if not endings[-1].by_limit:
        return f"the run was stopped: {endings[-1].why}"
    last = endings[-FRUITLESS:]
    fruitless = [each for each in last if each.by_limit and not each.further]
    if len(fruitless) == FRUITLESS:
        raise StudyError(
            f"not submitted again: the last {FRUITLESS} runs were stopped by the time limit before "
            "anything new was durable. Ask Slurm for more time, or make visits shorter, by more "
            "shards"
        )
    return None


def _endings(lines: Iterable[Line]) -> Iterator[_Ending]:
    """How each run of the study ended, in order."""
    ending: _Ending | None = None
    for line in lines:
        match line.entry:
            case Opened():
                if ending is not None:
                    yield ending
                ending = _Ending()
            case Commanded("stop", why) if ending is not None:
                ending.why = ending.why or why or "as asked"
            case Kept() | Finished() | Failed() | Retired() if ending is not None:
                ending.further = True
    if ending is not None:
        yield ending


def submit_again(environ: Mapping[str, str] = os.environ) -> None:
    """Have Slurm start the job's script again. That ends this process, so it is the last thing.

    Raises:
        StudyError: Slurm refuses it.
    """
    job = environ["SLURM_JOB_ID"]
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # Slurm ends the job's processes so
    try:
        requeue(job)
    except SlurmRefused as error:
        raise StudyError(
            f"Slurm does not start job {job} again ({error}): submit its script by hand; "
            "nothing is lost"
        ) from error
