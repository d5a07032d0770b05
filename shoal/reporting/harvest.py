"""What a study made of slots that came and went.

Liu et al., BFTrainer, 2021, section 4.1: the resource integral (eq. 17), the equivalent number of
static slots (eq. 18), and the efficiency U against the same trials on so many dedicated slots.
Work is measured in seconds that it takes on one slot, by the measured profile, so that unlike
trials add up.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
    """Counts along a journal.

    `left`: when trials that have work left began (1) and ended (-1). `fallen`: what trials fell
    back by at a moment at which slots left. `cut`: for each such moment and trial that
    ran on such a slot, up to when the trial had reported what it made.
    """

    def __init__(self) -> None:
        self.left: list[tuple[Seconds, TrialId, int]] = []
        self.fallen: list[tuple[Seconds, TrialId, Samples]] = []
        self.cut: dict[tuple[Seconds, TrialId], Seconds] = {}
        self._departed: Seconds | None = None  # when slots left last
        self._at: dict[SlotId, tuple[TrialId, ...]] = {}  # who ran there last
        self._cell: Seconds = 1.0
        # Samples of each trial, by the number of the cell.
        self._made: dict[TrialId, dict[int, Samples]] = {}
        self._done: dict[TrialId, Samples] = {}
        self._since: dict[TrialId, Seconds] = {}  # up to when it was counted
        self._open: set[TrialId] = set()  # trials that began and have work left

    def made(self, trial: TrialId) -> Iterator[tuple[Seconds, Seconds, Samples]]:
        """What the trial made: from when, to when, how many samples."""
        for number, samples in self._made.get(trial, {}).items():
            yield number * self._cell, (number + 1) * self._cell, samples

    @property
    def trials(self) -> Iterator[TrialId]:
        """The trials that made something."""
        return iter(self._made)

    def take(self, time: Seconds, entry: Entry) -> None:
        """Count one line."""
        match entry:
            case Opened():
                self._since.clear()
            case Finished(id_) | Failed(id_) | Retired(id_) if id_ in self._open:
                self._open.discard(id_)
                self.left.append((time, id_, -1))
            case Planned():
                self._plan(time, entry)
            case Advanced():
                for trial_id, samples in entry.samples.items():
                    self._done[trial_id] = self._done.get(trial_id, 0.0) + samples
                    self._spread(trial_id, self._since.get(trial_id, time), time, samples)
                    self._since[trial_id] = time
            case Left(slots):  # they cut what was under way there
                self._departed = time
                for trial in [trial for slot in slots for trial in self._at.pop(slot, ())]:
                    self.cut[time, trial] = self._since.get(trial, time)
            case Fell():
                self._fall(time, entry)

    def _plan(self, time: Seconds, entry: Planned) -> None:
        """Trials that go on are counted from their last report, others from now."""
        stopped = {trial for gang in entry.stop for trial in gang.trials}
        for gang in entry.start:
            for slot in gang.slots:
                lanes = [lane.trial for lane in gang.lanes if slot in lane.slots]
                self._at[slot] = tuple(lanes)
            for trial in gang.trials:
                if trial not in self._open:
                    self._open.add(trial)
                    self.left.append((time, trial, 1))
                if trial not in stopped:
                    self._since[trial] = time

    def _fall(self, time: Seconds, entry: Fell) -> None:
        """The trial lost what it made after its durable state."""
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
        cells = self._made.setdefault(trial, {})
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
        for trial, cells in self._made.items():
            merged: dict[int, Samples] = {}
            for number, samples in cells.items():
                merged[number // 2] = merged.get(number // 2, 0.0) + samples
            self._made[trial] = merged


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
    """What came of the slots from `start` to `end`; slot-seconds.

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
    """The whole, and bins of equal length. `nodes`: node-seconds with a slot at least."""

    whole: Yield
    bins: tuple[Yield, ...]
    nodes: Seconds


@dataclass(frozen=True, slots=True)
class Speeds:
    """What is known of the trials. `curve` None: nothing is known of their speed.

    `stand`: seconds that a trial stands still when it goes from so many slots to so many.
    """

    trials: Mapping[TrialId, Trial]
    curve: Curve | None
    stand: Callable[[TrialId, int, int], Seconds]


def harvested(
    chart: Chart,
    nodes: Mapping[SlotId, str],
    outcome: OutcomeTally,
    changes: Iterable[WidthChange],
    known: Callable[[], Speeds],
    head: Mapping[str, Any],
) -> Harvest | None:
    """What was made of slots that came and went; None: they stayed, or were the study's own.

    `known`: what is known of the trials, which takes a while to look up. `head`: the journal's.
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
    speeds = known()
    start = min(span[0] for spans in chart.spans.values() for span in spans)
    end = chart.end
    if end <= start:
        return None
    places = _bins(start, end)
    cuts = _Cuts(places)
    listed = list(changes)
    gone_on = {(each.forced, each.trial) for each in listed}
    cut = {key: since for key, since in outcome.cut.items() if key not in gone_on}
    _slots_in(cuts, chart, cut)
    _changes_in(cuts, listed, speeds, end)
    if speeds.curve is not None:
        _work_in(cuts, outcome, speeds.curve)
    parts = _yields(places, cuts, outcome, speeds)
    whole = _whole(parts, outcome, speeds)
    with_slots = (end - start for spans in _by_node(chart, nodes) for start, end in spans)
    return Harvest(whole, parts, sum(with_slots))


def _by_node(chart: Chart, nodes: Mapping[SlotId, str]) -> Iterable[Sequence[Span]]:
    """When each node had slots: single ones are opened late, die, or are given up by a person."""
    by_node: dict[str, list[Span]] = {}
    for slot, spans in chart.spans.items():
        by_node.setdefault(nodes.get(slot, str(slot)), []).extend(spans)
    return [_union(spans) for spans in by_node.values()]


def _union(spans: Iterable[Span]) -> list[Span]:
    """The time that any of these covers."""
    joined: list[Span] = []
    for start, end in sorted(spans):
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], end)
        else:
            joined.append((start, end))
    return joined


def _came_or_went(places: Iterable[Sequence[Span]], chart: Chart, slack: Seconds) -> bool:
    """Whether any joined after the first ones of a run, or left, for good or for a while.

    `slack`: seconds within which to come after the first, or to leave before the end, is none.
    """
    listed = list(places)
    for begin, end in chart.runs:
        inside = [[span for span in spans if begin <= span[0] < end] for spans in listed]
        here = [each for each in inside if each]
        first = min((each[0][0] for each in here), default=end)
        for each in here:
            gaps = (after[0] - before[1] for before, after in pairwise(each))
            came = each[0][0] > first + slack
            went = each[-1][1] < end - slack
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


class _Cuts:
    """Sums by bin."""

    def __init__(self, places: Sequence[Span]) -> None:
        self._start = places[0][0]
        self._length = places[0][1] - places[0][0]
        self._count = len(places)
        self.offered = [0.0] * len(places)
        self.used = [0.0] * len(places)
        self.useful = [0.0] * len(places)
        self.preempted = [0.0] * len(places)
        self.rescaled = [0.0] * len(places)

    def add(self, which: list[float], start: Seconds, end: Seconds, amount: float) -> None:
        """Spread an amount evenly over the bins from `start` to `end`."""
        first, last = self._place(start), self._place(end)
        if first == last or end <= start:
            which[last] += amount
            return
        for place in range(first, last + 1):
            low = max(start, self._start + place * self._length)
            high = end
            if place < last:
                high = self._start + (place + 1) * self._length
            which[place] += amount * max(0.0, high - low) / (end - start)

    def _place(self, at: Seconds) -> int:
        place = int((at - self._start) // self._length)
        return min(max(0, place), self._count - 1)


def _slots_in(cuts: _Cuts, chart: Chart, cut: Mapping[tuple[Seconds, TrialId], Seconds]) -> None:
    """Slot-seconds that were there, that were used, and of units cut as slots left.

    `cut`: up to when the trials whose units were cut had reported what they made. Those that went
    on with fewer slots are not among them: they lost at most a step.
    """
    for slot, spans in chart.spans.items():
        for start, end in spans:
            cuts.add(cuts.offered, start, end, end - start)
            cuts.add(cuts.used, start, end, end - start)
        for bar in chart.bars.get(slot, ()):
            length = bar.end - bar.start
            if bar.kind == "idle":
                cuts.add(cuts.used, bar.start, bar.end, -length)
            if bar.kind == "lost" and bar.trial is not None:
                since = max(bar.start, cut.get((bar.end, bar.trial), bar.end))
                cuts.add(cuts.preempted, since, bar.end, bar.end - since)


def _changes_in(cuts: _Cuts, changes: Sequence[WidthChange], speeds: Speeds, end: Seconds) -> None:
    """Slot-seconds in which trials stood still to change their width.

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
        which = cuts.rescaled if change.forced is None else cuts.preempted
        cuts.add(which, time, time + stood, stood * after)


def _work_in(cuts: _Cuts, outcome: OutcomeTally, curve: Curve) -> None:
    """Work that lasts, and work that was lost, in seconds of one slot."""
    for trial in outcome.trials:
        rate = curve(trial, 1)[0]
        for start, end, samples in outcome.made(trial):
            cuts.add(cuts.useful, start, end, samples / rate)
    for at, trial, samples in outcome.fallen:
        cuts.add(cuts.preempted, at, at, samples / curve(trial, 1)[0])


def _yields(
    places: Sequence[Span], cuts: _Cuts, outcome: OutcomeTally, speeds: Speeds
) -> tuple[Yield, ...]:
    """What came of each bin."""
    found = []
    for number, (start, end) in enumerate(places):
        useful = reference = None
        if speeds.curve is not None:
            useful = cuts.useful[number]
            slots = cuts.offered[number] / (end - start)
            reference = _reference(outcome, speeds, slots, (start, end))
        found.append(
            Yield(
                start,
                end,
                cuts.offered[number],
                cuts.used[number],
                useful,
                reference,
                cuts.preempted[number],
                cuts.rescaled[number],
            )
        )
    return tuple(found)


def _whole(parts: Sequence[Yield], outcome: OutcomeTally, speeds: Speeds) -> Yield:
    """All bins together, against as many dedicated slots all the time."""
    start, end = parts[0].start, parts[-1].end
    offered = sum(part.offered for part in parts)
    useful = reference = None
    if speeds.curve is not None:
        useful = sum(part.useful or 0.0 for part in parts)
        slots = offered / (end - start)
        reference = _reference(outcome, speeds, slots, (start, end))
    return Yield(
        start,
        end,
        offered,
        sum(part.used for part in parts),
        useful,
        reference,
        sum(part.preempted for part in parts),
        sum(part.rescaled for part in parts),
    )


# -- the same trials on dedicated slots ------------------------------------------------------------


def _reference(outcome: OutcomeTally, speeds: Speeds, slots: float, span: Span) -> Seconds:
    """What the trials that were under way would have made on so many slots: A_s of the paper.

    The slots are shared out as well as can be at each time; slots may be parted.
    """
    kinds = _kinds(outcome, speeds, slots)
    total = 0.0
    for start, end, here in _under_way(outcome.left, kinds, span):
        total += (end - start) * _filled(here, slots)
    return total


def _kinds(outcome: OutcomeTally, speeds: Speeds, slots: float) -> dict[TrialId, Kind]:
    """How each trial gains by slots; trials of one kind gain alike."""
    assert speeds.curve is not None
    found = {}
    for _, trial, change in outcome.left:
        if change > 0 and trial in speeds.trials and trial not in found:
            fewest, most = speeds.trials[trial].widths
            most = max(fewest, min(most, int(slots) + 1))
            rates = speeds.curve(trial, most)
            found[trial] = _gains([rate / rates[0] for rate in rates], fewest)
    return found


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
    left: Iterable[tuple[Seconds, TrialId, int]], kinds: Mapping[TrialId, Kind], span: Span
) -> Iterator[tuple[Seconds, Seconds, Counter[Kind]]]:
    """From when to when which kinds of trials were under way, within the span."""
    start, end = span
    here: Counter[Kind] = Counter()
    at = start
    for time, trial, change in left:
        if time > at:
            yield at, min(time, end), here
            at = min(time, end)
        if trial in kinds:
            here[kinds[trial]] += change
    if end > at:
        yield at, end, here


def _filled(here: Counter[Kind], slots: float) -> float:
    """What these trials make in a second on so many slots, in seconds of one slot."""
    pieces: Counter[float] = Counter()
    for kind, trials in here.items():
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
