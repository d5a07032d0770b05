"""Two nodes that share one preparing, against two nodes that each prepare by themselves.

Four models on two nodes of two slots and a feeder each, on the pictures of `shared_stream.py`:
each is decoded, cropped and resized anew in each pass. "shared": a chunk is made at one of the
nodes and sent to the other. "apart": the same, but for a directory of chunks that tells each node
to make its own. The nodes are two of Ray's on one machine: what is sent goes over its loopback,
and all processes share its cores. Counted is the time in which all four train: from the end of
the slowest one's first epoch to the first one's end. Both ways by turns, medians.

bound = (2 p + 4 t) / (p + 4 t): what sharing gains if it cost nothing, with p and t the seconds of
the processor for preparing and for training a sample, measured alone.

    python benchmarks/feed_nodes.py [--quick]
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from time import thread_time
from typing import Any
from unittest.mock import patch

import numpy as np
from emulated import Found, own_process
from shared_stream import Pictures, alone, trained

import shoal

NODES, SLOTS, ROUNDS = 2, 2, 3
MODELS = NODES * SLOTS
CHUNK = 32  # samples
WAYS = ("apart", "shared")
LONG, QUICK = (640, 8), (320, 3)  # files and epochs


class Noted(Pictures):
    """Each process notes the seconds of the processor that it prepares, in a file of its own."""

    def __init__(self, count: int, notes: Path) -> None:
        super().__init__(count)
        self.notes = notes

    def data(self) -> shoal.Data:
        made = super().data()
        made.chunk = CHUNK
        return made

    def augment(self, samples: Any, rng: np.random.Generator) -> Any:
        begin = thread_time()
        made = super().augment(samples, rng)
        with (self.notes / str(os.getpid())).open("a") as notes:
            notes.write(f"{thread_time() - begin}\n")
        return made


class Apart:
    """A directory of chunks that tells each node to make its own."""

    def maker(self, key: Any, node: str) -> str:
        return node

    def demand(self, node: str, own: Any) -> None:
        return None

    def take(self, key: Any, node: str) -> None:
        return None


@contextmanager
def nodes() -> Iterator[str]:
    """Ray's nodes on this machine; gives their address."""
    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False}
    )
    try:
        for number in range(NODES):
            cluster.add_node(num_cpus=SLOTS, node_name=f"n{number}")
        yield cluster.address
    finally:
        ray.shutdown()
        cluster.shutdown()


def run(way: str, folder: Path, quick: bool) -> Found:
    """One study."""
    from shoal.backend.node import feed
    from shoal.core.event import Fed

    files, epochs = QUICK if quick else LONG
    (notes := folder / "notes").mkdir()
    study = shoal.create_study(
        Noted(files, notes),
        storage=folder / "study",
        search_space={"lr": shoal.grid([1e-4 * 2**k for k in range(MODELS)])},
    )
    with ExitStack() as stack:
        address = stack.enter_context(nodes())
        if way == "apart":
            stack.enter_context(patch.object(feed, "ChunkDirectory", Apart))
        study.optimize(
            policy="fifo",
            max_epochs=epochs,
            backend="ray",
            address=address,
            feeders=1,
            checkpoint_every=1e9,
            progress=False,
        )
    lines = study.lines()
    count, begin, end = trained(lines)
    fed = {entry.node: entry.figures for _, entry in lines if isinstance(entry, Fed)}
    chunks = sum(figures["received"] for figures in fed.values())
    prepared = [float(line) for note in notes.iterdir() for line in note.open()]
    return {
        "samples/s": count / (end - begin),
        "preparing, CPU s": sum(prepared),
        "chunks made": sum(figures["made"] for figures in fed.values()),
        "chunks sent": chunks,
        "sent, MB": sum(figures["received_bytes"] for figures in fed.values()) / 2**20,
    }


def compare(quick: bool) -> None:
    from common import write

    more = ["--quick"] if quick else []
    runs: dict[str, list[Found]] = {way: [] for way in WAYS}
    prepare, train = alone(Pictures(QUICK[0]))
    for number in range(1 if quick else ROUNDS):
        for way in WAYS if number % 2 == 0 else WAYS[::-1]:
            runs[way].append(own_process(__file__, way, *more))
            print(f"{way:8} {runs[way][-1]['samples/s']:7.0f} samples/s", flush=True)
    rows = [{"way": way, **medians(runs[way])} for way in WAYS]
    at = {row["way"]: row for row in rows}
    ratios: dict[str, Any] = {
        "two_nodes_shared_over_apart": gain(at, "samples/s"),
        "two_nodes_bound": (NODES * prepare + MODELS * train) / (prepare + MODELS * train),
        "two_nodes_preparing_saved": 1 / gain(at, "preparing, CPU s"),
        "prepare_ms": 1e3 * prepare,
        "train_ms": 1e3 * train,
        "rounds": {way: [each["samples/s"] for each in runs[way]] for way in WAYS},
    }
    write("feed_nodes" + ("-quick" if quick else ""), rows, ratios, ("pillow",))


def medians(runs: Sequence[Found]) -> Found:
    return {name: median(run[name] for run in runs) for name in runs[0]}


def gain(at: Mapping[str, Mapping[str, float]], name: str) -> float:
    """The figure of sharing over that of nodes apart."""
    return at["shared"][name] / at["apart"][name]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="to see that it works")
    parser.add_argument("--run", choices=WAYS)
    parser.add_argument("--folder", type=Path)
    args = parser.parse_args()
    if args.run:
        print(json.dumps(run(args.run, args.folder, args.quick)))
    else:
        compare(args.quick)


if __name__ == "__main__":
    main()
