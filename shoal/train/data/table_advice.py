"""What a table's columns need before they are numbers: fillings, encoders, or to be left out."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

import pyarrow as pa

from shoal.train.data.columns import DataError
from shoal.train.data.table_files import CsvForm, TableFiles, is_float, several

Encoder = Callable[[Sequence[Any]], Any]  # of a column's values, an array
How = str | Callable[[Sequence[Any]], Encoder]

FITTED = ("mean", "median")  # fillings that are computed from the training part
SHOWN = 5  # columns that an error describes
FEW = 100  # different texts up to which an error proposes "onehot"
COMMA = re.compile(r"[-+]?\d+,\d+")
# Other ways in which numbers are written, what they are called, what reads them, and a hint.
WRITTEN = (
    (
        re.compile(r"[-+]?[1-9]\d{0,2}(,\d{3})+"),
        "numbers with commas, such as {}",
        'text.replace(",", "")',
        ' (if they part the fraction, give decimal=",")',
    ),
    (
        re.compile(r"[-+]?\d{1,3}(\.\d{3})*(,\d+)?"),
        "numbers with points and commas, such as {}",
        'text.replace(".", "").replace(",", ".")',
        "",
    ),
    (re.compile(r"[-+]?\d+(\.\d+)? ?%"), "numbers with a sign, such as {}", 'text.strip("%")', ""),
)
DAYS = "lambda _: lambda days: [day.toordinal() for day in days]"
SETTINGS = ("encode", "fill", "dropna", "drop", "na_values", "decimal", "encoding")
OTHERS = {  # what else there is, by the argument that an error proposes
    "encode": '; encode also takes "ordinal", "hash" or a function; drop=[…] leaves columns out',
    "fill": "; fill also takes values, and dropna=[…] leaves rows out",
}


@dataclass(frozen=True, slots=True)
class TableSetup:
    """How a table's columns become numbers: the arguments of `Data.csv`.

    A single name may stand by itself in place of a list of names.
    """

    label: str | None = None
    columns: Sequence[str] | None = None  # None: all
    encode: Mapping[str, How] = field(default_factory=dict)
    # of missing values: a number, "mean", "median", a dict of columns, or None
    fill: Any = None
    stratify: str | None = None  # the column whose values keep their shares
    drop: Sequence[str] = ()  # columns to leave out
    dropna: Sequence[str] = ()  # columns whose missing values leave rows out
    form: CsvForm = field(default_factory=CsvForm)
    # what an error proposes where none of these settings can be given; empty: the settings
    remedy: str = ""

    def __post_init__(self) -> None:
        for names in ("columns", "drop", "dropna"):
            object.__setattr__(self, names, several(getattr(self, names)))
        object.__setattr__(self, "encode", self.encode or {})
        fill = self.fill
        if fill is None or isinstance(fill, Mapping) or is_number(fill):
            return
        if fill not in FITTED:
            raise DataError(
                'fill must be a number, "mean", "median", or a dict such as '
                f'{{"age": "median", "city": "?"}}; got {fill!r}'
            )

    def of(self, names: Collection[str], fills: Mapping[str, Any]) -> TableSetup:
        """The setup for new rows of these columns, none of which is a label.

        `fills`: what takes the place of missing values, by column.
        """
        encode = {name: how for name, how in self.encode.items() if name in names}
        fills = {name: fill for name, fill in fills.items() if name in names}
        return TableSetup(None, tuple(names), encode, fills, form=self.form)

    def names(self, all_names: Sequence[str]) -> list[str]:
        """The columns that are read, the label among them."""
        names = [name for name in self.columns or all_names if name not in self.drop]
        if self.label is not None and self.label not in names:
            names.append(self.label)
        return names

    def takes(self, name: str, kind: Any) -> bool:
        """Whether a column of this kind becomes numbers: it is of numbers, or has an encoder."""
        return name in self.encode or of_numbers(kind)

    def fill_of(self, name: str, kind: Any) -> Any:
        """What takes the place of missing values in a column of this kind; None: nothing may.

        A filling for all columns fills numbers only, and never the label.
        """
        if isinstance(self.fill, Mapping):
            return self.fill.get(name)
        if name == self.label or not of_numbers(kind):
            return None
        if name in self.encode and not is_number(self.fill):
            return None
        return self.fill


@dataclass(frozen=True, slots=True)
class _Need:
    """What is wrong with a column, and the arguments that would mend it.

    `hint`: an argument that mends it if it is meant otherwise.
    """

    why: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    hint: str = ""


@dataclass(frozen=True, slots=True)
class _Code:
    """What an error writes as it is, without quotes."""

    text: str


def is_number(value: Any) -> bool:
    """Whether it is a single number."""
    return isinstance(value, Real)


def of_numbers(kind: Any) -> bool:
    """Whether values are single numbers."""
    types = pa.types
    number = types.is_integer(kind) or types.is_floating(kind)
    return bool(number or types.is_boolean(kind) or types.is_decimal(kind))


def _of_strings(kind: Any) -> bool:
    """Whether values are text."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def of_lists(kind: Any) -> bool:
    """Whether values are lists of numbers."""
    types = pa.types
    inner = kind
    while types.is_list(inner) or types.is_large_list(inner):
        inner = inner.value_type
    while types.is_fixed_size_list(inner):
        inner = inner.value_type
    return inner is not kind and of_numbers(inner)


def check_columns(files: TableFiles, setup: TableSetup, new: bool = False) -> None:
    """Raise DataError, which lists them all, if columns cannot become numbers as they are.

    `new`: the rows are to be encoded as data that is there.
    """
    needs: list[_Need] = []
    for name in setup.names(files.table.schema.names):
        needs += _needs(name, files, setup)
    if not needs:
        return
    remedy = setup.remedy
    reasons = [need.why if remedy else need.why + need.hint for need in needs[:SHOWN]]
    if len(needs) > SHOWN:
        reasons.append(f"and so on for {len(needs) - SHOWN} more")
    if remedy:
        raise DataError("; ".join(reasons) + f": {remedy}")
    if new:
        raise DataError(
            "; ".join(reasons) + ": mend the new rows, or give fill= where the data is made"
        )
    settings = _merged(needs, files, setup)
    arguments = ", ".join(f"{key}={_source(value)}" for key, value in settings.items())
    advice = f": write {arguments}" if settings else ""
    hints = [text for key, text in OTHERS.items() if key in settings]
    if setup.label is not None and setup.label in settings.get("dropna", ()):
        hints.append(f"; fill={{{_source(setup.label)}: …}} would keep these rows")
    raise DataError("; ".join(reasons) + advice + "".join(hints))


def _needs(name: str, files: TableFiles, setup: TableSetup) -> Iterator[_Need]:
    """What the column needs; nothing if it can become numbers."""
    column = files.table.column(name)
    kind = column.type
    if column.null_count == len(column):
        if setup.fill_of(name, kind) is None or not setup.takes(name, kind):
            settings = {"drop": [name]} if name != setup.label else {}
            why = f"column {name} lacks {len(column)} of {len(column)} values"
            yield _Need(why, settings)
        return
    if files.kind == "csv" and pa.types.is_binary(kind):
        yield _Need(f"column {name} is not written in UTF-8", {"encoding": "latin-1"})
        return
    unread = None
    if not setup.takes(name, kind) and not of_lists(kind):
        unread = _of_text(name, column, files)
        yield unread
    if column.null_count or (unread and "na_values" in unread.settings):
        yield from _of_missing(name, column, setup, unread)


def _of_missing(name: str, column: Any, setup: TableSetup, unread: _Need | None) -> Iterator[_Need]:
    """What the column's missing values need, if anything."""
    kind = column.type
    how = setup.encode.get(name)
    if unread is not None:
        how = unread.settings.get("encode", {}).get(name)
        if how is None and not pa.types.is_nested(kind):
            kind = pa.float64()
    filling = setup.fill_of(name, kind)
    why = ""
    if filling is None:
        which = "label" if name == setup.label else "column"
        why = f"{which} {name} lacks {column.null_count} of {len(column)} values"
        if not column.null_count:
            why = f"{which} {name} then lacks these values"
    elif name in setup.encode:
        pass  # its encoder gets the filling
    elif pa.types.is_nested(kind):
        why = f"column {name} holds lists, which cannot be filled"
    elif of_numbers(kind) and not is_number(filling) and filling not in FITTED:
        why = f'fill of column {name} must be a number, "mean" or "median"; got {filling!r}'
    if why:
        yield _Need(why, _remedy(name, column, kind, setup, how))


def _remedy(name: str, column: Any, kind: Any, setup: TableSetup, how: Any) -> dict[str, Any]:
    """What to do about the column's missing values. `how`: its encoder; None: it has none."""
    if name == setup.label or pa.types.is_nested(kind):
        return {"dropna": [name]}
    filling: Any = _Code(repr(column.drop_null()[0].as_py()))
    if of_numbers(kind):
        filling = "median" if how is None else -1
    elif _of_strings(kind) and isinstance(how, str):
        filling = "?"
    return {"fill": {name: filling}}


def _of_text(name: str, column: Any, files: TableFiles) -> _Need:
    """The need of a column that holds no numbers."""
    kind = column.type
    if pa.types.is_string(kind) and files.kind == "csv":
        nearly = _nearly_numbers(name, column, files)
        if nearly:
            return nearly
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        how: Any = _Code(DAYS)
    elif pa.types.is_nested(kind):
        return _Need(f"column {name} holds {kind}, no numbers", {"drop": [name]})
    else:
        how = "onehot" if len(column.unique()) <= FEW else "hash"
    example = column.drop_null()[0].as_py()
    shown = f", such as {example!r}" if isinstance(example, str) else ""
    return _Need(f"column {name} holds {kind}{shown}, no numbers", {"encode": {name: how}})


def _nearly_numbers(name: str, column: Any, files: TableFiles) -> _Need | None:
    """The need of a column of text, if most of its values are numbers; else None."""
    texts = column.to_pylist()
    present = [text for text in texts if text is not None]
    commas = [text for text in present if COMMA.fullmatch(text)]
    plain = all(COMMA.fullmatch(text) or is_float(text) for text in present)
    if commas and plain and not all(map(WRITTEN[0][0].fullmatch, present)):
        comma = commas[0]
        why = f"column {name} holds numbers with a comma, such as {comma!r}"
        return _Need(why, {"decimal": ","})
    otherwise = _written_otherwise(name, present)
    if otherwise:
        return otherwise
    odd_texts = {text for text in present if not is_float(text)}
    wrong = [text for text in present if text in odd_texts]
    if not wrong or len(wrong) * 2 > len(present) or len(odd_texts) > FEW // SHOWN:
        return None
    row = files.place(texts.index(wrong[0]))
    why = (
        f"{len(wrong)} of {len(texts)} values of column {name} are no numbers, "
        f"e.g. {wrong[0]!r} in {row}"
    )
    return _Need(why, {"na_values": sorted(odd_texts)})


def _written_otherwise(name: str, texts: Sequence[str]) -> _Need | None:
    """The need of a column whose numbers are all written in one other way; None: they are not."""
    for pattern, words, code, hint in WRITTEN:
        if all(map(pattern.fullmatch, texts)):
            why = f"column {name} holds {words.format(repr(texts[0]))}"
            how = _Code(f"lambda _: lambda texts: [float({code}) for text in texts]")
            return _Need(why, {"encode": {name: how}}, hint)
    return None


def _merged(needs: Sequence[_Need], files: TableFiles, setup: TableSetup) -> dict[str, Any]:
    """One value for each argument that needs one: what the user gave, and what is to be added."""
    settings: dict[str, Any] = {
        "encode": dict(setup.encode),
        "fill": _fill_by_column(files, setup),
        "dropna": list(setup.dropna),
        "drop": list(setup.drop),
        "na_values": list(setup.form.na_values),
    }
    merged: dict[str, Any] = {}
    for need in needs:
        for key, value in need.settings.items():
            if isinstance(value, dict):
                merged[key] = {**merged.get(key, settings[key]), **value}
            elif isinstance(value, list):
                values = merged.get(key, settings[key])
                merged[key] = list(dict.fromkeys([*values, *value]))
            else:
                merged[key] = value
    return {key: merged[key] for key in SETTINGS if key in merged}


def _fill_by_column(files: TableFiles, setup: TableSetup) -> dict[str, Any]:
    """`fill` by column, for the columns that it fills."""
    if isinstance(setup.fill, Mapping):
        return dict(setup.fill)
    table = files.table
    fills = {}
    for name in setup.names(table.schema.names):
        column = table.column(name)
        if column.null_count and setup.fill_of(name, column.type) is not None:
            fills[name] = setup.fill
    return fills


def _source(value: Any) -> str:
    """The value as it is written in Python."""
    if isinstance(value, _Code):
        return value.text
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, Mapping):
        pairs = [f"{_source(key)}: {_source(inner)}" for key, inner in value.items()]
        return "{" + ", ".join(pairs) + "}"
    if isinstance(value, Collection):
        return "[" + ", ".join(map(_source, value)) + "]"
    if callable(value):
        name = str(getattr(value, "__name__", ""))
        return name if name.isidentifier() else "…"
    return repr(value)
