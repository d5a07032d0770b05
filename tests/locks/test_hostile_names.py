"""Names that would lead out of a folder, and texts that a terminal or a browser would act upon."""

import io
import re
import sys
import unicodedata
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from shoal import reporting
from shoal.cli import app
from shoal.core.event import Evaluated, Failed, Opened, Submitted
from shoal.core.trial import Trial, TrialId
from shoal.engine.journal import Journal, JournalError, decode, encode, read
from shoal.reporting.format import printable
from shoal.reporting.progress import write_line
from shoal.train.recipe.unit import LONGEST_REASON, TrialError

OUTSIDE = ["..", ".", "../../x", "/etc/x", "a/b", "a/", "a\\b", "a\0b", "a\nb", "a\x1bb"]


@pytest.mark.parametrize("name", [*OUTSIDE, "x" * 5000])
def test_a_trial_of_such_a_name_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="within the study's"):
        Trial(TrialId(name), 1.0)
    sound = encode(0.0, Submitted(Trial(TrialId("sound"), 1.0)))
    import json

    forged = sound.replace(b'"sound"', json.dumps(name).encode())
    with pytest.raises(JournalError, match="within the study's"):
        decode(forged)


@pytest.mark.parametrize("name", ["t0001", "..a", "a b", "<b>", "\u202eabc"])
def test_other_names_are_taken(name: str) -> None:
    assert Trial(TrialId(name), 1.0).id == name


# -- what a terminal or a browser would act upon ---------------------------------------------------

ESCAPES = "\x1b[2J\x1b]0;owned\x07\x9b31m\r\x08\u202e\u2066<script>alert(1)</script>\u200b\ufeff"
ACTED_UPON = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\u200b\ufeff]")


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A study whose names, values and errors hold such texts; one of them is 1 MB long."""
    trial, other = TrialId("t\u202e\u2066<script>alert(1)<script>"), TrialId("long")
    head = {"study": "s\u202e<script>", "metric": "loss" + ESCAPES, "mode": "min"}
    journal = Journal(tmp_path / "journal.jsonl")
    for entry in (
        Opened(1, {}, head),
        Submitted(Trial(trial, 1.0, {"lr" + ESCAPES: ESCAPES})),
        Submitted(Trial(other, 1.0, {"lr" + ESCAPES: "x" * 2**20})),
        Evaluated(trial, 1.0, {"loss" + ESCAPES: 0.5}),
        Failed(trial, f"ValueError: {ESCAPES}"),
        Failed(other, "x" * 2**20),
    ):
        journal.append(0.0, entry)
    journal.close()
    return tmp_path


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_the_terminal_gets_nothing_to_act_upon(hostile: Path, options: list[str]) -> None:
    done = CliRunner().invoke(app, ["status", str(hostile), *options])
    assert done.exit_code == 0, done.output
    assert "failed" in done.output
    assert not ACTED_UPON.search(done.output)


def test_an_error_gives_the_terminal_nothing_to_act_upon() -> None:
    done = CliRunner().invoke(app, ["status", f"/no/{ESCAPES}"])
    assert done.exit_code == 2
    assert "x1b[2J" in done.output
    assert not ACTED_UPON.search(done.output)


def test_the_table_and_the_lines_of_progress_have_nothing_to_act_upon(hostile: Path) -> None:
    text = io.StringIO()
    lines = list(read(hostile / "journal.jsonl"))
    Console(file=text, width=200).print(reporting.table(lines))
    write_line(text, ESCAPES)
    assert "x1b[2J" in text.getvalue()
    assert not ACTED_UPON.search(text.getvalue())


def test_the_report_escapes_them(hostile: Path) -> None:
    done = CliRunner().invoke(app, ["report", str(hostile)])
    assert done.exit_code == 0, done.output
    page = (hostile / "report.html").read_text()
    assert "<script>alert" not in page


def test_only_what_is_acted_upon_is_replaced() -> None:
    assert printable("a\tb\nä…\x1b\u202e\udc80") == "a\tb\nä…\\x1b\\u202e\\udc80"


def test_all_that_is_not_seen_is_replaced() -> None:
    """Of all of Unicode: format characters, and what is ignored by default where no font has it."""
    ignored = "\u034f\u115f\u1160\u17b4\u17b5\u180b\u3164\uffa0\ufe0f\U000e0100"
    visible = "\u0600-\u0605\u06dd\u070f\u0890\u0891\u08e2\U000110bd\U000110cd\U00013430-\U0001343f"
    signs = re.sub(
        f"[{visible}\U0001bca0-\U0001bca3]", "", "".join(map(chr, range(sys.maxunicode + 1)))
    )
    kinds = {"Cf", "Cs", "Zl", "Zp"}
    unseen = [sign for sign in signs if unicodedata.category(sign) in kinds]
    assert len(unseen) > 2000
    for sign in (*unseen, *ignored):
        assert sign not in printable(f"a{sign}b"), f"U+{ord(sign):04x}"
    seen = "aä中ع👩\u0301\t\n\u00a0"
    assert printable(seen) == seen


def test_a_reason_of_1_mb_is_shortened() -> None:
    why = TrialError("begin" + "." * 2**20 + "end").why
    assert len(why) <= LONGEST_REASON
    assert why.startswith("begin") and why.endswith("end")
