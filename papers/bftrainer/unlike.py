"""Unlike networks: Figures 13 and 14, over what is to be had on as many nodes that stay.

The queue of Figure 13 is made longer, so that it does not run dry within the week; that of Figure
14 is the authors' 1001 trials, over the whole log. Authors' accounting, without completion events.
"""

from typing import Any

from cases import UNLIKE, Goals, Rows, replays

LONG = 337.0  # hours


def unlike(paper: dict[str, Any], parallels: list[int]) -> tuple[Rows, Goals]:
    """Figures 13 and 14."""
    rows, better = figure13(paper["figure9"]["horizons"])
    more, grows = figure14(paper, parallels)
    return [*rows, *more], {
        "E-2 objectives": {
            "figure": better,
            "holds": better > 0 and grows,
            "text": "the least points of U that scaling efficiency is better than throughput "
            "by (Figure 13); node-hours fall and run times rise with the most in parallel "
            "(Figure 14)",
        }
    }


def figure13(horizons: list[int]) -> tuple[Rows, float]:
    """U by objective and forward time; the least points by which efficiency is the better."""
    cases = [
        {"jobs": file, "rule": horizon, "completions": False, "more": 3, "static": True}
        for horizon in horizons
        for file in UNLIKE.values()
    ]
    use = [one["static_U"] for one in replays(cases)]
    rows = [
        {"what": f"Fig. 13, {horizon} s", "throughput": of_rates, "efficiency": of_shares}
        for horizon, of_rates, of_shares in zip(horizons, use[::2], use[1::2], strict=True)
    ]
    return rows, 100.0 * min(row["efficiency"] - row["throughput"] for row in rows)


def figure14(paper: dict[str, Any], parallels: list[int]) -> tuple[Rows, bool]:
    """Node-hours until all have ended, mean hours of a trial, U; whether the trends are there."""
    cases = [
        {"jobs": file, "parallel": parallel, "hours": LONG, "completions": False, "static": True}
        for file in UNLIKE.values()
        for parallel in parallels
    ]
    found = replays(cases)
    rows: Rows = []
    grows = True
    for name in UNLIKE:
        mine, found = found[: len(parallels)], found[len(parallels) :]
        rows += [row14(name, one) for one in mine]
        first, last = mine[0], mine[-1]
        less = 1.0 - last["node_hours"] / first["node_hours"]
        longer = last["mean_hours"] / first["mean_hours"] - 1.0
        grows = grows and less > 0 and longer > 1
        rows += against(paper["figure14"], name, parallels, less, longer, mine)
    return rows, grows


def row14(name: str, one: dict[str, Any]) -> dict[str, Any]:
    return {
        "what": f"Fig. 14, {name}, {one['parallel']} in parallel",
        "node-hours": one["node_hours"],
        "mean hours": one["mean_hours"],
        "U": one["static_U"],
        "ended": one["done"],
        "unoccupied": unoccupied(one),
    }


def unoccupied(one: dict[str, Any]) -> float:
    """The part of the node-hours at which no trial ran."""
    return 1.0 - float(one["used_node_hours"] / one["node_hours"])


def against(
    printed: dict[str, Any],
    name: str,
    parallels: list[int],
    less: float,
    longer: float,
    found: Rows,
) -> Rows:
    """The figures of section 5.3, which does not say for which objective they are."""
    span = f"{parallels[0]} to {parallels[-1]} in parallel"
    rows: Rows = [
        {
            "what": f"Fig. 14 (a), {name}, node-hours saved, {span}",
            "paper": printed["less_node_hours"],
            "ours": less,
        },
        {
            "what": f"Fig. 14 (b), {name}, longer run times, {span}",
            "paper": printed["longer"],
            "ours": longer,
        },
    ]
    for one in found:
        part = printed["unoccupied"].get(str(one["parallel"]))
        if part is not None:
            what = f"Fig. 14, {name}, {one['parallel']} in parallel, unoccupied"
            rows.append({"what": what, "paper": part, "ours": unoccupied(one)})
    return rows
