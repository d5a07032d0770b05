"""Steps of a shared unit: taken, and timed for the meter."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import mean, median
from typing import NoReturn

from shoal.core.trial import Seconds
from shoal.profile.pace import ALIKE_STEPS
from shoal.profile.widths import AT
from shoal.train.lane.lane import TrainingLane
from shoal.train.lane.measure import COUNTED, STEPS, Extra, Meter, all_reduce_figures
from shoal.train.recipe.seat import Rescale, Seat
from shoal.train.recipe.unit import Reached
from shoal.train.wide.lane import Wide

Kind = tuple[str, int]  # signature and width
TimedStep = tuple[int, Seconds]  # samples, and the seconds for them
OnStep = Callable[[Reached], None]  # gets how far the pass is
# `ALIKE_STEPS` of whole batches, whose seconds differ by this part at most, tell the rate before
# there are `STEPS` of them.
APART = 0.05


class StepTimes:
    """Takes the steps of passes, and tells the meter rates by width and the time of changes.

    `clocked`: whether rates are also told while a pass is made.
    """

    def __init__(self, meter: Meter, clocked: bool = True) -> None:
        self._meter = meter
        self._clocked = clocked
        self._steps: dict[Kind, list[TimedStep]] = {}
        # whose rates were told while a pass was made
        self._known: set[Kind] = set()
        # how many steps there were at the last report
        self._reported: dict[Kind, int] = {}

    def take_steps(self, wide: Wide, steps: Iterator[int], on: OnStep | None) -> NoReturn:
        """Take all steps of the pass, and time some of them.

        Raises:
            StopIteration: the pass is over; the value is that of `Wide.run`.
        """
        rates: dict[str, float] = {}  # that became known in the pass
        last = self._first_step(wide, steps, on)
        before = len(wide.changes.made)
        while True:
            count = next(steps)
            if self._clocked:
                rates |= _seconds(wide.changes.made[before:])
            if self._wants(wide):  # to ask for the time is to wait for a GPU
                now = self._meter.now()
                if last is not None and last[0] == wide.seat:
                    self._add(wide, count, now - last[1])
                    rates |= self._became_known(wide)
                last = (wide.seat, now)
            else:
                last = None
            _say(wide, on, rates)

    def _first_step(
        self, wide: Wide, steps: Iterator[int], on: OnStep | None
    ) -> tuple[Seat, Seconds] | None:
        """Take the first step, and measure its memory, if that is unknown.

        Returns where the process sat and when the step was done; None if no step was taken.
        """
        signature = wide.lane.signature
        if not wide.whole or wide.position or self._meter.knows_memory(signature):
            return None

        extra = Extra(wide.lane, wide.lane.device)
        with extra:
            next(steps)
            now = self._meter.now()
            _say(wide, on, {})
        width = wide.seat.width
        self._meter.learn_memory(signature, extra.bytes * width)
        return wide.seat, now

    def _wants(self, wide: Wide) -> bool:
        """Whether steps at the lane's present width should still be timed."""
        key = (wide.lane.signature, wide.seat.width)
        return len(self._steps.get(key, ())) < STEPS

    def _add(self, wide: Wide, samples: int, seconds: Seconds) -> None:
        """A step at the lane's present width took so long."""
        signature = wide.lane.signature
        width = wide.seat.width
        steps = self._steps.setdefault((signature, width), [])
        if len(steps) >= STEPS:
            return
        steps.append((samples, seconds))
        if width == 1:
            self._meter.timed_elsewhere(signature, samples, seconds)

    def _became_known(self, wide: Wide) -> dict[str, float]:
        """The rate at the lane's present width, if by now enough steps tell it."""
        key = (wide.lane.signature, wide.seat.width)
        steps = self._steps[key]
        size = wide.lane.size
        if not self._clocked or key in self._known or not _are_enough(steps, size):
            return {}
        self._known.add(key)
        return {_rate_name(key[1]): _rate(steps[-COUNTED:], size)}

    def report(self, wide: Wide) -> None:
        """Hand the meter what is new since the last report."""
        lane = wide.lane
        widths = {width for _, width in wide.widths}
        for width in widths - {1}:
            self._report_rate(lane, width)
        self._report_changes(lane.signature, wide.changes.take())
        links = wide.take_links()
        if links:
            self._meter.tell(lane.signature, **links)

    def _report_changes(self, signature: str, changes: Sequence[Rescale]) -> None:
        """Report the mean seconds of changes to greater widths, and of those to smaller ones."""
        figures = _seconds(changes)
        if figures:
            self._meter.tell(signature, **figures)

    def _report_rate(self, lane: TrainingLane, width: int) -> None:
        """Report the samples per second at this width, if there are new steps."""
        signature = lane.signature
        key = (signature, width)
        steps = self._steps.get(key, [])
        if len(steps) <= self._reported.get(key, 0):
            return
        self._reported[key] = len(steps)
        rate = _rate(steps[-COUNTED:], lane.size)
        self._meter.tell(signature, **{_rate_name(width): rate}, **all_reduce_figures(lane))


def _seconds(changes: Sequence[Rescale]) -> dict[str, Seconds]:
    """The mean seconds of changes to greater widths ("up"), and of those to smaller ones."""
    by_name: dict[str, list[Seconds]] = {}
    for change in changes:
        if change.after != change.before:
            name = "up" if change.after > change.before else "down"
            by_name.setdefault(name, []).append(change.seconds)
    return {name: mean(seconds) for name, seconds in by_name.items()}


def _say(wide: Wide, on: OnStep | None, rates: Mapping[str, float]) -> None:
    """Rank 0 says how far the pass is."""
    if on is not None and wide.seat.rank == 0:
        on(Reached(wide.position, (), wide.lane.signature, dict(rates)))


def _rate_name(width: int) -> str:
    """The name of the figure that is the rate at this width."""
    if width == 1:
        return "rate"
    return f"{AT}{width}"


def _are_enough(steps: Sequence[TimedStep], size: int) -> bool:
    """Whether these steps tell the rate: there are `STEPS`, or the last ones are alike."""
    if len(steps) >= STEPS:
        return True
    last = steps[-ALIKE_STEPS:]
    took = [seconds for count, seconds in last if count == size]
    return len(took) == ALIKE_STEPS and max(took) - min(took) <= APART * median(took)


def _rate(steps: Sequence[TimedStep], size: int) -> float:
    """Samples per second, by the steps of whole batches if there are any.

    `steps`: samples and seconds of each. `size`: samples in a whole batch.
    """
    samples = steps[-1][0]
    counted = [seconds for _, seconds in steps]
    full = [seconds for count, seconds in steps if count == size]
    if full:
        samples = size
        counted = full
    return samples / max(median(counted), 1e-9)
