"""`make audit`, where no service of advisories can be reached."""

import importlib.util
import json
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "audit.py"


@pytest.fixture
def audit() -> Any:
    spec = importlib.util.spec_from_file_location("audit", TOOL)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_licence_that_is_not_allowed_is_named(audit: Any) -> None:
    def package(**about: str) -> Any:
        values = SimpleNamespace(get=about.get, get_all=lambda name: [])
        return SimpleNamespace(metadata=values)

    found = {"good": package(License="MIT"), "bad": package(License="AGPL-3.0")}
    found["mute"] = package()
    named = list(audit.refused(found))
    assert [line.partition(":")[0] for line in named] == ["bad", "mute"]


@pytest.mark.parametrize(
    ("vulns", "status", "said"),
    [(None, 0, "skipped"), ([], 0, "0 with known holes"), ([{"id": "X-1"}], 1, "X-1")],
)
def test_holes_are_told_from_no_answer(
    audit: Any,
    vulns: Any,
    status: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    about = {"name": "a", "version": "1", "vulns": vulns}
    if vulns is None:
        about = {"name": "a", "skip_reason": "not found"}
    answer = SimpleNamespace(stdout=json.dumps({"dependencies": [about]}), stderr="")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: answer)
    assert audit.audit() == status
    assert said in capsys.readouterr().out


def test_an_answer_that_does_not_come_is_skipped(
    audit: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def late(*_: Any, **__: Any) -> None:
        raise subprocess.TimeoutExpired("pip-audit", 45)

    monkeypatch.setattr(subprocess, "run", late)
    assert audit.audit() == 0
    assert "skipped" in capsys.readouterr().out
