"""Emulated clusters: how fast a trial is there at each width, and what slots would measure of it.

After Capes et al. 2019, section 3, and with what the equations leave out: rows of a batch are
whole, a step has fixed costs, and sums go on behind the backward pass.
"""

from dataclasses import dataclass
from math import ceil

from shoal.core.trial import Seconds
from shoal.profile.all_reduce import GIB, AllReduce, Link, quickest, ring

WIDTHS = range(1, 17)


@dataclass(frozen=True)
class Cluster:
    """The truth of a step.

    `model`: bytes. `compute`: seconds of a row. `fixed`: seconds of a step. `hidden`: part of a
    slot's compute behind which sums go on. `how`: the algorithm of the sums.
    """

    model: float
    link: Link
    compute: Seconds = 1e-3
    batch: int = 128
    fixed: Seconds = 0.0
    hidden: float = 0.0
    how: AllReduce = quickest

    def rate(self, width: int) -> float:
        """Samples/s."""
        rows = ceil(self.batch / width) * self.compute
        sums = max(self.how(width, self.model, self.link) - self.hidden * rows, 0.0)
        return self.batch / (rows + sums + self.fixed)

    def figures(self, *widths: int, off: float = 1.0) -> dict[str, float]:
        """What is measured at these widths; of links `off` times the truth."""
        found = {"model": self.model / GIB, "batch": float(self.batch)}
        if max(widths) > 1:
            found["latency"] = self.link.latency * off
            found["transfer"] = self.link.transfer * GIB * off
            if self.how is ring:
                found["rings"] = 1.0
        for width in widths:
            found["rate" if width == 1 else f"rate@{width}"] = self.rate(width)
        return found


GIGABIT = Link(latency=5e-5, transfer=1 / 125e6)
TEN = Link(latency=2e-5, transfer=1 / 1.25e9)
SLOW_TO_ANSWER = Link(latency=1e-3, transfer=1e-10)
CLUSTERS = {
    "1 Gbit/s": Cluster(4e5, GIGABIT),
    "1 Gbit/s, bound by it": Cluster(4e6, GIGABIT),
    "10 Gbit/s, fixed costs": Cluster(1e7, TEN, fixed=4e-3),
    "10 Gbit/s, sums hide": Cluster(1e7, TEN, hidden=0.3),
    "latency": Cluster(4e4, SLOW_TO_ANSWER),
    "rings": Cluster(2e6, GIGABIT, how=ring),
    "rings, latency": Cluster(4e4, SLOW_TO_ANSWER, how=ring),
}


def worst(cluster: Cluster, curve: list[float], among: range = WIDTHS) -> float:
    """The greatest error at these widths."""
    return max(abs(curve[w - 1] / cluster.rate(w) - 1.0) for w in among)
