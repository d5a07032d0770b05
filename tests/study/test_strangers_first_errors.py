"""What those who come from other tools are told when they try Shoal as they are used to."""

import re
import runpy
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import shoal
from shoal.cli import app
from shoal.core.errors import StudyError
from shoal.search import parse
from shoal.ui.parts import studies
from shoal.ui.studies import LiveStudy


def test_a_database_is_no_storage(tmp_path: Path) -> None:
    places = {
        "sqlite:///waves.db": "storage='runs/waves'",
        "sqlite:////data/my waves.db": "storage='runs/my waves'",
        "postgresql+psycopg2://me:secret@host/waves": "storage='runs/waves'",
        "mysql://host:3306/waves?x=1": "storage='runs/waves'",
        "redis://": "storage='runs/my-study'",
        "redis://:secret@host:6379": "storage='runs/my-study'",
        "mysql://me:se/secret@host": "storage='runs/my-study'",
        "sqlite:///:memory:": "storage='runs/my-study'",
    }
    for place, instead in places.items():
        with pytest.raises(StudyError, match="in a folder, not in a database") as error:
            shoal.create_study(lambda config: 1.0, storage=place, metric="loss")
        assert str(error.value).endswith(instead) and "secret" not in str(error.value)
    storage = type("RDBStorage", (), {"__module__": "optuna.storages._rdb.storage"})()
    with pytest.raises(StudyError, match="not in a database; got RDBStorage"):
        shoal.create_study(lambda config: 1.0, storage=storage, metric="loss")
    with pytest.raises(StudyError, match="a folder that this process can append to"):
        shoal.create_study(lambda config: 1.0, storage="memory://waves", metric="loss")


def test_each_wrong_argument_of_a_searcher_has_its_hint() -> None:
    hints = {
        "median(n_startup_trials=5)": "(did you mean min_trials?)",
        "median(n_startup_trials=5, n_warmup_steps=2)": (
            "(did you mean min_trials by n_startup_trials, grace_period by n_warmup_steps?)"
        ),
        "asha(min_resource=1, max_resource=9)": (
            "(did you mean grace_period by min_resource, max_epochs by max_resource?)"
        ),
    }
    for text, hint in hints.items():
        with pytest.raises(ValueError, match=re.escape(hint)):
            parse(text)


def test_a_function_that_kept_nothing_is_told_how_to(tmp_path: Path) -> None:
    study = shoal.create_study(
        lambda config: config["x"],
        storage=tmp_path / "s",
        metric="loss",
        mode="min",
        search_space={"x": shoal.grid([1.0])},
    )
    study.optimize(progress=False)
    for ask in (lambda: study.checkpoint("t000"), study.best_model):
        with pytest.raises(StudyError, match=r"t000 kept no checkpoint: shoal.report\(…, check"):
            ask()


def test_a_function_that_failed_says_why_it_kept_nothing(tmp_path: Path) -> None:
    def train(config: dict[str, Any]) -> None:
        shoal.report({"loss": 1.0}, checkpoint={"x": 1 / config["x"]})

    study = shoal.create_study(
        train, storage=tmp_path / "s", metric="loss", search_space={"x": shoal.grid([1.0, 0.0])}
    )
    study.optimize(max_epochs=1, progress=False)
    assert study.checkpoint("t000") == {"x": 1.0}
    for ask in (study.checkpoint, study.load_model):
        with pytest.raises(StudyError, match="t001 kept no checkpoint; it failed: ZeroDivision"):
            ask("t001")


@pytest.mark.parametrize("command", ["check", "run"])
def test_a_search_at_module_level_is_to_be_guarded(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("search.py").write_text(
        "import shoal\n"
        "def train(config):\n    return config['x']\n"
        "def main():\n"
        "    return shoal.create_study(train, storage='s', metric='loss', mode='min',\n"
        "                              search_space={'x': shoal.grid([1.0])})\n"
        "study = main()\n"
        "study.optimize(progress=False)\n"
    )
    runpy.run_path("search.py", run_name="__main__")
    result = CliRunner().invoke(app, [command, "search.py:train"])
    told = " ".join(result.output.split())
    assert result.exit_code != 0
    assert 'put the search in search.py under if __name__ == "__main__"' in told
    assert "s holds a study already)" in told and "load_if_exists" not in told


def test_status_and_page_say_that_every_trial_failed(tmp_path: Path) -> None:
    def broken(config: dict[str, Any]) -> float:
        raise ValueError("no")

    study = shoal.create_study(
        broken, storage=tmp_path / "s", metric="loss", search_space={"x": shoal.grid([1, 2])}
    )
    with pytest.raises(StudyError):
        study.optimize(progress=False)
    status = CliRunner().invoke(app, ["status", str(tmp_path / "s")]).output
    assert "every trial failed" in status
    live = LiveStudy("s", study.folder)
    row = studies([(live, live.seen(), 0.0)])
    assert "every trial failed" in row and "chip failed" in row and "finished" not in row
    assert '<span class="chip failed">every trial failed' in study.report().read_text()
