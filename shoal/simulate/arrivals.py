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
    """A searcher: these trials at these times, in order of time. Its memory is how many arrived."""

    arrivals: Sequence[Arrival]

    def start(self) -> int:
        """Nothing has arrived yet."""
        return 0

    def propose(self, view: View, came: int) -> tuple[Proposal, int]:
        """The trials that have arrived since, and when the next one does."""
        new: list[Trial] = []
        wake_at = None
        for number in range(came, len(self.arrivals)):
            at, trial = self.arrivals[number]
            if at > view.now:
                wake_at = at
                break
            new.append(trial)
        return Proposal(tuple(new), wake_at=wake_at), came + len(new)


def poisson(count: int, mean: Seconds, seed: int = 0, begin: Seconds = 0.0) -> list[Seconds]:
    """So many times with exponential gaps of this mean; the first at `begin`."""
    gaps = np.random.default_rng(seed).exponential(mean, count)
    gaps[:1] = 0.0
    return [begin + float(at) for at in np.cumsum(gaps)]


def even(count: int, gap: Seconds, begin: Seconds = 0.0) -> list[Seconds]:
    """So many times, `gap` apart."""
    return [begin + k * gap for k in range(count)]


# -- the trials of a spec --------------------------------------------------------------------------


def arrivals_of(kinds: Sequence[Fields], shards: Shards, seed: int) -> tuple[Arrival, ...]:
    """The trials of all [[trials]] in order of time; the names of each kind begin alike."""
    found: list[Arrival] = []
    for number, kind in enumerate(kinds):
        kind.only(TRIALS)
        prefix = _prefix(number, len(kinds))
        found += _arrivals(kind, prefix, shards, seed + number)
    found.sort(key=lambda arrival: arrival[0])
    return tuple(found)


def _prefix(number: int, kinds: int) -> str:
    """How the names of a kind's trials begin: with a letter, if there are enough letters."""
    if kinds <= len(ascii_lowercase):
        return ascii_lowercase[number]
    return f"k{number:03d}-"


def _arrivals(kind: Fields, prefix: str, shards: Shards, seed: int) -> list[Arrival]:
    """The trials of one kind, named by the prefix and a number."""
    samples = _samples(kind, shards)
    widths = _widths(kind)
    config = dict(kind.table("config", {}).data)
    found = []
    for number, at in enumerate(_times(kind, seed)):
        name = TrialId(f"{prefix}{number:04d}")
        own = {"n": number, **config}
        found.append((at, Trial(name, samples, own, widths, frozenset(shards))))
    return found


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
    found = kind.get("widths", [1, 1])
    wrong = kind.must_be("widths", "[fewest, most] slots, 1 <= fewest <= most", found)
    try:
        widths = checked_widths(found)
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
        # The times that the spec lists.
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
