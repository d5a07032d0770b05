"""A loop of the user's own: trials are handed out, and what comes back is written down.

The journal is that of a run. Each trial under way has a slot of its own, from `ask` to `tell`.
"""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from math import isfinite, nan
from time import monotonic
from typing import Any

from shoal.core.cluster import Slot, SlotId
from shoal.core.event import (
    Advanced,
    Entry,
    Evaluated,
    Failed,
    Finished,
    Joined,
    Planned,
    Remembered,
    Retired,
    Submitted,
)
from shoal.core.plan import solo
from shoal.core.trial import Seconds, Trial, TrialId, Value
from shoal.core.visits import next_visit
from shoal.study.code.files import code_name
from shoal.study.folder import StudyError
from shoal.study.loop.held import HeldStudy
from shoal.study.loop.trial import AskedTrial
from shoal.study.results import check_known
from shoal.study.setup import Setup, pausing
from shoal.train.function.objective import numbered
from shoal.train.function.talk import TrialContext, Values, numbers
from shoal.train.recipe.settings import seed_of

# How a trial may be told to have ended: the words of Optuna, and those of `TrialResult.status`.
ENDS = {
    "complete": "finished",
    "finished": "finished",
    "pruned": "retired",
    "retired": "retired",
    "fail": "failed",
    "failed": "failed",
}


class OwnLoop:
    """Hands out trials of the study, and takes what is said of them.

    The study is held while trials of this loop are out, so that no other process opens it.
    Threads may share a loop.

    Raises:
        StudyError: the study trains by itself.
    """

    def __init__(self, setup: Setup, searcher: Any) -> None:
        if not getattr(setup.recipe, "draws", False):
            raise StudyError(
                f"this study trains {code_name(setup.recipe)} itself, with optimize(): for a loop "
                "of your own, create a study without a recipe"
            )
        self._study = HeldStudy(setup, searcher)
        # The trials that are out, and when their next reports began.
        self._out: dict[TrialId, Seconds] = {}
        self._turn = threading.RLock()

    def ask(self, open_first: bool = False) -> AskedTrial:
        """The next trial; see `Study.ask`."""
        with self._holding() as study:
            study.take_notes()
            if study.state.stopped is not None:
                raise StudyError(
                    f"the study was told to stop ({study.state.stopped}): run the script again to "
                    "go on with it"
                )
            left = self._left() if open_first else None
            trial = left or self._waiting() or self._proposed()
            self._hand_out(trial)
            return AskedTrial(self._context(trial), self)

    def tell(self, trial: Any, values: Any, state: Any) -> None:
        """What came of a trial; see `Study.tell`."""
        with self._holding() as study:
            name = self._named(trial)
            how = _end(name, values, state)
            entries = []
            if values is not None:
                found = numbers(values, self._metric)
                if how == "finished":
                    self._check_metric(name, found)
                noted = getattr(trial, "noted", {})
                entries = self._scored(name, {**noted, **found})
                if how == "finished" and not self._is_scored(name, found):
                    how = "diverged"
            if name in study.state.trials:
                entries.append(_ending(name, how))
            study.note(entries)
            self._out.pop(name, None)

    def report(self, trial: TrialId, values: Any) -> bool:
        """See `Listener.report`."""
        with self._holding() as study:
            self._check_out(trial)
            study.take_notes()
            study.note(self._scored(trial, numbers(values, self._metric)))
            if study.asking.stops and study.state.trials:
                self._propose(len(study.state.trials))
            return trial not in study.state.trials

    def drew(self, trial: TrialId, config: Mapping[str, Value]) -> None:
        """See `Listener.drew`."""
        with self._holding() as study:
            self._check_out(trial)
            known = study.state.known[trial]
            study.note([Submitted(replace(known, config=dict(config)))])

    def close(self) -> None:
        """Let go of the study. Trials that are out stay open: they may be told by number."""
        with self._turn:
            self._out.clear()
            self._study.leave()

    @contextmanager
    def _holding(self) -> Iterator[HeldStudy]:
        """Within, the study is this loop's; afterwards, too, if trials are out."""
        with self._turn, pausing(self._study.setup.folder):
            self._study.take()
            try:
                yield self._study
            finally:
                if not self._out:
                    self._study.leave()

    # -- asking ------------------------------------------------------------------------------------

    def _waiting(self) -> TrialId | None:
        """The first trial that was added, or proposed, and never handed out."""
        study = self._study
        return next((t for t in study.state.trials if t not in study.begun), None)

    def _left(self) -> TrialId | None:
        """The first trial that an earlier loop handed out and that was never told."""
        study = self._study
        begun = [t for t in study.state.trials if t in study.begun]
        return next((t for t in begun if t not in self._out), None)

    def _proposed(self) -> TrialId:
        """A new trial of the searcher's.

        Raises:
            StudyError: it has no more.
        """
        state = self._study.state
        new = self._propose(len(state.trials) + 1)
        if not new:
            raise StudyError(
                f"the searcher has no more trials to give, after {len(state.known)}: ask for no "
                "more, or give it more num_samples or a larger search_space"
            )
        return new[0].id

    def _propose(self, room: int) -> tuple[Trial, ...]:
        """What the searcher submits, with room for so many trials under way; it is written down."""
        study = self._study
        searcher = study.asking.with_room(study.state, room)
        memory = study.state.memory.get("searcher")
        if memory is None:
            memory = searcher.start()
        proposal, remembered = searcher.propose(study.seen(), memory)
        entries: list[Entry] = [Submitted(trial) for trial in proposal.submit]
        entries += [Retired(trial) for trial in sorted(proposal.retire)]
        if remembered != memory:
            entries.append(Remembered("searcher", remembered))
        study.note(entries)
        return proposal.submit

    def _hand_out(self, trial: TrialId) -> None:
        """The trial has a slot from now on."""
        study = self._study
        state = study.state
        slot = next((each for each in state.slots if each not in state.busy), None)
        entries: list[Entry] = []
        if slot is None:
            slot = SlotId(f"own{len(state.slots)}")
            entries.append(Joined((Slot(slot, shards=frozenset(state.shards)),)))
        entries.append(Planned((), (solo(trial, slot, state.turn),)))
        study.note(entries)
        study.begun.add(trial)
        self._out[trial] = monotonic()

    def _context(self, trial: TrialId) -> TrialContext:
        """What the trial knows of itself."""
        known = self._study.state.known[trial]
        return TrialContext(
            trial=known,
            seed=seed_of(known.config, self._study.setup.seed),
            metric=self._metric,
            chosen=dict(known.config),
            restored=False,
            log=None,
            spread=getattr(self._study.setup.recipe, "spread", False),
        )

    # -- telling -----------------------------------------------------------------------------------

    @property
    def _metric(self) -> str:
        """What a number without a name is called."""
        return self._study.setup.metric or "value"

    def _named(self, trial: Any) -> TrialId:
        """The trial that is meant, which has not ended: an object with an id, a name, a number.

        Raises:
            StudyError: there is none, or it has ended.
        """
        if isinstance(trial, int):
            trial = self._numbered(trial)
        state = self._study.state
        name = TrialId(str(getattr(trial, "id", trial)))
        check_known(state, name)
        if name not in state.trials and name not in self._out:
            raise StudyError(f"trial {name} was told already: it {state.ended[name]}")
        return name

    def _numbered(self, number: int) -> TrialId:
        """The name of the trial that has this number.

        Raises:
            StudyError: it is the number of several trials that are open.
        """
        state = self._study.state
        found = [trial for trial in state.known if numbered(trial) == number]
        still = [trial for trial in found if trial in state.trials]
        if len(still) > 1:
            raise StudyError(
                f"the number {number} is that of {', '.join(still)}: give the trial, or its name"
            )
        return [*still, *found, TrialId(str(number))][0]

    def _check_out(self, trial: TrialId) -> None:
        """Raise StudyError unless the trial is out."""
        if trial not in self._out:
            raise StudyError(
                f"trial {trial} was told already, or the study was run since it was asked for"
            )

    def _check_metric(self, trial: TrialId, values: Values) -> None:
        """Raise StudyError if a trial that finished lacks the study's metric."""
        if self._metric not in values:
            raise StudyError(
                f"trial {trial} is told without {self._metric!r}, which the study ranks by; got "
                f"{', '.join(values)}: give it, or create the study with another metric="
            )

    def _is_scored(self, trial: TrialId, values: Values) -> bool:
        """Whether any of the trial's scores of the metric is finite, these included."""
        told = [values, *(found for _, found in self._study.state.scores[trial])]
        return any(isfinite(found.get(self._metric, nan)) for found in told)

    def _scored(self, trial: TrialId, values: Values) -> list[Entry]:
        """That the trial reported these values: the end of an epoch."""
        state = self._study.state
        visits = state.visits[trial]
        shards = state.known[trial].shards or frozenset(state.shards)
        visit = next_visit(self._study.setup.seed, visits, shards)._replace(samples=1)
        spent = {}
        if trial in self._out:
            now = monotonic()
            spent = {trial: {"train": now - self._out[trial]}}
            self._out[trial] = now
        return [
            Advanced({trial: 1}, visits={trial: (visit,)}, spent=spent),
            Evaluated(trial, float(len(visits) + 1), values),
        ]


def _end(trial: TrialId, values: Any, state: Any) -> str:
    """How the trial ended: "finished", "retired" or "failed".

    Raises:
        StudyError: the state is none of `ENDS`, or there is neither a state nor a value.
    """
    if state is None:
        state = "complete"
    how = ENDS.get(str(getattr(state, "name", state)).lower())
    if how is None:
        raise StudyError(f"trial {trial}: state must be one of {', '.join(ENDS)}; got {state!r}")
    if how == "finished" and values is None:
        raise StudyError(
            f"trial {trial} is told without a value: give one, or state='pruned' or 'fail'"
        )
    return how


def _ending(trial: TrialId, how: str) -> Entry:
    """What ends the trial."""
    if how == "finished":
        return Finished(trial)
    if how == "retired":
        return Retired(trial)
    if how == "diverged":
        return Failed(trial, "diverged: none of its scores was finite")
    return Failed(trial, "told to have failed")
