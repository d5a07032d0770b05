"""A real browser for the tests of the report and of the live page: `browser`, and `page` in it."""

import re
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium")
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PATIENCE = 60_000  # milliseconds that anything may take on a busy machine


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("there is no chromium here: apt-get install chromium")
    api = pytest.importorskip(
        "playwright.sync_api", reason="needs playwright: pip install playwright"
    )
    with api.sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield made
        made.close()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """A new window; it fails the test if a script failed or anything else was asked for."""
    window = browser.new_context(viewport={"width": 1400, "height": 900})
    made = window.new_page()
    made.set_default_timeout(PATIENCE)
    wrong: list[str] = []
    made.on("pageerror", lambda error: wrong.append(str(error)))
    made.on("dialog", lambda dialog: wrong.append(dialog.message))
    made.on("request", lambda asked: _check_local(asked.url, wrong))
    yield made
    window.close()
    assert not wrong


def _check_local(url: str, wrong: list[str]) -> None:
    if not re.match(r"http://127\.0\.0\.1:\d+/|data:|blob:|file:", url):
        wrong.append(url)
