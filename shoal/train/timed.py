"""A process that times what it is told to: trials alone and as part of a wide lane, and the preparing of chunks.

Guan et al., "FLEET", MLSys 2020, appendix B.3: at most 48 batches, of which the last 20 count. What a step goes to is told
apart as in Capes et al. 2019, table 1. `shoal.profiling` is who tells.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import count
from multiprocessing.connection import Connection
from queue import SimpleQueue
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import torch
from filelock import FileLock

from shoal.core.trial import Trial
from shoal.train.account import blaming
from shoal.train.checkpoint import Vault
from shoal.train.columns import Columns, rows
from shoal.train.data import Data
from shoal.train.group import Meeting
from shoal.train.lane import Lane
from shoal.train.largest import is_open
from shoal.train.measure import COUNTED, STEPS
from shoal.train.recipe import Recipe, data_key, seed_of
from shoal.train.seat import Orders, Seat
from shoal.train.station import Station
from shoal.train.stream import Streams
from shoal.train.unit import TrialError
from shoal.train.wide import Adrift, Halted, Wide

FED = 0.5  # seconds of preparing that count, at least
SETTLED = 5  # steps at a width, after which it may change again


@dataclass(frozen=True, slots=True)
class Setup:
    """What a process needs to know of the study. `recipe`: pickled. `lock`: a file; data is built by one process at a time."""

    recipe: bytes
    lock: str
    device: str = "cpu"
    kind: str = "cpu"
    threads: int = 1
    seed: int = 0
    metric: str | None = None
    memory_gb: float = 2.0  # of prepared chunks


def serve(link: Connection, setup: Setup) -> None:
    """Do what comes over the link, one thing after another, until it is closed. Answers are (what was asked, answer).

    Asked are the methods of `Timed`, as (name, arguments); ("move", Move) and ("halt", None) go to the lane in training.
    What a recipe raises is answered as ("failed", why).
    """
    timed = Timed(setup, link.send)
    link.send(("at", timed.meeting.address))
    asked: SimpleQueue[tuple[str, Any] | None] = SimpleQueue()

    def listen() -> None:
        with suppress(EOFError, OSError):
            while True:
                kind, told = link.recv()
                if kind == "move":
                    timed.orders.move(told)
                elif kind == "halt":
                    timed.orders.halt()
                else:
                    asked.put((kind, told))
        timed.orders.halt()
        asked.put(None)

    threading.Thread(target=listen, daemon=True).start()
    while (task := asked.get()) is not None:
        kind, told = task
        try:
            link.send((kind, getattr(timed, kind)(*told)))
        except TrialError as error:
            link.send(("failed", error.why))
        except Adrift as error:
            link.send(("failed", f"another process of its lane was lost: {error}"))


class Timed:
    """One slot. `say`: tells the driver something before the answer."""

    def __init__(self, setup: Setup, say: Callable[[tuple[str, Any]], None]) -> None:
        import pickle

        torch.set_num_threads(setup.threads)
        self.setup, self._say = setup, say
        self.recipe: Recipe = pickle.loads(setup.recipe)
        with FileLock(setup.lock):
            self.data: Data = self.recipe.data()
        self.device = torch.device(setup.device)
        self.meeting, self.orders = Meeting(), Orders()
        self._streams = Streams(self.recipe, self.data, seed=setup.seed, device=self.device, memory_gb=setup.memory_gb)

    def probe(self, trials: Sequence[Trial]) -> dict[str, tuple[str, dict[str, float], str | None]]:
        """By trial its signature, the figures of `Station.probe` (of the first of a signature), and why it failed, if it did."""
        s, found = self.setup, dict[str, tuple[str, dict[str, float], str | None]]()
        with TemporaryDirectory() as folder:
            options: dict[str, Any] = {"seed": s.seed, "device": s.device, "kind": s.kind, "threads": s.threads}
            station = Station(self.recipe, self.data, Vault(folder, 1), run=1, metric=s.metric, **options)
            for trial in trials:
                try:
                    found[str(trial.id)] = (*station.probe(trial), None)
                except TrialError as error:
                    station.forget(trial.id)
                    found[str(trial.id)] = (error.signature, {}, error.why)
        return found

    def train(self, trial: Trial, seat: Seat, joins: bool = False, batches: int | None = STEPS) -> dict[str, Any]:
        """Train so many batches; the last `COUNTED` of them tell samples, seconds, steps, and seconds by cause (`Clock`).

        `batches` None: until it is told to halt or to leave; ("settled", width) is said after `SETTLED` steps at each width, and
        the answer has the `rescales` as (width before, after, seconds).
        """
        self.orders = Orders()
        lane = self._lane(trial)
        wide = Wide(lane, self.orders, exact=True)
        group = lane.settings.accumulate_grad_batches
        self._warm(lane, seat.width * STEPS)
        wide.begin(self._endless(lane), 10**12, whole=not joins)
        steps = wide.run(seat)
        with closing(steps), suppress(Halted):
            if batches is None:
                return self._rescaled(wide, steps)
            last = max(1, min(COUNTED, batches - 1) // group)
            for _ in range(max(1, batches // group - last)):
                next(steps)
            wide.clock.take()
            begin, samples = wide.clock.now(), sum(next(steps) for _ in range(last))
            seconds = wide.clock.now() - begin
            made, spent = wide.clock.take()
            return {"samples": samples, "seconds": seconds, "steps": made, "spent": dict(spent), "batch": lane.size * group}
        return {}

    def feed(self, trial: Trial, batch: int, number: int, of: int) -> tuple[int, float]:
        """Samples prepared for such trials, and the seconds that they took, as one of so many feeders that share a shard out.

        The first chunk, and what `STEPS` - `COUNTED` batches need, do not count; then as much as `COUNTED` batches need, and for
        `FED` seconds at least, so that all of them are at work.
        """
        shard = max(self.data.shards, key=self.data.size)
        chunks = -(-self.data.size(shard) // self.data.chunk)
        before = counted = 0
        began = perf_counter()
        with blaming():
            stream = self._streams.of(data_key(self.recipe, trial.config))
        for k in count(number, of):
            turn, at = divmod(k, chunks)
            with blaming():
                chunk = stream.made(shard, at, turn if stream.augments else None, "once")
            if before < (STEPS - COUNTED) * batch or not before:
                before, began = before + rows(chunk), perf_counter()
                continue
            counted += rows(chunk)
            if counted >= COUNTED * batch and perf_counter() - began >= FED:
                break
        return counted, perf_counter() - began

    def _lane(self, trial: Trial) -> Lane:
        epoch = float(sum(self.data.size(shard) for shard in self.data.shards))
        with blaming():
            if is_open(self.recipe, trial.config):
                raise ValueError('batch_size="max" is found out for each slot: to profile widths, give a number')
            seed = seed_of(trial.config, self.setup.seed)
            return Lane(self.recipe, trial.config, seed=seed, device=self.device, kind=self.setup.kind, epoch=epoch)

    def _endless(self, lane: Lane) -> Callable[[int], Generator[Columns, None, None]]:
        """The first shard again and again, from any sample on."""
        shard, stream = self.data.shards[0], self._streams.of(lane.settings.data_key)

        def chunks(skip: int) -> Generator[Columns, None, None]:
            turn, within = divmod(skip, self.data.size(shard))
            for k in count(turn):
                yield from stream.chunks(shard, k, lane.settings.shuffle, within if k == turn else 0)

        return chunks

    def _warm(self, lane: Lane, batches: int) -> None:
        """Read what is going to be read, so that only what is prepared anew in each epoch is waited for."""
        samples, wanted = 0, batches * lane.size
        with blaming(), closing(self._endless(lane)(0)) as chunks:
            for chunk in chunks:
                samples += rows(chunk)
                if samples >= min(wanted, self.data.size(self.data.shards[0])):
                    return

    def _rescaled(self, wide: Wide, steps: Iterator[int]) -> dict[str, Any]:
        made: Mapping[int, int] = {}
        try:
            for _ in steps:
                width = wide.widths[-1][1]
                made = {width: made.get(width, 0) + 1}
                if made[width] == SETTLED:
                    self._say(("settled", width))
        except Halted:
            pass
        return {"rescales": [(each.before, each.after, each.seconds) for each in wide.rescales]}
