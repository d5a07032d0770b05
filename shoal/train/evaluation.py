"""The scores of a slot's lanes on the validation data, over chunks that they share; those of fused lanes in one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from time import perf_counter

from shoal.core.trial import TrialId
from shoal.train.account import Spent, blaming
from shoal.train.crew import Pass
from shoal.train.data import Data
from shoal.train.fused import Fused
from shoal.train.lane import Lane
from shoal.train.measure import Meter
from shoal.train.pack import Pack
from shoal.train.recipe import Recipe, overrides
from shoal.train.scoring import Scoring, scoring
from shoal.train.stream import Streams
from shoal.train.unit import RAISED, OutOfMemory, TrialError

Scores = dict[str, float]


class Evaluation:
    """`clocked`: whether seconds are counted by the clock."""

    def __init__(self, recipe: Recipe, data: Data, streams: Streams, meter: Meter, pack: Pack, clocked: bool) -> None:
        self._streams, self._meter, self._pack, self._clocked = streams, meter, pack, clocked
        self.possible = bool(data.validation) and overrides(recipe, "validation_step")

    def scores(self, passes: Sequence[Pass]) -> dict[TrialId, Scores | TrialError]:
        """By trial, where there is something to validate."""
        found: dict[TrialId, Scores | TrialError] = {}
        apart: dict[object, list[Pass]] = {}  # by stream of data
        for each in passes if self.possible else ():
            fused = self._pack.fused(each.lane)
            if fused is not None and each.unit.trial.id not in found:
                some = [x for x in passes if x.lane in fused.lanes]
                if len(some) == len(fused.lanes):
                    found |= self._together(fused, some)
            if each.unit.trial.id not in found:
                apart.setdefault(self._streams.of(each.lane.settings.data_key), []).append(each)
        for some in apart.values():
            found |= self._apart(some)
        return found

    def _apart(self, passes: Sequence[Pass]) -> dict[TrialId, Scores | TrialError]:
        """Of lanes that see the same data: each chunk is had once, and each lane validated on it.

        Raises:
            OutOfMemory: of one of them.
            DataError: a part of the validation data cannot be read.
        """
        self._pack.set_threads()
        found: dict[TrialId, Scores | TrialError] = {}
        took = dict.fromkeys(passes, 0.0)
        opened = {each: ExitStack() for each in passes}
        scores: dict[Pass, Scoring] = {}
        chunks = self._streams.of(passes[0].lane.settings.data_key).validation()
        try:
            for each in passes:
                with self._told([each], found):
                    scores[each] = opened[each].enter_context(scoring(each.lane))
            while scores:
                begin, chunk = perf_counter(), None
                with self._told(scores, found):  # of what prepares the data, or a chunk that was written to: all lanes' own
                    chunk = next(chunks, None)
                for each in scores:
                    took[each] += (perf_counter() - begin) / len(scores)
                if chunk is None:
                    break
                for each in list(scores):
                    begin = perf_counter()
                    self._pack.turn_of(each.unit.trial.id)
                    with self._told([each], found):
                        scores[each].add(chunk)
                    if each.unit.trial.id in found:
                        del scores[each]
                    took[each] += perf_counter() - begin
        finally:
            chunks.close()
            for each, stack in opened.items():
                with self._told([each], found):
                    stack.close()
        whole = {each.lane.signature: took[each] for each in scores if each.unit.trial.id not in found}
        for signature, seconds in whole.items():
            self._meter.happened(signature, "evaluate", seconds)
        for each, seconds in took.items() if self._clocked else ():
            each.spent.add("evaluate", seconds)
        return {each.unit.trial.id: of.means() for each, of in scores.items()} | found

    @contextmanager
    def _told(self, passes: Iterable[Pass], found: dict[TrialId, Scores | TrialError]) -> Iterator[None]:
        """What their own code raises is what came of these trials."""
        try:
            with blaming():
                yield
        except OutOfMemory:
            raise
        except TrialError as error:
            found.update(dict.fromkeys([each.unit.trial.id for each in passes], error))

    def of(self, lane: Lane, spent: Spent) -> Scores:
        """One lane's.

        Raises:
            TrialError: the recipe's code raised.
            DataError: a part of the validation data cannot be read.
        """
        self._pack.set_threads()
        begin = perf_counter()
        with spent.on("evaluate"), blaming():
            scores = lane.evaluate(self._streams.of(lane.settings.data_key).validation())
        self._meter.happened(lane.signature, "evaluate", perf_counter() - begin)
        return scores

    def _together(self, fused: Fused, passes: Sequence[Pass]) -> dict[TrialId, Scores | TrialError]:
        """Nothing, where that does not work."""
        self._pack.set_threads()
        begin = perf_counter()
        try:
            scores = fused.evaluate(self._streams.of(fused.lanes[0].settings.data_key).validation(), self._clocked)
        except RAISED:  # nothing was changed, and each lane may say for itself
            self._pack.release(fused.lanes[0])
            return {}
        seconds = perf_counter() - begin
        for each in passes if self._clocked else ():
            each.spent.add("evaluate", seconds / len(passes))
        for signature in {each.lane.signature for each in passes} if self._clocked else ():
            self._meter.happened(signature, "evaluate", (seconds - fused.found_out) / len(passes))
        return {each.unit.trial.id: scores[fused.lanes.index(each.lane)] for each in passes}
