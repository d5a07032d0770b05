"""The authors' own accounting of a replay, which is not what a real system does: it lives here
and nowhere else.

An interval's progress is its length times the rate, less [up or down] x O(C) for the decision
at its beginning, less down x rate once for each trial that loses a node at its end. New nodes
count at full rate at once, a start from none is free, and costs are not capped by the interval.
`completions=False` is their replayer: a trial's end is noticed at the next event of the log
only, and the over-run thrown away; `True` is what their paper says. `stall=True`: a trial makes
no progress for up or down seconds after each change instead.

Deciding is the product's: `policy/elastic/knapsack.py` and `policy/elastic/placement.py`.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from shoal.policy.elastic.knapsack import best_counts
from shoal.policy.elastic.objective import forward_time
from shoal.policy.elastic.placement import Spatial, exposure, release, take
from shoal.policy.elastic.table import FORBIDDEN, gains, value
from shoal.simulate.idle_log import IdleLog

SHORTEST = 10.0  # seconds of a forward time that is known: the shortest of Figure 9


@dataclass(frozen=True)
class Jobs:
    """What is trained. Rows of `rates` and `scores` are trials, columns counts from 0; times
    from the first submission.
    """

    names: tuple[str, ...]
    rates: np.ndarray
    scores: np.ndarray
    up: np.ndarray
    down: np.ndarray
    fewest: np.ndarray
    most: np.ndarray
    samples: np.ndarray
    submit: np.ndarray


def load_jobs(path: Path) -> Jobs:
    listed = json.loads(path.read_text())
    width = max(j["Jmax"] for j in listed)

    def table(job: dict[str, Any], key: str) -> np.ndarray:
        row = np.zeros(width + 1)
        n = np.arange(job["Jmin"], job["Jmax"] + 1)
        row[n] = np.interp(n, job["Ns"], job[key])
        return row

    def column(key: str) -> np.ndarray:
        return np.array([j[key] for j in listed], float)

    submit = column("Tsub_s")
    names = tuple(j["name"].partition("-")[2] or "ShuffleNet" for j in listed)
    rates, scores = (np.array([table(j, key) for j in listed]) for key in ("Ps", "Os"))
    fewest, most = column("Jmin").astype(int), column("Jmax").astype(int)
    return Jobs(
        names,
        rates,
        scores,
        column("Tcup"),
        column("Tcdw"),
        fewest,
        most,
        column("Pmax"),
        submit - submit.min(),
    )


Decide = Callable[["Replay", list[int], np.ndarray, int], np.ndarray]


def milp(horizon: float) -> Decide:
    """The optimum of the paper's program, found by the product's allocator."""

    def counts(replay: "Replay", active: list[int], held: np.ndarray, free: int) -> np.ndarray:
        up, down = replay.up[active], replay.down[active]
        return best_counts(gains(replay.curve[active], held, up, down, horizon), free)

    return counts


def learned(replay: "Replay", active: list[int], held: np.ndarray, free: int) -> np.ndarray:
    """The same over the forward time that the departures so far make likely."""
    return milp(forward_time(*replay.seen))(replay, active, held, free)


def foretold(replay: "Replay", active: list[int], held: np.ndarray, free: int) -> np.ndarray:
    """The same over the time until the next departure, as if a queue told it, and were right."""
    now, _ = replay.seen
    after = np.searchsorted(replay.departures, now, side="right")
    known = after < len(replay.departures)
    horizon = replay.departures[after] - now if known else replay.span
    return milp(max(SHORTEST, float(horizon)))(replay, active, held, free)


def heuristic(replay: "Replay", active: list[int], held: np.ndarray, free: int) -> np.ndarray:
    """The authors' "equal share": the whole remainder goes to the first, and a share of one
    node counts as none.
    """
    fewest, most = replay.jobs.fewest[active], replay.jobs.most[active]
    share = free // len(active)
    found = np.minimum(share, most) * np.minimum(1, np.maximum(share - fewest, 0))
    left = free - int(found.sum())
    for j in range(len(active)):
        more = min(int(most[j] - found[j]), left)
        if more > 0 and found[j] + more >= fewest[j]:
            found[j] += more
            left -= more
    return found


def even(replay: "Replay", active: list[int], held: np.ndarray, free: int) -> np.ndarray:
    """Shares that differ by one node at most."""
    share, rest = divmod(free, len(active))
    return np.minimum(replay.jobs.most[active], share + (np.arange(len(active)) < rest))


class Replay:
    def __init__(
        self,
        log: IdleLog,
        jobs: Jobs,
        parallel: int = 10,
        cost: float = 1.0,
        completions: bool = True,
        stall: bool = False,
    ) -> None:
        self.log, self.jobs, self.parallel = log, jobs, parallel
        self.completions, self.stall = completions, stall
        self.seen = (0.0, 0)  # seconds since the beginning, and departures until then
        self.up, self.down = jobs.up * cost, jobs.down * cost
        columns = np.arange(jobs.scores.shape[1])
        allowed = (columns == 0) | (
            (columns >= jobs.fewest[:, None]) & (columns <= jobs.most[:, None])
        )
        self.curve = np.where(allowed, jobs.scores, FORBIDDEN)
        self.changes = list(log.changes())
        self.times = np.array([at for at, _, _ in self.changes]) - log.begin
        went = np.array([len(gone) > 0 for _, _, gone in self.changes])
        self.departures = self.times[went]
        idle = np.cumsum([len(came) - len(went) for _, came, went in self.changes])
        self.span = float(self.times[-1])
        self.equivalent = float((idle[:-1] * np.diff(self.times)).sum() / self.span)
        self.idle = idle

    def static(self, nodes: float | None = None) -> float:
        """Best samples/s of the first trials on so many dedicated nodes, straight between whole
        numbers.
        """
        rates, n = (self.jobs.rates[: self.parallel], self.equivalent if nodes is None else nodes)

        def best(whole: int) -> float:
            return value(rates, best_counts(rates, whole))

        low = int(n)
        return best(low) + (n - low) * (best(low + 1) - best(low))

    def run(self, decide: Decide, spatial: Spatial | None = None) -> dict[str, Any]:
        """Replay: U and where the rest went, the trials' times, samples by event, and how many
        decisions were made.
        """
        return _Run(self, decide, spatial).result()


class _Run:
    def __init__(self, replay: Replay, decide: Decide, spatial: Spatial | None) -> None:
        self.r, self.decide = replay, decide
        self.near = None
        self.rack = np.zeros(len(replay.log.nodes), np.int64)
        if spatial is not None:
            where = np.array([spatial.position(name) for name in replay.log.nodes])
            racks, self.rack = np.unique(where, return_inverse=True)
            self.near = spatial.near(racks, np.zeros(len(racks), np.int64))
        self.owner = np.full(len(replay.log.nodes), -2)  # -2 busy elsewhere, -1 free
        self.active: list[int] = []
        count = len(replay.jobs.samples)
        self.made, self.rate, self.until = (np.zeros(count), np.zeros(count), np.full(count, -1.0))
        self.begun, self.ended = np.full(count, np.nan), np.full(count, np.nan)
        self.next = self.decisions = 0
        self.now = 0.0
        # by event: samples made up to it, lost to rescaling at it, lost to preemption at it
        self.out, self.cost, self.lost = np.zeros((3, len(replay.times)))
        self.gross = self.rescaled = self.preempted = self.used = 0.0
        for k, (at, (_, came, went)) in enumerate(zip(replay.times, replay.changes, strict=True)):
            self.k = k
            while k and replay.completions and (done := self._next_end()) < at:
                self._go(done)
                self._finish()
                self._allocate(k)
            self._go(at)
            self._leave(went)
            replay.seen = (at, replay.seen[1] + bool(len(went)))
            self.owner[came] = -1
            self._finish()
            self._allocate(min(k + 1, len(self.out) - 1))

    def _next_end(self) -> float:
        a = self.active
        rate = self.rate[a]
        if not len(a) or not rate.any():
            return np.inf
        left = np.maximum(self.r.jobs.samples[a] - self.made[a], 0.0)
        with np.errstate(divide="ignore", invalid="ignore"):
            ends = np.where(rate > 0, np.maximum(self.now, self.until[a]) + left / rate, np.inf)
        return float(ends.min())

    def _go(self, at: float) -> None:
        a, span = self.active, at - self.now
        if a and span > 0:
            waits = np.clip(self.until[a] - self.now, 0.0, span) if self.r.stall else 0.0
            made = self.rate[a] * (span - waits)
            self.made[a] += made
            self.out[self.k] += made.sum()
            self.gross += float(self.rate[a].sum() * span)
            self.used += float((self.owner >= 0).sum() * span)
            if self.r.stall:
                self.rescaled += float((self.rate[a] * waits).sum())
        self.now = at

    def _leave(self, went: np.ndarray) -> None:
        hit = np.unique(self.owner[went])
        for j in hit[hit >= 0]:
            if self.r.stall:
                self.until[j] = max(self.until[j], self.now + self.r.down[j])
            else:
                lost = self.r.down[j] * self.rate[j]
                self.made[j] -= lost
                self.out[self.k] -= lost
                self.lost[self.k] += lost
                self.preempted += lost
        self.owner[went] = -2

    def _finish(self) -> None:
        for j in [j for j in self.active if self.made[j] >= self.r.jobs.samples[j] - 1e-3]:
            self.out[self.k] -= self.made[j] - self.r.jobs.samples[j]
            self.ended[j] = self.now
            self.active.remove(j)
            self.owner[self.owner == j] = -1
        while (
            len(self.active) < self.r.parallel
            and self.next < len(self.made)
            and self.r.jobs.submit[self.next] <= self.now
        ):
            self.active.append(self.next)
            self.begun[self.next] = self.now
            self.rate[self.next] = 0.0
            self.next += 1

    def _allocate(self, charge: int) -> None:
        a = self.active
        free = int((self.owner > -2).sum())
        if not a or not free:
            self.rate[a] = 0.0
            return
        self.decisions += 1
        place = np.full(len(self.made) + 2, len(a))
        place[np.array(a) + 2] = np.arange(len(a))
        held = np.bincount(place[self.owner + 2], minlength=len(a) + 1)[: len(a)]
        counts = self.decide(self.r, a, held, free)
        if (counts != held).any():
            self._move(held, counts)
        before = self.r.jobs.rates[a, held]
        wait = np.where(counts > held, self.r.up[a], np.where(counts < held, self.r.down[a], 0.0))
        if self.r.stall:
            self.until[a] = np.maximum(self.until[a], np.where(wait > 0, self.now + wait, -1.0))
        else:
            self.made[a] -= wait * before
            self.out[charge] -= (wait * before).sum()
            self.cost[self.k] += (wait * before).sum()
            self.rescaled += float((wait * before).sum())
        self.rate[a] = self.r.jobs.rates[a, counts]

    def _move(self, held: np.ndarray, counts: np.ndarray) -> None:
        a, owner = self.active, self.owner
        if self.near is None:
            for i in np.flatnonzero(counts < held):
                owner[np.flatnonzero(owner == a[i])[: held[i] - counts[i]]] = -1
            free = np.flatnonzero(owner == -1)
            for i in np.flatnonzero(counts > held):
                owner[free[: counts[i] - held[i]]] = a[i]
                free = free[counts[i] - held[i] :]
            return
        for i in np.flatnonzero(counts < held):
            mine = np.flatnonzero(owner == a[i])
            owner[
                self._pick(mine, release(self._stock(mine), int(held[i] - counts[i]), self.near))
            ] = -1
        self._fairly(held, counts)
        for i in sorted(np.flatnonzero(counts > held), key=lambda i: -counts[i]):
            free = np.flatnonzero(owner == -1)
            own = self._stock(np.flatnonzero(owner == a[i]))
            owner[
                self._pick(free, take(own, self._stock(free), int(counts[i] - held[i]), self.near))
            ] = a[i]

    def _fairly(self, held: np.ndarray, counts: np.ndarray) -> None:
        """Among trials that might as well change places, the better placed one grows."""
        a, done = self.active, set()
        free = self._stock(np.flatnonzero(self.owner == -1))
        for i in np.flatnonzero(counts > held):
            like = (
                (self.r.curve[a] == self.r.curve[a[i]]).all(1)
                & (held == held[i])
                & (counts == held)
            )
            rivals = [int(i), *(int(x) for x in np.flatnonzero(like) if x not in done)]
            if held[i] == 0 or len(rivals) == 1:
                continue
            need = int(counts[i] - held[i])
            own = {x: self._stock(np.flatnonzero(self.owner == a[x])) for x in rivals}
            best = min(rivals, key=lambda x: exposure(own[x], free, need, self.near))
            counts[best], counts[i] = counts[i], counts[best]
            done.add(best)

    def _stock(self, nodes: np.ndarray) -> np.ndarray:
        return np.bincount(self.rack[nodes], minlength=len(self.near))

    def _pick(self, nodes: np.ndarray, wish: np.ndarray) -> np.ndarray:
        """So many of each rack, the first of these nodes."""
        order = np.argsort(self.rack[nodes], kind="stable")
        racks = self.rack[nodes][order]
        rank = np.arange(len(nodes)) - np.searchsorted(racks, racks)
        return nodes[order[rank < wish[racks]]]

    def result(self) -> dict[str, Any]:
        best = self.r.static() * self.r.span
        return {
            "U": float(self.out.sum()) / best,
            "gross": self.gross / best,
            "rescaled": self.rescaled / best,
            "preempted": self.preempted / best,
            "done": int(np.isfinite(self.ended).sum()),
            "decisions": self.decisions,
            "out": self.out,
            "rescaled at": self.cost,
            "preempted at": self.lost,
            "used_node_hours": self.used / 3600.0,
            "last": float(np.nanmax(self.ended, initial=0.0)),
            "hours": (self.ended - self.begun) / 3600.0,
        }


def still(nodes: int, span: float) -> IdleLog:
    """The log of so many nodes that are idle throughout, for so many seconds."""
    return IdleLog.of([(f"n{i:04d}", 0.0, span) for i in range(nodes)])


def bins(replay: Replay, out: np.ndarray, hours: float = 6.0) -> np.ndarray:
    """U of each bin of so many hours (Figure 10)."""
    number = (replay.times / (hours * 3600.0)).astype(int)
    found = []
    for k in range(int(replay.span // (hours * 3600.0))):
        i = np.flatnonzero(number[1:] == k)
        if len(i) > 1:
            lengths = np.diff(replay.times)[i]
            nodes = float((replay.idle[i] * lengths).sum() / lengths.sum())
            found.append(float(out[i + 1].sum() / (replay.static(nodes) * lengths.sum())))
    return np.array(found)
