"""One slot: its data, the lanes of the trials that it has seen, and one unit after another."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Sequence

import torch

from shoal.core.cluster import ShardId
from shoal.core.trial import Trial, TrialId
from shoal.train.data.data import Data
from shoal.train.lane.blame import blaming
from shoal.train.lane.checkpoints import Checkpoints
from shoal.train.lane.device import use
from shoal.train.lane.measure import Meter
from shoal.train.private import delay_compiler, keep_freed
from shoal.train.recipe.recipe import Recipe
from shoal.train.recipe.shard import ShardRecipe
from shoal.train.recipe.unit import Done, OutOfMemory, PackRefused, Part, Tree, TrialError, Unit
from shoal.train.slot.context import Records, RemoteValidation, SlotContext, Stopwatch, ignore_turn
from shoal.train.slot.evaluation import Scores, ScoresByTrial, validation_records
from shoal.train.slot.gang_units import GangUnits
from shoal.train.slot.lane_builder import LaneBuilder
from shoal.train.slot.lane_cache import LaneCache
from shoal.train.slot.pack_loop import PackLoop
from shoal.train.slot.passes import Pass
from shoal.train.slot.probing import FirstPacks, Probed, Probing, first_unit
from shoal.train.slot.setup import TrainerSetup
from shoal.train.slot.units import Units
from shoal.train.stream.stream import Feed, Streams

__all__ = ["Done", "Part", "SlotTrainer", "TrainerSetup", "Tree", "TrialError", "Unit"]

News = Part | Done | TrialError
TrialNews = tuple[TrialId, News]


class SlotTrainer:
    """One slot. A lane stays after its unit, so that the trial's next unit here goes on at once.

    `vault`: where states are made durable; None: no state is made durable. `feed`: see `Stream`.
    `turn_of` is called with the trial whose code runs next, of fused trials with the first.
    """

    def __init__(
        self,
        recipe: Recipe,
        data: Data,
        vault: Checkpoints | None,
        setup: TrainerSetup | None = None,
        *,
        feed: Feed | None = None,
        turn_of: Callable[[TrialId], None] | None = None,
        remote_validation: RemoteValidation | None = None,
    ) -> None:
        delay_compiler()
        keep_freed()
        setup = setup or TrainerSetup()
        device = use(setup.device)
        streams = Streams(
            recipe,
            data,
            seed=setup.seed,
            # the batches of a shard recipe are NumPy arrays
            device=torch.device("cpu") if isinstance(recipe, ShardRecipe) else device,
            memory_gb=min(setup.options.data_memory_gb, setup.options.slot_limit / 4),
            feed=feed,
        )
        self.context = context = SlotContext(
            recipe=recipe,
            data=data,
            vault=vault,
            setup=setup,
            device=device,
            streams=streams,
            meter=Meter(device),
            turn_of=turn_of or ignore_turn,
            remote_validation=remote_validation,
        )
        self.pack = PackLoop(context)
        builder = LaneBuilder(context)
        self.lanes = LaneCache(context, builder, self.pack.stacks)
        self._units = Units(context, self.lanes)
        self._probing = Probing(context, self.pack, self.lanes, self._units)
        self._first_packs = FirstPacks(context, builder, self.lanes, self.pack.fusion)
        self.gang = GangUnits(context, self.pack, self.lanes, self._units)

    # -- units ---------------------------------------------------------------------------------

    def train(self, unit: Unit) -> Generator[Part, None, Done]:
        """Train a unit: make its visit.

        If the caller stops early, the visit does not count, and the trial's state here is dropped.

        Raises:
            TrialError: the recipe's code raised, or the loss diverged.
            DataError, OSError, StaleRun: the study must pause.
            LookupError: the unit's source is not here.
        """
        for _, news in self.train_pack((unit,)):
            if isinstance(news, TrialError):
                raise news
            if isinstance(news, Done):
                return news
            yield news
        raise AssertionError("a unit ends with Done or an error")

    def train_pack(
        self, units: Sequence[Unit], fuse: bool = False, measured: Collection[str] | None = None
    ) -> Generator[TrialNews, None, None]:
        """Make the visits of several trials over shared chunks.

        The last news of each trial is `Done` or its error. If memory runs out for one of several
        trials, the visits of all end. If the slot learns before that they have no room together,
        or of what kinds they are, none begins: `PackRefused`; so end visits in which a step of
        several at once cannot be made, and the next ones take none. If the caller stops early,
        visits that are not done do not count.

        `measured`: the signatures of which somebody has told how fast they are. A pack with others
        is not begun before its slot has told that; None: it is begun.
        `fuse`: lanes of one graph may train in one step where that is faster. Results then agree
        with those of training alone up to rounding; otherwise they agree to the bit.

        Raises:
            DataError, OSError, StaleRun, LookupError: as `train`.
        """
        trials = [unit.trial.id for unit in units]
        passes: list[Pass] = []
        ended: set[TrialId] = set()  # trials whose last news was told
        prepared = {"save": self.lanes.make_room(units)}
        try:
            why = self._first_packs.why_not(units, measured, prepared, fuse)
            if why is not None:
                yield from self._first_packs.refused(units, why)
                return

            for unit in units:
                share = {name: seconds / len(units) for name, seconds in prepared.items()}
                try:
                    passes.append(self._units.open(unit, share))
                except OutOfMemory:
                    raise
                except TrialError as error:
                    self.lanes.drop(unit.trial.id)
                    ended.add(unit.trial.id)
                    yield unit.trial.id, error

            for each, news in self.pack.run(passes, fuse):
                if isinstance(news, TrialError):
                    self.lanes.drop(each.trial)
                    ended.add(each.trial)
                yield each.trial, news

            complete = [each for each in passes if not each.failed]
            scores = self.pack.evaluation.scores([each for each in complete if each.evaluate])
            for each in complete:
                outcome = self._conclude(each, scores.get(each.trial))
                ended.add(each.trial)
                yield each.trial, outcome
        except (OutOfMemory, PackRefused) as error:
            yield from self._voided(error, units, passes, ended)
        except GeneratorExit:
            raise
        except BaseException:
            self.lanes.drop(*trials)
            raise

    def _voided(
        self,
        error: OutOfMemory | PackRefused,
        units: Sequence[Unit],
        passes: Sequence[Pass],
        ended: Collection[TrialId],
    ) -> list[TrialNews]:
        """The ends of visits that do not count: memory ran out, or they cannot train as they did.

        Those of all trials end that are not over: the lanes share the slot's memory and its steps.
        """
        signatures = {each.trial: each.lane.signature for each in passes}
        voided = [unit.trial.id for unit in units if unit.trial.id not in ended]
        self.lanes.drop(*voided)
        news: list[TrialNews] = []
        freed = isinstance(error, OutOfMemory) and self.lanes.ran_out(alone=len(units) == 1)
        for trial in voided:
            signature = signatures.get(trial, "")
            if isinstance(error, OutOfMemory):
                news.append((trial, OutOfMemory(error.why, error.text, signature, freed)))
            else:
                figures = self.context.meter.news(signature)
                news.append((trial, PackRefused(error.why, signature, figures, begun=True)))
        return news

    def _conclude(self, lane_pass: Pass, scores: Scores | TrialError | None) -> Done | TrialError:
        """End a pass that was made: its report, or the trial's error."""
        try:
            if isinstance(scores, TrialError):
                raise scores
            cached = self.lanes.get(lane_pass.trial)
            assert cached is not None, "a lane at work stays"
            return self._units.conclude(lane_pass, cached, scores)
        except OutOfMemory:
            raise
        except TrialError as error:
            self.lanes.drop(lane_pass.trial)
            return error

    # -- trials whose lanes are here -----------------------------------------------------------

    def state(self, trial: TrialId) -> Tree:
        """The trial's state: views, valid until its next unit here.

        Raises:
            LookupError: it is not here.
        """
        return self.lanes.state(trial)

    def holds(self, trial: TrialId, visits: int) -> bool:
        """Whether a unit of the trial after so many visits needs no source."""
        return self.lanes.has(trial, visits)

    def follows_scores(self, trial: TrialId) -> bool:
        """Whether the trial's learning rate depends on its scores; True if that is not known."""
        cached = self.lanes.get(trial)
        return cached is None or cached.lane.optimization.follows_metric

    def place(self, unit: Unit) -> None:
        """Bring the trial into the state before that unit, without training it.

        Raises:
            TrialError, LookupError: as `train`.
        """
        cached = self.lanes.ready(unit, Stopwatch(False))
        cached.current = True

    def keep(self, trial: TrialId) -> str:
        """Make the trial's state durable now, between its units; returns the checkpoint's name.

        Raises:
            LookupError: it is not here, or there is no vault.
        """
        return self.lanes.keep(trial)

    def commit(self) -> None:
        """Write the states that wait to share a file with others."""
        if self.context.vault is not None:
            self.context.vault.commit()

    def forget(self, trial: TrialId) -> None:
        """Free the memory that the trial takes here."""
        self.lanes.forget(trial)

    def evaluate(self, trials: Iterable[TrialId]) -> ScoresByTrial:
        """The means of the validation values of trials whose lanes are here.

        A trial's scores are empty if there is nothing to validate with.

        Raises:
            OutOfMemory: the trials are as they were.
            LookupError: a trial's lane is not here.
        """
        passes = []
        scores: ScoresByTrial = {}
        for trial in trials:
            cached = self.lanes.get(trial)
            if cached is None:
                raise LookupError(f"trial {trial} is not held here")
            unit = first_unit(self.context, Trial(trial, 1.0))
            passes.append(Pass(unit, cached.lane, Stopwatch(False)))
            scores[trial] = {}
        return scores | self.pack.evaluation.scores(passes)

    def validation_records(self, unit: Unit, parts: Collection[ShardId]) -> Records:
        """The records of validation parts that are read here, for the slot that trains the trial.

        The trial leaves nothing here. `unit`: its source is the state to validate.

        Raises:
            TrialError: the recipe's code raised.
            DataError: a part cannot be read.
        """
        self.context.set_threads()
        self.place(unit)
        cached = self.lanes.get(unit.trial.id)
        assert cached is not None, "it was just placed"
        stream = self.context.streams.of(cached.lane.settings.data_key)
        try:
            with blaming():
                return validation_records(cached.lane, stream, parts)
        finally:
            self.forget(unit.trial.id)

    def probe(self, trial: Trial) -> Probed:
        """The trial's signature and what such trials cost: see `Probing.one`."""
        return self._probing.one(trial)

    def probe_packs(self, trials: Sequence[Trial]) -> dict[TrialId, Probed]:
        """The costs of fused steps of these trials: see `Probing.pack`."""
        return self._probing.pack(trials)
