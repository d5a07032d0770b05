"""Eight models on data that is costly to prepare: prepared once for all of them, against once
for each.

The data are JPEG files in memory, cut out of scikit-learn's two sample images. In each pass
every one is decoded, cropped at random, resized, turned over at random and normalized (Pillow,
NumPy): all of it is `augment`, nothing can be kept. (What is the same in each pass belongs in
`prepare`, which is done once and kept: then there is next to nothing to share.) Same cores for
all ways, one by default. Counted is the time in which all eight train: from the end of the
slowest one's first epoch to the first one's end.

bound = 8 (p + t) / (p + 8 t): the speed-up by preparing once, if sharing itself cost nothing,
with p and t the seconds of the processor for preparing and for training a sample, each measured
alone before and after the runs. On a machine that does other things, too, compare "samples/CPU
s": it counts the seconds of the processors that each way had.

    python benchmarks/shared_stream.py [--cores 1]
        [per-trial] [feeders] [auto] [pack] [tensorsocket]
"""

from __future__ import annotations

import argparse
import io
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from statistics import mean, median
from time import process_time, sleep, thread_time, time
from typing import Any, NamedTuple

import numpy as np
import torch
from common import ROOT, peers, show, write
from PIL import Image
from torch import nn

import shoal
import shoal.backend.ray.backend  # before the time counts
from shoal.core.event import Advanced, Fed, Finished
from shoal.core.trial import Trial, TrialId, Visit
from shoal.study import backends
from shoal.study.folder import last_head
from shoal.train.slot.setup import TrainerSetup
from shoal.train.slot.trainer import Done, SlotTrainer, Unit
from shoal.train.stream.stream import feeding
from shoal.train.tools.verify import compare

LANES, BATCH = 8, 32
FILE, SIDE, CLASSES = 320, 32, 8  # pixels of a file and of what is trained on
LIMIT_GB = 0.0625  # stream_memory_gb
NOTES = "SHARED_STREAM_NOTES"  # folder where every process that prepares notes the seconds it took
WAYS = {
    "per-trial": {"backend": "ray", "slots": LANES, "feeders": 0},
    "feeders": {"backend": "ray", "slots": LANES, "feeders": 1},
    "auto": {"backend": "ray", "slots": LANES, "feeders": "auto"},
    "pack": {"backend": "ray", "slots": 1, "feeders": 0},
}


def files(count: int) -> tuple[np.ndarray[Any, Any], ...]:
    """JPEG files as rows of bytes, their lengths, and of which image and corner they are."""
    from sklearn.datasets import load_sample_images

    images, rng = load_sample_images().images, np.random.default_rng(0)
    made, labels = [], []
    for _ in range(count):
        which, (high, wide) = int(rng.integers(2)), images[0].shape[:2]
        top, left = int(rng.integers(high - FILE)), int(rng.integers(wide - FILE))
        told = io.BytesIO()
        Image.fromarray(images[which][top : top + FILE, left : left + FILE]).save(
            told, "JPEG", quality=90
        )
        made.append(np.frombuffer(told.getvalue(), "uint8"))
        labels.append(4 * which + 2 * (top > (high - FILE) // 2) + (left > (wide - FILE) // 2))
    rows = np.zeros((count, max(map(len, made))), "uint8")
    for row, each in zip(rows, made, strict=True):
        row[: len(each)] = each
    return rows, np.array([len(each) for each in made]), np.array(labels)


def varied(
    row: np.ndarray[Any, Any], length: int, rng: np.random.Generator
) -> np.ndarray[Any, Any]:
    """One file decoded, cropped, resized, perhaps turned over, normalized: (3, SIDE, SIDE)."""
    side = FILE * rng.uniform(0.5, 1.0)
    left, top = rng.uniform(0, FILE - side, 2)
    image = Image.open(io.BytesIO(row[:length].tobytes()))
    small = np.asarray(
        image.resize((SIDE, SIDE), Image.Resampling.BICUBIC, (left, top, left + side, top + side)),
        "float32",
    )
    return (small[:, ::-1] if rng.random() < 0.5 else small).transpose(2, 0, 1) / 128 - 1


class Ready(shoal.Recipe):
    """Trains on pictures as they are: `made`, columns that are prepared."""

    batch_size = BATCH
    shuffle = "each"

    def __init__(self, made: Any) -> None:
        self.made = made

    def data(self) -> shoal.Data:
        return shoal.Data.arrays(*self.made, validation=None)

    def configure_model(self, config: Mapping[str, Any]) -> nn.Module:
        layers: list[nn.Module] = [
            nn.Conv2d(3, 32, 3, 2, 1),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3, 2, 1),
            nn.ReLU(),
            nn.Flatten(),
        ]
        return nn.Sequential(*layers, nn.Linear(64 * (SIDE // 4) ** 2, CLASSES))

    def configure_optimizers(
        self, model: nn.Module, config: Mapping[str, Any]
    ) -> torch.optim.Optimizer:
        return torch.optim.Adam(model.parameters(), lr=config["lr"])

    def training_step(self, model: nn.Module, batch: Any) -> torch.Tensor:
        return nn.functional.cross_entropy(model(batch[0]), batch[1])


class Pictures(Ready):
    """Trains on so many files."""

    def __init__(self, count: int) -> None:
        self.count = count

    def data(self) -> shoal.Data:
        return shoal.Data.arrays(*files(self.count), validation=None)

    def augment(self, samples: Any, rng: np.random.Generator) -> Any:
        begin = thread_time()
        rows, lengths, labels = samples
        made = np.stack(
            [varied(row, length, rng) for row, length in zip(rows, lengths, strict=True)]
        )
        if NOTES in os.environ:
            with (Path(os.environ[NOTES]) / str(os.getpid())).open("a") as notes:
                notes.write(f"{thread_time() - begin}\n")
        return made, labels


def alone(recipe: Pictures) -> tuple[float, float]:
    """Seconds of the processor for preparing and for training one sample, with nothing else to
    do.
    """
    data = recipe.data()
    stream, shard = feeding(recipe, data, 0, 0.0), data.shards[0]
    preparing, training = [], []
    for number in range(max(1, min(3, recipe.count // data.chunk))):
        begin = process_time()
        chunk = stream.array_chunk(shard, number, 0, "each")
        preparing.append((process_time() - begin) / len(chunk[0]))
    ready = Ready(stream.array_chunk(shard, 0, 0, "each"))
    data, visits = ready.data(), ()
    trainer, trial = (
        SlotTrainer(ready, data, None, TrainerSetup(seed=0)),
        Trial(TrialId("alone"), 1e9, {"lr": 1e-3}),
    )
    for epoch in range(8):
        begin = process_time()
        for _, news in trainer.train_pack(
            (Unit(trial, visits, Visit(epoch, data.shards[0], epoch, 0)),)
        ):
            visits = (*visits, news.visit) if isinstance(news, Done) else visits
        training.append((process_time() - begin) / data.samples)
    return median(preparing), median(training[2:])


# -- Shoal
# ----------------------------------------------------------------------------------------------


def of_shoal(
    way: str, recipe: Pictures, epochs: int, home: Path
) -> tuple[dict[str, Any], dict[str, Any]]:
    """A row of the table, and the trials' states at the end."""
    space = {"lr": shoal.grid([1e-4 * 2**k for k in range(LANES)])}
    study = shoal.create_study(recipe, storage=home / way, search_space=space)
    more = {"stream_memory_gb": LIMIT_GB, "checkpoint_every": 1e9, "fuse": False, **WAYS[way]}
    with noting(home / f"{way}-notes") as noted, watching() as seen:
        study.optimize(
            policy="pack" if way == "pack" else "fifo", max_epochs=epochs, progress=False, **more
        )
    count, begin, end = trained(study.lines())
    fed = None
    for _, entry in study.lines():
        if isinstance(entry, Fed):
            fed = entry.figures
    zero = datetime.fromisoformat(last_head(study.lines())["started"]).timestamp()
    row = {
        "way": way,
        "samples/s": count / (end - begin),
        "samples/CPU s": count / spent(seen, zero + begin, zero + end),
        "preparing, CPU s": noted(),
        "feeders": int(fed["feeders"]) if fed else 0,
        "feeders, CPU s": fed["cpu"] if fed else None,
        "held, MB": fed["bytes"] / 2**20 if fed else None,
        "ahead": fed["ahead"] if fed else None,
        "waits": fed["waits"] / max(1.0, fed["served"]) if fed else None,
        "peak, MB": max(look.memory for look in seen),
    }
    vault = shoal.train.lane.checkpoints.Checkpoints(study.folder.checkpoints, study.state.run)
    return row, {trial: vault.load(kept.name) for trial, kept in study.state.kept.items()}


def trained(lines: Iterable[Any]) -> tuple[float, float, float]:
    """Samples trained while all trials trained, and when that began and ended."""
    curves: dict[str, list[tuple[float, float]]] = {}
    ends = []
    for at, entry in lines:
        if isinstance(entry, Advanced):
            for trial, count in entry.samples.items():
                before = curves.setdefault(trial, [(at, 0.0)])[-1][1]
                curves[trial].append((at, before + count))
        elif isinstance(entry, Finished):
            ends.append(at)
    begin, end = max(marks[1][0] for marks in curves.values()), min(ends)
    if begin >= end:
        raise ValueError("some trials ended before others had made an epoch; give more epochs")
    count = sum(reached(marks, end) - reached(marks, begin) for marks in curves.values())
    return count, begin, end


def reached(marks: Sequence[tuple[float, float]], at: float) -> float:
    """Samples at that time, evenly between two reports."""
    return float(np.interp(at, *zip(*marks, strict=True)))


@contextmanager
def noting(folder: Path) -> Iterator[Any]:
    """Every process started within notes what preparing takes; gives the sum so far."""
    folder.mkdir()
    os.environ[NOTES] = str(folder)
    try:
        yield lambda: sum(
            float(line) for note in folder.iterdir() for line in note.read_text().split()
        )
    finally:
        del os.environ[NOTES]


class Look(NamedTuple):
    """What this process and those it started took until a time: processors' seconds, and MB
    then, shared pages counted once.
    """

    at: float
    cpu: float
    memory: float


@contextmanager
def watching() -> Iterator[list[Look]]:
    """Looks now and then (Linux)."""
    seen, over, cpu = [Look(time(), 0.0, 0.0)], threading.Event(), dict[int, float]()

    def watch() -> None:
        while not over.wait(3.0):
            cpu.update({pid: max(cpu.get(pid, 0.0), used(pid)) for pid in family()})
            sizes = [memory(pid) for pid in family()] if len(seen) % 5 == 0 else []  # takes a while
            seen.append(Look(time(), sum(cpu.values()), sum(sizes)))

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield seen
    finally:
        over.set()
        watcher.join()


def spent(seen: Sequence[Look], begin: float, end: float) -> float:
    """Processors' seconds between two times."""
    marks = [(look.at, look.cpu) for look in seen]
    return reached(marks, end) - reached(marks, begin)


def family() -> list[int]:
    """This process and all that came of it."""
    parents: dict[int, int] = {}
    for place in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(place.name)] = int(
                (place / "stat").read_text().rpartition(")")[2].split()[1]
            )
        except OSError:
            continue
    found = [os.getpid()]
    for each in found:
        found += [pid for pid, parent in parents.items() if parent == each]
    return found


def used(pid: int) -> float:
    """A process's seconds so far."""
    try:
        clocks = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    except OSError:
        return 0.0
    return sum(map(int, clocks)) / os.sysconf("SC_CLK_TCK")


def memory(pid: int) -> float:
    """A process's MB."""
    try:
        told = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in told.splitlines() if line.startswith("Pss:")) / 1024


# -- TensorSocket
# ----------------------------------------------------------------------------------------------


def of_tensorsocket(recipe: Pictures, epochs: int, home: Path) -> dict[str, Any]:
    """A row: a producer with a torch DataLoader, and a process for each model."""
    python, folder = (peers("tensorsocket", ["tensorsocket==0.0.5"]), home / "tensorsocket")
    folder.mkdir()
    own = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT.parent)}
    told = [__file__, "--peer", str(folder), str(recipe.count), str(epochs)]
    with watching() as seen, (folder / "errors").open("wb") as errors:
        started = [
            subprocess.Popen([python, *told, str(k)], env=own, stdout=errors, stderr=errors)
            for k in range(LANES + 1)
        ]
        try:
            for each in started[1:]:
                each.wait(600)
        finally:
            for each in started:
                each.kill()
                each.wait()
    noted = [json.loads(path.read_text()) for path in folder.glob("*.json")]
    marks = [each["marks"] for each in noted if "marks" in each]
    if len(marks) < LANES:
        raise RuntimeError((folder / "errors").read_text()[-500:])
    begin, end = max(each[0][0] for each in marks), min(each[-1][0] for each in marks)
    count = sum(reached(each, end) - reached(each, begin) for each in marks)
    return {
        "way": "tensorsocket",
        "samples/s": count / (end - begin),
        "samples/CPU s": count / spent(seen, begin, end),
        "preparing, CPU s": float((folder / "cpu").read_text()),
        "peak, MB": max(look.memory for look in seen),
    }


def peer(folder: Path, count: int, epochs: int, number: int) -> None:
    """What TensorSocket's side runs: number 0 prepares, the others train."""
    import tensorsocket

    torch.set_num_threads(1)
    recipe = Pictures(count)
    if number == 0:
        tensorsocket.producer.LOCALHOST = (
            "tcp://127.0.0.1"  # by itself it listens on all of the machine's addresses
        )
        rows, lengths, labels = files(count)
        rng, spent = np.random.default_rng(0), [0.0]

        class Files(torch.utils.data.Dataset[Any]):
            def __len__(self) -> int:
                return count

            def __getitem__(self, at: int) -> Any:
                begin = thread_time()
                made = np.ascontiguousarray(varied(rows[at], lengths[at], rng))
                spent[0] += thread_time() - begin
                return made, labels[at]

        loader = torch.utils.data.DataLoader(Files(), batch_size=BATCH, shuffle=True)
        producer = tensorsocket.TensorProducer(loader)
        (folder / "ready").touch()
        while True:  # until it is killed: consumers take their epochs
            for _ in producer:
                (folder / "cpu").write_text(str(spent[0]))
    model = recipe.configure_model({})
    optimizer = recipe.configure_optimizers(model, {"lr": 1e-4 * 2 ** (number - 1)})
    (folder / f"{number}.here").touch()
    while len(list(folder.glob("*.here"))) < LANES or not (folder / "ready").exists():
        sleep(0.05)
    consumer = tensorsocket.TensorConsumer(batch_size=BATCH)
    marks, done = [(time(), 0)], 0
    while done < epochs * (count // BATCH):
        for x, y in consumer:
            optimizer.zero_grad()
            recipe.training_step(model, (x, y)).backward()
            optimizer.step()
            done += 1
            marks.append((time(), done * BATCH))
    (folder / f"{number}.json").write_text(json.dumps({"marks": marks}))


# -- all of it
# ----------------------------------------------------------------------------------------------


def main() -> None:
    said = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    said.add_argument("--cores", type=int, default=1)
    said.add_argument(
        "ways",
        nargs="*",
        metavar="WAY",
        help=f"of {', '.join([*WAYS, 'tensorsocket'])}; default: all but auto",
    )
    given = said.parse_args()
    wanted = given.ways or ["per-trial", "feeders", "pack", "tensorsocket"]
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 - Ray's spelling; as TensorSocket's have
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: given.cores])
    backends.MOST_EACH = LANES  # so many slots on one core are meant here
    recipe, epochs = Pictures(640), 5
    rows: list[dict[str, Any]] = []
    states: dict[str, Any] = {}
    before = alone(recipe)
    for way in [way for way in wanted if way != "tensorsocket"]:
        with tempfile.TemporaryDirectory() as folder:
            row, states[way] = of_shoal(way, recipe, epochs, Path(folder))
            rows.append(row)
            show([row])
    if "tensorsocket" in wanted:
        with tempfile.TemporaryDirectory() as folder:
            try:
                rows.append(of_tensorsocket(recipe, epochs, Path(folder)))
            except (RuntimeError, OSError, subprocess.SubprocessError) as error:
                rows.append({"way": "tensorsocket", "note": f"did not run: {error}"})
    after = alone(recipe)
    p, t = (mean(pair) for pair in zip(before, after, strict=True))
    ratios = compared({row["way"]: row for row in rows}, states, p, t)
    if given.ways:
        show(rows)
        print(json.dumps(ratios, indent=1))
    else:
        write(
            "shared_stream",
            rows,
            {**ratios, "samples": recipe.count, "epochs": epochs, "cores": given.cores},
        )


def compared(
    rows: Mapping[str, Mapping[str, Any]], states: Mapping[str, Any], p: float, t: float
) -> dict[str, Any]:
    """What the ways come to against the per-trial pipelines."""
    bound = LANES * (p + t) / (p + LANES * t)
    found: dict[str, Any] = {"prepare_ms": p * 1e3, "train_ms": t * 1e3, "bound": bound}
    own = rows.get("per-trial")
    for way, row in rows.items():
        if own is None or way == "per-trial" or "samples/s" not in row:
            continue
        for unit in ("s", "CPU s"):
            faster, name = (
                row[f"samples/{unit}"] / own[f"samples/{unit}"],
                f"{way}{'_cpu' * (unit != 's')}",
            )
            found |= {f"{name}_speed_up": faster, f"{name}_over_bound": faster / bound}
        all_in_all = (
            row.get("feeders, CPU s") if way == "feeders" else None
        )  # of processes that do nothing else
        found[f"{way}_preparing_saved"] = own["preparing, CPU s"] / (
            all_in_all or row["preparing, CPU s"]
        )
        if way in states:
            found[f"{way}_equal"] = all(
                compare(states[way][trial], one).equal for trial, one in states["per-trial"].items()
            )
    if "feeders_over_bound" in found:
        found |= {
            "shared_over_bound": found["feeders_over_bound"],
            "shared_cpu_over_bound": found["feeders_cpu_over_bound"],
        }
        found["held_over_limit"] = rows["feeders"]["held, MB"] / (LIMIT_GB * 1024)
    return found


if __name__ == "__main__":
    if sys.argv[1:2] == ["--peer"]:
        peer(Path(sys.argv[2]), *map(int, sys.argv[3:6]))
    else:
        main()
