"""Texts in CSV files that people open in a spreadsheet, which takes some of them for formulas."""

import re
from collections.abc import Iterable
from typing import Any

# What a spreadsheet takes for a formula, or may once it has left out what stands before it.
_FORMULA = re.compile("'*(\\s*[=+\\-@\uff1d\uff0b\uff0d\uff20]|[\t\r\n])")
_NUMBER = re.compile(r"[+-]?((\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|inf|nan)", re.ASCII | re.IGNORECASE)


def cell(value: Any) -> Any:
    """What to write for a value: with a ' in front if it is a text that begins like a formula.

    Numbers stay as they are, also as texts.
    """
    if value is None or isinstance(value, int | float):
        return value
    text = str(value)
    if _FORMULA.match(text) and not _NUMBER.fullmatch(text):
        return f"'{text}"
    return text


def cells(values: Iterable[Any]) -> list[Any]:
    """A row of them."""
    return [cell(value) for value in values]


def text_of(written: str) -> str:
    """The text that `cell` has written so."""
    if written.startswith("'") and _FORMULA.match(written[1:]):
        return written[1:]
    return written
