"""What came of a study: models, and trials trained a second time to compare with."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from shoal.core.event import Planned
from shoal.core.plan import Gang
from shoal.core.state import State
from shoal.core.trial import Trial, TrialId
from shoal.engine.journal import Line
from shoal.study.code.given import check_recipe_type
from shoal.study.folder import StudyError, last_head
from shoal.study.options import Options
from shoal.study.parts.again import (
    check_callable,
    function_row,
    given_back,
    slot_setup,
)
from shoal.study.setup import Setup, data_of
from shoal.study.watch.retention import Retention
from shoal.train.data.data import Data
from shoal.train.function.recipe import FunctionRecipe
from shoal.train.lane.checkpoint import Checkpoints, Damaged
from shoal.train.recipe.several.recipes import attribute
from shoal.train.recipe.unit import Tree
from shoal.train.tools.verify import apart, compare_saved, model_from, nudged, retrain

if TYPE_CHECKING:
    from torch import nn

# How far training may carry the rounding of fused packs and wide lanes, of the model's norm.
# After three epochs 0.007 was seen in float32 (a CNN with batch norm) and 1.5e-10 in float64.
# A learning rate that is wrong by a tenth moves small networks by 0.017 and more.
ROUNDING = 0.01
ROUNDING_FLOAT64 = 1e-6

# Adam turns any gradient above zero into a step of full size. Where a dead unit wakes up, rounding
# can thus move a model by more than ROUNDING. Such a trial is trained again from other starts, as
# far off as a fused step may be. It may be twice as far away as these are.
NUDGE = 1e-5
NUDGES = 2
LEEWAY = 2.0


def data_as_trained(setup: Setup) -> Data:
    """The recipe's data, made anew.

    Raises:
        StudyError: it is other data than the study's runs had, or there is no recipe.
    """
    check_recipe_type(setup.recipe)
    data = data_of(setup.recipe)
    head = last_head(setup.folder.lines())
    if head and head["data"]["fingerprint"] != data.fingerprint:
        raise StudyError(
            "the data changed since this study was trained, and with it perhaps how text is "
            "encoded: bring the former files back"
        )
    return data


def check_known(state: State, trial: TrialId) -> Trial:
    """The trial of that name.

    Raises:
        StudyError: there is none.
    """
    known = state.known.get(trial)
    if known is not None:
        return known
    some = ", ".join(sorted(state.known)[:8])
    raise StudyError(f"there is no trial {trial}; known: {some}")


# -- weights -------------------------------------------------------------------------------------


def load_model(setup: Setup, state: State, trial: TrialId, which: str) -> "nn.Module":
    """A trial's model with its last durable weights, or with the best of those that were kept.

    Raises:
        StudyError: there is no such trial, or nothing durable of it.
    """
    known = check_known(state, trial)
    if isinstance(setup.recipe, FunctionRecipe):
        raise StudyError(
            "what a function trains has no model that Shoal could build: "
            f"study.checkpoint({trial!r}) gives what it kept"
        )
    saved = saved_state(setup, state, trial, which)
    model: nn.Module = model_from(setup.recipe, known.config, setup.seed, saved)
    return model


def checkpoint(setup: Setup, state: State, trial: TrialId, which: str) -> Any:
    """What a function gave as its checkpoint; see `Study.checkpoint`."""
    if not isinstance(setup.recipe, FunctionRecipe):
        raise StudyError(
            "only functions give checkpoints of their own: load_model gives a recipe's model"
        )
    return given_back(saved_state(setup, state, trial, which))


def saved_state(setup: Setup, state: State, trial: TrialId, which: str) -> Tree:
    """A trial's last durable state, or the best of those that were kept.

    Raises:
        StudyError: there is no such trial, or nothing durable of it.
    """
    check_known(state, trial)
    if which not in ("last", "best"):
        raise StudyError(f'which must be "last" or "best"; got {which!r}')
    vault = Checkpoints(setup.folder.checkpoints, state.run)
    name = _last(state, trial)
    if which == "best":
        name = _best(setup, vault, trial) or name
    if name is None:
        raise StudyError(
            f"nothing of trial {trial} is durable{_why_nothing(state, trial)}"
        )
    try:
        return vault.load(name)
    except FileNotFoundError as error:
        raise StudyError(
            f"checkpoint {name} of trial {trial} is not in {vault.url} any more: "
            "it was deleted for max_checkpoint_gb, or by hand"
        ) from error
    except Damaged as error:
        raise StudyError(
            f"{error}: bring it back from a copy; which='best' may have another one, and "
            f"study.clone({trial!r}, warm_start=False) trains the trial again"
        ) from error


def _best(setup: Setup, vault: Checkpoints, trial: TrialId) -> str | None:
    """The name of the best of its durable states that were kept."""
    retention = Retention(vault, setup.aim)
    retention.learn(setup.folder.lines())
    if trial not in retention.best:
        return None
    _, name = retention.best[trial]
    return name


def _last(state: State, trial: TrialId) -> str | None:
    """The name of its newest durable state."""
    kept = state.kept.get(trial)
    if kept is None:
        return None
    return kept.name


def _why_nothing(state: State, trial: TrialId) -> str:
    if trial in state.ended:
        return f"; it {state.ended[trial]}"
    return " yet: let the study run on"


# -- training again ------------------------------------------------------------------------------


def replayed(
    setup: Setup, state: State, trials: Sequence[TrialId] | None = None
) -> list[dict[str, Any]]:
    """Train trials again over the visits that their durable states hold, and compare; a row each.

    Raises:
        StudyError: there is nothing durable of a trial, or of any; or the seed is another one.
    """
    check_callable(setup)
    _check_seed(setup)
    if not state.kept:
        raise StudyError(
            f"nothing durable of any trial in {setup.folder.path}: none to replay"
        )
    chosen = trials
    if not chosen:
        chosen = [trial for trial in state.known if trial in state.kept]
    unknown = [trial for trial in chosen if trial not in state.kept]
    if unknown:
        raise StudyError(
            f"nothing durable of trial {', '.join(unknown)}; of these there is: "
            f"{', '.join(state.kept)}"
        )
    if isinstance(setup.recipe, FunctionRecipe):
        options = Options.of(**last_head(setup.folder.lines())["options"])
        slot = slot_setup(setup, options)
        return [function_row(setup, state, trial, slot) for trial in chosen]
    again = _Again(setup, state, setup.folder.lines())
    return [again.compared(trial) for trial in chosen]


def _check_seed(setup: Setup) -> None:
    """Raise StudyError if the study was begun with another seed than it is opened with."""
    seed = last_head(setup.folder.lines()).get("seed", setup.seed)
    if seed != setup.seed:
        both = f"begun with seed={seed}, and is opened with seed={setup.seed}"
        raise StudyError(f"this study was {both}: open it with the same, or load_study")


class _Again:
    """Trains trials of a study again."""

    def __init__(self, setup: Setup, state: State, lines: Sequence[Line]) -> None:
        self._setup = setup
        self._state = state
        self._options = Options.of(**last_head(lines)["options"])
        self._data: Data = data_of(setup.recipe)
        gangs = list(_gangs(lines))
        self._fused = _with_copies(_fused(gangs), state)
        self._wide = _with_copies(_wide(gangs), state)

    def compared(self, trial: TrialId) -> dict[str, Any]:
        """The row of `Study.replay`."""
        kept = self._state.kept[trial]
        vault = Checkpoints(self._setup.folder.checkpoints, self._state.run)
        saved = vault.load(kept.name)
        again = self._trained(trial, kept.visits)
        equal, difference = compare_saved(saved, again)
        fused = trial in self._fused
        wide = trial in self._wide
        rounded = fused or wide
        return {
            "trial": trial,
            "visits": kept.visits,
            "equal": equal,
            "difference": difference,
            "fused": fused,
            "random": fused and self._draws_others(trial),
            "wide": wide,
            "agrees": equal or (rounded and self._rounded(trial, saved, again)),
        }

    def _rounded(self, trial: TrialId, saved: Tree, again: Tree) -> bool:
        """Whether rounding alone explains how far a trial is from the same one trained again."""
        gap = apart(saved, again)
        if _is_float64(saved):
            return gap <= ROUNDING_FLOAT64
        if gap <= ROUNDING:
            return True
        if trial in self._fused and self._draws_others(trial):
            return False  # other random numbers move it further than any rounding
        visits = self._state.kept[trial].visits
        moved = [
            apart(again, self._trained(trial, visits, nudge=number))
            for number in range(1, NUDGES + 1)
        ]
        return gap <= LEEWAY * max(moved)

    def _draws_others(self, trial: TrialId) -> bool:
        """Whether a fused pack may have drawn other random numbers for it."""
        config = self._state.known[trial].config
        return bool(attribute(self._setup.recipe, config, "fuse_random"))

    def _trained(self, trial: TrialId, visits: int, nudge: int = 0) -> Tree:
        """The trial's state after so many visits.

        If the trial starts from another trial's state, the other one is trained first. `nudge`:
        the seed of a small change of the start; 0: no change.
        """
        start = self._state.known[trial].start
        begun = None
        if start is not None:
            source = self._trained(*start)
            if visits == start[1]:
                return source
            begun = (start[1], source)
        if nudge:
            done, source = begun or (0, self._retrained(trial, 0, None))
            begun = (done, nudged(source, NUDGE, seed=nudge))
        return self._retrained(trial, visits, begun)

    def _retrained(
        self, trial: TrialId, visits: int, begun: tuple[int, Tree] | None
    ) -> Tree:
        """The trial's state after so many visits, from the state after its first few."""
        return retrain(
            self._setup.recipe,
            self._data,
            _sized(self._state, trial),
            self._state.visits[trial][:visits],
            slot_setup(self._setup, self._options),
            evaluated={epoch for epoch, _ in self._state.scores[trial]},
            begun=begun,
        )


def _is_float64(saved: Tree) -> bool:
    """Whether a model computes in double precision."""
    kinds = {str(getattr(array, "dtype", "")) for array in saved["model"].values()}
    return "float64" in kinds and not kinds & {"float32", "float16", "bfloat16"}


def _gangs(lines: Iterable[Line]) -> Iterable[Gang]:
    """All gangs that were started."""
    for line in lines:
        if isinstance(line.entry, Planned):
            yield from line.entry.start


def _fused(gangs: Iterable[Gang]) -> set[TrialId]:
    """Trials whose steps may have been fused with others, which rounds otherwise than alone."""
    found: set[TrialId] = set()
    for gang in gangs:
        if gang.fused and len(gang.lanes) > 1:
            found |= set(gang.trials)
    return found


def _wide(gangs: Iterable[Gang]) -> set[TrialId]:
    """Trials that had several slots: their gradients were summed in parts."""
    found: set[TrialId] = set()
    for gang in gangs:
        found |= {lane.trial for lane in gang.lanes if len(lane.slots) > 1}
    return found


def _with_copies(trials: set[TrialId], state: State) -> set[TrialId]:
    """These trials, and all that started from the state of one of them."""
    found = set(trials)
    for trial, known in state.known.items():  # a copy comes after its parent
        if known.start is not None and known.start[0] in found:
            found.add(trial)
    return found


def _sized(state: State, trial: TrialId) -> Trial:
    """The trial with the batch size that was found for it, if its configuration left it open."""
    known = state.known[trial]
    figures = state.figures.get(state.signature.get(trial, ""), {})
    if "batch_size" not in figures:
        return known
    config = {**known.config, "batch_size": int(figures["batch_size"])}
    return replace(known, config=config)
