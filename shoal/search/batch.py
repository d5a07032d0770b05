"""What grid and random search share: a list of configurations, submitted in order, so many at a time."""

from collections.abc import Callable
from typing import Any

from shoal.core.plan import Proposal
from shoal.core.state import View
from shoal.core.trial import Samples, Trial, TrialId
from shoal.search.space import Config

Widths = tuple[int, int]  # fewest and most slots


def trial_id(index: int, count: int) -> TrialId:
    """t000, t001, …: as many digits as the last one needs, three at least, so that names sort as numbers."""
    return TrialId(f"t{index:0{max(3, len(str(count - 1)))}d}")


def whole_epochs(view: View, epochs: float) -> Samples:
    """Samples in so many epochs of the study's data.

    Raises:
        ValueError: the study has no data (its `Opened` names the shards).
    """
    if not view.shards:
        raise ValueError("a searcher needs the sizes of the study's shards to say how long to train; got none")
    return epochs * float(sum(view.shards.values()))


def next_batch(
    view: View,
    came: int,
    count: int,
    config: Callable[[int], Config],
    epochs: float,
    most: int | None,
    widths: Widths | None = None,
    priority: float | None = None,
) -> tuple[Proposal, int]:
    """Submit trials `came`, `came + 1`, … of `count`, as many as keep at most `most` with work left.

    With it, how many have come by then. Trials that are known came already: a journal torn in the middle of a moment has
    them, but not the memory of it. `widths`: the fewest and most slots of each (None: one). `priority`: of each (None: 1).
    """
    while came < count and trial_id(came, count) in view.known:
        came += 1
    room = count - came if most is None else min(count - came, most - len(view.trials))
    if room <= 0:
        return Proposal(), came
    samples, shards = whole_epochs(view, epochs), frozenset(view.shards)
    wide, weight = widths or (1, 1), 1.0 if priority is None else priority
    names = [trial_id(i, count) for i in range(came, came + room)]
    trials = tuple(Trial(name, samples, config(came + i), wide, shards, priority=weight) for i, name in enumerate(names))
    return Proposal(trials), came + room


def check_counts(max_epochs: float | None, max_concurrent: int | None) -> None:
    """Raise ValueError unless both are positive, where they are set."""
    if max_epochs is not None and not max_epochs > 0:
        raise ValueError(f"max_epochs must be > 0; got {max_epochs!r}")
    if max_concurrent is not None and max_concurrent < 1:
        raise ValueError(f"max_concurrent must be >= 1, or None for no limit; got {max_concurrent!r}")


def checked_widths(widths: Any) -> Widths | None:
    """Fewest and most slots as a tuple; None as it is.

    Raises:
        ValueError: not two whole numbers with 1 <= fewest <= most.
    """
    if widths is None:
        return None
    pair = tuple(widths) if isinstance(widths, (list, tuple)) else ()
    if len(pair) != 2 or not all(isinstance(w, int) and not isinstance(w, bool) for w in pair) or not 1 <= pair[0] <= pair[1]:
        raise ValueError(f"widths must be (fewest, most) slots of each trial, 1 <= fewest <= most; got {widths!r}")
    return pair[0], pair[1]
