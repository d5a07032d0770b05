"""A run of a study from top to bottom: open, restore, choose, check, begin, loop, finish.

`train` has the phases in their order, and each is a function below it. Nothing is written into the
folder before all is checked: what is refused leaves a study as it was.
"""

import gc
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from shoal.callbacks.logger import listed, loggers_of
from shoal.core.errors import StudyError
from shoal.core.event import Entry, Left, Remembered, Submitted
from shoal.core.fold import fold
from shoal.core.ports import Policy
from shoal.core.profile import Profile
from shoal.core.state import State
from shoal.core.trial import Seconds, Trial, TrialId
from shoal.engine.files import whole
from shoal.engine.journal import Journal, Line
from shoal.engine.run import reopened, run
from shoal.engine.snapshot import History, runs_in
from shoal.options import SearchArguments
from shoal.profile.overrides import Given, given_rows, tells_of_hops
from shoal.reporting.format import plural
from shoal.reporting.progress import Progress
from shoal.study import control
from shoal.study.auto import hops, is_auto, study_policy
from shoal.study.backends import Start, backend, check_place, check_slots, survey_for
from shoal.study.callback_handler import CallbackHandler, check_model_arguments, checked_callbacks
from shoal.study.checkpoint_retention import Retention
from shoal.study.checks import check_by_rehearsal, check_recipe, check_search
from shoal.study.code.mark import with_places_mark
from shoal.study.code.recipe_store import save
from shoal.study.folder import Folder, TrialsFailed, last_head
from shoal.study.head import (
    Deciders,
    Head,
    check_same_study,
    head,
    refusing_foreign_head,
    trained_by_other_code,
    warn_of_former_code,
)
from shoal.study.holder import running_mark, was_cut_off
from shoal.study.inbox import Inbox, InboxBackend, stop_signals
from shoal.study.schedules import SCHEDULE, check_schedules, plan_schedules
from shoal.study.search_extension import (
    check_extended,
    check_scored,
    extended_trials,
    failed_trials,
    remove_tracebacks,
    retried_trials,
    with_history,
)
from shoal.study.searcher import (
    check_function_search,
    end_beyond_rungs,
    per_slot,
    space_of,
    usual_priority,
    widths_of,
    with_own_draws,
)
from shoal.study.setup import (
    Setup,
    alone_in_process,
    data_of,
    each_recipe,
    explain_missing_data,
    pause_on_failure,
    trains_itself,
)
from shoal.study.slurm_job import RunPlace, TimeLimit, run_place
from shoal.study.speeds import believer, profile_of
from shoal.study.watchers import (
    DamageWarner,
    IdleWarner,
    Log,
    MetricCheck,
    RepeatWarner,
    SlotBoard,
    SnapshotWriter,
    display,
    function_enders,
    optuna_log,
)
from shoal.train.data.data import Data
from shoal.train.lane.device import device_of
from shoal.train.recipe.guard import forget_shared


@dataclass(frozen=True, slots=True)
class Request:
    """What a run is asked to do; see `Study.optimize`."""

    deciders: Deciders  # the policy as the user named it
    arguments: SearchArguments
    study: Any  # what callbacks are given


def train(setup: Setup, request: Request) -> None:
    """Train what is asked for, until it is done or told to stop; see `Study.optimize`."""
    with ExitStack() as stack:
        place = _open(setup, request, stack)
        callbacks = (
            *checked_callbacks(request.arguments.callbacks),
            *checked_callbacks(loggers_of(request.arguments.loggers)),
        )
        speeds = profile_of(request.arguments.profile)
        _check_before_data(setup, request.deciders, place)
        displays = _displays(setup, request)
        past = _restore(setup, request, place)
        choice = _choose(setup, request, place, past, callbacks, speeds)
        now = _check(setup, request, past, choice)
        begun = _begin(setup, request, past, choice, now)
        start = _start(choice, past.data, begun, place, was_cut_off(setup.folder))
        stack.enter_context(running_mark(setup.folder))
        state = _loop(setup, request, choice, begun, start, displays, stack)
    warn_of_former_code(begun.of_other_code, start.state, state)
    _check_failed(state)


# -- open and restore ------------------------------------------------------------------------------


def _open(setup: Setup, request: Request, stack: ExitStack) -> RunPlace:
    """Have the process and the folder for this run alone; returns where the run is started."""
    _ = setup.folder.checkpoints  # if they are refused, that is said before anything else
    stack.enter_context(alone_in_process(setup.folder))
    stack.callback(forget_shared)
    setup.folder.make()
    stack.enter_context(pause_on_failure(setup.folder))
    stack.enter_context(setup.folder.lock())
    place = run_place(request.deciders.options, setup.folder.path)
    stack.callback(place.close)
    return place


def _check_before_data(setup: Setup, deciders: Deciders, place: RunPlace) -> None:
    """Refuse what can be refused before the data are read, which may take long."""
    if deciders.options.backend == "local":
        device_of(deciders.options.device)
    check_slots(deciders.options, place.room(threads=1))
    if trains_itself(setup):
        check_function_search(setup, deciders.searcher)


def _displays(setup: Setup, request: Request) -> list[Progress]:
    """The live display, if wanted; of a new study of recipes it says what comes first."""
    displays = display(request.arguments.progress, setup)
    if not setup.folder.size() and not trains_itself(setup):
        for each in displays:
            each.tell(0.0, "Reading the data and checking the recipe with one batch …")
    return displays


@dataclass(frozen=True, slots=True)
class _Past:
    """The study before the run. `head`: of the run before; empty: there was none."""

    history: History
    head: Head
    data: Data

    @property
    def state(self) -> State:
        """The study's state, as the journal has it."""
        return self.history.state


def _restore(setup: Setup, request: Request, place: RunPlace) -> _Past:
    """Read the journal and the data."""
    history = setup.folder.past()
    before = last_head(history.runs)
    survey = survey_for(request.deciders.options, bool(history.runs), place)
    with explain_missing_data(before):
        data = data_of(setup.recipe, survey)
    return _Past(history, before, data)


# -- choose ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Choice:
    """Who decides in the run, and who follows it."""

    deciders: Deciders  # as the journal is to describe them
    policy: Policy[Any]
    speeds: Profile | Given | None  # speeds that the user knows
    longest: int | None  # epochs of the longest trials, if known
    callbacks: tuple[Any, ...]
    takes_models: bool  # callbacks take the models of evaluated epochs


def _choose(
    setup: Setup,
    request: Request,
    place: RunPlace,
    past: _Past,
    callbacks: tuple[Any, ...],
    speeds: Profile | Given | None,
) -> _Choice:
    """Make the searcher and the policy fit this study, its data and its slots."""
    deciders, options = request.deciders, request.deciders.options
    policy = study_policy(setup, deciders.policy, options, past.data, tells_of_hops(speeds))
    with refusing_foreign_head(past.head):
        longest = plan_schedules(setup, deciders.searcher, past.head, past.state)
        searcher = per_slot(deciders.searcher, policy, place.with_room(options))
        if past.head:
            searcher = with_history(searcher, past.head["searcher"], past.state)
    searcher = with_own_draws(setup, searcher)
    described = deciders.policy if is_auto(deciders.policy) else policy
    chosen = Deciders(searcher, described, options)
    models = check_model_arguments(callbacks, setup, options, len(past.data.shards))
    return _Choice(chosen, policy, speeds, longest, callbacks, models)


# -- check -----------------------------------------------------------------------------------------


def _check(setup: Setup, request: Request, past: _Past, choice: _Choice) -> dict[str, Any]:
    """Refuse what cannot be; returns the head by which the journal is to describe the run."""
    options, state, data = choice.deciders.options, past.state, past.data
    check_search(setup, request.deciders.searcher, choice.policy, options, data, state)
    check_scored(setup.metric, state)
    with refusing_foreign_head(past.head):
        described = {
            **head(setup, data, choice.deciders, past.head),
            **_head_of_arguments(request.arguments, choice.speeds),
        }
        now = with_places_mark(described, setup.folder.path)
        check_same_study(past.head, now, state)
    check_place(setup, state)
    _check_shards(state, data)
    if not state.known or past.head.get("space") != now["space"]:
        space = space_of(choice.deciders.searcher)
        parameters = check_recipe(setup, space)
        if not past.head:
            for part, part_data, part_space in each_recipe(setup, data, space):
                check_by_rehearsal(part, part_space, part_data or data, options, parameters)
    with refusing_foreign_head(past.head):
        now[SCHEDULE] = check_schedules(setup, choice.longest, past.head, state)
    return now


def _head_of_arguments(arguments: SearchArguments, speeds: Profile | Given | None) -> Head:
    """What the head says of speeds that the user gave, and of loggers by name."""
    file = None
    if isinstance(arguments.profile, (str, Path)):
        file = str(whole(arguments.profile))
    loggers = [each for each in listed(arguments.loggers) if isinstance(each, str)]
    return {"profile": file, "given": given_rows(speeds), "loggers": loggers}


def _check_shards(state: State, data: Data) -> None:
    """Raise StudyError if trials train shards that the data does not have."""
    for name, trial in state.known.items():
        missing = sorted(trial.shards - data.sizes.keys())
        if missing:
            raise StudyError(
                f"the journal says that trial {name} trains shard {missing[0]!r}, and the data has "
                f"{', '.join(sorted(data.sizes)[:3])}{', …' * (len(data.sizes) > 3)} only: take a "
                "copy that is as Shoal wrote it, or begin a new study with another storage="
            )


# -- begin -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Begun:
    """A run that the journal has. `entries`: with which it begins."""

    history: History
    entries: list[Entry]
    logs: list[Any]  # watchers that write the study down in other forms
    of_other_code: set[TrialId]  # trials that other code than the recipe's trained


def _begin(
    setup: Setup, request: Request, past: _Past, choice: _Choice, now: dict[str, Any]
) -> _Begun:
    """Write down what people asked for meanwhile, then that the run begins, with which trials."""
    searcher, folder = choice.deciders.searcher, setup.folder
    logs = optuna_log(setup, request.arguments.optuna_log, searcher)
    history = past.history
    if control.take_notes(setup):
        history = folder.past()
    state = history.state
    retried = retried_trials(setup, state) if request.arguments.retry_failed else ()
    with_work = fold(state, [Submitted(trial) for trial in retried])
    extended = extended_trials(searcher, history.runs, with_work)
    check_extended(setup, state, extended, now[SCHEDULE])
    now["recipe"] = {**now["recipe"], **save(folder, setup.recipe)}
    entries = _first_entries(folder, state, (*retried, *extended), past, now)
    history = _append(folder, history, entries)
    remove_tracebacks(setup, retried)
    if not past.head and control.take_notes(setup):  # notes that came before the first run
        history = folder.past()
    of_other_code = trained_by_other_code(history.runs, folder.lines, now["recipe"])
    return _Begun(history, entries, logs, of_other_code)


def _first_entries(
    folder: Folder, state: State, more: Sequence[Trial], past: _Past, now: Head
) -> list[Entry]:
    """The entries with which the run begins. A policy remembers nothing of another policy.

    `more`: trials that are to train longer than they were, or are tried again.
    """
    lost = _lost_slots(folder, past.head, state)
    submitted: list[Entry] = [Submitted(trial) for trial in more]
    opened, *fallen = reopened(fold(state, [*lost, *submitted]), past.data.sizes, now)
    entries = [*lost, opened, *submitted, *fallen]
    if past.head and past.head.get("policy") != now["policy"]:
        entries.append(Remembered("policy", None))
    return entries


def _lost_slots(folder: Folder, before: Head, state: State) -> list[Entry]:
    """The loss of slots whose process ended in the former run, as entries.

    The slot of the local backend died with it. A trial that ends its process each time, such as by
    a fault in C code, is set aside like one that ends the processes of slots.
    """
    if not was_cut_off(folder) or before.get("backend") != "local" or not state.gangs:
        return []
    slots = frozenset(slot for gang in state.gangs for slot in gang.slots)
    return [Left(slots, died=True, why="the run's process ended")]


def _append(folder: Folder, history: History, entries: Sequence[Entry]) -> History:
    """Append the entries to the journal; returns the history with them."""
    lines = [Line(history.time, entry) for entry in entries]
    journal = Journal(folder.journal)
    for line in lines:
        journal.append(*line)
    journal.close()
    runs = [*history.runs, *runs_in(lines)]
    return history._replace(runs=runs, state=fold(history.state, entries))


# -- loop ------------------------------------------------------------------------------------------


def _start(choice: _Choice, data: Data, begun: _Begun, place: RunPlace, careful: bool) -> Start:
    """What the backend is made from beside options. `careful`: see `Start`."""
    searcher, speeds = choice.deciders.searcher, choice.speeds
    return Start(
        data,
        begun.history.state,
        begun.history.time,
        None if isinstance(speeds, Given) else speeds,  # one that leaves nothing to be measured
        whole=not hops(choice.policy),
        careful=careful,
        place=place,
        keep_evaluated=choice.takes_models,
        priority=usual_priority(searcher),
        widths=widths_of(searcher),
        believe=believer(speeds),
    )


def _loop(
    setup: Setup,
    request: Request,
    choice: _Choice,
    begun: _Begun,
    start: Start,
    shown: Sequence[Progress],
    stack: ExitStack,
) -> State:
    """Decide and train until nothing is left, or somebody says stop; returns the last state.

    What it opens is closed by the `stack`, also after an error.
    """
    # The collector need not look at torch's and other modules' objects again and again. With
    # thousands of tiny trials that takes a twentieth of the time.
    gc.freeze()
    stack.callback(gc.unfreeze)
    searcher, options = choice.deciders.searcher, choice.deciders.options
    folder, state, allocation = setup.folder, start.state, start.place.allocation

    # The backend; what it waits for is shown, and logged.
    furthest = end_beyond_rungs(searcher)
    for each in shown:
        each.pause_at_rungs(furthest)
    displays: list[Any] = [Log(folder.log), *shown]

    def tell(now: Seconds, text: str) -> None:
        for each in displays:
            each.tell(now, text)

    if allocation is not None:
        tell(start.since, start.place.text())
    wired = backend(setup, options, replace(start, tell=tell))
    stack.callback(wired.close)

    # Who follows the run and decides nothing.
    retention = Retention(wired.vault, setup.aim, options.max_checkpoint_gb)
    retention.restore(begun.history, folder.lines)
    watchers: list[Any] = [
        retention,
        DamageWarner(),
        IdleWarner(),
        MetricCheck(setup.aim),
        RepeatWarner(state.known.values()),
        SlotBoard(folder.board, wired.backend),
        *function_enders(setup, wired.backend),
        *control.slot_resizers(wired.backend),
        *wired.watchers,
        *displays,
        *begun.logs,
    ]
    for watcher in watchers:
        if hasattr(watcher, "close"):
            stack.callback(watcher.close)
    journal = Journal(folder.journal, wired.grouping)
    stack.callback(journal.close)

    # How people reach it: signals, notes in the inbox, callbacks.
    stack.enter_context(stop_signals(wired.backend.tell, allocation is not None))
    reachable = InboxBackend(wired.backend, Inbox(folder.path), control.note_reader(setup), state)
    watchers.append(stack.enter_context(reachable))
    if choice.callbacks:
        callbacks = CallbackHandler(
            request.study, choice.callbacks, wired, reachable.look, furthest
        )
        stack.callback(callbacks.close)
        callbacks.start(begun.entries, state)
        # They come first: retention must not have deleted the states that they are told of.
        watchers.insert(0, callbacks)

    limit = TimeLimit(allocation, options.stop_before, state, wired.backend.tell)
    snapshots = SnapshotWriter(folder.snapshots, journal, begun.history, retention.learnt)
    timeout = request.arguments.timeout
    deadline = None if timeout is None else start.since + timeout
    with limit:
        return run(
            searcher,
            choice.policy,
            reachable,
            believer(choice.speeds),
            journal,
            state,
            deadline,
            [*watchers, limit, snapshots],
        )
    return limit.ended(journal, wired.backend.now())


# -- finish ----------------------------------------------------------------------------------------


def _check_failed(state: State) -> None:
    """Raise TrialsFailed if there are trials, and every one of them failed."""
    failed = failed_trials(state)
    if failed and len(failed) == len(state.known):
        reasons = Counter(state.ended[trial].partition(": ")[2] for trial in failed)
        first = "; ".join(
            f"{why} ({plural(count, 'trial')})" for why, count in reasons.most_common(3)
        )
        raise TrialsFailed(
            f"all of {len(failed)} trials failed: {first}. Mend the cause, and try them again with "
            "retry_failed=True"
        )
