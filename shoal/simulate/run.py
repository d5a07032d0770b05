"""One spec under one policy: through the ordinary engine, in virtual time."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from time import process_time
from typing import Any

from shoal.backend.sim import Sim
from shoal.core.event import Entry, Failed, Finished, Opened, Planned
from shoal.core.ports import Policy
from shoal.core.state import State, fold
from shoal.core.trial import Seconds, TrialId
from shoal.engine.journal import Journal
from shoal.engine.run import Stalled, run
from shoal.simulate.arrivals import Arrivals
from shoal.simulate.spec import Spec


@dataclass
class Meter:
    """Watches a run: who ended when, and slot-seconds there were and were used."""

    ends: dict[TrialId, Seconds] = field(default_factory=dict)
    used: float = 0.0
    there: float = 0.0
    changes: int = 0
    moments: int = 0
    failed: int = 0
    last: tuple[Seconds, int, int] = (0.0, 0, 0)
    state: State = State()

    def __call__(self, now: Seconds, entries: tuple[Entry, ...], state: State) -> None:
        span = now - self.last[0]
        self.there += span * self.last[1]
        self.used += span * self.last[2]
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


class Quiet:
    """A journal that keeps nothing: for simulations whose lines nobody reads."""

    lines: tuple[Any, ...] = ()

    def append(self, time: Seconds, entry: Entry) -> None:
        del time, entry

    def flush(self) -> None:
        return None

    def sync(self) -> None:
        return None


def run_spec(spec: Spec, policy: Policy[Any], keep: bool = False) -> tuple[dict[str, Any], Journal | None]:
    """What the study would come to: times in seconds. `keep`: with its journal."""
    journal = Journal()
    kept: Any = journal if keep else Quiet()
    sim = Sim(
        spec.profile.of, spec.slots, spec.script, shards=spec.shards, seed=spec.seed, checkpoint_every=spec.checkpoint_every
    )
    opened = Opened(1, spec.shards)
    kept.append(0.0, opened)
    meter, begin, stalled = Meter(), process_time(), None
    try:
        run(Arrivals(spec.arrivals), policy, sim, spec.profile.believe, kept, fold(State(), [opened]), spec.until, [meter])
    except Stalled as error:
        stalled = None if spec.script else str(error)  # a log that is over leaves no slots: no fault of the policy
    return _figures(spec, meter, stalled, process_time() - begin), journal if keep else None


def _figures(spec: Spec, meter: Meter, stalled: str | None, took: float) -> dict[str, Any]:
    came = {trial.id: at for at, trial in spec.arrivals}
    times = [end - came[trial] for trial, end in meter.ends.items()]
    done: Mapping[TrialId, float] = meter.state.done
    return {
        "trials": len(came),
        "finished": len(times),
        "failed": meter.failed,
        "makespan_s": max(meter.ends.values(), default=None),
        "mean_completion_s": sum(times) / len(times) if times else None,
        "samples": float(sum(done.values())),
        "slots_used": meter.used / meter.there if meter.there else None,
        "gangs_started": meter.changes,
        "moments": meter.moments,
        "stalled": stalled,
        "cpu_s": took,
    }
