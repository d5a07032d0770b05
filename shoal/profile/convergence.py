"""How long a trial still has to train, from its loss so far.

Source: Capes et al. 2019, eq. 1 (after Optimus, EuroSys 2018). Stochastic gradient descent
converges as 1/k, so the loss after k steps is 1 / (b0 k + b1) + b2, with b0 > 0 and b1, b2 >= 0.
Steps are whatever the losses are counted in; epochs will do.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isfinite, sqrt

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Convergence:
    """The fitted curve: `slope` is b0, `offset` b1, and `floor` b2, the loss that it nears."""

    slope: float
    offset: float
    floor: float

    def loss(self, step: float) -> float:
        """The loss expected after so many steps; infinite at the curve's pole, before step 1."""
        below = self.slope * step + self.offset
        if below <= 0:
            return inf
        return self.floor + 1.0 / below

    def steps_to(self, loss: float) -> float:
        """Steps in all until the loss is this low; infinity if it never is."""
        gap = loss - self.floor
        if gap <= 0 or self.slope <= 0:
            return inf
        return self._step_at(1.0 / gap)

    def _step_at(self, inverse: float) -> float:
        """The step at which the inverse of the loss above the floor is this."""
        return max(0.0, (inverse - self.offset) / self.slope)

    def steps_until_flat(self, drop: float) -> float:
        """Steps in all until one more step lowers the loss by less than `drop`.

        That is Optimus' sign of convergence.

        Raises:
            ValueError: drop is not positive.
        """
        if not drop > 0:
            raise ValueError(
                f"the drop per step that counts as converged must be > 0; got {drop!r}"
            )
        if self.slope <= 0:
            return 0.0
        return self._step_at(sqrt(self.slope / drop))


def fit_convergence(steps: Sequence[float], losses: Sequence[float]) -> Convergence:
    """Least squares over (step, loss) points.

    For a given floor b2, NNLS gives b0 and b1; the floor is found by a search.

    Raises:
        ValueError: there are fewer than three points, the lengths differ, or a loss is not positive
            and finite.
    """
    if len(steps) != len(losses) or len(steps) < 3:
        raise ValueError(
            "a convergence fit needs three (step, loss) points at least; "
            f"got {len(steps)} and {len(losses)}"
        )
    if not all(isfinite(x) and x > 0 for x in losses):
        raise ValueError(f"losses must be > 0 and finite; got {min(losses)!r} among them")
    scale = float(max(losses))
    k = np.asarray(steps, float)
    y = np.asarray(losses, float) / scale
    floors = np.linspace(0.0, float(y.min()), 66)[:-1]
    for _ in range(4):  # each round looks closer around the best floor of the one before
        errors = [_fit(k, y, floor)[2] for floor in floors]
        best = int(np.argmin(errors))
        low = floors[max(best - 1, 0)]
        high = floors[min(best + 1, len(floors) - 1)]
        floors = np.linspace(low, high, 17)
    floor = float(min(floors, key=lambda f: _fit(k, y, f)[2]))
    slope, offset, _ = _fit(k, y, floor)
    return Convergence(slope / scale, offset / scale, floor * scale)


def _fit(k: Floats, y: Floats, floor: float) -> tuple[float, float, float]:
    """Slope and offset for this floor, and the squared error of the loss.

    NNLS fits the inverse of the loss above the floor; the weights make it the error of the loss.
    """
    from scipy.optimize import nnls  # slow to import, and needed here only

    gap = y - floor
    weight = gap**2
    (slope, offset), _ = nnls(np.stack([k * weight, weight], axis=1), weight / gap)
    below = slope * k + offset
    if (below <= 0).any():
        return float(slope), float(offset), inf
    error = ((1.0 / below + floor - y) ** 2).sum()
    return float(slope), float(offset), float(error)
