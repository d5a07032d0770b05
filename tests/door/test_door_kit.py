"""The door's kit finds what it is to find."""

from pathlib import Path

import door_kit as kit
import numpy as np


def test_lines_of_code_are_counted_without_prose(tmp_path: Path) -> None:
    file = tmp_path / "code.py"
    prose = '"""Two\nlines."""\n\n# a comment\n'
    code = 'x = (\n    1,\n)\n\n\ndef f():\n    """Doc."""\n    return x\n'
    file.write_text(prose + code)
    assert kit.gallery.code_lines(file) == 5


def test_trees_differ_where_a_bit_does() -> None:
    one = {"a": [np.float32([1, 2]), None], "b": float("nan")}
    same = {"a": [np.float32([1, 2]), None], "b": float("nan")}
    assert list(kit.differences(one, same)) == []
    other = {"a": [np.float32([1, np.nextafter(np.float32(2), 3)]), None], "b": 1.0}
    assert [place.split(":")[0] for place in kit.differences(one, other)] == [".a[0]", ".b"]
    assert list(kit.differences(one, {"a": []}))
