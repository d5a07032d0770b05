"""Whatever is asked of the page: it answers, and never with an error of its own (status 500)."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ui_kit import ORIGIN, client_of, many

from shoal.ui import actions

PATHS = ("", "list", "part/", "part/trial", "trials", "drawing/", "do", "static/", "..")
QUERIES = ("study", "trial", "sort", "down", "status", "text", "page", "name", "token")
TEXTS = st.one_of(
    st.text(max_size=30),
    st.sampled_from(["t0000", "curves", "slots", "log", "9" * 400, "../..", "\0", "%"]),
)
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), TEXTS),
    lambda inner: st.one_of(st.lists(inner), st.dictionaries(TEXTS, inner)),
    max_leaves=8,
)
DEEDS = st.sampled_from(["stop", "pause", "extend", "add", "clone", "none"])


class Ended:
    """A command that was not run."""

    returncode, stdout, stderr = 0, "done", ""


@pytest.fixture(autouse=True)
def no_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands are encoded as the system would, and not run."""

    def run(words: list[str], **_: Any) -> Ended:
        for word in words:
            os.fsencode(word)
        return Ended()

    monkeypatch.setattr(actions.subprocess, "run", run)


def fuzz(folder: Path, examples: int) -> None:
    client = client_of(folder)

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=examples <= 100,
        suppress_health_check=list(HealthCheck),
    )
    @given(
        st.sampled_from(PATHS),
        TEXTS,
        st.dictionaries(st.sampled_from(QUERIES), TEXTS),
        st.one_of(
            JSON.map(lambda said: json.dumps(said).encode()),
            st.builds(
                lambda deed, more: json.dumps({**more, "study": folder.name, "do": deed}).encode(),
                DEEDS,
                st.dictionaries(st.sampled_from(["trial", "values", "max_epochs", "cold"]), JSON),
            ),
            st.binary(max_size=100),
            st.sampled_from([b"[" * 90_000, b"x" * 200_000]),
        ),
        st.sampled_from(["application/json", "", "text/html"]),
    )
    def check(path: str, rest: str, query: dict[str, str], body: bytes, kind: str) -> None:
        place = f"/{path}"
        if path.endswith("/"):
            place += "".join(c for c in rest if c.isascii() and c.isalnum())
        assert client.get(place, params=query).status_code < 500
        sent = {**ORIGIN, "content-type": kind}
        assert client.post("/do", content=body, headers=sent).status_code < 500

    check()


def test_odd_requests_are_answered(tmp_path: Path) -> None:
    fuzz(many(tmp_path / "few", 3), 25)


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_many_odd_requests_are_answered(tmp_path: Path) -> None:
    fuzz(many(tmp_path / "few", 3), int(os.environ.get("FUZZ", "10000")))


def test_a_body_that_is_too_deep_is_no_request(tmp_path: Path) -> None:
    client = client_of(many(tmp_path / "few", 1))
    headers = {**ORIGIN, "content-type": "application/json"}
    answer = client.post("/do", content=b"[" * 90_000, headers=headers)
    assert answer.status_code == 400
