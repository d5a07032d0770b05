"""What docs/simulate.md shows is what happens."""

import re
from pathlib import Path

import pytest

from shoal.simulate import simulate
from shoal.simulate.command import COLUMNS
from shoal.simulate.fields import SpecError
from shoal.simulate.idle_log import TraceError
from shoal.simulate.log_files import read_log
from shoal.simulate.spec import COSTS, MACHINE, SECONDS, load_spec

PAGE = (Path(__file__).parents[2] / "docs" / "simulate.md").read_text()
EXAMPLE = re.search(r"^```toml\n(.*?)^```$", PAGE, re.M | re.S)[1]


def without_cpu(lines):
    return [
        re.split(r"\s{2,}", line.strip())[:-1] if len(line.split()) > 7 else line.strip()
        for line in lines
    ]


def test_the_example_gives_what_the_page_shows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mixed.toml").write_text(EXAMPLE)
    command = re.search(r"^shoal simulate (mixed.toml .*)$", PAGE, re.M)[1].split()
    data, lines = simulate(["mixed.toml"], command[2:-2:2], command[-1])
    shown = re.search(r"--out compared\n```\n\n```\n(.*?)```", PAGE, re.S)[1].splitlines()
    assert without_cpu(lines) == without_cpu(shown)
    assert [name for name, _ in COLUMNS.values()] == re.split(r"\s{2,}", shown[1].strip())[1:]
    page = Path(data["specs"][0]["page"])
    assert page == Path("compared/mixed.html") and page.stat().st_size > 1e5
    reports = re.findall(r'<td[^>]*><a href="(.*?)">', page.read_text())
    assert reports == [f"mixed-{label}/report.html" for label in ("fifo", "hop", "pack", "elastic")]
    assert all(
        (page.parent / report).exists()
        and (page.parent / report).with_name("journal.jsonl").exists()
        for report in reports
    )


def test_the_errors_are_those_shown(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shown = re.findall(r"^error: (.*)$", PAGE, re.M)
    Path("mixed.toml").write_text(EXAMPLE.replace("speed = 0.6", "speed = 0"))
    with pytest.raises(SpecError) as error:
        load_spec("mixed.toml")
    assert str(error.value) == shown[0]
    assert (error.value.file, error.value.key) == ("mixed.toml", "[[slots]] 2 speed")
    Path("idle.csv").write_text("node,start,end\na,10,20\nb,5,8\n")
    with pytest.raises(TraceError) as found:
        read_log("idle.csv")
    assert str(found.value) == shown[1]
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(
        pyarrow.table({"node": ["a", "b"], "start": [10.0, 5.0], "end": [20.0, 8.0]}),
        "idle.parquet",
    )
    with pytest.raises(TraceError) as found:
        read_log("idle.parquet")
    assert str(found.value) == shown[2]


def test_every_field_is_on_the_page():
    named = set(re.findall(r"`(\w+)`", PAGE))
    assert set(COSTS) | set(SECONDS) <= named
    assert {"racks", "per_rack", "idle"} <= named & MACHINE
