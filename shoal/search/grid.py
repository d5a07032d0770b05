"""Grid search: every combination once."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from shoal.core.plan import Proposal
from shoal.core.state import View
from shoal.search.batch import Batch, Widths, check_counts, checked_widths
from shoal.search.space import (
    Combinations,
    Config,
    Space,
    as_grid,
    dimensions,
    draw,
    independent,
    validated,
    value_of,
)


@dataclass(frozen=True, slots=True)
class Grid:
    """Every combination of the space's `grid` (or `choice`) dimensions, the last running fastest.

    What is None is the study's; without a study, there is nothing to choose from, and a trial
    trains for one epoch. The memory is how many trials were submitted.

    Args:
        space: the dimensions, by name, all of them finite.
        max_epochs: epochs that each trial trains.
        max_concurrent: trials that have work left at any time. None: all.
        widths: the fewest and most slots of each trial. None: one.
        priority: of each trial, for policies that look at it. None: 1.
        first: configurations that come before the others, as in a study that goes on with a larger
            grid.

    Raises:
        ValueError: a dimension is not finite, or a number is not positive.
    """

    space: Space | None = field(default=None, hash=False)
    max_epochs: float | None = None
    max_concurrent: int | None = None
    widths: Widths | None = None
    priority: float | None = None
    first: Sequence[Mapping[str, Any]] | None = field(default=None, hash=False)
    _space: Space = field(init=False, repr=False, compare=False)
    _combinations: Combinations = field(init=False, repr=False, compare=False)
    # Of the combinations that are among `first`, in order: how many others come before each.
    _others_before: tuple[int, ...] = field(init=False, repr=False, compare=False, default=())

    def __post_init__(self) -> None:
        check_counts(self)
        object.__setattr__(self, "widths", checked_widths(self.widths))
        space = as_grid(validated(self.space or {}))
        endless = [name for name, domain in dimensions(space) if hasattr(domain, "sample")]
        if endless:
            raise ValueError(
                f"a grid needs grid([…]) dimensions; {', '.join(endless)} cannot be listed: "
                "use Random(…, num_samples=)"
            )
        if self.space is not None:
            object.__setattr__(self, "space", space)
        object.__setattr__(self, "_space", space)
        object.__setattr__(self, "_combinations", Combinations(space))
        if self.first:
            # Note which combinations come first; the others come after them.
            earlier = tuple(
                {name: value_of(value) for name, value in config.items()} for config in self.first
            )
            places = {self._place(config) for config in earlier}
            ordered = sorted(place for place in places if place is not None)
            others = tuple(place - number for number, place in enumerate(ordered))
            object.__setattr__(self, "first", earlier)
            object.__setattr__(self, "_others_before", others)

    def _place(self, config: Config) -> int | None:
        """The number of the combination with exactly this configuration; None: there is none."""
        place = self._combinations.place(config)
        if place is not None and self._combined(place) == config:
            return place
        return None

    def _combined(self, number: int) -> Config:
        """The configuration of this combination."""
        fixed = self._combinations[number]
        return draw(self._space, fixed, independent(0, number))[0]

    def config(self, index: int) -> Config:
        """The configuration of trial number `index`."""
        first: Sequence[Mapping[str, Any]] = self.first or ()
        if index < len(first):
            return dict(first[index])
        number = index - len(first)
        return self._combined(number + bisect_right(self._others_before, number))

    def start(self) -> int:
        return 0

    def propose(self, view: View, came: int) -> tuple[Proposal, int]:
        return Batch(
            len(self.first or ()) + self._combinations.count - len(self._others_before),
            self.config,
            self.max_epochs or 1,
            self.max_concurrent,
            self.widths,
            self.priority,
            len(self.first or ()),
        ).next(view, came)
