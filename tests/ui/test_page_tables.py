"""What the report and the live page share, in a real browser: tables, controls, and the way they
fit a phone.
"""

import csv
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ui_kit import SHARD, epoch, many, opened, serving, submitted, write

from shoal import reporting
from shoal.core.cluster import Slot, SlotId
from shoal.core.event import Failed, Joined, Planned
from shoal.core.plan import solo
from shoal.core.trial import TrialId
from shoal.engine import csv_cells

ODD = 'a, "b"\nand c'
LONG = "a value that is much longer than any column has room for " * 3
CONFIG = {
    "lr": 0.012345678901234567,
    "odd": ODD,
    "sum": "=1+1",
    "at": "@SUM(A1)",
    "low": -1.5e-7,
    "minus": "-2+3",
    "plus": "+x",
    "tab": "\t=1",
    "ranges": [0.1234567891234, 2],
    "long": LONG,
    **{f"z_rather_long_name_of_a_value_{n}": n for n in range(8)},
}
# What the CSV has of these; texts that a spreadsheet would take for a formula are none there.
TEXTS = {
    "lr": "0.012345678901234567",
    "odd": ODD,
    "sum": "'=1+1",
    "at": "'@SUM(A1)",
    "minus": "'-2+3",
    "plus": "'+x",
    "tab": "'\t=1",
    "ranges": "[0.1234567891234, 2]",
    "long": LONG,
}
TRACEBACK = "Traceback (most recent call last):\n" + "".join(
    f'  File "a/long/way/to/the/module_{n}.py", line {n}, in {"a_function_" * 12}\n    ^^^^\n'
    for n in range(9)
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """30 trials of many values, some of them odd; two failed."""
    folder = tmp_path_factory.mktemp("studies") / "wide"
    slot = Slot(SlotId("w0"), shards=frozenset({SHARD}))
    entries = [opened("wide"), Joined((slot,))]
    for n in range(30):
        other = dict.fromkeys(CONFIG, f"v{n}") | {"lr": 0.1 * n, "low": -1.0 * n}
        entries.append(submitted(f"t{n:02d}", other if n else CONFIG))
    trained = [entry for n in range(28) for entry in epoch(f"t{n:02d}", 0, 1 - 0.01 * n)]
    failed = [Failed(TrialId(f"t{n}"), f"ValueError: {LONG}") for n in (28, 29)]
    gang = solo(TrialId("t00"), slot.id, 0)
    write(folder, {0.0: [*entries, Planned((), (gang,))], 3.0: [*trained, *failed]})
    place = folder / "trials" / "t28"
    place.mkdir(parents=True)
    (place / "error.txt").write_text(TRACEBACK)
    (folder / "log.txt").write_text(TRACEBACK)
    return folder


@pytest.fixture(params=["report", "live"])
def address(request: Any, folder: Path) -> Iterator[str]:
    """The report, and the live page, of that study."""
    if request.param == "report":
        yield reporting.write(folder / "journal.jsonl", folder / "report.html").as_uri()
        return
    with serving(folder) as server:
        yield server.address


def _open(page: Any, address: str, drawn: bool = False) -> None:
    """Show the page; the report's drawings, which take a while, only if they matter."""
    if address.startswith("file:") and not drawn:
        page.add_init_script("IntersectionObserver = class { observe() {} }")
    page.goto(address)
    _ready(page)


def _ready(page: Any) -> None:
    page.wait_for_selector('[data-title="trials"] .choice label', state="attached")


def _heads(page: Any) -> list[str]:
    """The heads of the columns that are seen."""
    heads = page.locator('[data-title="trials"] th:visible').all_inner_texts()
    return [head.strip() for head in heads if head.strip() != "actions"]


def _table(page: Any, title: str) -> list[list[str]]:
    """The CSV of a table, read."""
    with page.expect_download() as download:
        page.click(f'[data-title="{title}"] .csv')
    path = Path(download.value.path())
    assert download.value.suggested_filename == f"wide-{title.replace(' ', '-')}.csv"
    text = path.read_bytes().decode()
    assert text.endswith("\r\n")
    return list(csv.reader(text.splitlines(keepends=True)))


@pytest.mark.slow
def test_the_status_stands_second_and_as_many_columns_as_fit(page: Any, address: str) -> None:
    _open(page, address)
    shown = _heads(page)
    assert shown[:5] == ["trial", "status", "accuracy", "epochs", "training"]
    box = page.locator('[data-title="trials"] .wide')
    assert box.evaluate("box => box.scrollWidth <= box.clientWidth")
    page.set_viewport_size({"width": 2400, "height": 900})
    page.wait_for_function(
        "many => document.querySelectorAll('[data-title=\"trials\"] .choice :checked').length"
        " > many",
        arg=len(shown),
    )
    assert len(_heads(page)) > len(shown)
    assert box.bounding_box()["width"] > 1500
    assert box.evaluate("box => box.scrollWidth <= box.clientWidth")


@pytest.mark.slow
def test_chosen_columns_are_remembered(page: Any, address: str) -> None:
    _open(page, address)
    fit = _heads(page)
    page.click(".columns summary")
    page.uncheck('.choice label:text-is("epochs") input')
    page.check('.choice label:text-is("#") input')
    chosen = [head for head in fit if head != "epochs"] + ["#"]
    assert _heads(page) == chosen
    page.reload()
    _ready(page)
    assert _heads(page) == chosen
    page.click(".columns summary")
    page.click('.choice button:text-is("as many as fit")')
    assert _heads(page) == fit


@pytest.mark.slow
def test_the_csv_has_all_rows_and_columns_exactly(page: Any, address: str) -> None:
    """Also those that are not seen; and no text in it is a formula."""
    _open(page, address)
    heads, *rows = _table(page, "trials")
    assert heads[:2] == ["trial", "status"] and "training (s)" in heads
    assert len(rows) == 30
    first = dict(zip(heads, rows[0], strict=True))
    assert {name: first[name] for name in TEXTS} == TEXTS
    assert (float(first["training (s)"]), float(first["low"])) == (0.08, -1.5e-7)
    assert {row[1] for row in rows} == {"running", "waiting", "failed"}
    for way in ("ascending", "descending"):
        page.click('[data-title="trials"] th button:text-is("lr")')
        page.wait_for_selector(f'[data-title="trials"] th[aria-sort="{way}"]')
    assert _table(page, "trials")[1][0] == "t29", "rows are in another order than on the page"
    page.locator("#failures").scroll_into_view_if_needed()
    heads, *rows = _table(page, "failed trials")
    assert rows[0][:2] == ["t28", f"ValueError: {LONG}"]
    assert "lr=2.8000000000000003" in rows[0][heads.index("configuration")]


@pytest.mark.slow
def test_the_live_csv_has_what_the_filter_lets_through(page: Any, tmp_path: Path) -> None:
    with serving(many(tmp_path / "wide", 130)) as server:
        _open(page, server.address)
        page.click('[data-sort="lr"]')
        page.wait_for_selector('th[aria-sort="ascending"] [data-sort="lr"]')
        page.fill("#find", "width=32")
        page.wait_for_selector("#count >> text=of 130 trials")
        heads, *rows = _table(page, "trials")
        rates = [float(row[heads.index("lr")]) for row in rows]
        assert 0 < len(rows) < 130 and rates == sorted(rates)
        assert {row[heads.index("width")] for row in rows} == {"32"}
        assert f"{len(rows)} of 130 trials" == page.locator("#count").inner_text()


@pytest.mark.slow
def test_only_texts_are_kept_from_being_formulas(page: Any, folder: Path) -> None:
    page.goto(reporting.write(folder / "journal.jsonl", folder / "report.html").as_uri())
    fields = {
        "-5": "-5",
        "+.5e-3": "+.5e-3",
        "-inf": "-inf",
        "-1+cmd": "'-1+cmd",
        "=A1": "'=A1",
        " =A1": "' =A1",
        "'=A1": "''=A1",
        "＝A1": "'＝A1",
        "\rx": '"\'\rx"',
        "a,b": '"a,b"',
        'say "x"': '"say ""x"""',
        "two\nlines": '"two\nlines"',
        "plain": "plain",
        "": "",
    }
    made = page.evaluate("rows => tables.csv(rows)", [[*fields]])
    assert made == ",".join(fields.values()) + "\r\n"
    assert next(csv.reader([made])) == csv_cells.cells(fields)


WIDER = """() => [...document.querySelectorAll("body *")].filter((each) => {
  if (each.closest(".wide, pre, svg, .drawing, .hidden")) return false;
  return each.getBoundingClientRect().right > innerWidth + 1;
}).map((each) => each.outerHTML.slice(0, 80))"""
UNREACHED = """() => [...document.querySelectorAll("body *")].filter((each) => {
  const { overflowX, overflowY } = getComputedStyle(each);
  const x = each.scrollWidth > each.clientWidth + 1 && /auto|scroll/.test(overflowX);
  const y = each.scrollHeight > each.clientHeight + 1 && /auto|scroll/.test(overflowY);
  return (x || y) && each.tabIndex < 0 && !each.closest(".drawing") && !each.matches("dialog");
}).map((each) => each.outerHTML.slice(0, 80))"""


def _check_width(page: Any) -> None:
    """Nothing but what scrolls by itself is wider than the window; and keys reach that."""
    page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.evaluate(WIDER) == []
    assert page.evaluate(UNREACHED) == []


@pytest.mark.slow
@pytest.mark.parametrize("width", [420, 900])
def test_the_page_is_no_wider_than_the_window(page: Any, address: str, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    _open(page, address, drawn=True)
    page.locator("#failures").scroll_into_view_if_needed()
    page.wait_for_selector('[data-title="failed trials"]')
    _check_width(page)
    if not address.startswith("file:"):
        page.fill("#find", "status=failed")
        page.click('[data-trial="t28"][data-do="open"]')
        page.wait_for_selector("dialog pre")
        _check_width(page)


@pytest.mark.slow
def test_tracebacks_keep_their_columns(page: Any, folder: Path) -> None:
    with serving(folder) as server:
        _open(page, server.address)
        page.locator("#log").scroll_into_view_if_needed()
        page.wait_for_selector("#log pre")
        page.click('[data-trial="t28"][data-do="open"]')
        page.wait_for_selector("dialog pre")
        for place in ("#log pre", "dialog pre"):
            text = page.locator(place)
            assert text.evaluate("each => each.scrollWidth > each.clientWidth")
            line = text.evaluate("each => parseFloat(getComputedStyle(each).lineHeight)")
            lines = text.evaluate("each => each.scrollHeight - 24") / line
            assert math.isclose(lines, TRACEBACK.count("\n"), abs_tol=1.5)


@pytest.mark.slow
def test_keys_sort_and_open(page: Any, address: str) -> None:
    _open(page, address)
    head = page.locator('[data-title="trials"] th:has(button:text-is("lr"))')
    for way in ("ascending", "descending", None):
        head.locator("button").focus()
        page.keyboard.press("Enter")
        wanted = f'[aria-sort="{way}"]' if way else ":not([aria-sort])"
        page.wait_for_selector(f'[data-title="trials"] th{wanted} button:text-is("lr")')
        first = page.locator('[data-title="trials"] tbody tr').first.inner_text()
        assert {"ascending": "t00", "descending": "t29", None: "t00"}[way] in first
    page.focus(".columns summary")
    page.wait_for_selector(".columns summary:focus-visible")
    outline = "each => getComputedStyle(each).outlineStyle"
    assert page.locator(".columns summary").evaluate(outline) == "solid"
    page.keyboard.press("Enter")
    page.wait_for_selector(".columns[open] input")
    assert not re.search("NaN|undefined", page.locator(".columns summary").inner_text())


@pytest.mark.slow
def test_a_long_value_is_cut_and_told_whole_with_the_focus(page: Any, address: str) -> None:
    _open(page, address)
    page.locator("#failures").scroll_into_view_if_needed()
    page.wait_for_selector('[data-title="failed trials"] .long')
    page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    cut = page.locator('[data-title="failed trials"] .long').first
    height = cut.bounding_box()["height"]
    cut.hover()
    assert LONG.strip() in cut.get_attribute("title")
    cut.focus()
    assert cut.bounding_box()["height"] > 2 * height
    page.set_viewport_size({"width": 420, "height": 900})
    cut.evaluate("each => each.blur()")
    assert cut.bounding_box()["height"] > 2 * height


CURVES = """() => {
  const { data, layout } = document.querySelector("#curves-drawing .js-plotly-plot");
  const { xaxis, yaxis, paper_bgcolor: paper } = layout;
  const last = Math.max(...data.flatMap((trace) => trace.x));
  return [xaxis.title.text, last, yaxis.type === "log", paper];
}"""


@pytest.mark.slow
def test_curves_and_colours_are_as_their_controls_say(page: Any, address: str) -> None:
    page.emulate_media(color_scheme="light")
    _open(page, address, drawn=True)
    page.locator("#curves").scroll_into_view_if_needed()
    page.wait_for_selector("#curves-drawing .js-plotly-plot")
    title, end, log, paper = page.evaluate(CURVES)
    assert (title, end, log) == ("epochs", 1.0, False)
    page.select_option("#curve-x", "time")
    page.check("#curve-log")
    assert page.evaluate(CURVES) == ["seconds of the study", 3.0, True, paper]
    page.click("#theme")
    assert page.locator("#theme").inner_text() == "light"
    page.uncheck("#curve-log")
    page.select_option("#curve-x", "epochs")
    *rest, dark = page.evaluate(CURVES)
    assert rest == [title, end, log] and dark != paper
