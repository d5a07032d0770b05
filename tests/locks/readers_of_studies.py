"""Readers of what lies in the folders of studies and pools."""

import io
import tempfile
import zipfile
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from fuzz_kit import MIB, Reader, lines, zipped

from shoal.callbacks.csv_file import CsvFile
from shoal.core.cluster import ShardId, Slot, SlotId
from shoal.core.event import (
    Advanced,
    Commanded,
    Ended,
    Evaluated,
    Failed,
    Finished,
    Joined,
    Kept,
    Left,
    Measured,
    Opened,
    Planned,
    Submitted,
)
from shoal.core.plan import solo
from shoal.core.state import State
from shoal.core.trial import Trial, TrialId, Visit
from shoal.engine.journal import Journal, JournalError, Tail, encode, newest, read
from shoal.pool.folder import PoolError, PoolFolder, summary, summary_lines
from shoal.reporting.html import write
from shoal.study.folder import Folder
from shoal.study.holder import is_held, process_of
from shoal.study.inbox import Inbox, note_entries
from shoal.train.function.checkpoint import unpacked
from shoal.train.lane.checkpoints import Checkpoints, Damaged

CHECKPOINT = "t/000001-1.pt"


def journal(sealed: bool = True) -> bytes:
    """A short study's journal; else as Shoal wrote it before lines had checksums."""
    one, slot = TrialId("t0001"), SlotId("n1:0")
    gang = solo(one, slot, 1, ShardId("s0"), 64.0)
    trial = Trial(one, 128.0, {"lr": 0.1, "act": "relu"}, shards=frozenset({"s0"}))
    entries: list[Any] = [
        Opened(1, {ShardId("s0"): 64}, {"study": "digits", "metric": "loss"}),
        Joined((Slot(slot, "n1", "cpu", 4.0, frozenset({ShardId("s0")})),)),
        Submitted(trial),
        Planned((), (gang,)),
        Advanced(
            {one: 64.0},
            {one: {"loss": (32.0, 64)}},
            {one: (Visit(0, ShardId("s0"), 1, 64),)},
            {one: {"train": 0.5}},
        ),
        Evaluated(one, 1.0, {"loss": float("nan"), "accuracy": 0.5}),
        Measured(one, "abc", {"rate": 128.0, "memory": 0.1}),
        Kept(one, 1, 64.0, CHECKPOINT),
        Ended(gang),
        Commanded("note", "hello"),
        Finished(one),
        Left(frozenset({slot}), True, "gone"),
        Failed(TrialId("t0002"), "it said <no>"),
    ]
    if not sealed:
        body = b"".join(encode(float(n), entry) for n, entry in enumerate(entries))
        return lines({"shoal": "journal", "schema": 1}) + body
    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / "journal.jsonl"
        written = Journal(file)
        for number, entry in enumerate(entries):
            written.append(float(number), entry)
        written.close()
        return file.read_bytes()


def checkpoint(state: dict[str, Any]) -> bytes:
    """A checkpoint as Shoal writes it."""
    with tempfile.TemporaryDirectory() as place:
        Checkpoints(place, 1).save(CHECKPOINT, state)
        return (Path(place) / CHECKPOINT).read_bytes()


@cache
def states() -> list[bytes]:
    """Checkpoints: some that Shoal wrote, some that were forged."""
    weights = np.arange(12, dtype=np.float32).reshape(3, 4)
    sound = [
        checkpoint({"model": {"w": weights, "b": weights[0]}, "epoch": 3}),
        checkpoint({"rng": [1, 2.5, "x", None, b"y"], "half": torch.ones(2, dtype=torch.bfloat16)}),
    ]
    wide = torch.zeros(1).expand(2**40)  # one number, and says that it is 4 TiB
    shared: Any = []
    for _ in range(60):  # 2 ** 60 lists for whoever looks at each
        shared = [shared, shared]
    ring: list[Any] = []
    ring.append(ring)
    forged = [
        _with_pickle(sound[0], b"\x80\x02" + b"]" * 10**5 + b"a" * (10**5 - 1) + b"."),
        _with_pickle(sound[0], b"\x80\x02cos\nsystem\nX\x04\0\0\0true\x85R."),
        _with_pickle(sound[0], b"\x80\x02K\x01."),
        _with_pickle(sound[0], b"\x80\x02X\xff\xff\xff\x7fabc."),
    ]
    for state in (wide, shared, ring, {"x": torch.nn.Parameter(torch.ones(2))}):
        file = io.BytesIO()
        torch.save({"model": state}, file)
        forged.append(file.getvalue())
    old = io.BytesIO()
    torch.save({"w": torch.ones(3)}, old, _use_new_zipfile_serialization=False)
    return [*sound, *forged, old.getvalue(), _unpacks_to_much(sound[0])]


def _members(sound: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(sound)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def _with_pickle(sound: bytes, pickled: bytes) -> bytes:
    """The checkpoint with another pickle in it."""
    members = _members(sound)
    name = next(name for name in members if name.endswith("/data.pkl"))
    return zipped({**members, name: pickled})


def _unpacks_to_much(sound: bytes) -> bytes:
    """A checkpoint whose weights are packed: a few kB become more than a reader may take."""
    members = _members(sound)
    data = next(name for name in members if name.endswith("/data/0"))
    members[data] = bytes(600 * MIB)
    return zipped(members, packed=True)


def _load(folder: Path) -> None:
    state = Checkpoints(folder, 1).load(CHECKPOINT)
    assert isinstance(state, dict)


def _load_packed(folder: Path) -> None:
    kept = Checkpoints(folder, 1)
    for name in kept.names():
        kept.size(name)
        kept.load(name)


def _of_function(folder: Path) -> None:
    state = Checkpoints(folder, 1).load(CHECKPOINT)
    (folder / "out").mkdir(exist_ok=True)
    unpacked(state.get("checkpoint", state), folder / "out")


def _followed(folder: Path) -> None:
    tail = Tail(folder / "journal.jsonl")
    tail.lines()
    tail.lines()


def _reported(folder: Path) -> None:
    write(folder / "journal.jsonl", folder / "report.html")


def _noted(folder: Path) -> None:
    inbox = Inbox(folder)
    bool(inbox)
    note_entries(inbox, State(), lambda state, note: [])


def _pool(folder: Path) -> None:
    (folder / "pool.lock").touch()
    pool = PoolFolder(folder)
    pool.opened()
    pool.awaited()
    pool.shares()
    pool.signs()
    pool.bury()
    summary_lines(summary(folder) or {})


def _logged(folder: Path) -> None:
    study = SimpleNamespace(name="x", folder=SimpleNamespace(path=folder))
    CsvFile().open(study, folder)


READERS = [
    Reader(
        "journal",
        [journal(), journal(False), journal(False)],
        lambda folder: list(read(folder / "journal.jsonl")),
        (JournalError,),
        "journal.jsonl",
    ),
    Reader(
        "journal, as it grows",
        [journal(), journal(False), journal(False)],
        _followed,
        (JournalError,),
        "journal.jsonl",
    ),
    Reader(
        "journal, newest run",
        [journal(), journal(False), journal(False)],
        lambda folder: newest(folder / "journal.jsonl", Opened),
        (JournalError,),
        "journal.jsonl",
    ),
    Reader(
        "report",
        [journal(), journal(False), journal(False)],
        _reported,
        (JournalError,),
        "journal.jsonl",
    ),
    Reader("checkpoint", states, _load, (Damaged,), CHECKPOINT),
    Reader(
        "checkpoints in one file",
        lambda: [
            zipped({CHECKPOINT: states()[0], "u/000002-1.pt": states()[1]}),
            zipped({"../../x.pt": b"x", CHECKPOINT: states()[1]}),
        ],
        _load_packed,
        (Damaged, FileNotFoundError),
        "pack-1-000001.zip",
    ),
    Reader(
        "checkpoint of a function",
        [
            checkpoint({"checkpoint": {"kind": "tree", "tree": {"a": np.ones(2)}}}),
            checkpoint(
                {
                    "checkpoint": {
                        "kind": "folder",
                        "name": "c",
                        "files": {"c/a.txt": np.ones(3, np.uint8)},
                    }
                }
            ),
        ],
        _of_function,
        (Damaged,),
        CHECKPOINT,
    ),
    Reader(
        "note to a study",
        [b'{"stop": null}', b'{"add": {"lr": 0.1}, "epochs": 3}', b"[1]", b""],
        _noted,
        (),
        "inbox/000001.json",
    ),
    Reader(
        "slots of a run",
        [
            lines(
                {
                    "written": 1e9,
                    "slots": [
                        {
                            "slot": "a:0",
                            "node": "a",
                            "kind": "cpu",
                            "trials": ["t"],
                            "shards": ["s0"],
                            "silent": 1.5,
                        }
                    ],
                }
            )
        ],
        lambda folder: process_of(Folder(folder), 1e9),
        (),
        "slots.json",
    ),
    Reader(
        "who holds a study",
        [lines({"pid": 17, "host": "here", "since": "2026-01-01T00:00:00+00:00"})],
        lambda folder: is_held(Folder(folder)),
        (),
        "holder.json",
    ),
    *(
        Reader(f"pool: {name}", [content], _pool, (PoolError,), name)
        for name, content in {
            "pool.json": lines({"address": "127.0.0.2:1", "threads": 1, "host": "x", "pid": 1}),
            "opening.json": lines({"host": "x", "pid": 1}),
            "shares.json": lines({"a-1": 2}),
            "studies/a-1.json": lines(
                {
                    "claim": {"study": "a-1", "least": 1, "most": 2, "priority": 1.0},
                    "folder": "/x",
                    "slots": 1,
                    "host": "x",
                    "pid": 1,
                    "count": 3,
                }
            ),
        }.items()
    ),
    Reader(
        "scores.csv",
        [b"trial,epoch,config.lr,loss\r\nt0001,1.0,0.1,0.5\r\nt0001,2.0,0.1,0.4\r\n"],
        _logged,
        (ValueError,),
        "scores.csv",
    ),
]
