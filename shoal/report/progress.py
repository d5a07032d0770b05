"""Live progress of a run: a display on a terminal, a few plain lines elsewhere. Subscribes to the engine's moments."""

import sys
from collections import deque
from collections.abc import Iterator
from math import isfinite
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Self, TextIO

from shoal.core.event import Advanced, Entry, Failed, Finished
from shoal.core.state import State
from shoal.core.trial import Samples, Seconds, TrialId
from shoal.report.format import config, count, duration, score
from shoal.report.gantt import natural

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

SLOTS = 8  # lines of slots shown
WINDOW = 60.0  # seconds of the study over which throughput is taken


class Progress:
    """Pass it to `engine.run.run` as a watcher, and close it at the end (or use it in a `with`).

    `stream`: where to write (standard output); a display if that is a terminal. `every`: least seconds between two
    plain lines, but for trials that finish or fail, which have a line each.
    """

    def __init__(
        self,
        metric: str | None = None,
        mode: str = "min",
        stream: TextIO | None = None,
        every: Seconds = 5.0,
        frames: float = 8.0,
    ) -> None:
        self.metric, self.mode = metric, mode
        self.stream = stream or sys.stdout
        self.every, self.pause = every, 1 / frames
        self._made: deque[tuple[Seconds, Samples]] = deque()  # (time of the study, samples trained in this run so far)
        self._total = 0.0
        self._shown = -float("inf")  # by the clock, which only limits how often something is shown
        self._live: Live | None = None
        self._last: tuple[Seconds, State] | None = None
        self._terminal = bool(getattr(self.stream, "isatty", lambda: False)())

    def __call__(self, now: Seconds, entries: tuple[Entry, ...], state: State) -> None:
        self._count(now, entries)
        self._last = now, state
        if not self._terminal:
            self._tell(now, entries, state)
        elif monotonic() - self._shown >= self.pause:
            self._draw(now, state)
        if self._live is not None:
            for entry in entries:
                if isinstance(entry, Failed):  # a line that stays, above the display
                    self._live.console.print(f"{entry.trial} failed: {entry.why}", markup=False, highlight=False, style="red")

    def close(self) -> None:
        """Show the last state and give the terminal back; safe to call twice."""
        last, self._last = self._last, None
        if last is not None and self._terminal:
            self._draw(*last)
        elif last is not None:
            self._write(last[0], self._line(*last))
        if self._live is not None:
            self._live.stop()
            self._live = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    # -- figures -------------------------------------------------------------------------------------------------------

    def _count(self, now: Seconds, entries: tuple[Entry, ...]) -> None:
        for entry in entries:
            if isinstance(entry, Advanced):
                self._total += sum(entry.samples.values())
        self._made.append((now, self._total))
        while len(self._made) > 2 and self._made[1][0] <= now - WINDOW:
            self._made.popleft()

    def rate(self) -> float | None:
        """Samples/s of late, evaluations and switches included; None: not known yet."""
        if not self._made:
            return None
        (start, before), (end, after) = self._made[0], self._made[-1]
        return (after - before) / (end - start) if end > start and after > before else None

    def left(self, state: State) -> Seconds | None:
        """Seconds until the trials known now have their samples, at the present rate; None: not known yet."""
        rate, work = self.rate(), sum(max(0.0, trial.samples - state.done[id_]) for id_, trial in state.trials.items())
        return work / rate if rate else None

    def best(self, state: State) -> tuple[float, TrialId] | None:
        """The best last score and its trial, as the study ranks them."""
        found = [(reached, trial) for trial in state.known if (reached := self._score(state, trial)) is not None]
        choose = max if self.mode == "max" else min
        return choose(found, key=lambda item: item[0], default=None)

    def _score(self, state: State, trial: TrialId) -> float | None:
        if self.metric is None or state.ended.get(trial, "").startswith("failed"):
            return None
        last = next((values[self.metric] for _, values in reversed(state.scores.get(trial, ())) if self.metric in values), None)
        return last if last is not None and isfinite(last) else None

    # -- plain lines ---------------------------------------------------------------------------------------------------

    def _tell(self, now: Seconds, entries: tuple[Entry, ...], state: State) -> None:
        for entry in entries:
            if isinstance(entry, Finished):
                reached = self._score(state, entry.trial)
                told = f": {self.metric} {score(reached)}" if reached is not None else ""
                self._write(now, f"{entry.trial} finished{told}")
            elif isinstance(entry, Failed):
                self._write(now, f"{entry.trial} failed: {entry.why}")
        if monotonic() - self._shown >= self.every:
            self._shown = monotonic()
            self._write(now, self._line(now, state))

    def _line(self, now: Seconds, state: State) -> str:
        best, rate, left = self.best(state), self.rate(), self.left(state)
        parts = [
            ", ".join(_counts(state)),
            f"{count(rate)} samples/s" if rate else "",
            f"best {self.metric} {score(best[0])} ({best[1]})" if best else "",
            f"about {duration(left)} left" if left else "",
        ]
        return "; ".join(part for part in parts if part)

    def _write(self, now: Seconds, text: str) -> None:
        self.stream.write(f"[{duration(now):>10}] {text}\n")
        self.stream.flush()

    # -- the display ---------------------------------------------------------------------------------------------------

    def _draw(self, now: Seconds, state: State) -> None:
        from rich.console import Console
        from rich.live import Live

        self._shown = monotonic()
        picture = self.picture(now, state)
        if self._live is None:
            self._live = Live(picture, console=Console(file=self.stream), auto_refresh=False)
            self._live.start()
        self._live.update(picture, refresh=True)

    def picture(self, now: Seconds, state: State) -> "RenderableType":
        """The display as a rich renderable."""
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        asked = sum(trial.samples for trial in state.known.values()) or 1.0
        left = sum(max(0.0, trial.samples - state.done[id_]) for id_, trial in state.trials.items())
        top = Table.grid(padding=(0, 2))
        remaining = self.left(state)
        timing = duration(now) + (f", about {duration(remaining)} left" if remaining else "")
        top.add_row(ProgressBar(total=asked, completed=asked - left, width=40), f"{100 * (1 - left / asked):.0f} %", timing)
        facts = Table.grid(padding=(0, 2))
        facts.add_row(Text("trials", "dim"), Text(", ".join(_counts(state))))
        if rate := self.rate():
            facts.add_row(Text("speed", "dim"), Text(f"{count(rate)} samples/s"))
        if best := self.best(state):
            told = Text.assemble((f"{self.metric} {score(best[0])}", "bold green"), f"  {best[1]}  ")
            facts.add_row(Text("best", "dim"), told + Text(config(state.known[best[1]].config, 70)))
        for name, what in self._slots(state):
            facts.add_row(Text(name, "dim"), Text(what, no_wrap=True, overflow="ellipsis"))
        return Group(top, facts)

    def _slots(self, state: State) -> Iterator[tuple[str, str]]:
        names = sorted(state.slots, key=natural)
        for name in names[:SLOTS]:
            gang = state.busy.get(name)
            trials = [] if gang is None else [lane.trial for lane in gang.lanes if name in lane.slots]
            shards = f"  on {', '.join(gang.shards)}" if gang is not None and gang.shards else ""
            yield name, "; ".join(self._doing(state, trial) for trial in trials) + shards if trials else "–"
        if len(names) > SLOTS:
            busy = sum(name in state.busy for name in names[SLOTS:])
            yield "…", f"{len(names) - SLOTS} more slots, {busy} at work"

    def _doing(self, state: State, trial: TrialId) -> str:
        done = 100 * state.done[trial] / state.known[trial].samples
        reached = self._score(state, trial)
        told = f"  {self.metric} {score(reached)}" if reached is not None else ""
        return f"{trial}  {min(done, 100):3.0f} %{told}"


def _counts(state: State) -> list[str]:
    """Trials done, running, waiting, failed."""
    failed = sum(how.startswith("failed") for how in state.ended.values())
    running = sum(trial in state.trials for trial in state.running)
    counts = {"running": running, "waiting": len(state.trials) - running, "failed": failed}
    done = f"{len(state.ended) - failed} of {len(state.known)} done"
    return [done, *(f"{n} {what}" for what, n in counts.items() if n)]
