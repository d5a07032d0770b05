"""Training again, and comparing the results, to check that they are equal."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf, isnan
from typing import Any, NamedTuple

import numpy as np
import torch

from shoal.core.cluster import epoch_size
from shoal.core.trial import Trial, Visit
from shoal.train.data.data import Data
from shoal.train.lane.batch_size_search import with_size
from shoal.train.lane.lane import TrainingLane
from shoal.train.lane.optimizers import numbers_of_state
from shoal.train.recipe.adapter import Adapted
from shoal.train.recipe.recipe import Recipe
from shoal.train.recipe.recipes import own_config, own_recipe
from shoal.train.recipe.seat import Orders, Seat
from shoal.train.recipe.settings import seed_of
from shoal.train.recipe.shard import ShardModel
from shoal.train.recipe.unit import Done, Tree, Unit
from shoal.train.slot.setup import TrainerSetup
from shoal.train.slot.trainer import SlotTrainer
from shoal.train.wide.lane import BATCH_NORMS

Config = Mapping[str, Any]


# What rounding may move: twins of a trial start each visit with weights that are changed by `NUDGE`
# units in the last place, at random. A trial may be `LEEWAY` times as far from the same one trained
# again as these twins are. What is within `FLOOR` units in the last place needs no twins.
NUDGE = 16
TWINS = 2
LEEWAY = 10.0
FLOOR = 64
# The part of a visit's own movement that `LEEWAY` times the twins' must stay below: else nobody can
# tell from the weights whether a visit is missing.
RESOLVED = 0.25
# And below this part of the norm of what is compared: numbers that are known less well than that
# say little about the training that they come from.
KNOWN = 1e-3

# parts of a trial's state that no rounding changes, whatever their type
EXACT = frozenset(
    {"visits", "steps", "rng", "scheduler", "scheduled", "configured", "found", "bad"}
)
# what samples decide: an adapter's state, the batch size that was found; several slots differ in it
BY_SAMPLES = frozenset({"adapted", "found"})
LATER = frozenset({"steps", "noted"})  # parts that the states of earlier versions lack
_LACKING = object()  # in place of what one of two states does not have


class Comparison(NamedTuple):
    """Whether two states are equal to the last bit, and their largest absolute difference.

    The difference is infinite where they have no common form.
    """

    equal: bool
    difference: float


class Verdict(NamedTuple):
    """How a stored state compares with that of the same trial trained again.

    `verdict`: "equal" (bit for bit), "agrees" (what is exact is equal, and no number is further
    away than rounding takes it), "not comparable" or "differs". `why`: of the last two.
    """

    verdict: str
    difference: float
    why: str = ""


def compare(one: Any, other: Any) -> Comparison:
    """Compare two states, or parts of states."""
    gaps = [gap for _, gap in differences(one, other)]
    return Comparison(not gaps, max(gaps, default=0.0))


def in_one_form(saved: Tree, retrained: Tree) -> tuple[Tree, Tree]:
    """A stored state and one of the same trial trained again, to be compared.

    Earlier versions stored no `LATER`, and more of what the optimizers were configured with. The
    batch size that was found is what the trial was trained again with.
    """
    stored = dict(saved)
    if saved.get("steps") is None:
        stored = {name: retrained[name] for name in LATER & retrained.keys()} | stored
        stored["steps"] = retrained.get("steps")
    if "configured" in stored:
        stored["configured"] = numbers_of_state(stored["configured"])
    if "found" in saved:
        retrained = {**retrained, "found": saved["found"]}
    return stored, retrained


def check_one_model(saved: Tree, retrained: Tree) -> None:
    """Raise ValueError if the models of two states have other parameters, buffers or shapes."""
    for path, one, other in unequal(saved["model"], retrained["model"], "model"):
        arrays = _are((one, other), np.ndarray)
        if one is _LACKING or other is _LACKING or (arrays and not _fits(one, other)):
            raise ValueError(_inequality(path, one, other))


def differences(one: Any, other: Any) -> Iterator[tuple[str, float]]:
    """Where two states are not equal to the last bit, and by how much.

    A place reads like "optimizer.state.0.exp_avg".
    """
    for path, mine, theirs in unequal(one, other):
        yield path, _gap(mine, theirs)


def unequal(one: Any, other: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """The places where two states are not equal to the last bit, and what is there in each."""
    both = (one, other)
    if _are(both, list | tuple):
        one = dict(enumerate(one))
        other = dict(enumerate(other))
        both = (one, other)
    if _are(both, Mapping):
        for key in {**one, **other}:
            name = f"{path}.{key}".removeprefix(".")
            mine, theirs = one.get(key, _LACKING), other.get(key, _LACKING)
            if mine is _LACKING or theirs is _LACKING:
                yield name, mine, theirs
            else:
                yield from unequal(mine, theirs, name)
    elif not _is_same(one, other):
        yield path, one, other


def _are(both: tuple[Any, Any], kind: Any) -> bool:
    """Whether both are of that kind."""
    return all(isinstance(each, kind) for each in both)


def _is_same(one: Any, other: Any) -> bool:
    """Whether two leaves are equal to the last bit; all NaN are the same number."""
    if _are((one, other), np.ndarray):
        return _fits(one, other) and one.tobytes() == other.tobytes()
    if _are((one, other), float) and isnan(one) and isnan(other):
        return True
    return bool(type(one) is not np.ndarray is not type(other) and one == other)


def _fits(one: Any, other: Any) -> bool:
    """Whether two arrays have one shape and one type."""
    return bool(one.shape == other.shape and one.dtype == other.dtype)


def _gap(one: Any, other: Any) -> float:
    """The largest absolute difference of two leaves; infinite where they have none."""
    if _are((one, other), int | float):
        gap = abs(one - other)
        return inf if isnan(gap) else float(gap)
    if not _are((one, other), np.ndarray) or not _fits(one, other):
        return inf
    gaps = _minus(one, other)
    return float(np.max(np.where(np.isnan(gaps), inf, gaps), initial=0.0))


def _minus(one: Any, other: Any) -> Any:
    """The absolute differences of two arrays' elements, or of two numbers."""
    wide: Any = np.asarray(one)
    wide = wide.astype(np.complex128 if np.iscomplexobj(wide) else np.float64)
    with np.errstate(invalid="ignore"):
        return np.abs(wide - other)


# -- what rounding may have moved --------------------------------------------------------------


def judged(
    saved: Tree,
    retrained: Tree,
    twins: Iterable[Tree],
    moved: float,
    drawn: str = "",
    parted: bool = False,
) -> Verdict:
    """Compare a stored state with that of the same trial trained again, rounded otherwise.

    What is exact must be equal: visits, samples, steps, schedules, random states, integers. Numbers
    may be as far away as those of the `twins`: states of the trial trained again from starts that
    were changed by some roundings, which are asked for where they are needed. `moved`: how far a
    visit moves the model, as a norm. `drawn`: why the trial has drawn other random numbers than
    alone; empty: it has not. `parted`: it had several slots, each of which saw a part of a batch.
    """
    places = [
        place for place in unequal(saved, retrained) if not (drawn and place[0].startswith("rng."))
    ]
    if parted:
        own_paths = [
            path
            for path, one, other in places
            if path.partition(".")[0] in BY_SAMPLES and not (one is _LACKING or other is _LACKING)
        ]
        if own_paths:
            rest = [place for place in places if place[0] not in own_paths]
            verdict = _judged(retrained, rest, twins, moved, drawn)
            if verdict.verdict == "differs":
                return verdict
            return Verdict(
                "not comparable",
                verdict.difference,
                f"{own_paths[0]} is what the samples of one of its slots made of it",
            )
    return _judged(retrained, places, twins, moved, drawn)


def _judged(
    retrained: Tree,
    places: Sequence[tuple[str, Any, Any]],
    twins: Iterable[Tree],
    moved: float,
    drawn: str,
) -> Verdict:
    """Compare two states at the places where they are not equal, as `judged` does."""
    gap = max((_gap(one, other) for _, one, other in places), default=0.0)
    for path, one, other in places:
        if not _is_number(path, one, other):
            return Verdict("differs", gap, _inequality(path, one, other))
    if not places and not drawn:
        return Verdict("equal", 0.0)
    if drawn:
        return Verdict("not comparable", gap, drawn)
    for path, one, other in places:
        finite = np.isfinite(one).all(), np.isfinite(other).all()
        if not all(finite):
            if any(finite):
                return Verdict("differs", gap, f"{path} is not finite in one of both")
            return Verdict("not comparable", gap, f"{path} is not finite")
    return _near(retrained, twins, places, moved, gap)


def _is_number(path: str, one: Any, other: Any) -> bool:
    """Whether a leaf is computed in floating point, so that rounding moves it."""
    parts = path.split(".")
    if parts[0] in EXACT or (parts[0] == "noted" and parts[-1] == "1"):
        return False
    if parts[0] == "optimizer" and ("param_groups" in parts or parts[-1] == "step"):
        return False
    if _are((one, other), np.ndarray):
        return _fits(one, other) and one.dtype.kind in "fc"
    return _are((one, other), float)


def _inequality(path: str, one: Any, other: Any) -> str:
    """The text that says how two states differ at a place where they must be equal."""
    if one is _LACKING or other is _LACKING:
        return f"only one of both has {path}"
    if _are((one, other), np.ndarray) and one.size + other.size > 2:
        if one.shape != other.shape:
            return f"{path} has the shape {one.shape}, and {other.shape} trained again"
        return f"{path}, which no rounding changes, is another one"
    return f"{path} is {one!r:.60}, and {other!r:.60} trained again"


def _near(
    retrained: Tree,
    twins: Iterable[Tree],
    places: Sequence[tuple[str, Any, Any]],
    moved: float,
    gap: float,
) -> Verdict:
    """Compare numbers with what rounding alone does to them."""
    if all(_norm(_minus(one, other)) <= _floor(other) for _, one, other in places):
        return Verdict("agrees", gap)
    spreads = _Spreads(retrained, twins)
    for group in dict.fromkeys(_group(path) for path, _, _ in places):
        most = LEEWAY * spreads.of_group[group]
        size = spreads.size[group]
        enough = KNOWN * size
        size_text = f"its norm is {size:.2g}"
        if group == "model":
            enough = min(enough, RESOLVED * moved)
            size_text += f"; a pass over a shard moves it by {moved:.2g}"
        if not most <= enough:  # also of NaN
            return Verdict(
                "not comparable",
                gap,
                f"rounding alone may move its {group} by {most:.2g} ({size_text})",
            )
    for path, one, other in places:
        apart, most = _norm(_minus(one, other)), spreads.allowed(path, other)
        if not apart <= most:
            return Verdict(
                "differs",
                gap,
                f"{path} is {apart:.2g} away (norm), and rounding explains {most:.2g}",
            )
    return Verdict("agrees", gap)


def _group(path: str) -> str:
    """The name of what rounding moves alike: the model, or a moment of the optimizer's."""
    parts = path.split(".")
    return parts[-1] if parts[0] == "optimizer" else parts[0]


class _Spreads:
    """How far twins are from the trial trained again: by leaf, and by group of leaves."""

    def __init__(self, retrained: Tree, twins: Iterable[Tree]) -> None:
        self.of_leaf: dict[str, float] = {}
        squares: dict[str, float] = {}
        for twin in twins:
            twin_squares: dict[str, float] = {}
            for path, one, other in unequal(twin, retrained):
                if not _is_number(path, one, other):
                    continue
                far = _norm(_minus(one, other))
                self.of_leaf[path] = max(far, self.of_leaf.get(path, 0.0))
                twin_squares[_group(path)] = twin_squares.get(_group(path), 0.0) + far**2
            for group, far in twin_squares.items():
                squares[group] = max(far, squares.get(group, 0.0))
        sizes: dict[str, float] = {}
        for path, leaf, _ in unequal(retrained, _emptied(retrained)):
            if _is_number(path, leaf, leaf):
                sizes[_group(path)] = sizes.get(_group(path), 0.0) + _norm(leaf) ** 2
        self.size = {group: size**0.5 for group, size in sizes.items()}
        self.of_group = {group: squares.get(group, 0.0) ** 0.5 for group in sizes}

    def allowed(self, path: str, leaf: Any) -> float:
        """How far rounding may take this leaf."""
        group = _group(path)
        share = _norm(leaf) / self.size[group] if self.size[group] else 0.0
        twins = self.of_leaf.get(path, 0.0) + share * self.of_group[group]
        return float(LEEWAY * twins + _floor(leaf))


def _floor(leaf: Any) -> float:
    """The norm of a difference that a few roundings explain, so that no twins are needed."""
    return FLOOR * float(np.finfo(np.asarray(leaf).dtype).eps) * _norm(leaf)


def _emptied(state: Any) -> Any:
    """The state with None in place of each leaf."""
    if isinstance(state, Mapping):
        return {key: _emptied(each) for key, each in state.items()}
    if isinstance(state, list | tuple):
        return [_emptied(each) for each in state]
    return None


def _norm(values: Any) -> float:
    """The 2-norm of an array's elements; of a number its absolute value."""
    wide = np.abs(np.asarray(values).astype(np.complex128)) if np.iscomplexobj(values) else values
    return float(np.linalg.norm(np.asarray(wide, dtype=np.float64).ravel()))


def distance(one: Tree, other: Tree) -> float:
    """How far two states' models are apart: the norm over all that is computed in them."""
    places = unequal(one["model"], other["model"], "model")
    gaps = [_norm(_minus(a, b)) for path, a, b in places if _is_number(path, a, b)]
    return float(np.linalg.norm(gaps))


def nudged(state: Tree, seed: int) -> Tree:
    """A state whose model's numbers are each changed by about `NUDGE` roundings, at random."""
    rng = np.random.default_rng(seed)
    model = {}
    for name, array in state["model"].items():
        if isinstance(array, np.ndarray) and array.dtype.kind == "f":
            size = NUDGE * float(np.finfo(array.dtype).eps)
            factors = 1 + size * rng.standard_normal(array.shape)
            array = np.asarray(array * factors, dtype=array.dtype)
        model[name] = array
    return {**state, "model": model}


# -- training again ----------------------------------------------------------------------------


def retrain(
    recipe: Recipe,
    data: Data,
    trial: Trial,
    visits: tuple[Visit, ...],
    setup: TrainerSetup,
    *,
    evaluated: Collection[float] | None = None,
    begun: tuple[int, Tree] | None = None,
    nudge: int = 0,
    after: Callable[[Tree], None] | None = None,
    recorded: Mapping[int, float] | None = None,
    scored: Callable[[int, Mapping[str, float]], None] | None = None,
) -> Tree:
    """The trial's state after these visits, trained again, alone.

    `setup`: options of the slot that it is trained on; its seed, device, threads and metric count.
    `evaluated`: after how many epochs there was a validation; None: after each. `begun`: start from
    this state, after so many visits, instead of from the beginning. `nudge`: the seed of a change
    of the weights before each visit; 0: none. `after` is called with the state before the first
    visit and after each: views, that change. `recorded`: as of `TrainerSetup`. `scored` is called
    with the number of visits made and the scores, where there are any.

    Raises:
        TrialError: the recipe raised or the loss diverged.
        DataError: a shard cannot be read.
    """
    first, source = begun or (0, None)
    if source is not None and first == len(visits):
        return source
    if source is None and (nudge or after is not None or not visits):
        source = untrained(recipe, data, trial, setup)
    if not visits:
        assert source is not None
        return source
    if after is not None and source is not None:
        after(source)
    trainer_setup = replace(setup.with_options(checkpoint_every=inf), recorded=recorded)
    trainer = SlotTrainer(recipe, data, None, trainer_setup)
    shards = len(trial.shards or data.shards)
    metric = setup.metric or own_recipe(recipe, trial.config).metric
    done = first
    while done < len(visits):
        visit = visits[done]
        done_after = done + len(visit.shards)
        score = metric is not None and any(
            _is_evaluated(number / shards, evaluated) for number in range(done + 1, done_after + 1)
        )

        planned = visit._replace(samples=0)
        if nudge:
            source = nudged(source or trainer.state(trial.id), nudge + TWINS * done)
        unit = Unit(trial, tuple(visits[:done]), planned, source, score)
        scores = _make(trainer, unit)
        if scored is not None and scores:
            scored(done_after, scores)
        done = done_after
        source = None  # from now on the trainer has the state
        if after is not None:
            after(trainer.state(trial.id))
    return trainer.state(trial.id)


def _make(trainer: SlotTrainer, unit: Unit) -> Mapping[str, float]:
    """Make the visit, at the widths that it names and with the shards that were read together.

    Returns its scores, where it had one.
    """
    if unit.visit.widths or unit.visit.beside:
        trainer.gang.run(unit, Seat(unit.trial.id, generation=1, rank=0, width=1), Orders())
        return {}
    training = trainer.train(unit)
    while True:
        try:
            next(training)
        except StopIteration as end:
            done: Done = end.value
            return done.scores or {}


def _is_evaluated(epoch: float, evaluated: Collection[float] | None) -> bool:
    """Whether there was a validation after so many epochs."""
    if evaluated is None:
        return epoch.is_integer()
    return epoch in evaluated


def untrained(recipe: Recipe, data: Data, trial: Trial, setup: TrainerSetup) -> Tree:
    """The trial's state before its first visit."""
    epoch = epoch_size(data.sizes, trial.config)
    lane = _new_lane(recipe, trial.config, setup.seed, setup.device, epoch)
    return lane.state()


def has_batch_norm(recipe: Recipe, config: Config, seed: int) -> bool:
    """Whether the trial's model has batch norm."""
    model = _new_lane(recipe, config, seed, "cpu", epoch=1.0).model
    return any(isinstance(module, BATCH_NORMS) for module in model.modules())


def _new_lane(recipe: Recipe, config: Config, seed: int, device: str, epoch: float) -> TrainingLane:
    """A lane that has not trained. `seed`: the study's. `epoch`: samples in one."""
    return TrainingLane(
        own_recipe(recipe, config),
        own_config(recipe, config),
        seed=seed_of(config, seed),
        device=torch.device(device),
        epoch=epoch,
    )


def model_from(recipe: Recipe, config: Config, seed: int, state: Tree, device: str = "cpu") -> Any:
    """The trained model of a state, in evaluation mode; of a `ShardRecipe` its state.

    Raises:
        ValueError: the state is that of another model.
    """
    if state.get("found") is not None:
        config = with_size(config, state["found"])
    lane = _new_lane(recipe, config, seed, device, epoch=1.0)
    lane.load_model(state)
    if isinstance(lane.model, ShardModel):
        return lane.model.state
    model = lane.model.eval()
    return recipe.trained(model) if isinstance(recipe, Adapted) else model
