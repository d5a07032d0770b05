"""The drawings of a report in a real browser, with the bundle of plotly.js that Shoal brings."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shoal import reporting
from shoal.engine.journal import Line
from shoal.reporting.html import POLICY, plotly_source

CHROMIUM = shutil.which("chromium")
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
VENDOR = Path(reporting.__file__).parent / "vendor"
HEAD = re.compile(r"plotly\.js v(\S+) with these kinds of traces: (.+)")


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


@pytest.mark.parametrize("name", ["hopping", "packed", "many"])
def test_a_browser_draws_all_that_is_in_sight(
    browser: Any, name: str, request: Any, tmp_path: Path
) -> None:
    """Under a policy that lets no text become a script, and without WebGL."""
    place = tmp_path / "report.html"
    place.write_text(reporting.page(request.getfixturevalue(name)))
    assert "eval" not in POLICY
    page = browser.new_page()
    page.set_default_timeout(20_000)
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
    page.goto(place.as_uri())
    boxes = page.locator("[data-drawing]")
    drawings = page.evaluate("JSON.parse(document.getElementById('drawings').textContent)")
    drawings["curves"] = {}  # of each value
    drawn = []
    for number in range(boxes.count()):
        box = boxes.nth(number)
        box.scroll_into_view_if_needed()
        if drawings[box.get_attribute("data-drawing")].get("panels") != []:
            box.locator("svg.main-svg").first.wait_for()
        drawn.append(box.get_attribute("data-drawing"))
        assert "failed" not in box.get_attribute("class"), box.inner_text()
    page.close()
    assert not wrong
    assert "gantt" in drawn
    assert name != "many" or {"curves", "history", "importances", "parallel", "slices"} <= {*drawn}


def test_a_report_is_small(hopping: list[Line]) -> None:
    """Most of it is the bundle."""
    assert len(reporting.page(hopping).encode()) < 2_000_000


def test_the_bundle_has_the_kinds_that_are_drawn_and_the_version_that_checks_them(
    many: list[Line], packed: list[Line]
) -> None:
    from plotly.offline import get_plotlyjs_version

    version, kinds = HEAD.search(plotly_source()).groups()
    assert version == get_plotlyjs_version()  # so the tests' own plotly checks what it draws
    licences = (VENDOR / "plotly.LICENSES.txt").read_text()
    assert f"\nplotly.js {version} (MIT)\n" in licences
    used = set()
    for lines in (many, packed):
        (drawings,) = re.findall(r'id="drawings">(.*?)</script>', reporting.page(lines))
        used |= {*re.findall(r'"type":"(\w+)","', drawings)}
    assert used - {"line", "log", "linear", "category"} == {*kinds.split(", ")}
