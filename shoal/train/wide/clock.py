"""The seconds of a wide lane's steps by what they are spent on, and of its changes of width."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from time import perf_counter

import torch

from shoal.core.trial import Seconds
from shoal.train.recipe.seat import Rescale, Seat


class Clock:
    """Seconds of the steps by forward, backward, reduce, step and data.

    "reduce" is the part of the sums that goes on after the backward pass. `exact`: wait for a GPU
    at the begin and end of each, which costs some speed. Otherwise the GPU's work counts for
    whatever waits for it.
    """

    def __init__(self, device: torch.device, exact: bool = False) -> None:
        self._device: torch.device | None = None
        if exact and device.type == "cuda":
            self._device = device
        self._spent: dict[str, Seconds] = {}
        self._steps = 0

    @contextmanager
    def on(self, name: str) -> Iterator[None]:
        """The seconds spent within count as `name`."""
        begin = self.now()
        yield
        self._spent[name] = self._spent.get(name, 0.0) + self.now() - begin

    def now(self) -> Seconds:
        """The time; with `exact`, once the GPU has done what it was given."""
        if self._device is not None:
            stream = torch.cuda.current_stream(self._device)
            stream.synchronize()  # sums go on in other streams
        return perf_counter()

    def stepped(self) -> None:
        """Count a step."""
        self._steps += 1

    def take(self) -> tuple[int, Mapping[str, Seconds]]:
        """Steps since the last call, and the seconds of all of them."""
        steps, self._steps = self._steps, 0
        spent, self._spent = self._spent, {}
        return steps, spent


class WidthChanges:
    """How long training stood still at each change of width that this process took part in."""

    def __init__(self, clock: Clock) -> None:
        self.rescales: list[Rescale] = []
        self._clock = clock
        # its width, and when it ended
        self._last_step: tuple[int, Seconds] | None = None
        # the last step before a change, until training goes on
        self._interrupted: tuple[int, Seconds] | None = None

    def take(self) -> list[Rescale]:
        """The changes since the last call."""
        changes, self.rescales = self.rescales, []
        return changes

    def restart(self) -> None:
        """Begin a pass: what was before it does not count."""
        self._last_step = None
        self._interrupted = None

    def stepped(self, width: int) -> None:
        """Note that a step at this width is done."""
        self._last_step = (width, self._clock.now())

    def interrupt(self) -> None:
        """Note that the lane left its generation: training stands still since its last step."""
        self._interrupted = self._last_step

    def exclude(self, seconds: Seconds) -> None:
        """Do not count so many seconds of the change under way."""
        if self._interrupted is not None:
            width, stopped = self._interrupted
            self._interrupted = (width, stopped + seconds)

    def resumed(self, seat: Seat, position: int, sent: int) -> None:
        """Note that a batch is there. If it is the first after a change, the change ends now.

        `position`: samples of the pass. `sent`: bytes of state that went through the group.
        """
        if self._interrupted is None:
            return
        width, stopped = self._interrupted
        seconds = self._clock.now() - stopped
        change = Rescale(seat.generation, width, seat.width, seconds, position, sent)
        self.rescales.append(change)
        self._interrupted = None
