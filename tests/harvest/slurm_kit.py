"""A real Slurm for tests, on this machine alone: munged, slurmctld and a slurmd for each virtual
node, on loopback, in a folder of their own. No systemd, no cgroups, nothing in /etc; as root or
as any other user.
"""

import os
import pwd
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

PROGRAMS = ("munged", "slurmctld", "slurmd", "sinfo", "squeue", "sbatch", "scancel")
PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
PATIENCE = 90.0  # seconds that anything may take on a busy machine
QUICK = "batch_sched_delay=0,bf_interval=1"  # Slurm's own values: 3 and 30 seconds

CONFIG = """\
ClusterName=lab
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/run/munge.sock,cred_expire={requeue_after}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/run/slurmctld.pid
SlurmdPidFile={folder}/run/slurmd.%n.pid
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
MpiDefault=none
MailProg=/bin/true
ReturnToService=2
SlurmdParameters=config_overrides
KillWait={kill_wait}
MinJobAge=300
CompleteWait=0
InactiveLimit=0
SelectType=select/cons_tres
SchedulerType=sched/backfill
PriorityType=priority/basic
PreemptType={preempt_type}
PreemptMode={preempt_mode}
NodeName=n[1-{nodes}] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{first}-{last}] \
CPUs={cpus} RealMemory={memory} State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES PriorityTier={tier} {main} \
OverSubscribe=EXCLUSIVE MaxTime=INFINITE DefaultTime=10 State=UP
PartitionName=scavenger Nodes=ALL Default=NO PriorityTier=1 {scavenger} \
OverSubscribe=EXCLUSIVE MaxTime=INFINITE DefaultTime=10 State=UP
"""


class SlurmError(RuntimeError):
    """The cluster did not start; the message ends with what its logs say."""


def missing() -> list[str]:
    """The programs of Slurm and munge that this machine lacks."""
    return [name for name in PROGRAMS if shutil.which(name, path=PATH) is None]


def wait_for(
    what: str, true: Callable[[], object], patience: float = PATIENCE, every: float = 0.05
) -> None:
    """Return once it is true.

    Raises:
        AssertionError: it did not become true in time.
    """
    end = time.monotonic() + patience
    while not true():
        assert time.monotonic() < end, f"{what}: not within {patience:.0f} s"
        time.sleep(every)


@dataclass(frozen=True)
class SlurmSetup:
    """How the cluster is to be. `grace`: GraceTime of the partition `scavenger`, in seconds.
    `preempt`: what happens to jobs of `scavenger` for one of `main`: CANCEL or REQUEUE, or OFF,
    for a site without preemption. `kill_wait`: seconds from SIGTERM to SIGKILL. `scheduling`:
    SchedulerParameters, `None` for Slurm's own. `controller`: SlurmctldParameters, if any.
    `requeue_after`: seconds that a requeued job waits at least.
    """

    nodes: int = 4
    grace: int = 0
    preempt: str = "CANCEL"
    kill_wait: int = 30
    scheduling: str | None = QUICK
    controller: str | None = None
    cpus: int = 1
    memory: int = 1000  # MB
    requeue_after: int = 120


class SlurmLab:
    """The cluster, while this context is open: nodes n1, n2, …, partitions `main` (the default)
    and `scavenger`, both over all nodes. SLURM_CONF and PATH are set in this process's
    environment meanwhile.
    """

    def __init__(self, setup: SlurmSetup = SlurmSetup()) -> None:
        self.setup = setup
        self.nodes = [f"n{number + 1}" for number in range(setup.nodes)]
        self.folder = Path()
        self._before: dict[str, str | None] = {}

    # -- start and end -------------------------------------------------------------------------

    def __enter__(self) -> "SlurmLab":
        self._before = {name: os.environ.get(name) for name in ("SLURM_CONF", "PATH")}
        for attempt in range(3):  # another process may take a port meanwhile
            try:
                self._start()
                break
            except SlurmError:
                self.stop()
                if attempt == 2:
                    raise
            except BaseException:
                self.stop()
                raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _start(self) -> None:
        # Short, because the path of a socket has 107 characters at most.
        self.folder = Path(tempfile.mkdtemp(prefix="slurm-", dir="/tmp"))
        self.folder.chmod(0o755)
        for name in ("state", "log", "run", *(f"spool/{node}" for node in self.nodes)):
            (self.folder / name).mkdir(parents=True)
        conf = self.folder / "slurm.conf"
        conf.write_text(self._config())
        os.environ |= {"SLURM_CONF": str(conf), "PATH": PATH}
        self._start_munge()
        self._daemon("slurmctld", "-c", "-f", str(conf))
        for node in self.nodes:
            self._daemon("slurmd", "-c", "-f", str(conf), "-N", node)
        try:
            wait_for("all nodes idle", lambda: len(self.idle()) == len(self.nodes), 30)
        except AssertionError as error:
            raise SlurmError(f"{error}\n{self.logs()}") from error

    def _start_munge(self) -> None:
        key, run = self.folder / "munge.key", self.folder / "run"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        self._daemon(
            "munged",
            "--force",
            f"--key-file={key}",
            f"--socket={run}/munge.sock",
            f"--pid-file={run}/munged.pid",
            f"--log-file={self.folder}/log/munged.log",
            f"--seed-file={run}/munged.seed",
        )

    def _config(self) -> str:
        setup, host = self.setup, socket.gethostname().split(".")[0]
        port = free_ports(setup.nodes + 1)
        preempts = setup.preempt != "OFF"
        scavenger = f"PreemptMode={setup.preempt} GraceTime={setup.grace}"
        text = CONFIG.format(
            **vars(setup),
            host=host,
            port=port,
            first=port + 1,
            last=port + setup.nodes,
            user=pwd.getpwuid(os.getuid()).pw_name,
            folder=self.folder,
            preempt_type="preempt/partition_prio" if preempts else "preempt/none",
            preempt_mode=setup.preempt,
            tier=100 if preempts else 1,
            main="PreemptMode=OFF" if preempts else "",
            scavenger=scavenger if preempts else "",
        ).replace(f"[{port + 1}-{port + 1}]", str(port + 1))
        if on_loopback(host):
            # Slurm's daemons then listen where the host's name leads, and nowhere else.
            text += "CommunicationParameters=NoInAddrAny,NoCtldInAddrAny\n"
        if setup.scheduling:
            text += f"SchedulerParameters={setup.scheduling}\n"
        if setup.controller:
            text += f"SlurmctldParameters={setup.controller}\n"
        return text

    def _daemon(self, *command: str) -> None:
        errors = self.folder / "log" / f"{command[0]}.err"
        with errors.open("a") as file:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, check=False
            )
        if done.returncode:
            raise SlurmError(f"{' '.join(command)}: exit {done.returncode}\n{self.logs()}")

    def stop(self) -> None:
        """Cancel all jobs, end every process of this cluster, remove its folder."""
        if self.folder == Path():
            return
        try:
            with suppress(Exception):
                self.clear()
            self._end_processes()
        finally:
            for name, value in self._before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder = Path()

    def _end_processes(self) -> None:
        for number in (signal.SIGTERM, signal.SIGKILL):
            for pid in self.processes():
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
            with suppress(AssertionError):
                wait_for("the end of Slurm", lambda: not self.processes(), 10)

    # -- use -----------------------------------------------------------------------------------

    def run(self, *command: str, check: bool = True) -> str:
        """Run one of Slurm's commands, and return what it printed.

        Raises:
            AssertionError: it failed, and `check` is true.
        """
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if check:
            assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
        return done.stdout.strip()

    def submit(self, *options: str, command: Sequence[str] | str) -> str:
        """Submit a batch job, and return its id. `command`: a script, or a program to run with
        srun, as one step.
        """
        script = command
        if not isinstance(command, str):
            script = f"exec srun {' '.join(command)}"
        done = subprocess.run(
            ["sbatch", "--parsable", f"--output={self.folder}/log/job-%j.out", *options],
            input=f"#!/bin/bash\n{script}\n",
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip().split(";")[0]

    def states(self) -> Mapping[str, str]:
        """The state of each job that Slurm remembers, those that ended included."""
        lines = self.run("squeue", "-h", "-t", "all", "-o", "%A %T").splitlines()
        return dict(line.split(maxsplit=1) for line in lines)

    def state(self, job: str) -> str:
        """One job's state, as RUNNING."""
        return self.states()[job]

    def times(self, job: str) -> Mapping[str, str]:
        """What Slurm knows of a job, as SubmitTime or StartTime."""
        words = self.run("scontrol", "-o", "show", "job", job).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def idle(self) -> list[str]:
        """The nodes that Slurm calls idle."""
        command = ("sinfo", "-h", "-N", "-p", "main", "-t", "idle", "-o", "%N")
        return self.run(*command, check=False).split()

    def output(self, job: str) -> str:
        """What a job of `submit` has printed so far."""
        file = self.folder / "log" / f"job-{job}.out"
        return file.read_text() if file.exists() else ""

    def clear(self) -> None:
        """Cancel all jobs, and wait for the end of each."""
        jobs = self.run("squeue", "-h", "-o", "%A", check=False).split()
        if jobs:
            self.run("scancel", "--signal=KILL", "--full", *jobs, check=False)
            self.run("scancel", *jobs, check=False)
        wait_for("the end of all jobs", lambda: not self.run("squeue", "-h"), 30)

    def processes(self) -> list[int]:
        """The processes that were started with this cluster's SLURM_CONF: its daemons, its jobs
        and all that they started, wherever they went. This process is not among them.
        """
        return marked(f"SLURM_CONF={self.folder}/slurm.conf")

    def logs(self) -> str:
        """The last lines of the daemons' logs."""
        files = sorted((self.folder / "log").glob("*"))
        found = [(file.name, file.read_text(errors="replace")[-600:]) for file in files]
        return "\n".join(f"{name}: {text}" for name, text in found if text)


def marked(variable: str) -> list[int]:
    """The other processes that began with this variable, NAME=VALUE, and are no zombies."""
    wanted = variable.encode()
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal() or int(folder.name) == os.getpid():
            continue
        with suppress(OSError):
            # The environment of a zombie is empty.
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
    return found


def on_loopback(host: str) -> bool:
    """Whether the host's name leads to a loopback address."""
    with suppress(OSError):
        return socket.gethostbyname(host).startswith("127.")
    return False


def free_ports(number: int) -> int:
    """The first of so many ports in a row that nobody listens on, below those that the system
    hands out.
    """
    draw = random.Random()
    while True:
        first = draw.randrange(20000, 30000 - number)
        with suppress(OSError):
            for port in range(first, first + number):
                with socket.socket() as tried:
                    tried.bind(("127.0.0.1", port))
            return first
