"""Thousands of tiny trials: what one costs, and what it costs to look at a study of so many.

A trial is a small multi-layer perceptron, four steps of Adam and one validation batch; a random
search draws its learning rate. All ways run on one thread in a process of their own, and do the
same work in the same order, one trial after the other (Shoal's default policy may train several
together). Imports are not counted; the commands of the second table are timed as a user waits for
them, imports included, but for `trials` and `resume`, which are calls.

- loop: a plain PyTorch loop that remembers each accuracy and forgets the weights.
- loop, saving: the same loop, which also writes each trial's final weights and accuracy to files,
  as Shoal does; Shoal makes them durable, the loop leaves that to the operating system. The ratio
  `many_over_loop_N` is against this loop, `many_over_bare_loop_N` against the first one.
- optuna: its random sampler around the plain loop; no weights are kept.
- tune: Ray Tune with `reuse_actors` on one CPU; its driver's memory is counted, not its worker's.
  It trains at most 1000 trials, in the first round alone, for it takes minutes.

A study is half done when it was killed with half of its trials finished; `resume` then takes the
seconds from opening its folder to the first training step. Cases take turns, round after round;
the table has medians. A case that takes longer than `--limit` seconds is ended, its row says so,
and later rounds leave it out.

    python benchmarks/many.py
    python benchmarks/many.py --trials 200 --rounds 1 --parts loop shoal read
    python benchmarks/many.py --add --parts optuna    # the other rows as they are in the results
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

from common import RESULTS, machine, peers, show, versions, write

HERE = Path(__file__).resolve().parent
PARTS: Mapping[str, tuple[str, ...]] = {
    "loop": ("loop", "loop, saving"),
    "shoal": ("shoal", "shoal, fifo"),
    "optuna": ("optuna, in memory", "optuna, journal"),
    "tune": ("tune",),
    "read": (),  # the second table, for the studies that "shoal" has made
}
WAYS = tuple(way for ways in PARTS.values() for way in ways)
MOST_FOR_TUNE = 1000
PACKAGES = ("optuna",)
GOALS = {
    "many_over_loop_10000": 2.0,
    "growth": 1.3,
    "report_s_10000": 3.0,
    "report_MB_10000": 12.0,
    "resume_s_10000": 3.0,
}
FIGURES = (
    "seconds",
    "ms_a_trial",
    "peak_MB",
    "journal_bytes_a_trial",
    "disk_kB_a_trial",
    "files_a_trial",
)
READINGS = ("status_s", "report_s", "report_MB", "trials_s", "resume_s")
Row = dict[str, Any]


class OverLimitError(Exception):
    """A case took longer than its limit."""


# -- one case ----------------------------------------------------------------------------------


def run_way(way: str, trials: int, folder: Path, limit: float, python: str = sys.executable) -> Row:
    """Run one way as a process; what it says of itself.

    Raises:
        OverLimitError: it took longer than `limit` seconds, and was ended.
    """
    command = [python, str(HERE / "many_ways.py"), way, str(trials), str(folder)]
    said: Row = json.loads(run(command, limit))
    return said


def seconds_of(way: str, trials: int, folder: Path, limit: float) -> float:
    return float(run_way(way, trials, folder, limit)["seconds"])


def run(command: list[str], limit: float) -> str:
    """Run a command; the last line that it printed.

    Raises:
        OverLimitError: it took longer than `limit` seconds, and was ended.
        SystemExit: it failed.
    """
    process = start(command)
    try:
        out, err = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        end(process)
        raise OverLimitError from None
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{out[-2000:]}\n{err[-4000:]}")
    return out.strip().splitlines()[-1]


def start(command: list[str]) -> subprocess.Popen[str]:
    single = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    quiet = {"RAY_AIR_NEW_OUTPUT": "0", "PYTHONWARNINGS": "ignore"}
    return subprocess.Popen(
        command,
        env=os.environ | single | quiet,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def end(process: subprocess.Popen[str]) -> None:
    """Ask a process to end; ten seconds later, end it."""
    process.send_signal(signal.SIGTERM)
    try:
        process.communicate(timeout=10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()


def finished(journal: Path) -> int:
    """How many trials a study's journal says are finished."""
    if not journal.exists():
        return 0
    return journal.read_bytes().count(b'"e":"Finished"')


def measure(way: str, trials: int, folder: Path, limit: float, python: str) -> Row:
    """One row of the first table."""
    try:
        said = run_way(way, trials, folder, limit, python)
    except OverLimitError:
        done = finished(folder / "study" / "journal.jsonl")
        reached = f", {done} trials done" if done else ""
        return {"seconds": limit, "note": f"over {limit:g} s{reached}"}
    files = [path for path in folder.rglob("*") if path.is_file()]
    journals = [path for path in files if path.name.startswith("journal.")]
    row = {
        "seconds": said["seconds"],
        "ms_a_trial": 1e3 * said["seconds"] / trials,
        "peak_MB": said["peak_MB"],
        "disk_kB_a_trial": sum(path.stat().st_size for path in files) / 1e3 / trials,
        "files_a_trial": len(files) / trials,
    }
    if journals:
        row["journal_bytes_a_trial"] = journals[0].stat().st_size / trials
    return row


def read(way: str, trials: int, folder: Path, limit: float) -> Row:
    """What it takes to look at the study in this folder: a part of its row."""
    study = folder / "study"
    report = study / "report.html"
    row: Row = {}
    shoal = [sys.executable, "-m", "shoal.cli"]
    row["status_s"] = within(limit, lambda: timed([*shoal, "status", str(study)], limit))
    row["report_s"] = within(limit, lambda: timed([*shoal, "report", str(study)], limit))
    if report.exists():
        row["report_MB"] = report.stat().st_size / 1e6
    row["trials_s"] = within(limit, lambda: seconds_of("trials", trials, folder, limit))
    return row


def resume(way: str, trials: int, folder: Path, limit: float) -> Row:
    """Kill a study when half of its trials are finished; the seconds until it trains again."""
    journal = folder / "study" / "journal.jsonl"
    process = start([sys.executable, str(HERE / "many_ways.py"), way, str(trials), str(folder)])
    since = time.monotonic()
    while finished(journal) < trials / 2:
        time.sleep(0.2)
        if process.poll() is not None:
            raise SystemExit(f"{way} ended too early:\n{process.communicate()[1][-4000:]}")
        if time.monotonic() - since > limit:
            end(process)
            return {"resume_s": f"over {limit:g} s until half is done"}
    process.kill()
    process.communicate()
    again = f"resume {way}"
    return {"resume_s": within(limit, lambda: seconds_of(again, trials, folder, limit))}


def timed(command: list[str], limit: float) -> float:
    """Seconds of a command."""
    begin = time.perf_counter()
    run(command, limit)
    return time.perf_counter() - begin


def within(limit: float, what: Callable[[], float]) -> float | str:
    """A figure, or the words that it took longer than the limit."""
    try:
        return what()
    except OverLimitError:
        return f"over {limit:g} s"


# -- all of them -------------------------------------------------------------------------------


def measure_all(args: argparse.Namespace) -> dict[tuple[str, int], list[Row]]:
    """The rows of each round, by way and trials."""
    cases = [
        (way, trials)
        for trials in args.trials
        for part in args.parts
        for way in PARTS[part]
        if part != "tune" or trials <= MOST_FOR_TUNE
    ]
    tune = peers("tune", ["ray[tune]"]) if ("tune" in {way for way, _ in cases}) else ""
    seen: dict[tuple[str, int], list[Row]] = {case: [] for case in cases}
    for turn in range(args.rounds):
        first = turn % len(cases)
        for case in (*cases[first:], *cases[:first]):
            way, trials = case
            if any("note" in row for row in seen[case]) or (way == "tune" and turn):
                continue
            python = tune if way == "tune" else sys.executable
            seen[case].append(one_round(way, trials, args, python))
            print(f"round {turn + 1}  {way:18} {trials:6}  {said_of(seen[case][-1])}", flush=True)
    return seen


def one_round(way: str, trials: int, args: argparse.Namespace, python: str) -> Row:
    with tempfile.TemporaryDirectory() as name:
        row = measure(way, trials, Path(name), args.limit, python)
        if way not in PARTS["shoal"] or "read" not in args.parts:
            return row
        if "note" not in row:
            row |= read(way, trials, Path(name), args.limit)
    if "note" not in row:
        with tempfile.TemporaryDirectory() as name:
            row |= resume(way, trials, Path(name), args.limit)
    return row


def said_of(row: Row) -> str:
    if "note" in row:
        return str(row["note"])
    return f"{row['ms_a_trial']:.2f} ms a trial"


def middle(values: list[Any]) -> Any:
    """The median; words, where one round has words."""
    words = [value for value in values if isinstance(value, str)]
    if words:
        return words[0]
    return median(values)


def together(way: str, trials: int, rounds: list[Row]) -> Row:
    """The medians of a case's rounds; or its last round, where that took too long."""
    late = [row for row in rounds if "note" in row]
    if late:
        return {"way": way, "trials": trials, "note": late[0]["note"]}
    row: Row = {"way": way, "trials": trials}
    for figure in (*FIGURES, *READINGS):
        values = [each[figure] for each in rounds if figure in each]
        if values:
            row[figure] = middle(values)
    row["rounds_s"] = [round(each["seconds"], 2) for each in rounds]
    return row


# -- what comes out ----------------------------------------------------------------------------


def ratios(rows: list[Row]) -> dict[str, Any]:
    """What the benchmark is for, and its goals. A case that was ended has no ratio."""
    at = {(row["way"], row["trials"]): row for row in rows if not row.get("note")}
    found: dict[str, Any] = {}

    def compare(name: str, one: tuple[str, int], other: tuple[str, int]) -> None:
        if one in at and other in at:
            found[name] = at[one]["ms_a_trial"] / at[other]["ms_a_trial"]

    for trials in sorted({row["trials"] for row in rows}):
        compare(f"many_over_loop_{trials}", ("shoal", trials), ("loop, saving", trials))
        compare(f"many_over_bare_loop_{trials}", ("shoal", trials), ("loop", trials))
        compare(f"fifo_over_loop_{trials}", ("shoal, fifo", trials), ("loop, saving", trials))
        compare(f"optuna_over_shoal_{trials}", ("optuna, in memory", trials), ("shoal", trials))
        compare(
            f"optuna_journal_over_shoal_{trials}", ("optuna, journal", trials), ("shoal", trials)
        )
        compare(f"tune_over_shoal_{trials}", ("tune", trials), ("shoal", trials))
        for figure in READINGS:
            if figure in at.get(("shoal", trials), {}):
                found[f"{figure}_{trials}"] = at["shoal", trials][figure]
    compare("growth", ("shoal", 10_000), ("shoal", 1_000))
    compare("growth_fifo", ("shoal, fifo", 10_000), ("shoal, fifo", 1_000))
    return found | {"goals": GOALS, "missed": missed(found)}


def missed(found: Mapping[str, Any]) -> list[str]:
    """The goals that were not reached, with the figures; those not measured at all among them."""
    words = []
    for name, goal in GOALS.items():
        figure = found.get(name, "not measured")
        if isinstance(figure, str) or figure > goal:
            shown = figure if isinstance(figure, str) else f"{figure:.3g}"
            words.append(f"{name}: {shown}, goal {goal:g}")
    return words


def earlier(path: Path) -> list[Row]:
    """The rows of the results there are.

    Raises:
        SystemExit: they are of another machine or other versions.
    """
    if not path.exists():
        return []
    found = json.loads(path.read_text())
    if (found["machine"], found["versions"]) != (machine(), versions(*PACKAGES)):
        raise SystemExit(f"{path.name} is of another machine or other versions: leave --add out")
    return list(found["rows"])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trials", type=int, nargs="*", default=[1_000, 10_000])
    parser.add_argument("--parts", nargs="*", choices=PARTS, default=list(PARTS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--limit", type=float, default=600.0, help="seconds of a case, at most")
    parser.add_argument("--add", action="store_true", help="keep the results' other rows")
    args = parser.parse_args()
    name = "many" if {1_000, 10_000} & set(args.trials) else "many-quick"
    kept = earlier(RESULTS / f"{name}.json") if args.add else []
    rows = {(row["way"], row["trials"]): row for row in kept}
    for (way, trials), rounds in measure_all(args).items():
        rows[way, trials] = together(way, trials, rounds)
    order = sorted(rows, key=lambda case: (case[1], WAYS.index(case[0])))
    finish(name, [rows[case] for case in order])


def finish(name: str, rows: list[Row]) -> None:
    """Print the second table; write and print the rest."""
    studies = [row for row in rows if any(figure in row for figure in READINGS)]
    show([{key: row.get(key) for key in ("way", "trials", *READINGS)} for row in studies])
    columns = ("way", "trials", *FIGURES, *READINGS, "rounds_s", "note")
    filled = [{key: row.get(key, "") for key in columns} for row in rows]
    write(name, filled, ratios(rows), PACKAGES)


if __name__ == "__main__":
    main()
