"""The documentation: its pages are there, its links lead somewhere, its commands exist, and its
code runs.
"""

import re
import runpy
import tomllib
from itertools import pairwise
from pathlib import Path

import pytest
import typer.main
from click import Group, Option
from page_kit import DOCS, PAGES, ROOT, Fence, fences, without_fences

from shoal.cli import app

COMMANDS = getattr(typer.main.get_command(app), "commands", {})


def blocks(page: Path, language: str) -> list[str]:
    return [each.text for each in fences(page.read_text()) if each.language == language]


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


def for_users() -> list[Path]:
    """The pages of the navigation before those about what is inside."""
    text = (ROOT / "mkdocs.yml").read_text().partition("\nnav:")[2].partition("\n  - Inside:")[0]
    return [DOCS / page for page in re.findall(r"^\s*- (?:.*?: )?(\S+\.md)$", text, flags=re.M)]


def test_llms_txt_has_all_pages_for_users() -> None:
    text = (ROOT / "mkdocs.yml").read_text()
    listed = text.partition("\n      sections:")[2].partition("\nmarkdown_extensions:")[0]
    patterns = re.findall(r"^ +- (\S+\.md)$", listed, flags=re.M)
    pages = [page for pattern in patterns for page in DOCS.glob(pattern)]
    assert sorted(pages) == sorted(for_users())


@pytest.mark.parametrize("page", for_users(), ids=lambda page: str(page.relative_to(DOCS)))
def test_pages_for_users_say_group_model_and_pass(page: Path) -> None:
    """Gang, lane and visit are words of the journal and the code: only as such, or explained."""
    if page.name == "glossary.md":
        return
    text = re.sub(r"\]\([^)]*\)|`[^`]*`|<code>.*?</code>", "", without_fences(page.read_text()))
    assert not re.findall(r"\b(?:gangs?|lanes?|visit(?:s|ed|ing)?)\b", text, flags=re.I)


@pytest.mark.parametrize("page", for_users(), ids=lambda page: str(page.relative_to(DOCS)))
def test_a_page_for_users_soon_shows_something(page: Path) -> None:
    """After at most three sentences on what it is for: code, a table or a picture."""
    if page.parent.name == "reference":
        return
    lines = page.read_text().splitlines()
    at = next((n for n, line in enumerate(lines) if re.match(r"\s*(```|\||!\[|<|:::)", line)), 99)
    assert at < 25, "no code, table or picture in the first 25 lines"
    start = next(n for n, line in enumerate(lines) if line.startswith("# "))
    first = "\n".join(lines[start + 1 :]).strip().split("\n\n")[0]
    assert len(re.findall(r"[.!?](?=\s|$)", first)) <= 3, first


def test_every_command_and_option_is_documented_and_exists() -> None:
    there, told = options_of("", typer.main.get_command(app)), documented()
    assert set(told) == set(there)
    for name, options in there.items():
        assert told[name] == options, f"shoal {name}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_shown_exist(page: Path) -> None:
    """In every page."""
    there = options_of("", typer.main.get_command(app))
    there["slurm script"] |= there["run"]  # which it passes on
    code = [text for language in ("", "bash", "sh") for text in blocks(page, language)]
    lines = "\n".join(code).replace("\\\n", " ")
    whole_lines = re.findall(r"^\s*(?:\w+=\S+ )?shoal ([^\n#]*)", lines, flags=re.M)
    for shown in whole_lines + re.findall(r"`shoal ([^`]*)`", page.read_text()):
        name = next(
            (n for n in sorted(there, key=len, reverse=True) if f"{shown} ".startswith(f"{n} ")),
            None,
        )
        assert name is not None, f"there is no command: shoal {shown}"
        own = re.sub(r"\"[^\"]*\"|'[^']*'", "", shown)  # without those of a quoted command
        wrong = set(re.findall(r"(?<!\S)--[a-z][a-z-]*", own)) - there[name]
        assert not wrong, f"shoal {name} has no {wrong}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_lead_somewhere(page: Path) -> None:
    text = without_fences(page.read_text())
    links = [
        link for link in re.findall(r"\]\(([^)\s]+)\)", text) if not re.match(r"[a-z]+:|#", link)
    ]
    lost = [link for link in links if not (page.parent / link.partition("#")[0]).exists()]
    assert not lost


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_is_said_to_be_above_is_above(page: Path) -> None:
    text = without_fences(page.read_text())
    heads = {
        re.sub(r"[^\w -]", "", head[1]).lower().replace(" ", "-"): head.start()
        for head in re.finditer(r"^#+ (.*)$", text, flags=re.M)
    }
    wrong = [
        link[0]
        for link in re.finditer(r"\[(above|below)\]\(#([^)]+)\)", text)
        if (link[1] == "above") != (heads[link[2]] < link.start())
    ]
    assert not wrong


OUTPUT = ("python", "")  # a block of code, and right behind it what it prints
README = ROOT / "README.md"
URLS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]
SOURCE = URLS["Source"] + "/"
FILES = SOURCE.replace("//github.com/", "//raw.githubusercontent.com/")
SITE = URLS["Documentation"]


def source_of(link: str) -> Path | None:
    """What a link to our own files or pages shows; None: the link goes elsewhere."""
    for begin in (f"{SOURCE}blob/main/", f"{SOURCE}tree/main/", f"{FILES}main/"):
        if link.startswith(begin):
            return ROOT / link.removeprefix(begin)
    if link.startswith(SITE):
        page = link.removeprefix(SITE).partition("#")[0] or "index.html"
        return DOCS / f"{page.removesuffix('.html')}.md"
    owner = SOURCE.split("/")[3]
    return DOCS / "nothing of ours has such an address" if owner in link else None


def test_a_package_page_can_show_the_readme() -> None:
    """Without the repository: each link and picture is absolute, and leads somewhere."""
    links = re.findall(r"\]\(([^)\s]+)\)", without_fences(README.read_text()))
    assert len(links) > 20
    assert not [link for link in links if not link.startswith("https://")]
    lost = [link for link in links if (ours := source_of(link)) and not ours.exists()]
    assert not lost
    assert "<img" not in README.read_text(), "a picture that this test does not see"


def test_pictures_are_small() -> None:
    pictures = [path for path in (DOCS / "assets").iterdir() if path.suffix in {".png", ".svg"}]
    assert {"run.svg", "report.png", "live.png"} <= {path.name for path in pictures}
    assert not [path.name for path in pictures if path.stat().st_size > 300_000]


RUN = [README]
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
    pairs = pairwise(fences(page.read_text()))
    shown = [each.text for before, each in pairs if (before.language, each.language) == OUTPUT]
    for text in shown:
        assert text in printed, f"{page.name} shows {text!r}; printed was {printed[-2000:]!r}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_python_shown_is_python(page: Path) -> None:
    """Every block of every page, those that are parts of a script (`py`), too."""
    assert "```" not in without_fences(page.read_text()), "a fence that nobody reads as one"
    for code in blocks(page, "python") + blocks(page, "py"):
        compile(code, page.name, "exec")


FORMS = """
```python
one = 1
```

=== "Tab"

    ```python title="Optuna"
    two = 2

    if two:
        two = 3
    ```

- in a list

  ```{.py title="Ray Tune" hl_lines="1"}
  three = 3
  ```

````md
```python
no code of this page
```
````

```
printed
```
"""


def test_fences_are_found_in_every_form() -> None:
    assert fences(FORMS) == [
        Fence("python", "", "one = 1\n"),
        Fence("python", "Optuna", "two = 2\n\nif two:\n    two = 3\n"),
        Fence("py", "Ray Tune", "three = 3\n"),
        Fence("md", "", "```python\nno code of this page\n```\n"),
        Fence("", "", "printed\n"),
    ]
    assert "```" not in without_fences(FORMS)
    assert "```" in without_fences("``` python\nwithout an end\n")


def test_blocks_of_extending_are_short() -> None:
    """What it takes to write one's own fits in 20 lines.

    Its imports, its check and blank lines do not count.
    """
    for code in blocks(DOCS / "extending.md", "python"):
        for body in re.findall(r"^class .*?(?=^\S|\Z)", code, flags=re.M | re.S):
            lines = [line for line in body.splitlines() if line.strip()]
            assert len(lines) <= 20, body
