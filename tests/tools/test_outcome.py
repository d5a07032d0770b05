"""What a run says at its end: lines as wide as the terminal, paths as short as they can be."""

import json
from pathlib import Path

import pytest

from shoal.tools import outcome
from shoal.tools.outcome import as_seen_from_here, echo, folded, show

LINE = "next:    shoal replay runs/digits   trains every trial again over its recorded visits"


def test_long_lines_are_broken_between_words_below_their_text() -> None:
    assert folded(f"{LINE}\n\n         short", 60).split("\n") == [
        "next:    shoal replay runs/digits   trains every trial again",
        "         over its recorded visits",
        "",
        "         short",
    ]


def test_lines_that_fit_stay_as_they_are() -> None:
    table = "name    a-b   3\n   0.97993 t011  (after epoch 6)"
    assert folded(table, 40) == table


def test_a_path_that_is_longer_than_a_line_stays_whole() -> None:
    path = "/somewhere/" + "deep/" * 20
    assert path in folded(f"report:  {path}", 40)


def test_only_lines_for_people_are_broken_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """JSON stays JSON, and a batch script the same script."""
    monkeypatch.setattr(outcome, "on_terminal", lambda: True)
    monkeypatch.setenv("COLUMNS", "40")
    figures = {"why": LINE}
    show(figures, True, lambda _: ())
    assert json.loads(capsys.readouterr().out) == figures
    echo(LINE)
    assert capsys.readouterr().out == f"{LINE}\n"
    show(figures, False, lambda _: [LINE])
    assert capsys.readouterr().out == f"{folded(LINE, 40)}\n" != f"{LINE}\n"


def test_paths_below_the_current_folder_are_shown_from_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert as_seen_from_here(tmp_path / "runs" / "x") == "runs/x"
    assert as_seen_from_here(str(tmp_path / "report.html")) == "report.html"
    assert as_seen_from_here(tmp_path.parent / "other") == str(tmp_path.parent / "other")
