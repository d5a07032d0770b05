"""Ray on all nodes of an allocation: a head beside this process, and a pilot at each node."""

import re
import shutil
import signal
import socket
import subprocess
from contextlib import ExitStack, suppress
from ipaddress import ip_address
from pathlib import Path

from shoal.core.trial import Seconds
from shoal.engine.ownership import own_folder
from shoal.engine.plain_files import open_file
from shoal.engine.process import python_module
from shoal.harvest.allocation import Allocation, SlurmRefused, scontrol
from shoal.harvest.head import TOKEN, RayHead

# Where a head is whose nodes are all on this machine, as in tests.
HERE = "127.0.0.10"
ADDRESS = re.compile(r"\bNodeAddr=(\S+)")  # of `scontrol -o show node`
# Seconds that pilots may take to leave, once they are told to.
FAREWELL: Seconds = 20.0


class NodesRunner:
    """Ray on the nodes of an allocation, until it is closed.

    `folder`: one that all nodes see; it is removed at the end.

    Raises:
        HeadError: Ray is not installed here, or does not start.
        OSError: there is no srun.
    """

    def __init__(self, allocation: Allocation, folder: Path) -> None:
        own_folder(folder)  # no link: it is removed at the end
        self._folder = folder.resolve()
        self._output = self._folder / "srun.txt"
        self._open = ExitStack()
        self._open.callback(shutil.rmtree, self._folder, ignore_errors=True)
        try:
            head = RayHead(self._folder, _head_ip(allocation))
            self.address = self._open.enter_context(head).address
            pilot = [*python_module("shoal.harvest.pilot"), f"--folder={self._folder}"]
            with open_file(self._output, "w") as output:
                self._srun = subprocess.Popen(
                    [*_srun(allocation), *pilot],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,  # Ctrl-C is for the study, which ends in good order
                )
            self._open.callback(self._end)
        except BaseException:
            self.close()
            raise

    @property
    def token(self) -> str:
        """The file with the token that Ray asks for."""
        return str(self._folder / TOKEN)

    @property
    def over(self) -> bool:
        """Whether no pilot is left: srun ends after the last one."""
        return self._srun.poll() is not None

    def said(self) -> str:
        """The last of what srun and the pilots printed."""
        with suppress(OSError):
            return self._output.read_text(errors="replace").strip()[-1000:]
        return ""

    def close(self) -> None:
        """End the pilots, then the head."""
        self._open.close()

    def _end(self) -> None:
        """Have the pilots leave. srun passes SIGUSR1 on, and waits for their end.

        At SIGTERM it would end itself at once, and Slurm would kill pilots that still clear up.
        """
        for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGKILL):
            if self._srun.poll() is None:
                self._srun.send_signal(number)
            with suppress(subprocess.TimeoutExpired):
                self._srun.wait(FAREWELL)
                return


def _srun(allocation: Allocation) -> list[str]:
    """How to start a program once at each node, with all that the job has there."""
    return [
        "srun",
        f"--jobid={allocation.job}",
        f"--nodes={len(allocation.nodes)}",
        f"--ntasks={len(allocation.nodes)}",
        "--ntasks-per-node=1",
        "--overlap",  # also within a step of the same job, as in srun --pty bash
        "--cpu-bind=none",
        "--mem=0",  # all of it
        "--no-kill",  # nodes may fail, and the others go on
        "--kill-on-bad-exit=0",
        "--wait=0",
    ]


def _head_ip(allocation: Allocation) -> str | None:
    """The address of the head if all nodes are on this machine; None: that of this machine."""
    try:
        record = scontrol("-o", "show", "node", allocation.nodes[0])
        match = ADDRESS.search(record)
        if match is None:
            return None
        address = ip_address(socket.gethostbyname(match[1]))
    except (SlurmRefused, OSError, ValueError):
        return None
    return HERE if address.is_loopback else None
