"""The page in a real browser: a study that runs is watched and steered."""

import re
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import httpx
import preloaded
import pytest
from ui_kit import epoch, many, opened, serving, submitted, write

from shoal import reporting
from shoal.core.cluster import Slot, SlotId
from shoal.core.event import Joined, Submitted
from shoal.core.trial import Trial, TrialId
from shoal.study.folder import Folder
from shoal.study.holder import is_held

HERE = Path(__file__).resolve().parent


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Path]:
    """A study that a process of its own trains."""
    folder = tmp_path / "watched"
    process = preloaded.Popen([sys.executable, str(HERE / "watched.py"), str(folder)])
    try:
        deadline = time.monotonic() + 60
        while b'"e":"Evaluated"' not in _journal(folder):
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        yield folder
    finally:
        process.kill()
        process.wait()


def _journal(folder: Path) -> bytes:
    journal = folder / "journal.jsonl"
    if not journal.exists():
        return b""
    return journal.read_bytes()


def _trials(folder: Path) -> dict[str, Any]:
    found = reporting.account(Folder(folder).lines()).trials
    return {row.id: row for row in found}


def _ready(page: Any, address: str) -> None:
    page.goto(address)
    page.wait_for_selector("#trials[data-ready]")


def _wait_until_nobody_runs(folder: Path) -> None:
    """A process that ends the study reads no notes any more, and holds it a bit longer."""
    deadline = time.monotonic() + 60
    while is_held(Folder(folder)):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _row(name: str) -> str:
    return f'#trials-part tr:has([data-tick="{name}"])'


def _column(page: Any, number: int) -> list[str]:
    """The texts of a column of the table of trials."""
    texts: list[str] = page.locator(f"#trials-part tbody td:nth-child({number})").all_inner_texts()
    return [text.strip() for text in texts]


@pytest.mark.slow
def test_a_running_study_is_watched_and_steered(page: Any, running: Path) -> None:
    with serving(running) as server:
        _ready(page, server.address)
        assert "token" not in page.url
        page.wait_for_selector(".chip.running >> nth=0")
        assert page.locator("h1").inner_text() == "watched"

        page.click('[data-sort="lr"]')
        page.wait_for_selector('th[aria-sort="ascending"] [data-sort="lr"]')
        assert _column(page, 6) == ["0.001", "0.003", "0.01", "0.03"]
        page.click('[data-sort="lr"]')
        page.wait_for_selector('th[aria-sort="descending"] [data-sort="lr"]')
        assert _column(page, 6)[0] == "0.03"
        page.fill("#find", "lr<0.005")
        page.wait_for_selector('#count:text-is("2 of 4 trials")')
        page.fill("#find", "")
        page.wait_for_selector(_row("t003"))

        page.click(f'{_row("t003")} [data-do="stop"]')
        page.wait_for_selector(f"{_row('t003')} .chip.retired")
        # The second, where the run was quicker than the answer.
        page.wait_for_selector(
            "#said:text-matches('^(asked: t003 ends after its unit under way|stopped: t003)$')"
        )

        page.click(f'{_row("t000")} [data-do="open"]')
        page.fill('dialog [data-value="lr"]', "0.5")
        page.check("dialog [name=cold]")
        page.fill('dialog [data-form="clone"] [name=max_epochs]', "3")
        page.click('dialog button:text-is("Copy")')
        page.wait_for_selector(_row("t000-c1"))

        page.click(f'{_row("t001")} [data-do="open"]')
        page.fill('dialog [data-form="extend"] [name=max_epochs]', "4001")
        page.click('dialog button:text-is("Extend")')
        _said(page, "extended: t001, to 4001 epochs")
        page.click(f'{_row("t003")} [data-do="open"]')
        page.wait_for_selector('dialog h2:text-is("t003")')
        assert page.locator('dialog [data-form="extend"]').count() == 0
        page.click('dialog [data-do="close"]')

        page.click("#pause")
        page.wait_for_selector("header .chip.stopped")
        _wait_until_nobody_runs(running)
        assert "asked for" in page.locator("header .chip").inner_text()
        for name in ("t000", "t001", "t002"):
            page.click(f'{_row(name)} [data-do="stop"]')
            page.wait_for_selector(f"{_row(name)} .chip.retired")
        page.click("#resume")
        page.wait_for_selector(f"{_row('t000-c1')} .chip.finished")
        page.wait_for_selector("header .chip.finished")
        page.locator("#log").scroll_into_view_if_needed()
        page.wait_for_selector("#log-part >> text=resume.log")
    copied = _trials(running)["t000-c1"]
    assert (copied.status, copied.epochs, copied.config["lr"]) == ("finished", 3, 0.5)


@pytest.mark.slow
def test_a_click_counts_though_news_come_while_the_button_is_down(page: Any, running: Path) -> None:
    """A button that is replaced between press and release is never clicked."""
    with serving(running) as server:
        _ready(page, server.address)
        page.hover('[data-sort="lr"]')
        page.mouse.down()
        with page.expect_response(re.compile("/trials\\?")):
            pass
        page.wait_for_timeout(200)
        page.mouse.up()
        page.wait_for_selector('th[aria-sort="ascending"] [data-sort="lr"]')
        assert _column(page, 6) == ["0.001", "0.003", "0.01", "0.03"]


@pytest.mark.slow
def test_a_click_counts_though_the_table_is_on_its_way(page: Any, tmp_path: Path) -> None:
    """The page that comes is not the one that was asked for since."""
    with serving(many(tmp_path / "many", 60)) as server:
        _ready(page, server.address)
        page.wait_for_selector("#heading h1")  # with these news it asks for the table once more
        held: list[Any] = []

        def hold(route: Any) -> None:
            if held:
                route.continue_()
            held.append(route)

        page.route(re.compile("/trials\\?"), hold)
        with page.expect_request(re.compile("/trials\\?")):
            page.click('[data-sort="lr"]')
        page.click('#pages button:text-is("last")')
        held[0].continue_()
        page.wait_for_selector("text=page 2 of 2")


def _said(page: Any, text: str) -> None:
    """Wait until an action has said this."""
    page.wait_for_selector(f'#said:text-is("{text}")')


@pytest.mark.slow
def test_ten_thousand_trials_are_paged_and_drawn(page: Any, tmp_path: Path) -> None:
    folder = many(tmp_path / "many", 10_000)
    with serving(folder) as server:
        _ready(page, server.address)
        assert page.locator("#count").inner_text() == "10,000 trials"
        assert page.locator("#trials-part tbody tr").count() == 50
        page.click('#pages button:text-is("last")')
        page.wait_for_selector("text=page 200 of 200")
        page.locator("#gantt").scroll_into_view_if_needed()
        page.wait_for_selector("#gantt .main-svg")
        page.wait_for_selector("#curves-drawing .main-svg")


@pytest.mark.slow
def test_without_the_token_the_browser_gets_nothing(page: Any, tmp_path: Path) -> None:
    with serving(many(tmp_path / "few", 3)) as server:
        plain = server.address.partition("?")[0]
        for place in ("", "static/ui.js", "trials?study=few", "?token=wrong"):
            answer = page.request.get(plain + place)
            assert answer.status == 401 and answer.body() == b""
        other = page.context.new_page()
        with pytest.raises(Exception, match="ERR_HTTP_RESPONSE_CODE_FAILURE"):
            other.goto(plain)
        other.close()
        _ready(page, server.address)
        assert page.evaluate("document.cookie") == ""


class Neighbour(BaseHTTPRequestHandler):
    """A server of somebody else on this machine, and its page, which tries what it can."""

    cookies: ClassVar[list[str]] = []
    aim = ""

    def do_GET(self) -> None:
        self.cookies.append(self.headers.get("Cookie", ""))
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        script = f"""
            const asked = JSON.stringify({{ study: "few", do: "pause" }});
            const tries = [
              ["do", {{ method: "POST", mode: "no-cors", body: asked }}],
              ["do", {{ method: "POST", body: asked, headers: {{ "X-Shoal-Key": "x",
                "Content-Type": "application/json" }} }}],
              ["list", {{}}],
              ["list", {{ mode: "no-cors" }}],
              ["?token=x", {{}}],
            ];
            async function tried() {{
              const found = [];
              for (const [path, more] of tries) {{
                try {{
                  const asked = {{ credentials: "include", ...more }};
                  const answer = await fetch("{self.aim}" + path, asked);
                  found.push(answer.type + await answer.text());
                }} catch (error) {{ found.push("refused"); }}
              }}
              found.push(localStorage.length);
              return found;
            }}"""
        self.wfile.write(f"<script>{script}</script>".encode())

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.mark.slow
def test_another_port_gets_the_cookie_and_can_do_nothing(page: Any, tmp_path: Path) -> None:
    folder = many(tmp_path / "few", 3)
    neighbour = ThreadingHTTPServer(("127.0.0.1", 0), Neighbour)
    threading.Thread(target=neighbour.serve_forever, daemon=True).start()
    try:
        with serving(folder) as server:
            _ready(page, server.address)
            plain = Neighbour.aim = server.address.partition("?")[0]
            other = page.context.new_page()
            other.goto(f"http://127.0.0.1:{neighbour.server_port}/")
            found = other.evaluate("tried()")
            assert found == [*["refused"] * 5, 0]
            name, _, value = Neighbour.cookies[0].partition("=")
            assert name.startswith("shoal-") and value, "browsers send it to each port"
            origin = {"origin": plain.rstrip("/")}
            with httpx.Client(base_url=plain, cookies={name: value}) as client:
                for path in ("list", "frame", "news", "trials?study=few", "part/log"):
                    assert client.get(path).status_code == 403
                asked = {"do": "pause", "study": "few"}
                assert client.post("do", json=asked, headers=origin).status_code == 403
                assert "few" not in client.get("").text
            assert not (folder / "inbox").exists()
            _ready(other, f"{plain}?study=few")  # the owner's further windows need no key
            other.close()
    finally:
        neighbour.shutdown()


def test_an_address_without_its_end_says_so(page: Any, tmp_path: Path) -> None:
    with serving(many(tmp_path / "few", 3)) as server:
        page.goto(server.address.partition("#")[0])
        page.wait_for_selector("text=open the whole address that shoal ui has printed")


def test_a_hostile_journal_makes_no_elements(page: Any, tmp_path: Path) -> None:
    bad = "<img src=x onerror=alert(1)>"
    folder = tmp_path / "bad"
    made = Submitted(Trial(TrialId(bad), 2000, {bad: bad}, shards=frozenset({"s0"})))
    slot = Joined((Slot(SlotId(bad)),))
    entries = [opened(bad, metric=bad), slot, made, submitted("t1", {bad: 1})]
    write(folder, {0.0: entries, 1.0: epoch(bad, 0, 0.5)})
    with serving(folder) as server:
        _ready(page, server.address)
        assert bad in page.locator("h1").inner_text()
        for section in ("curves", "slots", "decisions", "log"):
            page.locator(f"#{section}").scroll_into_view_if_needed()
        page.wait_for_selector("#gantt .main-svg")
        page.click('#trials-part [data-do="open"] >> nth=0')
        page.wait_for_selector("dialog[open]")
        assert page.locator("img").count() == 0


@pytest.mark.slow
def test_a_folder_of_studies_is_a_list(page: Any, tmp_path: Path) -> None:
    many(tmp_path / "one", 3)
    many(tmp_path / "deep" / "two", 4)
    with serving(tmp_path) as server:
        page.goto(server.address)
        page.click("text=deep/two")
        page.wait_for_selector("#trials[data-ready]")
        assert page.locator("#count").inner_text() == "4 trials"
        page.click("text=all studies")
        page.wait_for_selector("text=one")
