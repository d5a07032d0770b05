"""The notebook of the examples, in a kernel of its own."""

import os
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
AGAIN = """
import shoal
study = shoal.load_study("runs/notebook")
study.resume()
study.clone("t000", {"lr": 0.02}, max_epochs=8)
study.resume()
print(type(study.best_model()).__name__, len(study.trials), study.trials[-1].epochs)
"""


def executed(book: Any, folder: Path) -> Any:
    """The notebook with its outputs; an error in a cell is raised."""
    nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed")
    pytest.importorskip("ipykernel", reason="ipykernel is not installed")
    client = nbclient.NotebookClient(
        book, timeout=200, resources={"metadata": {"path": str(folder)}}
    )
    return client.execute()


def texts(book: Any) -> list[str]:
    """What the cells show as text."""
    shown = []
    for cell in book.cells:
        for output in cell.get("outputs", ()):
            text = output.get("text") or output.get("data", {}).get("text/plain", "")
            shown.append(text)
    return shown


@pytest.mark.slow
def test_the_notebook_runs_and_its_study_is_opened_in_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed")
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    book = nbformat.read(ROOT / "examples" / "digits.ipynb", as_version=4)
    nbformat.validate(book)
    shown = texts(executed(book, tmp_path))
    displays = [text for text in shown if "8 of 8 done" in text]
    assert len(displays) == 2, "each run has one display, which shows its end"
    assert [text for text in shown if " of 8 done" in text] == displays, "no other frame"
    assert all("100 %" in text and "best" in text for text in displays)
    assert any("config.width" in text for text in shown), "the table"
    assert any("of all images are recognised" in text for text in shown)
    assert (tmp_path / "runs" / "notebook" / "report.html").is_file()
    charts = [
        output
        for cell in book.cells
        for output in cell.get("outputs", ())
        if "application/vnd.plotly.v1+json" in output.get("data", {})
    ]
    assert len(charts) == 1

    other = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(AGAIN)])
    assert "Sequential 9 8.0" in "".join(texts(executed(other, tmp_path)))
