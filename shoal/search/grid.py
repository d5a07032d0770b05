"""Grid search: every combination once."""

from dataclasses import dataclass, field

from shoal.core.plan import Proposal
from shoal.core.state import View
from shoal.search.batch import check_counts, next_batch
from shoal.search.space import Choice, Config, GridDomain, Space, draw, grids, validated


@dataclass(frozen=True, slots=True)
class Grid:
    """Every combination of the space's `grid` (or `choice`) dimensions, the last one running fastest.

    `max_epochs`: how long each trains. `max_concurrent`: how many have work left at any time (None: all).
    Its memory is how many trials came.

    Raises:
        ValueError: a dimension that is not finite, or numbers that are not positive.
    """

    space: Space = field(hash=False)
    max_epochs: float = 1
    max_concurrent: int | None = None
    _configs: tuple[Config, ...] = field(init=False, repr=False, compare=False, default=())

    def __post_init__(self) -> None:
        check_counts(self.max_epochs, self.max_concurrent)
        space = {n: GridDomain(d.values) if isinstance(d, Choice) else d for n, d in validated(self.space).items()}
        endless = [name for name, domain in space.items() if hasattr(domain, "sample")]
        if endless:
            what = ", ".join(endless)
            raise ValueError(f"a grid needs grid([…]) dimensions; {what} cannot be listed: use Random(…, num_samples=)")
        object.__setattr__(self, "space", space)
        object.__setattr__(self, "_configs", tuple(draw(space, 0, i, fixed) for i, fixed in enumerate(grids(space))))

    def start(self) -> int:
        return 0

    def propose(self, view: View, came: int) -> tuple[Proposal, int]:
        return next_batch(view, came, len(self._configs), self._configs.__getitem__, self.max_epochs, self.max_concurrent)
