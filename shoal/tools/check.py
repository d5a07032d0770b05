"""What `shoal check` and `shoal replay` do: compare what training gives when it is done again."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import typer

import shoal
from shoal.core.errors import StudyError
from shoal.core.masking import masked_config
from shoal.options import Options
from shoal.reporting.format import plural
from shoal.study.backends import Perform, at_holders, perform_here
from shoal.study.checks import check_by_rehearsal, check_metric, first_config, unlike_config
from shoal.study.checks import check_recipe as check_configured
from shoal.study.schedules import plan_to_measure
from shoal.study.setup import data_of, each_recipe
from shoal.tools.arguments import check_driven, open_study
from shoal.tools.outcome import errors, show, teller
from shoal.train.lane.device import device_of
from shoal.train.tools.check import check_recipe

if TYPE_CHECKING:
    from shoal.study.setup import Setup
    from shoal.study.study import Study
    from shoal.train.data.data import Data


NOT_COMPARABLE = 4  # of a replay that could not compare all trials, and found nothing else


@errors()
def check(
    file: str, space: list[str] | None, device: str, address: str | None, as_json: bool
) -> None:
    """Do what a run does before its first trial; then train three steps, and compare.

    The steps are taken alone, again, beside another model, and around a move and a validation.

    Raises:
        Exit: with 1 when they differ.
    """
    with TemporaryDirectory() as folder:  # where nothing is written
        study = open_study(file, Path(folder), space, None, None, 0)
        check_driven(study.recipe, "check")
        with at_holders(address, teller(as_json)) as perform:
            findings = checked(study, device, perform)
    show(findings, as_json, check_lines)
    if not findings["ok"]:
        raise typer.Exit(1)


Space = Mapping[str, Any]


def checked(study: "Study", device: str, perform: Perform = perform_here) -> dict[str, Any]:
    """What `shoal check` finds; of recipes by name, each is checked by itself.

    Returns {"ok": …, "steps": …, "checks": [(name, passed, text), …], "tried": [text, …]}.

    Raises:
        StudyError: the space names no recipe, or the data cannot be read.
    """
    setup = study.setup
    steps = 0
    checks: list[tuple[str, bool, str]] = []
    tried: list[str] = []
    for recipe_setup, _, space in each_recipe(setup, None, setup.space or {}):
        prefix = "" if recipe_setup is setup else f"{recipe_setup.recipe.recipe_name}: "
        recipe_setup = replace(recipe_setup, source=plan_to_measure(recipe_setup.recipe))
        data = data_of(recipe_setup.recipe)
        findings = perform(_checked, recipe_setup, data, space or {}, device, device=device)
        steps += findings["steps"]
        checks += [(prefix + name, *rest) for name, *rest in findings["checks"]]
        tried.append(prefix + findings["tried"])
    ok = all(passed for _, passed, _ in checks)
    return {"ok": ok, "steps": steps, "checks": checks, "tried": tried}


def _checked(setup: "Setup", data: "Data", space: Space, device: str) -> dict[str, Any]:
    """What the check of one recipe finds: first what a run looks at before its first trial."""
    config = first_config(space)
    neighbour = unlike_config(space, config)
    tried = f"tried with {masked_config(config)} beside {masked_config(neighbour)}"
    if neighbour == config:
        tried = f"tried with {masked_config(config)} beside the same with another seed"
    try:
        check_metric(setup, data, space)
        parameters = check_configured(setup, space)
        check_by_rehearsal(setup, space, data, Options(device=device), parameters)
    except StudyError as error:
        checks = [("begins", False, str(error))]
        return {"steps": 0, "checks": checks, "tried": tried}
    findings = check_recipe(setup.recipe, data, config, setup.seed, neighbour, device_of(device))
    begins = ("begins", True, "as shoal run checks it before the first trial")
    return {**findings, "checks": [begins, *findings["checks"]], "tried": tried}


def check_lines(findings: Mapping[str, Any]) -> list[str]:
    """A line for each check of a recipe."""
    verdicts = {True: "ok  ", False: "FAIL"}
    lines = [f"{verdicts[passed]}  {name}: {text}" for name, passed, text in findings["checks"]]
    return [*lines, *findings["tried"]]


@errors()
def replay(
    directory: Path, trial: list[str] | None, address: str | None, trust: bool, as_json: bool
) -> None:
    """Train each trial again, alone, and compare the checkpoints.

    Raises:
        Exit: with 1 when one of them differs or is missing, else with 4 when one could not be
            compared.
    """
    study = shoal.load_study(directory, trust=trust)
    comparison = {"trials": study.replay(trial, address=address)}
    show(comparison, as_json, replay_lines)
    code = replay_code(comparison)
    if code:
        raise typer.Exit(code)


def replay_lines(comparison: Mapping[str, Any]) -> list[str]:
    """The comparison, a line for each trial, and one for the study."""
    rows = comparison["trials"]
    lines = [f"{row['trial']}: {_verdict(row)}" for row in rows]
    counts = Counter(row["verdict"] for row in rows)
    if counts.keys() <= {"equal", "agrees"}:
        total = f"{counts['equal']} of {plural(len(rows), 'trial')} equal"
        if counts["agrees"]:
            total += f", {counts['agrees']} more agree"
        return [*lines, total]
    words = {"differs": "DIFFER", "missing": "MISSING", "not comparable": "not comparable"}
    total = ", ".join(
        f"{counts[verdict]} {word}" for verdict, word in words.items() if counts[verdict]
    )
    return [*lines, f"of {plural(len(rows), 'trial')} {total}"]


def replay_code(comparison: Mapping[str, Any]) -> int:
    """The exit code: 1 if a trial differs or is missing; else 4 if one could not be compared."""
    verdicts = {row["verdict"] for row in comparison["trials"]}
    if verdicts <= {"equal", "agrees"}:
        return 0
    return NOT_COMPARABLE if verdicts <= {"equal", "agrees", "not comparable"} else 1


def _verdict(row: Mapping[str, Any]) -> str:
    """How a trial that was trained again compares with its checkpoint."""
    after = f"after {plural(row['visits'], 'pass')}"
    difference = f"{row['difference']:.3g}"
    verdict = row["verdict"]
    if verdict == "equal":
        return f"equal bit for bit {after}"
    if verdict == "agrees":
        how = "on several slots" if row["wide"] else "in a fused pack"
        return f"agrees {after}, up to {difference} (trained {how}, which rounds otherwise)"
    if verdict == "not comparable":
        return f"not comparable {after}: {row['why']}"
    if verdict == "missing":
        return f"MISSING: {row['why']}"
    place = "processor, libraries and threads are those of the study"
    if row["elsewhere"]:
        others = "; ".join(row["elsewhere"])
        place = f"trained elsewhere, where sums may round otherwise ({others})"
    return f"DIFFERS by up to {difference} {after}: {row['why']}; {place}"
