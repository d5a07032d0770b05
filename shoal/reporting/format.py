"""Figures as people read them."""

import html
import re
from collections.abc import Callable, Iterable, Mapping
from math import isfinite, log10
from typing import Any

from shoal.core.masking import masked_config, without_passwords
from shoal.core.trial import Seconds

DASH = "–"
# What a terminal acts upon; what turns the direction of writing; what takes no room, so that two
# names look alike; and halves of characters.
UNSEEN = re.compile(
    "[\0-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f"
    "\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ud800-\udfff\ufe00-\ufe0f\ufeff\uffa0"
    "\ufff0-\ufffb\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
EXPONENT = re.compile(r"e([+-])0*")
LARGE = ((1e12, "T"), (1e9, "G"), (1e6, "M"))  # numbers of things
BYTES = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
NAMES = ("name", "kind", "type", "class")  # of a policy, a searcher …
UNITS = (  # of time: seconds, name, the shortest axis that has it
    (86400.0, "days", 4 * 86400),
    (3600.0, "hours", 4 * 3600),
    (60.0, "minutes", 240),
)


def printable(text: str) -> str:
    """The text with escapes, as `\\x1b`, in place of what is not seen, or acted upon.

    Lines and tabs stay. Names and errors come from recipes and journals, which may be anybody's.
    Passwords in addresses are masked.
    """
    shown = without_passwords(text)
    return UNSEEN.sub(lambda match: match[0].encode("unicode_escape").decode(), shown)


def escape(text: str) -> str:
    """The text as HTML shows it, what is not seen as in `printable`.

    A value that a page sends back must stay as it is: see `html.escape`.
    """
    return html.escape(printable(text))


def status_words(status: str) -> str:
    """A trial's status as people are told it; journals, `trial.status` and JSON have `retired`."""
    return "stopped early" if status == "retired" else status


def number(value: float | None, digits: int = 4) -> str:
    """The value with at most so many significant digits; a dash for None.

    It has no exponent where that can be helped.
    """
    text = score(value, digits)
    if "." not in text or "e" in text:
        return text
    return text.rstrip("0").rstrip(".")


def score(value: float | None, digits: int = 5) -> str:
    """The value with so many significant digits, zeros at the end included; a dash for None.

    A column of such values stands in line.
    """
    if value is None:
        return DASH
    try:
        value = float(value)
    except OverflowError:  # a whole number of hundreds of digits
        return "inf"
    if not isfinite(value):
        return str(value)
    if value == 0:
        return f"{0:.{digits}f}"
    amount = abs(value)
    if not 1e-4 <= amount < 1e6:
        return _short_exponent(f"{value:.{digits - 1}g}")
    # So many digits behind the point; before the first other one there are zeros.
    if amount >= 1:
        decimals = max(0, digits - len(str(int(amount))))
    else:
        decimals = digits + min(max(0, -int(log10(amount) // 1) - 1), 3)
    return f"{value:.{decimals}f}"


def _short_exponent(text: str) -> str:
    """The text with a short exponent: 1e-05 as 1e-5, 1e+20 as 1e20."""
    return EXPONENT.sub(lambda sign: "e-" if sign[1] == "-" else "e", text)


def count(value: float | None) -> str:
    """A number of things: 950, 23,100, 1.24 M."""
    if value is None:
        return DASH
    for least, unit in LARGE:
        if value >= least:
            return f"{value / least:.3g} {unit}"
    if value >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.3g}"


def duration(value: Seconds | None) -> str:
    """A length of time in its natural units: 12 ms, 4.2 s, 3 min 05 s, 2 h 07 min."""
    if value is None or not isfinite(value):
        return DASH
    if value and value < 0.9995:
        return f"{value * 1000:.3g} ms"
    if value < 99.95:
        return f"{value + 0.0:.3g} s"  # 0, not -0
    minutes, seconds = divmod(round(value), 60)
    if minutes < 60:
        return f"{minutes} min {seconds:02d} s"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes:02d} min"
    return f"{hours // 24} d {hours % 24:02d} h"


def signed(value: Seconds | None) -> str:
    """A length of time with its sign: +4.2 s, -12 ms."""
    if value is None:
        return DASH
    sign = "-" if value < 0 else "+"
    return f"{sign}{duration(abs(value))}"


def time_unit(length: Seconds) -> tuple[Seconds, str]:
    """The unit that suits an axis of this length: its seconds and its name."""
    for unit, name, least in UNITS:
        if length >= least:
            return unit, name
    return 1.0, "seconds"


def share(part: float, whole: float) -> str:
    """A part in per cent of the whole; a dash of nothing."""
    if not whole > 0:
        return DASH
    percent = 100 * part / whole
    if 0 < percent < 9.95:
        return f"{percent:.1f} %"
    return f"{percent:.0f} %"


def size(value: float) -> str:
    """A number of bytes: 300 B, 1.2 MB."""
    for least, unit in BYTES:
        if value >= least:
            return f"{value / least:.3g} {unit}"
    return f"{value:.0f} B"


def plural(value: int, noun: str) -> str:
    """A number with its noun: 1 trial, 2 trials, 3 passes, 4 entries."""
    if value == 1:
        return f"{value:,} {noun}"
    if re.search("[^aeiou]y$", noun):
        return f"{value:,} {noun[:-1]}ies"
    return f"{value:,} {noun}{'es' if noun.endswith('s') else 's'}"


def value(item: Any) -> str:
    """A configuration's value as text."""
    if isinstance(item, float):
        return _short_exponent(f"{item:.6g}")
    if isinstance(item, str):
        return without_passwords(item)
    if isinstance(item, (list, tuple)):
        return "[" + ", ".join(value(part) for part in item) + "]"
    return str(item)


def exact(item: Any) -> str:
    """A configuration's value as text, with all the digits of its numbers."""
    if isinstance(item, str):
        return without_passwords(item)
    if isinstance(item, (list, tuple)):
        return "[" + ", ".join(exact(part) for part in item) + "]"
    return str(item)


def config(
    values: Mapping[str, Any], limit: int | None = None, shown: Callable[[Any], str] = value
) -> str:
    """A configuration in one line, cut to so many characters; secrets are masked.

    `shown`: how each value is written: `value` or `exact`.
    """
    masked = masked_config(values)
    text = ", ".join(f"{name}={shown(item)}" for name, item in masked.items())
    if limit is None or len(text) <= limit:
        return text
    return text[: limit - 1] + "…"


def described(item: Any) -> str:
    """A policy, a searcher … as a journal's head describes it.

    Its name, and its arguments in brackets.
    """
    if item is None:
        return ""
    if not isinstance(item, Mapping):
        return value(item)

    names = [key for key in NAMES if isinstance(item.get(key), str)]
    arguments = config(_arguments(item, names))
    if not names:
        return arguments
    name = str(item[names[0]])
    if name and arguments:
        return f"{name} ({arguments})"
    return name or arguments


def _arguments(item: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """What is worth saying beside the name: plain values, but for the seed and what is off."""
    arguments = {}
    for key, part in item.items():
        if key in names or key == "seed" or part is False:
            continue
        if isinstance(part, (bool, int, float, str)):
            arguments[key] = part
    return arguments
