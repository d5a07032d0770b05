"""What `shoal profile` measures: steps at a width, rescales, the preparing of data."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, Literal

from shoal.core.trial import Seconds, Trial
from shoal.profile.widths import wide_rates
from shoal.study.folder import StudyError
from shoal.tools.profile_slots import ProfileSlots
from shoal.train.recipe.seat import Move, Seat

Answer = Mapping[str, Any]  # what a rank measured

# The parts of a step.
CAUSES = ("forward", "backward", "reduce", "step", "data")
# Of a `profile.table.Row`, as a slot measures them.
COSTS = ("memory", "build", "first", "evaluate", "save")
CHANGES = ("up", "down")
# Known of a run only, since the way between slots is most of it.
HOP = "switch"


@dataclass(slots=True)
class Kind:
    """Trials of one signature: they take as long as each other."""

    signature: str
    # The first of them, which is timed.
    trial: Trial
    # Why it cannot be timed.
    failed: str | None
    configs: list[dict[str, Any]] = field(default_factory=list)
    # Seconds and bytes, by the names of `COSTS`, and "up" and "down" of a rescale, "switch".
    costs: dict[str, float] = field(default_factory=dict)
    # Of each width: seconds of each part of a step, and samples/s. What a run measured does not
    # have the seconds.
    widths: dict[int, dict[str, Any]] = field(default_factory=dict)

    def add(self, trial: Trial, figures: Mapping[str, float]) -> None:
        """Add a trial of this kind, and what one slot costs as it was measured for the trial."""
        self.configs.append(dict(trial.config))
        self.costs |= {name: figures[name] for name in COSTS if name in figures}

    def take(self, measured: Mapping[str, float]) -> int:
        """Take over what a run has measured of this kind; returns how many widths that are."""
        names = (*COSTS, *CHANGES, HOP)
        self.costs |= {name: measured[name] for name in names if name in measured}
        rates = wide_rates(measured)
        if "rate" in measured and "step" in measured:
            waits = measured.get("data", 0.0)
            rates[1] = 1.0 / (1.0 / measured["rate"] + waits)
        for width, rate in sorted(rates.items()):
            self.widths[width] = {"rate": rate}
        if 1 in rates:
            self.widths[1]["batch"] = round(measured["rate"] * measured["step"])
        return len(rates)

    def figures(self) -> dict[str, Any]:
        """The figures as JSON can hold them."""
        return {
            "signature": self.signature,
            "configs": self.configs,
            "figures": self.costs,
            "widths": {
                width: row | {"efficiency": self._efficiency(width)}
                for width, row in sorted(self.widths.items())
            },
            "failed": self.failed,
        }

    def _efficiency(self, width: int) -> float:
        """The rate, as a part of what so many slots would make at best."""
        if 1 not in self.widths:
            return 1.0
        return float(self.widths[width]["rate"] / (width * self.widths[1]["rate"]))


def kinds_of(slots: ProfileSlots, trials: Sequence[Trial]) -> list[Kind]:
    """The kinds of trial, each with its configurations and what one slot costs."""
    slots.ask(0, "probe", list(trials))
    probed = slots.hear(0, "probe")
    kinds: dict[str, Kind] = {}
    for trial in trials:
        signature, figures, failed = probed[trial.id]
        key = failed or signature
        if key not in kinds:
            kinds[key] = Kind(signature, trial, failed)
        kinds[key].add(trial, figures)
    return list(kinds.values())


def time_width(slots: ProfileSlots, kinds: Sequence[Kind], width: int, count: int) -> None:
    """Time the kinds at this width, side by side as far as `count` slots allow.

    Left out are those whose speed there is known.
    """
    left = [kind for kind in kinds if kind.failed is None and width not in kind.widths]
    at_once = count // width
    for begin in range(0, len(left), at_once):
        _time_together(slots, left[begin : begin + at_once], width)


def _time_together(slots: ProfileSlots, kinds: Sequence[Kind], width: int) -> None:
    """Time these kinds at this width, each on slots of its own."""
    for number, kind in enumerate(kinds):
        _start(slots, kind, width, number * width)
    for number, kind in enumerate(kinds):
        first = number * width
        ranks = [_answer(slots, slot, kind) for slot in range(first, first + width)]
        _note(kind, width, ranks)


def _start(slots: ProfileSlots, kind: Kind, width: int, first: int) -> None:
    """Have the kind's trial trained on so many slots, from that one on."""
    lane = f"{kind.signature} {width}"
    for rank in range(width):
        seat = _seat(slots, lane, 1, rank, width, first)
        slots.ask(first + rank, "train", kind.trial, seat)


def _seat(
    slots: ProfileSlots,
    lane: str,
    generation: int,
    rank: int,
    width: int,
    first: int = 0,
    joining: tuple[int, ...] = (),
) -> Seat:
    """A rank's seat in a lane whose first rank is slot `first`."""
    store = ""
    if width > 1:
        store = slots.addresses[first]
    gradients: Literal["gloo", "nccl"] = "gloo"
    if slots.device == "cuda":
        gradients = "nccl"
    return Seat(lane, generation, rank, width, store, joining=joining, gradients=gradients)


def _answer(slots: ProfileSlots, number: int, kind: Kind) -> Answer | None:
    """What a rank measured; None if it failed."""
    try:
        found: Answer = slots.hear(number, "train")
        return found
    except RuntimeError as error:
        kind.failed = str(error)
        return None


def _note(kind: Kind, width: int, ranks: Sequence[Answer | None]) -> None:
    """Note what the ranks of one lane found: the lane is as slow as the slowest of them."""
    answers = [rank for rank in ranks if rank is not None]
    if len(answers) < len(ranks):
        return
    first = answers[0]
    seconds = max(answer["seconds"] for answer in answers)
    row = _means(answers)
    row["total"] = seconds / first["steps"]
    row["batch"] = first["batch"]
    row["rate"] = first["samples"] / seconds
    kind.widths[width] = row


def _means(answers: Sequence[Answer]) -> dict[str, Any]:
    """Seconds of each part of a step, as the mean of the ranks."""
    steps = answers[0]["steps"]
    return {cause: _mean(answers, cause) / steps for cause in CAUSES}


def _mean(answers: Sequence[Answer], cause: str) -> float:
    """Seconds that went to the cause, as the mean of the ranks."""
    return fmean(answer["spent"].get(cause, 0.0) for answer in answers)


def time_rescales(slots: ProfileSlots, kind: Kind) -> None:
    """Note the seconds without training when such a trial goes from one slot to two, and back.

    Nothing is timed if they are known.

    Raises:
        StudyError: the trial failed meanwhile.
    """
    if kind.failed is not None or kind.costs.keys() >= set(CHANGES):
        return
    try:
        rescales = _rescale(slots, kind)
    except RuntimeError as error:
        raise StudyError(f"a trial failed when its width changed: {error}") from error
    for before, after, seconds in rescales:
        kind.costs[_direction(before, after)] = seconds


def _direction(before: int, after: int) -> str:
    """The name of a change of width."""
    if after > before:
        return "up"
    return "down"


def _rescale(slots: ProfileSlots, kind: Kind) -> list[tuple[int, int, Seconds]]:
    """Have a trial go from one slot to two and back: the width before, after, and seconds.

    Raises:
        RuntimeError: the trial failed.
    """
    lane = f"{kind.signature} rescaled"
    alone = _seat(slots, lane, 1, 0, 1)
    slots.ask(0, "train", kind.trial, alone, False, None)
    _wait_until_settled(slots, 1)
    _widen(slots, kind, lane)
    _narrow(slots, lane)
    slots.order(0, "halt")
    rescales: list[tuple[int, int, Seconds]] = slots.hear(0, "train")["rescales"]
    slots.hear(1, "train")
    return rescales


def _widen(slots: ProfileSlots, kind: Kind, lane: str) -> None:
    """Have slot 1 join the lane of slot 0."""
    first = _seat(slots, lane, 2, 0, 2, joining=(1,))
    second = _seat(slots, lane, 2, 1, 2, joining=(1,))
    slots.ask(1, "train", kind.trial, second, True, None)
    slots.order(0, "move", Move(2, first))
    _wait_until_settled(slots, 2)


def _narrow(slots: ProfileSlots, lane: str) -> None:
    """Have slot 1 leave the lane of slot 0."""
    alone = _seat(slots, lane, 3, 0, 1)
    slots.order(1, "move", Move(3, None))
    slots.order(0, "move", Move(3, alone))
    _wait_until_settled(slots, 1)


def _wait_until_settled(slots: ProfileSlots, width: int) -> None:
    """Wait until the lane of slot 0 has made some steps at this width."""
    while slots.hear(0, "settled") != width:
        pass


def time_feeders(slots: ProfileSlots, kind: Kind, count: int) -> float:
    """Samples/s that so many processes prepare together for such trials."""
    batch = kind.widths[1]["batch"]
    for number in range(count):
        slots.ask(number, "feed", kind.trial, batch, number, count)
    rate = 0.0
    for number in range(count):
        samples, seconds = slots.hear(number, "feed")
        rate += samples / max(seconds, 1e-9)
    return rate
