"""Everything that needs a GPU, in parts of a few minutes that continue one another.

The steps: the tests of shoal/train on the GPU; `shoal check`; what trials take of its memory
and what happens when it is short (`gpu_memory.py`); several models on it in seven ways
(`packing.py`). Each step is a process of its own. A call does as many as there is time for and
writes down what came of them; the next call goes on with the rest, and the last one writes the
tables of docs/packing.md.

    python benchmarks/gpu.py                        # the next part, at most eight minutes
    python benchmarks/gpu.py --copy FOLDER          # the results also go there, after every step
    python benchmarks/gpu.py --device cpu --short   # a stand-in: the same steps, small, on a CPU

Ray is not needed. The Python that runs this needs the base dependencies of pyproject.toml (torch as
it is there), pytest, hypothesis and scikit-learn, and the checkout on PYTHONPATH. Results go to
benchmarks/results: gpu.json, packing-gpu.json; those of a stand-in to a temporary folder.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
TESTED = (
    "lane",
    "fuse",
    "slot",
    "stream",
    "recipe",
    "tools",
)  # tests/train/wide: gloo, on a CPU
LEAST = 60.0  # seconds; a step is not begun with less left
TRIES = 2  # how often a step that takes too long is begun
Said = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Step:
    """A command. `seconds`: what it takes, about. `read`: its result, from its exit and output.

    `again`: it is not over while that is true after it has ended well.
    """

    name: str
    command: tuple[str, ...]
    seconds: float
    read: Callable[[int, str], Said]
    again: Callable[[], bool] = lambda: False


# -- the steps ---------------------------------------------------------------------------------


def steps(args: argparse.Namespace, results: Path) -> list[Step]:
    """All of them, in their order."""
    return [*tests(args), *checks(args), *packing(args, results)]


def tests(args: argparse.Namespace) -> list[Step]:
    """A step for each folder of tests/train; the stand-in takes one file."""
    folders = [f"tests/train/{name}" for name in TESTED]
    if args.short:
        folders = ["tests/train/recipe/test_rng.py"]
    pytest = (sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--tb", "line")
    return [Step(folder, (*pytest, folder), 120.0, read_tests) for folder in folders]


def read_tests(exit_code: int, output: str) -> Said:
    """How many passed; the names of those that did not."""
    lines = output.strip().splitlines()
    failed = [
        line.split(" - ")[0] for line in lines if line.startswith(("FAILED", "ERROR"))
    ]
    words = re.findall(
        r"\d+ (?:passed|failed|skipped|deselected|errors?)", " ".join(lines[-1:])
    )
    return {"ok": exit_code == 0, "result": ", ".join(words), "failed": failed}


def checks(args: argparse.Namespace) -> list[Step]:
    """`shoal check`, and the cases of gpu_memory.py."""
    shoal = (sys.executable, "-m", "shoal.cli", "check", "examples/digits.py")
    found = [Step("shoal check", (*shoal, "--device", args.device), 40.0, read_check)]
    for case in ("check", "probe", "largest", "short"):
        command = (
            sys.executable,
            str(HERE / "gpu_memory.py"),
            case,
            "--device",
            args.device,
        )
        found.append(Step(f"memory: {case}", command, 60.0, read_json))
    return found


def read_check(exit_code: int, output: str) -> Said:
    lines = [line for line in output.splitlines() if line.startswith(("ok", "FAIL"))]
    return {"ok": exit_code == 0, "result": f"{len(lines)} checks", "lines": lines}


def read_json(exit_code: int, output: str) -> Said:
    if exit_code:
        return {"ok": False, "result": "the program failed"}
    said: Said = json.loads(output.strip().splitlines()[-1])
    return {"ok": said.pop("ok"), "result": json.dumps(said)}


def packing(args: argparse.Namespace, results: Path) -> list[Step]:
    """Cells of packing.py until there are no more; then plain loops, switching, and the paper's
    nets.
    """
    program = (sys.executable, str(HERE / "packing.py"), "--device", args.device)
    four = (sys.executable, str(HERE / "packing_four.py"), "--device", args.device)
    if args.short:
        quick = (
            "--quick",
            "--nets",
            "MLP-3 x16",
            "--longest",
            "60",
            "--parts",
            "cells",
        )
        return [Step("packing", (*program, *quick), 60.0, read_exit)]
    cells = (
        "--parts",
        "cells",
        "--add",
        "--makings",
        "2",
        "--rounds",
        "3",
        "--seconds",
        "240",
    )

    def missing() -> bool:
        path = results / "packing-gpu.json"
        return (
            not path.exists()
            or json.loads(path.read_text())["ratios"]["cells_missing"] > 0
        )

    return [
        Step("packing", (*program, *cells), 450.0, read_exit, missing),
        Step("packing: plain loops", (*program, "--parts", "plain"), 90.0, read_exit),
        Step(
            "packing: switching", (*program, "--parts", "switching"), 120.0, read_exit
        ),
        Step("packing: the paper's nets", four, 240.0, read_exit),
    ]


def read_exit(exit_code: int, output: str) -> Said:
    return {
        "ok": exit_code == 0,
        "result": "done" if exit_code == 0 else "the program failed",
    }


# -- a part ------------------------------------------------------------------------------------


class Results:
    """What came of the steps so far: gpu.json in the folder of results. `copy`: all goes there,
    too.
    """

    def __init__(self, folder: Path, copy: Path | None, device: str) -> None:
        self.folder = folder
        self.copy = copy
        self.path = folder / "gpu.json"
        self.steps: dict[str, Said] = {}
        self.place = place_of(device)
        if self.path.exists():
            found = json.loads(self.path.read_text())
            if found["place"] != self.place:
                raise SystemExit(
                    f"{self.path.name} is of {found['place']}, and this is {self.place}: delete it "
                    "and packing-gpu*.json to begin anew"
                )
            self.steps = found["steps"]

    def over(self, step: Step) -> bool:
        """Whether the step need not be begun again."""
        said = self.steps.get(step.name, {})
        return bool(said.get("over")) or said.get("tries", 0) >= TRIES

    def note(self, step: Step, said: Said) -> None:
        """Write down what came of a step."""
        self.steps[step.name] = said
        self.folder.mkdir(parents=True, exist_ok=True)
        content = {"place": self.place, "steps": self.steps}
        self.path.write_text(json.dumps(content, indent=1) + "\n")
        if self.copy is not None:
            for path in self.folder.glob("*gpu*.json"):
                shutil.copy(path, self.copy)


def place_of(device: str) -> Mapping[str, str]:
    """The device and the versions that results are of."""
    import torch

    name = torch.cuda.get_device_name() if device == "cuda" else "the CPU"
    python = ".".join(str(part) for part in sys.version_info[:2])
    return {"device": name, "torch": torch.__version__, "python": python}


def do(
    step: Step, results: Results, seconds: float, environment: Mapping[str, str]
) -> Said:
    """Run one step for at most so long; what came of it."""
    tries = results.steps.get(step.name, {}).get("tries", 0)
    begin = time.monotonic()
    with tempfile.TemporaryFile("w+") as file:
        process = subprocess.Popen(
            step.command,
            cwd=ROOT,
            env=environment,
            stdout=file,
            stderr=subprocess.STDOUT,
        )
        try:
            exit_code: int | None = process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            exit_code = None
        file.seek(0)
        output = file.read()
    took = round(time.monotonic() - begin, 1)
    if exit_code is None:
        late = {"ok": False, "result": f"not over after {seconds:.0f} s"}
        return {**late, "tries": tries + 1, "tail": output[-2000:]}
    said = {**step.read(exit_code, output), "seconds": took, "over": True}
    if not said["ok"]:
        said["tail"] = output[-2000:]
    elif step.again():
        said |= {"over": False, "result": "more to do"}
    return said


def part(args: argparse.Namespace) -> bool:
    """Do what there is time for; whether all is done."""
    folder = args.results
    results = Results(folder, args.copy, args.device)
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    environment = {
        **os.environ,
        **threads,
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "SHOAL_RESULTS": str(folder),
        "SHOAL_TEST_DEVICE": args.device,
    }
    end = time.monotonic() + 60 * args.minutes
    left = [step for step in steps(args, folder) if not results.over(step)]
    for number, step in enumerate(left):
        time_left = end - time.monotonic()
        if time_left < LEAST or (number and time_left < step.seconds):
            break
        said = do(step, results, time_left, environment)
        results.note(step, said)
        good = "ok" if said["ok"] else "NOT OK"
        print(f"{step.name:24} {good:7} {said['result']}", flush=True)
    more = [step.name for step in steps(args, folder) if not results.over(step)]
    if more:
        print(
            f"{len(more)} steps are left ({', '.join(more)}): run this again",
            flush=True,
        )
        return False
    bad = [name for name, said in results.steps.items() if not said["ok"]]
    print(f"all steps are over; not ok: {', '.join(bad) or 'none'}")
    return True


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda", choices=("cpu", "cuda"))
    parser.add_argument(
        "--short", action="store_true", help="small, to see that it works"
    )
    parser.add_argument(
        "--minutes", type=float, default=8.0, help="of this part, at most"
    )
    parser.add_argument("--results", type=Path, help="default: benchmarks/results")
    parser.add_argument(
        "--copy", type=Path, help="copy the results there after every step"
    )
    args = parser.parse_args()
    stand_in = args.short or args.device == "cpu"
    if args.results is None:
        args.results = Path(tempfile.mkdtemp()) if stand_in else HERE / "results"
    done = part(args)
    if done and not stand_in:
        subprocess.run(
            [sys.executable, str(ROOT / "tools" / "figures.py"), "--write"], check=False
        )


if __name__ == "__main__":
    main()
