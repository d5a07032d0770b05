"""The user's door: create a study, optimize, look at what came out."""

import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from math import isfinite, nan
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal import control, searchers, weights, wired, wiring
from shoal.candidates import is_auto
from shoal.core.event import Commanded, Entry, Remembered
from shoal.core.ports import Policy, Profile, Searcher
from shoal.core.state import Score, State, fold
from shoal.core.trial import Samples, TrialId, Value
from shoal.engine.journal import Journal, Line, replay
from shoal.engine.run import reopened, run
from shoal.folder import Folder, StudyError, last_head
from shoal.inbox import Inbox, Reachable
from shoal.profile.given import Given
from shoal.watch import Idleness, Logs, Retention

if TYPE_CHECKING:
    from torch import nn

    from shoal.train.recipe import Recipe


class StudyPaused(RuntimeError):  # noqa: N818 - a state of the study, as its user names it
    """Something outside the trials went wrong (disk, data, folder): durable work is kept; mend it and run again."""


@dataclass(frozen=True, slots=True)
class TrialResult:
    """What came of one trial. `value`: its last score; `best_value`: the best over its epochs; nan without a score."""

    id: TrialId
    config: Mapping[str, Value]
    status: str  # "running", "finished", "retired" or "failed: why"
    epochs: float
    samples: Samples
    value: float
    best_value: float
    scores: tuple[Score, ...]  # (epoch, {metric: value}), oldest first


class Study:
    """A search: a recipe, where it is stored, and what is to be optimized. Made by `create_study` or `load_study`."""

    def __init__(
        self, recipe: "Recipe", folder: Folder, metric: str | None, mode: str, space: Mapping[str, Any] | None, seed: int
    ) -> None:
        self.recipe = recipe
        self.folder = folder
        self.metric = metric
        self.mode = mode
        self.search_space = space
        self.seed = seed
        self._state: tuple[int, State] | None = None

    def optimize(
        self,
        searcher: Searcher[Any] | str | None = None,
        policy: Policy[Any] | str = "auto",
        *,
        num_samples: int | None = None,
        max_epochs: int | None = None,
        max_concurrent: int | None = None,
        widths: tuple[int, int] | None = None,
        priority: float | None = None,
        timeout: float | None = None,
        profile: Profile | str | Path | None = None,
        progress: bool = True,
        optuna_log: bool | str | Path = False,
        **options: Any,
    ) -> None:
        """Train until every trial is done, going on where a former call or process stopped.

        `searcher`: a searcher, or its name, as "asha" or "hyperband(reduction_factor=4)"; what it leaves open (None) is
        the study's or given here. By default a grid where the search space is one, else random with `num_samples`.
        `widths`: the fewest and most slots of each trial (default: one); `priority`: of each (default: 1); both with grid and
        random search.
        `policy`: a policy, or the name of one: "fifo", "hop", "explore(seconds=60)" …; "auto" simulates some and follows the
        quickest, "auto:fifo,hop-lrw" of those named. `timeout`: seconds, after which units under way end and the study stops;
        call again to go on. `profile`: given speeds and costs: a TOML file (what it leaves open is measured), or a Table.
        `optuna_log`: write the study as Optuna's journal, too (True: optuna.log in the study's folder), for optuna-dashboard.
        `options`: see `wiring.Options` (backend, slots, threads, device, address, copies, validate_every, checkpoint_every,
        max_checkpoint_gb, data_memory_gb, state_memory_gb, slot_memory_gb, fuse, feeders, stream_memory_gb, stream_samples).

        Raises:
            StudyError: the study is open elsewhere, its data changed, or an argument is wrong.
            ValueError: no searcher or policy has that name or those arguments, or evaluations lack the metric.
            PlanError: the backend cannot do what the policy asks for.
            Stalled: work is left, but the policy starts none of it.
            StudyPaused: disk, data or folder failed; durable work is kept.
        """
        chosen = wiring.Options.of(**options)
        epochs = wiring.epochs_of(self, max_epochs)
        given = {"num_samples": num_samples, "max_epochs": epochs, "max_concurrent": max_concurrent, "widths": widths}
        given["priority"] = priority
        search = searchers.searcher_of(self, searcher, **given)
        wiring.check_widths(getattr(search, "widths", widths), chosen)
        self._run(search, policy, chosen, timeout, profile, progress, optuna_log)

    def resume(self, *, timeout: float | None = None, progress: bool = True) -> None:
        """Go on as the last run was set up: same searcher, policy, backend and options, read from the journal.

        Raises:
            StudyError: nothing was run yet, or it was set up with the user's own searcher or policy objects.
        """
        head = last_head(self.folder.lines())
        if not head:
            raise StudyError(f"nothing to resume in {self.folder.path}: no run was begun; use optimize()")
        search, rule, chosen = wiring.rebuild(head)
        self._run(search, rule, chosen, timeout, head.get("profile"), progress)

    def _run(
        self,
        search: Searcher[Any],
        policy: Policy[Any] | str,
        chosen: wiring.Options,
        timeout: float | None,
        profile: Profile | str | Path | None,
        progress: bool,
        optuna_log: bool | str | Path = False,
    ) -> None:
        self.folder.make()
        with pausing(self.folder), self.folder.lock():
            data = wiring.data_of(self.recipe)
            rule = wiring.policy_of(policy, chosen, data, self.seed)
            searchers.check_scores(search, self.recipe, data)
            search = searchers.per_slot(search, rule, chosen)
            given = wiring.profile_of(profile)
            control.take(self)
            lines = self.folder.lines()
            before, since = last_head(lines), lines[-1].time if lines else 0.0
            head = wiring.head(self, data, search, policy if is_auto(policy) else rule, chosen, before) | {
                "profile": str(profile) if isinstance(profile, (str, Path)) else None,
                "given": wiring.given_rows(given),
            }
            state = replay(lines)
            wiring.check_same(before, head, {name for scores in state.scores.values() for _, values in scores for name in values})
            wired.check_place(self, state)
            state = self._begin(state, data.sizes, head, since, before)
            with ExitStack() as open_:
                made = wired.backend(self, chosen, data, state, since, None if isinstance(given, Given) else given)
                open_.callback(made.close)
                retention = Retention(made.vault, self.metric, self.mode, chosen.max_checkpoint_gb)
                retention.restore(lines)
                watchers: list[Any] = [retention, Logs(self.folder.path / "trials"), Idleness()]
                watchers += [*wiring.progress(progress, self.metric, self.mode), *wiring.optuna_log(self, optuna_log, search)]
                for watcher in watchers:
                    open_.callback(getattr(watcher, "close", lambda: None))
                journal = Journal(self.folder.journal)
                open_.callback(journal.close)
                open_.enter_context(stopping(made.backend.tell))
                reached = Reachable(made.backend, Inbox(self.folder.path), control.meaning(self), state)
                watchers.append(open_.enter_context(reached))
                deadline = None if timeout is None else since + timeout
                run(search, rule, reached, wiring.believer(given), journal, state, deadline, watchers)

    def _begin(
        self, state: State, shards: Mapping[Any, int], head: Mapping[str, Any], since: float, before: Mapping[str, Any]
    ) -> State:
        """Write down that a run begins; the state after it."""
        entries: list[Entry] = list(reopened(state, shards, head))
        if before and before.get("policy") != head["policy"]:
            entries.append(Remembered("policy", None))
        self.folder.save_recipe(self.recipe)
        journal = Journal(self.folder.journal)
        for entry in entries:
            journal.append(since, entry)
        journal.close()
        return fold(state, entries)

    # -- beside the searcher -----------------------------------------------------------------------------------------------

    def enqueue(
        self,
        config: Mapping[str, Any],
        *,
        max_epochs: float | None = None,
        widths: tuple[int, int] | None = None,
        priority: float = 1.0,
    ) -> TrialId:
        """Add a trial of one's own, which is trained beside the searcher's; its name.

        `widths`: its fewest and most slots (default: one). `priority`: against others, for policies that look at it.

        While the study runs, here or in another process, the run takes it in within about a second; else the next one does.

        Raises:
            StudyError: the study has not begun, or no slots could have these widths.
        """
        return control.enqueue(self, config, max_epochs, widths, priority)

    def clone(
        self, trial: str, modify: Mapping[str, Any] | None = None, *, warm_start: bool = True, max_epochs: float | None = None
    ) -> TrialId:
        """Add a copy of a trial with some of its configuration changed; with `warm_start` from its newest durable state.

        `max_epochs`: in all, those of the state included; None: as long as the trial itself. Also while it runs, as `enqueue`.

        Raises:
            StudyError: there is no such trial or no such state, nothing would be left to train, or as for `enqueue`.
        """
        return control.clone(self, TrialId(trial), modify or {}, warm_start, max_epochs)

    def stop(self, trial: str | None = None) -> None:
        """Take a trial out before its end; nothing happens to one that has ended. None: end the run, as Ctrl-C does.

        Raises:
            StudyError: there is no such trial, nobody runs the study, or as for `enqueue`.
        """
        control.stop(self, None if trial is None else TrialId(trial))

    # -- what came out -------------------------------------------------------------------------------------------------

    @property
    def state(self) -> State:
        """What the journal says now."""
        size = self.folder.journal.stat().st_size if self.folder.journal.exists() else 0
        if self._state is None or self._state[0] != size:
            self._state = size, replay(self.folder.lines())
        return self._state[1]

    @property
    def trials(self) -> list[TrialResult]:
        """All trials, in the order of their submission."""
        return [self._result(trial) for trial in self.state.known]

    @property
    def best_trial(self) -> TrialResult:
        """The trial with the best last score; of equal ones the first.

        Raises:
            StudyError: no metric was named, or no trial has a score yet.
        """
        return self._ranked()[0]

    def _ranked(self) -> list[TrialResult]:
        if self.metric is None:
            raise StudyError("the study has no metric to rank by: create it with metric= (and mode=)")
        sign = -1.0 if self.mode == "max" else 1.0
        scored = [x for x in self.trials if isfinite(x.value) and not x.status.startswith("failed")]
        if not scored:
            raise StudyError(f"no trial has a score {self.metric!r} yet; {len(self.state.known)} trials are known")
        return sorted(scored, key=lambda x: sign * x.value)

    def _result(self, trial: TrialId) -> TrialResult:
        state = self.state
        known = state.known[trial]
        scores = state.scores[trial]
        values = [x[self.metric] for _, x in scores if self.metric in x] if self.metric else []
        best = (max if self.mode == "max" else min)(filter(isfinite, values), default=nan)
        epochs = len(state.visits[trial]) / max(len(known.shards), 1)
        status = state.ended.get(trial, "running")
        return TrialResult(trial, known.config, status, epochs, state.done[trial], values[-1] if values else nan, best, scores)

    def best_model(self) -> "nn.Module":
        """The best trial's model with its newest durable weights, in evaluation mode."""
        return self.load_model(self.best_trial)

    def models(self, top: int) -> list["nn.Module"]:
        """The models of the best `top` trials, best first."""
        return [self.load_model(trial) for trial in self._ranked()[:top]]

    def load_model(self, trial: TrialResult | TrialId | str, which: str = "last") -> "nn.Module":
        """A trial's model with its newest durable weights, or ("best") with the best of those that were kept.

        Raises:
            StudyError: there is no such trial, or nothing durable of it.
        """
        name = trial.id if isinstance(trial, TrialResult) else TrialId(trial)
        if name not in self.state.known:
            raise StudyError(f"there is no trial {name}; known: {', '.join(sorted(self.state.known)[:8])}")
        return weights.load_model(self, name, which)

    def trials_dataframe(self) -> Any:
        """One row a trial: id, status, value, best_value, epochs, samples, config.<name>, and each metric's last value."""
        try:
            import pandas
        except ImportError as error:
            raise StudyError("trials_dataframe() needs pandas: pip install pandas") from error
        rows = []
        for trial in self.trials:
            row: dict[str, Any] = {
                name: getattr(trial, name) for name in ("id", "status", "value", "best_value", "epochs", "samples")
            }
            row |= {f"config.{name}": value for name, value in trial.config.items()}
            row |= {f"last.{name}": value for name, value in (trial.scores[-1][1] if trial.scores else {}).items()}
            rows.append(row)
        return pandas.DataFrame(rows)

    def report(self, path: str | Path | None = None) -> Path:
        """Write the report, one HTML file made from the journal alone; by default into the study's folder."""
        from shoal import report

        return report.write(self.folder.journal, Path(path) if path else self.folder.report)

    def replay(self, trials: Sequence[str] | None = None) -> list[dict[str, Any]]:
        """Train trials (default: all with durable weights) again, alone, over their recorded visits; compare with what was kept.

        A row a trial: trial, visits, equal (bit for bit), difference (largest absolute), fused (trained in a fused pack, which
        rounds otherwise than training alone), random (as `fuse_random` allows, it may have drawn other numbers, too), wide (it
        had several slots, which rounds otherwise, too), agrees (equal, or fused or wide and as near as rounding leaves it).

        Raises:
            StudyError: there is nothing durable of a trial.
        """
        chosen = [TrialId(x) for x in trials] if trials else [x for x in self.state.known if x in self.state.kept]
        unknown = [x for x in chosen if x not in self.state.kept]
        if unknown:
            raise StudyError(f"nothing durable of trial {', '.join(unknown)}; of these there is: {', '.join(self.state.kept)}")
        return [weights.replayed(self, trial) for trial in chosen]

    def lines(self) -> list[Line]:
        """The journal."""
        return self.folder.lines()


def create_study(
    recipe: "Recipe",
    *,
    storage: str | Path | None = None,
    study_name: str | None = None,
    metric: str | None = None,
    mode: str | None = None,
    search_space: Mapping[str, Any] | None = None,
    checkpoints: str | None = None,
    load_if_exists: bool = False,
    seed: int = 0,
) -> Study:
    """A study of this recipe, in a new folder (or, with `load_if_exists`, going on in that folder).

    `storage`: the study's folder; by default runs/<study_name or the recipe's name>. `checkpoints`: another place for
    the weights, any fsspec URL. `metric`, `mode` ("min" or "max"), `search_space`: by default the recipe's attributes.

    Raises:
        StudyError: the folder holds a study already, cannot be written to, or an argument is wrong.
    """
    wiring.check_recipe_type(recipe)
    metric = metric or getattr(recipe, "metric", None)
    mode = mode or getattr(recipe, "mode", None) or "min"
    if mode not in ("min", "max"):
        raise StudyError(f'mode must be "min" or "max"; got {mode!r}')
    space = search_space if search_space is not None else getattr(recipe, "search_space", None)
    folder = Folder(storage or Path("runs") / (study_name or type(recipe).__name__.lower()), checkpoints)
    if folder.journal.exists() and not load_if_exists:
        raise StudyError(f"{folder.path} holds a study already: pass load_if_exists=True to go on with it, or another storage=")
    folder.go_on(last_head(folder.lines()))
    return Study(recipe, folder, metric, mode, space, seed)


def load_study(storage: str | Path) -> Study:
    """The study in that folder, as its last run left it. Its recipe is read from a pickle: open studies you trust.

    Raises:
        StudyError: there is none, or its recipe is not there.
    """
    folder = Folder(storage)
    folder.check_begun()
    head = last_head(folder.lines())
    folder.go_on(head)
    space = wiring.rebuild_space(head.get("space"))
    return Study(folder.load_recipe(head), folder, head.get("metric"), head.get("mode", "min"), space, int(head.get("seed", 0)))


@contextmanager
def pausing(folder: Folder) -> Iterator[None]:
    """Turn a failure of disk, data or folder into one clear StudyPaused."""
    from shoal.train.data import DataError

    try:
        yield
    except (OSError, DataError) as error:
        raise StudyPaused(
            f"the study in {folder.path} paused: {type(error).__name__}: {error}. What was durable is kept; mend this and run "
            "the same command or script again"
        ) from error


@contextmanager
def stopping(tell: Callable[[Commanded], None]) -> Iterator[None]:
    """Ctrl-C (and a scheduler's SIGTERM) stops the study at the next moment; a second one at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    signals = [signal.SIGINT, signal.SIGTERM]
    before = {number: signal.getsignal(number) for number in signals}

    def stop(number: int, _frame: Any) -> None:
        tell(Commanded("stop", signal.Signals(number).name))
        for name, former in before.items():
            signal.signal(name, former)

    for number in signals:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)
