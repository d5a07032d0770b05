"""The file for sbatch."""

import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.harvest.script import batch_script, check_time


def test_what_is_asked_for_then_what_is_run():
    asked = {"nodes": "2", "requeue": None, "time": "1-12:00", "output": "a-%j.txt"}
    assert batch_script(asked, ["module load cuda"], ["shoal", "run", "--space", "a=1 2"]) == (
        "#!/bin/bash\n"
        "#SBATCH --nodes=2\n"
        "#SBATCH --requeue\n"
        "#SBATCH --time=1-12:00\n"
        "#SBATCH --output=a-%j.txt\n"
        "\n"
        "module load cuda\n"
        "exec shoal run --space 'a=1 2'\n"
    )


@settings(max_examples=30)
@given(st.lists(st.text(st.characters(codec="utf-8", categories=["L", "N", "P", "S", "Zs"]))))
def test_the_shell_sees_the_words_as_they_were(words):
    words = [each for each in words if each.isprintable()]
    text = batch_script({"comment": 'a "b" # $(c)'}, [], ["printf", r"%s\0", *words])
    done = subprocess.run(["bash"], input=text.encode(), capture_output=True, check=True)
    seen = done.stdout.decode().split("\0")[:-1]
    assert seen == (words or [""])


def test_values_with_blanks_are_quoted():
    text = batch_script({"comment": 'a "b" \\ #c'}, [], ["true"])
    assert r'#SBATCH --comment="a \"b\" \\ #c"' in text.splitlines()


@pytest.mark.parametrize(
    ("asked", "before", "command"),
    [
        ({"comment": "a\n#SBATCH --nodes=9"}, [], ["true"]),
        ({"a b": "1"}, [], ["true"]),
        ({"nodes=2\n": None}, [], ["true"]),
        ({}, ["a\nb"], ["true"]),
        ({}, [], ["a\nb"]),
    ],
    ids=str,
)
def test_what_would_be_another_line_is_refused(asked, before, command):
    with pytest.raises(ValueError, match="one line|NAME=VALUE"):
        batch_script(asked, before, command)


@pytest.mark.parametrize("text", ["90", "1:30", "1:30:00", "2-12", "2-12:30", "1-0:0:5"])
def test_time_limits(text):
    check_time(text)


@pytest.mark.parametrize("text", ["", "1h", "1:2:3:4", "-5", "2-", "½", "1 "])
def test_what_is_no_time_limit(text):
    with pytest.raises(ValueError, match="--time takes minutes"):
        check_time(text)
