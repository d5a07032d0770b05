"""Random search (Bergstra and Bengio, JMLR 2012)."""

from dataclasses import dataclass, field

from shoal.core.plan import Proposal
from shoal.core.state import View
from shoal.search.batch import Batch, Widths, check_counts, checked_widths
from shoal.search.draws import SOBOL, Draws, draws
from shoal.search.space import Config, Space


@dataclass(frozen=True, slots=True)
class Random:
    """Draws from the space; with `grid` dimensions, so many of every combination.

    Trial i's configuration is a function of (seed, i). What is None is the study's; without a study
    it is one sample for one epoch from seed 0. The memory is how many trials were submitted.

    Args:
        space: the dimensions, by name.
        num_samples: trials, for each combination of the grids.
        max_epochs: epochs that each trial trains.
        seed: of the draws, 0 or more.
        max_concurrent: trials that have work left at any time. None: all.
        widths: the fewest and most slots of each trial. None: one.
        priority: of each trial, for policies that look at it. None: 1.
        sampling: "sobol" spreads the first draws over the space. None: each draw is by itself.

    Raises:
        ValueError: a number is not positive, or the seed is below 0.
    """

    space: Space | None = field(default=None, hash=False)
    num_samples: int | None = None
    max_epochs: float | None = None
    seed: int | None = None
    max_concurrent: int | None = None
    widths: Widths | None = None
    priority: float | None = None
    sampling: str | None = SOBOL
    _draws: Draws = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_counts(self)
        object.__setattr__(self, "widths", checked_widths(self.widths))
        object.__setattr__(self, "_draws", draws(self.space, self.seed, self.sampling))

    def start(self) -> int:
        return 0

    def propose(self, view: View, came: int) -> tuple[Proposal, int]:
        return Batch(
            (self.num_samples or 1) * self._draws.combinations,
            self.config,
            self.max_epochs or 1,
            self.max_concurrent,
            self.widths,
            self.priority,
        ).next(view, came)

    def config(self, index: int) -> Config:
        """The configuration of trial number `index`."""
        return self._draws(index)
