"""What `shoal simulate` and `shoal trace stats` do, as functions.

Each returns data for --json, and lines to show.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from shoal.core.ports import Policy
from shoal.engine.journal import Journal
from shoal.policy import parse
from shoal.policy.description import objectives_of
from shoal.policy.elastic.objective import try_objective
from shoal.reporting import compare
from shoal.reporting.format import number, share
from shoal.reporting.html import write
from shoal.reporting.sections import Cell
from shoal.simulate import slurm_log
from shoal.simulate.fields import SpecError
from shoal.simulate.idle_log import IdleLog, TraceError, describe
from shoal.simulate.log_files import read_log, write_log
from shoal.simulate.policy_files import departure_chances, horizon, with_files
from shoal.simulate.run import Simulated, harvest_figures, run_spec
from shoal.simulate.spec import Spec, load_spec

Figures = dict[str, Any]  # of one policy
Results = Mapping[str, Figures]  # by the policy's label
Runs = dict[str, Simulated]  # likewise, with their journals
Policies = Mapping[str, Policy[Any]]
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
    """Simulate each spec under each policy.

    Returns the data, {"specs": [{"spec", "title", "policies": {label: figures}}]}, and lines of
    text with one table for each spec.

    Args:
        specs: the paths of the specs.
        policies: labels of the spec's [policies], or policies by name, as "explore(seconds=60)". If
            there are none, all that the spec has, or "fifo".
        out: a folder for pages: one for each spec with all its policies ("page" in the data), and
            the journal and the report of each simulated study ("report" in its figures).

    Raises:
        SpecError: as for `load_spec`; or no policy has such a name.
        TraceError: as for `load_spec`.
    """
    summaries: list[Figures] = []
    lines: list[str] = []
    names = _names([Path(path) for path in specs])
    for path, name in zip(specs, names, strict=True):
        spec = load_spec(path)
        keep = out is not None or bool(spec.script)
        runs = _runs(spec, _chosen(spec, path, policies), keep)
        results = _results(runs)
        summary = {"spec": str(path), "title": spec.title, "policies": results}
        if lines:
            lines.append("")
        lines += [spec.title, *table(results), *_notes(results)]
        lines += harvest_lines(results)

        if out is not None:
            summary["page"] = str(_pages(spec, Path(out), name, runs))
            lines.append(f"charts: {summary['page']}")
        summaries.append(summary)
    return {"specs": summaries}, lines


def _runs(spec: Spec, policies: Policies, keep: bool) -> Runs:
    """Simulate the spec's study under each policy; `keep`: with the journals."""
    runs: Runs = {}
    for label, policy in policies.items():
        figures, journal = run_spec(spec, policy, keep)
        if spec.script and journal is not None:
            ended = figures["finished"]
            figures["harvest"] = harvest_figures(spec.idle, ended, journal.lines)
        runs[label] = figures, journal
    return runs


def _results(runs: Runs) -> Results:
    """The figures of each policy, without the journals."""
    return {label: figures for label, (figures, _) in runs.items()}


def trace_stats(path: str | Path) -> tuple[dict[str, Any], list[str]]:
    """What an idle-node log is like: figures, `idle_log.describe`'s and more, and lines.

    Raises:
        TraceError: the log breaks a rule.
    """
    log = read_log(path)
    figures = describe(log)
    width = max(map(len, figures))
    lines: list[str] = []
    for name, value in figures.items():
        if not isinstance(value, Mapping):
            lines.append(f"{name:{width}}  {_cell(value)}")

    lines.append("departures per node and hour, by age in seconds")
    for age, rate in figures["hazard_per_hour"].items():
        lines.append(f"  {age:>12}  {rate:.3g}")

    figures["horizon_s"] = horizon(log)
    figures["together"] = departure_chances(log)
    lines.append("chance that a node leaves along with another, by racks between them,")
    lines.append("if they joined apart, and together")
    for distance, apart, joined in figures["together"]:
        lines.append(f"  {distance:>12.0f}  {apart:.3g}  {joined:.3g}")
    lines.append("elastic takes these, and a horizon of so many seconds, with")
    lines.append(f"""  --policy 'elastic(log="{path}")': {figures["horizon_s"]:.4g}""")
    return figures, lines


def trace_slurm(
    out: Path,
    sacct: Path | None,
    nodes: Path | None,
    since: str,
    partition: str | None,
    ignored: str | None,
) -> tuple[dict[str, Any], list[str]]:
    """Write the idle-node log of what Slurm's accounting says; figures of the log, and lines.

    `sacct`, `nodes`: files of what `sacct` and `sinfo` printed; None: they are run here. Without a
    file of nodes, those of a file of accounts are all that ran something, and `partition` needs
    `sinfo`. `ignored`: a partition whose allocations are pilots, and do not count.

    Raises:
        TraceError: a file breaks a rule, or a command does not answer; it says what to do.
        OSError: as `open`.
    """
    known = None
    if nodes is not None:
        known = slurm_log.nodes_in(nodes.read_text(encoding="utf-8"))
    elif sacct is None or partition is not None:
        known = slurm_log.nodes_in(slurm_log.states(partition))
    if sacct is not None:
        place, text = sacct, sacct.read_text(encoding="utf-8")
    else:
        place, text = Path("sacct"), slurm_log.accounting(since)

    log = slurm_log.log_of(place, text, known, ignored)
    write_log(log, out)
    return _recorded(log, out)


def trace_watch(
    out: Path, partition: str | None, every: float, hours: float | None, say: Callable[[str], None]
) -> tuple[dict[str, Any], list[str]]:
    """Record idle nodes from now on; figures of the whole log then, and lines.

    Raises:
        TraceError: Slurm does not answer, or the file is another one.
    """
    joins = slurm_log.record(out, partial(slurm_log.states, partition), every, hours, say)
    if not joins:
        raise TraceError(out, None, "no node was idle while it was recorded")
    return _recorded(read_log(out), out)


def _recorded(log: IdleLog, out: Path) -> tuple[dict[str, Any], list[str]]:
    """Figures of the log that was written, and lines."""
    figures = {
        "log": str(out),
        "hours": log.span / 3600.0,
        "nodes": log.machine,
        "idle_node_hours": log.node_seconds / 3600.0,
        "horizon_s": horizon(log),
    }
    width = max(map(len, figures))
    lines = []
    for name, value in figures.items():
        lines.append(f"{name:{width}}  {value if isinstance(value, str) else _cell(value)}")
    return figures, [*lines, f"more: shoal trace stats {out}"]


def _names(paths: Sequence[Path]) -> list[str]:
    """What each spec's pages are called: the name of its file.

    The folder's name comes before it if two files have one name, and a number after it if that does
    not tell them apart.
    """
    stems = [path.stem for path in paths]
    names: list[str] = []
    for path in paths:
        name = path.stem
        if stems.count(name) > 1:
            name = f"{path.resolve().parent.name}-{name}"
        names.append(name)

    unique: list[str] = []
    for place, name in enumerate(names, 1):
        if names.count(name) > 1:
            name = f"{name}-{place}"
        unique.append(name)
    return unique


def _chosen(spec: Spec, path: str | Path, names: Sequence[str]) -> Policies:
    """The policies with these names; without names all that the spec has, or "fifo"."""
    if not names:
        return spec.policies or {"fifo": parse("fifo")}
    return {name: _named(spec, path, name) for name in names}


def _named(spec: Spec, path: str | Path, name: str) -> Policy[Any]:
    """The spec's policy of this name, or any policy's name with arguments."""
    if name in spec.policies:
        return spec.policies[name]
    try:
        policy = parse(name, fill=with_files)
        for objective in objectives_of(policy):
            for _, trial in spec.arrivals[:3]:
                try_objective(objective, trial, f"trial {trial.id}")
        return policy
    except ValueError as error:
        known = ", ".join(spec.policies) or "none of its own"
        raise SpecError(path, "--policy", f"{error}; the spec has {known}") from error


# -- pages -----------------------------------------------------------------------------------------


def _pages(spec: Spec, out: Path, name: str, runs: Runs) -> Path:
    """Write each policy's journal and report, and one page with all of them side by side."""
    sides = []
    for label, (figures, journal) in runs.items():
        assert journal is not None
        folder = re.sub(r"[^\w.+-]", "_", f"{name}-{label}")
        report = _report(journal, out / folder, f"{spec.title}: {label}")
        figures["report"] = str(report)
        link = quote(report.relative_to(out).as_posix())
        done = figures["makespan_s"] if figures["finished"] == figures["trials"] else None
        sides.append(compare.Side(label, journal.lines, list(_cells(figures)), done, link))

    page = out / f"{name}.html"
    note = " ".join(_notes(_results(runs)))
    page.write_text(compare.page(spec.title, _heads(), sides, note), encoding="utf-8")
    return page


def _report(journal: Journal, folder: Path, title: str) -> Path:
    """Write the journal and its report into the folder; returns the report's path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "journal.jsonl"
    path.unlink(missing_ok=True)
    written = Journal(path)
    for line in journal.lines:
        written.append(line.time, line.entry)
    written.close()
    return write(path, folder / "report.html", title)


# -- tables ----------------------------------------------------------------------------------------


def _heads() -> list[str]:
    """The heads of the table's columns."""
    return ["policy", *(head for head, _ in COLUMNS.values())]


def _cells(row: Figures) -> Iterator[Cell]:
    """The columns of one policy: the text that is shown, and its number."""
    for name, (_, unit) in COLUMNS.items():
        value = None if row[name] is None else row[name] / unit
        yield Cell(_cell(value), value)


def _notes(results: Results) -> list[str]:
    """What the table does not say: under which policies a study stalled, or trials failed."""
    rows = results.items()
    stalled = [f"{label}: stalled: {row['stalled']}" for label, row in rows if row["stalled"]]
    failed = [f"{label}: {row['failed']} trials failed" for label, row in rows if row["failed"]]
    return [*stalled, *failed]


def table(results: Results) -> list[str]:
    """Policies side by side, a row each."""
    rows = [_heads()]
    for label, row in results.items():
        rows.append([label, *(cell.text for cell in _cells(row))])

    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines: list[str] = []
    for cells in rows:
        padded = map(str.rjust, cells, widths)
        lines.append("  ".join(padded))
    return lines


def _cell(value: Any) -> str:
    """A figure as text."""
    if value is None:
        return "-"
    if isinstance(value, float) and abs(value) < 1e5:
        return f"{value:.4g}"
    return f"{value:,.0f}"


def harvest_lines(results: Mapping[str, Figures]) -> Iterator[str]:
    """What harvesting would yield, a line for each policy whose slots came and went."""
    for label, row in results.items():
        if row.get("harvest"):
            yield f"{label}: {_harvest_line(row['harvest'])}"


def _harvest_line(figures: Figures) -> str:
    """The figures of a harvest in words."""
    offered = figures["offered_node_hours"]
    efficiency = share(figures["efficiency"] or 0.0, 1.0)
    return (
        f"{number(figures['idle_node_hours'])} node-hours idle, {number(offered)} harvested, "
        f"as {number(figures['equivalent_nodes'])} nodes that stay; U {efficiency}, "
        f"{number(figures['trials_a_day'])} trials a day; "
        f"{share(figures['preempted_node_hours'], offered)} lost to preemption, "
        f"{share(figures['rescaled_node_hours'], offered)} to rescaling"
    )
