"""The user's door: create a study, optimize, look at what came out."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.core.ports import Policy, Searcher
from shoal.core.profile import Profile
from shoal.engine.journal import JournalError
from shoal.options import Options, check_names, check_timeout, check_used, check_widths
from shoal.reporting.format import plural, printable
from shoal.study.code.files import code_name
from shoal.study.code.given import (
    as_recipe,
    metric_of,
    mode_of,
    name_in,
    seed_in,
    usual_mode,
)
from shoal.study.code.loading import load
from shoal.study.code.unread import UnreadRecipe
from shoal.study.folder import Folder, StudyError
from shoal.study.head import Deciders, rebuild, space_in
from shoal.study.loop.loop import OwnLoop
from shoal.study.loop.trial import AskedTrial
from shoal.study.notes.beside import BesideSearcher
from shoal.study.own import check_ask
from shoal.study.parts.asked import Wishes, either, searcher_of, widths_of
from shoal.study.parts.planned import of_study
from shoal.study.parts.result import TrialResult
from shoal.study.run import Request, train
from shoal.study.setup import (
    Setup,
    as_space,
    check_one_slot,
    epochs_of,
    with_own,
)
from shoal.train.recipe.several.parts import parts_of

if TYPE_CHECKING:
    from shoal.train.recipe.recipe import Recipe


class Study(BesideSearcher):
    """A search: a recipe, where it is stored, and what is to be optimized.

    Made by `create_study` or `load_study`. `searcher`: what `optimize` and `ask` use if they are
    given none.
    """

    def __init__(self, setup: Setup, searcher: Searcher[Any] | str | None = None) -> None:
        super().__init__(setup)
        self._searcher = searcher
        self._own: OwnLoop | None = None

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

        `searcher`, `policy`: an object, or its name, as "hyperband(reduction_factor=4)", "fifo" or
        "auto:fifo,hop-lrw". By default a grid if the search space is one, else random; and the
        policy that is quickest in a simulation. What a searcher leaves open (None) is the study's,
        or given here. A study without a recipe takes a function in the searcher's place, and then a
        searcher or the number of trials in the policy's.

        `max_concurrent`: trials under way at once. `widths`: the fewest and most slots of each
        trial. `priority`: of each trial, for grid and random search.
        `timeout`: seconds, after which the study stops at the end of the units under way; call
        again to go on. `profile`: given speeds and costs, a Table or a TOML file (what it leaves
        open is measured). `optuna_log`: also write Optuna's journal; True: to optuna.log in the
        study's folder. `callbacks`: objects with some methods of `shoal.Callback`, or functions
        f(study, trial) to call when a trial ends. `loggers`: names ("csv", "tensorboard", "mlflow",
        "wandb"), perhaps with a place as "csv:logs", or objects. `retry_failed`: failed
        trials go on from their newest durable state, or begin again. `options`: the fields of
        `shoal.options.Options`.

        Raises:
            StudyError: the study is open elsewhere, its data changed, an argument or the recipe is
                wrong (then nothing was written), or every trial failed.
            ValueError: a searcher's or policy's name is wrong, or evaluations lack the metric.
            PlanError: the backend cannot do what the policy asks for.
            Stalled: work is left, but the policy starts none of it.
            StudyPaused: disk, data or folder failed; durable work is kept.
        """
        named, rule, count = self.by_place(searcher, "auto" if policy is None else policy)
        chosen = Options.of(**with_own(self.recipe, options))
        check_timeout(timeout)
        wishes = Wishes(
            num_samples=either(num_samples, n_trials, count),
            max_epochs=epochs_of(self.recipe, max_epochs),
            max_concurrent=max_concurrent,
            widths=widths,
            priority=priority,
        )
        search = searcher_of(self.setup, named or self._searcher, wishes)
        asked = widths_of(search)
        check_widths(asked, chosen)
        check_one_slot(self.recipe, asked)
        check_used(chosen, widths)
        deciders = Deciders(search, rule, chosen)
        request = Request(
            deciders,
            timeout,
            profile,
            progress is None or progress,
            optuna_log or False,
            self,
            callbacks or (),
            loggers or (),
            bool(retry_failed),
        )
        self._train(request)

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

        Callbacks are not kept: give them again. `loggers`: None: those that the last run had by
        name. `retry_failed`: as for `optimize`.

        Raises:
            StudyError: nothing was run yet, or it was set up with the user's own searcher or
                policy objects.
        """
        former = self.folder.head()
        if not former:
            raise StudyError(
                f"nothing to resume in {self.folder.path}: no run was begun; use optimize()"
            )
        _ = self.recipe  # if it is refused, that is said before anything else
        check_timeout(timeout)
        self.folder.check_places(former, *([] if loggers is None else ["loggers"]))
        if loggers is None:
            loggers = former.get("loggers") or ()
        request = Request(
            rebuild(former),
            timeout,
            former.get("profile"),
            progress is None or progress,
            study=self,
            callbacks=callbacks or (),
            loggers=loggers,
            retry_failed=bool(retry_failed),
        )
        self._train(request)

    def _train(self, request: Request) -> None:
        """Run the study here; a loop of the user's own is over."""
        if self._own is not None:
            self._own.close()
            self._own = None
        train(self.setup, request)

    # -- a loop of one's own -------------------------------------------------------------------

    def ask(self, space: Any = None, *, open_first: bool = False, **others: Any) -> AskedTrial:
        """The next trial of a loop of your own, with its `config`; `tell` what came of it.

        Trials that were enqueued come first, then the searcher's. Trials that were asked for and
        not told before a crash stay open: with `open_first` they come before all others; or tell
        them by number. Until all trials that were asked for are told, no other process can open
        the study. A `space` and `others` are errors that say what to write.

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

        `trial`: as `ask` gave it, or its name or number. `state`: "complete", "pruned" or "fail",
        or Optuna's TrialState; a trial that is pruned or failed needs no value.

        Raises:
            StudyError: there is no such trial, it was told already, it has no value of the study's
                metric, or as for `ask`.
            TypeError: the values are no numbers.
        """
        self._loop().tell(trial, values, state)

    def _loop(self) -> OwnLoop:
        """The loop of this object."""
        if self._own is None:
            self._own = OwnLoop(self.setup, self._searcher)
        return self._own


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

    With `load_if_exists` it goes on in a folder that holds one. Without a recipe, `optimize` gets
    a function or an objective, or `ask` gives trials to a loop of your own. `command`: a command
    line to train in place of a recipe, with {names} of the search space in it, as
    "python train.py --lr {lr}".

    `storage`: the study's folder; by default runs/<study_name or the recipe's name>.
    `checkpoints`: another place for the weights, any fsspec URL. `metric`, `mode` ("min" or "max")
    and `search_space`: by default the recipe's attributes. `direction` is another name of `mode`,
    and "minimize" and "maximize" other words for its values, as Optuna has them. `searcher`: what
    `optimize` and `ask` use if they are given none.

    There are no `others`: names that other tools have are errors that say what to use.

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
    recipe = of_study(recipe, former)
    space = search_space
    if space is None:
        space = recipe.search_space
    space = as_space(space)
    setup = Setup(recipe, folder, metric, mode, space, seed_in(seed))
    return Study(setup, searcher)


def load_study(
    storage: str | Path, *, trust: bool = False, checkpoints: str | None = None
) -> Study:
    """The study in that folder, as its last run left it.

    Results need no recipe. What trains or gives a model loads it, which runs its code: only if you
    stored it yourself, or say `trust=True` once, after you have looked at the folder's `recipe`.
    `checkpoints`: where the weights lie, if that is another place than the last run of yours used,
    or you have moved the folder.

    Raises:
        StudyError: there is none; and of what needs the recipe: it is not there, or not your own.
    """
    folder = Folder(storage, checkpoints)
    folder.check_begun()
    former = folder.head()
    folder.go_on(former)
    return Study(
        Setup(
            source=UnreadRecipe(former, lambda: of_study(load(folder, former, trust), former)),
            folder=folder,
            metric=former.get("metric"),
            mode=former.get("mode", "min"),
            space=space_in(former),
            seed=int(former.get("seed", 0)),
        )
    )
