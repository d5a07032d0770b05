"""What a study does as its run goes by: per-trial logs, and the retention of checkpoints. Subscribers of moments."""

import warnings
from collections.abc import Iterable
from math import inf, isfinite, nan
from pathlib import Path
from typing import Protocol

from shoal.core.event import Entry, Evaluated, Failed, Fell, Finished, Kept, Retired, Submitted
from shoal.core.state import State
from shoal.core.trial import Seconds, TrialId
from shoal.engine.journal import Line

GIB = 1024**3
LITTLE = 5.0  # seconds of slots: that they stood idle so long is not worth a word


class Weights(Protocol):
    """What retention needs of the place where checkpoints lie."""

    def names(self) -> tuple[str, ...]: ...

    def size(self, name: str) -> int: ...

    def delete(self, name: str) -> None: ...


class Logs:
    """Appends what happens to each trial to `trials/<id>/log.txt`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, now: Seconds, entries: tuple[Entry, ...], state: State) -> None:
        for entry in entries:
            line = _line(entry)
            if line is not None:
                place = self.folder / line[0]
                place.mkdir(parents=True, exist_ok=True)
                with (place / "log.txt").open("a") as log:
                    log.write(f"{now:10.2f} s  {line[1]}\n")


def _line(entry: Entry) -> tuple[TrialId, str] | None:
    match entry:
        case Evaluated(trial, epoch, values):
            text = f"epoch {epoch:g}: " + ", ".join(f"{name} {value:.6g}" for name, value in values.items())
        case Kept(trial, visits, samples, name):
            text = f"kept as {name} after {visits} visits, {samples:g} samples"
        case Fell(trial, visits, samples):
            text = f"back to visit {visits}, {samples:g} samples: newer work was lost or void"
        case Failed(trial, why):
            text = f"failed: {why}"
        case Finished(trial) | Retired(trial):
            text = type(entry).__name__.lower()
        case _:
            return None
    return trial, text


class Retention:
    """Keeps the last and the best durable state of each trial, within a limit for the whole study.

    The best is the kept state with the best `metric`. Over the limit (GiB) it deletes the best-but-not-last states,
    those of the worst trials first, then the last states of failed and retired trials, the worst first; a finished trial's
    final weights, a running trial's newest state and that of the study's best trial are never deleted: it warns instead.
    Nor is the state that another trial starts from, until that one has its own. Called after the journal's sync.
    """

    def __init__(self, vault: Weights, metric: str | None, mode: str, limit_gb: float | None = None) -> None:
        self.vault = vault
        self.metric = metric or ""  # which no value is named
        self.sign = 1.0 if mode == "max" else -1.0
        self.limit = None if limit_gb is None else limit_gb * GIB
        self.last: dict[TrialId, str] = {}
        self.best: dict[TrialId, tuple[float, str]] = {}
        self.sizes: dict[str, int] = {}
        self._shards: dict[TrialId, int] = {}
        self._scored: dict[TrialId, tuple[int, float]] = {}  # by each trial's newest evaluation: after so many visits
        self._warned = False

    def restore(self, lines: Iterable[Line]) -> None:
        """Learn from the journal what is kept, and delete what no entry names (a crash came between)."""
        self.learn(lines)
        named = self._named()
        for name in self.vault.names():
            if name in named:
                self.sizes[name] = self.vault.size(name)
            else:
                self.vault.delete(name)

    def learn(self, lines: Iterable[Line]) -> None:
        """Learn from the journal what is kept."""
        for _, entry in lines:
            self._learn(entry)

    def __call__(self, now: Seconds, entries: tuple[Entry, ...], state: State) -> None:
        before: set[str] = set()
        kept = False
        for entry in entries:
            if isinstance(entry, Kept):
                kept = True
                before |= self._named(entry.trial)
                self.sizes[entry.name] = self.vault.size(entry.name)
            self._learn(entry)
        for name in sorted(before):
            self._delete(name)
        if kept and self.limit is not None:
            self._fit(state)

    def _learn(self, entry: Entry) -> None:
        if isinstance(entry, Submitted):
            self._shards[entry.trial.id] = len(entry.trial.shards)
            self._borrow(entry)
        elif isinstance(entry, Evaluated):
            visits = round(entry.epoch * self._shards.get(entry.trial, 1))
            self._scored[entry.trial] = visits, self.sign * entry.values.get(self.metric, nan)
        elif isinstance(entry, Kept):
            self.last[entry.trial] = entry.name
            visits, score = self._scored.get(entry.trial, (0, nan))
            new = visits == entry.visits and isfinite(score)  # a state may become durable when the trial is further already
            if new and (entry.trial not in self.best or score >= self.best[entry.trial][0]):
                self.best[entry.trial] = score, entry.name

    def _borrow(self, entry: Submitted) -> None:
        """A trial that starts from another's newest state has that one for its own."""
        start = entry.trial.start
        if start is not None and start[0] in self.last:
            self.last.setdefault(entry.trial.id, self.last[start[0]])

    def _named(self, trial: TrialId | None = None) -> set[str]:
        if trial is not None:
            best = {self.best[trial][1]} if trial in self.best else set()
            return best | ({self.last[trial]} if trial in self.last else set())
        return {*self.last.values(), *(name for _, name in self.best.values())}

    def _delete(self, name: str) -> None:
        """Unless it is the last or the best of some trial."""
        if name in self._named():
            return
        self.vault.delete(name)
        self.sizes.pop(name, None)

    def _worth(self, state: State, trial: TrialId) -> float:
        """The last score, the larger the better; of a failed trial, and of one without, the least."""
        scores = state.scores.get(trial, ())
        score = self.sign * scores[-1][1].get(self.metric, nan) if scores else nan
        return score if isfinite(score) and not state.ended.get(trial, "").startswith("failed") else -inf

    def _fit(self, state: State) -> None:
        assert self.limit is not None
        spare = sorted((score, trial) for trial, (score, name) in self.best.items() if self.last.get(trial) != name)
        worth = {t: self._worth(state, t) for t in self.last}
        top = max(worth, key=worth.__getitem__)  # whose model is the study's best
        lost = [t for t in self.last if state.ended.get(t, "finished") != "finished" and (t != top or worth[t] == -inf)]
        lost.sort(key=worth.__getitem__)
        while sum(self.sizes.values()) > self.limit and (spare or lost):
            if spare:
                trial = spare.pop(0)[1]
                self._delete(self.best.pop(trial)[1])
            else:
                trial = lost.pop(0)
                self.best.pop(trial, None)
                self._delete(self.last.pop(trial))
        if sum(self.sizes.values()) > self.limit and not self._warned:
            self._warned = True
            warnings.warn(
                f"checkpoints take {sum(self.sizes.values()) / GIB:.3g} GiB, more than max_checkpoint_gb={self.limit / GIB:g}: "
                "what is left are final weights and newest states, which are not deleted; raise the limit or retire trials",
                stacklevel=2,
            )


class Idleness:
    """Warns, once, when slots had nothing to do for a tenth of the time and then the searcher came with more trials."""

    def __init__(self) -> None:
        self._since: Seconds | None = None
        self._free = self._slots = 0
        self._idle = self._all = 0.0  # seconds of slots
        self._warned = False

    def __call__(self, now: Seconds, entries: tuple[Entry, ...], state: State) -> None:
        if self._since is not None:
            self._idle += (now - self._since) * self._free
            self._all += (now - self._since) * self._slots
        late = self._idle > max(0.1 * self._all, LITTLE) and any(isinstance(entry, Submitted) for entry in entries)
        if late and not self._warned:
            self._warned = True
            warnings.warn(
                f"slots stood idle for {100 * self._idle / self._all:.0f} % of the time so far, since the searcher had fewer "
                "trials than slots (a rung smaller than that?): asha waits for no rung, hyperband(concurrent=True) fills the "
                "gaps, max_concurrent= may be too small, or fewer slots would do",
                stacklevel=2,
            )
        waiting = len(state.trials) > len(state.running)
        self._since, self._slots = now, len(state.slots)
        self._free = 0 if waiting else self._slots - len(state.busy)
