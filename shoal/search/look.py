"""What a searcher keeps between two looks at a study, so that a look costs what changed.

A searcher is pure: it decides by the view alone. What is kept here could be read from the view
again; it is dropped when the view is not a later one of the same study.
"""

from bisect import bisect_left, insort
from collections.abc import Collection

from shoal.core.state import News, View
from shoal.core.trial import TrialId
from shoal.search.draws import by_number, numbered

Ranked = tuple[float, tuple[int, TrialId]]  # cost, then number: ties go to the first


class Look:
    """Which trials changed since the last look, and how many of the searcher's trials there are."""

    def __init__(self) -> None:
        self._news: News | None = None
        self._came = 0

    def forget(self) -> None:
        """Drop what was read from another study."""

    def changed(self, view: View) -> Collection[TrialId]:
        """The trials to look at again; all of them if this is not the study seen last."""
        changed = view.news.since(self._news)
        self._news = view.news
        if changed is None:
            # It is a study that was not seen before.
            self._came = 0
            self.forget()
            return view.known.keys()
        return changed

    def came(self, view: View, most: int) -> int:
        """How many of the trials t000, t001, … up to `most` are known. Call `changed` before."""
        while self._came < most and numbered(self._came) in view.known:
            self._came += 1
        return min(self._came, most)


class Ranking:
    """Trials in the order of their costs, the smallest first."""

    def __init__(self) -> None:
        self._costs: dict[TrialId, float] = {}
        self._ranked: list[Ranked] = []

    def __len__(self) -> int:
        return len(self._ranked)

    def __contains__(self, trial: TrialId) -> bool:
        return trial in self._costs

    def put(self, trial: TrialId, cost: float | None) -> None:
        """Give the trial this cost; None takes it out."""
        before = self._costs.get(trial)
        if before == cost:
            return
        if before is not None:
            del self._ranked[self.place(trial)]
            del self._costs[trial]
        if cost is not None:
            self._costs[trial] = cost
            insort(self._ranked, (cost, by_number(trial)))

    def place(self, trial: TrialId) -> int:
        """How many trials are before this one."""
        return bisect_left(self._ranked, (self._costs[trial], by_number(trial)))

    def cost(self, trial: TrialId) -> float:
        return self._costs[trial]

    def best(self, count: int | None = None) -> list[TrialId]:
        """The first `count` trials, or all."""
        return [trial for _, (_, trial) in self._ranked[:count]]
