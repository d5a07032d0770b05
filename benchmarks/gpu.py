"""Everything that needs a GPU, what tells most in a second first; docs/gpu.md is about it.

    python benchmarks/gpu.py                        # what fits into nine minutes
    python benchmarks/gpu.py --list                 # what there is to do
    python benchmarks/gpu.py --device cpu --short   # a stand-in: the same, small, on a CPU

First it looks for the packages and the device, and says in one line what it found. Then it works
through a list: does it work at all; nine cells of packing; memory; the tests marked `device`; all
other cells of packing, against processes and plain loops too. Each item is a process of its own
with a limit. One that cannot start, or tries nothing, has failed. At the end there is a table.

Results go to benchmarks/results/gpu, those of a stand-in to a temporary folder, into a folder of
their own for each device and version of torch; and to $OUT, where that is set, after each item and
while one runs. An item that passed is not begun again; one that failed, or had too little time, is
tried twice.

Ray is not needed. Exits with 0 when all passed, 1 when an item failed, 2 when it cannot begin, and
3 when items are left: run it again.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path.insert(0, str(ROOT))

from common import show  # noqa: E402 - the checkout need not be installed

from shoal.core.install import NEEDED  # noqa: E402

KEY_NETS, KEY_MODELS = ("MLP-3 x64", "CNN, 3x32x32", "ResNet-18"), ("2", "8", "32")
TRIES = 2  # how often an item that failed or had too little time is begun
LEAST = 45.0  # seconds; nothing is begun with less left
PROBE_LIMIT = 60.0  # seconds; a driver that hangs is no reason to wait
SYNC = 10.0  # seconds from one copy to $OUT to the next while an item runs
Said = dict[str, Any]
Command = Callable[[float], Sequence[str]]


@dataclass(frozen=True, slots=True)
class Item:
    """A process and how its outcome is read.

    `command`: of the seconds that it may take. `seconds`: what it takes on one GPU, about; `limit`:
    when it is killed. `read`: whether it is ok and what it came to, from its exit code, its output
    and the folder of results; `left`: true, if it ended well with more to do. `needs`: modules
    beyond those that Shoal needs, with the packages they come from.
    """

    name: str
    command: Command
    seconds: float
    limit: float
    read: Callable[[int, str, Path], Said]
    needs: Mapping[str, str]


# -- the list ----------------------------------------------------------------------------------


def items(device: str, short: bool) -> list[Item]:
    """All items, what tells most in a second first."""
    of = ("--device", device)
    cells = ("packing.py", *of, "--parts", "cells", "--add", "--write")
    key: tuple[str, ...] = ("--nets", *KEY_NETS, "--models", *KEY_MODELS)
    every: tuple[str, ...] = ("--makings", "2", "--rounds", "3")
    quick: tuple[str, ...] = ()
    if short:
        key = ("--nets", *KEY_NETS[:2], "--models", "2")
        every = ("--quick", "--nets", "MLP-3 x16", "--models", "2", "--longest", "60")
        quick = ("--quick",)
    measured = ("packing-key", *key, "--batches", "32", "--makings", "1", "--rounds", "2")
    at_once = ("--no-processes", "--shorten", "0.5", "--longest", "60")
    return [
        Item("smoke", program("gpu_smoke.py", *of), 20, 90, read_cases, {}),
        Item(
            "packing, key cells",
            program(*cells, *measured, *at_once, within=True),
            120,
            150,
            read_cells("packing-key"),
            {},
        ),
        Item("memory", program("gpu_memory.py", "all", *of), 60, 120, read_cases, {}),
        tests(device, short),
        Item(
            "shoal check",
            lambda _: (*SHOAL, "check", "examples/digits.py", *of),
            *(20, 90, read_check, {"sklearn": "scikit-learn"}),
        ),
        Item(
            "packing, plain loops",
            program("packing.py", *of, *quick, "--write", PACKING, "--parts", "plain"),
            *(90, 200, read_file(f"{PACKING}-plain"), {}),
        ),
        Item(
            "packing, all cells",
            program(*cells, PACKING, *every, within=True),
            *(240, 500, read_cells(PACKING), {}),
        ),
        Item(
            "packing, switching",
            program("packing.py", *of, *quick, "--write", PACKING, "--parts", "switching"),
            *(120, 240, read_file(f"{PACKING}-switching"), {}),
        ),
        Item(
            "packing, the paper's nets",
            program("packing_four.py", *of, *(quick and ("--quick", "--no-times"))),
            *(240, 400, read_exit, {}),
        ),
    ]


SHOAL = (sys.executable, "-m", "shoal.cli")
PACKING = "packing-gpu"  # the name of what docs/packing.md shows


def program(name: str, *given: str, within: bool = False) -> Command:
    """A program beside this one. `within`: it is told how many seconds there are, less a few."""

    def command(seconds: float) -> tuple[str, ...]:
        limit = ("--seconds", f"{max(seconds - 25, 10):.0f}") if within else ()
        return (sys.executable, str(HERE / name), *given, *limit)

    return command


def tests(device: str, short: bool) -> Item:
    """The tests that train on this device, in as many processes as it has room for."""
    marked = "device and not slow and not soak and not slurm"
    at = "tests/train/lane/test_lane.py" if short else "tests/train"
    given = ["-p", "no:cacheprovider", "--tb", "short", "--continue-on-collection-errors"]
    parallel = device == "cuda" and importlib.util.find_spec("xdist") is not None
    if parallel:
        given += ["-n", str(min(12, os.cpu_count() or 1)), "--dist", "worksteal"]
    command = (sys.executable, "-m", "pytest", "-m", marked, *given, at)
    needs = {"pytest": "pytest", "hypothesis": "hypothesis"}
    limit = 150 if parallel or short else 400
    return Item("tests marked device", lambda _: command, 60, limit, read_tests, needs)


# -- what came of an item ----------------------------------------------------------------------


def read_tests(exit_code: int, output: str, _: Path) -> Said:
    """How many passed; the names of those that did not. None that passed is no success."""
    lines = output.strip().splitlines()
    failed = [line.split(" - ")[0] for line in lines if line.startswith(("FAILED", "ERROR"))]
    counts = r"\d+ (?:passed|failed|skipped|deselected|errors?)"
    words = re.findall(counts, " ".join(lines[-1:]))
    passed = any(word.endswith("passed") for word in words)
    ok = exit_code == 0 and passed
    return {"ok": ok, "result": ", ".join(words) or "no test ran", "failed": failed}


def read_check(exit_code: int, output: str, _: Path) -> Said:
    lines = [line for line in output.splitlines() if line.startswith(("ok", "FAIL"))]
    ok = exit_code == 0 and bool(lines)
    return {"ok": ok, "result": f"{len(lines)} checks", "lines": lines}


def read_cases(exit_code: int, output: str, _: Path) -> Said:
    """Of programs that print a line of JSON for each case."""
    cases: dict[str, Any] = {}
    for line in output.splitlines():
        if line.startswith('{"case"'):
            said = json.loads(line)
            cases[said.pop("case")] = said
    bad = [name for name, said in cases.items() if not said["ok"]]
    good = len(cases) - len(bad)
    result = f"{good} of {len(cases)} cases ok" + (f", not {', '.join(bad)}" if bad else "")
    return {"ok": exit_code == 0 and bool(cases) and not bad, "result": result, "cases": cases}


def read_exit(exit_code: int, output: str, _: Path) -> Said:
    ok = exit_code == 0
    return {"ok": ok, "result": "done" if ok else "not done"}


def read_file(name: str) -> Callable[[int, str, Path], Said]:
    """Of programs that write a table: how many rows it has."""

    def read(exit_code: int, output: str, folder: Path) -> Said:
        rows = len(rows_of(folder, name))
        return {"ok": exit_code == 0 and rows > 0, "result": f"{rows} rows"}

    return read


def read_cells(name: str) -> Callable[[int, str, Path], Said]:
    """Of cells of packing: how many were timed, and whether there are more."""

    def read(exit_code: int, output: str, folder: Path) -> Said:
        content = content_of(folder, name)
        timed = sum(bool(row["rounds"]) for row in content.get("rows", []))
        missing = content.get("ratios", {}).get("cells_missing", 0)
        result = f"{timed} cells timed" + (f", {missing} to do" if missing else "")
        return {
            "ok": exit_code == 0 and timed > 0,
            "left": missing > 0,
            "done": timed,
            "result": result,
        }

    return read


def content_of(folder: Path, name: str) -> dict[str, Any]:
    """A file of results; {} where there is none, or a damaged one."""
    try:
        content: dict[str, Any] = json.loads((folder / f"{name}.json").read_text())
    except (OSError, ValueError):
        return {}
    return content


def rows_of(folder: Path, name: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = content_of(folder, name).get("rows", [])
    return rows


class Results:
    """What came of the items so far, of one device and one version of torch.

    `copy`: a folder to which all of it goes, too; one that cannot be written to ends nothing.
    """

    def __init__(self, folder: Path, copy: Path | None, place: Mapping[str, str]) -> None:
        key = re.sub(r"[^\w.]+", "-", f"{place['device']} torch {place['torch']}")
        self.folder = folder / key
        self.copy = None if copy is None else copy / key
        self.place = place
        self.folder.mkdir(parents=True, exist_ok=True)
        self.items: dict[str, Said] = content_of(self.folder, "items").get("items", {})

    def open(self, item: Item) -> bool:
        """Whether the item is to be begun (again)."""
        said = self.items.get(item.name, {"ok": False})
        if said["ok"]:
            return bool(said.get("left"))
        return int(said.get("tries", 0)) < TRIES

    def log(self, item: Item) -> Path:
        """Where the item's output goes."""
        return self.folder / f"{re.sub(r'[^a-z]+', '-', item.name)}.txt"

    def note(self, item: Item, said: Said) -> None:
        """Write down what came of an item."""
        self.items[item.name] = said
        part = self.folder / "items.part"
        content = {"place": self.place, "items": self.items}
        part.write_text(json.dumps(content, indent=1) + "\n")
        part.replace(self.folder / "items.json")
        self.publish()

    def publish(self) -> None:
        """Copy all that there is."""
        if self.copy is None:
            return
        try:
            shutil.copytree(self.folder, self.copy, dirs_exist_ok=True)
        except (OSError, shutil.Error) as error:
            print(f"results could not be copied to {self.copy}: {error}", flush=True)


# -- a call ------------------------------------------------------------------------------------

PROBE = """
import importlib, json, sys
found = {"missing": {}}
for name in sys.argv[2:]:
    try:
        importlib.import_module(name)
    except Exception as error:
        why = (str(error).splitlines() or [""])[0]
        absent = isinstance(error, ImportError) and error.name == name
        found["missing"][name] = "" if absent else f" ({type(error).__name__}: {why})"
if "torch" not in found["missing"]:
    import torch
    found["torch"] = torch.__version__
    try:
        float(torch.ones(8, device=sys.argv[1]).sum())
        on_gpu = sys.argv[1] == "cuda"
        found["device"] = torch.cuda.get_device_name() if on_gpu else "the CPU"
    except Exception as error:
        found["why"] = f"{type(error).__name__}: {error}"
print(json.dumps(found))
"""


def place_of(device: str, environment: Mapping[str, str]) -> dict[str, str]:
    """The device and the versions that results are of.

    Raises:
        SystemExit: packages or the device are missing; one line says which.
    """
    command = (sys.executable, "-c", PROBE, device, *NEEDED)
    try:
        tried = subprocess.run(
            command,
            env=environment,
            capture_output=True,
            text=True,
            timeout=PROBE_LIMIT,
            check=False,
        )
        found = json.loads(tried.stdout.strip().splitlines()[-1])
    except subprocess.TimeoutExpired:
        raise cannot(f"torch and the device did not answer in {PROBE_LIMIT:.0f} s") from None
    except (IndexError, ValueError):
        last = tried.stderr.strip().splitlines()[-1:] or [f"exit code {tried.returncode}"]
        raise cannot(f"torch and the device were not found: {last[0]}") from None
    python = ".".join(str(part) for part in sys.version_info[:2])
    if found["missing"]:
        names = ", ".join(name + why for name, why in found["missing"].items())
        raise cannot(
            f"Python {python} at {sys.executable} lacks {names}; docs/gpu.md says how to take "
            "wheels along, in a folder on PYTHONPATH"
        )
    if "why" in found:
        raise cannot(f"device {device!r} does not work: {found['why'].splitlines()[0]}")
    return {"device": found["device"], "torch": found["torch"], "python": python}


def cannot(why: str) -> SystemExit:
    print(f"cannot begin: {why}", flush=True)
    return SystemExit(2)


def lacking(item: Item) -> list[str]:
    """The packages that the item needs and that are not here."""
    return [
        package
        for module, package in item.needs.items()
        if importlib.util.find_spec(module) is None
    ]


def do(item: Item, results: Results, seconds: float, environment: Mapping[str, str]) -> Said:
    """Run one item for at most so long; what came of it."""
    tries = results.items.get(item.name, {}).get("tries", 0) + 1
    lacks = lacking(item)
    if lacks:
        return {"ok": False, "result": f"not installed: {', '.join(lacks)}", "tries": tries}
    begin = time.monotonic()
    log = results.log(item)
    try:
        exit_code = ended(item.command(seconds), log, seconds, environment, results)
    except OSError as error:
        return {"ok": False, "result": f"cannot start: {error}", "tries": tries}
    output = log.read_text(errors="replace")
    try:
        said = item.read(1 if exit_code is None else exit_code, output, results.folder)
    except (ValueError, KeyError, TypeError) as error:
        said = {"ok": False, "result": f"its output cannot be read: {error!r}"}
    if exit_code is None:
        before = results.items.get(item.name, {}).get("done", 0)
        further = bool(said.get("left")) and said["done"] > before
        result = f"not over after {seconds:.0f} s; {said['result']}"
        said |= {"ok": further, "result": result}
    elif exit_code:
        said["result"] = f"exit code {exit_code}; {said['result']}"
    said |= {"seconds": round(time.monotonic() - begin, 1), "tries": tries}
    if not said["ok"]:
        said["tail"] = output[-2000:]
    return said


def ended(
    command: Sequence[str],
    log: Path,
    seconds: float,
    environment: Mapping[str, str],
    results: Results,
) -> int | None:
    """The exit code of a process; None: it, and all that it started, was killed after so long."""
    end = time.monotonic() + seconds
    with log.open("w") as file:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            while (left := end - time.monotonic()) > 0:
                try:
                    return process.wait(min(SYNC, left))
                except subprocess.TimeoutExpired:
                    results.publish()
            return None
        finally:  # also after Ctrl-C
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def call(args: argparse.Namespace) -> int:
    """Do what there is time for; the exit code."""
    begin = time.monotonic()
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {
        **os.environ,
        **threads,
        "PYTHONPATH": os.pathsep.join(paths),  # carried wheels lie on it
        "SHOAL_TEST_DEVICE": args.device,
    }
    place = place_of(args.device, environment)
    results = Results(args.results, args.copy, place)
    environment["SHOAL_RESULTS"] = str(results.folder)
    every = items(args.device, args.short)
    print(ready(place, every, time.monotonic() - begin), flush=True)
    end = begin + 60 * args.minutes
    waiting = [item for item in every if results.open(item)]
    waiting.sort(key=lambda item: item.name in results.items)  # what was never begun comes first
    for number, item in enumerate(waiting):
        left = end - time.monotonic()
        if number and left < max(LEAST, item.seconds / 2):
            continue  # a shorter one may fit
        said = do(item, results, min(left, item.limit), environment)
        results.note(item, said)
        print(line_of(item.name, said), flush=True)
    return conclude(results, every)


def ready(place: Mapping[str, str], every: Sequence[Item], seconds: float) -> str:
    lacks = sorted({package for item in every for package in lacking(item)})
    without = f"; not here: {', '.join(lacks)}" if lacks else ""
    return (
        f"ready after {seconds:.1f} s: {place['device']}, torch {place['torch']}, "
        f"Python {place['python']}, {os.cpu_count()} cores{without}"
    )


def line_of(name: str, said: Said) -> str:
    good = "ok" if said["ok"] else "FAILED"
    return f"{name:26} {good:7} {said.get('seconds', 0):6.1f} s  {said['result']}"


def conclude(results: Results, every: Sequence[Item]) -> int:
    """Print the tables; the exit code."""
    print(f"\n{results.place['device']}, torch {results.place['torch']}: {results.folder}")
    for item in every:
        said = results.items.get(item.name)
        print(f"{item.name:26} to do" if said is None else line_of(item.name, said))
    cells = [speeds(row) for row in rows_of(results.folder, "packing-key") if row["rounds"]]
    if cells:
        print("\nmilliseconds for a step of all models, batch 32")
        show(cells)
    left = [item.name for item in every if results.open(item)]
    if left:
        print(f"\n{len(left)} items are left ({', '.join(left)}): run this again")
    if any(not said["ok"] for said in results.items.values()):
        return 1
    return 3 if left else 0


def speeds(row: Mapping[str, Any]) -> dict[str, Any]:
    """A cell as a row of the table at the end."""
    ways = ("sequential", "interleaved", "streams", "fused", "chosen")
    times = {way: row.get(way) for way in ways}
    return {
        "net": row["net"],
        "models": row["models"],
        **{way: "-" if time is None else 1e3 * time / row["steps"] for way, time in times.items()},
        "sequential / chosen": row["sequential_over_chosen"],
        "choice": row["choice"],
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda", choices=("cpu", "cuda"))
    parser.add_argument("--short", action="store_true", help="small, to see that it works")
    parser.add_argument("--minutes", type=float, default=9.0, help="of this call, at most")
    parser.add_argument("--results", type=Path, help="default: benchmarks/results/gpu")
    parser.add_argument("--copy", type=Path, help="where results go, too; default: $OUT")
    parser.add_argument("--list", action="store_true", help="say what there is to do, and end")
    args = parser.parse_args()
    if args.list:
        for item in items(args.device, args.short):
            print(f"{item.name:26} about {item.seconds:.0f} s, at most {item.limit:.0f} s")
        return 0
    if args.results is None:
        stand_in = args.short or args.device == "cpu"
        args.results = Path(tempfile.mkdtemp()) if stand_in else HERE / "results" / "gpu"
    if args.copy is None and os.environ.get("OUT"):
        args.copy = Path(os.environ["OUT"])
    return call(args)


if __name__ == "__main__":
    sys.exit(main())
