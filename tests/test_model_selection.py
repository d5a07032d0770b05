"""benchmarks/model_selection.py: its files, what it makes of what it sees, and its short form."""

import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import numpy as np
import pytest

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
NAMES = ("n0", "n1", "n2")


@pytest.fixture(autouse=True)
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scripts can be imported; papers/ has a module `common`, too, which is another one."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.delitem(sys.modules, "common", raising=False)


def test_bytes_are_held_against_the_papers_formula() -> None:
    """Two epochs on four slots: seven hops of each model, and a checkpoint."""
    from model_selection import bytes_of

    found = bytes_of({"slots": 4, "sent": 7 * 300, "saved": 300}, epochs=2)
    assert found == {"least": 1.0, "formula": pytest.approx(8 / 9)}


@pytest.mark.parametrize(
    ("way", "replicas", "at_hand", "fetched"),
    [
        ("hop", 0, 0, 3),
        ("hop", 2, 6, 0),
        ("copies", 0, 0, 9),
        ("copies", 1, 3, 6),
        ("copies", 2, 6, 3),
    ],
)
def test_nodes_fetch_what_they_lack(
    way: str, replicas: int, at_hand: int, fetched: int, tmp_path: Path, monkeypatch: Any
) -> None:
    import selection_remote
    import selection_task

    rows = (np.zeros((2, 3)), np.zeros(2))
    for module in (selection_remote, selection_task):
        monkeypatch.setattr(module, "shards", lambda slots: [rows] * slots)
        monkeypatch.setattr(module, "held", lambda: rows)
    case = selection_remote.Case(way, replicas)
    tables = case.laid_out(tmp_path, NAMES, "http://far")
    places = [(n, p) for at in tables["train"].values() for n, p in at.items()]
    urls = [path for _, path in places if path.startswith("http://far/s")]
    assert len(urls) == fetched
    assert len(places) - len(urls) == at_hand == len([*tmp_path.glob("n*/s*.npz")])
    for node, path in places:
        assert path in urls or Path(path).parent.name == node
    for url in urls:
        assert (tmp_path / "store" / url.rpartition("/")[2]).exists()


def test_what_the_store_sends_is_counted(tmp_path: Path) -> None:
    from selection_remote import serving

    (tmp_path / "s0").write_bytes(os.urandom(10_000))
    with serving(tmp_path, rate=1e9) as (url, traffic):
        with urllib.request.urlopen(f"{url}/s0") as answer:
            assert answer.read() == (tmp_path / "s0").read_bytes()
        end = monotonic() + 60  # a piece is counted after it was sent
        while traffic.sent < 10_000 and monotonic() < end:
            sleep(0.01)
        assert traffic.sent == 10_000


@pytest.mark.nightly  # the benchmark itself; what it makes of what it sees is tested above
def test_the_short_form(tmp_path: Path) -> None:
    """Storage, bytes, fetching and equality are as in the long form; times are not looked at."""
    pytest.importorskip("ray", reason="pip install 'shoal[ray]'")
    import selection_tables
    from selection_page import page

    env = os.environ | {"SHOAL_RESULTS": str(tmp_path), "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, str(BENCHMARKS / "model_selection.py"), "--quick"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "model_selection-quick.json").read_text())
    ratios = found["ratios"]
    assert ratios["copies_over_hop_storage_2"] == pytest.approx(2.0)
    assert ratios["copies_over_hop_fetched"] == pytest.approx(2.0)
    assert ratios["hop_bytes_over_least_2"] == pytest.approx(1.0, abs=0.05)
    assert ratios["hop_replayed_2"] is True
    accuracies = {row["way"]: row["mean_accuracy"][-1] for row in found["rows"]}
    assert min(accuracies.values()) > 0.5
    assert selection_tables.near(found["rows"]).count("\n") == 2 + 4 - 1
    assert len(page(found).data) > len(found["rows"])
