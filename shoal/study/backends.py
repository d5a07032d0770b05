"""The backend of a run, made ready from what the study and its options say."""

import platform
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from typing import Any, Protocol

from shoal.backend.cluster_start import MOST_EACH, ray_starts
from shoal.backend.local import Local
from shoal.backend.positions import Positions
from shoal.core.cluster import Slot, SlotId
from shoal.core.errors import StudyError
from shoal.core.install import install
from shoal.core.profile import Profile
from shoal.core.state import State
from shoal.core.trial import Samples, Seconds, Trial
from shoal.engine.journal import Grouping
from shoal.engine.process import cpus_here
from shoal.options import Options
from shoal.pool.folder import OpenPool, PoolError, PoolFolder, check_token
from shoal.pool.member import PoolMember, pool_of
from shoal.profile.table import Table
from shoal.study.setup import Setup
from shoal.study.slurm_job import RunPlace
from shoal.train.data.data import Data
from shoal.train.data.node_shards import Survey, surveying
from shoal.train.function.recipe import FunctionRecipe
from shoal.train.function.trainer import FunctionTrainer
from shoal.train.lane.checkpoints import Checkpoints, StaleRun
from shoal.train.lane.device import device_of, gpus, limit_memory
from shoal.train.overdue import watch_calls
from shoal.train.recipe.unit import CallLimits
from shoal.train.slot.setup import TrainerSetup
from shoal.train.slot.trainer import SlotTrainer
from shoal.train.stream.worker_pool import PoolSetup, Workers

# What a slot of this process makes within so many seconds becomes durable together.
TOGETHER: Seconds = 1.0


@dataclass(frozen=True, slots=True)
class Start:
    """What a backend is made from beside options: data, state, time, speeds, place of the run."""

    data: Data
    state: State
    since: Seconds  # of the study: what former runs took
    profile: Profile | None  # a profile that leaves nothing to be measured
    whole: bool = True  # slots must hold all of the data
    # The run before was cut off: the journal must know what this one is at.
    careful: bool = False
    # Told what the run waits for until its first moment, with the time of the study.
    tell: Callable[[Seconds, str], None] = lambda now, text: None
    place: RunPlace = RunPlace()  # the allocation that the run is in, if any
    keep_evaluated: bool = False  # callbacks take the models of evaluated epochs
    priority: float = 1.0  # of the trials that the searcher makes
    widths: tuple[int, int] = (1, 1)  # the fewest and most slots of these trials
    believe: Callable[[State], Profile] | None = None  # how fast trials are


class WiredBackend:
    """A backend, the place of its checkpoints, how to close it, and what has to follow the run."""

    def __init__(
        self,
        backend: Any,
        vault: Checkpoints,
        close: Callable[[], None] = lambda: None,
        watchers: Sequence[Any] = (),
    ) -> None:
        self.backend: Any = backend
        self.vault = vault
        self.close = close
        self.watchers = watchers

    @property
    def grouping(self) -> Grouping | None:
        """How the journal's entries share syncs with the checkpoints; None: they do not."""
        if not self.vault.together:
            return None
        return Grouping(TOGETHER, self.vault.commit, self.vault.sweep)


def check_place(setup: Setup, state: State) -> None:
    """Raise StudyError if a new study's checkpoints would lie among those of another study.

    A study deletes the checkpoints that it does not know.
    """
    place = setup.folder.checkpoints
    if state.run > 0 or not Checkpoints(place, 0).names():
        return
    if setup.folder.elsewhere is not None:
        raise StudyError(
            f"there are checkpoints in {place} already, of another study: "
            "give each its own, checkpoints="
        )
    raise StudyError(
        f"there are checkpoints in {place}, and the journal beside them is gone or empty: bring "
        f"{setup.folder.journal.name} back from a copy, or begin in another folder, storage="
    )


def backend(setup: Setup, options: Options, start: Start) -> WiredBackend:
    """Make the backend ready to run.

    The folder of checkpoints is marked as this run's, so that writers of a former run are refused.
    """
    safe = not (start.careful or start.state.strikes_of_slots)
    together = options.backend == "local" and options.checkpoint_every > 0 and safe
    vault = Checkpoints(setup.folder.checkpoints, start.state.run, together=together)
    if start.state.kept:
        vault.check_there()
    try:
        vault.mark()
    except StaleRun as error:
        raise StudyError(
            f"{error}: if no other run is at work, its journal was cut or replaced; bring the "
            f"newest one back, or have `shoal repair {setup.folder.path}` go on with this one"
        ) from error
    course = Positions(
        setup.seed, start.data.sizes, options.every, start.state, setup.folder.path / "trials"
    )
    if options.backend == "ray":
        return _ray(setup, options, start, vault, course)
    return _local(setup, options, start, vault, course)


def _local(
    setup: Setup, options: Options, start: Start, vault: Checkpoints, course: Any
) -> WiredBackend:
    """The backend of one slot in this process."""
    device = device_of(options.device)
    trainer_setup = TrainerSetup(
        options,
        seed=setup.seed,
        run=start.state.run,
        device=device,
        pace=pace_of(start.profile),
        metric=setup.metric,
        mode=setup.mode,
    )
    limits = CallLimits(options.hang_after, options.stuck_after)
    chunks, node = options.data_memory_gb, platform.node() or "here"
    with ExitStack() as stack:
        trainer, close = _trainer(setup, options, start, vault, trainer_setup)
        stack.callback(close)
        stack.callback(watch_calls(limits))
        memory = limit_memory(device, options.slot_memory_gb, chunks=chunks)
        slot = Slot(SlotId("local"), node, device, memory, frozenset(start.data.shards))
        local = Local(trainer, course, slot, start.since)
        return WiredBackend(local, vault, stack.pop_all().close)


def _trainer(
    setup: Setup, options: Options, start: Start, vault: Checkpoints, trainer_setup: TrainerSetup
) -> tuple[SlotTrainer | FunctionTrainer, Callable[[], None]]:
    """The slot's trainer, and how to close it."""
    if isinstance(setup.recipe, FunctionRecipe):
        logs = setup.folder.path / "trials"
        functions = FunctionTrainer(setup.recipe, vault, trainer_setup, logs=logs)
        return functions, functions.close
    data_workers = start.data.arrangement.workers
    count = options.workers_here(data_workers)
    if count == 0:
        return SlotTrainer(setup.recipe, start.data, vault, trainer_setup), lambda: None
    pool_setup = PoolSetup(
        seed=setup.seed,
        count=count,
        memory_gb=options.data_memory_gb,
        at_once=options.workers != "auto" or data_workers > 0,
    )
    workers = Workers(setup.recipe, start.data, pool_setup)  # they start once that pays
    feed = workers.of(())
    trainer = SlotTrainer(setup.recipe, start.data, vault, trainer_setup, feed=feed)
    workers.on_start = trainer.context.streams.share
    workers.pop_block = trainer.context.streams.pop_block
    return trainer, workers.close


def check_slots(options: Options, room: int | None = None) -> None:
    """Raise StudyError if far more slots are asked for than there is room for.

    In a cluster that the user has started, or that this process is in, Ray says what there is.

    `room`: the slots of the run's allocation; None: it is in none, and has this machine.
    """
    if options.backend != "ray" or options.slots is None or options.address is not None:
        return
    ray = sys.modules.get("ray")
    if ray is not None and ray.is_initialized():
        return
    where = "this machine"
    if room is not None:
        where = "the allocation"
    most = MOST_EACH * (room or slots_here())
    if options.slots > most:
        raise StudyError(
            f"slots={options.slots} is more than {MOST_EACH} for each GPU or CPU of {where} "
            f"({most}): ask for fewer. If it is meant, start a cluster that has as many CPUs "
            f"(ray start --head --num-cpus={options.slots}), and give address='auto'"
        )


def slots_here(threads: int = 1) -> int:
    """Slots of a Ray cluster on this machine alone: its GPUs, else its CPUs by so many threads."""
    return gpus() or max(1, cpus_here() // threads)


def slots_on_this_machine(options: Options) -> int:
    """How many slots there will be when the study runs on this machine alone."""
    return options.known_slots or slots_here(options.threads)


def check_ray() -> None:
    """Raise StudyError unless Ray is installed."""
    try:
        import ray  # noqa: F401 - so that a fault within our own module is not taken for this
    except ImportError as error:
        raise StudyError(f"the ray backend needs Ray: {install('ray')}") from error


def survey_for(options: Options, begun: bool, place: RunPlace = RunPlace()) -> Survey:
    """Who looks at shards that lie at nodes: on Ray the nodes, else this process.

    `begun`: the study has trained before. `place`: where the run is started.

    Raises:
        StudyError: Ray is not installed.
    """
    if options.backend != "ray":
        return Survey()
    check_ray()
    survey = import_module("shoal.backend.ray.node_survey")
    if place.nodes is not None:
        nodes = place.nodes
        return Survey(
            surveyor=lambda asked: survey.survey_nodes(asked, nodes.address(), begun), names=()
        )
    ray_survey: Survey = survey.survey_of(_cluster_address(options.address), begun)
    return ray_survey


class Perform(Protocol):
    """Has a tool's work done where the data lies: returns `work(setup, data, *arguments)`.

    `device`: as it is typed. `slots`: of the machine that are needed for the time of the work;
    None: all. `threads`: of each; 0: the work is not timed, and takes no CPU from others.
    """

    def __call__(
        self,
        work: Callable[..., Any],
        setup: Setup,
        data: Any,
        *arguments: Any,
        device: str,
        slots: int | None = 1,
        threads: int = 0,
    ) -> Any:
        """Returns what `work` returns, and raises what `work` raises."""
        ...


def perform_here(
    work: Callable[..., Any], setup: Setup, data: Any, *arguments: Any, **_: Any
) -> Any:
    """Do a tool's work in this process; see `Perform`."""
    return work(setup, data, *arguments)


@contextmanager
def at_holders(
    address: str | None, tell: Callable[[str], None] = lambda text: None
) -> Iterator[Perform]:
    """Have a tool's work done at the node that holds most shards; others read theirs for it.

    `address`: of the cluster; None: this process works and reads, and must hold all. `tell`: is
    told which node it is.

    Raises:
        StudyError: Ray is not installed, or the pool of that address is not open.
        ConnectionError: no cluster is at the address.
    """
    if address is None:
        yield perform_here
        return
    check_ray()
    holders = import_module("shoal.backend.ray.node_tools")
    cluster_address = _cluster_address(address)
    if cluster_address is None:
        raise StudyError(f"the pool {address} has no cluster: start it (shoal pool)")

    def perform_there(
        work: Callable[..., Any],
        setup: Setup,
        data: Data,
        *arguments: Any,
        device: str,
        slots: int | None = 1,
        threads: int = 0,
    ) -> Any:
        loaded = replace(setup, source=setup.recipe)
        node, room = holders.best_holder(data.catalogue, device, slots, threads)
        call = partial(work, loaded)
        return holders.work_at(node, room, call, data, arguments, setup.recipe, tell)

    with holders.reached(cluster_address) as survey, surveying(survey):
        yield perform_there


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds of training by the profile that a user gave, not by a clock; it travels to slots.

    Runs that are equal then write checkpoints at equal moments.
    """

    profile: Profile

    def __call__(self, trial: Trial, samples: Samples) -> Seconds:
        profile = self.profile
        if isinstance(profile, Table):
            profile = profile.of({trial.id: trial})
        return samples / profile.curve(trial.id, 1)[0]


def pace_of(profile: Profile | None) -> Pace | None:
    """The pace by this profile; None if there is none."""
    if profile is None:
        return None
    return Pace(profile)


def _cluster_address(address: str | None) -> str | None:
    """The address of the cluster, also if `address` names a pool.

    None: `address` is None, or that pool is not open.
    """
    pool = pool_of(address)
    if pool is None:
        return address
    opened = pool.awaited()
    if opened is None:
        return None
    return _open_to(opened)


def _open_to(pool: OpenPool) -> str:
    """The address of the pool's cluster, which this process may join from now on."""
    if pool.token_file is not None:
        check_token(pool.token_file)
    if pool.token:
        import_module("shoal.backend.ray.cluster").use_token(pool.token_file)
    return pool.address


def _ray(
    setup: Setup, options: Options, start: Start, vault: Checkpoints, course: Any
) -> WiredBackend:
    """The backend of slots that are actors of a Ray cluster."""
    check_ray()
    pool = pool_of(options.address)
    if pool is None:
        nodes = start.place.nodes
        if nodes is not None:
            tell, since = start.tell, start.since
            nodes.tell = lambda text: tell(since + nodes.took, text)
            options = replace(options, address=nodes.address())
            # The study's time goes on while Ray starts.
            start = replace(start, since=since + nodes.took)
        ray = _make_ray(setup, options, start, course)
        return WiredBackend(ray, vault, ray.close)
    return _pooled(pool, setup, options, start, vault, course)


def _pooled(
    pool: PoolFolder, setup: Setup, options: Options, start: Start, vault: Checkpoints, course: Any
) -> WiredBackend:
    """Ray's backend on slots that a pool lends; it waits until the study gets its first."""
    with ExitStack() as stack:
        place = setup.folder.path
        start.tell(start.since, f"Waiting for a slot of the pool in {pool.path} …")
        try:
            member = PoolMember(
                pool,
                place,
                options.slots,
                options.threads,
                start.state,
                start.priority,
                start.widths,
                start.believe,
            )
            stack.enter_context(member)
            share = member.wait()
        except PoolError as error:
            raise StudyError(str(error)) from error
        options = replace(options, address=_open_to(member.joined), slots=share)
        ray = _make_ray(setup, options, start, course)
        stack.callback(ray.close)
        member.follow(ray)
        return WiredBackend(ray, vault, stack.pop_all().close, [member])


def _make_ray(setup: Setup, options: Options, start: Start, course: Any) -> Any:
    """Ray's backend. Before Ray is imported, `start.tell` says what the run waits for."""
    start.tell(start.since, ray_starts(options.address, options.slots))
    from shoal.backend.ray.backend import Ray
    from shoal.backend.ray.setup import RaySetup

    shares: dict[str, Any] = {}
    if start.place.nodes is not None:
        shares = start.place.nodes.shares(options.slots, options.threads)
    cpus = start.place.cpus()  # that Ray may lend on this machine; None: all of this process's
    ray_setup = RaySetup(
        setup.folder.checkpoints,
        start.state.run,
        options,
        cpus=None if cpus is None else min(cpus, cpus_here()),
        whole=start.whole,
        since=start.since,
        metric=setup.metric,
        mode=setup.mode,
        keep_evaluated=start.keep_evaluated,
        pace=pace_of(start.profile),
        logs=setup.folder.path.resolve() / "trials",
        tell=start.tell,
        **shares,
    )
    ray_setup.warn_of_idle_feeders(setup.recipe, start.data)
    return Ray(setup.recipe, start.data, course, ray_setup)
