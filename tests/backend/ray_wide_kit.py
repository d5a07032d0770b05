"""What the tests of wide lanes on Ray share: a recipe in float64 that leaves traces of its
steps, and plans by script.
"""

import faulthandler
import os
import signal
from _thread import interrupt_main
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Timer
from time import sleep
from typing import Any

import numpy as np
import torch
from ray_kit import SEED, Bench, Given
from torch import nn

import shoal
from shoal.core.event import Measured, Planned
from shoal.core.plan import Gang, Lane, Plan
from shoal.core.state import View
from shoal.core.trial import Trial, TrialId
from shoal.train.data.data import Data
from shoal.train.lane.checkpoints import Checkpoints
from shoal.train.recipe.recipe import LRSchedule, Recipe
from shoal.train.slot.setup import TrainerSetup
from shoal.train.tools.verify import retrain

SLOTS = {"slots": 4, "cpus_per_slot": 0.25}


def gangs_of(study: shoal.Study) -> list[Gang]:
    """All gangs that were started."""
    plans = [line.entry for line in study.lines() if isinstance(line.entry, Planned)]
    return [gang for plan in plans for gang in plan.start]


def check_replay(study: shoal.Study, trials: int) -> None:
    """There are so many trials, and each learned what it learns alone on one slot."""
    rows = study.replay()
    assert len(rows) == trials
    assert all(
        row["verdict"] in ("equal", "agrees") and row["difference"] < 1e-8 for row in rows
    ), rows


class Exact(Recipe):
    """Nothing random: widths must agree to rounding. Each process notes each of its steps in a
    file named after it.
    """

    batch_size = 10
    held = 0.2  # seconds for a step while the script is not over

    def __init__(
        self,
        traces: Path,
        samples: int = 2003,
        shards: int = 1,
        slow: float = 0.004,
        **settings: Any,
    ) -> None:
        self.traces, self.samples, self.shards, self.slow = (traces, samples, shards, slow)
        traces.mkdir(exist_ok=True)
        for name, value in settings.items():
            setattr(self, name, value)

    def data(self) -> Data:
        rng = np.random.default_rng(5)
        y = rng.integers(0, 3, self.samples)
        x = (rng.normal(size=(self.samples, 6)) + 2 * np.eye(3, 6)[y]).astype(np.float32)
        made = Data.arrays(x, y, shards=self.shards, validation=0.1, seed=1)
        made.chunk = 64
        return made

    def configure_model(self, config: Mapping[str, Any]) -> nn.Module:
        faulthandler.register(
            signal.SIGUSR1,
            (self.traces.parent / f"stack-{os.getpid()}").open("w"),
            all_threads=True,
        )
        width = int(config.get("width", 8))
        return nn.Sequential(
            nn.Linear(6, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 3)
        ).double()

    def configure_optimizers(self, model: nn.Module, config: Mapping[str, Any]) -> Any:
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.003, weight_decay=0.1)
        return optimizer, LRSchedule(
            lambda epoch: min(1.0, 0.1 + 1.8 * epoch) * (0.1 if epoch >= 1 else 1.0)
        )

    def training_step(self, model: nn.Module, batch: Any) -> Any:
        mine = self.traces / str(os.getpid())
        with mine.open("a") as trace:
            trace.write(".")
        held = (
            self.traces / "held"
        ).exists() and mine.stat().st_size > 60  # lest a pass be over before its script is
        sleep(self.held if held else self.slow * (model[0].out_features / 8))  # type: ignore[index, union-attr, operator]
        return nn.functional.cross_entropy(model(batch[0].double()), batch[1])

    def validation_step(self, model: nn.Module, batch: Any) -> Any:
        return {"accuracy": (model(batch[0].double()).argmax(1) == batch[1]).float()}


def steps(traces: Path) -> dict[int, int]:
    """By process, how many steps it began."""
    return {int(path.name): path.stat().st_size for path in traces.iterdir() if path.name.isdigit()}


def moved_on(before: Mapping[int, int], traces: Path, many: int = 3) -> int:
    """Processes that made so many steps since."""
    return sum(made >= before.get(pid, 0) + many for pid, made in steps(traces).items())


@dataclass(eq=False)
class Script:
    """A trial goes through these places, (slot numbers, …); to the next when all of its
    processes made some steps there.

    By place: `kills`, whose slots are killed then, before the next one is wanted; `visits`, how
    many must have been made.
    """

    traces: Path
    places: Sequence[Sequence[int]]
    trial: TrialId = TrialId("t")
    kills: Mapping[int, Sequence[int]] = field(default_factory=dict)
    visits: Mapping[int, int] = field(default_factory=dict)
    many: int = 3
    pids: Callable[[], Mapping[str, int]] = dict
    at: int = -1
    before: dict[int, int] = field(default_factory=dict)

    def start(self) -> None:
        return None

    def decide(self, view: View, memory: None) -> tuple[Plan, None]:
        if self.trial not in view.trials or not view.slots:
            return Plan(), memory
        made = len(view.visits[self.trial])
        if self.at < 0 or (
            self.at < len(self.places) and made >= self.visits.get(self.at, 0) and self._lived()
        ):
            for number in self.kills.get(self.at, ()):
                os.kill(self.pids()[f"slot{number}"], signal.SIGKILL)
            self.at += 1
            self.before = steps(self.traces)
            if self.at == len(self.places):
                (self.traces / "held").unlink()
        place = self.places[min(self.at, len(self.places) - 1)]
        wanted = (
            tuple(slot for n in place if (slot := f"slot{n}") in view.slots)
            or tuple(view.slots)[:1]
        )
        now = view.running.get(self.trial)
        lane = Lane(self.trial, wanted)  # type: ignore[arg-type]
        gang = now if now is not None and now.lanes == (lane,) else Gang((lane,), since=view.turn)
        return Plan(frozenset((gang,)), view.now + 0.03), memory

    def _lived(self) -> bool:
        return moved_on(self.before, self.traces, self.many) >= len(self.places[self.at])

    def run(self, bench: Bench, *trials: Trial, **options: Any) -> None:
        """The study, to its end; then all places were seen."""

        def watch(backend: Any) -> Any:
            self.pids = backend.pids
            return lambda *_: None

        (self.traces / "held").touch()
        bench.run(Given(trials), self, watch, **SLOTS, **options)
        assert self.at == len(self.places), f"it was over at place {self.at} of {self.places}"


class Restless:
    """Now and then other gangs: flotillas and lanes by themselves, of other widths and on other
    slots; drawn from the turn.
    """

    def __init__(self, every: float) -> None:
        self.every = every

    def start(self) -> float:
        return 0.0

    def decide(self, view: View, memory: float) -> tuple[Plan, float]:
        if not view.trials:
            return Plan(), memory
        idle = any(trial not in view.running for trial in view.trials) and len(view.busy) < len(
            view.slots
        )
        if view.now < memory and not idle:
            return Plan(view.plan.gangs, memory), memory
        rng = np.random.default_rng([3, view.turn])
        slots = [list(view.slots)[i] for i in rng.permutation(len(view.slots))]
        trials = [list(view.trials)[i] for i in rng.permutation(len(view.trials))]
        lanes, gangs = [], []
        while slots and trials:
            width = int(rng.integers(1, 4))
            lanes.append(Lane(trials.pop(), tuple(slots[:width])))
            slots = slots[width:]
            if rng.random() < 0.5:
                gangs.append(Gang(tuple(lanes), since=view.turn))
                lanes = []
        if lanes:
            gangs.append(Gang(tuple(lanes), since=view.turn))
        again = view.now + self.every * float(rng.random() + 0.5)
        return Plan(frozenset(gangs), again), again


@contextmanager
def watchdog(seconds: float, folder: Path) -> Iterator[None]:
    """A hang is a failure, with what all processes were at."""

    def bark() -> None:
        for path in (folder / "traces").glob("[0-9]*"):
            with suppress(OSError):
                os.kill(int(path.name), signal.SIGUSR1)
        sleep(2.0)
        faulthandler.dump_traceback((folder / "stack-driver").open("w"), all_threads=True)
        interrupt_main()

    timer = Timer(seconds, bark)
    timer.start()
    try:
        yield
    except KeyboardInterrupt:
        stacks = "\n".join(
            f"{path.name}:\n{path.read_text()}" for path in sorted(folder.glob("stack-*"))
        )
        raise AssertionError(f"nothing went on for {seconds:g} s:\n{stacks}") from None
    finally:
        timer.cancel()


def trial_of(
    data: Data, epochs: int = 2, name: str = "t", widths: tuple[int, int] = (1, 4), **config: Any
) -> Trial:
    return Trial(
        TrialId(name), epochs * float(data.samples), config, widths, frozenset(data.shards)
    )


def distance(one: Mapping[str, Any], other: Mapping[str, Any]) -> float:
    """The largest relative difference of models and optimizers."""
    pairs = [(one["model"][name], other["model"][name]) for name in one["model"]]
    for mine, theirs in zip(
        one["optimizer"]["state"].values(), other["optimizer"]["state"].values(), strict=True
    ):
        pairs += [(mine[name], theirs[name]) for name in mine]
    return max(
        float(np.abs(np.asarray(a) - np.asarray(b)).max() / max(np.abs(np.asarray(a)).max(), 1e-12))
        for a, b in pairs
    )


def check_equal(bench: Bench, epochs: int, tolerance: float = 1e-8, follow: bool = False) -> None:
    """Every trial is through, has counted each sample once, and learnt what it learns at width 1.

    `epochs`: of all trials, 0 where they differ. `follow`: it learnt what it learns alone with
    the batches of these widths.
    """
    vault = Checkpoints(str(bench.folder / "checkpoints"), bench.state.run)
    slow, bench.recipe.slow = bench.recipe.slow, 0.0
    if epochs:
        bench.check_visits(epochs)
    for trial, known in bench.state.known.items():
        assert bench.state.ended[trial] == "finished"
        visits = bench.state.visits[trial]
        assert bench.state.done[trial] == sum(visit.samples for visit in visits) == known.samples
        alone = visits if follow else tuple(visit._replace(widths=()) for visit in visits)
        again = retrain(bench.recipe, bench.data, known, alone, TrainerSetup(seed=SEED))
        assert distance(vault.load(bench.state.kept[trial].name), again) <= tolerance, trial
    bench.recipe.slow = slow


def figures(bench: Bench) -> dict[str, float]:
    """All that was measured."""
    return {
        name: value for event in bench.events(Measured) for name, value in event.figures.items()
    }
