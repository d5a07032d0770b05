"""The documentation: its pages are there, its links lead somewhere, its commands exist, and its
code runs.
"""

import re
import runpy
from itertools import pairwise
from pathlib import Path
from pkgutil import resolve_name

import pytest
import typer.main
from click import Group, Option

from shoal.cli import app

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = sorted([ROOT / "README.md", *DOCS.rglob("*.md")])
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
COMMANDS = getattr(typer.main.get_command(app), "commands", {})


def blocks(page: Path, language: str) -> list[str]:
    return [text for kind, text in FENCE.findall(page.read_text()) if kind == language]


def options_of(name: str, command: object) -> dict[str, set[str]]:
    """The options of a command, and of those below it, by full name."""
    if isinstance(command, Group) or hasattr(command, "commands"):
        below = command.commands  # type: ignore[attr-defined]
        return {
            k: v
            for sub, each in below.items()
            for k, v in options_of(f"{name} {sub}".strip(), each).items()
        }
    params = command.params  # type: ignore[attr-defined]
    options = [p for p in params if isinstance(p, Option) or p.param_type_name == "option"]
    return {name: {o for p in options for o in (*p.opts, *p.secondary_opts)} - {"--help"}}


def documented() -> dict[str, set[str]]:
    """The commands that docs/cli.md has a heading for, with the options named in their tables."""
    parts = re.split(r"^## shoal ", (DOCS / "cli.md").read_text(), flags=re.M)[1:]
    found = {}
    for part in parts:
        title, _, text = part.partition("\n")
        name = " ".join(
            word for word in title.split() if word.islower() and not word.startswith("[")
        )
        rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("|")]
        found[name] = set(re.findall(r"--[a-z][a-z-]*", " ".join(rows)))
    return found


def test_every_page_in_the_navigation_exists() -> None:
    text = (ROOT / "mkdocs.yml").read_text().partition("\nnav:")[2]
    named = re.findall(r"^\s*- (?:.*?: )?(\S+\.md)$", text, flags=re.M)
    assert named, "the navigation names no page"
    assert not [page for page in named if not (DOCS / page).is_file()]
    there = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}
    decisions = {page for page in there if re.match(r"decisions/\d", page)}
    assert there - decisions == set(named), "pages that no reader finds"
    index = (DOCS / "decisions" / "index.md").read_text()
    assert decisions == {f"decisions/{page}" for page in re.findall(r"\]\((\d\S+)\)", index)}


def test_the_reference_names_what_there_is() -> None:
    names = re.findall(r"^::: (\S+)$", (DOCS / "reference.md").read_text(), flags=re.M)
    assert len(names) > 20
    lost = []
    for name in names:
        try:
            resolve_name(name)
        except (ImportError, AttributeError):
            lost.append(name)
    assert not lost, "docs/reference.md names what has moved"


def test_every_command_and_option_is_documented_and_exists() -> None:
    there, told = options_of("", typer.main.get_command(app)), documented()
    assert set(told) == set(there)
    for name, options in there.items():
        assert told[name] == options, f"shoal {name}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_shown_exist(page: Path) -> None:
    """In every page, also those of the README's table."""
    there = options_of("", typer.main.get_command(app))
    there["slurm script"] |= there["run"]  # which it passes on
    whole_lines = re.findall(r"^\s*shoal ([^\n#]*)$", "\n".join(blocks(page, "")), flags=re.M)
    for shown in whole_lines + re.findall(r"`shoal ([^`]*)`", page.read_text()):
        name = next(
            (n for n in sorted(there, key=len, reverse=True) if f"{shown} ".startswith(f"{n} ")),
            None,
        )
        assert name is not None, f"there is no command: shoal {shown}"
        wrong = set(re.findall(r"(?<!\S)--[a-z][a-z-]*", shown)) - there[name]
        assert not wrong, f"shoal {name} has no {wrong}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_lead_somewhere(page: Path) -> None:
    text = FENCE.sub("", page.read_text())
    links = [
        link for link in re.findall(r"\]\(([^)\s]+)\)", text) if not re.match(r"[a-z]+:|#", link)
    ]
    lost = [link for link in links if not (page.parent / link.partition("#")[0]).exists()]
    assert not lost


RUN = [ROOT / "README.md"]
RUN += [DOCS / f"{page}.md" for page in ("data", "extending", "functions", "shards", "tables")]
RUN += [DOCS / "tutorial.md"]


@pytest.mark.parametrize("page", RUN, ids=lambda page: page.name)
def test_python_shown_runs(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All blocks of a page are one script; what the page shows as its output is what it prints."""
    code = blocks(page, "python")
    assert code
    script = tmp_path / "page.py"
    script.write_text("\n".join(code))
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(script), run_name="__main__")
    printed = capsys.readouterr().out
    fences = pairwise(FENCE.findall(page.read_text()))
    shown = [text for (before, _), (kind, text) in fences if before == "python" and kind == ""]
    for text in shown:
        assert text in printed, f"{page.name} shows {text!r}; printed was {printed[-2000:]!r}"


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.name)
def test_python_shown_is_python(page: Path) -> None:
    for code in blocks(page, "python"):
        compile(code, page.name, "exec")


def test_blocks_of_extending_are_short() -> None:
    """What it takes to write one's own fits in 20 lines.

    Its imports, its check and blank lines do not count.
    """
    for code in blocks(DOCS / "extending.md", "python"):
        for body in re.findall(r"^class .*?(?=^\S|\Z)", code, flags=re.M | re.S):
            lines = [line for line in body.splitlines() if line.strip()]
            assert len(lines) <= 20, body
