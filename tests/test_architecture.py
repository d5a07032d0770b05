"""tools/architecture.py finds what docs/architecture.md names wrongly."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))
import architecture


def test_the_page_and_the_picture_are_those_of_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["architecture.py", "--check"])
    assert architecture.main() == 0


@pytest.mark.parametrize("wrong", ["`shoal/cli.py:1` `nobody`", "`shoal/none.py:1` `main`"])
def test_a_place_that_is_not_there_is_told(wrong: str) -> None:
    assert architecture.placed(f"1. {wrong}: …")[1] == [wrong]


def test_lines_are_those_of_today() -> None:
    page, lost = architecture.placed("`shoal/cli.py:1` `main`")
    line = int(page.split(":")[1].split("`")[0])
    text = Path(architecture.ROOT / "shoal/cli.py").read_text().splitlines()
    assert not lost and text[line - 1].startswith("def main(")


def test_another_room_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = tmp_path / "picture.svg"
    other.write_text(architecture.picture().replace(">study<", ">office<"))
    monkeypatch.setattr(architecture, "PICTURE", other)
    monkeypatch.setattr(sys, "argv", ["architecture.py", "--check"])
    assert architecture.main() == 1
