"""What `shoal add`, `extend`, `stop` and `slots` do: they change a study beside its searcher."""

from pathlib import Path

import shoal
from shoal.core.errors import StudyError
from shoal.reporting.format import status_words
from shoal.study import control
from shoal.tools.arguments import parse_config
from shoal.tools.outcome import errors, show


@errors()
def add(
    directory: Path,
    values: list[str] | None,
    copy: str | None,
    cold: bool,
    trust: bool,
    as_json: bool,
    max_epochs: int | None,
    widths: tuple[int, int] | None,
    priority: float | None,
) -> None:
    """Add a trial to a study: a new one, or a copy.

    Raises:
        StudyError: an option does not go with the others.
    """
    study = shoal.load_study(directory, trust=trust)
    config = parse_config(values or [])
    if copy is not None and (widths is not None or priority is not None):
        raise StudyError(
            "a copy has widths and priority of the trial that it is made from: leave them out, "
            "or --from"
        )
    if copy is None and (cold or not config):
        raise StudyError(
            "a new trial needs its configuration, NAME=VALUE …; a copy needs --from TRIAL, "
            "and may be --cold"
        )
    if copy is None:
        priority = 1.0 if priority is None else priority
        name = study.enqueue(config, max_epochs=max_epochs, widths=widths, priority=priority)
    else:
        name = study.clone(copy, config, warm_start=not cold, max_epochs=max_epochs)
    show({"trial": name}, as_json, lambda figures: [f"added:   {figures['trial']}"])


@errors()
def extend(directory: Path, trial: str, max_epochs: int, as_json: bool) -> None:
    """Have a trial train for more epochs."""
    shoal.load_study(directory).extend(trial, max_epochs)
    figures = {"extended": trial, "max_epochs": max_epochs}
    show(figures, as_json, lambda _: [f"extended: {trial}, to {max_epochs} epochs"])


@errors()
def stop(directory: Path, trial: str | None, as_json: bool) -> None:
    """Take a trial out before its end; without a trial, end the run."""
    outcome = control.stop(shoal.load_study(directory).setup, trial)
    name, figures = trial or directory, {"stopped": trial, "outcome": outcome}
    text = {
        "stopped": f"stopped: {name}",
        "asked": f"asked: {name} ends after its unit under way",
    }.get(outcome, f"{name} is {status_words(outcome)} already: there is nothing to stop")
    if trial is None:
        text = f"asked: the run in {name} ends after the units under way"
    elif outcome not in ("stopped", "asked"):
        figures["stopped"] = None
    show(figures, as_json, lambda _: [text])


@errors()
def slots(directory: Path, change: str, number: int, as_json: bool) -> None:
    """Have a running study get more or fewer slots."""
    name = {"set": "count"}.get(change, change)
    shoal.load_study(directory).slots(**{name: number})
    show(
        {"slots": {change: number}},
        as_json,
        lambda _: [f"slots:   {change} {number}; shoal status {directory} lists them"],
    )
