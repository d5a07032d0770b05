"""What durable states become again: models to use, and trials trained a second time to compare with."""

from typing import TYPE_CHECKING, Any

from shoal.core.trial import TrialId
from shoal.folder import StudyError, last_head
from shoal.wiring import Options, data_of

if TYPE_CHECKING:
    from torch import nn

    from shoal.study import Study


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
    return model_from(study.recipe, study.state.known[trial].config, study.seed, vault.load(name))


def replayed(study: "Study", trial: TrialId) -> dict[str, Any]:
    """Train a trial again over the visits that its newest durable state holds, and compare."""
    from shoal.train.checkpoint import Vault
    from shoal.train.device import device_of
    from shoal.train.verify import compare, retrain

    state = study.state
    kept = state.kept[trial]
    saved = Vault(study.folder.checkpoints, state.run).load(kept.name)
    visits = state.visits[trial][: kept.visits]
    options = Options.of(**last_head(study.lines())["options"])
    again = retrain(
        study.recipe,
        data_of(study.recipe),
        state.known[trial],
        visits,
        study.seed,
        device=device_of(options.device),
        threads=options.threads,
        metric=study.metric,
        evaluated={epoch for epoch, _ in state.scores[trial]},
    )
    equal, difference = compare(saved, again)
    return {"trial": trial, "visits": len(visits), "equal": equal, "difference": difference}
