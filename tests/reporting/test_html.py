"""The page: made from the journal alone, whole, offline, and safe."""

import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from shoal import reporting
from shoal.core.cluster import ShardId, SlotId
from shoal.core.event import Evaluated, Failed, Finished, Measured, Opened, Planned, Submitted
from shoal.core.plan import solo
from shoal.core.trial import Trial, TrialId
from shoal.engine.journal import JournalError, Line
from shoal.reporting.accounting import account
from shoal.reporting.charts import POINTS, learning, thinned
from shoal.reporting.html import embedded, shown
from shoal.reporting.sections import Cell, slots, table
from shoal.reporting.slot_charts import gantt, use
from shoal.reporting.tally import Point

VOID = {"meta", "input", "br", "link", "img", "hr"}
ENDED_BY = {"td": ("td",), "tr": ("td", "tr")}  # what ends where such a tag begins
EVIL = "<script>alert(1)<script>&\"'%{x}"
STUDIES = ["hopping", "killed", "packed", "many", "empty", "doomed"]


class Reader(HTMLParser):
    """What a page holds: its texts by tag, its attributes, the data of its drawings; complains
    of tags left open.
    """

    def __init__(self, page: str) -> None:
        super().__init__()
        self.stack: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.scripts: list[str] = []
        self.feed(page)
        self.close()
        assert self.stack == []
        self.drawings: dict[str, Any] = json.loads(self.scripts[0])

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag in ENDED_BY and self.stack[-1] in ENDED_BY[tag]:
            self._close_cells(these=ENDED_BY[tag])
        if tag not in VOID:
            self.stack.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in ("td", "tr"):
            self._close_cells(these=("td", "tr"))
        assert self.stack.pop() == tag

    def _close_cells(self, these: tuple[str, ...]) -> None:
        """HTML lets the end tags of cells and lines be left out."""
        while self.stack[-1] in these:
            self.stack.pop()

    def handle_data(self, data: str) -> None:
        if self.stack and self.stack[-1] == "script":
            self.scripts.append(data)
        elif self.stack and self.stack[-1] != "style":
            self.text.append(data)

    def ids(self) -> list[str]:
        return [attrs["id"] or "" for tag, attrs in self.tags if tag == "section"]


@pytest.mark.parametrize("name", STUDIES)
def test_any_study_makes_a_whole_page_that_loads_nothing(name: str, request: Any) -> None:
    page = reporting.page(request.getfixturevalue(name), folder="runs/digits")
    read = Reader(page)
    for tag, attrs in read.tags:
        assert tag not in ("link", "img", "iframe", "object", "base", "form")
        assert "src" not in attrs
        assert (attrs.get("href") or "#").startswith("#")
        assert (
            not {"srcset", "action", "data", "poster", "background", "onclick", "onload", "onerror"}
            & attrs.keys()
        )
        assert "url" not in (attrs.get("style") or "")
    assert not re.search(r"@import|url\(", page[: page.index("</style>")])
    rule = next(
        attrs["content"] or ""
        for _, attrs in read.tags
        if attrs.get("http-equiv") == "Content-Security-Policy"
    )
    assert rule.startswith("default-src 'none'")
    assert "http" not in rule
    drawn = [attrs["data-drawing"] for _, attrs in read.tags if "data-drawing" in attrs]
    assert sorted(map(str, drawn)) == sorted(read.drawings.keys() - {"hover"})
    assert len(read.ids()) == len(set(read.ids()))


def figures_in(drawings: dict[str, Any]) -> list[Any]:
    """The plotly figures of a page's drawings, with each view of them."""
    figures = []
    for drawing in drawings.values():
        for panel in drawing.get("panels", [{"figure": drawing}]):
            if "lines" in panel:
                continue
            figures.append(panel["figure"])
            for view in panel.get("views", ()):
                traces = zip(panel["figure"]["data"], view["traces"], strict=True)
                figures.append({"data": [{**trace, **other} for trace, other in traces]})
    return figures


@pytest.mark.parametrize("name", STUDIES)
def test_the_drawings_are_what_plotly_takes(name: str, request: Any) -> None:
    import plotly.graph_objects as go

    read = Reader(reporting.page(request.getfixturevalue(name)))
    curves = read.drawings.pop("curves", [])
    read.drawings.pop("hover")
    for figure in [*figures_in(read.drawings), *(item["figure"] for item in curves)]:
        go.Figure(figure)
        assert {trace["type"] for trace in figure["data"]} <= {"scatter", "bar"}
    for item in curves:
        assert [len(x) for x in item["times"]] == [
            len(trace["y"]) for trace in item["figure"]["data"]
        ]
        assert all(len(trace["x"]) == len(trace["y"]) for trace in item["figure"]["data"])


def test_what_the_page_tells(hopping: list[Line]) -> None:
    read = Reader(reporting.page(hopping, folder="runs/my digits"))
    text = " ".join(read.text)
    for wanted in (
        "digits",
        "Digits in digits.py",
        "highest accuracy",
        "grid",
        "hop (rule=rotation)",
        "2026-03-02 14:05",
        "finished",
    ):
        assert wanted in text, wanted
    for wanted in (
        "best accuracy",
        "0.90000",
        "trial x, after 1 epoch",
        "54 % of slot time in training",
        "66.7 a second",
    ):
        assert wanted in text, wanted
    assert "The same in all trials: width=64." in text
    assert "Trials moved 2 times to other slots, with 2 MB of state." in text
    assert "shoal replay 'runs/my digits' --trial x" in text
    assert "shoal resume" not in text
    assert read.ids() == [
        "best",
        "history",
        "curves",
        "configs",
        "slots",
        "overhead",
        "figures",
        "run",
        "next",
    ]
    assert [item["name"] for item in read.drawings["curves"]] == [
        "accuracy",
        "loss",
        "loss (training)",
    ]


def test_an_unfinished_study_can_be_resumed(killed: list[Line]) -> None:
    text = " ".join(
        Reader(reporting.page([line for line in killed if line.time < 4.0], folder="runs/x")).text
    )
    assert "shoal resume runs/x" in text
    assert "at work, or cut off" in text


def test_a_simulated_study_has_no_folder_to_go_on_in(hopping: list[Line]) -> None:
    for head in ({"backend": "sim"}, {"backend": "local", "simulated": True}):
        read = Reader(reporting.page([Line(0.0, Opened(1, {}, head)), *hopping[1:]], folder="out"))
        assert "next" not in read.ids()
        assert f" {head['backend']}, simulated" in read.text
    assert "next" not in Reader(reporting.page(hopping)).ids()


def test_repeated_work_and_runs_are_shown(killed: list[Line]) -> None:
    read = Reader(reporting.page(killed))
    text = " ".join(read.text)
    assert (
        "1 trial went back to a durable state: 250 samples, 38 % of all that was "
        "trained, were void." in text
    )
    assert "cut off" in text
    assert "repeated" in read.ids()
    assert [note["text"] for note in read.drawings["gantt"]["layout"]["annotations"]] == ["run 2"]


def test_failures_are_shown_with_why(doomed: list[Line], many: list[Line]) -> None:
    text = " ".join(Reader(reporting.page(doomed)).text)
    assert "ValueError: <img src=http://evil/> & co" in text
    assert "no trial has a score" in text
    assert "50 trials" in " ".join(Reader(reporting.page(many)).text)


def test_a_study_without_a_metric_ranks_nothing(hopping: list[Line]) -> None:
    read = Reader(reporting.page([Line(0.0, Opened(1, {})), *hopping[1:]]))
    assert "best accuracy" not in " ".join(read.text)
    assert {item["name"] for item in read.drawings["curves"]} == {
        "accuracy",
        "loss",
        "loss (training)",
    }
    assert "parallel" not in read.drawings
    assert read.ids() == ["best", "curves", "slots", "overhead", "figures", "run"]


def test_one_trial_has_its_whole_configuration(killed: list[Line]) -> None:
    read = Reader(reporting.page(killed))
    assert "lr" in read.text
    assert "0.1" in read.text
    assert "configs" not in read.ids()


def test_only_the_best_are_shown_at_first(many: list[Line]) -> None:
    """And all once a box is ticked: they stand in one table."""
    page = reporting.page(many)
    best = page[page.index('<section id="best">') : page.index('<section id="history">')]
    assert best.count("<tr>") == 1 + 500
    assert "all 500 rows" in best and '<table class="sortable few">' in best
    assert best.count('aria-sort="') == 0


def test_the_status_stands_second_and_what_is_worth_most_first(many: list[Line]) -> None:
    page = reporting.page(many)
    heads = re.findall(r"<button type=\"button\">(.*?)</button>", page)[:12]
    first = ["trial", "status", "accuracy", "epochs", "training"]
    assert heads == [*first, "dropout", "lr", "optimizer", "width", "best", "at epoch", "from"]


def test_each_recipe_has_the_columns_of_its_own_values() -> None:
    aims = {"cnn": ("accuracy", "max"), "rnn": ("loss", "min")}
    head = {"aims": aims, "metric": None, "mode": None}
    lines = [Line(0.0, Opened(1, {}, head))]
    for n, (own, name) in enumerate((("cnn", "width"), ("cnn", "width"), ("rnn", "cells")) * 2):
        lines.append(Line(0.0, Submitted(Trial(TrialId(f"t{n}"), 1.0, {"recipe": own, name: n}))))
    page = reporting.page(lines)
    tables = re.findall(r'data-title="trials (\w+)".*?</thead>', page)
    assert tables == ["cnn", "rnn"]
    first, last = page.split('data-title="trials rnn"')
    assert ">width<" in first and ">width<" not in last.partition("</table>")[0]
    assert ">cells<" in last and ">cells<" not in first


def test_a_reason_of_many_lines_keeps_its_columns(doomed: list[Line]) -> None:
    why = "Traceback:\n  f(x)\n    ^^"
    lines = [*doomed[:-2], Line(1.0, Failed(TrialId("x"), why)), doomed[-1]]
    assert f'<pre tabindex="0">{why}</pre>' in reporting.page(lines)


def test_a_chart_of_too_many_bars_is_capped_and_says_so(many: list[Line]) -> None:
    told = account(many)
    found = gantt(told, limit=200)
    assert found is not None
    figure, bars, drawn = found
    assert bars > 1000
    assert drawn <= 208
    assert sum(len(trace["x"]) for trace in figure["data"] if trace.get("base")) == drawn
    said = shown(slots(told, (bars, drawn), True))
    assert f"Of {bars:,} intervals {drawn:,} bars are drawn" in said
    assert "intervals" not in shown(slots(told, (bars, bars), True))


def evil() -> list[Line]:
    head: dict[str, Any] = dict.fromkeys(("study", "backend", "started", "policy", EVIL), EVIL)
    head |= {
        "recipe": {"name": EVIL, "file": EVIL},
        "metric": EVIL,
        "mode": "max",
        "searcher": {"name": EVIL, EVIL: EVIL},
    }
    shard, slot = ShardId(EVIL), SlotId(EVIL)
    # A trial's id holds no slash.
    ids = [TrialId(f"{EVIL}{n}".replace("/", "")) for n in range(3)]
    gangs = [solo(id_, slot, n, shard) for n, id_ in enumerate(ids)]
    lines = [Line(0.0, Opened(1, {shard: 10}, head))]
    lines += [
        Line(0.0, Submitted(Trial(id_, 10.0, {EVIL: f"{EVIL}{n}", "lr": 0.1 * n})))
        for n, id_ in enumerate(ids)
    ]
    for n, id_ in enumerate(ids):
        lines += [
            Line(float(n), Planned((), (gangs[n],))),
            Line(n + 0.5, Evaluated(id_, 1.0, {EVIL: 0.5 + n})),
        ]
        lines += [Line(n + 0.5, Measured(id_, EVIL, {EVIL: 1.0}))]
        lines.append(Line(n + 1.0, Finished(id_) if n < 2 else Failed(id_, EVIL)))
    return lines


def test_nothing_from_the_journal_is_taken_for_markup() -> None:
    page = reporting.page(evil(), title=EVIL, folder=EVIL)
    read = Reader(page)
    assert sum(tag == "script" for tag, _ in read.tags) == 3
    assert EVIL in read.text
    assert "<script>alert" not in page
    assert page.count("</script>") == 3


def test_texts_in_drawings_are_escaped_for_plotly_and_its_templates() -> None:
    found = Reader(reporting.page(evil())).drawings
    curves = found.pop("curves")  # their names go into a list of choices, not into a drawing
    drawings = json.dumps([found, [item["figure"] for item in curves]])
    assert "&lt;script&gt;" in drawings
    assert "<script" not in drawings
    for template in re.findall(r'"hovertemplate": "([^"]*)"', drawings):
        assert "alert" not in template


def test_what_json_lacks_is_null_and_no_element_can_be_ended() -> None:
    assert embedded({"a": [float("nan"), 1.0], "b": "</script><!--", "c": (float("inf"),)}) == (
        '{"a":[null,1.0],"b":"\\u003c/script>\\u003c!--","c":[null]}'
    )


def test_write_makes_the_file_and_its_folder(
    hopping: list[Line], stored: Callable[[list[Line]], Path], tmp_path: Path
) -> None:
    path = reporting.write(stored(hopping), tmp_path / "out" / "report.html", title="my study")
    assert path == tmp_path / "out" / "report.html"
    text = path.read_text(encoding="utf-8")
    assert "<h1>my study</h1>" in text
    assert "Plotly" in text
    with pytest.raises(JournalError):
        reporting.write(path, tmp_path / "again.html")


def test_a_report_that_finds_no_room_leaves_the_former_one(
    hopping: list[Line], stored: Callable[[list[Line]], Path], tmp_path: Path
) -> None:
    resource = pytest.importorskip("resource")
    path = tmp_path / "report.html"
    path.write_text("the former one")
    journal = stored(hopping)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            reporting.write(journal, path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_text() == "the former one"
    assert [file.name for file in tmp_path.glob("report*")] == ["report.html"]


def test_a_report_goes_through_a_link_and_into_a_pipe(
    hopping: list[Line], stored: Callable[[list[Line]], Path], tmp_path: Path
) -> None:
    there, link = tmp_path / "there.html", tmp_path / "report.html"
    there.write_text("the former one")
    link.symlink_to(there)
    journal = stored(hopping)
    reporting.write(journal, link)
    assert link.is_symlink() and "Plotly" in there.read_text(encoding="utf-8")
    reporting.write(journal, "/dev/null")
    assert not Path("/dev/null").is_file()


def test_the_report_of_a_file_is_that_of_its_lines(
    many: list[Line], stored: Callable[[list[Line]], Path]
) -> None:
    path = stored(many)
    from shoal.engine.journal import read

    assert reporting.page(read(path)) == reporting.page(read(path))
    assert Reader(reporting.page(read(path))).drawings == Reader(reporting.page(many)).drawings


def test_plotly_is_not_imported_for_figures() -> None:
    import subprocess
    import sys

    code = (
        "import sys; from shoal import reporting as r; r.summary([]); r.account; "
        "r.page; print({'plotly', 'rich'} & {*sys.modules})"
    )
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert out == "set()\n"


# -- drawings
# ----------------------------------------------------------------------------------------------


def test_bars_stand_where_the_chart_has_them(hopping: list[Line]) -> None:
    told = account(hopping)
    found = gantt(told)
    assert found is not None
    drawn = set()
    axis = found[0]["layout"]["yaxis"]
    slot = dict(zip(axis["tickvals"], axis["ticktext"], strict=True))
    for trace in found[0]["data"]:
        for base, length, y in zip(trace.get("base", ()), trace["x"], trace["y"], strict=False):
            drawn.add((base, base + length, slot[y], trace["name"]))
    assert (3.25, 4.25, "b", "training") in drawn
    assert (2.0, 3.0, "a", "idle") in drawn
    assert len(drawn) == sum(map(len, told.chart.bars.values()))


def test_the_use_of_a_slot_adds_up_to_all_of_it(hopping: list[Line], packed: list[Line]) -> None:
    for lines in (hopping, packed):
        figure = use(account(lines))
        assert figure is not None
        for n in range(2):
            assert sum(trace["x"][n] for trace in figure["data"]) == pytest.approx(100)


def test_long_studies_are_drawn_in_minutes_or_hours(hopping: list[Line]) -> None:
    for factor, title, end in (
        (1, "seconds of the study", 6.0),
        (60, "minutes of the study", 6.0),
        (3600, "hours of the study", 6.0),
    ):
        found = gantt(account([Line(line.time * factor, line.entry) for line in hopping]))
        assert found is not None
        axis = found[0]["layout"]["xaxis"]
        assert (axis["title"]["text"], axis["range"]) == (title, [0.0, end])


def test_curves_of_many_trials_are_few_traces(many: list[Line]) -> None:
    item = learning(account(many))[0]
    assert item["figure"]["data"][0]["name"] == "442 others"
    assert len(item["figure"]["data"]) == 9


def test_a_few_diverging_curves_leave_the_picture(many: list[Line]) -> None:
    worst = account(many).ranked()[449].id
    wild = [Line(200.0, Evaluated(worst, 3.0, {"loss": 1e9}))]
    item = next(item for item in learning(account(many + wild)) if item["name"] == "loss")
    assert item["outside"] == 1
    low, high = item["figure"]["layout"]["yaxis"]["range"]
    assert low < 1.0 < high < 1e6


def test_what_the_best_trials_do_is_always_in_the_picture(hopping: list[Line]) -> None:
    wild = [Line(5.0, Evaluated(TrialId("x"), 50.0, {"loss": -1e9}))]
    item = next(item for item in learning(account(hopping + wild)) if item["name"] == "loss")
    assert "range" not in item["figure"]["layout"]["yaxis"]
    assert item["outside"] == 0


def test_thinned_curves_keep_their_ends() -> None:
    points = [Point(float(n), 0.0, 0.0) for n in range(1001)]
    few = thinned(points, 100)
    assert len(few) <= 102
    assert (few[0], few[-1]) == (points[0], points[-1])
    assert thinned(points, POINTS) is points


def test_cells_have_a_key_only_where_their_text_does_not_say_it() -> None:
    cells = [
        Cell("0.50000", 0.5),
        Cell("5 ms", 0.005),
        Cell("–", None),
        Cell("t1", "t1", "code"),
        "a & b",
        Cell("1 → 2", 1, exact="1 → 2"),
        Cell("[0.33]", "[0.33]", exact='["0.3\n"]'),
    ]
    made = shown([table("few", [*"abcdefg"], [cells])])
    found = re.findall(r"<td( class=r)?([^>]*)>", made)
    assert [given for _, given in found] == [
        *("", " data-k=0.005", ' data-k=""', "", ""),
        ' data-k=1 data-v="1 → 2"',
        ' data-v="[&quot;0.3\n&quot;]"',
    ]


def test_a_trial_takes_little_room(many: list[Line]) -> None:
    best = next(iter(re.findall(r'id="best">.*?</section>', reporting.page(many))))
    assert len(best) / 520 < 600
