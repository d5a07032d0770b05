"""What `shoal simulate` and `shoal trace stats` do, as functions: data for --json, and lines to show."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from shoal.core.ports import Policy
from shoal.engine.journal import Journal
from shoal.policy import parse
from shoal.simulate.fields import SpecError
from shoal.simulate.read import read_log
from shoal.simulate.run import run_spec
from shoal.simulate.spec import Spec, load_spec
from shoal.simulate.stats import describe

COLUMNS = {  # of the table: figure, head, unit in seconds
    "finished": ("finished", 1.0),
    "makespan_s": ("makespan h", 3600.0),
    "mean_completion_s": ("mean completion h", 3600.0),
    "samples": ("samples", 1.0),
    "slots_used": ("slots used", 1.0),
    "gangs_started": ("starts", 1.0),
    "cpu_s": ("cpu s", 1.0),
}


def simulate(
    specs: Sequence[str | Path], policies: Sequence[str] = (), out: str | Path | None = None
) -> tuple[dict[str, Any], list[str]]:
    """Each spec under each policy: {"specs": [{"spec", "title", "policies": {label: figures}}]}, and a table a spec.

    `policies`: labels of the spec's [policies], or policies by name, as "explore(seconds=60)"; none: all that the spec has,
    or "fifo". `out`: a folder for a page a spec with all its policies ("page" in the data), and for each simulated study's
    journal and report ("report" in its figures).

    Raises:
        SpecError, TraceError: as `load_spec`; no policy has such a name.
    """
    found, lines = [], []
    for path, name in zip(specs, _names([Path(path) for path in specs]), strict=True):
        spec = load_spec(path)
        chosen = _chosen(spec, path, policies)
        runs = {label: run_spec(spec, rule, keep=out is not None) for label, rule in chosen.items()}
        results = {label: figures for label, (figures, _) in runs.items()}
        told: dict[str, Any] = {"spec": str(path), "title": spec.title, "policies": results}
        lines += [spec.title, *table(results), *_notes(results)]
        if out is not None:
            told["page"] = str(_pages(spec, Path(out), name, {k: (v, j) for k, (v, j) in runs.items() if j is not None}))
            lines.append(f"charts: {told['page']}")
        found.append(told)
        lines.append("")
    return {"specs": found}, lines[:-1]


def trace_stats(path: str | Path) -> tuple[dict[str, Any], list[str]]:
    """What an idle-node log is like, as `simulate.stats.describe`, and as lines.

    Raises:
        TraceError: the log breaks a rule.
    """
    found = describe(read_log(path))
    width = max(map(len, found))
    lines = [f"{name:{width}}  {_cell(value)}" for name, value in found.items() if not isinstance(value, Mapping)]
    lines += [f"{'departures per node and hour, by age in seconds':{width}}"]
    return found, lines + [f"  {age:>12}  {rate:.3g}" for age, rate in found["hazard_per_hour"].items()]


def _names(paths: Sequence[Path]) -> list[str]:
    """What each spec's pages are called: its name, with its folder's where another has the same, numbered at last."""
    stems = [path.stem for path in paths]
    folders = [f"{path.resolve().parent.name}-" if stems.count(path.stem) > 1 else "" for path in paths]
    names = [folder + stem for folder, stem in zip(folders, stems, strict=True)]
    return [f"{name}-{n}" if names.count(name) > 1 else name for n, name in enumerate(names, 1)]


def _chosen(spec: Spec, path: str | Path, policies: Sequence[str]) -> dict[str, Policy[Any]]:
    if not policies:
        return dict(spec.policies) or {"fifo": parse("fifo")}
    try:
        return {name: spec.policies[name] if name in spec.policies else parse(name) for name in policies}
    except ValueError as error:
        raise SpecError(path, "--policy", f"{error}; the spec has {', '.join(spec.policies) or 'none of its own'}") from error


def _pages(spec: Spec, out: Path, name: str, runs: Mapping[str, tuple[dict[str, Any], Journal]]) -> Path:
    """Write each policy's journal and report, and one page with all of them side by side."""
    from shoal.report import compare

    sides = []
    for label, (figures, journal) in runs.items():
        folder = re.sub(r"[^\w.+-]", "_", f"{name}-{label}")
        report = _report(journal, out / folder, f"{spec.title}: {label}")
        figures["report"] = str(report)
        done = figures["makespan_s"] if figures["finished"] == figures["trials"] else None
        link = quote(report.relative_to(out).as_posix())
        sides.append(compare.Side(label, journal.lines, list(_figures(figures)), done, link))
    page = out / f"{name}.html"
    heads = ["policy", *(head for head, _ in COLUMNS.values())]
    note = " ".join(_notes({label: figures for label, (figures, _) in runs.items()}))
    page.write_text(compare.page(spec.title, heads, sides, note), encoding="utf-8")
    return page


def _report(journal: Journal, folder: Path, title: str) -> Path:
    from shoal.report.html import write

    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "journal.jsonl"
    path.unlink(missing_ok=True)
    written = Journal(path)
    for line in journal.lines:
        written.append(line.time, line.entry)
    written.close()
    return write(path, folder / "report.html", title)


def _figures(row: Mapping[str, Any]) -> Iterator[tuple[str, float | None]]:
    """The columns of one policy: what is shown, and its number."""
    for name, (_, unit) in COLUMNS.items():
        value = None if row[name] is None else row[name] / unit
        yield _cell(value), value


def _notes(results: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What the table does not say: who got stuck, and what failed."""
    stuck = [f"{label}: stalled: {row['stalled']}" for label, row in results.items() if row["stalled"]]
    return stuck + [f"{label}: {row['failed']} trials failed" for label, row in results.items() if row["failed"]]


def table(results: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Policies side by side, a row each."""
    heads = ["policy", *(head for head, _ in COLUMNS.values())]
    cells = [[label, *(text for text, _ in _figures(row))] for label, row in results.items()]
    widths = [max(len(line[i]) for line in (heads, *cells)) for i in range(len(heads))]
    return ["  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in (heads, *cells)]


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) and abs(value) < 1e5 else f"{value:,.0f}"
