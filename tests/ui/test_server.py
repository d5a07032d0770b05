"""What the page's server answers, and whom it does not answer."""

import json
import os
import pickle
import platform
import re
import socket
import subprocess
import sys
import time
from contextlib import suppress
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner
from ui_kit import ORIGIN, SHARD, client_of, epoch, keyed, many, opened, serving, submitted, write

from shoal.cli import app
from shoal.core.cluster import Slot, SlotId
from shoal.core.errors import StudyError
from shoal.core.event import Commanded, Evaluated, Failed, Joined, Planned, Retired, Submitted
from shoal.core.plan import solo
from shoal.core.trial import Trial, TrialId
from shoal.reporting.format import UNSEEN
from shoal.reporting.score_charts import CHARTS
from shoal.ui import actions, serve
from shoal.ui.guard import KEY, Connections
from shoal.ui.serve import listening

PATHS = (
    "/",
    "/frame",
    "/list",
    "/news",
    "/part/heading",
    "/part/log",
    "/trials",
    "/drawing/curves",
    "/static/page.css",
    "/static/ui.js",
    "/static/plotly.js",
    "/static/none",
    "/nothing",
)
LONG = 100  # seconds: what has not come by then never comes
HOSTILE = "\"><img src=x onerror=alert(1)>&'<script>"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return many(tmp_path / "few", 6)


def page_of(answer: httpx.Response) -> dict[str, Any]:
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def names(answer: httpx.Response) -> list[str]:
    """The trials of a page of the table, in its order."""
    return re.findall(r'data-tick="([^"]*)"', page_of(answer)["html"])


# -- who is answered -------------------------------------------------------------------------------


@pytest.mark.parametrize("path", PATHS)
def test_without_the_token_nothing_is_served(folder: Path, path: str) -> None:
    client = client_of(folder, cookie=False)
    for query in ("", "?token=", "?token=wrong", "?token=%F0%9F%90%9F", "?study=few"):
        answer = client.get(path + query)
        assert answer.status_code == 401 and answer.content == b"", (path, query)
    client.cookies.set("shoal-8765", "wrong")
    assert client.get(path).status_code == 401
    assert client.post("/do", json={}, headers=ORIGIN).status_code == 401


def test_the_token_becomes_a_strict_cookie_and_leaves_the_address(folder: Path) -> None:
    client = client_of(folder, cookie=False, key=False)
    first = client.get("/?token=token")
    cookie = first.headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=strict" in cookie
    assert "token" not in cookie and "key" not in cookie
    assert "few" not in first.text and "key" not in first.text
    assert "few" not in client.get("/").text


@pytest.mark.parametrize("path", [path for path in PATHS[1:] if "static" not in path])
def test_the_cookie_alone_shows_nothing_and_does_nothing(folder: Path, path: str) -> None:
    """It goes to every port of this machine; the key does not."""
    client = client_of(folder, key=False)
    asked = {"do": "pause", "study": "few"}
    for key in ({}, {KEY: ""}, {KEY: "secret"}, {KEY: "token"}, {KEY: "k\xe9y"}):
        given = {name: value.encode("latin-1") for name, value in key.items()}
        answer = client.get(f"{path}?study=few&key=key&{KEY}=key", headers=given)
        assert answer.status_code == 403 and answer.content == b""
        answer = client.post("/do", json=asked, headers=ORIGIN | given)
        assert answer.status_code == 403 and answer.content == b""
    assert not (folder / "inbox").exists()


def test_the_key_needs_the_cookie_and_the_origin(folder: Path) -> None:
    assert client_of(folder, cookie=False).get("/list").status_code == 401
    asked = {"do": "pause", "study": "few"}
    assert client_of(folder).post("/do", json=asked).status_code == 403


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="ulimit")
def test_half_open_requests_do_not_block_the_owner(folder: Path) -> None:
    """200 strangers begin a request and never end it; the process may open 150 files."""
    program = (
        "import resource, sys; from pathlib import Path; from shoal.ui.serve import serve; "
        "resource.setrlimit(resource.RLIMIT_NOFILE, (150, 150)); "
        "serve(Path(sys.argv[1]), 0, lambda text: print(text, flush=True))"
    )
    command = [sys.executable, "-c", program, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        address, _, key = process.stdout.readline().strip().partition("#")
        port = int(re.findall(r":(\d+)/", address)[0])
        begun = b"POST /do HTTP/1.1\r\nHost: x\r\nContent-Length: 9999\r\n"
        strangers = []
        try:
            for number in range(200):
                strangers.append(socket.create_connection(("127.0.0.1", port), LONG))
                strangers[-1].sendall(begun[: number % len(begun)])
            with httpx.Client(headers={KEY: key}, timeout=LONG) as owner:
                owner.get(address)
                answer = owner.get(address.partition("?")[0] + "list")
            assert answer.status_code == 200
        finally:
            process.terminate()
            for each in strangers:
                each.close()


def test_nonsense_behind_a_request_fills_no_terminal(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with serving(folder) as server:
        address = re.findall(r"//([^/]*)/", server.address)[0]
        begun = f"POST /do HTTP/1.1\r\nHost: {address}\r\nTransfer-Encoding: chunked\r\n\r\n"
        for rest in ("zz\r\n", "1\r\nx\r\nzz\r\n", "\r\n"):
            place = ("127.0.0.1", int(address.partition(":")[2]))
            with socket.create_connection(place, LONG) as stranger:
                stranger.sendall(begun.encode() + rest.encode())
                with suppress(ConnectionResetError):
                    while stranger.recv(1000):
                        pass
    assert "Traceback" not in "".join(capfd.readouterr())


class Transport:
    """A connection that may be ended."""

    ended = False

    def abort(self) -> None:
        self.ended = True


def test_the_oldest_strangers_go_first_and_the_owner_stays() -> None:
    connections = Connections(most=2)
    made = [Transport() for _ in range(8)]
    for number in (0, 1, 2):
        connections.opened(number, made[number])
        connections.showed_cookie(number)
    connections.showed_key(1)
    for number in range(3, 8):  # places of their own: those with a cookie stay
        connections.opened(number, made[number])
    connections.late(6, made[6])
    connections.late(7, made[0])  # another connection of the same client
    ended = [number for number, each in enumerate(made) if each.ended]
    assert ended == [0, 3, 4, 5, 6]


def test_a_stranger_is_not_waited_for(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither for the rest of its request, nor for a body once it is refused."""
    monkeypatch.setattr(serve, "PATIENCE", 0.3)
    begun = b"POST /do HTTP/1.1\r\nHost: %s\r\nContent-Length: 9999\r\n"
    with serving(folder) as server:
        port = int(re.findall(r":(\d+)/", server.address)[0])
        host = f"127.0.0.1:{port}".encode()
        for said in (b"", begun % host, begun % host + b"\r\n{", begun % b"x" + b"\r\n"):
            with socket.create_connection(("127.0.0.1", port), LONG) as stranger:
                stranger.sendall(said)
                with suppress(ConnectionResetError):
                    while stranger.recv(1000):  # until the server ends the connection
                        pass


def test_another_host_or_page_may_ask_nothing(folder: Path) -> None:
    client = client_of(folder)
    for host in ("evil.example:8765", "127.0.0.1", "127.0.0.1:80", "localhost.evil"):
        answer = client.get("/", headers={"host": host})
        assert answer.status_code == 403 and answer.content == b""
    asked = {"do": "pause", "study": "few"}
    for origin in ({}, {"origin": "http://evil.example"}, {"origin": "null"}):
        assert client.post("/do", json=asked, headers=origin).status_code == 403
    other_port = {"origin": "http://127.0.0.1:9999"}
    assert client.post("/do", json=asked, headers=other_port).status_code == 403


def test_names_that_anybody_can_let_lead_here_get_nothing(folder: Path) -> None:
    """DNS rebinding: a page of another name whose address becomes 127.0.0.1. Browsers take
    `localhost` from no server, so it is as good as 127.0.0.1, and its pages are no others'.
    """
    with serving(folder) as server:
        port = server.address.partition("?")[0].rstrip("/").rpartition(":")[2]
        plain = f"http://127.0.0.1:{port}"
        token, key = re.findall(r"token=(.*)#(.*)", server.address)[0]
        names = (
            *(f"127.0.0.1.nip.example:{port}", f"localhost.evil.example:{port}"),
            *(f"[::1]:{port}", f"127.1:{port}", f"0.0.0.0:{port}", f"2130706433:{port}"),
            *(f"localhost.:{port}", "localhost", "localhost:80", "", f"a@localhost:{port}"),
        )
        asked = {"do": "pause", "study": "few"}
        with httpx.Client(base_url=plain) as client:
            assert client.get(f"/?token={token}").status_code == 200
            client.headers[KEY] = key
            for name in names:
                headers = {"host": name, "origin": f"http://{name}"}
                for path in (f"/?token={token}", "/", "/static/ui.js", "/list"):
                    assert client.get(path, headers=headers).status_code == 403
                assert client.post("/do", json=asked, headers=headers).status_code == 403
            here = f"localhost:{port}"
            cookie = {"cookie": "; ".join(f"{a}={b}" for a, b in client.cookies.items())}
            headers = {"host": here, **cookie}
            assert client.get("/list", headers=headers).status_code == 200
            for origin in (plain, "http://localhost", "http://localhost:80", f"https://{here}"):
                other = {**headers, "origin": origin}
                assert client.post("/do", json=asked, headers=other).status_code == 403
            del client.headers[KEY]
            assert client.get("/list", headers=headers).status_code == 403
            allowed = client.get("/", headers={**headers, "origin": plain}).headers
            assert not [name for name in allowed if "access-control" in name]
    assert not (folder / "inbox").exists()


def test_every_answer_has_a_strict_policy(folder: Path) -> None:
    client = client_of(folder)
    for path in ("/", "/static/ui.js", "/nothing", "/trials?study=few"):
        headers = client.get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'; script-src 'self';" in policy
        assert "frame-ancestors 'none'" in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cross-origin-resource-policy"] == "same-origin"
    for path in ("/", "/frame?study=few"):
        page = client.get(path).text
        assert "http://" not in page and "https://" not in page
        assert not re.search(r"<script(?! src)|\son\w+=", page)


def test_a_port_that_is_taken_is_one_clear_error() -> None:
    held = listening(0)
    port = held.getsockname()[1]
    with pytest.raises(StudyError, match=f"port {port} of 127.0.0.1 cannot be used"):
        listening(port)
    held.close()


# -- what is shown ---------------------------------------------------------------------------------


def test_trials_are_sorted_filtered_and_paged_by_the_server(tmp_path: Path) -> None:
    client = client_of(many(tmp_path / "many", 130))
    asked = "/trials?study=many"
    first = page_of(client.get(asked))
    assert (first["count"], first["all"], first["pages"]) == (130, 130, 3)
    assert len(names(client.get(asked))) == 50
    assert len(names(client.get(asked + "&page=2"))) == 30
    assert page_of(client.get(asked + "&page=99"))["page"] == 2
    assert names(client.get(asked + "&sort=trial"))[:2] == ["t00000", "t00001"]
    down = names(client.get(asked + "&sort=trial&down=1"))
    assert down[0] == "t00129"
    low = page_of(client.get(asked + "&text=lr<0.001"))
    high = page_of(client.get(asked + "&text=lr>=0.001"))
    assert 0 < low["count"] < 130 and low["count"] + high["count"] == 130
    both = page_of(client.get(asked + "&text=lr<0.001 width=16"))
    assert 0 < both["count"] < low["count"]
    assert names(client.get(asked + "&text=T00012")) == names(
        client.get(asked + "&text=trial=t00012")
    )
    assert page_of(client.get(asked + "&status=failed"))["count"] == 0
    assert page_of(client.get(asked + "&status=finished"))["count"] == 130
    widths = page_of(client.get(asked + "&sort=width&text=width!=32"))["html"]
    assert 'aria-sort="ascending"' in widths and ">32<" not in widths


def test_the_parts_and_drawings_of_a_study(folder: Path) -> None:
    client = client_of(folder)
    heading = client.get("/part/heading?study=few").text
    assert "6 finished" in heading and "best accuracy" in heading
    decisions = client.get("/part/decisions?study=few").text
    assert "auto follows fifo, because it takes 3 s" in decisions
    assert "started t00004 on w0, t00005 on w1" in decisions
    assert "submitted t00000, t00001, t00002, t00003 and 2 more" in decisions
    assert "None." in client.get("/part/failures?study=few").text
    drawn = client.get("/drawing/curves?study=few&trial=t00001&trial=t00002").json()
    assert drawn["names"] == ["accuracy", "loss (training)"]
    assert {trace["name"] for trace in drawn["figure"]["data"]} == {"t00001", "t00002"}
    other = client.get("/drawing/curves?study=few&name=loss (training)").json()
    assert len(other["figure"]["data"]) == 6
    for name in CHARTS:
        made = client.get(f"/drawing/{name}?study=few").json()
        assert made["panels"] or "takes 10 trials" in made["note"]
        assert len(made["hover"]) == 6
    assert client.get("/drawing/none?study=few").status_code == 404
    slots = client.get("/drawing/slots?study=few").json()
    assert slots["gantt"]["data"] and slots["use"]["data"]
    assert client.get("/part/trial?study=few&trial=t00009").status_code == 404
    assert client.get("/part/heading?study=../few").status_code == 404


def test_a_study_that_grows_is_followed(tmp_path: Path) -> None:
    """Also one whose last line is not whole yet, and one that was replaced."""
    folder = tmp_path / "grows"
    slot = Slot(SlotId("w0"))
    gang = solo(TrialId("t0"), slot.id, 1)
    entries = [opened("grows"), Joined((slot,)), submitted("t0", {"lr": 0.1})]
    write(folder, {0.0: entries, 1.0: [Planned((), (gang,)), *epoch("t0", 0, 0.5)]})
    journal = folder / "journal.jsonl"
    client = client_of(folder)
    shown = page_of(client.get("/trials?study=grows"))["html"]
    assert ">running<" in shown and 'data-do="stop"' in shown and "0.50000" in shown

    before = journal.read_bytes()
    write(folder, {2.0: epoch("t0", 1, 0.75)})
    whole = journal.read_bytes()
    journal.write_bytes(whole[:-20])
    assert "0.75000" not in eventually(client, "0.50000")
    with journal.open("ab") as file:
        file.write(whole[-20:])
    eventually(client, "0.75000")
    journal.unlink()
    journal.write_bytes(before)
    assert "0.75000" not in eventually(client, "0.50000")


def eventually(client: Any, text: str) -> str:
    """The table once it shows this text; the page looks at a journal twice a second."""
    for _ in range(100):
        shown: str = client.get("/trials?study=grows").json()["html"]
        if text in shown:
            return shown
        time.sleep(0.1)
    raise AssertionError(f"{text} was never shown")


def test_what_a_journal_says_is_escaped_everywhere(tmp_path: Path) -> None:
    folder = tmp_path / "bad"
    config = {HOSTILE: HOSTILE, "lr": 0.1}
    bad = Submitted(Trial(TrialId(HOSTILE), 2000, config, shards=frozenset({"s0"})))
    entries = [
        opened(HOSTILE, metric=HOSTILE, searcher={"name": HOSTILE}, folder=HOSTILE),
        Joined((Slot(SlotId(HOSTILE)),)),
        bad,
        submitted("t1", config | {"lr": 0.2}),
        Planned((), (solo(TrialId(HOSTILE), SlotId(HOSTILE), 1),)),
    ]
    failed = [Failed(TrialId("t1"), HOSTILE), Commanded("stop", HOSTILE)]
    trained = epoch(HOSTILE, 0, 0.5)
    write(folder, {0.0: entries, 1.0: [*trained, *failed]})
    (folder / "log.txt").write_text(HOSTILE)
    (folder / "trials" / "t1").mkdir(parents=True)
    (folder / "trials" / "t1" / "error.txt").write_text("Traceback " + HOSTILE)
    client = client_of(folder)
    texts = [client.get("/list").text]
    for part in ("heading", "decisions", "failures", "log", "new", "trial"):
        for trial in (HOSTILE, "t1"):
            asked = {"study": "bad", "trial": trial}
            texts.append(client.get(f"/part/{part}", params=asked).text)
    for sort in ("", HOSTILE):
        asked = {"study": "bad", "sort": sort}
        texts.append(client.get("/trials", params=asked).json()["html"])
    assert all(texts) and any("Traceback" in text for text in texts)
    for text in texts:
        assert "<img" not in text and "</script" not in text
    assert sum("&lt;img" in text for text in texts) > 10
    for drawing in ("curves", "slots", *CHARTS):
        text = client.get(f"/drawing/{drawing}?study=bad").text
        assert "<img" not in text and "<script" not in text
    asked = {"study": "bad", "name": HOSTILE, "trial": [HOSTILE]}
    assert client.get("/drawing/curves", params=asked).status_code == 200


class Shown(HTMLParser):
    """What a page shows: its texts, and attributes that are read out or shown."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.feed(page)

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        shown = {"title", "aria-label", "placeholder", "value"}
        self.texts += [value or "" for name, value in attrs if name in shown]


def strings(found: Any) -> list[str]:
    """All texts of some data."""
    if isinstance(found, dict):
        return strings([*found.values()])
    if isinstance(found, list):
        return [text for each in found for text in strings(each)]
    return [found] if isinstance(found, str) else []


def test_what_is_not_seen_is_shown_as_escapes_and_sent_back_as_it_is(tmp_path: Path) -> None:
    """Marks that turn the direction of writing, and characters without room, make names alike."""
    unseen = "a\u202eb\u200bc\u2066d\ufeffe\xadf\U000e0041g\x1bh"
    trial = unseen.replace("\x1b", "")
    folder = tmp_path / unseen.replace("\x1b", "")
    config = {unseen: unseen, "lr": 0.1}
    submit = Submitted(Trial(TrialId(trial), 2000, config, shards=frozenset({SHARD})))
    entries = [
        opened(unseen, metric=unseen, searcher={"name": unseen}, folder=unseen),
        Joined((Slot(SlotId(trial), node=trial, kind=unseen),)),
        submit,
        submitted("t1", config | {"lr": 0.2}),
        Planned((), (solo(TrialId(trial), SlotId(trial), 1),)),
    ]
    scored = Evaluated(TrialId(trial), 1, {unseen: 0.5})
    failed = [Failed(TrialId("t1"), unseen), Commanded("stop", unseen)]
    trained = [*epoch(trial, 0, 0.5), scored]
    write(folder, {0.0: entries, 1.0: [*trained, *failed]})
    (folder / "log.txt").write_text(unseen)
    (folder / "trials" / "t1").mkdir(parents=True)
    (folder / "trials" / "t1" / "error.txt").write_text(f"Traceback {unseen}")
    client = client_of(tmp_path)
    study = {"study": folder.name}
    pages = [client.get("/list").text]
    frame = client.get("/frame", params=study).json()
    pages += [frame["title"], frame["html"]]
    for part in ("heading", "decisions", "failures", "log", "new", "trial"):
        for name in (trial, "t1"):
            asked = {**study, "trial": name}
            pages.append(client.get(f"/part/{part}", params=asked).text)
    table = client.get("/trials", params=study).json()["html"]
    done = CliRunner().invoke(app, ["report", str(folder)])
    assert done.exit_code == 0, done.output
    report = (folder / "report.html").read_text().split("<script>")[0]
    report, _, drawn = report.partition('<script type="application/json" id="drawings">')
    pages += [table, report]
    texts = [text for page in pages for text in Shown(page).texts]
    figures = json.loads(drawn.partition("</script>")[0])
    exact = {each.pop("name") for each in figures["curves"]}
    texts += strings(figures)
    curves = client.get("/drawing/curves", params=study).json()
    exact |= {curves.pop("name"), *curves.pop("names")}
    texts += strings(curves)
    for drawing in ("slots", *CHARTS):
        texts += strings(client.get(f"/drawing/{drawing}", params=study).json())
    wrong = [text for text in texts if UNSEEN.search(text)]
    assert not wrong, wrong[:9]
    assert sum("a\\u202eb\\u200bc" in text for text in texts) > 20
    assert unseen in exact, "what is asked for is what the journal has"
    assert f'data-tick="{trial}"' in table


def test_an_error_file_outside_the_study_is_not_shown(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    outside = "../../secret"
    write(folder, {0.0: [opened("s"), submitted("out", {})]})
    journal = folder / "journal.jsonl"
    journal.write_text(journal.read_text().replace('"out"', f'"{outside}"'))
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "error.txt").write_text("hidden words")
    answer = client_of(folder).get("/part/trial", params={"study": "s", "trial": outside})
    assert "hidden words" not in answer.text


def test_the_list_has_the_best_of_each_recipe_with_its_own_metric(tmp_path: Path) -> None:
    aims = {"cnn": ("accuracy", "max"), "rnn": ("loss", "min"), "mlp": ("auc", "max")}
    head = opened("both", metric=None, mode=None, aims=aims)
    scores = {"a": ("cnn", {"accuracy": 0.5}), "b": ("cnn", {"accuracy": 0.75})}
    scores |= {"c": ("rnn", {"loss": 0.25}), "d": ("rnn", {"loss": 4.0})}
    begun = [submitted(name, {"recipe": own}, 1) for name, (own, _) in scores.items()]
    told = [Evaluated(TrialId(name), 1.0, its) for name, (_, its) in scores.items()]
    write(tmp_path / "both", {0.0: [head, *begun], 1.0: [*told]})
    many(tmp_path / "one", 2)
    listed = client_of(tmp_path).get("/list").text
    assert "cnn: accuracy 0.75000 · b; rnn: loss 0.25000 · c<" in listed


def test_several_studies_are_a_list(tmp_path: Path) -> None:
    many(tmp_path / "runs" / "one", 3)
    many(tmp_path / "runs" / "deep" / "two", 5)
    (tmp_path / "runs" / "none").mkdir()
    client = client_of(tmp_path / "runs")
    listed = client.get("/list").text
    assert 'href="/?study=one"' in listed and 'href="/?study=deep%2Ftwo"' in listed
    assert "finished" in listed and "accuracy 0." in listed
    frame = page_of(client.get("/frame?study=deep/two"))
    assert frame["study"] == "deep/two" and "all studies" in frame["html"]
    assert "study" not in page_of(client.get("/frame"))
    assert page_of(client.get("/trials?study=deep/two"))["all"] == 5
    assert client.get("/frame?study=none").status_code == 404
    many(tmp_path / "runs" / "three", 2)
    assert "study=three" in client.get("/list").text
    with pytest.raises(StudyError, match="there is no study in"):
        client_of(tmp_path / "runs" / "none")


def test_a_damaged_journal_is_said_and_the_others_go_on(tmp_path: Path) -> None:
    many(tmp_path / "good", 3)
    many(tmp_path / "bad", 3)
    journal = tmp_path / "bad" / "journal.jsonl"
    journal.write_bytes(journal.read_bytes().replace(b"Joined", b"Jo{ned", 1))
    client = client_of(tmp_path)
    assert "not a journal entry" in client.get("/part/heading?study=bad").text
    assert "3 finished" in client.get("/part/heading?study=good").text
    assert "not a journal entry" in client.get("/list").text


@pytest.mark.skipif(os.name != "posix", reason="processes are looked for on POSIX only")
def test_whether_a_process_is_at_work_is_said(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    write(folder, {0.0: [opened("s"), submitted("t0", {"lr": 0.1})]})
    assert "at work, or cut off" in client_of(folder).get("/part/heading?study=s").text
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    for process, said in ((os.getpid(), ">running<"), (done.pid, ">cut off<")):
        about = {"pid": process, "host": platform.node(), "since": "now"}
        (folder / "holder.json").write_text(json.dumps(about))
        assert said in client_of(folder).get("/part/heading?study=s").text


@pytest.mark.skipif(os.name != "posix", reason="processes are looked for on POSIX only")
def test_a_study_whose_slots_are_awaited_is_starting(tmp_path: Path) -> None:
    write(tmp_path / "runs" / "s", {0.0: [opened("s")]})
    assert ">no trials<" in client_of(tmp_path / "runs").get("/list").text
    about = {"pid": os.getpid(), "host": platform.node(), "since": "now"}
    (tmp_path / "runs" / "s" / "holder.json").write_text(json.dumps(about))
    assert ">starting<" in client_of(tmp_path / "runs").get("/list").text


# -- news ------------------------------------------------------------------------------------------


def test_news_come_as_the_journal_grows(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    write(folder, {0.0: [opened("s"), submitted("t0", {"lr": 0.1})]})
    with serving(folder) as server, httpx.Client() as client:
        client.get(server.address)
        client.headers.update(keyed(server))
        news = server.address.partition("?")[0] + "news?study=s"
        with client.stream("GET", news, timeout=LONG) as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            events = map(json.loads, data_of(answer))
            first = next(events)
            assert "1 waiting" in first["heading"]
            write(folder, {1.0: [Retired(TrialId("t0"))]})
            second = next(events)
            assert second["version"] > first["version"]
            assert "1 stopped early" in second["heading"]


def data_of(answer: httpx.Response) -> Any:
    for line in answer.iter_lines():
        if line.startswith("data: "):
            yield line.removeprefix("data: ")


# -- actions ---------------------------------------------------------------------------------------


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands that would be run; one with "gone" in it fails."""
    commands: list[list[str]] = []

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        commands.append(command[4:])
        if "gone" in command:
            said = "warning: old\nerror: there is no trial gone\n"
            return subprocess.CompletedProcess(command, 2, "", said)
        return subprocess.CompletedProcess(command, 0, "stopped: t1\n", "")

    monkeypatch.setattr(actions.subprocess, "run", run)
    return commands


def test_actions_are_the_commands_of_the_command_line(folder: Path, typed: list[list[str]]) -> None:
    client = client_of(folder)
    place = str(folder)
    values = {"lr": "0.01", "act": "--cold"}
    wanted: list[tuple[dict[str, Any], list[str]]] = [
        ({"do": "stop", "trial": "--json"}, ["stop", "--", place, "--json"]),
        ({"do": "pause"}, ["stop", "--", place]),
        (
            {"do": "extend", "trial": "t1", "max_epochs": "9"},
            ["extend", "--max-epochs=9", "--", place, "t1"],
        ),
        (
            {"do": "clone", "trial": "t1", "values": values, "max_epochs": ""},
            ["add", "--from=t1", "--", place, "lr=0.01", "act=--cold"],
        ),
        (
            {"do": "clone", "trial": "t1", "cold": True, "max_epochs": 3},
            ["add", "--from=t1", "--max-epochs=3", "--cold", "--", place],
        ),
        ({"do": "add", "values": {"lr": "1"}}, ["add", "--", place, "lr=1"]),
    ]
    for asked, command in wanted:
        answer = client.post("/do", json={"study": "few", **asked}, headers=ORIGIN)
        assert answer.json() == {"said": "stopped: t1"}, answer.text
        assert typed.pop() == command


def test_what_cannot_be_done_is_one_clear_error(folder: Path, typed: list[list[str]]) -> None:
    client = client_of(folder)
    refused = {
        "there is no trial gone": {"do": "stop", "trial": "gone"},
        "there is no action 'rm'": {"do": "rm"},
        "say which trial": {"do": "stop"},
        "epochs must be a whole number above 0; got '-1'": {
            "do": "extend",
            "trial": "t1",
            "max_epochs": "-1",
        },
        "epochs must be a whole number above 0; got ''": {"do": "extend", "trial": "t"},
        "a name must not be empty or hold '=': 'a=b'": {"do": "add", "values": {"a=b": "1"}},
        "values must be names with their values": {"do": "add", "values": [1]},
        "no text may hold a NUL": {"do": "stop", "trial": "t\0"},
    }
    for error, asked in refused.items():
        answer = client.post("/do", json={"study": "few", **asked}, headers=ORIGIN)
        assert (answer.status_code, answer.json()) == (409, {"error": error})
    assert len(typed) == 1
    for body in (b"", b"[]", b"{}", b'{"study": []}', b"x" * 200_000):
        kind = {"content-type": "application/json"}
        answer = client.post("/do", content=body, headers=ORIGIN | kind)
        assert answer.status_code in (400, 404), body[:20]
    plain = {"content-type": "text/plain"}
    asked = json.dumps({"study": "few", "do": "pause"})
    answer = client.post("/do", content=asked, headers=ORIGIN | plain)
    assert answer.status_code == 400 and len(typed) == 1
    assert client.get("/do").status_code == 405


def test_a_study_is_resumed_in_a_process_of_its_own(folder: Path) -> None:
    """This one has no recipe: the process says so, and the page shows it."""
    client = client_of(folder)
    asked = {"study": "few", "do": "resume"}
    answer = client.post("/do", json=asked, headers=ORIGIN)
    assert "resume.log" in answer.json()["said"]
    answer = client.post("/do", json=asked, headers=ORIGIN)
    assert answer.json() == {"error": "few is running already"}
    for _ in range(10 * LONG):
        heading = client.get("/part/heading?study=few").text
        if "ended with code 2" in heading:
            break
        time.sleep(0.1)
    assert "ended with code 2: see resume.log" in heading
    assert "has no recipe/recipe.json" in client.get("/part/log?study=few").text


# -- the command -----------------------------------------------------------------------------------


def test_the_command_says_where_and_what_is_missing(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve.Server, "run", lambda self: None)
    done = CliRunner().invoke(app, ["ui", str(folder), "--port", "0"])
    assert re.fullmatch(
        r"live page: http://127\.0\.0\.1:\d+/\?token=[\w-]{20,}#[\w-]{20,}\n", done.output
    )
    done = CliRunner().invoke(app, ["ui", str(tmp_path / "none")])
    assert done.exit_code == 2 and "there is no study in" in done.output
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, "shoal.ui.serve")
    done = CliRunner().invoke(app, ["ui", str(folder)])
    assert done.exit_code == 2 and "pip install 'shoal[ui]'" in done.output


class Bomb:
    """Whoever unpickles it leaves a file."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.mark}",)


@pytest.mark.slow
def test_the_page_of_a_foreign_study_runs_none_of_its_code(folder: Path) -> None:
    mark = folder.parent / "HACKED"
    (folder / "recipe.pkl").write_bytes(pickle.dumps(Bomb(mark)))
    client = client_of(folder)
    for path in ("/", "/part/heading", "/part/log", "/trials", "/drawing/curves"):
        assert client.get(f"{path}?study=few").status_code == 200, path
    for asked in ({"do": "add", "values": {"lr": "1"}}, {"do": "clone", "trial": "t0"}):
        answer = client.post("/do", json={"study": "few", **asked}, headers=ORIGIN)
        assert "error" in answer.json(), asked
        assert not mark.exists()
    asked = {"study": "few", "do": "add", "values": {"lr": "1"}, "max_epochs": "1"}
    answer = client.post("/do", json=asked, headers=ORIGIN)
    assert "not known as your own" in answer.json()["error"]
    assert not mark.exists()
