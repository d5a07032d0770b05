"""Messages name pages of the site, for a package brings no docs/."""

import re
import tomllib
from pathlib import Path

from shoal.core.site import SITE, page

ROOT = Path(__file__).parents[2]
CODE = [*(ROOT / "shoal").rglob("*.py")]


def test_the_site_is_that_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["urls"]["Documentation"] == SITE
    assert page("study") == f"{SITE}study.html"
    assert page("study", "going-on") == f"{SITE}study.html#going-on"


def test_no_message_names_a_file_of_a_checkout() -> None:
    """Texts in quotes of one sign are messages; docstrings and comments may name files."""
    said = re.compile(r"""(?<!")"(?!")[^"\n]*docs/[\w/-]+\.md""")
    assert said.search('"see docs/study.md"')
    found = [
        file.name
        for file in CODE
        for line in file.read_text().split("\n")
        if said.search(line) and not line.lstrip().startswith("#")
    ]
    assert not found


def test_pages_that_messages_name_have_these_headings() -> None:
    call = re.compile(r"""[({]page\(['"]([^'"]+)['"](?:, ['"]([^'"]+)['"])?\)""")
    named = {found for file in CODE for found in call.findall(file.read_text())}
    assert len(named) > 4
    for name, heading in named:
        text = (ROOT / "docs" / f"{name}.md").read_text()
        heads = re.findall(r"^#+ (.*)$", text, flags=re.M)
        slugs = {re.sub(r"[^\w\s-]", "", head).strip().lower().replace(" ", "-") for head in heads}
        assert not heading or heading in slugs, f"{name}.md has no heading #{heading}"
