"""Shards out of files: every row once, at random, within a limit of memory."""

import platform
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import shoal
from shoal.cli import app
from shoal.train.data.shards import ShardPlan


def rows_of(made, key="id"):
    """By shard, the column `key` of its first copy."""
    catalogue = tomllib.loads(Path(made["catalogue"]).read_text(encoding="utf-8"))
    places = {**catalogue["train"], **catalogue.get("valid", {})}
    first = {shard: next(iter(paths.values())) for shard, paths in places.items()}
    return {shard: np.load(path)[key] for shard, path in first.items()}


@pytest.fixture
def arrays(tmp_path):
    folder = tmp_path / "columns"
    folder.mkdir()
    np.save(folder / "id.npy", np.arange(5000))
    np.save(folder / "x.npy", np.arange(10000.0, dtype=np.float32).reshape(5000, 2))
    return folder


def test_every_row_is_in_one_shard_and_columns_stay_together(arrays, tmp_path):
    made = shoal.Data.make_shards(arrays, tmp_path / "out", shards=4, seed=3, validation=0.1)
    found = rows_of(made)
    assert list(found) == ["s000", "s001", "s002", "s003", "v000", "v001", "v002", "v003"]
    assert sorted(np.concatenate(list(found.values())).tolist()) == list(range(5000))
    assert made["rows"]["s000"] == 1125 and made["rows"]["v000"] == 125
    for shard, inputs in rows_of(made, "x").items():
        assert (inputs[:, 0] == 2 * found[shard]).all()


def test_the_order_is_random_across_buckets(arrays, tmp_path):
    least = 2**-5  # GiB: then of 60 kB there is one bucket, and with a batch of few bytes many
    made = shoal.Data.make_shards(arrays, tmp_path / "a", shards=2, memory_gb=least)
    again = shoal.Data.make_shards(arrays, tmp_path / "b", shards=2, memory_gb=least)
    other = shoal.Data.make_shards(arrays, tmp_path / "c", shards=2, seed=1)
    first, second, third = (rows_of(each)["s000"] for each in (made, again, other))
    assert first.tolist() == second.tolist() != third.tolist()
    assert abs(np.corrcoef(first, np.arange(2500))[0, 1]) < 0.1
    assert abs(first.mean() - 2500) < 150  # each half holds rows of all places


def test_many_buckets_give_each_row_once(tmp_path):
    from shoal.train.data.shards import RowBuckets

    buckets = RowBuckets(tmp_path, 0, 7)
    buckets.scatter((np.arange(start, start + 100),) for start in range(0, 1000, 100))
    pieces = list(buckets.column(0, 150, 850))
    whole = np.concatenate(list(buckets.column(0, 0, 1000)))
    assert sorted(whole.tolist()) == list(range(1000))
    assert np.concatenate(pieces).tolist() == whole[150:850].tolist()


def test_copies_go_round_the_nodes_and_sizes_follow_their_speeds(arrays, tmp_path):
    made = shoal.Data.make_shards(
        arrays,
        tmp_path / "out",
        shards=3,
        nodes=["a", "b", "c"],
        replicas=2,
        speeds={"a": 3, "b": 1, "c": 1},
    )
    catalogue = tomllib.loads(Path(made["catalogue"]).read_text(encoding="utf-8"))
    held = {shard: list(places) for shard, places in catalogue["train"].items()}
    assert held == {"s000": ["a", "b"], "s001": ["b", "c"], "s002": ["c", "a"]}
    assert made["rows"] == {"s000": 2000, "s001": 1000, "s002": 2000}
    for places in catalogue["train"].values():
        copies = [Path(path).read_bytes() for path in places.values()]
        assert copies[0] == copies[1]
    data = shoal.Data.folder(tmp_path / "out" / "a")
    assert data.by_rows and data.samples == 4000


def test_tables_become_inputs_and_a_label(tmp_path):
    lines = [f"{n},{n / 4},{n % 2}" for n in range(1, 301)]
    (tmp_path / "t.csv").write_text("\n".join(["n,x,even", *lines]), encoding="utf-8")
    made = shoal.Data.make_shards(tmp_path / "t.csv", tmp_path / "out", shards=2, label="even")
    inputs = np.concatenate(list(rows_of(made, "arr_0").values()))
    labels = np.concatenate(list(rows_of(made, "arr_1").values()))
    assert inputs.dtype == np.float32 and labels.dtype == np.int64
    assert (inputs[:, 0] / 4 == inputs[:, 1]).all()
    assert (inputs[:, 0] % 2 == labels).all()


def test_several_files_of_arrays_are_one_source(tmp_path):
    files = [tmp_path / "one.npz", tmp_path / "two.npz"]
    np.savez(files[0], id=np.arange(6))
    np.savez(files[1], id=np.arange(6, 10))
    made = shoal.Data.make_shards(files, tmp_path / "out", shards=2)
    found = np.concatenate(list(rows_of(made).values()))
    assert sorted(found.tolist()) == list(range(10))


def test_parquet_and_arrow_files_are_read_too(tmp_path):
    pa = pytest.importorskip("pyarrow", reason="pyarrow reads these files")
    from pyarrow import parquet

    table = pa.table({"id": np.arange(1000), "w": np.arange(1000) / 2})
    parquet.write_table(table, tmp_path / "t.parquet")
    with pa.ipc.new_stream(str(tmp_path / "t.arrow"), table.schema) as file:
        file.write_table(table)
    for kind in ("parquet", "arrow"):
        made = shoal.Data.make_shards(tmp_path / f"t.{kind}", tmp_path / kind, shards=2)
        found = np.concatenate(list(rows_of(made).values()))
        assert sorted(found.tolist()) == list(range(1000)), kind


def test_a_parquet_file_of_many_row_groups_does_not_stay_in_memory(tmp_path):
    pa = pytest.importorskip("pyarrow", reason="pyarrow reads these files")
    from pyarrow import parquet

    from shoal.train.data.table_files import TableBatches

    file = tmp_path / "t.parquet"
    table = pa.table({"x": np.random.default_rng(0).random(2**21)})
    parquet.write_table(table, file, row_group_size=2**16)
    del table
    whole = file.stat().st_size
    before, most = pa.total_allocated_bytes(), 0
    for _ in TableBatches([file], "parquet", None, ()):
        most = max(most, pa.total_allocated_bytes() - before)
    assert most < whole / 4, f"{most} bytes of {whole}"


@pytest.mark.parametrize(
    ("wanted", "why"),
    [
        ({"shards": 0}, "shards must be a whole number >= 1; got 0"),
        ({"shards": 2, "replicas": 2}, "replicas lie on different nodes: at most 1"),
        ({"shards": 2, "nodes": ("a", "a")}, "nodes must be names, each once"),
        (
            {"shards": 2, "nodes": ("local", "b", platform.node()), "replicas": 2},
            f"local and {platform.node()} are one machine, this one",
        ),
        ({"shards": 2, "nodes": ("a",), "speeds": {"b": 1}}, "a speed > 0 for each node"),
        ({"shards": 2, "memory_gb": 0.001}, "memory_gb must be >="),
    ],
)
def test_a_plan_that_cannot_be_is_refused(wanted, why):
    with pytest.raises(shoal.DataError, match=why):
        ShardPlan(**wanted)


TEXTS = "a,name,city,b\n1,x,Rome,2\n2,y,Oslo,3\n3,z,Bern,4\n"


def test_an_error_names_all_text_columns_and_how_to_leave_them_out(tmp_path):
    source = tmp_path / "t.csv"
    source.write_text(TEXTS, encoding="utf-8")
    with pytest.raises(shoal.DataError) as refused:
        shoal.Data.make_shards(source, tmp_path / "out", shards=1)
    said = str(refused.value)
    assert "column name holds string, such as 'x', column city holds string" in said
    assert "numeric_only" in said and "drop=['name', 'city']" in said
    assert "--drop name,city" in said


def test_all_text_columns_are_left_out_or_several_by_name(tmp_path):
    source = tmp_path / "t.csv"
    source.write_text(TEXTS, encoding="utf-8")
    shoal.Data.make_shards(source, tmp_path / "all", shards=1, numeric_only=True)
    with np.load(tmp_path / "all" / "s000.npz") as file:
        whole = dict(file)
    assert sorted(whole) == ["a", "b"] and sorted(whole["b"]) == [2, 3, 4]
    command = ["data", "shard", str(source), str(tmp_path / "some"), "--shards", "1"]
    done = CliRunner().invoke(app, [*command, "--drop", "name, city"])
    assert done.exit_code == 0, done.output
    with np.load(tmp_path / "some" / "s000.npz") as some:
        assert all((some[name] == whole[name]).all() for name in "ab")


def test_bad_sources_are_refused_before_anything_is_written(arrays, tmp_path):
    (tmp_path / "t.csv").write_text("a,b\n1,x\n", encoding="utf-8")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "note.txt").write_text("mine", encoding="utf-8")
    for source, folder, why in [
        (tmp_path / "t.csv", "out", "column b holds string"),
        (tmp_path / "full", "out", "of one kind; found none"),
        (arrays, "full", "must be a new or an empty folder"),
    ]:
        with pytest.raises(shoal.DataError, match=why):
            shoal.Data.make_shards(source, tmp_path / folder, shards=2)
    assert not list((tmp_path / "out").glob("*")), "no half-made shards stay"


def test_more_shards_than_rows_are_refused(arrays, tmp_path):
    with pytest.raises(shoal.DataError, match="9000 train shards need as many rows"):
        shoal.Data.make_shards(arrays, tmp_path / "out", shards=9000)


LIMITED = """
import resource, sys
import shoal
from shoal.train.data import shards
make = shoal.Data.make_shards  # imports torch, which counts for nobody
data = [line for line in open("/proc/self/status") if line.startswith("VmData")]
limit = int(data[0].split()[1]) * 1024 + {more}
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
made = make(sys.argv[1], sys.argv[2], shards=8, memory_gb={limit} / 2**30)
print(sum(made["rows"].values()))
"""


@pytest.mark.nightly
@pytest.mark.skipif(sys.platform != "linux", reason="limits of memory are Linux's")
def test_ten_million_rows_are_sharded_within_a_limit(tmp_path):
    rows = 10_000_000
    folder = tmp_path / "columns"
    folder.mkdir()
    np.save(folder / "id.npy", np.arange(rows))
    np.save(folder / "x.npy", np.ones((rows, 8), np.float32))
    limit = 96 * 2**20  # a quarter of the rows' bytes
    code = LIMITED.format(limit=limit, more=limit)
    ran = subprocess.run(
        [sys.executable, "-c", code, str(folder), str(tmp_path / "out")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert int(ran.stdout) == rows
    ids = [np.load(file)["id"] for file in sorted((tmp_path / "out").glob("*.npz"))]
    assert (np.sort(np.concatenate(ids)) == np.arange(rows)).all()
