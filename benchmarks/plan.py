"""How well `shoal plan` predicts: the demo's training time, predicted and then trained, as
processes of their own.

python benchmarks/plan.py [--rounds 5]
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from common import write

DIGITS = str(Path(__file__).resolve().parents[1] / "examples" / "digits.py")


def shoal(*args: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "shoal.cli", *args], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"shoal {' '.join(args)} failed:\n{done.stderr[-3000:]}")
    return done.stdout


def trained(folder: Path) -> float:
    """Seconds from the study's beginning to its last finished trial."""
    from shoal.core.event import Finished
    from shoal.engine.journal import read

    return max(
        line.time for line in read(folder / "journal.jsonl") if isinstance(line.entry, Finished)
    )


def bars(folder: Path) -> set[tuple[str, str]]:
    """What a Gantt chart of the journal is made of: slots and kinds of time."""
    from shoal.engine.journal import read
    from shoal.reporting import chart

    found = chart(list(read(folder / "journal.jsonl"))).bars
    return {
        (slot, bar.kind)
        for slot, bars in found.items()
        for bar in bars
        if bar.kind in ("train", "evaluate", "save", "switch")
    }


def one_round(folder: Path, turn: int) -> dict[str, Any]:
    def predict() -> float:
        found = json.loads(
            shoal("plan", DIGITS, "--policy", "fifo", "--out", str(folder / "plan"), "--json")
        )
        return float(found["policies"][0]["seconds"])

    def train() -> float:
        shoal("run", DIGITS, "--policy", "fifo", "--storage", str(folder / "run"), "--json")
        return trained(folder / "run")

    if turn % 2:
        real, predicted = train(), predict()
    else:
        predicted, real = predict(), train()
    return {
        "round": turn + 1,
        "predicted_s": predicted,
        "trained_s": real,
        "predicted_over_trained": predicted / real,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    rows = []
    for turn in range(args.rounds):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            rows.append(one_round(folder, turn))
            same = bars(folder / "plan" / "fifo") == bars(folder / "run")
            rows[-1]["same_gantt_form"] = same
    ratio = median(row["predicted_over_trained"] for row in rows)
    write(
        "plan",
        rows,
        {
            "predicted_over_trained": ratio,
            "off_by": abs(ratio - 1),
            "same_gantt_form": all(r["same_gantt_form"] for r in rows),
        },
    )


if __name__ == "__main__":
    main()
