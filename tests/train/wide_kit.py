"""Processes of a wide lane, driven step by step from a test: what happens when is the test's to
say.
"""

import os
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from multiprocessing.connection import Connection
from time import monotonic, sleep
from typing import Any

import numpy as np
import torch
from torch import nn

from shoal.core.trial import Visit
from shoal.train.data.data import Data
from shoal.train.lane.lane import TrainingLane
from shoal.train.recipe.recipe import LRSchedule, Recipe
from shoal.train.recipe.seat import Move, Orders, Seat
from shoal.train.stream.reader import Reader
from shoal.train.stream.stream import Stream
from shoal.train.wide import buckets
from shoal.train.wide.gate import Gate, Meeting
from shoal.train.wide.lane import Adrift, Halted, WideLane

WATCHDOG = 60.0  # seconds: no answer within them is a hang
CPU = torch.device("cpu")

SCHEDULES = {
    "none": lambda o: None,
    "steps": lambda o: torch.optim.lr_scheduler.MultiStepLR(o, [1, 2], gamma=0.3),
    "cycle": lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.1, total_steps=30),
    # warm-up over half an epoch, then a decay by ten at the end of the first
    "warm": lambda o: LRSchedule(
        lambda epoch: min(1.0, 0.1 + 1.8 * epoch) * (0.1 if epoch >= 1 else 1.0)
    ),
}


class Exact(Recipe):
    """In float64, nothing random: widths must agree to rounding."""

    batch_size = 10

    def __init__(self, **settings: Any) -> None:
        self.die: tuple[int, str] | None = None
        for name, value in settings.items():
            setattr(self, name, value)
        self.wide: WideLane | None = None

    def __reduce__(self) -> Any:
        return _made, (type(self), {k: v for k, v in vars(self).items() if k != "wide"})

    def configure_model(self, config: Mapping[str, Any]) -> nn.Module:
        model = nn.Sequential(
            nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3)
        )
        return model.double()

    def configure_optimizers(self, model: nn.Module, config: Mapping[str, Any]) -> Any:
        kinds = {
            "adam": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
            "momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
        }
        optimizer = kinds[config.get("optimizer", "adam")](model.parameters())
        return optimizer, SCHEDULES[config.get("schedule", "steps")](optimizer)

    def training_step(self, model: nn.Module, batch: Any) -> Any:
        x, y = batch
        out = model(x.to(next(model.parameters()).dtype))
        loss = nn.functional.cross_entropy(out, y)
        self._perhaps("forward", loss)
        return {"loss": loss, "hits": (out.argmax(1) == y).double().mean()}

    def _perhaps(self, when: str, loss: Any) -> None:
        """Die in the middle of a step, on order."""
        if self.die is not None and self.wide is not None and self.wide.position >= self.die[0]:
            if self.die[1] == "forward":
                os.kill(os.getpid(), signal.SIGKILL)
            if self.die[1] == "raise":
                raise RuntimeError("no more")
            loss.register_hook(lambda _grad: os.kill(os.getpid(), signal.SIGKILL))


class Single(Exact):
    def configure_model(self, config: Mapping[str, Any]) -> nn.Module:
        return super().configure_model(config).float()


class Normed(Exact):
    def configure_model(self, config: Mapping[str, Any]) -> nn.Module:
        return nn.Sequential(
            nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 3)
        ).double()


class Counting(Exact):
    """Its loss depends on the step, and on what a step changes of the model outside its weights."""

    def configure_model(self, config: Mapping[str, Any]) -> nn.Module:
        model: Any = super().configure_model(config)
        model.calls = 0
        model.scaler = torch.amp.GradScaler("cpu", init_scale=1.0, growth_interval=4)
        return model

    def training_step(self, model: Any, batch: Any, step: int) -> Any:  # type: ignore[override]
        model.calls += 1
        parameter = nn.Parameter(torch.ones(1))
        parameter.grad = torch.ones(1)
        model.scaler.scale(torch.ones(1))
        model.scaler.step(torch.optim.SGD([parameter], lr=0.1))
        model.scaler.update()
        made = super().training_step(model, batch)
        factor = 1 + step / 20 + model.calls / 20 + model.scaler.get_scale() / 100
        return {**made, "loss": made["loss"] / factor}


class Branching(Exact):
    """Some parameters are used only by ranks that have samples of one kind, some never."""

    def configure_model(self, config: Mapping[str, Any]) -> nn.Module:
        return nn.ModuleList([nn.Linear(6, 3) for _ in range(3)]).double()

    def training_step(self, model: Any, batch: Any) -> Any:
        x, y = batch
        out = model[0](x.double())
        some = y == 0
        if some.any():
            out = out.index_add(0, some.nonzero()[:, 0], model[1](x[some].double()))
        loss = nn.functional.cross_entropy(out, y)
        return {"loss": loss, "zeros": some.double().mean()}


def _made(kind: Any, settings: dict[str, Any]) -> Recipe:
    return kind(**settings)


def data(samples: int = 97, shards: int = 2, chunk: int = 16) -> Data:
    rng = np.random.default_rng(5)
    y = rng.integers(0, 3, samples)
    x = (rng.normal(size=(samples, 6)) + 2 * np.eye(3, 6)[y]).astype(np.float32)
    made = Data.arrays(x, y, shards=shards, validation=None)
    made.chunk = chunk
    return made


@dataclass(frozen=True)
class What:
    """What all processes of a lane train."""

    recipe: Recipe
    config: Mapping[str, Any] = field(default_factory=dict)
    samples: int = 97
    shards: int = 2
    epochs: int = 2

    def parts(self) -> tuple[Data, TrainingLane, Stream]:
        here = data(self.samples, self.shards)
        lane = TrainingLane(self.recipe, self.config, seed=7, device=CPU, epoch=float(self.samples))
        return here, lane, Stream(self.recipe, here, seed=3, device=CPU, memory_gb=1.0)

    def visits(self) -> list[Visit]:
        here = data(self.samples, self.shards)
        return [
            Visit(epoch, shard, epoch, here.size(shard))
            for epoch in range(self.epochs)
            for shard in here.shards
        ]


@dataclass(frozen=True)
class Result:
    """What came of a process's pass or of all of a lane's."""

    outcome: str
    state: Any = None
    totals: Any = None
    widths: Any = ()
    rescales: Any = ()
    warnings: tuple[str, ...] = ()
    rates: tuple[float, ...] = ()
    links: Any = ()  # figures of the links


def alone(what: What) -> list[Result]:
    """The state after each visit of a lane that trains by itself."""
    _, lane, stream = what.parts()
    results = []
    for visit in what.visits():
        lane.begin(visit.samples)
        rates = []
        with lane.rng:
            for chunk in stream.chunks(visit.shard, visit.turn, lane.settings.shuffle):
                for _ in lane.feed(chunk):
                    rates.append(lane.optimizer.param_groups[0]["lr"])
            for _ in lane.flush():
                rates.append(lane.optimizer.param_groups[0]["lr"])
        _, totals = lane.taken()
        lane.visits = (*lane.visits, visit)
        if len(lane.visits) % what.shards == 0:
            with lane.rng:
                lane.end_epoch(None)
        results.append(Result("made", lane.state(), totals, rates=tuple(rates)))
        results[-1] = replace(results[-1], state=snapshot(lane))
    return results


def snapshot(lane: TrainingLane) -> Any:
    state = lane.state()
    return {
        "model": {name: np.array(value) for name, value in state["model"].items()},
        "optimizer": [
            np.array(v)
            for each in state["optimizer"]["state"].values()
            for v in each.values()
            if v is not None
        ],
        "lr": [float(group["lr"]) for group in state["optimizer"]["param_groups"]],
        "scheduler": {
            k: v for k, v in (state["scheduler"] or {}).items() if k in ("last_epoch", "_last_lr")
        },
        "visits": state["visits"],
    }


def differ(one: Any, other: Any) -> float:
    """The largest relative difference between two states."""
    assert one["visits"] == other["visits"]
    assert one["scheduler"] == other["scheduler"]
    pairs = [(one["model"][name], other["model"][name]) for name in one["model"]]
    pairs += zip(one["optimizer"], other["optimizer"], strict=True)
    pairs += [(np.array(one["lr"]), np.array(other["lr"]))]
    return max(float(np.abs(a - b).max() / max(np.abs(a).max(), 1e-12)) for a, b in pairs)


# -- the process
# ----------------------------------------------------------------------------------------------


def process(link: Connection, what: What) -> None:
    """Make the lane's visits from the seat given on; pause where asked."""
    import warnings

    torch.set_num_threads(1)
    buckets.BYTES = 600  # several
    warned: list[str] = []
    warnings.showwarning = lambda message, *_: warned.append(str(message))
    warnings.simplefilter("always")
    meeting, orders, go = Meeting(), Orders(), threading.Semaphore(0)
    link.send(("at", meeting.address))
    begin: list[Any] = []
    stops: set[tuple[int, int]] = set()
    follow: list[Any] = []
    started = threading.Event()

    def listen() -> None:
        while True:
            try:
                kind, told = link.recv()
            except EOFError:
                os._exit(1)
            if kind == "begin":
                begin.append(told)
                started.set()
            elif kind == "move":
                orders.move(told)
            elif kind == "halt":
                orders.halt()
            elif kind == "go":
                go.release()
            elif kind == "stops":
                stops.update(told)
            elif kind == "follow":
                follow.extend(told)

    threading.Thread(target=listen, daemon=True).start()
    started.wait()
    seat, first, made, die = begin.pop()
    stops.update(first)
    _, lane, stream = what.parts()
    wide = WideLane(lane, orders)
    recipe: Any = what.recipe
    recipe.wide, recipe.die = wide, die
    for number, visit in enumerate(what.visits()):
        if number < made:  # it joins later
            continue
        whole = number == len(lane.visits)

        def chunks(skip: int, visit: Visit = visit) -> Any:
            return stream.chunks(visit.shard, visit.turn, lane.settings.shuffle, skip)

        wide.begin(
            Reader(chunks, visit.samples), whole=whole, follow=follow[number] if follow else ()
        )
        rates = []
        try:
            steps = wide.run(seat)
            while True:
                try:
                    next(steps)
                except StopIteration as stop:
                    outcome = "made" if stop.value else "left"
                    break
                rates.append(lane.optimizer.param_groups[0]["lr"] * lane.factor)
                due = [stop for stop in stops if stop <= (number, wide.position)]
                if due:
                    stops.remove(min(due))
                    link.send(("pause", (number, wide.position)))
                    go.acquire()
        except (Adrift, Halted, Exception) as error:  # noqa: BLE001 the test looks at it
            link.send(("end", Result(f"{type(error).__name__}: {error}")))
            break
        if outcome == "made":
            lane.visits = (*lane.visits, visit)
            if len(lane.visits) % what.shards == 0:
                with lane.rng:
                    lane.end_epoch(None)
        seat = wide._seat or seat
        link.send(
            (
                "end" if outcome == "left" else "made",
                Result(
                    outcome,
                    snapshot(lane),
                    wide.totals,
                    wide.widths,
                    wide.changes.rescales,
                    tuple(warned),
                    tuple(rates),
                    wide.take_links(),
                ),
            )
        )
        if outcome == "left":
            break
    else:
        link.send(("end", Result("made")))
    threading.Event().wait(WATCHDOG)


# -- the test's side
# ----------------------------------------------------------------------------------------------

CONTEXT = get_context("forkserver")
CONTEXT.set_forkserver_preload(
    ["shoal.train.wide.lane", "torch._dynamo"]
)  # the first optimizer of a process imports it


class Member:
    def __init__(self, what: What) -> None:
        self.link, theirs = CONTEXT.Pipe()
        self.process = CONTEXT.Process(target=process, args=(theirs, what), daemon=True)
        self.process.start()
        theirs.close()
        self.address = self.hear("at")
        self.results: list[Result] = []

    def hear(self, kind: str) -> Any:
        """The next news of that kind; those of passes made are kept."""
        while True:
            assert self.link.poll(WATCHDOG), f"hang: no {kind} within {WATCHDOG:g} s"
            got, told = self.link.recv()
            if got == "made":
                self.results.append(told)
            if got == kind:
                return told
            if got == "end":
                raise AssertionError(f"waited for {kind}, got the end: {told.outcome}")

    def tell(self, kind: str, told: Any = None) -> None:
        self.link.send((kind, told))

    def end(self) -> Result:
        return self.hear("end")

    def kill(self) -> None:
        self.process.kill()
        self.process.join()


class Lanes:
    """The driver: who sits where in which generation."""

    def __init__(self, what: What, members: int) -> None:
        self.what = what
        self.members = [Member(what) for _ in range(members)]
        self.generation = 0
        self.seated: list[int] = []

    def seats(self, who: Sequence[int], **more: Any) -> dict[int, Seat]:
        """The next generation: these members in gang order."""
        self.generation += 1
        joining = tuple(rank for rank, member in enumerate(who) if member not in self.seated)
        address = self.members[who[0]].address
        options = {"patience": 10.0, "stall": 20.0, **more}
        common = Seat(
            "t",
            self.generation,
            0,
            len(who),
            address,
            joining=joining if self.seated else (),
            **options,
        )
        return {member: replace(common, rank=rank) for rank, member in enumerate(who)}

    def start(
        self,
        who: Sequence[int],
        stops: Sequence[tuple[int, int]] = (),
        dies: Mapping[int, Any] | None = None,
        **more: Any,
    ) -> None:
        seats = self.seats(who, **more)
        for member in who:
            self.members[member].tell(
                "begin", (seats[member], set(stops), 0, (dies or {}).get(member))
            )
        self.seated = list(who)

    def move(
        self,
        who: Sequence[int],
        made: int,
        stops: Sequence[tuple[int, int]] = (),
        broken: bool = False,
    ) -> None:
        """Tell those that train, and start those that join; `made`: visits made so far."""
        before, seats = self.seated, self.seats(who)
        for member in who:
            if member not in before:
                self.members[member].tell("begin", (seats[member], set(stops), made, None))
        for member in before:
            if self.members[member].process.is_alive():
                self.members[member].tell("move", Move(self.generation, seats.get(member), broken))
        self.seated = list(who)
        joining = seats[who[0]].joining
        if joining:  # the others are paused: they find them there when they go on
            gate = Gate(seats[who[0]])
            until = monotonic() + WATCHDOG
            while not (gate.reached() and gate.are_ready(joining)):
                assert monotonic() < until, "hang: no joining process at the gate"
                sleep(0.01)

    def promise(self, who: Sequence[int]) -> None:
        """Tell those that train, but start nobody."""
        seats = self.seats(who)
        for member in self.seated:
            self.members[member].tell("move", Move(self.generation, seats.get(member)))

    def paused(self, who: Sequence[int]) -> set[Any]:
        return {self.members[member].hear("pause") for member in who}

    def go(self, who: Sequence[int]) -> None:
        for member in who:
            self.members[member].tell("go")


@contextmanager
def lanes(what: What, members: int) -> Iterator[Lanes]:
    made = Lanes(what, members)
    try:
        yield made
    finally:
        for member in made.members:
            member.process.kill()
            member.process.join()


__all__ = ["Lanes", "What", "alone", "differ", "lanes"]
