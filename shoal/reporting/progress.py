"""Live progress of a run: a display on a terminal or in a notebook, plain lines elsewhere.

It subscribes to the engine's moments.
"""

import os
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from io import StringIO
from math import inf, isfinite
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TextIO

from shoal.core.cluster import SlotId
from shoal.core.event import Advanced, Entry, Failed, Finished, Joined, Left, Retired, Submitted
from shoal.core.state import State
from shoal.core.trial import Samples, Seconds, Trial, TrialId
from shoal.reporting.format import DASH, config, count, duration, printable, score, status_words
from shoal.reporting.gantt import natural

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live
    from rich.table import Table


def write_line(stream: TextIO | None, text: str) -> None:
    """Write the line; nothing where there is no stream, or once it takes no more.

    A closed pipe, a terminal that is gone or a full disk behind a log end no training.
    """
    if stream is None or getattr(stream, "closed", False):
        return
    encoding = getattr(stream, "encoding", None) or "utf-8"
    shown = printable(text).encode(encoding, "backslashreplace").decode(encoding)
    try:
        stream.write(shown)
        stream.flush()
    except OSError:
        into_nothing(stream)


def into_nothing(stream: TextIO) -> None:
    """Lead what is written from now on nowhere: the reader, as `head`, closed the pipe."""
    with suppress(OSError):  # one without a file of the system's has nothing to close
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, stream.fileno())
        os.close(nothing)


COLUMNS = 100


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    module = sys.modules.get("IPython.core.getipython")
    shell: Any = module.get_ipython() if module is not None else None
    return getattr(shell, "kernel", None) is not None


class NotebookDisplay:
    """A display in a notebook: what is shown next replaces what was shown last."""

    def __init__(self) -> None:
        self._handle: Any = None

    def show(self, picture: "RenderableType") -> None:
        """Show this, a rich renderable, as text."""
        from rich.console import Console

        text = StringIO()
        # In a kernel rich shows an output of its own for each frame, whatever the file is.
        Console(file=text, width=COLUMNS, force_jupyter=False).print(picture)
        data = {"text/plain": text.getvalue()}
        if self._handle is None:
            display = sys.modules["IPython.display"].display
            self._handle = display(data, raw=True, display_id=True)
        else:
            self._handle.update(data, raw=True)


Aim = Callable[[Any], tuple[str | None, str]]  # metric and mode of a configuration


@dataclass(frozen=True, slots=True)
class Scores:
    """The study's metric and mode, and `aim`: those of a trial's configuration."""

    metric: str | None
    mode: str
    aim: Aim | None = None

    def best(self, state: State) -> tuple[float, TrialId] | None:
        """The best last score and its trial, as the study ranks them."""
        scores: list[tuple[float, TrialId]] = []
        for trial in state.known if self.metric else ():
            last = self._last(state, trial)
            if last is not None:
                scores.append((last, trial))
        choose: Callable[..., tuple[float, TrialId] | None] = max if self.mode == "max" else min
        return choose(scores, key=lambda pair: pair[0], default=None)

    def text(self, state: State, trial: TrialId, before: str) -> str:
        """The trial's last score with the metric's name, or nothing if it has none."""
        last = self._last(state, trial)
        if last is None:
            return ""
        return f"{before}{self._metric_of(state, trial)} {score(last)}"

    def _metric_of(self, state: State, trial: TrialId) -> str | None:
        """What the trial is ranked by."""
        if self.aim is None:
            return self.metric
        return self.aim(state.known[trial].config)[0]

    def _last(self, state: State, trial: TrialId) -> float | None:
        """The trial's last score; None if it has none, is not finite, or the trial failed."""
        metric = self._metric_of(state, trial)
        if metric is None or state.ended.get(trial, "").startswith("failed"):
            return None
        for _, values in reversed(state.scores.get(trial, ())):
            if metric in values:
                last = values[metric]
                return last if isfinite(last) else None
        return None


@dataclass(frozen=True, slots=True)
class Ends:
    """What became of trials, in the words of searchers with rungs where trials pause at rungs.

    `furthest`: the epochs to which such a trial goes on at most; None: none goes on.
    """

    scores: Scores
    furthest: float | None = None

    def line(self, entry: Entry, state: State) -> str | None:
        """What the entry means for a trial, in a line; None: it ends none and promotes none."""
        match entry:
            case Finished(trial):
                # At its last epoch, or it waits at a rung whether it is promoted.
                epoch = None if self.furthest is None else _epoch(state, trial)
                paused = epoch is not None and epoch < (self.furthest or 0.0)
                how = ("paused" if paused else "finished") + _at_epoch(epoch)
            case Retired(trial):
                how = status_words("retired") + _at_epoch(_epoch(state, trial))
            case Failed(trial, why):
                return f"{trial} failed: {why}"
            case Submitted(new) if self.furthest is not None and state.done.get(new.id, 0.0) > 0:
                return f"{new.id} promoted{_to_epoch(state, new)}"
            case _:
                return None
        return f"{trial} {how}{self.scores.text(state, trial, before=': ')}"


def _epoch(state: State, trial: TrialId) -> float | None:
    """The epoch of the trial's last evaluation."""
    scores = state.scores.get(trial)
    if not scores:
        return None
    return scores[-1][0]


def _at_epoch(epoch: float | None) -> str:
    """At which epoch a trial ended, in words; empty if it is not known."""
    return "" if epoch is None else f" at epoch {epoch:g}"


def _to_epoch(state: State, trial: Trial) -> str:
    """To which epoch a trial goes on, in words: samples and epochs are in proportion."""
    epoch = _epoch(state, trial.id)
    if epoch is None:
        return ""
    return f" to epoch {round(epoch * trial.samples / state.done[trial.id], 2):g}"


WINDOW = 60.0  # seconds of the study over which throughput is taken


class WorkAhead:
    """What a study has to do, in samples; `endless`: see `Progress`."""

    def __init__(self, endless: Samples | None) -> None:
        self._endless = endless

    def _is_endless(self, trial: Trial) -> bool:
        """Whether the trial ends by itself, nobody knows when."""
        return self._endless is not None and trial.samples >= self._endless

    def amount(self, state: State) -> tuple[float, float]:
        """What is asked for in all, and what is left of it: samples, or trials without an end."""
        if any(map(self._is_endless, state.known.values())):
            return float(len(state.known)), float(len(state.trials))
        total = sum(trial.samples for trial in state.known.values())
        return total or 1.0, _samples_left(state)

    def left(self, state: State, rate: float | None) -> Seconds | None:
        """Seconds at this rate until the trials known now have their samples; None: not known."""
        if not rate or any(map(self._is_endless, state.trials.values())):
            return None
        return _samples_left(state) / rate

    def rate_text(self, rate: float) -> str:
        """The rate, with its unit."""
        unit = "samples" if self._endless is None else "reports"
        return f"{count(rate)} {unit}/s"

    def done_text(self, state: State, trial: TrialId) -> str:
        """How far the trial is."""
        known = state.known[trial]
        done = state.done[trial]
        if self._is_endless(known):
            return f"{done:.0f} reports"
        return f"{min(100 * done / known.samples, 100):3.0f} %"


class RecentSpeed:
    """Samples a second over the last `WINDOW` seconds of the study, and over all of the run."""

    def __init__(self) -> None:
        # Times of the study, with the samples trained in this run until then.
        self._trained: deque[tuple[Seconds, Samples]] = deque()
        self._total = 0.0
        self._first: Seconds | None = None  # when the run's first slots were there

    def take(self, now: Seconds, entries: tuple[Entry, ...]) -> None:
        """Count what these entries report."""
        for entry in entries:
            if isinstance(entry, Advanced):
                self._total += sum(entry.samples.values())
        if self._first is None:
            self._first = now
        self._trained.append((now, self._total))
        while len(self._trained) > 2 and self._trained[1][0] <= now - WINDOW:
            self._trained.popleft()

    @property
    def is_recent(self) -> bool:
        """Whether `rate` leaves out what came before the last `WINDOW` seconds."""
        return bool(self._trained) and self._trained[0][0] != self._first

    def mean(self) -> float | None:
        """The speed over all of the run, from its first slots on; None: it is not known yet."""
        if self._first is None or self._trained[-1][0] <= self._first or not self._total:
            return None
        return self._total / (self._trained[-1][0] - self._first)

    def rate(self) -> float | None:
        """The speed of late; None: it is not known yet."""
        if not self._trained:
            return None
        start, before = self._trained[0]
        end, after = self._trained[-1]
        if end <= start or after <= before:
            return None
        return (after - before) / (end - start)


def _samples_left(state: State) -> Samples:
    """Samples that the trials known now are still to train."""
    left = 0.0
    for id_, trial in state.trials.items():
        left += max(0.0, trial.samples - state.done[id_])
    return left


def counts(state: State) -> list[str]:
    """How many trials are done, running, waiting and failed, in words."""
    failed = sum(how.startswith("failed") for how in state.ended.values())
    running = sum(trial in state.trials for trial in state.running)
    by_status = {"running": running, "waiting": len(state.trials) - running, "failed": failed}
    parts = [f"{len(state.ended) - failed} of {len(state.known)} done"]
    return parts + [f"{number} {status}" for status, number in by_status.items() if number]


# What ends a run, as users know it; other reasons are said as they are.
STOPPED_BY = {
    "SIGINT": " by Ctrl-C",
    "SIGTERM": " by SIGTERM",
    "timeout": " by its time limit",
    "": " on request",
}


def stopped_text(state: State) -> str:
    """That the run was stopped, and how to go on; empty if it was not."""
    if state.stopped is None:
        return ""
    how = STOPPED_BY.get(state.stopped, f": {state.stopped}")
    done = sum(not how.startswith("failed") for how in state.ended.values())
    return f"stopped{how}: {done} of {len(state.known)} trials are done; run it again to go on"


Entries = tuple[Entry, ...]

SLOTS = 8  # lines of slots shown


class Progress:
    """Pass it to `engine.run.run` as a watcher, and close it at the end (or use it in a `with`).

    `stream`: where to write (standard output); a display if that is a terminal; without a stream
    the display of a notebook, in its kernel. `every`: least
    seconds between two plain lines, but for trials that finish or fail, which have a line each.
    `endless`: the trials are functions, whose samples are reports. Those that are to make so many
    end by themselves, nobody knows when. `aim`: metric and mode of a trial's configuration.
    `furthest`: the epochs to which trials go on that pause at rungs; None: there are no rungs.
    """

    def __init__(
        self,
        metric: str | None = None,
        mode: str = "min",
        stream: TextIO | None = None,
        every: Seconds = 5.0,
        frames: float = 8.0,
        endless: Samples | None = None,
        aim: Aim | None = None,
        furthest: float | None = None,
    ) -> None:
        self._scores = Scores(metric, mode, aim)
        self._ends = Ends(self._scores, furthest)
        self._nodes: dict[SlotId, str] = {}  # of slots that joined
        self.stream: TextIO | None = stream or sys.stdout
        self.every = every
        self.pause = 1 / frames
        self._work = WorkAhead(endless)
        self._speed = RecentSpeed()
        # When something was last shown, by the clock, which only limits how often that happens.
        self._shown = -inf
        self._live: Live | None = None
        self._last: tuple[Seconds, State] | None = None
        self._over = False  # what is shown last is of the whole run
        self._terminal = bool(getattr(self.stream, "isatty", lambda: False)())
        self._notebook: NotebookDisplay | None = None
        if stream is None and in_notebook():
            self._notebook = NotebookDisplay()
            self._terminal = True

    def __call__(self, now: Seconds, entries: Entries, state: State) -> None:
        """Show what a moment of the engine brought."""
        self._speed.take(now, entries)
        self._last = now, state
        losses = self._losses(entries, state)
        if not self._terminal:
            self._say(now, entries, state, losses)
        elif monotonic() - self._shown >= self.pause:
            self._draw(now, state)
        self._keep_failures(entries, losses)

    def pause_at_rungs(self, furthest: float | None) -> None:
        """From now on trials pause at rungs; see `furthest`."""
        self._ends = Ends(self._scores, furthest)

    def tell(self, now: Seconds, text: str) -> None:
        """Show at once what the run waits for before its first moment, also on a terminal."""
        if self._notebook is not None:
            self._notebook.show(text)
        else:
            self._write(now, text)

    def close(self) -> None:
        """Show the last state and give the terminal back; safe to call twice."""
        stopped = ""
        if self._last is not None:
            now, state = self._last
            self._last = None
            self._over = True
            stopped = stopped_text(state)
            if self._terminal:
                self._draw(now, state)
            else:
                self._write(now, self._line(state))
        if self._live is not None:
            self._live.stop()
            self._live = None
        if stopped:
            write_line(self.stream, f"{stopped}\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # -- figures -----------------------------------------------------------------------------------

    def rate(self) -> float | None:
        """Samples/s of late, evaluations and switches included; None: not known yet."""
        return self._speed.rate()

    def _speed_text(self) -> str:
        """The speed of late; at the end that of all the run, which the study's summary has, too."""
        rate = self._speed.mean() if self._over else self.rate()
        if not rate:
            return ""
        text = self._work.rate_text(rate)
        if self._speed.is_recent and not self._over:
            text += " in the last minute"
        return text

    def left(self, state: State) -> Seconds | None:
        """Seconds until the trials known now have their samples, at the present rate.

        None: not known yet, or not at all.
        """
        return self._work.left(state, self.rate())

    def best(self, state: State) -> tuple[float, TrialId] | None:
        """The best last score and its trial, as the study ranks them."""
        return self._scores.best(state)

    # -- plain lines -------------------------------------------------------------------------------

    def _losses(self, entries: Entries, state: State) -> list[str]:
        """A line for each node at which slots died just now, and each that they left."""
        died: dict[str, list[SlotId]] = {}
        for entry in entries:
            if isinstance(entry, Joined):
                self._nodes.update((each.id, each.node or "?") for each in entry.slots)
            elif isinstance(entry, Left):
                for slot in sorted(entry.slots & self._nodes.keys(), key=natural):
                    node = self._nodes.pop(slot)
                    if entry.died:
                        died.setdefault(node, []).append(slot)
        left = f"slots left: {len(state.slots)}"
        return [f"{', '.join(slots)} at {node} died; {left}" for node, slots in died.items()]

    def _say(self, now: Seconds, entries: Entries, state: State, losses: list[str]) -> None:
        """A line for each trial that is over, and one of the whole study now and then."""
        for line in losses:
            self._write(now, line)
        for entry in entries:
            end = self._ends.line(entry, state)
            if end is not None:
                self._write(now, end)
        # With no trial left either the run is over, and `close` says so, or more are to come.
        if state.trials and monotonic() - self._shown >= self.every:
            self._shown = monotonic()
            self._write(now, self._line(state))

    def _line(self, state: State) -> str:
        """The study in one line."""
        parts = [", ".join(counts(state))]
        if speed := self._speed_text():
            parts.append(speed)
        best = self.best(state)
        if best is not None:
            reached, trial = best
            parts.append(f"best {self._scores.metric} {score(reached)} ({trial})")
        left = self.left(state)
        if left:
            parts.append(f"about {duration(left)} left")
        return "; ".join(parts)

    def _write(self, now: Seconds, text: str) -> None:
        """A line with the time of the study."""
        write_line(self.stream, f"[{duration(now):>10}] {text}\n")

    # -- the display -------------------------------------------------------------------------------

    def _draw(self, now: Seconds, state: State) -> None:
        """Show the state on the terminal."""
        from rich.console import Console
        from rich.live import Live

        self._shown = monotonic()
        picture = self.picture(now, state)
        if self._notebook is not None:
            self._notebook.show(picture)
            return
        if self._live is None:
            console = Console(file=self.stream, force_jupyter=False)
            self._live = Live(picture, console=console, auto_refresh=False)
            self._live.start()
        self._live.update(picture, refresh=True)

    def _keep_failures(self, entries: Entries, losses: list[str]) -> None:
        """A line above the display for each trial that failed and slots that died; it stays."""
        if self._live is None:
            return
        failed = [entry for entry in entries if isinstance(entry, Failed)]
        for line in (*losses, *(f"{each.trial} failed: {each.why}" for each in failed)):
            self._live.console.print(printable(line), markup=False, highlight=False, style="red")

    def picture(self, now: Seconds, state: State) -> "RenderableType":
        """The display as a rich renderable."""
        from rich.console import Group

        # A terminal shows "^C" where the cursor is. At the end of a full line that begins another
        # line, of which the next frame would not know.
        below = [] if self._over else [""]
        return Group(self._bar(now, state), self._facts(state), *below)

    def _bar(self, now: Seconds, state: State) -> "Table":
        """How much of the work is done, and how long it took and will take."""
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        total, left = self._work.amount(state)
        timing = duration(now)
        remaining = self.left(state)
        if remaining:
            timing += f", about {duration(remaining)} left"

        bar = ProgressBar(total=total, completed=total - left, width=40)
        table = Table.grid(padding=(0, 2))
        table.add_row(bar, f"{100 * (1 - left / total):.0f} %", timing)
        return table

    def _facts(self, state: State) -> "Table":
        """The figures of the study, and what each slot does."""
        from rich.table import Table
        from rich.text import Text

        facts = Table.grid(padding=(0, 2))
        facts.add_row(Text("trials", "dim"), Text(", ".join(counts(state))))
        if speed := self._speed_text():
            facts.add_row(Text("speed", "dim"), Text(speed))
        best = self.best(state)
        if best is not None:
            reached, trial = best
            shown = Text(f"{self._scores.metric} {score(reached)}", "bold green")
            values = config(state.known[trial].config, 70)
            text = Text.assemble(shown, printable(f"  {trial}  {values}"))
            facts.add_row(Text("best", "dim"), text)
        # When the run is over, no slot is at work, whatever it was at when it was interrupted.
        for name, work in () if self._over else self._slots(state):
            line = Text(printable(work), no_wrap=True, overflow="ellipsis")
            facts.add_row(Text(name, "dim"), line)
        return facts

    def _slots(self, state: State) -> Iterator[tuple[str, str]]:
        """The names of the first slots, with what each does; then the others together."""
        names = sorted(state.slots, key=natural)
        for name in names[:SLOTS]:
            yield name, self._at_work(state, name)
        if len(names) > SLOTS:
            busy = sum(name in state.busy for name in names[SLOTS:])
            yield "…", f"{len(names) - SLOTS} more slots, {busy} at work"

    def _at_work(self, state: State, slot: SlotId) -> str:
        """The trials at the slot, and the shards that they visit."""
        gang = state.busy.get(slot)
        if gang is None:
            return DASH
        trials = [lane.trial for lane in gang.lanes if slot in lane.slots]
        if not trials:
            return DASH
        texts = []
        for trial in trials:
            reached = self._scores.text(state, trial, before="  ")
            texts.append(f"{trial}  {self._work.done_text(state, trial)}{reached}")
        shards = f"  on {', '.join(gang.shards)}" if gang.shards else ""
        return "; ".join(texts) + shards
