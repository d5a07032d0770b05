"""The study as an Optuna study, in Optuna's own journal file.

`optuna-dashboard FILE` shows it while it runs. It is written through Optuna's storage, by a
subscriber of moments. Trials carry their Shoal name as the user attribute "trial".
"""

import os
from collections.abc import Iterable, Mapping
from math import isfinite
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from shoal.core.cluster import epoch_size
from shoal.core.errors import warn
from shoal.core.event import Entry, Evaluated, Failed, Finished, Retired, Submitted
from shoal.core.masking import masked_config
from shoal.core.state import State, having
from shoal.core.trial import Seconds, TrialId
from shoal.engine.plain_files import remove_file
from shoal.search.optuna import optuna, parameters, quietly
from shoal.search.rank import EPOCH
from shoal.search.space import Space, validated

# Seconds after which Optuna's lock of the file is one that a killed process left.
LEFT: Seconds = 3.0


class OptunaLog:
    """Keeps the file at `path` as the journal is, also across runs.

    Evaluations become intermediate values at whole epochs. A trial that met `epochs` (what its
    searcher has as max_epochs) is complete, with its last score for a value; a failed one, or one
    whose score is not finite, failed; a retired one pruned. One that finished before `epochs` may
    be extended, which Optuna does not know: it runs until the study is over, then it is pruned.
    Without `epochs` all that finished are complete when the study is over.

    Raises:
        ValueError: Optuna is not installed, or the study has no metric.
    """

    def __init__(
        self,
        path: Path,
        name: str,
        space: Space | None,
        metric: str | None,
        mode: str,
        epochs: float | None = None,
    ) -> None:
        if metric is None:
            raise ValueError("Optuna's log needs the study's metric: create the study with metric=")
        self._space = validated(space or {})
        self._metric = metric
        self._epochs = epochs
        self._states = optuna().trial.TrialState
        # The lock is a link to the file: Optuna sees its age if the path is absolute.
        path = path.absolute()
        _release(path.with_name(path.name + ".lock"))
        with quietly():
            study, self._storage = _opened(path, name, mode)
            self._study = self._storage.get_study_id_from_name(name)
            trials = study.get_trials(deepcopy=False)

        # Trials that the file has, by their Shoal name.
        self._numbers: dict[TrialId, int] = {}
        self._ids: dict[TrialId, int] = {}
        self._steps: dict[TrialId, dict[int, float]] = {}
        self._over: set[TrialId] = set()
        self._state: State | None = None
        for trial in trials:
            self._recall(trial)

    def _recall(self, trial: Any) -> None:
        """Note what an earlier run wrote of the trial."""
        name = trial.user_attrs.get("trial")
        if name is None:
            return
        self._numbers[name] = trial.number
        self._steps[name] = dict(trial.intermediate_values)
        if trial.state.is_finished():
            self._over.add(name)

    def __call__(self, now: Seconds, entries: tuple[Entry, ...], state: State) -> None:
        """Write what a moment of the engine brought."""
        touched = _touched(entries)
        if self._state is None:  # what an earlier run did after it last wrote here
            touched = {**dict.fromkeys(state.known), **touched}
        self._state = state
        with quietly():
            for trial in touched:
                if trial in state.known and trial not in self._over:
                    self._bring(trial, state)

    def close(self) -> None:
        """The study may be over: then what finished stays as it is."""
        state = self._state
        if state is None or state.trials or state.stopped is not None:
            return

        # The end, for Optuna, of trials that finished but could have gone on.
        how = self._states.COMPLETE if self._epochs is None else self._states.PRUNED
        with quietly():
            for trial in state.ended:
                if trial not in self._over:
                    self._end(trial, state, how)

    # -- one trial ---------------------------------------------------------------------------------

    def _bring(self, trial: TrialId, state: State) -> None:
        """Write what the file does not have yet of the trial."""
        if trial not in self._ids:
            self._ids[trial] = self._id(trial, masked_config(state.known[trial].config))
        self._add_scores(trial, state)
        how = self._how(trial, state)
        if how is not None:
            self._end(trial, state, how)

    def _id(self, trial: TrialId, config: Mapping[str, Any]) -> int:
        """Optuna's own number of the trial in the whole file; a new trial if there is none yet."""
        if trial not in self._numbers:
            return self._create(trial, config)
        find = self._storage.get_trial_id_from_study_id_trial_number
        return int(find(self._study, self._numbers[trial]))

    def _create(self, trial: TrialId, config: Mapping[str, Any]) -> int:
        """A new trial in the file; returns its id."""
        params, kinds = parameters(self._space, config) or ({}, {})
        rest = {name: value for name, value in config.items() if name not in params}
        template = optuna().trial.create_trial(
            state=self._states.RUNNING,
            params=params,
            distributions=kinds,
            user_attrs={**rest, "trial": trial},
        )
        return int(self._storage.create_new_trial(self._study, template_trial=template))

    def _add_scores(self, trial: TrialId, state: State) -> None:
        """Write the trial's scores that the file does not have yet."""
        steps = self._steps.setdefault(trial, {})
        for epoch, values in state.scores[trial]:
            step = round(epoch)
            value = values.get(self._metric)
            if abs(epoch - step) > EPOCH:
                continue
            if value is not None and steps.get(step) != value:
                self._storage.set_trial_intermediate_value(self._ids[trial], step, value)
                steps[step] = value

    def _how(self, trial: TrialId, state: State) -> Any:
        """The state in which the trial ended for Optuna; None if it may go on."""
        ended = state.ended.get(trial, "")
        if ended.startswith("failed"):
            return self._states.FAIL
        if ended == "retired":
            return self._states.PRUNED
        if ended == "finished" and self._met_epochs(trial, state):
            return self._states.COMPLETE
        return None

    def _met_epochs(self, trial: TrialId, state: State) -> bool:
        """Whether the trial trained as long as its searcher ever lets one."""
        if self._epochs is None:
            return False
        known = state.known[trial]
        epoch = epoch_size(state.shards, known.config)
        return known.samples >= self._epochs * epoch - 1e-6

    def _end(self, trial: TrialId, state: State, how: Any) -> None:
        """Write how the trial ended, with its last score for a value."""
        last = self._last(trial, state)
        if last is None and how == self._states.COMPLETE:
            how = self._states.FAIL
        values = None if last is None or how == self._states.FAIL else [last]
        self._storage.set_trial_state_values(self._ids[trial], how, values)
        self._over.add(trial)

    def _last(self, trial: TrialId, state: State) -> float | None:
        """The newest score; None if there is none, or if it is not finite."""
        scores = having(state.scores[trial], self._metric)
        if not scores:
            return None
        last = scores[-1][1][self._metric]
        return last if isfinite(last) else None


def _opened(path: Path, name: str, mode: str) -> tuple[Any, Any]:
    """Optuna's study in that file, made if it is not there; and its storage."""
    storages = optuna().storages
    file = storages.journal.JournalFileBackend(str(path))
    storage = storages.JournalStorage(file)
    direction = "minimize"
    if mode == "max":
        direction = "maximize"
    study = optuna().create_study(
        storage=storage, study_name=name, direction=direction, load_if_exists=True
    )
    return study, storage


def _release(lock: Path) -> None:
    """Take Optuna's lock of the file away if nobody holds it: Optuna might wait without an end.

    Whoever holds it does so for a moment, as long as a write takes.
    """
    stamp = _stamp(lock)
    deadline = monotonic() + LEFT
    while stamp is not None and _stamp(lock) == stamp:
        if monotonic() >= deadline:
            remove_file(lock)
            warn(f"a killed process left the lock {lock}; it is taken away")
        sleep(0.05)


def _stamp(lock: Path) -> tuple[int, int] | None:
    """What tells one lock from the next one; None: there is none."""
    try:
        status = os.lstat(lock)
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_mtime_ns


def _touched(entries: Iterable[Entry]) -> dict[TrialId, None]:
    """The trials that these entries are about, as far as Optuna knows of such things."""
    touched: dict[TrialId, None] = {}
    for entry in entries:
        if isinstance(entry, Submitted):
            touched[entry.trial.id] = None
        elif isinstance(entry, (Evaluated, Finished, Failed, Retired)):
            touched[entry.trial] = None
    return touched
