"""One copy of the data per node, and what goes to the slots of it: nothing."""

import os
import pickle
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray

from shoal.backend.node import data_copy as ray_data
from shoal.backend.node import process as ray_process
from shoal.engine.ownership import own_folder
from shoal.train.data.columns import DataError, parts
from shoal.train.data.data import Data


def made(seed: int = 0, rows: int = 1000) -> Data:
    rng = np.random.default_rng(seed)
    return Data.arrays(
        rng.normal(size=(rows, 50)), rng.integers(0, 3, rows), shards=3, validation=0.1
    )


def test_the_first_builds_the_others_map(tmp_path: Path) -> None:
    data, calls = made(), []

    def build() -> Data:
        calls.append(1)
        return made()

    folder = ray_data.place("token", "node", str(tmp_path))
    copies = [ray_data.shared(folder, os.getpid(), build, data.fingerprint) for _ in range(3)]
    assert len(calls) == 1
    for copy in copies:
        assert (copy.sizes, copy.validation, copy.chunk) == (
            data.sizes,
            data.validation,
            data.chunk,
        )
        for shard in (*data.shards, *data.validation):
            for one, other in zip(parts(copy.read(shard)), parts(data.read(shard)), strict=True):
                np.testing.assert_array_equal(one, other)
    mapped = copies[1]._source.training[0]  # type: ignore[attr-defined]
    assert not mapped.flags.writeable
    assert (folder / "arrays.bin").stat().st_size >= 1000 * 50 * 8
    assert (folder / "data.pkl").stat().st_size < 10_000


def test_what_the_driver_shelved_is_not_built_again(tmp_path: Path) -> None:
    data = made()
    folder = ray_data.place("token", "node", str(tmp_path))
    ray_data.prepare(folder, os.getpid())
    ray_data.shelve(data, folder)
    copy = ray_data.shared(
        folder, os.getpid(), lambda: pytest.fail("it is there already"), data.fingerprint
    )
    assert copy.fingerprint == data.fingerprint


def test_slots_that_come_at_once_meet_in_one_folder(tmp_path: Path) -> None:
    """Each process of a node prepares it, and nobody knows who is first."""
    for number in range(40):
        folder = ray_data.place(f"token{number}", "node", str(tmp_path))
        together = threading.Barrier(4)

        def come(folder: Path, together: threading.Barrier, owner: int) -> None:
            together.wait()
            ray_data.prepare(folder, owner)

        with ThreadPoolExecutor(4) as slots:
            for done in [slots.submit(come, folder, together, os.getpid()) for _ in range(4)]:
                done.result()
        assert (folder / "owner").read_text() == str(os.getpid())


def test_what_a_slot_writes_the_driver_leaves_alone(tmp_path: Path) -> None:
    """Others may map the slot's arrays already."""
    data = made()
    folder = ray_data.place("token", "node", str(tmp_path))
    others: list[Any] = []

    with ThreadPoolExecutor(1) as driver:

        def build() -> Data:
            others.append(driver.submit(ray_data.offer, data, folder, None))
            assert not wait(others, timeout=0.3).done
            return made()

        ray_data.shared(folder, os.getpid(), build, data.fingerprint)
        others[0].result()
    os.utime(folder / "arrays.bin", (1, 1))
    ray_data.offer(data, folder, None)
    assert (folder / "arrays.bin").stat().st_mtime == 1


def test_other_data_is_refused_each_time(tmp_path: Path) -> None:
    folder = ray_data.place("token", "node", str(tmp_path))
    for _ in range(2):
        with pytest.raises(
            DataError, match=r"data\(\) gave other data .* must give the same on every machine"
        ):
            ray_data.shared(folder, os.getpid(), lambda: made(seed=1), made().fingerprint)
    assert ray_data.shared(folder, os.getpid(), made, made().fingerprint).samples == 900


def test_its_classes_are_those_of_the_recipe_that_slots_get(tmp_path: Path) -> None:
    """The data and the recipe are pickled apart, each with the code of the user's file."""
    (tmp_path / "own_items.py").write_text(
        """
from typing import NamedTuple
import shoal
class Item(NamedTuple):
    x: float
def collate(items):
    return Item([item.x for item in items])
class Own(shoal.Recipe):
    def data(self):
        return shoal.Data.dataset([Item(1.0), Item(2.0)], None, collate=collate)
    def fits(self, batch):
        return isinstance(batch, Item)
"""
    )
    code = f"""
import os, pathlib, sys
sys.path.insert(0, {str(tmp_path)!r})
from own_items import Own
from shoal.backend.node import data_copy
from shoal.train.recipe.pickling import dumps
folder = pathlib.Path({str(tmp_path)!r}) / "shelf"
data_copy.prepare(folder, {os.getpid()})
recipe = Own()
data = recipe.data()
data_copy.shelve(data, folder, recipe)
print(data.fingerprint)
(folder / "recipe").write_bytes(dumps(recipe))
"""
    run = [sys.executable, "-c", code]
    done = subprocess.run(run, check=True, capture_output=True, text=True)
    folder = tmp_path / "shelf"
    recipe = pickle.loads((folder / "recipe").read_bytes())
    copy = ray_data.shared(
        folder, os.getpid(), lambda: pytest.fail("it is there"), done.stdout.strip()
    )
    items = copy.form.items(dict(enumerate(copy.read(copy.shards[0]))))
    assert recipe.fits(items[0]) and recipe.fits(copy.collate(items))
    assert "own_items" not in sys.modules, "the code came with the pickles"


def test_data_that_cannot_be_pickled_is_built_by_each(tmp_path: Path) -> None:
    def build() -> Data:
        data = made()
        data.handle = (i for i in ())  # type: ignore[attr-defined]
        return data

    folder = ray_data.place("token", "node", str(tmp_path))
    for _ in range(2):
        assert ray_data.shared(folder, os.getpid(), build, made().fingerprint).samples == 900


def test_copies_whose_owner_is_gone_are_cleared_away(tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    for token, owner in (("old", gone.pid), ("mine", os.getpid()), ("new", os.getpid())):
        ray_data.prepare(ray_data.place(token, "node", str(tmp_path)), owner)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine-node", "new-node"]


def test_a_slot_whose_object_store_is_gone_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broken pipe to the object store means that the node is gone: no trial fails for it, and
    the study does not pause.
    """

    def gone(_ref: object) -> None:
        raise BrokenPipeError("Broken pipe")

    def lost(_ref: object) -> None:
        raise ray.exceptions.ObjectLostError("0" * 56, None, "")

    def leave(code: int) -> None:
        raise SystemExit(code)

    monkeypatch.setattr(os, "_exit", leave)
    monkeypatch.setattr(ray, "get", gone)
    with pytest.raises(SystemExit):
        ray_process.fetched("a reference")
    monkeypatch.setattr(ray, "get", lost)
    with pytest.raises(ray.exceptions.RayError):
        ray_process.fetched("a reference")


# -- nobody else may write to the folder: its files are pickles
# ----------------------------------------


def test_the_folder_and_its_files_are_the_users_alone(tmp_path: Path) -> None:
    folder = ray_data.place("token", "node", str(tmp_path / "root"))
    data = made()
    ray_data.shared(folder, os.getpid(), made, data.fingerprint)
    assert (tmp_path / "root").stat().st_mode & 0o777 == 0o700
    assert folder.stat().st_mode & 0o777 == 0o700
    modes = {file.name: file.stat().st_mode & 0o777 for file in folder.iterdir()}
    assert {"arrays.bin", "data.pkl", "owner"} <= modes.keys()
    assert set(modes.values()) == {0o600}, modes


@pytest.mark.parametrize("trap", ["open to others", "a link", "another user's"])
def test_a_folder_that_somebody_else_made_is_refused(
    tmp_path: Path, trap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = tmp_path / "base"
    if trap == "a link":
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        base.symlink_to(tmp_path / "elsewhere")
    else:
        base.mkdir(mode=0o700)
    if trap == "open to others":
        base.chmod(0o777)
    if trap == "another user's":
        monkeypatch.setattr(os, "getuid", lambda: base.stat().st_uid + 1)
    folder = ray_data.place("token", "node", str(base))
    with pytest.raises(PermissionError, match="only you can use.*TMPDIR"):
        ray_data.shared(folder, os.getpid(), made, made().fingerprint)
    assert not folder.exists()


def test_a_folder_of_ones_own_becomes_private(tmp_path: Path) -> None:
    (tmp_path / "base").mkdir(mode=0o755)
    own_folder(tmp_path / "base")
    assert (tmp_path / "base").stat().st_mode & 0o777 == 0o700
