"""What the tests of the ray backend share: a recipe that trains in milliseconds, and running a
study on the backend.
"""

import io
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from shoal.backend.node import feed
from shoal.backend.positions import Positions
from shoal.backend.ray.backend import Ray
from shoal.backend.ray.setup import RaySetup
from shoal.core.event import (
    Advanced,
    Ended,
    Entry,
    Evaluated,
    Failed,
    Fell,
    Finished,
    Kept,
    Left,
    Planned,
)
from shoal.core.fold import fold
from shoal.core.plan import Proposal
from shoal.core.state import State
from shoal.core.trial import Trial, TrialId
from shoal.core.visits import ValidateEvery
from shoal.engine.journal import Journal, Line
from shoal.engine.run import reopened, run
from shoal.options import Options
from shoal.profile.measure import believe
from shoal.train.data.data import Data
from shoal.train.lane.checkpoints import Checkpoints
from shoal.train.recipe.recipe import Recipe
from shoal.train.slot.setup import TrainerSetup
from shoal.train.tools.verify import compare, retrain

feed.ANSWER = 60.0  # no test lacks the feeders' figures because the machine is busy
SEED = 7
Watch = Callable[[float, tuple[Entry, ...], State], None]


class Tiny(Recipe):
    """`slow`: seconds that each step sleeps. `marks`: folder where each call of data() leaves a
    file, named after its process.
    """

    batch_size = 16

    def __init__(
        self, shards: int = 4, slow: float = 0.0, marks: Path | None = None, columns: int = 12
    ) -> None:
        self.shards, self.slow, self.marks, self.columns = shards, slow, marks, columns

    def data(self) -> Data:
        if self.marks is not None:
            (self.marks / f"{os.getpid()}-{time.monotonic_ns()}").touch()
        rng = np.random.default_rng(3)
        x = rng.normal(size=(240, self.columns)).astype("float32")
        return Data.arrays(x, x[:, :3].argmax(1), shards=self.shards, validation=0.2)

    def configure_model(self, config: Mapping[str, Any]) -> nn.Module:
        return nn.Sequential(
            nn.Linear(self.columns, config["width"]),
            nn.ReLU(),
            nn.Dropout(0.2),
            nn.Linear(config["width"], 3),
        )

    def configure_optimizers(self, model: nn.Module, config: Mapping[str, Any]) -> Any:
        return torch.optim.Adam(model.parameters(), lr=1e-2)

    def training_step(self, model: nn.Module, batch: Any) -> Any:
        width = model[0].out_features  # type: ignore[index, union-attr]
        print(f"a step at width {width} with {torch.get_num_threads()} threads")  # noqa: T201
        time.sleep(self.slow)
        if width == 13:
            raise ArithmeticError("thirteen")
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    def validation_step(self, model: nn.Module, batch: Any) -> Any:
        return {"accuracy": (model(batch[0]).argmax(1) == batch[1]).float()}


class Given:
    """A searcher that submits these trials at once; then, each time it is time for them, more:
    trials, when, trials, when, …
    """

    def __init__(self, trials: Sequence[Trial], *later: Any) -> None:
        self.rounds = [
            (tuple(trials), lambda view: True),
            *zip(map(tuple, later[::2]), later[1::2], strict=True),
        ]

    def start(self) -> int:
        return 0

    def propose(self, view: Any, memory: int) -> tuple[Proposal, int]:
        submit: tuple[Trial, ...] = ()
        if memory < len(self.rounds) and self.rounds[memory][1](view):
            submit = self.rounds[memory][0]
            memory += 1
        return Proposal(
            submit, wake_at=view.now + 0.1 if memory < len(self.rounds) else None
        ), memory


def trials_of(data: Data, widths: Sequence[int], epochs: int) -> list[Trial]:
    shards = frozenset(data.shards)
    return [
        Trial(TrialId(f"t{w}"), epochs * data.samples, {"width": w}, shards=shards) for w in widths
    ]


class Bench:
    """A study in a folder: run it, look at what came of it."""

    def __init__(self, folder: Path, recipe: Tiny, data: Data | None = None) -> None:
        self.folder, self.recipe = folder, recipe
        self.data = data or recipe.data()
        self.state = State()
        self.lines: list[Line] = []

    def open(self, **options: Any) -> Ray:
        self.state = fold(self.state, reopened(self.state, self.data.sizes, {}))
        checkpoints = str(self.folder / "checkpoints")
        Checkpoints(checkpoints, self.state.run).mark()
        course = Positions(
            SEED, self.data.sizes, ValidateEvery(), self.state, self.folder / "trials"
        )
        run = self.state.run
        known = {each.name for each in fields(Options)}
        chosen = {name: options.pop(name) for name in [*options] if name in known}
        logs = self.folder / "trials"
        setup = RaySetup(checkpoints, run, Options("ray", **chosen), logs=logs, **options)
        return Ray(self.recipe, self.data, course, setup)

    def run(
        self,
        searcher: Any,
        policy: Any,
        watch: Callable[[Ray], Watch] | None = None,
        deadline: float | None = None,
        **options: Any,
    ) -> Ray:
        """Run to the end; the backend, closed."""
        backend = self.open(**options)
        journal = Journal()
        watchers = [watch(backend)] if watch else []
        try:
            self.state = run(
                searcher, policy, backend, believe, journal, self.state, deadline, watchers
            )
        finally:
            backend.close()
            self.lines += journal.lines
        return backend

    # -- what must hold
    # ------------------------------------------------------------------------------------------

    def events(self, kind: type) -> list[Any]:
        return [line.entry for line in self.lines if isinstance(line.entry, kind)]

    def check_visits(self, epochs: int, but: Sequence[str] = ()) -> None:
        """Each trial visited each of its shards exactly once in each epoch."""
        for trial, visits in self.state.visits.items():
            if trial in but:
                continue
            shards = self.state.known[trial].shards
            assert Counter((v.epoch, v.shard) for v in visits) == Counter(
                (e, s) for e in range(epochs) for s in shards
            ), trial
            assert all(visit.samples == self.data.sizes[visit.shard] for visit in visits)

    def check_places(self) -> None:
        """By the plans and events: no trial at two slots at once, no slot with two trials, and
        no unit made outside a gang.
        """
        running: dict[TrialId, Any] = {}
        for _, entry in self.lines:
            if isinstance(entry, Finished | Failed):
                running.pop(entry.trial, None)
            elif isinstance(entry, Left):
                running = {
                    trial: gang
                    for trial, gang in running.items()
                    if gang.slots.isdisjoint(entry.slots)
                }
            elif isinstance(entry, Planned):
                for gang in entry.stop:
                    running.pop(gang.lanes[0].trial, None)
                for gang in entry.start:
                    assert gang.lanes[0].trial not in running
                    assert all(gang.slots.isdisjoint(other.slots) for other in running.values())
                    running[gang.lanes[0].trial] = gang
            elif isinstance(entry, Ended):
                assert running.pop(entry.gang.lanes[0].trial) == entry.gang
            elif isinstance(entry, Advanced):
                for trial, visits in entry.visits.items():
                    gang = running[trial]
                    assert not gang.shards or [v.shard for v in visits] == list(gang.shards)

    def check_weights(self, most: float = 0.0) -> None:
        """The durable state of every trial that finished equals training over its visits alone: to
        the last bit, or to within `most`.
        """
        vault = Checkpoints(str(self.folder / "checkpoints"), self.state.run)
        self.recipe.slow = 0.0
        for trial, how in self.state.ended.items():
            if how == "finished":
                kept = self.state.kept[trial]
                assert kept.visits == len(self.state.visits[trial])
                with redirect_stdout(io.StringIO()):
                    again = retrain(
                        self.recipe,
                        self.data,
                        self.state.known[trial],
                        self.state.visits[trial],
                        TrainerSetup(seed=SEED),
                    )
                assert compare(vault.load(kept.name), again).difference <= most, trial

    def check_order(self) -> None:
        """A unit's events come in the order that backends owe."""
        owed = [Advanced, Evaluated, Kept, Ended]
        last: dict[TrialId, int] = {}
        for _, entry in self.lines:
            trial = (
                next(iter(entry.visits), None)
                if isinstance(entry, Advanced)
                else getattr(entry, "trial", None)
            )
            if isinstance(entry, Advanced) and trial is not None:
                last[trial] = 0
            elif isinstance(entry, Fell):
                last.pop(entry.trial, None)
            elif type(entry) in owed and trial in last:
                assert owed.index(type(entry)) > last[trial], entry
                last[trial] = owed.index(type(entry))
