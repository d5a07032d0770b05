"""Which rates were measured, and which are only believed."""

from collections.abc import Hashable, Set

from shoal.core.profile import Profile
from shoal.core.state import Figures
from shoal.core.trial import TrialId
from shoal.profile.measure import Belief
from shoal.profile.signatures import Key
from shoal.profile.slot_speeds import Links
from shoal.profile.widths import wide_rates


def known_widths(profile: Profile, trial: TrialId) -> Set[int] | None:
    """The widths at which trials of this one's kind were measured, or their rate is given.

    None: the profile is not measured, so that it knows the rate at every width.
    """
    if not isinstance(profile, Belief):
        return None
    found = _widths(profile.given(profile.known[trial].config))
    for name in profile.signatures.kinds.get(_kind(profile, trial), set()):
        found |= _widths(profile.figures.get(name, {}))
    return found


def kind_of(profile: Profile, trial: TrialId) -> Hashable:
    """Equal for trials that go at one speed, as far as is known."""
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
    """What of the trial its speed on slots is clocked by: its signature, if one is known."""
    if not isinstance(profile, Belief):
        return str(trial)
    return profile.signatures.name(trial, profile.known)


def _kind(belief: Belief, trial: TrialId) -> Key:
    """What of the trial's configuration speed can depend on."""
    signatures = belief.signatures
    return signatures.kind(signatures.key(trial, belief.known))


def _widths(figures: Figures) -> set[int]:
    """The widths of these rates."""
    found = set(wide_rates(figures))
    if figures.get("rate"):
        found.add(1)
    return found
