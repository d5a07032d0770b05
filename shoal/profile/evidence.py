"""Which rates were measured, and which are only believed; which widths are worth having by them."""

from bisect import bisect_right
from collections.abc import Hashable, Sequence, Set

from shoal.core.profile import Profile
from shoal.core.state import Figures
from shoal.core.trial import TrialId
from shoal.profile.measure import Belief
from shoal.profile.signatures import Key
from shoal.profile.slot_speeds import Links
from shoal.profile.widths import wide_rates

# A wider lane pays if it gains this part of what as many slots more would gain at best.
WORTH = 0.1


def known_widths(profile: Profile, trial: TrialId) -> Set[int] | None:
    """The widths at which trials of this one's kind were measured, or their rate is given.

    None: the profile is not measured, so that it knows the rate at every width.
    """
    if not isinstance(profile, Belief):
        return None
    widths = _widths(profile.given(profile.known[trial].config))
    for name in profile.signatures.kinds.get(_kind(profile, trial), set()):
        widths |= _widths(profile.figures.get(name, {}))
    return widths


def measured_rates(profile: Profile) -> list[float]:
    """Samples/s of each kind at each width where it was measured; none if all rates are given."""
    if not isinstance(profile, Belief):
        return []
    rates = []
    for figures in profile.figures.values():
        rates += [rate for name, rate in figures.items() if name.startswith("rate")]
    return rates


def widest(profile: Profile, trial: TrialId, fewest: int, most: int) -> int:
    """The most slots within these limits that pay, or may pay, as far as was measured."""
    if fewest >= most or known_widths(profile, trial) is None:
        return most
    widths = range(fewest, most + 1)
    rates = profile.curve(trial, most)[fewest - 1 :]
    return widths[paying_count(profile, trial, widths, rates) - 1]


def paying_count(
    profile: Profile, trial: TrialId, widths: Sequence[int], rates: Sequence[float]
) -> int:
    """How many of the widths, rising, pay or may pay: at least one.

    A trial is measured at its fewest slots before it gets more, and at a width before it gets more
    than twice as many. A width that was measured and does not pay ends the climb. `rates`:
    samples/s at the widths, as believed.
    """
    known = known_widths(profile, trial)
    if known is None:
        return len(widths)
    if widths[0] not in known:
        return 1
    paid = 0  # the last place that is known to pay
    for place in range(1, len(widths)):
        if widths[place] not in known:
            continue
        more = widths[place] / widths[paid] - 1
        if rates[place] < rates[paid] * (1 + WORTH * more):
            return min(place, _twice(widths, paid))
        paid = place
    return _twice(widths, paid)


def _twice(widths: Sequence[int], place: int) -> int:
    """How many of the widths are at most twice the one at this place."""
    return bisect_right(widths, 2 * widths[place])


def kind_of(profile: Profile, trial: TrialId) -> Hashable:
    """The trial's kind: equal for trials that go at one speed, as far as is known."""
    if not isinstance(profile, Belief):
        return trial
    return _kind(profile, trial)


def links(profile: Profile) -> Links | None:
    """Which kinds of trials and slots can be compared; the caller may join more.

    None: the profile is not measured, so that it knows the rate of every trial on every slot.
    """
    if not isinstance(profile, Belief):
        return None
    return profile.slots.links()


def clocked_as(profile: Profile, trial: TrialId) -> str:
    """The name under which the trial's speed on slots is clocked: its signature, if known."""
    if not isinstance(profile, Belief):
        return str(trial)
    return profile.signatures.name(trial, profile.known)


def _kind(belief: Belief, trial: TrialId) -> Key:
    """The part of the trial's configuration that speed can depend on."""
    signatures = belief.signatures
    return signatures.kind(signatures.key(trial, belief.known))


def _widths(figures: Figures) -> set[int]:
    """The widths at which these figures have a rate."""
    widths = set(wide_rates(figures))
    if figures.get("rate"):
        widths.add(1)
    return widths
