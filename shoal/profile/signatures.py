"""Which signature each measured configuration has, and which of its keys speed can depend on."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from math import inf, log
from typing import Any, Self

from shoal.core.trial import Trial, TrialId, Value
from shoal.profile.pace import FORM

TUNING = frozenset(  # names of what changes what is learnt, not how fast
    [
        "lr",
        "learning_rate",
        "weight_decay",
        "momentum",
        "nesterov",
        "betas",
        "beta1",
        "beta2",
        "eps",
        "seed",
        "dropout",
    ]
)
FORMLESS = TUNING | {
    "optimizer",
    "optim",
    "opt",
}  # also names of what is chosen under one of them, as in "optimizer.momentum"
Key = tuple[tuple[str, Value], ...]  # a configuration, or a part of one, in the order of its names


def key_of(config: Mapping[str, Value]) -> Key:
    """The configuration as something to look up by."""
    return tuple(sorted(config.items()))


@dataclass(slots=True)
class _Nearby:
    """The kinds nearest to one kind, of the first so many that were `compared`."""

    least: float = inf
    compared: int = 0
    kinds: list[Key] = field(default_factory=list)

    def compare(self, kind: Key, other: Key) -> None:
        """Count `other` among the nearest to `kind`, if none so far is nearer."""
        far = _distance(dict(kind), dict(other))
        if far < self.least:
            self.least = far
            self.kinds = []
        if far == self.least:
            self.kinds.append(other)
        self.compared += 1


class Signatures:
    """The signatures of all configurations measured so far; it learns, and is never made anew.

    `seen`: signature by configuration. `idle`: keys that speed does not depend on: usual names of
    tuning parameters, and keys by which configurations of one signature differ. `kinds`:
    signatures by what is left of the configurations that have them. `forms`: the beginnings of
    signatures, which tell what may be fused, by what the form depends on. `lessons`: how often
    something was learnt that nobody would have guessed: it tells of other configurations, too.
    """

    def __init__(self) -> None:
        self.lessons = 0
        self.seen: dict[Key, str] = {}
        self.idle = set(TUNING)
        self.kinds: dict[Key, set[str]] = {}
        self.forms: dict[Key, str] = {}
        self._idle_in_form: set[str] = set()
        self._first: dict[str, Key] = {}  # of each signature, and of each beginning of one
        self._keys: dict[TrialId, tuple[Mapping[str, Value], Key]] = {}
        self._kind_of: dict[Key, Key] = {}
        self._nearest: dict[Key, _Nearby] = {}
        self._formed_of: dict[Key, Key] = {}

    @classmethod
    def of(cls, signature: Mapping[TrialId, str], known: Mapping[TrialId, Trial]) -> Self:
        """The signatures of these trials: of equal configurations that of the last."""
        last = {key_of(known[t].config): name for t, name in signature.items() if t in known}
        signatures = cls()
        for key, name in last.items():
            signatures._add(key, name)
        return signatures

    def learn(
        self,
        trials: Iterable[TrialId],
        signature: Mapping[TrialId, str],
        known: Mapping[TrialId, Trial],
    ) -> bool:
        """Take in what these trials were measured as.

        Returns False if a configuration has another signature than before: start again with `of`.
        """
        for trial in trials:
            if trial not in signature or trial not in known:
                continue
            key = self.key(trial, known)
            before = self.seen.get(key)
            if before is None:
                self._add(key, signature[trial])
            elif before != signature[trial]:
                return False
        return True

    def key(self, trial: TrialId, known: Mapping[TrialId, Trial]) -> Key:
        """The trial's configuration; () of one that is not known."""
        if trial not in known:
            return ()
        config = known[trial].config
        cached = self._keys.get(trial)
        if cached is None or cached[0] is not config:  # another study's trial may have its name
            cached = self._keys[trial] = (config, key_of(config))
        return cached[1]

    def name(self, trial: TrialId, known: Mapping[TrialId, Trial]) -> str:
        """The signature of the trial's configuration, or of one that speed cannot tell from it.

        The trial's own name if there is none.
        """
        key = self.key(trial, known)
        if key in self.seen:
            return self.seen[key]
        return min(self.kinds.get(self.kind(key), ()), default=str(trial))

    def kind(self, key: Key) -> Key:
        """The part of the configuration that speed can depend on."""
        kind = self._kind_of.get(key)
        if kind is None:
            kind = tuple((name, value) for name, value in key if name not in self.idle)
            self._kind_of[key] = kind
        return kind

    def nearest(self, kind: Key) -> list[str]:
        """The signatures of the configurations nearest to this kind.

        Kinds that were compared before are remembered: only new ones are looked at.
        """
        near = self._nearest.setdefault(kind, _Nearby())
        for other in islice(self.kinds, near.compared, None):
            near.compare(kind, other)
        return [name for other in near.kinds for name in sorted(self.kinds[other])]

    def form(self, key: Key) -> Key | str:
        """The configuration's form, as far as it is known: equal for those that may be fused."""
        name = self.seen.get(key)
        if name is not None:
            return name[:FORM]
        formed = self._formed(key)
        return self.forms.get(formed, formed)

    def _formed(self, key: Key) -> Key:
        """The part of the configuration that the form can depend on."""
        formed = self._formed_of.get(key)
        if formed is None:
            formed = tuple(
                (name, value)
                for name, value in key
                if name not in self._idle_in_form and FORMLESS.isdisjoint(name.split("."))
            )
            self._formed_of[key] = formed
        return formed

    def _add(self, key: Key, name: str) -> None:
        guessed = self.nearest(self.kind(key)) == [name] and self.form(key) == name[:FORM]
        self.seen[key] = name
        fresh = self._differing(key, name) - self.idle
        fresh_in_form = self._differing(key, name[:FORM]) - self._idle_in_form
        if fresh or fresh_in_form or not guessed:
            self.lessons += 1
        if fresh:
            self.idle |= fresh
            self._kind_of.clear()
            self.kinds.clear()
            self._nearest.clear()
        if fresh_in_form:
            self._idle_in_form |= fresh_in_form
            self._formed_of.clear()
            self.forms.clear()
        for config, signature in self.seen.items() if fresh else [(key, name)]:
            self.kinds.setdefault(self.kind(config), set()).add(signature)
        for config, signature in self.seen.items() if fresh_in_form else [(key, name)]:
            self.forms[self._formed(config)] = signature[:FORM]

    def _differing(self, key: Key, name: str) -> set[str]:
        """Keys by which the configuration differs from the first one with this name.

        The name is a signature, or the beginning of one.
        """
        first = self._first.setdefault(name, key)
        if first is key:
            return set()
        one, other = dict(first), dict(key)
        return {k for k in one.keys() | other.keys() if one.get(k) != other.get(k)}


def _distance(one: Mapping[str, Any], other: Mapping[str, Any]) -> float:
    """Sum over keys of how far the values differ.

    Positive numbers: the ratio in powers of two, 4 at most. Anything else that differs counts 4.
    """
    far = 0.0
    for key in sorted(one.keys() | other.keys()):
        far += _apart(one.get(key), other.get(key))
    return far


def _apart(one: Any, other: Any) -> float:
    """The distance between two values of one key."""
    if one == other:
        return 0.0
    for value in (one, other):
        if not isinstance(value, (int, float)) or not 0 < value < inf:
            return 4.0
    return min(4.0, abs(log(one / other, 2)))
