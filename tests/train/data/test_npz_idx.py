"""A folder of .npz files, and IDX files, as data."""

import gzip
import pickle
import shutil
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from train_kit import S0, S1, Small, go, planned, trainer, trial

from shoal.train.data.data import Data, DataError

X, Y = np.arange(200, dtype=np.float32).reshape(100, 2), np.arange(100) % 4


# -- a folder
# ----------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "data"
    path.mkdir()
    for i in range(4):
        np.savez(path / f"{i}.npz", x=X[i * 20 : i * 20 + 20 - i], y=Y[i * 20 : i * 20 + 20 - i])
    return path


def test_a_folder_has_a_shard_per_file(folder: Path) -> None:
    data = Data.folder(folder)
    assert list(data.sizes.values()) == [20, 19, 18, 17] and data.validation == ()
    read = data.read(S1)
    assert isinstance(read, dict) and np.array_equal(read["x"], X[20:39])
    part = Data.folder(folder, validation=0.25)
    assert (
        len(part.shards) == 3
        and part.shards == ("s000", "s001", "s002")
        and len(part.validation) == 1
    )
    other = Data.folder(folder, validation=folder, pattern="[01].npz")
    assert len(other.shards) == len(other.validation) == 2


def test_arrays_saved_without_names_make_tuples(tmp_path: Path) -> None:
    columns = [np.full(3, i) for i in range(11)]  # arr_10 must not come before arr_2
    np.savez_compressed(tmp_path / "a.npz", *columns)
    read = Data.folder(tmp_path).read(S0)
    assert isinstance(read, tuple) and [int(column[0]) for column in read] == list(range(11))


def test_rows_of_files_that_are_not_compressed_are_read_where_they_lie(tmp_path: Path) -> None:
    columns = {
        "z": np.arange(60.0).reshape(20, 3),
        "a": np.asfortranarray(np.arange(80, dtype="i2").reshape(20, 2, 2)),
        "flags": np.arange(20) % 3 == 0,
    }
    chosen = np.array([7, 3, 19, 7])
    for save in (np.savez, np.savez_compressed):
        save(tmp_path / "0.npz", **columns)
        data = Data.folder(tmp_path)
        assert data.by_rows == (save is np.savez)
        sent = pickle.loads(pickle.dumps(data))
        whole = data.read(S0)
        assert isinstance(whole, dict)
        for rows in (data.rows(S0, chosen), sent.rows(S0, chosen)):
            assert isinstance(rows, dict) and list(rows) == list(whole) == list(columns)
            for name, column in whole.items():
                wanted = column[chosen]
                assert rows[name].strides == wanted.strides
                assert rows[name].tobytes() == wanted.tobytes()
        assert len(pickle.dumps(data)) < 4000


def test_a_file_that_goes_away_later_stops_the_study_not_the_trial(folder: Path) -> None:
    data = Data.folder(folder)
    held = trainer(_Pairs(), data, data_memory_gb=0)
    made = go(held, trial(), planned(data, 1)[:1])
    (folder / "1.npz").unlink()
    with pytest.raises(
        DataError,
        match=r"s001 cannot be read \(FileNotFoundError: .*1.npz.*\); bring it back, then resume",
    ):
        go(held, trial(), planned(data, 1)[1:], made)
    np.savez(folder / "1.npz", x=X[:4], y=Y[:4])
    with pytest.raises(DataError, match="s001 cannot be read .it had 19 samples and now has 4"):
        data.read(S1)
    (folder / "1.npz").write_bytes(b"PK\3\4 nonsense")
    with pytest.raises(DataError, match="s001 cannot be read"):
        data.read(S1)


class _Pairs(Small):
    def prepare(self, samples: Any) -> Any:
        return np.tile(samples["x"], 3), samples["y"] % 3


def test_a_folders_fingerprint_is_of_content_not_of_place_or_time(
    folder: Path, tmp_path: Path
) -> None:
    before = Data.folder(folder).fingerprint
    shutil.copytree(folder, tmp_path / "copy")
    assert Data.folder(tmp_path / "copy").fingerprint == before
    x = X[:20].copy()
    x[0, 0] += 1
    np.savez(folder / "0.npz", x=x, y=Y[:20])  # as large as before
    assert Data.folder(folder).fingerprint != before
    assert Data.folder(folder, validation=0.5).fingerprint != Data.folder(folder).fingerprint


def test_bad_folders_are_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"must be a folder with files \*\.npz; no such folder"):
        Data.folder(tmp_path / "none")
    with pytest.raises(DataError, match=r"files \*\.csv; none found"):
        Data.folder(folder, "*.csv")
    with pytest.raises(DataError, match="between 0 and 1 of two files or more; got 0.5 of 1"):
        Data.folder(folder, "0.npz", validation=0.5)
    for content, rule in (
        ({"x": X[:3]}, r"same columns; 0.npz has x <f4\[2\], y <i8\[\], 9.npz has x <f4\[2\]"),
        (
            {"x": X[:3], "y": Y[:2]},
            "9.npz: columns must have the same number of samples; got x: 3, y: 2",
        ),
        ({"x": X[:0], "y": Y[:0]}, "every shard needs a sample; empty: s004"),
        ({"x": X[:1], "y": np.array(["a"])}, "columns must hold numbers; got y of <U1"),
        ({"x": np.float32(1)}, "first axis is samples"),
        ({}, "got none"),
    ):
        np.savez(folder / "9.npz", **content)
        with pytest.raises(DataError, match=rule):
            Data.folder(folder)
    (folder / "9.npz").write_bytes(b"not a zip")
    with pytest.raises(DataError, match="9.npz cannot be read as .npz"):
        Data.folder(folder)


# -- IDX
# ----------------------------------------------------------------------------------------------


def idx(array: np.ndarray, code: int = 8) -> bytes:
    return (
        struct.pack(">BBBB", 0, 0, code, array.ndim)
        + struct.pack(f">{array.ndim}I", *array.shape)
        + array.tobytes()
    )


@pytest.fixture
def digits(tmp_path: Path) -> tuple[Path, Path]:
    images = (np.arange(50 * 12) % 251).astype("u1").reshape(50, 4, 3)
    (tmp_path / "images.gz").write_bytes(gzip.compress(idx(images)))
    (tmp_path / "labels").write_bytes(idx((np.arange(50) % 10).astype("u1")))
    return tmp_path / "images.gz", tmp_path / "labels"


def test_idx_files(digits: tuple[Path, Path]) -> None:
    data = Data.idx(*digits, shards=2, validation=0.2, stratify=1)
    x, y = data.read(S0)
    assert x.dtype == np.uint8 and x.shape == (20, 4, 3) and y.dtype == np.int64
    assert np.bincount(data.read(data.validation[0])[1]).tolist() == [1] * 10
    apart = Data.idx(*digits, validation=digits)
    assert apart.samples == 50 and apart.size(apart.validation[0]) == 50
    images, labels = apart.read(apart.validation[0])
    assert images[7].reshape(-1).tolist() == [
        (84 + i) % 251 for i in range(12)
    ] and labels.tolist() == [i % 10 for i in range(50)]


def test_idx_of_wide_numbers_comes_in_this_machines_order(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(idx(np.array([1.5, -2.0], ">f4"), 0x0D))
    (tmp_path / "y").write_bytes(idx(np.array([0, 1], "u1")))
    x, _ = Data.idx(tmp_path / "x", tmp_path / "y").read(S0)
    assert x.tolist() in ([1.5, -2.0], [-2.0, 1.5]) and x.dtype.isnative


def test_bad_idx_files_are_refused(digits: tuple[Path, Path], tmp_path: Path) -> None:
    images, labels = digits
    whole = labels.read_bytes()
    for content, rule in (
        (whole[:-1], "cut short or damaged: it should have 58 bytes and has 57; get it again"),
        (whole[:6], "cut short or damaged"),
        (b"PNG..", "is not an IDX file: it begins with 50 4e 47 2e, not with 00 00"),
        (b"", "it begins with nothing"),
        (idx(np.arange(9, dtype="u1")), "same number of samples; got 0: 50, 1: 9"),
        (gzip.compress(whole, mtime=0)[:-9], "cannot be read"),
    ):
        (tmp_path / "bad").write_bytes(content)
        with pytest.raises(DataError, match=rule):
            Data.idx(images, tmp_path / "bad")
    with pytest.raises(DataError, match="none cannot be read"):
        Data.idx(images, tmp_path / "none")
    with pytest.raises(DataError, match=r"\(images, labels\), a fraction, or None; got 1 files"):
        Data.idx(images, labels, validation=(images,))
