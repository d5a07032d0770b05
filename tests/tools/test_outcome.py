"""What a run says at its end: lines as wide as the terminal, paths as short as they can be."""

from pathlib import Path

import pytest

from shoal.tools.outcome import as_seen_from_here, folded

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


def test_paths_below_the_current_folder_are_shown_from_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert as_seen_from_here(tmp_path / "runs" / "x") == "runs/x"
    assert as_seen_from_here(str(tmp_path / "report.html")) == "report.html"
    assert as_seen_from_here(tmp_path.parent / "other") == str(tmp_path.parent / "other")
