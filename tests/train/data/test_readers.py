"""Each reader of files: what it reads, what stays in the files, and its errors."""

import gzip
import pickle
import shutil
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from reader_kit import FORMATS, arrow_file, jpeg, tar
from train_kit import S0, S1, Small, go, planned, rows_are_rows, trainer, trial

from shoal.train.data.columns import DataError
from shoal.train.data.data import Data
from shoal.train.stream.stream import Stream

# -- all formats -----------------------------------------------------------------------------------


@pytest.fixture(params=FORMATS)
def form(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_a_reader_gives_all_samples_also_where_the_data_travelled(
    form: str, tmp_path: Path
) -> None:
    made = FORMATS[form]
    path = tmp_path / f"a{made.ending}"
    made.write(path, 9)
    data = made.read(path)
    assert data.sizes == {"s000": 9} and data.validation == ()
    assert sorted(data.read(S0)[made.column].tolist()) == list(range(9))  # type: ignore[call-overload]
    assert data.in_memory == made.in_memory
    assert data.by_rows == (form != "packed npz")
    if data.by_rows:
        rows_are_rows(data)
    chosen = np.array([7, 3, 7])
    whole, rows = data.read(S0)[made.column], data.rows(S0, chosen)[made.column]  # type: ignore[call-overload]
    assert np.array_equal(whole[chosen], rows)


def test_a_fingerprint_is_of_content_not_of_place(form: str, tmp_path: Path) -> None:
    made = FORMATS[form]
    prints = []
    for folder, count in (("one", 9), ("other", 9), ("longer", 10)):
        (tmp_path / folder).mkdir()
        path = tmp_path / folder / f"a{made.ending}"
        made.write(path, count)
        prints.append(made.read(path).fingerprint)
    assert prints[0] == prints[1] != prints[2]


def test_a_file_at_a_node_is_read_in_its_order(form: str, tmp_path: Path) -> None:
    made = FORMATS[form]
    path = tmp_path / f"a{made.ending}"
    made.write(path, 5)
    data = Data.shards({"s": {"local": str(path)}})
    read = data.read(data.shards[0])[made.column]  # type: ignore[call-overload]
    assert read.tolist() == [0, 1, 2, 3, 4]
    assert data.sizes == {"s": 5} and data.by_rows == made.by_rows


@pytest.mark.parametrize(
    ("form", "rule"),
    [
        ("csv", "cannot be read as csv"),
        ("parquet", "cannot be read as parquet"),
        ("arrow", "cannot be read as Arrow"),
        ("tar", "cannot be read as a tar file"),
        ("npz", "a.npz cannot be read as .npz"),
    ],
)
def test_a_damaged_file_is_named_and_so_is_one_that_is_not_there(
    tmp_path: Path, form: str, rule: str
) -> None:
    made = FORMATS[form]
    path = tmp_path / f"a{made.ending}"
    with pytest.raises(DataError, match="no such file|none found"):
        made.read(path)
    path.write_bytes(b"" if form == "csv" else b"nothing at all")
    with pytest.raises(DataError, match=rule):
        made.read(path)


# -- Arrow ---------------------------------------------------------------------------------------


def test_arrow_files_stay_in_their_files(tmp_path: Path) -> None:
    data = Data.arrow(arrow_file(tmp_path / "a.arrow"), columns=["x", "y"], shards=2)
    read = data.read(S0)
    assert read["x"].shape == (8, 3) and np.array_equal(read["x"][:, 0], read["y"] * 3)
    rows_are_rows(data)
    assert not data.serial and not data.in_memory
    decoded = Data.arrow(tmp_path, decode={"raw": lambda raw: np.frombuffer(raw, "u1")}, shards=2)
    assert decoded.serial and np.array_equal(decoded.read(S1)["raw"][:, 0], decoded.read(S1)["y"])
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
        labels = [*read["label"].tolist(), *data.read(data.validation[0])["label"].tolist()]
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
    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
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


def test_lists_of_unequal_lengths_are_refused() -> None:
    datasets = pytest.importorskip("datasets", reason="pip install datasets")
    made = datasets.Dataset.from_dict({"x": [[1], [1, 2]]})
    with pytest.raises(DataError, match="must be equally long; got 1 to 2.*Data.dataset"):
        Data.arrow(made, validation=None)


@pytest.mark.parametrize("length", [-1, 2])
def test_lists_that_lack_values_are_refused(length: int, tmp_path: Path) -> None:
    """Whole numbers have no NaN: what is missing would become some number."""
    pa = pytest.importorskip("pyarrow", reason="pip install pyarrow")
    from pyarrow import parquet

    table = pa.table({"x": pa.array([[1, 2], [3, None]], pa.list_(pa.int64(), length))})
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
    assert small.samples == 20 and small.read(small.validation[0])[0].shape == (20, 3, 2, 3)
    assert small.fingerprint != data.fingerprint


def test_bad_pictures_are_refused(tmp_path: Path) -> None:
    root = classes(tmp_path / "a")
    with pytest.raises(DataError, match="no such folder"):
        Data.images(tmp_path / "none")
    with pytest.raises(DataError, match="size must be a number of pixels"):
        Data.images(root, size="big")  # type: ignore[arg-type]
    (root / "dog" / "0.png").write_bytes(jpeg(5, (9, 9)))
    with pytest.raises(DataError, match=r"one shape; got .*give size=\(height, width\)"):
        Data.images(root, validation=None).read(S0)
    (root / "fox").mkdir()
    with pytest.raises(DataError, match="fox has no pictures"):
        Data.images(root)
    with pytest.raises(DataError, match="none found"):
        Data.images(root / "fox")


# -- tar files -----------------------------------------------------------------------------------


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


# -- files of one's own, and arrays in files -----------------------------------------------------


def test_files_by_a_function_of_ones_own(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py", reason="pip install h5py")
    for number in range(3):
        with h5py.File(tmp_path / f"{number}.h5", "w") as file:
            file["x"], file["y"] = (np.full((4 + number, 2), number), np.arange(4 + number))

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
    assert np.array_equal(data.read(S0)["x"], Data.arrays(x=whole, validation=0.2).read(S0)["x"])
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
        held = trainer(Pixels(), part, data_memory_gb=memory)
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
