"""Kills and stops processes of running studies at random moments, and counts them.

A study is given, whatever happens to its processes, and run again each time its driver is gone. In
the end no trial may be lost, and each must have the weights of its own record.
"""

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from fault_kit import EVERY, Driver, content

import shoal

# What is done to the processes of a run on Ray: how often, in relation.
RAY_DEEDS = {
    "kill a slot": 8,
    "stop a slot": 3,
    "kill the driver": 4,
    "pause the driver": 2,
    "kill a feeder": 1,
    "kill the raylet": 1,
    "kill the head": 1,
}
LOCAL_DEEDS = {"kill the driver": 6, "pause the driver": 1}
LONGEST = 180.0  # seconds without progress that count as a hang, on a busy machine


@dataclass(frozen=True)
class Kind:
    """A kind of study. `samples`: of the data, beside which each step takes `slow` seconds."""

    options: Mapping[str, Any]
    recipe: Mapping[str, Any] = field(default_factory=dict)

    @property
    def deeds(self) -> Mapping[str, int]:
        return RAY_DEEDS if self.options.get("backend") == "ray" else LOCAL_DEEDS


RAY = {"backend": "ray", "slots": 2, "hang_after": 5.0}
ASHA = {"searcher": "asha(reduction_factor=2)", "max_epochs": 4, "num_samples": 8}
KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        "hop on local": Kind({"policy": "hop"}),
        "packs on local": Kind({"policy": "pack", "fuse": False}),
        "search on local": Kind({"policy": "fifo", **ASHA}, {"drawn": True}),
        "hops": Kind({"policy": "hop", **RAY}),
        "packs": Kind({"policy": "pack", "fuse": False, **RAY}),
        "search": Kind({"policy": "fifo", **ASHA, **RAY}, {"drawn": True}),
        "wide lanes": Kind({"policy": "waterfill", "widths": [1, 2], **RAY}, {"dropout": 0.0}),
        "feeders": Kind({"policy": "hop", "feeders": 1, **RAY}, {"augments": True}),
    }
)


class Churn:
    """One study, and what was done to it."""

    def __init__(self, folder: Path, kind: Kind, seed: int, slow: float = 0.02) -> None:
        self._folder = folder
        self._kind = kind
        self._random = random.Random(seed)
        self._recipe = {"slow": slow, **kind.recipe}
        self.done: Counter[str] = Counter()
        self._stopped: list[tuple[float, int]] = []  # processes to go on again, and when

    def endure(self, most: int) -> None:
        """Train the study to its end, and do so many deeds meanwhile, or fewer if it ends."""
        while True:
            options = {"checkpoint_every": EVERY, **self._kind.options}
            with Driver(self._folder, self._recipe, **options) as driver:
                ended = self._run(driver, most)
                self._wake(always=True)
                driver.vanish()
            if ended:
                return

    def _run(self, driver: Driver, most: int) -> bool:
        """One run of the study; whether the study came to its end with it."""
        seen, since = driver.visits(), time.monotonic()
        due = self._next(since)
        while driver.process.poll() is None:
            now = time.monotonic()
            visits = driver.visits()
            if visits != seen:
                if seen == 0:
                    due = self._next(now)
                seen, since = visits, now
            assert now - since < LONGEST, f"it hangs after {dict(self.done)}"
            self._wake()
            if visits and now >= due and self.done.total() < most:
                self._do(driver)
                due = self._next(now)
            time.sleep(0.05)
        _, said = driver.process.communicate()
        code = driver.process.returncode
        killed = code == -signal.SIGKILL or "StudyPaused" in said
        assert code == 0 or killed, said
        return code == 0

    def _next(self, now: float) -> float:
        """When the next deed is due. A trial can end a unit before, or it counts as to blame."""
        return now + self._random.uniform(0.7, 2.5)

    def _do(self, driver: Driver) -> None:
        """Do something to one of the processes, if there is such a one."""
        deeds = self._kind.deeds
        (deed,) = self._random.choices(list(deeds), list(deeds.values()))
        what, _, name = deed.partition(" ")
        pids = _pids(driver, name)
        if not pids:
            return
        pid = self._random.choice(pids)
        with suppress(ProcessLookupError):
            if what == "kill":
                os.kill(pid, signal.SIGKILL)
            else:
                os.kill(pid, signal.SIGSTOP)
                # A slot stands still for longer than is allowed; a driver goes on.
                wakes = 60.0 if what == "stop" else self._random.uniform(0.5, 3.0)
                self._stopped.append((time.monotonic() + wakes, pid))
            self.done[deed] += 1

    def _wake(self, always: bool = False) -> None:
        """Let those go on again whose time has come."""
        now = time.monotonic()
        for each in list(self._stopped):
            if always or now >= each[0]:
                self._stopped.remove(each)
                with suppress(ProcessLookupError):
                    os.kill(each[1], signal.SIGCONT)

    def check(self) -> None:
        """No trial is lost, and each has the weights of its own record."""
        study = shoal.load_study(self._folder)
        study.recipe.slow = 0.0
        assert {t.status for t in study.trials} <= {"finished", "stopped", "retired"}, [
            t.status for t in study.trials
        ]
        rows = study.replay()
        assert rows and all(row["verdict"] in ("equal", "agrees") for row in rows), rows


def _pids(driver: Driver, name: str) -> list[int]:
    """The processes of the run that are called so."""
    if name == "the driver":
        return [driver.process.pid]
    if name == "a slot":
        return driver.slots()
    if name == "a feeder":
        return [
            pid
            for pid in driver.pids()
            if content(Path(f"/proc/{pid}/cmdline")).startswith(b"ray::Feeder")
        ]
    return driver.rays({"the raylet": "raylet", "the head": "gcs_server"}[name])


def churn(
    folder: Path, kinds: Mapping[str, Kind], deeds: int, seed: int, each: int = 8
) -> Counter[str]:
    """Studies of these kinds in turn, in folders of their own, until so many deeds were done.

    `each`: the most done to one study. Returns what was done.
    """
    done: Counter[str] = Counter()
    turn = 0
    while done.total() < deeds:
        name = list(kinds)[turn % len(kinds)]
        place = folder / f"{turn:03d}-{name.replace(' ', '-')}"
        study = Churn(place, kinds[name], seed + turn)
        study.endure(min(each, deeds - done.total()))
        study.check()
        done += study.done
        turn += 1
    return done
