"""Writes what the examples of examples/door print into docs/gallery.md.

    python tools/gallery.py [NAME …]

Each example is run by the command that its docstring shows, in an empty folder; its last lines go
into the page, and so do the lines of code of the example and of its plain loop. Without names, all.
What the page says of an example is written by hand.
"""

import ast
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tokenize
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DOOR = ROOT / "examples" / "door"
PAGE = ROOT / "docs" / "gallery.md"
LAST = ("trials", "best", "time")  # of the lines at a run's end, with those that go on from them


def code_lines(path: Path) -> int:
    """Lines with code on them: neither blank, nor comments, nor docstrings."""
    text = path.read_text()
    lines: set[int] = set()
    silent = (tokenize.NL, tokenize.NEWLINE, tokenize.COMMENT, tokenize.ENCODING)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in (*silent, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER):
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            lines.difference_update(range(node.lineno, (node.end_lineno or 0) + 1))
    return len(lines)


def examples() -> list[str]:
    """The names of all examples."""
    return sorted(path.stem for path in DOOR.glob("*.py"))


def command(name: str) -> str:
    """The command that an example's docstring shows, in one line."""
    prose = ast.get_docstring(ast.parse((DOOR / f"{name}.py").read_text())) or ""
    return " ".join(prose.split("\n\n")[-1].split())


def lengths(name: str) -> str:
    """How many lines an example and its plain loop have, as the page says it."""
    ours, plain = (code_lines(DOOR / where / f"{name}.py") for where in ("", "plain"))
    return f"{ours} lines of code; the plain loop has {plain}."


def last_lines(printed: str) -> str:
    """What the page shows of a run: how many trials, which was best, how long it took."""
    kept, within = [], False
    for line in printed.splitlines():
        within = line.startswith(LAST) or (within and line.startswith(" "))
        if within:
            kept.append(line.rstrip())
    return "\n".join(kept) + "\n"


def run(name: str) -> str:
    """What an example prints, run as its docstring says.

    Raises:
        subprocess.CalledProcessError: it failed.
    """
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(DOOR, Path(folder) / "examples" / "door")
        return subprocess.run(
            ["bash", "-c", command(name)],
            cwd=folder,
            env={**os.environ, "PATH": path},
            capture_output=True,
            text=True,
            check=True,
            timeout=600,
        ).stdout


def section(name: str, text: str) -> re.Match[str]:
    """An example's part of the page: its prose, its length, its command, what it printed.

    Raises:
        LookupError: the page has none.
    """
    found = re.search(
        rf"(?<=^### {name}\n\n)(?P<prose>.+?\n\n)(?P<length>[^\n]*)\n\n"
        r"```bash\n(?P<command>.*?)\n```\n\n```\n(?P<printed>.*?)```$",
        text,
        re.M | re.S,
    )
    if found is None:
        raise LookupError(f"docs/gallery.md has no part on {name}")
    return found


def written(name: str, printed: str, text: str) -> str:
    """The page with what was printed, and with the lengths and the command of today."""
    part = section(name, text)
    new = f"{part['prose']}{lengths(name)}\n\n```bash\n{command(name)}\n```\n\n```\n{printed}```"
    return text[: part.start()] + new + text[part.end() :]


def main(names: list[str]) -> None:
    """Run these examples, or all, and write the page."""
    for name in names or examples():
        PAGE.write_text(written(name, last_lines(run(name)), PAGE.read_text()))
        print(f"{name}: {lengths(name)}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
