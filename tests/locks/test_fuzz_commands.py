"""Whatever a study's journal says: a command that reads it answers, or refuses by one clear error.

The journals are sound ones of stored studies, in which values were exchanged, left out, doubled
or moved. They have no checksums, as a former version wrote them, so that nothing but the values
themselves tells. `make fuzz` is the full form.
"""

import copy
import json
import os
import shutil
import tarfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fuzz_kit import Tally, little_memory, tries
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import shoal
from shoal.cli import app
from shoal.engine.journal import JournalError
from shoal.study.head import rebuild
from shoal.study.study import Study

QUICK = 8
MORE = 512  # MiB
STORED = Path(__file__).parents[1] / "stored"
AIMS = {"aims": {"a": ["accuracy", "max"], "b": ["loss", "min"]}, "metric": None}
ODD: list[Any] = [
    None,
    True,
    -1,
    0,
    17,
    0.5,
    -1e308,
    10**30,
    "",
    "t0001",
    "../../x",
    "a" * 5000,
    "\x1b[2J\u202e<script>",
    [],
    [[]],
    ["a"],
    [["a", ["b"]], 3],
    {},
    {"a": 1},
    {"name": "x"},
    {"~": "nan"},
    {"~": "inf"},
]


def journal(name: str) -> list[Any]:
    """The lines of a stored study's journal, without checksums."""
    with tarfile.open(STORED / f"{name}.tar.xz") as archive:
        file = archive.extractfile(f"{name}/journal.jsonl")
        assert file is not None
        lines = [json.loads(line) for line in file]
    for line in lines:
        line.pop("n", None)
        line.pop("c", None)
    return lines


NAMES = ("by-hand", "failures", "pbt", "ray-elastic", "stopped-hop", "stopped-asha")
SOUND = [journal(name) for name in NAMES]
for number in (0, 1):  # and two of studies whose recipes have metrics of their own
    forged = copy.deepcopy(SOUND[number])
    for each in forged:
        if each.get("e") == "Opened":
            each["d"]["head"].update(AIMS)
    SOUND.append(forged)


Change = tuple[str, int, int, int]


def changes() -> st.SearchStrategy[list[Change]]:
    """What happens to a journal, one thing after the other. Heads are changed often."""
    number = st.integers(0, 2**20)
    kinds = st.sampled_from(("head", "head", "value", "value", "drop", "line", "move"))
    return st.lists(st.tuples(kinds, number, number, number), min_size=1, max_size=3)


def changed(lines: list[Any], what: list[Change]) -> list[Any]:
    """The journal after all of that."""
    lines = copy.deepcopy(lines)
    for kind, first, second, third in what:
        places = list(range(1, len(lines)))
        if kind == "head":
            places = [n for n in places if lines[n]["e"] == "Opened"] or places
        if not places:
            break
        at = places[first % len(places)]
        if kind == "line":
            del lines[at]
        elif kind == "move":
            lines.insert(1 + second % len(lines), copy.deepcopy(lines[at]))
        else:
            holders = list(_holders(lines[at]["d"]))
            if not holders:
                continue
            holder, key = holders[second % len(holders)]
            if kind == "drop":
                del holder[key]
            else:
                holder[key] = copy.deepcopy(ODD[third % len(ODD)])
    return lines


def written(lines: list[Any]) -> bytes:
    """The journal's file."""
    return b"".join(json.dumps(line, separators=(",", ":")).encode() + b"\n" for line in lines)


def _holders(value: Any) -> Any:
    """Each value within this one, as what holds it and its key there."""
    keys = value if isinstance(value, dict) else ()
    if isinstance(value, list):
        keys = range(len(value))
    for key in keys:
        yield value, key
        yield from _holders(value[key])


# -- what reads a study ----------------------------------------------------------------------------


def _typed(*words: str) -> Callable[[Path], bool]:
    """A command as it is typed; whether it refused the study."""

    def run(folder: Path) -> bool:
        done = CliRunner().invoke(app, [word.replace("DIR", str(folder)) for word in words])
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        assert "Traceback" not in done.output
        said = done.stderr
        if done.exit_code == 0:
            return False
        assert done.exit_code == 2, done.output
        errors = [line for line in said.splitlines() if line.startswith("error: ")]
        assert len(errors) == 1 and len(said) < 5000, said
        return True

    return run


def _in_python(read: Callable[[Study], Any]) -> Callable[[Path], bool]:
    """What is asked of a study in Python; whether it was refused."""

    def run(folder: Path) -> bool:
        try:
            read(shoal.load_study(folder))
        except (shoal.StudyError, JournalError) as error:
            said = str(error)
        else:
            return False
        assert 0 < len(said) < 5000
        return True

    return run


READ: dict[str, Callable[[Path], bool]] = {
    "shoal status": _typed("status", "DIR"),
    "shoal status --json": _typed("status", "DIR", "--json"),
    "shoal report": _typed("report", "DIR"),
    "shoal resume": _typed("resume", "DIR"),
    "shoal replay": _typed("replay", "DIR"),
    "shoal repair": _typed("repair", "DIR"),
    "shoal add": _typed("add", "DIR", "width=4"),
    "shoal add --from": _typed("add", "DIR", "--from", "t000"),
    "shoal extend": _typed("extend", "DIR", "t000", "--max-epochs", "99"),
    "shoal stop": _typed("stop", "DIR", "t000"),
    "shoal slots": _typed("slots", "DIR", "add", "1"),
    "trials": _in_python(lambda study: [study.trials, study.trials_dataframe()]),
    "best_trial": _in_python(lambda study: [study.best_trial, study.best_config]),
    "learning_curves": _in_python(lambda study: study.learning_curves()),
    "load_model": _in_python(lambda study: study.load_model("t000")),
    "deciders of resume": _in_python(lambda study: rebuild(study.folder.head())),
}


def fuzz(name: str, folder: Path, examples: int) -> Tally:
    tally = Tally()

    @tries(examples, QUICK)
    @given(st.sampled_from(SOUND), changes())
    def check(lines: list[Any], what: list[Change]) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        (folder / "journal.jsonl").write_bytes(written(changed(lines, what)))
        tally.examples += 1
        with little_memory(MORE), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tally.refused += READ[name](folder)

    before = warnings.showwarning
    try:
        check()
    finally:
        warnings.showwarning = before
    return tally


@pytest.mark.parametrize("name", READ)
def test_a_forged_journal_is_answered(name: str, tmp_path: Path) -> None:
    fuzz(name, tmp_path / "s", QUICK)


def forge(folder: Path, **head: Any) -> Path:
    """A study whose newest run's head says that; what is `...` is not in it."""
    lines = copy.deepcopy(SOUND[0])
    opened = [line for line in lines if line.get("e") == "Opened"]
    said = opened[-1]["d"]["head"]
    said |= head
    for name in [name for name in said if said[name] is ...]:
        del said[name]
    folder.mkdir()
    (folder / "journal.jsonl").write_bytes(written(lines))
    return folder


@pytest.mark.parametrize("searcher", [..., None, 3, ["x"], {"name": ["x"]}])
def test_what_decides_must_be_as_shoal_writes_it(tmp_path: Path, searcher: Any) -> None:
    folder = forge(tmp_path / "s", searcher=searcher)
    with pytest.raises(shoal.StudyError, match="what Shoal does not write"):
        rebuild(shoal.load_study(folder).folder.head())


@pytest.mark.parametrize(
    "head",
    [
        {"aims": 3},
        {"aims": [["a", "max"]]},
        {"aims": {"a": "max"}},
        {"aims": {"a": ["x", "max", "y"]}},
        {"space": {"dimensions": [["lr"]]}},
        {"seed": "x"},
        {"recipe": "x"},
        {"options": 3},
    ],
    ids=str,
)
def test_a_head_must_be_as_shoal_writes_it(tmp_path: Path, head: Any) -> None:
    folder = forge(tmp_path / "s", **head)
    for command in ("resume", "replay", "trials"):
        if command == "trials":
            with pytest.raises(shoal.StudyError, match="what Shoal does not write"):
                _ = shoal.load_study(folder).trials
        else:
            done = CliRunner().invoke(app, [command, str(folder)])
            assert done.exit_code == 2
            assert done.stderr.startswith("error: the journal says of its newest run")


@pytest.mark.parametrize(
    ("head", "refused"),
    [({"metric": None, "aims": {"a": [{"x": 1}, "max"]}}, False), ({"mode": "a" * 10_000}, True)],
    ids=["aims", "mode"],
)
def test_status_reads_what_a_head_may_say(
    tmp_path: Path, head: dict[str, Any], refused: bool
) -> None:
    assert READ["shoal status"](forge(tmp_path / "s", **head)) is refused


def test_a_trial_whose_shards_no_run_has_is_not_extended(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    folder.mkdir()
    lines = [copy.deepcopy(line) for line in SOUND[0] if line.get("e") != "Opened"]
    (folder / "journal.jsonl").write_bytes(written(lines))
    assert READ["shoal extend"](folder), "refused by one error"


def test_the_name_of_a_checkpoint_may_be_long(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    folder.mkdir()
    lines = copy.deepcopy(SOUND[0])
    [line for line in lines if line.get("e") == "Kept"][-1]["d"]["name"] = "a" * 10_000
    (folder / "journal.jsonl").write_bytes(written(lines))
    assert READ["shoal status"](folder), "refused by one short error"
    assert not READ["shoal repair"](folder), "cut before that line"


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("name", READ)
def test_many_forged_journals_are_answered(name: str, tmp_path: Path) -> None:
    tally = fuzz(name, tmp_path / "s", int(os.environ.get("FUZZ", "10000")))
    table = os.environ.get("FUZZ_TABLE")
    if table is not None:
        with open(table, "a", encoding="utf-8") as file:
            file.write(tally.line(name) + "\n")
