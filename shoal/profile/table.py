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
from shoal.core.profile import Cost
from shoal.core.state import State
from shoal.core.trial import Seconds, Trial, TrialId, Value
from shoal.profile.pace import lockstep, new_lanes, only_shrinks, until_all_begin
from shoal.profile.pack import Packing, Share, together

MOST = 10**6  # slots: rates are given for fewer


@dataclass(frozen=True, slots=True)
class Row:
    """Figures of all trials whose configuration has these values (no values: of every trial).

    Args:
        rates: samples/s at widths 1, 2, …; wider goes no faster than the last.
        config: the values.
        memory: GiB that a trial takes of its slot.
        build: seconds to build a model.
        evaluate: seconds of an evaluation.
        save: seconds to write a state.
        switch: seconds to load a state at another slot.
        first: seconds that building takes longer if the slot has built no other model before.
        up: seconds that a trial stands still when it gets more slots. None: `switch`.
        down: the same when it gets fewer.
        packing: what trials that share a slot have in common. None: they take turns.

    Raises:
        ValueError: there is no rate, one is not positive and finite, or a cost is below 0.
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
        if not self.rates or not all(isfinite(rate) and rate > 0 for rate in self.rates):
            raise ValueError(
                "a profile's rates are samples/s at widths 1, 2, …, each > 0 and finite; "
                f"got {self.rates!r}"
            )
        for name in ("memory", "build", "evaluate", "save", "switch", "first", "up", "down"):
            value = getattr(self, name)
            if value is not None and not (isfinite(value) and value >= 0):
                raise ValueError(f"a profile's {name} must be >= 0 and finite; got {value!r}")
        if self.packing is None:
            return
        alone = self.packing.rate()
        if not isclose(self.rates[0], alone, rel_tol=1e-6):
            raise ValueError(
                f"a profile's first rate is that of one alone: at batch {self.packing.usual} a "
                f"step of its packing makes {alone:g} samples/s; got {self.rates[0]:g}"
            )

    @property
    def cost(self) -> Cost:
        return Cost(self.memory, self.build, self.evaluate, self.save, self.first)


@dataclass(frozen=True)
class Table:
    """Figures by configuration: a trial has those of the first row that its configuration matches.

    A trial that is not known has the figures of the first row without a configuration.

    Args:
        rows: the rows.
        speeds: how fast each slot is against the others, 1 if it is not listed; a trial on several
            slots keeps the pace of the slowest.
        known: the trials that it is asked about; `of` and `believe` make tables for other ones.

    Raises:
        ValueError: there are no rows, or a speed is not positive.
    """

    rows: Sequence[Row] = (Row(),)
    speeds: Mapping[SlotId, float] = field(default_factory=dict)
    known: Mapping[TrialId, Trial] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.rows:
            raise ValueError(
                "a profile needs a row of figures; got none: Row(rates=(samples/s,)) is enough"
            )
        for slot, speed in self.speeds.items():
            if not speed > 0:
                raise ValueError(f"slot {slot}: a speed must be > 0; got {speed!r}")

    @classmethod
    def load(cls, path: str | Path) -> "Table":
        """Read a TOML file: [[rows]] with the fields of `Row` but `packing`, and [speeds] by slot.

        Instead of `rates` a row may have `points`, a table of samples/s by width: see `through`.

        Raises:
            ValueError: not TOML, or a field that a row lacks; OSError as `open` does.
        """
        try:
            data = tomllib.loads(Path(path).read_text())
            unknown = ", ".join(data.keys() - {"rows", "speeds"})
            if unknown:
                raise ValueError(f"it may hold [[rows]] and [speeds]; got {unknown}")
            rows = tuple(map(_row, data.get("rows", [{}])))
            return cls(rows, data.get("speeds", {}))
        except (ValueError, TypeError, RecursionError, OverflowError) as error:
            raise ValueError(f"profile {path}: {str(error)[:500]}") from error

    def of(self, known: Mapping[TrialId, Trial]) -> "Table":
        """A table of the same figures for these trials."""
        if known is self.known:
            return self
        table = Table(self.rows, self.speeds, known)
        table.__dict__["_index"] = self._index
        return table

    def believe(self, state: State) -> "Table":
        """The table that deciders see: this one, whatever was measured.

        It is the same object while no trial is submitted.
        """
        last: Table | None = self.__dict__.get("_last")
        if last is None or last.known is not state.known:
            last = self.of(state.known)
            self.__dict__["_last"] = last
        return last

    @cached_property
    def _index(self) -> dict[tuple[str, ...], dict[tuple[Value, ...], int]]:
        """Row numbers by the keys of their configurations, and by the values there."""
        index: dict[tuple[str, ...], dict[tuple[Value, ...], int]] = {}
        for number, row in enumerate(self.rows):
            keys = tuple(sorted(row.config))
            values = tuple(row.config[key] for key in keys)
            index.setdefault(keys, {}).setdefault(values, number)
        return index

    @cached_property
    def _row_of(self) -> dict[TrialId, Row]:
        return {}

    @cached_property
    def _shares(self) -> dict[TrialId, Share]:
        return {}

    @cached_property
    def _costs(self) -> dict[TrialId, Cost]:
        return {}

    def row(self, trial: TrialId) -> Row:
        """The figures of this trial.

        Raises:
            ValueError: no row matches it.
        """
        row = self._row_of.get(trial)
        if row is not None:
            return row
        config = self._config(trial)
        numbers: list[int] = []
        for keys, table in self._index.items():
            if config.keys() >= set(keys):
                number = table.get(tuple(config[key] for key in keys))
                if number is not None:
                    numbers.append(number)
        if not numbers:
            raise ValueError(
                f"the profile has no row for trial {trial}, {dict(config)!r}: "
                "add one for the others"
            )
        row = self.rows[min(numbers)]
        if trial in self.known:
            self._row_of[trial] = row
        return row

    def _config(self, trial: TrialId) -> Mapping[str, Value]:
        if trial in self.known:
            return self.known[trial].config
        return {}

    def _alone(self, lane: Lane) -> float:
        """Samples/s of the lane on its slots, if no other lane shares them."""
        rates = self._rates(lane.trial)
        rate = rates[min(len(lane.slots), len(rates)) - 1]
        if self.speeds:
            rate *= min(self.speeds.get(slot, 1.0) for slot in lane.slots)
        return rate

    def _rates(self, trial: TrialId) -> tuple[float, ...]:
        """Samples/s at widths 1, 2, …; the row's are at the batch size that its packing names."""
        row = self.row(trial)
        if row.packing is None:
            return row.rates
        more = row.packing.rate(self._batch(trial, row.packing)) / row.packing.rate()
        return tuple(rate * more for rate in row.rates)

    def _batch(self, trial: TrialId, packing: Packing) -> int:
        return packing.size(self._config(trial))

    def rates(self, gang: Gang) -> Mapping[TrialId, float]:
        """Samples/s of each lane.

        Lanes step together if all have packing figures; otherwise those on one slot take turns.
        """
        known: dict[TrialId, Share] = {}
        shares = self._shares
        for trial in gang.trials:
            share = shares.get(trial) or self._share(trial)
            if share is not None:
                known[trial] = share
        if 1 < len(gang.lanes) == len(known):
            return together(gang, known, self._alone, self.speeds)
        return lockstep(gang, self._alone)

    def _share(self, trial: TrialId) -> Share | None:
        """The trial's share in a pack's step; None: it takes turns."""
        packing = self.row(trial).packing
        if packing is None:
            return None
        share = Share.of(packing, self._batch(trial, packing))
        if trial in self.known:
            self._shares[trial] = share
        return share

    def curve(self, trial: TrialId, upto: int) -> Sequence[float]:
        rates = self._rates(trial)
        if upto == len(rates):
            return rates
        return rates[:upto] + (rates[-1],) * (upto - len(rates))

    def cost(self, trial: TrialId) -> Cost:
        cost = self._costs.get(trial)
        if cost is None:
            row = self.row(trial)
            cost = row.cost
            if row.packing is not None:
                batch = row.packing.per_sample * self._batch(trial, row.packing)
                cost = replace(cost, memory=row.memory + batch)
            if trial in self.known:
                self._costs[trial] = cost
        return cost

    def switch(self, before: Gang | None, after: Gang | None) -> Seconds:
        if after is None:
            return 0.0
        if before is not None and len(before.lanes) == len(after.lanes) == 1:
            resize = self._resize(before.lanes[0], after.lanes[0])
            if resize is not None:
                return resize
        elif before is not None and before.lanes != after.lanes:
            packings = [self.row(trial).packing for trial in after.trials]
            repacks = [packing.cost.repack for packing in packings if packing]
            if len(repacks) == len(after.trials):
                return max(repacks)
        if only_shrinks(before, after):
            return 0.0
        fresh = new_lanes(before, after)
        return until_all_begin(fresh, lambda trial: self.row(trial).switch)

    def _resize(self, old: Lane, new: Lane) -> Seconds | None:
        """Seconds to give the trial more or fewer slots; None if that is not the change."""
        if old.trial != new.trial or len(old.slots) == len(new.slots):
            return None
        if len(new.slots) > len(old.slots):
            return self.row(new.trial).up
        return self.row(new.trial).down


def _row(data: Mapping[str, Any]) -> Row:
    """The row that these fields of a TOML file describe."""
    known = [column.name for column in fields(Row) if column.name != "packing"] + ["points"]
    wrong = sorted(data.keys() - set(known))
    if wrong:
        raise ValueError(f"a row has no field {', '.join(wrong)}; it has {', '.join(known)}")
    values = dict(data)
    config = values.pop("config", {})
    points = values.pop("points", None)
    if points is not None:
        values["rates"] = through(points_of(points))
    values["config"] = {key: _hashable(value) for key, value in config.items()}
    return Row(**values)


def _hashable(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(value)
    return value


def points_of(table: Any) -> dict[int, float]:
    """Samples/s by width, rising, as TOML writes them.

    Raises:
        ValueError: this is not a table of rates by width.
    """
    if not isinstance(table, Mapping) or not table or not all(map(is_width, table)):
        raise ValueError(
            f"points are samples/s at widths, as {{ 1 = 500, 2 = 950 }}; got {table!r}"
        )
    return {int(width): float(table[width]) for width in sorted(table, key=int)}


def is_width(text: str) -> bool:
    """Whether this is a whole number of slots, from 1 to the most that a table has rates for."""
    return text.isdecimal() and len(text) < len(str(MOST)) and int(text) >= 1


def through(points: Mapping[int, float]) -> tuple[float, ...]:
    """Samples/s at widths 1, 2, … from the rates at some widths.

    Between two widths the rate is on a straight line, from 0 at width 0.
    """
    known = [(0, 0.0), *sorted(points.items())]
    rates: list[float] = []
    for (low, below), (high, above) in pairwise(known):
        for width in range(low + 1, high + 1):
            rates.append(below + (above - below) * (width - low) / (high - low))
    return tuple(rates)
