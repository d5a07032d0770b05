"""Small simulated studies of trials with widths, over undivided data."""

from collections.abc import Sequence
from typing import Any

from shoal.backend.sim.sim import Sim
from shoal.core.cluster import Slot, SlotId
from shoal.core.event import Event, Joined, Planned, Submitted
from shoal.core.fold import fold
from shoal.core.plan import Plan, Proposal
from shoal.core.ports import Policy
from shoal.core.state import State, View, view
from shoal.core.trial import Seconds, Trial, TrialId
from shoal.engine.journal import Journal, Line
from shoal.engine.run import run
from shoal.profile.measure import believe
from shoal.profile.table import Row, Table


def nodes(count: int, per_node: int = 4, memory: float = float("inf")) -> tuple[Slot, ...]:
    return tuple(
        Slot(SlotId(f"g{i:02d}"), f"n{i // per_node}", memory=memory) for i in range(count)
    )


def trial(number: int, samples: float, widths: tuple[int, int] = (1, 8)) -> Trial:
    return Trial(TrialId(f"t{number}"), samples, {"x": number}, widths=widths)


def table(*rates: Sequence[float], switch: float = 0.0, memory: float = 0.0) -> Table:
    """One row of rates for all trials, or one a trial."""
    rows = [
        Row(tuple(r), {"x": i} if len(rates) > 1 else {}, memory=memory, switch=switch)
        for i, r in enumerate(rates)
    ]
    return Table(tuple(rows))


def state(trials: Sequence[Trial], slots: Sequence[Slot]) -> State:
    return fold(State(), [Joined(tuple(slots)), *map(Submitted, trials)])


def seen(known: State, profile: Table, now: Seconds = 0.0) -> View:
    return view(known, now, profile.of(known.known))


def believed(known: State, now: Seconds = 0.0) -> View:
    """What deciders see of a study that begins unmeasured, as a user's does."""
    return view(known, now, believe(known))


def widths_of(plan: Plan) -> dict[str, int]:
    """The slots of each trial."""
    return {lane.trial: len(lane.slots) for gang in plan.gangs for lane in gang.lanes}


def follow(known: State, plan: Plan, *events: Event) -> State:
    """The state once the plan runs and these things happened."""
    change = Planned(tuple(known.plan.gangs - plan.gangs), tuple(plan.gangs - known.plan.gangs))
    return fold(known, [change, *events])


class Arrivals:
    def __init__(self, *arrivals: tuple[Seconds, Trial]) -> None:
        self.arrivals = arrivals

    def start(self) -> int:
        return 0

    def propose(self, look: View, came: int) -> tuple[Proposal, int]:
        now = [t for at, t in self.arrivals[came:] if at <= look.now]
        later = self.arrivals[came + len(now) :]
        return Proposal(tuple(now), wake_at=later[0][0] if later else None), came + len(now)


def simulated(
    policy: Policy[Any],
    arrivals: Sequence[tuple[Seconds, Trial]],
    slots: Sequence[Slot],
    profile: Table,
) -> list[Line]:
    journal = Journal()
    sim = Sim(profile.of, slots, checkpoint_every=0)
    run(Arrivals(*arrivals), policy, sim, profile.believe, journal)
    return journal.lines


def widths_over_time(lines: list[Line]) -> list[tuple[Seconds, dict[str, int]]]:
    """What each plan started: the slots of each trial."""
    return [
        (
            round(line.time, 3),
            {lane.trial: len(lane.slots) for gang in line.entry.start for lane in gang.lanes},
        )
        for line in lines
        if isinstance(line.entry, Planned) and line.entry.start
    ]
