"""Readers of data sets, logs, specs, profiles and what a user types."""

import gzip
import io
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from fuzz_kit import Reader, bomb, npy, tarred, zipped
from PIL import Image
from pyarrow import parquet

from shoal.core.cluster import ShardId
from shoal.profile.overrides import load as load_profile
from shoal.search.registry import parse as parse_searcher
from shoal.simulate.fields import SpecError
from shoal.simulate.idle_log import TraceError
from shoal.simulate.log_files import read_log
from shoal.simulate.spec import load_spec
from shoal.tools.arguments import parse_config, parse_space
from shoal.train.data.catalogue import read_catalogue
from shoal.train.data.columns import DataError
from shoal.train.data.data import Data
from shoal.train.data.formats import form_of, read_whole

PART = ShardId("s000")


def saved(write: Any) -> bytes:
    file = io.BytesIO()
    write(file)
    return file.getvalue()


def archive(**arrays: Any) -> bytes:
    return saved(lambda file: np.savez(file, **arrays))


def picture(kind: str, size: int = 8) -> bytes:
    grey = Image.fromarray(np.arange(size * size, dtype=np.uint8).reshape(size, size))
    return saved(lambda file: grey.save(file, kind))


def of_png_size(width: int, height: int) -> bytes:
    """A picture that says it is so large."""
    import struct
    import zlib

    head = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = [head, b"IDAT" + zlib.compress(bytes(1000)), b"IEND"]
    framed = [
        struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk))
        for chunk in chunks
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(framed)


def table() -> Any:
    return pa.table({"a": [1.0, 2.0, 3.0], "b": [1, 2, 3]})


def arrow() -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table().schema) as file:
        file.write_table(table())
    return bytes(sink.getvalue().to_pybytes())


def as_parquet(made: Any) -> bytes:
    sink = pa.BufferOutputStream()
    parquet.write_table(made, sink)
    return bytes(sink.getvalue().to_pybytes())


def _read_shard(name: str, folder: Path) -> None:
    path = folder / name
    form_of(path, None, PART)
    read_whole(path, None, PART)


SHARDS = {
    "a.npz": lambda: [
        archive(x=np.ones((4, 2), np.float32), y=np.arange(4)),
        saved(lambda file: np.savez_compressed(file, x=np.ones((4, 2)))),
        zipped({"x.npy": npy("(1099511627776,)")}),
        zipped({"x.npy": npy("(1099511627776,)")}, packed=True),
        zipped({"x.npy": npy("(268435456, 8)", content=bytes(2**26))}, packed=True),
        zipped({"x.npy": npy("(2,)", "|O", b"\x80\x04.")}),
        zipped({"x.npy": npy("(-1, 2)")}),
    ],
    "a.npy": [
        saved(lambda file: np.save(file, np.ones((4, 2)))),
        npy("(1099511627776, 1099511627776)"),
        npy("(2,)", "|O", b"\x80\x04."),
    ],
    "a.tar": [
        tarred({"0.npy": npy("(2,)", content=bytes(8)), "0.cls": b"1"}),
        tarred({"0.jpg": picture("jpeg"), "0.cls": b"1"}),
        tarred({"0.png": of_png_size(30000, 30000), "0.cls": b"1"}),
        tarred({"0.json": b"[" * 100000, "0.cls": b"9" * 5000}),
        tarred({"0.npy": npy("(1099511627776,)")}),
        tarred({"../../x.npy": npy("(2,)", content=bytes(8))}),
    ],
    "a.csv": [b"a,b\n1,2\n3,4\n", b"a;b\n1;2\n"],
    "a.parquet": [as_parquet(table())],
    "a.arrow": [arrow()],
}
CATALOGUE = b"""
[train."s000"]
"node1" = "a.npz"
"node2" = "/data/a.npz"
[valid."v000"]
"*" = "https://example.com/v.npz"
"""
PROFILE = b"""
[[rows]]
rates = [100.0, 190.0]
memory = 0.5
switch = 1.0
[rows.config]
width = 64
[[rows]]
rates = 50.0
[speeds]
"n1:0" = 2.0
"""
SPEC = b"""
title = "two kinds of trials on four unlike slots"
seed = 0
checkpoint_every = 300
[[slots]]
count = 2
per_node = 2
memory = 16.0
kind = "new"
[[slots]]
count = 2
per_node = 2
memory = 12.0
kind = "old"
speed = 0.6
[data]
samples = 60000
shard_weights = "speeds"
replicas = 1
[hop]
latency = 0.1
bandwidth = 2.0
[[trials]]
count = 12
epochs = 10
poisson = 30
config = { model = "small", batch_size = 64 }
[[trials]]
count = 2
epochs = 10
widths = [1, 4]
config = { model = "large", batch_size = 128 }
[[profile]]
config = { model = "small" }
rates = [4000]
memory = 1.0
build = 4.0
evaluate = 0.5
save = 0.1
state = 0.05
packing = { share = 0.55, usual = 64, per_sample = 0.01, repack = 1.0 }
[[profile]]
config = { model = "large" }
points = { 1 = 900, 2 = 1700, 4 = 3000 }
memory = 5.0
build = 9.0
state = 1.5
up = 6
down = 3
packing = { share = 0.15, usual = 128, repack = 2.0 }
[policies.fifo]
[policies.hop]
rule = "lrw"
[policies.pack]
most = 4
[policies.elastic]
horizon = 120
"""
INTERVALS = b"node,start,end,rack\nn1,0,100,r1\nn2,5,50,r1\nn1,200,,r1\n"
EVENTS = b"time,joined,left\n0,n1 n2,\n10,,n1\n20,n1,n2\n"
SACCT = (
    b"NodeList|Start|End\nn[1-3]|2026-01-01T00:00:00|2026-01-01T01:00:00\n"
    b"n2,n4|2026-01-01T02:00:00|Unknown\nn1|2026-01-01T03:00:00|2026-01-01T04:00:00\n"
)


def _idx() -> list[bytes]:
    sound = b"\0\0\x08\x02" + (3).to_bytes(4, "big") + (2).to_bytes(4, "big") + b"abcdef"
    huge = b"\0\0\x08\xff" + b"\xff\xff\xff\xff" * 255
    packed = gzip.compress(sound)
    return [sound, sound, packed, packed, huge, bomb(2**27)]


def _read_idx(folder: Path) -> None:
    Data.idx(folder / "x.idx", folder / "x.idx")


def _typed(folder: Path) -> None:
    text = (folder / "typed").read_bytes().decode(errors="surrogateescape")
    for read in (parse_config, parse_space):
        read([text])


def _named_policy(folder: Path) -> None:
    from shoal.policy.description import parse

    parse((folder / "typed").read_bytes().decode(errors="surrogateescape"))


def _named_searcher(folder: Path) -> None:
    parse_searcher((folder / "typed").read_bytes().decode(errors="surrogateescape"))


READERS = [
    *(
        Reader(f"shard {name[1:]}", seeds, partial(_read_shard, name), (DataError,), name)
        for name, seeds in SHARDS.items()
    ),
    *(
        Reader(
            f"shard of pictures {kind}",
            [picture(kind), of_png_size(40000, 40000)],
            partial(_read_shard, "pictures"),
            (DataError,),
            f"pictures/cat/a.{kind}",
        )
        for kind in ("png", "jpeg")
    ),
    Reader("IDX file", _idx, _read_idx, (DataError,), "x.idx"),
    Reader(
        "catalogue",
        [CATALOGUE],
        lambda folder: read_catalogue(folder / "c.toml"),
        (DataError,),
        "c.toml",
    ),
    Reader(
        "profile",
        [PROFILE],
        lambda folder: load_profile(folder / "p.toml"),
        (ValueError,),
        "p.toml",
    ),
    Reader(
        "spec of a simulation",
        [SPEC],
        lambda folder: load_spec(folder / "spec.toml"),
        (SpecError, TraceError),
        "spec.toml",
    ),
    *(
        Reader(
            f"idle log {name}",
            seeds,
            lambda folder, name=name: read_log(folder / name),
            (TraceError,),
            name,
        )
        for name, seeds in {
            "log.csv": [INTERVALS, EVENTS],
            "log.csv.gz": lambda: [
                gzip.compress(INTERVALS),
                gzip.compress(EVENTS),
                gzip.compress(INTERVALS * 9),
                bomb(2**27),
            ],
            "sacct.txt": [SACCT],
            "log.parquet": [as_parquet(pa.table({"node": ["a"], "start": [0.0], "end": [1.0]}))],
        }.items()
    ),
    Reader(
        "configuration as typed",
        [b"lr=0.1", b"lr=loguniform(1e-4, 1e-1)", b"act=choice(['a', 'b'])", b"x=(1, 2)"],
        _typed,
        (ValueError,),
        "typed",
    ),
    Reader(
        "policy as typed",
        [b"explore(seconds=60, most=4)", b"combine(inner=pack(limit=2))", b"fifo"],
        _named_policy,
        (ValueError,),
        "typed",
    ),
    Reader(
        "searcher as typed",
        [b"asha(grace_period=2)", b"patience(epochs=3, inner='random(num_samples=9)')"],
        _named_searcher,
        (ValueError,),
        "typed",
    ),
]
