"""Six configurations on 1, 2 and 4 slots: models that hop, against other ways to divide the work.

Figures 7 to 11 of Cerebro in kind. All ways have equal configurations (three batch sizes, two
rates) and equal shards, one a slot:

- hop: each node holds one shard; models go from node to node (policy `hop`);
- copies: each node holds all shards; a model stays at one node (policy `fifo`, task-parallel);
- ddp: DistributedDataParallel, one model at a time on all slots, a batch for each slot;
- averaging: one model at a time; each slot trains on its shard, weights are averaged every epoch.

The nodes are those of a Ray cluster on this machine, each with a folder of its own; ddp and
averaging are processes over gloo. A unit takes a second and more of an emulated device
(`selection_task.py`), beside a real training. Then the same on four slots where shards are not at
hand: an HTTP server gives them, no faster than `RATE` bytes a second to each who asks.

    python benchmarks/model_selection.py [--quick]

`selection_page.py` draws the figures, `selection_tables.py` makes the tables of the docs.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

HERE = Path(__file__).resolve().parent
WAYS = ("hop", "copies", "ddp", "averaging")
SHOALS = WAYS[:2]
RATE = 5e4  # bytes a second
NODES = 4
BESIDE = 3  # studies that fetch at a time, on the same nodes: most of the time they are asleep
MB = 1e6
Found = dict[str, Any]


@dataclass(frozen=True)
class Runs:
    """What all runs have in common."""

    home: Path
    address: str
    epochs: int

    def run(self, way: str, slots: int, first: int = 0) -> Found:
        """One way, with files at hand. `first`: the number of the first node."""
        from selection_task import laid_out, stored

        folder = self.home / f"{way}-{slots}"
        first *= way in SHOALS
        names = [f"n{first + number}" for number in range(slots)]
        replicas = slots if way == "copies" else 1
        tables = laid_out(folder, names, slots, replicas)
        if way in SHOALS:
            found = self.shoal(way, slots, tables, folder)
        else:
            found = self.gloo(way, slots, folder)
        about = {"way": way, "slots": slots, "epochs": self.epochs}
        return found | about | {"stored": stored(folder)}

    def gloo(self, way: str, slots: int, folder: Path) -> Found:
        from emulated import own_process

        given = {"slots": slots, "epochs": self.epochs, "data": folder}
        return own_process(str(HERE / "selection_gloo.py"), way, *options(given))

    def shoal(self, way: str, slots: int, tables: Any, folder: Path, replays: bool = True) -> Found:
        """One study over these tables. `replays`: models that hop are trained again, alone."""
        from emulated import own_process
        from selection_task import catalogue, on_this_machine

        given = {
            "slots": slots,
            "epochs": self.epochs,
            "address": self.address,
            "catalogue": catalogue(folder / "catalogue.toml", tables),
        }
        if way == "hop" and replays:
            local = on_this_machine(tables)
            given["local"] = catalogue(folder / "local.toml", local)
        return own_process(str(HERE / "selection_study.py"), way, *options(given))


def options(given: dict[str, Any]) -> Iterator[str]:
    for name, value in given.items():
        yield from (f"--{name}", str(value))


@contextmanager
def cluster(count: int) -> Iterator[str]:
    """A Ray cluster of so many nodes n0, n1, … on this machine; its address."""
    import ray
    from ray.cluster_utils import Cluster

    store = 100 * 2**20
    head = {"num_cpus": 0, "include_dashboard": False, "object_store_memory": store}
    made = Cluster(initialize_head=True, head_node_args=head)
    try:
        for number in range(count):
            made.add_node(num_cpus=BESIDE, node_name=f"n{number}", object_store_memory=store)
        yield made.address
    finally:
        ray.shutdown()
        made.shutdown()


def at_hand(runs: Runs, counts: Sequence[int]) -> list[Found]:
    """All ways on each number of slots; as many side by side as there are nodes for them."""
    found = []
    for slots in counts:
        beside = NODES // slots
        with ThreadPoolExecutor(beside) as pool:
            begun = [
                pool.submit(runs.run, way, slots, slots * (number % beside))
                for number, way in enumerate(WAYS)
            ]
            for each in begun:
                found.append(each.result())
                say(found[-1])
    return found


def from_afar(runs: Runs, slots: int, quick: bool) -> list[Found]:
    """Shards that lie at no node, at one, at two; what a node lacks comes from the store."""
    from selection_remote import Case

    cases = [("hop", 0), ("copies", 0), ("copies", 1), ("copies", 2), ("hop", 2)]
    if quick:
        cases = cases[:2]
    with ThreadPoolExecutor(BESIDE) as pool:
        begun = [pool.submit(fetching, runs, Case(way, replicas), slots) for way, replicas in cases]
        return [each.result() for each in begun]


def fetching(runs: Runs, case: Any, slots: int) -> Found:
    """A study whose nodes fetch what they lack."""
    from selection_remote import serving
    from selection_task import stored

    folder = runs.home / f"{case.way}-from-afar-{case.replicas}"
    (folder / "store").mkdir(parents=True)
    names = [f"n{number}" for number in range(slots)]
    with serving(folder / "store", RATE) as (url, traffic):
        tables = case.laid_out(folder, names, url)
        found = runs.shoal(case.way, slots, tables, folder, replays=False)
        return found | {
            "way": case.way,
            "slots": slots,
            "epochs": runs.epochs,
            "replicas": case.replicas,
            "fetched": traffic.sent,
            "fetch_s": traffic.seconds,
            "stored": stored(folder) + traffic.sent,
        }


def say(found: Found) -> None:
    print(
        f"{found['way']:10} {found['slots']} slots  {found['seconds']:7.1f} s  "
        f"{found['sent'] / MB:8.1f} MB sent",
        flush=True,
    )


# -- figures -----------------------------------------------------------------------------------


def rows_of(found: Sequence[Found]) -> list[Found]:
    """The main table."""
    return [
        {
            "way": each["way"],
            "slots": each["slots"],
            "epoch_s": each["seconds"] / each["epochs"],
            "sent_MB": each["sent"] / MB,
            "saved_MB": each["saved"] / MB,
            "read_MB": each["read"] / MB,
            "stored_MB": each["stored"] / MB,
            "peak_MB": each["peak"] / MB,
            "utilisation": each["shares"]["train"],
            "switching": each["shares"].get("switch", 0.0),
            "best_accuracy": max(scores[-1] for scores in each["curves"].values()),
            "mean_accuracy": means(each["curves"]),
        }
        for each in found
    ]


def means(curves: Mapping[str, Sequence[float]]) -> list[float]:
    """The mean accuracy of all configurations after each epoch."""
    ends = zip(*curves.values(), strict=True)
    return [round(fmean(scores), 4) for scores in ends]


def by_batch(each: Found) -> Found:
    """For Figure 9: of each batch size, a model's seconds an epoch, and the best accuracy."""
    best: dict[str, float] = {}
    for name, scores in each["curves"].items():
        batch = name.split()[0]
        best[batch] = max(best.get(batch, 0.0), scores[-1])
    return {
        "seconds_by_batch": each["seconds_by_batch"],
        "accuracy_by_batch": best,
        "curves": each["curves"],
        "shares": each["shares"],
    }


def ratios_of(found: Sequence[Found], epochs: int) -> Found:
    """The goals, for each number of slots above 1."""
    ratios: Found = {}
    for slots in sorted({each["slots"] for each in found} - {1}):
        at = {each["way"]: each for each in found if each["slots"] == slots}
        hop, copies = at["hop"], at["copies"]
        others = [at[way]["seconds"] for way in WAYS if way != "hop"]
        sizes = bytes_of(hop, epochs)
        best, last = min(others), f"_{slots}"
        ratios |= {
            f"hop_over_best_time{last}": hop["seconds"] / best,
            f"copies_over_hop_storage{last}": copies["stored"] / hop["stored"],
            f"hop_bytes_over_formula{last}": sizes["formula"],
            f"hop_bytes_over_least{last}": sizes["least"],
            f"ddp_over_hop_bytes{last}": at["ddp"]["sent"] / hop["sent"],
            f"averaging_over_hop_bytes{last}": at["averaging"]["sent"] / hop["sent"],
            f"hop_minus_copies_accuracy{last}": apart(hop, copies),
            f"hop_replayed{last}": hop["replayed"],
        }
    return ratios


def bytes_of(hop: Found, epochs: int) -> Found:
    """Bytes that hopping models cost, over the paper's Table 2: k m p |S| + m |S|.

    `least` is the first term alone, which the paper calls the minimum. A model begins at a slot
    by its seed, hops k p - 1 times, and is saved at the end.
    """
    units = epochs * hop["slots"]
    saved = hop["saved"]
    cost = hop["sent"] + saved
    return {"formula": cost / ((units + 1) * saved), "least": cost / (units * saved)}


def apart(one: Found, other: Found) -> float:
    """The mean difference of accuracies at the end; positive where `one` is better."""
    gaps = [scores[-1] - other["curves"][name][-1] for name, scores in one["curves"].items()]
    return sum(gaps) / len(gaps)


def remote_rows(far: Sequence[Found], near: Sequence[Found], slots: int) -> list[Found]:
    """Beside the runs that fetch, those of the main table, whose nodes had all at hand."""
    nothing = {"fetched": 0, "fetch_s": 0.0}
    all_rows = [*far]
    for each in near:
        if each["slots"] == slots and each["way"] in SHOALS:
            replicas = 1 if each["way"] == "hop" else slots
            all_rows.append({**nothing, **each, "replicas": replicas})
    all_rows.sort(key=lambda each: (each["way"], each["replicas"]))
    return [
        {
            "way": each["way"],
            "replicas": each["replicas"],
            "epoch_s": (each["seconds"] + each["fetch_s"]) / each["epochs"],
            "fetch_s": each["fetch_s"],
            "fetched_MB": each["fetched"] / MB,
            "stored_MB": each["stored"] / MB,
        }
        for each in all_rows
    ]


def compare(quick: bool) -> None:
    from common import show, write

    begin = time.perf_counter()
    epochs, counts = (1, (2,)) if quick else (2, (4, 2, 1))
    if quick:
        os.environ["SELECTION_SCALE"] = "0.1"
    with tempfile.TemporaryDirectory() as home, cluster(NODES) as address:
        runs = Runs(Path(home), address, epochs)
        near = at_hand(runs, counts)
        far = from_afar(runs, counts[0], quick)
    rows, remote = rows_of(near), remote_rows(far, near, counts[0])
    ratios = ratios_of(near, epochs) | remote_ratios(remote)
    ratios["minutes"] = (time.perf_counter() - begin) / 60
    show(remote)
    more = {
        "remote": remote,
        "runs": [{"way": each["way"], "slots": each["slots"]} | by_batch(each) for each in near],
    }
    name = "model_selection" + ("-quick" if quick else "")
    write(name, rows, ratios, more=more)


def remote_ratios(remote: Sequence[Found]) -> Found:
    """What models that stay fetch, over what models that hop fetch, where no shard is at hand."""
    at = {(row["way"], row["replicas"]): row["fetched_MB"] for row in remote}
    return {"copies_over_hop_fetched": at["copies", 0] / at["hop", 0]}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="to see that it works")
    compare(parser.parse_args().quick)


if __name__ == "__main__":
    main()
