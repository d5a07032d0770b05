"""Tables of CSV and Parquet files, and frames: encoding, what is missing, new rows, and errors.

What an error proposes to write is pasted and tried here.
"""

from __future__ import annotations

import datetime
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
import torch
from train_kit import S0, rows_are_rows

from shoal.train.data.columns import DataError
from shoal.train.data.data import Data

pa = pytest.importorskip("pyarrow", reason="pip install pyarrow")


def text(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def iris(tmp_path: Path) -> Path:
    kinds = ["setosa", "virginica", "versicolor"]
    lines = [f"{n / 2},{n},{kinds[n % 3]}" for n in range(30)]
    return text(tmp_path / "iris.csv", "width,height,kind", *lines)


def test_a_csv_file_with_a_label(iris: Path) -> None:
    data = Data.csv(iris, label="kind", encode={"kind": "ordinal"}, shards=2)
    assert data.names == {"kind": ("setosa", "versicolor", "virginica")}
    assert data.samples == 24 and data.size(data.validation[0]) == 6
    x, y = data.read(S0)
    assert x.shape == (12, 2) and x.dtype == np.float32 and y.dtype == np.int64
    assert np.array_equal(x[:, 1] % 3, np.array([0, 2, 1])[y])
    rows_are_rows(data)


def test_columns_by_name_and_encoders(iris: Path, tmp_path: Path) -> None:
    data = Data.csv(iris, encode={"kind": "onehot"}, columns=["kind", "height"])
    read = data.read(S0)
    assert isinstance(read, dict) and read["kind"].sum(1).tolist() == [1.0] * 24
    assert read["height"].dtype == np.int64
    hashed = Data.csv(iris, encode={"kind": "hash"}).read(S0)["kind"]
    assert len(set(hashed.tolist())) == 3 and hashed.max() < 1024

    seen: list[Any] = []

    def fit(values: Any) -> Any:
        seen.extend(values)
        return lambda values: np.array([len(value) for value in values])

    own = Data.csv(iris, encode={"kind": fit})
    assert len(seen) == own.samples, "of the training part alone"
    assert set(own.read(S0)["kind"].tolist()) == {6, 9, 10}
    prints = {
        Data.csv(iris, encode={"kind": how}).fingerprint
        for how in ("onehot", "ordinal", "hash", fit)
    }
    assert len(prints) == 4
    more = text(tmp_path / "more.csv", "width,height,kind", "1.0,2,setosa", "3.0,4,new")
    given = Data.csv(iris, encode={"kind": "onehot"}, validation=more)
    assert given.read(given.validation[0])["kind"].sum(1).tolist() == [1.0, 0.0]
    with pytest.raises(DataError, match="values that the training part lacks .new.*onehot"):
        Data.csv(iris, encode={"kind": "ordinal"}, validation=more)


def test_parquet_is_as_csv(iris: Path, tmp_path: Path) -> None:
    from pyarrow import csv, parquet

    parquet.write_table(csv.read_csv(iris), tmp_path / "iris.parquet")
    one = Data.csv(iris, label="height", encode={"kind": "onehot"})
    other = Data.parquet(tmp_path / "iris.parquet", label="height", encode={"kind": "onehot"})
    assert one.fingerprint == other.fingerprint


@pytest.mark.parametrize("how", ["csv", "parquet", "arrow"])
def test_a_columns_values_keep_their_shares(how: str, tmp_path: Path) -> None:
    import pyarrow as pa
    from pyarrow import csv, feather, parquet

    kinds = ["rare"] * 10 + ["common"] * 90
    table = pa.table({"number": list(range(100)), "kind": kinds})
    file = tmp_path / f"table.{how}"
    write = {"csv": csv.write_csv, "parquet": parquet.write_table}
    write.get(how, feather.write_feather)(table, str(file))
    columns = {"columns": ["number"], "stratify": "kind", "validation": 0.2}
    for seed in range(3):
        data = getattr(Data, how)(file, seed=seed, **columns)
        aside = data.read("v000")["number"]
        assert (aside < 10).sum() == 2 and len(aside) == 20
    other = getattr(Data, how)(file, columns=["number"], validation=0.2)
    assert other.fingerprint != data.fingerprint
    with pytest.raises(DataError, match=r"no column kin .*kind.*; there are number, kind"):
        getattr(Data, how)(file, **{**columns, "stratify": "kin"})
    with pytest.raises(DataError, match="taken from each of 100 labels, leaves 100 to"):
        getattr(Data, how)(file, **{**columns, "stratify": "number"})


def test_encoders_are_fitted_on_what_stratifying_leaves_to_train_on(iris: Path) -> None:
    data = Data.csv(iris, label="kind", encode={"kind": "ordinal"}, stratify="kind")
    assert data.names["kind"] == ("setosa", "versicolor", "virginica")
    counts = np.unique(data.read("v000")[1], return_counts=True)[1]  # type: ignore[index,arg-type]
    assert len(set(counts.tolist())) == 1


def test_several_files_and_other_delimiters(tmp_path: Path) -> None:
    text(tmp_path / "a.csv", "x;y", "1;2", "3;4")
    text(tmp_path / "b.csv", "x;y", "5;6.5")
    data = Data.csv(tmp_path, validation=None)
    assert sorted(data.read(S0)["y"].tolist()) == [2.0, 4.0, 6.5]
    text(tmp_path / "c.csv", "x;z", "5;6")
    with pytest.raises(DataError, match="same columns; a.csv has x, y, c.csv has x, z"):
        Data.csv(tmp_path)


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        (
            {},
            r"column kind holds string, such as .a., no numbers; column gap lacks 1 of 3 values: "
            r'write encode=\{"kind": "onehot"\}, fill=\{"gap": "median"\}',
        ),
        ({"label": "sort"}, "no column sort; there are width, height, kind, gap"),
        ({"columns": ["a", "width"]}, "no column a; there are"),
        ({"columns": ["gap"]}, r'column gap lacks 1 of 3 values: write fill=\{"gap": "median"\}'),
        ({"columns": ["kind"], "encode": {"kind": "best"}}, "must be one of onehot, ordinal, hash"),
        (
            {"columns": ["kind"], "encode": {"kind": lambda values: 3}},
            "must return a function of values; got 3",
        ),
        (
            {"columns": ["kind"], "encode": {"kind": lambda values: lambda values: [1]}},
            "a number or a row of numbers for each of the 3 values",
        ),
    ],
)
def test_bad_tables_are_refused(tmp_path: Path, options: Any, rule: str) -> None:
    file = text(tmp_path / "t.csv", "width,height,kind,gap", "1,2,a,1", "1,2,b,", "1,2,c,3")
    with pytest.raises(DataError, match=rule):
        Data.csv(file, **{"validation": None, **options})


def test_missing_values_are_filled_where_that_is_said(tmp_path: Path) -> None:
    file = text(tmp_path / "t.csv", "x,y", "1,", "2,5")
    data = Data.csv(file, fill={"y": -1}, validation=None)
    assert sorted(data.read(S0)["y"].tolist()) == [-1, 5]


def test_missing_text_is_filled_where_that_is_said(tmp_path: Path) -> None:
    file = text(tmp_path / "t.csv", "x,kind", "1,b", "2,", "3,NA", "4,a")
    encode = {"kind": "ordinal"}
    with pytest.raises(DataError, match="column kind lacks 2 of 4 values"):
        Data.csv(file, encode=encode, validation=None)
    data = Data.csv(file, encode=encode, fill={"kind": "none"}, validation=None)
    assert data.names["kind"] == ("a", "b", "none")
    read = data.read(S0)
    assert read["kind"][np.argsort(read["x"])].tolist() == [1, 2, 2, 0]
    with pytest.raises(DataError, match=r'kind lacks 2 of 4 .*: write fill=\{"kind": "\?"\}'):
        Data.csv(file, encode=encode, fill=0, validation=None)


# -- new rows --------------------------------------------------------------------------------------


def flats(folder: Path, name: str, *lines: str, head: str = "area,city,sold,dear") -> Path:
    return text(folder / name, head, *lines)


def days(values: Any) -> Any:
    first = min(values)
    return lambda values: [(value - first).days for value in values]


ENCODE = {"city": "onehot", "sold": days, "dear": "ordinal"}
LINES = ("50,Oslo,2024-01-03,yes", ",Bergen,2024-01-01,no", "70.5,Oslo,2024-01-02,no")


def test_new_rows_are_encoded_as_the_data(tmp_path: Path) -> None:
    file = flats(tmp_path, "flats.csv", *LINES)
    data = Data.csv(file, label="dear", encode=ENCODE, fill=1, validation=None)
    new = flats(
        tmp_path, "new.csv", "x,Oslo,,2024-01-05", "y,Oslo,3,2023-12-31", head="id,city,area,sold"
    )
    for each in (data, data.folds(3), data.balanced(by=1)):
        made = each.encode(new)
        assert isinstance(made, torch.Tensor)
        assert made.dtype == torch.float32
        assert made.tolist() == [[1, 0, 1, 4], [3, 0, 1, -1]]
    whole = data.encode(file)
    x, y = data.read(S0)
    order = np.lexsort(np.asarray(whole).T), np.lexsort(x.T)
    assert np.array_equal(np.asarray(whole)[order[0]], x[order[1]])
    labels = data.encode(file, columns=["dear"])["dear"]
    assert [data.names["dear"][n] for n in labels] == ["yes", "no", "no"]
    assert sorted(y.tolist()) == sorted(labels.tolist())


def test_new_rows_of_data_without_a_label_are_columns(tmp_path: Path) -> None:
    file = text(tmp_path / "t.csv", "rooms,area,code", "1,2.5,7a", "2,3,012")
    data = Data.csv(file, encode={"code": "ordinal"}, validation=None)
    new = text(tmp_path / "new.csv", "code,area,rooms", "012,4,3", "012,5,1")
    made = data.encode(new)
    assert list(made) == ["rooms", "area", "code"]
    assert made["code"].tolist() == [0, 0]  # "012", although all of these are numbers
    assert {k: v.numpy().dtype for k, v in made.items()} == {
        k: v.dtype for k, v in data.read(S0).items()
    }
    assert list(data.encode(new, columns=["area"])) == ["area"]
    half = text(tmp_path / "half.csv", "code,area,rooms", "012,4,3.5")
    with pytest.raises(DataError, match="column rooms of the new rows holds double, and int64"):
        data.encode(half)


@pytest.mark.parametrize(
    ("head", "line", "rule"),
    [
        ("area,town,sold", "5,Oslo,2024-01-05", "no column city; there are area, town, sold"),
        (
            "area,city,sold",
            "big,Oslo,2024-01-05",
            "column area of the new rows holds string, and d",
        ),
        ("area,city,sold", ",Oslo,2024-01-05", "column area lacks 1 of 1 values"),
        ("area,city,sold", "5,Oslo,soon", "cannot be read as csv .*'soon'"),
    ],
)
def test_new_rows_that_do_not_fit_are_refused(
    tmp_path: Path, head: str, line: str, rule: str
) -> None:
    lines = [line for line in LINES if not line.startswith(",")]
    file = flats(tmp_path, "flats.csv", *lines)
    data = Data.csv(file, label="dear", encode=ENCODE, validation=None)
    new = flats(tmp_path, "new.csv", line, head=head)
    with pytest.raises(DataError, match=rule):
        data.encode(new)


def test_texts_that_are_new_are_told(tmp_path: Path) -> None:
    file = flats(tmp_path, "flats.csv", *LINES)
    data = Data.csv(file, label="dear", encode=ENCODE, fill=1, validation=None)
    new = flats(tmp_path, "new.csv", "5,Paris,2024-01-05,perhaps")
    with pytest.warns(UserWarning, match=r"column city has texts that .* \(Paris\)"):
        made = data.encode(new)
    assert made.tolist() == [[5, 0, 0, 4]]
    with pytest.raises(DataError, match=r"column dear has values that .*\(perhaps\)"):
        data.encode(new, columns=["dear"])
    with pytest.raises(DataError, match=r"no column Dear \(did you mean dear\?\)"):
        data.encode(new, columns=["Dear"])
    with pytest.raises(DataError, match="encode goes with data out of CSV"):
        Data.arrays([1.0, 2.0], validation=None).encode(new)


def test_rows_are_encoded_by_data_that_travelled(tmp_path: Path) -> None:
    file = flats(tmp_path, "flats.csv", *LINES)
    data = Data.csv(file, label="dear", encode=ENCODE, fill=1, validation=None)
    there = pickle.loads(cloudpickle.dumps(data))
    assert torch.equal(there.encode(file), data.encode(file))


def test_data_says_what_it_holds(tmp_path: Path, iris: Path) -> None:
    file = flats(tmp_path, "flats.csv", *LINES)
    data = Data.csv(file, label="dear", encode=ENCODE, fill=1, validation=None)
    assert repr(data).splitlines() == [
        "Data: 3 training samples in 1 shard, 0 to validate on",
        "  0: float32 (n, 4): area, city (2), sold",
        "  1: int64 (n), the label dear: 0 no, 1 yes",
    ]
    columns = Data.csv(iris, encode={"kind": "onehot"}, shards=2)
    assert repr(columns).splitlines() == [
        "Data: 24 training samples in 2 shards, 6 to validate on",
        "  width: float32 (n)",
        "  height: int64 (n)",
        "  kind: float32 (n, 3): 0 setosa, 1 versicolor, 2 virginica",
    ]
    words = [torch.arange(n + 1) for n in range(10)]
    assert repr(Data.dataset(words, collate=list)).splitlines()[1:] == [
        "  0: tensor, of unequal lengths",
        "  collate makes batches of these",
    ]
    wide = Data.arrays(**{f"c{n}": np.ones((20, n + 1)) for n in range(2)})
    assert "  c1: float64 (n, 2)" in repr(wide)


def test_the_label_of_a_table_goes_by_its_name(iris: Path) -> None:
    data = Data.csv(iris, label="kind", encode={"kind": "ordinal"}, validation=None)
    named = data.balanced("kind"), data.folds(3, stratify="kind")
    placed = data.balanced(1), data.folds(3, stratify=1)
    for one, other in zip(named, placed, strict=True):
        assert str(one.arrangement) == str(other.arrangement)
    for wrong in ("label", "width", 0):
        with pytest.raises(DataError, match=f"label, 'kind', or by its place 1; got {wrong!r}"):
            data.balanced(wrong)


def test_a_missing_library_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    from shoal.train.data import parts

    def none(name: str) -> Any:
        raise ImportError("No module named 'pyarrow'")

    monkeypatch.setattr(parts, "import_module", none)
    with pytest.raises(DataError, match=r"needs pyarrow: pip install 'shoal\[parquet\]'"):
        Data.csv("x.csv")


ROWS = 40
# fingerprints that a former version gave to the tables of the last test
FORMER = [
    "df4fd57388b60684c0af68c095c6f615",
    "063f051e523ca518c9b7388d45d8f2d9",
    "a5a3aebd44685182e4519d080379cf96",
    "3ed6f24d02c46ad4e9e45c8249448bb2",
]


def table(path: Path, head: str, row: Callable[[int], str], encoding: str = "utf-8") -> Path:
    """A CSV file: the header line, and a line for each number."""
    lines = [head, *(row(number) for number in range(ROWS))]
    path.write_text("\n".join(lines) + "\n", encoding=encoding)
    return path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "t.csv"


def whole(data: Data) -> tuple[Any, Any]:
    """All rows of data with a label that has one shard and no validation."""
    x, y = data.read(data.shards[0])
    return x, y


def told(call: Callable[..., Data], *given: Any, **options: Any) -> str:
    """The error of the call."""
    with pytest.raises(DataError) as error:
        call(*given, **options)
    return str(error.value)


def pasted(message: str) -> dict[str, Any]:
    """The arguments that an error tells to write."""
    call = message.split(": write ", 1)[1].split("; encode also", 1)[0]
    call = call.split("; fill also", 1)[0].split("; fill={", 1)[0]
    made: dict[str, Any] = eval(f"dict({call})", {"datetime": datetime})
    return made


# -- missing values ----------------------------------------------------------------------------


@pytest.mark.parametrize("labels", [("no", "yes"), (0, 1)])
@pytest.mark.parametrize("fill", [0, "mean", "median"])
def test_one_filling_for_all_never_makes_a_label(
    file: Path, fill: Any, labels: tuple[Any, Any]
) -> None:
    table(file, "a,y", lambda n: f"{'' if n == 1 else n},{'' if n % 10 == 4 else labels[n % 2]}")
    options: dict[str, Any] = {"label": "y", "fill": fill, "validation": None}
    if labels[0] == "no":
        options["encode"] = {"y": "ordinal"}
    message = told(Data.csv, file, **options)
    assert message.startswith("label y lacks 4 of 40 values: write dropna=[")
    left = Data.csv(file, **options, **pasted(message))
    assert left.samples == 36 and set(whole(left)[1].tolist()) == {0, 1}
    own = "maybe" if labels[0] == "no" else 7
    named = {**options, "fill": {"a": fill, "y": own}}
    y = whole(Data.csv(file, **named))[1]
    assert len(y) == 40 and y.dtype == np.int64 and len(set(y.tolist())) == 3


def test_one_error_says_what_all_columns_need(file: Path) -> None:
    def row(n: int) -> str:
        hole = n == 7
        cells = [n, n * 1.5, "?" if hole else n, ["Köln", "Bonn"][n % 2]]
        cells += [f"2024-01-{n % 28 + 1:02d}", ["a", "b", "c"][n % 3]]
        return ",".join("" if hole and cell != "?" else str(cell) for cell in cells) + ","

    table(file, "count,size,mixed,city,day,y,none", row)
    options: dict[str, Any] = {"label": "y", "validation": None}
    message = told(Data.csv, file, **options)
    assert "column count lacks 1 of 40 values; column size lacks 1" in message
    assert "1 of 40 values of column mixed are no numbers, e.g. '?' in row 9" in message
    found = pasted(message)
    assert found["fill"] == {
        "count": "median",
        "size": "median",
        "mixed": "median",
        "city": "?",
        "day": datetime.date(2024, 1, 1),
    }
    assert (found["dropna"], found["drop"], found["na_values"]) == (["y"], ["none"], ["?"])
    x, y = whole(Data.csv(file, **options, **found))
    assert x.shape == (39, 6) and len(y) == 39 and np.isfinite(x).all()
    # What the user gave before stays in the line, a filling for all columns by its columns.
    given = {**options, "fill": 0, "encode": {"city": "hash", "y": "ordinal"}}
    again = pasted(told(Data.csv, file, **given))
    assert again["encode"].keys() == {"city", "y", "day"} and again["encode"]["city"] == "hash"
    assert again["fill"]["count"] == 0 and again["fill"]["city"] == "?"


def test_fillings_are_fitted_on_the_training_part(tmp_path: Path) -> None:
    file = table(tmp_path / "t.csv", "a,b,y", lambda n: f"{'' if n % 4 == 0 else n * n},{n},{n}")
    other = table(tmp_path / "o.csv", "a,b,y", lambda n: f",{'' if n == 3 else n},{n}")
    for name, fit in (("mean", np.mean), ("median", np.median)):
        for fill in (name, {"a": name, "b": name}):
            x, y = whole(Data.csv(file, label="y", fill=fill, validation=None))
            given = np.float32(fit([n * n for n in range(ROWS) if n % 4]))
            assert np.array_equal(x[:, 0], np.where(y % 4, y * y, given).astype(np.float32))
            two = Data.csv(file, label="y", fill=fill, validation=other)
            scored, _ = two.read(two.validation[0])  # type: ignore[misc]
            assert set(scored[:, 0].tolist()) == {given}
        data = Data.csv(file, label="y", fill=name, validation=0.5, stratify=None)
        x, y = whole(data)
        left = [n * n for n in y.tolist() if n % 4]
        assert set(x[y % 4 == 0, 0].tolist()) == {np.float32(fit(left))}
    prints = {
        Data.csv(file, label="y", fill=fill).fingerprint for fill in ("mean", "median", 0, {"a": 1})
    }
    assert len(prints) == 4
    by_name = Data.csv(file, fill="median", validation=other)
    for part in (by_name.shards[0], by_name.validation[0]):
        read = by_name.read(part)
        assert isinstance(read, dict)
        assert {name: str(column.dtype) for name, column in read.items()} == {
            "a": "float32",
            "b": "float32",  # only the validation part lacks a value
            "y": "int64",
        }


def test_whole_numbers_stay_whole_where_the_filling_is(file: Path) -> None:
    table(file, "a,flag", lambda n: f"{'' if n == 3 else n},{'' if n == 5 else n % 2 == 0}")
    for fill, kind in ((-3, np.int64), (-3.5, np.float32), (2.0, np.int64)):
        read = Data.csv(file, fill=fill, validation=None).read("s000")  # type: ignore[arg-type]
        assert isinstance(read, dict)
        for name in ("a", "flag"):
            assert read[name].dtype == kind and (read[name] == fill).sum() >= 1


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"fill": "middle"}, 'fill must be a number, "mean", "median", or a dict'),
        ({"fill": {"a": "x"}}, 'fill of column a must be a number, "mean" or "median"; got .x'),
        ({"drop": ["y"]}, "drop must leave the label; got y"),
        ({"drop": ["z"]}, "no column z; there are a, b, y"),
        ({"dropna": ["z"]}, "no column z; there are a, b, y"),
        ({"encoding": "latin-99"}, "encoding must be one that Python knows.*latin-99"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(file: Path, options: Any, rule: str) -> None:
    table(file, "a,b,y", lambda n: f"{'' if n == 3 else n},{n},{n % 2}")
    with pytest.raises(DataError, match=rule):
        Data.csv(file, label="y", **options)


def test_columns_and_rows_are_left_out(file: Path) -> None:
    table(file, "id,a,y", lambda n: f"{10**17 + n},{'' if n == 3 else n},{n % 2}")
    with pytest.warns(UserWarning, match=r'column id has 40 .* as float32 1 remain.*drop=\["id"\]'):
        Data.csv(file, label="y", fill=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        data = Data.csv(file, label="y", drop=["id"], dropna="a", validation=None)
        assert whole(data)[0].shape == (39, 1)
        assert Data.csv(file, label="y", columns="a", fill=0).fingerprint != data.fingerprint
        Data.csv(file, fill=0)  # by name whole numbers stay as they are


# -- how values are written --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cell", "message", "value"),
    [
        (lambda n: f"{n},5", "column a holds numbers with a comma, such as '0,5'", 39.5),
        (
            lambda n: f"{n + 1}.234,5",
            "column a holds numbers with points and commas, such as '1.234,5'",
            40234.5,
        ),
        (lambda n: f"{n}%", "column a holds numbers with a sign, such as '0%'", 39),
        (lambda n: f"{n + 1},500", "column a holds numbers with commas, such as '1,500'", 40500),
        (lambda n: "-" if n == 7 else n, "1 of 40 values of column a are no numbers, e.g. '-'", 39),
    ],
)
def test_numbers_that_are_written_otherwise(
    file: Path, cell: Callable[[int], Any], message: str, value: float
) -> None:
    table(file, "a;y", lambda n: f"{cell(n)};{n}")
    error = told(Data.csv, file, label="y")
    assert error.startswith(message)
    x, y = whole(Data.csv(file, label="y", validation=None, **pasted(error)))
    assert x[y == 39].tolist() == [[value]]


def test_texts_are_read_in_their_encoding(file: Path) -> None:
    table(file, "ort,größe", lambda n: f"{['Köln', 'Bonn'][n % 2]},{n}", "latin-1")
    message = told(Data.csv, file, encode={"ort": "onehot"})
    assert "is not written in UTF-8" in message and 'encoding=, such as "latin-1"' in message
    data = Data.csv(file, encode={"ort": "onehot"}, encoding="latin-1")
    assert data.names == {"ort": ("Bonn", "Köln")} and "größe" in data.read("s000")  # type: ignore[arg-type]
    table(file, "ort,y", lambda n: f"{['Köln', 'Bonn'][n % 2]},{n}", "latin-1")
    message = told(Data.csv, file, label="y", encode={"ort": "onehot"})
    assert message == 'column ort is not written in UTF-8: write encoding="latin-1"'


def test_headers_that_are_not_as_they_seem(file: Path) -> None:
    table(file, "a,b,a", lambda n: f"{n},{n},{n}")
    assert told(Data.csv, file).startswith(
        "columns need different names; t.csv has several columns"
    )
    table(file, "a, b", lambda n: f"{n},{n}")
    assert "no column b (did you mean ' b'?); there are a, ' b'" in told(Data.csv, file, label="b")


def test_a_row_is_named_by_its_file_and_its_number(tmp_path: Path) -> None:
    table(tmp_path / "a.csv", "a,y", lambda n: f"{n},{n if n > 2 else ''}")
    table(tmp_path / "b.csv", "a,y", lambda n: f"{'?' if n == 7 else n},{n}")
    message = told(Data.csv, tmp_path, label="y")
    assert "column a is text in b.csv, e.g. '?', and not in" in message
    assert "give na_values=['?']" in message
    table(tmp_path / "a.csv", "a,y", lambda n: f"{'?' if n == 1 else n},{n if n > 2 else ''}")
    message = told(Data.csv, tmp_path, label="y", dropna=["y"])
    assert "1 of 77 values of column a are no numbers, e.g. '?' in row 9 of b.csv" in message


def test_a_column_without_values(tmp_path: Path) -> None:
    table(tmp_path / "t.csv", "a,none,y", lambda n: f"{n},,{n % 2}")
    message = told(Data.csv, tmp_path / "t.csv", label="y", fill=0)
    assert message == 'column none lacks 40 of 40 values: write drop=["none"]'
    message = told(Data.csv, tmp_path / "t.csv", label="none", fill=0)
    assert message == "column none lacks 40 of 40 values"


# -- functions that encode ---------------------------------------------------------------------


def days_since_the_first(days: list[datetime.date]) -> Callable[[Any], Any]:
    first = min(days)
    return lambda days: [(day - first).days for day in days]


def broken(days: list[datetime.date]) -> Callable[[Any], Any]:
    return lambda days: [day.dayz for day in days]


def test_a_function_gets_dates_and_its_error_names_column_and_line(file: Path) -> None:
    table(file, "day,y", lambda n: f"2024-02-{n % 28 + 1:02d},{n}")
    data = Data.csv(file, label="y", encode={"day": days_since_the_first}, validation=None)
    x, y = whole(data)
    assert np.array_equal(x[:, 0], y % 28)
    message = told(Data.csv, file, label="y", encode={"day": broken})
    line = broken.__code__.co_firstlineno + 1
    assert message.startswith("encode of column day raised AttributeError: ")
    assert message.endswith(
        f"(test_tables.py, line {line}); it got a list of 40 values of type date"
    )
    message = told(Data.csv, file, label="y", encode={"day": sum})
    assert "encode of column day raised TypeError" in message and "32 values" in message
    other = table(file.with_name("o.csv"), "day,y", lambda n: f",{n}")
    encode = {"day": days_since_the_first}
    message = told(Data.csv, file, label="y", encode=encode, validation=other)
    assert message.startswith("of the validation files: column day lacks 40 of 40 values")


# -- what was read before is read the same -------------------------------------------------------


def test_former_studies_find_their_tables_unchanged(tmp_path: Path) -> None:
    file = table(
        tmp_path / "t.csv",
        "a,b,city,day,y",
        lambda n: (
            f"{'' if n == 3 else n},{n / 4},{'' if n == 5 else 'xyz'[n % 3]},"
            f"2024-01-0{n % 9 + 1},{n % 3}"
        ),
    )
    encode = {"city": "onehot", "day": "ordinal"}
    fill = {"a": 0, "city": "none"}
    prints = [
        Data.csv(file, label="y", encode=encode, fill=fill).fingerprint,
        Data.csv(file, columns=["b", "a"], fill=-1, validation=None, shards=3).fingerprint,
        Data.csv(file, columns=["a", "y"], fill=2, stratify="y", seed=4).fingerprint,
        Data.csv(file, columns=["b", "day"], encode=encode, validation=file).fingerprint,
    ]
    assert prints == FORMER


def test_new_rows_are_read_and_filled_as_the_data(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_text("id;a;b;y\n9;1,5;1;0\n8;?;2;1\n7;2,5;5;\n6;8,5;7;1\n")
    options: dict[str, Any] = {"drop": ["id"], "dropna": ["y"], "na_values": ["?"], "decimal": ","}
    new = tmp_path / "new.csv"
    new.write_text("a;b;y\n?;?;1\n-1,5;3;\n")
    data = Data.csv(file, label="y", fill="mean", validation=None, **options)
    made = data.encode(new)
    assert made.tolist() == [[5, np.float32(10 / 3)], [-1.5, 3]]
    with pytest.raises(DataError, match="column y lacks 1 of 2 values: mend the new rows"):
        data.encode(new, columns=["y"])
    plain = Data.csv(file, fill={"a": "median", "b": 0, "y": 2}, na_values="?", decimal=",")
    read, columns = plain.read("s000"), plain.encode(new, columns=["a", "b", "y"])
    assert isinstance(read, dict) and isinstance(columns, dict)
    assert columns["b"].tolist() == [0, 3] and columns["y"].tolist() == [1, 2]
    for name, column in columns.items():
        assert column.numpy().dtype == read[name].dtype


# -- frames ------------------------------------------------------------------------------------


def test_a_frame_gives_what_its_file_gives(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(
        {
            "age": [None if n % 7 == 0 else float(n) for n in range(ROWS)],
            "city": pandas.Categorical(["BCK"[n % 3] for n in range(ROWS)]),
            "price": [n % 2 for n in range(ROWS)],
        },
        index=range(5, ROWS + 5),
    )
    frame.to_csv(tmp_path / "all.csv", index=False)
    how: dict[str, Any] = {"label": "price", "encode": {"city": "onehot"}, "fill": "mean"}
    one = Data.frame(frame, **how, stratify="price")
    other = Data.csv(tmp_path / "all.csv", **how, stratify="price")
    assert (one.fingerprint, repr(one)) == (other.fingerprint, repr(other))
    assert one.encode(frame).equal(other.encode(tmp_path / "all.csv"))  # type: ignore[union-attr]
    assert one.encode(pa.Table.from_pandas(frame)).equal(one.encode(frame))  # type: ignore[union-attr]
    both = Data.frame(frame[:30], validation=frame[30:], **how)
    assert (both.samples, both.size(both.validation[0])) == (30, 10)
    with pytest.raises(DataError, match='write encode={"city": "onehot"}, fill={"age": "median"}'):
        Data.frame(frame, label="price")


def test_what_scikit_learn_loads_is_a_frame() -> None:
    datasets = pytest.importorskip("sklearn.datasets")
    data = Data.frame(datasets.load_iris(as_frame=True), label="target", stratify="target")
    assert np.bincount(data.read(data.validation[0])[1]).tolist() == [10, 10, 10]  # type: ignore[index]


@pytest.mark.parametrize(
    ("frame", "said"),
    [
        (np.zeros((3, 2)), "needs a frame of pandas, Polars or pyarrow.*got ndarray"),
        ("houses.csv", "got str"),
    ],
)
def test_what_is_no_frame_is_refused(frame: Any, said: str) -> None:
    with pytest.raises(DataError, match=said):
        Data.frame(frame)


def test_a_frames_column_of_mixed_values_is_refused() -> None:
    pandas = pytest.importorskip("pandas")
    with pytest.raises(DataError, match="the frame cannot be read"):
        Data.frame(pandas.DataFrame({"a": [1, "x", b"y"]}))
