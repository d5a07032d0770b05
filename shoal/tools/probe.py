"""What `shoal plan` tries before it simulates: which trials there will be, and their speed.

And what `shoal check` tries.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from shoal.backend.sim.sim import Sim
from shoal.core.cluster import Slot, SlotId
from shoal.core.event import Measured, Opened
from shoal.core.fold import fold
from shoal.core.ports import Searcher
from shoal.core.state import State
from shoal.core.trial import Seconds, Trial, TrialId
from shoal.engine.journal import Journal
from shoal.engine.run import run
from shoal.policy.fifo import Fifo
from shoal.profile.pace import FORM
from shoal.profile.table import Table
from shoal.study.folder import StudyError
from shoal.study.options import Options
from shoal.study.parts.planned import plan_to_measure
from shoal.study.setup import (
    as_space,
    data_of,
    first_config,
    named_recipes,
    unlike_config,
)
from shoal.train.lane.blame import explained
from shoal.train.lane.checkpoint import Checkpoints
from shoal.train.lane.device import device_of
from shoal.train.recipe.several.recipes import Recipes, own_space
from shoal.train.recipe.unit import TrialError
from shoal.train.slot.setup import StationSetup
from shoal.train.slot.station import Station
from shoal.train.tools.check import check_recipe

if TYPE_CHECKING:
    from shoal.study.study import Study
    from shoal.train.data.data import Data
    from shoal.train.recipe.recipe import Recipe

Space = Mapping[str, Any]

# A signature, and what was measured for it by name.
Measurement = tuple[str, Mapping[str, Any]]

# At most so many trials of one form are probed in fused steps.
MOST_TOGETHER = 32
# About how long that may take for each form.
LONGEST: Seconds = 5.0
# Steps of each trial that such a probe takes: six alone and six in each width, rarely more than
# four widths.
STEPS = 30


def all_trials(searcher: Searcher[Any], data: "Data") -> State:
    """Every trial that the searcher would submit, found by simulating it with made-up speeds."""
    sim = Sim(Table().of, [slot(0, data)], shards=data.sizes)
    begin = fold(State(), [Opened(1, data.sizes)])
    end = run(searcher, Fifo(), sim, Table().believe, Journal(), begin)
    return replace(end, figures={}, signature={})


def slot(number: int, data: "Data", slots: int = 1) -> Slot:
    """Slot `number` of so many, with every `slots`-th shard."""
    name = "local"
    if slots > 1:
        name = f"slot{number}"
    return Slot(SlotId(name), shards=frozenset(data.shards[number::slots]))


def probed(
    study: "Study", options: Options, data: "Data", state: State, fuse: bool
) -> State:
    """The state with what was measured of its trials, on one slot.

    `fuse`: also what steps of several trials take at once.

    Raises:
        StudyError: a trial cannot be trained.
    """
    with TemporaryDirectory() as folder:
        station = _station(study, options, data, folder)
        found = {trial.id: _probed(station, trial) for trial in state.known.values()}
        told = _entries(found)
        if fuse:
            for some in _packs(state, found):
                told += _entries(station.probe_packs(some))
        return fold(state, told)


def _probed(station: Station, trial: Trial) -> Measurement:
    """What was measured of the trial.

    Raises:
        StudyError: the recipe raises when it trains the trial, or memory runs out.
    """
    try:
        return station.probe(trial)
    except TrialError as error:
        raise StudyError(
            f"trial {trial.id} cannot be trained, so its speed stays unknown; its configuration is "
            f"{dict(trial.config)}: {explained(error)}; mend the recipe, or leave this "
            "configuration out of the space"
        ) from error


def _station(study: "Study", options: Options, data: "Data", folder: str) -> Station:
    """A slot of this process. `folder`: where its checkpoints go."""
    setup = StationSetup(
        seed=study.setup.seed,
        run=1,
        device=device_of(options.device),
        threads=options.threads,
        metric=study.metric,
    )
    recipe = plan_to_measure(study.recipe)
    return Station(recipe, data, Checkpoints(folder, 1), setup)


def _entries(found: Mapping[TrialId, Measurement]) -> list[Measured]:
    """What was measured of each trial, as a journal has it."""
    return [Measured(trial, *measured) for trial, measured in found.items()]


def _packs(
    state: State, found: Mapping[TrialId, Measurement]
) -> Iterable[Sequence[Trial]]:
    """The trials of each form, as many as can be probed in the time."""
    forms: dict[str, list[Trial]] = {}
    slowest: dict[str, Seconds] = {}
    for trial, (signature, figures) in found.items():
        form = signature[:FORM]
        forms.setdefault(form, []).append(state.known[trial])
        slowest[form] = max(slowest.get(form, 0.0), figures.get("step", 0.0))
    for form, some in forms.items():
        yield some[: _most(slowest[form])]


def _most(step: Seconds) -> int:
    """How many trials are probed together, if a step of the slowest takes so long."""
    in_time = int(LONGEST / max(1e-9, STEPS * step))
    return max(2, min(MOST_TOGETHER, in_time))


def checked(recipe: "Recipe", space: Space | None, device: str) -> dict[str, Any]:
    """What `check_recipe` finds; of recipes by name, each is checked by itself.

    Raises:
        StudyError: the space names no recipe, or the data cannot be read.
    """
    if not isinstance(recipe, Recipes):
        return _checked(recipe, space, device)
    domains = as_space(space) or {}
    steps = 0
    checks: list[tuple[str, bool, str]] = []
    for name in named_recipes(recipe, domains):
        found = _checked(recipe.parts[name], own_space(domains, name), device)
        steps += found["steps"]
        checks += [(f"{name}: {each}", *rest) for each, *rest in found["checks"]]
    return {"ok": all(each[1] for each in checks), "steps": steps, "checks": checks}


def _checked(recipe: "Recipe", space: Space | None, device: str) -> dict[str, Any]:
    """What the check of one recipe finds."""
    recipe = plan_to_measure(recipe)
    config = first_config(space)
    neighbour = unlike_config(space, config)
    where = device_of(device)
    return check_recipe(
        recipe, data_of(recipe), config, neighbour=neighbour, device=where
    )
