"""Figures of what trials cost, measured in their first steps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import inf
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

from shoal.core.trial import Seconds
from shoal.train.lane.lane import TrainingLane
from shoal.train.lane.tensors import bytes_of
from shoal.train.lane.trunk import shared_bytes

STEPS, COUNTED = 48, 20  # batches measured at most, and how many of the last ones count
REPEATS = 2  # a figure of a rare event is taken again once: the first time may hold start-up costs

Step = tuple[int, Seconds]  # its samples, and how long it took


class Meter:
    """The figures that a slot learns of each signature; each is handed out once, by `news`."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._steps: dict[str, list[Step]] = {}
        self._most = inf
        self._extra: dict[str, int] = {}  # bytes of a step beside the trial's state
        self._state: dict[str, int] = {}  # bytes of a trial's state after a step
        self._counts: dict[tuple[str, str], int] = {}
        self._news: dict[str, dict[str, float]] = {}

    def wants(self, signature: str) -> bool:
        """Whether steps of such trials should still be timed."""
        return len(self._steps.get(signature, ())) < STEPS

    def step(self, signature: str) -> Seconds | None:
        """Seconds of a batch; None where none was timed."""
        times = [took for _, took in self._steps.get(signature, ())]
        if not times:
            return None
        return median(times[-COUNTED:])

    def timed(self, lane: TrainingLane, steps: Iterator[int]) -> Iterator[int]:
        """Make the steps, timed until there are enough of the lane's signature.

        The very first one tells how much memory a step needs.
        """
        times = self._steps.setdefault(lane.signature, [])
        if lane.signature not in self._extra:
            extra = Extra(lane, self._device)
            with extra:
                count = next(steps, None)
            if count is None:
                return
            self._extra[lane.signature] = extra.bytes
            yield count

        while len(times) < STEPS:
            begin = self.now()
            count = next(steps, None)
            if count is None:
                return
            times.append((count, self.now() - begin))
            yield count
        yield from steps

    def timed_elsewhere(self, signature: str, samples: int, seconds: Seconds) -> None:
        """A step of so many samples, made outside `timed`, took so long."""
        if self.wants(signature):
            self._steps.setdefault(signature, []).append((samples, seconds))

    def together(self, lanes: Iterable[TrainingLane]) -> float:
        """Bytes that such lanes take in training that take turns."""
        lanes = list(lanes)
        states = -float(shared_bytes(lanes))
        step = 0.0
        for lane in lanes:
            transient = self.transient(lane)
            states += self.memory(lane) - transient
            step = max(step, transient)
        return states + step

    def at_once(
        self, lanes: Sequence[TrainingLane], beside: Iterable[TrainingLane], room: float
    ) -> float:
        """How many of these lanes may take a step at once in so many bytes: 1 at least.

        `beside`: all whose states are there, these among them. The largest steps count. Infinite
        where the memory of a lane is not known.
        """
        beside = list(beside)
        if room == inf or not all(lane.signature in self._extra for lane in beside):
            return inf
        free = room + shared_bytes(beside)
        free -= sum(self.memory(lane) - self.transient(lane) for lane in beside)
        steps = sorted(map(self.transient, lanes), reverse=True)
        count = 0
        for step in steps:
            free -= step
            if free < 0:
                break
            count += 1
        return max(1, count)

    def knows_memory(self, signature: str) -> bool:
        """Whether it is known what a step of such trials needs beside their state."""
        return signature in self._extra

    def learn_memory(self, signature: str, extra: int, state: int = 0) -> None:
        """A step of such trials needs so many bytes beside their state.

        `state`: bytes that the state takes after a step, where that was seen.
        """
        self._extra[signature] = extra
        self._state[signature] = state

    def conclude(self, lane: TrainingLane) -> None:
        """Turn the times so far into a rate, once there are enough or the unit is over."""
        times = self._steps.get(lane.signature)
        if not times or not self._first(lane.signature, f"after {len(times)}", 1):
            return
        samples, took = whole_batches(times, lane.settings.batch_size)
        step = _of_a_batch(took, lane.settings.accumulate_grad_batches)
        rate = samples / max(step, 1e-9)
        memory = self.memory(lane) / 2**30
        transient = self.transient(lane) / 2**30
        figures = {"step": step, "rate": rate, "memory": memory, "transient": transient}
        self.tell(lane.signature, **figures, **all_reduce_figures(lane))

    def memory(self, lane: TrainingLane | None) -> float:
        """Bytes that such a lane takes in training.

        Where they are not known: the most that any lane took; infinite while none did.
        """
        if lane is None or lane.signature not in self._extra:
            return self._most
        state = max(lane.bytes, self._state.get(lane.signature, 0))
        needs = state + self._extra[lane.signature]
        if self._most == inf or needs > self._most:
            self._most = needs
        return needs

    def transient(self, lane: TrainingLane) -> float:
        """The bytes that a step of the lane takes beside its state; 0 where they are not known."""
        return self._extra.get(lane.signature, 0)

    def record(self, signature: str, name: str, seconds: Seconds, times: int = REPEATS) -> None:
        """Something rarer than a step took so long. So many `times` of it count, the last most."""
        if self._first(signature, name, times):
            self.tell(signature, **{name: seconds})

    def waited(self, lane: TrainingLane, seconds: Seconds) -> None:
        """A pass waited so long for its data, per sample.

        First passes do not count: they may prepare the data for good.
        """
        passes = len(lane.visits)
        if passes and self._first(lane.signature, "data", REPEATS):
            self.tell(lane.signature, data=seconds)

    def news(self, signature: str) -> dict[str, float]:
        """The figures not yet handed out."""
        return self._news.pop(signature, {})

    def _first(self, signature: str, name: str, times: int) -> bool:
        number = self._counts[signature, name] = self._counts.get((signature, name), 0) + 1
        return number <= times

    def tell(self, signature: str, **figures: float) -> None:
        """Take figures that something else measured."""
        self._news.setdefault(signature, {}).update(figures)

    @property
    def waits(self) -> bool:
        """Whether to look at a result is to wait for the device."""
        return self._device.type != "cpu"

    def now(self) -> Seconds:
        """The time, once the device is through with what it was given."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        elif self._device.type == "mps":
            torch.mps.synchronize()
        return perf_counter()


def all_reduce_figures(lane: TrainingLane) -> dict[str, float]:
    """The figures of a sum over slots for a step of such a lane: GiB of gradients, and samples.

    Nothing where the batch grows with the width, for then they are samples of more than a step.
    """
    settings = lane.settings
    if settings.batch_per_slot:
        return {}
    model = sum(p.nbytes for p in lane.parameters if p.requires_grad)
    batch = settings.batch_size * settings.accumulate_grad_batches
    return {"model": model / 2**30, "batch": float(batch)}


def whole_batches(times: Sequence[Step], size: int) -> tuple[int, list[Seconds]]:
    """The samples of a batch, and the seconds of the batches of so many: whole ones, if any."""
    took = [seconds for count, seconds in times if count == size]
    if took:
        return size, took
    last, _ = times[-1]  # no batch is whole
    return last, [seconds for _, seconds in times]


def _of_a_batch(took: list[Seconds], group: int) -> Seconds:
    """Seconds of a batch in the middle, of these.

    The batches of a group cost unequally: its optimizer's step comes with the last one.
    """
    took = took[-max(COUNTED, group) :]
    starts = range(0, len(took) - group + 1, group)
    means = [sum(took[start : start + group]) / group for start in starts]
    return median(means or took)


class Extra:
    """Bytes that a step needs beside the trial's state.

    On a GPU they are the step's peak, elsewhere the outputs of all modules.
    """

    def __init__(self, lane: TrainingLane, device: torch.device) -> None:
        self._lane, self._device = lane, device
        self.bytes = 0
        self._hooks: list[Any] = []
        self._before = (0, 0)

    def __enter__(self) -> None:
        modules = list(self._lane.model.modules())
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
            self._before = (torch.cuda.memory_allocated(self._device), self._lane.bytes)
            return
        if is_compiled(self._lane.model):
            return  # hooks would make it compile again
        for module in modules:
            if any(module.children()):
                continue
            hook = module.register_forward_hook(self._count)
            self._hooks.append(hook)

    def __exit__(self, *_: object) -> None:
        for hook in self._hooks:
            hook.remove()
        if self._device.type == "cuda":
            allocated, state_bytes = self._before
            # gradients and the optimizer's state are made in the first step
            growth = self._lane.bytes - state_bytes
            peak = torch.cuda.max_memory_allocated(self._device)
            self.bytes = max(0, peak - allocated - growth)

    def _count(self, _module: nn.Module, _inputs: Any, output: Any) -> None:
        if isinstance(output, Tensor):
            self.bytes += bytes_of(output)


def is_compiled(model: nn.Module) -> bool:
    """Whether torch compiles the model, or a part of it."""
    return any(type(each).__name__ == "OptimizedModule" for each in model.modules())


_started: set[str] = set()


def start_up(device: torch.device) -> Seconds | None:
    """Pay what the first model and optimizer of a process cost beyond their own.

    Returns how long that took; None if it was paid before.
    """
    if device.type in _started:
        return None
    _started.add(device.type)
    begin = perf_counter()
    weight = torch.zeros(1, 1, device=device, requires_grad=True)
    optimizer = torch.optim.Adam([weight])
    output = nn.functional.linear(torch.ones(1, 1, device=device), weight)
    output.sum().backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    return perf_counter() - begin
