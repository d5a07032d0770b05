"""What every benchmark shares: the table, the JSON file, and virtual environments for peers."""

import json
import os
import platform
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import MappingProxyType
from typing import Any

ROOT = Path(__file__).resolve().parent
RESULTS = Path(os.environ.get("SHOAL_RESULTS", ROOT / "results"))


def machine() -> dict[str, Any]:
    """The machine in words that matter for speed."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [
            line.partition(":")[2].strip()
            for line in cpuinfo.read_text().splitlines()
            if line.startswith("model name")
        ]
        model = names[0] if names else model
    return {"cpu": model, "cores": os.cpu_count(), "system": platform.system()}


def versions(*names: str) -> dict[str, str]:
    """Installed versions of these packages and of what decides the numbers."""
    found = {"python": platform.python_version()}
    for name in ("shoal", "torch", "numpy", "ray", *names):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def write(
    name: str,
    rows: list[dict[str, Any]],
    ratios: dict[str, Any],
    packages: Sequence[str] = (),
    more: Mapping[str, Any] = MappingProxyType({}),
) -> Path:
    """Print the table and the ratios; write results/NAME.json.

    `packages`: those whose versions are noted beside Shoal's, torch's, NumPy's and Ray's. `more`:
    what is written beside them.
    """
    show(rows)
    for key, value in ratios.items():
        print(f"{key} = {value:.4g}" if isinstance(value, float) else f"{key} = {value}")
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    content = {
        "name": name,
        "machine": machine(),
        "versions": versions(*packages),
        "rows": rows,
        "ratios": ratios,
        **more,
    }
    part = path.with_suffix(".part")
    part.write_text(json.dumps(content, indent=1) + "\n")
    part.replace(path)
    print(f"written: {path.name}")
    return path


def show(rows: list[dict[str, Any]]) -> None:
    """The rows as a plain table; its columns are the keys of the first row."""
    if not rows:
        return
    heads = list(rows[0])
    cells = [[_cell(row.get(head)) for head in heads] for row in rows]
    widths = [max(len(head), *(len(line[i]) for line in cells)) for i, head in enumerate(heads)]
    for line in (heads, ["-" * width for width in widths], *cells):
        print("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)))


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)


def peers(name: str, packages: list[str]) -> str:
    """The Python of an environment .venv-NAME that has these packages beside everything
    installed here.
    """
    home = ROOT.parent / f".venv-{name}"
    python = home / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    marker = home / "packages.json"
    wanted = json.dumps(packages)
    if not (marker.exists() and marker.read_text() == wanted):
        venv.create(home, with_pip=True)
        purelib = subprocess.run(
            [python, "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        here = sysconfig.get_paths()["purelib"]
        # Not the path alone: an editable install is a .pth file, which only addsitedir reads.
        (Path(purelib) / "beside.pth").write_text(f"import site; site.addsitedir({here!r})\n")
        constraints = ["-c", str(ROOT.parent / "constraints.txt")]
        subprocess.run(
            [python, "-m", "pip", "install", "--quiet", *constraints, *packages],
            check=True,
            stdout=sys.stderr,
        )
        marker.write_text(wanted)
    return str(python)
