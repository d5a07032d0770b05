"""Data as people have it: each kind works, or gives one error that says what to do."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
    random_split,
)
from train_kit import S0, Small

from shoal.train.data.columns import DataError
from shoal.train.data.data import Data
from shoal.train.recipe.recipe import Recipe
from shoal.train.recipe.recipe_data import bring
from shoal.train.stream.stream import Stream

PAIRS = TensorDataset(torch.arange(60.0).reshape(60, 1), torch.arange(60) % 3)
LABELS = np.arange(50) % 3


def brought(made: Any) -> Data:
    recipe = Recipe()
    recipe.data = lambda: made  # type: ignore[method-assign]
    return bring(recipe)


def stream(data: Data, recipe: Any = None) -> Stream:
    device = torch.device("cpu")
    return Stream(recipe or Small(), data, seed=0, device=device, memory_gb=1.0)


class Made(Dataset[Any]):
    """Items by a function of their number; it does not say where they end."""

    def __init__(self, item: Any, count: int = 60) -> None:
        self.item, self.count = item, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> Any:
        return self.item(number)


class Flowing(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        yield from ((torch.ones(2) * number, number % 3) for number in range(70))


# -- arrays, frames, matrices -------------------------------------------------------------------


def sparse(kind: str) -> Any:
    scipy = pytest.importorskip("scipy.sparse", reason="pip install scipy")
    return scipy.random(50, 10, 0.3, format=kind, random_state=0)


@pytest.mark.parametrize(
    ("column", "rule"),
    [
        (lambda: sparse("csr"), r"must be dense; got a sparse csr.*give \.toarray\(\)"),
        (lambda: torch.eye(50).to_sparse(), r"must be dense.*give \.to_dense\(\)"),
        (lambda: [[1, 2], [3]] * 25, "rows of one shape.*Data.dataset"),
        (lambda: np.array(["a", "b"] * 25), "dtype <U1: encode text first, as np.uniq"),
        (lambda: np.array(["2024-01-01"] * 50, "M8[D]"), "dates as numbers of days"),
    ],
)
def test_columns_that_are_no_numbers_say_what_to_do(column: Any, rule: str) -> None:
    with pytest.raises(DataError, match=rule) as told:
        Data.arrays(column(), LABELS)
    assert len(str(told.value)) < 400


def test_a_frame_and_its_columns() -> None:
    pandas = pytest.importorskip("pandas", reason="pip install pandas")
    frame = pandas.DataFrame({"a": np.arange(50.0), "b": 1.0, "y": LABELS})
    x, y = Data.arrays(frame[["a", "b"]], frame["y"], validation=None).read(S0)
    assert x.shape == (50, 2) and set(y.tolist()) == {0, 1, 2}
    named = Data.arrays(**{name: frame[name] for name in frame}, validation=None)
    assert set(named.read(S0)) == {"a", "b", "y"}
    frame.loc[3, "a"] = np.nan
    with pytest.warns(UserWarning, match="column 0 has 1 values that are NaN, of 100"):
        Data.arrays(frame[["a", "b"]], frame["y"])


# -- datasets -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("item", "rule"),
    [
        (lambda n: None if n % 10 == 3 else (n, n), "must not be None.*Subset"),
        (lambda n: (n, None if n % 10 == 2 else n), r"\(int, int\) and \(int, NoneTyp"),
    ],
)
def test_items_that_are_none_are_refused(item: Any, rule: str) -> None:
    with pytest.raises(DataError, match=rule):
        brought(Data.dataset(Made(item)))


def test_items_of_a_dict_and_a_label() -> None:
    data = brought(Data.dataset(Made(lambda n: ({"a": torch.ones(2) * n}, n % 3))))
    (lot,) = stream(data).chunks(S0, 0)
    named, labels = lot.batch()  # type: ignore[union-attr]
    assert torch.equal(named["a"][:, 0] % 3, labels.float())


def test_datasets_as_they_are() -> None:
    first, second = random_split(PAIRS, [40, 20])
    data = brought((first, second))
    assert data.samples == 40 and data.size(data.validation[0]) == 20
    assert brought(PAIRS).samples == 60
    assert brought(Data.dataset(ConcatDataset([PAIRS, PAIRS]), None)).samples == 120
    for made in ((np.ones(3), np.ones(3)), [1, 2, 3]):
        with pytest.raises(DataError, match=r"return shoal.Data.arrays\(x, y\)"):
            brought(made)


def test_validation_on_the_training_dataset_itself_takes_nothing_of_its_weights() -> None:
    sampler = WeightedRandomSampler([1.0, 0.0, 0.0] * 20, 60)
    data = brought((DataLoader(PAIRS, 8, sampler=sampler), DataLoader(PAIRS, 8)))
    assert data.samples == data.size(data.validation[0]) == 60
    assert {int(y) for chunk in stream(data).chunks(S0, 0) for y in chunk[1]} == {0}


def test_iterable_and_map_style_datasets_together() -> None:
    item = lambda n: (torch.ones(2) * n, n % 3)  # noqa: E731
    data = Data.dataset(Flowing(), Made(item, 9))
    assert data.samples == 70 and data.size(data.validation[0]) == 9
    with pytest.raises(DataError, match=r"got Flowing: give list\(…\) of it"):
        Data.dataset(Made(item), Flowing())
    with pytest.raises(DataError, match=r"got generator: give list\(…\) of it"):
        Data.dataset(iter(Flowing()))  # type: ignore[arg-type]


# -- files --------------------------------------------------------------------------------------


def test_a_wide_table_names_all_that_stands_in_the_way_at_once(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="pip install pyarrow")
    names = [f"f{number}" for number in range(196)]
    head = ",".join([*names, "note", "day", "gap", "kind"])
    rows = [
        ",".join([*["0.5"] * 196, f"text {n}", f"2024-01-0{n}", "" if n == 4 else "1", "ab"[n % 2]])
        for n in range(1, 9)
    ]
    file = tmp_path / "wide.csv"
    file.write_text("\n".join([head, *rows]) + "\n")
    with pytest.raises(DataError, match="column note holds string.*column gap lacks 1") as told:
        Data.csv(file, label="kind")
    assert "column day holds date32" in str(told.value)
    with pytest.raises(
        DataError, match="no column Kind .did you mean kind.*; there are f0, .* and 180 more"
    ):
        Data.csv(file, label="Kind")
    encode = {"kind": "ordinal", "note": "hash", "day": "ordinal"}
    x, y = Data.csv(file, label="kind", encode=encode, fill=0, validation=None).read(S0)
    assert x.shape == (8, 199) and sorted(y.tolist()) == [0] * 4 + [1] * 4


def test_a_parquet_file_with_lists(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow", reason="pip install pyarrow")
    from pyarrow import parquet

    lists = [[float(n), 1.0] for n in range(30)]
    ragged = [[1] * (n % 3) for n in range(30)]
    table = pa.table({"x": lists, "z": list(range(30)), "r": ragged})
    parquet.write_table(table, tmp_path / "a.parquet", row_group_size=7)
    by_name = Data.parquet(tmp_path, columns=["x", "z"], validation=None).read(S0)
    assert np.array_equal(by_name["x"][:, 0], by_name["z"])  # type: ignore[call-overload]
    x, _ = Data.parquet(tmp_path, columns=["x"], label="z", validation=None).read(S0)
    assert x.shape == (30, 2)
    with pytest.raises(DataError, match="column r must be equally long; got 0 to 2"):
        Data.parquet(tmp_path, columns=["r"])


def test_pictures_of_all_kinds_in_one_folder(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image", reason="pip install pillow")
    for name in ("cat", "dog", ".cache"):
        (tmp_path / name).mkdir()
    shades = np.full((5, 7), 3 * 256 + 7, np.uint16)
    pictures = {
        "rgb": image.new("RGB", (9, 6), (3, 3, 3)),
        "grey": image.new("L", (4, 4), 3),
        "deep": image.fromarray(shades),
        "clear": image.new("RGBA", (8, 8), (3, 3, 3, 0)),
    }
    for name, picture in pictures.items():
        picture.save(tmp_path / "cat" / f"{name}.png")
        picture.save(tmp_path / "dog" / f"{name}.png")
    (tmp_path / "dog" / "notes.txt").write_text("no picture")
    data = Data.images(tmp_path, size=6, validation=None)
    read, _ = data.read(S0)
    assert read.shape == (8, 3, 6, 6) and (read == 3).all()
    assert data.names["1"] == ["cat", "dog"]
    with pytest.raises(DataError, match=r"give size=\(height, width\)"):
        Data.images(tmp_path)
    (tmp_path / "dog" / "bad.png").write_bytes(b"\x89PNG\r\n\x1a\nnothing")
    with pytest.raises(DataError, match=r"bad\.png cannot be read as a picture.*leave it out"):
        Data.images(tmp_path, size=6, validation=None).read(S0)


# -- lists as values ----------------------------------------------------------------------------


def test_buckets_count_the_values_of_lists() -> None:
    lists = [{"ids": [300 * 10**6] * 2 + [1] * (n % 2), "n": n} for n in range(8)]
    lists += [{"ids": [1] * 6, "n": n} for n in range(8, 16)]

    def taken(items: list[Any]) -> Any:
        return default_collate([(len(item["ids"]), item["n"]) for item in items])

    class Pairs(Small):
        batch_size = 2

    data = Data.dataset(lists, None, collate=taken).bucketed(by="ids")
    (lot,) = stream(data, Pairs()).chunks(S0, 0)
    lengths = lot.batch()[0].tolist()  # type: ignore[union-attr]
    groups = {tuple(lengths[:8]), tuple(lengths[8:])}
    assert groups == {(2,) * 4 + (3,) * 4, (6,) * 8}
    odd = Data.dataset([(Odd(), n) for n in range(4)], None, collate=taken)
    with pytest.raises(ValueError, match="got a Odd: give bucketed"):
        next(stream(odd.bucketed(by=0), Pairs()).chunks(S0, 0))


class Odd:
    """An object without a length."""
