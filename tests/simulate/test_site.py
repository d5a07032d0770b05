"""A site's own log: made of what Slurm says, and what it says to `elastic`."""

import json
import stat
from collections.abc import Callable, Iterator
from math import exp, inf
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shoal
from shoal.policy.combine import Every
from shoal.policy.description import describe, parse, rebuild
from shoal.policy.elastic.elastic import Elastic
from shoal.policy.elastic.placement import Spatial
from shoal.simulate import simulate
from shoal.simulate.command import trace_slurm, trace_stats
from shoal.simulate.idle_log import IdleLog, TraceError
from shoal.simulate.log_files import read_log, write_log
from shoal.simulate.policy_files import BELIEVED, departure_chances, elastic_for, horizon, with_log
from shoal.simulate.slurm_log import IdleRecorder, idle_in, log_of, nodes_in, record

JOBS = """\
JobID|NodeList|Start|End|Partition
1|n[1-2]|2026-01-01T00:00:00|2026-01-01T01:00:00|main
2|n3|2026-01-01T00:30:00|2026-01-01T00:40:00|scavenger
3|n[2-4]|2026-01-01T02:00:00|Unknown|main
4|login|2026-01-01T00:00:00|2026-01-01T05:00:00|main
5|None assigned|Unknown|Unknown|main
"""
NODES = "n1 idle\nn2 allocated\nn3 allocated\nn4 mixed\nn5 drained*\n"


def fragments(log: IdleLog) -> set[tuple[str, float, float]]:
    rows = zip(log.node, log.start, log.end, strict=True)
    return {(log.nodes[node], float(start), float(end)) for node, start, end in rows}


# -- what the log says -----------------------------------------------------------------------------


def pairs(times: int) -> IdleLog:
    """Two nodes of one rack leave together, and the one of a far rack a second later, each time.

    The two of one rack join together.
    """
    found = []
    for number in range(times):
        at = 1000.0 * number
        found += [("a01n01", at, at + 500.0), ("a01n02", at, at + 500.0)]
        found.append(("a30n01", at + 1.0, at + 501.0))
    return IdleLog.of(found, finish=1000.0 * times)


def test_nodes_that_leave_together_are_counted() -> None:
    log = pairs(50)
    table = {row[0]: row[1:] for row in departure_chances(log)}
    # each of the two had the other beside it, which left along, 50 times
    along = (100 + 0.6 * BELIEVED) / (100 + BELIEVED)
    assert table[0][1] == pytest.approx(along, abs=1e-4)
    # the third stayed both times; when it left, nobody was there
    apart = BELIEVED * 0.6 * exp(-20 / 6) / (100 + BELIEVED)
    assert table[20][0] == pytest.approx(apart, abs=1e-4)
    # of what was not seen, the formula is believed
    assert table[0][0] == pytest.approx(0.6, abs=1e-4)
    assert table[1] == pytest.approx((0.6 * exp(-1 / 6),) * 2, abs=1e-4)


def test_the_horizon_is_the_mean_time_between_departures() -> None:
    log = pairs(50)
    assert horizon(log) == pytest.approx((120 + 50_000) / (1 + 100))
    rule = elastic_for(log, admit=3)
    assert rule.horizon == horizon(log) and rule.admit == 3
    assert rule.placement == Spatial(table=departure_chances(log))


def test_a_policy_by_name_takes_a_log_and_is_written_down_in_numbers(tmp_path: Path) -> None:
    path = tmp_path / "site.csv"
    write_log(pairs(50), path)
    rule = parse(f'elastic(log="{path}", admit=2)', fill=with_log)
    assert rule == elastic_for(pairs(50), admit=2)
    said = json.loads(json.dumps(describe(rule)))
    assert "site.csv" not in str(said)
    assert rebuild(said) == rule
    own = parse(f'elastic(log="{path}", horizon=60)', fill=with_log)
    assert isinstance(own, Elastic) and own.horizon == 60
    inner = parse(f'every(seconds=9, policy=elastic(log="{path}"))', fill=with_log)
    assert inner == Every(seconds=9, policy=elastic_for(pairs(50)))
    with pytest.raises(ValueError, match="unexpected keyword argument 'log'"):
        parse(f'equi(log="{path}")', fill=with_log)
    with pytest.raises(FileNotFoundError):
        parse('elastic(log="gone.csv")', fill=with_log)


def test_a_study_resumes_without_the_log(tmp_path: Path, blobs: Any) -> None:
    path = tmp_path / "site.csv"
    write_log(pairs(50), path)
    study = shoal.create_study(blobs(), storage=tmp_path / "s")
    study.optimize(policy=f'elastic(log="{path}")', timeout=0.0, progress=False)
    head = study.folder.head()["policy"]
    assert head["horizon"] == horizon(pairs(50))
    assert [tuple(row) for row in head["placement"]["table"]] == list(departure_chances(pairs(50)))
    path.unlink()
    shoal.load_study(tmp_path / "s").resume(progress=False)
    assert all(trial.status == "finished" for trial in study.trials)


def test_the_simulator_takes_a_log_for_a_policy(tmp_path: Path) -> None:
    write_log(pairs(50), tmp_path / "site.csv")
    (tmp_path / "spec.toml").write_text("""
        [log]
        file = "site.csv"
        [[trials]]
        samples = 1000
        widths = [1, 3]
        [[profile]]
        points = { 1 = 1, 3 = 3 }
        [policies.elastic]
        [policies.learnt]
        name = "elastic"
        log = "site.csv"
    """)
    asked = f'elastic(log="{tmp_path}/site.csv")'
    data, _ = simulate([tmp_path / "spec.toml"], ["learnt", asked])
    found = data["specs"][0]["policies"]
    for figures in found.values():
        assert figures.pop("cpu_s") >= 0
        assert figures["finished"] == 1
    assert found["learnt"] == found[asked]


def test_stats_say_what_elastic_takes(tmp_path: Path) -> None:
    write_log(pairs(50), tmp_path / "site.csv")
    found, lines = trace_stats(tmp_path / "site.csv")
    assert found["horizon_s"] == horizon(pairs(50))
    assert found["together"] == departure_chances(pairs(50))
    assert "--policy 'elastic(log=" in lines[-1]


# -- a file of events ------------------------------------------------------------------------------


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.integers(0, 50), st.integers(1, 9)),
        min_size=1,
        max_size=12,
    ),
    st.integers(60, 70),
)
def test_a_log_that_is_written_reads_the_same(
    spans: list[tuple[str, int, int]], finish: int
) -> None:
    import tempfile

    found: list[tuple[str, float, float]] = []
    until: dict[str, float] = {}
    for node, start, length in sorted(spans, key=lambda span: span[1]):
        if start > until.get(node, -1):
            until[node] = start + length
            found.append((node, float(start), start + length))
    found.append(("z", 55.0, inf))
    log = IdleLog.of(found, finish)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "new" / "log.csv"
        write_log(log, path)
        again = read_log(path)
    assert fragments(again) == fragments(log)
    assert (again.begin, again.finish) == (log.begin, log.finish)


# -- Slurm's accounting ----------------------------------------------------------------------------


def test_nodes_are_idle_where_no_allocation_covers_them() -> None:
    known = nodes_in(NODES)
    assert known == ["n1", "n2", "n3", "n4"]
    log = log_of(Path("jobs"), JOBS, known, None)
    assert fragments(log) == {
        ("n1", 3600.0, inf),
        ("n2", 3600.0, 7200.0),
        ("n3", 0.0, 1800.0),
        ("n3", 2400.0, 7200.0),
        ("n4", 0.0, 7200.0),
    }
    assert log.machine == 4
    # pilots do not count, and n3 was theirs
    others = log_of(Path("jobs"), JOBS, known, "scavenger")
    assert ("n3", 0.0, 7200.0) in fragments(others)
    # without a list of nodes, all that ran something
    everyone = log_of(Path("jobs"), JOBS, None, None)
    assert set(everyone.nodes) == {"n1", "n2", "n3", "n4"}
    assert everyone.finish == 5 * 3600.0  # the login node was busy until then


def test_what_sacct_did_not_print_is_one_error_with_its_line() -> None:
    with pytest.raises(TraceError, match="jobs, line 1: missing column Partition"):
        log_of(Path("jobs"), "NodeList|Start|End\n", ["n1"], "scavenger")
    broken = JOBS.replace("n[2-4]", "n[2-")
    with pytest.raises(TraceError, match="jobs, line 4: not a host list"):
        log_of(Path("jobs"), broken, ["n1"], None)
    with pytest.raises(TraceError, match="no allocations"):
        log_of(Path("jobs"), JOBS, ["m1"], None)


def test_states_of_nodes() -> None:
    text = "a idle\nb planned\nc idle*\nd idle~\ne mixed\nf DRAINED\ng allocated\nh idle$\na idle\n"
    assert idle_in(text) == {"a", "b"}
    assert nodes_in(text) == ["a", "b", "c", "d", "e", "g", "h"]
    assert nodes_in("a\nb\n") == ["a", "b"]


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Puts a command on the path, which alone is there."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))

    def put(name: str, script: str) -> None:
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(stat.S_IRWXU)

    return put


def test_sacct_and_sinfo_are_run(tmp_path: Path, command: Callable[..., None]) -> None:
    said = tmp_path / "said"
    jobs = JOBS.replace("|", r"|")
    command("sacct", f"echo \"$TZ $@\" >> {said}; echo '{jobs}'")
    command("sinfo", f"echo \"$TZ $@\" >> {said}; echo '{NODES}'")
    out = tmp_path / "site.csv"
    found, lines = trace_slurm(out, None, None, "3days", "main", "scavenger")
    assert said.read_text().splitlines() == [
        "UTC -h -N -o %N %T -p main",
        "UTC -P -a -X -T -S now-3days -o NodeList,Start,End,Partition",
    ]
    assert found["nodes"] == 4
    assert found["idle_node_hours"] == pytest.approx(1 + 1 + 2 + 2)
    assert found["hours"] == pytest.approx(2.0)
    assert lines[-1] == f"more: shoal trace stats {out}"
    assert fragments(read_log(out)) == fragments(
        log_of(Path("jobs"), JOBS, nodes_in(NODES), "scavenger")
    )


def test_without_slurm_or_its_accounts_the_error_says_what_to_do(
    tmp_path: Path, command: Callable[..., None]
) -> None:
    out = tmp_path / "site.csv"
    with pytest.raises(TraceError, match="sinfo: there is no such command .*--nodes"):
        trace_slurm(out, None, None, "7days", None, None)
    command("sinfo", f"echo '{NODES}'")
    with pytest.raises(TraceError, match="sacct: there is no .*> jobs.txt.*--watch"):
        trace_slurm(out, None, None, "7days", None, None)
    command("sacct", "echo 'Slurm accounting storage is disabled' >&2; exit 1")
    with pytest.raises(TraceError, match="storage is disabled: run .*--watch"):
        trace_slurm(out, None, None, "7days", None, None)
    with pytest.raises(TraceError, match='--since: it must be .*got "a week"'):
        trace_slurm(out, None, None, "a week", None, None)
    assert not out.exists()


# -- from now on -----------------------------------------------------------------------------------


def recorded(path: Path, *ticks: tuple[float, str]) -> list[str]:
    """Records these idle nodes at these times, an empty word for a Slurm that is silent."""
    now = iter(ticks)
    said: list[str] = []
    state = {"text": ""}

    def ask() -> str:
        if not state["text"]:
            raise TraceError("sinfo", None, "no answer")
        return state["text"]

    recorder = IdleRecorder(path, ask, said.append)
    for at, nodes in now:
        state["text"] = "".join(f"{node} idle\n" for node in nodes) + "x mixed\n"
        if nodes == "?":
            state["text"] = ""
        recorder.tick(at)
    recorder.close(ticks[-1][0])
    return said


def test_changes_are_written_as_they_are_seen(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    said = recorded(path, (100, "ab"), (110, "ab"), (120, "bc"), (115, "c"), (130, "?"))
    assert path.read_text().splitlines() == [
        "time_s,joined,left",
        "100,a b,",
        "120,c,a",
        "120,,b",  # the clock was set back
        "130,,",
    ]
    assert said == ["warning: sinfo: no answer"]
    # while nobody looked, nothing counts as idle
    recorded(path, (900, "c"), (1600, "c"), (1700, ""))
    assert fragments(read_log(path)) == {
        ("a", 100.0, 120.0),
        ("b", 100.0, 120.0),
        ("c", 120.0, 130.0),
        ("c", 900.0, 1700.0),
    }
    assert "1600,," in path.read_text().splitlines()  # a sign of life


def test_another_file_is_not_written_to(tmp_path: Path) -> None:
    path = tmp_path / "other.csv"
    path.write_text("node,start,end\nn1,0,5\n")
    with pytest.raises(TraceError, match="no log that --watch wrote: give another"):
        IdleRecorder(path, lambda: "a idle", print)
    assert path.read_text() == "node,start,end\nn1,0,5\n"


def clock(*times: float) -> Iterator[float]:
    yield from times


def test_recording_ends_with_ctrl_c_or_in_time(tmp_path: Path) -> None:
    def tired(seconds: float) -> None:
        assert seconds == 10
        raise KeyboardInterrupt

    times = clock(0, 0, 5)
    joins = record(tmp_path / "a.csv", lambda: "a idle", 10, None, print, times.__next__, tired)
    assert joins == 1 and read_log(tmp_path / "a.csv").span == 5
    waits: list[float] = []
    times = clock(0, 0, 1800, 1800, 3600, 3600)
    record(tmp_path / "b.csv", lambda: "a idle", 10, 1, print, times.__next__, waits.append)
    assert waits == [10]
    with pytest.raises(TraceError, match="no answer"):
        record(tmp_path / "c.csv", _silent, 10, None, print)
    assert not (tmp_path / "c.csv").exists()


def _silent() -> str:
    raise TraceError("sinfo", None, "no answer")


def test_names_of_nodes_are_no_formulas_and_read_as_they_were(tmp_path: Path) -> None:
    given = tmp_path / "given.csv"
    given.write_text('node,start,end\n=1+1,0,10\n"@a,b",2,10\n-n,3,10\nn4,5,10\n')
    log = read_log(given)
    write_log(log, tmp_path / "site.csv")
    lines = (tmp_path / "site.csv").read_text().splitlines()
    assert lines[1:4] == ["0,'=1+1,", '2,"\'@a,b",', "3,'-n,"]
    assert sorted(read_log(tmp_path / "site.csv").nodes) == sorted(log.nodes)
