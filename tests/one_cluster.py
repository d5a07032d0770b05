"""The Ray of this process of tests: one cluster for all that need none of their own, and workers
that begin with torch and Shoal loaded.

Raylets start this file instead of Ray's `setup_worker.py`. It asks a server, one for each process
of tests (see `preloaded`), to fork what goes on as the worker. So a slot costs half a second of a
processor instead of three.

What is not the same: a worker is the server's child, not the raylet's, and /proc tells the server's
environment of it. Tests of what is left of a cluster start it in a process of its own, with Ray's
own workers. Nor are there the dashboard and what follows logs and wishes for more nodes: nobody
looks at them here.
"""

import array
import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

# Environment variable: the server's socket.
SERVER = "SHOAL_PRELOADED_WORKERS"
# Environment variable of the shared cluster: a file that is there if a slot is to be killed. It
# names the checkpoints.
KILL = "SHOAL_FORMS_KILL"
RUNTIME_ENV = "--serialized-runtime-env-context="
LANGUAGE = "--language="
_joined: list[bool] = []  # the shared cluster, while this process is in it


def join() -> None:
    """Be in the shared cluster, as the tests before that were in it."""
    import ray

    from shoal.backend.ray import cluster

    preload()
    if not ray.is_initialized():
        _joined.clear()  # a test ended it
    if not _joined and ray.is_initialized():
        ray.shutdown()  # what a test that failed left
    if not _joined:
        os.environ.setdefault(KILL, str(Path(tempfile.mkdtemp(prefix="shoal-kill-")) / "kill"))
        _joined.append(cluster.join(None, 4, 1, 0.5, cpus=4)[0])


def leave() -> None:
    """Be in no cluster."""
    from shoal.backend.ray import cluster

    while _joined:
        cluster.leave(_joined.pop(), joined=True)


def preload() -> None:
    """Have the clusters that this process starts from now on take their workers from a server."""
    from ray._private import services
    from ray._private.parameter import RayParams

    update = RayParams.update_if_absent
    if not sys.platform.startswith("linux") or update.__module__ == __name__:
        return

    def update_with_ours(self: Any, **given: Any) -> None:
        if "setup_worker_path" in given:
            _start_server()
            self.no_monitor, self.include_log_monitor = True, False
            given["setup_worker_path"] = __file__
        update(self, **given)

    RayParams.update_if_absent = update_with_ours
    services.start_api_server = lambda *_, **__: (None, None)


def _start_server() -> None:
    if SERVER in os.environ:
        return
    folder = tempfile.TemporaryDirectory(prefix="workers-", dir="/tmp")
    os.environ[SERVER] = str(Path(folder.name) / "socket")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(os.environ[SERVER])
    listener.listen(64)
    command = [sys.executable, __file__, "--serve", str(listener.fileno())]
    server = subprocess.Popen(command, pass_fds=[listener.fileno()], stdin=subprocess.PIPE)
    listener.close()
    assert server.stdin is not None
    atexit.register(folder.cleanup)
    atexit.register(server.wait)
    atexit.register(server.stdin.close)  # before: its end


# -- what a raylet starts ------------------------------------------------------------------------


def _ask() -> bool:
    """Whether the server forks a worker with this process's command line and streams."""
    words = [word for word in sys.argv[1:] if not word.startswith((RUNTIME_ENV, LANGUAGE))]
    if len(words) < len(sys.argv) - 1 and not _is_plain(sys.argv):
        return False
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
            server.connect(os.environ[SERVER])
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0, 1, 2]))]
            server.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
            server.sendmsg([json.dumps([words, dict(os.environ), os.getcwd()]).encode()], rights)
            return bool(server.recv(64))
    except (OSError, KeyError):
        return False


def _is_plain(words: list[str]) -> bool:
    """Whether nothing is asked of the worker's environment, and it is one of Python."""
    for word in words:
        if word.startswith(LANGUAGE) and word != f"{LANGUAGE}PYTHON":
            return False
        if word.startswith(RUNTIME_ENV):
            context = json.loads(word.removeprefix(RUNTIME_ENV) or "{}")
            if any(value for name, value in context.items() if name != "py_executable"):
                return False
    return True


# -- the server ----------------------------------------------------------------------------------


def _serve(listener: socket.socket) -> tuple[list[str], dict[str, str], str]:
    """Fork for each that asks; returns in each that is forked, with what it is to be."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for what ends
    size = array.array("i").itemsize
    while True:
        ready, _, _ = select.select([listener, 0], [], [])
        if 0 in ready:
            os._exit(0)  # the tests are over
        asked, _ = listener.accept()
        ask, rights, *_ = asked.recvmsg(1 << 20, socket.CMSG_SPACE(3 * size))
        if not rights:  # who asked has ended
            asked.close()
            continue
        streams = array.array("i", rights[0][2])
        if os.fork() == 0:
            for here, there in enumerate(streams):
                os.dup2(there, here)
            return tuple(json.loads(ask))  # type: ignore[return-value]
        for each in streams:
            os.close(each)
        with suppress(OSError):  # who asked has ended
            asked.send(b"forked")
        asked.close()


def _main() -> None:
    if sys.argv[1] != "--serve":
        if not _ask():
            from ray._private.workers import setup_worker

            os.execv(sys.executable, [sys.executable, setup_worker.__file__, *sys.argv[1:]])
        return
    import preloaded

    sys.path[0] = os.getcwd()
    listener = socket.socket(fileno=int(sys.argv[2]))
    preloaded.load()
    preloaded.be(*_serve(listener))


if __name__ == "__main__":
    _main()
