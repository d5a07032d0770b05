"""Logs from files: the same log says the same in every format, and a bad one gets one error
with file, place and rule.
"""

import csv
import gzip
import io
from datetime import UTC, datetime
from math import inf, nan

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.simulate.idle_log import TraceError
from shoal.simulate.log_files import read_log

NODES = ["n1", "n2"]


def written(path, rows):
    """Rows as CSV or Parquet, by the file's name. None: an empty field, or null."""
    if path.suffix == ".parquet":
        pyarrow = pytest.importorskip("pyarrow")
        from pyarrow import parquet

        names = dict.fromkeys(name for row in rows for name in row)
        parquet.write_table(
            pyarrow.table({name: [row.get(name) for row in rows] for name in names}), path
        )
        return path
    out = io.StringIO()
    table = csv.DictWriter(out, list(rows[0]), lineterminator="\n")
    table.writeheader()
    table.writerows([{k: "" if v is None else v for k, v in row.items()} for row in rows])
    data = out.getvalue().encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def fragments(log):
    return [
        (log.nodes[n], s, e)
        for n, s, e in zip(log.node, log.start.tolist(), log.end.tolist(), strict=True)
    ]


def intervals(*rows):
    return [dict(zip(("node", "start", "end"), row, strict=True)) for row in rows]


def events(*rows):
    return [dict(zip(("time_s", "joined", "left"), row, strict=True)) for row in rows]


def span(node, start, end):
    return {"NodeList": node, "Start": start, "End": end}


@pytest.mark.parametrize("name", ["log.csv", "log.csv.gz", "log.parquet"])
def test_a_log_says_the_same_in_every_format(tmp_path, name):
    rows = intervals(("n1", 0.0, 9.0), ("n2", 5.0, None), ("n1", 12.5, inf))
    expected = [("n1", 0.0, 9.0), ("n2", 5.0, inf), ("n1", 12.5, inf)]
    log = read_log(written(tmp_path / name, [row | {"rack": "a"} for row in rows]))
    assert fragments(log) == expected
    assert log.racks == {"n1": "a", "n2": "a"}
    assert fragments(read_log(written(tmp_path / name, rows), NODES)) == expected
    moved = events((0.0, "n1", ""), (5.0, "n2", None), (9.0, None, "n1"), (12.5, "n1", ""))
    assert fragments(read_log(written(tmp_path / name, moved), NODES)) == expected
    numbered = [row | {"node": NODES.index(row["node"])} for row in rows]
    assert fragments(read_log(written(tmp_path / name, numbered), NODES)) == expected


def test_parquet_may_say_that_an_interval_is_cut_off_at_the_end(tmp_path):
    rows = [
        {"node_id": 1, "start_s": 0.0, "end_s": 9.0, "right_censored": False},
        {"node_id": 0, "start_s": 3.0, "end_s": 9.0, "right_censored": True},
    ]
    assert fragments(read_log(written(tmp_path / "log.parquet", rows), NODES)) == [
        ("n2", 0.0, 9.0),
        ("n1", 3.0, inf),
    ]


BAD = [  # rows; which of them, from 1 (0: the header); the rule
    (
        intervals(("n1", 0.0, 5.0), ("n1", 10.0, 20.0), ("n2", 7.0, 8.0)),
        3,
        "rows must be in order of start; 7 comes after 10",
    ),
    (
        intervals(("n1", 0.0, 20.0), ("n1", 15.0, 30.0)),
        2,
        "must not overlap; n1 is idle until 20 by",
    ),
    (intervals(("n1", 0.0, None), ("n1", 15.0, 30.0)), 2, "must not overlap"),
    (intervals(("n1", 0.0, 5.0), ("n9", 5.0, 6.0)), 2, "unknown node 'n9'"),
    (intervals((None, 0.0, 5.0)), 1, "unknown node"),
    (intervals(("n1", 0.0, nan)), 1, "end must be a number of seconds; got"),
    (intervals(("n1", nan, 5.0)), 1, "start must be a number of seconds; got"),
    (intervals(("n1", -inf, 5.0)), 1, "start must be a number of seconds; got"),
    (intervals(("n1", None, 5.0)), 1, "start must be a number of seconds; got"),
    (intervals(("n1", "zero", "5")), 1, "start must be a number of seconds; got 'zero'"),
    (intervals(("n1", 5.0, 5.0)), 1, "an interval must end after it starts; got 5 to 5"),
    ([{"node": "n1", "start": 0.0}], 0, "missing column end; there are node, start"),
    ([{"start": 0.0, "end": 1.0}], 0, "missing column node; there are end, start"),
    (events((5.0, "n1", ""), (1.0, "", "n1")), 2, "rows must be in order of time; 1 comes after 5"),
    (events((0.0, "n1", ""), (1.0, "n1", "")), 2, "n1 joined, but was idle already"),
    (events((0.0, "", "n1")), 1, "n1 left, but was not idle"),
    (events((0.0, "n1 n9", "")), 1, "unknown node 'n9'"),
    (events((nan, "n1", "")), 1, "time_s must be a number of seconds"),
    ([{"time_s": 0.0, "joined": "n1"}], 0, "missing column left; there are joined, time_s"),
    ([{"joined": "n1", "left": ""}], 0, "missing column time_s; there are joined, left"),
]


@pytest.mark.parametrize("name", ["log.csv", "log.csv.gz", "log.parquet"])
@pytest.mark.parametrize(("rows", "at", "rule"), BAD)
def test_a_bad_log_gets_the_same_error_in_every_format(tmp_path, name, rows, at, rule):
    path = written(tmp_path / name, rows)
    with pytest.raises(TraceError) as error:
        read_log(path, NODES)
    parquet = path.suffix == ".parquet"
    line = (at or None) if parquet else at + 1
    assert error.value.line == line
    assert str(error.value).startswith(
        f"{path}{'' if line is None else f', row {line}' if parquet else f', line {line}'}: "
    )
    assert rule in str(error.value)


@pytest.mark.parametrize(
    ("name", "data", "line", "rule"),
    [
        ("log.csv", b"node,start,end\nn1,0\n", 2, "as many fields"),
        ("log.csv", b"node,start,end\n\nn1,0,1,2\n", 3, "as many fields"),
        ("log.csv", b"", 1, "missing column node, start, end; there are none"),
        ("log.csv", b"node,start,end\n", None, "the log is empty"),
        ("log.csv", b"\xff\xfe\x00n\x00o", None, "not text in UTF-8"),
        ("log.csv.gz", b"node,start,end\n", None, "cannot be decompressed"),
        (
            "log.csv.gz",
            gzip.compress(b"node,start,end\n" * 99, mtime=0)[:40],
            None,
            "cannot be decompressed",
        ),
        ("log.parquet", b"node,start,end\n", None, "cannot be read as Parquet"),
        ("log.txt", b"NodeList|Start\nn1|x\n", 1, "missing column End; there are NodeList, Start"),
        ("log.txt", b"NodeList|Start|End\nn1|2026-01-01T00:00:00\n", 2, "as many fields"),
        (
            "log.txt",
            b"NodeList|Start|End\nn1|2026-01-01T00:00:00|soon\n",
            2,
            "End must be a time such as",
        ),
        (
            "log.txt",
            b"NodeList|Start|End\nn1|nan|2026-01-01T00:00:00\n",
            2,
            "Start must be a time such as",
        ),
        (
            "log.txt",
            b"NodeList|Start|End\n\nn1|2026-01-02T00:00:00|2026-01-01T00:00:00\n",
            3,
            "must end after it starts",
        ),
        (
            "log.txt",
            b"NodeList|Start|End\nn9|2026-01-01T00:00:00|Unknown\n",
            2,
            "unknown node 'n9'",
        ),
        (
            "log.txt",
            b"NodeList|Start|End\nn[2-1]|2026-01-01T00:00:00|Unknown\n",
            2,
            "not a host list: 'n[2-1]'",
        ),
        ("log.txt", b"NodeList|Start|End\nn1|Unknown|Unknown\n", None, "no allocations"),
    ],
)
def test_a_file_that_is_no_log_gets_one_error(tmp_path, name, data, line, rule):
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(TraceError) as error:
        read_log(path, NODES)
    assert error.value.line == line
    assert rule in str(error.value)
    assert str(path) in str(error.value)


@pytest.mark.parametrize("name", ["log.csv", "log.parquet"])
def test_a_file_that_is_not_there(tmp_path, name):
    with pytest.raises(FileNotFoundError):
        read_log(tmp_path / name)


def sacct(path, rows):
    path.write_text(
        "\n".join(["NodeList|Start|End", *("|".join(row.values()) for row in rows)]) + "\n"
    )
    return path


def test_slurm_accounting_is_read_as_what_is_left_over(tmp_path):
    text = (
        "JobID|NodeList|Start|End\n1|n[1-2]|2026-01-01T00:00:00|2026-01-01T01:00:00\n"
        "2|n1|2026-01-01T00:30:00|2026-01-01T02:00:00\n3|None "
        "assigned|Unknown|Unknown\n4|n2|2026-01-01T01:30:00|Unknown\n"
    )
    (tmp_path / "sacct.txt").write_text(text)
    assert fragments(read_log(tmp_path / "sacct.txt")) == [("n2", 3600.0, 5400.0)]
    assert fragments(read_log(tmp_path / "sacct.txt", ["n0", *NODES])) == [
        ("n0", 0.0, inf),
        ("n2", 3600.0, 5400.0),
    ]


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_allocations_may_come_in_any_order_and_share_nodes(tmp_path_factory, data):
    spans = data.draw(
        st.lists(
            st.tuples(st.sampled_from(NODES), st.integers(0, 50), st.integers(0, 30)),
            min_size=1,
            max_size=9,
        )
    )
    rows = [
        span(
            n,
            *(
                datetime.fromtimestamp(60 * x, UTC).strftime("%Y-%m-%dT%H:%M:%S")
                for x in (s, s + d)
            ),
        )
        for n, s, d in spans
    ]
    path = tmp_path_factory.mktemp("sacct") / "log.txt"

    def read(listed):
        try:
            return fragments(read_log(sacct(path, listed), NODES))
        except TraceError as error:
            return str(error)

    found = read(rows)
    assert read(data.draw(st.permutations(rows))) == found
    first, last = min(s for _, s, _ in spans), max(s + d for _, s, d in spans)
    for minute in range(first, last):  # idle where, and only where, no allocation covers it
        at = 60.0 * (minute - first)
        idle = {n for n, s, e in found if s <= at < e} if not isinstance(found, str) else set()
        assert idle == {
            n for n in NODES if not any(m == n and s <= minute < s + d for m, s, d in spans)
        }
