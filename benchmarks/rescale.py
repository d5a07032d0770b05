"""Seconds without training when the width of a run changes, 1 -> 2 -> 1 -> 2: Shoal's wide
lane, torchrun elastic, Ray Train.

A model of 25 million parameters under Adam (300 MB of state), two processes of this machine
over gloo. Counted is the time from the end of the last step before a change to the end of the
first one after it, less what a step takes (the median of those that follow). What the peers
restart with is in their favour: they save their state exactly when they are stopped, on a local
disk, so that no step is lost; torchrun waits 1 s for more nodes (its default: 30 s). Shoal's
line "killed" is kill -9 of one of two processes, the step in flight included; the other changes
are orders.

    python benchmarks/rescale.py [shoal] [torchrun] [ray]
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from socket import create_server
from statistics import mean, median
from time import monotonic, sleep, time
from typing import Any

import torch
from common import show, write
from torch import nn

import shoal

SIDE, LAYERS, BATCH = 1000, 25, 32
CHANGES = ["1 -> 2", "2 -> 1", "1 -> 2"]
STEPS = 4  # between two changes
PATIENCE = 240.0  # seconds until something that does not happen counts as a hang


class Large(shoal.Recipe):
    batch_size = BATCH

    def configure_model(self, config: Mapping[str, Any]) -> nn.Module:
        return nn.Sequential(*(nn.Linear(SIDE, SIDE, bias=False) for _ in range(LAYERS)))

    def configure_optimizers(
        self, model: nn.Module, config: Mapping[str, Any]
    ) -> torch.optim.Optimizer:
        return torch.optim.Adam(model.parameters(), lr=1e-4)

    def training_step(self, model: nn.Module, batch: Any) -> torch.Tensor:
        return model(batch[0]).square().mean()


# -- Shoal
# ----------------------------------------------------------------------------------------------


def slot(link: Any) -> None:
    """A slot's process: takes the seats it is given, and tells what it does."""
    from shoal.train.lane.lane import TrainingLane
    from shoal.train.recipe.seat import Orders
    from shoal.train.stream.reader import Reader
    from shoal.train.wide.gate import Meeting
    from shoal.train.wide.lane import Halted, WideLane

    torch.set_num_threads(1)
    meeting, orders = Meeting(), Orders()
    seats: list[Any] = []
    ready = threading.Semaphore(0)
    link.send(("at", meeting.address))

    def listen() -> None:
        while True:
            kind, told = link.recv()
            if kind == "begin":
                seats.append(told)
                ready.release()
            elif kind == "move":
                orders.move(told)
            else:
                orders.halt()

    threading.Thread(target=listen, daemon=True).start()
    lane = TrainingLane(Large(), {}, seed=1, device=torch.device("cpu"), epoch=1e6)
    wide = WideLane(lane, orders)
    rows = torch.randn(8 * BATCH, SIDE)

    def chunks(skip: int) -> Iterator[Any]:
        while True:
            yield (rows,)

    while True:
        ready.acquire()
        seat = seats.pop()
        wide.begin(Reader(chunks, 10**9), whole=seat.generation == 1)
        try:
            for _ in wide.run(seat):
                link.send(("step", [wide.widths[-1][1], time()]))
        except Halted:
            link.send(("end", None))
            return
        link.send(("left", None))


def of_shoal() -> list[dict[str, Any]]:
    from shoal.train.recipe.seat import Move, Seat

    context = get_context("spawn")

    def member() -> tuple[Any, Any, str]:
        ours, theirs = context.Pipe()
        process = context.Process(target=slot, args=(theirs,), daemon=True)
        process.start()
        return ours, process, hear(ours, "at")

    (one, first, address), (two, second, _) = member(), member()
    one.send(("begin", Seat("b", 1, 0, 1)))
    noted = steps(one, 1)
    for generation, width in enumerate((2, 1, 2), 2):
        joining = (1,) if width == 2 else ()
        seats = [
            Seat("b", generation, rank, width, address if width == 2 else "", joining=joining)
            for rank in range(width)
        ]
        two.send(("begin", seats[1]) if width == 2 else ("move", Move(generation, None)))
        one.send(("move", Move(generation, seats[0])))
        noted += steps(one, width)
    second.kill()
    second.join()
    one.send(("move", Move(5, Seat("b", 5, 0, 1), broken=True)))
    noted += steps(one, 1)
    first.kill()
    changes = [*CHANGES, "2 -> 1, killed"]
    return [
        {"with": "shoal", "change": change, "seconds": took}
        for change, took in zip(changes, gaps(noted), strict=True)
    ]


def hear(link: Any, kind: str) -> Any:
    """The next news of that kind."""
    while link.poll(PATIENCE):
        got, told = link.recv()
        if got == kind:
            return told
    raise TimeoutError(f"no {kind} from a slot within {PATIENCE:g} s")


def steps(link: Any, width: int) -> list[Any]:
    """Wait until some were made at that width: width and end of each."""
    noted: list[Any] = []
    while [step[0] for step in noted[-STEPS:]] != [width] * STEPS:
        noted.append(hear(link, "step"))
    return noted


def gaps(noted: list[Any]) -> list[float]:
    """Seconds without training at each change of width."""
    found = []
    for i in range(1, len(noted)):
        if noted[i][0] != noted[i - 1][0]:
            after = [step[1] for step in noted[i : i + STEPS]]
            found.append(after[0] - noted[i - 1][1] - median(b - a for a, b in pairwise(after)))
    return found


# -- peers: a plain DDP script that saves its state when it is stopped
# ---------------------------------------------------


def train(home: Path, stop: Callable[[int], bool], rank: int, width: int) -> None:
    """Steps from the saved state on, each noted with its end, until `stop` after so many."""
    model: Any = Large().configure_model({})
    optimizer: Any = Large().configure_optimizers(model, {})
    saved = home / "state.pt"
    if saved.exists():
        state = torch.load(saved)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    plain, batch = model, torch.randn(BATCH // width, SIDE)
    if width > 1:
        model = nn.parallel.DistributedDataParallel(model)
    made = 0
    try:
        while not stop(made):
            optimizer.zero_grad()
            Large().training_step(model, (batch,)).backward()
            optimizer.step()
            made += 1
            if rank == 0:
                with (home / "steps").open("a") as log:
                    log.write(json.dumps([width, time()]) + "\n")
    finally:  # also when a peer is gone
        if rank == 0:
            torch.save(
                {"model": plain.state_dict(), "optimizer": optimizer.state_dict()},
                home / "beside.pt",
            )
            (home / "beside.pt").replace(saved)


def noted_steps(home: Path) -> list[Any]:
    log = home / "steps"
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


def rows(name: str, home: Path) -> list[dict[str, Any]]:
    found = gaps(noted_steps(home))
    return [
        {"with": name, "change": change, "seconds": took}
        for change, took in zip(CHANGES, found, strict=True)
    ]


# -- torchrun
# ----------------------------------------------------------------------------------------------


def elastic(home: Path) -> None:
    """What torchrun starts."""
    import torch.distributed as dist

    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    train(home, lambda _: stopped.is_set(), dist.get_rank(), dist.get_world_size())


def of_torchrun() -> list[dict[str, Any]]:
    with create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)

        def agent() -> subprocess.Popen[bytes]:
            command = [
                sys.executable,
                "-m",
                "torch.distributed.run",
                "--nnodes=1:2",
                "--nproc-per-node=1",
                "--max-restarts=9",
            ]
            command += [
                "--rdzv-backend=c10d",
                f"--rdzv-endpoint=127.0.0.1:{port}",
                "--rdzv-id=b",
                "--local-addr=127.0.0.1",
            ]
            command += ["--rdzv-conf=last_call_timeout=1", __file__, "--elastic", folder]
            # with the store that agents share by default, a node that joins waits for ever
            # (pytorch issue 135712)
            own = {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
            return subprocess.Popen(command, env=own, stderr=subprocess.DEVNULL)

        agents = [agent()]
        try:
            reached(home, 1)
            agents.append(agent())
            reached(home, 2)
            agents.pop().terminate()
            reached(home, 1)
            agents.append(agent())
            reached(home, 2)
        finally:
            for each in agents[::-1]:
                each.terminate()
            for each in agents:
                each.wait(PATIENCE)
        return rows("torchrun", home)


def reached(home: Path, width: int) -> None:
    """Wait until the last steps are of that width."""
    until = monotonic() + PATIENCE
    while [step[0] for step in noted_steps(home)[-STEPS:]] != [width] * STEPS:
        if monotonic() > until:
            raise TimeoutError(f"torchrun made no steps at width {width} within {PATIENCE:g} s")
        sleep(0.1)


# -- Ray Train
# ----------------------------------------------------------------------------------------------


def some(config: dict[str, Any]) -> None:
    """What Ray Train starts."""
    import ray.train

    context = ray.train.get_context()
    torch.set_num_threads(1)
    train(
        Path(config["home"]),
        lambda made: made == STEPS,
        context.get_world_rank(),
        context.get_world_size(),
    )


def of_ray() -> list[dict[str, Any]]:
    import ray
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    ray.init(num_cpus=2, include_dashboard=False, logging_level="error", log_to_driver=False)
    with tempfile.TemporaryDirectory() as folder:
        for number, width in enumerate((1, 2, 1, 2)):
            TorchTrainer(
                some,
                train_loop_config={"home": folder},
                torch_config=TorchConfig(backend="gloo"),
                scaling_config=ScalingConfig(num_workers=width, resources_per_worker={"CPU": 0.5}),
                run_config=RunConfig(storage_path=folder, name=f"run{number}"),
            ).fit()
        found = rows("ray train", Path(folder))
    ray.shutdown()
    return found


def main(chosen: list[str]) -> None:
    ways = {"shoal": of_shoal, "torchrun": of_torchrun, "ray": of_ray}
    found = [row for name, way in ways.items() if not chosen or name in chosen for row in way()]

    if chosen and "shoal" not in chosen:
        show(found)
        return

    def took(name: str) -> float:
        return mean(
            row["seconds"] for row in found if row["with"] == name and "killed" not in row["change"]
        )

    present = dict.fromkeys(row["with"] for row in found)
    over = {
        f"{name.replace(' ', '_')}_over_shoal": took(name) / took("shoal")
        for name in present
        if name != "shoal"
    }
    write(
        "rescale", found, {**over, "restart_over_shoal": min(over.values(), default=float("nan"))}
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--elastic"]:
        elastic(Path(sys.argv[2]))
    else:
        main(sys.argv[1:])
