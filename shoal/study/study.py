"""The user's door: create a study, optimize, look at what came out."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal import reporting
from shoal.core.errors import StudyError
from shoal.core.install import install
from shoal.core.ports import Policy, Searcher
from shoal.core.profile import Profile
from shoal.core.state import State
from shoal.core.trial import TrialId, is_whole, shown
from shoal.engine.files import whole as whole_path
from shoal.engine.journal import JournalError, Line
from shoal.options import Options, SearchArguments, check_names, check_used, check_widths
from shoal.reporting.format import plural, printable
from shoal.search import is_searcher, nested
from shoal.search.draws import check_needs
from shoal.study import control, results
from shoal.study.arguments import as_recipe, metric_of, mode_of, name_in, seed_in, usual_mode
from shoal.study.ask_tell import AskedTrial, AskTellLoop
from shoal.study.auto import check_policy
from shoal.study.backends import at_holders
from shoal.study.checks import check_one_slot
from shoal.study.code.recipe_file import code_name, function_in, parts_of
from shoal.study.code.recipe_store import UnreadRecipe, load
from shoal.study.folder import Folder
from shoal.study.head import Deciders, head_space, rebuild
from shoal.study.replay import replayed
from shoal.study.results import TrialResult, curve_rows, id_of
from shoal.study.run import Request, train
from shoal.study.schedules import recipe_for_study
from shoal.study.searcher import sample_count, searcher_of, widths_of
from shoal.study.setup import Setup, alone_in_process, checked_space, epochs_of, with_recipe_options
from shoal.train.function.recipe import FunctionRecipe, nothing

if TYPE_CHECKING:
    from torch import nn

    from shoal.train.data.data import Data
    from shoal.train.recipe.recipe import Recipe


# What users of other tools look for, and what to use here.
MEANT = {
    "fit": "optimize()",
    "run": "optimize()",
    "train": "optimize()",
    "tune": "optimize()",
    "results": "trials, or trials_dataframe()",
    "get_results": "trials, or trials_dataframe()",
    "get_dataframe": "trials_dataframe()",
    "best_result": "best_trial",
    "get_best_result": "best_trial",
    "get_best_trial": "best_trial",
    "best_trials": "best_trial, or best_by_recipe",
    "get_best_config": "best_config",
    "best_estimator_": "best_model()",
    "best_checkpoint": "best_model()",
    "get_best_model": "best_model()",
    "enqueue_trial": "enqueue(config)",
    "add_trial": "enqueue(config)",
    "direction": "setup.mode",
    "name": "folder.path.name",
    "study_name": "folder.path.name",
    "plot": "report()",
    "predict": "best_model(), with data().encode(file)",
}


# Where to give what Optuna's `ask` takes.
SPACE_FIRST = (
    'a study knows its space before it is asked: create_study(search_space={"lr": '
    "shoal.loguniform(1e-4, 1e-1)}), then study.ask(); or trial.suggest_float(…) on what it gives"
)


class Study:
    """A search: a recipe, where it is stored, and what is to be optimized.

    Made by `create_study` or `load_study`.

    Args:
        setup: the recipe, the folder, the metric and the search space.
        searcher: what `optimize` and `ask` use if they are given none.
    """

    def __init__(self, setup: Setup, searcher: Searcher[Any] | str | None = None) -> None:
        self.setup = setup
        self._searcher = searcher
        self._ask_tell: AskTellLoop | None = None
        # The journal's size in bytes when it was read, and its state.
        self._state: tuple[int, State] | None = None

    def __repr__(self) -> str:
        """Where the study lies, and how its trials stand; it loads no recipe."""
        folder = self.folder.path
        try:
            state = self.state
        except (ValueError, OSError, JournalError) as error:
            return f"<Study in {folder}: {printable(str(error))}>"
        ended = Counter(how.partition(": ")[0] for how in state.ended.values())
        counts = [f"{count} {how}" for how, count in sorted(ended.items())]
        stands = ", ".join([plural(len(state.known), "trial"), *counts])
        if not self.folder.size():
            stands = "not begun"
        aim = "" if self.setup.metric is None else f", {self.setup.mode} {self.setup.metric}"
        return f"<Study in {folder}: {stands}{printable(aim)}>"

    def __getattr__(self, name: str) -> Any:
        meant = MEANT.get(name)
        if meant is None:
            offered = [each for each in dir(self) if not each.startswith("_")]
            meant = " or ".join(get_close_matches(name, offered, 2))
        hint = ""
        if meant and not name.startswith("_"):
            hint = f": did you mean {meant}?"
        raise AttributeError(f"a study has no {name!r}{hint}")

    @property
    def recipe(self) -> "Recipe":
        """What is trained."""
        return self.setup.recipe

    @property
    def folder(self) -> Folder:
        """Where the study is stored."""
        return self.setup.folder

    @property
    def metric(self) -> str | None:
        """The name of the validation value to rank by."""
        return self.setup.metric

    # -- train -------------------------------------------------------------------------------------

    def optimize(
        self,
        searcher: Searcher[Any] | str | Callable[..., Any] | None = None,
        policy: Policy[Any] | Searcher[Any] | str | int = "auto",
        *,
        num_samples: int | None = None,
        n_trials: int | None = None,
        max_epochs: int | None = None,
        max_concurrent: int | None = None,
        widths: tuple[int, int] | None = None,
        priority: float | None = None,
        timeout: float | None = None,
        profile: Profile | str | Path | None = None,
        progress: bool = True,
        optuna_log: bool | str | Path = False,
        callbacks: Sequence[Any] = (),
        loggers: Sequence[Any] = (),
        retry_failed: bool = False,
        **options: Any,
    ) -> None:
        """Train until every trial is done, going on where a former call or process stopped.

        Ctrl-C or SIGTERM stops it at the end of the units under way, and it returns; `finished` is
        False then. A second one ends it at once.

        A study without a recipe takes a function in the searcher's place, and then a searcher or
        the number of trials in the policy's.

        Args:
            searcher: which trials there are: an object, or its name, as "asha" or
                "hyperband(reduction_factor=4)". None: `Grid` if the search space consists of grids,
                else `Random`. What a searcher leaves open (None) is the study's, or given here.
            policy: where and when they train: an object, or its name, as "fifo" or
                "auto:fifo,hop-lrw". "auto" simulates several and takes the quickest.
            num_samples: trials in all. With grids in the space, so many for each combination of
                their values; `Grid` needs none.
            n_trials: `num_samples`, as Optuna calls it.
            max_epochs: epochs of each trial. None: the recipe's.
            max_concurrent: trials with work left at any time. None: the searcher's own number.
            widths: the fewest and most slots of each trial, as (1, 4). None: one.
            priority: of each trial against others, for policies that look at it, by `Grid` and
                `Random`. None: 1.
            timeout: seconds after which the study stops, at the end of the units under way; call
                again to go on. None: no limit.
            profile: given speeds and costs, a Table or the path of a TOML file. What it leaves open
                is measured.
            progress: print how it goes.
            optuna_log: also write Optuna's journal, for optuna-dashboard. True: to optuna.log in
                the study's folder; or a path.
            callbacks: objects with some methods of `shoal.Callback`, or functions f(study, trial)
                to call when a trial ends.
            loggers: names ("csv", "tensorboard", "mlflow", "wandb"), perhaps with a place as
                "csv:logs", or objects.
            retry_failed: failed trials go on from their newest durable state, or begin again.
            **options: how the study runs: the fields of `shoal.options.Options`.

        Raises:
            StudyError: the study is open elsewhere, its data changed, an argument or the recipe is
                wrong, such as a searcher's name (then nothing was written), evaluations lack the
                metric, or every trial failed.
            PlanError: the backend cannot do what the policy asks for.
            Stalled: work is left, but the policy starts none of it.
            StudyPaused: disk, data or folder failed; durable work is kept.
        """
        user_searcher, user_policy, count = self._arguments_by_place(searcher, policy)
        chosen = Options.of(**with_recipe_options(self.recipe, options))
        arguments = SearchArguments(
            searcher=user_searcher or self._searcher,
            policy=user_policy,
            num_samples=sample_count(num_samples, n_trials, count),
            max_epochs=epochs_of(self.recipe, max_epochs),
            max_concurrent=max_concurrent,
            widths=widths,
            priority=priority,
            timeout=timeout,
            profile=profile,
            progress=progress,
            optuna_log=optuna_log or False,
            callbacks=callbacks or (),
            loggers=loggers or (),
            retry_failed=retry_failed,
        )
        complete = searcher_of(self.setup, arguments)
        for each in nested(complete):
            check_needs(each)
        trial_widths = widths_of(complete)
        check_widths(trial_widths, chosen)
        check_one_slot(self.recipe, trial_widths)
        check_used(chosen, widths)
        check_policy(arguments.policy)
        self._train(Request(Deciders(complete, arguments.policy, chosen), arguments, self))

    def resume(
        self,
        *,
        timeout: float | None = None,
        progress: bool = True,
        callbacks: Sequence[Any] = (),
        loggers: Sequence[Any] | None = None,
        retry_failed: bool = False,
    ) -> None:
        """Go on as the last run was set up: same searcher, policy, backend and options.

        Args:
            timeout: seconds after which the study stops, as for `optimize`.
            progress: print how it goes.
            callbacks: as for `optimize`. They are not kept: give them again.
            loggers: as for `optimize`. None: those that the last run had by name.
            retry_failed: failed trials go on from their newest durable state, or begin again.

        Raises:
            StudyError: nothing was run yet, or it was set up with the user's own searcher or policy
                objects.
        """
        former = self.folder.head()
        if not former:
            raise StudyError(
                f"nothing to resume in {self.folder.path}: no run was begun; use optimize()"
            )
        _ = self.recipe  # if it is refused, that is said before anything else
        arguments = SearchArguments(
            timeout=timeout,
            profile=former.get("profile"),
            progress=progress,
            callbacks=callbacks or (),
            loggers=(former.get("loggers") or ()) if loggers is None else loggers,
            retry_failed=retry_failed,
        )
        self.folder.check_places(former, *([] if loggers is None else ["loggers"]))
        self._train(Request(rebuild(former), arguments, self))

    def _train(self, request: Request) -> None:
        """Close a loop of the user's own, and run the study here."""
        if self._ask_tell is not None:
            self._ask_tell.close()
            self._ask_tell = None
        train(self.setup, request)

    def _arguments_by_place(self, searcher: Any, policy: Any) -> tuple[Any, Any, int | None]:
        """The searcher, the policy and the number of trials that `optimize` was given by place.

        After a function, which becomes what is trained, a searcher may follow, or the number of
        trials, as in Optuna.

        Raises:
            StudyError: the study has another function.
        """
        rest = self._without_function(searcher)
        if rest is searcher:
            return searcher, policy, None
        if isinstance(policy, int):
            return None, "auto", policy
        if is_searcher(policy):
            return policy, "auto", None
        return None, policy, None

    def _without_function(self, searcher: Any) -> Any:
        """The searcher that `optimize` was given; a function becomes what is trained.

        Raises:
            StudyError: the study has another function.
        """
        former = function_in(self.setup.recipe)
        no_function = isinstance(searcher, str | type) or hasattr(searcher, "propose")
        if no_function or former is None or not callable(searcher):
            return searcher
        recipe = as_recipe(searcher)
        if former is not nothing and former is not searcher:
            hint = ""
            if self.setup.recipe.draws and not recipe.draws:  # type: ignore[attr-defined]
                hint = " (if it is an objective, call its first argument trial)"
            raise StudyError(
                f"this study trains {code_name(self.setup.recipe)}: to train "
                f"{getattr(searcher, '__name__', searcher)!s}, create a study of it{hint}"
            )
        self.setup = replace(self.setup, source=recipe)
        return None

    # -- a loop of one's own -----------------------------------------------------------------------

    def ask(self, space: Any = None, *, open_first: bool = False, **others: Any) -> AskedTrial:
        """The next trial of a loop of your own, with its `config`; `tell` what came of it.

        Trials that were enqueued come first, then the searcher's. Trials that were asked for and
        not told before a crash stay open. Until all trials that were asked for are told, no other
        process can open the study.

        Args:
            space: not taken: the study has its space before it is asked. An error says so.
            open_first: trials that stayed open come before all others. False: tell them by number.
            **others: not taken: an error names them.

        Raises:
            StudyError: the study trains a recipe or `train(config)`, it is open elsewhere, the
                searcher has no more trials or cannot be asked so, or somebody stopped the study.
        """
        check_ask(space, others)
        return self._loop().ask(open_first)

    def tell(
        self,
        trial: "AskedTrial | TrialResult | str | int",
        values: float | Mapping[str, float] | None = None,
        state: Any = None,
    ) -> None:
        """What came of a trial: its final value, or several by name; it has ended.

        Args:
            trial: as `ask` gave it, or its name or number.
            values: its value of the study's metric, or {name: value}. None: only if it was pruned
                or failed.
            state: "complete", "pruned" or "fail", or Optuna's TrialState. None: complete.

        Raises:
            StudyError: there is no such trial, it was told already, it has no value of the study's
                metric, or as for `ask`.
            TypeError: the values are no numbers.
        """
        self._loop().tell(trial, values, state)

    def _loop(self) -> AskTellLoop:
        """The ask-and-tell loop of this object."""
        if self._ask_tell is None:
            self._ask_tell = AskTellLoop(self.setup, self._searcher)
        return self._ask_tell

    # -- what came out -----------------------------------------------------------------------------

    @property
    def state(self) -> State:
        """What the journal says now."""
        if self.folder.live is not None:
            return self.folder.live
        size = self.folder.size()
        if self._state is None or self._state[0] != size:
            self._state = size, self.folder.past().state
        return self._state[1]

    @property
    def finished(self) -> bool:
        """Whether the last run did all that was asked for, and no trial was added since.

        False while work is left, and after it was stopped (by Ctrl-C, a time limit or `stop`) or
        cut off: run it again to go on. In a loop with `ask`: whether every trial was told.
        """
        since, lines = self.folder.snapshots.recent()
        return reporting.account(lines, since=since).status == "finished"

    @property
    def trials(self) -> list[TrialResult]:
        """All trials, in the order of their submission."""
        return results.results_of(self.setup, self.state)

    def get_trials(self, *others: Any, **keywords: Any) -> list[TrialResult]:
        """`trials`, as Optuna calls it.

        Args:
            *others: not taken: an error says what to write.
            **keywords: not taken, either.

        Raises:
            StudyError: there are some.
        """
        if keywords.get("states") is not None or others:
            raise StudyError(
                "get_trials gives all trials: choose by their status, as "
                '[t for t in study.trials if t.status == "finished"] (or "running", "retired", '
                'and of failed ones t.status.startswith("failed"))'
            )
        return self.trials

    @property
    def best_trial(self) -> TrialResult:
        """The trial with the best last score; of equal ones the first.

        Raises:
            StudyError: no metric was named, several recipes have unlike ones, or no trial has a
                score yet.
        """
        return results.ranked(self.setup, self.state)[0]

    @property
    def best_by_recipe(self) -> Mapping[str, TrialResult]:
        """Of several recipes by name, the best trial of each, by its own metric.

        A recipe is left out as long as none of its trials has a score.

        Raises:
            StudyError: the study has one recipe.
        """
        return results.best_by_recipe(self.setup, self.state)

    @property
    def best_config(self) -> Mapping[str, Any]:
        """The configuration of `best_trial`."""
        return self.best_trial.config

    @property
    def best_params(self) -> Mapping[str, Any]:
        """`best_config`, as Optuna calls it."""
        return self.best_config

    @property
    def best_value(self) -> float:
        """The last score of `best_trial`."""
        return self.best_trial.value

    def learning_curves(self) -> Any:
        """One row for each value of each trial and epoch, read from the journal alone.

        Its columns: trial, epoch, name, value, and split: "train" for means over the epoch's
        training samples, "validation" for scores.
        """
        return _frame(curve_rows(self.lines()), "learning_curves")

    def trials_dataframe(self) -> Any:
        """One row a trial.

        Its columns: id, status, value, best_value, epochs, samples, config.<name>, and
        last.<name> for each metric.
        """
        rows = [results.row_of(trial) for trial in self.trials]
        return _frame(rows, "trials_dataframe")

    def report(self, path: str | Path | None = None, *, whole: bool = False) -> Path:
        """Write the report, one HTML file made from the journal alone; returns its path.

        Of a journal of more than 100 000 entries the use of slots is that of the newest of them,
        and of more than 10 000 trials a sample is drawn; the page says so.

        Args:
            path: the file. None: report.html in the study's folder.
            whole: show the use of slots of the whole journal, which takes longer.

        Raises:
            StudyError: the study has not begun.
        """
        self.folder.check_begun()
        target = whole_path(path or self.folder.report)
        since, lines = self.folder.snapshots.recent(whole)
        facts = reporting.account(lines, since=since)
        folder = str(self.folder.path)
        return reporting.save(facts, target, None, folder, named=path is not None)

    def lines(self) -> list[Line]:
        """The journal."""
        return self.folder.lines()

    # -- models and data ---------------------------------------------------------------------------

    def load_model(self, trial: TrialResult | TrialId | str, which: str = "last") -> "nn.Module":
        """A trial's model in evaluation mode, with durable weights.

        Args:
            trial: its name, or a result of `trials`.
            which: "last": the newest durable weights. "best": the best of the weights that were
                kept.

        Raises:
            StudyError: there is no such trial, or nothing durable of it.
        """
        return results.load_model(self.setup, self.state, id_of(trial), which)

    def best_model(self, which: str = "last") -> "nn.Module":
        """The best trial's model in evaluation mode.

        Args:
            which: "last" or "best", as for `load_model`.

        Raises:
            StudyError: as for `best_trial` and `load_model`.
        """
        return self.load_model(self.best_trial, which)

    def models(self, top: int) -> list["nn.Module"]:
        """The models of the best trials, best first, in evaluation mode.

        Args:
            top: how many, 0 or more.

        Raises:
            StudyError: `top` is no such number, or as for `best_trial` and `load_model`.
        """
        if not is_whole(top) or top < 0:
            raise StudyError(f"top must be a number of trials >= 0; got {shown(top)}")
        return [self.load_model(trial) for trial in results.ranked(self.setup, self.state)[:top]]

    def checkpoint(self, trial: TrialResult | TrialId | str, which: str = "last") -> Any:
        """What a function's trial gave as its newest checkpoint; of a path, the path of a copy.

        The copy is temporary: it is deleted when the process ends. To keep it, copy it elsewhere,
        as by `shutil.copytree`.

        Args:
            trial: its name, or a result of `trials`.
            which: "last", or "best" for the best of those that were kept.

        Raises:
            StudyError: the study's trials are no functions, there is no such trial, or it gave
                none.
        """
        return results.checkpoint(self.setup, self.state, id_of(trial), which)

    def data(self) -> "Data":
        """The recipe's data, read again; its method `encode` gives new rows to predict on.

        Raises:
            StudyError: it is other data than trials were trained on, it cannot be read, or the
                study trains a function.
        """
        return results.data_as_trained(self.setup)

    def replay(
        self, trials: Sequence[str] | None = None, *, address: str | None = None
    ) -> list[dict[str, Any]]:
        """Train trials again, alone, as they are recorded, and compare with what was kept.

        Returns a row a trial: trial, visits (its passes over shards), verdict, why (of the last
        three verdicts), equal (the verdict is "equal"), agrees (it is one of the first two),
        difference (the largest absolute one), fused (trained in a fused pack), wide (it had several
        slots), elsewhere (of one that differs: in what the processor, the libraries or the threads
        are others than in the study).
        The verdicts are

        - "equal": to the last bit;
        - "agrees": of a fused or wide trial; what is exact is equal (passes, samples, steps,
          schedules, random states, integers), and numbers are as near as rounding leaves them;
        - "not comparable": what is exact is equal, but rounding moves the numbers too far, or other
          random numbers were drawn;
        - "differs";
        - "missing": its checkpoint is not there, or damaged.

        Args:
            trials: their names. None: all that have durable weights.
            address: of the Ray cluster whose nodes hold the shards (`Data.shards`). Trials are
                trained at one of these nodes, and the others read for it.

        Raises:
            StudyError: there is nothing durable of a trial, or this process trains already.
            ConnectionError: no cluster is at the address, or the process at its node ended.
        """
        if address is not None and isinstance(self.setup.recipe, FunctionRecipe):
            raise StudyError(
                "address= (--address) names the nodes where a recipe's shards lie, and functions "
                "read their data themselves: leave it out"
            )
        chosen = [id_of(trial) for trial in trials or ()]
        with alone_in_process(self.folder), at_holders(address) as perform:
            return replayed(self.setup, self.state, chosen, perform)

    # -- trials beside the searcher's, and slots, also while the study runs ------------------------

    def enqueue(
        self,
        config: Mapping[str, Any],
        *,
        max_epochs: float | None = None,
        widths: tuple[int, int] | None = None,
        priority: float = 1.0,
        skip_if_exists: bool = False,
    ) -> TrialId:
        """Add a trial of your own, which is trained beside the searcher's; returns its name.

        While the study runs, here or in another process, the run takes the trial in within about a
        second; else the next run does.

        Args:
            config: its configuration.
            max_epochs: epochs that it trains. None: the recipe's.
            widths: its fewest and most slots. None: one.
            priority: against others, for policies that look at it.
            skip_if_exists: add none if there is a trial of this configuration; then returns its
                name.

        Raises:
            StudyError: the study has not begun, no slots could have these widths, or the
                configuration lacks a key that is read, or has one that nobody reads.
        """
        return control.enqueue(self.setup, config, max_epochs, widths, priority, skip_if_exists)

    def clone(
        self,
        trial: TrialResult | TrialId | str,
        modify: Mapping[str, Any] | None = None,
        *,
        warm_start: bool = True,
        max_epochs: float | None = None,
    ) -> TrialId:
        """Add a copy of a trial with some of its configuration changed; returns its name.

        It works while the study runs, as `enqueue` does.

        Args:
            trial: its name, or a result of `trials`.
            modify: what to change of its configuration, by name.
            warm_start: go on from the trial's newest durable state. False: begin anew.
            max_epochs: epochs in all, those of the state included. None: as long as the trial
                itself.

        Raises:
            StudyError: there is no such trial or no such state, nothing would be left to train, or
                as for `enqueue`.
        """
        return control.clone(self.setup, id_of(trial), modify or {}, warm_start, max_epochs)

    def extend(self, trial: TrialResult | TrialId | str, max_epochs: float) -> None:
        """Have a trial train longer, from its newest state.

        It works while the study runs, as `enqueue` does.

        Args:
            trial: its name, or a result of `trials`.
            max_epochs: epochs in all.

        Raises:
            StudyError: there is no such trial, it failed or was taken out, or its state is gone.
        """
        control.extend(self.setup, id_of(trial), max_epochs)

    def stop(self, trial: TrialResult | TrialId | str | None = None) -> None:
        """Take a trial out before its end, or end the run, as Ctrl-C does.

        Nothing happens to a trial that has ended.

        Args:
            trial: its name, or a result of `trials`. None: the run.

        Raises:
            StudyError: there is no such trial, nobody runs the study, or as for `enqueue`.
        """
        control.stop(self.setup, None if trial is None else id_of(trial))

    def slots(
        self, *, add: int | None = None, remove: int | None = None, count: int | None = None
    ) -> None:
        """Have the run that is under way get more or fewer slots; give one of the three.

        A slot that is to go completes its pass first, and what only it holds becomes durable. It
        holds for this run; from now on nodes that join bring no more slots than that.

        Args:
            add: so many more.
            remove: so many fewer.
            count: so many in all.

        Raises:
            StudyError: nobody runs the study, its backend has one slot, a pool lends its slots, no
                slot would stay, or the nodes have no room for so many.
        """
        control.slots(self.setup, add, remove, count)


def create_study(
    recipe: "Recipe | Callable[..., Any] | None" = None,
    *,
    command: str | None = None,
    storage: str | Path | None = None,
    study_name: str | None = None,
    metric: str | None = None,
    mode: str | None = None,
    direction: str | None = None,
    search_space: Mapping[str, Any] | None = None,
    checkpoints: str | None = None,
    searcher: Searcher[Any] | str | None = None,
    load_if_exists: bool = False,
    seed: int | None = 0,
    **others: Any,
) -> Study:
    """A study of this recipe or function, in a new folder.

    Args:
        recipe: what to train: a `Recipe`, a function, or an objective. None: `optimize` gets the
            function, `ask` gives trials to a loop of your own, or there is a `command`.
        command: a command line to train in place of a recipe, with {names} of the search space in
            it, as "python train.py --lr {lr}".
        storage: the study's folder. None: runs/NAME, with the study's name.
        study_name: names the folder in runs/; it has no effect if `storage` is given. None: the
            recipe's name in small letters.
        metric: the name of the score to rank by. None: the recipe's.
        mode: "min" or "max". None: the recipe's, or "min".
        direction: another name of `mode`. Both also take "minimize" and "maximize", as Optuna has
            them.
        search_space: the dimensions to search, by name. None: the recipe's.
        checkpoints: another place for the weights, any fsspec URL. None: the folder.
        searcher: what `optimize` and `ask` use if they are given none.
        load_if_exists: go on in a folder that holds a study. False: that is an error.
        seed: of first weights, of the order of samples and of all random choices.
        **others: not taken: names that other tools have are errors that say what to use.

    Raises:
        StudyError: the folder holds a study already, cannot be written to, or an argument is wrong.
    """
    check_names(others)
    recipe = as_recipe(recipe, command)
    metric = metric_of(metric or recipe.metric)
    mode = mode_of(mode, direction) or mode_of(recipe.mode, None) or usual_mode(metric)
    for part in parts_of(recipe).values():
        if metric is None and part.mode is None:
            usual_mode(part.metric)  # warns
    name = name_in(study_name) or code_name(recipe).lower()
    folder = Folder(storage or Path("runs") / name, checkpoints)
    if folder.size() and not load_if_exists:
        raise StudyError(
            f"{folder.path} holds a study already: pass load_if_exists=True to go on with it, "
            "or another storage="
        )
    former = folder.head()
    folder.go_on(former)
    recipe = recipe_for_study(recipe, former)
    space = search_space
    if space is None:
        space = recipe.search_space
    space = checked_space(space)
    setup = Setup(recipe, folder, metric, mode, space, seed_in(seed))
    return Study(setup, searcher)


def load_study(
    storage: str | Path, *, trust: bool = False, checkpoints: str | None = None
) -> Study:
    """The study in that folder, as its last run left it.

    Results need no recipe. What trains or gives a model loads it, which runs its code.

    Args:
        storage: the study's folder.
        trust: load the recipe although it is not your own. Say so once, after you have looked at
            the folder's `recipe`. False: only if you stored it yourself.
        checkpoints: where the weights lie, if that is another place than the last run of yours
            used, or you have moved the folder.

    Raises:
        StudyError: there is none; and of what needs the recipe: it is not there, or not your own.
    """
    folder = Folder(storage, checkpoints)
    folder.check_begun()
    former = folder.head()
    folder.go_on(former)
    return Study(
        Setup(
            source=UnreadRecipe(
                former, lambda: recipe_for_study(load(folder, former, trust), former)
            ),
            folder=folder,
            metric=former.get("metric"),
            mode=former.get("mode", "min"),
            space=head_space(former),
            seed=int(former.get("seed", 0)),
        )
    )


def _frame(rows: Sequence[Mapping[str, Any]], method: str) -> Any:
    """The rows as a dataframe, for that method."""
    try:
        import pandas
    except ImportError as error:
        raise StudyError(f"{method}() needs pandas: {install('pandas')}") from error
    return pandas.DataFrame(rows)


def check_ask(space: Any, others: Mapping[str, Any]) -> None:
    """Raise StudyError if `ask` was given more than it takes."""
    if space is not None or "fixed_distributions" in others:
        raise StudyError(SPACE_FIRST)
    for name in others:
        raise StudyError(f"ask has no argument {name}=: it takes open_first=True only")
