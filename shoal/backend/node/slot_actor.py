"""What runs in a slot's process: one SlotTrainer.

It trains in a thread of its own, so that calls reach the process meanwhile.
"""

import os
import pickle
import secrets
import shutil
import signal
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic
from typing import Any

import ray
from ray.exceptions import RayError

from shoal.backend.node import data_copy, feed
from shoal.backend.node.messages import (
    Broken,
    Cut,
    Drifting,
    Hello,
    Lost,
    Outcome,
    Outcomes,
    Parcel,
    Share,
    SlotSetup,
    Trained,
    Unreadable,
)
from shoal.backend.node.process import (
    FILL,
    Prints,
    born,
    fetched,
    limit_space,
    limit_threads,
    portable,
)
from shoal.backend.node.validator import elsewhere_of, with_deals
from shoal.backend.ray import cluster
from shoal.backend.ray.silence import PULSE
from shoal.core.cluster import GiB, ShardId
from shoal.core.event import Sum
from shoal.core.trial import Seconds, TrialId, Visit
from shoal.engine.process import dedicate, in_forks
from shoal.train.data.columns import DataError
from shoal.train.data.data import Data
from shoal.train.function.recipe import FunctionRecipe
from shoal.train.function.trainer import FunctionTrainer
from shoal.train.lane.checkpoints import Checkpoints
from shoal.train.lane.device import limit_memory
from shoal.train.lane.tree import size_of
from shoal.train.overdue import watch_calls
from shoal.train.recipe.seat import Move, Orders, Seat
from shoal.train.recipe.unit import (
    CallLimits,
    Done,
    Made,
    Part,
    Reached,
    Returned,
    Scored,
    Tree,
    TrialError,
    Unit,
)
from shoal.train.slot.gang_units import GangUnits
from shoal.train.slot.setup import TrainerSetup
from shoal.train.slot.trainer import SlotTrainer
from shoal.train.wide.gate import Meeting
from shoal.train.wide.lane import Adrift, Halted

# Called with a round, a trial of it and how far the trial's unit went on.
OnProgress = Callable[[int, TrialId, Reached], None]

Sums = dict[str, Sum]
States = dict[TrialId, Parcel]
Units = dict[TrialId, Unit]
Parcels = Mapping[TrialId, Any]  # references to states
Visits = tuple[Visit, ...]
Newest = tuple[Visits, Seconds]  # a trial's visits, and its training since it was durable
Parts = Iterator[tuple[TrialId, Part | Done | Returned | TrialError]]


class _GoneError(Exception):
    """The state is not held here any more."""


@dataclass(eq=False, slots=True)
class UnitResult:
    """What came of a unit, and the sums of its values where it was trained."""

    news: Done | Returned | TrialError | Cut
    values: Sums


class UnitSums:
    """What the parts of a unit add up to.

    A slot reports a unit once it is made, with the values and seconds of all its parts.
    """

    def __init__(self) -> None:
        self.samples = 0.0
        self.values: Sums = {}
        self.spent: dict[str, Seconds] = {}
        self.within: tuple[Scored, ...] = ()

    def add(self, part: Part) -> None:
        """Add a part of the unit."""
        self.samples += part.samples
        for name, (total, count) in part.values.items():
            total_before, count_before = self.values.get(name, (0.0, 0.0))
            self.values[name] = (total_before + total, count_before + count)
        if part.scored is not None:
            self.within += (part.scored,)

    def add_seconds(self, spent: Mapping[str, Seconds]) -> None:
        """Add the seconds that a part, or the unit's end, took."""
        for name, seconds in spent.items():
            self.spent[name] = self.spent.get(name, 0.0) + seconds

    def done(self, done: Done) -> UnitResult:
        """The unit, with what all of it took."""
        return UnitResult(replace(done, spent=self.spent, within=self.within), self.values)


Results = dict[TrialId, UnitResult]


class SlotRounds:
    """Makes units with a trainer.

    The newest state of a trial that was trained here stays here, so that its next unit needs none
    from the object store. A state that became void elsewhere is noticed by the unit's visits.

    `void`: rounds to halt, as they change.
    """

    def __init__(
        self, trainer: SlotTrainer | FunctionTrainer, void: Set[int], on_progress: OnProgress
    ) -> None:
        self._trainer = trainer
        self._void = void
        self._on_progress = on_progress
        # Each trial's visits and age after its last unit here.
        self._newest: dict[TrialId, Newest] = {}

    # -- units of one slot ---------------------------------------------------------------------

    def train(
        self,
        number: int,
        units: Units,
        fuse: bool,
        parcels: Parcels,
        measured: Collection[str] | None,
    ) -> tuple[Outcomes, States]:
        """Make a unit of each trial: what came of each, and the states after them.

        `parcels`: as of `SlotActor.train`. `measured`: as of `SlotTrainer.together`.
        """
        outcomes: dict[TrialId, Outcome] = {}
        states: States = {}
        located: dict[TrialId, tuple[Unit, int]] = {}
        for trial, unit in units.items():
            try:
                located[trial] = self._located(unit, parcels.get(trial))
            except (RayError, _GoneError):
                outcomes[trial] = Lost()

        try:
            results = self._make(number, [unit for unit, _ in located.values()], fuse, measured)
        except DataError as error:
            return outcomes | unreadable(error, units), {}
        for trial, result in results.items():
            _, fetched = located[trial]
            outcomes[trial], state = self._outcome(units[trial], result, fetched)
            if state is not None:
                states[trial] = state

        return outcomes, states

    def _outcome(
        self, unit: Unit, result: UnitResult, fetched: int
    ) -> tuple[Outcome, Parcel | None]:
        """What came of a unit, and the state after it if that is asked for."""
        if isinstance(result.news, Done):
            return self._trained(unit, result.news, result.values, fetched)
        return result.news, None

    def _trained(
        self, unit: Unit, done: Done, values: Sums, fetched: int
    ) -> tuple[Trained, Parcel | None]:
        """The report of a unit that was made, and the state after it where that is asked for."""
        self._newest[unit.trial.id] = (*unit.visits, done.visit), done.age
        if done.state is None:
            return Trained(done, values, fetched, 0), None
        size = size_of(done.state)
        trained = Trained(replace(done, state=None), values, fetched, size)
        return trained, parcel_of(done.state, size)

    def _located(self, unit: Unit, parcel: Any) -> tuple[Unit, int]:
        """The unit, with its source if the state is not held here, and the bytes fetched."""
        trial = unit.trial.id
        visits, age = self._newest.get(trial, ((), 0.0))
        if unit.visits[: len(visits)] != visits:  # what is held here became void
            self._trainer.forget(trial)
        elif self._holds(unit, visits):
            return replace(unit, source=None, age=age), 0

        if parcel is not None:
            state, _ = fetched(parcel)
            return replace(unit, source=state), size_of(state)
        if unit.visits and unit.source is None:
            raise _GoneError(trial)
        return unit, 0

    def _holds(self, unit: Unit, visits: Visits) -> bool:
        """Whether the state after these visits is here, and is the one that the unit needs."""
        if not unit.visits or visits != unit.visits:
            return False
        return self._trainer.holds(unit.trial.id, len(visits))

    def _make(
        self, number: int, units: Sequence[Unit], fuse: bool, measured: Collection[str] | None
    ) -> Results:
        """Train units part by part: what came of each.

        Units under way are cut when the round is halted between two parts.
        """
        parts = self._trainer.train_pack(units, fuse, measured)
        results, complete = self._parts(number, units, parts)
        if complete:
            return results
        parts.close()
        cut = {unit.trial.id: UnitResult(Cut(), {}) for unit in units}
        return cut | results

    def _parts(self, number: int, units: Sequence[Unit], parts: Parts) -> tuple[Results, bool]:
        """What came of the units that are through, and whether they all are."""
        sums = {unit.trial.id: UnitSums() for unit in units}
        results: Results = {}
        while number not in self._void:
            step = next(parts, None)
            if step is None:
                return results, True
            trial, news = step
            if isinstance(news, Returned | TrialError):
                results[trial] = UnitResult(news, {})
                continue
            sums[trial].add_seconds(news.spent)
            if isinstance(news, Done):
                results[trial] = sums[trial].done(news)
                continue
            sums[trial].add(news)
            reached = Reached(sums[trial].samples, sums[trial].within)
            self._on_progress(number, trial, reached)

        return results, False

    def give(self, trial: TrialId, forget: bool) -> tuple[int, Parcel]:
        """Bytes of the trial's state here, and the state; with `forget` it lives on elsewhere."""
        state = self._trainer.state(trial)
        if forget:
            self._trainer.forget(trial)
        size = size_of(state)
        return size, parcel_of(state, size)

    # -- units of several slots ----------------------------------------------------------------

    def wide(
        self,
        number: int,
        unit: Unit,
        seat: Seat,
        orders: Orders,
        joins: bool,
        parcel: Sequence[Any],
    ) -> tuple[Share, Any]:
        """Take part in a unit that several processes make: what came of it, and the state after it.

        Arguments: as of `SlotActor.wide`.
        """
        share: Share
        try:
            return self._part(number, unit, seat, orders, joins, parcel)
        except Halted:
            share = Cut()
        except Adrift:
            share = Drifting()
        except TrialError as error:
            share = error
        except DataError as error:
            share = unreadable(error, {unit.trial.id: unit})[unit.trial.id]
        except RayError:
            share = Lost()
        except LookupError as error:
            if type(error) is not LookupError:  # a fault of ours
                raise
            share = Lost()

        return share, None

    def _part(
        self,
        number: int,
        unit: Unit,
        seat: Seat,
        orders: Orders,
        joins: bool,
        parcel: Sequence[Any],
    ) -> tuple[Share, Any]:
        """Take part as of `wide`, with exceptions for what went wrong."""
        fetched = 0
        stored = None
        if parcel:
            stored = parcel[0]
        with suppress(_GoneError):  # others have it
            unit, fetched = self._located(unit, stored)

        if number in self._void:
            return Cut(), None

        def on(reached: Reached) -> None:
            self._on_progress(number, unit.trial.id, reached)

        outcome = self._ranks().run(unit, seat, orders, joins=joins, on=on)
        if outcome is None:
            return Cut(), None
        if isinstance(outcome, Made):
            return outcome, None

        done, values = outcome
        return self._trained(unit, done, values, fetched)

    def _ranks(self) -> GangUnits:
        """What takes part in units of several slots."""
        assert isinstance(self._trainer, SlotTrainer), "a function has one slot"
        return self._trainer.gang

    def conclude(
        self, trial: TrialId, visits: Visits, scores: Any, age: Seconds, last: bool
    ) -> None:
        """Note that another process has reported a unit that was made here, too."""
        if self._ranks().conclude(trial, visits, scores, last):
            self._newest[trial] = visits, age


def parcel_of(state: Tree, size: int) -> Parcel:
    """The state, filled up so that it stays in the object store."""
    if size <= FILL.nbytes:
        return state, FILL
    return state, None


def unreadable(error: DataError, units: Units) -> dict[TrialId, Outcome]:
    """What came of these units, as a shard that one of them visits cannot be read.

    Raises:
        DataError: the error is about something else.
    """
    if all(unit.visit.shard != error.part for unit in units.values()):
        raise error
    return dict.fromkeys(units, Unreadable(ShardId(error.part), str(error)))


@dataclass(frozen=True, slots=True)
class OpenSlot:
    """A slot that is ready."""

    trainer: SlotTrainer | FunctionTrainer
    rounds: SlotRounds
    checkpoints: Checkpoints
    meeting: Meeting  # of processes that train a wide lane, kept open as long as the slot is there
    hello: Hello

    def close(self) -> None:
        """End what runs here beside units."""
        if isinstance(self.trainer, FunctionTrainer):
            self.trainer.close()


def open_slot(
    setup: SlotSetup,
    folder: Path,
    void: Set[int],
    on_progress: OnProgress,
    turn_of: Callable[[TrialId], None],
) -> OpenSlot:
    """Get the data, and make the trainer.

    `folder`: of the node's copy of the data. `void`, `on_progress`: see `SlotRounds`. `turn_of`:
    called before a trial's code runs.

    Raises:
        DataError, OSError: as `data.shared`.
    """
    options = setup.trainer.options
    recipe, pace, placed = pickle.loads(setup.user)
    data = data_copy.data_here(recipe, placed, folder, setup.fingerprint)
    data = with_deals(data, folder, setup.user)
    # Slots on several machines write side by side: a name of its own for each.
    name = secrets.token_hex(4)
    checkpoints = Checkpoints(setup.checkpoints, setup.trainer.run, name)
    device = "cpu"
    if setup.gpus > 0:
        device = "cuda"
    memory = _memory(setup, device)
    trainer_setup = replace(_limited(setup, memory), device=device, pace=pace)
    node = ray.get_runtime_context().get_node_id()
    window = feed.find(setup.token, node, options.feeders, options.stream_samples)
    trainer: SlotTrainer | FunctionTrainer
    if isinstance(recipe, FunctionRecipe):
        logs = Path(setup.logs) if setup.logs else None
        trainer = FunctionTrainer(recipe, checkpoints, trainer_setup, logs=logs, turn_of=turn_of)
    else:
        trainer = SlotTrainer(
            recipe,
            data,
            checkpoints,
            trainer_setup,
            turn_of=turn_of,
            feed=window,
            remote_validation=elsewhere_of(setup, data),
        )
    watch_calls(CallLimits(options.hang_after, options.stuck_after))
    dedicate(f"trials of the study with checkpoints in {setup.checkpoints}")
    # Ray's handler of it has no meaning in what a trial forks, and would keep that alive.
    in_forks(lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL))
    rounds = SlotRounds(trainer, void, on_progress)
    meeting = Meeting(cluster.address())
    if device == "cpu" and options.slot_memory_gb is not None:
        limit_space(options.slot_memory_gb)
    hello = _hello(device, memory, meeting.address, data)
    return OpenSlot(trainer, rounds, checkpoints, meeting, hello)


def _hello(device: str, memory: GiB, meeting: str, data: Data) -> Hello:
    """What the slot says when it is ready, with the shards that lie here."""
    damaged = data.damaged()
    shards = frozenset(data.shards) - damaged.keys()
    pid = os.getpid()
    return Hello(
        host=cluster.node_here().host,
        kind=device,
        memory=memory,
        pid=pid,
        born=born(pid),
        meeting=meeting,
        shards=frozenset(filter(data.is_here, shards)),
        damaged=damaged,
    )


def _memory(setup: SlotSetup, device: str) -> GiB:
    """What the slot may use of the device's memory."""
    share = 1.0
    if _shares_gpu(setup):
        share = setup.gpus
    options = setup.trainer.options
    return limit_memory(device, options.slot_memory_gb, share, options.data_memory_gb)


def _limited(setup: SlotSetup, memory: GiB) -> TrainerSetup:
    """The trainer's setup, which limits its memory only where others use the rest."""
    if _shares_gpu(setup) or setup.trainer.options.slot_memory_gb is not None:
        return setup.trainer.with_options(slot_memory_gb=memory)
    return setup.trainer


def _shares_gpu(setup: SlotSetup) -> bool:
    return 0 < setup.gpus < 1


# Threads: one makes units one after another, and beside it run those that must not wait.
GROUPS = {"train": 1, "control": 2, "watch": 1, "news": 1}
NEWS = 2.0  # seconds between two answers about how far a round is

Progress = tuple[int, dict[TrialId, Reached]]  # a round, and how far its units are


class SlotActor:
    """A slot's process. Methods up to `keep` run one after another in the thread that trains."""

    def __init__(self, setup: SlotSetup) -> None:
        limit_threads(setup.trainer.options.threads)
        self._setup = setup
        node = ray.get_runtime_context().get_node_id()
        self._folder = data_copy.place(setup.token, node, setup.cache)
        self._prints = Prints()
        self._left = threading.Event()
        self._void: set[int] = set()  # rounds to halt
        self._closed: set[int] = set()  # rounds that are not to begin: called off, or begun already
        self._orders: dict[int, Orders] = {}  # to those who make a unit together
        self._last_shared = -1  # the number of the last of such units that ended here
        self._progress: Progress = (-1, {})
        self._last_news = self._progress  # as of the answer before
        self._measured = threading.Event()  # a rate, which is reported at once
        self._opened: OpenSlot

    # -- the thread that trains --------------------------------------------------------------------

    def open(self) -> Hello | Broken:
        """Get the data, and make the trainer."""
        try:
            self._opened = open_slot(
                self._setup, self._folder, self._void, self._on_progress, self._print_of
            )
        except BaseException as error:  # noqa: BLE001 the driver raises it
            return Broken(portable(error))

        return self._opened.hello

    def train(self, number: int, task: bytes, parcels: Mapping[TrialId, Any]) -> tuple[Any, ...]:
        """Make a round: `task` is pickled (units by trial, whether lanes may be fused, signatures
        whose speed is known).

        Its first result is small: what came of each unit, or of all. One more for each unit, the
        state after it, stays in the object store. `parcels`: references to the states before them,
        looked at only where those are not held here.
        """
        units: dict[TrialId, Unit]
        units, fuse, measured = pickle.loads(task)
        if number in self._closed or number in self._void:
            return (dict.fromkeys(units, Cut()), *(None for _ in units))

        self._closed.add(number)  # too late from now on
        outcome: Outcomes
        states: dict[TrialId, Parcel] = {}
        with self._printing():
            try:
                rounds = self._opened.rounds
                outcome, states = rounds.train(number, units, fuse, parcels, measured)
            except BaseException as error:  # noqa: BLE001 the driver raises it
                outcome = Broken(portable(error))

        return (outcome, *(states.get(trial) for trial in units))

    def wide(self, number: int, task: bytes, parcel: Sequence[Any]) -> tuple[Share, Any]:
        """Take part in a unit: `task` is pickled (unit, seat, whether others are at it already).

        What came of it, and the state after it where that is asked for. `parcel`: as `parcels` of
        `train`, or nothing.
        """
        unit, seat, joins = pickle.loads(task)
        orders = self._orders.setdefault(number, Orders())
        with self._printing():
            self._print_of(unit.trial.id)
            try:
                rounds = self._opened.rounds
                return rounds.wide(number, unit, seat, orders, joins, parcel)
            except BaseException as error:  # noqa: BLE001 the driver raises it
                return Broken(portable(error)), None
            finally:
                self._last_shared = number
                self._orders.pop(number, None)

    def conclude(self, trial: TrialId, report: bytes) -> None:
        """Note that another process has reported a unit that was made here, too.

        `report`: pickled (visits, scores, age, last).
        """
        visits, scores, age, last = pickle.loads(report)
        self._opened.rounds.conclude(trial, visits, scores, age, last)

    def forget(self, trial: TrialId) -> None:
        """Forget the trial, which goes on elsewhere."""
        self._opened.trainer.forget(trial)

    def give(self, trial: TrialId, forget: bool) -> tuple[int, Parcel]:
        """Bytes of the trial's state here, and the state; with `forget` it lives on elsewhere."""
        return self._opened.rounds.give(trial, forget)

    def keep(self, trial: TrialId) -> str:
        """Make the trial's state here durable; the checkpoint's name."""
        return self._opened.trainer.keep(trial)

    # -- beside the thread that trains -----------------------------------------------------------

    def save(self, trial: TrialId, visits: int, parcel: Sequence[Any]) -> str:
        """Make a state that lies in the object store durable; the checkpoint's name."""
        checkpoints = self._opened.checkpoints
        name = checkpoints.name(trial, visits)
        state, _ = fetched(parcel[0])
        checkpoints.save(name, state)
        return name

    def halt(self, number: int) -> None:
        """Stop the round between two of its parts; it is void."""
        self._void.add(number)
        orders = self._orders.get(number)
        if orders is not None:
            orders.halt()

    def move(self, number: int, to: Move) -> None:
        """Have the unit go on among other processes."""
        if number > self._last_shared:  # numbers only rise, and calls are made in their order
            self._orders.setdefault(number, Orders()).move(to)

    def call_off(self, number: int) -> None:
        """Leave the round out, unless it has begun."""
        self._closed.add(number)

    def _on_progress(self, number: int, trial: TrialId, reached: Reached) -> None:
        """Note how far the trial's unit in that round is."""
        if self._progress[0] != number:
            self._progress = number, {}
        before = self._progress[1].get(trial)
        self._progress[1][trial] = reached
        if reached.rates and (before is None or before.rates != reached.rates):
            self._measured.set()

    def news(self) -> Progress:
        """How far the units of a round are.

        The answer comes as soon as a rate was measured, or else something is not as in the last
        answer; else after some seconds: it tells that this process lives.
        """
        until = monotonic() + PULSE
        while not self._left.is_set():
            self._measured.wait(NEWS)
            self._measured.clear()
            number, progress = self._progress
            if (number, progress) != self._last_news or monotonic() > until:
                self._last_news = number, dict(progress)
                return self._last_news
        return -1, {}

    def watch(self) -> None:
        """Return when the slot leaves in good order; fail when its process dies."""
        self._left.wait()

    def leave(self, clear: bool) -> None:
        """Let `watch` return; `clear`: nobody needs this node's copy of the data any more."""
        if clear:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._opened.close()
        self._left.set()
        self._measured.set()

    def _print_of(self, trial: TrialId) -> None:
        """Have what is printed from now on go to that trial's log."""
        log = None
        if self._setup.logs:
            log = Path(self._setup.logs) / trial / "log.txt"
        self._prints.go_to(log)

    @contextmanager
    def _printing(self) -> Iterator[None]:
        """Have what trials' code prints go to their logs; of fused ones, to that of the first."""
        try:
            with redirect_stdout(self._prints), redirect_stderr(self._prints):
                yield
        finally:
            self._prints.close_all()
