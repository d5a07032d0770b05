"""Live progress of a run: a display on a terminal or in a notebook, plain lines elsewhere.

It subscribes to the engine's moments.
"""

import sys
from collections.abc import Iterator
from math import inf
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Self, TextIO

from shoal.core.cluster import SlotId
from shoal.core.event import Entry, Failed, Joined, Left
from shoal.core.state import State
from shoal.core.trial import Samples, Seconds, TrialId
from shoal.reporting.facts.bars import natural
from shoal.reporting.facts.format import DASH, config, duration, printable, score
from shoal.reporting.live.notebook import NotebookDisplay, in_notebook
from shoal.reporting.live.scores import Aim, Ends, Scores
from shoal.reporting.live.stream import write_line
from shoal.reporting.live.work import RecentSpeed, WorkAhead, counts

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live
    from rich.table import Table
    from rich.text import Text

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

    def tell(self, now: Seconds, text: str) -> None:
        """What the run waits for before its first moment: a line at once, also on a terminal."""
        if self._notebook is not None:
            self._notebook.show(text)
        else:
            self._write(now, text)

    def close(self) -> None:
        """Show the last state and give the terminal back; safe to call twice."""
        if self._last is not None:
            now, state = self._last
            self._last = None
            self._over = True
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

    def _speed_text(self) -> str:
        """Of late, and at the end that of all the run, which the study's summary has, too."""
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
                there = sorted(entry.slots & self._nodes.keys(), key=natural)
                for slot in there:
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
        if monotonic() - self._shown >= self.every:
            self._shown = monotonic()
            self._write(now, self._line(now, state))

    def _line(self, now: Seconds, state: State) -> str:
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
        facts.add_row(Text("trials", "dim"), Text(", ".join(counts(state))))
        if speed := self._speed_text():
            facts.add_row(Text("speed", "dim"), Text(speed))
        best = self.best(state)
        if best is not None:
            facts.add_row(Text("best", "dim"), self._best_text(state, *best))
        # When the run is over, no slot is at work, whatever it was at when it was interrupted.
        for name, what in () if self._over else self._slots(state):
            doing = Text(printable(what), no_wrap=True, overflow="ellipsis")
            facts.add_row(Text(name, "dim"), doing)
        return facts

    def _best_text(self, state: State, reached: float, trial: TrialId) -> "Text":
        """The best trial in one line."""
        from rich.text import Text

        best = Text(f"{self._scores.metric} {score(reached)}", "bold green")
        values = config(state.known[trial].config, 70)
        return Text.assemble(best, printable(f"  {trial}  {values}"))

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
        reached = self._scores.text(state, trial, before="  ")
        return f"{trial}  {self._work.done_text(state, trial)}{reached}"
