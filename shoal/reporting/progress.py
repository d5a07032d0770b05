"""Live progress of a run: a display on a terminal or in a notebook, plain lines elsewhere.

It subscribes to the engine's moments.
"""

import os
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from math import inf, isfinite
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TextIO

from shoal.core.cluster import SlotId
from shoal.core.event import Advanced, Entry, Failed, Finished
from shoal.core.state import State
from shoal.core.trial import Samples, Seconds, Trial, TrialId
from shoal.reporting.facts.bars import natural
from shoal.reporting.facts.format import DASH, config, count, duration, score
from shoal.reporting.notebook import NotebookDisplay, in_notebook

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live
    from rich.table import Table
    from rich.text import Text

Entries = tuple[Entry, ...]

SLOTS = 8  # lines of slots shown
WINDOW = 60.0  # seconds of the study over which throughput is taken


class Progress:
    """Pass it to `engine.run.run` as a watcher, and close it at the end (or use it in a `with`).

    `stream`: where to write (standard output); a display if that is a terminal; without a stream
    the display of a notebook, in its kernel. `every`: least
    seconds between two plain lines, but for trials that finish or fail, which have a line each.
    `endless`: the trials are functions, whose samples are reports. Those that are to make so many
    end by themselves, nobody knows when. `aim`: metric and mode of a trial's configuration.
    """

    def __init__(
        self,
        metric: str | None = None,
        mode: str = "min",
        stream: TextIO | None = None,
        every: Seconds = 5.0,
        frames: float = 8.0,
        endless: Samples | None = None,
        aim: Callable[[Any], tuple[str | None, str]] | None = None,
    ) -> None:
        self.metric = metric
        self.mode = mode
        self._aim = aim or (lambda config: (metric, mode))
        self.stream = stream or sys.stdout
        self.every = every
        self.pause = 1 / frames
        self._work = WorkAhead(endless)
        self._speed = RecentSpeed()
        # When something was last shown, by the clock, which only limits how often that happens.
        self._shown = -inf
        self._live: Live | None = None
        self._last: tuple[Seconds, State] | None = None
        self._terminal = bool(getattr(self.stream, "isatty", lambda: False)())
        self._notebook: NotebookDisplay | None = None
        if stream is None and in_notebook():
            self._notebook = NotebookDisplay()
            self._terminal = True

    def __call__(self, now: Seconds, entries: Entries, state: State) -> None:
        """Show what a moment of the engine brought."""
        self._speed.take(now, entries)
        self._last = now, state
        if not self._terminal:
            self._say(now, entries, state)
        elif monotonic() - self._shown >= self.pause:
            self._draw(now, state)
        self._keep_failures(entries)

    def close(self) -> None:
        """Show the last state and give the terminal back; safe to call twice."""
        if self._last is not None:
            now, state = self._last
            self._last = None
            if self._terminal:
                self._draw(now, state)
            else:
                self._write(now, self._line(now, state))
        if self._live is not None:
            self._live.stop()
            self._live = None

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

    def left(self, state: State) -> Seconds | None:
        """Seconds until the trials known now have their samples, at the present rate.

        None: not known yet, or not at all.
        """
        return self._work.left(state, self.rate())

    def best(self, state: State) -> tuple[float, TrialId] | None:
        """The best last score and its trial, as the study ranks them."""
        found: list[tuple[float, TrialId]] = []
        for trial in state.known if self.metric else ():
            reached = self._score(state, trial)
            if reached is not None:
                found.append((reached, trial))
        if self.mode == "max":
            return max(found, key=_score_of, default=None)
        return min(found, key=_score_of, default=None)

    def _score(self, state: State, trial: TrialId) -> float | None:
        """The trial's last score; None if it has none, is not finite, or the trial failed."""
        metric, _ = self._aim(state.known[trial].config)
        if metric is None or state.ended.get(trial, "").startswith("failed"):
            return None
        for _, values in reversed(state.scores.get(trial, ())):
            if metric in values:
                last = values[metric]
                return last if isfinite(last) else None
        return None

    def _score_text(self, state: State, trial: TrialId, before: str) -> str:
        """The trial's last score with the metric's name, or nothing if it has none."""
        reached = self._score(state, trial)
        if reached is None:
            return ""
        metric, _ = self._aim(state.known[trial].config)
        return f"{before}{metric} {score(reached)}"

    # -- plain lines -------------------------------------------------------------------------------

    def _say(self, now: Seconds, entries: Entries, state: State) -> None:
        """A line for each trial that is over, and one of the whole study now and then."""
        for entry in entries:
            if isinstance(entry, Finished):
                reached = self._score_text(state, entry.trial, before=": ")
                self._write(now, f"{entry.trial} finished{reached}")
            elif isinstance(entry, Failed):
                self._write(now, f"{entry.trial} failed: {entry.why}")
        if monotonic() - self._shown >= self.every:
            self._shown = monotonic()
            self._write(now, self._line(now, state))

    def _line(self, now: Seconds, state: State) -> str:
        """The study in one line."""
        parts = [", ".join(_counts(state))]
        rate = self.rate()
        if rate:
            parts.append(self._work.rate_text(rate))
        best = self.best(state)
        if best is not None:
            reached, trial = best
            parts.append(f"best {self.metric} {score(reached)} ({trial})")
        left = self.left(state)
        if left:
            parts.append(f"about {duration(left)} left")
        return "; ".join(parts)

    def _write(self, now: Seconds, text: str) -> None:
        """A line with the time of the study."""
        _write_line(self.stream, f"[{duration(now):>10}] {text}\n")

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
            console = Console(file=self.stream)
            self._live = Live(picture, console=console, auto_refresh=False)
            self._live.start()
        self._live.update(picture, refresh=True)

    def _keep_failures(self, entries: Entries) -> None:
        """A line above the display for each trial that failed; it stays there."""
        if self._live is None:
            return
        for entry in entries:
            if isinstance(entry, Failed):
                line = f"{entry.trial} failed: {entry.why}"
                self._live.console.print(
                    line, markup=False, highlight=False, style="red"
                )

    def picture(self, now: Seconds, state: State) -> "RenderableType":
        """The display as a rich renderable."""
        from rich.console import Group

        return Group(self._bar(now, state), self._facts(state))

    def _bar(self, now: Seconds, state: State) -> "Table":
        """How much of the work is done, and how long it took and will take."""
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        asked, left = self._work.amount(state)
        timing = duration(now)
        remaining = self.left(state)
        if remaining:
            timing += f", about {duration(remaining)} left"

        bar = ProgressBar(total=asked, completed=asked - left, width=40)
        table = Table.grid(padding=(0, 2))
        table.add_row(bar, f"{100 * (1 - left / asked):.0f} %", timing)
        return table

    def _facts(self, state: State) -> "Table":
        """The figures of the study, and what each slot does."""
        from rich.table import Table
        from rich.text import Text

        facts = Table.grid(padding=(0, 2))
        facts.add_row(Text("trials", "dim"), Text(", ".join(_counts(state))))
        rate = self.rate()
        if rate:
            facts.add_row(Text("speed", "dim"), Text(self._work.rate_text(rate)))
        best = self.best(state)
        if best is not None:
            facts.add_row(Text("best", "dim"), self._best_text(state, *best))
        for name, what in self._slots(state):
            doing = Text(what, no_wrap=True, overflow="ellipsis")
            facts.add_row(Text(name, "dim"), doing)
        return facts

    def _best_text(self, state: State, reached: float, trial: TrialId) -> "Text":
        """The best trial in one line."""
        from rich.text import Text

        best = Text(f"{self.metric} {score(reached)}", "bold green")
        values = config(state.known[trial].config, 70)
        return Text.assemble(best, f"  {trial}  ", values)

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
        text = "; ".join(self._doing(state, trial) for trial in trials)
        if gang.shards:
            text += f"  on {', '.join(gang.shards)}"
        return text

    def _doing(self, state: State, trial: TrialId) -> str:
        """How far the trial is, and its score."""
        reached = self._score_text(state, trial, before="  ")
        return f"{trial}  {self._work.done_text(state, trial)}{reached}"


def _write_line(stream: TextIO, text: str) -> None:
    """Write the line; nothing once nobody reads any more."""
    try:
        stream.write(text)
        stream.flush()
    except BrokenPipeError:
        into_nothing(stream)


def into_nothing(stream: TextIO) -> None:
    """What is written from now on goes nowhere: the reader, as `head`, closed the pipe."""
    with suppress(OSError):  # one without a file of the system's has nothing to close
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, stream.fileno())
        os.close(nothing)


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
        asked = sum(trial.samples for trial in state.known.values())
        return asked or 1.0, _samples_left(state)

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
    """Samples a second over the last `WINDOW` seconds of the study."""

    def __init__(self) -> None:
        # Times of the study, with the samples trained in this run until then.
        self._made: deque[tuple[Seconds, Samples]] = deque()
        self._total = 0.0

    def take(self, now: Seconds, entries: Entries) -> None:
        """Count what these entries report."""
        for entry in entries:
            if isinstance(entry, Advanced):
                self._total += sum(entry.samples.values())
        self._made.append((now, self._total))
        while len(self._made) > 2 and self._made[1][0] <= now - WINDOW:
            self._made.popleft()

    def rate(self) -> float | None:
        """None: it is not known yet."""
        if not self._made:
            return None
        start, before = self._made[0]
        end, after = self._made[-1]
        if end <= start or after <= before:
            return None
        return (after - before) / (end - start)


def _score_of(found: tuple[float, TrialId]) -> float:
    """What the best is chosen by."""
    return found[0]


def _samples_left(state: State) -> Samples:
    """Samples that the trials known now are still to train."""
    left = 0.0
    for id_, trial in state.trials.items():
        left += max(0.0, trial.samples - state.done[id_])
    return left


def _counts(state: State) -> list[str]:
    """Trials done, running, waiting, failed."""
    failed = sum(how.startswith("failed") for how in state.ended.values())
    running = sum(trial in state.trials for trial in state.running)
    counts = {
        "running": running,
        "waiting": len(state.trials) - running,
        "failed": failed,
    }
    parts = [f"{len(state.ended) - failed} of {len(state.known)} done"]
    for what, trials in counts.items():
        if trials:
            parts.append(f"{trials} {what}")
    return parts
