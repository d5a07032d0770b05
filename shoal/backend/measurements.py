"""What was measured of trials, and what they are believed to need of a slot's memory."""

from collections.abc import Collection, Mapping
from math import inf

from shoal.core.cluster import GiB
from shoal.core.event import Measured
from shoal.core.state import Figures
from shoal.core.trial import TrialId

# Taken as the room of a slot of which nothing is known, except that it was too small.
LITTLE: GiB = 1e-3


class Measurements:
    """What was measured in one study. Trials of one signature cost the same.

    `figures`: what the journal says, by signature.
    """

    def __init__(self, figures: Mapping[str, Figures]) -> None:
        # The signatures whose batch size was reported.
        self._with_batch_size: set[str] = set()
        # The signatures of which it was told how fast they are.
        self.rated: set[str] = set()
        # What a trial of each signature is believed to need.
        self._memory: dict[str, GiB] = {}
        for signature, known in figures.items():
            measured = known.get("memory", 0.0)
            crowded = known.get("crowded", 0.0)
            self._memory[signature] = max(measured, crowded)
            if "rate" in known:
                self.rated.add(signature)
            if "batch_size" in known:
                self._with_batch_size.add(signature)

    def news_of(self, signature: str, figures: Figures, room: GiB) -> Figures:
        """These figures, without those that were reported before and cannot change.

        `room`: the slot's memory, which the trial did not exceed.
        """
        news = dict(figures)
        if signature in self._with_batch_size:
            news.pop("batch_size", None)
        elif "batch_size" in news:
            self._with_batch_size.add(signature)
        if "rate" in news:
            self.rated.add(signature)
        if "memory" in news:
            need = min(room, news["memory"])
            news["memory"] = need
            before = self._memory.get(signature, 0.0)
            self._memory[signature] = max(before, need)
        return news

    def crowded(self, signatures: Mapping[TrialId, str], memory: GiB) -> tuple[GiB, list[Measured]]:
        """These trials had no room together on a slot with so much memory.

        From now on they are believed to need twice the slot's room together. None is believed to
        need more than the slot's room: alone it may fit.

        Returns the slot's room, which is a guess if its memory is infinite; and what to report, of
        one trial of each signature.
        """
        needs = self._guessed(signatures.values())
        total = sum(needs[signature] for signature in signatures.values())
        room = memory
        if room == inf:
            room = max(total, *self._memory.values(), LITTLE)
        reports: list[Measured] = []
        for signature, trial in _one_each(signatures).items():
            share = 2.0 * room * needs[signature] / total
            self._memory[signature] = min(room, share)
            figures = {"crowded": self._memory[signature]}
            reports.append(Measured(trial, signature, figures))
        return room, reports

    def _guessed(self, signatures: Collection[str]) -> dict[str, GiB]:
        """The needs of all these signatures: an unknown one is taken as the mean of the others."""
        believed = [self._memory.get(signature, 0.0) for signature in signatures]
        known = [need for need in believed if need > 0]
        guess = LITTLE
        if known:
            guess = sum(known) / len(known)
        needs: dict[str, GiB] = {}
        for signature, need in zip(signatures, believed, strict=True):
            needs[signature] = need or guess
        return needs


def _one_each(signatures: Mapping[TrialId, str]) -> dict[str, TrialId]:
    """One trial of each signature, of those trials whose signature is known."""
    trials: dict[str, TrialId] = {}
    for trial, signature in signatures.items():
        if signature:
            trials[signature] = trial
    return trials
