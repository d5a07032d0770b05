"""Recipes that an earlier Shoal pickled. Whole studies of it: tests/test_stored.py."""

import pickle
import subprocess
import sys
import zipfile
from importlib import import_module
from pathlib import Path

import pytest

import shoal
from shoal.train.recipe import moved, pickling, plain_form


@pytest.mark.parametrize("place", moved.MOVED.values(), ids=".".join)
def test_a_class_is_where_the_table_says(place: tuple[str, str]) -> None:
    module, name = place
    assert getattr(import_module(module), name).__module__ == module


@pytest.mark.parametrize("module", dict.fromkeys(moved.MODULES.values()))
def test_so_is_what_was_in_a_module(module: str) -> None:
    assert import_module(module).__name__ == module


def test_an_old_name_gives_the_class_of_today() -> None:
    named = pickle.GLOBAL + b"shoal.train.recipe\nLRSchedule\n" + pickle.STOP
    assert pickling.loads(named) is shoal.LRSchedule


def test_so_does_a_form() -> None:
    named = {"=": "name", "of": "shoal.train.recipe", "name": "LRSchedule"}
    assert plain_form.restored(named) is shoal.LRSchedule
    method = {"=": "name", "of": "shoal.train.data", "name": "Data.csv"}
    assert plain_form.restored(method) == shoal.Data.csv


def test_what_is_not_there_any_more_is_named() -> None:
    named = pickle.GLOBAL + b"shoal.train.recipe\nNever\n" + pickle.STOP
    with pytest.raises(AttributeError, match="Never"):
        pickling.loads(named)


# A user's modules: files by name. Each has `train`, which another process is to call.
MODULES = {
    # Words that are submodules of torch's, or of a package of the user's, beside that.
    "words.py": """
import torch, things
class Set: classes, ops = [1], 2
aten, add = torch.ops.aten, torch.ops.aten.add.Tensor
def train(config):
    found = len(Set.classes) + Set.ops + things.classes.value() + torch.ones(1).item()
    return {"loss": found + add(aten.ones([1]), 1).item()}
""",
    "things/__init__.py": """
from things import classes
def train(config):
    import things
    return {"loss": things.classes.value()}
""",
    "things/classes.py": """
import threading
LOCK = threading.Lock()
def value(): return 1.0
""",
    # What cannot be pickled, beside what is used.
    "locked.py": """
import threading
LOCK = threading.Lock()
def train(config):
    with LOCK:
        return {"loss": 1.0}
""",
    "zipped.py": """
import beside_zipped
def train(config):
    return {"loss": beside_zipped.value()}
""",
    "beside_zipped.py": "def value(): return 3.0",
}
IN_ZIP = ("zipped.py", "beside_zipped.py")
# A script's code goes into the pickle, and a lock is of one process.
SCRIPT = """
import threading
from shoal.train.recipe import pickling
LOCK, AGAIN, HELD = threading.Lock(), threading.RLock(), threading.local()
WORDS = open(__file__, "a")
def train(config):
    with LOCK, AGAIN:
        return {"loss": 1.0, "held": HELD}
def writes(config):
    WORDS.write("word")
if __name__ == "__main__":
    with LOCK:
        print(pickling.loads(pickling.dumps(train))({})["loss"])
    class Calls:
        call = writes
    print(pickling.culprit(Calls()))
"""
CALL = """
import sys
from pathlib import Path
from shoal.train.recipe import pickling
for file in sorted(Path(sys.argv[1]).glob("*.pkl")):
    print(file.stem, pickling.loads(file.read_bytes())({})["loss"])
"""


def test_a_scripts_locks_are_new_ones_and_an_open_file_is_named(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, str(script)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    loss, culprit = done.stdout.splitlines()
    assert loss == "1.0"
    assert culprit == "WORDS (TextIOWrapper), which writes uses,"


def test_what_a_function_names_is_called_in_another_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in MODULES.items():
        if name not in IN_ZIP:
            (tmp_path / "own" / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "own" / name).write_text(text)
    with zipfile.ZipFile(tmp_path / "code.zip", "w") as packed:
        for name in IN_ZIP:
            packed.writestr(name, MODULES[name])
    monkeypatch.setattr(sys, "path", [str(tmp_path / "own"), str(tmp_path / "code.zip"), *sys.path])
    called = ("locked", "things", "words", "zipped")
    try:
        for name in called:
            blob = pickling.dumps(import_module(name).train)
            (tmp_path / f"{name}.pkl").write_bytes(blob)
    finally:
        for name in MODULES:
            sys.modules.pop(name.removesuffix(".py").split("/")[0], None)
    done = subprocess.run(
        [sys.executable, "-c", CALL, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    found = dict(line.split() for line in done.stdout.splitlines())
    wanted = {"locked": "1.0", "things": "1.0", "words": "7.0", "zipped": "3.0"}
    assert found == wanted, done.stderr
