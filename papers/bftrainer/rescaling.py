"""What rescaling costs and returns: Figures 7, 8, 10, 11 and the comparison event by event.

All in the authors' accounting, without completion events; ten ShuffleNet trials at a time.
"""

from typing import Any

import numpy as np
from cases import Goals, Rows, part, replays

from shoal.simulate.idle_log import IdleLog, describe

SIX_HOURS = 6 * 3600.0


def departures_within(log: IdleLog, seconds: np.ndarray) -> np.ndarray:
    """Figure 7 (a): of all events, the part after which a node leaves within so many seconds."""
    events = list(log.changes())
    at = np.array([time for time, _, _ in events])
    left = at[[len(went) > 0 for _, _, went in events]]
    after = np.searchsorted(left, at, side="right")
    known = after < len(left)
    gaps = np.sort(left[after[known]] - at[known])
    return np.searchsorted(gaps, seconds, side="right") / len(gaps)


def figure7a(paper: dict[str, Any]) -> Rows:
    """The chance that the forward time is too long, and when it is nine in ten."""
    printed = paper["figure7"]
    seconds = np.arange(10.0, 1200.0)
    rows = []
    for name, nodes in (("1024 nodes", part(0, 1)), ("whole machine", part(-1, 1))):
        chance = departures_within(nodes, seconds)
        at = int(printed["seconds"])
        what = f"Fig. 7 (a), {name}"
        rows += [
            {
                "what": f"{what}, departure within {at} s",
                "paper": printed["chance"],
                "ours": float(chance[at - 10]),
            },
            {
                "what": f"{what}, nine of ten within, s",
                "paper": at,
                "ours": float(seconds[np.searchsorted(chance, printed["chance"])]),
            },
            {
                "what": f"{what}, forward time of the log, s",
                "ours": describe(nodes)["forward_time_s"],
            },
        ]
    return rows


def rescaling(paper: dict[str, Any], short: bool) -> tuple[Rows, Goals]:
    """Figures 7, 8, 10 and 11, and event by event."""
    horizons = [10, 120] if short else paper["figure9"]["horizons"]
    found = replays({"rule": rule, "completions": False} for rule in ("heuristic", *horizons))
    other, ours = found[0], found[1:]
    at_120 = ours[horizons.index(120)]
    costs = [per_event(one, "rescaled at") for one in ours]
    returns = [returned(one) for one in ours]
    rows = [
        *figure7a(paper),
        *figure7b(paper, other, horizons, costs),
        *figure8(horizons, ours, returns),
        *over_the_week(paper, other, at_120),
        *by_event(paper, other, at_120),
    ]
    holds = rising(costs) and rising(returns[::-1]) and costs[-1] < per_event(other, "rescaled at")
    text = (
        "the heuristic's cost of rescaling over that at a forward time of 10 s; cost rises "
        "with the forward time, and what it returns falls (Figures 7 and 8)"
    )
    figure = per_event(other, "rescaled at") / costs[0]
    return rows, {"E-2 rescaling": {"figure": figure, "holds": holds, "text": text}}


def per_event(one: dict[str, Any], key: str) -> float:
    """Samples for each event of the log."""
    return float(one[key].sum() / len(one[key]))


def returned(one: dict[str, Any]) -> float:
    """Samples made for each sample that rescaling cost, over all events."""
    cost = float(one["rescaled at"].sum())
    return (float(one["out"].sum()) + cost) / cost


def rising(values: list[float]) -> bool:
    return values == sorted(values)


def figure7b(
    paper: dict[str, Any], other: dict[str, Any], horizons: list[int], costs: list[float]
) -> Rows:
    printed = paper["figure7"]
    theirs = per_event(other, "rescaled at")
    return [
        {
            "what": "Fig. 7 (b), heuristic, samples an event",
            "paper": printed["heuristic"],
            "ours": theirs,
        },
        {
            "what": "Fig. 7 (b), heuristic / MILP at 10 s",
            "paper": printed["heuristic_over_milp"],
            "ours": theirs / costs[0],
        },
        *(
            {"what": f"Fig. 7 (b), {horizon} s, samples an event", "ours": cost}
            for horizon, cost in zip(horizons, costs, strict=True)
        ),
    ]


def figure8(horizons: list[int], ours: Rows, returns: list[float]) -> Rows:
    return [
        {"what": f"Fig. 8, {horizon} s", "return": gain, "samples an event": per_event(one, "out")}
        for horizon, one, gain in zip(horizons, ours, returns, strict=True)
    ]


def over_the_week(paper: dict[str, Any], other: dict[str, Any], ours: dict[str, Any]) -> Rows:
    """Figures 10 and 11: six hours by six hours."""
    better = float((ours["bins"] / other["bins"]).max() - 1.0)
    rows: Rows = [
        {
            "what": "Fig. 10, MILP over heuristic, best bin",
            "paper": paper["figure10"]["paper"]["over_heuristic"],
            "ours": better,
        }
    ]
    for letter, key, name in (
        ("a", "preempted at", "preemption"),
        ("b", "rescaled at", "rescaling"),
    ):
        theirs, mine = in_bins(other, key), in_bins(ours, key)
        rows.append(
            {
                "what": f"Fig. 11 ({letter}), {name}, heuristic / MILP",
                "ours": float(theirs.sum() / mine.sum()),
                "heuristic, samples by six hours": theirs.tolist(),
                "MILP, samples by six hours": mine.tolist(),
            }
        )
    return rows


def in_bins(one: dict[str, Any], key: str) -> np.ndarray:
    """The sum over each six hours."""
    number = (one["times"] / SIX_HOURS).astype(int)
    return np.bincount(number, one[key])[: int(one["times"][-1] // SIX_HOURS)]


def by_event(paper: dict[str, Any], other: dict[str, Any], ours: dict[str, Any]) -> Rows:
    """Samples between one event and the next over the heuristic's (section 5.1.2).

    Ratios are over the events at which the heuristic made any.
    """
    printed = paper["by_event"]
    mine, theirs = ours["out"][1:], other["out"][1:]
    counted = theirs > 0
    ratio = mine[counted] / theirs[counted]
    of = {
        "worse": float((mine < theirs).mean()),
        "twice": float((ratio >= 2.0).mean()),
        "five times": float((ratio >= 5.0).mean()),
        "mean": float(ratio.mean()),
    }
    return [
        {"what": f"event by event, {name}", "paper": printed[name], "ours": value}
        for name, value in of.items()
    ]
