"""Widths for a short mean time to the end of a trial.

Ours. `doubling` minimises the sum of the seconds left, which favours the longest trials; these
policies are better where the mean counts. `Equi`: equal shares, and the surplus to the trials with
least left. It needs no sizes but for the surplus. `Wrate`, `HeSrpt` and `SrptK` favour short trials
more, and are for trials of known and unlike size.
heSRPT: Berg, Vesilo, Harchol-Balter, Performance 2020.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from shoal.core.plan import Plan
from shoal.core.state import View
from shoal.core.trial import Seconds, TrialId
from shoal.policy.arguments import check_interval
from shoal.policy.width.ask import Ask, admitted, paying, room, shortest_first, widths_at
from shoal.policy.width.convergence import check_foretell, left_by
from shoal.policy.width.doubling import placed


def equal_shares(wanting: Sequence[Ask], capacity: int) -> dict[TrialId, int]:
    """Widths by equal shares for all trials; what is over goes to those with least left.

    If not all trials fit, those with least left get the slots.
    """
    taken = admitted(shortest_first(wanting), capacity)
    if not taken:
        return {}
    rungs = {ask.trial: 0 for ask in taken}
    free = capacity - sum(ask.least for ask in taken)
    share = capacity / len(taken)
    for ask in taken:
        # Raise the trial to its largest width within the share.
        rung = rungs[ask.trial]
        while ask.helps(rung):
            above = ask.widths[rung + 1]
            if above > share or above - ask.least > free:
                break
            rung += 1
        rungs[ask.trial] = rung
        free -= ask.widths[rung] - ask.least
    # Raise each by one rung in turn, until none can rise; mostly one round is enough.
    rising = True
    while rising:
        rising = False
        for ask in taken:
            rung = rungs[ask.trial]
            if ask.helps(rung) and ask.step(rung) <= free:
                free -= ask.step(rung)
                rungs[ask.trial] = rung + 1
                rising = True
    return widths_at(taken, rungs)


@dataclass(frozen=True, slots=True)
class Equi:
    """Equal shares, in powers of two.

    Args:
        every: seconds between two decisions, as for `Doubling`.
        foretell: as for `Doubling`.
    """

    every: Seconds | None = None
    foretell: str | None = None

    def __post_init__(self) -> None:
        check_interval(self.every)
        check_foretell(self.foretell)

    def start(self) -> None:
        return None

    def decide(self, view: View, memory: None) -> tuple[Plan, None]:
        wanting = paying(view, left=left_by(self.foretell))
        return placed(view, equal_shares(wanting, room(view)), self.every), memory
