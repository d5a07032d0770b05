"""What functions kept: read back, and trained a second time to compare with."""

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from shoal.core.state import State
from shoal.core.trial import TrialId
from shoal.options import Options
from shoal.study.code.recipe_file import function_in
from shoal.study.folder import StudyError
from shoal.study.setup import Setup
from shoal.train.function.keep import unpacked, without_place
from shoal.train.function.recipe import FunctionRecipe, nothing
from shoal.train.function.trainer import FunctionTrainer
from shoal.train.lane.checkpoints import Checkpoints
from shoal.train.lane.device import device_of
from shoal.train.recipe.unit import Done, TrialError, Unit
from shoal.train.slot.setup import TrainerSetup
from shoal.train.tools.verify import Verdict, compare

Kept = Mapping[str, Any]


def given_back(saved: Kept) -> Any:
    """What a function gave as its checkpoint; of a path a copy, in a new folder."""
    folder = ""
    if saved["checkpoint"]["kind"] != "tree":
        folder = tempfile.mkdtemp(prefix="shoal-")
    return unpacked(saved["checkpoint"], Path(folder))


def check_callable(setup: Setup) -> None:
    """Raise StudyError if trials were trained by code that is not the study's."""
    if function_in(setup.recipe) is nothing:
        raise StudyError(
            f"the trials in {setup.folder.path} were trained by a loop of your own, which Shoal "
            "cannot call again: none to replay"
        )


def slot_setup(setup: Setup, options: Options) -> TrainerSetup:
    """A slot of this process on which trials are trained again."""
    return TrainerSetup(
        Options(threads=options.threads),
        seed=setup.seed,
        device=device_of(options.device),
        metric=setup.metric,
    )


def _without_places(saved: Kept) -> Kept:
    """A function's state with what its checkpoint holds, wherever that lay."""
    if not saved:
        return saved
    return {**saved, "checkpoint": without_place(saved["checkpoint"])}


class FunctionsAgain:
    """Calls functions of a study again, and compares what they keep."""

    def __init__(self, setup: Setup, state: State, options: Options) -> None:
        assert isinstance(setup.recipe, FunctionRecipe)
        self._recipe = setup.recipe
        self._state = state
        self._kept = Checkpoints(setup.folder.checkpoints, state.run)
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
        saved = self._kept.load(kept.name)
        with tempfile.TemporaryDirectory(prefix="shoal-") as folder:
            again = self._trained(trial, kept.visits, Checkpoints(folder, 0))
        equal, difference = compare(_without_places(saved), _without_places(again))
        if equal:
            return Verdict("equal", 0.0)
        return Verdict("differs", difference, "the function kept something else")

    def _trained(self, trial: TrialId, visits: int, vault: Checkpoints) -> Kept:
        """The state after so many reports; {} if there was no checkpoint this time."""
        known = self._state.known[trial]
        begun = 0
        source: Kept | None = None
        if known.start is not None:
            parent, begun = known.start
            source = self._trained(parent, begun, vault)
            if begun == visits:
                return source
        trainer = FunctionTrainer(self._recipe, vault, self._slot)
        name = None
        made = self._state.visits[trial]
        for number in range(begun, visits):
            unit = Unit(replace(known), made[:number], made[number], source)
            source = None
            [(_, news)] = trainer.train_pack([unit])
            if not isinstance(news, Done):
                _raise_from(news)
                break
            name = news.kept
        trainer.close()
        if name is None:
            return {}
        return vault.load(name)


def _raise_from(news: Any) -> None:
    """Raise what the function raised, if it did."""
    if isinstance(news, TrialError):
        raise news
