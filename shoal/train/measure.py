"""Figures of what trials cost, taken from their own first steps."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

from shoal.core.trial import Seconds
from shoal.train.lane import Lane

STEPS, COUNTED = 48, 20  # batches measured at most, and how many of the last ones count
REPEATS = 2  # a figure of a rare event is taken again once: the first time may hold start-up costs


class Meter:
    """What one slot learns about each signature; every figure is handed out once, by `news`."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._steps: dict[str, list[tuple[int, Seconds]]] = {}
        self._most = inf
        self._extra: dict[str, int] = {}  # bytes of a step beside the trial's state
        self._seen: dict[tuple[str, str], int] = {}
        self._news: dict[str, dict[str, float]] = {}

    def wants(self, signature: str) -> bool:
        """Whether steps of such trials should still be timed."""
        return len(self._steps.get(signature, ())) < STEPS

    def step(self, signature: str) -> Seconds | None:
        """Of a batch, as far as it was timed."""
        times = [took for _, took in self._steps.get(signature, ())]
        return median(times[-COUNTED:]) if times else None

    def timed(self, lane: Lane, steps: Iterator[int]) -> Iterator[int]:
        """The steps, timed until there are enough of the lane's signature. The very first tells about memory."""
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

    def conclude(self, lane: Lane) -> None:
        """Turn the times so far into a rate, once there are enough or the unit is over."""
        times = self._steps.get(lane.signature)
        if not times or not self._first(lane.signature, f"after {len(times)}", 1):
            return
        size, group = lane.settings.batch_size, lane.settings.accumulate_grad_batches
        full = [took for count, took in times if count == size]
        took = full or [took for _, took in times]
        took = took[-max(COUNTED, group) :]
        # the batches of a group cost unequally: its optimizer's step comes with the last
        groups = [sum(took[i : i + group]) / group for i in range(0, len(took) - group + 1, group)] or took
        step = median(groups)
        memory = self.memory(lane) / 2**30
        self.tell(lane.signature, step=step, rate=(size if full else times[-1][0]) / max(step, 1e-9), memory=memory)

    def memory(self, lane: Lane | None) -> float:
        """Bytes that such a lane takes in training; of one not known, the most that any took; infinite while none did."""
        extra = self._extra.get(lane.signature) if lane is not None else None
        if lane is None or extra is None:
            return self._most
        self._most = max(lane.bytes + extra, 0 if self._most == inf else self._most)
        return lane.bytes + extra

    def happened(self, signature: str, name: str, seconds: Seconds) -> None:
        """Something rarer than a step took so long."""
        if self._first(signature, name, REPEATS):
            self.tell(signature, **{name: seconds})

    def waited(self, lane: Lane, seconds: Seconds) -> None:
        """A pass waited so long for its data, per sample; the first passes, which may prepare it for good, do not count."""
        passes = len(lane.visits)
        if passes and self._first(lane.signature, "data", REPEATS):
            self.tell(lane.signature, data=seconds)

    def news(self, signature: str) -> dict[str, float]:
        """The figures not yet handed out."""
        return self._news.pop(signature, {})

    def _first(self, signature: str, name: str, times: int) -> bool:
        seen = self._seen[signature, name] = self._seen.get((signature, name), 0) + 1
        return seen <= times

    def tell(self, signature: str, **figures: float) -> None:
        """Figures found elsewhere."""
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


class Extra:
    """Bytes that a step needs beside the trial's state: on a GPU its peak, elsewhere the outputs of all modules."""

    def __init__(self, lane: Lane, device: torch.device) -> None:
        self._lane, self._device = lane, device
        self.bytes = 0
        self._hooks: list[Any] = []
        self._before = (0, 0)

    def __enter__(self) -> None:
        modules = list(self._lane.model.modules())
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
            self._before = (torch.cuda.memory_allocated(self._device), self._lane.bytes)
        elif not any(type(module).__name__ == "OptimizedModule" for module in modules):  # hooks would make it compile again
            self._hooks = [module.register_forward_hook(self._count) for module in modules if not any(module.children())]

    def __exit__(self, *_: object) -> None:
        for hook in self._hooks:
            hook.remove()
        if self._device.type == "cuda":
            allocated, held = self._before
            grown = self._lane.bytes - held  # gradients and the optimizer's state, made in the first step
            self.bytes = max(0, torch.cuda.max_memory_allocated(self._device) - allocated - grown)

    def _count(self, _module: nn.Module, _inputs: Any, output: Any) -> None:
        if isinstance(output, Tensor):
            self.bytes += output.nbytes


_started: set[str] = set()


def start_up(device: torch.device) -> Seconds | None:
    """Pay what the first model and optimizer of a process cost beyond their own, and say how long it took; None: was paid."""
    if device.type in _started:
        return None
    _started.add(device.type)
    begin = perf_counter()
    weight = torch.zeros(1, 1, device=device, requires_grad=True)
    optimizer = torch.optim.Adam([weight])
    nn.functional.linear(torch.ones(1, 1, device=device), weight).sum().backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    return perf_counter() - begin
