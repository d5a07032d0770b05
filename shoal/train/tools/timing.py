"""A process that times what it is asked to time.

It times trials alone and as part of a wide lane, and the preparing of chunks. Guan et al., "FLEET",
MLSys 2020, appendix B.3: at most 48 batches, of which the last 20 count. The parts of a step are
those of Capes et al. 2019, table 1. `shoal.tools.profile` asks.
"""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from itertools import count
from multiprocessing.connection import Connection
from queue import SimpleQueue
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import torch
from filelock import FileLock

from shoal.core.cluster import epoch_size
from shoal.core.trial import Trial
from shoal.options import Options
from shoal.train.data.columns import Columns, rows
from shoal.train.data.data import Data
from shoal.train.lane.batch_size_search import is_open
from shoal.train.lane.blame import blaming, explained
from shoal.train.lane.checkpoints import Checkpoints
from shoal.train.lane.device import use
from shoal.train.lane.lane import TrainingLane
from shoal.train.lane.measure import COUNTED, STEPS
from shoal.train.recipe.recipe import Recipe
from shoal.train.recipe.recipe_data import bring
from shoal.train.recipe.recipes import own_config, own_recipe
from shoal.train.recipe.seat import Orders, Seat
from shoal.train.recipe.settings import data_key, seed_of
from shoal.train.recipe.unit import TrialError
from shoal.train.slot.setup import TrainerSetup
from shoal.train.slot.trainer import SlotTrainer
from shoal.train.stream.reader import Reader
from shoal.train.stream.stream import Streams
from shoal.train.wide.gate import Meeting
from shoal.train.wide.lane import Adrift, Halted, WideLane

FED = 0.5  # seconds of preparing that count, at least
SETTLED = 5  # steps at a width, after which it may change again
ENDLESS = 10**12  # samples of a pass that is stopped on order
Request = tuple[str, Any]
Chunks = Generator[Columns, None, None]
Outcome = tuple[str, dict[str, float], str | None]  # signature, figures, why it failed


@dataclass(frozen=True, slots=True)
class TimedSetup:
    """What a timing process needs to know of the study.

    `user`: the recipe, and its data if that lies at nodes (else None), pickled. `lock`: a file;
    other data is built by one process at a time.
    """

    user: bytes
    lock: str
    device: str = "cpu"
    threads: int = 1
    seed: int = 0
    metric: str | None = None
    memory_gb: float = 2.0  # of prepared chunks


def serve(link: Connection, setup: TimedSetup) -> None:
    """Do what comes over the link, one thing after another, until the link is closed.

    Requests are methods of `Timed`, as (name, arguments); answers are (name, answer). Two requests,
    ("move", Move) and ("halt", None), go to the lane in training. If a recipe raises, the answer is
    ("failed", why).
    """
    timed = Timed(setup, link.send)
    link.send(("at", timed.meeting.address))
    requests: SimpleQueue[Request | None] = SimpleQueue()
    listener = threading.Thread(target=_listen, args=(link, timed, requests), daemon=True)
    listener.start()
    while True:
        request = requests.get()
        if request is None:
            return
        link.send(_answer(timed, *request))


def _listen(link: Connection, timed: Timed, requests: SimpleQueue[Request | None]) -> None:
    """Pass requests on until the link is closed: orders to the lane, others to the queue."""
    with suppress(EOFError, OSError):
        while True:
            kind, content = link.recv()
            if kind == "move":
                timed.orders.move(content)
            elif kind == "halt":
                timed.orders.halt()
            else:
                requests.put((kind, content))
    timed.orders.halt()
    requests.put(None)


def _answer(timed: Timed, kind: str, arguments: Sequence[Any]) -> Request:
    """Do what the request says; returns the answer."""
    try:
        return kind, getattr(timed, kind)(*arguments)
    except TrialError as error:
        return "failed", error.why
    except Adrift as error:
        return "failed", f"another process of its trial was lost: {error}"


class Timed:
    """One slot. `say` tells the driver something before the answer."""

    def __init__(self, setup: TimedSetup, say: Callable[[tuple[str, Any]], None]) -> None:
        torch.set_num_threads(setup.threads)
        self.setup = setup
        self._say = say
        self.recipe: Recipe
        self.data: Data
        self.recipe, data = pickle.loads(setup.user)
        if data is None:
            with FileLock(setup.lock):
                data = bring(self.recipe)
        self.data = data
        self.device = use(setup.device)
        self.meeting = Meeting()
        self.orders = Orders()
        self._streams = Streams(
            self.recipe, self.data, seed=setup.seed, device=self.device, memory_gb=setup.memory_gb
        )

    def probe(self, trials: Sequence[Trial]) -> dict[str, Outcome]:
        """The signature of each trial, its figures, and why it failed, if it did.

        The figures are those of `SlotTrainer.probe`, for the first trial of each signature.
        """
        setup = TrainerSetup(
            Options(threads=self.setup.threads),
            seed=self.setup.seed,
            run=1,
            device=self.setup.device,
            metric=self.setup.metric,
        )
        outcomes: dict[str, Outcome] = {}
        with TemporaryDirectory() as folder:
            vault = Checkpoints(folder, 1)
            trainer = SlotTrainer(self.recipe, self.data, vault, setup)
            for trial in trials:
                try:
                    outcomes[str(trial.id)] = (*trainer.probe(trial), None)
                except TrialError as error:
                    trainer.forget(trial.id)
                    outcomes[str(trial.id)] = error.signature, {}, explained(error)
        return outcomes

    def train(
        self, trial: Trial, seat: Seat, joins: bool = False, batches: int | None = STEPS
    ) -> dict[str, Any]:
        """Train so many batches.

        Returns samples, seconds, steps, and seconds by cause (`Clock`) of the last `COUNTED`.

        `batches` None: train until ordered to halt or to leave. Then ("settled", width) is sent
        after `SETTLED` steps at each width, and the answer has the `rescales` as
        (width before, after, seconds).
        """
        self.orders = Orders()
        lane = self._lane(trial)
        wide = WideLane(lane, self.orders, exact=True)
        self._warm(lane, seat.width * STEPS)
        wide.begin(Reader(self._endless(lane), ENDLESS), whole=not joins)
        steps = wide.run(seat)
        with closing(steps), suppress(Halted):
            if batches is None:
                return self._rescaled(wide, steps)
            group = wide.lane.settings.accumulate_grad_batches
            last = max(1, min(COUNTED, batches - 1) // group)
            for _ in range(max(1, batches // group - last)):
                next(steps)
            wide.clock.take()
            begin = wide.clock.now()
            samples = sum(next(steps) for _ in range(last))
            seconds = wide.clock.now() - begin
            step_count, spent = wide.clock.take()
            return {
                "samples": samples,
                "seconds": seconds,
                "steps": step_count,
                "spent": dict(spent),
                "batch": wide.lane.size * group,
            }
        return {}

    def feed(self, trial: Trial, batch: int, number: int, of: int) -> tuple[int, float]:
        """Prepare chunks for such trials, as feeder `number` of `of` feeders of a shard.

        Returns the samples of the chunks that count, and the seconds for those. The first chunk
        does not count, nor do the chunks that `STEPS` - `COUNTED` batches need. Then chunks count
        until `COUNTED` batches have what they need, and for `FED` seconds at least, so that all
        feeders are at work.
        """
        before = 0
        counted = 0
        began = perf_counter()
        for chunk in self._prepared(trial, number, of):
            if not before or before < (STEPS - COUNTED) * batch:
                before += rows(chunk)
                began = perf_counter()
                continue
            counted += rows(chunk)
            if counted >= COUNTED * batch and perf_counter() - began >= FED:
                break
        return counted, perf_counter() - began

    def _prepared(self, trial: Trial, number: int, of: int) -> Iterator[Columns]:
        """Every `of`-th chunk of the largest shard from that number on, pass after pass."""
        recipe = own_recipe(self.recipe, trial.config)
        data = self.data.of_recipe(recipe.recipe_name)
        shard = max(data.shards, key=data.size)
        chunks = -(-data.size(shard) // data.chunk)
        with blaming():
            config = own_config(self.recipe, trial.config)
            stream = self._streams.of(data_key(recipe, config))
        for index in count(number, of):
            turn, chunk_index = divmod(index, chunks)
            varied = None
            if stream.augments:
                varied = turn
            with blaming():
                chunk = stream.array_chunk(shard, chunk_index, varied, "once")
            yield chunk

    def _lane(self, trial: Trial) -> TrainingLane:
        """The trial's lane.

        Raises:
            TrialError: the recipe's code raised, or the batch size is not a number.
        """
        epoch = epoch_size(self.data.sizes, trial.config)
        with blaming():
            recipe = own_recipe(self.recipe, trial.config)
            config = own_config(self.recipe, trial.config)
            if is_open(recipe, config):
                raise ValueError(
                    'batch_size="max" is found out for each slot: to profile widths, give a number'
                )
            seed = seed_of(trial.config, self.setup.seed)
            return TrainingLane(recipe, config, seed=seed, device=self.device, epoch=epoch)

    def _endless(self, lane: TrainingLane) -> Callable[[int], Chunks]:
        """The first shard again and again, from any sample on."""
        data = self.data.of_recipe(lane.recipe.recipe_name)
        shard = data.shards[0]
        size = data.size(shard)
        stream = self._streams.of(lane.settings.data_key)
        a_pass = partial(stream.chunks, shard, shuffle=lane.settings.order)
        return partial(_passes, a_pass, size)

    def _warm(self, lane: TrainingLane, batches: int) -> None:
        """Prepare the data of so many batches, at most one shard.

        Afterwards only what is prepared anew in each epoch takes time.
        """
        data = self.data.of_recipe(lane.recipe.recipe_name)
        needed = min(batches * lane.size, data.size(data.shards[0]))
        samples = 0
        with blaming(), closing(self._endless(lane)(0)) as chunks:
            for chunk in chunks:
                samples += rows(chunk)
                if samples >= needed:
                    return

    def _rescaled(self, wide: WideLane, steps: Iterator[int]) -> dict[str, Any]:
        """Train on order, and say when the lane has settled at a width; returns its changes."""
        width = 0
        steps_made = 0  # steps at this width
        with suppress(Halted):
            for _ in steps:
                before = width
                width = wide.widths[-1][1]
                if width != before:
                    steps_made = 0
                steps_made += 1
                if steps_made == SETTLED:
                    self._say(("settled", width))
        changes = wide.changes.rescales
        return {"rescales": [(each.before, each.after, each.seconds) for each in changes]}


def _passes(a_pass: Callable[..., Chunks], size: int, skip: int) -> Chunks:
    """The chunks of a shard of that size, pass after pass, without the first samples."""
    first, within = divmod(skip, size)
    for turn in count(first):
        yield from a_pass(turn, skip=within)
        within = 0
