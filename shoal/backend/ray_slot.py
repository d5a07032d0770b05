"""What runs in a slot's process: one Station, trained in a thread of its own, so that calls reach it meanwhile."""

import os
import pickle
import platform
import secrets
import shutil
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import ray
from ray.exceptions import RayError

from shoal.backend import ray_cluster, ray_data, ray_feeder
from shoal.backend.ray_process import FILL, Prints, fetched, limit_space, portable
from shoal.core.cluster import GiB
from shoal.core.event import Sum
from shoal.core.trial import Samples, Seconds, TrialId, Visit
from shoal.train.seat import Move, Orders, Seat
from shoal.train.unit import Done, Made, Tree, TrialError, Unit

if TYPE_CHECKING:
    from shoal.train.checkpoint import Vault
    from shoal.train.station import Station

# threads: units one after another, and beside them what must not wait
GROUPS = {"train": 1, "control": 2, "watch": 1, "news": 1}
NEWS = 2.0  # seconds between two answers about how far a round is
Parcel = tuple[Tree, Any]  # a state, and filling


@dataclass(frozen=True, slots=True)
class Setup:
    """What a slot has to know of the study."""

    user: bytes  # (recipe, pace), pickled with their code
    checkpoints: str
    run: int
    seed: int
    threads: int
    gpus: float  # the slot's share of them
    metric: str | None
    checkpoint_every: Seconds
    data_memory_gb: GiB
    state_memory_gb: GiB
    slot_memory_gb: GiB | None  # of the slot in all
    fingerprint: str  # of the data
    token: str  # names this run's copies of the data
    cache: str | None  # where they lie
    logs: str | None  # folder for what the trials' code prints
    feeders: int | Literal["auto"] = 0  # processes of each node that prepare chunks for its slots
    stream_memory_gb: GiB = 1.0  # of chunks that a node's feeders hold for slots that come later
    stream_samples: int = 2048  # that they prepare before a slot asks for them


@dataclass(frozen=True, slots=True)
class Hello:
    """The slot is ready."""

    host: str
    kind: str
    memory: GiB
    pid: int
    meeting: str  # where processes of wide lanes can meet: "host:port"


@dataclass(frozen=True, slots=True)
class Trained:
    """The unit was made; its state travels apart from this."""

    done: Done
    values: dict[str, Sum]
    fetched: int  # bytes of state read from the object store for it
    size: int  # bytes of the state returned


@dataclass(frozen=True, slots=True)
class Cut:
    """The unit was not made here: halted, called off before it began, or left to others on order."""


@dataclass(frozen=True, slots=True)
class Drifting:
    """Of a unit that several slots make: a peer was lost, and nobody said how to go on; to be asked again for the same unit."""


@dataclass(frozen=True, slots=True)
class Lost:
    """The state it was to go on from is nowhere any more."""


@dataclass(frozen=True, slots=True)
class Broken:
    """Disk, data or Shoal itself failed, not the trial: the study must pause."""

    error: BaseException


Outcome = Trained | Cut | Lost | TrialError
Outcomes = Mapping[TrialId, Outcome] | Broken  # of a round
Share = Outcome | Made | Drifting | Broken  # what came of a process's part in a unit that several make


class _GoneError(Exception):
    """The state is not held here any more."""


class Host:
    """A slot's process. Methods up to `keep` run one after another in the thread that trains."""

    def __init__(self, setup: Setup) -> None:
        for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):  # before torch is imported
            os.environ[name] = str(setup.threads)
        self._setup = setup
        self._shelf = ray_data.place(setup.token, ray.get_runtime_context().get_node_id(), setup.cache)
        self._prints = Prints()
        self._left = threading.Event()
        self._void: set[int] = set()  # rounds to halt
        self._orders: dict[int, Orders] = {}  # to those who make a unit together
        self._ended = -1  # the last of such units here
        self._went = self._said = (-1, dict[TrialId, Samples]())  # a round, and how far its units are; as was told last
        self._off: set[int] = set()  # rounds to call off, unless they began
        self._made: dict[TrialId, tuple[tuple[Visit, ...], Seconds]] = {}  # visits and age after each trial's last unit here
        self._station: Station
        self._vault: Vault

    # -- the thread that trains ----------------------------------------------------------------------------------------

    def open(self) -> Hello | Broken:
        """Get the data, make the station."""
        try:
            return self._open()
        except BaseException as error:  # noqa: BLE001 the driver raises it
            return Broken(portable(error))

    def _open(self) -> Hello:
        from shoal.train.checkpoint import Vault
        from shoal.train.device import limit_memory
        from shoal.train.group import Meeting
        from shoal.train.station import Station

        at = self._setup
        recipe, pace = pickle.loads(at.user)
        data = ray_data.shared(self._shelf, os.getppid(), recipe.data, at.fingerprint)
        self._vault = Vault(at.checkpoints, at.run, secrets.token_hex(4))  # slots on several machines write side by side
        device = "cuda" if at.gpus > 0 else "cpu"
        shares = 0 < at.gpus < 1
        memory = limit_memory(device, at.slot_memory_gb, at.gpus if shares else 1.0)
        self._station = Station(
            recipe,
            data,
            self._vault,
            seed=at.seed,
            run=at.run,
            device=device,
            kind=device,
            threads=at.threads,
            checkpoint_every=at.checkpoint_every,
            data_memory_gb=at.data_memory_gb,
            state_memory_gb=at.state_memory_gb,
            slot_memory_gb=memory if shares or at.slot_memory_gb is not None else inf,
            pace=pace,
            metric=at.metric,
            turn_of=self._print_of,
            feed=ray_feeder.find(at.token, ray.get_runtime_context().get_node_id(), at.feeders, at.stream_samples),
        )
        self._meeting = Meeting(ray_cluster.address())
        if device == "cpu" and at.slot_memory_gb is not None:
            limit_space(at.slot_memory_gb)
        return Hello(platform.node(), device, memory, os.getpid(), self._meeting.address)

    def train(self, number: int, told: bytes, parcels: Mapping[TrialId, Any]) -> tuple[Any, ...]:
        """Make a round: `told` is pickled (units by trial, whether lanes may be fused).

        Its first result is small: what came of each unit, or of all. One more for each unit, the state after it, stays in
        the object store. `parcels`: references to the states before them, looked at only where those are not held here.
        """
        units: dict[TrialId, Unit]
        units, fuse = pickle.loads(told)
        with self._printing():
            try:
                made = self._train(number, units, fuse, parcels)
            except BaseException as error:  # noqa: BLE001 the driver raises it
                made = Broken(portable(error)), dict[TrialId, Parcel]()
        outcome, states = made
        return (outcome, *(states.get(trial) for trial in units))

    def _train(
        self, number: int, units: dict[TrialId, Unit], fuse: bool, parcels: Mapping[TrialId, Any]
    ) -> tuple[Outcomes, dict[TrialId, Parcel]]:
        from shoal.train.tree import size_of

        if number in self._off or number in self._void:
            return dict.fromkeys(units, Cut()), {}
        self._off.add(number)  # too late from now on
        outcomes: dict[TrialId, Outcome] = {}
        states: dict[TrialId, Parcel] = {}
        located, fetched = {}, {}
        for trial, unit in units.items():
            try:
                located[trial], fetched[trial] = self._located(unit, parcels.get(trial))
            except (RayError, _GoneError):
                outcomes[trial] = Lost()
        for trial, (news, values) in self._make(number, list(located.values()), fuse).items():
            if isinstance(news, Done):
                self._made[trial] = (*units[trial].visits, news.visit), news.age
                size = size_of(news.state) if news.state is not None else 0
                outcomes[trial] = Trained(replace(news, state=None), values, fetched[trial], size)
                if news.state is not None:
                    states[trial] = _parcel(news.state, size)
            else:
                outcomes[trial] = news
        return outcomes, states

    def _located(self, unit: Unit, parcel: Any) -> tuple[Unit, int]:
        """The unit, with its source where the state is not held here, and the bytes fetched for that."""
        from shoal.train.tree import size_of

        trial = unit.trial.id
        visits, age = self._made.get(trial, ((), 0.0))
        if unit.visits[: len(visits)] != visits:  # what is held here became void
            self._station.forget(trial)
        elif unit.visits and visits == unit.visits and self._station.holds(trial, len(visits)):
            return replace(unit, source=None, age=age), 0
        if parcel is None:
            if unit.visits and unit.source is None:
                raise _GoneError(trial)
            return unit, 0
        state, _ = fetched(parcel)
        return replace(unit, source=state), size_of(state)

    def _make(
        self, number: int, units: Sequence[Unit], fuse: bool
    ) -> dict[TrialId, tuple[Done | TrialError | Cut, dict[str, Sum]]]:
        """Train part by part, and what came of each unit; those under way are cut when the round is halted between two parts."""
        values: dict[TrialId, dict[str, Sum]] = {unit.trial.id: {} for unit in units}
        spent: dict[TrialId, dict[str, Seconds]] = {unit.trial.id: {} for unit in units}
        at = {unit.trial.id: 0.0 for unit in units}
        made: dict[TrialId, tuple[Done | TrialError | Cut, dict[str, Sum]]] = {}
        parts = self._station.together(units, fuse)
        while number not in self._void:
            step = next(parts, None)
            if step is None:
                return made
            trial, news = step
            if isinstance(news, TrialError):
                made[trial] = news, {}
                continue
            _add_seconds(spent[trial], news.spent)
            if isinstance(news, Done):
                made[trial] = replace(news, spent=spent[trial]), values[trial]
                continue
            at[trial] += news.samples
            self._on(number, trial, at[trial])
            for name, (total, count) in news.values.items():
                before = values[trial].get(name, (0.0, 0.0))
                values[trial][name] = before[0] + total, before[1] + count
        parts.close()
        return {trial: (Cut(), {}) for trial in values} | made

    def wide(self, number: int, told: bytes, parcel: Sequence[Any]) -> tuple[Share, Any]:
        """Take part in a unit: `told` is pickled (unit, seat, whether others are at it already).

        What came of it, and the state after it where that is asked for. `parcel`: as `parcels` of `train`, or nothing.
        """
        unit, seat, joins = pickle.loads(told)
        orders = self._orders.setdefault(number, Orders())
        with self._printing():
            self._print_of(unit.trial.id)
            try:
                return self._wide(number, unit, seat, orders, joins, parcel)
            except BaseException as error:  # noqa: BLE001 the driver raises it
                return Broken(portable(error)), None
            finally:
                self._ended = number
                self._orders.pop(number, None)

    def _wide(self, number: int, unit: Unit, seat: Seat, orders: Orders, joins: bool, parcel: Sequence[Any]) -> tuple[Share, Any]:
        from shoal.train.tree import size_of
        from shoal.train.wide import Adrift, Halted

        fetched, state = 0, None
        share: Share = Cut()
        try:
            with suppress(_GoneError):  # others have it
                unit, fetched = self._located(unit, parcel[0] if parcel else None)
            on = partial(self._on, number, unit.trial.id)
            made = self._station.ranks.run(unit, seat, orders, joins=joins, on=on) if number not in self._void else None
            if isinstance(made, Made):
                share = made
            elif made is not None:
                news, values = made
                self._made[unit.trial.id] = (*unit.visits, news.visit), news.age
                size = size_of(news.state) if news.state is not None else 0
                share = Trained(replace(news, state=None), values, fetched, size)
                state = None if news.state is None else _parcel(news.state, size)
        except Halted:
            pass
        except Adrift:
            share = Drifting()
        except TrialError as error:
            share = error
        except (RayError, LookupError) as error:
            if not isinstance(error, RayError) and type(error) is not LookupError:  # a fault of ours
                raise
            share = Lost()
        return share, state

    def conclude(self, trial: TrialId, told: bytes) -> None:
        """Another process has reported a unit that was made here, too: `told` is pickled (visits, scores, age, last)."""
        visits, scores, age, last = pickle.loads(told)
        if self._station.ranks.conclude(trial, visits, scores, last):
            self._made[trial] = visits, age

    def forget(self, trial: TrialId) -> None:
        """The trial goes on elsewhere."""
        self._station.forget(trial)

    def give(self, trial: TrialId, forget: bool) -> tuple[int, Parcel]:
        """Bytes of the trial's state here, and the state; with `forget` it lives on elsewhere only."""
        from shoal.train.tree import size_of

        state = self._station.state(trial)
        if forget:
            self._station.forget(trial)
        size = size_of(state)
        return size, _parcel(state, size)

    def keep(self, trial: TrialId) -> str:
        """Make the trial's state here durable; the checkpoint's name."""
        return self._station.keep(trial)

    # -- beside it -----------------------------------------------------------------------------------------------------

    def save(self, trial: TrialId, visits: int, parcel: Sequence[Any]) -> str:
        """Make a state that lies in the object store durable; the checkpoint's name."""
        name = self._vault.name(trial, visits)
        self._vault.save(name, fetched(parcel[0])[0])
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

    def _on(self, number: int, trial: TrialId, samples: Samples) -> None:
        """The trial's unit in that round went on to so many samples."""
        if self._went[0] != number:
            self._went = number, {}
        self._went[1][trial] = samples

    def news(self) -> tuple[int, dict[TrialId, Samples]]:
        """How far the units of a round are, once that is not what was told last."""
        while not self._left.wait(NEWS):
            number, at = self._went
            if (number, at) != self._said:
                self._said = number, dict(at)
                return self._said
        return -1, {}

    def watch(self) -> None:
        """Return when the slot leaves in good order; fail when its process dies."""
        self._left.wait()

    def leave(self, clear: bool) -> None:
        """Let `watch` return; `clear`: nobody needs this node's copy of the data any more."""
        if clear:
            shutil.rmtree(self._shelf, ignore_errors=True)
        self._left.set()

    def _print_of(self, trial: TrialId) -> None:
        """What is printed from now on goes to that trial's log."""
        self._prints.go_to(Path(self._setup.logs) / trial / "log.txt" if self._setup.logs else None)

    @contextmanager
    def _printing(self) -> Iterator[None]:
        """What the trials' code prints goes to their logs; of fused ones, to that of the first."""
        try:
            with redirect_stdout(self._prints), redirect_stderr(self._prints):
                yield
        finally:
            self._prints.close_all()


def _parcel(state: Tree, size: int) -> Parcel:
    return state, FILL if size <= FILL.nbytes else None


def _add_seconds(total: dict[str, Seconds], more: Any) -> None:
    for name, seconds in more.items():
        total[name] = total.get(name, 0.0) + seconds
