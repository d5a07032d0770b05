"""What the readers of placed data notice of its files, and what they say of tables."""

import os
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import shoal
from shoal.core.cluster import ShardId
from shoal.train.data import node_shards as source
from shoal.train.data.columns import DataError, ShardError
from shoal.train.data.node_shards import Survey, surveying
from shoal.train.data.survey import Asked, Content, Finding, Inspection, content_of, look
from shoal.train.data.url_cache import UrlCache


def written(folder: Path) -> dict[str, dict[str, str]]:
    """A shard "a" at the node "local"."""
    np.savez(folder / "a.npz", x=np.arange(12.0), y=np.arange(12))
    return {"a": {"local": str(folder / "a.npz")}}


def test_a_file_that_the_recipe_misses_is_named(tmp_path: Path) -> None:
    """The shard is there, and `read` looks for another file as well."""

    def read(path: Path) -> str:
        return (path / "labels.txt").read_text()

    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "rows.txt").write_text("1 2 3")
    part = ShardId("a")
    task = Inspection("n0", {part: str(tmp_path / "a")}, frozenset([part]))
    [found] = look(task, UrlCache(1.0), read)
    assert "labels.txt" in found.why


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_file_that_was_replaced_by_one_of_equal_size_and_time_is_noticed(
    tmp_path: Path, kind: str
) -> None:
    """Copying that keeps times, such as `cp -p`, brings other data under an old time."""
    places = written(tmp_path)
    file = tmp_path / "a.npz"
    if kind == "folder":  # its newest file stays the same
        image = pytest.importorskip("PIL.Image", reason="pillow reads pictures")
        for name in ("old", "new"):
            (tmp_path / "pictures" / name).mkdir(parents=True)
            picture = tmp_path / "pictures" / name / "0.png"
            image.new("RGB", (4, 4)).save(picture)
        os.utime(picture, ns=(10**18, 10**18))
        file = tmp_path / "pictures" / "old" / "0.png"
        places = {"a": {"local": str(tmp_path / "pictures")}}
    data = shoal.Data.shards(places)
    data.read(data.shards[0])
    before = file.stat()
    other = tmp_path / "other"
    other.write_bytes(file.read_bytes()[:-5] + b"wrong")
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    other.replace(file)
    with pytest.raises(ShardError, match="a at local: .*and held .*put it back"):
        data.read(data.shards[0])


def test_each_holder_goes_by_the_time_of_its_own_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where nodes hold a shard under the same path, none takes the checksum of its file again."""
    path = written(tmp_path)["a"]["local"]
    taken = []

    def counted(file: Path) -> Content:
        taken.append(file)
        return content_of(file)

    def found(asked: Asked) -> list[Finding]:
        task = Inspection("n0", {ShardId("a"): path}, frozenset({ShardId("a")}))
        here = look(task, asked.cache, None)
        return [*here, replace(here[0], node="n1", stamp=(1, 1, 1), form=None)]

    monkeypatch.setattr(source, "content_of", counted)
    with surveying(Survey(surveyor=found, names=("n0",))):
        data = shoal.Data.shards({"a": {"n0": path, "n1": path}})
    data.read(data.shards[0])
    assert not taken
    data.at(("n1",)).read(data.shards[0])
    assert taken == [Path(path)]


@pytest.mark.parametrize(
    ("table", "told"),
    [
        ("n,x\n1,Rome\n2,Oslo\n", "column x holds string, such as 'Rome', no numbers"),
        ("n,x\n1,1\n2,\n3,3\n", "column x lacks 1 of 3 values"),
        ("n;x\n1;1,234\n2;5,678\n", "x holds numbers with commas, such as '1,234'"),
        ("n,x\n1,1\n2,2\n3,?\n", "1 of 3 values of column x are no numbers"),
    ],
)
def test_a_table_that_is_not_of_numbers_is_told_what_shards_take(
    tmp_path: Path, table: str, told: str
) -> None:
    """`Data.shards` takes none of the arguments by which `Data.csv` makes numbers of text."""
    pytest.importorskip("pyarrow", reason="pyarrow reads CSV")
    (tmp_path / "a.csv").write_text(table)
    with pytest.raises(DataError) as raised:
        shoal.Data.shards({"a": {"local": str(tmp_path / "a.csv")}})
    text = str(raised.value)
    assert told in text
    assert "give the recipe a method read(self, path)" in text
    assert not re.search(r"\b(encode|fill|drop|dropna|na_values|decimal)=", text), text
