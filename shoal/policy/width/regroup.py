"""When flotillas are formed again: by smoothed rates, and only where that repays itself.

Ours. FLEET (Guan et al., MLSys 2020) measures each rate once and believes it. Rates that slots tell
differ by a tenth for no reason, as much as the paces of one flotilla may, so a rate counts here by
the mean of what was told of it, with a spread; as of round-trip times in Jacobson's "Congestion
Avoidance and Control" (SIGCOMM 1988). And a change is made where all trials are through sooner
by it, what it costs included.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import replace

from shoal.core.plan import Gang
from shoal.core.state import View
from shoal.core.trial import Samples, Seconds, TrialId
from shoal.policy.width.ask import Ask, Widths
from shoal.profile.known import known_widths

NOISE = 0.3  # of a rate; what is off by more is another rate, and counts at once
NEWEST = 4  # the newest of n rates told counts 1/n, but this part of the mean at least
# By trial and width: the rate told last, the mean of all, their spread, and how many they were.
Told = Mapping[str, Mapping[str, Sequence[float]]]
Form = Callable[[Sequence[Ask], int], Sequence[Widths]]


def noted_rates(view: View, wanting: Iterable[Ask], told: Told) -> Told:
    """What was told of rates by now. Nothing of trials whose rates are given."""
    after: dict[str, dict[str, Sequence[float]]] = {}
    for ask in wanting:
        known = known_widths(view.profile, ask.trial)
        if not known:
            continue
        before = told.get(ask.trial, {})
        for width, rate in zip(ask.widths, ask.rates, strict=True):
            if width in known:
                one = _with(before.get(str(width)), rate)
                after.setdefault(ask.trial, {})[str(width)] = one
    return after


def _with(before: Sequence[float] | None, rate: float) -> Sequence[float]:
    """What was told of a rate, with what is told now."""
    if before is None:
        return [rate, rate, 0.0, 1]
    last, mean, spread, count = before
    if rate == last:
        return before
    off = abs(rate - mean)
    if off > NOISE * mean:
        return [rate, rate, 0.0, 1]
    weight = 1.0 / min(count + 1, NEWEST)
    return [
        rate,
        mean + weight * (rate - mean),
        spread + weight * (off - spread),
        count + 1,
    ]


def smoothed(ask: Ask, told: Told) -> Ask:
    """The ask with the means of what was told of its rates.

    A width of which nothing was told is off by as much as the next narrower one that was.
    """
    mine = told.get(ask.trial)
    if not mine:
        return ask
    rates = []
    off = 1.0
    for width, rate in zip(ask.widths, ask.rates, strict=True):
        if str(width) in mine:
            last, mean, _, _ = mine[str(width)]
            off = mean / last
        rates.append(rate * off)
    return replace(ask, rates=tuple(rates))


def spread_of(ask: Ask, told: Told) -> float:
    """Samples/s by which the ask's rate at its present width is uncertain."""
    mine = told.get(ask.trial, {})
    if str(ask.held) not in mine:
        return 0.0
    _, _, spread, _ = mine[str(ask.held)]
    return spread


def widths_of(gangs: Iterable[Gang]) -> list[Widths]:
    """The slots of each lane, gang by gang."""
    return [{lane.trial: len(lane.slots) for lane in gang.lanes} for gang in gangs]


def until_through(
    groups: Sequence[Widths],
    wanting: Sequence[Ask],
    capacity: int,
    busy: int,
    form: Form,
) -> Seconds:
    """Seconds until all trials are through, if these groups run now.

    All of a group go at the pace of its slowest. `form` says which groups run as soon as fewer
    than `busy` of the slots are taken.
    """
    asks = {ask.trial: ask for ask in wanting}
    left = {ask.trial: ask.left for ask in wanting}
    groups = [_without(group, group.keys() - asks.keys()) for group in groups]
    now = 0.0
    while left:
        if sum(sum(group.values()) for group in groups) < busy or not groups:
            rest = [replace(asks[trial], left=more) for trial, more in left.items()]
            groups = form(rest, capacity)
        paces = _paces(groups, asks)
        if not paces:
            break  # nobody fits
        step = min(left[trial] / pace for trial, pace in paces.items())
        now += step
        ended = _ended(left, paces, step)
        groups = [_without(group, ended) for group in groups]
        groups = [group for group in groups if group]
    return now


def _paces(groups: Sequence[Widths], asks: Mapping[TrialId, Ask]) -> dict[TrialId, float]:
    """Samples/s of each trial of these groups."""
    paces: dict[TrialId, float] = {}
    for group in groups:
        rates = [asks[t].left / asks[t].seconds_at(width) for t, width in group.items()]
        paces |= dict.fromkeys(group, min(rates))
    return paces


def _ended(
    left: dict[TrialId, Samples], paces: Mapping[TrialId, float], step: Seconds
) -> set[TrialId]:
    """Train for so long: what is `left` gets less. Returns the trials that are through."""
    ended = {trial for trial, pace in paces.items() if left[trial] <= pace * step * (1 + 1e-9)}
    for trial, pace in paces.items():
        left[trial] -= pace * step
    for trial in ended:
        del left[trial]
    return ended


def _without(group: Widths, ended: Set[TrialId]) -> Widths:
    """The trials of the group that go on."""
    return {trial: width for trial, width in group.items() if trial not in ended}


def dearest_change(view: View, gangs: Iterable[Gang]) -> Seconds:
    """Seconds that the gang with the dearest change stands still, of those that do not run yet."""
    costs = [
        view.profile.switch(view.running.get(gang.trials[0]), gang)
        for gang in gangs
        if gang not in view.plan.gangs
    ]
    return max(costs, default=0.0)
