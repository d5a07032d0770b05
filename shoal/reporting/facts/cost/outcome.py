"""What trials made over time, and what of it they lost when slots left: for `harvest`."""

from collections.abc import Iterable, Iterator

from shoal.core.cluster import SlotId
from shoal.core.event import (
    Advanced,
    Entry,
    Failed,
    Fell,
    Finished,
    Left,
    Opened,
    Planned,
    Retired,
)
from shoal.core.trial import Samples, Seconds, TrialId

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
                    self._advance(time, trial_id, samples)
            case Left(slots):
                self._leave(time, slots)
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

    def _leave(self, time: Seconds, slots: Iterable[SlotId]) -> None:
        """Slots left, and cut what was under way there."""
        self._departed = time
        for slot in slots:
            for trial in self._at.pop(slot, ()):
                self.cut[time, trial] = self._since.get(trial, time)

    def _advance(self, time: Seconds, trial: TrialId, samples: Samples) -> None:
        """The trial made so many samples since it was last counted."""
        self._done[trial] = self._done.get(trial, 0.0) + samples
        self._spread(trial, self._since.get(trial, time), time, samples)
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
