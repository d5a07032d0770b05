"""Figures as people read them."""

import re
from collections.abc import Mapping
from math import isfinite, log10
from typing import Any

from shoal.core.trial import Seconds

DASH = "–"


def number(value: float | None, digits: int = 4) -> str:
    """At most so many significant digits, no exponent where it can be helped; a dash for None."""
    text = score(value, digits)
    return text.rstrip("0").rstrip(".") if "." in text and "e" not in text else text


def score(value: float | None, digits: int = 5) -> str:
    """So many significant digits, zeros at the end included, so that a column of them stands in line."""
    if value is None:
        return DASH
    if not isfinite(value):
        return str(value)
    if value == 0:
        return f"{0:.{digits}f}"
    if not 1e-4 <= abs(value) < 1e6:
        return _short_exponent(f"{value:.{digits - 1}g}")
    before = len(str(int(abs(value)))) if abs(value) >= 1 else 0
    zeros = max(0, -int(log10(abs(value)) // 1) - 1)  # behind the point
    return f"{value:.{max(0, digits - before) + min(zeros, 3)}f}"


def _short_exponent(text: str) -> str:
    return re.sub(r"e([+-])0*", lambda found: "e-" if found[1] == "-" else "e", text)


def count(value: float | None) -> str:
    """A number of things: 950, 23,100, 1.24 M."""
    if value is None:
        return DASH
    for size, unit in ((1e12, " T"), (1e9, " G"), (1e6, " M")):
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"


def duration(value: Seconds | None) -> str:
    """A length of time in its natural units: 12 ms, 4.2 s, 3 min 05 s, 2 h 07 min."""
    if value is None or not isfinite(value):
        return DASH
    if value < 0.9995:
        return f"{value * 1000:.3g} ms" if value else "0 s"
    if value < 99.95:
        return f"{value:.3g} s"
    minutes, rest = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    if hours >= 48:
        return f"{hours // 24} d {hours % 24:02d} h"
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


def time_unit(length: Seconds) -> tuple[Seconds, str]:
    """The unit that suits an axis of this length: its seconds and its name."""
    for unit, name, least in ((86400.0, "days", 4 * 86400), (3600.0, "hours", 4 * 3600), (60.0, "minutes", 240)):
        if length >= least:
            return unit, name
    return 1.0, "seconds"


def share(part: float, whole: float) -> str:
    """A part in per cent of the whole; a dash of nothing."""
    if not whole > 0:
        return DASH
    percent = 100 * part / whole
    return f"{percent:.1f} %" if 0 < percent < 9.95 else f"{percent:.0f} %"


def size(value: float) -> str:
    """Bytes: 300 B, 1.2 MB."""
    for unit, name in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if value >= unit:
            return f"{value / unit:.3g} {name}"
    return f"{value:.0f} B"


def plural(value: int, noun: str) -> str:
    """1 trial, 2 trials."""
    return f"{value:,} {noun}" if value == 1 else f"{value:,} {noun}s"


def value(item: Any) -> str:
    """A configuration's value."""
    if isinstance(item, float):
        return _short_exponent(f"{item:.6g}")
    if isinstance(item, str):
        return item
    if isinstance(item, (list, tuple)):
        return "[" + ", ".join(value(part) for part in item) + "]"
    return str(item)


def config(values: Mapping[str, Any], limit: int | None = None) -> str:
    """A configuration in one line."""
    text = ", ".join(f"{name}={value(item)}" for name, item in values.items())
    return text if limit is None or len(text) <= limit else text[: limit - 1] + "…"


def described(item: Any) -> str:
    """A policy, a searcher … as a journal's head describes it: its name, and its arguments in brackets."""
    if not isinstance(item, Mapping):
        return "" if item is None else value(item)
    names = [key for key in ("name", "kind", "type", "class") if isinstance(item.get(key), str)]
    name = str(item[names[0]]) if names else ""
    plain = {key: part for key, part in item.items() if isinstance(part, (bool, int, float, str)) and part is not False}
    rest = {key: part for key, part in plain.items() if key not in (*names, "seed")}
    return f"{name} ({config(rest)})" if rest and name else name or config(rest)
