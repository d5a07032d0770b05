"""What `shoal doctor` says: what is here, what is missing, and how to get it."""

import os
import platform
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

from shoal.core.errors import StudyError
from shoal.core.install import install
from shoal.engine.process import cpus_here
from shoal.options import Options
from shoal.study.slurm_job import run_place
from shoal.tools.outcome import errors, show
from shoal.train.lane.device import device_of, gpus, kind_of, memory_of, use
from shoal.train.slot.setup import machine_memory


@errors()
def doctor(directory: Path, as_json: bool) -> None:
    """Say what this machine has, and what is missing."""
    show(examined(directory), as_json, lines)


NEEDED = ("shoal", "torch", "numpy", "scipy")
# What each optional package is for.
OPTIONAL = {
    "ray": 'several slots: backend="ray"',
    "optuna": 'searcher="optuna"',
    "pandas": "trials_dataframe()",
    "pyarrow": "Parquet and Arrow files",
    "lightning": "LightningModules",
    "transformers": "Hugging Face models",
    "datasets": "Hugging Face datasets",
    "h5py": "HDF5 files",
    "tensorboard": "the logger tensorboard",
    "mlflow-skinny": "the logger mlflow",
    "wandb": "the logger wandb",
    "starlette": "shoal ui",
    "uvicorn": "shoal ui",
}
SLURM = ("sbatch", "srun", "squeue", "sinfo", "sacct")
RAY_RUNS = Path("/tmp/ray/ray_current_cluster")  # Ray's own note of a cluster on this machine
# Slower disks than these make a study wait.
SLOW_SYNC = 50.0  # ms
LITTLE_SPACE = 1.0  # GiB


def examined(folder: Path) -> dict[str, Any]:
    """The findings, JSON-able, with `missing`: what is not there, and how to get it.

    `folder`: where studies are to be stored.
    """
    memory = None
    with suppress(AttributeError, OSError, ValueError):  # where the system does not say
        memory = machine_memory()
    findings: dict[str, Any] = {
        "python": platform.python_version(),
        "system": platform.platform(),
        "versions": {name: _version(name) for name in NEEDED},
        "optional": {name: _version(name) for name in OPTIONAL},
        "device": device_of(),
        "gpus": [
            {"name": kind_of(use(device)), "memory_gib": memory_of(device)}
            for device in (f"cuda:{number}" for number in range(gpus()))
        ],
        "cpus": cpus_here(),
        "memory_gib": memory,
        "disk": _disk(folder),
        "ray": _ray(),
        "slurm": {name: shutil.which(name) for name in SLURM},
        "allocation": _allocation(),
    }
    findings["missing"] = list(_missing(findings))
    return findings


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _disk(folder: Path) -> dict[str, Any]:
    try:
        return disk(folder)
    except OSError as error:
        return {"folder": str(folder), "error": str(error)}


def _ray() -> dict[str, Any]:
    """Ray's version, and the address of a cluster that this machine knows of."""
    address = os.environ.get("RAY_ADDRESS")
    if address is None and RAY_RUNS.is_file():
        address = RAY_RUNS.read_text().strip() or None
    return {"version": _version("ray"), "address": address}


def _allocation() -> dict[str, Any] | None:
    """The allocation of Slurm that this process is in, or what is wrong with it; None: none."""
    try:
        place = run_place(Options(), Path())
    except StudyError as error:
        return {"error": str(error)}
    if place.allocation is None:
        return None
    return {**asdict(place.allocation), "text": place.text()}


def _missing(findings: Mapping[str, Any]) -> Iterator[str]:
    """What is not there, or not well, and what to do about it."""
    for name, number in findings["optional"].items():
        if number is None:
            yield f"{name}, for {OPTIONAL[name]}: {install(name)}"
    if findings["device"] == "cpu":
        yield (
            "a GPU: torch sees none, so trials train on the CPU; if there is one, see that its "
            "driver works (nvidia-smi) and torch is built for it (torch.version.cuda)"
        )
    place = findings["disk"]
    if "error" in place:
        yield f"a folder for studies: {place['error']}; give another one: shoal doctor DIR"
        return
    if place["free_gib"] < LITTLE_SPACE:
        yield f"space on the disk of {place['folder']}: {place['free_gib']:.2f} GiB are free"
    if place["fsync_ms"] > SLOW_SYNC:
        yield (
            f"a quicker disk than that of {place['folder']}: a durable line takes "
            f"{place['fsync_ms']:.0f} ms; store studies on a local disk"
        )


def lines(findings: Mapping[str, Any]) -> list[str]:
    """The findings in words."""
    gpu_texts = [f"{gpu['name']} ({gpu['memory_gib']:.0f} GiB)" for gpu in findings["gpus"]]
    memory = findings["memory_gib"]
    rows = {
        "python": f"{findings['python']} on {findings['system']}",
        "packages": _listed(findings["versions"]),
        "optional": _listed(findings["optional"]),
        "device": findings["device"],
        "gpus": ", ".join(gpu_texts) or "none",
        "cpus": str(findings["cpus"]),
        "memory": "unknown" if memory is None else f"{memory:.1f} GiB",
        "disk": _place(findings["disk"]),
        "ray": _cluster(findings["ray"]),
        "slurm": _slurm(findings["slurm"], findings["allocation"]),
    }
    shown = [f"{name:<9} {text}" for name, text in rows.items()]
    if findings["missing"]:
        shown += ["", "missing, if you need it:"]
        shown += [f"  {remedy}" for remedy in findings["missing"]]
    return shown


def _listed(versions: Mapping[str, str | None]) -> str:
    installed = [f"{name} {number}" for name, number in versions.items() if number]
    return ", ".join(installed) or "none"


def _place(place: Mapping[str, Any]) -> str:
    if "error" in place:
        return f"{place['folder']}: {place['error']}"
    return (
        f"{place['folder']}: {place['free_gib']:.1f} GiB free, "
        f"{place['write_mib_s']:.0f} MiB/s, {place['fsync_ms']:.1f} ms for a durable line"
    )


def _cluster(ray: Mapping[str, Any]) -> str:
    if ray["version"] is None:
        return "not installed"
    if ray["address"] is None:
        return f"{ray['version']}, no cluster runs here"
    return f"{ray['version']}, a cluster at {ray['address']}"


def _slurm(commands: Mapping[str, str | None], allocation: Any) -> str:
    names = [name for name, path in commands.items() if path]
    listed = ", ".join(names) or "no commands of it here"
    if allocation is None:
        return listed
    return f"{allocation.get('text') or allocation['error']}; {listed}"


MIB = 2**20
WRITTEN = 64  # MiB
SYNCS = 20


def disk(folder: Path) -> dict[str, Any]:
    """GiB free at the folder, MiB/s written and made durable, ms of making a line durable.

    The folder, or the nearest one above that is there, is written to and left as it was.

    Raises:
        OSError: it cannot be written to.
    """
    place = folder.resolve()
    while not place.is_dir():
        place = place.parent
    with TemporaryDirectory(prefix=".shoal-doctor-", dir=place) as beside:
        speed = _speed(Path(beside) / "large")
        sync = _sync(Path(beside) / "small")
    free = shutil.disk_usage(place).free / 2**30
    return {"folder": str(place), "free_gib": free, "write_mib_s": speed, "fsync_ms": sync}


def _speed(file: Path) -> float:
    """MiB/s at which a large file is written and made durable."""
    block = os.urandom(MIB)
    since = perf_counter()
    with file.open("wb") as out:
        for _ in range(WRITTEN):
            out.write(block)
        out.flush()
        os.fsync(out.fileno())
    return WRITTEN / (perf_counter() - since)


def _sync(file: Path) -> float:
    """Milliseconds of a line that is appended and made durable; the median."""
    times = []
    with file.open("ab") as out:
        for _ in range(SYNCS):
            since = perf_counter()
            out.write(b"a line of a journal\n")
            out.flush()
            os.fsync(out.fileno())
            times.append(1000 * (perf_counter() - since))
    return median(times)
