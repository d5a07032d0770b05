"""A given profile: numbers per configuration, from code or from a TOML file."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from itertools import pairwise
from math import isclose, isfinite
from pathlib import Path
from typing import Any

from shoal.core.cluster import GiB, SlotId
from shoal.core.plan import Gang, Lane
from shoal.core.ports import Cost
from shoal.core.state import State
from shoal.core.trial import Seconds, Trial, TrialId, Value
from shoal.profile.pace import lockstep, only_shrinks
from shoal.profile.packing import Packing, together


@dataclass(frozen=True, slots=True)
class Row:
    """Figures of all trials whose configuration has these values (none: of every trial).

    `rates`: samples/s at widths 1, 2, …; wider goes no faster than the last. `switch`: seconds to load a
    state at another slot. `up`, `down`: seconds that a trial stands still when it gets more slots, or fewer
    (`switch`, if not given). `packing`: what trials that share a slot have in common; none: they take turns. The rest as in
    `core.ports.Cost`.

    Raises:
        ValueError: no rate, one that is not positive and finite, or a cost below 0.
    """

    rates: tuple[float, ...] = (1000.0,)
    config: Mapping[str, Value] = field(default_factory=dict)
    memory: GiB = 0.0
    build: Seconds = 0.0
    evaluate: Seconds = 0.0
    save: Seconds = 0.0
    switch: Seconds = 0.0
    first: Seconds = 0.0
    up: Seconds | None = None
    down: Seconds | None = None
    packing: Packing | None = None

    def __post_init__(self) -> None:
        if isinstance(self.rates, (int, float)):
            object.__setattr__(self, "rates", (float(self.rates),))
        object.__setattr__(self, "rates", tuple(map(float, self.rates)))
        if not self.rates or not all(isfinite(r) and r > 0 for r in self.rates):
            raise ValueError(f"a profile's rates are samples/s at widths 1, 2, …, each > 0 and finite; got {self.rates!r}")
        for name in ("memory", "build", "evaluate", "save", "switch", "first", "up", "down"):
            value = getattr(self, name)
            if value is not None and not (isfinite(value) and value >= 0):
                raise ValueError(f"a profile's {name} must be >= 0 and finite; got {value!r}")
        if self.packing is not None and not isclose(self.rates[0], self.packing.rate(), rel_tol=1e-6):
            rule = f"at batch {self.packing.usual} a step of its packing makes {self.packing.rate():g} samples/s"
            raise ValueError(f"a profile's first rate is that of one alone: {rule}; got {self.rates[0]:g}")

    @property
    def cost(self) -> Cost:
        return Cost(self.memory, self.build, self.evaluate, self.save, self.first)


@dataclass(frozen=True)
class Table:
    """Figures by configuration: a trial has those of the first row that its configuration matches.

    `speeds`: how fast each slot is against the others (1 if not listed); a lane keeps the pace of its slowest slot.
    `known`: the trials it is asked about; `of` and `believe` give it new ones. A trial not in it has the figures of
    the first row without a configuration.

    Raises:
        ValueError: no rows, or a speed that is not positive.
    """

    rows: Sequence[Row] = (Row(),)
    speeds: Mapping[SlotId, float] = field(default_factory=dict)
    known: Mapping[TrialId, Trial] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.rows:
            raise ValueError("a profile needs a row of figures; got none: Row(rates=(samples/s,)) is enough")
        for slot, speed in self.speeds.items():
            if not speed > 0:
                raise ValueError(f"slot {slot}: a speed must be > 0; got {speed!r}")

    @classmethod
    def load(cls, path: str | Path) -> "Table":
        """Read a TOML file: [[rows]] with the fields of `Row` but `packing`, and [speeds] with slots' names.

        Instead of `rates` a row may have `points`, a table of samples/s by width: see `through`.

        Raises:
            ValueError: not TOML, or a field that a row lacks; OSError as `open` does.
        """
        try:
            data = tomllib.loads(Path(path).read_text())
            if data.keys() - {"rows", "speeds"}:
                raise ValueError(f"it may hold [[rows]] and [speeds]; got {', '.join(data.keys() - {'rows', 'speeds'})}")
            return cls(tuple(_row(row) for row in data.get("rows", [{}])), data.get("speeds", {}))
        except ValueError as error:
            raise ValueError(f"profile {path}: {error}") from error

    def of(self, known: Mapping[TrialId, Trial]) -> "Table":
        """The same figures, for these trials."""
        if known is self.known:
            return self
        made = Table(self.rows, self.speeds, known)
        made.__dict__["_index"] = self._index
        return made

    def believe(self, state: State) -> "Table":
        """What deciders see: this table, whatever was measured; the same object while no trial is submitted."""
        last: Table | None = self.__dict__.get("_last")
        if last is None or last.known is not state.known:
            last = self.__dict__["_last"] = self.of(state.known)
        return last

    @cached_property
    def _index(self) -> dict[tuple[str, ...], dict[tuple[Value, ...], int]]:
        """Row numbers by the keys of their configurations, and by the values there."""
        index: dict[tuple[str, ...], dict[tuple[Value, ...], int]] = {}
        for number, row in enumerate(self.rows):
            keys = tuple(sorted(row.config))
            index.setdefault(keys, {}).setdefault(tuple(row.config[k] for k in keys), number)
        return index

    @cached_property
    def _found(self) -> dict[TrialId, Row]:
        return {}

    @cached_property
    def _costs(self) -> dict[TrialId, Cost]:
        return {}

    def row(self, trial: TrialId) -> Row:
        """The figures of this trial.

        Raises:
            ValueError: no row matches it.
        """
        found = self._found.get(trial)
        if found is not None:
            return found
        config = self.known[trial].config if trial in self.known else {}
        numbers = [table.get(tuple(config[k] for k in keys)) for keys, table in self._index.items() if config.keys() >= set(keys)]
        best = min((n for n in numbers if n is not None), default=None)
        if best is None:
            raise ValueError(f"the profile has no row for trial {trial}, {dict(config)!r}: add one for the others")
        if trial in self.known:
            self._found[trial] = self.rows[best]
        return self.rows[best]

    def _alone(self, lane: Lane) -> float:
        rates = self._rates(lane.trial)
        rate = rates[min(len(lane.slots), len(rates)) - 1]
        return rate * min(self.speeds.get(slot, 1.0) for slot in lane.slots) if self.speeds else rate

    def _rates(self, trial: TrialId) -> tuple[float, ...]:
        """At widths 1, 2, …; those of the row are at the batch size that its packing names."""
        row = self.row(trial)
        if row.packing is None:
            return row.rates
        more = row.packing.rate(self._batch(trial, row.packing)) / row.packing.rate()
        return tuple(rate * more for rate in row.rates)

    def _batch(self, trial: TrialId, packing: Packing) -> int:
        return packing.size(self.known[trial].config if trial in self.known else {})

    def rates(self, gang: Gang) -> Mapping[TrialId, float]:
        """Lanes step together where all have packing figures; otherwise those on one slot take turns."""
        if len(gang.lanes) > 1:
            packings = {trial: self.row(trial).packing for trial in gang.trials}
            known = {t: (packing, self._batch(t, packing)) for t, packing in packings.items() if packing is not None}
            if len(known) == len(packings):
                return together(gang, known, self._alone, self.speeds)
        return lockstep(gang, self._alone)

    def curve(self, trial: TrialId, upto: int) -> Sequence[float]:
        rates = self._rates(trial)
        if upto == len(rates):
            return rates
        return rates[:upto] + (rates[-1],) * (upto - len(rates))

    def cost(self, trial: TrialId) -> Cost:
        found = self._costs.get(trial)
        if found is None:
            row = self.row(trial)
            found = row.cost
            if row.packing is not None:
                found = replace(found, memory=row.memory + row.packing.per_sample * self._batch(trial, row.packing))
            if trial in self.known:
                self._costs[trial] = found
        return found

    def switch(self, before: Gang | None, after: Gang | None) -> Seconds:
        if after is None:
            return 0.0
        if before is not None and len(before.lanes) == len(after.lanes) == 1:
            old, new = before.lanes[0], after.lanes[0]
            row = self.row(new.trial)
            resize = row.up if len(new.slots) > len(old.slots) else row.down if len(new.slots) < len(old.slots) else None
            if old.trial == new.trial and resize is not None:
                return resize
        elif before is not None and before.lanes != after.lanes:
            packings = [row.packing for row in map(self.row, after.trials)]
            if all(packings):
                return max(packing.cost.repack for packing in packings if packing is not None)
        return 0.0 if only_shrinks(before, after) else max(self.row(trial).switch for trial in after.trials)


def _row(data: Mapping[str, Any]) -> Row:
    known = [f.name for f in fields(Row) if f.name != "packing"] + ["points"]
    wrong = sorted(data.keys() - set(known))
    if wrong:
        raise ValueError(f"a row has no field {', '.join(wrong)}; it has {', '.join(known)}")
    config = {k: tuple(v) if isinstance(v, list) else v for k, v in data.get("config", {}).items()}
    rates = {"rates": through(points_of(data["points"]))} if "points" in data else {}
    return Row(**{k: v for k, v in data.items() if k != "points"} | rates | {"config": config})


def points_of(given: Any) -> dict[int, float]:
    """Samples/s by width, rising, as TOML writes them.

    Raises:
        ValueError: they are none.
    """
    if not isinstance(given, Mapping) or not given or not all(k.isdecimal() and int(k) >= 1 for k in given):
        raise ValueError(f"points are samples/s at widths, as {{ 1 = 500, 2 = 950 }}; got {given!r}")
    return {int(width): float(given[width]) for width in sorted(given, key=int)}


def through(points: Mapping[int, float]) -> tuple[float, ...]:
    """Samples/s at widths 1, 2, … from those at some: on straight lines between them, from 0 at width 0."""
    known = [(0, 0.0), *sorted(points.items())]
    rates: list[float] = []
    for (w0, r0), (w1, r1) in pairwise(known):
        rates += [r0 + (r1 - r0) * (w - w0) / (w1 - w0) for w in range(w0 + 1, w1 + 1)]
    return tuple(rates)
