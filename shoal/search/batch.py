"""What grid and random search share: configurations submitted in order, so many at a time."""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from math import inf
from typing import Any

import numpy as np

from shoal.core.cluster import epoch_size, shards_of
from shoal.core.plan import Proposal
from shoal.core.state import View
from shoal.core.trial import Samples, Trial, TrialId, is_number, is_whole, shown
from shoal.search.space import Config

Widths = tuple[int, int]  # fewest and most slots
# Trials that are submitted ahead of those under way: at least so many in all, and for each slot.
AHEAD = 1024
AHEAD_PER_SLOT = 16


def room_ahead(view: View) -> int:
    """How many trials may be submitted now by a searcher that could submit all at once.

    They come in blocks, so that a search of millions begins at once and takes no room: a new block
    comes when half of the one before has ended. Up to `AHEAD` trials come at once.
    """
    most = max(AHEAD, AHEAD_PER_SLOT * len(view.slots))
    under_way = len(view.trials)
    return most - under_way if under_way <= most // 2 else 0


def trial_id(index: int, count: int) -> TrialId:
    """t000, t001, …: as many digits as the last one needs, at least 3, so that names sort."""
    digits = max(3, len(str(count - 1)))
    return TrialId(f"t{index:0{digits}d}")


def whole_epochs(view: View, epochs: float, config: Mapping[str, Any]) -> Samples:
    """Samples in so many epochs of the data that a trial of this configuration trains on.

    Raises:
        ValueError: the study has no data (its `Opened` names the shards), or none for this trial.
    """
    if not view.shards:
        raise ValueError(
            "a searcher needs the sizes of the study's shards to say how long to train; got none"
        )
    return epochs * epoch_size(view.shards, config)


@dataclass(frozen=True, slots=True)
class Batch:
    """A list of trials to submit in order.

    `count`: how many trials. `config`: the configuration of trial number i. `epochs`: how long
    each trains. `most`: how many may have work left at any time (None: as many as `room_ahead`
    says). `widths`: the fewest and most slots of each (None: one). `priority`: of each (None: 1).
    `first`: so many were named before there were as many as now; the others are named in the same
    way.
    """

    count: int
    config: Callable[[int], Config]
    epochs: float
    most: int | None
    widths: Widths | None = None
    priority: float | None = None
    first: int = 0

    def next(self, view: View, came: int) -> tuple[Proposal, int]:
        """Submit the trials that there is room for; returns them with the new value of `came`.

        `came`: how many trials were submitted so far. A trial that is known counts as submitted:
        a journal torn in the middle of a moment has the trial, but not the memory of it.
        """
        while came < self.count and self._name(came) in view.known:
            came += 1
        room = room_ahead(view)
        if self.most is not None:
            room = min(room, self.most - len(view.trials))
        if room <= 0 or came == self.count:
            return Proposal(), came
        end = min(self.count, came + room)
        trials = tuple(self._trial(view, number) for number in range(came, end))
        return Proposal(trials), end

    def _trial(self, view: View, number: int) -> Trial:
        """Trial number `number`."""
        config = self.config(number)
        return Trial(
            self._name(number),
            whole_epochs(view, self.epochs, config),
            config,
            self.widths or (1, 1),
            frozenset(shards_of(view.shards, config)),
            priority=self._priority(),
        )

    def _name(self, number: int) -> TrialId:
        return trial_id(number, self.first or self.count)

    def _priority(self) -> float:
        """The priority of each trial."""
        if self.priority is None:
            return 1.0
        return self.priority


def take_plain(searcher: Any) -> None:
    """Make fields plain that a user gave: None is the default, a number of NumPy one of Python.

    Of `sampling` None has a meaning of its own.
    """
    for each in fields(searcher):
        value = getattr(searcher, each.name, None)
        if value is None and each.init and each.default is not MISSING:
            value = None if each.name == "sampling" else each.default
        if isinstance(value, np.generic):
            value = value.item()
        if value is not None:
            object.__setattr__(searcher, each.name, value)


def check_counts(searcher: Any) -> None:
    """Make the searcher's fields plain; ValueError unless its numbers are positive, where set."""
    take_plain(searcher)
    rules: dict[str, tuple[str, Callable[[Any], bool]]] = {
        "num_samples": (">= 1", lambda x: is_whole(x) and x >= 1),
        "max_epochs": ("> 0", lambda x: is_number(x) and 0 < x < inf),
        "max_concurrent": (">= 1, or None for no limit", lambda x: is_whole(x) and x >= 1),
        "priority": ("> 0 and finite", lambda x: is_number(x) and 0 < x < inf),
        "seed": (">= 0", lambda x: is_whole(x) and x >= 0),
    }
    check_rules(searcher, rules)


def check_rules(searcher: Any, rules: Mapping[str, tuple[str, Callable[[Any], bool]]]) -> None:
    """Raise ValueError unless each of these fields that is set meets its rule, said in words."""
    kind = type(searcher).__name__
    for each in fields(searcher):
        value = getattr(searcher, each.name, None)
        if value is None or each.name not in rules:
            continue
        rule, holds = rules[each.name]
        if not holds(value):
            raise ValueError(f"{kind}: {each.name} must be {rule}; got {shown(value)}")


def checked_widths(widths: Any) -> Widths | None:
    """Fewest and most slots as a tuple; None stays None.

    Raises:
        ValueError: not two whole numbers with 1 <= fewest <= most.
    """
    if widths is None:
        return None
    pair: tuple[Any, ...] = ()
    if isinstance(widths, (list, tuple)):
        pair = tuple(widths)
    whole = all(isinstance(width, int) and not isinstance(width, bool) for width in pair)
    if len(pair) != 2 or not whole or not 1 <= pair[0] <= pair[1]:
        raise ValueError(
            "widths must be (fewest, most) slots of each trial, 1 <= fewest <= most; "
            f"got {shown(widths)}"
        )
    return pair[0], pair[1]
