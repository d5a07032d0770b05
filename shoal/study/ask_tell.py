"""A loop of the user's own: trials are handed out, and what comes back is written down.

The journal is that of a run. Each trial under way has a slot of its own, from `ask` to `tell`.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import chain
from math import isfinite, nan
from time import monotonic
from typing import Any
from weakref import finalize

from shoal.core.cluster import Slot, SlotId
from shoal.core.errors import StudyError, arguments_checked
from shoal.core.event import (
    Advanced,
    Entry,
    Evaluated,
    Failed,
    Finished,
    Joined,
    Opened,
    Planned,
    Remembered,
    Retired,
    Submitted,
)
from shoal.core.fold import fold
from shoal.core.plan import solo
from shoal.core.ports import Searcher
from shoal.core.state import State, View, view
from shoal.core.trial import Seconds, Trial, TrialId, Value
from shoal.core.visits import next_visit
from shoal.engine.journal import Journal, Line, replay
from shoal.options import Options, SearchArguments
from shoal.policy import Fifo
from shoal.profile.measure import believe
from shoal.search import ASHA, Trace, nested, rebuild
from shoal.search.registry import completed, parse
from shoal.study import control
from shoal.study.code.mark import places_mark
from shoal.study.code.recipe_file import code_name, function_in
from shoal.study.code.recipe_store import save
from shoal.study.control import note_reader
from shoal.study.folder import last_head
from shoal.study.head import Deciders, Head, check_same_study, head
from shoal.study.inbox import Inbox, note_entries
from shoal.study.results import check_known
from shoal.study.search_extension import with_core, with_history
from shoal.study.searcher import (
    BY_RUNGS,
    check_space_known,
    grid_or_random,
    searcher_of,
    with_own_draws,
)
from shoal.study.setup import Setup, data_of, pause_on_failure
from shoal.study.watchers import Log, RepeatWarner
from shoal.train.function.objective import ObjectiveTrial, numbered
from shoal.train.function.recipe import UNLIMITED, nothing
from shoal.train.function.session import TrialContext, Values, numbers
from shoal.train.recipe.settings import seed_of

# How a trial may be told to have ended: the words of Optuna, and those of `TrialResult.status`.
ENDS = {
    "complete": "finished",
    "finished": "finished",
    "pruned": "retired",
    "retired": "retired",
    "fail": "failed",
    "failed": "failed",
}


class AskTellLoop:
    """Hands out trials of the study, and takes what is said of them.

    The study is held while trials of this loop are out, so that no other process opens it.
    Threads may share a loop.

    Raises:
        StudyError: the study trains by itself.
    """

    def __init__(self, setup: Setup, searcher: Any) -> None:
        if not getattr(setup.recipe, "draws", False):
            raise StudyError(
                f"this study trains {code_name(setup.recipe)} itself, with optimize(): for a loop "
                "of your own, create a study without a recipe"
            )
        self._study = LoopJournal(setup, searcher)
        # The trials that are out, and when their next reports began.
        self._out: dict[TrialId, Seconds] = {}
        self._lock = threading.RLock()

    def ask(self, open_first: bool = False) -> "AskedTrial":
        """Hand out the next trial; see `Study.ask`."""
        with self._holding() as study:
            study.take_notes()
            if study.state.stopped is not None:
                raise StudyError(
                    f"the study was told to stop ({study.state.stopped}): run the script again to "
                    "go on with it"
                )
            # One that an earlier loop handed out and was never told; else one that was added.
            trials = study.state.trials
            begun = (t for t in trials if t in study.begun and t not in self._out)
            waiting = (t for t in trials if t not in study.begun)
            first = next(chain(begun if open_first else (), waiting), None)
            trial = self._proposed() if first is None else first
            self._hand_out(trial)
            return AskedTrial(self._context(trial), self)

    def tell(self, trial: Any, values: Any, state: Any) -> None:
        """Take down what came of a trial; see `Study.tell`."""
        with self._holding() as study:
            name = self._open_trial(trial)
            end = _end(name, values, state)
            entries = []
            if values is not None:
                final = numbers(values, self._metric)
                if end == "finished":
                    self._check_metric(name, final)
                noted = getattr(trial, "noted", {})
                entries = self._report_entries(name, {**noted, **final})
                scores = [final, *(values for _, values in study.state.scores[name])]
                if end == "finished" and not any(
                    isfinite(each.get(self._metric, nan)) for each in scores
                ):
                    end = "diverged"
            ends: dict[str, Entry] = {
                "finished": Finished(name),
                "retired": Retired(name),
                "diverged": Failed(name, "diverged: none of its scores was finite"),
                "failed": Failed(name, "told to have failed"),
            }
            if name in study.state.trials:
                entries.append(ends[end])
            study.note(entries)
            self._out.pop(name, None)

    def report(self, trial: TrialId, values: Any) -> bool:
        """Take down what a trial that is out reports; returns whether the trial was stopped."""
        with self._holding() as study:
            self._check_out(trial)
            study.take_notes()
            study.note(self._report_entries(trial, numbers(values, self._metric)))
            if study.searcher.stops and study.state.trials:
                self._propose(len(study.state.trials))
            return trial not in study.state.trials

    def drew(self, trial: TrialId, config: Mapping[str, Value]) -> None:
        """Take down the configuration of a trial that is out, which has drawn parameters."""
        with self._holding() as study:
            self._check_out(trial)
            known = study.state.known[trial]
            study.note([Submitted(replace(known, config=dict(config)))])

    def close(self) -> None:
        """Let go of the study. Trials that are out stay open: they may be told by number."""
        with self._lock:
            self._out.clear()
            self._study.leave()

    @contextmanager
    def _holding(self) -> "Iterator[LoopJournal]":
        """Within, this loop holds the study; it still does afterwards if trials are out."""
        with self._lock, pause_on_failure(self._study.setup.folder):
            self._study.take()
            try:
                yield self._study
            finally:
                if not self._out:
                    self._study.leave()

    # -- asking ------------------------------------------------------------------------------------

    def _proposed(self) -> TrialId:
        """A new trial of the searcher's.

        Raises:
            StudyError: it has no more.
        """
        state = self._study.state
        new = self._propose(len(state.trials) + 1)
        if not new:
            raise StudyError(
                f"the searcher has no more trials to give, after {len(state.known)}: ask for no "
                "more, or give it more num_samples or a larger search_space"
            )
        return new[0].id

    def _propose(self, room: int) -> tuple[Trial, ...]:
        """Write down and return what the searcher submits, given room for so many trials."""
        study = self._study
        searcher = study.searcher.with_room(study.state, room)
        memory = study.state.memory.get("searcher")
        if memory is None:
            memory = searcher.start()
        proposal, remembered = searcher.propose(study.seen(), memory)
        entries: list[Entry] = [Submitted(trial) for trial in proposal.submit]
        entries += [Retired(trial) for trial in sorted(proposal.retire)]
        if remembered != memory:
            entries.append(Remembered("searcher", remembered))
        study.note(entries)
        return proposal.submit

    def _hand_out(self, trial: TrialId) -> None:
        """Give the trial a slot: one that is free, or a new one."""
        study = self._study
        state = study.state
        slot = next((each for each in state.slots if each not in state.busy), None)
        entries: list[Entry] = []
        if slot is None:
            slot = SlotId(f"own{len(state.slots)}")
            entries.append(Joined((Slot(slot, shards=frozenset(state.shards)),)))
        entries.append(Planned((), (solo(trial, slot, state.turn),)))
        study.note(entries)
        study.begun.add(trial)
        self._out[trial] = monotonic()

    def _context(self, trial: TrialId) -> TrialContext:
        """The context of a trial that is handed out: its configuration, seed and metric."""
        known = self._study.state.known[trial]
        return TrialContext(
            trial=known,
            seed=seed_of(known.config, self._study.setup.seed),
            metric=self._metric,
            chosen=dict(known.config),
            restored=False,
            log=None,
            spread=getattr(self._study.setup.recipe, "spread", False),
        )

    # -- telling -----------------------------------------------------------------------------------

    @property
    def _metric(self) -> str:
        """The study's metric, or what a number is called where there is none."""
        return self._study.setup.metric or "value"

    def _open_trial(self, trial: Any) -> TrialId:
        """The name of an open trial that the user gave by an object with an id, a name or a number.

        Raises:
            StudyError: there is none, it has ended, or several that are open have the number.
        """
        state = self._study.state
        if isinstance(trial, int):
            of_number = [each for each in state.known if numbered(each) == trial]
            unfinished = [each for each in of_number if each in state.trials]
            if len(unfinished) > 1:
                raise StudyError(
                    f"the number {trial} is that of {', '.join(unfinished)}: give the trial, or "
                    "its name"
                )
            trial = [*unfinished, *of_number, str(trial)][0]
        name = TrialId(str(getattr(trial, "id", trial)))
        check_known(state, name)
        if name not in state.trials and name not in self._out:
            raise StudyError(f"trial {name} was told already: it {state.ended[name]}")
        return name

    def _check_out(self, trial: TrialId) -> None:
        """Raise StudyError unless the trial is out."""
        if trial not in self._out:
            raise StudyError(
                f"trial {trial} was told already, or the study was run since it was asked for"
            )

    def _check_metric(self, trial: TrialId, values: Values) -> None:
        """Raise StudyError if a trial that finished lacks the study's metric."""
        if self._metric not in values:
            raise StudyError(
                f"trial {trial} is told without {self._metric!r}, which the study ranks by; got "
                f"{', '.join(values)}: give it, or create the study with another metric="
            )

    def _report_entries(self, trial: TrialId, values: Values) -> list[Entry]:
        """The entries of a trial's report of these values, which ends an epoch."""
        state = self._study.state
        visits = state.visits[trial]
        shards = state.known[trial].shards or frozenset(state.shards)
        visit = next_visit(self._study.setup.seed, visits, shards)._replace(samples=1)
        spent = {}
        if trial in self._out:
            now = monotonic()
            spent = {trial: {"train": now - self._out[trial]}}
            self._out[trial] = now
        return [
            Advanced({trial: 1}, visits={trial: (visit,)}, spent=spent),
            Evaluated(trial, float(len(visits) + 1), values),
        ]


def _end(trial: TrialId, values: Any, state: Any) -> str:
    """How the trial ended: "finished", "retired" or "failed".

    Raises:
        StudyError: the state is none of `ENDS`, or there is neither a state nor a value.
    """
    if state is None:
        state = "complete"
    end = ENDS.get(str(getattr(state, "name", state)).lower())
    if end is None:
        raise StudyError(f"trial {trial}: state must be one of {', '.join(ENDS)}; got {state!r}")
    if end == "finished" and values is None:
        raise StudyError(
            f"trial {trial} is told without a value: give one, or state='pruned' or 'fail'"
        )
    return end


class LoopJournal:
    """The study's journal and state; no other process can open it between `take` and `leave`.

    A run begins in its journal when it is first taken, and after others have run it meanwhile.
    """

    def __init__(self, setup: Setup, searcher: Any) -> None:
        self.setup = setup
        self.state = State()
        # Trials that ever had a slot.
        self.begun: set[TrialId] = set()
        self._user_searcher = searcher
        self._searcher: SearcherWithRoom | None = None
        # The number of this loop's run in the journal; 0: it has not begun.
        self._run = 0
        self._size = 0  # of the journal, in bytes, when it was left
        self._zero: Seconds = 0.0  # the clock's time at which the study's was 0
        self._log = Log(setup.folder.log)
        self._repeats = RepeatWarner(())
        self._release: Callable[[], Any] | None = None  # lets go of the study, once

    @property
    def searcher(self) -> "SearcherWithRoom":
        """The searcher of the run that `take` began."""
        assert self._searcher is not None
        return self._searcher

    def now(self) -> Seconds:
        """The time of the study."""
        return monotonic() - self._zero

    def seen(self) -> View:
        """The view of the study that a searcher gets."""
        return view(self.state, self.now(), believe(self.state))

    def take(self) -> None:
        """Lock the study, and read what others have written meanwhile.

        Raises:
            StudyError: it is open elsewhere, or was begun as another search.
        """
        if self._release is not None:
            return
        folder = self.setup.folder
        folder.make()
        with ExitStack() as opened:
            opened.enter_context(folder.lock())
            if self._run == 0 or folder.size() != self._size:
                self._read()
            # This unlocks the study, too, if the loop is dropped or the program ends meanwhile.
            self._release = finalize(self, opened.pop_all().close)
        folder.live = self.state

    def leave(self) -> None:
        """Unlock the study, if it is locked."""
        if self._release is None:
            return
        folder = self.setup.folder
        self._log.close()
        self._size = folder.size()
        folder.live = None
        self._release()
        self._release = None

    def note(self, entries: Sequence[Entry]) -> None:
        """Write these entries down; they are durable afterwards."""
        if not entries:
            return
        now = self.now()
        state = fold(self.state, entries)
        journal = Journal(self.setup.folder.journal)
        try:
            for entry in entries:
                journal.append(now, entry)
        finally:
            journal.close()
        self.state = state
        self._log(now, tuple(entries), state)
        self._repeats(now, tuple(entries), state)
        if self._release is not None:
            self.setup.folder.live = state

    def take_notes(self) -> None:
        """Write down what others ask for: trials to add, to change, or to take out."""
        inbox = Inbox(self.setup.folder.path)
        if not inbox:
            return
        paths, entries = note_entries(inbox, self.state, note_reader(self.setup))
        self.note(entries)
        inbox.remove(paths)

    def _read(self) -> None:
        """Read the journal; begin a run, unless this loop's run is the newest in it."""
        control.take_notes(self.setup)
        lines = self.setup.folder.lines()
        self.state = replay(lines)
        self._repeats = RepeatWarner(self.state.known.values())
        planned = [line.entry for line in lines if isinstance(line.entry, Planned)]
        self.begun = {trial for each in planned for gang in each.start for trial in gang.trials}
        if self._run == 0 or self.state.run != self._run:
            self._begin(lines)

    def _begin(self, lines: Sequence[Line]) -> None:
        """Write down that a run begins.

        Raises:
            StudyError: the searcher cannot be asked so, or the study was begun otherwise.
        """
        setup = self.setup
        before = last_head(lines)
        searcher = searcher_for(setup, self._user_searcher, before)
        if before:
            searcher = with_history(searcher, before["searcher"], self.state)
        searcher = with_own_draws(setup, searcher)
        data = data_of(setup.recipe)
        now = _head(setup, data, Deciders(searcher, Fifo(), Options()), before)
        now["marks"] = places_mark(now, setup.folder.path)
        check_same_study(before, now, self.state)
        now["recipe"] = {**now["recipe"], **save(setup.folder, setup.recipe)}
        self._searcher = SearcherWithRoom(searcher)
        self._run = self.state.run + 1
        since = 0.0
        if lines:
            since = lines[-1].time
        self._zero = monotonic() - since
        entries: list[Entry] = [Opened(self._run, data.sizes, now)]
        if before and before.get("policy") != now["policy"]:
            entries.append(Remembered("policy", None))
        self.note(entries)


def _head(setup: Setup, data: Any, deciders: Deciders, before: Head) -> dict[str, Any]:
    """The head of the loop's run. Without a function it names no file as that of the code."""
    now = {
        **head(setup, data, deciders, before),
        "profile": None,
        "given": None,
        "loggers": [],
        "loop": True,
    }
    if function_in(setup.recipe) is nothing:
        now["recipe"] = {"name": "own loop", "file": None, "sha256": None}
    return now


# A searcher that was given no number of samples has 10 to the power of so many at first.
DIGITS = 3


@arguments_checked()
def searcher_for(setup: Setup, searcher: Searcher[Any] | str | None, before: Head) -> Searcher[Any]:
    """The searcher that the study was given, or had before; else a grid or random sampling.

    Raises:
        StudyError: it sends trials from rung to rung, or cannot know what there is to draw.
        ArgumentError: no searcher has that name, or its arguments do not fit.
    """
    if searcher is None and "name" in before.get("searcher", {}):
        searcher = _former_searcher(before)
    if isinstance(searcher, str):
        searcher = parse(searcher)
    usual = grid_or_random(setup.space)
    if searcher is not None:
        usual = completed(searcher, {}, lambda: grid_or_random(setup.space))
    searcher = searcher_of(setup, SearchArguments(searcher=usual, max_epochs=UNLIMITED))
    check_space_known(searcher)
    for each in nested(searcher):
        _check_asks_once(each)
    return searcher


def _former_searcher(before: Head) -> Searcher[Any]:
    """The searcher of the run before; if that was `optimize`'s, without its number of samples."""
    searcher = rebuild(before["searcher"])
    core: Any = [*nested(searcher)][-1]
    if before.get("loop") or not hasattr(core, "num_samples"):
        return searcher
    return with_core(searcher, replace(core, num_samples=None))


def _check_asks_once(searcher: Searcher[Any]) -> None:
    """Raise StudyError if the searcher may send a trial on that it had stopped before."""
    stopping = getattr(searcher, "stopping", False)
    if isinstance(searcher, (*BY_RUNGS, Trace)) and not stopping:
        raise StudyError(
            f"{type(searcher).__name__} says when and how long each trial trains, and "
            "study.ask() gives each trial once: use random, grid or optuna, perhaps within median "
            "or patience, or asha(stopping=True, max_epochs=…)"
        )
    if isinstance(searcher, ASHA) and searcher.max_epochs == UNLIMITED:
        raise StudyError(
            "ASHA compares trials after some of their reports: say how many a trial makes at "
            "most, asha(stopping=True, max_epochs=…)"
        )


class SearcherWithRoom:
    """A searcher that is given room for more and more trials, without an end.

    Searchers remember what they saw, so there is one for each room.
    """

    def __init__(self, searcher: Searcher[Any]) -> None:
        self._searcher = searcher
        self._core: Any = [*nested(searcher)][-1]
        self._searchers: dict[tuple[int, int], Searcher[Any]] = {}

    @property
    def stops(self) -> bool:
        """Whether the searcher looks at trials' reports, to stop some of them."""
        within = any(each is not self._core for each in nested(self._searcher))
        return within or getattr(self._core, "stopping", False)

    def with_room(self, state: State, trials: int) -> Searcher[Any]:
        """The searcher that lets so many trials be under way.

        If the user named no number of samples, there are always some left.
        """
        samples = 10 ** max(DIGITS, len(str(len(state.known))))
        room = (trials, samples)
        if room not in self._searchers:
            changes: dict[str, Any] = {}  # where these numbers were left open
            if hasattr(self._core, "max_concurrent"):
                changes["max_concurrent"] = trials
            if getattr(self._core, "num_samples", 0) is None:
                changes["num_samples"] = samples
            self._searchers[room] = self._searcher
            if changes:
                self._searchers[room] = with_core(self._searcher, replace(self._core, **changes))
        return self._searchers[room]


class AskedTrial(ObjectiveTrial):
    """A trial of `study.ask()`: Optuna's `Trial`, as far as Shoal has it.

    Parameters that are suggested become part of its configuration at once.
    """

    def __init__(self, context: TrialContext, loop: AskTellLoop) -> None:
        super().__init__(context)
        self.params = dict(context.chosen)
        self._loop = loop

    @property
    def id(self) -> TrialId:
        """The trial's name."""
        return self._context.trial.id

    @property
    def config(self) -> dict[str, Value]:
        """The configuration; a copy."""
        return dict(self._context.chosen)

    def report(self, value: Any, step: int | None = None) -> None:
        """Report an intermediate value, or several by name. Their order counts, not `step`.

        Raises:
            TypeError: it is no number.
        """
        if not isinstance(value, Mapping):
            value = {self._context.metric: value}
        noted, self.noted = self.noted, {}
        self._stopped = self._loop.report(self.id, {**noted, **value})

    def drew(self, name: str) -> None:
        """A parameter was drawn: it is written down."""
        self._loop.drew(self.id, self._context.chosen)

    def __repr__(self) -> str:
        return f"AskedTrial({self.id}, {self.config})"
