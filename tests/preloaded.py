"""Processes of Python that begin with torch and Shoal loaded: for tests that kill processes.

`Popen` and `run` are those of `subprocess`, for command lines that begin with `sys.executable`. A
server, one for each process of tests, has loaded what takes seconds to load, and forks. What it
forks is the test's own child, as another process would be: it can be killed, waited for and stopped
in the same way, and it ends as another would (exit status, handlers at exit, tracebacks).

What is not the same: its modules are there before it begins, and its hashes are seeded as the
server's. A test of what is imported uses `subprocess`; so does `Popen` by itself where variables
are set that Python or OpenMP read as they begin.
"""

import array
import atexit
import ctypes
import gc
import importlib
import inspect
import os
import pickle
import pkgutil
import random
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from types import ModuleType
from typing import Any

PR_SET_CHILD_SUBREAPER = 36
# Read as Python, or a library that the server has loaded, begins; PYTHONPATH is seen to.
AT_BEGIN = ("PYTHON", "OMP_", "MKL_", "LD_", "KMP_", "TORCH")
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD, signal.SIGPIPE)
_server: list[socket.socket] = []
# Of this process as it began. What a test sets, and finds its processes by, is not for the server.
BEGAN = dict(os.environ)


class Popen(subprocess.Popen):  # type: ignore[type-arg]
    """A process as `subprocess.Popen` starts it, of the preloaded server."""

    def _execute_child(self, args: Any, *rest: Any) -> None:
        names = list(inspect.signature(subprocess.Popen._execute_child).parameters)[2:]  # type: ignore[attr-defined]
        given = dict(zip(names, rest, strict=True))
        words = [os.fsdecode(word) for word in args]
        env = os.environ.copy() if given["env"] is None else dict(given["env"])
        if words[0] != sys.executable or not _is_as_here(env):
            super()._execute_child(args, *rest)  # type: ignore[misc]
            return
        streams = [
            here if given[name] == -1 else given[name]
            for here, name in enumerate(("p2cread", "c2pwrite", "errwrite"))
        ]
        ask = (words[1:], env, os.fspath(given["cwd"] or os.getcwd()), given["start_new_session"])
        try:
            self.pid = _forked(pickle.dumps(ask), streams)
            self._child_created = True
        finally:
            ends = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
            self._close_pipe_fds(*(given[name] for name in ends))  # type: ignore[attr-defined]


def run(command: list[str], timeout: float | None = None, **how: Any) -> Any:
    """As `subprocess.run`."""
    if how.pop("capture_output", False):
        how |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    must, given = how.pop("check", False), how.pop("input", None)
    with Popen(command, **how) as process:
        try:
            out, errors = process.communicate(given, timeout)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(command, process.returncode, out, errors)
    if must:
        done.check_returncode()
    return done


def _is_as_here(env: dict[str, str]) -> bool:
    """Whether nothing differs that counts as Python begins."""
    if not sys.platform.startswith("linux"):
        return False
    return all(
        env.get(name) == os.environ.get(name)
        for name in {*env, *os.environ}
        if name.startswith(AT_BEGIN) and name != "PYTHONPATH"
    )


def _forked(ask: bytes, streams: list[int]) -> int:
    """The number of a new process that does this."""
    if not _server:
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        here.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        command = [sys.executable, __file__, str(there.fileno())]
        pipe = {"pass_fds": [there.fileno()], "stdin": subprocess.DEVNULL}
        server = subprocess.Popen(command, env=BEGAN, **pipe)  # type: ignore[call-overload]
        atexit.register(server.wait)
        atexit.register(here.close)  # before: its end
        there.close()
        _server.append(here)
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", streams))]
    prctl = ctypes.CDLL(None).prctl
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        _server[0].sendmsg([ask], rights)
        return int(_server[0].recv(64))
    finally:
        prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


# -- the server --------------------------------------------------------------------------------


def _load() -> None:
    """What takes long to load, and is loaded by nearly all: not Ray, which has threads."""
    import plotly.graph_objects
    import sklearn.datasets
    import torch

    import shoal

    assert plotly.graph_objects and sklearn.datasets and torch
    left_out = ("__main__", "backend", "callbacks", "harvest", "pool", "testing", "tools", "ui")
    for module in pkgutil.walk_packages(shoal.__path__, "shoal."):
        if module.name.split(".")[1] not in left_out:
            importlib.import_module(module.name)
    assert "ray" not in sys.modules
    assert threading.active_count() == 1


def _fork() -> int:
    """The number of a new process whose parent has ended; 0 in that process.

    Who ended's children go to the test, which says that it takes them (`_forked`).
    """
    read, write = os.pipe()
    between = os.fork()
    if between:
        os.close(write)
        os.waitpid(between, 0)
        with open(read) as said:
            return int(said.read())
    parent = os.getpid()
    pid = os.fork()
    if pid:
        os.write(write, str(pid).encode())
        os._exit(0)
    os.close(read)
    os.close(write)
    while os.getppid() == parent:
        time.sleep(0)
    return 0


def _serve(asked: socket.socket) -> tuple[Any, ...]:
    """Fork for each that asks; returns in each that is forked, with what it is to do."""
    size = array.array("i").itemsize
    while True:
        ask, rights, *_ = asked.recvmsg(1 << 20, socket.CMSG_SPACE(3 * size))
        if not ask:
            os._exit(0)
        streams = array.array("i", rights[0][2])
        pid = _fork()
        if pid == 0:
            for here, there in enumerate(streams):
                os.dup2(there, here)
            asked.close()
            return pickle.loads(ask)  # type: ignore[no-any-return]
        for each in streams:
            os.close(each)
        asked.send(str(pid).encode())


def _become(words: list[str], env: dict[str, str], folder: str, alone: bool) -> None:
    """Be a process that begins with this command line."""
    if alone:
        os.setsid()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(env)
    os.closerange(3, 256)
    for each in SIGNALS:
        signal.signal(each, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    tempfile.tempdir = None  # found anew, by these variables
    random.seed()
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed()
    sys.path[1:1] = [each for each in env.get("PYTHONPATH", "").split(os.pathsep) if each]
    sys.argv = words


def _run(words: list[str]) -> None:
    """What Python does with these words."""
    main = ModuleType("__main__")
    main.__dict__["__builtins__"] = __builtins__
    sys.modules["__main__"] = main
    if words[0] == "-m":
        sys.argv, sys.path[0] = words[1:], os.getcwd()
        sys.modules.pop(words[1], None)
        runpy._run_module_as_main(words[1])  # type: ignore[attr-defined]
    elif words[0] == "-c":
        sys.argv, sys.path[0] = ["-c", *words[2:]], ""
        exec(compile(words[1], "<string>", "exec"), main.__dict__)
    else:
        sys.path[0] = os.path.dirname(os.path.abspath(words[0]))
        main.__file__ = words[0]
        with open(words[0], "rb") as file:
            exec(compile(file.read(), words[0], "exec"), main.__dict__)


def load() -> None:
    """Load what forks are to begin with."""
    _load()
    gc.freeze()  # what is loaded is not written to by collections after a fork


def be(words: list[str], env: dict[str, str], folder: str, alone: bool = False) -> None:
    """Be, in a fork, a process of this command line, and end as it does."""
    _become(words, env, folder, alone)
    status = _status(words)
    # As Python ends, but that what was loaded is not taken apart: that takes a second.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(status)


def _main() -> None:
    sys.path[0] = os.getcwd()
    load()
    be(*_serve(socket.socket(fileno=int(sys.argv[1]))))


def _status(words: list[str]) -> int:
    """Run it; returns its exit status."""
    try:
        _run(words)
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return (end.code or 0) & 0xFF
        print(end.code, file=sys.stderr)  # noqa: T201 - as Python does
        return 1
    except BaseException as error:  # noqa: BLE001 - any of the test's
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        if isinstance(error, KeyboardInterrupt):
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
        return 1
    return 0


if __name__ == "__main__":
    _main()
