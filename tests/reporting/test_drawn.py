"""The drawings of a report in a real browser, with the bundle of plotly.js that Shoal brings."""

import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shoal import reporting
from shoal.core.event import Submitted
from shoal.engine.journal import Line
from shoal.reporting.charts import CAUSES
from shoal.reporting.html import POLICY, plotly_source

VENDOR = Path(reporting.__file__).parent / "vendor"
HEAD = re.compile(r"plotly\.js v(\S+) with these kinds of traces: (.+)")


Show = Callable[[Iterable[Line]], Any]


@pytest.fixture
def show(page: Any, tmp_path: Path) -> Show:
    """Opens the report of these lines; returns the boxes of its drawings in sight."""

    def opened(lines: Iterable[Line]) -> Any:
        place = tmp_path / "report.html"
        place.write_text(reporting.page(lines))
        page.goto(place.as_uri())
        return page.locator("[data-drawing]:visible")

    return opened


@pytest.mark.parametrize("name", ["hopping", "packed", "many"])
def test_a_browser_draws_all_that_is_in_sight(
    page: Any, show: Show, name: str, request: Any
) -> None:
    """Under a policy that lets no text become a script, and without WebGL."""
    assert "eval" not in POLICY
    wrong: list[str] = []
    page.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
    boxes = show(request.getfixturevalue(name))
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
    assert not wrong
    assert "gantt" in drawn
    assert name != "many" or {"curves", "history", "importances", "parallel", "slices"} <= {*drawn}


# Pairs of texts of one plot that lie over each other, and texts that leave it or end in half of an
# escaped character.
COVERED = """(plot) => {
  const frame = plot.getBoundingClientRect();
  const texts = [...plot.querySelectorAll(
    ".xtick text, .ytick text, .xtitle, .ytitle, .legendtext, .annotation-text")]
    .filter((text) => text.textContent.trim())
    .map((text) => [text.textContent, text.getBoundingClientRect()]);
  const wrong = [];
  texts.forEach(([name, a], n) => {
    if (name.includes("&")) wrong.push(`${name} is cut within a character`);
    if (a.left < frame.left - 1 || a.right > frame.right + 1 || a.bottom > frame.bottom + 1) {
      wrong.push(`${name} is cut`);
    }
    for (const [other, b] of texts.slice(n + 1)) {
      const across = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      const down = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
      if (across > 1 && down > 3) wrong.push(`${name} over ${other}`);
    }
  });
  return wrong;
}"""


def drawn(page: Any, boxes: Any) -> None:
    """Wait until all of them are drawn."""
    for number in range(boxes.count()):
        boxes.nth(number).scroll_into_view_if_needed()
        boxes.nth(number).locator("svg.main-svg").first.wait_for()


def long_names(lines: list[Line]) -> list[Line]:
    """The same study with names of hyper-parameters and slots as users have them."""
    changed = []
    for line in lines:
        entry = line.entry
        if isinstance(entry, Submitted):
            config = {
                f"model.encoder['{name}']_of_it": item for name, item in entry.trial.config.items()
            }
            entry = Submitted(replace(entry.trial, config=config))
        changed.append(Line(line.time, entry))
    return changed


@pytest.mark.parametrize("width", [1400, 900, 420])
def test_no_text_of_a_chart_covers_another_at_any_width(
    page: Any, show: Show, many: list[Line], width: int
) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    boxes = show(long_names(many))
    drawn(page, boxes)
    for number in range(boxes.count()):
        name = boxes.nth(number).get_attribute("data-drawing")
        for plot in boxes.nth(number).locator(".plot").element_handles():
            assert plot.evaluate(COVERED) == [], name
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_a_window_that_gets_narrow_has_its_charts_anew(
    page: Any, show: Show, many: list[Line]
) -> None:
    show(many)
    boxes = page.locator("[data-drawing=history], [data-drawing=parallel]")
    drawn(page, boxes)
    legend = page.locator("[data-drawing=history] .legend")
    title = page.locator("[data-drawing=history] .xtitle")
    assert legend.bounding_box()["y"] < title.bounding_box()["y"] - 100
    page.set_viewport_size({"width": 420, "height": 900})
    page.wait_for_function("""() => [...document.querySelectorAll(".main-svg")]
        .every((svg) => svg.getBoundingClientRect().right <= 420)""")
    names = page.locator("[data-drawing=parallel] .annotation-text")
    titles = [text for text in ("lr", "width", "accuracy") if text in names.all_text_contents()]
    assert len(titles) == 3
    assert legend.bounding_box()["y"] > title.bounding_box()["y"]


def test_a_range_of_an_axis_is_picked_and_given_up(page: Any, show: Show, many: list[Line]) -> None:
    show(many)
    box = page.locator("[data-drawing=parallel]")
    drawn(page, box)
    box.evaluate("(box) => box.scrollIntoView({ block: 'center', behavior: 'instant' })")
    page.wait_for_timeout(1000)  # what comes into sight is drawn, too
    frame = box.locator(".plot").bounding_box()
    page.mouse.move(frame["x"] + 80, frame["y"] + 40)
    page.mouse.down()
    page.mouse.move(frame["x"] + 120, frame["y"] + 120, steps=8)
    page.mouse.up()
    page.wait_for_function("""() => [...Charts.shown.values()]
        .some((now) => Object.keys(now.picks[0] ?? {}).join() === "0")""")
    page.mouse.dblclick(frame["x"] + 300, frame["y"] + 120)
    page.wait_for_function("""() => [...Charts.shown.values()]
        .every((now) => Object.keys(now.picks[0] ?? {}).length === 0)""")


def test_a_choice_ends_with_what_it_is_about(page: Any, show: Show, many: list[Line]) -> None:
    """As on a live page, where one more hyper-parameter varies, or one more recipe has a score."""
    show(many)
    drawn(page, page.locator("[data-drawing=history], [data-drawing=parallel]"))
    page.locator("[data-drawing=history] select").select_option(label="trials")
    left = page.evaluate("""() => ["history", "parallel"].map((name) => {
        const box = document.querySelector(`[data-drawing=${name}]`);
        const now = Charts.shown.get(box);
        now.picks = [{ 1: [0, 0.5] }];
        const before = JSON.stringify([now.views, now.picks]);
        Charts.draw(box, now.drawing, now.hover);
        const after = JSON.stringify([now.views, now.picks]);
        const [panel] = structuredClone(now.drawing.panels);
        panel.lines?.axes.shift();
        Charts.draw(box, { panels: panel.lines ? [panel] : [panel, panel] }, now.hover);
        return [before === after, now.views[0] ?? 0, Object.keys(now.picks[0]).length];
    })""")
    assert left == [[True, 0, 0], [True, 0, 0]]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_texts_of_charts_can_be_read_in_both_themes(
    page: Any, show: Show, many: list[Line], theme: str
) -> None:
    page.emulate_media(color_scheme=theme)
    drawn(page, show(many))
    weak = page.evaluate(WEAK)
    assert weak == []


# Texts of axes, legends and notes whose contrast with the card is below 4.5.
WEAK = """() => {
  const parsed = (text) => text.match(/[\\d.]+/g).slice(0, 3).map(Number);
  const light = (rgb) => {
    const [r, g, b] = rgb.map((each) => each / 255)
      .map((c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const card = light(parsed(getComputedStyle(document.querySelector("section")).backgroundColor));
  return [...document.querySelectorAll(".plot text, .says")].filter((text) => {
    if (!text.textContent.trim() || text.closest(".bartext, .hoverlayer")) return false;
    const look = getComputedStyle(text);
    const own = light(parsed(text.tagName === "P" ? look.color : look.fill));
    return (Math.max(own, card) + 0.05) / (Math.min(own, card) + 0.05) < 4.5;
  }).map((text) => text.textContent);
}"""


def test_what_stands_on_bars_can_be_read() -> None:
    """In both themes: a colour of its own, or the page's ink on next to nothing."""

    def light(colour: str) -> float:
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        red, green, blue = (
            c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in parts
        )
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    for cause in CAUSES:
        if cause.text:
            low, high = sorted((light(cause.total), light(cause.text)))
            assert (high + 0.05) / (low + 0.05) >= 4.5, cause.label


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
