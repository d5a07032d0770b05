"""Which trials changed since a decider last looked."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from shoal.core.trial import TrialId


class News:
    """The trials that a journal's entries were about, up to one moment.

    Successive states share one list that only grows, so that a new state costs what it adds. A
    decider that keeps the `News` of its last look asks the next one what came `since`. It then
    looks at those trials only, however many there are in all.
    """

    __slots__ = ("_length", "_log")

    def __init__(self) -> None:
        self._log: list[TrialId] = []
        self._length = 0

    def after(self, trials: Iterable[TrialId]) -> News:
        """The news with these trials added; the news itself stays as it is."""
        later = News()
        later._log = self._log
        if len(self._log) != self._length:  # another state went on from here: part ways
            later._log = self._log[: self._length]
        later._log.extend(trials)
        later._length = len(later._log)
        return later

    def since(self, before: News | None) -> Collection[TrialId] | None:
        """The trials that may have changed, each once; None if `before` was no earlier state."""
        if (
            before is None
            or before._log is not self._log
            or before._length > self._length
        ):
            return None
        return dict.fromkeys(self._log[before._length : self._length])
