"""What durable states become again: models to use, and trials trained a second time to compare with."""

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from shoal.core.event import Planned
from shoal.core.trial import TrialId
from shoal.engine.journal import Line
from shoal.folder import StudyError, last_head
from shoal.wiring import Options, data_of

if TYPE_CHECKING:
    from torch import nn

    from shoal.core.state import State
    from shoal.core.trial import Trial
    from shoal.study import Study
    from shoal.train.data import Data
    from shoal.train.unit import Tree


ROUNDING = 0.1  # of a model's norm: as far as training was seen to carry the rounding of fused packs and wide lanes


def load_model(study: "Study", trial: TrialId, which: str) -> "nn.Module":
    """A trial's model with durable weights."""
    from shoal.train.checkpoint import Vault
    from shoal.train.verify import model_from
    from shoal.watch import Retention

    if which not in ("last", "best"):
        raise StudyError(f'which must be "last" or "best"; got {which!r}')
    vault = Vault(study.folder.checkpoints, study.state.run)
    kept = study.state.kept.get(trial)
    name = kept.name if kept else None
    if which == "best":
        retention = Retention(vault, study.metric, study.mode)
        retention.learn(study.lines())
        name = retention.best[trial][1] if trial in retention.best else name
    if name is None:
        how = study.state.ended.get(trial)
        raise StudyError(f"nothing of trial {trial} is durable" + (f"; it {how}" if how else " yet: let the study run on"))
    try:
        state = vault.load(name)
    except FileNotFoundError as error:
        why = f"is not in {vault.url} any more: it was deleted for max_checkpoint_gb, or by hand"
        raise StudyError(f"checkpoint {name} of trial {trial} {why}") from error
    return model_from(study.recipe, study.state.known[trial].config, study.seed, state)


def replayed(study: "Study", trial: TrialId) -> dict[str, Any]:
    """Train a trial again over the visits that its newest durable state holds, and compare."""
    from shoal.train.checkpoint import Vault
    from shoal.train.verify import apart, compare

    kept = study.state.kept[trial]
    saved = Vault(study.folder.checkpoints, study.state.run).load(kept.name)
    again = {**_again(study, data_of(study.recipe), trial, kept.visits), "found": saved.get("found")}
    equal, difference = compare({"found": None, "scheduled": again["scheduled"], **saved}, again)
    fused = trial in _fused(study.lines())
    random = fused and bool(study.state.known[trial].config.get("fuse_random", study.recipe.fuse_random))
    wide = trial in _wide(study.lines())
    agrees = equal or ((fused or wide) and apart(saved, again) <= ROUNDING)
    found = {"trial": trial, "visits": kept.visits, "equal": equal, "difference": difference}
    return {**found, "fused": fused, "random": random, "wide": wide, "agrees": agrees}


def _fused(lines: Iterable[Line]) -> set[TrialId]:
    """Trials that were in a gang whose lanes may be fused: their sums may have been rounded otherwise than alone."""
    gangs = [gang for line in lines if isinstance(line.entry, Planned) for gang in line.entry.start]
    return {trial for gang in gangs if gang.fused and len(gang.lanes) > 1 for trial in gang.trials}


def _wide(lines: Iterable[Line]) -> set[TrialId]:
    """Trials that had several slots: their gradients were summed in parts."""
    gangs = [gang for line in lines if isinstance(line.entry, Planned) for gang in line.entry.start]
    return {lane.trial for gang in gangs for lane in gang.lanes if len(lane.slots) > 1}


def _sized(state: "State", trial: TrialId) -> "Trial":
    """The trial with the batch size that was found out for it, where its configuration left that open."""
    known, figures = state.known[trial], state.figures.get(state.signature.get(trial, ""), {})
    if "batch_size" not in figures:
        return known
    return replace(known, config={**known.config, "batch_size": int(figures["batch_size"])})


def _again(study: "Study", data: "Data", trial: TrialId, visits: int) -> "Tree":
    """The trial's state after so many visits; of one that starts from another, that other is trained first."""
    from shoal.train.device import device_of
    from shoal.train.verify import retrain

    state, start = study.state, study.state.known[trial].start
    if start is not None and visits == start[1]:
        return _again(study, data, *start)
    options = Options.of(**last_head(study.lines())["options"])
    return retrain(
        study.recipe,
        data,
        _sized(state, trial),
        state.visits[trial][:visits],
        study.seed,
        device=device_of(options.device),
        threads=options.threads,
        metric=study.metric,
        evaluated={epoch for epoch, _ in state.scores[trial]},
        begun=None if start is None else (start[1], _again(study, data, *start)),
    )
