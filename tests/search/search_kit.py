"""Views made by hand, and whole studies on one table, for tests of searchers."""

from collections.abc import Mapping
from typing import Any

from shoal.backend.sim.sim import Sim
from shoal.backend.sim.units import SimulatedRecipe, no_fault
from shoal.core.cluster import ShardId, Slot, SlotId
from shoal.core.event import (
    Advanced,
    Entry,
    Evaluated,
    Failed,
    Finished,
    Joined,
    Kept,
    Opened,
    Submitted,
)
from shoal.core.fold import fold
from shoal.core.ports import Policy
from shoal.core.state import State, View, view
from shoal.core.trial import Trial, TrialId, Visit
from shoal.engine.journal import Journal, Line
from shoal.engine.run import run
from shoal.policy.fifo import Fifo
from shoal.profile.table import Row, Table

SHARDS = {ShardId("all"): 100}
Told = tuple[
    float, list[float | None], str
]  # epochs to train, scores by epoch, how it stands: "", "finished", "failed"


def told(
    trials: Mapping[str, Told], slots: int = 2, configs: Mapping[str, Any] | None = None
) -> View:
    """Trials that were to train so many epochs and scored so each epoch."""
    here = tuple(Slot(SlotId(f"g{i}"), shards=frozenset(SHARDS)) for i in range(slots))
    entries: list[Entry] = [Opened(1, SHARDS), Joined(here)]
    for name, (epochs, scores, how) in trials.items():
        t = TrialId(name)
        config = (configs or {}).get(name, {})
        entries.append(Submitted(Trial(t, epochs * 100, config, shards=frozenset(SHARDS))))
        for epoch, score in enumerate(scores):
            entries.append(
                Advanced({t: 100}, visits={t: (Visit(epoch, ShardId("all"), epoch, 100),)})
            )
            entries += [] if score is None else [Evaluated(t, epoch + 1, {"score": score})]
        entries += (
            [Kept(t, len(scores), 100.0 * len(scores), f"{t}/{len(scores)}")] if scores else []
        )
        entries += {"": [], "finished": [Finished(t)], "failed": [Failed(t, "why")]}[how]
    state = fold(State(), entries)
    return view(state, 0.0, Table().of(state.known))


def simulate(
    searcher: Any, policy: Policy[Any] | None = None, slots: int = 2, **options: Any
) -> tuple[State, list[Line]]:
    """A whole study; the score is the configuration's x unless a curve is given."""
    table = Table((Row(options.pop("rates", (100.0,))),))
    shards = options.pop("shards", SHARDS)
    here = [Slot(SlotId(f"g{i}"), shards=frozenset(shards)) for i in range(slots)]
    curve = options.pop("curve", lambda config, epochs: {"score": config["x"]})
    fault = options.pop("fault", no_fault)
    sim = Sim(
        table.of,
        here,
        shards=shards,
        recipe=SimulatedRecipe(curve, fault),
        checkpoint_every=1e9,
        **options,
    )
    opened, journal = Opened(1, shards), Journal()
    journal.append(0.0, opened)
    state = fold(State(), [opened])
    state = run(searcher, policy or Fifo(), sim, table.believe, journal, state)
    return state, journal.lines


def submitted(lines: list[Line]) -> list[tuple[float, str, float]]:
    """(time, trial, epochs) of each."""
    size = 100.0
    return [
        (time, entry.trial.id, entry.trial.samples / size)
        for time, entry in lines
        if isinstance(entry, Submitted)
    ]
