"""What happens to the trials, for Python's logging."""

import logging
from pathlib import Path
from typing import Any

import pytest

import shoal


def test_progress_is_logged_and_a_quiet_run_prints_nothing(
    tmp_path: Path, blobs: Any, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    study = shoal.create_study(blobs(fail=8), storage=tmp_path / "s")
    with caplog.at_level(logging.DEBUG, logger="shoal"):
        study.optimize(policy="fifo", progress=False)
    said = [(each.levelname, each.getMessage()) for each in caplog.records]
    assert all(each.name == "shoal" for each in caplog.records)
    scores = study.trials[0].scores[0][1]
    values = f"accuracy {scores['accuracy']:.6g}, loss {scores['loss']:.6g}"
    assert ("INFO", f"t000: epoch 1: {values}") in said
    assert ("INFO", "t000: finished") in said
    assert [level for level, text in said if text.startswith("t002: failed: ")] == ["WARNING"]
    assert any(level == "DEBUG" and "t001: kept as" in text for level, text in said)
    assert capsys.readouterr() == ("", "")


def test_nothing_is_shown_unless_logging_is_set_up() -> None:
    handlers = logging.getLogger("shoal").handlers
    assert any(isinstance(each, logging.NullHandler) for each in handlers)
