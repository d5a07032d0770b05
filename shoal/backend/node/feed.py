"""How a slot asks its node's window for prepared chunks, and what the windows' feeders did."""

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, RayError

from shoal.backend.node.chunk_demand import COUNTED, LARGEST, ChunkDirectory, Key
from shoal.backend.node.messages import Feeders, FeederSetup, window_name
from shoal.backend.node.process import fetched
from shoal.backend.node.window import Window
from shoal.backend.ray.cluster import only_at
from shoal.core.event import Event, Fed
from shoal.core.trial import Samples, Seconds
from shoal.train.data import columns as cols
from shoal.train.data.columns import Columns
from shoal.train.recipe.settings import DataKey

# Seconds that a slot waits for the window's answer, and how many times as long as it did before.
PATIENCE: Seconds = 30.0
TIMES = 5.0
ANSWER: Seconds = 2.0  # that a window has to say what its feeders did
# The part of the time of its last chunk that a slot waits to learn whether there are feeders now.
WORTH = 0.1

Events = list[Event]
# How to have something called with a future, once the reference's value is there or never will be.
Follow = Callable[[Any, Callable[[Any], Events]], None]


class FeederFeed:
    """A slot's way to its node's window.

    While there are no feeders it tells the window what it does. It hears by the next chunk whether
    there are any, and at once if making a chunk takes far longer than to wait for the answer.

    `ahead`: see `train.stream.Feed`. `waits`: whether there are feeders from the beginning.
    """

    def __init__(self, window: Any, ahead: Samples, waits: bool) -> None:
        self.ahead = ahead
        self._window = window
        self._name = str(os.getpid())
        self._waits = waits
        self._has_feeders = waits  # feeders are, by the last answer
        self._answer: Any = None  # a reference to the window's answer to a look
        self._patience = PATIENCE
        self._begun = monotonic()  # to make a chunk
        self._last_seconds = 0.0  # that the last one took which was made here
        # That one, and its seconds per sample, until the window is told.
        self._last_chunk: tuple[Key, Seconds] | None = None

    def of(self, key: DataKey) -> "FeederFeed | None":
        """See `train.stream.Feed`. Feeders make the chunks of trials without a key."""
        return None if key else self

    def chunk(self, keys: Sequence[Key], trained: Seconds | None) -> Columns | None:
        """The chunk. None if the slot is to make it: no feeders, or they failed or are behind."""
        try:
            looks = not self._has_feeders
            if looks:
                self._has_feeders = self._look(keys, trained)
            if self._has_feeders:
                return self._ask_window(keys, trained, looked=looks)
        except RayError:
            self._has_feeders = self._waits
        finally:
            self._begun = monotonic()
        return None

    def _ask_window(
        self, keys: Sequence[Key], trained: Seconds | None, looked: bool
    ) -> Columns | None:
        """The chunk that the window answers with, if it does."""
        self._answer = None
        answer = self._window.chunk.remote(self._name, keys, trained, looked)
        begin = monotonic()
        if not ray.wait([answer], timeout=self._patience)[0]:
            # The window stands still: the slot makes its own chunks until it is heard of again.
            self._has_feeders = False
            return None
        self._patience = max(self._patience, TIMES * (monotonic() - begin))
        refs = fetched(answer)
        if refs:
            chunk: Columns = cols.apply(fetched(refs[0]), cols.unpack_layout)
            return chunk
        if refs is None:
            self._has_feeders = self._waits
        return None

    def made(self, key: Key, seconds: Seconds) -> None:
        """See `train.stream.Feed`."""
        self._last_chunk = key, seconds
        self._last_seconds = monotonic() - self._begun

    def _look(self, keys: Sequence[Key], trained: Seconds | None) -> bool:
        """Tell the window what is done here; whether it has feeders, by this look or the last."""
        before = self._answer
        if before is not None and not ray.wait([before], timeout=0)[0]:
            return False
        self._answer = self._window.look.remote(self._name, keys, trained, self._last_chunk)
        self._last_chunk = None
        brief = WORTH * self._last_seconds
        if brief and ray.wait([self._answer], timeout=brief)[0]:
            before = self._answer
        return before is not None and bool(ray.get(before))


def start(setup: FeederSetup, node: str) -> Any:
    """The node's window; one that dies comes back, without what it held."""
    options = {
        "num_cpus": 0,
        "max_restarts": -1,
        "scheduling_strategy": only_at(node),
        "name": window_name(setup.token, node),
    }
    return ray.remote(Window).options(**options).remote(*setup.sent())


def find(token: str, node: str, count: Feeders, ahead: Samples) -> FeederFeed | None:
    """A slot's way to the window of its node, if that has one."""
    if not count:
        return None
    window = ray.get_actor(window_name(token, node))
    return FeederFeed(window, ahead, waits=count != "auto")


class Totals:
    """What each node's feeders did in this run: a window that came back counts from 0."""

    def __init__(self) -> None:
        # By node, and process of its window.
        self._reports: dict[str, dict[int, Fed]] = {}

    def take(self, pid: int, fed: Fed) -> Fed:
        """The totals, now that this process reported these figures."""
        reports = self._reports.setdefault(fed.node, {})
        reports[pid] = fed
        totals: dict[str, float] = {}
        for name in COUNTED:
            figures = [report.figures[name] for report in reports.values()]
            if name in LARGEST:
                totals[name] = max(figures)
            else:
                totals[name] = sum(figures)

        totals["feeders"] = fed.figures["feeders"]
        return Fed(fed.node, totals)


class Windows:
    """The windows of all nodes, as the driver knows them."""

    def __init__(self, setup: FeederSetup, follow: Follow) -> None:
        self.by_node: dict[str, Any] = {}
        self._setup = setup
        self._follow = follow
        self._directory: Any = None  # where they meet, if there are several
        self._totals = Totals()
        self._last_fed: list[Fed] = []  # by `fed`, last

    def open(self, node: str) -> None:
        """Start the node's window, before its first slot asks for it."""
        if self._setup.count and node not in self.by_node:
            self.by_node[node] = start(self._setup, node)
            self._introduce(node)
            self._hear(node)

    def _introduce(self, node: str) -> None:
        """Let the node's window share chunks with the others, if there are any."""
        nodes = [node]
        if self._directory is None and len(self.by_node) > 1:
            options = {"num_cpus": 0, "max_restarts": -1}
            self._directory = ray.remote(ChunkDirectory).options(**options).remote()
            nodes = list(self.by_node)
        if self._directory is not None:
            for each in nodes:
                self.by_node[each].join.remote(self._directory)

    def _hear(self, node: str) -> None:
        """Ask the window for news."""
        self._follow(self.by_node[node].news.remote(), partial(self._on_news, node))

    def _on_news(self, node: str, future: Any) -> Events:
        """The event of what the node's feeders did so far; the window is asked again."""
        error = future.exception()
        if not gone(error):
            self._hear(node)
        if error is not None:
            self._introduce(node)  # if it comes back, it knows nobody
            return []
        return [self._totals.take(*future.result())]

    def fed(self) -> list[Fed]:
        """What the feeders did, all in all, if it is not what was told before."""
        before = self._last_fed
        reports = _fed(self.by_node.values())
        self._last_fed = [self._totals.take(*report) for report in reports]
        news = [event for event in self._last_fed if event not in before]
        return [event for event in news if any(event.figures.values())]

    def close(self) -> None:
        """End the windows; their feeders end with them."""
        for window in self.by_node.values():
            ray.kill(window)
        if self._directory is not None:
            ray.kill(self._directory)


def _fed(windows: Iterable[Any]) -> list[tuple[int, Fed]]:
    """The answers to `Window.fed` of those windows that give them at once."""
    refs = [window.fed.remote() for window in windows]
    if not refs:
        return []

    ready, _ = ray.wait(refs, num_returns=len(refs), timeout=ANSWER)
    reports: list[tuple[int, Fed]] = []
    for ref in ready:
        with suppress(RayError):
            reports.append(ray.get(ref))

    return reports


def gone(error: BaseException | None) -> bool:
    """Whether a window's error means that it will not come back."""
    return error is not None and not isinstance(error, ActorUnavailableError)
