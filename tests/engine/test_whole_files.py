"""Files that are written whole or not at all."""

from pathlib import Path

import pytest

from shoal.engine.files import replaced, write_durably


def test_a_file_takes_the_place_of_the_old_one_at_the_end(tmp_path: Path) -> None:
    place = tmp_path / "notes.json"
    place.write_text("old")
    with replaced(place) as beside:
        beside.write_text("new")
        assert place.read_text() == "old"
    assert place.read_text() == "new"
    assert list(tmp_path.iterdir()) == [place]


def write_in_part(place: Path) -> None:
    place.write_text("ne")
    raise OSError("the disk is full")


def test_an_error_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    place = tmp_path / "notes.json"
    write_durably(place, b"old")
    with pytest.raises(OSError, match="full"), replaced(place) as beside:
        write_in_part(beside)
    assert place.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [place]
