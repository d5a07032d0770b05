"""Makes the pictures of README and of the site, docs/assets/, from real runs: `make pictures`.

    python tools/pictures.py                # all of them
    python tools/pictures.py run report     # some: run, report, live

`run.svg` is what `shoal run digits.py` writes to a terminal, at a few moments of the run; who wants
no motion, or has a viewer that shows none, sees the last of them. `report*.png` is that study's
report: its curves, and its first screen (`report-top*.png`). `live*.png` is the live page of a
longer search while it runs. All are in light and in dark colours. It needs Chromium (`apt-get
install chromium`) and the development extras, and a machine that does nothing else: the seconds of
the run are in the picture. Look at what it has made: nothing else does.
"""

from __future__ import annotations

import argparse
import codecs
import fcntl
import json
import os
import pty
import re
import select
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright
from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

ROOT = Path(__file__).resolve().parents[1]
ASSETS = ROOT / "docs" / "assets"
SHOAL = Path(sys.executable).with_name("shoal")
LARGEST = 300_000  # bytes of a picture
COLUMNS = 100
MOMENTS = (0.0, 0.1, 0.35, 0.6, 0.85)  # of a run, in shares of its time; its end comes after them
SECONDS_EACH = 1.0  # that the picture shows a moment
QUIET = 0.03  # seconds without output after which a display is whole
CONTROL = re.compile(r"\x1b\[(\??[\d;]*)([A-Za-z])")
FONT = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'Liberation Mono', monospace"
GREYS = [(120, 128, 146), (226, 230, 238)]
COLOURS = [(240, 98, 110), (126, 211, 143), (230, 190, 95), (110, 160, 245), (200, 140, 235)]
PALETTE = [GREYS[0], *COLOURS, (95, 200, 215), GREYS[1]]
THEME = TerminalTheme((22, 26, 34), (214, 219, 230), PALETTE, PALETTE)
WIDTH = 1280  # of a browser's window

Lines = tuple[str, ...]


class Screen:
    """What a terminal shows of a program that goes back up to write its lines anew.

    It knows what Shoal's display sends and refuses the rest: a picture must not be nearly right.
    """

    def __init__(self, columns: int) -> None:
        self.columns = columns
        self.cells: list[list[str]] = [[]]  # each a character, after its colours
        self.row = self.column = 0
        self.colours = ""

    def write(self, text: str) -> None:
        at = 0
        while at < len(text):
            control = CONTROL.match(text, at)
            if control:
                self._obey(*control.groups())
            else:
                self._put(text[at])
            at = control.end() if control else at + 1

    def lines(self) -> Lines:
        return tuple("".join(line) for line in self.cells)

    def _put(self, character: str) -> None:
        if character == "\r":
            self.column = 0
        elif character == "\n":
            self.row += 1
        else:
            if self.column == self.columns:  # it goes on in the next line
                self.row, self.column = self.row + 1, 0
            line = self._line()
            line.extend([" "] * (self.column - len(line)))
            line[self.column : self.column + 1] = [f"\x1b[0m{self.colours}{character}"]
            self.column += 1
        self._line()

    def _line(self) -> list[str]:
        self.cells.extend([] for _ in range(self.row + 1 - len(self.cells)))
        return self.cells[self.row]

    def _obey(self, figures: str, letter: str) -> None:
        if letter == "m":
            self.colours = "" if figures in ("", "0") else f"{self.colours}\x1b[{figures}m"
        elif letter == "A":
            self.row = max(0, self.row - int(figures or 1))
        elif letter == "K" and figures == "2":
            self.cells[self.row] = []
        elif (letter, figures) not in (("h", "?25"), ("l", "?25")):  # the cursor: not drawn
            raise ValueError(f"the terminal was sent {figures!r}{letter}, which is not known here")


def recorded(arguments: Sequence[str], folder: Path) -> list[tuple[float, Lines]]:
    """What a terminal shows while `shoal` runs with these arguments: seconds, and lines.

    Raises:
        RuntimeError: it failed.
    """
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, COLUMNS, 0, 0))
    environment = os.environ | {"TERM": "xterm-256color", "COLORTERM": "truecolor"}
    for name in ("COLUMNS", "LINES", "NO_COLOR"):
        environment.pop(name, None)
    screen, shown, begin = Screen(COLUMNS), [], time.monotonic()
    with subprocess.Popen(
        [SHOAL, *arguments], cwd=folder, env=environment, stdin=theirs, stdout=theirs, stderr=theirs
    ) as process:
        os.close(theirs)
        decoder, waiting = codecs.getincrementaldecoder("utf-8")(), ""
        while True:
            if waiting and not select.select([ours], [], [], QUIET)[0]:
                screen.write(waiting)
                waiting = ""
                shown.append((time.monotonic() - begin, screen.lines()))
            try:
                waiting += decoder.decode(os.read(ours, 65536))
            except OSError:  # the program has ended
                break
    os.close(ours)
    screen.write(waiting)
    shown.append((time.monotonic() - begin, screen.lines()))
    if process.returncode:
        raise RuntimeError(f"shoal {' '.join(arguments)} ended with {process.returncode}")
    return shown


def moments(shown: Sequence[tuple[float, Lines]]) -> list[Lines]:
    """What is shown at some moments of the time in which anything changed, and at its end."""
    first, last = shown[0][0], shown[-1][0]
    wanted = [first + share * (last - first) for share in MOMENTS]
    chosen = [max((each for each in shown if each[0] <= at), key=lambda e: e[0]) for at in wanted]
    return [lines for _, lines in [*chosen, shown[-1]]]


def drawn(lines: Lines, rows: int, name: str, template: str) -> str:
    """The lines by rich's own drawing, put into the template."""
    console = Console(
        record=True, width=COLUMNS, file=StringIO(), force_terminal=True, color_system="truecolor"
    )
    for line in [*lines, *[""] * (rows - len(lines))]:
        console.print(Text.from_ansi(line), soft_wrap=True)
    return console.export_svg(
        title="", theme=THEME, code_format=template, unique_id=name, font_aspect_ratio=0.6
    )


def animated(frames: Sequence[Lines], command: str) -> str:
    """An SVG that shows the frames one after the other, once, and stays at the last."""
    frames = [(f"\x1b[32m$\x1b[0m \x1b[1m{command}", *frame) for frame in frames]
    rows, last = max(len(frame) for frame in frames), len(frames) - 1
    parts = []
    for at, frame in enumerate(frames):
        styles, content = drawn(frame, rows, f"m{at}", "{styles}\0{backgrounds}{matrix}").split(
            "\0"
        )
        content = re.sub(r' clip-path="[^"]*"', "", content)
        parts.append(f'<g class="moment{at}"><style>{styles}</style>{content}</g>\n')
    width, height, x, y, chrome = drawn(
        frames[-1], rows, "terminal", "{width}\0{height}\0{terminal_x}\0{terminal_y}\0{chrome}"
    ).split("\0")
    begins = [at * SECONDS_EACH for at in range(len(frames))]
    rules = [
        f"text{{font:20px {FONT};white-space:pre}}",
        "@keyframes show{from,to{visibility:visible}}",
        "@keyframes hide{from,to{visibility:hidden}}",
        *(f".moment{at}{{visibility:hidden}}" for at in range(last)),
        "@media (prefers-reduced-motion:no-preference){",
        *(f".moment{at}{{animation:show {SECONDS_EACH}s {begins[at]:.1f}s}}" for at in range(last)),
        f".moment{last}{{animation:hide {begins[last]:.1f}s}}",
        "}",
    ]
    return (
        f'<svg viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg" role="img">'
        f"<title>What `{command}` shows while it runs, and at its end</title>\n"
        f"<style>{''.join(rules)}</style>{chrome}"
        f'<g transform="translate({x},{y})">\n{"".join(parts)}</g></svg>\n'
    )


@contextmanager
def browser() -> Iterator[Any]:
    """Chromium.

    Raises:
        FileNotFoundError: it is not installed.
    """
    chromium = shutil.which("chromium")
    if chromium is None:
        raise FileNotFoundError("there is no chromium here: apt-get install chromium")
    with sync_playwright() as playwright:
        made = playwright.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--disable-gpu"]
        )
        yield made
        made.close()


def photographed(
    address: str, name: str, folder: Path, ready: str, height: int, part: str | None = None
) -> None:
    """A screen of a page, in both colours, once there is what `ready` selects.

    It is the first one, or that which begins with the part of this id.

    What the page calls `folder` is called ~/digits: where it lies on this machine is nobody's
    business.
    """
    with browser() as chromium:
        for scheme, end in (("light", ""), ("dark", "-dark")):
            window = chromium.new_context(
                viewport={"width": WIDTH, "height": height}, color_scheme=scheme
            )
            page = window.new_page()
            page.goto(address)
            page.wait_for_selector(ready)
            for _ in range(2):  # charts are drawn when they come into view, and move what follows
                if part is not None:
                    page.evaluate("part => document.getElementById(part).scrollIntoView()", part)
                page.wait_for_timeout(2000)
            page.evaluate(
                """([before, after]) => {
                  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
                  while (texts.nextNode())
                    texts.currentNode.data = texts.currentNode.data.replaceAll(before, after);
                }""",
                [str(folder), "~/digits"],
            )
            kept(f"{name}{end}.png", packed(page.screenshot()))
            window.close()


def packed(png: bytes) -> bytes:
    """The same picture in less room."""
    small = BytesIO()
    Image.open(BytesIO(png)).convert("RGB").save(small, "PNG", optimize=True)
    return small.getvalue()


def kept(name: str, content: bytes) -> None:
    """Write a picture.

    Raises:
        ValueError: it is too large for a page that shows it.
    """
    if len(content) > LARGEST:
        raise ValueError(f"{name} has {len(content):,} bytes, more than {LARGEST:,}")
    ASSETS.mkdir(parents=True, exist_ok=True)
    (ASSETS / name).write_bytes(content)
    print(f"{ASSETS.relative_to(ROOT) / name}: {len(content):,} bytes")


def run_and_report(folder: Path, wanted: set[str]) -> None:
    """The terminal while a search runs, and the search's report."""
    shown = recorded(["run", "digits.py"], folder)
    if "run" in wanted:
        kept("run.svg", animated(moments(shown), "shoal run digits.py").encode())
    if "report" in wanted:
        address = (folder / "runs/digits/report.html").as_uri()
        photographed(address, "report", folder, "table", 880, "curves")
        photographed(address, "report-top", folder, "table", 760)


def live(folder: Path) -> None:
    """The live page of a search that stops the worse trials early, while it runs."""
    searched = ["--searcher", "asha(grace_period=2)", "--num-samples", "40", "--max-epochs", "54"]
    space = ["--space", "width=choice([64, 128, 256])", "--space", "lr=loguniform(1e-4, 1e-1)"]
    storage = folder / "runs" / "asha"
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    run = subprocess.Popen(
        [SHOAL, "run", "digits.py", "--storage", storage, *searched, *space], cwd=folder, **quiet
    )
    server = None
    try:
        while ended(storage) < 12:
            if run.poll() is not None:
                raise RuntimeError(f"shoal run ended with {run.returncode} before the picture")
            time.sleep(1)
        server = subprocess.Popen(
            [SHOAL, "ui", storage, "--port", "0"], stdout=subprocess.PIPE, text=True
        )
        assert server.stdout is not None
        address = next(line.split(": ", 1)[1] for line in server.stdout if "http://" in line)
        photographed(address.strip(), "live", folder, "#trials[data-ready]", 900)
    finally:
        for process in (run, server):
            if process is not None:
                process.terminate()
                process.wait()


def ended(storage: Path) -> int:
    """How many of a study's trials have ended."""
    if not (storage / "journal.jsonl").is_file():
        return 0
    status = subprocess.run([SHOAL, "status", storage, "--json"], capture_output=True, check=True)
    trials = json.loads(status.stdout)["trials"]
    return int(trials["finished"] + trials["retired"])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pictures", nargs="*", choices=["run", "report", "live", []], default=[])
    wanted = set(parser.parse_args().pictures) or {"run", "report", "live"}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "digits"
        folder.mkdir()
        shutil.copy(ROOT / "examples" / "digits.py", folder)
        if wanted & {"run", "report"}:
            run_and_report(folder, wanted)
        if "live" in wanted:
            live(folder)


if __name__ == "__main__":
    main()
