"""What docs/reference/ says of arguments: read from docstrings, and the table of options.

`figures.py` puts the table into the page, as it does with the tables of results.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from dataclasses import Field, fields

from shoal.options import Options

SECTIONS = ("Args:", "Attributes:")
HEADS = ("Name", "Type", "Description", "Default", "Must be, else StudyError")


def described(docstring: str) -> dict[str, str]:
    """The arguments or attributes that a docstring describes, each with its text."""
    found: dict[str, list[str]] = {}
    within, name = False, ""
    for line in inspect.cleandoc(docstring).splitlines():
        if not line.startswith(" "):
            within = line in SECTIONS if line else within
        elif within and (start := re.match(r"    (\*{0,2}\w+): (.*)", line)):
            name = start[1]
            found[name] = [start[2]]
        elif within:
            found[name].append(line.strip())
    return {name: " ".join(lines) for name, lines in found.items()}


def options_table() -> str:
    """The options of `Study.optimize`, one a row."""
    meanings, types = described(Options.__doc__ or ""), _types()
    rows = [
        [f"`{each.name}`", types[each.name], meaning, f"`{each.default!r}`", _rules(each)]
        for each in fields(Options)
        for meaning in [_meaning(each, meanings[each.name])]
    ]
    lines = [HEADS, ["---"] * len(HEADS), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def _types() -> dict[str, str]:
    """The types of the options; of a word that a value may be, the word."""
    (made,) = ast.parse(textwrap.dedent(inspect.getsource(Options))).body
    assert isinstance(made, ast.ClassDef)
    return {
        node.target.id: f"<code>{_type(ast.unparse(node.annotation))}</code>"
        for node in made.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }


def _type(annotation: str) -> str:
    """The annotation, where it may stand in a table."""
    return re.sub(r"Literal\[(.*?)\]", r"\1", annotation).replace("|", "&#124;")


def _meaning(option: Field[object], text: str) -> str:
    """The option's text, with the only backend that uses it."""
    backend = option.metadata["backend"]
    text = re.sub(r"\bNone:", "`None`:", text)
    return f"{text} Backend `{backend}` only." if backend else text


def _rules(option: Field[object]) -> str:
    """What a value must be, in the words of the error."""
    kind = option.metadata["kind"]
    return "; ".join(words for words, _ in (*([kind] if kind else []), *option.metadata["rules"]))
