"""docs/reliability.md: each test that it names is there, and each row has one."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "reliability.md").read_text()
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)))
ROWS = [
    line.strip("|").split(" | ")
    for line in PAGE.splitlines()
    if line.startswith("| ") and "---" not in line
]


def test_the_page_names_many_tests() -> None:
    assert len(NAMED) > 30


@pytest.mark.parametrize(("file", "name"), NAMED)
def test_a_named_test_exists(file: str, name: str) -> None:
    assert f"def {name}(" in (ROOT / file).read_text()


def test_each_fault_has_a_promise_a_test_and_a_result() -> None:
    faults = [row for row in ROWS if len(row) == 4 and row[0].strip() != "fault"]
    assert len(faults) > 30
    for fault, promise, test, result in faults:
        assert fault.strip() and promise.strip() and result.strip(), fault
        assert "::test_" in test, fault
