"""Churn for some minutes: studies of all kinds, whose processes are killed and whose files damaged.

After each study: no trial is lost, each has the weights of its record, its journal is sound, and
nothing half-written is left.
"""

import random
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from damage_kit import empty, falls, flip, truncate
from fault_kit import endure

import shoal
from shoal.core.event import Opened
from shoal.engine.mend import mend

VISITS = 20  # of each trial of a study without a searcher
LITTLE = 1000  # bytes of what is left of a checkpoint that was damaged before


class Vandal(threading.Thread):
    """Damages the newest checkpoint of a trial that has more to train, every now and then."""

    def __init__(self, folder: Path, seed: int) -> None:
        super().__init__(name="vandal", daemon=True)
        self._folder = folder
        self._random = random.Random(seed)
        self._over = threading.Event()
        self.damaged = 0

    def __enter__(self) -> "Vandal":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join()

    def run(self) -> None:
        while not self._over.wait(self._random.uniform(1.0, 4.0)):
            newest = {file.parent: file for file in sorted(self._states())}
            unfinished = [file for file in newest.values() if int(file.name[:6]) < VISITS]
            if unfinished:
                self._damage(self._random.choice(unfinished))

    def _damage(self, file: Path) -> None:
        """Damage this checkpoint, unless it was replaced meanwhile, or is empty already."""
        how = self._random.choice([flip, truncate, empty, Path.unlink])
        try:
            if file.stat().st_size > LITTLE:
                how(file)
                self.damaged += 1
        except FileNotFoundError:
            pass

    def _states(self) -> Iterable[Path]:
        return self._folder.glob("checkpoints/*/*.pt")


@dataclass(frozen=True)
class Kind:
    """A kind of study. `recipe`: as of `fault_kit.Steady`. `options`: of its run."""

    policy: Any
    options: Mapping[str, Any] = field(default_factory=dict)
    recipe: Mapping[str, Any] = field(default_factory=dict)

    @property
    def on_ray(self) -> bool:
        return "backend" in self.options


RAY = {"backend": "ray", "slots": 2}
ASHA = {"searcher": "asha(reduction_factor=2)", "max_epochs": 4, "num_samples": 8}
PACK = {"name": "pack", "grouping": "random", "most": 3}
WIDE = {"widths": [1, 2]}
KINDS: Mapping[str, Kind] = {
    "hop on local": Kind("hop"),
    "packs on local": Kind(PACK),
    "search on local": Kind(PACK, ASHA, {"drawn": True}),
    "hops": Kind("hop", RAY),
    "packs": Kind(PACK, RAY),
    "search": Kind("fifo", {**ASHA, **RAY}, {"drawn": True}),
    # Slots draw random numbers of their own.
    "wide lanes": Kind("waterfill", {**WIDE, **RAY}, {"dropout": 0.0}),
}


def soak(
    folder: Path, minutes: float, seed: int, kinds: Mapping[str, Kind] = KINDS
) -> Counter[str]:
    """Studies of these kinds, one after another, until the time is over; returns what happened."""
    found: Counter[str] = Counter()
    draw = random.Random(seed)
    late = time.monotonic() + 60.0 * minutes
    turn = 0
    while turn == 0 or time.monotonic() < late:
        name = list(kinds)[turn % len(kinds)]
        found += churn(folder / f"{turn:03d}", kinds[name], draw.randrange(10**6))
        found[f"studies: {name}"] += 1
        turn += 1
    return found


def churn(folder: Path, kind: Kind, seed: int) -> Counter[str]:
    """One study through two or three kills, and through damage; returns what happened."""
    draw = random.Random(seed)
    kills = ["driver", "driver"]
    if kind.on_ray:
        kills = draw.choices(["slot", "driver", "both"], k=draw.randint(2, 3))
    recipe = {"slow": 0.02, **kind.recipe}
    with ExitStack() as open_:
        vandal = Vandal(folder, seed)
        if "searcher" not in kind.options:
            # Trials of a search may end at any visit, and then have one state only.
            open_.enter_context(vandal)
        endure(folder, kind.policy, kills, seed, recipe, **kind.options)
    found = Counter(f"kills: {kill}" for kill in kills)
    found["checkpoints damaged"] += vandal.damaged
    return found + _checked(folder)


def _checked(folder: Path) -> Counter[str]:
    """What else must hold of a study that ended; and what it went through."""
    assert mend(folder / "journal.jsonl").copy is None
    assert not list((folder / "checkpoints").rglob("*.part"))
    study = shoal.load_study(folder)
    study.recipe.slow = 0.0
    assert {trial.status for trial in study.trials} <= {"finished", "retired"}
    rows = study.replay()
    assert len(rows) == len(study.state.known) > 0
    assert all(row["verdict"] in ("equal", "agrees") for row in rows), rows
    runs = sum(isinstance(line.entry, Opened) for line in study.lines())
    return Counter(
        {
            "studies": 1,
            "trials": len(study.trials),
            "runs": runs,
            "falls to former checkpoints": len(falls(study)),
        }
    )
