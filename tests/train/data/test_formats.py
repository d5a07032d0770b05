"""Files of other tools as data: their rows, their errors, and what stays in the files."""

import io
import json
import pickle
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from train_kit import S0, S1, Small, go, planned, rows_are_rows, trainer, trial

from shoal.train.data.columns import DataError
from shoal.train.data.data import Data
from shoal.train.stream.stream import Stream

pa = pytest.importorskip("pyarrow", reason="pip install pyarrow")
Image = pytest.importorskip("PIL.Image", reason="pip install pillow")


def jpeg(shade: int, size: tuple[int, int] = (6, 4), kind: str = "PNG") -> bytes:
    told = io.BytesIO()
    Image.new("RGB", size, (shade, 0, 255 - shade)).save(told, kind)
    return told.getvalue()


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
    (tmp_path / "b.arrow").write_bytes(b"nothing at all")
    with pytest.raises(DataError, match="cannot be read as Arrow"):
        Data.arrow(tmp_path / "b.arrow")


def test_lists_of_unequal_lengths_are_refused() -> None:
    datasets = pytest.importorskip("datasets", reason="pip install datasets")
    made = datasets.Dataset.from_dict({"x": [[1], [1, 2]]})
    with pytest.raises(DataError, match="must be equally long; got 1 to 2.*Data.dataset"):
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
