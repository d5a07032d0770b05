"""What a policy asks first: which slots and trials wait, and whether one fits the other."""

from collections.abc import Iterable, Iterator
from itertools import islice
from math import inf

from shoal.core.cluster import Slot
from shoal.core.overlay import leading
from shoal.core.plan import Gang, Plan
from shoal.core.state import View
from shoal.core.trial import TrialId, priority_of


def idle_slots(view: View) -> list[Slot]:
    """The slots in no gang, in the order in which they joined."""
    queues = view.queues
    if queues.slots is view.slots and queues.busy is view.busy:
        return [view.slots[name] for name in queues.idle]
    busy = view.busy.keys()
    return [slot for name, slot in view.slots.items() if name not in busy]


def idle_trials(view: View, most: int | None = None) -> list[TrialId]:
    """The trials with work left that are in no gang, in the order of `queue`.

    `most`: no more than the first so many (None: all).
    """
    return list(islice(waiting(view), most))


def waiting(view: View) -> Iterator[TrialId]:
    """The trials of `idle_trials`, one by one: who stops early does not pay for the others."""
    queues, running = view.queues, view.running
    if queues.trials is not view.trials or queues.running is not running:
        return (name for name in queue(view) if name not in running)
    return iter(queues.waiting) if not view.ranked else _by_rank(view, queues.waiting)


def queue(view: View) -> Iterator[TrialId]:
    """The trials with work left: those of higher priority first, of equal ones the oldest.

    Where some trials have a priority that is not 1, all are sorted; else none is looked at early.
    """
    if not view.ranked:
        return leading(view.trials)
    return _by_rank(view, view.trials)


def _by_rank(view: View, trials: Iterable[TrialId]) -> Iterator[TrialId]:
    """These trials, of higher priority first, of equal ones in the order given."""
    known = view.trials
    return iter(sorted(trials, key=lambda name: -priority_of(known[name])))


def fits(view: View, trial: TrialId, slot: Slot) -> bool:
    """Whether the trial can run on this slot alone, and fits its memory by the profile."""
    return view.trials[trial].widths[0] <= 1 and has_room(view, trial, slot)


def has_room(view: View, trial: TrialId, slot: Slot) -> bool:
    """Whether the slot's memory is enough for the trial, as far as the profile knows."""
    return slot.memory == inf or view.profile.cost(trial).memory <= slot.memory


def with_more(view: View, gangs: Iterable[Gang]) -> Plan:
    """The plan of now with these gangs as well; the same object when there are none."""
    more = frozenset(gangs)
    return view.plan.but(start=more) if more else view.plan
