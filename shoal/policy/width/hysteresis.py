"""When widths are decided anew, and whether a decision is worth what its changes cost.

Capes et al. 2019, section 4, decide when trials come and go, and at intervals. Between these, what
is left of trials shifts all the time, and with it the best widths: whoever follows it changes for
ever, and each change stands still. So `doubling`, its other rules and `explore` share this file.

A change is made if the seconds left of the trials concerned fall by more than the changes cost and
`GAIN`, and never for a trial that ends before it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from shoal.core.check import in_order
from shoal.core.plan import Gang, Plan
from shoal.core.state import View
from shoal.core.trial import Samples, Seconds, TrialId
from shoal.policy.width.ask import A_LITTLE, Ask, Left, Widths, change_seconds
from shoal.profile.evidence import measured_rates

GAIN = 0.02  # of the seconds left of the trials concerned
OFF = 0.1  # a rate that was measured again is another one if it is off by more than this part
SOON: Seconds = 1e-6  # a moment that is early by less is on time
Rule = Callable[[list[Ask], int], Mapping[TrialId, int]]
# When the last decision was, and what it knew; as JSON holds it.
Decided = Mapping[str, Any]


def is_due(view: View, last: Decided, every: Seconds | None = None) -> bool:
    """Whether trials, slots or rates changed since the last decision, or `every` is over."""
    if not last or last["counts"] != _counts(view):
        return True
    # One ended, and is extended already; or a slot was lost, and another came at that moment.
    if last["running"] != [len(view.running), len(view.busy)]:
        return True
    if every is not None and view.now >= last["at"] + every - SOON:
        return True
    # Were rates measured that were not known before, or are no longer so?
    rates = measured_rates(view.profile)
    before = last["rates"]
    if len(rates) != len(before):
        return True
    pairs = zip(rates, before, strict=True)
    return any(abs(rate - known) > OFF * known for rate, known in pairs)


def _counts(view: View) -> list[int]:
    """Numbers of which one changes when a trial or a slot comes or goes."""
    return [len(view.known), len(view.trials), len(view.slots)]


def decided(view: View, plan: Plan, last: Decided) -> dict[str, Any]:
    """The memory of a decision for this plan, made with the `last` one in mind."""
    lanes = sum(len(gang.lanes) for gang in plan.gangs)
    slots = sum(len(gang.slots) for gang in plan.gangs)
    return {
        "at": view.now,
        "counts": _counts(view),
        "running": [lanes, slots],
        "rates": measured_rates(view.profile),
        "wide": _wide(view, plan, last),
    }


def _wide(view: View, plan: Plan, last: Decided) -> dict[TrialId, list[float]]:
    """A time, the samples trained by then, and samples/s, of each trial with slots to give up."""
    wide: dict[TrialId, list[float]] = {}
    for gang in sorted(plan.gangs, key=in_order):
        for lane in gang.lanes:
            trial = lane.trial
            width = len(lane.slots)
            if width <= view.trials[trial].widths[0] or gang.quota is not None:
                continue
            begins = view.now + _until_it_trains(view, trial, gang)
            samples = view.done[trial] + _under_way(view, last, trial)
            rate = view.profile.curve(trial, width)[width - 1]
            wide[trial] = [begins, samples, rate]
    return wide


def _until_it_trains(view: View, trial: TrialId, gang: Gang) -> Seconds:
    """Seconds until the trial trains in this gang: none if it runs, else to build or change it."""
    before = view.running.get(trial)
    if before == gang:
        return 0.0
    if before is None and view.done[trial] == 0:
        return view.profile.cost(trial).build
    return view.profile.switch(before, gang)


def _under_way(view: View, last: Decided, trial: TrialId) -> Samples:
    """Samples of the visit under way that the trial should have trained; `done` leaves them out.

    Without them a trial a moment before its end seems to have a whole visit left. Where the visit
    should have ended long ago, its rate is not what it was believed to be, and nothing is known.
    """
    shards = view.trials[trial].shards
    if not last or trial not in last["wide"] or not shards:
        return 0.0
    begins, samples, rate = last["wide"][trial]
    expected: Samples = samples + rate * max(view.now - begins, 0.0) - view.done[trial]
    visit = max(view.shards[shard] for shard in shards)
    if expected > visit * (1.0 + OFF):
        return 0.0
    return min(max(expected, 0.0), visit)


def left_with(last: Decided, left: Left) -> Left:
    """The rule `left`, less what the visit under way has trained since the last decision."""

    def rest(view: View, trial: TrialId) -> Samples:
        return max(left(view, trial) - _under_way(view, last, trial), A_LITTLE)

    return rest


def settled(view: View, wanting: Sequence[Ask], capacity: int, rule: Rule) -> Widths:
    """The widths by this rule; those of now where a change to them would gain too little.

    Trials that the rule lets in need slots of others: then there is nothing to weigh. A trial that
    ends before a change of its width would be over keeps its slots.
    """
    ending = {ask.trial: ask.held for ask in wanting if _is_ending(view, ask)}
    free = capacity - sum(ending.values())
    if free < 0:
        ending, free = {}, capacity
    others = [ask for ask in wanting if ask.trial not in ending]

    now = _as_they_are(others, free, rule)
    best = rule([_with_cost_of_narrowing(view, ask) for ask in others], free)
    if now.keys() == best.keys() and sum(now.values()) <= free:
        concerned = [ask for ask in others if now.get(ask.trial) != best.get(ask.trial)]
        before = _seconds_left(view, concerned, now)
        after = _seconds_left(view, concerned, best)
        if not after < before * (1.0 - GAIN):
            return {**ending, **now}
    return {**ending, **best}


def _is_ending(view: View, ask: Ask) -> bool:
    """Whether the trial ends before it would go on with fewer slots."""
    if ask.held <= ask.least or ask.held not in ask.widths:
        return False
    return ask.seconds_at(ask.held) <= change_seconds(view, ask.trial, ask.least)


def _as_they_are(wanting: Sequence[Ask], capacity: int, rule: Rule) -> dict[TrialId, int]:
    """The widths of now, as far as they are allowed; those that wait share what is free."""
    now: dict[TrialId, int] = {}
    for ask in wanting:
        if ask.held:
            allowed = [width for width in ask.widths if width <= ask.held]
            now[ask.trial] = max(allowed, default=ask.least)
    free = capacity - sum(now.values())
    if free > 0:
        now |= rule([ask for ask in wanting if not ask.held], free)
    return now


def _with_cost_of_narrowing(view: View, ask: Ask) -> Ask:
    """The ask in which fewer slots than now take as much longer as two changes, and the gain.

    For the slots that one trial gives up another one changes, too. So rules exchange no slots
    between trials that are nearly equal.
    """
    if ask.held <= ask.least or ask.held not in ask.widths:
        return ask
    narrower = change_seconds(view, ask.trial, ask.least)
    wider = change_seconds(view, ask.trial, ask.held + 1)
    more = narrower + wider + GAIN * ask.seconds_at(ask.held)
    rates = list(ask.rates)
    for rung, width in enumerate(ask.widths):
        if width < ask.held:
            rates[rung] = ask.left / (ask.seconds(rung) + more)
    return replace(ask, rates=tuple(rates))


def _seconds_left(view: View, wanting: Sequence[Ask], widths: Widths) -> Seconds:
    """Seconds until these trials end at these widths, summed, the changes to them included."""
    total = 0.0
    for ask in wanting:
        width = widths[ask.trial]
        total += ask.seconds_at(width)
        if ask.held and width != ask.held:
            total += change_seconds(view, ask.trial, width)
    return total
