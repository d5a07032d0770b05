"""Nothing that an attacker can put where Shoal reads runs code; what must stay a pickle is guarded.

Recipes are in tests/study/test_trust*.py.
"""

import io
import os
import pickle
import re
import signal
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fuzz_kit import lines, npy, tarred, zipped
from PIL import Image
from readers_of_studies import CHECKPOINT, checkpoint, journal

import shoal
from shoal.core.cluster import ShardId
from shoal.core.errors import StudyError
from shoal.core.state import State
from shoal.engine.journal import JournalError, read
from shoal.pool.folder import PoolError, PoolFolder
from shoal.profile.overrides import load as load_profile
from shoal.reporting.optuna_log import OptunaLog
from shoal.simulate.log_files import read_log
from shoal.simulate.spec import load_spec
from shoal.study.folder import Folder
from shoal.study.holder import is_held, process_of
from shoal.study.inbox import Inbox, note_entries
from shoal.study.speeds import profile_of
from shoal.tools.arguments import parse_config, parse_space
from shoal.train.data.columns import DataError
from shoal.train.data.data import Data
from shoal.train.data.formats import KINDS, read_whole
from shoal.train.data.images import picture
from shoal.train.function.checkpoint import unpacked
from shoal.train.lane.checkpoints import Checkpoints, Damaged
from shoal.train.wide import parcel


class Evil:
    """Makes a file when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = str(mark)

    def __reduce__(self) -> Any:
        return os.mkdir, (self.mark,)


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    """A folder that code of an attacker would make."""
    return tmp_path / "code ran"


@pytest.fixture
def evil(mark: Path) -> bytes:
    content = pickle.dumps(Evil(mark))
    pickle.loads(content)  # it would
    mark.rmdir()
    return content


def test_in_a_checkpoint(tmp_path: Path, mark: Path, evil: bytes) -> None:
    sound = checkpoint({"w": np.ones(3, np.float32)})
    with zipfile.ZipFile(io.BytesIO(sound)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    name = next(name for name in members if name.endswith("data.pkl"))
    whole = io.BytesIO()
    torch.save({"w": Evil(mark)}, whole)
    (tmp_path / "t").mkdir()
    for forged in (zipped({**members, name: evil}), whole.getvalue(), evil):
        (tmp_path / CHECKPOINT).write_bytes(forged)
        with pytest.raises(Damaged):
            Checkpoints(tmp_path, 1).load(CHECKPOINT)
        (tmp_path / "pack-1-000001.zip").write_bytes(zipped({"u/000001-1.pt": forged}))
        with pytest.raises(Damaged):
            Checkpoints(tmp_path, 1).load("u/000001-1.pt")
    assert not mark.exists()


@pytest.mark.parametrize("name", ["../out", "/{}", "a/../../out", "c/\0"])
def test_in_the_files_of_a_functions_checkpoint(tmp_path: Path, name: str) -> None:
    name = name.format(tmp_path / "out")
    folder = tmp_path / "own"
    folder.mkdir()
    content = {name: np.ones(3, np.uint8)}
    with pytest.raises(Damaged, match="within it"):
        unpacked({"kind": "folder", "name": "c", "files": content}, folder)
    with pytest.raises(Damaged, match="within it"):
        unpacked({"kind": "folder", "name": name, "files": {}}, folder)
    assert not (tmp_path / "out").exists()


def test_in_a_journal(tmp_path: Path, mark: Path) -> None:
    file = tmp_path / "journal.jsonl"
    code = f"__import__('os').mkdir({str(mark)!r})"
    call = {"py/reduce": [{"py/type": "os.mkdir"}, {"py/tuple": [str(mark)]}]}
    first, *rest = journal(sealed=False).splitlines(keepends=True)
    file.write_bytes(
        first + rest[0] + lines({"t": 0.0, "e": "Commanded", "d": {"what": code, "why": code}})
    )
    assert len(list(read(file))) >= 1
    file.write_bytes(first + lines({"t": 0.0, "e": "os.mkdir", "d": call}))
    with pytest.raises(JournalError):
        list(read(file))
    assert not mark.exists()


def test_in_notes_and_small_files(tmp_path: Path, mark: Path, evil: bytes) -> None:
    code = f"__import__('os').mkdir({str(mark)!r})"
    (tmp_path / "inbox").mkdir()
    (tmp_path / "studies").mkdir()
    (tmp_path / "pool.lock").touch()
    for content in (evil, lines({"do": code, "pid": code, "host": code})):
        (tmp_path / "inbox" / "000001.json").write_bytes(content)
        for name in ("slots.json", "holder.json", "pool.json", "studies/x.json"):
            (tmp_path / name).write_bytes(content)
        study, pool = Folder(tmp_path), PoolFolder(tmp_path)
        assert is_held(study) is None
        process_of(study, 0.0)
        with pytest.raises(PoolError, match="remove it"):
            pool.opened()
        with pytest.warns(UserWarning, match="remove it"):
            assert pool.signs() == []
        if content is evil:
            with pytest.warns(UserWarning, match="not a note"):
                note_entries(Inbox(tmp_path), State(), lambda state, note: [])
    assert not mark.exists()


def test_a_sign_in_a_pool_buries_no_other_file(tmp_path: Path) -> None:
    pool = PoolFolder(tmp_path / "pool")
    pool.make()
    victim = tmp_path / "victim.json"
    victim.write_text("{}")
    claim = {"study": "../../victim", "least": 1, "most": 1}
    gone = {"claim": claim, "folder": "x", "slots": 1, "count": 1, "pid": 2**30}
    forged = lines({**gone, "host": __import__("platform").node()})
    (tmp_path / "pool" / "studies" / "x.json").write_bytes(forged)
    with pytest.warns(UserWarning, match="remove it"):
        pool.bury()
    assert victim.exists()


def test_in_specs_profiles_and_logs(tmp_path: Path, mark: Path, evil: bytes) -> None:
    code = f"__import__('os').mkdir({str(mark)!r})"
    text = f'title = "x"\nseed = "{code}"\nrows = "{code}"\n'.encode()
    for content in (evil, text):
        file = tmp_path / "x.toml"
        file.write_bytes(content)
        for reader in (load_spec, load_profile):
            with pytest.raises(ValueError):
                reader(file)
        log = tmp_path / "log.csv"
        log.write_bytes(content if content is evil else b"node,start,end\n" + text)
        with pytest.raises(ValueError):
            read_log(log)
    assert not mark.exists()


def test_in_shards(tmp_path: Path, mark: Path, evil: bytes) -> None:
    of_objects = np.empty(1, object)
    of_objects[0] = Evil(mark)
    file = io.BytesIO()
    np.save(file, of_objects, allow_pickle=True)
    forged = {
        "a.npy": file.getvalue(),
        "a.npz": zipped({"x.npy": file.getvalue()}),
        "a.tar": tarred({"0.npy": file.getvalue()}),
        "b.tar": tarred({"0.pkl": evil}),
        "b.npz": zipped({"x.npy": npy("(1,)", "|O", evil)}),
        "c.npz": evil,
        "a.parquet": evil,
        "a.arrow": evil,
        "a.csv": evil,
    }
    for name, content in forged.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(DataError):
            read_whole(tmp_path / name, None, ShardId("s000"))
    assert not mark.exists()


def test_in_what_a_user_types(mark: Path) -> None:
    code = f"__import__('os').mkdir({str(mark)!r})"
    assert parse_config([f"lr={code}"]) == {"lr": code}
    for text in (f"lr={code}", f"lr=uniform({code}, 1)", f"lr=eval({code!r})"):
        with pytest.raises(ValueError):
            parse_space([text])
    for named in (shoal.policy.description.parse, shoal.search.registry.parse):
        with pytest.raises(ValueError):
            named(f"asha(grace_period={code})")
    assert not mark.exists()


def test_in_optunas_log(tmp_path: Path, mark: Path, evil: bytes) -> None:
    pytest.importorskip("optuna")
    file = tmp_path / "optuna.log"
    file.write_bytes(evil + b"\n")
    with pytest.raises(Exception, match=re.compile("")):
        OptunaLog(file, "x", {}, "loss", "min")
    assert not mark.exists()


def test_in_what_the_processes_of_a_wide_trial_send(mark: Path, evil: bytes) -> None:
    with pytest.raises(pickle.UnpicklingError, match="no state of a trial"):
        parcel.loads(evil)
    assert not mark.exists()
    half = np.float16(0.5)
    tree = {
        "w": np.arange(3),
        "n": [1, 2.5, None, "x", (True, b"y"), {1, 2}],
        "c": Counter("aab"),
        0: half,
    }
    back = parcel.loads(pickle.dumps(parcel.pack(tree, [])))
    assert back["n"] == tree["n"] and back["c"] == tree["c"] and back[0] == half
    assert (back["w"] == tree["w"]).all()


@pytest.mark.parametrize("trap", ["the folder", "the file", "a link"])
def test_in_the_folder_of_a_nodes_data(tmp_path: Path, mark: Path, evil: bytes, trap: str) -> None:
    node = pytest.importorskip("shoal.backend.node.data_copy")
    folder = tmp_path / "base" / "run"
    folder.mkdir(parents=True, mode=0o700)
    folder.parent.chmod(0o700)
    file = folder / "data.pkl"
    file.write_bytes(pickle.dumps((evil, [])))
    file.chmod(0o600)
    (folder / "arrays.bin").touch()
    if trap == "the folder":
        folder.chmod(0o777)
    elif trap == "the file":
        file.chmod(0o666)
    else:
        file.rename(tmp_path / "elsewhere")
        file.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PermissionError, match="only you can"):
        node.shared(folder, os.getpid(), lambda: None, "print")
    assert not mark.exists()


# -- which pickles there are -----------------------------------------------------------------------

# Where something is unpickled, and why it may be; docs/security.md says it at length.
OF_RAY = "comes from Ray's processes, which ask for a token"
GUARDED = {
    "shoal/backend/node/data_copy.py": "a folder and a file of this user's alone",
    "shoal/backend/node/validator.py": OF_RAY,
    "shoal/backend/node/slot_actor.py": OF_RAY,
    "shoal/backend/node/feeders.py": OF_RAY,
    "shoal/backend/node/process.py": "what this process has pickled",
    "shoal/backend/ray/node_tools.py": OF_RAY,
    "shoal/backend/ray/node_survey.py": OF_RAY,
    "shoal/train/data/columns.py": "items in this process's memory",
    "shoal/train/slot/probing.py": "what this process has pickled",
    "shoal/train/tools/timing.py": "comes through a pipe from the parent process",
    "shoal/train/stream/shared_memory.py": "shared memory of this user's own processes",
    "shoal/train/wide/parcel.py": "arrays and plain values only",
    "shoal/train/recipe/pickling.py": "a recipe that its user trusts",
    "shoal/train/recipe/text_modules.py": "a recipe that its user trusts",
}
UNPICKLES = re.compile(
    r"pickle\.loads?\(|pickle\.Unpickler|torch\.load\(|joblib\.load|shelve\.open|marshal\.load"
    r"|allow_pickle=True|dill\.|\beval\((?!\))|\bexec\(|yaml\.load"
)


def test_code_is_unpickled_where_it_is_known_to_be_safe() -> None:
    root = Path(shoal.__file__).parents[1]
    found = set()
    for file in sorted(root.glob("shoal/**/*.py")):
        text = file.read_text(encoding="utf-8")
        text = text.replace(".eval()", "").replace("weights_only=True", "")
        hits = [
            line
            for line in text.splitlines()
            if UNPICKLES.search(line) and 'map_location="cpu", )' not in line
        ]
        if hits:
            found.add(file.relative_to(root).as_posix())
    assert found <= set(GUARDED), "say in docs/security.md why that is safe"


def test_in_pictures(tmp_path: Path, mark: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pillow takes a file for what its content says, and has Ghostscript run PostScript."""
    program = tmp_path / "gs"
    program.write_text(f"#!/bin/sh\nmkdir {str(mark)!r}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    script = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n"
    with pytest.raises(DataError, match="cannot be read as a picture"):
        picture(script)
    assert not mark.exists()


@pytest.mark.skipif(os.name != "posix", reason="needs FIFOs")
@pytest.mark.parametrize("trap", ["FIFO", "device"])
def test_what_has_no_end_is_no_spec_profile_or_log(tmp_path: Path, trap: str) -> None:
    """Also where a stranger's spec names it."""
    file = tmp_path / "log.csv"
    if trap == "FIFO":
        os.mkfifo(file)
    else:
        file.symlink_to("/dev/zero")
    for read_it in (load_spec, profile_of, read_log):
        with pytest.raises((OSError, StudyError), match="must be a plain file"):
            read_it(file)


@pytest.mark.skipif(os.name != "posix", reason="needs FIFOs")
@pytest.mark.timeout(60)
@pytest.mark.parametrize("trap", ["FIFO", "device"])
@pytest.mark.parametrize(
    ("name", "read_it"),
    [
        *((f"a{ending}", lambda file: Data.shards({"s0": {"*": str(file)}})) for ending in KINDS),
        ("a.toml", Data.shards),
        ("a.gz", lambda file: Data.idx(file, file)),
        ("pictures/a/x.png", lambda file: Data.images(file.parents[1])),
        ("more/x.arrow", lambda file: Data.arrow(file.parent)),
        ("more/x.csv", lambda file: Data.csv(file.parent)),
        ("more/x.npz", lambda file: Data.folder(file.parent)),
        ("x.tar", Data.tar),
    ],
)
def test_what_has_no_end_is_no_data(tmp_path: Path, trap: str, name: str, read_it: Any) -> None:
    """A FIFO waits for ever, and a device fills the memory; both may lie in a data set's folder."""
    file = tmp_path / name
    file.parent.mkdir(parents=True, exist_ok=True)
    if name.startswith("pictures"):
        for kind in "ab":
            for number in range(4):
                there = file.parents[1] / kind / f"{number}.png"
                there.parent.mkdir(exist_ok=True)
                Image.new("RGB", (2, 2)).save(there)
    if trap == "FIFO":
        os.mkfifo(file)
    else:
        file.symlink_to("/dev/zero")

    def late(*_: object) -> None:
        raise AssertionError("it waits")

    former = signal.signal(signal.SIGALRM, late)
    signal.alarm(60)
    try:
        with pytest.raises((DataError, ValueError), match="^(?!.*it waits)"):
            read_it(file)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, former)
