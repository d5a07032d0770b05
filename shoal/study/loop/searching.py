"""The searcher of a loop of one's own, which is asked for one trial at a time."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from shoal.core.ports import Searcher
from shoal.core.state import State
from shoal.search import ASHA, Trace, nested, rebuild
from shoal.search.registry import completed, parse
from shoal.study.folder import StudyError
from shoal.study.parts.asked import Wishes, searcher_of, usual_searcher
from shoal.study.parts.functions import BY_RUNGS, check_drawn
from shoal.study.parts.grown import with_last
from shoal.study.setup import Setup
from shoal.train.function.recipe import UNLIMITED

# A searcher that was given no number of samples has 10 to the power of so many at first.
DIGITS = 3
Head = Mapping[str, Any]


def searcher_for(setup: Setup, asked: Searcher[Any] | str | None, before: Head) -> Searcher[Any]:
    """The searcher that the study was given, or had before; else a grid or random sampling.

    Raises:
        StudyError: it sends trials from rung to rung, or cannot know what there is to draw.
        ValueError: no searcher has that name, or its arguments do not fit.
    """
    if asked is None and "name" in before.get("searcher", {}):
        asked = _former(before)
    if isinstance(asked, str):
        asked = parse(asked)
    usual = usual_searcher(setup.space)
    if asked is not None:
        usual = completed(asked, {}, lambda: usual_searcher(setup.space))
    searcher = searcher_of(setup, usual, Wishes(max_epochs=UNLIMITED))
    check_drawn(setup, searcher)
    for each in nested(searcher):
        _check_asks_once(each)
    return searcher


def _former(before: Head) -> Searcher[Any]:
    """The searcher of the run before. What `optimize` drew says nothing of how many are asked."""
    searcher = rebuild(before["searcher"])
    core: Any = [*nested(searcher)][-1]
    if before.get("loop") or not hasattr(core, "num_samples"):
        return searcher
    return with_last(searcher, replace(core, num_samples=None))


def _check_asks_once(searcher: Searcher[Any]) -> None:
    """Raise StudyError if the searcher sends a trial on that it had stopped before."""
    stopping = getattr(searcher, "stopping", False)
    if isinstance(searcher, (*BY_RUNGS, Trace)) and not stopping:
        raise StudyError(
            f"{type(searcher).__name__} says when and how long each trial trains, and "
            "study.ask() gives each trial once: use random, grid or optuna, perhaps within median "
            "or patience, or asha(stopping=True, max_epochs=…)"
        )
    if isinstance(searcher, ASHA) and searcher.max_epochs == UNLIMITED:
        raise StudyError(
            "ASHA compares trials after some of their reports: say how many a trial makes at "
            "most, asha(stopping=True, max_epochs=…)"
        )


class Asking:
    """A searcher that is given room for so many trials, and asked for them without an end.

    Searchers remember what they saw, so one is kept for each room.
    """

    def __init__(self, searcher: Searcher[Any]) -> None:
        self._searcher = searcher
        self._core: Any = [*nested(searcher)][-1]
        self._made: dict[tuple[int, int], Searcher[Any]] = {}

    @property
    def stops(self) -> bool:
        """Whether the searcher looks at trials' reports, to stop some of them."""
        within = any(each is not self._core for each in nested(self._searcher))
        return within or getattr(self._core, "stopping", False)

    def with_room(self, state: State, trials: int) -> Searcher[Any]:
        """The searcher that lets so many trials be under way.

        If the user named no number of samples, there are always some left.
        """
        samples = 10 ** max(DIGITS, len(str(len(state.known))))
        asked = (trials, samples)
        if asked not in self._made:
            self._made[asked] = self._changed(trials, samples)
        return self._made[asked]

    def _changed(self, trials: int, samples: int) -> Searcher[Any]:
        """The searcher, with these numbers where they were left open."""
        changes: dict[str, Any] = {}
        if hasattr(self._core, "max_concurrent"):
            changes["max_concurrent"] = trials
        if getattr(self._core, "num_samples", 0) is None:
            changes["num_samples"] = samples
        if not changes:
            return self._searcher
        return with_last(self._searcher, replace(self._core, **changes))
