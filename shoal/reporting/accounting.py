"""The account of a study: all figures that people want of it, from its journal alone."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from statistics import mean, pstdev
from typing import Any, NamedTuple

from shoal.core.cluster import RECIPE, SlotId
from shoal.core.event import (
    Commanded,
    Decided,
    Entry,
    Failed,
    Finished,
    Joined,
    Opened,
    Planned,
    Remembered,
    Retired,
)
from shoal.core.fold import fold
from shoal.core.masking import masked_config
from shoal.core.plan import Gang, Lane
from shoal.core.state import Figures, State
from shoal.core.trial import Samples, Seconds, TrialId, Value
from shoal.engine.journal import Line
from shoal.engine.snapshot import Snapshot
from shoal.profile.measure import believe, measured
from shoal.profile.overrides import Given
from shoal.reporting.gantt import KINDS, Chart, Drawing, SteadyClock, seconds, waiting
from shoal.reporting.harvest import Harvest, OutcomeTally, Speeds, harvested
from shoal.reporting.idle import IdleTally
from shoal.reporting.rescales import WidthChange, WidthTally
from shoal.reporting.tally import (
    STATUSES,
    Curves,
    PolicyChoice,
    RunRow,
    Split,
    Tally,
    TrialRow,
    TrialRows,
    curves_of,
    run_rows,
)

# Policies that start several trials at once, which are to end at about the same time.
FORMING = ("flotilla", "rounds")


class Formed(NamedTuple):
    """Trials that were started at one time. Their lengths end where they end or get other slots."""

    start: Seconds
    trials: tuple[TrialId, ...]
    slots: int
    mean: Seconds
    deviation: Seconds


@dataclass(frozen=True, slots=True)
class Overhead:
    """What the policy took for itself, and the trials that it started together.

    `deciding`: seconds of the driver; None: nobody said. `profiling`: seconds in which the policy
    had trials measured before it formed flotillas; None: it is none that does. `formed`: those
    trials, in order of time; empty for policies that form nothing.
    """

    deciding: Seconds | None = None
    profiling: Seconds | None = None
    formed: tuple[Formed, ...] = ()


class OverheadTally:
    """Counts the overhead along a journal.

    `forms`: also the trials that a policy which is none of `FORMING` started together.
    """

    def __init__(self, forms: bool = False) -> None:
        self._always = forms
        self._forms = forms
        self._run = 0
        self._decided: dict[int, Seconds] = {}  # by run
        self._is_profiling = False  # whether the policy has trials measured now
        self._profiling: Seconds | None = None
        self._last: Seconds = 0.0
        self._starts: list[tuple[Seconds, tuple[Gang, ...]]] = []
        self._stops: dict[Gang, Seconds] = {}
        self._ends: dict[TrialId, Seconds] = {}

    def take(self, time: Seconds, entry: Entry) -> None:
        """Count one line."""
        if self._is_profiling and not isinstance(entry, Opened):
            self._profiling = (self._profiling or 0.0) + time - self._last
        self._last = time
        match entry:
            case Opened():
                self._run = entry.run
                self._forms = self._always or _forms(entry.head.get("policy"))
            case Decided(seconds):
                self._decided[self._run] = seconds
            case Remembered("policy", memory):
                flotilla = _flotilla(memory)
                # One without paces has trials measured.
                self._is_profiling = flotilla is not None and flotilla["paces"] is None
                if flotilla is not None:
                    self._profiling = self._profiling or 0.0
            case Planned(stop, start) if self._forms:
                for gang in stop:
                    self._stops.setdefault(gang, time)
                if start and not self._is_profiling:
                    self._starts.append((time, start))
            case Finished(trial) | Failed(trial) | Retired(trial):
                self._ends[trial] = time

    def so_far(self) -> Overhead:
        """The overhead up to now."""
        deciding = None
        if self._decided:
            deciding = sum(self._decided.values())
        formed = tuple(self._formed(time, gangs) for time, gangs in self._starts)
        return Overhead(deciding, self._profiling, formed)

    def _formed(self, time: Seconds, gangs: tuple[Gang, ...]) -> Formed:
        """What became of gangs that started at one time."""
        lengths = {}
        for gang in gangs:
            stop = self._stops.get(gang, self._last)
            for trial in gang.trials:
                lengths[trial] = min(stop, self._ends.get(trial, stop)) - time
        return Formed(
            time,
            tuple(lengths),
            sum(len(gang.slots) for gang in gangs),
            mean(lengths.values()),
            pstdev(lengths.values()),
        )


def _flotilla(memory: Any) -> Mapping[str, Any] | None:
    """The memory of the flotilla in a policy's memory: all of it or a part; None: there is none."""
    match memory:
        case {"paces": _, "tried": _}:
            flotilla: Mapping[str, Any] = memory
            return flotilla
        case {"follows": name, "inner": {**inner}}:
            return _flotilla(inner.get(name))
        case [_, _]:
            flotillas = map(_flotilla, memory)
            return next((flotilla for flotilla in flotillas if flotilla is not None), None)
    return None


def _forms(policy: Any) -> bool:
    """Whether this policy, or one within it, starts trials that are to end together."""
    if not isinstance(policy, Mapping):
        return False
    if policy.get("name") in FORMING:
        return True
    return any(_forms(part) for part in policy.values())


# So many trials are drawn and listed at most. Of more the best are, and others evenly spread.
DRAWN = 10_000
BEST = 2_000
# The objective of `auto` without another. To import it from the policies would import NumPy.
AUTO_MAKES_SHORT = "makespan"

ByKind = Mapping[str, Seconds]
# What feeders did, by run and node.
Feeders = Mapping[tuple[int, str], Mapping[str, float]]


class Since(NamedTuple):
    """Where the counting of a long journal begins; of what lies before, only the state is known.

    `entries`: so many lie before. `time`: of the last of these.
    """

    entries: int
    time: Seconds


@dataclass(frozen=True, slots=True)
class Account:
    """All figures of a study. `metric` None: there is nothing to rank by.

    `since`: the use of slots, the seconds and hops of trials and what else is no part of a study's
    state are those from then on; None: from the beginning.
    """

    head: Mapping[str, Any]
    metric: str | None
    mode: str
    trials: tuple[TrialRow, ...]  # in the order of submission
    runs: tuple[RunRow, ...]
    curves: Curves
    chart: Chart
    use: Mapping[SlotId, ByKind]  # of every slot that was there
    figures: Mapping[str, Figures]  # measured, by signature
    entries: int
    choices: tuple[PolicyChoice, ...] = ()  # of the automatic policy
    splits: tuple[Split, ...] = ()  # packs that had no room
    feeders: Feeders = field(default_factory=dict)
    overhead: Overhead = Overhead()
    rescales: tuple[WidthChange, ...] = ()  # of running trials
    harvest: Harvest | None = None  # of slots that came and went
    # Slot seconds by what idle slots waited for, the most first.
    idle: Mapping[str, Seconds] = field(default_factory=dict)
    starting: Seconds = 0.0  # in which runs waited for their first slots
    # Of several recipes with metrics of their own: the account of each one's trials, by its name.
    by_recipe: Mapping[str, "Account"] = field(default_factory=dict)
    since: Since | None = None

    def sampled(self, most: int | None = None, best: int | None = None) -> "Account":
        """This account with the `best` trials and others, spread evenly, up to `most`.

        None: as many as are drawn and listed.
        """
        most = DRAWN if most is None else most
        best = BEST if best is None else best
        if len(self.trials) <= most:
            return self
        ranked = self.ranked()
        stride = (len(ranked) - best) / (most - best)
        others = [ranked[best + int(number * stride)] for number in range(most - best)]
        chosen = {row.id for row in (*ranked[:best], *others)}
        curves = {
            name: {trial: points[trial] for trial in points.keys() & chosen}
            for name, points in self.curves.items()
        }
        trials = tuple(row for row in self.trials if row.id in chosen)
        by_recipe = {name: each.sampled(most, best) for name, each in self.by_recipe.items()}
        return replace(self, trials=trials, curves=curves, by_recipe=by_recipe)

    @property
    def seconds(self) -> Seconds:
        """How long the runs took together."""
        return sum(run.end - run.start for run in self.runs)

    @property
    def trained(self) -> Samples:
        """Samples trained, voided ones included."""
        return sum(row.samples + row.repeated.samples for row in self.trials)

    @property
    def throughput(self) -> float | None:
        """Samples/s of all slots together, over the time of the runs in which there were slots."""
        seconds = self.seconds - self.starting
        if seconds <= 0:
            return None
        return self.trained / seconds

    @property
    def used(self) -> dict[str, Seconds]:
        """Slot seconds by kind, of all slots together."""
        totals = {}
        for kind in KINDS:
            totals[kind] = sum(use.get(kind, 0.0) for use in self.use.values())
        return totals

    @property
    def shares(self) -> dict[str, float]:
        """The part of the time that went to deciding, profiling, checkpointing and waiting.

        Deciding and profiling: of the runs' time. Checkpointing and waiting (idle, or without a
        word of what for): of the slots' time. What nobody said or did is left out.
        """
        shares: dict[str, float] = {}
        if self.seconds > 0:
            if self.overhead.deciding is not None:
                shares["deciding"] = self.overhead.deciding / self.seconds
            if self.overhead.profiling is not None:
                shares["profiling"] = self.overhead.profiling / self.seconds
        used = self.used
        whole = sum(used.values())
        if whole > 0:
            shares["checkpointing"] = used["save"] / whole
            shares["waiting"] = sum(waiting(self.use).values()) / whole
        return shares

    @property
    def choice(self) -> PolicyChoice | None:
        """What the automatic policy follows.

        None: the last run had another policy, or nothing was chosen yet.
        """
        if not self.choices:
            return None
        policy = self.head.get("policy")
        if isinstance(policy, Mapping) and policy.get("name") != "auto":
            return None
        return self.choices[-1]

    @property
    def objective(self) -> str:
        """What the automatic policy makes short."""
        policy = self.head.get("policy")
        if isinstance(policy, Mapping):
            return str(policy.get("objective") or AUTO_MAKES_SHORT)
        return AUTO_MAKES_SHORT

    @property
    def unit(self) -> str:
        """What its samples are: samples, or reports of functions, which name one sample as data."""
        data = self.head.get("data")
        alone = isinstance(data, Mapping) and data.get("samples") == 1
        return "reports" if alone else "samples"

    @property
    def goal(self) -> str:
        """Which score is wanted; empty where there is nothing to rank by."""
        if self.by_recipe:
            return "; ".join(f"{each.goal} of {name}" for name, each in self.by_recipe.items())
        if not self.metric:
            return ""
        return f"{'highest' if self.mode == 'max' else 'lowest'} {self.metric}"

    @property
    def status(self) -> str:
        """empty, finished, added, stopped: why, or open.

        added: the last run came to its end, and trials were added since. open: at work or cut off,
        which a journal cannot tell.
        """
        if not self.trials:
            return "empty"
        if not self.runs:
            return "open"
        how = self.runs[-1].how
        if how == "finished" and any(row.status == "waiting" for row in self.trials):
            return "added"
        return how

    def by_signature(self) -> dict[str, list[TrialRow]]:
        """The trials of each signature, in the order of submission."""
        trials: dict[str, list[TrialRow]] = {}
        for row in self.trials:
            trials.setdefault(row.signature, []).append(row)
        return trials

    def count(self) -> dict[str, int]:
        """Trials by status."""
        counts = dict.fromkeys(STATUSES, 0)
        for row in self.trials:
            counts[row.status] += 1
        return counts

    def ranked(self) -> list[TrialRow]:
        """The trials by their last score, best first, as the study ranks them.

        Then follow trials without a score, then those that failed.
        """
        return sorted(self.trials, key=self._order)

    def _order(self, row: TrialRow) -> tuple[bool, bool, float, int]:
        """The key that trials are ranked by."""
        sign = -1.0 if self.mode == "max" else 1.0
        loss = sign * (row.last or 0.0)
        return row.status == "failed", row.last is None, loss, row.number

    def best(self) -> TrialRow | None:
        """The trial with the best last score of those that did not fail."""
        first = min(self.trials, key=self._order, default=None)
        if first is None or not first.scored:
            return None
        return first


def account(
    lines: Iterable[Line],
    metric: str | None = None,
    mode: str | None = None,
    since: Snapshot | None = None,
) -> Account:
    """The figures of the study that these lines record.

    `metric` and `mode` ("min" or "max"): as the journal says, unless given. `since`: see
    `Accounting`.

    Raises:
        ValueError: the mode is neither "min" nor "max".
    """
    accounting = Accounting(metric, mode, since)
    accounting.take(lines)
    return accounting.account()


class Accounting:
    """The figures of a study whose journal grows: each line is counted once.

    `metric` and `mode` ("min" or "max"): as the journal says, unless given. `since`: what the lines
    before come to, which are not counted; see `Account.since`.
    """

    def __init__(
        self, metric: str | None = None, mode: str | None = None, since: Snapshot | None = None
    ) -> None:
        self._metric = metric
        self._mode = mode
        self._clock = SteadyClock()
        self._tally = Tally()
        self._overhead = OverheadTally()
        self._rescales = WidthTally()
        self._outcome = OutcomeTally()
        self._nodes: dict[SlotId, str] = {}
        self._drawing = Drawing()
        self._idle = IdleTally()
        self._state = State()  # after all lines but those of `_unfolded`
        self._unfolded: list[Entry] = []
        self._entries = 0
        self._since: Since | None = None
        if since is not None:
            self._go_on(since)

    def _go_on(self, snapshot: Snapshot) -> None:
        """Begin where the snapshot stands, as if a run began with what runs there."""
        state = snapshot.state
        begin = snapshot.begin()
        self.take(begin)
        time = snapshot.time
        self._drawing = Drawing()
        self._drawing.take(time, Opened(state.run, state.shards))
        for line in begin:
            if not isinstance(line.entry, Opened | Commanded):
                self._drawing.take(*line)
        self._tally.go_on(time, state)
        self._state = state
        self._unfolded = []
        self._entries = snapshot.lines - 1
        self._since = Since(self._entries, time)

    def take(self, lines: Iterable[Line]) -> None:
        """Count the lines that come next."""
        new = list(self._clock.steady(lines))
        begin = 0  # of the moment
        for end, (time, entry) in enumerate(new, 1):
            self._tally.take(time, entry)
            self._overhead.take(time, entry)
            self._rescales.take(time, entry)
            self._outcome.take(time, entry)
            if isinstance(entry, Joined):
                self._nodes |= {slot.id: slot.node for slot in entry.slots}
            self._drawing.take(time, entry)
            self._idle.take(entry)
            if end == len(new) or new[end].time > time:
                # See why slots are idle after what happened at one time. To fold many lines at once
                # takes a fraction of what it takes at each moment.
                self._unfolded += [line.entry for line in new[begin:end]]
                begin = end
                if self._drawing.some_idle and self._idle.is_due():
                    self._idle.look(time, self._folded())
        self._entries += len(new)

    def _folded(self) -> State:
        """The state after all lines so far."""
        self._state = fold(self._state, self._unfolded)
        self._unfolded = []
        return self._state

    def account(self, goes_on: bool = False) -> Account:
        """The figures so far. `goes_on`: the last run is known to be under way.

        Raises:
            ValueError: the mode is neither "min" nor "max".
        """
        tally = self._tally
        state = self._folded()
        metric = self._metric or _text(tally.head.get("metric"))
        mode = self._mode or _text(tally.head.get("mode")) or "min"
        if mode not in ("min", "max"):
            raise ValueError(f'mode must be "min" or "max"; got {mode!r:.80}')

        rows = TrialRows(tally, state, metric, mode).all()
        whole = self._whole(metric, mode, rows, goes_on)
        by_recipe = {}
        for name, (its_metric, its_mode) in _aims(tally.head, metric).items():
            rows = TrialRows(tally, state, its_metric, its_mode).all()
            trials = tuple(row for row in rows if row.config.get(RECIPE) == name)
            by_recipe[name] = replace(whole, metric=its_metric, mode=its_mode, trials=trials)
        return replace(whole, by_recipe=by_recipe)

    def _whole(
        self, metric: str | None, mode: str, rows: tuple[TrialRow, ...], goes_on: bool
    ) -> Account:
        """The figures so far, with these rows of trials."""
        tally = self._tally
        state = self._state
        drawn, idle = self._idle.explained(self._drawing.so_far(goes_on))
        finished = bool(state.known) and not state.trials
        changes = self._rescales.so_far()
        return Account(
            head=masked_config(tally.head),
            metric=metric,
            mode=mode,
            trials=rows,
            runs=tuple(run_rows(tally.runs, finished)),
            starting=sum(run.starting for run in tally.runs),
            curves=curves_of(tally.trials.values()),
            chart=drawn,
            idle=idle,
            use={slot: seconds(bars) for slot, bars in drawn.bars.items()},
            figures=state.figures,
            entries=self._entries,
            since=self._since,
            choices=tuple(tally.choices),
            splits=tuple(tally.splits),
            feeders={**tally.feeders},
            overhead=self._overhead.so_far(),
            rescales=changes,
            harvest=harvested(drawn, self._nodes, self._outcome, changes, self._speeds, tally.head),
        )

    def _speeds(self) -> Speeds:
        """What is known of the trials' speed: as measured, or as it was given."""
        given = Given(tuple(given_rows(self._tally.head)))
        belief = believe(self._state, given)
        known = any("rate" in name for name in measured(belief) or ())
        known = known or any("rate" in figures for _, figures in given.rows)

        def stand(trial: TrialId, before: int, after: int) -> Seconds:
            numbers = [SlotId(str(number)) for number in range(max(before, after))]
            lanes = [Lane(trial, tuple(numbers[:width])) for width in (before, after)]
            return belief.switch(*(Gang((lane,)) for lane in lanes))

        return Speeds(self._state.known, belief.curve if known else None, stand)


def _aims(head: Mapping[str, Any], metric: str | None) -> Mapping[str, Any]:
    """Metric and mode of each recipe, by its name; empty where the study has one metric."""
    aims = head.get("aims")
    if metric is not None or not isinstance(aims, Mapping):
        return {}
    return {name: aim for name, aim in aims.items() if _is_aim(aim)}


def _is_aim(value: Any) -> bool:
    """Whether that is a metric and a mode. A forged journal may have anything there."""
    if not isinstance(value, (list, tuple)) or len(value) != 2:
        return False
    return all(each is None or isinstance(each, str) for each in value)


def given_rows(head: Mapping[str, Any]) -> list[tuple[Mapping[str, Value], Figures]]:
    """The figures that a run was given instead of measured ones.

    Each with the values of the trials that it holds for; without values it holds for any trial.
    """
    rows = head.get("given")
    if not isinstance(rows, (list, tuple)):
        return []
    pairs = [(row.get("config"), row.get("figures")) for row in rows if isinstance(row, Mapping)]
    return [
        (config, figures)
        for config, figures in pairs
        if isinstance(config, Mapping) and isinstance(figures, Mapping)
    ]


def _text(value: Any) -> str | None:
    """The value if it is a text and not empty."""
    if isinstance(value, str) and value:
        return value
    return None
