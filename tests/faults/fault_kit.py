"""What the fault tests share: a study in a process of its own, ways to hurt it, and what must
hold of what it left.
"""

import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any
from uuid import uuid4

import numpy as np
import preloaded

import shoal
from shoal.core.event import Advanced, Fell, Kept, Left, Opened
from shoal.engine.journal import Line
from shoal.policy.description import rebuild
from shoal.profile.pack import Packing
from shoal.profile.table import Row, Table
from shoal.study.folder import Folder

MARK = "SHOAL_FAULT_TEST"  # environment variable by which the processes of one study are found
PATIENCE = 240.0  # seconds that anything may take on a busy machine
EVERY = 0.4  # seconds of training between durable states

SCRIPT = """
import json, sys
import shoal
from fault_kit import chosen, made
given = json.loads(sys.argv[1])
study = shoal.create_study(made(given["recipe"]), storage=given["folder"], load_if_exists=True)
study.optimize(progress=False, **chosen(given["options"]))
"""


def made(recipe: Mapping[str, Any]) -> Any:
    """The recipe: one that does wild things, if it is told one of them."""
    given = dict(recipe)
    if given.pop("augments", False):
        return Augmented(**given)
    if "deed" not in given:
        return Steady(**given)
    from wild_kit import Wild

    return Wild(**given)


def chosen(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a run: a policy may be described, `profile=True` says that trials gain by
    sharing a slot.
    """
    made = dict(options)
    if isinstance(made.get("policy"), dict):
        made["policy"] = rebuild(made["policy"])
    if made.pop("profile", False):
        made["profile"] = Table((Row((200.0,), packing=Packing.shared(0.7, 200.0, 16)),))
    return made


class Steady(shoal.Recipe):
    """Steps that take `slow` seconds. `until`: a file; once it is there they take no time.
    `deadly`: a width that ends its process. `narrow`: while that file is there, files may have so
    many bytes as it says. `files`: a folder of shards, instead of arrays. `drawn`: learning rates
    are drawn, too.
    """

    search_space = {"width": shoal.grid([4, 5, 6, 7])}
    metric, mode, max_epochs = "accuracy", "max", 5

    def __init__(
        self,
        slow: float = 0.04,
        until: str | None = None,
        deadly: int | None = None,
        narrow: str | None = None,
        files: str | None = None,
        drawn: bool = False,
        dropout: float = 0.2,
        samples: int = 240,
    ) -> None:
        self.slow, self.until = slow, until
        self.deadly, self.narrow, self.files = deadly, narrow, files
        self.dropout, self.samples, self.batch_size = dropout, samples, samples // 15
        if files is not None:
            self.metric = None  # the folder has no validation part
        if drawn:
            self.search_space = {"width": shoal.choice([4, 6]), "lr": shoal.loguniform(1e-3, 1e-1)}

    def data(self) -> shoal.Data:
        if self.files is not None:
            return shoal.Data.folder(self.files)
        x = np.random.default_rng(3).normal(size=(self.samples, 12)).astype("float32")
        return shoal.Data.arrays(x, x[:, :3].argmax(1), shards=4, validation=0.2)

    def configure_model(self, config: Mapping[str, Any]) -> Any:
        from torch import nn

        return nn.Sequential(
            nn.Linear(12, config["width"]),
            nn.ReLU(),
            nn.Dropout(self.dropout),
            nn.Linear(config["width"], 3),
        )

    def configure_optimizers(self, model: Any, config: Mapping[str, Any]) -> Any:
        import torch

        return torch.optim.Adam(model.parameters(), lr=config.get("lr", 1e-2))

    def training_step(self, model: Any, batch: Any) -> Any:
        import torch

        if self.until is None or not Path(self.until).exists():
            time.sleep(self.slow)
        if self.narrow is not None:
            self._narrow(Path(self.narrow))
        if model[0].out_features == self.deadly:
            os._exit(1)
        x, y = (batch["x"], batch["y"]) if isinstance(batch, dict) else batch
        return torch.nn.functional.cross_entropy(model(x), y)

    def _narrow(self, said: Path) -> None:
        _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(
            resource.RLIMIT_FSIZE, (int(said.read_text()) if said.exists() else most, most)
        )

    def validation_step(self, model: Any, batch: Any) -> Any:
        x, y = (batch["x"], batch["y"]) if isinstance(batch, dict) else batch
        return {"accuracy": (model(x).argmax(1) == y).float()}


class Augmented(Steady):
    """Its chunks are made by feeders, where there are any."""

    def augment(self, samples: Any, rng: np.random.Generator) -> Any:
        x, y = samples
        return x + rng.normal(size=x.shape).astype("float32") / 8, y


class Driver:
    """A study's process. `recipe`, `options`: of the script; without them the study in the
    folder is resumed. `within`: a command that runs it somewhere else.
    """

    def __init__(
        self,
        folder: Path,
        recipe: Mapping[str, Any] | None = None,
        within: Sequence[str] = (),
        **options: Any,
    ) -> None:
        self.folder, self.mark = folder, uuid4().hex
        self.began = len(lines_of(folder))
        self.seen: set[tuple[int, bytes]] = set()
        self.temporary = Path(tempfile.mkdtemp(prefix="sf-", dir="/tmp"))
        given = json.dumps({"folder": str(folder), "recipe": recipe, "options": options})
        script = (
            ["-c", SCRIPT, given]
            if recipe is not None
            else ["-m", "shoal.cli", "resume", str(folder), "--json"]
        )
        env = {
            **os.environ,
            MARK: self.mark,
            "TMPDIR": str(self.temporary),
            "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path]),
        }
        pipe = subprocess.PIPE
        self.process = preloaded.Popen(
            [*within, sys.executable, *script], env=env, stdout=pipe, stderr=pipe, text=True
        )

    def __enter__(self) -> "Driver":
        return self

    def __exit__(self, *_: Any) -> None:
        """Whatever happened, nothing is left."""
        self.process.kill()
        self.process.communicate()
        for pid in self.pids():
            kill(pid)
        shutil.rmtree(self.temporary, ignore_errors=True)

    def visits(self) -> int:
        """Visits made by this run, as the journal tells."""
        return sum(
            len(v) for _, e in self.news() if isinstance(e, Advanced) for v in e.visits.values()
        )

    def deaths(self) -> int:
        """Slots that died in this run, as the journal tells."""
        return sum(isinstance(e, Left) and e.died for _, e in self.news())

    def news(self) -> list[Line]:
        """What this run has written."""
        return lines_of(self.folder)[self.began :]

    def until(self, met: Callable[[], Any], what: str) -> None:
        """Wait for something to be so, while the process lives."""
        deadline = time.monotonic() + PATIENCE
        while not met():
            assert self.process.poll() is None, f"ended before {what}: {self.process.communicate()}"
            assert time.monotonic() < deadline, f"waited in vain: {what}"
            time.sleep(0.05)  # a look reads the journal and all processes

    def end(self) -> tuple[int, str]:
        """Wait for its end: exit status, and what it said to stderr."""
        _, said = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, said

    def pids(self) -> list[int]:
        """All processes of this run but the driver that were seen so far and live: Ray's own,
        and the slots.
        """
        told, live = f"{MARK}={self.mark}".encode(), dict(processes())
        parents = {pid: int(stat[1]) for pid, stat in live.items()}
        for pid, stat in live.items():
            line = [pid]
            while line[-1] in parents:
                line.append(parents[line[-1]])
            mine = self.process.pid in line[1:] or told in content(Path(f"/proc/{pid}/environ"))
            if mine and pid != self.process.pid:
                self.seen.add((pid, stat[19]))  # and when it was started: numbers are used again
        return [
            pid
            for pid, since in self.seen
            if pid in live and live[pid][19] == since and live[pid][0] != b"Z"
        ]

    def slots(self) -> list[int]:
        """The processes of slots that are ready."""
        return [
            pid
            for pid in self.pids()
            if content(Path(f"/proc/{pid}/cmdline")).startswith(b"ray::SlotActor")
        ]

    def rays(self, name: str) -> list[int]:
        """Ray's own processes of this name: "raylet", "gcs_server"."""
        own = f"/{name}\0".encode()
        return [pid for pid in self.pids() if own in content(Path(f"/proc/{pid}/cmdline"))]

    def kill(self) -> None:
        """kill -9 of the driver, and see that the processes it started do not live on."""
        self.pids()
        self.process.kill()
        self.process.wait()
        self.vanish()

    def pause(self) -> None:
        """Have the driver wait, however slow this machine is now."""
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def vanish(self) -> None:
        """Wait until nothing of the run is left: no process, shared memory or temporary file."""
        deadline = time.monotonic() + 30
        while left := self.left():
            assert time.monotonic() < deadline, left
            time.sleep(0.05)

    def left(self) -> list[str]:
        """What is left of the run beside the driver's own process, and the user's token."""
        left = [content(Path(f"/proc/{pid}/cmdline"))[:90].decode() for pid in self.pids()]
        for folder, _, names in os.walk(self.temporary):  # others may remove it meanwhile
            left += [f"{folder}/{name}" for name in names if name != "token"]
        pids = {str(pid) for pid, _ in self.seen} | {str(self.process.pid)}
        for segment in Path("/dev/shm").glob("*"):
            if segment.name.startswith("sem.mp-"):
                continue  # Python's, of whatever process: the digits in it are no process's number
            if pids & set(re.findall(r"\d+", segment.name)):
                left.append(str(segment))
        return left


def kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def processes() -> Iterator[tuple[int, list[bytes]]]:
    """All there are: number, and the fields of its `stat` from the state on."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and (stat := content(folder / "stat")):
            yield int(folder.name), stat.rpartition(b")")[2].split()


def content(file: Path) -> bytes:
    """Of a file that may be gone, or another user's."""
    try:
        return file.read_bytes()
    except OSError:
        return b""


def lines_of(folder: Path) -> list[Line]:
    return Folder(folder).lines()


def endure(
    folder: Path,
    policy: Any,
    kills: Sequence[str],
    seed: int,
    recipe: Mapping[str, Any] = MappingProxyType({}),
    **options: Any,
) -> None:
    """Train a study to its end through these kills ("slot", "driver", "both"), each at a random
    moment.
    """
    rng, given = random.Random(seed), dict(recipe)
    options = {"policy": policy, "checkpoint_every": EVERY, **options}
    driver = Driver(folder, given, **options)
    try:
        for kind in kills:
            wanted = driver.visits() + rng.randrange(1, 9)
            driver.until(
                lambda d=driver, n=wanted: d.visits() >= n and (d.slots() or kind == "driver"),
                f"{wanted} visits",
            )
            driver.pause()  # slots go on with what they were given, and no further
            time.sleep(rng.uniform(0, 0.2))
            assert driver.process.poll() is None, "killed too late: the test did not test"
            if kind in ("slot", "both"):
                kill(rng.choice(driver.slots()))
            if kind in ("driver", "both"):
                driver.kill()
                again = (
                    given if rng.random() < 0.5 or "profile" in options else None
                )  # which resume cannot know
                driver = Driver(folder, again, **options)
            else:
                dead = driver.deaths()
                driver.go_on()
                driver.until(lambda d=driver, n=dead: d.deaths() > n, "the slot's end was noticed")
        assert driver.end()[0] == 0
        driver.vanish()
    finally:
        driver.__exit__()


# -- what must hold
# ----------------------------------------------------------------------------------------------


def check_whole(folder: Path, undisturbed: shoal.Study | None = None) -> shoal.Study:
    """No trial lost; weights those of the study's own record, and, where there is one, of the
    undisturbed study.
    """
    study = shoal.load_study(folder)
    study.recipe.slow = 0.0
    assert [t.status for t in study.trials] == ["finished"] * 4
    shards = [(epoch, f"s00{s}") for epoch in range(5) for s in range(4)]
    for visits in study.state.visits.values():
        assert sorted((v.epoch, v.shard) for v in visits) == shards
    assert [row["equal"] for row in study.replay()] == [True] * 4
    if undisturbed is not None:
        for trial in study.state.known:
            one, two = (s.load_model(trial).state_dict() for s in (study, undisturbed))
            assert all(np.array_equal(one[name].numpy(), two[name].numpy()) for name in one), trial
    check_repeated(study.lines())
    return study


def check_repeated(lines: Sequence[Line]) -> None:
    """Each fall voids at most the checkpoint interval and one unit of a trial's training;
    nothing else is trained twice.
    """
    since: dict[str, list[float]] = defaultdict(
        list
    )  # seconds of each trial's visits since it was last durable
    part: dict[str, float] = defaultdict(float)  # of the visit under way
    kept: dict[str, int] = defaultdict(int)
    voided = [0.0]
    longest = 0.0
    for _, entry in lines:
        if isinstance(entry, Advanced):
            for trial in entry.samples:
                spent = entry.spent.get(trial, {})
                part[trial] += spent.get("train", 0.0) + spent.get("data", 0.0)
                longest = max(longest, part[trial])
                if entry.visits.get(trial):
                    since[trial].append(part.pop(trial))
        elif isinstance(entry, Kept):
            del since[entry.trial][: entry.visits - kept[entry.trial]]
            kept[entry.trial] = entry.visits
        elif isinstance(entry, Fell):
            trial, left = entry.trial, entry.visits - kept[entry.trial]
            assert 0 <= left <= len(since[trial])
            voided.append(sum(since[trial][left:]) + part.pop(trial, 0.0))
            del since[trial][left:]
    assert not any(part.values()) and not any(since.values()), (
        "training that is neither durable nor shown as void"
    )
    assert max(voided) <= EVERY + longest


def runs(study: shoal.Study) -> int:
    return sum(isinstance(line.entry, Opened) for line in study.lines())
