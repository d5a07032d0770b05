"""A study's side of its pool: it claims slots, and follows what it is given."""

import os
import platform
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from time import monotonic, time
from typing import Protocol

import numpy as np

from shoal.core.errors import warn
from shoal.core.event import Commanded, Entry, Failed, Finished, Retired, Submitted
from shoal.core.profile import Profile
from shoal.core.state import Figures, State
from shoal.core.trial import Seconds, Trial, TrialId
from shoal.options import POOL
from shoal.pool.folder import OpenPool, PoolError, PoolFolder, SlotClaim, StudySign, name_of
from shoal.profile.widths import wide_rates

MOST_RATES = 1024  # slots, where nobody knows how many a cluster will have
# Between two signs of life.
EVERY: Seconds = 1.0
# An idle slot is given back after this time.
IDLE: Seconds = 3.0
# Entries after which other trials have work left.
CHANGES = (Submitted, Finished, Failed, Retired)


class Resizable(Protocol):
    """A backend whose slots come and go as the pool says."""

    def resize(self, n: int) -> None:
        """Have so many slots from now on."""
        ...

    def tell(self, event: Commanded) -> None:
        """Have this happen at the next moment."""
        ...


def is_rated(figures: Figures) -> bool:
    """Whether these figures of trials say how fast they are."""
    return "rate" in figures or bool(wide_rates(figures))


def rates_of(
    trials: Mapping[TrialId, Trial], profile: Profile, most: int, grows: bool
) -> tuple[float, ...]:
    """Samples/s of these trials together on 1, 2, … `most` slots, divided as gains most.

    0 where too few slots are there for any. If a study `grows`, one trial more is like the first.
    Where there are more trials than slots, the widest and the last are left out. Packs count as if
    each trial were alone.
    """
    best = np.zeros(most + 1)
    first = next(iter(trials))
    narrow = sorted(trials, key=lambda name: trials[name].widths[0])
    names = [*narrow[:most], *([first] if grows else [])]
    for name in names:
        fewest, widest = trials[name].widths
        with_it = best.copy()
        for width, rate in enumerate(profile.curve(name, min(widest, most)), start=1):
            if width >= fewest:
                np.maximum(with_it[width:], best[:-width] + rate, out=with_it[width:])
        best = with_it
    return tuple(float(f"{rate:.6g}") for rate in best[1:])


def pool_of(address: str | None) -> PoolFolder | None:
    """The pool that an address names; None if it names none."""
    if address is None or not address.startswith(POOL):
        return None
    return PoolFolder(address.removeprefix(POOL))


class PoolMember:
    """A study's membership in a pool: it claims slots, gives signs of life, and resizes the run.

    As a watcher of the run it follows the state, and claims what the study can use. A thread gives
    signs of life from the beginning of its `with` block to the end.

    `most`: the most slots that the user wants for the study; None: all that it can use.
    `threads`: of each slot. `priority`, `widths`: of the trials that its searcher makes. The study
    claims by them while no trial has work left: before its first one, and from rung to rung.
    `believe`: how fast its trials are, of which a pool with an objective is told.

    Raises:
        PoolError: the pool is not open, or its slots have another number of threads.
    """

    def __init__(
        self,
        pool: PoolFolder,
        study: Path,
        most: int | None,
        threads: int,
        state: State,
        priority: float = 1.0,
        widths: tuple[int, int] = (1, 1),
        believe: Callable[[State], Profile] | None = None,
    ) -> None:
        self._pool = pool
        self.joined = self._open_pool()
        if self.joined.threads != threads:
            raise PoolError(
                f"a slot of the pool in {pool.path} has {self.joined.threads} threads; this study "
                f"asks for threads={threads}: give threads={self.joined.threads}"
            )
        self._study = study
        self._name = name_of(study)
        self._limit = most
        self._priority = priority
        self._widths = widths
        self._believe = believe
        self._since = time()
        self._state = state
        self._count = 0
        # Whether more slots may bring more trials: true until a slot has stood idle.
        self._grows = True
        self._idle_since: float | None = None
        self._backend: Resizable | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="shoal-pool", daemon=True)

    def __enter__(self) -> "PoolMember":
        self._say()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()
        self._pool.unsay(self._name)

    # -- the beginning ---------------------------------------------------------------------------

    def wait(self) -> int:
        """Wait until the study is given slots; returns how many it is to begin with.

        Raises:
            PoolError: the pool was closed meanwhile, or has too few slots for any trial.
        """
        self._check_widths()
        warned = False
        while (share := self._pool.shares().get(self._name, 0)) < 1:
            if self._open_pool().closing:
                raise PoolError(f"the pool in {self._pool.path} closes: run again later")
            if not warned and self._count > 3:
                warned = True
                warn(
                    f"all slots of the pool in {self._pool.path} are taken: waiting for one. "
                    "Ctrl-C ends the wait"
                )
            self._over.wait(0.1)
        # The others may have to let go of theirs first: more come while it trains.
        return min(share, self._least(self._state))

    def _open_pool(self) -> OpenPool:
        """The pool, which may be about to open.

        Raises:
            PoolError: it is not open.
        """
        opened = self._pool.awaited()
        if opened is None:
            raise PoolError(
                f"there is no open pool in {self._pool.path}: start one with "
                f"shoal pool {self._pool.path}"
            )
        return opened

    def follow(self, backend: Resizable) -> None:
        """From now on the backend has as many slots as the pool says."""
        self._backend = backend

    # -- while it trains -------------------------------------------------------------------------

    def __call__(self, now: Seconds, entries: tuple[Entry, ...], state: State) -> None:
        self._state = state
        if any(isinstance(entry, Submitted) for entry in entries):
            self._grows = True
        if any(isinstance(entry, CHANGES) for entry in entries):
            self._check_widths()

    def _check_widths(self) -> None:
        """Raise PoolError if every trial that has work left needs more slots than there are."""
        slots = self.joined.slots
        least = self._least(self._state)
        if slots is not None and least > slots:
            raise PoolError(
                f"each trial that has work left needs {least} slots or more, and the pool in "
                f"{self._pool.path} has {slots}: give smaller widths=, or start a larger pool "
                "(shoal pool DIR --slots N) and resume"
            )

    def _beat(self) -> None:
        while not self._over.wait(EVERY):
            self._say()
            if self._backend is not None:
                self._obey(self._backend)

    def _say(self) -> None:
        self._look_for_idle_slots()
        sign = StudySign(
            self._claim(),
            str(self._study.absolute()),
            len(self._state.slots),
            platform.node(),
            os.getpid(),
            self._count,
        )
        self._pool.say(sign)
        self._count += 1

    def _least(self, state: State) -> int:
        """The fewest slots with which one of the trials that have work left can train."""
        widths = [trial.widths[0] for trial in state.trials.values()]
        return min(widths, default=self._widths[0])

    def _claim(self) -> SlotClaim:
        """The slots that the study can use, as its state stands."""
        state = self._state
        trials = list(state.trials.values())
        least = self._least(state)
        most = sum(each.widths[1] for each in trials) or self._widths[1]
        if self._grows:
            most += 1  # a searcher may have more trials as there are more slots
        if self._limit is not None:
            most = min(most, self._limit)
        priorities = [state.ranked.get(trial.id, 1.0) for trial in trials]
        priority = max(priorities, default=self._priority)
        most = max(least, most)
        rates = self._rates(least, min(most, self.joined.slots or MOST_RATES))
        return SlotClaim(self._name, priority, least, most, self._since, rates)

    def _rates(self, least: int, most: int) -> tuple[float, ...]:
        """Samples/s of the study on 1, 2, … slots; empty: none was measured, or no pool asks."""
        state = self._state
        if self.joined.objective is None or self._believe is None or most < least:
            return ()
        if not state.trials or not any(map(is_rated, state.figures.values())):
            return ()
        return rates_of(state.trials, self._believe(state), most, self._grows)

    def _look_for_idle_slots(self) -> None:
        state = self._state
        idle = len(state.slots) > len(state.busy) and len(state.running) == len(state.trials)
        if not idle:
            self._idle_since = None
        elif self._idle_since is None:
            self._idle_since = monotonic()
        elif monotonic() - self._idle_since > IDLE:
            self._grows = False

    def _obey(self, backend: Resizable) -> None:
        """Have the backend follow the pool's share; stop the run if the pool closes or is gone."""
        opened = self._pool.opened()
        if opened is None or opened.closing:
            backend.tell(Commanded("stop", "the pool closes"))
            self._backend = None
            return
        share = self._pool.shares().get(self._name)
        if share is not None:
            backend.resize(share)
