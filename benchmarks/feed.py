"""JPEG files with random augmentation: Shoal's workers against torch's DataLoader, for one model
and for four; and data larger than the memory for it, in three formats.

20 000 JPEG files (made here) are decoded to 96 x 96, cropped to 80 x 80 and turned over at random:
by the same calls of Pillow and NumPy on both sides, one a sample, and with the same model. Counted
are samples of training a second, from the start of the study (or of the first loader) to its end:
starting workers counts. Shoal keeps what was decoded within `data_memory_gb`, so that later epochs
only vary it; a DataLoader decodes in each epoch. Four models: Shoal trains them as one pack over
one stream; with DataLoaders each model has a loop and a loader of its own, one after the other (as
many samples a second as one model) or all at once, and the quicker way counts.

Out of core, with one worker: `data_memory_gb` is a quarter of the decoded pictures. The same
pictures as JPEG files in class folders, as raw pixels in an Arrow file, and as JPEG files in tar
shards; the loader's Dataset reads the same files at random. Peak memory is what the process and its
workers hold at a time beyond files that are mapped (Linux: anonymous and shared pages, shared ones
counted once).

    python benchmarks/feed.py [--short]
"""

from __future__ import annotations

import argparse
import io
import json
import subprocess
import sys
import tarfile
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from common import show, write
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import shoal

FILE, SIDE, CROP, CLASSES, BATCH, MODELS = 128, 96, 80, 10, 64, 4
TARS = 16
ROWS = 40  # of a batch in the Arrow file; the number of files is a multiple
LONG = {"files": 20_000, "epochs": 3, "workers": [0, 1, 2], "epochs out of core": 2}
SHORT = {"files": 240, "epochs": 2, "workers": [0, 1], "epochs out of core": 2}
FORMATS = ("images", "arrow", "tar")


# -- the files ---------------------------------------------------------------------------------


def made(count: int, home: Path) -> None:
    """The pictures in three formats: noise of several scales, tinted by class."""
    rng = np.random.default_rng(0)
    schema = pa.schema([("pixels", pa.binary(3 * SIDE * SIDE)), ("label", pa.int64())])
    with ExitStack() as open_:
        tars = [
            open_.enter_context(tarfile.open(home / f"{number:02}.tar", "w"))
            for number in range(TARS)
        ]
        sink = open_.enter_context(pa.OSFile(str(home / "all.arrow"), "wb"))
        arrow = open_.enter_context(pa.ipc.new_file(sink, schema))
        for start in range(0, count, ROWS):
            labels = [number % CLASSES for number in range(start, start + ROWS)]
            contents = [jpeg(rng, label) for label in labels]
            for number, content in enumerate(contents, start):
                folder = home / "images" / f"{number % CLASSES}"
                folder.mkdir(parents=True, exist_ok=True)
                (folder / f"{number:05}.jpg").write_bytes(content)
                add(tars[number % TARS], number, content, number % CLASSES)
            pixels = [decoded(content).tobytes() for content in contents]
            columns = [pa.array(pixels, schema.field(0).type), pa.array(labels)]
            arrow.write_batch(pa.record_batch(columns, schema=schema))


def jpeg(rng: np.random.Generator, label: int) -> bytes:
    """One picture as a file."""
    coarse = rng.integers(0, 256, (8, 8, 3)).astype("u1")
    image = Image.fromarray(coarse).resize((FILE, FILE), Image.Resampling.BICUBIC)
    pixels = np.asarray(image).astype("i2") + rng.integers(-20, 20, (FILE, FILE, 1))
    pixels[..., label % 3] += 5 * label
    told = io.BytesIO()
    Image.fromarray(pixels.clip(0, 255).astype("u1")).save(told, "JPEG", quality=90)
    return told.getvalue()


def add(tar: tarfile.TarFile, number: int, content: bytes, label: int) -> None:
    for ending, member in (("jpg", content), ("cls", str(label).encode())):
        info = tarfile.TarInfo(f"{number:05}.{ending}")
        info.size = len(member)
        tar.addfile(info, io.BytesIO(member))


# -- what both sides do with a sample ------------------------------------------------------------


def decoded(content: bytes) -> np.ndarray[Any, Any]:
    """(3, SIDE, SIDE) uint8."""
    with Image.open(io.BytesIO(content)) as image:
        shown = image.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BILINEAR)
        return np.ascontiguousarray(np.asarray(shown).transpose(2, 0, 1))


def varied(picture: np.ndarray[Any, Any], draws: Any) -> np.ndarray[Any, Any]:
    """Cropped and perhaps turned over. `draws`: three numbers in [0, 1)."""
    top, left = (int(each * (SIDE - CROP + 1)) for each in draws[:2])
    cut = picture[:, top : top + CROP, left : left + CROP]
    return cut[:, :, ::-1] if draws[2] < 0.5 else cut


def network() -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(3, 8, 5, 4), nn.ReLU(), nn.Conv2d(8, 16, 3, 2)]
    return nn.Sequential(
        *layers, nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(64, CLASSES)
    )


def loss(model: nn.Module, batch: Any) -> Tensor:
    return nn.functional.cross_entropy(model(batch[0].float() / 255), batch[1])


# -- Shoal -------------------------------------------------------------------------------------


class Pictures(shoal.Recipe):
    batch_size = BATCH
    shuffle = "each"

    def __init__(self, home: Path, kind: str) -> None:
        self.home, self.kind = home, kind

    def data(self) -> shoal.Data:
        if self.kind == "arrow":
            return shoal.Data.arrow(self.home / "all.arrow", validation=None)
        if self.kind == "tar":
            return shoal.Data.tar(self.home / "*.tar", columns=("jpg", "cls"), size=SIDE)
        return shoal.Data.images(self.home / "images", size=SIDE, validation=None)

    def augment(self, samples: Any, rng: np.random.Generator) -> Any:
        pictures, labels = samples, None
        if isinstance(samples, dict):
            pictures, labels = samples["pixels"], samples["label"]
            pictures = pictures.reshape(-1, 3, SIDE, SIDE)
        else:
            pictures, labels = samples
        draws = rng.random((len(labels), 3))
        return np.stack(list(map(varied, pictures, draws))), labels

    def configure_model(self, config: Mapping[str, Any]) -> nn.Module:
        return network()

    def configure_optimizers(self, model: nn.Module, config: Mapping[str, Any]) -> Any:
        return torch.optim.SGD(model.parameters(), lr=config["lr"])

    def training_step(self, model: nn.Module, batch: Any) -> Tensor:
        return loss(model, batch)


def of_shoal(home: Path, kind: str, asked: Mapping[str, Any]) -> float:
    """Seconds that the study takes."""
    space = {"lr": shoal.grid([1e-3 * 2**k for k in range(asked["models"])])}
    with tempfile.TemporaryDirectory() as folder:
        begin = perf_counter()
        study = shoal.create_study(
            Pictures(home, kind), storage=Path(folder) / "s", search_space=space
        )
        more = {"data_memory_gb": asked["memory"]} if asked["memory"] else {}
        study.optimize(
            policy="pack" if asked["models"] > 1 else "fifo",
            max_epochs=asked["epochs"],
            workers=asked["workers"],
            checkpoint_every=1e9,
            progress=False,
            **more,
        )
        return perf_counter() - begin


# -- DataLoaders -------------------------------------------------------------------------------


class Files(Dataset[Any]):
    """Pictures of a format, read at random."""

    def __init__(self, home: Path, kind: str) -> None:
        self.kind = kind
        if kind == "images":
            self.files = sorted((home / "images").glob("*/*.jpg"))
        elif kind == "arrow":
            mapped = pa.memory_map(str(home / "all.arrow"))
            self.batches = pa.ipc.open_file(mapped).read_all().to_batches()
        else:
            self.members = [each for tar in sorted(home.glob("*.tar")) for each in spans(tar)]

    def __len__(self) -> int:
        if self.kind == "arrow":
            return sum(len(batch) for batch in self.batches)
        return len(self.files if self.kind == "images" else self.members)

    def __getitem__(self, number: int) -> Any:
        picture, label = self.read(number)
        cut = varied(picture, torch.rand(3).tolist())
        return torch.from_numpy(np.ascontiguousarray(cut)), label

    def read(self, number: int) -> tuple[np.ndarray[Any, Any], int]:
        if self.kind == "images":
            file = self.files[number]
            return decoded(file.read_bytes()), int(file.parent.name)
        if self.kind == "arrow":
            batch, row = self.batches[number // ROWS], number % ROWS
            raw = np.frombuffer(batch.column(0)[row].as_py(), "u1")
            return raw.reshape(3, SIDE, SIDE), batch.column(1)[row].as_py()
        path, start, size, label = self.members[number]
        with path.open("rb") as file:
            file.seek(start)
            return decoded(file.read(size)), label


def spans(path: Path) -> Iterator[tuple[Path, int, int, int]]:
    """(file, start, bytes, label) of each picture in a tar file."""
    with tarfile.open(path) as tar:
        for member in tar:
            if member.name.endswith(".jpg"):
                label = int(member.name.removesuffix(".jpg")) % CLASSES
                yield path, member.offset_data, member.size, label


def of_loader(home: Path, kind: str, asked: Mapping[str, Any]) -> float:
    """Seconds that the loop of one model takes."""
    begin = perf_counter()
    torch.manual_seed(0)
    loader = DataLoader(
        Files(home, kind),
        BATCH,
        shuffle=True,
        num_workers=asked["workers"],
        persistent_workers=asked["workers"] > 0,
    )
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(asked["epochs"]):
        for batch in loader:
            optimizer.zero_grad()
            loss(model, batch).backward()
            optimizer.step()
    return perf_counter() - begin


# -- runs in processes of their own ------------------------------------------------------------


def run(home: Path, side: str, kind: str, **asked: Any) -> dict[str, Any]:
    """A row: what a process that does only this took."""
    models = asked["models"]
    if side == "loaders at once":
        jobs, each = models, {**asked, "models": 1}
    else:
        jobs, each = 1, asked
    which = "shoal" if side == "shoal" else "loader"
    command = [sys.executable, __file__, "--part", str(home), which, kind, json.dumps(each)]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(jobs)]
    with watching([each.pid for each in started]) as peak:
        told = [job.communicate()[0] for job in started]
    if any(job.returncode for job in started):
        raise RuntimeError(f"{side} {kind} {asked} failed")
    seconds = max(json.loads(each.splitlines()[-1])["seconds"] for each in told)
    samples = asked["files"] * asked["epochs"] * models
    row = {
        "side": side,
        "format": kind,
        "models": models,
        "workers": asked["workers"],
        "memory, MB": round(asked["memory"] * 1024) if asked["memory"] else None,
        "seconds": seconds,
        "samples/s": samples / seconds,
        "peak, MB": peak[0] / 2**20 or None,
    }
    show([row])
    return row


@contextmanager
def watching(pids: Sequence[int]) -> Iterator[list[float]]:
    """The most bytes that the processes and their children held at a time (Linux)."""
    peak, over = [0.0], threading.Event()

    def watch() -> None:
        while not over.wait(0.2):
            peak[0] = max(peak[0], sum(held(pid) for pid in family(pids)))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield peak
    finally:
        over.set()
        thread.join()


def family(pids: Sequence[int]) -> list[int]:
    """The processes and all that they started."""
    found = list(pids)
    for pid in found:
        for tasks in Path(f"/proc/{pid}/task").glob("*/children"):
            try:
                found += map(int, tasks.read_text().split())
            except OSError:
                continue
    return found


def held(pid: int) -> float:
    """Bytes of the process beyond mapped files; its part of what it shares."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    sizes = [line.split() for line in lines]
    wanted = ("Pss_Anon:", "Pss_Shmem:")
    return sum(float(words[1]) * 1024 for words in sizes if words[0] in wanted)


def rows(home: Path, how: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """All runs."""
    common = {"files": how["files"], "epochs": how["epochs"], "memory": None}
    for workers in how["workers"]:
        for side in ("shoal", "loaders"):
            yield run(home, side, "images", models=1, workers=workers, **common)
        for side in ("shoal", "loaders at once"):
            yield run(home, side, "images", models=MODELS, workers=workers, **common)
    common["epochs"] = how["epochs out of core"]
    small = how["files"] * 3 * SIDE * SIDE / 4 / 2**30
    for kind in FORMATS:
        for side in ("shoal", "loaders"):
            asked = {**common, "memory": small if side == "shoal" else None}
            yield {**run(home, side, kind, models=1, workers=1, **asked), "out of core": True}


def ratios(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What Shoal's speeds come to against the loaders'; the headline is the least of each kind."""
    made: dict[str, Any] = {}
    groups: dict[str, list[float]] = {}
    for row in found:
        if row["side"] != "shoal":
            continue
        name, ending = "feed_over_dataloader", f"_{row['workers']}_workers"
        if row["models"] > 1:
            name = "four_models_over_four_loaders"
        if "out of core" in row:
            name, ending = "out_of_core_over_dataloader", f"_{row['format']}"
        rivals = [each["samples/s"] for each in found if is_rival(each, row)]
        ratio = row["samples/s"] / max(rivals)
        made[name + ending] = ratio
        groups.setdefault(name, []).append(ratio)
    return made | {name: min(values) for name, values in groups.items()}


def is_rival(row: Mapping[str, Any], of: Mapping[str, Any]) -> bool:
    """Whether the row has loaders that do the same, all at once or one after the other."""
    same = ("format", "workers")
    return (
        row["side"] != "shoal"
        and row["models"] in (1, of["models"])
        and ("out of core" in row) == ("out of core" in of)
        and all(row[key] == of[key] for key in same)
    )


def part(home: str, side: str, kind: str, asked: str) -> None:
    """One run, in a process of its own."""
    torch.set_num_threads(1)
    function = of_shoal if side == "shoal" else of_loader
    print(json.dumps({"seconds": function(Path(home), kind, json.loads(asked))}))


def main() -> None:
    said = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    said.add_argument("--short", action="store_true", help="few files; nothing is written")
    given = said.parse_args()
    how = SHORT if given.short else LONG
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        made(how["files"], home)
        found = list(rows(home, how))
    if given.short:
        show(found)
        print(json.dumps(ratios(found), indent=1))
        return
    about = {key: how[key] for key in ("files", "epochs", "epochs out of core")}
    write("feed", found, {**ratios(found), **about}, ("pyarrow", "pillow"))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--part"]:
        part(*sys.argv[2:])
    else:
        main()
