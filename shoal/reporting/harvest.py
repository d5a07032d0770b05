"""What a study made of slots that came and went.

Liu et al., BFTrainer, 2021, section 4.1: the resource integral (eq. 17), the equivalent number of
static slots (eq. 18), and the efficiency U against the same trials on so many dedicated slots.
Work is measured in seconds that it takes on one slot, by the measured profile, so that unlike
trials add up.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

from shoal.core.cluster import SlotId
from shoal.core.event import Advanced, Entry, Failed, Fell, Finished, Left, Opened, Planned, Retired
from shoal.core.trial import Samples, Seconds, Trial, TrialId
from shoal.reporting.gantt import Chart, Span
from shoal.reporting.rescales import WidthChange

# Into so many cells of time the study is divided at most; cells double when it grows longer.
CELLS = 4096


class OutcomeTally:
    """Counts along a journal what trials made, and what they lost as slots left.

    `starts_and_ends`: when trials that have work left began (1) and ended (-1). `fallen`: what
    trials fell back by at a moment at which slots left. `cut`: for each such moment and trial that
    ran on such a slot, up to when the trial had reported what it made.
    """

    def __init__(self) -> None:
        self.starts_and_ends: list[tuple[Seconds, TrialId, int]] = []
        self.fallen: list[tuple[Seconds, TrialId, Samples]] = []
        self.cut: dict[tuple[Seconds, TrialId], Seconds] = {}
        self._departed: Seconds | None = None  # when slots left last
        self._trials_at: dict[SlotId, tuple[TrialId, ...]] = {}  # who ran there last
        self._cell: Seconds = 1.0
        # Samples of each trial, by the number of the cell.
        self._samples: dict[TrialId, dict[int, Samples]] = {}
        self._done: dict[TrialId, Samples] = {}
        self._since: dict[TrialId, Seconds] = {}  # up to when it was counted
        self._open: set[TrialId] = set()  # trials that began and have work left

    def work(self, trial: TrialId) -> Iterator[tuple[Seconds, Seconds, Samples]]:
        """The trial's work: from when, to when, how many samples."""
        for number, samples in self._samples.get(trial, {}).items():
            yield number * self._cell, (number + 1) * self._cell, samples

    @property
    def trials(self) -> Iterator[TrialId]:
        """The trials that made something."""
        return iter(self._samples)

    def take(self, time: Seconds, entry: Entry) -> None:
        """Count one line."""
        match entry:
            case Opened():
                self._since.clear()
            case Finished(id_) | Failed(id_) | Retired(id_) if id_ in self._open:
                self._open.discard(id_)
                self.starts_and_ends.append((time, id_, -1))
            case Planned():
                self._plan(time, entry)
            case Advanced():
                for trial_id, samples in entry.samples.items():
                    self._done[trial_id] = self._done.get(trial_id, 0.0) + samples
                    self._spread(trial_id, self._since.get(trial_id, time), time, samples)
                    self._since[trial_id] = time
            case Left(slots):  # they cut what was under way there
                self._departed = time
                for trial in [trial for slot in slots for trial in self._trials_at.pop(slot, ())]:
                    self.cut[time, trial] = self._since.get(trial, time)
            case Fell():
                self._fall(time, entry)

    def _plan(self, time: Seconds, entry: Planned) -> None:
        """Note what starts: trials that go on count from their last report, others from now."""
        stopped = {trial for gang in entry.stop for trial in gang.trials}
        for gang in entry.start:
            for slot in gang.slots:
                lanes = [lane.trial for lane in gang.lanes if slot in lane.slots]
                self._trials_at[slot] = tuple(lanes)
            for trial in gang.trials:
                if trial not in self._open:
                    self._open.add(trial)
                    self.starts_and_ends.append((time, trial, 1))
                if trial not in stopped:
                    self._since[trial] = time

    def _fall(self, time: Seconds, entry: Fell) -> None:
        """Count what the trial lost: all that it made after its durable state."""
        lost = self._done.get(entry.trial, 0.0) - entry.samples
        self._done[entry.trial] = entry.samples
        if lost <= 0:
            return
        self._spread(entry.trial, time, time, -lost)
        if time == self._departed:
            self.fallen.append((time, entry.trial, lost))

    def _spread(self, trial: TrialId, start: Seconds, end: Seconds, samples: Samples) -> None:
        """Put samples into the cells from `start` to `end`, evenly."""
        while end > CELLS * self._cell:
            self._double()
        cells = self._samples.setdefault(trial, {})
        first, last = int(start // self._cell), int(end // self._cell)
        if first == last or end <= start:
            cells[last] = cells.get(last, 0.0) + samples
            return
        pace = samples / (end - start)
        for number in range(first, last + 1):
            begin = max(start, number * self._cell)
            part = min(end, (number + 1) * self._cell) - begin
            if part > 0:
                cells[number] = cells.get(number, 0.0) + pace * part

    def _double(self) -> None:
        """Make cells twice as long."""
        self._cell *= 2
        for trial, cells in self._samples.items():
            merged: dict[int, Samples] = {}
            for number, samples in cells.items():
                merged[number // 2] = merged.get(number // 2, 0.0) + samples
            self._samples[trial] = merged


# -- what came of the slots ------------------------------------------------------------------------

# A slot that is back within this time did not go: its process was started anew.
BACK: Seconds = 60.0
# The paper's bins; a shorter study has shorter ones, so that it has some.
LENGTHS = (21600.0, 10800.0, 3600.0, 1800.0, 600.0, 300.0, 60.0, 30.0, 10.0, 5.0, 1.0)
FEWEST = 4  # bins

Curve = Callable[[TrialId, int], Sequence[float]]  # samples/s at widths 1, 2, …
Piece = tuple[float, int]  # what a slot more gains, and how many slots gain so much
Kind = tuple[Piece, ...]


class Yield(NamedTuple):
    """What came of the slots from `start` to `end`, in slot-seconds.

    `offered`: that slots were there. `used`: that a gang held them. `useful`: seconds that the work
    which lasts takes on one slot; `reference`: the same of the trials that were under way, on as
    many dedicated slots. None: nothing is known of their speed. `preempted`: lost because slots
    left: units that were cut, work after the last durable state, and the standing still of trials
    that went on with fewer. `rescaled`: in which trials stood still because a plan gave them more
    or fewer.
    """

    start: Seconds
    end: Seconds
    offered: Seconds
    used: Seconds
    useful: Seconds | None
    reference: Seconds | None
    preempted: Seconds
    rescaled: Seconds

    @property
    def slots(self) -> float:
        """The equivalent number of static slots, eq. 18."""
        return self.offered / (self.end - self.start)

    @property
    def efficiency(self) -> float | None:
        """U: what was made over what dedicated slots would have made."""
        if self.useful is None or not self.reference:
            return None
        return self.useful / self.reference

    @property
    def returned(self) -> float | None:
        """Return on rescaling: slot-seconds of work for each slot-second of standing still."""
        if self.useful is None or self.rescaled <= 0:
            return None
        return self.useful / self.rescaled


@dataclass(frozen=True, slots=True)
class Harvest:
    """What came of the slots, in all and in bins. `nodes`: node-seconds with a slot at least."""

    whole: Yield
    bins: tuple[Yield, ...]
    nodes: Seconds


@dataclass(frozen=True, slots=True)
class Speeds:
    """The trials, and what is known of their speed. `curve` None: nothing is.

    `stand`: seconds that a trial stands still when it goes from so many slots to so many.
    """

    trials: Mapping[TrialId, Trial]
    curve: Curve | None
    stand: Callable[[TrialId, int, int], Seconds]


def harvested(
    chart: Chart,
    nodes: Mapping[SlotId, str],
    outcome: OutcomeTally,
    changes: Sequence[WidthChange],
    look_up: Callable[[], Speeds],
    head: Mapping[str, Any],
) -> Harvest | None:
    """What was made of slots that came and went; None: they stayed, or were the study's own.

    `look_up`: finds what is known of the trials, which takes a while. `head`: the journal's.
    """
    options = head.get("options")
    if isinstance(options, Mapping):
        # Only slots at nodes of a cluster that it joined may come and go. Those that a run starts
        # for itself, and those that a pool lends to each of its studies, are opened and given back
        # as the study or the pool wants: that is no harvest.
        address = options.get("address")
        lent = isinstance(address, str) and not address.startswith("pool:")
        if not lent or not _came_or_went(_by_node(chart, nodes), chart, BACK):
            return None
    elif not _came_or_went(chart.spans.values(), chart, 0.0):  # in virtual time
        return None
    speeds = look_up()
    start = min(span[0] for spans in chart.spans.values() for span in spans)
    end = chart.end
    if end <= start:
        return None
    bins = _bins(start, end)
    sums = _Sums(bins)
    gone_on = {(each.forced, each.trial) for each in changes}
    cut = {key: since for key, since in outcome.cut.items() if key not in gone_on}
    _add_slots(sums, chart, cut)
    _add_changes(sums, changes, speeds, end)
    if speeds.curve is not None:
        _add_work(sums, outcome, speeds.curve)
    yields = _yields(bins, sums, outcome, speeds)
    whole = _whole(yields, outcome, speeds)
    with_slots = (end - start for spans in _by_node(chart, nodes) for start, end in spans)
    return Harvest(whole, yields, sum(with_slots))


def _by_node(chart: Chart, nodes: Mapping[SlotId, str]) -> list[list[Span]]:
    """When each node had slots. Of a node that stays, slots may open late, die or be given up."""
    by_node: dict[str, list[Span]] = {}
    for slot, spans in chart.spans.items():
        by_node.setdefault(nodes.get(slot, str(slot)), []).extend(spans)
    return [_union(spans) for spans in by_node.values()]


def _union(spans: Iterable[Span]) -> list[Span]:
    """The time that any of these spans covers."""
    joined: list[Span] = []
    for start, end in sorted(spans):
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], end)
        else:
            joined.append((start, end))
    return joined


def _came_or_went(places: Collection[Sequence[Span]], chart: Chart, slack: Seconds) -> bool:
    """Whether any joined after the first ones of a run, or left, for good or for a while.

    `places`: the spans of each slot, or of each node. `slack`: to come within so many
    seconds after the first, or to leave within as many before the end, does not count.
    """
    for begin, end in chart.runs:
        inside = [[span for span in spans if begin <= span[0] < end] for spans in places]
        stays = [spans for spans in inside if spans]
        first = min((spans[0][0] for spans in stays), default=end)
        for spans in stays:
            gaps = (after[0] - before[1] for before, after in pairwise(spans))
            came = spans[0][0] > first + slack
            went = spans[-1][1] < end - slack
            if came or went or max(gaps, default=0) > BACK:
                return True
    return False


def _bins(start: Seconds, end: Seconds) -> list[Span]:
    """Bins of the largest length that gives a few of them; the last may be shorter."""
    span = end - start
    length = next((each for each in LENGTHS if each * FEWEST <= span), span / FEWEST)
    edges = [start]
    while edges[-1] + length < end - 1e-9 * span:
        edges.append(edges[-1] + length)
    return list(pairwise([*edges, end]))


class _Sums:
    """Sums of slot-seconds, for each bin."""

    def __init__(self, bins: Sequence[Span]) -> None:
        self._start = bins[0][0]
        self._length = bins[0][1] - bins[0][0]
        self._count = len(bins)
        self.offered = [0.0] * len(bins)
        self.used = [0.0] * len(bins)
        self.useful = [0.0] * len(bins)
        self.preempted = [0.0] * len(bins)
        self.rescaled = [0.0] * len(bins)

    def add(self, figure: list[float], start: Seconds, end: Seconds, amount: float) -> None:
        """Spread an amount evenly over the bins from `start` to `end`."""
        first, last = self._place(start), self._place(end)
        if first == last or end <= start:
            figure[last] += amount
            return
        for place in range(first, last + 1):
            low = max(start, self._start + place * self._length)
            high = end
            if place < last:
                high = self._start + (place + 1) * self._length
            figure[place] += amount * max(0.0, high - low) / (end - start)

    def _place(self, time: Seconds) -> int:
        """The number of the bin at this time."""
        place = int((time - self._start) // self._length)
        return min(max(0, place), self._count - 1)


def _add_slots(sums: _Sums, chart: Chart, cut: Mapping[tuple[Seconds, TrialId], Seconds]) -> None:
    """Add slot-seconds that were there, that were used, and those of units cut as slots left.

    `cut`: up to when the trials whose units were cut had reported what they made. Those that went
    on with fewer slots are not among them: they lost at most a step.
    """
    for slot, spans in chart.spans.items():
        for start, end in spans:
            sums.add(sums.offered, start, end, end - start)
            sums.add(sums.used, start, end, end - start)
        for bar in chart.bars.get(slot, ()):
            length = bar.end - bar.start
            if bar.kind == "idle":
                sums.add(sums.used, bar.start, bar.end, -length)
            if bar.kind == "lost" and bar.trial is not None:
                since = max(bar.start, cut.get((bar.end, bar.trial), bar.end))
                sums.add(sums.preempted, since, bar.end, bar.end - since)


def _add_changes(sums: _Sums, changes: Sequence[WidthChange], speeds: Speeds, end: Seconds) -> None:
    """Add slot-seconds in which trials stood still to change their width.

    Where nobody measured that of a change, it takes what the profile says, but not longer than
    until the trial's next change.
    """
    until: dict[TrialId, Seconds] = {}
    for change in reversed(changes):
        trial, time, before, after = change[:4]
        stood = change.stood
        if stood is None:
            stood = speeds.stand(trial, before, after)
        stood = min(stood, max(0.0, until.get(trial, end) - time))
        until[trial] = time
        figure = sums.rescaled if change.forced is None else sums.preempted
        sums.add(figure, time, time + stood, stood * after)


def _add_work(sums: _Sums, outcome: OutcomeTally, curve: Curve) -> None:
    """Add work that lasts, and work that was lost, in seconds of one slot."""
    for trial in outcome.trials:
        rate = curve(trial, 1)[0]
        for start, end, samples in outcome.work(trial):
            sums.add(sums.useful, start, end, samples / rate)
    for time, trial, samples in outcome.fallen:
        sums.add(sums.preempted, time, time, samples / curve(trial, 1)[0])


def _yields(
    bins: Sequence[Span], sums: _Sums, outcome: OutcomeTally, speeds: Speeds
) -> tuple[Yield, ...]:
    """What came of each bin."""
    yields = []
    for number, (start, end) in enumerate(bins):
        useful = reference = None
        if speeds.curve is not None:
            useful = sums.useful[number]
            slots = sums.offered[number] / (end - start)
            reference = _reference(outcome, speeds, slots, (start, end))
        yields.append(
            Yield(
                start,
                end,
                sums.offered[number],
                sums.used[number],
                useful,
                reference,
                sums.preempted[number],
                sums.rescaled[number],
            )
        )
    return tuple(yields)


def _whole(yields: Sequence[Yield], outcome: OutcomeTally, speeds: Speeds) -> Yield:
    """All bins together, against as many dedicated slots all the time."""
    start, end = yields[0].start, yields[-1].end
    offered = sum(each.offered for each in yields)
    useful = reference = None
    if speeds.curve is not None:
        useful = sum(each.useful or 0.0 for each in yields)
        slots = offered / (end - start)
        reference = _reference(outcome, speeds, slots, (start, end))
    return Yield(
        start,
        end,
        offered,
        sum(each.used for each in yields),
        useful,
        reference,
        sum(each.preempted for each in yields),
        sum(each.rescaled for each in yields),
    )


# -- the same trials on dedicated slots ------------------------------------------------------------


def _reference(outcome: OutcomeTally, speeds: Speeds, slots: float, span: Span) -> Seconds:
    """What the trials that were under way would have made on so many slots: A_s of the paper.

    The slots are shared out as well as can be at each time; slots may be parted.
    """
    kinds = _kinds(outcome, speeds, slots)
    total = 0.0
    for start, end, counts in _under_way(outcome.starts_and_ends, kinds, span):
        total += (end - start) * _filled(counts, slots)
    return total


def _kinds(outcome: OutcomeTally, speeds: Speeds, slots: float) -> dict[TrialId, Kind]:
    """How each trial gains by slots; trials of one kind gain alike."""
    assert speeds.curve is not None
    kinds = {}
    for _, trial, change in outcome.starts_and_ends:
        if change > 0 and trial in speeds.trials and trial not in kinds:
            fewest, most = speeds.trials[trial].widths
            most = max(fewest, min(most, int(slots) + 1))
            rates = speeds.curve(trial, most)
            kinds[trial] = _gains([rate / rates[0] for rate in rates], fewest)
    return kinds


def _gains(worth: Sequence[float], fewest: int) -> Kind:
    """The upper hull of what 0, `fewest`, … slots are worth, as pieces of falling gain."""
    hull: list[tuple[int, float]] = [(0, 0.0)]
    for width in range(fewest, len(worth) + 1):
        point = (width, round(worth[width - 1], 4))
        while len(hull) > 1 and _gain(hull[-2], hull[-1]) <= _gain(hull[-1], point):
            hull.pop()
        hull.append(point)
    pieces = []
    for before, after in pairwise(hull):
        gain = _gain(before, after)
        if gain > 0:
            pieces.append((gain, after[0] - before[0]))
    return tuple(pieces)


def _gain(before: tuple[int, float], after: tuple[int, float]) -> float:
    """What each slot from the one width to the other gains."""
    return (after[1] - before[1]) / (after[0] - before[0])


def _under_way(
    changes: Iterable[tuple[Seconds, TrialId, int]], kinds: Mapping[TrialId, Kind], span: Span
) -> Iterator[tuple[Seconds, Seconds, Counter[Kind]]]:
    """From when to when which kinds of trials were under way, within the span."""
    start, end = span
    counts: Counter[Kind] = Counter()
    reached = start
    for time, trial, change in changes:
        if time > reached:
            yield reached, min(time, end), counts
            reached = min(time, end)
        if trial in kinds:
            counts[kinds[trial]] += change
    if end > reached:
        yield reached, end, counts


def _filled(counts: Counter[Kind], slots: float) -> float:
    """What these trials make in a second on so many slots, in seconds of one slot."""
    pieces: Counter[float] = Counter()
    for kind, trials in counts.items():
        for gain, width in kind:
            pieces[gain] += width * trials
    total = 0.0
    for gain in sorted(pieces, reverse=True):
        part = min(slots, float(pieces[gain]))
        total += gain * part
        slots -= part
        if slots <= 0:
            break
    return total


def hours(amount: Seconds | None) -> float | None:
    """Slot-seconds as slot-hours."""
    if amount is None:
        return None
    return amount / 3600.0
