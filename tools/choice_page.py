"""Where docs/ have figures of benchmarks/choice.py. See `figures.py`."""

from __future__ import annotations

from figure_rules import Block, Rule, sentence
from results import benchmark, ratio


def choices() -> list[Rule]:
    """How far `auto` is from the best fixed policy."""
    workloads = dict.fromkeys(each["workload"] for each in benchmark("choice")["rows"])
    means = [ratio("choice", f"auto_over_best_{_key(name)}") for name in workloads]
    return [
        Block("docs/policy.md", "choice", table()),
        sentence(
            "docs/benchmarks.md",
            "`auto` takes {:.3f} to {:.3f} times as long as the best fixed policy, in the mean "
            "over {} seeds; {:.3f} times at worst; the worst fixed policy takes up to {:.1f} times",
            min(means),
            max(means),
            len({each["seed"] for each in benchmark("choice")["rows"]}),
            ratio("choice", "worst_auto_over_best"),
            ratio("choice", "worst_over_auto"),
        ),
    ]


def table() -> str:
    """A row for each workload: its objective, the means over the seeds, and the worst seed."""
    lines = [
        "| workload | objective | `auto` over the best, mean | worst seed | over `fifo` |",
        "| --- | --- | --- | --- | --- |",
    ]
    objectives = {each["workload"]: each["objective"] for each in benchmark("choice")["rows"]}
    for name, objective in objectives.items():
        mean = ratio("choice", f"auto_over_best_{_key(name)}")
        worst = ratio("choice", f"worst_{_key(name)}")
        fifo = benchmark("choice")["ratios"].get(f"auto_over_fifo_{_key(name)}")
        over = "cannot run" if fifo is None else f"{fifo:.3f}"
        lines.append(f"| {name} | `{objective}` | {mean:.3f} | {worst:.3f} | {over} |")
    return "\n".join(lines)


def _key(workload: str) -> str:
    return workload.replace(" ", "_")
