"""What one slot holds and does: its data, the lanes of the trials it has seen, and one unit after another."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from itertools import chain, count, islice
from time import perf_counter

import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau

from shoal.core.event import Sum
from shoal.core.trial import Samples, Seconds, Trial, TrialId, Visit
from shoal.train.account import Spent, add, blaming
from shoal.train.checkpoint import Vault
from shoal.train.columns import Columns
from shoal.train.data import Data
from shoal.train.lane import Lane
from shoal.train.measure import STEPS, Meter, start_up
from shoal.train.recipe import Recipe, overrides, seed_of
from shoal.train.stream import Stream
from shoal.train.unit import Done, Part, Tree, TrialError, Unit

__all__ = ["Done", "Part", "Station", "Tree", "TrialError", "Unit"]

PART_SECONDS = 1.0  # a chunk that takes longer is reported in pieces


@dataclass(slots=True)
class _Held:
    """A lane that stays here, and whether its state could be had elsewhere."""

    lane: Lane
    whole: bool = False  # its state is that after `lane.visits`; otherwise only its memory is of use
    safe: bool = False  # that state is durable, or was returned
    bytes: int = 0  # as of its last unit


class Station:
    """One slot at work. Lanes stay after a unit, within `state_memory_gb`, so that a trial's next unit here goes on at once.

    A lane is given up only if its state is durable or was returned; where none is, the unit that exceeds the limit is kept.
    `vault`: None to keep nothing. `run`: the study's incarnation. `kind`: of the device, as signatures tell it.
    `checkpoint_every`: seconds of training between durable states, 0: after every unit. `metric`: for ReduceLROnPlateau.
    `pace`: seconds of training for a trial and so many samples, instead of the clock; then nothing is measured.

    Raises:
        ValueError: the seed is negative.
    """

    def __init__(
        self,
        recipe: Recipe,
        data: Data,
        vault: Vault | None,
        *,
        seed: int,
        run: int = 0,
        device: str = "cpu",
        kind: str = "cpu",
        threads: int = 1,
        checkpoint_every: Seconds = 30.0,
        data_memory_gb: float = 2.0,
        state_memory_gb: float = 2.0,
        pace: Callable[[Trial, Samples], Seconds] | None = None,
        metric: str | None = None,
    ) -> None:
        if seed < 0:
            raise ValueError(f"a study's seed must be >= 0; got {seed}")
        self._recipe, self._data, self._vault, self._seed = recipe, data, vault, seed
        self._device, self._kind, self._threads = torch.device(device), kind, threads
        self._every, self._room, self._pace, self._metric = checkpoint_every, state_memory_gb * 2**30, pace, metric
        self._stream = Stream(recipe, data, seed=seed, device=self._device, memory_gb=data_memory_gb)
        self._held: OrderedDict[TrialId, _Held] = OrderedDict()  # used longest ago first
        self._kept: dict[TrialId, tuple[int, str]] = {}  # newest checkpoint written here: after so many visits, its name
        self._meter = Meter(self._device)

    def train(self, unit: Unit) -> Generator[Part, None, Done]:
        """Make the visit. Left early, it counts as not made, and the trial's state here is gone.

        Raises:
            TrialError: the recipe's code raised, or the loss diverged.
            DataError, OSError, StaleRun: the study must pause.
            LookupError: the state asked for is not here.
        """
        spent = Spent(self._pace is None)
        try:
            held = self._ready(unit, spent)
            held.whole = held.safe = False
            totals = yield from self._pass(unit, held.lane, spent)
            return self._finish(unit, held, totals, spent)
        except GeneratorExit:
            raise
        except BaseException:
            self._held.pop(unit.trial.id, None)
            raise

    def state(self, trial: TrialId) -> Tree:
        """The trial's state: views, valid until its next unit here.

        Raises:
            LookupError: it is not here.
        """
        held = self._held.get(trial)
        if held is None or not held.whole:
            raise LookupError(f"trial {trial} is not held here")
        return _state(held.lane)

    def probe(self, trial: Trial) -> tuple[str, dict[str, float]]:
        """The trial's signature and what such trials cost, from a few steps that lead to nothing; known kinds are only built.

        Raises:
            TrialError, DataError: as `train`.
        """
        spent = Spent(True)
        lane = self._ready(Unit(trial, (), Visit(0, self._data.shards[0], 0, 0)), spent).lane
        if self._meter.wants(lane.signature):
            with blaming(), lane.rng:
                deque(self._meter.timed(lane, islice(self._endless(lane), STEPS)), maxlen=0)
            self._meter.conclude(lane)
            self._evaluate(lane, spent)
            if self._vault is not None:
                self._vault.delete(self._keep(trial.id, lane, self._vault, spent))
        self.forget(trial.id)
        return lane.signature, self._meter.news(lane.signature)

    def _endless(self, lane: Lane) -> Iterator[int]:
        """Passes over the first shard, without end."""
        shard = self._data.shards[0]
        for turn in count():
            lane.begin(self._data.size(shard))
            for chunk in self._stream.chunks(shard, turn, lane.settings.shuffle):
                yield from lane.feed(chunk)
            yield from lane.flush()

    def keep(self, trial: TrialId) -> str:
        """Make the trial's state durable now, between its units; the checkpoint's name.

        Raises:
            LookupError: it is not here, or there is no vault.
        """
        held = self._held.get(trial)
        if self._vault is None or held is None or not held.whole:
            if trial in self._kept:
                return self._kept[trial][1]
            raise LookupError(f"trial {trial} is not held here, or there is no vault to keep it in")
        held.safe = True
        return self._keep(trial, held.lane, self._vault, Spent(False))

    def forget(self, trial: TrialId) -> None:
        """Free what is held of the trial in memory."""
        self._held.pop(trial, None)
        self._kept.pop(trial, None)

    def holds(self, trial: TrialId, visits: int) -> bool:
        """Whether a unit of the trial that comes after so many visits needs no source."""
        held = self._held.get(trial)
        here = held is not None and held.whole and len(held.lane.visits) == visits
        return here or self._kept.get(trial, (-1, ""))[0] == visits

    # -- before the visit ----------------------------------------------------------------------------------------------

    def _ready(self, unit: Unit, spent: Spent) -> _Held:
        """The trial's lane, in the state before the visit."""
        held = self._held.get(unit.trial.id)
        if held is None or not held.whole or held.lane.visits != unit.visits:
            with spent.on("switch"):
                state = self._source(unit)
                if held is None or state is None:
                    held = self._held[unit.trial.id] = _Held(self._build(unit))
                if state is not None:
                    self._load(held.lane, state, unit)
        self._held.move_to_end(unit.trial.id)
        return held

    def _source(self, unit: Unit) -> Tree | None:
        source, trial = unit.source, unit.trial.id
        if source is None and unit.visits:
            after, source = self._kept.get(trial, (-1, ""))
            if after != len(unit.visits):
                raise LookupError(f"trial {trial} after {len(unit.visits)} visits is not held here: its unit needs a source")
        if not isinstance(source, str):
            return source
        if self._vault is None:
            raise LookupError(f"checkpoint {source} was asked for, but this station has no vault")
        return self._vault.load(source)

    def _build(self, unit: Unit) -> Lane:
        self._set_threads()
        first = start_up(self._device)
        begin = perf_counter()
        shards = unit.trial.shards or self._data.shards
        epoch = float(sum(self._data.size(shard) for shard in shards))
        with blaming():
            seed = seed_of(unit.trial.config, self._seed)
            lane = Lane(self._recipe, unit.trial.config, seed=seed, device=self._device, kind=self._kind, epoch=epoch)
            if isinstance(lane.scheduler, ReduceLROnPlateau) and self._metric is None:
                raise ValueError("ReduceLROnPlateau follows the study's metric, but none is set: give metric=")
        self._meter.happened(lane.signature, "build", perf_counter() - begin)
        if first is not None:
            self._meter.happened(lane.signature, "first", first)
        return lane

    def _load(self, lane: Lane, state: Tree, unit: Unit) -> None:
        begin = perf_counter()
        with blaming():
            lane.load(state)
        if lane.visits != unit.visits:
            wanted, got = len(unit.visits), len(lane.visits)
            raise LookupError(f"trial {unit.trial.id}: its unit comes after {wanted} visits, its source is the state after {got}")
        self._meter.happened(lane.signature, "switch", perf_counter() - begin)

    # -- the visit -----------------------------------------------------------------------------------------------------

    def _pass(self, unit: Unit, lane: Lane, spent: Spent) -> Generator[Part, None, dict[str, Sum]]:
        shard, totals = unit.visit.shard, dict[str, Sum]()
        left = self._data.size(shard)
        with blaming():
            lane.begin(left)
        chunks = self._stream.chunks(shard, unit.visit.turn, lane.settings.shuffle)
        try:
            while left > 0:
                chunk = self._next(chunks, spent)
                left -= self._data.chunk
                steps = chain(lane.feed(chunk), lane.flush()) if left <= 0 else lane.feed(chunk)
                for part in self._parts(unit.trial, lane, steps, spent):
                    add(totals, part.values)
                    yield part
            with blaming():
                next(chunks, None)  # the last chunk was found unchanged
        finally:
            chunks.close()
        return totals

    def _next(self, chunks: Iterator[Columns], spent: Spent) -> Columns:
        self._set_threads()
        with spent.on("data"), blaming():
            return next(chunks)

    def _parts(self, trial: Trial, lane: Lane, steps: Iterator[int], spent: Spent) -> Iterator[Part]:
        if self._pace is None:
            steps = self._meter.timed(lane, steps)
        going = True
        while going:
            self._set_threads()
            with spent.on("train"), blaming(), lane.rng:
                going = self._take(steps)
                samples, values = lane.taken()
            if self._pace is not None:
                spent.add("train", self._pace(trial, samples))
            if samples:
                yield Part(samples, values, spent.take())

    def _take(self, steps: Iterator[int]) -> bool:
        """Take the steps, for a while; whether some may be left. With a pace never cut by the clock."""
        if self._pace is not None:
            deque(steps, maxlen=0)
            return False
        due = perf_counter() + PART_SECONDS
        return any(perf_counter() >= due for _ in steps)

    # -- after the visit -----------------------------------------------------------------------------------------------

    def _finish(self, unit: Unit, held: _Held, totals: dict[str, Sum], spent: Spent) -> Done:
        lane, trial = held.lane, unit.trial.id
        visit = unit.visit._replace(samples=self._data.size(unit.visit.shard))
        lane.visits = (*unit.visits, visit)
        scores = self._evaluate(lane, spent) if unit.evaluate else None
        if len(lane.visits) % len(unit.trial.shards or self._data.shards) == 0:
            with blaming(), lane.rng:
                lane.end_epoch(self._score(scores, totals))
        held.bytes = lane.bytes
        age, kept = unit.age + spent.worked, None
        if self._vault is not None and (unit.last or age >= self._every or not (unit.carry or self._fits(trial))):
            kept, age = self._keep(trial, lane, self._vault, spent), 0.0
        held.whole, held.safe = True, kept is not None or unit.carry
        state = _state(lane) if unit.carry else None
        self._give_up()
        if self._pace is None:
            self._meter.conclude(lane)
        return Done(visit, spent.take(), scores, kept, age, lane.signature, self._figures(lane), state)

    def _figures(self, lane: Lane) -> dict[str, float]:
        news = self._meter.news(lane.signature)
        return news if self._pace is None else {}

    def _evaluate(self, lane: Lane, spent: Spent) -> dict[str, float] | None:
        if not self._data.validation or not overrides(self._recipe, "validation_step"):
            return None
        self._set_threads()
        begin = perf_counter()
        with spent.on("evaluate"), blaming():
            scores = lane.evaluate(self._stream.validation())
        self._meter.happened(lane.signature, "evaluate", perf_counter() - begin)
        return scores

    def _score(self, scores: dict[str, float] | None, totals: dict[str, Sum]) -> float | None:
        """The study's metric: of the validation, otherwise of the pass's training."""
        if self._metric is None:
            return None
        if scores is not None and self._metric in scores:
            return scores[self._metric]
        total, count = totals.get(self._metric, (0.0, 0.0))
        return total / count if count else None

    def _keep(self, trial: TrialId, lane: Lane, vault: Vault, spent: Spent) -> str:
        name = vault.name(trial, len(lane.visits))
        begin = perf_counter()
        with spent.on("save"):
            vault.save(name, _state(lane))
        self._meter.happened(lane.signature, "save", perf_counter() - begin)
        self._kept[trial] = (len(lane.visits), name)
        return name

    def _fits(self, trial: TrialId) -> bool:
        """Whether this lane may stay although its state is nowhere else."""
        bound = sum(held.bytes for name, held in self._held.items() if name == trial or (held.whole and not held.safe))
        return bound <= self._room

    def _give_up(self) -> None:
        """Drop lanes used longest ago, of those whose state can be had again, until the rest is within the limit."""
        total = sum(held.bytes for held in self._held.values())
        for trial, held in list(self._held.items()):
            if total <= self._room:
                return
            if held.safe or not held.whole:
                total -= held.bytes
                del self._held[trial]

    def _set_threads(self) -> None:
        if torch.get_num_threads() != self._threads:  # other stations of this process may have other numbers
            torch.set_num_threads(self._threads)


def _state(lane: Lane) -> Tree:
    with blaming():  # a model or scheduler of the recipe's may hold what cannot be kept
        return lane.state()
