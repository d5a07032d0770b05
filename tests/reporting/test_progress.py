"""What is shown while a study runs."""

import io
import re
import sys
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from shoal.core.cluster import Slot, SlotId
from shoal.core.event import (
    Advanced,
    Commanded,
    Entry,
    Failed,
    Finished,
    Joined,
    Left,
    Opened,
    Submitted,
)
from shoal.core.fold import fold
from shoal.core.state import State
from shoal.core.trial import Trial, TrialId
from shoal.engine.journal import Line
from shoal.reporting import Progress, status_lines, summary
from shoal.reporting.progress import write_line


def moments(lines: list[Line], see: Callable[[float, tuple[Entry, ...], State], None]) -> State:
    state, at = State(), 0.0
    noted: list[Entry] = []
    for time, entry in [*lines, Line(float("inf"), lines[0].entry)]:
        if time != at:
            state = fold(state, noted)
            see(at, tuple(noted), state)
            at, noted = time, []
        noted.append(entry)
    return state


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_plain_lines_for_trials_that_end_and_otherwise_few(hopping: list[Line]) -> None:
    stream = io.StringIO()
    with Progress("accuracy", "max", stream, every=3600) as progress:
        moments(hopping, progress)
    assert stream.getvalue().splitlines() == [
        "[       0 s] 0 of 2 done, 2 running",
        "[       5 s] x finished: accuracy 0.90000",
        "[       6 s] y finished: accuracy 0.80000",
        "[       6 s] 2 of 2 done; 66.7 samples/s; best accuracy 0.90000 (x)",
    ]


def test_the_end_is_told_once(hopping: list[Line]) -> None:
    stream = io.StringIO()
    with Progress("accuracy", "max", stream, every=0) as progress:
        moments(hopping, progress)
    assert stream.getvalue().count("2 of 2 done") == 1


@pytest.mark.parametrize("terminal", [False, True])
@pytest.mark.parametrize(
    ("why", "said"),
    [
        ("SIGINT", "stopped by Ctrl-C"),
        ("timeout", "stopped by its time limit"),
        ("", "stopped on request"),
        ("Slurm job 7 ends at 14:05:00", "stopped: Slurm job 7 ends at 14:05:00"),
    ],
)
def test_a_run_that_was_stopped_says_so_last(
    hopping: list[Line], why: str, said: str, terminal: bool
) -> None:
    stream = Terminal() if terminal else io.StringIO()
    stop = Line(3.0, Commanded("stop", why))
    with Progress("accuracy", "max", stream) as progress:
        moments([*(line for line in hopping if line.time <= 3.0), stop], progress)
    last = stream.getvalue().splitlines()[-1]
    assert last.endswith(f"{said}: 0 of 2 trials are done; run it again to go on")


def test_the_last_line_and_the_summary_have_one_speed(hopping: list[Line]) -> None:
    """It leaves out the time until the first slots were there, as while Ray started."""
    opened, *others = hopping
    assert isinstance(opened.entry, Opened)
    late = [opened, *(Line(line.time + 90.0, line.entry) for line in others)]
    stream = io.StringIO()
    with Progress("accuracy", "max", stream, every=3600) as progress:
        moments(late[1:], lambda now, *what: progress(now, *what) if now else None)
    assert "; 66.7 samples/s;" in stream.getvalue().splitlines()[-1]
    lines = status_lines(summary(late))
    assert "samples  400, 66.7 a second" in lines
    assert "time     96 s, 90 s of it until slots were open" in lines


def test_while_it_runs_the_speed_is_of_the_last_minute() -> None:
    stream = io.StringIO()
    trial = Trial(TrialId("t"), 10000.0)
    state = fold(State(), [Submitted(trial)])
    with Progress(stream=stream, every=0) as progress:
        for now in range(0, 180, 30):
            made = Advanced({trial.id: 300.0 if now < 90 else 600.0})
            state = fold(state, [made])
            progress(float(now), (made,), state)
    said = stream.getvalue()
    assert "10 samples/s;" in said, "as yet it is of all the run"
    assert "20 samples/s in the last minute;" in said
    assert said.splitlines()[-1].endswith("18 samples/s; about 6 min 05 s left")


def test_a_failed_trial_has_a_line_with_why(doomed: list[Line]) -> None:
    stream = io.StringIO()
    with Progress("accuracy", "max", stream, every=3600) as progress:
        moments(doomed, progress)
    assert "[       1 s] x failed: ValueError: <img src=http://evil/> & co" in stream.getvalue()
    assert stream.getvalue().endswith("0 of 2 done, 2 failed\n")


def test_figures(hopping: list[Line]) -> None:
    progress = Progress("accuracy", "max", io.StringIO())
    state = moments([line for line in hopping if line.time <= 3.0], progress)
    assert progress.rate() == pytest.approx(200 / 3)
    assert progress.left(state) == pytest.approx(3.0)
    assert progress.best(state) is None
    state = moments(hopping, Progress("accuracy", "max", io.StringIO()))
    assert progress.best(state) == (0.9, "x")
    assert Progress("accuracy", "min").best(state) == (0.8, "y")


def test_a_trial_that_failed_is_not_the_best(hopping: list[Line]) -> None:
    state = moments(
        [line for line in hopping if not isinstance(line.entry, Finished)], lambda *_: None
    )
    assert Progress("accuracy", "max").best(fold(state, [Failed(TrialId("x"), "boom")])) == (
        0.8,
        "y",
    )


def test_nothing_is_known_before_anything_happened() -> None:
    progress = Progress()
    assert progress.rate() is None
    assert progress.left(State()) is None
    progress.close()


def test_without_a_metric_there_is_no_best(hopping: list[Line]) -> None:
    stream = io.StringIO()
    with Progress(stream=stream, every=0) as progress:
        moments(hopping, progress)
    assert "best" not in stream.getvalue()
    assert "[       5 s] x finished\n" in stream.getvalue()


def on_screen(written: str, columns: int) -> list[str]:
    """The lines that a terminal shows after all this."""
    screen: dict[int, list[str]] = {}
    row = column = 0
    for piece in re.findall(r"\x1b\[[?0-9;]*[A-Za-z]|.", written, re.DOTALL):
        if piece == "\r":
            column = 0
        elif piece == "\n":
            row, column = row + 1, 0
        elif piece == "\x1b[2K":
            screen.pop(row, None)
        elif piece.endswith("A") and piece.startswith("\x1b["):
            row -= int(piece[2:-1] or 1)
        elif not piece.startswith("\x1b"):
            if column == columns:
                row, column = row + 1, 0
            line = screen.setdefault(row, [])
            line[column:] = [*" " * max(0, column - len(line)), piece]
            column += 1
    return ["".join(screen.get(number, "")).rstrip() for number in range(row + 1)]


@pytest.mark.parametrize("presses", [0, 1, 2])
def test_ctrl_c_leaves_no_stale_frame(
    hopping: list[Line], monkeypatch: pytest.MonkeyPatch, presses: int
) -> None:
    """The terminal writes "^C" at the cursor, here at the end of a line that is full."""
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "30")
    stream = Terminal()
    progress = Progress("accuracy", "max", stream, frames=1e9)
    moments([line for line in hopping if line.time <= 4.0], progress)
    stream.write("^C" * presses)
    progress.close()
    shown = on_screen(stream.getvalue(), 30)
    assert sum(" %" in line for line in shown) == 1, shown
    assert not any(" on d" in line or "^C" in line for line in shown), shown


def test_in_a_kernel_frames_replace_each_other(
    hopping: list[Line], monkeypatch: pytest.MonkeyPatch
) -> None:
    """There, rich alone would show an output for each."""
    shown: list[str] = []

    class Handle:
        def update(self, data: Mapping[str, str], raw: bool) -> None:
            shown[-1] = data["text/plain"]

    def display(*data: Any, **_: Any) -> Handle:
        shown.append(str(data))
        return Handle()

    module = SimpleNamespace(display=display)
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    monkeypatch.setattr("rich.jupyter.display", lambda *_: shown.append("by rich"))
    monkeypatch.setattr("shoal.reporting.progress.in_notebook", lambda: True)
    progress = Progress("accuracy", "max", frames=1e9)
    moments(hopping, progress)
    progress.close()
    assert len(shown) == 1 and "2 of 2 done" in shown[0]


def test_a_terminal_gets_a_display_that_is_closed(
    hopping: list[Line], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    stream = Terminal()
    progress = Progress("accuracy", "max", stream, frames=1e9)
    moments(hopping, progress)
    assert progress._live is not None
    progress.close()
    progress.close()
    text = stream.getvalue()
    assert "\x1b[?25l" in text
    assert text.rstrip().endswith("\x1b[?25h")
    for wanted in (
        "trials",
        "1 of 2 done, 1 running",
        "samples/s",
        "accuracy 0.90000",
        "lr=0.1, width=64",
        "on d1",
        "100 %",
    ):
        assert wanted in text, wanted


def test_no_time_is_left_of_trials_that_end_by_themselves(hopping: list[Line]) -> None:
    from rich.console import Console

    stream, out = io.StringIO(), io.StringIO()
    progress = Progress("accuracy", "max", stream, every=0, endless=1)
    half = hopping[: len(hopping) // 2]
    state = moments(half, progress)
    assert progress.rate() and progress.left(state) is None
    assert "reports/s" in stream.getvalue() and "samples" not in stream.getvalue()
    Console(file=out, width=100).print(progress.picture(3.0, state))
    assert "reports" in out.getvalue() and "left" not in out.getvalue()


def test_a_failure_stays_above_the_display(
    doomed: list[Line], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    stream = Terminal()
    with Progress("accuracy", "max", stream, frames=1e9) as progress:
        moments(doomed, progress)
    assert "x failed: ValueError: <img src=http://evil/> & co" in stream.getvalue()


def test_what_is_awaited_before_the_first_moment_has_a_line_at_once() -> None:
    for stream in (io.StringIO(), Terminal()):
        Progress(stream=stream).tell(2.0, "Starting Ray …")
        assert stream.getvalue() == "[       2 s] Starting Ray …\n"


def test_a_line_needs_no_stream_that_takes_it() -> None:
    narrow = io.TextIOWrapper(io.BytesIO(), encoding="ascii", write_through=True)
    write_line(narrow, "größe 3\n")
    assert narrow.buffer.getvalue() == b"gr\\xf6\\xdfe 3\n"
    write_line(None, "nobody")
    closed = io.StringIO()
    closed.close()
    write_line(closed, "nobody")
    with open("/dev/full", "w") as full:
        write_line(full, "no room\n")
        write_line(full, "nowhere\n")


def test_many_slots_are_counted_not_listed() -> None:
    from rich.console import Console

    slots = {SlotId(f"s{n}"): Slot(SlotId(f"s{n}")) for n in range(12)}
    out = io.StringIO()
    Console(file=out, width=100).print(Progress().picture(3.0, State(slots=slots)))
    assert "s7" in out.getvalue()
    assert "s8" not in out.getvalue()
    assert "4 more slots, 0 at work" in out.getvalue()


@pytest.mark.parametrize("stream", [io.StringIO(), Terminal()], ids=["file", "tty"])
def test_slots_that_die_are_told_at_once_with_their_node(
    stream: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slots that leave in good order are not."""
    monkeypatch.setenv("TERM", "xterm-256color")
    slots = [Slot(SlotId(f"s{n}"), node="ab"[n % 2]) for n in range(4)]
    lines: list[Entry] = [
        Joined(tuple(slots)),
        Left(frozenset((slots[0].id,)), died=False),
        Left(frozenset((slots[3].id, slots[1].id)), died=True),
    ]
    with Progress(stream=stream, every=3600, frames=1e9) as progress:
        moments([Line(float(n), line) for n, line in enumerate(lines)], progress)
    assert stream.getvalue().count("died") == 1
    assert "s1, s3 at b died; slots left: 1" in stream.getvalue()
