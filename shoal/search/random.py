"""Random search (Bergstra and Bengio, JMLR 2012)."""

from dataclasses import dataclass, field

from shoal.core.plan import Proposal
from shoal.core.state import View
from shoal.search.batch import check_counts, next_batch
from shoal.search.space import Config, Space, draw, grids, validated


@dataclass(frozen=True, slots=True)
class Random:
    """`num_samples` draws from the space; with `grid` dimensions, so many of every combination, as Ray Tune does.

    Trial i's configuration is a function of (seed, i). `max_epochs`, `max_concurrent`: as for `Grid`. Its
    memory is how many trials came.

    Raises:
        ValueError: numbers that are not positive, or a seed below 0.
    """

    space: Space = field(hash=False)
    num_samples: int = 1
    max_epochs: float = 1
    seed: int = 0
    max_concurrent: int | None = None
    _grids: tuple[Config, ...] = field(init=False, repr=False, compare=False, default=())

    def __post_init__(self) -> None:
        check_counts(self.max_epochs, self.max_concurrent)
        if self.num_samples < 1:
            raise ValueError(f"num_samples must be >= 1; got {self.num_samples!r}")
        if self.seed < 0:
            raise ValueError(f"a seed must be >= 0; got {self.seed!r}")
        object.__setattr__(self, "space", validated(self.space))
        object.__setattr__(self, "_grids", tuple(grids(self.space)))

    def start(self) -> int:
        return 0

    def propose(self, view: View, came: int) -> tuple[Proposal, int]:
        count = self.num_samples * len(self._grids)
        return next_batch(view, came, count, self.config, self.max_epochs, self.max_concurrent)

    def config(self, index: int) -> Config:
        """The configuration of trial number `index`."""
        return draw(self.space, self.seed, index, self._grids[index % len(self._grids)])
