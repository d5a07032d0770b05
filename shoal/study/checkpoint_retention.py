"""Which checkpoints stay: the last two and the best of each trial, within a limit."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from math import inf, isfinite, nan
from typing import Any, Protocol

from shoal.core.cluster import RECIPE
from shoal.core.errors import warn
from shoal.core.event import Entry, Evaluated, Failed, Fell, Finished, Kept, Retired, Submitted
from shoal.core.state import State, having
from shoal.core.trial import Seconds, TrialId
from shoal.core.visits import EPS
from shoal.engine.journal import Line
from shoal.engine.snapshot import History, Snapshot
from shoal.train.recipe.recipes import Aim

GIB = 1024**3


class Weights(Protocol):
    """What retention needs of the place where checkpoints lie."""

    def names(self) -> tuple[str, ...]: ...

    def size(self, name: str) -> int: ...

    def delete(self, name: str) -> None: ...

    def check_there(self) -> None: ...


class Retention:
    """Keeps the last and the best durable state of each trial, within a limit for the whole study.

    As long as a trial trains, the state before the last one stays, too: the trial goes on from
    there if the last one is damaged.

    The best state is the kept one with the best score. `aim`: a trial's metric and mode. Over the
    limit (GiB) it deletes the states before the last ones; then states that are the best but not
    the last, those of the worst trials first; then the last states of failed and retired trials,
    the worst first. It never deletes a finished trial's final weights, a running trial's newest
    state, or that of the study's best trial: it warns instead. Nor does it delete the state that
    another trial starts from, until that trial has its own. Called after the journal's sync.
    """

    def __init__(self, vault: Weights, aim: Aim, limit_gb: float | None = None) -> None:
        self.vault = vault
        self._aim = aim
        self.limit = inf if limit_gb is None else limit_gb * GIB
        self.last: dict[TrialId, str] = {}
        self.former: dict[TrialId, str] = {}
        self._visits: dict[TrialId, int] = {}  # of the last state
        self.best: dict[TrialId, tuple[float, str]] = {}
        self.sizes: dict[str, int] = {}  # bytes
        self._total = 0  # bytes
        # How often the state of that name is the last, former or best one of a trial.
        self._uses: Counter[str] = Counter()
        self._shards: dict[TrialId, int] = {}
        self._configs: dict[TrialId, Mapping[str, Any]] = {}
        # Of each trial's newest evaluation: after how many visits, and its score.
        self._scored: dict[TrialId, tuple[int, float]] = {}
        self._warned = False

    def restore(self, past: History, lines: Callable[[], Iterable[Line]]) -> None:
        """Learn from the journal what is kept, and delete the states that no entry names.

        There are such states if a crash came between writing a state and its entry. Those of
        trials that the study does not know are not its own, and stay.
        """
        self.learn_past(past, lines)
        for name in self.vault.names():
            if self._uses[name]:
                self._measure(name)
            elif name.partition("/")[0] in self._configs:
                self.vault.delete(name)

    def learn(self, lines: Iterable[Line]) -> None:
        """Learn from lines of the journal what is kept."""
        for _, entry in lines:
            self._learn(entry)

    def learn_past(self, past: History, lines: Callable[[], Iterable[Line]]) -> None:
        """Learn from the journal's history what is kept.

        `lines`: reads it all, if its snapshot says too little: if no run wrote that, or if trials
        were ranked otherwise then.
        """
        if past.since is None or self._recall(past.since):
            self.learn(past.tail)
        else:
            self.learn(lines())

    def learnt(self) -> Any:
        """What was learnt so far, as JSON can hold it: for a snapshot."""
        return {
            "aims": self._aims(),
            "last": self.last,
            "former": self.former,
            "visits": self._visits,
            "best": self.best,
            "scored": self._scored,
        }

    def _recall(self, snapshot: Snapshot) -> bool:
        """Take over what was learnt until the snapshot was written; returns if that is enough."""
        known = snapshot.state.known.values()
        self._shards = {trial.id: len(trial.shards) for trial in known}
        self._configs = {trial.id: trial.config for trial in known}
        learnt = snapshot.learnt
        if learnt is None or learnt["aims"] != self._aims():
            return False
        self.last = learnt["last"]
        self.former = learnt["former"]
        self._visits = learnt["visits"]
        self.best = {trial: (score, name) for trial, (score, name) in learnt["best"].items()}
        self._scored = {
            trial: (visits, score) for trial, (visits, score) in learnt["scored"].items()
        }
        for names in (self.last, self.former):
            self._uses.update(names.values())
        self._uses.update(name for _, name in self.best.values())
        return True

    def _aims(self) -> list[str]:
        """The metrics and modes by which the trials of each recipe are ranked."""
        configs = {config.get(RECIPE): config for config in self._configs.values()}
        return sorted(f"{name}: {self._aim(each)}" for name, each in configs.items())

    def __call__(self, now: Seconds, entries: tuple[Entry, ...], state: State) -> None:
        named_before: set[str] = set()
        kept = False
        for entry in entries:
            if isinstance(entry, (Kept, Fell, Finished, Failed, Retired)):
                _, best = self.best.get(entry.trial, (nan, None))
                names = (self.former.get(entry.trial), self.last.get(entry.trial), best)
                named_before |= {name for name in names if name is not None}
            if isinstance(entry, Kept):
                kept = True
                self._measure(entry.name)
            self._learn(entry)
        for name in sorted(named_before):
            self._delete(name)
        if kept and self._total > self.limit:
            self._fit(state)

    def _learn(self, entry: Entry) -> None:
        if isinstance(entry, Submitted):
            self._shards[entry.trial.id] = len(entry.trial.shards)
            self._configs[entry.trial.id] = entry.trial.config
            start = entry.trial.start
            # One that starts from another one's newest state has that state for its own.
            if start is not None and start[0] in self.last and entry.trial.id not in self.last:
                self._keep_last(entry.trial.id, self.last[start[0]], start[1])
        elif isinstance(entry, Evaluated):
            passed = entry.epoch * self._shards.get(entry.trial, 1)
            visits = round(passed)
            if abs(passed - visits) > EPS:
                return  # within a visit no state becomes durable
            score = self._score(entry.trial, entry.values)
            self._scored[entry.trial] = visits, score
        elif isinstance(entry, Kept):
            self._keep_last(entry.trial, entry.name, entry.visits)
            visits, score = self._scored.get(entry.trial, (0, nan))
            # A state may become durable when the trial has been evaluated again already.
            if visits == entry.visits and isfinite(score):
                self._keep_better(entry.trial, score, entry.name)
        elif isinstance(entry, Fell):
            if entry.visits < self._visits.get(entry.trial, 0):
                self._lose_last(entry.trial, entry.visits)
        elif isinstance(entry, (Finished, Failed, Retired)):
            self._drop_former(entry.trial)

    def _keep_last(self, trial: TrialId, name: str, visits: int) -> None:
        if trial in self.last and self._visits[trial] < visits:
            self._drop_former(trial)
            self.former[trial] = self.last.pop(trial)
        self._drop_last(trial)
        self.last[trial] = name
        self._visits[trial] = visits
        self._uses[name] += 1

    def _lose_last(self, trial: TrialId, visits: int) -> None:
        """Drop the last state, which cannot be read; the one before, if any, takes its place."""
        if trial in self.best and self.best[trial][1] == self.last.get(trial):
            self._drop_best(trial)
        self._drop_last(trial)
        self._visits[trial] = visits
        if trial in self.former:
            self.last[trial] = self.former.pop(trial)

    def _keep_better(self, trial: TrialId, score: float, name: str) -> None:
        if trial in self.best:
            if score < self.best[trial][0]:
                return
            self._drop_best(trial)
        self.best[trial] = score, name
        self._uses[name] += 1

    def _drop_last(self, trial: TrialId) -> None:
        if trial in self.last:
            self._uses[self.last.pop(trial)] -= 1

    def _drop_former(self, trial: TrialId) -> None:
        if trial in self.former:
            self._uses[self.former.pop(trial)] -= 1

    def _drop_best(self, trial: TrialId) -> None:
        if trial in self.best:
            self._uses[self.best.pop(trial)[1]] -= 1

    def _measure(self, name: str) -> None:
        self._total -= self.sizes.get(name, 0)
        try:
            self.sizes[name] = self.vault.size(name)
        except FileNotFoundError:
            # Whether one is sound is seen when a trial is to go on from it.
            self.vault.check_there()
            self.sizes[name] = 0
        self._total += self.sizes[name]

    def _delete(self, name: str) -> None:
        """Delete a state, unless it is one of the last two or the best of some trial."""
        if self._uses[name]:
            return
        del self._uses[name]
        self.vault.delete(name)
        self._total -= self.sizes.pop(name, 0)

    def _score(self, trial: TrialId, values: Mapping[str, float]) -> float:
        """The value of the trial's metric, the larger the better; nan without one."""
        metric, mode = self._aim(self._configs.get(trial, {}))
        score = values.get(metric or "", nan)  # no value has the empty name
        return score if mode == "max" else -score

    def _worth(self, state: State, trial: TrialId) -> float:
        """The last score, the larger the better; -inf without one, and of a failed trial."""
        metric, _ = self._aim(self._configs.get(trial, {}))
        scores = having(state.scores.get(trial, ()), metric)
        if not scores or state.ended.get(trial, "").startswith("failed"):
            return -inf
        score = self._score(trial, scores[-1][1])
        if not isfinite(score):
            return -inf
        return score

    def _fit(self, state: State) -> None:
        """Delete states until the limit is met, or nothing may be deleted."""
        for trial in list(self.former):
            if self._total <= self.limit:
                return
            name = self.former[trial]
            self._drop_former(trial)
            self._delete(name)
        # Best states that are not the last ones, those of the worst trials first.
        spare = sorted(
            (score, trial)
            for trial, (score, name) in self.best.items()
            if self.last.get(trial) != name
        )
        for _, trial in spare:
            if self._total <= self.limit:
                return
            name = self.best[trial][1]
            self._drop_best(trial)
            self._delete(name)
        for trial in self._failed_or_retired(state):
            if self._total <= self.limit:
                return
            name = self.last[trial]
            self._drop_best(trial)
            self._drop_last(trial)
            self._delete(name)
        if self._total > self.limit:
            self._warn()

    def _failed_or_retired(self, state: State) -> list[TrialId]:
        """Failed and retired trials, the worst first, without the study's best trial."""
        worth = {trial: self._worth(state, trial) for trial in self.last}
        top = max(worth, key=worth.__getitem__)
        trials = []
        for trial in self.last:
            gone = state.ended.get(trial, "finished") != "finished"
            if gone and (trial != top or worth[trial] == -inf):
                trials.append(trial)
        return sorted(trials, key=worth.__getitem__)

    def _warn(self) -> None:
        if self._warned:
            return
        self._warned = True
        warn(
            f"checkpoints take {self._total / GIB:.3g} GiB, more than "
            f"max_checkpoint_gb={self.limit / GIB:g}: what is left are final weights and newest "
            "states, which are not deleted; raise the limit or stop trials"
        )
