"""The drawings of the page: figures for plotly, as the report makes them."""

from collections.abc import Collection
from typing import Any

from shoal.core.trial import TrialId
from shoal.reporting.charts import curves_of
from shoal.reporting.format import printable
from shoal.reporting.slot_charts import gantt, use
from shoal.ui.studies import Seen

BARS = 1500  # of the Gantt chart: it is drawn again and again
BEST = 100  # trials whose curves are drawn if none is chosen


def names(seen: Seen) -> list[str]:
    """The values that have curves, the study's metric first."""
    metric = seen.account.metric

    def order(name: str) -> tuple[bool, bool, str]:
        return name != metric, name.endswith(")"), name

    return sorted(seen.account.curves, key=order)


def curves(seen: Seen, name: str, trials: Collection[str]) -> dict[str, Any]:
    """The learning curves of these trials, of the best ones if there are none.

    Without a name, of the first value.
    """
    every = names(seen)
    if not every:
        return {"names": []}
    if name not in every:
        name = every[0]
    chosen = [TrialId(trial) for trial in trials if trial in seen.rows]
    if not chosen:
        has = seen.account.curves[name]
        chosen = [row.id for row in seen.ranked if row.id in has][:BEST]
    labels = [printable(each) for each in every]
    return {"names": every, "labels": labels, **curves_of(seen.account, name, chosen)}


def slots(seen: Seen) -> dict[str, Any]:
    """The Gantt chart, and the use of the slots; None: no slot was ever there."""
    chart = gantt(seen.account, BARS)
    if chart is None:
        return {"gantt": None, "use": None}
    return {"gantt": chart[0], "use": use(seen.account)}
