"""What the end-to-end tests of harvesting share: a harvest in a process of its own, what its
study came to, and what it left behind.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from harvested_recipe import Slow
from slurm_kit import SlurmLab, wait_for

import shoal
from shoal.core.event import Joined, Left

RECIPE = Path(__file__).parent / "harvested_recipe.py"
EPOCHS = 60  # minutes of steps as long as they are before `finish`
LONG = 240.0  # seconds that a study may take on a busy machine


def ray_folders() -> set[Path]:
    """The temporary folders of Ray's heads and nodes, named after their owners' processes."""
    return set(Path("/tmp").glob("shoal-node-*"))


@dataclass
class Harvest:
    """`shoal harvest` of a study in this folder, which does not end before `hurry`."""

    lab: SlurmLab
    folder: Path
    process: "subprocess.Popen[bytes] | None" = None
    daemons: set[int] = field(default_factory=set)
    others: set[Path] = field(default_factory=ray_folders)

    def start(self, *options: str, target: Path = RECIPE) -> None:
        """Start it; the output goes to files beside the study."""
        self.daemons = self.daemons or set(self.lab.processes())
        self.step.write_text("0.3")
        words = [sys.executable, "-m", "shoal.cli", "harvest", str(target)]
        words += ["--slurm", "--partition", "scavenger", "--ip", "127.0.0.10"]
        words += ["--tick", "1", *options]
        if target == RECIPE:
            words += ["--storage", str(self.folder), "--checkpoint-every", "1"]
            words += ["--max-epochs", str(EPOCHS)]
        with self.output.open("ab") as output:
            self.process = subprocess.Popen(
                words,
                env={**os.environ, "SHOAL_TEST_STEP": str(self.step)},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    @property
    def step(self) -> Path:
        """Says how many seconds a step takes."""
        return self.folder.parent / f"{self.folder.name}.step"

    @property
    def output(self) -> Path:
        """What it printed."""
        return self.folder.parent / f"{self.folder.name}.out"

    def said(self) -> str:
        """What it printed so far."""
        return self.output.read_text(errors="replace")

    def wait(self, what: str, true: Callable[[], object]) -> None:
        """Return once it is true; it is an error if the harvest ends before."""

        def there() -> object:
            assert self.process is not None
            found = true()
            assert found or self.process.poll() is None, f"{what}: {self.said()}"
            return found

        wait_for(what, there, LONG, every=0.3)  # a look replays the journal

    def finish(self) -> None:
        """Have steps take no time, and see the study end well."""
        self.step.unlink()
        assert self.end() == 0, self.said()

    def end(self, number: int | None = None, patience: float = LONG) -> int:
        """Wait for its end, after this signal if any; its exit status."""
        assert self.process is not None
        if number is not None:
            self.process.send_signal(number)
        return self.process.wait(patience)

    # -- what is to be seen of it --------------------------------------------------------------

    def slots(self) -> list[str]:
        """The nodes of the slots that the study has now."""
        try:
            state = shoal.load_study(self.folder).state
        except shoal.StudyError:
            return []
        return sorted(slot.node for slot in state.slots.values())

    def joined(self) -> list[tuple[float, str]]:
        """When which node's slot joined, by the time of the study."""
        return self._events(Joined, lambda event: [slot.node for slot in event.slots])

    def left(self) -> list[tuple[float, str]]:
        """When which slot left, by the time of the study."""
        return self._events(Left, lambda event: sorted(event.slots))

    def _events(self, kind: type, names: Any) -> list[tuple[float, str]]:
        lines = shoal.load_study(self.folder).lines()
        return [
            (line.time, name)
            for line in lines
            if isinstance(line.entry, kind)
            for name in names(line.entry)
        ]

    def pilots(self) -> list[str]:
        """The nodes at which pilots run, as Slurm says."""
        words = ("squeue", "-h", "-p", "scavenger", "-t", "R", "-o", "%N")
        return sorted(self.lab.run(*words).split())

    # -- what it left --------------------------------------------------------------------------

    def left_behind(self, killed: bool = False) -> list[str]:
        """Processes beside Slurm's own, pilots' jobs, folders of Ray's whose owner is gone.

        `killed`: nobody was there to remove the head's folder; the next harvest does that.
        """
        found = [_command(pid) for pid in {*self.lab.processes()} - self.daemons]
        jobs = self.lab.run("squeue", "-h", "-p", "scavenger", "-o", "%j").split()
        folders = [
            str(folder)
            for folder in ray_folders() - self.others
            if not Path(f"/proc/{folder.name.split('-')[2]}").exists()
        ]
        return [name for name in found if name] + jobs + ([] if killed else folders)

    def check_nothing_left(self, shared: set[str], killed: bool = False) -> None:
        """No pilot, process, temporary folder or shared memory is left; `shared`: as of before."""
        what = f"the end of {self.left_behind(killed)}"
        wait_for(what, lambda: not self.left_behind(killed))
        wait_for("the end of shared memory", lambda: not orphans(shared))


def _command(pid: int) -> str:
    with suppress(OSError):
        line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
        return line.decode(errors="replace")[:200]
    return ""


def shared_memory() -> set[str]:
    """The names in shared memory."""
    return {file.name for file in Path("/dev/shm").glob("*")}


def orphans(before: set[str]) -> set[str]:
    """New names in shared memory that no process holds. Other programs may have theirs."""
    held = set()
    for folder in Path("/proc").iterdir():
        with suppress(OSError):
            held |= {
                line.split("/dev/shm/", 1)[1].split()[0]
                for line in (folder / "maps").read_text().splitlines()
                if "/dev/shm/" in line
            }
    return shared_memory() - before - held


@contextmanager
def harvest(lab: SlurmLab, folder: Path) -> Iterator[Harvest]:
    """A harvest that does not outlive the test."""
    made = Harvest(lab, folder)
    try:
        yield made
    finally:
        if made.process is not None and made.process.poll() is None:
            with suppress(subprocess.TimeoutExpired):
                made.end(signal.SIGTERM, 60)
            made.process.kill()
            made.process.wait()


Weights = Mapping[int, Mapping[str, torch.Tensor]]


def weights(folder: Path) -> Weights:
    """The last weights of each trial, by its width."""
    study = shoal.load_study(folder)
    assert {trial.status for trial in study.trials} == {"finished"}
    return {trial.config["width"]: study.load_model(trial).state_dict() for trial in study.trials}


def undisturbed(folder: Path) -> Weights:
    """The weights of the same study, trained in this process."""
    study = shoal.create_study(Slow(), storage=folder)
    study.optimize(policy="fifo", max_epochs=EPOCHS, progress=False)
    return weights(folder)


def largest_difference(one: Weights, other: Weights) -> float:
    """Of all weights of all trials."""
    assert one.keys() == other.keys()
    assert len(one) > 0
    return max(
        float((one[trial][name] - other[trial][name]).abs().max())
        for trial in one
        for name in one[trial]
    )
