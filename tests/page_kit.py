"""What tests read in the pages of the documentation: their fences of code."""

import re
import textwrap
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = sorted([ROOT / "README.md", *DOCS.rglob("*.md")])
# At any indent, as within a tab, a list or an admonition, and with attributes behind the language.
FENCE = re.compile(r"^([ \t]*)(`{3,})([^`\n]*)\n(.*?)^\1\2[ \t]*$", re.M | re.S)


class Fence(NamedTuple):
    """One fence: its language ("" where none is named), its title, and its text without indent."""

    language: str
    title: str
    text: str


def fences(text: str) -> list[Fence]:
    """The fences of a page, in their order."""
    found = []
    for _, _, info, code in FENCE.findall(text):
        # `python`, `python title="Optuna"`, `{.python title="Optuna"}`
        words = info.strip().strip("{}").split()
        language = words[0].lstrip(".") if words and "=" not in words[0] else ""
        title = re.search(r"title=\"([^\"]*)\"", info)
        found.append(Fence(language, title[1] if title else "", textwrap.dedent(code)))
    return found


def without_fences(text: str) -> str:
    """The prose of a page."""
    return FENCE.sub("", text)
