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
from shoal.core.masking import masked_config
from shoal.core.ports import Searcher
from shoal.core.state import State
from shoal.core.trial import Seconds, Trial, TrialId
from shoal.engine.journal import Journal
from shoal.engine.run import run
from shoal.options import Options
from shoal.policy.fifo import Fifo
from shoal.profile.pace import FORM
from shoal.profile.table import Table
from shoal.study.backends import Perform, perform_here
from shoal.study.checks import check_by_rehearsal, check_metric, first_config, unlike_config
from shoal.study.checks import check_recipe as check_configured
from shoal.study.folder import StudyError
from shoal.study.schedules import plan_to_measure
from shoal.study.setup import data_of, each_recipe
from shoal.train.lane.blame import explained
from shoal.train.lane.checkpoints import Checkpoints
from shoal.train.lane.device import device_of
from shoal.train.recipe.unit import TrialError
from shoal.train.slot.setup import TrainerSetup
from shoal.train.slot.trainer import SlotTrainer
from shoal.train.tools.check import check_recipe

if TYPE_CHECKING:
    from shoal.study.setup import Setup
    from shoal.study.study import Study
    from shoal.train.data.data import Data

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


def probed(setup: "Setup", data: "Data", options: Options, state: State, fuse: bool) -> State:
    """The state with what was measured of its trials, on one slot.

    `fuse`: also what steps of several trials take at once.

    Raises:
        StudyError: a trial cannot be trained.
    """
    with TemporaryDirectory() as folder:
        trainer = _trainer(setup, options, data, folder)
        found = {trial.id: _probed(trainer, trial) for trial in state.known.values()}
        told = _entries(found)
        if fuse:
            for some in _packs(state, found):
                told += _entries(trainer.probe_packs(some))
        return fold(state, told)


def _probed(trainer: SlotTrainer, trial: Trial) -> Measurement:
    """What was measured of the trial.

    Raises:
        StudyError: the recipe raises when it trains the trial, or memory runs out.
    """
    try:
        return trainer.probe(trial)
    except TrialError as error:
        raise StudyError(
            f"trial {trial.id} cannot be trained, so its speed stays unknown; its configuration is "
            f"{masked_config(trial.config)}: {explained(error)}; mend the recipe, or leave this "
            "configuration out of the space"
        ) from error


def _trainer(setup: "Setup", options: Options, data: "Data", folder: str) -> SlotTrainer:
    """A slot of this process. `folder`: where its checkpoints go."""
    slot = TrainerSetup(
        Options(threads=options.threads),
        seed=setup.seed,
        run=1,
        device=device_of(options.device),
        metric=setup.metric,
    )
    recipe = plan_to_measure(setup.recipe)
    return SlotTrainer(recipe, data, Checkpoints(folder, 1), slot)


def _entries(found: Mapping[TrialId, Measurement]) -> list[Measured]:
    """What was measured of each trial, as a journal has it."""
    return [Measured(trial, *measured) for trial, measured in found.items()]


def _packs(state: State, found: Mapping[TrialId, Measurement]) -> Iterable[Sequence[Trial]]:
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
    for own, _, space in each_recipe(setup, None, setup.space or {}):
        prefix = "" if own is setup else f"{own.recipe.recipe_name}: "
        own = replace(own, source=plan_to_measure(own.recipe))
        data = data_of(own.recipe)
        found = perform(_checked, own, data, space or {}, device, device=device)
        steps += found["steps"]
        checks += [(prefix + name, *rest) for name, *rest in found["checks"]]
        tried.append(prefix + found["tried"])
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
    found = check_recipe(setup.recipe, data, config, setup.seed, neighbour, device_of(device))
    begins = ("begins", True, "as shoal run checks it before the first trial")
    return {**found, "checks": [begins, *found["checks"]], "tried": tried}
