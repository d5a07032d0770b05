"""CSV and Parquet files as data: encoding, missing values, new rows, and errors."""

import pickle
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
    with pytest.raises(DataError, match="no such file: .*none.csv"):
        Data.csv(tmp_path / "none.csv")
    (tmp_path / "bad.parquet").write_bytes(b"nothing")
    with pytest.raises(DataError, match="cannot be read as parquet"):
        Data.parquet(tmp_path / "bad.parquet")


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
