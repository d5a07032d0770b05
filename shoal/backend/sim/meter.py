"""What slots learn of trials' costs in a simulation, named and reported as the real backends do.

A slot reports a figure of a kind of trials once. What it learns of a unit comes with the unit's
end: the rate and the memory on one slot, fused steps, what building, hopping, evaluating and saving
took. Where a trial may have several slots, the rate at its present width and what a change of width
took come as soon as a few steps are alike, amid the unit. This imitates `train.lane.measure`,
`train.slot.fusion` and `train.slot.gang_units`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf
from random import Random
from zlib import crc32

from shoal.backend.sim.state import TICK, SimulatedGang, SimulatedTrial, UnitAtWork
from shoal.core.cluster import GiB, SlotId
from shoal.core.event import Advanced, Event, Measured
from shoal.core.plan import Gang, Lane, solo
from shoal.core.profile import MemoryTogether, Profile
from shoal.core.state import State
from shoal.core.trial import Seconds, Trial, TrialId, Value
from shoal.profile.pace import ALIKE_STEPS, FORM, FUSED, repacked, rescaled
from shoal.profile.signatures import FORMLESS, TUNING
from shoal.profile.widths import AT

# Lanes that save a smaller part of the time in one step are taken not to be fusable.
SAVES = 1e-6
PROBED = 4  # steps that are tried of a kind that nobody has measured


@dataclass(frozen=True, slots=True)
class Measuring:
    """How well slots measure: each figure but memory is up to `off` of itself wrong.

    A rate keeps its error, and so does what a kind gains by more slots, or by company. `seed`: of
    the errors. `tries`: whether a slot tries a step of each kind that nobody has measured before a
    pack begins, and gives the pack back with what it learnt, as real slots do. Where a simulation
    tells what policies do that know all, that is left out.

    Raises:
        ValueError: off is not in [0, 1).
    """

    off: float = 0.0
    seed: int = 0
    tries: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.off < 1:
            raise ValueError(f"figures are off by a part in [0, 1); got {self.off!r}")

    def error(self, signature: str, name: str) -> float:
        """What the figure of this kind is multiplied by."""
        if not self.off:
            return 1.0
        drawn = Random(f"{self.seed} {signature} {name}")
        return 1.0 + drawn.uniform(-self.off, self.off)

    def gain(self, signature: str, name: str, more: float) -> float:
        """The gain that is believed where it is `more` times in truth."""
        return float(more ** self.error(signature, name))


EXACT = Measuring()


class SimulatedMeter:
    """What was measured so far, on all slots.

    `measuring`: how well; None: nothing is measured. `state`: what an earlier run measured, which
    is not reported again. `trials`: those submitted.
    """

    def __init__(
        self,
        truth: Profile,
        measuring: Measuring | None,
        state: State,
        trials: Mapping[TrialId, Trial],
    ) -> None:
        self.truth = truth
        self.trials = trials
        self._measuring = measuring
        self._known = state.figures
        self._reported: set[tuple[SlotId, str, str]] = set()
        # The memory that is known from a step before a pack began.
        self._tried: set[tuple[SlotId, str, str]] = set()
        # The signatures whose rates some slot has reported.
        self._rated: set[str] = set()
        # What is to be reported with the end of the trial's unit.
        self._notes: dict[TrialId, dict[str, float]] = {}
        # When the rates of units under way become known, the soonest first.
        self._due: list[tuple[Seconds, int, UnitAtWork, SimulatedGang]] = []
        self._count = 0

    # -- before trials first share a slot ----------------------------------------------------------

    def refused(self, gang: Gang, room: GiB) -> tuple[Seconds, list[Measured]]:
        """A slot with so much room learns what lanes cost that are to share it, by a few steps.

        As `train.slot.probing.first_packs`: it is learnt once of each kind, with a model that is
        thrown away. Returns the seconds, and what is reported if no slot had told how fast some of
        them are, or if it turns out that all have no room together; nothing where that was known
        before.
        """
        lanes = gang.lanes
        if self._measuring is None or len(lanes) < 2 or len(gang.slots) > 1:
            return 0.0, []
        if room == inf and not self._measuring.tries:
            return 0.0, []
        seconds = 0.0
        needs = MemoryTogether()
        reports: list[Measured] = []
        learnt = new_kinds = False
        for lane in lanes:
            cost = self.truth.cost(lane.trial)
            needs.add(cost)
            signature = signature_of(self.trials[lane.trial])
            figures: dict[str, float] = {}
            if self._is_new(lane.slots[0], signature):
                learnt = True
                rate = self._alone(lane.trial, lane.slots[0])
                batch = _batch(self.trials[lane.trial].config)
                steps = PROBED if self._measuring.tries else 1
                seconds += cost.build + steps * batch / rate
                figures["memory"] = cost.memory
                if self._measuring.tries and signature not in self._rated:
                    new_kinds = True
                    # How fast such trials are alone, as it was measured.
                    self._rated.add(signature)
                    true = {"rate": rate, "step": 1.0 / rate}
                    figures |= {
                        name: self._as_measured(lane.trial, signature, name, true) for name in true
                    }
            reports.append(Measured(lane.trial, signature, figures))
            if learnt and needs.now > room:
                return seconds, reports
        if new_kinds:
            return seconds, reports
        return seconds, []

    def _is_new(self, slot: SlotId, signature: str) -> bool:
        """Whether the slot knows nothing of such trials; from now on it does."""
        key = (slot, signature, "memory")
        known = self._known.get(signature, {})
        if key in self._reported or key in self._tried or "memory" in known:
            return False
        self._tried.add(key)
        if "rate" in known:
            self._rated.add(signature)
        return True

    # -- what changes of gangs took ----------------------------------------------------------------

    def built(self, trial: TrialId, seconds: Seconds, first: Seconds) -> None:
        """Note a model that was built; `first`: what it took longer as the slot's first one."""
        self._note(trial, build=seconds)
        if first:
            self._note(trial, first=first)

    def hopped(self, lanes: Iterable[Lane]) -> None:
        """Note lanes whose states came from other slots."""
        if self._measuring is None:
            return
        for lane in lanes:
            seconds = self.truth.switch(None, Gang((lane,)))
            self._note(lane.trial, switch=seconds)

    def changed(self, before: Gang | None, after: Gang, seconds: Seconds) -> None:
        """Note that a gang at work became another one, in so many seconds."""
        if before is None:
            return
        change = rescaled(before, after)
        if change is not None:
            self._note(after.trials[0], **{change: seconds})
        elif repacked(before, after):
            for trial in after.trials:
                self._note(trial, repack=seconds)

    def _note(self, trial: TrialId, **figures: float) -> None:
        if self._measuring is not None:
            self._notes.setdefault(trial, {}).update(figures)

    # -- amid a unit -------------------------------------------------------------------------------

    def begun(self, run: SimulatedGang, unit: UnitAtWork) -> None:
        """Note that a unit begins or goes on in this gang, and when its rate will be known."""
        trial = unit.position.trial
        if self._measuring is None or not _is_watched(run.gang, trial):
            return
        if not self._has_news(run.gang, trial):
            return  # nobody is asked again for what is known
        time = unit.ready + ALIKE_STEPS * _batch(trial.config) / unit.rate
        if time >= unit.trains_until:
            return
        self._count += 1
        heappush(self._due, (time, self._count, unit, run))

    def _has_news(self, gang: Gang, trial: Trial) -> bool:
        """Whether the trial's steps in this gang tell what its leading slot has not told yet."""
        lane = _lane_of(gang, trial.id)
        signature = signature_of(trial)
        names = self._figures_amid(gang, lane)
        return any(self._is_unreported(lane.slots[0], signature, name) for name in names)

    def _figures_amid(self, gang: Gang, lane: Lane) -> dict[str, float]:
        """What steps tell of the lane: its rate, and what the last change of its width took."""
        noted = self._notes.get(lane.trial, {})
        changes = {name: noted[name] for name in ("up", "down") if name in noted}
        return self._rates(gang, lane) | changes

    def next(self) -> Seconds:
        """When a rate becomes known amid a unit; infinity: never."""
        while self._due:
            time, _, unit, run = self._due[0]
            if run.units.get(unit.position.trial.id) is unit and unit.version:
                return time
            heappop(self._due)
        return inf

    def known(self, now: Seconds) -> list[Event]:
        """The events of what becomes known now, amid units."""
        events: list[Event] = []
        while self.next() <= now + TICK:
            _, _, unit, run = heappop(self._due)
            events += self._amid(run, unit)
        return events

    def _amid(self, run: SimulatedGang, unit: UnitAtWork) -> list[Event]:
        """The events of what steps tell of a unit under way; its end counts its samples."""
        lane = _lane_of(run.gang, unit.position.trial.id)
        figures = self._figures_amid(run.gang, lane)
        news = self._news(unit.position, lane, figures)
        if not news:
            return []
        return [Advanced({lane.trial: 0.0}), *news]

    # -- at a unit's end ---------------------------------------------------------------------------

    def at_end(self, run: SimulatedGang, unit: UnitAtWork) -> list[Event]:
        """The events of the figures that are reported with the unit's end."""
        if self._measuring is None:
            return []
        trial = unit.position.trial.id
        lane = _lane_of(run.gang, trial)
        figures = self._notes.pop(trial, {}) | self._rates(run.gang, lane)
        cost = self.truth.cost(trial)
        figures["memory"] = cost.memory
        if unit.evaluate is not None:
            figures["evaluate"] = cost.evaluate
        if unit.saves:
            figures["save"] = cost.save
        return self._news(unit.position, lane, figures)

    def _rates(self, gang: Gang, lane: Lane) -> dict[str, float]:
        """Samples/s of the lane at its width; on one slot also the seconds of its steps."""
        width = len(lane.slots)
        if width > 1:
            alone = Gang((lane,))
            return {f"{AT}{width}": self.truth.rates(alone)[lane.trial]}
        rate = self._alone(lane.trial, lane.slots[0])
        step = 1.0 / rate
        figures = {"rate": rate, "step": step}
        mates = [each.trial for each in gang.lanes if each.slots == lane.slots]
        if gang.fused and len(mates) > 1:
            fused_gang = Gang(tuple(Lane(mate, lane.slots) for mate in mates), fused=True)
            together = 1.0 / self.truth.rates(fused_gang)[lane.trial]
            if together < len(mates) * step * (1 - SAVES):
                figures[f"{FUSED}{len(mates)}"] = together
            else:
                figures["unfusable"] = 1.0
        return figures

    def _alone(self, trial: TrialId, slot: SlotId) -> float:
        """Samples/s of the trial alone on the slot."""
        return self.truth.rates(solo(trial, slot, 0))[trial]

    # -- reports -----------------------------------------------------------------------------------

    def _news(
        self, position: SimulatedTrial, lane: Lane, figures: Mapping[str, float]
    ) -> list[Event]:
        """The events of the figures that the lane's leading slot has not reported yet."""
        signature = signature_of(position.trial)
        slot = lane.slots[0]
        news: dict[str, float] = {}
        for name in figures:
            if self._is_unreported(slot, signature, name):
                self._reported.add((slot, signature, name))
                if name == "rate":
                    self._rated.add(signature)
                news[name] = self._as_measured(lane.trial, signature, name, figures)
        if not news and position.signature == signature:
            return []
        position.signature = signature
        return [Measured(position.trial.id, signature, news)]

    def _is_unreported(self, slot: SlotId, signature: str, name: str) -> bool:
        """Whether the slot has not reported this figure of the kind, and nobody knew it before."""
        known = self._known.get(signature, {})
        return name not in known and (slot, signature, name) not in self._reported

    def _as_measured(
        self, trial: TrialId, signature: str, name: str, figures: Mapping[str, float]
    ) -> float:
        """The figure as it was measured."""
        measuring = self._measuring or EXACT
        true = figures[name]
        if name in ("memory", "unfusable"):
            return true
        alone = measuring.error(signature, "rate")
        if name == "rate":
            return true * alone
        if name == "step":
            return true / alone
        if name.startswith(AT):
            first = self.truth.curve(trial, 1)[0]
            return first * alone * measuring.gain(signature, "wide", true / first)
        if name.startswith(FUSED):
            step = figures["step"]
            return step / alone * measuring.gain(signature, "fused", true / step)
        return true * measuring.error(signature, name)


def signature_of(trial: Trial) -> str:
    """The cost signature: equal for trials that cost the same; its beginning is the form.

    Neither has in it what only changes what is learnt, such as the learning rate.
    """
    form = _digest(trial.config, FORMLESS)
    return f"{form:0>{FORM}}{_digest(trial.config, TUNING)}"


def _digest(config: Mapping[str, Value], without: Iterable[str]) -> str:
    names = sorted(config.keys() - set(without))
    text = repr([(name, config[name]) for name in names])
    return f"{crc32(text.encode()):08x}"


def _is_watched(gang: Gang, trial: Trial) -> bool:
    """Whether rates are told amid units: of wide lanes, or one trial that may have more slots."""
    if len(gang.slots) > 1:
        return True
    alone = trial.widths[1] > 1 and len(gang.lanes) == 1
    return alone and (gang.quota is None or gang.measures)


def _lane_of(gang: Gang, trial: TrialId) -> Lane:
    return next(lane for lane in gang.lanes if lane.trial == trial)


def _batch(config: Mapping[str, Value]) -> float:
    """Samples in a step of the trial; 1 if its configuration does not say."""
    size = config.get("batch_size", 1)
    if isinstance(size, (int, float)) and size >= 1:
        return float(size)
    return 1.0
