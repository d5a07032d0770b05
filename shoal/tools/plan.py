"""What `shoal plan` does: what a study would take under each policy.

A short probe measures its trials; then the simulator runs the ordinary engine.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isnan, nan
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import TYPE_CHECKING, Any

from shoal import reporting
from shoal.backend.sim.sim import Sim
from shoal.backend.sim.units import SimulatedRecipe
from shoal.core.cluster import Slot, SlotId
from shoal.core.errors import StudyError
from shoal.core.event import Finished, Joined, Measured, Opened, Planned
from shoal.core.fold import fold
from shoal.core.masking import masked_config
from shoal.core.ports import Policy, Searcher
from shoal.core.profile import Profile
from shoal.core.state import State
from shoal.core.trial import Seconds, Trial, TrialId
from shoal.core.visits import ValidateEvery
from shoal.engine.journal import Journal
from shoal.engine.run import run
from shoal.options import Options, SearchArguments, check_used, check_widths
from shoal.policy.fifo import Fifo
from shoal.policy.registry import AUTO, CANDIDATES, POLICIES
from shoal.profile.overrides import Given, given_rows, tells_of_hops
from shoal.profile.pace import FORM
from shoal.profile.table import Table
from shoal.profile.widths import AT, WIDER
from shoal.study.auto import about_every, check_policy, is_auto, needs_hops, policy_of
from shoal.study.backends import Perform, at_holders, perform_here, slots_on_this_machine
from shoal.study.checks import check_validate_every
from shoal.study.head import Deciders, head
from shoal.study.schedules import plan_to_measure
from shoal.study.searcher import most_slots, searcher_of
from shoal.study.setup import Setup, data_of, epochs_of, with_recipe_options
from shoal.study.speeds import believer, profile_of
from shoal.tools.arguments import check_driven, open_study
from shoal.tools.outcome import errors, show, teller
from shoal.train.lane.blame import explained
from shoal.train.lane.checkpoints import Checkpoints
from shoal.train.lane.device import device_of
from shoal.train.recipe.unit import TrialError
from shoal.train.slot.setup import TrainerSetup
from shoal.train.slot.trainer import SlotTrainer

if TYPE_CHECKING:
    from shoal.study.study import Study
    from shoal.train.data.data import Data


@errors()
def plan(file: str, space: list[str] | None, seed: int, as_json: bool, **wanted: Any) -> None:
    """Predict how long a search would take. `wanted`: what else `forecast` takes, and options."""
    study = open_study(file, None, space, None, None, seed)
    check_driven(study.recipe, "plan")
    wanted["policies"] = tuple(wanted.pop("policy") or ())
    wanted["num_samples"] = wanted["num_samples"] or getattr(study.recipe, "num_samples", None)
    names = ("backend", "slots", "threads", "device")
    options = {name: wanted.pop(name) for name in names}
    with at_holders(wanted.pop("address"), teller(as_json)) as perform:
        figures = forecast(study, options=options, perform=perform, **wanted)
    show(figures, as_json, forecast_lines)


Row = dict[str, Any]
Figures = dict[str, Any]
Speeds = Profile | Given | None

# Seconds until slots of a new local Ray cluster have joined, as seen on small machines.
RAY_START: Seconds = 4.0


def forecast(
    study: "Study",
    policies: tuple[str, ...],
    num_samples: int | None,
    max_epochs: int | None,
    profile: str | Path | None,
    options: Mapping[str, Any],
    out: Path | None = None,
    widths: tuple[int, int] | None = None,
    perform: Perform = perform_here,
) -> Figures:
    """Predicted seconds of the study under each policy.

    Returns {"policies": [row …], "trials": …, "probe_s": …, "kinds": …, "guessed": …}.

    `policies`: names; without any, "auto" and what it chooses among. A row of "auto" also has what
    it follows at last, and why. Unless a profile says everything, each kind of trial is probed for
    at most 48 batches, and those of one form for a few seconds more, fused. `perform`: does the
    probe. `out`: a folder for the simulated journals and their reports. `widths`: the fewest and
    most slots of each trial. The probe is of one slot, so that what is gained by more is a guess
    (`guessed`) unless the profile has it.

    Raises:
        StudyError: as `Study.optimize`.
    """
    chosen = Options.of(**with_recipe_options(study.recipe, options))
    check_widths(widths, chosen)
    check_used(replace(chosen, device="auto"), widths)  # the probe's device counts
    epochs = epochs_of(study.recipe, max_epochs)
    arguments = SearchArguments(num_samples=num_samples, max_epochs=epochs, widths=widths)
    searcher = searcher_of(study.setup, arguments)
    widths = widths or (1, 1)
    names = policies or _usual(widths)
    for name in names:
        check_policy(name)
    speeds = profile_of(profile)
    data = data_of(study.recipe)
    check_validate_every(study.setup, chosen, data, most_slots(searcher, ()))
    every = about_every(study.setup, chosen, data)
    seed = study.setup.seed
    hops = needs_hops(data, tells_of_hops(speeds))
    rules = {name: policy_of(name, chosen.fuse, seed, every, hops) for name in names}

    begin = perf_counter()
    state = all_trials(searcher, data)
    believe = believer(speeds)
    if speeds is None or isinstance(speeds, Given):
        fuse = chosen.fuse and any(is_auto(name) or "pack" in name for name in names)
        state = perform(
            probed,
            study.setup,
            data,
            chosen,
            state,
            fuse,
            device=chosen.device,
            threads=chosen.threads,
        )
        if widths[1] > 1:
            state = _with_wider(state, believe(state), widths[1])
        believe = _Frozen(state, believe)
    took = perf_counter() - begin

    truth = believe(state)
    rows = given_rows(speeds) or ()
    knows_widths = any(name.startswith(AT) for row in rows for name in row["figures"])
    common = _Forecast(study.setup, searcher, chosen, data, truth, every, out)
    return {
        "policies": [common.row(name, rule) for name, rule in rules.items()],
        "trials": len(state.known),
        "probe_s": took,
        "kinds": len(state.figures),
        "guessed": widths[1] > 1 and not knows_widths,
    }


def _usual(widths: tuple[int, int]) -> tuple[str, ...]:
    """The policies that are compared if nobody names any, for trials of these widths."""
    fewest, most = widths
    names = [AUTO]
    if fewest == 1:
        names += [name for name in CANDIDATES if not POLICIES[name].wide]
        names.append("hop-lrw")
    if most > 1:
        names += [name for name in CANDIDATES if POLICIES[name].wide]
    return tuple(names)


def _with_wider(state: State, truth: Profile, most: int) -> State:
    """The state with the rates of wider lanes that are taken as true, as if they were measured.

    A simulation measures none. Without them no policy that climbs would go past two slots.
    """
    figures = {**state.figures}
    for trial, name in state.signature.items():
        if AT + str(most) not in figures[name]:
            curve = enumerate(truth.curve(trial, most), 1)
            wider = {f"{AT}{width}": rate for width, rate in curve if width > 1}
            figures[name] = {**wider, **figures[name]}
    return replace(state, figures=figures)


class _Frozen:
    """A believer that reads the probe alone, whatever a simulation measures."""

    def __init__(self, probe: State, believer: Callable[[State], Profile]) -> None:
        self.probe = probe
        self.believer = believer

    def __call__(self, state: State) -> Profile:
        known = {**self.probe.known, **state.known}
        return self.believer(replace(self.probe, known=known))


@dataclass(frozen=True, slots=True)
class _Forecast:
    """What the simulations of all policies have in common."""

    setup: Setup
    searcher: Searcher[Any]
    options: Options
    data: "Data"
    truth: Profile  # of what the probe found
    validate_every: ValidateEvery  # when trials are evaluated
    out: Path | None  # a folder for journals and reports

    def row(self, name: str, rule: Policy[Any]) -> Row:
        """The figures of one policy."""
        span = _Span()
        state = self._simulated(name, rule, span)
        row: Row = {
            "policy": name,
            "slots": slots_on_this_machine(self.options),
            "seconds": span.last,
            "training_s": span.last - span.first,
        }
        if is_auto(name):
            choice = state.memory["policy"]
            row["follows"] = choice["follows"]
            row["why"] = choice["why"]
        if self.out is not None:
            folder = self.out / name
            page = reporting.write(folder / "journal.jsonl", folder / "report.html")
            row["report"] = str(page)
        return row

    def _simulated(self, name: str, rule: Policy[Any], span: "_Span") -> State:
        """The state at the end of the study under this policy."""
        decider = name if is_auto(name) else rule  # the automatic policy goes by its name
        described = {
            **head(self.setup, self.data, Deciders(self.searcher, decider, self.options)),
            "simulated": True,
            "study": f"plan of {type(self.setup.recipe).__name__} under {name}",
        }
        count = slots_on_this_machine(self.options)
        slots = tuple(slot(number, self.data, count) for number in range(count))
        simulator = Sim(
            self.truth,
            script=[(RAY_START if self.options.backend == "ray" else 0.0, Joined(slots))],
            shards=self.data.sizes,
            seed=self.setup.seed,
            checkpoint_every=self.options.checkpoint_every,
            recipe=SimulatedRecipe(validate_every=self.validate_every),
        )
        journal = self._journal(name)
        opened = Opened(1, self.data.sizes, described)
        journal.append(0.0, opened)
        begin = fold(State(), [opened])
        state = run(
            self.searcher, rule, simulator, lambda state: self.truth, journal, begin, watch=[span]
        )
        journal.close()
        return state

    def _journal(self, name: str) -> Journal:
        """A new journal in the folder for this policy; without such a folder one in memory."""
        if self.out is None:
            return Journal(None)
        path = self.out / name / "journal.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        return Journal(path)


class _Span:
    """Notes when the first plan was made and when the last trial was done."""

    def __init__(self) -> None:
        self.first: Seconds = nan
        self.last: Seconds = 0.0

    def __call__(self, now: Seconds, entries: tuple[Any, ...], state: State) -> None:
        for entry in entries:
            if isinstance(entry, Planned) and isnan(self.first):
                self.first = now
            if isinstance(entry, Finished):
                self.last = now


# -- for people ----------------------------------------------------------------------------------


def forecast_lines(figures: Figures) -> list[str]:
    """The forecast in words, the fastest policy first."""
    trials = f"{figures['trials']} trials of {figures['kinds']} kinds"
    lines = [f"{trials}, probed in {figures['probe_s']:.1f} s", ""]
    lines.append(f"{'policy':12} {'slots':>5} {'seconds':>9}")
    for row in sorted(figures["policies"], key=lambda row: row["seconds"]):
        columns = f"{row['policy']:12} {row['slots']:5d} {row['seconds']:9.1f}"
        lines.append(f"{columns}   {row.get('report', '')}".rstrip())
    lines.append("")
    for row in figures["policies"]:
        if "why" in row:
            lines.append(f"{row['policy']}: {row['follows']}, because {row['why']}")
    if figures["guessed"]:
        lines.append("")
        lines.append(
            f"speeds at widths above 1 are guessed (width ** {WIDER}): "
            "`shoal profile` measures them, for --profile"
        )
    return lines


# A signature, and what was measured for it by name.
Measurement = tuple[str, Mapping[str, Any]]

# At most so many trials of one form are probed in fused steps.
MOST_TOGETHER = 32

# About how long the fused probe of a form may take.
LONGEST: Seconds = 5.0

# Steps that it takes of each trial: six alone and six in each width, rarely more than four widths.
STEPS = 30


def all_trials(searcher: Searcher[Any], data: "Data") -> State:
    """Every trial that the searcher would submit, found by simulating it with made-up speeds."""
    sim = Sim(Table().of, [slot(0, data)], shards=data.sizes)
    begin = fold(State(), [Opened(1, data.sizes)])
    end = run(searcher, Fifo(), sim, Table().believe, Journal(), begin)
    return replace(end, figures={}, signature={})


def slot(number: int, data: "Data", slots: int = 1) -> Slot:
    """Slot `number` of so many, with every `slots`-th shard."""
    name = f"slot{number}" if slots > 1 else "local"
    return Slot(SlotId(name), shards=frozenset(data.shards[number::slots]))


def probed(setup: "Setup", data: "Data", options: Options, state: State, fuse: bool) -> State:
    """The state with what was measured of its trials, on one slot.

    `fuse`: also what steps of several trials take at once.

    Raises:
        StudyError: a trial cannot be trained.
    """
    with TemporaryDirectory() as folder:
        trainer = _trainer(setup, options, data, folder)
        measurements = {trial.id: _probed(trainer, trial) for trial in state.known.values()}
        events = _entries(measurements)
        if fuse:
            for pack in _packs(state, measurements):
                events += _entries(trainer.probe_packs(pack))
        return fold(state, events)


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
    """The trainer of a slot in this process. `folder`: where its checkpoints go."""
    slot_setup = TrainerSetup(
        Options(threads=options.threads),
        seed=setup.seed,
        run=1,
        device=device_of(options.device),
        metric=setup.metric,
    )
    recipe = plan_to_measure(setup.recipe)
    return SlotTrainer(recipe, data, Checkpoints(folder, 1), slot_setup)


def _entries(measurements: Mapping[TrialId, Measurement]) -> list[Measured]:
    """The measurements as events of a journal."""
    return [Measured(trial, *measurement) for trial, measurement in measurements.items()]


def _packs(state: State, measurements: Mapping[TrialId, Measurement]) -> Iterable[Sequence[Trial]]:
    """The trials of each form, as many as can be probed in the time."""
    forms: dict[str, list[Trial]] = {}
    slowest: dict[str, Seconds] = {}
    for trial, (signature, figures) in measurements.items():
        form = signature[:FORM]
        forms.setdefault(form, []).append(state.known[trial])
        slowest[form] = max(slowest.get(form, 0.0), figures.get("step", 0.0))
    for form, trials in forms.items():
        in_time = int(LONGEST / max(1e-9, STEPS * slowest[form]))
        yield trials[: max(2, min(MOST_TOGETHER, in_time))]
