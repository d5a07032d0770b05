"""A run of a study: it is checked, written down, given a backend, and carried out."""

import gc
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from shoal.callbacks.named import listed, loggers_of
from shoal.core.event import Entry, Left, Remembered, Submitted
from shoal.core.fold import fold
from shoal.core.ports import Policy, Searcher
from shoal.core.profile import Profile
from shoal.core.state import State
from shoal.core.trial import Seconds, Trial, TrialId
from shoal.engine.files import whole
from shoal.engine.journal import Journal, Line
from shoal.engine.run import reopened, run
from shoal.engine.snapshot import History, runs_in
from shoal.profile.given import Given, given_rows, tells_of_hops
from shoal.reporting.format import plural
from shoal.search.registry import nested
from shoal.study import control
from shoal.study.auto import (
    about_every,
    check_foretells,
    check_place_of_data,
    function_policy,
    hops,
    is_auto,
    needs_hops,
    over_placed,
    policy_of,
    with_barrier,
    with_levels,
)
from shoal.study.backends import Start, WiredBackend, backend, check_place, check_slots, survey_for
from shoal.study.callback_handler import CallbackHandler, check_model_arguments, checked_callbacks
from shoal.study.checkpoint_retention import Retention
from shoal.study.checks import (
    check_by_rehearsal,
    check_metric,
    check_recipe,
    check_validate_every,
    try_objectives,
)
from shoal.study.code.mark import with_places_mark
from shoal.study.code.recipe_store import save
from shoal.study.control import note_reader, slot_resizers
from shoal.study.folder import Folder, StudyError, TrialsFailed, last_head
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
    with_work_again,
)
from shoal.study.searcher import (
    check_function_search,
    end_beyond_rungs,
    most_slots,
    per_slot,
    usual_priority,
    widths_of,
    with_own_draws,
)
from shoal.study.setup import (
    Setup,
    Space,
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
from shoal.train.recipe.guard import forget_shared
from shoal.train.recipe.shard import ShardRecipe

# -- the run -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Request:
    """What a run is asked to do; see `Study.optimize`."""

    deciders: Deciders  # the policy as the user named it
    timeout: float | None
    profile: Profile | str | Path | None
    progress: bool = True
    optuna_log: bool | str | Path = False
    study: Any = None  # what callbacks are given
    callbacks: Sequence[Any] = ()
    loggers: Sequence[Any] = ()
    retry_failed: bool = False


@dataclass(frozen=True, slots=True)
class _Ready:
    """A run that is checked and written down."""

    deciders: Deciders
    rule: Policy[Any]
    given: Profile | Given | None
    past: History
    start: Start
    logs: list[Any]  # watchers that write the study down in other forms
    opening: list[Entry]  # with which the run begins
    callbacks: tuple[Any, ...]
    former: set[TrialId]  # that other code than the recipe's trained


def train(setup: Setup, asked: Request) -> None:
    """Train what is asked for, until it is done or told to stop; see `Study.optimize`."""
    with ExitStack() as open_:
        # If they are refused, that is said before anything else.
        _ = setup.folder.checkpoints
        open_.enter_context(alone_in_process(setup.folder))
        open_.callback(forget_shared)
        setup.folder.make()
        open_.enter_context(pause_on_failure(setup.folder))
        open_.enter_context(setup.folder.lock())
        place = run_place(asked.deciders.options, setup.folder.path)
        open_.callback(place.close)
        ready = _prepare(setup, asked, place)
        start = replace(ready.start, careful=was_cut_off(setup.folder))
        open_.enter_context(running_mark(setup.folder))
        state = _carry_out(setup, asked, replace(ready, start=start), open_)
    warn_of_former_code(ready.former, ready.start.state, state)
    _check_failed(state)


def _prepare(setup: Setup, asked: Request, place: RunPlace) -> _Ready:
    """Check everything, then write down that a run begins. `place`: where it is started."""
    callbacks = (*checked_callbacks(asked.callbacks), *checked_callbacks(loggers_of(asked.loggers)))
    past = setup.folder.past()
    survey = survey_for(asked.deciders.options, bool(past.runs), place)
    with explain_missing_data(before := last_head(past.runs)):
        data = data_of(setup.recipe, survey)
    given = profile_of(asked.profile)
    rule = _rule(setup, asked.deciders, data, tells_of_hops(given))
    check_slots(asked.deciders.options, place.room(threads=1))
    state = past.state
    with refusing_foreign_head(before):
        longest = plan_schedules(setup, asked.deciders.searcher, before, state)
    _check_asked(setup, asked.deciders, rule, data, state)
    check_scored(setup.metric, state)
    models = check_model_arguments(callbacks, setup, asked.deciders.options, len(data.shards))
    with refusing_foreign_head(before):
        deciders = _deciders(setup, asked.deciders, rule, place, before, state)
        now = with_places_mark(
            {**head(setup, data, deciders, before), **_head_of(asked, given)},
            setup.folder.path,
        )
        check_same_study(before, now, state)
    _check_fits(setup, state, data)
    if not state.known or before.get("space") != now["space"]:
        space = _space_of(deciders.searcher)
        parameters = check_recipe(setup, space)
        if not before:
            for own, its, inner in each_recipe(setup, data, space):
                options = asked.deciders.options
                check_by_rehearsal(own, inner, its or data, options, parameters)
    with refusing_foreign_head(before):
        now[SCHEDULE] = check_schedules(setup, longest, before, state)

    logs = optuna_log(setup, asked.optuna_log, deciders.searcher)
    if control.take_notes(setup):
        past = setup.folder.past()
        state = past.state
    again = retried_trials(setup, state) if asked.retry_failed else ()
    more = extended_trials(deciders.searcher, past.runs, with_work_again(state, again))
    check_extended(setup, state, more, now[SCHEDULE])
    now["recipe"] = {**now["recipe"], **save(setup.folder, setup.recipe)}
    entries = _opening(setup.folder, state, (*again, *more), data, before, now)
    past = _opened(setup.folder, past, entries)
    state = past.state
    remove_tracebacks(setup, again)
    if not before and control.take_notes(setup):  # notes that were left before the first run
        past = setup.folder.past()
        state = past.state
    start = Start(
        data,
        state,
        past.time,
        _whole(given),
        not hops(rule),
        place=place,
        keep_evaluated=models,
        priority=usual_priority(deciders.searcher),
        widths=widths_of(deciders.searcher),
        believe=believer(given),
    )
    return _Ready(
        deciders,
        rule,
        given,
        past,
        start,
        logs,
        entries,
        callbacks,
        trained_by_other_code(past.runs, setup.folder.lines, now["recipe"]),
    )


def _check_asked(
    setup: Setup, asked: Deciders, rule: Policy[Any], data: Data, state: State
) -> None:
    """Raise StudyError if scores, evaluations or an objective cannot be as they are asked for."""
    space = _space_of(asked.searcher)
    widths = widths_of(asked.searcher)
    try_objectives(setup, rule, space, state.trials.values(), widths)
    most = most_slots(asked.searcher, state.trials.values())
    for own, its, inner in each_recipe(setup, data, space):
        check_metric(own, its or data, inner)
        check_validate_every(own, asked.options, its or data, most)


def _check_fits(setup: Setup, state: State, data: Data) -> None:
    """Raise StudyError if checkpoints or shards that the journal names are not there."""
    check_place(setup, state)
    for name, trial in state.known.items():
        lacking = sorted(trial.shards - data.sizes.keys())
        if lacking:
            raise StudyError(
                f"the journal says that trial {name} trains shard {lacking[0]!r}, and the data has "
                f"{', '.join(sorted(data.sizes)[:3])}{', …' * (len(data.sizes) > 3)} only: take a "
                "copy that is as Shoal wrote it, or begin a new study with another storage="
            )


def _rule(setup: Setup, asked: Deciders, data: Data, told: bool) -> Policy[Any]:
    """The policy that was asked for, by name or itself, for this study.

    `told`: a profile says what a hop costs.
    """
    if trains_itself(setup):
        check_function_search(setup, asked.searcher)
        return function_policy(asked.policy)
    fuse = asked.options.fuse and not isinstance(setup.recipe, ShardRecipe)
    every = about_every(setup, asked.options, data)
    hopping = needs_hops(data, told)
    rule = policy_of(asked.policy, fuse, setup.seed, every, hopping)
    for metric, mode in [(setup.metric, setup.mode), *setup.aims.values()]:
        check_foretells(rule, metric, mode)
    if data.catalogue is not None:
        rule = over_placed(rule, data.catalogue, data.arrangement.reshuffles)
        check_place_of_data(rule, data.catalogue, asked.policy)
    if hopping and data.arrangement.reshuffles:
        rule = with_barrier(rule)
    return with_levels(rule, setup.space)


def _deciders(
    setup: Setup,
    asked: Deciders,
    rule: Policy[Any],
    place: RunPlace,
    before: Head,
    state: State,
) -> Deciders:
    """The searcher and the policy as the journal is to describe them."""
    said: Policy[Any] | str = rule
    if is_auto(asked.policy):
        said = asked.policy
    searcher = per_slot(asked.searcher, rule, place.with_room(asked.options))
    if before:
        searcher = with_history(searcher, before["searcher"], state)
    return Deciders(with_own_draws(setup, searcher), said, asked.options)


def _opening(
    folder: Folder,
    state: State,
    more: Sequence[Trial],
    data: Data,
    before: Head,
    now: Head,
) -> list[Entry]:
    """The entries with which the run begins. A policy remembers nothing of another policy.

    `more`: trials that are to train longer than they were, or are tried again.
    """
    lost = _cut_off(folder, before, state)
    longer: list[Entry] = [Submitted(trial) for trial in more]
    opened, *fallen = reopened(fold(state, [*lost, *longer]), data.sizes, now)
    entries = [*lost, opened, *longer, *fallen]
    if before and before.get("policy") != now["policy"]:
        entries.append(Remembered("policy", None))
    return entries


def _cut_off(folder: Folder, before: Head, state: State) -> list[Entry]:
    """What the end of the former run's process means for the trials that it was training.

    The slot of the local backend died with it. A trial that ends its process each time, such as by
    a fault in C code, is set aside like one that ends the processes of slots.
    """
    if not was_cut_off(folder) or before.get("backend") != "local" or not state.gangs:
        return []
    slots = frozenset(slot for gang in state.gangs for slot in gang.slots)
    return [Left(slots, died=True, why="the run's process ended")]


def _space_of(searcher: Searcher[Any]) -> Space | None:
    """The space that the searcher, or one within it, takes configurations from."""
    for each in nested(searcher):
        space: Space | None = getattr(each, "space", None)
        if space is not None:
            return space
    return None


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


def _whole(given: Profile | Given | None) -> Profile | None:
    """A given profile that leaves nothing to be measured."""
    if isinstance(given, Given):
        return None
    return given


def _head_of(asked: Request, given: Profile | Given | None) -> Head:
    """What the head says of given speeds, and of loggers by name."""
    file = None
    if isinstance(asked.profile, (str, Path)):
        file = str(whole(asked.profile))
    loggers = [each for each in listed(asked.loggers) if isinstance(each, str)]
    return {"profile": file, "given": given_rows(given), "loggers": loggers}


def _opened(folder: Folder, past: History, entries: Sequence[Entry]) -> History:
    """Write down that a run begins; what the journal comes to with that."""
    lines = [Line(past.time, entry) for entry in entries]
    journal = Journal(folder.journal)
    for line in lines:
        journal.append(*line)
    journal.close()
    runs = [*past.runs, *runs_in(lines)]
    return past._replace(runs=runs, state=fold(past.state, entries))


def _carry_out(setup: Setup, asked: Request, ready: _Ready, open_: ExitStack) -> State:
    """The run itself; what it opens is closed by `open_`."""
    # The collector need not look at torch's and other modules' objects again and again. With
    # thousands of tiny trials that takes a twentieth of the time.
    gc.freeze()
    open_.callback(gc.unfreeze)
    furthest = end_beyond_rungs(ready.deciders.searcher)
    told = [Log(setup.folder.log), *display(asked.progress, setup, furthest)]

    def tell(now: Seconds, text: str) -> None:
        for each in told:
            each.tell(now, text)

    start = replace(ready.start, tell=tell)
    if start.place.found is not None:
        tell(start.since, start.place.text())
    made = backend(setup, ready.deciders.options, start)
    open_.callback(made.close)
    retention = _retention(setup, ready, made)
    watchers = [retention, *_watchers(setup, ready, made), *told, *ready.logs]
    for watcher in watchers:
        if hasattr(watcher, "close"):
            open_.callback(watcher.close)
    journal = Journal(setup.folder.journal, made.grouping)
    open_.callback(journal.close)
    open_.enter_context(stop_signals(made.backend.tell, start.place.found is not None))
    reached = InboxBackend(
        made.backend,
        Inbox(setup.folder.path),
        note_reader(setup),
        ready.start.state,
    )
    watchers.append(open_.enter_context(reached))
    # First of all, as long as states that callbacks are told of are not deleted for newer ones.
    watchers[:0] = _called(asked, ready, made, reached, furthest, open_)
    limit = TimeLimit(
        start.place.found,
        ready.deciders.options.stop_before,
        start.state,
        made.backend.tell,
    )
    writer = SnapshotWriter(setup.folder.snapshots, journal, ready.past, retention.learnt)
    with limit:
        return run(
            ready.deciders.searcher,
            ready.rule,
            reached,
            believer(ready.given),
            journal,
            start.state,
            _deadline(asked, start),
            [*watchers, limit, writer],
        )
    return limit.ended(journal, made.backend.now())


def _called(
    asked: Request,
    ready: _Ready,
    made: WiredBackend,
    reached: InboxBackend,
    furthest: float | None,
    open_: ExitStack,
) -> list[CallbackHandler]:
    """What calls the user's callbacks; nothing if there are none."""
    if not ready.callbacks:
        return []
    called = CallbackHandler(asked.study, ready.callbacks, made, reached.look, furthest)
    open_.callback(called.close)
    called.start(ready.opening, ready.start.state)
    return [called]


def _retention(setup: Setup, ready: _Ready, made: WiredBackend) -> Retention:
    """What decides which checkpoints stay."""
    limit = ready.deciders.options.max_checkpoint_gb
    retention = Retention(made.vault, setup.aim, limit)
    retention.restore(ready.past, setup.folder.lines)
    return retention


def _watchers(setup: Setup, ready: _Ready, made: WiredBackend) -> list[Any]:
    """What else follows the run and does not decide anything."""
    return [
        DamageWarner(),
        IdleWarner(),
        MetricCheck(setup.aim),
        RepeatWarner(ready.start.state.known.values()),
        SlotBoard(setup.folder.board, made.backend),
        *function_enders(setup, made.backend),
        *slot_resizers(made.backend),
        *made.watchers,
    ]


def _deadline(asked: Request, start: Start) -> Seconds | None:
    """The time of the study at which the run is to stop; None: it has no limit."""
    if asked.timeout is None:
        return None
    return start.since + asked.timeout
