"""What the reproductions share: rows and goals printed as tables and written to
papers/results/NAME.json.
"""

import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent / "results"
SHARED = (
    Path(__file__).resolve().parents[2] / "shared"
)  # data that is not part of the product; may be absent


def write(name: str, rows: list[dict[str, Any]], goals: dict[str, dict[str, Any]]) -> bool:
    """Print and store; True when every goal holds.

    `rows`: one per figure or cell compared ({"what", "paper", "ours", …}).
    `goals`: {"A-1": {"figure": …, "holds": bool, "text": …}}.
    """
    for row in rows:
        shown = {key: value for key, value in row.items() if not isinstance(value, list)}
        print("  ".join(f"{key} {_cell(value)}" for key, value in shown.items()))
    for key, goal in goals.items():
        print(
            f"{key}: {'holds' if goal['holds'] else 'DOES NOT HOLD'}  "
            f"{_cell(goal['figure'])}  {goal.get('text', '')}"
        )
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(
        json.dumps({"name": name, "rows": rows, "goals": goals}, indent=1) + "\n"
    )
    return all(goal["holds"] for goal in goals.values())


def _cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
