"""A study's folder after its files were damaged: what can be mended is, and the rest is named."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from shoal.core.trial import TrialId
from shoal.engine.journal import replay
from shoal.engine.mend import Mended, mend
from shoal.reporting.facts.format import plural
from shoal.study.folder import Folder
from shoal.train.lane.checkpoint import Checkpoints, Damaged


def repaired(directory: Path) -> dict[str, Any]:
    """Mend the study's journal, and look at its checkpoints: what was done and found.

    Raises:
        StudyError: there is no study, or another process has it open.
        JournalError: nothing of the journal can be used.
    """
    folder = Folder(directory)
    folder.check_begun()
    with folder.lock():
        mended = mend(folder.journal)
        damaged = _look_at_checkpoints(folder, mended)
    return {
        "lines": mended.lines,
        "doubled": mended.doubled,
        "cut": mended.cut,
        "why": mended.why,
        "copy": str(mended.copy) if mended.copy else None,
        "damaged_checkpoints": damaged,
    }


def _look_at_checkpoints(folder: Folder, mended: Mended) -> dict[TrialId, str]:
    """What is wrong with the trials' newest checkpoints.

    If the journal was cut, this is made the place of its newest run again.
    """
    folder.go_on(folder.head())
    state = replay(folder.lines())
    vault = Checkpoints(folder.checkpoints, state.run)
    if mended.cut:
        vault.mark(again=True)
    damaged: dict[TrialId, str] = {}
    for trial, kept in state.kept.items():
        try:
            vault.load(kept.name)
        except Damaged as error:
            damaged[trial] = str(error)
        except FileNotFoundError:
            damaged[trial] = f"checkpoint {kept.name} is missing"
    return damaged


def lines(found: dict[str, Any]) -> Iterator[str]:
    """The same for people."""
    if found["copy"] is None:
        yield f"the journal is sound: {plural(found['lines'], 'line')}"
    else:
        if found["doubled"]:
            yield f"{plural(found['doubled'], 'doubled line')} left out: nothing is lost by it"
        if found["cut"]:
            yield (
                f"cut before line {found['lines'] + found['doubled'] + 1}: {found['why']}; "
                f"{plural(found['cut'], 'line')} gone from there on"
            )
        yield f"the journal as it was: {found['copy']}"
    damaged = found["damaged_checkpoints"]
    for trial, why in damaged.items():
        yield f"{trial}: {why}"
    if damaged:
        yield (
            "trials with work left go on from their former checkpoints, or from the start; "
            "shoal resume"
        )
