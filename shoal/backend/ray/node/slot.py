"""What runs in a slot's process: one Station.

It trains in a thread of its own, so that calls reach the process meanwhile.
"""

import pickle
import shutil
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from time import monotonic
from typing import Any

import ray

from shoal.backend.ray.node import data as node_data
from shoal.backend.ray.node.opened import OpenSlot, open_slot
from shoal.backend.ray.node.outcomes import (
    Broken,
    Cut,
    Hello,
    Outcomes,
    Parcel,
    Share,
)
from shoal.backend.ray.node.process import Prints, fetched, limit_threads, portable
from shoal.backend.ray.node.setup import SlotSetup
from shoal.backend.silence import PULSE
from shoal.core.trial import TrialId
from shoal.train.recipe.seat import Move, Orders
from shoal.train.recipe.unit import Reached, Unit

# Threads: one makes units one after another, and beside it run those that must not wait.
GROUPS = {"train": 1, "control": 2, "watch": 1, "news": 1}
NEWS = 2.0  # seconds between two answers about how far a round is

Progress = tuple[int, dict[TrialId, Reached]]  # a round, and how far its units are


class SlotActor:
    """A slot's process. Methods up to `keep` run one after another in the thread that trains."""

    def __init__(self, setup: SlotSetup) -> None:
        limit_threads(setup.station.threads)
        self._setup = setup
        node = ray.get_runtime_context().get_node_id()
        self._folder = node_data.place(setup.token, node, setup.cache)
        self._prints = Prints()
        self._left = threading.Event()
        self._void: set[int] = set()  # rounds to halt
        self._off: set[int] = set()  # rounds to call off, unless they began
        self._orders: dict[int, Orders] = {}  # to those who make a unit together
        self._ended = -1  # the last of such units here
        self._progress: Progress = (-1, {})
        self._said = self._progress  # by the answer before
        self._measured = threading.Event()  # a rate, which is told at once
        self._opened: OpenSlot

    # -- the thread that trains --------------------------------------------------------------------

    def open(self) -> Hello | Broken:
        """Get the data, make the station."""
        try:
            self._opened = open_slot(
                self._setup, self._folder, self._void, self._on, self._print_of
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
        if number in self._off or number in self._void:
            return (dict.fromkeys(units, Cut()), *(None for _ in units))

        self._off.add(number)  # too late from now on
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
                self._ended = number
                self._orders.pop(number, None)

    def conclude(self, trial: TrialId, report: bytes) -> None:
        """Another process has reported a unit that was made here, too.

        `report`: pickled (visits, scores, age, last).
        """
        visits, scores, age, last = pickle.loads(report)
        self._opened.rounds.conclude(trial, visits, scores, age, last)

    def forget(self, trial: TrialId) -> None:
        """The trial goes on elsewhere."""
        self._opened.station.forget(trial)

    def give(self, trial: TrialId, forget: bool) -> tuple[int, Parcel]:
        """Bytes of the trial's state here, and the state; with `forget` it lives on elsewhere."""
        return self._opened.rounds.give(trial, forget)

    def keep(self, trial: TrialId) -> str:
        """Make the trial's state here durable; the checkpoint's name."""
        return self._opened.station.keep(trial)

    # -- beside it -------------------------------------------------------------------------------

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
        if number > self._ended:  # numbers only rise, and calls are made in their order
            self._orders.setdefault(number, Orders()).move(to)

    def call_off(self, number: int) -> None:
        """Leave the round out, unless it has begun."""
        self._off.add(number)

    def _on(self, number: int, trial: TrialId, reached: Reached) -> None:
        """The trial's unit in that round went on to there."""
        if self._progress[0] != number:
            self._progress = number, {}
        before = self._progress[1].get(trial)
        self._progress[1][trial] = reached
        if reached.rates and (before is None or before.rates != reached.rates):
            self._measured.set()

    def news(self) -> Progress:
        """How far the units of a round are.

        The answer comes as soon as a rate was measured, or else something is not what was told
        last; else after some seconds: it tells that this process lives.
        """
        until = monotonic() + PULSE
        while not self._left.is_set():
            self._measured.wait(NEWS)
            self._measured.clear()
            number, at = self._progress
            if (number, at) != self._said or monotonic() > until:
                self._said = number, dict(at)
                return self._said
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
        """What is printed from now on goes to that trial's log."""
        log = None
        if self._setup.logs:
            log = Path(self._setup.logs) / trial / "log.txt"
        self._prints.go_to(log)

    @contextmanager
    def _printing(self) -> Iterator[None]:
        """What the trials' code prints goes to their logs; of fused ones, to that of the first."""
        try:
            with redirect_stdout(self._prints), redirect_stderr(self._prints):
                yield
        finally:
            self._prints.close_all()
