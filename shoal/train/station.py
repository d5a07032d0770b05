"""What one slot holds and does: its data, the lanes of the trials it has seen, and one unit after another."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from gc import collect
from itertools import count, islice
from math import inf
from time import perf_counter
from typing import TYPE_CHECKING

import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau

from shoal.core.cluster import ShardId
from shoal.core.event import Sum
from shoal.core.trial import Samples, Seconds, Trial, TrialId, Value, Visit
from shoal.train import lean
from shoal.train.account import Spent, blaming
from shoal.train.checkpoint import Vault
from shoal.train.crew import Pass
from shoal.train.data import Data
from shoal.train.device import keep_freed
from shoal.train.evaluation import Evaluation, Scores
from shoal.train.lane import Lane
from shoal.train.largest import Make, is_open, largest, with_size
from shoal.train.measure import STEPS, Meter, start_up
from shoal.train.pack import Pack
from shoal.train.recipe import Recipe, data_key, seed_of
from shoal.train.stream import Feed, Streams
from shoal.train.unit import Done, OutOfMemory, Part, Tree, TrialError, Unit

if TYPE_CHECKING:
    from shoal.train.ranks import Ranks
    from shoal.train.wide import Wide

__all__ = ["Done", "Part", "Station", "Tree", "TrialError", "Unit"]

News = Part | Done | TrialError


@dataclass(slots=True)
class _Held:
    """A lane that stays here, and whether its state could be had elsewhere."""

    lane: Lane
    whole: bool = False  # its state is that after `lane.visits`; otherwise only its memory is of use
    safe: bool = False  # that state is durable, or was returned
    bytes: int = 0  # as of its last unit
    wide: Wide | None = None  # where it was trained by several processes


class Station:
    """One slot at work. Lanes stay after a unit, within `state_memory_gb`, so that a trial's next unit here goes on at once.

    A lane is given up only if its state is durable or was returned; where none is, the unit that exceeds the limit is kept.
    `slot_memory_gb`: where it is known, lanes at rest make room for those at work.
    `vault`: None to keep nothing. `run`: the study's incarnation. `kind`: of the device, as signatures tell it.
    `checkpoint_every`: seconds of training between durable states, 0: after every unit. `metric`: for ReduceLROnPlateau.
    `pace`: seconds of training for a trial and so many samples, instead of the clock; then nothing is measured.
    `feed`: see `Stream`. `turn_of`: told the trial whose code runs next; of fused ones the first.

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
        slot_memory_gb: float = inf,
        pace: Callable[[Trial, Samples], Seconds] | None = None,
        metric: str | None = None,
        feed: Feed | None = None,
        turn_of: Callable[[TrialId], None] | None = None,
    ) -> None:
        lean.wait()
        if seed < 0:
            raise ValueError(f"a study's seed must be >= 0; got {seed}")
        self._recipe, self._data, self._vault, self._seed = recipe, data, vault, seed
        self._device, self._kind = torch.device(device), kind
        keep_freed()
        self._every, self._room, self._pace, self._metric = checkpoint_every, state_memory_gb * 2**30, pace, metric
        self._streams = Streams(recipe, data, seed=seed, device=self._device, memory_gb=data_memory_gb, feed=feed)
        self._held: OrderedDict[TrialId, _Held] = OrderedDict()  # used longest ago first
        self._kept: dict[TrialId, tuple[int, str]] = {}  # newest checkpoint written here: after so many visits, its name
        self._meter = Meter(self._device)
        self._largest: dict[str, int] = {}  # batch sizes found out, by signature but for the batch
        self._memory, self._short = slot_memory_gb * 2**30, False
        self._pack = Pack(self._streams, data, self._meter, threads, pace, turn_of)
        self._evaluation = Evaluation(recipe, data, self._streams, self._meter, self._pack, clocked=pace is None)

    @cached_property
    def ranks(self) -> Ranks:
        """For units that several processes make."""
        from shoal.train.ranks import Ranks

        return Ranks(self)

    def train(self, unit: Unit) -> Generator[Part, None, Done]:
        """Make the visit. Left early, it counts as not made, and the trial's state here is gone.

        Raises:
            TrialError: the recipe's code raised, or the loss diverged.
            DataError, OSError, StaleRun: the study must pause.
            LookupError: the state asked for is not here.
        """
        for _, news in self.together((unit,)):
            if isinstance(news, TrialError):
                raise news
            if isinstance(news, Done):
                return news
            yield news
        raise AssertionError("a unit ends with Done or an error")

    def together(self, units: Sequence[Unit], fuse: bool = False) -> Generator[tuple[TrialId, News], None, None]:
        """Make the visits of several trials, over shared chunks; each trial's news end with `Done` or its error.

        `fuse`: lanes of one graph may train in one step where that is faster (equal to rounding); otherwise each trial's
        result is to the bit what it is alone. `OutOfMemory` of one among several ends the visits of all. Left early, the
        visits that are not done count as not made.

        Raises:
            DataError, OSError, StaleRun, LookupError: as `train`.
        """
        passes: list[Pass] = []
        over: set[TrialId] = set()
        self._make_room(units)
        try:
            for unit in units:
                try:
                    passes.append(self._open(unit))
                except OutOfMemory:
                    raise
                except TrialError as error:
                    self._drop(unit.trial.id)
                    over.add(unit.trial.id)
                    yield unit.trial.id, error
            for each, news in self._pack.run(passes, fuse):
                if isinstance(news, TrialError):
                    self._drop(each.unit.trial.id)
                yield each.unit.trial.id, news
            yield from self._finished([each for each in passes if not each.failed])
        except OutOfMemory as error:
            signatures = {each.unit.trial.id: each.lane.signature for each in passes}
            over |= {each.unit.trial.id for each in passes if each.done or each.failed}
            left = [unit.trial.id for unit in units if unit.trial.id not in over]
            self._drop(*left)
            self._short, freed = True, self._give_up(0.0)
            if len(units) == 1 and not freed and self._device.type == "cuda":
                freed = self._streams.shrink()
            for trial in left:
                yield trial, OutOfMemory(error.why, error.text, signatures.get(trial, ""), freed)
        except GeneratorExit:
            raise
        except BaseException:
            self._drop(*(unit.trial.id for unit in units))
            raise

    def _make_room(self, units: Sequence[Unit]) -> None:
        """Give up lanes at rest for those to be trained, where memory is limited or has run out before."""
        if self._short:
            collect()  # what an error held on to
            self._short = False
        if self._memory < inf:
            lanes = [held.lane if (held := self._held.get(unit.trial.id)) is not None else None for unit in units]
            needs = sum(map(self._meter.memory, lanes))
            self._give_up(max(0.0, self._memory - needs), [lane for lane in lanes if lane is not None])

    def _open(self, unit: Unit) -> Pass:
        spent = Spent(self._pace is None)
        self._pack.turn_of(unit.trial.id)
        held = self._ready(unit, spent)
        held.whole = held.safe = False
        held.lane.size, held.lane.factor = held.lane.settings.batch_size, 1.0  # it may have been trained at other widths here
        return Pass(unit, held.lane, spent)

    def _finished(self, passes: Sequence[Pass]) -> Iterator[tuple[TrialId, News]]:
        scores = self._evaluation.scores([each for each in passes if each.unit.evaluate])
        for each in passes:
            trial = each.unit.trial.id
            try:
                found = scores.get(trial)
                if isinstance(found, TrialError):
                    raise found
                news: News = self._finish(each, found)
                each.done = True
            except OutOfMemory:
                raise
            except TrialError as error:
                each.failed, news = True, error
                self._drop(trial)
            if each is passes[-1]:
                self._give_up(self._room)
            yield trial, news

    def state(self, trial: TrialId) -> Tree:
        """The trial's state: views, valid until its next unit here.

        Raises:
            LookupError: it is not here.
        """
        held = self._held.get(trial)
        if held is None or not held.whole:
            raise LookupError(f"trial {trial} is not held here")
        return _state(held.lane)

    def follows_scores(self, trial: TrialId) -> bool:
        """Whether its learning rate depends on its scores; of one that is not here it may."""
        held = self._held.get(trial)
        return held is None or isinstance(held.lane.scheduler, ReduceLROnPlateau)

    def place(self, unit: Unit) -> None:
        """Hold the trial in the state before that unit.

        Raises:
            TrialError, LookupError: as `train`.
        """
        self._ready(unit, Spent(False)).whole = True

    def evaluate(self, trials: Iterable[TrialId]) -> dict[TrialId, Scores | TrialError]:
        """The means of the validation values of trials that are held here; {} where there is nothing to validate with.

        Raises:
            OutOfMemory: they are as they were.
        """
        first = Visit(0, self._data.shards[0], 0, 0)
        some = [Pass(Unit(Trial(t, 1.0), (), first), self._held[t].lane, Spent(False)) for t in trials]
        return {each.unit.trial.id: {} for each in some} | self._evaluation.scores(some)

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
            if self._evaluation.possible:
                self._evaluation.of(lane, spent)
            if self._vault is not None:
                self._vault.delete(self._keep(trial.id, lane, self._vault, spent))
        self.forget(trial.id)
        return lane.signature, self._meter.news(lane.signature)

    def probe_packs(self, trials: Sequence[Trial]) -> dict[TrialId, tuple[str, dict[str, float]]]:
        """What steps of these trials take when they are fused, as by `probe`; of as many as can be built, and have room.

        Raises:
            DataError: as `train`.
        """
        while len(trials) > 1:
            passes: list[Pass] = []
            try:
                for trial in trials:
                    try:
                        passes.append(self._open(Unit(trial, (), Visit(0, self._data.shards[0], 0, 0))))
                    except OutOfMemory:
                        raise
                    except TrialError:  # it is told when that trial trains
                        continue
                self._pack.probe(passes)
                return {each.unit.trial.id: (each.lane.signature, self._meter.news(each.lane.signature)) for each in passes}
            except OutOfMemory:
                self._short = True
            finally:
                for trial in trials:
                    self.forget(trial.id)
            del passes
            self._make_room([])
            trials = trials[: len(trials) // 2]
        return {}

    def _endless(self, lane: Lane) -> Iterator[int]:
        """Passes over the first shard, without end."""
        shard, stream = self._data.shards[0], self._streams.of(lane.settings.data_key)
        for turn in count():
            lane.begin(self._data.size(shard))
            for chunk in stream.chunks(shard, turn, lane.settings.shuffle):
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
        self._drop(trial)
        self._kept.pop(trial, None)

    def _drop(self, *trials: TrialId) -> None:
        gone = [held for trial in trials if (held := self._held.pop(trial, None)) is not None]
        self._pack.forsake([held.lane for held in gone])
        for held in gone:
            if held.wide is not None:
                held.wide.leave()

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
                    held = self._held[unit.trial.id] = _Held(self._build(unit, state))
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

    def _blank(self, unit: Unit, spent: Spent) -> _Held:
        """The trial's lane in whatever state."""
        if unit.trial.id not in self._held:
            with spent.on("switch"):
                self._held[unit.trial.id] = _Held(self._build(unit))
        return self._held[unit.trial.id]

    def _build(self, unit: Unit, state: Tree | None = None) -> Lane:
        """`state`: where it is known, that it is to have."""
        self._pack.set_threads()
        first = start_up(self._device)
        shards = unit.trial.shards or self._data.shards
        epoch = float(sum(self._data.size(shard) for shard in shards))

        def make(config: Mapping[str, Value]) -> Lane:
            seed = seed_of(config, self._seed)
            return Lane(self._recipe, config, seed=seed, device=self._device, kind=self._kind, epoch=epoch)

        with blaming():
            config, found = unit.trial.config, None
            if is_open(self._recipe, config):
                found = (None if state is None else state.get("found")) or self._find(make, config, shards)
                config = with_size(config, found)
            begin = perf_counter()
            lane = make(config)
            lane.found = found
            if isinstance(lane.scheduler, ReduceLROnPlateau) and self._metric is None:
                raise ValueError("ReduceLROnPlateau follows the study's metric, but none is set: give metric=")
        self._meter.happened(lane.signature, "build", perf_counter() - begin)
        if first is not None:
            self._meter.happened(lane.signature, "first", first)
        return lane

    def _find(self, make: Make, config: Mapping[str, Value], shards: Collection[ShardId]) -> int:
        """The largest batch that fits; tried once for trials that are alike otherwise."""
        most = min(self._data.size(shard) for shard in shards)
        kind = f"{make(with_size(config, 1)).signature} {most}"
        if kind not in self._largest:
            stream = self._streams.of(data_key(self._recipe, config))
            with closing(stream.validation()) as validation:
                scored = next(validation, None) if self._evaluation.possible else None
            with closing(stream.chunks(self._data.shards[0], 0)) as training:
                self._largest[kind] = largest(make, config, next(training), scored, most, self._memory, self._device)
        return self._largest[kind]

    def _load(self, lane: Lane, state: Tree, unit: Unit) -> None:
        begin = perf_counter()
        self._pack.release(lane)
        with blaming():
            lane.load(state)
        if lane.visits != unit.visits:
            wanted, got = len(unit.visits), len(lane.visits)
            raise LookupError(f"trial {unit.trial.id}: its unit comes after {wanted} visits, its source is the state after {got}")
        self._meter.happened(lane.signature, "switch", perf_counter() - begin)

    # -- after the visit -----------------------------------------------------------------------------------------------

    def _finish(self, each: Pass, scores: Scores | None) -> Done:
        unit, lane, spent, trial = each.unit, each.lane, each.spent, each.unit.trial.id
        held = self._held[trial]
        visit = unit.visit._replace(samples=self._data.size(unit.visit.shard))
        lane.visits = (*unit.visits, visit)
        if len(lane.visits) % len(unit.trial.shards or self._data.shards) == 0:
            with blaming():
                metric = self._score(scores, each.totals)
                if lane.steps_by_epoch:
                    with lane.rng:
                        lane.end_epoch(metric)
        if not held.bytes:  # its optimizer's state is there by now
            held.bytes = lane.bytes
        age, kept = unit.age + spent.worked, None
        if self._vault is not None and (unit.last or age >= self._every or not (unit.carry or self._fits(trial))):
            kept, age = self._keep(trial, lane, self._vault, spent), 0.0
        held.whole, held.safe = True, kept is not None or unit.carry
        state = _state(lane) if unit.carry else None
        if self._pace is None:
            self._meter.conclude(lane)
        return Done(visit, spent.take(), scores, kept, age, lane.signature, self._figures(lane), state)

    def _figures(self, lane: Lane) -> dict[str, float]:
        news = self._meter.news(lane.signature) if self._pace is None else {}
        return news if lane.found is None else {**news, "batch_size": float(lane.found)}

    def _score(self, scores: Scores | None, totals: dict[str, Sum]) -> float | None:
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

    def _give_up(self, room: float, but: Collection[Lane] = ()) -> bool:
        """Drop lanes used longest ago, of those whose state can be had again, until the rest is within the room; whether any."""
        total, dropped = sum(held.bytes for held in self._held.values() if held.lane not in but), False
        for trial, held in list(self._held.items()):
            if total <= room:
                return dropped
            at_work = held.lane in but or (held.wide is not None and held.wide.connected)
            if (held.safe or not held.whole) and not at_work:
                total, dropped = total - held.bytes, True
                self._drop(trial)
        return dropped


def _state(lane: Lane) -> Tree:
    with blaming():  # a model or scheduler of the recipe's may hold what cannot be kept
        return lane.state()
