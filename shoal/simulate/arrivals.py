"""The trials of a simulation, and when they arrive.

At recorded times, at even intervals, or as a Poisson process.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from string import ascii_lowercase

import numpy as np

from shoal.core.cluster import ShardId
from shoal.core.plan import Proposal
from shoal.core.state import View
from shoal.core.trial import Samples, Seconds, Trial, TrialId
from shoal.search.batch import checked_widths
from shoal.simulate.fields import MANY, Fields

Arrival = tuple[Seconds, Trial]
Shards = Mapping[ShardId, int]  # samples of each

TRIALS = ("count", "samples", "epochs", "widths", "every", "poisson", "at", "begin", "config")


@dataclass(frozen=True)
class Arrivals:
    """A searcher of trials that arrive at given times. Memory: how many arrived.

    `arrivals`: in the order of their times.
    """

    arrivals: Sequence[Arrival]

    def start(self) -> int:
        """The memory before any trial has arrived."""
        return 0

    def propose(self, view: View, arrived: int) -> tuple[Proposal, int]:
        """The trials that have arrived since, and when the next one does."""
        new: list[Trial] = []
        wake_at = None
        for number in range(arrived, len(self.arrivals)):
            at, trial = self.arrivals[number]
            if at > view.now:
                wake_at = at
                break
            new.append(trial)
        return Proposal(tuple(new), wake_at=wake_at), arrived + len(new)


def poisson(count: int, mean: Seconds, seed: int = 0, begin: Seconds = 0.0) -> list[Seconds]:
    """`count` times with exponential gaps of this mean, the first at `begin`."""
    gaps = np.random.default_rng(seed).exponential(mean, count)
    gaps[:1] = 0.0
    return [begin + float(at) for at in np.cumsum(gaps)]


def even(count: int, gap: Seconds, begin: Seconds = 0.0) -> list[Seconds]:
    """`count` times, `gap` apart, the first at `begin`."""
    return [begin + k * gap for k in range(count)]


# -- the trials of a spec --------------------------------------------------------------------------


def arrivals_of(kinds: Sequence[Fields], shards: Shards, seed: int) -> tuple[Arrival, ...]:
    """The trials of all [[trials]] in order of time; the names of each kind begin alike."""
    arrivals: list[Arrival] = []
    for number, kind in enumerate(kinds):
        kind.only(TRIALS)
        # Names begin with a letter, if there are enough letters.
        few = len(kinds) <= len(ascii_lowercase)
        prefix = ascii_lowercase[number] if few else f"k{number:03d}-"
        arrivals += _arrivals(kind, prefix, shards, seed + number)
    arrivals.sort(key=lambda arrival: arrival[0])
    return tuple(arrivals)


def _arrivals(kind: Fields, prefix: str, shards: Shards, seed: int) -> list[Arrival]:
    """The trials of one kind, named by the prefix and a number."""
    samples = _samples(kind, shards)
    widths = _widths(kind)
    common = dict(kind.table("config", {}).data)
    arrivals = []
    for number, at in enumerate(_times(kind, seed)):
        name = TrialId(f"{prefix}{number:04d}")
        config = {"n": number, **common}
        arrivals.append((at, Trial(name, samples, config, widths, frozenset(shards))))
    return arrivals


NO_DATA = "an epoch is as long as the data: it needs [data]; or give samples"


def _samples(kind: Fields, shards: Shards) -> Samples:
    """How many samples each trial of the kind trains."""
    if kind.one_of("samples", "epochs") != "epochs":
        return kind.number("samples", above=0)
    if not shards:
        raise kind.wrong("epochs", NO_DATA)
    return kind.number("epochs", above=0) * sum(shards.values())


def _widths(kind: Fields) -> tuple[int, int]:
    """The fewest and the most slots of a trial."""
    pair = kind.get("widths", [1, 1])
    wrong = kind.must_be("widths", "[fewest, most] slots, 1 <= fewest <= most", pair)
    try:
        widths = checked_widths(pair)
    except ValueError:
        raise wrong from None
    if widths is None:
        raise wrong
    return widths


def _times(kind: Fields, seed: int) -> list[Seconds]:
    """When the trials of the kind come."""
    way = kind.one_of("every", "poisson", "at")
    begin = kind.number("begin", 0.0, least=0)
    if way == "at":
        times = kind.numbers("at", least=0)
        if kind.whole("count", len(times)) != len(times):
            wanted = f"a time for each of the {kind.data['count']} trials"
            raise kind.wrong("at", f"there must be {wanted}; got {len(times)}")
        return times
    if way == "poisson":
        return poisson(_count(kind), kind.number("poisson", above=0), seed, begin)
    return even(_count(kind), kind.number("every", 0.0, least=0), begin)


def _count(kind: Fields) -> int:
    """How many trials of the kind there are."""
    return kind.whole("count", 1, least=1, most=MANY)
