"""What `shoal repair` does with a study's folder after its files were damaged.

What can be mended is, and the rest is named.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from shoal.core.trial import TrialId
from shoal.engine.mend import mend
from shoal.reporting.format import plural
from shoal.study.folder import Folder
from shoal.tools.outcome import errors, show
from shoal.train.lane.checkpoints import Checkpoints, Damaged


@errors()
def repair(directory: Path, as_json: bool) -> None:
    """Mend the study's journal, and look at its checkpoints."""
    show(repaired(directory), as_json, lines)


def repaired(directory: Path) -> dict[str, Any]:
    """Mend the study's journal, and look at its checkpoints: what was done and found.

    Raises:
        StudyError: there is no study, or another process has it open.
        JournalError: nothing of the journal can be used.
    """
    folder = Folder(directory)
    folder.check_begun()
    with folder.lock():
        since = folder.snapshots.newest()
        mended = mend(folder.journal, since and (since.offset, since.lines))
        rebuilt = folder.snapshots.rebuild()
        forgotten, damaged = _look_at_checkpoints(folder)
    return {
        "lines": mended.lines,
        "doubled": mended.doubled,
        "cut": mended.cut,
        "restored": mended.restored,
        "why": mended.why,
        "spared": mended.spared,
        "snapshot": rebuilt,
        "copy": str(mended.copy) if mended.copy else None,
        "forgotten_run": forgotten,
        "damaged_checkpoints": damaged,
    }


def _look_at_checkpoints(folder: Folder) -> tuple[int | None, dict[TrialId, str]]:
    """Give the place of checkpoints back to the journal's newest run, and read the newest ones.

    Returns the later run that had marked the place and that the journal does not know, or not any
    more; and what is wrong with trials' newest checkpoints.
    """
    folder.go_on(folder.head())
    state = folder.past().state
    vault = Checkpoints(folder.checkpoints, state.run)
    forgotten = vault.mark_back()
    damaged: dict[TrialId, str] = {}
    for trial, kept in state.kept.items():
        try:
            vault.load(kept.name)
        except Damaged as error:
            damaged[trial] = str(error)
        except FileNotFoundError:
            damaged[trial] = f"checkpoint {kept.name} is missing"
    return forgotten, damaged


def lines(repairs: dict[str, Any]) -> Iterator[str]:
    """What was repaired, in words."""
    if repairs["copy"] is None and not repairs["spared"]:
        yield f"the journal is sound: {plural(repairs['lines'], 'line')}"
    elif repairs["copy"] is not None:
        if repairs["restored"]:
            yield (
                f"{plural(repairs['restored'], 'line')} in which a bit had turned, as before: "
                "nothing is lost by it"
            )
        if repairs["doubled"]:
            yield f"{plural(repairs['doubled'], 'doubled line')} left out: nothing is lost by it"
        if repairs["cut"]:
            yield (
                f"cut before line {repairs['lines'] + repairs['doubled'] + 1}: {repairs['why']}; "
                f"{plural(repairs['cut'], 'line')} gone from there on"
            )
        yield f"the journal as it was: {repairs['copy']}"
    if repairs["spared"]:
        yield (
            f"{plural(repairs['spared'], 'damaged line')} before the newest snapshot stay: its "
            "state is known, so that nothing is lost of trials and scores; replay, "
            "learning_curves and --whole need a copy of the journal"
        )
    if repairs["snapshot"]:
        yield "a snapshot of the state, which makes opening quick, was made anew"
    if repairs["forgotten_run"] is not None:
        yield (
            f"run {repairs['forgotten_run']} is not in the journal: the study goes on as if it had "
            "not been"
        )
    damaged = repairs["damaged_checkpoints"]
    for trial, why in damaged.items():
        yield f"{trial}: {why}"
    if damaged:
        yield (
            "trials with work left go on from their former checkpoints, or from the start; "
            "shoal resume"
        )
