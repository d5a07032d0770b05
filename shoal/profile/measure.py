"""The belief made of what was measured: the fold of `Measured` entries, looked up by configuration."""

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from math import inf, log
from typing import Any

from shoal.core.plan import Gang, Lane
from shoal.core.ports import Cost, Profile
from shoal.core.state import Figures, State
from shoal.core.trial import Seconds, Trial, TrialId, Value
from shoal.profile.pace import lockstep, only_shrinks
from shoal.profile.together import fused_seconds

RATE = 1000.0  # samples/s, while nothing at all was measured: any number does, since all trials have it
WIDER = 0.9  # rate at width w is that at width 1 times w ** WIDER, until a profile of widths is measured
TUNING = frozenset(  # names of what changes what is learnt, not how fast
    ["lr", "learning_rate", "weight_decay", "momentum", "nesterov", "betas", "beta1", "beta2", "eps", "seed", "dropout"]
)

Key = tuple[tuple[str, Value], ...]


def believe(state: State) -> "Measured":
    """What the study's journal says about speed and memory; costs next to nothing until it is asked."""
    return Measured(state.figures, state.signature, state.known)


class Believer:
    """`believe` that gives the same object, with what it has looked up, while nothing new was measured or submitted."""

    def __init__(self) -> None:
        self._last: Measured | None = None

    def __call__(self, state: State) -> "Measured":
        last = self._last
        if last is None or last.figures is not state.figures or last.signature is not state.signature:
            self._last = last = Measured(state.figures, state.signature, state.known)
        elif last.known is not state.known:
            self._last = last = last.of(state.known)
        return last


def measured(profile: Profile) -> Figures | None:
    """The means of what was measured, by name; {}: nothing yet; None: the profile was given."""
    return profile._mean if isinstance(profile, Measured) else None


class Measured:
    """Figures by signature, for trials measured and not.

    A trial has the figures of the signature measured on its configuration; else of the nearest configuration measured,
    as far as speed can depend on it: keys by which configurations of one signature differ, and usual names of tuning
    parameters, do not count. Figures that are missing are the mean of those measured.
    """

    def __init__(self, figures: Mapping[str, Figures], signature: Mapping[TrialId, str], known: Mapping[TrialId, Trial]) -> None:
        self.figures = figures
        self.signature = signature
        self.known = known
        self._measured_on = known
        self._found: dict[TrialId, Figures] = {}

    def of(self, known: Mapping[TrialId, Trial]) -> "Measured":
        """The same measurements, for these trials (a simulation's, say)."""
        made = Measured(self.figures, self.signature, known)
        made._measured_on = self._measured_on
        made.__dict__.update({k: self.__dict__[k] for k in ("_mean", "_seen", "_idle_keys", "_kinds") if k in self.__dict__})
        return made

    def rates(self, gang: Gang) -> Mapping[TrialId, float]:
        if len(gang.lanes) > 1 and len(gang.slots) == 1:
            return dict.fromkeys(gang.trials, 1.0 / self._together(gang))
        return lockstep(gang, self._alone)

    def _together(self, gang: Gang) -> Seconds:
        """Seconds per sample of lanes that share a slot and its stream: each chunk is waited for once."""
        kinds: dict[object, list[TrialId]] = {}
        for trial in gang.trials:
            kinds.setdefault(self._kind(trial), []).append(trial)
        total = max(self._figures(trial).get("data", 0.0) for trial in gang.trials)
        for trials in kinds.values():
            alone = 1.0 / self._speed(trials[0])
            total += fused_seconds(self._figures(trials[0]), len(trials), alone) if gang.fused else len(trials) * alone
        return total

    def _kind(self, trial: TrialId) -> object:
        """Equal for trials of one signature, as far as it is known."""
        config = self.known[trial].config if trial in self.known else {}
        name = self._seen.get(_key(config))
        return name or tuple((k, v) for k, v in _key(config) if k not in self._idle_keys)

    def _alone(self, lane: Lane) -> float:
        rate = self._rate(lane.trial)
        return rate if len(lane.slots) == 1 else rate * float(len(lane.slots) ** WIDER)

    def curve(self, trial: TrialId, upto: int) -> Sequence[float]:
        rate = self._rate(trial)
        return [rate * float(w**WIDER) for w in range(1, upto + 1)]

    def cost(self, trial: TrialId) -> Cost:
        found = self._figures(trial)
        memory, build, evaluate, save = (found.get(k, self._mean.get(k, 0.0)) for k in ("memory", "build", "evaluate", "save"))
        first = max((f["first"] for f in self.figures.values() if "first" in f), default=0.0)
        return Cost(memory, build, evaluate, save, first)

    def switch(self, before: Gang | None, after: Gang | None) -> Seconds:
        if after is None or only_shrinks(before, after):
            return 0.0
        return max(self._figures(t).get("switch", self._mean.get("switch", 0.0)) for t in after.trials)

    def _rate(self, trial: TrialId) -> float:
        """Of the trial alone, with what it waits for data."""
        return 1.0 / (1.0 / self._speed(trial) + self._figures(trial).get("data", 0.0))

    def _speed(self, trial: TrialId) -> float:
        return self._figures(trial).get("rate") or self._mean.get("rate") or RATE

    def _figures(self, trial: TrialId) -> Figures:
        if trial not in self._found:
            self._found[trial] = self._look_up(self.known[trial].config) if trial in self.known else {}
        return self._found[trial]

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
    def _seen(self) -> dict[Key, str]:
        """Signature by configuration, of those measured."""
        known = self._measured_on
        return {_key(known[trial].config): name for trial, name in self.signature.items() if trial in known}

    @cached_property
    def _idle_keys(self) -> frozenset[str]:
        """Keys that speed does not depend on."""
        by_name: dict[str, list[dict[str, Value]]] = {}
        for key, name in self._seen.items():
            by_name.setdefault(name, []).append(dict(key))
        differ = {k for configs in by_name.values() for c in configs[1:] for k in c if c[k] != configs[0].get(k)}
        return TUNING | differ

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
        numbers = isinstance(a, (int, float)) and isinstance(b, (int, float)) and a > 0 and b > 0
        far += min(4.0, abs(log(a / b, 2))) if numbers else 4.0  # type: ignore[operator]
    return far


def _mean_of(figures: Iterable[Figures]) -> Figures:
    """Means by name; of rates, that of the seconds per sample."""
    sums: dict[str, list[float]] = {}
    for each in figures:
        for name, value in each.items():
            sums.setdefault(name, []).append(1.0 / value if name == "rate" else value)
    means = {name: sum(values) / len(values) for name, values in sums.items()}
    if "rate" in means:
        means["rate"] = 1.0 / means["rate"]
    return means
