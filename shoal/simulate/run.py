"""One spec under one policy: through the ordinary engine, in virtual time."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from time import process_time
from typing import Any

from shoal.backend.sim.sim import Sim
from shoal.core.event import Entry, Failed, Finished, Opened, Planned
from shoal.core.fold import fold
from shoal.core.ports import Policy
from shoal.core.state import State
from shoal.core.trial import Seconds, TrialId
from shoal.engine.journal import Journal, Line
from shoal.engine.run import Stalled, run
from shoal.profile.overrides import Given
from shoal.reporting import account
from shoal.simulate.arrivals import Arrivals
from shoal.simulate.idle_log import IdleLog
from shoal.simulate.spec import Spec


@dataclass
class RunMeter:
    """Watches a run: which trial ended when, and how many slot-seconds were offered and used.

    `last`: the newest moment, and how many slots there were and were used from then on.
    """

    ends: dict[TrialId, Seconds] = field(default_factory=dict)
    used: float = 0.0
    offered: float = 0.0
    changes: int = 0
    moments: int = 0
    failed: int = 0
    last: tuple[Seconds, int, int] = (0.0, 0, 0)
    state: State = State()

    def __call__(self, now: Seconds, entries: tuple[Entry, ...], state: State) -> None:
        # Count the slot-seconds since the last moment.
        before, slots, busy = self.last
        span = now - before
        self.offered += span * slots
        self.used += span * busy
        self.last = now, len(state.slots), len(state.busy)
        self.moments += 1
        self.state = state
        for entry in entries:
            if isinstance(entry, Finished):
                self.ends[entry.trial] = now
            elif isinstance(entry, Failed):
                self.failed += 1
            elif isinstance(entry, Planned):
                self.changes += len(entry.start)


class NoJournal:
    """A journal that keeps nothing: for simulations whose lines nobody reads."""

    lines: tuple[Any, ...] = ()

    def append(self, time: Seconds, entry: Entry) -> None:
        del time, entry

    def flush(self) -> None:
        return None

    def sync_soon(self) -> None:
        return None

    def sync(self) -> None:
        return None


# The figures, and the journal if it was kept.
Simulated = tuple[dict[str, Any], Journal | None]


def run_spec(spec: Spec, policy: Policy[Any], keep: bool = False) -> Simulated:
    """Simulate the spec's study: its figures, with times in seconds; and its journal if `keep`."""
    journal = Journal() if keep else None
    written: Any = NoJournal() if journal is None else journal
    sim = Sim(
        spec.profile.of,
        spec.slots,
        spec.script,
        shards=spec.shards,
        seed=spec.seed,
        checkpoint_every=spec.checkpoint_every,
    )
    opened = Opened(1, spec.shards, _head(spec))
    written.append(0.0, opened)
    meter = RunMeter()
    stalled = None
    begin = process_time()
    try:
        run(
            Arrivals(spec.arrivals),
            policy,
            sim,
            spec.profile.believe,
            written,
            fold(State(), [opened]),
            spec.until,
            [meter],
        )
    except Stalled as error:
        if not spec.script:  # a log that is over leaves no slots: that is no fault of the policy
            stalled = str(error)
    return _figures(spec, meter, stalled, process_time() - begin), journal


def _head(spec: Spec) -> dict[str, Any]:
    """What the journal says of the study: that it is simulated, and how fast trials are."""
    rows = [
        {"config": dict(values), "figures": dict(figures)}
        for values, figures in Given.of(spec.profile.rows).rows
    ]
    return {"simulated": True, "given": rows}


def _figures(spec: Spec, meter: RunMeter, stalled: str | None, took: float) -> dict[str, Any]:
    """The figures of a run that is over. `took`: seconds of processor time."""
    return {
        "trials": len({trial.id for _, trial in spec.arrivals}),
        "finished": len(meter.ends),
        "failed": meter.failed,
        "makespan_s": max(meter.ends.values(), default=None),
        "mean_completion_s": _mean_completion(spec, meter),
        "samples": float(sum(meter.state.done.values())),
        "slots_used": meter.used / meter.offered if meter.offered else None,
        "gangs_started": meter.changes,
        "moments": meter.moments,
        "stalled": stalled,
        "cpu_s": took,
    }


def _mean_completion(spec: Spec, meter: RunMeter) -> Seconds | None:
    """How long a trial takes from its arrival to its end; None: none came to its end."""
    if not meter.ends:
        return None
    arrived = {trial.id: at for at, trial in spec.arrivals}
    times = [end - arrived[trial] for trial, end in meter.ends.items()]
    return sum(times) / len(times)


Figures = dict[str, Any]


def harvest_figures(idle: IdleLog | None, finished: int, lines: Iterable[Line]) -> Figures | None:
    """What slots that come and go would yield, as the report of such a study has it.

    None: they do not come and go. `idle`: the log, of which pilots got a part. `finished`: trials.
    """
    harvest = account(lines).harvest
    if harvest is None:
        return None
    whole = harvest.whole
    idle_seconds = 0.0
    if idle is not None:
        idle_seconds = idle.window(idle.begin, idle.begin + whole.end).node_seconds
    return {
        "idle_node_hours": idle_seconds / 3600.0,
        "offered_node_hours": whole.offered / 3600.0,
        "used_node_hours": whole.used / 3600.0,
        "equivalent_nodes": whole.slots,
        "efficiency": whole.efficiency,
        "preempted_node_hours": whole.preempted / 3600.0,
        "rescaled_node_hours": whole.rescaled / 3600.0,
        "trials_a_day": finished / ((whole.end - whole.start) / 86400.0),
    }
