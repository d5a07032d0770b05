"""One slot whose trials are functions: it runs them in turn, each until its next report."""

from __future__ import annotations

import inspect
import os
import shutil
import tempfile
import traceback
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from math import isfinite, nan
from pathlib import Path
from threading import Semaphore, Thread
from time import perf_counter
from typing import Any, TypeVar

import torch

from shoal.core.check import PlanError
from shoal.core.errors import warn
from shoal.core.trial import Seconds, TrialId, Value, shown
from shoal.engine.files import current_folder
from shoal.train.data.columns import DataError
from shoal.train.function.checkpoint import pack_checkpoint, unpacked
from shoal.train.function.recipe import RUN_IT, FunctionRecipe
from shoal.train.function.session import (
    Pruned,
    TrialContext,
    TrialStopped,
    Values,
    numbers,
    numbers_in,
    talking,
)
from shoal.train.lane.blame import blaming
from shoal.train.lane.checkpoints import Checkpoints, Damaged
from shoal.train.lane.device import use
from shoal.train.recipe.settings import seed_of
from shoal.train.recipe.unit import Done, OutOfMemory, Returned, Tree, TrialError, Unit
from shoal.train.rng import Rng
from shoal.train.slot.setup import TrainerSetup

# Functions of other trials that wait at a report for their trials to go on.
AT_REST = 8
METRIC = "value"  # of a number without a name, in a study without a metric

News = Done | Returned | TrialError
NewsT = TypeVar("NewsT")


class FunctionTrainer:
    """A slot for functions, with what `Local` and the slots of Ray ask of a `SlotTrainer`.

    A function that has reported waits where it is, so that the trial goes on at once. If there are
    more than `AT_REST` of them, the one that reported longest ago is ended; those that gave a
    checkpoint come first. Each checkpoint is durable when the report's unit is done. `logs`: the
    folder of the trials' logs. `turn_of`: called before a trial's code runs.
    """

    def __init__(
        self,
        recipe: FunctionRecipe,
        vault: Checkpoints,
        setup: TrainerSetup,
        *,
        logs: Path | None = None,
        turn_of: Callable[[TrialId], None] | None = None,
    ) -> None:
        self._recipe = recipe
        self._vault = vault
        self._setup = setup
        self._device = use(setup.device)
        self._logs = logs
        self._turn_of = turn_of
        # The functions that wait, in the order of their last reports.
        self._runs: dict[TrialId, FunctionRun] = {}
        # The newest checkpoint of each of them: its reports, and its name.
        self._checkpoints: dict[TrialId, tuple[int, str]] = {}
        sweep(vault.url, setup.run)

    # -- units -----------------------------------------------------------------------------------

    def train_pack(
        self, units: Sequence[Unit], fuse: bool = False, measured: Collection[str] | None = None
    ) -> Generator[tuple[TrialId, News], None, None]:
        """Let each trial's function run until its next report, one after another.

        What has no steps of its own cannot be tried: `measured` changes nothing.

        Raises:
            PlanError: a unit is one of a gang whose trials change slots between units.
            OSError, StaleRun: the study must pause.
            LookupError: the unit's source is not here.
        """
        for unit in units:
            try:
                yield unit.trial.id, self._outcome(unit)
            except TrialError as error:
                error.config = self._drawn_config(unit)
                self.forget(unit.trial.id)
                yield unit.trial.id, error

    def _outcome(self, unit: Unit) -> Done | Returned:
        """Run the trial's function to its next report or its end; returns what came of the unit.

        Raises:
            TrialError: the function raised, or is over without a score.
        """
        trial = unit.trial.id
        if unit.carry:
            raise PlanError(
                f"the plan moves trial {trial} between slots after each unit, but a function "
                'stays where it is: use policy="fifo"'
            )
        if self._turn_of is not None:
            self._turn_of(trial)
        begin = perf_counter()
        run = self._ready(unit)
        opened = perf_counter()
        news = self._advanced(run, run.advance)
        if isinstance(news, End) and not news.pruned:
            _check_scored(run, news)
        spent = {"switch": opened - begin, "train": perf_counter() - opened}
        done = self._done(unit, run, news, spent)
        if isinstance(news, End):
            self._drop(trial)
        elif isinstance(done, Done) and unit.last and self._recipe.may_return(run.reports):
            return self._ended(unit, run, done)
        return done

    def _ended(self, unit: Unit, run: FunctionRun, done: Done) -> Done:
        """The answer about the trial's last report, with what its function returns after that.

        A function that reports once more waits there, in case that its trial is made longer.

        Raises:
            TrialError: the function raised, or is over without a score.
        """
        begin = perf_counter()
        end = self._advanced(run, run.end_ahead)
        spent = {**done.spent, "train": done.spent["train"] + perf_counter() - begin}
        if end is None:
            return replace(done, spent=spent)
        _check_scored(run, end)
        config = self._drawn_config(unit)
        self._drop(unit.trial.id)
        scores = {**(done.scores or {}), **end.values}
        return replace(done, spent=spent, scores=scores, over=True, config=config)

    def _done(
        self, unit: Unit, run: FunctionRun, news: Report | End, spent: dict[str, Seconds]
    ) -> Done | Returned:
        """The driver's answer about the unit; a checkpoint becomes durable."""
        config = self._drawn_config(unit)
        over = isinstance(news, End)
        if isinstance(news, End) and (unit.visits or news.pruned or not news.values):
            return Returned(news.pruned, config, news.values, spent)
        name = None
        if isinstance(news, Report) and news.checkpoint is not None:
            begin = perf_counter()
            name = self._saved(unit.trial.id, run, news.checkpoint)
            spent["save"] = perf_counter() - begin
        visit = unit.visit._replace(samples=1)
        return Done(visit, spent, dict(news.values), kept=name, over=over, config=config)

    def _drawn_config(self, unit: Unit) -> dict[str, Value] | None:
        """The trial's configuration, if its objective has drawn more of that."""
        run = self._runs.get(unit.trial.id)
        if run is None or run.context.chosen == dict(unit.trial.config):
            return None
        return dict(run.context.chosen)

    def _saved(self, trial: TrialId, run: FunctionRun, checkpoint: Tree) -> str:
        """Make a checkpoint durable; returns its name.

        Raises:
            TrialError: it holds what cannot be stored.
        """
        name = self._vault.name(trial, run.reports)
        state = {"reports": run.reports, "rng": run.rng_state(), "checkpoint": checkpoint}
        with blaming():
            try:
                self._vault.save(name, state)
            except TypeError as error:
                raise ValueError(f"the checkpoint cannot be stored: {error}") from error
        self._checkpoints[trial] = run.reports, name
        return name

    def _advanced(self, run: FunctionRun, advance: Callable[[], NewsT]) -> NewsT:
        """Let the function run on by this method of its.

        Raises:
            TrialError: it raised.
        """
        try:
            with blaming():
                return advance()
        except (DataError, PlanError) as error:
            raise TrialError(str(error), traceback.format_exc()) from error
        except OutOfMemory as error:
            others = [trial for trial in self._runs if trial != run.context.trial.id]
            for trial in others:
                self.forget(trial)
            if self._device.type == "cuda":
                torch.cuda.empty_cache()
            # functions at rest were ended: it is worth another try
            raise OutOfMemory(error.why, error.text, freed=bool(others)) from error

    # -- functions that wait ---------------------------------------------------------------------

    def _ready(self, unit: Unit) -> FunctionRun:
        """The trial's function, waiting after the unit's visits; it is started if it must be.

        Raises:
            LookupError: it is not here, and the unit has no source.
        """
        trial = unit.trial.id
        run = self._runs.pop(trial, None)
        if run is None or run.reports != len(unit.visits) or unit.source is not None:
            if run is not None:
                run.stop()
            run = self._started(unit)
        self._runs[trial] = run
        while len(self._runs) > AT_REST + 1:  # these are too many: one ends
            *waiting, _ = self._runs
            durable = [trial for trial in waiting if self._is_durable(trial)]
            self.forget((durable or waiting)[0])
        return run

    def _started(self, unit: Unit) -> FunctionRun:
        """A new thread for the trial's function."""
        trial = unit.trial
        state: DurableState | None = None
        if isinstance(unit.source, str):
            state = self._vault.restore(unit.source)
        elif unit.source is not None:
            state = unit.source
        if state is None and unit.visits:
            raise LookupError(f"nothing of trial {trial.id} is here")
        with blaming():
            seed = seed_of(trial.config, self._setup.seed)
        log = None
        if self._logs is not None:
            log = self._logs / trial.id / "log.txt"
        context = TrialContext(
            trial=trial,
            seed=seed,
            metric=self._setup.metric or METRIC,
            chosen=dict(trial.config),
            restored=state is not None,
            log=log,
            scratch=prefix_of(self._vault.url, self._setup.run),
            spread=self._recipe.spread,
        )
        return FunctionRun(self._recipe, context, self._setup.options.threads, self._device, state)

    def _is_durable(self, trial: TrialId) -> bool:
        """Whether the trial's last report gave a checkpoint."""
        reports, _ = self._checkpoints.get(trial, (0, ""))
        return reports == self._runs[trial].reports

    def _drop(self, trial: TrialId) -> None:
        self._runs.pop(trial, None)
        self._checkpoints.pop(trial, None)

    def holds(self, trial: TrialId, visits: int) -> bool:
        """Whether the trial's function waits here after so many reports."""
        return trial in self._runs and self._runs[trial].reports == visits

    def state(self, trial: TrialId) -> Tree:
        """The trial's state, if its last report gave a checkpoint.

        Raises:
            LookupError: it gave none.
        """
        if trial in self._runs and self._is_durable(trial):
            with suppress(FileNotFoundError, Damaged):
                return self._vault.load(self._checkpoints[trial][1])
        raise LookupError(f"the last report of trial {trial} gave no checkpoint")

    def keep(self, trial: TrialId) -> str:
        """Refuse what `SlotTrainer.keep` does: what a function gave is durable already.

        Raises:
            LookupError: always.
        """
        raise LookupError(f"nothing of trial {trial} waits to be made durable")

    def commit(self) -> None:
        """Write the checkpoints that wait to share a file with others."""
        self._vault.commit()

    def forget(self, trial: TrialId) -> None:
        """End the trial's function here."""
        run = self._runs.get(trial)
        self._drop(trial)
        if run is not None:
            run.stop()

    def close(self) -> None:
        """End all functions."""
        for trial in list(self._runs):
            self.forget(trial)


def _check_scored(run: FunctionRun, end: End) -> None:
    """Raise TrialError unless the function that is over has reported or returned a finite score."""
    if run.scored:
        return
    metric = run.context.metric
    count = run.reports + bool(end.values)
    if not count:
        returned = f" (it returned {end.returned})" if end.returned else ""
        raise TrialError(
            f"the function ended without a score{returned}: report one, as "
            f"shoal.report({{{metric!r}: value}}), or return it"
        )
    raise TrialError(f"diverged: of its scores of {metric!r}, {count} in all, none was finite")


# Seconds that a function's `finally` blocks may take when its trial is stopped.
GRACE: Seconds = 20.0

DurableState = Mapping[str, Any]  # "reports", "rng" and "checkpoint"


@dataclass(frozen=True, slots=True)
class Report:
    """The function has reported, and waits."""

    values: Values
    checkpoint: dict[str, Any] | None  # packed


@dataclass(frozen=True, slots=True)
class End:
    """The function is over. `values`: those that it returned, perhaps none.

    `returned`: what else it returned, to be shown; empty: nothing.
    """

    values: Values = field(default_factory=dict)
    returned: str = ""
    pruned: bool = False


def _check_ran(result: Any) -> None:
    """Raise TypeError if calling the function only made what would run its code."""
    if inspect.isawaitable(result) or inspect.isasyncgen(result) or inspect.isgenerator(result):
        if inspect.iscoroutine(result):
            result.close()  # else Python warns that nobody awaited it
        raise TypeError(f"the function returned a {type(result).__name__}: {RUN_IT}")


class FunctionRun:
    """A function that trains one trial, from its beginning or from a durable state.

    It runs only within `advance` and `stop`, which return when it has reported or is over.
    """

    def __init__(
        self,
        recipe: FunctionRecipe,
        context: TrialContext,
        threads: int,
        device: torch.device,
        state: DurableState | None,
    ) -> None:
        self.context = context
        self.reports = 0
        # whether a score of the metric was finite, as far as is known
        self.scored = state is not None
        self.over = False
        self._recipe = recipe
        self._threads = threads
        self._device = device
        self._restored = state
        if state is not None:
            self.reports = int(state["reports"])
        self._rng = Rng(context.seed, device)
        self._folders: list[str] = []  # of checkpoints that were paths
        self._news: Report | End | BaseException = End()
        # A report that it made beyond what was asked for.
        self._ahead: Report | None = None
        self._folder = ""  # the one that it works in, once it has begun
        self._stopping = False
        self._go = Semaphore(0)
        self._has_news = Semaphore(0)
        name = f"shoal-{context.trial.id}"
        self._thread = Thread(target=self._main, name=name, daemon=True)

    # -- for the slot ----------------------------------------------------------------------------

    def advance(self) -> Report | End:
        """Let the function run until it reports or is over.

        Raises:
            BaseException: what the function raised.
        """
        news: Report | End = self._ahead or self._next()
        self._ahead = None
        if isinstance(news, Report):
            self.reports += 1
        return news

    def end_ahead(self) -> End | None:
        """Let the function run on; None if it reports, which the next `advance` returns.

        Raises:
            BaseException: what the function raised.
        """
        news = self._next()
        if isinstance(news, End):
            return news
        self._ahead = news
        return None

    def _next(self) -> Report | End:
        """Let the function's thread run until it reports or is over; see `advance`."""
        with self._rng, talking(self), self._in_its_folder():
            self._wake()
            self._has_news.acquire()
        news = self._news
        if not isinstance(news, Report):
            self._close()
        if isinstance(news, BaseException):
            raise news
        value = news.values.get(self.context.metric, 0.0 if news.values else nan)
        self.scored = self.scored or isfinite(value)
        return news

    @contextmanager
    def _in_its_folder(self) -> Iterator[None]:
        """Within it, the process is in the folder where the function has left it."""
        outside = current_folder()
        if self._folder:
            with suppress(OSError):  # it may be gone
                os.chdir(self._folder)
        try:
            yield
        finally:
            self._folder = current_folder()
            if outside and self._folder != outside:
                os.chdir(outside)

    def rng_state(self) -> dict[str, Any]:
        """The trial's random states as they are at its report."""
        return self._rng.state()

    def stop(self) -> None:
        """End the function: its report raises `TrialStopped`."""
        if self.over:
            return
        self._stopping = True
        if self._thread.is_alive():
            with self._rng, talking(self), self._in_its_folder():
                self._wake()
                ended = self._has_news.acquire(timeout=GRACE)
            if not ended:
                warn(
                    f"the function of trial {self.context.trial.id} was told to stop and goes on: "
                    "it must not catch shoal's TrialStopped, nor wait in a finally block"
                )
        self._close()

    def _wake(self) -> None:
        """Let the function's thread go on, or begin."""
        if self._thread.ident is None:
            self._thread.start()
        else:
            self._go.release()

    def _close(self) -> None:
        """Remove what was written for the function, which is over."""
        self.over = True
        for folder in self._folders:
            shutil.rmtree(folder, ignore_errors=True)

    # -- in the function's thread ----------------------------------------------------------------

    def _main(self) -> None:
        """Run the function; leave how it ended in `_news`."""
        torch.set_num_threads(self._threads)
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)
        try:
            result = self._recipe.run(self.context)
            _check_ran(result)
            metric = self.context.metric
            scores = result if isinstance(result, Mapping) else {metric: result}
            numbers = numbers_in(scores, metric)
            values = {name: value for name, value in numbers.items() if value is not None}
            self._news = End(values, "" if result is None else shown(result))
        except (TrialStopped, Pruned):
            self._news = End(pruned=True)
        except BaseException as error:  # noqa: BLE001 the slot raises it
            self._news = error
        self._has_news.release()

    def report(self, values: Any, checkpoint: Any) -> None:
        """Hand a report to the slot, and wait until the trial is to go on: `session.report`."""
        if self._stopping:
            raise TrialStopped
        floats = numbers(values, self.context.metric)
        packed = None
        if checkpoint is not None:
            packed = pack_checkpoint(checkpoint)
        self._news = Report(floats, packed)
        self._has_news.release()
        self._go.acquire()
        if self._stopping:
            raise TrialStopped

    def restore(self) -> Any:
        """The checkpoint that the function goes on from: `session.restore`."""
        if self._restored is None:
            return None
        self._rng.__exit__()
        self._rng.load(self._restored["rng"])
        self._rng.__enter__()
        folder = ""
        if self._restored["checkpoint"]["kind"] != "tree":
            folder = tempfile.mkdtemp(prefix=self.context.scratch)
            self._folders.append(folder)
        return unpacked(self._restored["checkpoint"], Path(folder))


def prefix_of(study: str, run: int) -> str:
    """How the names of a run's temporary folders begin. `study`: the place of its checkpoints."""
    return f"{_study_prefix(study)}{run}-"


def _study_prefix(study: str) -> str:
    tag = blake2b(study.encode(), digest_size=8).hexdigest()
    return f"shoal-{tag}-"


def sweep(study: str, run: int) -> None:
    """Remove what former runs left here: a process that was killed could not.

    Runs of a study come one after the other, so no process of a former one needs it.
    """
    prefix = prefix_of(study, run)
    for folder in Path(tempfile.gettempdir()).glob(f"{_study_prefix(study)}*"):
        if not folder.name.startswith(prefix):
            shutil.rmtree(folder, ignore_errors=True)
