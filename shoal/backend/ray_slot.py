"""What runs in a slot's process: one Station, trained in a thread of its own, so that calls reach it meanwhile."""

import io
import os
import pickle
import platform
import secrets
import shutil
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import ray
from ray.exceptions import RayError

from shoal.backend import ray_data, ray_feeder
from shoal.core.cluster import GiB
from shoal.core.event import Sum
from shoal.core.trial import Seconds, TrialId, Visit
from shoal.train.unit import Done, Tree, TrialError, Unit

if TYPE_CHECKING:
    from shoal.train.checkpoint import Vault
    from shoal.train.station import Station

GROUPS = {"train": 1, "control": 2, "watch": 1}  # threads: units one after another, and beside them what must not wait
# What a call returns below 100 kB travels inside its answer, to the driver. Filled up beyond, it stays in the object store.
FILL = np.zeros(128 * 1024, dtype=np.uint8)
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
    feeders: int = 0  # processes of each node that prepare chunks for its slots
    stream_memory_gb: GiB = 1.0  # of chunks that a node's feeders hold for slots that come later


@dataclass(frozen=True, slots=True)
class Hello:
    """The slot is ready."""

    host: str
    kind: str
    memory: GiB
    pid: int


@dataclass(frozen=True, slots=True)
class Trained:
    """The unit was made; its state travels apart from this."""

    done: Done
    values: dict[str, Sum]
    fetched: int  # bytes of state read from the object store for it
    size: int  # bytes of the state returned


@dataclass(frozen=True, slots=True)
class Cut:
    """The unit was not made: its round was halted, or called off before it began."""


@dataclass(frozen=True, slots=True)
class Lost:
    """The state it was to go on from is nowhere any more."""


@dataclass(frozen=True, slots=True)
class Broken:
    """Disk, data or Shoal itself failed, not the trial: the study must pause."""

    error: BaseException


Outcome = Trained | Cut | Lost | TrialError
Outcomes = Mapping[TrialId, Outcome] | Broken  # of a round


class _GoneError(Exception):
    """The state is not held here any more."""


class Host:
    """A slot's process. Of its methods `open`, `train`, `give` and `keep` run one after another in the thread that trains."""

    def __init__(self, setup: Setup) -> None:
        for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):  # before torch is imported
            os.environ[name] = str(setup.threads)
        self._setup = setup
        self._shelf = ray_data.place(setup.token, ray.get_runtime_context().get_node_id(), setup.cache)
        self._prints = _Prints()
        self._left = threading.Event()
        self._void: set[int] = set()  # rounds to halt
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
            return Broken(_portable(error))

    def _open(self) -> Hello:
        from shoal.train.checkpoint import Vault
        from shoal.train.device import limit_memory
        from shoal.train.station import Station

        at = self._setup
        recipe, pace = pickle.loads(at.user)
        data = ray_data.shared(self._shelf, os.getppid(), recipe.data, at.fingerprint)
        self._vault = Vault(at.checkpoints, at.run, secrets.token_hex(4))  # slots on several machines write side by side
        device = "cuda" if at.gpus > 0 else "cpu"
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
            slot_memory_gb=inf if at.slot_memory_gb is None else at.slot_memory_gb,
            pace=pace,
            metric=at.metric,
            feed=ray_feeder.find(at.token, ray.get_runtime_context().get_node_id(), at.feeders),
        )
        memory = limit_memory(device, at.slot_memory_gb, at.gpus if 0 < at.gpus < 1 else 1.0)
        if device == "cpu" and at.slot_memory_gb is not None:
            _limit_space(at.slot_memory_gb)
        return Hello(platform.node(), device, memory, os.getpid())

    def train(self, number: int, told: bytes, parcels: Mapping[TrialId, Any]) -> tuple[Any, ...]:
        """Make a round: `told` is pickled (units by trial, whether lanes may be fused).

        Its first result is small: what came of each unit, or of all. One more for each unit, the state after it, stays in
        the object store. `parcels`: references to the states before them, looked at only where those are not held here.
        """
        units: dict[TrialId, Unit]
        units, fuse = pickle.loads(told)
        with self._printing(*units):
            try:
                made = self._train(number, units, fuse, parcels)
            except BaseException as error:  # noqa: BLE001 the driver raises it
                made = Broken(_portable(error)), dict[TrialId, Parcel]()
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
        state, _ = _fetched(parcel)
        return replace(unit, source=state), size_of(state)

    def _make(
        self, number: int, units: Sequence[Unit], fuse: bool
    ) -> dict[TrialId, tuple[Done | TrialError | Cut, dict[str, Sum]]]:
        """Train part by part, and what came of each unit; those under way are cut when the round is halted between two parts."""
        values: dict[TrialId, dict[str, Sum]] = {unit.trial.id: {} for unit in units}
        spent: dict[TrialId, dict[str, Seconds]] = {unit.trial.id: {} for unit in units}
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
            for name, (total, count) in news.values.items():
                before = values[trial].get(name, (0.0, 0.0))
                values[trial][name] = before[0] + total, before[1] + count
        parts.close()
        return {trial: (Cut(), {}) for trial in values} | made

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
        self._vault.save(name, _fetched(parcel[0])[0])
        return name

    def halt(self, number: int) -> None:
        """Stop the round between two of its parts; it is void."""
        self._void.add(number)

    def call_off(self, number: int) -> None:
        """Leave the round out, unless it has begun."""
        self._off.add(number)

    def watch(self) -> None:
        """Return when the slot leaves in good order; fail when its process dies."""
        self._left.wait()

    def leave(self, clear: bool) -> None:
        """Let `watch` return; `clear`: nobody needs this node's copy of the data any more."""
        if clear:
            shutil.rmtree(self._shelf, ignore_errors=True)
        self._left.set()

    @contextmanager
    def _printing(self, trial: TrialId, *others: TrialId) -> Iterator[None]:
        """What the trial's code prints goes to its log; of a pack, to that of its first trial."""
        self._prints.go_to(Path(self._setup.logs) / trial / "log.txt" if self._setup.logs else None)
        try:
            with redirect_stdout(self._prints), redirect_stderr(self._prints):
                yield
        finally:
            self._prints.go_to(None)


def _fetched(parcel: Any) -> Parcel:
    """What lies in the object store.

    Raises:
        RayError: it is nowhere any more.
    """
    try:
        found: Parcel = ray.get(parcel)
    except RayError:
        raise
    except OSError:  # a broken pipe: this node's object store is gone, and so is the slot; no trial is to blame, nor any disk
        os._exit(1)
    return found


def _limit_space(more: GiB) -> None:
    """Let this process's address space grow by so much from now on (Linux; elsewhere nothing happens)."""
    status = Path("/proc/self/statm")
    if not status.exists():
        return
    import resource

    ray.get(ray.put(FILL))  # the object store's memory is mapped with its first object
    size = int(status.read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + int(more * 2**30), resource.RLIM_INFINITY))


class _Prints(io.TextIOBase):
    """A text file that is made when something is written to it. What cannot be written is left out: it is not worth a trial."""

    def __init__(self) -> None:
        self._path: Path | None = None
        self._file: IO[str] | None = None

    def go_to(self, path: Path | None) -> None:
        """Write there from now on; None: nowhere."""
        if self._file is not None:
            with suppress(OSError):
                self._file.close()
        self._path, self._file = path, None

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        with suppress(OSError):
            if self._file is None and self._path is not None:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                self._file = self._path.open("a", buffering=1)
            if self._file is not None:
                self._file.write(text)
        return len(text)


def _parcel(state: Tree, size: int) -> Parcel:
    return state, FILL if size <= FILL.nbytes else None


def _add_seconds(total: dict[str, Seconds], more: Any) -> None:
    for name, seconds in more.items():
        total[name] = total.get(name, 0.0) + seconds


def _portable(error: BaseException) -> BaseException:
    """The exception, or its text where it cannot be pickled."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # noqa: BLE001 whatever its class does when copied
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
