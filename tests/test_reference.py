"""The reference: each public name is there, and its docstring describes each of its arguments."""

import inspect
import re
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest

import shoal
from shoal.options import Options

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))

from option_table import described  # noqa: E402

PAGES = sorted((ROOT / "docs" / "reference").glob("*.md"))


def entries() -> dict[str, list[str] | None]:
    """What the pages show: names, each with the members that come below it (None: all)."""
    shown: dict[str, list[str] | None] = {}
    for page in PAGES:
        for entry in re.split(r"^::: ", page.read_text(), flags=re.M)[1:]:
            name, _, rest = entry.partition("\n")
            assert name not in shown, f"{name} has two places"
            options = re.match(r"(?: {4}.*\n)*", rest)
            listed = re.search(r"members:\s*(false|(?:\[.*?\]|(?:\s+- \w+)+))", options[0], re.S)
            shown[name] = None
            if listed:
                shown[name] = re.findall(r"\w+", listed[1].replace("false", ""))
    return shown


ENTRIES = entries()
# Modules whose objects are described as those of all code are: in prose.
INTERNAL = re.compile(r"shoal\.(core|engine|reporting|testing|simulate\.(spec|log_files))\b")
USERS = [name for name in ENTRIES if not INTERNAL.match(name)]


def test_every_public_name_has_an_entry() -> None:
    assert {f"shoal.{name}" for name in shoal.__all__} <= set(ENTRIES)


@pytest.mark.parametrize("name", ENTRIES)
def test_the_reference_names_what_there_is(name: str) -> None:
    for member in ["", *(ENTRIES[name] or [])]:
        resolve_name(f"{name}.{member}".rstrip("."))


def test_every_method_of_a_study_has_an_entry() -> None:
    methods = {name for name in vars(shoal.Study) if not name.startswith("_")}
    below = {f"shoal.Study.{member}" for member in ENTRIES["shoal.Study"] or []}
    assert {f"shoal.Study.{name}" for name in methods} <= {*ENTRIES, *below}


def callables(name: str) -> Iterator[tuple[str, Any]]:
    """The object of that name, and those below it that the reference shows, if they are called."""
    thing = resolve_name(name)
    members: list[str] = []
    if isinstance(thing, type):
        listed = ENTRIES[name]
        members = [each for each in vars(thing) if each[0] != "_"] if listed is None else listed
    for each in ["", *members]:
        full_name = f"{name}.{each}".rstrip(".")
        found = resolve_name(full_name)
        if callable(found):
            yield full_name, found


def arguments(thing: Any) -> list[str]:
    """The names of what it takes, as a docstring says them."""
    if isinstance(thing, type) and issubclass(thing, BaseException):
        return []
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    found = inspect.signature(thing).parameters.values()
    return [
        stars.get(each.kind, "") + each.name for each in found if each.name not in ("self", "cls")
    ]


@pytest.mark.parametrize("name", USERS)
def test_docstrings_describe_each_argument(name: str) -> None:
    lacking = {}
    for full_name, thing in callables(name):
        listed = list(described(inspect.getdoc(thing) or ""))
        taken = arguments(thing)
        if "Attributes:" not in (thing.__doc__ or "") and listed != taken:
            lacking[full_name] = f"takes {taken}, its docstring has {listed}"
    assert not lacking


def test_options_are_described() -> None:
    assert list(described(Options.__doc__ or "")) == [each.name for each in fields(Options)]


def test_described_reads_what_is_there() -> None:
    text = """What it does.

    Args:
        one: the first,
            which is long: so.
        **others: more.

    Raises:
        ValueError: never.
    """
    assert described(text) == {"one": "the first, which is long: so.", "**others": "more."}
