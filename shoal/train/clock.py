"""Where the time of a wide lane's steps goes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from time import perf_counter

import torch

from shoal.core.trial import Seconds


class Clock:
    """Seconds by forward, backward, reduce (what of the sums is not hidden behind the backward pass), step and data.

    `exact`: on a GPU wait for each of them, which costs some speed; otherwise what is still under way counts for what waits.
    """

    def __init__(self, device: torch.device, exact: bool = False) -> None:
        self._device = device if exact and device.type == "cuda" else None
        self._spent: dict[str, Seconds] = {}
        self._steps = 0

    @contextmanager
    def on(self, name: str) -> Iterator[None]:
        """The seconds spent within count as `name`."""
        begin = self.now()
        yield
        self._spent[name] = self._spent.get(name, 0.0) + self.now() - begin

    def now(self) -> Seconds:
        """The time, once the device is through with what it was given, where that is asked for."""
        if self._device is not None:
            torch.cuda.current_stream(self._device).synchronize()  # sums go on beside it
        return perf_counter()

    def stepped(self) -> None:
        """A step is done."""
        self._steps += 1

    def take(self) -> tuple[int, Mapping[str, Seconds]]:
        """Steps since the last call, and the seconds of them all."""
        made, self._steps, self._spent = (self._steps, self._spent), 0, {}
        return made
