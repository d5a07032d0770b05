"""What a trial prints: beginning and end are kept, and what was left out is said."""

from pathlib import Path

import pytest

from shoal.engine import printed
from shoal.engine.printed import PrintedLog


def test_of_100_mb_the_beginning_and_the_end_are_kept(tmp_path: Path) -> None:
    """Over several processes, each of which opens the log again."""
    place = tmp_path / "t" / "log.txt"
    line, lines = "x" * 9_990, 10_000
    for begin in range(0, lines, 1000):
        log = PrintedLog(place)
        for number in range(begin, begin + 1000):
            log.write(f"{number:08d} {line}\n")
        log.close()
    parts = {each.name: each.read_bytes() for each in place.parent.iterdir()}
    assert parts.keys() == {"log.0.txt", "log.1.txt", "log.txt"}
    assert max(map(len, parts.values())) <= printed.PART_BYTES
    assert parts["log.0.txt"].startswith(b"00000000 ")
    note, rest = parts["log.txt"].split(b"\n", 1)
    assert rest.splitlines()[-1].startswith(b"00009999 ")
    former = parts["log.1.txt"].split(b"\n", 1)[1]
    cut = int(note.split()[1])
    kept = len(parts["log.0.txt"]) + len(former) + len(rest)
    assert cut + kept == 10_000 * lines, "what is left out is counted to the byte"


def test_one_text_of_100_mb_is_cut_in_its_middle(tmp_path: Path) -> None:
    log = PrintedLog(tmp_path / "log.txt")
    log.write("begin" + "." * 10**8 + "end\n")
    log.close()
    text = (tmp_path / "log.txt").read_text()
    assert len(text) <= printed.PART_BYTES
    assert text.startswith("begin.") and text.endswith(".end\n")
    assert "bytes are left out here]" in text


@pytest.mark.parametrize("text", ["\udcff\n", "\x1b[2J\0ä\n"])
def test_any_text_is_written(tmp_path: Path, text: str) -> None:
    log = PrintedLog(tmp_path / "log.txt")
    log.write(text)
    log.close()
    written = (tmp_path / "log.txt").read_bytes()
    assert written == text.encode("utf-8", "backslashreplace")
