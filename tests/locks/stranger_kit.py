"""Folders as a stranger may have made them, and somebody who types commands on them.

The commands run in a process of another user, where this one is root: the stranger's folder belongs
to one user, the home around it to another one, who types. That process imports all beforehand, so
that a command takes a fraction of a second; a FIFO may hold it up, and then it is killed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import select
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

LIMIT = 60.0  # seconds of a command
IS_ROOT = hasattr(os, "getuid") and os.getuid() == 0
VICTIM, STRANGER = (65534, 12345) if IS_ROOT else (os.getuid(), os.getuid())

OWN = """
import pathlib, numpy as np, torch, shoal

MARK = None

class Own(shoal.Recipe):
    search_space = {"lr": shoal.grid([0.1, 0.9])}
    metric, mode, max_epochs, batch_size = "loss", "min", 1, 8

    def data(self):
        x = np.arange(64, dtype="float32").reshape(32, 2) / 64
        return shoal.Data.arrays(x, x[:, 0] > 0.5, validation=0.25, seed=1)

    def configure_model(self, config):
        return torch.nn.Linear(2, 2)

    def configure_optimizers(self, model, config):
        return torch.optim.SGD(model.parameters(), lr=config["lr"], momentum=0.9)

    def training_step(self, model, batch):
        return torch.nn.functional.cross_entropy(model(batch[0]), batch[1].long())

    def validation_step(self, model, batch):
        if model.weight.shape[0] == 2 and self.fails(model):
            raise RuntimeError("this trial\\nfails")
        out = torch.nn.functional.cross_entropy(model(batch[0]), batch[1].long(), reduction="none")
        return {"loss": out}

    def fails(self, model):
        return False

if MARK:
    pathlib.Path(MARK).mkdir(exist_ok=True)
"""

RUN = (
    *("run", "OWN", "--storage", "DIR", "--max-epochs", "2", "--policy", "fifo"),
    *("--retry-failed", "--logger", "csv"),
)
COMMANDS: Mapping[str, Sequence[str]] = {
    "status": ("status", "DIR"),
    "status --json": ("status", "DIR", "--json"),
    "report": ("report", "DIR"),
    "report --out": ("report", "DIR", "--out", "HOME/out.html"),
    "resume": ("resume", "DIR"),
    "replay": ("replay", "DIR"),
    "repair": ("repair", "DIR"),
    "add": ("add", "DIR", "lr=0.2"),
    "add --from": ("add", "DIR", "--from", "t000"),
    "extend": ("extend", "DIR", "t000", "--max-epochs", "9"),
    "stop": ("stop", "DIR", "t000"),
    "stop all": ("stop", "DIR"),
    "slots": ("slots", "DIR", "add", "1"),
    "profile": ("profile", "DIR", "--out", "HOME/profile.toml"),
    "doctor": ("doctor", "DIR"),
    "run": RUN,
    "run --optuna-log": (*RUN, "--optuna-log"),
    "ui": ("ui", "DIR"),
    "harvest": ("harvest", "OWN", "--storage", "DIR", "--slurm", "--partition", "p"),
    "harvest DIR": ("harvest", "DIR", "--slurm", "--partition", "p"),
    "pool": ("pool", "DIR", "--slots", "1"),
}
TRAPS = (
    "link",
    "link to a folder",
    "dangling link",
    "hard link",
    "FIFO",
    "device",
    "folder",
    "huge",
)


class Answer(NamedTuple):
    """What came of a command; `code` None: it did not end in time."""

    code: int | None
    out: str
    err: str
    seconds: float


# -- the home around -------------------------------------------------------------------------------


def make_home(place: Path) -> Path:
    """A user's home: what no command on a stranger's folder may change."""
    home = place / "home"
    files = {
        ".bashrc": "export A=1\n",
        ".ssh/authorized_keys": "ssh-ed25519 AAAA me\n",
        "weights/a.pt": "mine",
        "weights/b.part": "mine",
        "weights/RUN": "0",
        "weights/t000/000009-1.pt": "mine",
        "weights/000001.json": "{}",
        "studies/x.json": "{}",
        "own.py": OWN,
    }
    for name, text in files.items():
        file = home / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return home


def give(place: Path, user: int, mode: int | None = None) -> None:
    """Let all below the place belong to that user. `mode`: of files; folders can be entered."""
    for where, folders, files in os.walk(place):
        for name in (".", *folders, *files):
            path = os.path.join(where, name)
            kind = os.lstat(path).st_mode
            if stat.S_ISREG(kind) and os.lstat(path).st_nlink > 1:
                continue  # it is also somebody else's
            if IS_ROOT:
                os.chown(path, user, user, follow_symlinks=False)
            if mode is not None and not stat.S_ISLNK(kind):
                os.chmod(path, mode | (0o111 if stat.S_ISDIR(kind) else 0))


def digest(place: Path, without: Path) -> str:
    """Of all below the place but what is below `without`: names, kinds, modes, times, contents."""
    found = hashlib.sha256()
    for where, folders, files in os.walk(place):
        if Path(where) == without:
            folders.clear()
            continue
        folders.sort()
        for name in sorted((*folders, *files)):
            path = Path(where, name)
            if path == without:
                continue
            seen = path.lstat()
            time_of = 0 if stat.S_ISDIR(seen.st_mode) else seen.st_mtime_ns
            about: list[Any] = [str(path), seen.st_mode, seen.st_uid, time_of]
            if stat.S_ISLNK(seen.st_mode):
                about.append(os.readlink(path))
            elif stat.S_ISREG(seen.st_mode):
                about.append(hashlib.sha256(path.read_bytes()).hexdigest())
            found.update(repr(about).encode())
    return found.hexdigest()


# -- what lies in the folder -----------------------------------------------------------------------


def lay(trap: str, place: Path, home: Path) -> None:
    """Put that in the place of a file or folder of the study, whatever was there."""
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place)
    else:
        place.unlink(missing_ok=True)
    place.parent.mkdir(parents=True, exist_ok=True)
    victim = home / ".bashrc"
    if trap == "link":
        place.symlink_to(victim)
    elif trap == "link to a folder":
        place.symlink_to(home / "weights")
    elif trap == "dangling link":
        place.symlink_to(home / "not there yet")
    elif trap == "hard link":
        os.link(victim, place)
    elif trap == "FIFO":
        os.mkfifo(place, 0o666)
    elif trap == "device" and IS_ROOT:
        os.mknod(place, 0o666 | stat.S_IFCHR, os.makedev(1, 5))  # as /dev/zero
    elif trap == "device":
        place.symlink_to("/dev/zero")
    elif trap == "folder":
        (place / "in it").mkdir(parents=True)
    else:
        with place.open("wb") as file:
            file.truncate(2**42)  # takes no room


# What the commands read or write beside what a study's folder holds in the end.
ALSO = (
    ".writable",
    "running",
    "slots.json",
    "resume.log",
    "optuna.log",
    "optuna.log.lock",
    "recipe.pkl",
    "inbox",
    "inbox/lock",
    "inbox/000001.json",
    "inbox/000002.json",
    "csv",
    "csv/scores.csv",
    "trials",
    "trials/t000",
    "trials/t000/error.txt",
    "journal.damaged-1.jsonl",
    "journal.snapshot",
    "journal.former.snapshot",
    "report.html",
    "harvest",
    "harvest/harvest.lock",
    "nodes",
    "pool.lock",
    "pool.json",
    "opening.json",
    "shares.json",
    "studies",
    "studies/a-1.json",
    "checkpoints/t002/000001-2.pt",
)


def names_of(folder: Path) -> list[str]:
    """The names that a study's folder has or may have, and their parts while they are written."""
    there = [path.relative_to(folder).as_posix() for path in folder.rglob("*")]
    names = sorted({*there, *ALSO})
    parts = ("report.html", "slots.json", "holder.json", "journal.snapshot")
    more = ("recipe/recipe.json", "csv/scores.csv")
    return [*names, *(f"{name}.part" for name in (*parts, *more))]


def forge(folder: Path, path: Sequence[str], value: Any) -> None:
    """The head of each run says that."""
    forge_entries(folder, "Opened", path, value)


def forge_entries(
    folder: Path, kind: str, path: Sequence[str], value: Any, most: int | None = None
) -> None:
    """Each entry of that kind says that; the lines carry no checksums, as of a former version.

    `most`: so many lines of the journal are left.
    """
    journal = folder / "journal.jsonl"
    lines = [json.loads(line) for line in journal.read_text().splitlines()[:most]]
    for line in lines:
        line.pop("n", None)
        line.pop("c", None)
        if line.get("e") == kind:
            holder = line["d"]
            for name in path[:-1]:
                holder = holder[name]
            holder[path[-1]] = value
    journal.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines))


def fields_of(folder: Path) -> list[tuple[str, ...]]:
    """The fields of the head of a run, and of its options, recipe and data."""
    for line in (folder / "journal.jsonl").read_text().splitlines():
        entry = json.loads(line)
        if entry.get("e") == "Opened":
            head = entry["d"]["head"]
            break
    fields: list[tuple[str, ...]] = [("run",), ("shards",)]
    for name, value in head.items():
        fields.append(("head", name))
        if isinstance(value, dict):
            fields += [("head", name, each) for each in value]
    return fields


def hostile(home: Path) -> dict[str, Any]:
    """Values of a field by what they are."""
    return {
        "a place": str(home / "weights"),
        "up": "../../home/weights",
        "a URL": f"file://{home}/weights",
        "a server": "http://127.0.0.1:9/x",
        "an address": "127.0.0.1:9",
        "a line": "a\nexport EVIL=1\n\x1b[2J",
        "code": "__import__('os').mkdir('code-ran')",
        "a list": [f"csv:{home}/weights", f"mlflow:sqlite:///{home}/m.db"],
        "nothing": None,
        "huge": 10**30,
        "deep": {"a": {"name": ["x"]}},
    }


# -- who types -------------------------------------------------------------------------------------


class Typist:
    """Types commands, as another user where this one is root."""

    def __init__(self, home: Path, warm: Path) -> None:
        self._words = [sys.executable, __file__, str(home), str(warm)]
        self._process: subprocess.Popen[bytes] | None = None
        self._home = home

    def _start(self) -> subprocess.Popen[bytes]:
        import preloaded

        env = {**os.environ, "HOME": str(self._home), "OMP_NUM_THREADS": "1"}
        env["XDG_STATE_HOME"] = str(self._home / ".state")
        env.pop("SLURM_JOB_ID", None)
        process = preloaded.Popen(
            self._words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=env,
            cwd="/",
            start_new_session=True,
        )
        assert self._read(process, 240.0) is not None, "it did not start"
        return process

    def _read(self, process: subprocess.Popen[bytes], limit: float) -> bytes | None:
        """The next line that the process says; None: it says none in time."""
        assert process.stdout is not None
        if not select.select([process.stdout], [], [], limit)[0]:
            return None
        return process.stdout.readline()

    def ready(self) -> None:
        """Start the process, unless it is there."""
        if self._process is None:
            self._process = self._start()

    def type(self, words: Sequence[str], folder: Path) -> Answer:
        """Type a command; DIR, HOME and OWN in it are the places of this case."""
        self.ready()
        assert self._process is not None
        places = {"DIR": str(folder), "OWN": str(self._home / "own.py")}
        typed = [places.get(word, word).replace("HOME", str(self._home)) for word in words]
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(typed).encode() + b"\n")
        self._process.stdin.flush()
        said = self._read(self._process, LIMIT + 20)
        if not said:
            self.close()
            return Answer(None, "", "it had to be killed", LIMIT)
        return Answer(*json.loads(said))

    def close(self) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None


class TooLong(BaseException):
    """The command did not end in time."""


def _late(*_: object) -> None:
    raise TooLong


def _all_asked(path: Path, *_: object) -> None:
    """The page of the folder answers whatever a browser asks for."""
    from starlette.testclient import TestClient

    from shoal.ui.app import application
    from shoal.ui.studies import Shelf

    client = TestClient(application(Shelf(path), lambda: True))
    asked = ["/", "/frame", "/list"]
    for study in Shelf(path).studies():
        named = {"study": study, "trial": "t000"}
        parts = ("heading", "decisions", "failures", "log", "new", "trial")
        asked += [f"/part/{part}" for part in parts]
        asked += ["/trials", "/drawing/curves", "/drawing/slots"]
        for place in asked:
            assert client.get(place, params=named).status_code < 500


def _without_others() -> None:
    """No server, no Slurm and no Ray are started: what comes before is what is tried.

    Nor is a holder on another machine watched for as long as it may be silent.
    """
    from shoal.engine import lock
    from shoal.harvest.scheduler import SchedulerError
    from shoal.harvest.slurm import Slurm
    from shoal.ui import serve

    def no_slurm(self: Slurm) -> None:
        raise SchedulerError("there is no Slurm here")

    lock.WATCHED = 0.3
    serve.serve = _all_asked
    Slurm.check = no_slurm  # type: ignore[method-assign]
    with contextlib.suppress(ModuleNotFoundError):
        from shoal.pool import pool

        def no_ray(*_: object) -> None:
            raise pool.PoolError("there is no Ray here")

        pool.cluster.join = no_ray  # type: ignore[assignment]


def _typed(words: Sequence[str]) -> Answer:
    """What comes of the command, in this process."""
    from typer.testing import CliRunner

    from shoal.cli import app

    before = warnings.showwarning
    began = time.monotonic()
    signal.signal(signal.SIGALRM, _late)
    signal.setitimer(signal.ITIMER_REAL, LIMIT)
    try:
        done = CliRunner().invoke(app, [*words])
    except TooLong:
        return Answer(None, "", "it took too long", time.monotonic() - began)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        warnings.showwarning = before
        warnings.resetwarnings()
    wrong = done.exception
    if wrong is not None and not isinstance(wrong, SystemExit):
        return Answer(70, done.stdout, f"{type(wrong).__name__}: {wrong!r}", 0.0)
    return Answer(done.exit_code, done.stdout, done.stderr, time.monotonic() - began)


def _serve(home: Path, warm: Path) -> Iterator[Answer]:
    """Answer to the commands that come on the standard input, as the user of that home."""
    "\n".encode("unicode_escape")
    _without_others()
    for words in COMMANDS.values():  # imports all that they need
        copy = Path(tempfile.mkdtemp()) / "warm"
        shutil.copytree(warm, copy)
        places = {"DIR": str(copy), "OWN": str(home / "own.py")}
        _typed([places.get(word, word).replace("HOME", str(copy)) for word in words])
        shutil.rmtree(copy.parent)
    shutil.rmtree(home / ".state", ignore_errors=True)
    (home / ".state").mkdir()
    if IS_ROOT:
        os.chown(home / ".state", VICTIM, VICTIM)
        os.setgroups([])
        os.setgid(VICTIM)
        os.setuid(VICTIM)
    os.chdir(home)
    from shoal.study.code.mark import make_key

    make_key()
    yield Answer(0, "", "", 0.0)
    for line in sys.stdin:
        yield _typed(json.loads(line))


if __name__ == "__main__":
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for answer in _serve(Path(sys.argv[1]), Path(sys.argv[2])):
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
