"""Files of other tools as data: their rows, their errors, and what stays in the files."""

import io
import json
import pickle
import tarfile
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
import torch
from PIL import Image
from train_kit import S0, S1, Small, go, planned, station, trial

from shoal.train.data.columns import DataError
from shoal.train.data.data import Data
from shoal.train.stream.stream import Stream

pa = pytest.importorskip("pyarrow", reason="pip install pyarrow")


def jpeg(shade: int, size: tuple[int, int] = (6, 4), kind: str = "PNG") -> bytes:
    told = io.BytesIO()
    Image.new("RGB", size, (shade, 0, 255 - shade)).save(told, kind)
    return told.getvalue()


def rows_are_rows(data: Data) -> None:
    """Some rows are those of the whole part, in any order, also where the data travelled."""
    assert data.by_rows
    for each in (data, pickle.loads(pickle.dumps(data))):
        for part in (*data.shards, *data.validation):
            whole = data.read(part)
            index = np.random.default_rng(1).permutation(data.size(part))[:5]
            some = each.rows(part, index)
            names = list(whole) if isinstance(whole, dict) else range(len(whole))
            for name in names:
                assert np.array_equal(whole[name][index], some[name])
                assert whole[name].dtype == some[name].dtype


# -- CSV and Parquet -----------------------------------------------------------------------------


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
    with pytest.raises(
        DataError, match="values that the training part lacks .new.*onehot"
    ):
        Data.csv(iris, encode={"kind": "ordinal"}, validation=more)


def test_parquet_is_as_csv(iris: Path, tmp_path: Path) -> None:
    from pyarrow import csv, parquet

    parquet.write_table(csv.read_csv(iris), tmp_path / "iris.parquet")
    one = Data.csv(iris, label="height", encode={"kind": "onehot"})
    other = Data.parquet(
        tmp_path / "iris.parquet", label="height", encode={"kind": "onehot"}
    )
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
    with pytest.raises(
        DataError, match=r"no column kin .*kind.*; there are number, kind"
    ):
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
        (
            {"columns": ["gap"]},
            r'column gap lacks 1 of 3 values: write fill=\{"gap": "median"\}',
        ),
        (
            {"columns": ["kind"], "encode": {"kind": "best"}},
            "must be one of onehot, ordinal, hash",
        ),
        (
            {"columns": ["kind"], "encode": {"kind": lambda values: 3}},
            "must return a function of values; got 3",
        ),
        (
            {
                "columns": ["kind"],
                "encode": {"kind": lambda values: lambda values: [1]},
            },
            "a number or a row of numbers for each of the 3 values",
        ),
    ],
)
def test_bad_tables_are_refused(tmp_path: Path, options: Any, rule: str) -> None:
    file = text(
        tmp_path / "t.csv", "width,height,kind,gap", "1,2,a,1", "1,2,b,", "1,2,c,3"
    )
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
    with pytest.raises(
        DataError, match=r'kind lacks 2 of 4 .*: write fill=\{"kind": "\?"\}'
    ):
        Data.csv(file, encode=encode, fill=0, validation=None)


# -- new rows --------------------------------------------------------------------------------------


def flats(
    folder: Path, name: str, *lines: str, head: str = "area,city,sold,dear"
) -> Path:
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
        tmp_path,
        "new.csv",
        "x,Oslo,,2024-01-05",
        "y,Oslo,3,2023-12-31",
        head="id,city,area,sold",
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
    with pytest.raises(
        DataError, match="column rooms of the new rows holds double, and int64"
    ):
        data.encode(half)


@pytest.mark.parametrize(
    ("head", "line", "rule"),
    [
        (
            "area,town,sold",
            "5,Oslo,2024-01-05",
            "no column city; there are area, town, sold",
        ),
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
        with pytest.raises(
            DataError, match=f"label, 'kind', or by its place 1; got {wrong!r}"
        ):
            data.balanced(wrong)


def test_a_missing_library_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    from shoal.train.data import parts

    def none(name: str) -> Any:
        raise ImportError("No module named 'pyarrow'")

    monkeypatch.setattr(parts, "import_module", none)
    with pytest.raises(DataError, match="Data.csv needs pyarrow: pip install pyarrow"):
        Data.csv("x.csv")


# -- Arrow ---------------------------------------------------------------------------------------


def arrow_file(path: Path, rows: int = 20) -> Path:
    table = pa.table(
        {
            "x": pa.FixedSizeListArray.from_arrays(pa.array(np.arange(rows * 3.0)), 3),
            "y": np.arange(rows),
            "raw": pa.array([bytes([n, n]) for n in range(rows)]),
        }
    )
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as out:
        out.write_table(table, max_chunksize=7)
    return path


def test_arrow_files_stay_in_their_files(tmp_path: Path) -> None:
    data = Data.arrow(arrow_file(tmp_path / "a.arrow"), columns=["x", "y"], shards=2)
    read = data.read(S0)
    assert read["x"].shape == (8, 3) and np.array_equal(read["x"][:, 0], read["y"] * 3)
    rows_are_rows(data)
    assert not data.serial and not data.in_memory
    decoded = Data.arrow(
        tmp_path, decode={"raw": lambda raw: np.frombuffer(raw, "u1")}, shards=2
    )
    assert decoded.serial and np.array_equal(
        decoded.read(S1)["raw"][:, 0], decoded.read(S1)["y"]
    )
    rows = data.rows(S0, np.array([3, 3, 0]))["y"].tolist()
    assert rows[0] == rows[1]


def test_a_dataset_of_hugging_face(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="pip install datasets")
    made = datasets.Dataset.from_dict(
        {"x": [[n, n + 1] for n in range(20)], "label": list(range(20))}
    )
    made.save_to_disk(str(tmp_path / "d"))
    saved = datasets.load_from_disk(str(tmp_path / "d"))
    for dataset in (
        made,
        saved,
        saved.shuffle(seed=3).select(range(4, 12)),
        saved.select(range(5, 9)),
    ):
        data = Data.arrow(dataset, validation=0.25)
        read = data.read(S0)
        assert np.array_equal(read["x"][:, 0], read["label"])
        labels = [
            *read["label"].tolist(),
            *data.read(data.validation[0])["label"].tolist(),
        ]
        assert sorted(labels) == sorted(dataset["label"])
        rows_are_rows(data)


def test_a_dataset_shows_the_columns_of_its_format_and_may_have_no_transform() -> None:
    datasets = pytest.importorskip("datasets", reason="pip install datasets")
    made = datasets.Dataset.from_dict({"x": [1, 2], "text": ["a", "b"]})
    shown = Data.arrow(made.with_format("torch", columns=["x"]), validation=None)
    assert list(shown.read(S0)) == ["x"]
    with pytest.raises(DataError, match=r"has a transform.*Data\.dataset"):
        Data.arrow(made.with_transform(lambda rows: rows), validation=None)


def test_pictures_of_a_dataset_are_decoded(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="pip install datasets")
    features = datasets.Features(
        {"image": datasets.Image(), "label": datasets.Value("int64")}
    )
    pictures = [{"bytes": jpeg(n * 10), "path": None} for n in range(6)]
    made = datasets.Dataset.from_dict(
        {"image": pictures, "label": list(range(6))}, features=features
    )
    read = Data.arrow(made, validation=None).read(S0)
    assert read["image"].shape == (6, 3, 4, 6) and np.array_equal(
        read["image"][:, 0, 0, 0], read["label"] * 10
    )


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({}, r'column raw holds binary, no numbers: give decode=\{"raw": a function'),
        ({"columns": ["z"]}, "no column z; there are x, y, raw"),
        ({"decode": {"raw": bytes.hex}}, "column raw must become numbers"),
    ],
)
def test_bad_arrow_files_are_refused(tmp_path: Path, options: Any, rule: str) -> None:
    with pytest.raises(DataError, match=rule):
        Data.arrow(arrow_file(tmp_path / "a.arrow"), **options)
    (tmp_path / "b.arrow").write_bytes(b"nothing at all")
    with pytest.raises(DataError, match="cannot be read as Arrow"):
        Data.arrow(tmp_path / "b.arrow")


def test_lists_of_unequal_lengths_are_refused() -> None:
    datasets = pytest.importorskip("datasets", reason="pip install datasets")
    made = datasets.Dataset.from_dict({"x": [[1], [1, 2]]})
    with pytest.raises(
        DataError, match="must be equally long; got 1 to 2.*Data.dataset"
    ):
        Data.arrow(made, validation=None)


@pytest.mark.parametrize("kind", [pa.list_(pa.int64()), pa.list_(pa.int64(), 2)])
def test_lists_that_lack_values_are_refused(kind: Any, tmp_path: Path) -> None:
    """Whole numbers have no NaN: what is missing would become some number."""
    from pyarrow import parquet

    table = pa.table({"x": pa.array([[1, 2], [3, None]], kind)})
    with pa.ipc.new_file(tmp_path / "a.arrow", table.schema) as writer:
        writer.write_table(table)
    with pytest.raises(DataError, match="column x lack 1 of 4 values"):
        Data.arrow(tmp_path / "a.arrow", validation=None).read(S0)
    parquet.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(DataError, match="column x lack 1 of 4 values"):
        Data.parquet(tmp_path / "a.parquet", validation=None)


# -- pictures ------------------------------------------------------------------------------------


def classes(root: Path, size: tuple[int, int] = (6, 4)) -> Path:
    for number, name in enumerate(["cat", "dog"]):
        (root / name).mkdir(parents=True)
        for each in range(10):
            (root / name / f"{each}.png").write_bytes(jpeg(number * 100 + each, size))
    return root


def test_a_folder_of_pictures_by_class(tmp_path: Path) -> None:
    data = Data.images(classes(tmp_path / "a"))
    assert data.names == {"1": ["cat", "dog"]}
    x, y = data.read(S0)
    assert x.shape == (16, 3, 4, 6) and x.dtype == np.uint8
    assert np.array_equal(x[:, 0, 0, 0] >= 100, y == 1)
    assert np.bincount(data.read(data.validation[0])[1]).tolist() == [2, 2]
    rows_are_rows(data)
    small = Data.images(tmp_path / "a", size=(2, 3), validation=classes(tmp_path / "b"))
    assert small.samples == 20 and small.read(small.validation[0])[0].shape == (
        20,
        3,
        2,
        3,
    )
    assert small.fingerprint != data.fingerprint


def test_bad_pictures_are_refused(tmp_path: Path) -> None:
    root = classes(tmp_path / "a")
    with pytest.raises(DataError, match="no such folder"):
        Data.images(tmp_path / "none")
    with pytest.raises(DataError, match="size must be a number of pixels"):
        Data.images(root, size="big")  # type: ignore[arg-type]
    (root / "dog" / "0.png").write_bytes(jpeg(5, (9, 9)))
    with pytest.raises(
        DataError, match=r"one shape; got .*give size=\(height, width\)"
    ):
        Data.images(root, validation=None).read(S0)
    (root / "fox").mkdir()
    with pytest.raises(DataError, match="fox has no pictures"):
        Data.images(root)
    with pytest.raises(DataError, match="none found"):
        Data.images(root / "fox")


# -- tar files -----------------------------------------------------------------------------------


def tar(path: Path, count: int, start: int = 0, **more: Any) -> Path:
    with tarfile.open(path, "w") as out:
        for n in range(start, start + count):
            npy = io.BytesIO()
            np.save(npy, np.full(3, n, "f4"))
            members = {
                "png": jpeg(n),
                "npy": npy.getvalue(),
                "cls": str(n).encode(),
                "json": json.dumps([n, n]).encode(),
                **more,
            }
            for ending, content in members.items():
                info = tarfile.TarInfo(f"some/{n:04}.{ending}")
                info.size = len(content)
                out.addfile(info, io.BytesIO(content))
    return path


def test_a_tar_file_is_a_shard(tmp_path: Path) -> None:
    for number in range(3):
        tar(tmp_path / f"{number}.tar", 5 + number, 10 * number)
    data = Data.tar(tmp_path)
    assert list(data.sizes.values()) == [5, 6, 7]
    read = data.read(S1)
    assert list(read) == ["cls", "json", "npy", "png"]
    assert read["cls"].tolist() == list(range(10, 16))
    assert np.array_equal(read["png"][:, 0, 0, 0], read["cls"])
    assert np.array_equal(read["npy"][:, 2], read["json"][:, 1])
    rows_are_rows(data)
    pair = Data.tar(tmp_path / "*.tar", columns=("png", "cls"), size=2, validation=0.3)
    x, _ = pair.read(S0)
    assert x.shape[1:] == (3, 2, 2) and len(pair.validation) == 1


def test_bad_tar_files_are_refused(tmp_path: Path) -> None:
    file = tar(tmp_path / "a.tar", 2, txt=b"words")
    with pytest.raises(DataError, match=r'members .txt are not .*give decode=\{"txt"'):
        Data.tar(file)
    counted = Data.tar(file, columns=["txt"], decode={"txt": len})
    assert counted.read(S0)[0].tolist() == [5, 5] and counted.serial
    with pytest.raises(DataError, match="it lacks wav"):
        Data.tar(file, columns=["png", "wav"], decode={"wav": len})
    with pytest.raises(DataError, match=r"\.txt must become numbers"):
        Data.tar(file, columns=["txt"], decode={"txt": bytes.decode})
    (tmp_path / "b.tar").write_bytes(b"nothing")
    with pytest.raises(DataError, match="cannot be read as a tar file"):
        Data.tar(tmp_path / "b.tar")


# -- files of one's own, and arrays in files -----------------------------------------------------


def test_files_by_a_function_of_ones_own(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py", reason="pip install h5py")
    for number in range(3):
        with h5py.File(tmp_path / f"{number}.h5", "w") as file:
            file["x"], file["y"] = (
                np.full((4 + number, 2), number),
                np.arange(4 + number),
            )

    def read(path: Path) -> Any:
        with h5py.File(path) as file:
            return file["x"][:], file["y"][:]

    data = Data.files(tmp_path / "*.h5", read, validation=0.4)
    assert len(data.shards) == 2 and len(data.validation) == 1 and not data.by_rows
    assert data.rows(S0, np.array([2, 0]))[1].tolist() == [2, 0]
    with pytest.raises(DataError, match=r"read\('0.h5'\) raised KeyError"):
        Data.files(tmp_path / "0.h5", lambda path: {}["x"])
    with pytest.raises(DataError, match="1.h5 gives others"):
        Data.files(tmp_path / "*.h5", lambda path: read(path)[: 1 + (path.stem == "0")])
    with pytest.raises(DataError, match="read must be a function"):
        Data.files(tmp_path / "*.h5", "x")  # type: ignore[arg-type]


@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_in_files_are_not_read_into_memory(tmp_path: Path, order: Any) -> None:
    whole = np.asarray(np.arange(600.0).reshape(100, 6), order=order)
    np.save(tmp_path / "x.npy", whole)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    data = Data.arrays(x=mapped, validation=0.2)
    assert len(pickle.dumps(data)) < 4800, "it travels as the name of the file"
    rows_are_rows(data)
    assert np.array_equal(
        data.read(S0)["x"], Data.arrays(x=whole, validation=0.2).read(S0)["x"]
    )
    cut = Data.arrays(x=mapped[10:30], validation=None)
    assert sorted(cut.read(S0)["x"][:, 0].tolist()) == whole[10:30, 0].tolist()
    np.save(tmp_path / "x.npy", whole + 1)
    other = Data.arrays(x=np.load(tmp_path / "x.npy", mmap_mode="r"), validation=0.2)
    assert other.fingerprint != data.fingerprint


# -- training ------------------------------------------------------------------------------------


class Pixels(Small):
    def prepare(self, samples: Any) -> Any:
        x = samples[0].reshape(len(samples[0]), -1)[:, :6].astype("f4") / 255
        return x, samples[1] % 3


def test_training_out_of_files_is_training_in_memory(tmp_path: Path) -> None:
    """With room for nothing: each pass reads its chunks anew."""
    files = Data.images(classes(tmp_path), shards=2, validation=None)
    ends = []
    for part, memory in ((files, 0.0), (files, 1.0), (_in_memory(files), 1.0)):
        part.chunk = 3
        held = station(Pixels(), part, data_memory_gb=memory)
        go(held, trial(), planned(part, 2))
        ends.append(held.state(trial().id)["model"]["0.weight"].copy())
    assert np.array_equal(ends[0], ends[1]) and np.array_equal(ends[0], ends[2])


class Held:
    """A source whose shards are in memory."""

    serial = False

    def __init__(self, data: Data) -> None:
        self.parts = {part: data.read(part) for part in data.shards}

    def read(self, part: Any) -> Any:
        return self.parts[part]


def _in_memory(data: Data) -> Data:
    other = pickle.loads(pickle.dumps(data))
    other._source = Held(data)
    assert isinstance(other, Data)
    return other


def test_a_stream_holds_no_more_than_its_memory(tmp_path: Path) -> None:
    data = Data.images(classes(tmp_path), validation=None)
    data.chunk = 2
    room = 3 * 2 * data.read(S0)[0][0].nbytes / 2**30
    stream = Stream(Pixels(), data, seed=1, device=torch.device("cpu"), memory_gb=room)
    for turn in range(2):
        for _ in stream.chunks(S0, turn):
            assert stream._cache.total <= room * 2**30
