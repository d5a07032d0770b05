"""What `shoal simulate` and `shoal trace stats` do, as functions: data for --json, and lines to show."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shoal.core.ports import Policy
from shoal.policy import rebuild
from shoal.simulate.read import read_log
from shoal.simulate.run import run_spec
from shoal.simulate.spec import Spec, SpecError, load_spec
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

    `policies`: labels of the spec's [policies], or names of policies with their defaults; none: all that the spec has,
    or "fifo". `out`: a folder for each simulated study's journal and report.

    Raises:
        SpecError, TraceError: as `load_spec`; no policy has such a name.
    """
    found, lines = [], []
    for path in specs:
        spec = load_spec(path)
        results = {label: _one(spec, label, rule, Path(path).stem, out) for label, rule in _chosen(spec, policies).items()}
        found.append({"spec": str(path), "title": spec.title, "policies": results})
        lines += [spec.title, *table(results), ""]
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


def _chosen(spec: Spec, policies: Sequence[str]) -> dict[str, Policy[Any]]:
    if not policies:
        return dict(spec.policies) or {"fifo": rebuild({"name": "fifo"})}
    try:
        return {name: spec.policies[name] if name in spec.policies else rebuild({"name": name}) for name in policies}
    except ValueError as error:
        raise SpecError(f"{error}; the spec has {', '.join(spec.policies) or 'none of its own'}") from error


def _one(spec: Spec, label: str, policy: Policy[Any], name: str, out: str | Path | None) -> dict[str, Any]:
    figures, journal = run_spec(spec, policy, keep=out is not None)
    if out is not None and journal is not None:
        from shoal.engine.journal import Journal
        from shoal.report.html import write

        folder = Path(out) / f"{name}-{label}"
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "journal.jsonl"
        path.unlink(missing_ok=True)
        written = Journal(path)
        for line in journal.lines:
            written.append(line.time, line.entry)
        written.close()
        figures["report"] = str(write(path, folder / "report.html", f"{spec.title}: {label}"))
    return figures


def table(results: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Policies side by side, a row each."""
    heads = ["policy", *(head for head, _ in COLUMNS.values())]
    cells = [
        [label, *(_cell(None if row[k] is None else row[k] / unit) for k, (_, unit) in COLUMNS.items())]
        for label, row in results.items()
    ]
    widths = [max(len(line[i]) for line in (heads, *cells)) for i in range(len(heads))]
    return ["  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in (heads, *cells)]


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) and abs(value) < 1e5 else f"{value:,.0f}"
