"""Idle nodes of a supercomputer as slots: a slice of Summit's log, played with real Ray nodes.

    python benchmarks/harvest.py [--short]

Ten minutes of the log of idle nodes, of some racks, drive pilots: processes that join a Ray head
when the log says that a node is idle, and get SIGTERM, without notice, when it is not. A study
trains on them. Time is compressed; a step sleeps, as if it waited for a device. Before, the same
trials train on dedicated slots.

U is BFTrainer's utilisation (Liu et al., 2021, section 4): the samples that count at the end of the
slice over those that the same trials would make on N_eq dedicated nodes, where N_eq is the mean
number of idle nodes (eq. 17, 18). `predicted_u` is the simulator's, for the same slice, from what
was measured on the dedicated slots alone.

Where Slurm is installed, a private one of four nodes says how long a main job of all nodes waits:
on empty nodes, and where pilots hold all of them.

BFTRAINER_DATA names the folder of the log; it has no licence and is not part of Shoal. Without it,
the log is made up.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from common import ROOT, write
from replay import BEGIN, DATA, summit
from torch import Tensor, nn, optim

import shoal
from shoal.core.cluster import Slot, SlotId
from shoal.core.event import Advanced, Evaluated, Fell, Joined, Left, Measured
from shoal.core.trial import Trial, TrialId
from shoal.engine.journal import Line
from shoal.harvest.head import RayHead
from shoal.policy import Elastic
from shoal.profile.table import Row, Table
from shoal.search import Trace
from shoal.simulate.idle_log import IdleLog
from shoal.simulate.run import run_spec
from shoal.simulate.spec import Spec

IP = "127.0.0.10"
SLICE = 600.0  # seconds of the log
COMPRESSED = 3.0  # times as fast
# Of Summit's first 1024 nodes: these, from that second on. Three are idle on average.
FIRST, COUNT, AT = 936, 36, BEGIN + 64200.0
TRIALS, SHARDS, BATCH, STEPS, STEP = (5, 8, 16, 5, 0.05)  # STEP: seconds that a step sleeps
SIZE = SHARDS * BATCH * STEPS  # training samples
EVERY = 5.0  # seconds of training between two durable states
DEDICATED, WARM = 3, 30.0  # slots, and seconds for which they are measured
JOBS = 5


class Devices(shoal.Recipe):
    """A small model, each step of which takes as long as on a device."""

    batch_size, metric, mode = BATCH, "accuracy", "max"

    def data(self) -> shoal.Data:
        rng = np.random.default_rng(3)
        x = rng.normal(size=(SIZE + 64, 16)).astype("float32")
        y = x[:, :4].argmax(1)
        held = (x[SIZE:], y[SIZE:])
        return shoal.Data.arrays(x[:SIZE], y[:SIZE], shards=SHARDS, validation=held)

    def configure_model(self, config: Mapping[str, Any]) -> nn.Module:
        return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))

    def configure_optimizers(self, model: nn.Module, config: Mapping[str, Any]) -> Any:
        return optim.Adam(model.parameters(), lr=config["lr"])

    def training_step(self, model: nn.Module, batch: Any) -> Tensor:
        time.sleep(STEP)
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    def validation_step(self, model: nn.Module, batch: Any) -> Mapping[str, Tensor]:
        return {"accuracy": (model(batch[0]).argmax(1) == batch[1]).float()}


# -- the log


def sliced() -> tuple[IdleLog, str]:
    """Ten minutes of the log, of few nodes."""
    log, source = summit(1024, 24.0)
    if DATA.exists():
        return log.subset(FIRST, COUNT).window(AT, AT + SLICE), source
    begin = log.begin + 3600.0
    return log.subset(0, COUNT).window(begin, begin + SLICE), source


def compressed(log: IdleLog) -> list[tuple[float, str, str]]:
    """When which node comes or goes, in seconds since the slice began."""
    found = []
    for node, start, end in zip(log.node, log.start, log.end, strict=True):
        name = log.nodes[node]
        since = max(0.0, start - log.begin) / COMPRESSED
        found.append((since, "come", name))
        if end <= log.finish:
            found.append(((end - log.begin) / COMPRESSED, "go", name))
    return sorted(found, key=lambda each: (each[0], each[1] == "come"))


def offered(changes: Sequence[tuple[float, str, str]], until: float) -> float:
    """Node-seconds of idle nodes (the sum of eq. 17)."""
    total, count, last = 0.0, 0, 0.0
    for at, what, _ in changes:
        total += count * (at - last)
        count += 1 if what == "come" else -1
        last = at
    return total + count * (until - last)


# -- pilots


class Nodes:
    """The pilots of a head: nodes that come and go."""

    def __init__(self, head: RayHead) -> None:
        self.head = head
        self.pilots: dict[str, subprocess.Popen[bytes]] = {}
        self.began: dict[str, float] = {}  # by the wall clock
        self.gone: list[float] = []  # seconds from SIGTERM to the end

    def come(self, name: str) -> None:
        words = ["--folder", str(self.head.folder), "--node", name]
        words += ["--cpus", "1", "--gpus", "0", "--store-gb", "0.08"]
        self.began[name] = time.monotonic()
        self.pilots[name] = subprocess.Popen(
            [sys.executable, "-m", "shoal.harvest.pilot", *words],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def go(self, *names: str) -> None:
        """All of these at once, as when a large main job begins."""
        leaving = [self.pilots.pop(name) for name in names]
        begin = time.monotonic()
        for each in leaving:
            each.send_signal(signal.SIGTERM)
        for each in leaving:
            each.wait(60.0)
            self.gone.append(time.monotonic() - begin)

    def __enter__(self) -> "Nodes":
        return self

    def __exit__(self, *_: object) -> None:
        self.go(*self.pilots)


# -- studies


class Played(threading.Thread):
    """Begins once all of `first` are slots; plays the changes; stops the study at `until`.

    `zero`: the time of the study at which the slice began. `came`: seconds from a pilot's start to
    its slot, by node.
    """

    def __init__(
        self,
        folder: Path,
        nodes: Nodes,
        first: int,
        changes: Sequence[tuple[float, str, str]],
        until: float,
    ) -> None:
        super().__init__(daemon=True)
        self.folder, self.nodes, self.first = folder, nodes, first
        self.changes, self.until = changes, until
        self.zero = 0.0
        self.came: list[float] = []

    def lines(self) -> list[Line]:
        try:
            return shoal.load_study(self.folder).lines()
        except (shoal.StudyError, OSError):
            return []  # it is not there yet

    def slots(self) -> dict[str, float]:
        """The nodes that ever had slots, and when these joined."""
        found = {}
        for at, entry in self.lines():
            if isinstance(entry, Joined):
                for slot in entry.slots:
                    found.setdefault(slot.node, at)
        return found

    def run(self) -> None:
        while len(self.slots()) < self.first:
            time.sleep(0.1)
        seen = time.monotonic()
        self.zero = max(self.slots().values())
        due: dict[float, list[tuple[str, str]]] = {}
        for at, what, name in self.changes:
            due.setdefault(at, []).append((what, name))
        for at, together in sorted(due.items()):
            time.sleep(max(0.0, seen + at - time.monotonic()))
            self.nodes.go(*(name for what, name in together if what == "go"))
            for what, name in together:
                if what == "come":
                    self.nodes.come(name)
        time.sleep(max(0.0, seen + self.until - time.monotonic()))
        shoal.load_study(self.folder).stop()


def trained(
    folder: Path,
    nodes: Nodes,
    present: Sequence[str],
    changes: Sequence[tuple[float, str, str]],
    until: float,
) -> Played:
    """A study on nodes that are present, and then come and go."""
    for name in present:
        nodes.come(name)
    played = Played(folder, nodes, len(present), changes, until)
    played.start()
    study = shoal.create_study(Devices(), storage=folder)
    study.optimize(
        searcher=Trace([(0.0, {"lr": 1e-3 * (1 + i)}) for i in range(TRIALS)]),
        policy=Elastic(admit=TRIALS),
        max_epochs=10_000,
        backend="ray",
        address=nodes.head.address,
        checkpoint_every=EVERY,
        progress=False,
    )
    played.join()
    return played


def samples(lines: Sequence[Line], begin: float, end: float) -> float:
    """The samples from `begin` to `end` that were not lost in between."""
    done: dict[TrialId, float] = {}
    first: dict[TrialId, float] = {}
    for at, entry in lines:
        if at > end:
            break
        if isinstance(entry, Advanced):
            for trial, made in entry.samples.items():
                done[trial] = done.get(trial, 0.0) + made
        elif isinstance(entry, Fell):
            done[entry.trial] = entry.samples
        if at <= begin:
            first = dict(done)
    return sum(done.values()) - sum(first.values())


# -- what was measured, and what it predicts


@dataclass(frozen=True)
class Known:
    """Of dedicated slots: samples/s of one, its figures, and seconds from a pilot to a slot."""

    rate: float
    row: Row
    start: float


def known(folder: Path, played: Played, slots: Mapping[str, float]) -> Known:
    lines = shoal.load_study(folder).lines()
    figures: dict[str, list[float]] = {}
    spent: dict[str, list[float]] = {}
    for _, entry in lines:
        if isinstance(entry, Measured):
            for name, value in entry.figures.items():
                figures.setdefault(name, []).append(value)
        elif isinstance(entry, Advanced):
            for parts in entry.spent.values():
                for name, value in parts.items():
                    spent.setdefault(name, []).append(value)
    begin = played.zero + 5.0  # models are built by then
    made = samples(lines, begin, played.zero + played.until)
    rate = made / (played.until - 5.0) / DEDICATED

    def cost(name: str) -> float:
        return median(figures.get(name) or spent.get(name) or [0.0])

    row = Row(
        (cost("rate"),),
        build=cost("build"),
        evaluate=cost("evaluate"),
        save=cost("save"),
        switch=cost("switch"),
    )
    return Known(rate, row, median(slots.values()))


def predicted(
    changes: Sequence[tuple[float, str, str]], until: float, slot: Known
) -> tuple[float, float]:
    """Samples of the slice in the simulator, and of a dedicated slot a second."""
    shards = {f"s{i}": SIZE // SHARDS for i in range(SHARDS)}
    trials = tuple(
        (0.0, Trial(TrialId(f"t{i}"), 1e9, {"n": i}, shards=frozenset(shards)))
        for i in range(TRIALS)
    )
    spec = Spec(
        "harvest",
        (),
        (),
        shards,  # type: ignore[arg-type]
        trials,
        Table((slot.row,)),
        {},
        until,
        0,
        EVERY,
    )
    ready = []
    late = {}
    for at, what, name in changes:
        if what == "come":
            late[name] = at + slot.start * (at > 0)
            ready.append((late[name], Joined((Slot(SlotId(name), name),))))
        elif late[name] < at:
            ready.append((at, Left(frozenset((SlotId(name),)), died=True)))
        else:  # it went before it was there
            ready = [each for each in ready if each[0] != late[name] or name not in str(each)]
    script = tuple(sorted(ready, key=lambda each: each[0]))
    found, _ = run_spec(replace(spec, script=script), Elastic(admit=TRIALS))
    still = tuple(Slot(SlotId(f"d{i}"), f"d{i}") for i in range(DEDICATED))
    alone, _ = run_spec(replace(spec, slots=still), Elastic(admit=TRIALS))
    return found["samples"], alone["samples"] / until / DEDICATED


# -- the main job


def main_job(python: str) -> tuple[Any, Any]:
    """Median seconds from submitting a main job of all nodes to its start: on empty nodes, and on
    nodes full of pilots; "-" without Slurm.
    """
    sys.path.append(str(ROOT.parent / "tests" / "harvest"))
    from slurm_kit import SlurmLab, missing, wait_for

    if missing():
        return "-", "-"
    with tempfile.TemporaryDirectory() as folder, SlurmLab() as lab:
        shared = Path(folder) / "shared"
        with RayHead(shared, IP):
            empty = [_waits(lab, wait_for) for _ in range(JOBS)]
            full = []
            for _ in range(JOBS):
                _fill(lab, wait_for, python, shared)
                full.append(_waits(lab, wait_for))
    return median(empty), median(full)


def _waits(lab: Any, wait_for: Any) -> float:
    """Seconds until a job of all nodes has started; it ends at once."""
    with tempfile.NamedTemporaryFile(delete=False) as mark:
        begun = Path(mark.name)
    begun.unlink()
    begin = time.time()
    nodes = len(lab.nodes)
    job = lab.submit("-p", "main", "-N", str(nodes), command=f"date +%s.%N > {begun}")
    wait_for("the job ends", lambda: lab.state(job) == "COMPLETED")
    started = float(begun.read_text())
    begun.unlink()
    return started - begin


def _fill(lab: Any, wait_for: Any, python: str, shared: Path) -> None:
    """A pilot on each node, each with a Ray node that is there."""
    pilot = [python, "-m", "shoal.harvest.pilot", "--folder", str(shared)]
    pilot += ["--cpus", "1", "--gpus", "0", "--store-gb", "0.08"]
    command = "exec srun " + " ".join(pilot)
    jobs = [
        lab.submit("-p", "scavenger", "-N", "1", "-w", name, "--no-requeue", command=command)
        for name in lab.nodes
    ]
    wait_for("pilots run", lambda: all(lab.state(job) == "RUNNING" for job in jobs))
    wait_for("Ray nodes are there", lambda: _raylets(shared) >= len(jobs))


def _raylets(shared: Path) -> int:
    """The Ray nodes of pilots of this folder on this machine."""
    count = 0
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                words = (folder / "cmdline").read_bytes()
                environ = (folder / "environ").read_bytes()
            except OSError:
                continue
            ours = str(shared).encode() in environ and b"SLURM_JOB_ID" in environ
            count += ours and b"/raylet/raylet\0" in words
    return count


def main(short: bool) -> None:
    log, source = sliced()
    until = SLICE / COMPRESSED
    changes = compressed(log)
    if short:
        until = 60.0
        changes = [each for each in changes if each[0] < until]
    present = [name for at, what, name in changes if at == 0.0]
    later = [each for each in changes if each[0] > 0.0]
    n_eq = offered(changes, until) / until

    with tempfile.TemporaryDirectory() as folder, RayHead(Path(folder) / "h", IP) as head:
        os.environ.update(head.environment)
        alone = Path(folder) / "dedicated"
        with Nodes(head) as nodes:
            wanted = [f"d{i}" for i in range(DEDICATED)]
            still = trained(alone, nodes, wanted, (), WARM)
        # One more comes while others train: what it takes until it is a slot.
        again = Path(folder) / "starts"
        with Nodes(head) as nodes:
            extra = [(0.5, "come", "e0"), (20.0, "come", "e1")]
            played = trained(again, nodes, ["d0", "d1"], extra, 45.0)
            starts = {
                name: at - (played.zero + when)
                for name, at in played.slots().items()
                for when, _, come in extra
                if name == come
            }
        slot = known(alone, still, starts)
        harvested = Path(folder) / "harvested"
        with Nodes(head) as nodes:
            real = trained(harvested, nodes, present, later, until)
            leave = median(nodes.gone)
        lines = shoal.load_study(harvested).lines()
    made = samples(lines, real.zero, real.zero + until)
    simulated, per_slot = predicted(changes, until, slot)
    harvest_u = made / (slot.rate * n_eq * until)
    predicted_u = simulated / (per_slot * n_eq * until)
    empty, full = ("-", "-") if short else main_job(sys.executable)
    lost = sum(isinstance(line.entry, Left) for line in lines)
    rows: list[dict[str, Any]] = [
        {
            "way": way,
            "N_eq": n_eq,
            "samples": count,
            "U": u,
            "nodes left": gone,
            "main job starts after s": wait,
        }
        for way, count, u, gone, wait in (
            ("dedicated", slot.rate * n_eq * until, 1.0, 0, empty),
            ("harvested", made, harvest_u, lost, full),
            ("predicted", simulated, predicted_u, sum(w == "go" for _, w, _ in changes), "-"),
        )
    ]
    more = {
        "log": source,
        "slice_s": until * COMPRESSED,
        "compressed": COMPRESSED,
        "evaluations": sum(isinstance(line.entry, Evaluated) for line in lines),
        "slot_samples_s": slot.rate,
        "simulated_slot_samples_s": per_slot,
        "node_start_s": slot.start,
        "pilot_leaves_s": leave,
        "costs": {"build": slot.row.build, "save": slot.row.save, "rate": slot.row.rates[0]},
    }
    ratios = {"harvest_u": harvest_u, "predicted_u": predicted_u, "pilot_leaves_s": leave}
    write("harvest-short" if short else "harvest", rows, ratios, more=more)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--short", action="store_true", help="a minute of the slice, no Slurm")
    main(parser.parse_args().short)
