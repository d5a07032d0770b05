"""Trials trained a second time over their recorded visits, and compared with what was kept."""

from __future__ import annotations

import platform
import tempfile
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from math import inf, isclose, isnan
from typing import Any

from shoal.core.errors import StudyError, warn
from shoal.core.event import Kept, Opened, Planned
from shoal.core.plan import Gang
from shoal.core.state import State
from shoal.core.trial import Trial, TrialId
from shoal.engine.journal import Line
from shoal.options import Options
from shoal.reporting.format import plural
from shoal.study.backends import Perform, perform_here
from shoal.study.checkpoint_retention import Retention
from shoal.study.code.recipe_file import function_in
from shoal.study.folder import last_head, versions
from shoal.study.head import code_now, platform_facts, trained_by_other_code
from shoal.study.results import data_as_trained
from shoal.study.setup import Setup
from shoal.train.data.data import Data
from shoal.train.function.checkpoint import without_place
from shoal.train.function.recipe import FunctionRecipe, nothing
from shoal.train.function.trainer import FunctionTrainer
from shoal.train.lane.checkpoints import Checkpoints, Damaged
from shoal.train.lane.device import device_of
from shoal.train.recipe.recipes import attribute, own_recipe
from shoal.train.recipe.unit import Done, Tree, TrialError, Unit
from shoal.train.slot.setup import TrainerSetup
from shoal.train.tools.verify import (
    TWINS,
    Verdict,
    check_one_model,
    compare,
    differences,
    distance,
    has_batch_norm,
    in_one_form,
    judged,
    retrain,
    untrained,
)

Saved = Mapping[str, Any]
LIBRARIES = ("torch", "numpy", "shoal")
UNKNOWN = "the processor was not recorded"
# Why rounding alone cannot explain how a trial differs that was not trained alone.
FUSE_RANDOM = "fuse_random: fused it drew other random numbers, and is equal in distribution only"
WIDE_RANDOM = "on several slots it drew random numbers for each slot's part of a batch"
WIDE_NORM = "on several slots batch norm saw a slot's part of each batch only"
NO_SUCH_MODEL = (ValueError, LookupError, TypeError, AttributeError)  # of changed code
SCORES = 1e-3  # relative: how far equal weights may score apart
WORST = ("equal", "agrees", "not comparable", "differs", "missing")


def replayed(
    setup: Setup,
    state: State,
    trials: Sequence[TrialId] | None = None,
    perform: Perform = perform_here,
) -> list[dict[str, Any]]:
    """Train trials again over the visits that their durable states hold, and compare; a row each.

    Raises:
        StudyError: there is nothing durable of a trial, or of any; or the seed is another one; or
            the code makes another model than the one that was trained.
    """
    check_callable(setup)
    seed = setup.folder.head().get("seed", setup.seed)
    if seed != setup.seed:
        seeds = f"begun with seed={seed}, and is opened with seed={setup.seed}"
        raise StudyError(f"this study was {seeds}: open it with the same, or load_study")
    if not state.kept:
        raise StudyError(f"nothing durable of any trial in {setup.folder.path}: none to replay")
    chosen = trials
    if not chosen:
        chosen = [trial for trial in state.known if trial in state.kept]
    unknown = [trial for trial in chosen if trial not in state.kept]
    if unknown:
        raise StudyError(
            f"nothing durable of trial {', '.join(unknown)}; of these there is: "
            f"{', '.join(state.kept)}"
        )
    lines = setup.folder.lines()
    data = None
    if not isinstance(setup.recipe, FunctionRecipe):
        data = data_as_trained(setup)
    by_other_code = trained_by_other_code(lines, lambda: lines, code_now(setup, last_head(lines)))
    needed = frozenset() if perform is perform_here else _visible_names(setup, state, chosen)
    arguments = state, lines, chosen, by_other_code
    device = last_head(lines)["options"]["device"]
    try:
        rows: list[dict[str, Any]] = perform(
            _replay_rows, setup, data, *arguments, needed, device=device
        )
    except _CheckpointsUnseen as error:
        warn(f"{error}, so trials are trained again in this process, and the nodes read for it")
        rows = _replay_rows(setup, data, *arguments)
    return rows


def check_callable(setup: Setup) -> None:
    """Raise StudyError if trials were trained by code that is not the study's."""
    if function_in(setup.recipe) is nothing:
        raise StudyError(
            f"the trials in {setup.folder.path} were trained by a loop of your own, which Shoal "
            "cannot call again: none to replay"
        )


class _CheckpointsUnseen(Exception):  # noqa: N818
    """A node does not see checkpoints that are there."""


def _visible_names(setup: Setup, state: State, trials: Iterable[TrialId]) -> frozenset[str]:
    """The names of the trials' newest durable states, as far as this process sees them."""
    names = Checkpoints(setup.folder.checkpoints, state.run).names()
    return frozenset(state.kept[trial].name for trial in trials) & frozenset(names)


def _replay_rows(
    setup: Setup,
    data: Data | None,
    state: State,
    lines: Sequence[Line],
    trials: Sequence[TrialId],
    by_other_code: Collection[TrialId],
    needed: frozenset[str] = frozenset(),
) -> list[dict[str, Any]]:
    """The rows of these trials.

    `by_other_code`: those that other code trained. `needed`: checkpoints.

    Raises:
        StudyError: as `replayed`.
        _CheckpointsUnseen: one that is needed is not there.
    """
    if not needed <= _visible_names(setup, state, trials):
        raise _CheckpointsUnseen(
            f"{platform.node()} does not see the checkpoints in {setup.folder.checkpoints}"
        )
    options = Options.of(**last_head(lines)["options"])
    replay: FunctionReplay | RecipeReplay
    if data is None:
        replay = FunctionReplay(setup, state, options)
    else:
        replay = RecipeReplay(setup, data, state, lines, options)
    rows = [_row(setup, state, trial, replay, trial in by_other_code) for trial in trials]
    unlike = platform_differences(lines)
    return [{**row, "elsewhere": unlike if row["verdict"] == "differs" else []} for row in rows]


def _row(
    setup: Setup, state: State, trial: TrialId, replay: FunctionReplay | RecipeReplay, changed: bool
) -> dict[str, Any]:
    """A trial's row of `Study.replay`. `changed`: other code than the recipe's trained the trial.

    Raises:
        StudyError: that code made another model.
    """
    kept = state.kept[trial]
    try:
        verdict = replay.compared(trial)
    except (FileNotFoundError, Damaged) as error:
        why = f"its checkpoint {kept.name} is missing or damaged ({error})"
        verdict = Verdict("missing", inf, why)
    except (TrialError, *NO_SUCH_MODEL) as error:
        if changed:
            raise StudyError(
                f"the code differs from the one that trained {trial}, and makes another model "
                f"({type(error).__name__}: {error}): replay needs the code that trained it, whose "
                f"text is in {setup.folder.path / 'recipe'}; give the file as it was, or train the "
                "code as it is now in a new study, with another storage="
            ) from error
        verdict = Verdict("differs", inf, f"trained again it raised: {error}")
    if changed and verdict.verdict == "differs":
        verdict = verdict._replace(
            why=f"the code differs from the one that trained it ({verdict.why})"
        )
    fused, wide = replay.company(trial)
    return {
        "trial": trial,
        "visits": kept.visits,
        "verdict": verdict.verdict,
        "why": verdict.why,
        "equal": verdict.verdict == "equal",
        "agrees": verdict.verdict in ("equal", "agrees"),
        "difference": verdict.difference,
        "fused": fused,
        "wide": wide,
    }


# -- recipes ---------------------------------------------------------------------------------------


class RecipeReplay:
    """Trains trials of a study again, and compares them.

    Numbers that were rounded otherwise than alone are compared over the shortest stretches that
    there are: from each durable state to the next one, so that rounding does not pile up.
    """

    def __init__(
        self, setup: Setup, data: Data, state: State, lines: Sequence[Line], options: Options
    ) -> None:
        self._setup = setup
        self._state = state
        self._data = data
        self._slot = slot_setup(setup, options)
        self._vault = Checkpoints(setup.folder.checkpoints, state.run)
        entries = [line.entry for line in lines]
        gangs = [gang for each in entries if isinstance(each, Planned) for gang in each.start]
        self._fused = _with_copies(_fused(gangs), state)
        self._wide = _with_copies(_wide(gangs), state)
        # After how many visits each durable state of each trial came.
        self._names = {
            (each.trial, each.name): each.visits for each in entries if isinstance(each, Kept)
        }
        self._retention = Retention(self._vault, setup.aim)
        self._retention.learn(lines)

    def company(self, trial: TrialId) -> tuple[bool, bool]:
        """Whether the trial was in a fused pack, and whether it had several slots."""
        return trial in self._fused, trial in self._wide

    def compared(self, trial: TrialId) -> Verdict:
        """How the trial's durable states compare with the trial trained again.

        Raises:
            FileNotFoundError, Damaged: the newest one cannot be read.
            TrialError: training it again failed.
            ValueError: it has another model.
        """
        kept = self._state.kept[trial]
        saved = self._vault.load(kept.name)
        in_checkpoint, on_record = len(saved["visits"]), kept.visits
        if self._state.ended.get(trial) == "finished":
            on_record = len(self._state.visits[trial])
        if in_checkpoint != on_record:
            why = f"its checkpoint holds {plural(in_checkpoint, 'pass')}, the record {on_record}"
            return Verdict("differs", inf, why)
        start = self._state.known[trial].start
        earlier = self._earlier(trial, start[1] if start else 0)
        scores: dict[int, float] = {}
        comparison = _StateComparison(earlier)
        retrained = self._trained(trial, kept.visits, scores, comparison if earlier else None)
        check_one_model(saved, retrained)
        comparison.compare(kept.visits, saved, retrained)
        if any(self.company(trial)):
            if not comparison.gaps:
                return Verdict("equal", 0.0)
            verdicts = []
            begun = self._start(trial)
            for visits, state in [*earlier, (kept.visits, saved)]:
                verdicts.append(self._stretch(trial, begun, visits, state))
                begun = (visits, state)
            return max(verdicts, key=lambda each: WORST.index(each.verdict))
        if comparison.gaps:
            return comparison.verdict(kept.visits)
        return self._scores_compared(trial, scores)

    def _scores_compared(self, trial: TrialId, scores: Mapping[int, float]) -> Verdict:
        """Compare recorded scores with those of the trial trained again, whose state is equal.

        Samples may have been summed up in another order.
        """
        recorded = self._recorded(trial)
        for visits, score in scores.items():
            known = recorded.get(visits, score)
            if not isclose(known, score, rel_tol=SCORES, abs_tol=1e-6) and not (
                isnan(known) and isnan(score)
            ):
                why = (
                    f"the score after {plural(visits, 'pass')} is {known:.6g} in the record, and "
                    f"{score:.6g} trained again"
                )
                return Verdict("differs", abs(known - score), why)
        return Verdict("equal", 0.0)

    def _stretch(
        self, trial: TrialId, begun: tuple[int, Tree] | None, visits: int, saved: Tree
    ) -> Verdict:
        """Compare one durable state with the trial trained again from the one before it."""
        path = _Path()
        recorded = self._recorded(trial)
        retrained = self._retrained(trial, visits, begun, after=path, recorded=recorded)
        why = self._why_not_rounding(trial, retrained)
        twins = (
            self._retrained(trial, visits, begun, nudge=number, recorded=recorded)
            for number in range(1, TWINS + 1)
        )
        return judged(*in_one_form(saved, retrained), twins, path.mean, why, trial in self._wide)

    def _recorded(self, trial: TrialId) -> dict[int, float]:
        """The trial's metric after so many visits, which its learning rate may have followed."""
        known = self._state.known[trial]
        metric = self._metric(trial)
        shards = len(known.shards or self._data.shards)
        return {
            round(epoch * shards): values[metric]
            for epoch, values in self._state.scores[trial]
            if metric in values and isclose(epoch * shards, round(epoch * shards))
        }

    def _metric(self, trial: TrialId) -> str:
        """The metric of the study, or of the trial's recipe; empty: there is none."""
        recipe = own_recipe(self._setup.recipe, self._state.known[trial].config)
        return self._setup.metric or recipe.metric or ""

    def _earlier(self, trial: TrialId, least: int) -> list[tuple[int, Tree]]:
        """The durable states before the newest one that can still be read, by their visits.

        Only those of more than `least` visits: with so many it started.
        """
        newest = self._state.kept[trial]
        names = {self._retention.best[trial][1]} if trial in self._retention.best else set()
        if trial in self._state.former:
            names.add(self._state.former[trial].name)
        states = {}
        for name in names - {newest.name}:
            visits = self._names.get((trial, name), 0)
            if least < visits < newest.visits:
                with suppress(FileNotFoundError, Damaged):
                    states[visits] = self._vault.load(name)
                if visits in states and not self._is_before(states[visits], trial):
                    del states[visits]  # its visits were made again since
        return sorted(states.items(), key=lambda item: item[0])

    def _is_before(self, saved: Tree, trial: TrialId) -> bool:
        """Whether the trial's recorded visits begin with those of the state."""
        recorded = [visit.as_list() for visit in self._state.visits[trial]]
        visits: list[Any] = saved["visits"]
        return visits == recorded[: len(visits)]

    def _why_not_rounding(self, trial: TrialId, retrained: Tree) -> str:
        """Why rounding alone cannot explain how the trial differs; empty: it may."""
        known = _sized(self._state, trial)
        wide = trial in self._wide
        if wide and has_batch_norm(self._setup.recipe, known.config, self._setup.seed):
            return WIDE_NORM
        random = attribute(self._setup.recipe, known.config, "fuse_random")
        if not wide and not random:
            return ""
        fresh = untrained(self._setup.recipe, self._data, known, self._slot)
        if compare(fresh["rng"], retrained["rng"]).equal:
            return ""
        return WIDE_RANDOM if wide else FUSE_RANDOM

    def _start(self, trial: TrialId) -> tuple[int, Tree] | None:
        """The state of another trial that this one starts from; None: it starts anew."""
        start = self._state.known[trial].start
        if start is None:
            return None
        parent, visits = start
        kept = self._state.kept.get(parent)
        if kept is not None and kept.visits == visits:
            with suppress(FileNotFoundError, Damaged):
                return visits, self._vault.load(kept.name)
        return visits, self._trained(*start)

    def _trained(
        self,
        trial: TrialId,
        visits: int,
        scores: dict[int, float] | None = None,
        after: Callable[[Tree], None] | None = None,
    ) -> Tree:
        """The trial's state after so many visits, from the beginning.

        If the trial starts from another trial's state, the other one is trained first. `scores`:
        takes its metric after so many visits of its own. `after`: is called with the state after
        each of them.
        """
        start = self._state.known[trial].start
        begun = None
        if start is not None:
            source = self._trained(*start)
            if visits == start[1]:
                return source
            begun = (start[1], source)
        metric = self._metric(trial)

        def scored(count: int, values: Mapping[str, float]) -> None:
            if scores is not None and metric in values:
                scores[count] = values[metric]

        return self._retrained(trial, visits, begun, scored=scored, after=after)

    def _retrained(
        self, trial: TrialId, visits: int, begun: tuple[int, Tree] | None, **how: Any
    ) -> Tree:
        """The trial's state after so many visits, from the state after its first few."""
        return retrain(
            self._setup.recipe,
            self._data,
            _sized(self._state, trial),
            self._state.visits[trial][:visits],
            self._slot,
            evaluated={epoch for epoch, _ in self._state.scores[trial]},
            begun=begun,
            **how,
        )


class _StateComparison:
    """Compares durable states, to the last bit, with those of the trial trained again.

    Called with the state trained again after each visit, it compares the `earlier` ones.
    """

    def __init__(self, earlier: Sequence[tuple[int, Tree]]) -> None:
        self._earlier = dict(earlier)
        # By visits: the first place that differs, and the largest difference of all places.
        self.gaps: dict[int, tuple[str, float]] = {}

    def __call__(self, retrained: Tree) -> None:
        visits = len(retrained["visits"])
        if visits in self._earlier:
            self.compare(visits, self._earlier[visits], retrained)

    def compare(self, visits: int, saved: Tree, retrained: Tree) -> None:
        """Compare the durable state after so many visits with the retrained one."""
        places = list(differences(*in_one_form(saved, retrained)))
        if places:
            path, gap = places[0]
            where = f"{path} by {gap:.3g}" if gap < inf else path
            self.gaps[visits] = (where, max(gap for _, gap in places))

    def verdict(self, newest: int) -> Verdict:
        """The verdict on a trial that differs; `newest`: the visits of its newest state."""
        visits, (where, gap) = min(self.gaps.items())
        if visits < newest:
            where = f"its checkpoint after {plural(visits, 'pass')}: {where}"
        return Verdict("differs", gap, where)


class _Path:
    """The distances that a model moves in each visit; called with the states in turn."""

    def __init__(self) -> None:
        self._before: Tree | None = None
        self._moves: list[float] = []

    def __call__(self, state: Tree) -> None:
        now = {"model": deepcopy(state["model"])}
        if self._before is not None:
            self._moves.append(distance(now, self._before))
        self._before = now

    @property
    def mean(self) -> float:
        """The mean distance of a visit, as a norm."""
        return sum(self._moves) / max(len(self._moves), 1)


def _fused(gangs: Iterable[Gang]) -> set[TrialId]:
    """Trials whose steps may have been fused with others, which rounds otherwise than alone."""
    fused: set[TrialId] = set()
    for gang in gangs:
        if gang.fused and len(gang.lanes) > 1:
            fused |= set(gang.trials)
    return fused


def _wide(gangs: Iterable[Gang]) -> set[TrialId]:
    """Trials that had several slots: their gradients were summed in parts."""
    wide: set[TrialId] = set()
    for gang in gangs:
        wide |= {lane.trial for lane in gang.lanes if len(lane.slots) > 1}
    return wide


def _with_copies(trials: set[TrialId], state: State) -> set[TrialId]:
    """These trials, and all that started from the state of one of them."""
    related = set(trials)
    for trial, known in state.known.items():  # a copy comes after its parent
        if known.start is not None and known.start[0] in related:
            related.add(trial)
    return related


def _sized(state: State, trial: TrialId) -> Trial:
    """The trial with the batch size that was found for it, if its configuration left it open."""
    known = state.known[trial]
    figures = state.figures.get(state.signature.get(trial, ""), {})
    if "batch_size" not in figures:
        return known
    config = {**known.config, "batch_size": int(figures["batch_size"])}
    return replace(known, config=config)


# -- functions -------------------------------------------------------------------------------------


class FunctionReplay:
    """Calls functions of a study again, and compares what they keep."""

    def __init__(self, setup: Setup, state: State, options: Options) -> None:
        assert isinstance(setup.recipe, FunctionRecipe)
        self._recipe = setup.recipe
        self._state = state
        self._vault = Checkpoints(setup.folder.checkpoints, state.run)
        self._slot = slot_setup(setup, options)

    def company(self, _trial: TrialId) -> tuple[bool, bool]:
        """Functions are neither fused nor wide."""
        return False, False

    def compared(self, trial: TrialId) -> Verdict:
        """Call a trial's function again up to its newest checkpoint, alone, and compare.

        They are equal if the function is deterministic under its seed.

        Raises:
            FileNotFoundError, Damaged: the checkpoint cannot be read.
            TrialError: the function raised.
        """
        kept = self._state.kept[trial]
        saved = self._vault.load(kept.name)
        with tempfile.TemporaryDirectory(prefix="shoal-") as folder:
            repeated = self._trained(trial, kept.visits, Checkpoints(folder, 0))
        equal, difference = compare(_without_places(saved), _without_places(repeated))
        if equal:
            return Verdict("equal", 0.0)
        return Verdict("differs", difference, "the function kept something else")

    def _trained(self, trial: TrialId, visits: int, vault: Checkpoints) -> Saved:
        """The trial's state after so many reports; {} if there was no checkpoint this time."""
        known = self._state.known[trial]
        begun = 0
        source: Saved | None = None
        if known.start is not None:
            parent, begun = known.start
            source = self._trained(parent, begun, vault)
            if begun == visits:
                return source
        trainer = FunctionTrainer(self._recipe, vault, self._slot)
        name = None
        recorded = self._state.visits[trial]
        for number in range(begun, visits):
            unit = Unit(replace(known), recorded[:number], recorded[number], source)
            source = None
            [(_, news)] = trainer.train_pack([unit])
            if isinstance(news, TrialError):
                raise news
            if not isinstance(news, Done):
                break
            name = news.kept
        trainer.close()
        if name is None:
            return {}
        return vault.load(name)


def _without_places(saved: Saved) -> Saved:
    """A function's state with what its checkpoint holds, wherever that lay."""
    if not saved:
        return saved
    return {**saved, "checkpoint": without_place(saved["checkpoint"])}


# -- this machine and those of the study -----------------------------------------------------------


def slot_setup(setup: Setup, options: Options) -> TrainerSetup:
    """A slot of this process on which trials are trained again."""
    return TrainerSetup(
        Options(threads=options.threads),
        seed=setup.seed,
        device=device_of(options.device),
        metric=setup.metric,
    )


def platform_differences(lines: Sequence[Line]) -> list[str]:
    """How the machines of a study's runs differ from this process, in words."""
    heads = [line.entry.head for line in lines if isinstance(line.entry, Opened)]
    if not heads:
        return []
    options = heads[-1]["options"]
    here = {
        **platform_facts(options["device"]),
        **{name: versions().get(name, "none") for name in LIBRARIES},
        "threads": str(options["threads"]),
    }
    unlike: dict[str, None] = {}
    for head in heads:
        threads = {"threads": str(head["options"]["threads"])}
        there = {**head.get("place", {}), **head.get("versions", {}), **threads}
        texts = [
            f"{name} was {there[name]}, is {value}"
            for name, value in here.items()
            if name in there and there[name] != value
        ]
        unlike |= dict.fromkeys(texts if "place" in head else [*texts, UNKNOWN])
    return list(unlike)
