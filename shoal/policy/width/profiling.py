"""Rates measured before flotillas are formed, of each kind of trial, as it trains.

Guan et al., "FLEET", MLSys 2020, appendix B.3. Before M_t widths of all are measured (as printed),
much of the training may be over; it is usually enough to know each kind alone. This says what is
measured where. A gang that measures has a quota of 48 batches, however large the data set is. A
slot tells a rate by then, or sooner. Then a trial that stays where it is goes on with its visit.
One that makes room leaves at once, and its batches are void, as in the paper. Widths beyond those
measured follow by eq. 5.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Literal

from shoal.core.plan import Plan
from shoal.core.state import View
from shoal.core.trial import Trial, TrialId
from shoal.policy.width.ask import Ask
from shoal.profile.fleet import extrapolate, widths_to_profile
from shoal.profile.known import kind_of, known_widths

# What is measured first: each kind on its fewest slots, at all widths up to M_t, or nothing.
Measures = Literal["alone", "printed", "never"]
# Of each trial: the widths at which it was begun to be measured, and its visits by then.
Tried = Mapping[TrialId, Sequence[Sequence[int]]]
# Visits after which a width that gave no rate is given up: one of them was whole at that width.
VISITS = 2
# Batches that a gang trains to be measured, and the samples of one whose trial does not say.
BATCHES, BATCH = 48, 32


@dataclass(frozen=True, slots=True)
class Missing:
    """A trial that stands for its kind, and the widths at which that is yet to be measured."""

    ask: Ask
    widths: tuple[int, ...]

    @property
    def measuring(self) -> bool:
        """Whether it trains at one of these widths now."""
        return self.ask.held in self.widths


def per_node(view: View) -> int:
    """The slots of the largest node."""
    slots = Counter(slot.node for slot in view.slots.values())
    return max(slots.values(), default=1)


def missing(view: View, wanting: Sequence[Ask], tried: Tried, measures: Measures) -> list[Missing]:
    """What is yet to be measured, of one trial for each kind; a running one where there is one."""
    found: list[Missing] = []
    if measures == "never":
        return found
    upto = 1
    if measures == "printed":
        upto = _widths_to_measure(view, wanting)
    for ask in _one_of_each_kind(view, wanting):
        known = known_widths(view.profile, ask.trial)
        if known is None:
            continue
        over = _given_up(view, ask.trial, tried)
        widths = tuple(
            width
            for width in ask.widths
            if width <= max(upto, ask.least) and width not in known and width not in over
        )
        if widths:
            found.append(Missing(ask, widths))
    return found


def _widths_to_measure(view: View, wanting: Sequence[Ask]) -> int:
    """M_t: of appendix B.3, from the rates on one slot that are known."""
    alone: list[float] = []
    for ask in wanting:
        known = known_widths(view.profile, ask.trial)
        if known is None or 1 in known:
            alone.append(view.profile.curve(ask.trial, 1)[0])
    return widths_to_profile(alone or [1.0], per_node(view))


def _one_of_each_kind(view: View, wanting: Sequence[Ask]) -> Iterable[Ask]:
    """One trial of each kind, those first that run."""
    kinds: dict[Hashable, Ask] = {}
    for ask in sorted(wanting, key=lambda ask: not ask.held):
        kinds.setdefault(kind_of(view.profile, ask.trial), ask)
    return kinds.values()


def _given_up(view: View, trial: TrialId, tried: Tried) -> set[int]:
    """Widths that gave no rate in the visits that the trial made since it was begun there."""
    visits = len(view.visits.get(trial, ()))
    return {width for width, begun in tried.get(trial, ()) if visits >= begun + VISITS}


def widths_to_try(
    needs: Sequence[Missing], wanting: Sequence[Ask], capacity: int
) -> dict[TrialId, int]:
    """The slots of each trial while some kinds are measured.

    A trial that is being measured goes on. Then each kind is measured at its next width, as far as
    the slots reach. The slots left over go to the other trials, those first that run.
    """
    widths: dict[TrialId, int] = {}
    free = capacity
    for need in needs:
        if need.measuring and need.ask.held <= free:
            widths[need.ask.trial] = need.ask.held
            free -= need.ask.held
    for need in needs:
        width = need.widths[0]
        if need.ask.trial not in widths and width <= free:
            widths[need.ask.trial] = width
            free -= width
    for ask in sorted(wanting, key=lambda ask: not ask.held):
        width = max(ask.least, min(ask.held, free))
        if ask.trial not in widths and width <= free:
            widths[ask.trial] = width
            free -= width
    return widths


def until_measured(view: View, plan: Plan) -> Plan:
    """The plan, whose gangs that begin now have a quota: they are there until rates are known."""
    gangs = set()
    for gang in plan.gangs:
        now = view.running.get(gang.trials[0])
        if now is not None and now.lanes == gang.lanes:
            gang = now
        elif gang.quota is None:
            gang = replace(gang, quota=BATCHES * _batch(view.trials[gang.trials[0]]))
        gangs.add(gang)
    return Plan(frozenset(gangs), plan.wake_at)


def _batch(trial: Trial) -> int:
    """The samples of its batches, as far as its configuration says."""
    said = trial.config.get("batch_size")
    return said if isinstance(said, int) and said > 0 else BATCH


def noted(
    view: View, needs: Sequence[Missing], widths: Mapping[TrialId, int], tried: Tried
) -> dict[TrialId, list[list[int]]]:
    """What was tried, with the widths that are begun by now."""
    after = {trial: [list(each) for each in begun] for trial, begun in tried.items()}
    for need in needs:
        trial = need.ask.trial
        width = widths.get(trial)
        stamps = after.setdefault(trial, [])
        if width in need.widths and width not in [each[0] for each in stamps]:
            stamps.append([int(width), len(view.visits.get(trial, ()))])
    return after


def extended(view: View, ask: Ask) -> Ask:
    """The ask with the rates of eq. 5 at widths beyond those that were measured.

    As it is where rates are given, or were not measured at each width on two nodes.
    """
    known = known_widths(view.profile, ask.trial)
    base = 2 * per_node(view)
    if known is None or ask.widths[-1] <= base:
        return ask
    measured = _in_a_row(known)
    if measured < base:
        return ask
    curve = view.profile.curve(ask.trial, measured)
    rates = extrapolate(curve, per_node(view), ask.widths[-1])
    return replace(ask, rates=tuple(rates[width - 1] for width in ask.widths))


def _in_a_row(known: Set[int]) -> int:
    """The greatest width up to which each one is known."""
    width = 0
    while width + 1 in known:
        width += 1
    return width
