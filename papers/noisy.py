"""A profile that is wrong by a random factor: as a belief, to test a policy; as the truth,
times that nobody foresaw.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from math import exp, log, sqrt
from statistics import NormalDist

from shoal.core.plan import Gang
from shoal.core.profile import Cost, Profile
from shoal.core.trial import Seconds, TrialId


@dataclass(frozen=True, slots=True)
class Noisy:
    """`base`, with rates off by lognormal factors of which log has deviation `sigma`, one for
    each trial at each place.

    Each (trial, slots, shards) has its own factor, a function of it and `seed`, with mean 1 for
    the time that training takes; over the whole data set each (trial, width), so that `rates`
    and `curve` agree. What a trial costs and what changes cost are as in `base`.

    Raises:
        ValueError: sigma below 0.
    """

    base: Profile
    sigma: float
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.sigma >= 0:
            raise ValueError(f"noise has a deviation >= 0; got sigma={self.sigma!r}")

    def rates(self, gang: Gang) -> Mapping[TrialId, float]:
        rates = self.base.rates(gang)
        if not gang.shards:
            return {
                lane.trial: rates[lane.trial] / self._factor(f"{lane.trial}/{len(lane.slots)}")
                for lane in gang.lanes
            }
        place = f"{gang.shards}/{[lane.slots for lane in gang.lanes]}"
        return {trial: rate / self._factor(f"{trial}/{place}") for trial, rate in rates.items()}

    def curve(self, trial: TrialId, upto: int) -> Sequence[float]:
        return [
            rate / self._factor(f"{trial}/{w}")
            for w, rate in enumerate(self.base.curve(trial, upto), 1)
        ]

    def cost(self, trial: TrialId) -> Cost:
        return self.base.cost(trial)

    def switch(self, before: Gang | None, after: Gang | None) -> Seconds:
        return self.base.switch(before, after)

    def _factor(self, what: str) -> float:
        drawn = (
            int.from_bytes(blake2b(f"{self.seed}/{what}".encode(), digest_size=6).digest()) + 0.5
        ) / 2**48
        spread = sqrt(log(1 + self.sigma**2)) if self.sigma else 0.0
        return exp(spread * NormalDist().inv_cdf(drawn) - spread**2 / 2)


def noisy(profile: Profile, error: float, seed: int = 0) -> Noisy:
    """The profile with errors of this size in its speeds (0.3: 30 %): what a policy is to make
    do with.
    """
    return Noisy(profile, error, seed)
