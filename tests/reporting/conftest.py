"""Journals made by hand, and one of a simulated study."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from shoal.core.cluster import ShardId, Slot, SlotId
from shoal.core.event import (
    Advanced,
    Commanded,
    Ended,
    Entry,
    Evaluated,
    Failed,
    Fell,
    Finished,
    Joined,
    Kept,
    Left,
    Measured,
    Opened,
    Planned,
    Submitted,
)
from shoal.core.plan import Gang, Lane, solo
from shoal.core.trial import Trial, TrialId, Visit
from shoal.engine.journal import Journal, Line

SHARDS = {ShardId("d0"): 100, ShardId("d1"): 100}
HEAD: Mapping[str, Any] = {
    "study": "digits",
    "recipe": {"file": "digits.py", "name": "Digits"},
    "metric": "accuracy",
    "mode": "max",
    "backend": "local",
    "policy": {"name": "hop", "rule": "rotation"},
    "searcher": {"name": "grid", "space": {"lr": [0.1, 0.2]}},
    "versions": {"shoal": "0.1.0"},
    "started": "2026-03-02 14:05:11",
}


def trial(name: str, samples: float = 200.0, **config: Any) -> Trial:
    return Trial(TrialId(name), samples, config, shards=frozenset(SHARDS))


def unit(name: str, slot: str, turn: int, shard: str = "d0") -> Gang:
    return solo(TrialId(name), SlotId(slot), turn, ShardId(shard), 100)


def visited(name: str, shard: str, epoch: int = 0, **spent: float) -> Advanced:
    id_ = TrialId(name)
    values = {id_: {"loss": (50.0, 100.0)}}
    return Advanced(
        {id_: 100.0}, values, {id_: (Visit(epoch, ShardId(shard), epoch, 100),)}, {id_: spent}
    )


def lines(
    *timed: tuple[float, Entry], opened: bool = True, head: Mapping[str, Any] = HEAD
) -> list[Line]:
    first = [Line(0.0, Opened(1, SHARDS, head))] if opened else []
    return [*first, *(Line(time, entry) for time, entry in timed)]


def joined(*slots: str) -> Joined:
    return Joined(tuple(Slot(SlotId(slot), shards=frozenset(SHARDS)) for slot in slots))


def begun(*trials: Trial, slots: tuple[str, ...] = ("a", "b")) -> list[tuple[float, Entry]]:
    return [(0.0, joined(*slots)), *((0.0, Submitted(one)) for one in trials)]


@pytest.fixture
def hopping() -> list[Line]:
    """Two trials hop over two slots, one epoch; one is scored 0.9, the other 0.8; idle from 5
    to 6 at b.
    """
    a0, b0, a1, b1 = (
        unit("x", "a", 1),
        unit("y", "b", 1, "d1"),
        unit("y", "a", 2),
        unit("x", "b", 2, "d1"),
    )
    x, y = TrialId("x"), TrialId("y")
    moved = Advanced(
        {y: 100.0},
        {},
        {y: (Visit(0, ShardId("d0"), 0, 100),)},
        {y: {"switch": 0.5, "data": 0.5, "train": 1.0}},
        {y: 2_000_000},
    )
    return lines(
        *begun(trial("x", lr=0.1, width=64), trial("y", lr=0.001, width=64)),
        (0.0, Planned((), (a0, b0))),
        (2.0, visited("x", "d0", train=1.5, switch=0.5)),
        (2.0, Measured(x, "5f", {"rate": 66.0, "memory": 0.25, "step": 0.002})),
        (2.0, Ended(a0)),
        (3.0, visited("y", "d1", train=3.0)),
        (3.0, Ended(b0)),
        (3.0, Planned((), (a1, b1))),
        (5.0, visited("x", "d1", train=1.0, evaluate=0.5, save=0.25)),
        (5.0, Evaluated(x, 1.0, {"accuracy": 0.9, "loss": 0.3})),
        (5.0, Kept(x, 2, 200.0, "x/000002-1.pt")),
        (5.0, Ended(b1)),
        (5.0, Finished(x)),
        (6.0, moved),
        (6.0, Evaluated(y, 1.0, {"accuracy": 0.8, "loss": 0.5})),
        (6.0, Ended(a1)),
        (6.0, Finished(y)),
    )


@pytest.fixture
def killed() -> list[Line]:
    """One trial, two epochs; kept after its first visit, killed after its third and half of its
    fourth; resumed to its end.
    """
    x = TrialId("x")
    whole = Gang((Lane(x, (SlotId("a"),)),), since=1)
    return lines(
        *begun(trial("x", 400.0, lr=0.1), slots=("a",)),
        (0.0, Planned((), (whole,))),
        (1.0, visited("x", "d0", train=1.0)),
        (1.0, Kept(x, 1, 100.0, "x/000001-1.pt")),
        (2.0, visited("x", "d1", train=1.0)),
        (2.0, Evaluated(x, 1.0, {"accuracy": 0.5})),
        (3.0, visited("x", "d0", 1, train=1.0)),
        (3.5, Advanced({x: 50.0}, {}, {}, {x: {"train": 0.5}})),
        (3.75, Advanced({}, {}, {}, {})),
        (4.0, Opened(2, SHARDS, HEAD)),
        (4.0, Fell(x, 1, 100.0)),
        (4.0, joined("a")),
        (4.0, Planned((), (whole,))),
        (5.0, visited("x", "d1", train=1.0)),
        (5.0, Evaluated(x, 1.0, {"accuracy": 0.6})),
        (6.0, visited("x", "d0", 1, train=1.0)),
        (7.0, visited("x", "d1", 1, train=1.0)),
        (7.0, Evaluated(x, 2.0, {"accuracy": 0.55})),
        (7.0, Finished(x)),
    )


@pytest.fixture
def packed() -> list[Line]:
    """A wide lane over a and b until 4, then a pack of two on a; b leaves at 6, and the pack's
    y fails at 7.
    """
    wide = Gang((Lane(TrialId("w"), (SlotId("a"), SlotId("b"))),), since=1)
    pack = Gang((Lane(TrialId("x"), (SlotId("a"),)), Lane(TrialId("y"), (SlotId("a"),))), since=2)
    w, x, y = TrialId("w"), TrialId("x"), TrialId("y")
    return lines(
        *begun(trial("w"), trial("x"), trial("y")),
        (0.0, Planned((), (wide,))),
        (4.0, Advanced({w: 200.0}, {}, {}, {w: {"train": 4.0}})),
        (4.0, Finished(w)),
        (4.0, Planned((), (pack,))),
        (5.0, Advanced({x: 50.0, y: 50.0}, {}, {}, {x: {"train": 0.5}, y: {"train": 0.5}})),
        (6.0, Left(frozenset({SlotId("b")}))),
        (6.5, Advanced({x: 50.0, y: 50.0}, {}, {}, {x: {"train": 1.5}, y: {"train": 1.5}})),
        (7.0, Failed(y, "RuntimeError: no such width")),
        (8.0, Advanced({x: 100.0}, {}, {}, {x: {"train": 1.0, "evaluate": 0.5}})),
        (8.0, Finished(x)),
    )


@pytest.fixture
def many() -> list[Line]:
    """500 trials of mixed configurations, two epochs each on 8 slots; every tenth fails."""
    timed: list[tuple[float, Entry]] = [(0.0, joined(*(f"s{n}" for n in range(8))))]
    for n in range(500):
        name, at, slot = f"t{n:03d}", (n // 8) * 2.0, f"s{n % 8}"
        config = {
            "lr": 10.0 ** -(1 + n % 5),
            "width": 64 << (n % 4),
            "optimizer": ("adam", "sgd")[n % 2],
            "dropout": n % 50 / 100,
        }
        gang = Gang((Lane(TrialId(name), (SlotId(slot),)),), since=n)
        timed += [(at, Submitted(trial(name, 400.0, **config))), (at, Planned((), (gang,)))]
        if n % 10 == 9:
            timed.append(
                (at + 0.5, Failed(TrialId(name), "diverged: loss was not finite for 10 steps"))
            )
            continue
        for epoch in range(2):
            when = at + 1.0 + epoch
            timed += [
                (when - 0.5, visited(name, "d0", epoch, train=0.4, data=0.1)),
                (when, visited(name, "d1", epoch, train=0.4)),
            ]
            timed.append(
                (
                    when,
                    Evaluated(
                        TrialId(name), epoch + 1.0, {"accuracy": 0.5 + n % 97 / 200, "loss": 1.0}
                    ),
                )
            )
        timed.append((at + 2.0, Finished(TrialId(name))))
    return lines(*sorted(timed, key=lambda item: item[0]))


@pytest.fixture
def empty() -> list[Line]:
    return lines((0.0, Commanded("stop", "timeout")))


@pytest.fixture
def doomed() -> list[Line]:
    """Every trial fails, none with a score."""
    gangs = unit("x", "a", 1), unit("y", "b", 1)
    failed = [
        (1.0, Failed(TrialId(name), "ValueError: <img src=http://evil/> & co"))
        for name in ("x", "y")
    ]
    return lines(*begun(trial("x", lr=0.1), trial("y", lr=0.2)), (0.0, Planned((), gangs)), *failed)


@pytest.fixture
def stored(tmp_path: Path) -> Callable[[list[Line]], Path]:
    """Writes lines as a journal file, in a folder of its own."""

    def store(entries: list[Line]) -> Path:
        path = tmp_path / "study" / "journal.jsonl"
        path.parent.mkdir(exist_ok=True)
        journal = Journal(path)
        for time, entry in entries:
            journal.append(time, entry)
        journal.close()
        return path

    return store
