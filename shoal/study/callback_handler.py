"""Callbacks of a run: called after each moment, and never able to disturb it."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from difflib import get_close_matches
from inspect import signature
from typing import Any

from shoal.backend.local import Local
from shoal.callbacks.callback import METHODS, Callback
from shoal.core.cluster import epoch_size
from shoal.core.errors import StudyError, warn
from shoal.core.event import Entry, Evaluated, Failed, Finished, Kept, Planned, Retired
from shoal.core.other_tools import check_own
from shoal.core.state import State
from shoal.core.trial import Seconds, TrialId, shown
from shoal.core.visits import EPS
from shoal.options import Options, check_whole_visits
from shoal.study.backends import WiredBackend
from shoal.study.results import result_of
from shoal.study.setup import Setup
from shoal.train.function.recipe import FunctionRecipe
from shoal.train.lane.checkpoints import Checkpoints
from shoal.train.recipe.unit import Tree


def checked_callbacks(callbacks: Iterable[Any]) -> tuple[Any, ...]:
    """The callbacks as a tuple, each of which can be called.

    Raises:
        StudyError: one is another tool's or a class, has none of the methods, or one whose name is
            misspelt.
    """
    check_own(callbacks)
    if callable(callbacks) or any(hasattr(callbacks, name) for name in METHODS):
        raise StudyError(f"callbacks= takes a list; got {callbacks!r}: write [{_name(callbacks)}]")
    if not isinstance(callbacks, Iterable):
        raise StudyError(f"callbacks= takes a list of callbacks; got {shown(callbacks)}")
    listed = tuple(callbacks)
    for callback in listed:
        if isinstance(callback, type):
            raise StudyError(
                f"give an instance as a callback: {callback.__name__}(), not {callback.__name__}"
            )
        methods = [name for name in dir(callback) if name.startswith("on_")]
        for name in methods:
            if name not in METHODS:
                near = get_close_matches(name, METHODS, 1)
                hint = "".join(f"; did you mean {other}?" for other in near)
                raise StudyError(
                    f"the callback {_name(callback)} has {name}, which is never called: "
                    f"there are {', '.join(METHODS)}{hint}"
                )
        if not methods and not callable(callback):
            raise StudyError(
                f"a callback has one of {', '.join(METHODS)}, or is called as f(study, trial) when "
                f"a trial ends; got {callback!r}"
            )
    return listed


def _name(callback: Any) -> str:
    return getattr(callback, "__name__", type(callback).__name__)


# Stands for the method's name where a callback is a plain function.
PLAIN = "__call__"
# The argument by which a method asks for the trial's model, and the methods that may.
MODEL = "model"
OF_TRIALS = ("on_epoch", "on_trial_end", PLAIN)


def takes_model(function: Callable[..., Any] | None) -> bool:
    """Whether the function has an argument named `model`."""
    if function is None:
        return False
    try:
        return MODEL in signature(function).parameters
    except (TypeError, ValueError):  # of code in C
        return False


def check_model_arguments(
    callbacks: Iterable[Any], setup: Setup, options: Options, shards: int
) -> bool:
    """Whether any callback takes the models of trials.

    Raises:
        StudyError: there would be none to give.
    """
    takes = False
    for callback in callbacks:
        for method in (*METHODS, PLAIN):
            if not takes_model(_function(callback, method)):
                continue
            takes = True
            who = f"{method} of the callback {_name(callback)} names `{MODEL}`"
            if method not in OF_TRIALS:
                raise StudyError(
                    f"{who}, and is about no trained trial: on_epoch, on_trial_end and a "
                    "function f(study, trial, model) get models"
                )
            if isinstance(setup.recipe, FunctionRecipe):
                raise StudyError(
                    f"{who}, and what a function trains has no model that Shoal could build: "
                    "leave it out, and take study.checkpoint(trial.id)"
                )
            if method == "on_epoch":
                check_whole_visits(
                    options, shards, f"{who}, which is kept at the ends of passes only"
                )
    return takes


@dataclass(frozen=True, slots=True)
class TrialMoment:
    """The moment of a callback: a trial after so many visits, and where its state of then is.

    `visits`: -1: within a visit. `epoch`: None: the trial begins or has ended. `kept`: the durable
    state of then.
    """

    wired: WiredBackend
    trial: TrialId | None
    visits: int
    kept: Kept | None
    epoch: float | None = None

    @property
    def vault(self) -> Checkpoints:
        """The run's checkpoints, with those that are about to be durable."""
        return self.wired.vault

    def state(self) -> Tree | None:
        """The trial's state at that moment; None: the trial ended, and only durable ones are left.

        Raises:
            StudyError: it cannot be had any more.
        """
        if self.kept is not None:
            return self.vault.load(self.kept.name)
        if self.trial is not None and isinstance(self.wired.backend, Local):
            state = self.wired.backend.state(self.trial, self.visits)
            if state is not None:
                return {"model": deepcopy(state["model"]), "found": state.get("found")}
        if self.epoch is None:
            return None
        why = "is at its slot, which trains on"
        remedy = f"let on_epoch name an argument `{MODEL}`, which gets the model of then"
        if self.visits < 0:
            why = "is within a pass over a shard, where no state is kept"
            remedy = "use validate_every=1"
        raise StudyError(f"the state of {self.trial} after {self.epoch:g} epochs {why}: {remedy}")


class CallbackHandler:
    """Calls the callbacks of a run as its moments pass.

    `wired`: the run's backend. `after`: called when some of them were. `epochs`: those to which the
    searcher sends trials at most that ended before, at a rung; None: it sends none of them on.
    """

    def __init__(
        self,
        study: Any,
        callbacks: Sequence[Any],
        wired: WiredBackend,
        after: Callable[[], None],
        epochs: float | None = None,
    ) -> None:
        self._study = study
        self._wired = wired
        self._callbacks = callbacks
        self._after = after
        self._epochs = epochs
        # Which of them take models, by index in the list and method.
        self._take_models = {
            (index, method)
            for index, callback in enumerate(callbacks)
            for method in OF_TRIALS
            if takes_model(_function(callback, method))
        }
        # Trials that ended at a rung, of which plain functions do not know yet.
        self._at_rungs: dict[TrialId, None] = {}
        # What raised an error before, by the callback's index in the list and the method.
        self._broken: set[tuple[int, str]] = set()
        self._begun: set[TrialId] = set()
        self._state = State()

    def start(self, entries: Sequence[Entry], state: State) -> None:
        """Call what is for the beginning of a run, and for the entries with which it begins."""
        self._state = state
        self._call("on_start")
        self._tell_all(entries)

    def close(self) -> None:
        """Call what is for the end of the run, and of the trials that no rung let go on."""
        for trial in self._at_rungs:
            if trial in self._state.ended:
                self._call(PLAIN, trial)
        self._call("on_end")

    def __call__(self, now: Seconds, entries: tuple[Entry, ...], state: State) -> None:
        self._state = state
        self._tell_all(entries)

    def _tell_all(self, entries: Sequence[Entry]) -> None:
        # If a trial was evaluated twice at this moment, `state` has its newest durable state only.
        kept = {(each.trial, each.visits): each for each in entries if type(each) is Kept}
        for entry in entries:
            match entry:
                case Planned(_, start):
                    for trial in [trial for gang in start for trial in gang.trials]:
                        if trial not in self._begun:
                            self._begun.add(trial)
                            self._call("on_trial_start", trial)
                case Evaluated(trial, epoch, values):
                    shards = self._state.known[trial].shards or self._state.shards
                    visits = round(epoch * len(shards))
                    if abs(epoch * len(shards) - visits) >= EPS:
                        visits = -1  # within one
                    now = TrialMoment(self._wired, trial, visits, kept.get((trial, visits)), epoch)
                    self._call("on_epoch", trial, epoch, values, moment=now)
                case Finished(trial) | Retired(trial) | Failed(trial, _):
                    if trial not in self._state.trials:  # else it goes on at once
                        self._end(trial)

    def _end(self, trial: TrialId) -> None:
        """Call what is for a trial's end; at a rung, plain functions wait for the run's end."""
        self._begun.discard(trial)
        self._call("on_trial_end", trial)
        if self._may_go_on(trial):
            self._at_rungs[trial] = None
            return
        self._at_rungs.pop(trial, None)
        self._call(PLAIN, trial)

    def _may_go_on(self, trial: TrialId) -> bool:
        """Whether the searcher may send the trial further."""
        if self._epochs is None or self._state.ended[trial] != "finished":
            return False
        known = self._state.known[trial]
        most = self._epochs * epoch_size(self._state.shards, known.config)
        return self._state.done[trial] >= known.samples - EPS and known.samples < most - EPS

    def _call(
        self,
        method: str,
        trial: TrialId | None = None,
        *more: Any,
        moment: TrialMoment | None = None,
    ) -> None:
        folder = self._study.folder
        for index, callback in enumerate(self._callbacks):
            function = _function(callback, method)
            if function is None or (index, method) in self._broken:
                continue
            arguments = [self._study]
            if trial is not None:
                known = self._state.known[trial]
                arguments.append(result_of(self._study.setup, self._state, known))
            # Callbacks may change a mapping: each gets a copy.
            arguments += [dict(each) if isinstance(each, Mapping) else each for each in more]
            folder.live = self._state
            folder.moment = moment or self._moment(trial)
            try:
                keywords = {}
                if (index, method) in self._take_models:
                    keywords[MODEL] = self._model(folder.moment)
                function(*arguments, **keywords)
            except Exception as error:  # noqa: BLE001 - it must not disturb the trials
                self._broken.add((index, method))
                _warn(callback, method, error)
            finally:
                folder.live = folder.moment = None
        self._after()

    def _moment(self, trial: TrialId | None) -> TrialMoment:
        """The moment of a callback that is told of no epoch."""
        if trial is None:
            return TrialMoment(self._wired, None, 0, None)
        visits = len(self._state.visits[trial])
        kept = self._state.kept.get(trial)
        if kept is not None and kept.visits != visits:
            kept = None
        return TrialMoment(self._wired, trial, visits, kept)

    def _model(self, moment: TrialMoment) -> Any:
        """The trial's model; None: it ended before any state of it was durable."""
        if moment.trial not in self._state.kept and moment.state() is None:
            return None
        return self._study.load_model(moment.trial)


def _function(callback: Any, method: str) -> Callable[..., None] | None:
    """What to call of a callback for this method; None: nothing."""
    if method == PLAIN:  # a plain function, as Optuna's are, is called when a trial ends
        is_plain = callable(callback) and not hasattr(callback, "on_trial_end")
        return callback if is_plain else None
    if getattr(type(callback), method, None) is getattr(Callback, method):
        return None  # nothing of the user's
    function: Callable[..., None] | None = getattr(callback, method, None)
    return function


def _warn(callback: Any, method: str, error: Exception) -> None:
    prefix = "" if method == PLAIN else f"{method} of "
    text = (
        f"{prefix}the callback {_name(callback)} raised {type(error).__name__}: {error}; "
        "it is not called again, and the trials go on"
    )
    try:
        warn(text)
    except Warning:  # where warnings are errors; a callback ends no run
        return
