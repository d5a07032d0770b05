"""Grid search: every combination once."""

from dataclasses import dataclass, field

from shoal.core.plan import Proposal
from shoal.core.state import View
from shoal.search.batch import Widths, check_counts, checked_widths, next_batch
from shoal.search.space import Config, Space, as_grid, dimensions, draw, grids, validated


@dataclass(frozen=True, slots=True)
class Grid:
    """Every combination of the space's `grid` (or `choice`) dimensions, the last one running fastest.

    `max_epochs`: how long each trains. `max_concurrent`: how many have work left at any time (None: all).
    `widths`: the fewest and most slots of each (None: one). `priority`: of each (None: 1).
    What else is None is the study's, or nothing to choose from, and one epoch. Its memory is how many trials came.

    Raises:
        ValueError: a dimension that is not finite, or numbers that are not positive.
    """

    space: Space | None = field(default=None, hash=False)
    max_epochs: float | None = None
    max_concurrent: int | None = None
    widths: Widths | None = None
    priority: float | None = None
    _configs: tuple[Config, ...] = field(init=False, repr=False, compare=False, default=())

    def __post_init__(self) -> None:
        check_counts(self.max_epochs, self.max_concurrent)
        object.__setattr__(self, "widths", checked_widths(self.widths))
        space = as_grid(validated(self.space or {}))
        endless = [name for name, domain in dimensions(space) if hasattr(domain, "sample")]
        if endless:
            what = ", ".join(endless)
            raise ValueError(f"a grid needs grid([…]) dimensions; {what} cannot be listed: use Random(…, num_samples=)")
        object.__setattr__(self, "space", None if self.space is None else space)
        object.__setattr__(self, "_configs", tuple(draw(space, 0, i, fixed) for i, fixed in enumerate(grids(space))))

    def start(self) -> int:
        return 0

    def propose(self, view: View, came: int) -> tuple[Proposal, int]:
        count, config = len(self._configs), self._configs.__getitem__
        return next_batch(view, came, count, config, self.max_epochs or 1, self.max_concurrent, self.widths, self.priority)
