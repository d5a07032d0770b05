"""What a stranger nests deeply is refused, before anything calls itself as often."""

from typing import Any

import pytest

from shoal.engine.journal import JournalError, decode
from shoal.engine.small import DEEPEST, decoded


def nested(deep: int) -> bytes:
    return b"[" * deep + b"1" + b"]" * deep


@pytest.mark.parametrize("deep", [DEEPEST + 1, 450, 900, 10**5])
def test_deeply_nested_values_are_refused(deep: int) -> None:
    with pytest.raises(ValueError, match="deep|recursion"):
        decoded(b'{"config":' + nested(deep) + b"}", dict[str, Any])
    line = b'{"d":{"who":"searcher","memory":' + nested(deep) + b'},"e":"Remembered","t":1}'
    with pytest.raises(JournalError, match="deep|recursion"):
        decode(line)


def test_what_is_nested_a_little_is_read() -> None:
    assert decoded(b'{"a":' + nested(20) + b"}", dict[str, Any])
    many = b'{"a":[' + b",".join([b"[1]"] * 1000) + b"]}"
    assert len(decoded(many, dict[str, Any])["a"]) == 1000
