"""Secrets in configurations are shown nowhere, and stay where trials need them."""

import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

import shoal
from shoal.callbacks.logger import loggers_of
from shoal.cli import app
from shoal.core.masking import masked_config
from shoal.reporting.format import config as config_text
from shoal.reporting.format import printable

LEAK = "sk-LEAK-123"
SECRETS: dict[str, Any] = {
    "api_key": LEAK,
    "apiKey": LEAK,
    "HF_TOKEN": LEAK,
    "token": [1, LEAK],
    "db.password": 12345678987,
    "AWSSecretAccessKey": LEAK,
    "credentials": {"user": "me", "x": LEAK},
    "store": f"postgres://me:{LEAK}@host:1/x?api_key={LEAK}&y=1",
    "stores": ["s3://a/b", f"https://:{LEAK}@host"],
    "inner": {"secret": LEAK},
}
SHOWN: dict[str, Any] = {
    "lr": 0.1,
    "tokenizer": "bpe",
    "max_tokens": 512,
    "pad_token": "[PAD]",
    "key_dim": 64,
    "key": 3,
    "monkey": "x",
    "keyboard": "y",
    "secret_sharing": None,
    "use_token": True,
    "url": "http://host:8080/a@b?page=2",
}


def train(config: Any) -> float:
    assert config["api_key"] == LEAK
    return float(config["lr"])


def test_values_of_secret_names_are_masked_and_others_not() -> None:
    shown = masked_config(SECRETS)
    assert LEAK not in json.dumps(shown) and "12345678987" not in json.dumps(shown)
    assert shown["store"] == "postgres://me:***@host:1/x?api_key=***&y=1"
    assert shown["stores"][0] == "s3://a/b"
    assert masked_config(SHOWN) == SHOWN
    assert LEAK not in config_text(SECRETS)
    assert printable(f"cannot reach redis://u:{LEAK}@h") == "cannot reach redis://u:***@h"


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> shoal.Study:
    folder = tmp_path_factory.mktemp("secrets") / "s"
    space = {"lr": shoal.grid([0.1, 0.2]), "api_key": LEAK}
    space["store"] = SECRETS["store"]
    made = shoal.create_study(train, storage=folder, metric="value", search_space=space)
    made.optimize(progress=False)
    return made


def test_the_journal_has_it_and_reports_do_not(study: shoal.Study) -> None:
    folder = study.folder.path
    assert LEAK in (folder / "journal.jsonl").read_text()
    assert study.best_config["api_key"] == LEAK
    study.report()
    assert LEAK not in (folder / "report.html").read_text()
    for command in (["status"], ["status", "--json"], ["report"], ["compare"]):
        done = CliRunner().invoke(app, [*command, str(folder)])
        assert LEAK not in done.output, command
        assert command != ["status", "--json"] or '"***"' in done.output


def test_the_page_does_not_show_it(study: shoal.Study) -> None:
    from shoal.ui import parts, table
    from shoal.ui.app import curve_drawing, slot_drawings
    from shoal.ui.studies import Shelf

    (live,) = Shelf(study.folder.path).studies().values()
    seen = live.seen()
    row = seen.ranked[0]
    shown = [
        parts.heading(live, seen, ""),
        parts.decisions(live, seen),
        parts.trial(live, row),
        parts.new_trial(seen),
        json.dumps(table.answer(seen, table.Question("api_key", False, "", "", 0))),
        json.dumps(curve_drawing(seen, "", [])),
        json.dumps(slot_drawings(seen)),
    ]
    assert LEAK not in "".join(shown)
    assert "data-secret" in parts.trial(live, row)


@pytest.mark.parametrize("name", ["csv", "tensorboard", "mlflow", "wandb"])
def test_loggers_do_not_export_it(name: str, tmp_path: Path) -> None:
    pytest.importorskip(name)
    (logger,) = loggers_of(name)
    sink: Any = vars(logger)["sink"]
    folder = SimpleNamespace(path=tmp_path)
    config = {"lr": 0.1, "api_key": LEAK, "store": SECRETS["store"]}
    scores = [(1.0, {"loss": 0.5})]
    trial = SimpleNamespace(
        id="t000", status="finished", config=config, scores=scores, folder=folder
    )
    sink.open(trial, tmp_path / name)
    sink.write(trial, *scores[0])
    sink.end(trial)
    sink.close()
    exported = "*.wandb" if name == "wandb" else "*"
    deadline = time.monotonic() + 30
    written = b""
    while b"***" not in written and time.monotonic() < deadline:  # W&B writes later
        time.sleep(0.05)
        files = [file for file in tmp_path.rglob(exported) if file.is_file()]
        written = b"".join(file.read_bytes() for file in files)
    assert b"***" in written and LEAK.encode() not in written
