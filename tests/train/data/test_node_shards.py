"""Data whose shards lie at nodes: the catalogue, what holders find, and reading where it lies."""

import os
import re
import threading
import time
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import shoal
from shoal.core.cluster import ShardId
from shoal.core.errors import StudyError
from shoal.study.auto import check_place_of_data, policy_of
from shoal.study.folder import StudyPaused
from shoal.train.data import node_shards as source
from shoal.train.data.catalogue import Catalogue
from shoal.train.data.columns import DataError, ShardError
from shoal.train.data.node_shards import Survey, surveying
from shoal.train.data.survey import (
    Content,
    Finding,
    Inspection,
    SurveyRequest,
    content_of,
    look,
    tasks_of,
)
from shoal.train.data.url_cache import UrlCache
from shoal.train.recipe.recipe_data import bring


def written(folder: Path, *names: str, rows: int = 12) -> dict[str, dict[str, str]]:
    """Shards of unlike contents as .npz files, at the node "local"."""
    folder.mkdir(exist_ok=True)
    places = {}
    for number, name in enumerate(names):
        x = np.random.default_rng(number).normal(size=(rows, 3)).astype("float32")
        np.savez(folder / f"{name}.npz", x=x, y=np.arange(rows))
        places[name] = {"local": str(folder / f"{name}.npz")}
    return places


def test_shards_are_read_where_they_lie(tmp_path: Path) -> None:
    train = written(tmp_path, "a", "b")
    data = shoal.Data.shards(train, valid=written(tmp_path / "v", "held"))
    assert data.shards == ("a", "b")
    assert data.validation == ("held",)
    assert data.sizes == {"a": 12, "b": 12}
    assert data.by_rows
    found = data.rows(data.shards[1], np.array([3, 1]))
    assert found["y"].tolist() == [3, 1]
    assert "24 training samples in 2 shards" in repr(data)


def test_a_catalogue_in_toml_says_the_same(tmp_path: Path) -> None:
    train = written(tmp_path, "a", "b")
    (tmp_path / "shards.toml").write_text(
        f'[train.a]\nlocal = "a.npz"\n[train.b]\n"*" = "{tmp_path}/b.npz"\n'
    )
    by_file = shoal.Data.shards(tmp_path / "shards.toml")
    assert by_file.fingerprint == shoal.Data.shards(train).fingerprint
    assert by_file.catalogue is not None and by_file.catalogue.nodes == ["local"]


def test_the_fingerprint_is_of_the_contents_alone(tmp_path: Path) -> None:
    one = shoal.Data.shards(written(tmp_path / "one", "a", "b"))
    other = written(tmp_path / "other", "a", "b")
    assert shoal.Data.shards(other).fingerprint == one.fingerprint
    written(tmp_path / "other", "b", rows=11)
    assert shoal.Data.shards(other).fingerprint != one.fingerprint


@pytest.mark.parametrize(
    ("mistake", "told"),
    [
        ("elsewhere", 'b lies at n7, and this process is on the node "local"'),
        ("missing", "b at local: .*none.npz: there is no such file"),
        ("empty", "b at local: .*none: the folder is empty"),
        ("nobody", "every shard needs a holder; b has none"),
        ("unlike", "a has the columns x float32.3., y int64.., b has x float32.2."),
        ("format", "b.txt is of no format that Shoal reads .* give the recipe a method read"),
        ("form", "a catalogue is {shard id: {node: path}}"),
        ("twice", "need names of their own; a is both"),
        ("name", "a shard's name must be without '::'; got 'b::1'"),
        ("cut", "b at local: .*b.npz cannot be read as .npz"),
    ],
)
def test_one_error_before_any_work(tmp_path: Path, mistake: str, told: str) -> None:
    train: dict[str, Any] = written(tmp_path, "a", "b")
    valid: dict[str, Any] = {}
    file = tmp_path / "b.npz"
    if mistake == "elsewhere":
        train["b"] = {"n7": str(file)}
    elif mistake == "missing":
        train["b"] = {"local": str(tmp_path / "none.npz")}
    elif mistake == "empty":
        (tmp_path / "none").mkdir()
        train["b"] = {"local": str(tmp_path / "none")}
    elif mistake == "nobody":
        train["b"] = {}
    elif mistake == "unlike":
        np.savez(file, x=np.zeros((4, 2), "float32"))
    elif mistake == "format":
        train["b"] = {"local": str(file.rename(tmp_path / "b.txt"))}
    elif mistake == "form":
        train["b"] = str(file)
    elif mistake == "twice":
        valid = {"a": train["a"]}
    elif mistake == "name":
        train["b::1"] = train.pop("b")
    else:
        file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(DataError, match=told):
        shoal.Data.shards(train, valid)


@pytest.mark.parametrize("harm", ["gone", "cut", "corrupt"])
def test_a_file_that_changes_is_noticed_before_it_is_read(tmp_path: Path, harm: str) -> None:
    data = shoal.Data.shards(written(tmp_path, "a", "b"))
    file = tmp_path / "b.npz"
    good = file.read_bytes()
    data.rows(data.shards[1], np.arange(3))
    if harm == "gone":
        file.unlink()
    elif harm == "cut":
        os.truncate(file, 200)
    else:
        file.write_bytes(good[:-5] + b"wrong")
        os.utime(file, ns=(1, 1))
    with pytest.raises(ShardError, match=r"b at local: .*b.npz .*put it back") as raised:
        data.rows(data.shards[1], np.arange(3))
    assert (raised.value.part, raised.value.node) == ("b", "local")
    assert list(data.damaged()) == ["b"]
    file.write_bytes(good)
    assert data.rows(data.shards[1], np.arange(3))["y"].tolist() == [0, 1, 2]


class Remembering:
    """Stands for holders: remembers what they read."""

    def __init__(self) -> None:
        self.read_parts: list[str] = []

    def read(self, source: Any, part: ShardId, index: Any = None) -> Any:
        self.read_parts.append(part)
        whole = source.at(("local", "away")).read(part)
        return whole if index is None else {n: c[index] for n, c in whole.items()}


def test_a_node_reads_what_it_holds_and_holders_the_rest(tmp_path: Path) -> None:
    places = written(tmp_path, "a", "b")
    places["b"] = {"away": places["b"]["local"]}
    places["c"] = {"*": places["a"]["local"]}
    holders = Remembering()

    def found(asked: SurveyRequest) -> list[Finding]:
        tasks = tasks_of(asked.catalogue, asked.catalogue.nodes, "local")
        return [each for task in tasks for each in look(task, asked.cache, None)]

    with surveying(Survey(surveyor=found, names=(), holders=holders)):
        data = shoal.Data.shards(places)
    a, b, c = data.shards
    data.read(a)
    data.read(c)
    data.rows(b, np.array([1]))
    assert holders.read_parts == ["a", "c", "b"], "this process is at no node"
    near = data.at(("local",), alone=False)
    assert near.is_here(a) and near.is_here(b)
    near.read(a)
    near.read(c)
    near.rows(a, np.array([1]))
    assert holders.read_parts == ["a", "c", "b"]
    assert near.rows(b, np.array([3, 1]))["y"].tolist() == [3, 1]
    assert holders.read_parts == ["a", "c", "b", "b"]
    assert not data.at(("local",)).is_here(b), "alone, a slot reads its own shards only"


def test_only_holders_read(tmp_path: Path) -> None:
    data = shoal.Data.shards(written(tmp_path, "a")).at(("n5",))
    assert not data.is_here(data.shards[0])
    with pytest.raises(ShardError, match="it lies at local, and nobody but its holders"):
        data.read(data.shards[0])


def test_a_recipe_reads_files_of_a_form_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "s.own").write_text("0 1 2 3 4")
    data = bring(Own(tmp_path / "s.own"))
    assert data.read(data.shards[0])["x"].tolist() == [0, 1, 2, 3, 4]
    assert data.sizes == {"s": 5} and not data.by_rows


class Plain(shoal.Recipe):
    def __init__(self, path: Path) -> None:
        self.path = path

    def data(self) -> shoal.Data:
        return shoal.Data.shards({"s": {"local": self.path}})


class Own(Plain):
    def read(self, path: Path) -> Any:
        return {"x": np.array(path.read_text().split(), float)}


# -- studies -------------------------------------------------------------------------------------


class Study(Plain):
    """Trains on a catalogue; each step may harm a file."""

    search_space = {"lr": shoal.grid([0.1, 0.2])}
    metric, mode, max_epochs = "loss", "min", 2
    batch_size = 4
    spoil: Any = None

    def data(self) -> shoal.Data:
        return shoal.Data.shards(self.path)

    def configure_model(self, config: Any) -> Any:
        return torch.nn.Linear(3, 1)

    def configure_optimizers(self, model: Any, config: Any) -> Any:
        return torch.optim.SGD(model.parameters(), config["lr"])

    def training_step(self, model: Any, batch: Any) -> Any:
        if Study.spoil is not None:
            Study.spoil()
        return model(batch["x"]).square().mean()

    def validation_step(self, model: Any, batch: Any) -> Any:
        return {"loss": model(batch["x"]).square().mean(1)}


def catalogue_in(folder: Path) -> Path:
    """Three shards and a validation part, at this machine and others."""
    tables = {"train": written(folder / "t", "a", "b", "c"), "valid": written(folder / "v", "held")}
    lines = []
    for table, parts in tables.items():
        for part, places in parts.items():
            lines += [f"[{table}.{part}]", f'n3 = "/d/{part}"', f'local = "{places["local"]}"']
    (folder / "shards.toml").write_text("\n".join(lines))
    return folder / "shards.toml"


@pytest.mark.parametrize(("policy", "harm"), [("hop", "gone"), ("hop-lrw", "corrupt")])
def test_a_shard_lost_while_training_is_put_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: str, harm: str
) -> None:
    """The others go on, the error names it, and resume finishes what a replay makes again."""
    study = shoal.create_study(Study(catalogue_in(tmp_path)), storage=tmp_path / "s")
    file = tmp_path / "t" / "b.npz"
    good = file.read_bytes()

    def spoil() -> None:
        if harm == "gone":
            file.unlink(missing_ok=True)
        else:
            file.write_bytes(good[:-9] + b"corrupted")

    monkeypatch.setattr(Study, "spoil", spoil)
    with pytest.raises(StudyPaused, match=r"b at local: .*b\.npz") as told:
        study.optimize(policy=policy, progress=False, data_memory_gb=0.0)
    assert "trials have work left" in str(told.value)
    assert any(study.state.visits.values())
    monkeypatch.setattr(Study, "spoil", None)
    file.write_bytes(good)
    study.resume(progress=False)
    assert [trial.status for trial in study.trials] == ["finished"] * 2
    assert all(row["equal"] for row in study.replay())


@pytest.mark.parametrize(
    ("policy", "names", "whole"),
    [
        ("hop", {}, True),
        ("hop-packs", {}, True),
        ("every(seconds=9, policy=hop)", {}, True),
        ("auto", {}, True),
        ("fifo", {}, False),
        ("hybrid", {}, True),
        ("auto:fifo,pack", {}, False),
        ("fifo", {"n3": "/c"}, True),
    ],
)
def test_which_policies_go_with_data_at_several_nodes(
    policy: str, names: dict[str, str], whole: bool
) -> None:
    catalogue = Catalogue({ShardId("a"): {"n3": "/a"}, ShardId("b"): {"n4": "/b", **names}})
    rule = policy_of(policy, True, 0, hopping=not catalogue.is_whole_everywhere)
    if whole:
        check_place_of_data(rule, catalogue, policy)
    else:
        with pytest.raises(StudyError, match="no node holds all 2 shards: use one that moves"):
            check_place_of_data(rule, catalogue, policy)


# -- URLs ----------------------------------------------------------------------------------------


class Handler(SimpleHTTPRequestHandler):
    def do_GET(self) -> None:
        self.server.gets.append(self.path)  # type: ignore[attr-defined]
        super().do_GET()

    def log_message(self, *_: Any) -> None:
        return


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[str, list[str]]]:
    """A server of the folder: its address, and the files that it was asked for."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=tmp_path))
    server.gets = []  # type: ignore[attr-defined]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", server.gets  # type: ignore[attr-defined]
    finally:
        server.shutdown()
        server.server_close()


def test_urls_are_fetched_once(tmp_path: Path, served: tuple[str, list[str]]) -> None:
    pytest.importorskip("aiohttp", reason="fsspec's http needs aiohttp")
    address, gets = served
    written(tmp_path, "a", "b")
    places = {name: {"local": f"{address}/{name}.npz"} for name in "ab"}
    for _ in range(2):
        data = shoal.Data.shards(places, cache=str(tmp_path / "cache"))
        assert data.rows(data.shards[1], np.array([2]))["y"].tolist() == [2]
    assert sorted(set(gets)) == ["/a.npz", "/b.npz"]
    assert len(gets) == 2


def test_a_server_that_does_not_answer_is_told_as_such(tmp_path: Path) -> None:
    pytest.importorskip("aiohttp", reason="fsspec's http needs aiohttp")
    places = {"a": {"local": "http://127.0.0.1:9/a.npz"}}
    with pytest.raises(DataError, match="a at local: .* its server does not answer"):
        shoal.Data.shards(places, cache=str(tmp_path / "cache"))


def test_a_file_url_is_a_path_and_nothing_is_copied(tmp_path: Path) -> None:
    written(tmp_path, "a")
    url, cache = f"file://{tmp_path}/a.npz", tmp_path / "cache"
    (tmp_path / "c.toml").write_text(f'[train.a]\nlocal = "{url}"\n')
    for given in ({"a": {"local": url}}, tmp_path / "c.toml"):
        data = shoal.Data.shards(given, cache=str(cache))
        assert data.rows(data.shards[0], np.array([2]))["y"].tolist() == [2]
    assert not cache.exists()


def test_what_lies_everywhere_is_staged_if_asked(tmp_path: Path) -> None:
    """Once it was fetched, the shared folder is not read any more."""
    shared = tmp_path / "shared"
    shared.mkdir()
    written(shared, "a", "b")
    places = {name: {"*": str(shared / f"{name}.npz")} for name in "ab"}
    plain = shoal.Data.shards(places, cache=str(tmp_path / "unused"))
    data = shoal.Data.shards(places, cache=str(tmp_path / "cache"), stage=True)
    assert data.fingerprint == plain.fingerprint
    for file in shared.iterdir():
        file.unlink()
    assert data.rows(data.shards[1], np.array([2]))["y"].tolist() == [2]
    assert not (tmp_path / "unused").exists()


def test_a_folder_is_not_staged(tmp_path: Path) -> None:
    (tmp_path / "pictures").mkdir()
    places = {"a": {"*": str(tmp_path / "pictures")}}
    with pytest.raises(DataError, match=r"pictures is a folder.*leave stage out"):
        shoal.Data.shards(places, stage=True)


def test_a_url_within_another_has_the_ending_of_its_file(tmp_path: Path) -> None:
    written(tmp_path, "a")
    with zipfile.ZipFile(tmp_path / "b.zip", "w") as packed:
        packed.write(tmp_path / "a.npz", "a.npz")
    places = {"a": {"local": f"zip://a.npz::{tmp_path}/b.zip"}}
    assert shoal.Data.shards(places, cache=str(tmp_path / "cache")).samples == 12


def test_what_was_not_used_for_longest_makes_room(tmp_path: Path) -> None:
    written(tmp_path, "a", "b", "c", rows=1000)
    urls = [f"local://{tmp_path}/{name}.npz" for name in "abc"]
    size = (tmp_path / "a.npz").stat().st_size
    cache = UrlCache(2.5 * size / 2**30, str(tmp_path / "cache"))
    a, b = (cache.fetched(url, "n1") for url in urls[:2])
    cache.fetched(urls[0], "n1")
    c = cache.fetched(urls[2], "n1")
    assert a.exists() and c.exists() and not b.exists()
    with pytest.raises(DataError, match=r"more than cache_gb=.*make smaller shards"):
        UrlCache(size / 2**31, str(tmp_path / "small")).fetched(urls[0], "n1")


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


@pytest.mark.parametrize("whole_again", [True, False])
@pytest.mark.parametrize("readable", [True, False])
@pytest.mark.parametrize("reader", ["read_whole", "parts_of_file"])
def test_a_file_that_is_written_to_while_it_is_read_is_not_taken_for_the_part(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    reader: str,
    readable: bool,
    whole_again: bool,
) -> None:
    """Whether its reader fails or finds other samples: it is read again where the file holds what
    it must again, as when it was copied over itself. Else the error says what it holds.
    """
    file, places = tmp_path / "a.npz", written(tmp_path, "a")
    os.utime(file, ns=(10**18, 10**18))  # a clock of files that is coarse shows the writing, too
    data = shoal.Data.shards(places)
    good, whole = file.read_bytes(), np.load(file)["x"].tolist()
    written(tmp_path / "o", "b", "a")
    bad = (tmp_path / "o" / "a.npz").read_bytes() if readable else b"x" * len(good)
    original = getattr(source, reader)

    readings: list[Any] = []

    def put(content: bytes) -> None:
        (tmp_path / "new").write_bytes(content)
        (tmp_path / "new").replace(file)

    def late(*args: Any) -> Any:
        readings.append(args)
        if len(readings) == 1:
            put(bad)
        try:
            return original(*args)
        finally:
            if whole_again:
                put(good)

    def read() -> Any:
        if reader == "read_whole":
            return data.read(data.shards[0])
        return data.rows(data.shards[0], np.arange(12))

    with monkeypatch.context() as patched:
        patched.setattr(source, reader, late)
        if whole_again:
            assert read()["x"].tolist() == whole
        else:
            with pytest.raises(ShardError, match="a at local: .*and held .*put it back"):
                read()
    put(good)
    assert read()["x"].tolist() == whole


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_file_that_was_replaced_by_one_of_equal_size_and_time_is_noticed(
    tmp_path: Path, kind: str
) -> None:
    """Copying that keeps times, such as `cp -p`, brings other data under an old time."""
    places = written(tmp_path, "a")
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
    deadline = time.monotonic() + 60
    while other.stat().st_ctime_ns <= before.st_ctime_ns:  # where the clock of files is coarse
        os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert time.monotonic() < deadline
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    other.replace(file)
    with pytest.raises(ShardError, match="a at local: .*and held .*put it back"):
        data.read(data.shards[0])


def test_each_holder_goes_by_the_time_of_its_own_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where nodes hold a shard under the same path, none takes the checksum of its file again."""
    path = written(tmp_path, "a")["a"]["local"]
    taken = []

    def counted(file: Path) -> Content:
        taken.append(file)
        return content_of(file)

    def found(asked: SurveyRequest) -> list[Finding]:
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
