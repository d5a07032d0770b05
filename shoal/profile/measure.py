"""The belief made of what was measured: the fold of `Measured` entries, looked up by configuration."""

from bisect import bisect_left
from collections.abc import Hashable, Iterable, Mapping, Sequence
from functools import cached_property, lru_cache
from math import inf, log
from typing import Any

from shoal.core.cluster import GiB, Slot, SlotId
from shoal.core.plan import Gang, Lane
from shoal.core.ports import Cost, Profile
from shoal.core.state import Figures, State
from shoal.core.trial import Seconds, Trial, TrialId, Value
from shoal.profile.given import Given
from shoal.profile.pace import lockstep, only_shrinks
from shoal.profile.ring import Speed, fit_speed, is_power_of_two
from shoal.profile.together import FORM, fused_seconds

RATE = 1000.0  # samples/s, while nothing at all was measured: any number does, since all trials have it
WIDER = 0.9  # rate at width w is that at width 1 times w ** WIDER, until wider lanes were measured
AT = "rate@"  # before a width: the samples/s of a lane so wide
FITTED = 3  # powers of two, width 1 among them, that must be known for a fit of the others
TUNING = frozenset(  # names of what changes what is learnt, not how fast
    ["lr", "learning_rate", "weight_decay", "momentum", "nesterov", "betas", "beta1", "beta2", "eps", "seed", "dropout"]
)
FORMLESS = TUNING | {"optimizer", "optim", "opt"}  # also names of what is chosen under one of them, as in "optimizer.momentum"

NOTHING = Given(())
Key = tuple[tuple[str, Value], ...]
Points = tuple[tuple[int, float], ...]  # widths, rising, and samples/s


def believe(state: State, given: Given = NOTHING) -> "Measured":
    """What the study's journal says about speed and memory; costs next to nothing until it is asked."""
    return Measured(state.figures, state.signature, state.known, given, largest(state))


def largest(state: State) -> GiB:
    """Memory of the largest slot there is."""
    return max((slot.memory for slot in state.slots.values()), default=inf)


class Believer:
    """`believe` that gives the same object, with what it has looked up, while nothing new was measured or submitted."""

    def __init__(self, given: Given = NOTHING) -> None:
        self.given = given
        self._last: Measured | None = None
        self._slots: Mapping[SlotId, Slot] | None = None

    def __call__(self, state: State) -> "Measured":
        last, joined = self._last, self._slots is not state.slots
        self._slots = state.slots
        changed = last is None or last.figures is not state.figures or last.signature is not state.signature
        if last is None or changed or (joined and last.room != largest(state)):
            self._last = last = believe(state, self.given)
        elif last.known is not state.known:
            self._last = last = last.of(state.known)
        return last


def measured(profile: Profile) -> Figures | None:
    """The means of what was measured (or is given of all trials), by name; {}: nothing yet; None: all of it was given."""
    return {**profile._mean, **profile.given({})} if isinstance(profile, Measured) else None


class Measured:
    """Figures by signature, for trials measured and not.

    A trial has the figures of the signature measured on its configuration; else of the nearest configuration measured,
    as far as speed can depend on it: keys by which configurations of one signature differ, and usual names of tuning
    parameters, do not count. Figures that are missing are the mean of those measured; of widths, the mean of the speed-ups.
    What is `given` of a trial holds, whatever was measured. A trial that ran out of memory beside others ("crowded") is never
    believed to need more than the largest slot has (`room`): alone it may fit.
    """

    def __init__(
        self,
        figures: Mapping[str, Figures],
        signature: Mapping[TrialId, str],
        known: Mapping[TrialId, Trial],
        given: Given = NOTHING,
        room: GiB = inf,
    ) -> None:
        self.figures = figures
        self.given = given
        self.room = room
        self.signature = signature
        self.known = known
        self._measured_on = known
        self._found: dict[TrialId, Figures] = {}
        self._curves: dict[TrialId, list[float]] = {}
        self._forms: dict[TrialId, Hashable] = {}

    def of(self, known: Mapping[TrialId, Trial]) -> "Measured":
        """The same measurements, for these trials (a simulation's, say)."""
        made = Measured(self.figures, self.signature, known, self.given, self.room)
        made._measured_on = self._measured_on
        kept = ("_mean", "_speedups", "_seen", "_idle_keys", "_idle_in_form", "_seen_forms", "_kinds")
        made.__dict__.update({k: self.__dict__[k] for k in kept if k in self.__dict__})
        return made

    def rates(self, gang: Gang) -> Mapping[TrialId, float]:
        if len(gang.lanes) > 1 and len(gang.slots) == 1:
            return dict.fromkeys(gang.trials, 1.0 / self._together(gang))
        return lockstep(gang, self._alone)

    def _together(self, gang: Gang) -> Seconds:
        """Seconds per sample of lanes that share a slot and its stream: each chunk is waited for once."""
        forms: dict[object, list[TrialId]] = {}
        for trial in gang.trials:
            forms.setdefault(self._form(trial), []).append(trial)
        total = max(self._figures(trial).get("data", 0.0) for trial in gang.trials)
        for trials in forms.values():
            alone = sum(1.0 / self._speed(trial) for trial in trials)
            total += fused_seconds(self._figures(trials[0]), len(trials), alone / len(trials)) if gang.fused else alone
        return total

    def _form(self, trial: TrialId) -> Hashable:
        """Equal for trials of one form, as far as it is known."""
        if trial not in self._forms:
            key = _key(self.known[trial].config if trial in self.known else {})
            name = self._seen.get(key)
            of = self._formed(key)
            self._forms[trial] = name[:FORM] if name else self._seen_forms.get(of, of)
        return self._forms[trial]

    def _formed(self, key: Key) -> Key:
        """What the form depends on."""
        return tuple((k, v) for k, v in key if k not in self._idle_in_form and FORMLESS.isdisjoint(k.split(".")))

    @cached_property
    def _seen_forms(self) -> dict[Key, str]:
        return {self._formed(key): name[:FORM] for key, name in self._seen.items()}

    def _alone(self, lane: Lane) -> float:
        width = len(lane.slots)
        return self._rate(lane.trial) if width == 1 else self.curve(lane.trial, width)[width - 1]

    def curve(self, trial: TrialId, upto: int) -> Sequence[float]:
        if upto == 1:
            return [self._rate(trial)]
        known = self._curves.get(trial, [])
        if len(known) < upto:
            waits = self._figures(trial).get("data", 0.0)
            widths = tuple(sorted(self._widths(trial).items()))
            known = [1.0 / (1.0 / _at(widths, width) + waits) for width in range(1, upto + 1)]
            self._curves[trial] = known
        return known[:upto]

    def _widths(self, trial: TrialId) -> dict[int, float]:
        """Samples/s by width, without waiting for data: as measured, and as the speed-ups of others tell."""
        own, alone = _wide(self._figures(trial)), self._speed(trial)
        return {1: alone} | (own or {width: alone * more for width, more in self._speedups.items()})

    def cost(self, trial: TrialId) -> Cost:
        found, said = self._figures(trial), self._said(trial)
        memory, build, evaluate, save = (found.get(k, self._mean.get(k, 0.0)) for k in ("memory", "build", "evaluate", "save"))
        if "memory" not in said:
            memory = max(memory, min(found.get("crowded", 0.0), self.room))
        first = max((f["first"] for f in self.figures.values() if "first" in f), default=0.0)
        return Cost(memory, build, evaluate, save, said.get("first", first), self._form(trial))

    def switch(self, before: Gang | None, after: Gang | None) -> Seconds:
        if after is None:
            return 0.0
        repack = max(self._figure(trial, "repack") for trial in after.trials) if _repacked(before, after) else 0.0
        if only_shrinks(before, after):
            return repack
        way = _rescaled(before, after)
        if way is not None and (way in self._figures(after.lanes[0].trial) or way in self._mean):
            return self._figure(after.lanes[0].trial, way)
        new = set(after.lanes) - set(before.lanes) if before is not None else after.lanes
        return repack + max(self._figure(lane.trial, "switch") for lane in new)

    def _figure(self, trial: TrialId, name: str) -> float:
        return self._figures(trial).get(name, self._mean.get(name, 0.0))

    def _rate(self, trial: TrialId) -> float:
        """Of the trial alone, with what it waits for data."""
        return 1.0 / (1.0 / self._speed(trial) + self._figures(trial).get("data", 0.0))

    def _speed(self, trial: TrialId) -> float:
        own = self._figures(trial)
        return own.get("rate") or self._narrowed(own) or self._mean.get("rate") or self._narrowed(self._mean) or RATE

    def _narrowed(self, figures: Figures) -> float | None:
        """Samples/s on one slot, of what was only measured wider."""
        width, rate = min(_wide(figures).items(), default=(1, 0.0))
        return rate / (self._speedups.get(width) or width**WIDER) if rate else None

    def _figures(self, trial: TrialId) -> Figures:
        if trial not in self._found:
            found = self._look_up(self.known[trial].config) if trial in self.known else {}
            said = self._said(trial)
            self._found[trial] = {**found, **said} if said else found
        return self._found[trial]

    def _said(self, trial: TrialId) -> Figures:
        return self.given(self.known[trial].config if trial in self.known else {})

    def _look_up(self, config: Mapping[str, Value]) -> Figures:
        name = self._seen.get(_key(config))
        if name is not None:
            return self.figures.get(name, {})
        kind = {k: v for k, v in config.items() if k not in self._idle_keys}
        near = [(_distance(kind, dict(other)), sorted(names)) for other, names in self._kinds.items()]
        least = min((far for far, _ in near), default=inf)
        return _mean_of([self.figures.get(n, {}) for far, names in near if far == least for n in names])

    @cached_property
    def _mean(self) -> Figures:
        return _mean_of(self.figures.values())

    @cached_property
    def _speedups(self) -> dict[int, float]:
        """By width, the mean rate over that of one slot, of the signatures measured so wide."""
        found: dict[int, list[float]] = {}
        for figures in self.figures.values():
            for width, rate in _wide(figures).items() if figures.get("rate") else ():
                found.setdefault(width, []).append(rate / figures["rate"])
        return {width: sum(each) / len(each) for width, each in found.items()}

    @cached_property
    def _seen(self) -> dict[Key, str]:
        """Signature by configuration, of those measured."""
        known = self._measured_on
        return {_key(known[trial].config): name for trial, name in self.signature.items() if trial in known}

    @cached_property
    def _idle_keys(self) -> frozenset[str]:
        """Keys that speed does not depend on."""
        return TUNING | self._differing(None)

    @cached_property
    def _idle_in_form(self) -> frozenset[str]:
        """Keys that the form does not depend on."""
        return self._differing(FORM)

    def _differing(self, letters: int | None) -> frozenset[str]:
        """Keys by which configurations differ whose signatures begin with the same letters."""
        by_name: dict[str, list[dict[str, Value]]] = {}
        for key, name in self._seen.items():
            by_name.setdefault(name[:letters], []).append(dict(key))
        pairs = [(configs[0], c) for configs in by_name.values() for c in configs[1:]]
        return frozenset(k for one, other in pairs for k in one.keys() | other.keys() if one.get(k) != other.get(k))

    @cached_property
    def _kinds(self) -> dict[Key, set[str]]:
        """Signatures by what counts of the configurations that have them."""
        kinds: dict[Key, set[str]] = {}
        for key, name in self._seen.items():
            kinds.setdefault(tuple((k, v) for k, v in key if k not in self._idle_keys), set()).add(name)
        return kinds


def _key(config: Mapping[str, Value]) -> Key:
    return tuple(sorted(config.items()))


def _distance(one: Mapping[str, Any], other: Mapping[str, Any]) -> float:
    """Sum over keys: the ratio of positive numbers in powers of two, 4 for anything else that differs."""
    far = 0.0
    for key in sorted(one.keys() | other.keys()):
        a, b = one.get(key), other.get(key)
        if a == b:
            continue
        numbers = all(isinstance(x, (int, float)) and 0 < x < inf for x in (a, b))
        far += min(4.0, abs(log(a / b, 2))) if numbers else 4.0  # type: ignore[operator]
    return far


def _mean_of(figures: Iterable[Figures]) -> Figures:
    """Means by name; of rates, that of the seconds per sample."""
    sums: dict[str, list[float]] = {}
    for each in figures:
        for name, value in each.items():
            sums.setdefault(name, []).append(1.0 / value if name.startswith("rate") else value)
    means = {name: sum(values) / len(values) for name, values in sums.items()}
    return {name: 1.0 / mean if name.startswith("rate") else mean for name, mean in means.items()}


def _wide(figures: Figures) -> dict[int, float]:
    """Samples/s by width, of the widths above 1."""
    return {int(name[len(AT) :]): rate for name, rate in figures.items() if name.startswith(AT) and rate > 0}


def _repacked(before: Gang | None, after: Gang) -> bool:
    """Whether other lanes than before train in one step."""
    fused = [set(gang.trials) for gang in (before, after) if gang is not None and gang.fused and len(gang.lanes) > 1]
    return bool(fused) and (before is None or set(before.trials) != set(after.trials))


def _rescaled(before: Gang | None, after: Gang) -> str | None:
    """Whether one trial's lane keeps some of its slots and gets more ("up") or fewer ("down"); else None."""
    if before is None or not len(before.lanes) == len(after.lanes) == 1:
        return None
    old, new = before.lanes[0], after.lanes[0]
    if old.trial != new.trial or len(old.slots) == len(new.slots) or set(old.slots).isdisjoint(new.slots):
        return None
    return "up" if len(new.slots) > len(old.slots) else "down"


@lru_cache(maxsize=4096)
def _fitted(known: Points) -> Speed:
    return fit_speed(dict(known))


@lru_cache(maxsize=4096)
def _at(known: Points, width: int) -> float:
    """Samples/s at this width from those at some, width 1 among them, rising.

    As measured; else on the curve of Capes' eq. 5 through them, where enough of them are powers of two; else on the power law
    between the two nearest: beyond the last one that of the last two, but never steeper than `WIDER`.
    """
    widths = [w for w, _ in known]
    at = bisect_left(widths, width)
    if at < len(known) and widths[at] == width:
        return known[at][1]
    if sum(map(is_power_of_two, widths)) >= FITTED:
        return _fitted(known).rate(width)
    beyond = at == len(known)
    (below, rate), (above, more) = known[at - 1], known[at] if not beyond else known[at - 2]
    power = log(more / rate) / log(above / below) if above != below else WIDER
    return float(rate * (width / below) ** (min(WIDER, power) if beyond else power))
