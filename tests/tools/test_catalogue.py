"""`shoal data register` and `shoal data list`."""

import json
import platform
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from shoal.cli import app


def typed(*args: object, code: int = 0) -> str:
    done = CliRunner().invoke(app, ["data", *map(str, args)])
    assert done.exit_code == code, done.output
    return done.output


def test_files_are_registered_and_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b", "held"):
        np.savez(tmp_path / f"{name}.npz", x=np.zeros((5, 2)), y=np.arange(5))
    typed("register", "c.toml", "a.npz", f"file://{tmp_path}/b.npz")
    typed("register", "c.toml", "/far/a.npz", "--node", "n2")
    typed("register", "c.toml", "https://x.org/held.npz?v=1", "--node", "*", "--valid")
    typed("register", "c.toml", "held.npz", "--node", "*", "--valid", "--name", "more", code=2)
    typed("register", "c.toml", tmp_path / "held.npz", "--node", "*", "--valid")
    found = json.loads(typed("list", "c.toml", "--check", "--json"))
    assert found["nodes"] == ["local", "n2"]
    assert found["samples"] == 10
    assert [(row["part"], row["for"], row["samples"]) for row in found["parts"]] == [
        ("a", "train", 5),
        ("b", "train", 5),
        ("held", "valid", 5),
    ]
    assert found["parts"][0]["places"] == {"local": str(tmp_path / "a.npz"), "n2": "/far/a.npz"}
    text = typed("list", "c.toml")
    assert "2 training shards, 1 to validate on; local, n2" in text
    assert "n2: /far/a.npz" in text


def test_two_names_of_one_machine_are_no_two_copies(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros((5, 2)))
    file = tmp_path / "c.toml"
    typed("register", file, tmp_path / "a.npz")
    refused = typed("register", file, tmp_path / "a.npz", "--node", platform.node(), code=2)
    assert "a lies at local already" in refused and "is the same machine" in refused
    typed("register", file, tmp_path / "a.npz", "--node", "local")
    typed("register", file, "/far/a.npz", "--node", "n2")


def test_what_cannot_be_registered_is_one_error(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    assert "is not on this machine, which is local" in typed("register", file, "x.npz", code=2)
    wrong = typed("register", file, "x.npz", "--node", "n2", code=2)
    assert "at another node, n2, a path is absolute; got x.npz" in wrong
    twice = typed("register", file, "/a/x.npz", "/b/x.npz", "--node", "n2", code=2)
    assert "each shard needs a name of its own" in twice
    assert not file.exists()
    assert "cannot be read" in typed("list", file, code=2)
