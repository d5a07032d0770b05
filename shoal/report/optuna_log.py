"""The study as an Optuna study, in Optuna's own journal file: `optuna-dashboard FILE` shows it while it runs.

Written through Optuna's storage, a subscriber of moments. Trials carry their Shoal name as the user attribute "trial".
"""

from collections.abc import Mapping
from math import isfinite
from pathlib import Path
from typing import Any

from shoal.core.event import Entry, Evaluated, Failed, Finished, Retired, Submitted
from shoal.core.state import State
from shoal.core.trial import Seconds, TrialId
from shoal.search.optuna_space import optuna, parameters, quietly
from shoal.search.space import Space, validated


class OptunaLog:
    """Keeps the file at `path` as the journal is, also across runs.

    Evaluations become intermediate values at whole epochs. A trial that met `epochs` (what its searcher has as max_epochs) is
    complete, with its last score for a value; a failed one, or one whose score is not finite, failed; a retired one pruned.
    One that finished before `epochs` may be extended, which Optuna does not know: it runs until the study is over, then
    it is pruned. Without `epochs` all that finished are complete when the study is over.

    Raises:
        ValueError: Optuna is not installed, or the study has no metric.
    """

    def __init__(
        self, path: Path, name: str, space: Space | None, metric: str | None, mode: str, epochs: float | None = None
    ) -> None:
        if metric is None:
            raise ValueError("Optuna's log needs the study's metric: create the study with metric=")
        self._space, self._metric, self._epochs = validated(space or {}), metric, epochs
        self._states = optuna().trial.TrialState
        journal = optuna().storages.journal
        with quietly():
            storage = optuna().storages.JournalStorage(journal.JournalFileBackend(str(path)))
            direction = "maximize" if mode == "max" else "minimize"
            study = optuna().create_study(storage=storage, study_name=name, direction=direction, load_if_exists=True)
        self._storage, self._study = storage, storage.get_study_id_from_name(name)
        there = [(trial.user_attrs.get("trial"), trial) for trial in study.get_trials(deepcopy=False)]
        self._ids: dict[TrialId, int] = {name: trial._trial_id for name, trial in there if name is not None}
        self._steps = {name: dict(trial.intermediate_values) for name, trial in there}
        self._over = {name for name, trial in there if trial.state.is_finished()}
        self._state: State | None = None

    def __call__(self, now: Seconds, entries: tuple[Entry, ...], state: State) -> None:
        touched: dict[TrialId, None] = {}
        if self._state is None:  # what an earlier run did after it last wrote here
            touched.update(dict.fromkeys(state.known))
        for entry in entries:
            if isinstance(entry, Submitted):
                touched[entry.trial.id] = None
            elif isinstance(entry, (Evaluated, Finished, Failed, Retired)):
                touched[entry.trial] = None
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
        with quietly():
            for trial in [t for t in state.ended if t not in self._over]:
                self._end(trial, state, self._states.COMPLETE if self._epochs is None else self._states.PRUNED)

    def _bring(self, trial: TrialId, state: State) -> None:
        """Write what is not there yet."""
        if trial not in self._ids:
            self._create(trial, state.known[trial].config)
        steps = self._steps.setdefault(trial, {})
        for epoch, values in state.scores[trial]:
            step, value = round(epoch), values.get(self._metric)
            if value is not None and steps.get(step) != value:
                self._storage.set_trial_intermediate_value(self._ids[trial], step, value)
                steps[step] = value
        ended = state.ended.get(trial)
        if ended is not None and ended.startswith("failed"):
            self._end(trial, state, self._states.FAIL)
        elif ended == "retired":
            self._end(trial, state, self._states.PRUNED)
        elif ended == "finished" and self._epochs is not None:
            size = sum(state.shards.values())
            if state.known[trial].samples >= self._epochs * size - 1e-6:
                self._end(trial, state, self._states.COMPLETE)

    def _create(self, trial: TrialId, config: Mapping[str, Any]) -> None:
        params, kinds = parameters(self._space, config) or ({}, {})
        rest = {name: value for name, value in config.items() if name not in params}
        made = optuna().trial.create_trial(
            state=self._states.RUNNING, params=params, distributions=kinds, user_attrs={**rest, "trial": trial}
        )
        self._ids[trial] = self._storage.create_new_trial(self._study, template_trial=made)

    def _end(self, trial: TrialId, state: State, how: Any) -> None:
        last = state.scores[trial][-1][1].get(self._metric) if state.scores[trial] else None
        sound = last is not None and isfinite(last)
        if not sound and how == self._states.COMPLETE:
            how = self._states.FAIL
        values = [last] if sound and how != self._states.FAIL else None
        self._storage.set_trial_state_values(self._ids[trial], how, values)
        self._over.add(trial)
