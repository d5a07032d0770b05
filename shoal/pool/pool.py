"""The pool itself: it has the cluster, and gives its slots to studies as they come and go."""

import os
import platform
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic, sleep

from shoal.backend.cluster_start import ray_starts
from shoal.backend.ray import cluster
from shoal.core.trial import Seconds
from shoal.engine.lock import Taken, held
from shoal.policy.elastic.objective import name_of
from shoal.pool.division import Objective, divided, shares
from shoal.pool.folder import OpenPool, PoolError, PoolFolder, SlotClaim, StudySign

# Between two looks at the studies.
EVERY: Seconds = 0.5
# A study that gave no sign of life for so long is gone.
SILENT: Seconds = 20.0
# How long a pool that closes waits for its studies.
FAREWELL: Seconds = 120.0
STORE_GB = 2.0

Say = Callable[[str], None]


@dataclass(slots=True)
class _Heard:
    """The newest sign of a study, and when it came by the monotonic clock."""

    sign: StudySign
    at: float


class Attendance:
    """Which studies are there, by their signs of life."""

    def __init__(self) -> None:
        self._heard: dict[str, _Heard] = {}

    def hear(self, signs: Sequence[StudySign], now: float) -> list[StudySign]:
        """The signs of the studies that live.

        The counts of signs tell, not the clocks of other machines.
        """
        known, self._heard = self._heard, {}
        for sign in signs:
            name = sign.claim.study
            before = known.get(name)
            if before is not None and before.sign.count == sign.count:
                self._heard[name] = before
            else:
                self._heard[name] = _Heard(sign, now)
        return [
            heard.sign
            for heard in self._heard.values()
            if now - heard.at < SILENT and not heard.sign.is_dead
        ]


def serve(
    path: Path,
    slots: int | None,
    threads: int,
    address: str | None,
    say: Say,
    until_empty: bool = False,
    objective: Objective | None = None,
) -> None:
    """Lend slots to studies until Ctrl-C, SIGTERM, or, with `until_empty`, until all have gone.

    `objective`: what all studies together are to make most of; None: slots go by priority.

    Raises:
        PoolError: the folder has an open pool already.
    """
    folder = PoolFolder(path)
    folder.make()
    with ExitStack() as stack:
        try:
            stack.enter_context(held(folder.lock, folder.holder))
        except Taken as taken:
            raise PoolError(
                f"the pool in {folder.path} is open already, held by {taken.who}{taken.remedy}"
            ) from None
        cpus = None
        if slots is not None:
            cpus = slots * threads
        folder.begin()
        say(ray_starts(address, slots))
        try:
            own_cluster, _ = cluster.join(address, slots, threads, STORE_GB, cpus)
        except BaseException:
            folder.close()
            raise
        try:
            with _end_signals() as over:  # Ray has its own signals until here
                opened = _open_pool(threads, own_cluster, objective)
                _lend(folder, opened, say, over, until_empty, objective)
        finally:
            folder.close()
            cluster.leave(own_cluster, joined=True)


def _open_pool(threads: int, own_cluster: bool, objective: Objective | None) -> OpenPool:
    """The pool that is open. `own_cluster`: it started that; of another, nodes come and go."""
    slots = None
    if own_cluster:
        slots = room(threads)
    return OpenPool(
        cluster.gcs(),
        threads,
        platform.node(),
        os.getpid(),
        token=cluster.asks_for_token(),
        slots=slots,
        token_file=cluster.token_shown(),
        objective=None if objective is None else name_of(objective),
    )


def room(threads: int) -> int:
    """How many slots the cluster has now."""
    share = cluster.share_of(None, None, threads, None)
    return sum(node.room for node in cluster.nodes(share).values())


def _lend(
    folder: PoolFolder,
    opened: OpenPool,
    say: Say,
    over: threading.Event,
    until_empty: bool,
    objective: Objective | None,
) -> None:
    """Divide the slots whenever a study comes, goes, or claims something else."""
    folder.share({})
    folder.open(opened)
    say(f"the pool has {room(opened.threads)} slots; studies join it with")
    say(f"  shoal run … --backend ray --address pool:{folder.path}")
    attendance = Attendance()
    counts: dict[str, int] = {}
    had_studies = False
    divide = Divider(objective, say)
    while not over.wait(EVERY):
        signs = attendance.hear(folder.signs(), monotonic())
        folder.bury()
        ready = {sign.claim.study: sign.slots for sign in signs}
        claims = [sign.claim for sign in signs]
        new_counts = divide(room(opened.threads), claims, {**ready, **counts})
        if new_counts != counts:
            folder.share(new_counts)
            say(division(new_counts))
        counts = new_counts
        had_studies = had_studies or bool(signs)
        if until_empty and had_studies and not signs:
            return
    _farewell(folder, opened, attendance, say)


class Divider:
    """Divides slots by the objective. While that fails, by priority: all studies would end else."""

    def __init__(self, objective: Objective | None, say: Say) -> None:
        self._objective = objective
        self._say = say
        self._failed = False

    def __call__(
        self, slots: int, claims: Sequence[SlotClaim], current: Mapping[str, int]
    ) -> dict[str, int]:
        try:
            counts = divided(slots, claims, current, self._objective)
        except ValueError as error:
            if not self._failed:
                self._say(f"slots are divided by priority for now: {error}")
            self._failed = True
            return shares(slots, claims, current)
        self._failed = False
        return counts


def _farewell(folder: PoolFolder, opened: OpenPool, attendance: Attendance, say: Say) -> None:
    """Have the studies stop with everything durable, and wait for them."""
    folder.open(replace(opened, closing=True))
    until = monotonic() + FAREWELL
    while (signs := attendance.hear(folder.signs(), monotonic())) and monotonic() < until:
        say(f"waiting for {len(signs)} studies to stop")
        sleep(2 * EVERY)


def division(counts: Mapping[str, int]) -> str:
    """The studies and their slots, as one line."""
    if not counts:
        return "no studies"
    return ", ".join(f"{study}: {count}" for study, count in counts.items())


@contextmanager
def _end_signals() -> Iterator[threading.Event]:
    """Within, Ctrl-C and SIGTERM set this event, and end nothing."""
    over = threading.Event()
    before = {
        number: signal.signal(number, lambda *_: over.set())
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield over
    finally:
        for number, former in before.items():
            signal.signal(number, former)
