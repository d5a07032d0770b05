"""Journals that pages are made of, and a page that is served."""

import random
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from starlette.testclient import TestClient

from shoal.core.cluster import ShardId, Slot, SlotId
from shoal.core.event import (
    Advanced,
    Entry,
    Evaluated,
    Finished,
    Joined,
    Kept,
    Opened,
    Planned,
    Remembered,
    Submitted,
)
from shoal.core.plan import solo
from shoal.core.trial import Trial, TrialId, Visit
from shoal.engine.journal import Journal
from shoal.ui.app import application
from shoal.ui.guard import KEY, Connections, Guard
from shoal.ui.serve import Server
from shoal.ui.studies import Shelf

SHARD = ShardId("s0")
EPOCH = 1000  # samples
HOST = "127.0.0.1:8765"
ORIGIN = {"origin": f"http://{HOST}"}


def opened(name: str, run: int = 1, **more: Any) -> Opened:
    head = {
        "study": name,
        "metric": "accuracy",
        "mode": "max",
        "searcher": {"name": "random"},
        "policy": {"name": "auto"},
        "backend": "local",
        **more,
    }
    return Opened(run, {SHARD: EPOCH}, head)


def submitted(name: str, config: Mapping[str, Any], epochs: int = 2) -> Submitted:
    return Submitted(Trial(TrialId(name), epochs * EPOCH, config, shards=frozenset({SHARD})))


def epoch(name: str, number: int, accuracy: float) -> list[Entry]:
    """A trial's epoch with this number from 0."""
    trial = TrialId(name)
    visit = Visit(number, SHARD, number, EPOCH)
    return [
        Advanced(
            {trial: EPOCH},
            {trial: {"loss": (500.0, EPOCH)}},
            {trial: (visit,)},
            {trial: {"train": 0.08, "evaluate": 0.01}},
        ),
        Evaluated(trial, number + 1, {"accuracy": accuracy}),
    ]


def write(folder: Path, times: Mapping[float, list[Entry]]) -> None:
    """Append entries to the journal of a study."""
    folder.mkdir(parents=True, exist_ok=True)
    journal = Journal(folder / "journal.jsonl")
    for time, entries in times.items():
        for entry in entries:
            journal.append(time, entry)
    journal.close()


def many(folder: Path, trials: int, slots: int = 4, epochs: int = 2) -> Path:
    """A finished study of many trials."""
    draw = random.Random(0)
    names = [SlotId(f"w{number}") for number in range(slots)]
    why = {"follows": "fifo", "why": "it takes 3 s"}
    times: dict[float, list[Entry]] = {
        0.0: [
            opened(folder.name),
            Joined(tuple(Slot(name, shards=frozenset({SHARD})) for name in names)),
            Remembered("policy", why),
        ]
    }
    for number in range(trials):
        config = {"lr": 10 ** draw.uniform(-4, -1), "width": 2 ** draw.randint(4, 6)}
        times[0.0].append(submitted(f"t{number:05d}", config, epochs))
    for turn, first in enumerate(range(0, trials, slots)):
        group = [f"t{number:05d}" for number in range(first, min(first + slots, trials))]
        begin = turn * epochs
        gangs = [solo(TrialId(name), slot, turn) for name, slot in zip(group, names, strict=False)]
        times.setdefault(begin * 0.1, []).append(Planned((), tuple(gangs)))
        for number in range(epochs):
            trained = [entry for name in group for entry in epoch(name, number, draw.random())]
            times[(begin + number + 1) * 0.1] = trained
        for name in group:
            done = epochs * EPOCH
            trained.append(Kept(TrialId(name), epochs, done, f"{name}/last"))
            trained.append(Finished(TrialId(name)))
    write(folder, times)
    return folder


def client_of(path: Path, cookie: bool = True, key: bool = True) -> TestClient:
    """A browser at the page of this folder, with the cookie for the token, and with the key."""
    served = application(Shelf(path), lambda: False)
    names = "token", "key", "secret", "shoal-8765"
    guarded = Guard(served, *names, (HOST,), Connections())
    client = TestClient(guarded, base_url=f"http://{HOST}")
    if cookie:
        assert client.get("/?token=token").status_code == 200
    if key:
        client.headers[KEY] = "key"
    return client


def keyed(server: Server) -> dict[str, str]:
    """The header that the page of this server sends."""
    return {KEY: server.address.partition("#")[2]}


@contextmanager
def serving(path: Path) -> Iterator[Server]:
    """The page of this folder at a free port."""
    server = Server(path, 0)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.stop()
        thread.join(10)
