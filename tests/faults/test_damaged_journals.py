"""Journals that were damaged: the error names the line and the remedy, and `shoal repair` mends."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from damage_kit import check_equal, pause_after
from fault_kit import Steady
from journal_kit import unsealed
from typer.testing import CliRunner

import shoal
from shoal.cli import app
from shoal.core.event import Opened
from shoal.engine.journal import Journal, JournalError, Tail, newest, read
from shoal.engine.mend import mend
from shoal.engine.sealed import number_of

pytestmark = pytest.mark.faults
Lines = list[bytes]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> shoal.Study:
    study = shoal.create_study(Steady(slow=0), storage=tmp_path_factory.mktemp("u") / "s")
    study.optimize(policy="hop", progress=False)
    return study


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a study that stopped half-way."""
    folder = tmp_path_factory.mktemp("half") / "s"
    study = shoal.create_study(Steady(slow=0), storage=folder)
    with pytest.MonkeyPatch.context() as patch:
        pause_after(study, 30, patch, policy="hop", checkpoint_every=0)
    return folder


def flipped(lines: Lines) -> Lines:
    """A digit in a line is another one: still JSON, still an entry, and wrong."""
    for at in range(len(lines) * 2 // 3, len(lines)):
        changed = lines[at].replace(b'"samples":{"t', b'"samples":{"s', 1)
        if changed != lines[at]:
            return [*lines[:at], changed, *lines[at + 1 :]]
    raise AssertionError("some line has samples")


def lost(lines: Lines) -> Lines:
    return lines[: len(lines) // 2] + lines[len(lines) // 2 + 1 :]


def doubled(lines: Lines) -> Lines:
    return [*lines[: len(lines) // 2], lines[len(lines) // 2 - 1], *lines[len(lines) // 2 :]]


def doubled_tail(lines: Lines) -> Lines:
    return lines + lines[-5:]


def swapped(lines: Lines) -> Lines:
    at = len(lines) // 2
    return [*lines[:at], lines[at + 1], lines[at], *lines[at + 2 :]]


def interleaved(lines: Lines) -> Lines:
    """Two runs that knew nothing of each other wrote in turn."""
    at = len(lines) - 6
    other = [line.replace(b'"t":', b'"t":1') for line in lines[at:]]
    mixed = [line for both in zip(lines[at:], other, strict=True) for line in both]
    return lines[:at] + mixed


def text_at_the_end(lines: Lines) -> Lines:
    return [*lines, b"what another program wrote\n"]


BROKEN = {
    flipped: "checksum is .*, and that of its content",
    lost: "is missing before it",
    doubled: "is there already",
    doubled_tail: "is there already",
    swapped: "is missing before it",
    interleaved: "checksum is .*, and that of its content",
    text_at_the_end: "carry a checksum, and this one does not",
}


@pytest.mark.parametrize("damage", BROKEN, ids=lambda each: each.__name__)
def test_damage_is_one_error_and_after_repair_the_study_goes_on(
    tmp_path: Path, half: Path, undisturbed: shoal.Study, damage: Callable[[Lines], Lines]
) -> None:
    folder = tmp_path / "s"
    shutil.copytree(half, folder)
    journal = folder / "journal.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(damage(lines)))
    for command in (["status", str(folder)], ["resume", str(folder)]):
        said = CliRunner().invoke(app, command)
        assert said.exit_code == 2 and said.exception.__class__ is SystemExit
        assert "Traceback" not in said.output
    with pytest.raises(JournalError, match=BROKEN[damage]) as error:
        _ = shoal.load_study(folder).trials
    assert "line " in str(error.value) and f"`shoal repair {folder}`" in str(error.value)

    said = CliRunner().invoke(app, ["repair", str(folder)])
    assert said.exit_code == 0, said.output
    damaged = journal.with_name("journal.damaged-1.jsonl")
    assert damaged.read_bytes() == b"".join(damage(lines))
    kept = journal.read_bytes().splitlines(keepends=True)
    assert kept == lines[: len(kept)]
    if damage in (doubled, doubled_tail, text_at_the_end):
        assert kept == lines, "nothing is lost"
    assert "the journal is sound" in CliRunner().invoke(app, ["repair", str(folder)]).output

    study = shoal.load_study(folder)
    study.recipe.slow = 0
    study.resume(progress=False)
    check_equal(study, undisturbed)


@pytest.mark.parametrize("line", [0, 1, 9], ids=["first", "head", "other"])
@pytest.mark.parametrize("bit", range(0, 8, 3))
def test_after_a_turned_bit_repair_loses_nothing(
    tmp_path: Path, half: Path, line: int, bit: int
) -> None:
    """The line says which bit that was: also of the head, without which nothing can be read."""
    folder = tmp_path / "s"
    shutil.copytree(half, folder)
    journal = folder / "journal.jsonl"
    sound = journal.read_bytes()
    lines = sound.splitlines(keepends=True)
    for at in (0, len(lines[line]) // 3, len(lines[line]) * 2 // 3, len(lines[line]) - 4):
        turned = bytearray(lines[line])
        turned[at] ^= 1 << bit
        if b"\n" in turned[:-1]:
            continue
        journal.write_bytes(b"".join([*lines[:line], bytes(turned), *lines[line + 1 :]]))
        for command in ("status", "resume", "report"):
            said = CliRunner().invoke(app, [command, str(folder)])
            assert said.exit_code == 2, said.output
            assert f"{journal}, line {line + 1}: " in said.stderr, said.stderr
            assert f"`shoal repair {folder}`" in said.stderr
        said = CliRunner().invoke(app, ["repair", str(folder)])
        assert said.exit_code == 0, said.output
        assert "1 line in which a bit had turned" in said.output
        assert journal.read_bytes() == sound


def test_a_first_line_without_a_checksum_is_made_anew(tmp_path: Path, half: Path) -> None:
    journal = tmp_path / "journal.jsonl"
    sound = (half / "journal.jsonl").read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join([b'{"shoal":"jourNal","schema":1}\n', *sound[1:]]))
    with pytest.raises(JournalError, match=r"journal.jsonl, line 1: .*`shoal repair"):
        list(read(journal))
    mend(journal)
    assert journal.read_bytes() == b"".join(sound)
    # One of another version, and a file that is no journal, stay as they are.
    for other in (b'{"shoal":"journal","schema":7}\n', b"x\n"):
        rest = sound[1:] if other[:1] == b"{" else [b"y\n"]
        journal.write_bytes(b"".join([other, *rest]))
        with pytest.raises(JournalError):
            mend(journal)
        assert journal.read_bytes().startswith(other)


@pytest.mark.parametrize("how", ["cut", "replaced"])
def test_a_journal_that_lost_its_newest_runs_goes_on_after_repair(
    tmp_path: Path, half: Path, undisturbed: shoal.Study, how: str
) -> None:
    """The checkpoints were marked by a run that the journal does not have any more."""
    folder = tmp_path / "s"
    shutil.copytree(half, folder)
    journal = folder / "journal.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    for _ in range(2):
        study = shoal.load_study(folder)
        study.recipe.slow = 0
        with pytest.MonkeyPatch.context() as patch:
            pause_after(study, 6, patch, policy="hop", checkpoint_every=0)
    if how == "cut":
        later = journal.read_bytes().splitlines(keepends=True)
        journal.write_bytes(b"".join(lost(lines) + later[len(lines) :]))
    else:
        journal.write_bytes(b"".join(lines))
        with pytest.raises(shoal.StudyError, match=f"`shoal repair {folder}`"):
            shoal.load_study(folder).resume(progress=False)

    said = CliRunner().invoke(app, ["repair", str(folder)])
    assert said.exit_code == 0 and "run 3 is not in the journal" in said.output
    assert ("cut before line" in said.output) is (how == "cut")
    again = CliRunner().invoke(app, ["repair", str(folder)])
    assert "run 3" not in again.output, "it was said, and mended"
    study = shoal.load_study(folder)
    study.recipe.slow = 0
    study.resume(progress=False)
    check_equal(study, undisturbed)


def test_zeros_at_the_end_are_a_torn_line(
    tmp_path: Path, half: Path, undisturbed: shoal.Study
) -> None:
    """As a power cut leaves them, where the file's length was written and its content was not."""
    folder = tmp_path / "s"
    shutil.copytree(half, folder)
    journal = folder / "journal.jsonl"
    whole = journal.read_bytes()
    journal.write_bytes(whole[: -len(whole) // 10] + bytes(len(whole) // 10 + 3000))
    study = shoal.load_study(folder)
    study.recipe.slow = 0
    study.resume(progress=False)
    check_equal(study, undisturbed)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "the journal beside them is gone or empty"),
        (b"\0" * 4096, "the journal beside them is gone or empty"),
        (b'{"some":"file"}\n', "is not a Shoal journal"),
        (b"\x89PNG\r\n\x1a\n\0\0\n" * 9, "is not a Shoal journal"),
        (None, "the journal beside them is gone or empty"),
    ],
    ids=["empty", "zeros", "json", "image", "none"],
)
def test_a_journal_that_is_none_begins_no_study_over_the_checkpoints_of_another(
    tmp_path: Path, half: Path, content: bytes | None, why: str
) -> None:
    folder = tmp_path / "s"
    shutil.copytree(half, folder)
    journal = folder / "journal.jsonl"
    journal.unlink()
    if content is not None:
        journal.write_bytes(content)
    before = set((folder / "checkpoints").rglob("*.pt"))
    with pytest.raises((shoal.StudyError, JournalError), match=why):
        _train(folder)
    assert set((folder / "checkpoints").rglob("*.pt")) == before


def _train(folder: Path) -> None:
    study = shoal.create_study(Steady(slow=0), storage=folder, load_if_exists=True)
    study.optimize(policy="hop", progress=False)


def test_a_journal_of_before_is_read_and_goes_on_with_checksums(
    tmp_path: Path, half: Path, undisturbed: shoal.Study
) -> None:
    folder = tmp_path / "s"
    shutil.copytree(half, folder)
    journal = folder / "journal.jsonl"
    journal.write_text(unsealed(journal.read_text()))
    old = journal.read_bytes().splitlines(keepends=True)
    assert {number_of(line) for line in old} == {None}
    study = shoal.load_study(folder)
    study.recipe.slow = 0
    study.resume(progress=False)
    check_equal(study, undisturbed)
    new = journal.read_bytes().splitlines(keepends=True)
    assert [number_of(line) for line in new[len(old) :]] == list(range(len(old) + 1, len(new) + 1))


def test_each_bit_of_a_journal_counts(tmp_path: Path, half: Path) -> None:
    """Whatever bit is flipped, what is read is an error, or what was written."""
    path = tmp_path / "journal.jsonl"
    lines = (half / "journal.jsonl").read_bytes().splitlines(keepends=True)[:12]
    whole = b"".join(lines)
    path.write_bytes(whole)
    entries = list(read(path))
    for at in range(0, len(whole), 7):
        data = bytearray(whole)
        data[at] ^= 1 << at % 8
        path.write_bytes(data)
        try:
            found = list(read(path))
        except JournalError:
            continue
        assert found == entries[: len(found)], at
        assert len(found) == len(entries) or at >= len(whole) - len(lines[-1]), at


def test_who_reads_a_journal_in_other_ways_notices_damage(tmp_path: Path, half: Path) -> None:
    path = tmp_path / "journal.jsonl"
    lines = (half / "journal.jsonl").read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(flipped(lines)))
    with pytest.raises(JournalError, match=r"line \d+: .*checksum"):
        Tail(path).lines()
    path.write_bytes(b"".join([lines[0], lines[1].replace(b'"run":1', b'"run":7')]))
    with pytest.raises(JournalError, match="checksum"):
        newest(path, Opened)


def test_a_sound_journal_is_left_as_it_is(tmp_path: Path, half: Path) -> None:
    path = tmp_path / "journal.jsonl"
    shutil.copy(half / "journal.jsonl", path)
    before = path.read_bytes()
    assert mend(path).copy is None
    assert path.read_bytes() == before and [file.name for file in tmp_path.iterdir()] == [path.name]


def test_a_journal_that_is_deleted_or_moved_while_it_is_written_is_an_error(tmp_path: Path) -> None:
    """The system would write on into a file that has no name any more."""
    for away in (Path.unlink, lambda path: path.rename(tmp_path / "elsewhere")):
        path = tmp_path / "journal.jsonl"
        journal = Journal(path)
        journal.append(0.0, Opened(1, {}, {}))
        journal.sync()
        away(path)
        journal.append(1.0, Opened(2, {}, {}))
        with pytest.raises(FileNotFoundError, match="deleted or moved while the study ran"):
            journal.sync()
