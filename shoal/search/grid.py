"""Grid search: every combination once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from shoal.core.plan import Proposal
from shoal.core.state import View
from shoal.search.batch import Batch, Widths, check_counts, checked_widths
from shoal.search.space import (
    Config,
    Space,
    as_grid,
    dimensions,
    draw,
    grids,
    validated,
    value_of,
)


@dataclass(frozen=True, slots=True)
class Grid:
    """Every combination of the space's `grid` (or `choice`) dimensions, the last running fastest.

    `max_epochs`: how long each trial trains. `max_concurrent`: how many have work left at any time
    (None: all). `widths`: the fewest and most slots of each (None: one). `priority`: of each
    (None: 1). `first`: configurations that come before the others, as in a study that goes on with
    a larger grid. What else is None is the study's; without a study, there is nothing to choose
    from, and a trial trains for one epoch. The memory is how many trials were submitted.

    Raises:
        ValueError: a dimension is not finite, or a number is not positive.
    """

    space: Space | None = field(default=None, hash=False)
    max_epochs: float | None = None
    max_concurrent: int | None = None
    widths: Widths | None = None
    priority: float | None = None
    first: Sequence[Mapping[str, Any]] | None = field(default=None, hash=False)
    _configs: tuple[Config, ...] = field(
        init=False, repr=False, compare=False, default=()
    )

    def __post_init__(self) -> None:
        check_counts(self.max_epochs, self.max_concurrent)
        object.__setattr__(self, "widths", checked_widths(self.widths))
        space = as_grid(validated(self.space or {}))
        endless = [
            name for name, domain in dimensions(space) if hasattr(domain, "sample")
        ]
        if endless:
            raise ValueError(
                f"a grid needs grid([…]) dimensions; {', '.join(endless)} cannot be listed: "
                "use Random(…, num_samples=)"
            )
        if self.space is not None:
            object.__setattr__(self, "space", space)
        configs = tuple(
            draw(space, 0, number, fixed) for number, fixed in enumerate(grids(space))
        )
        object.__setattr__(self, "_configs", self._after_first(configs))

    def _after_first(self, configs: tuple[Config, ...]) -> tuple[Config, ...]:
        """The configurations that come first, then the others of these."""
        if not self.first:
            return configs
        earlier = tuple(
            {name: value_of(value) for name, value in config.items()}
            for config in self.first
        )
        object.__setattr__(self, "first", earlier)
        seen = {frozenset(config.items()) for config in earlier}
        new = [config for config in configs if frozenset(config.items()) not in seen]
        return (*earlier, *new)

    def start(self) -> int:
        return 0

    def propose(self, view: View, came: int) -> tuple[Proposal, int]:
        return self._batch().next(view, came)

    def _batch(self) -> Batch:
        """All trials, in order."""
        return Batch(
            len(self._configs),
            self._configs.__getitem__,
            self.max_epochs or 1,
            self.max_concurrent,
            self.widths,
            self.priority,
            len(self.first or ()),
        )
