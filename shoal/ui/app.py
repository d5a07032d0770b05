"""The server's answers: the page, its parts, drawings, news as they come, and actions."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Collection
from functools import cache, wraps
from importlib.resources import files
from time import time
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from shoal.core.trial import TrialId
from shoal.reporting.charts import curve_names, curves_of
from shoal.reporting.format import printable
from shoal.reporting.html import asset, embedded, plotly_source
from shoal.reporting.score_charts import CHARTS
from shoal.reporting.slot_charts import gantt, use
from shoal.ui import parts, table
from shoal.ui.actions import Actions, Refused
from shoal.ui.studies import LiveStudy, Seen, Shelf

EVERY = 1.0  # seconds between two looks for news
SILENCE = 15  # looks without news after which a comment keeps the connection alive
LONGEST = 100_000  # bytes of a request
BARS = 1500  # of the Gantt chart: it is drawn again and again
BEST = 100  # trials whose curves are drawn if none is chosen
KINDS = {"css": "text/css", "js": "text/javascript"}


def application(shelf: Shelf, ends: Callable[[], bool]) -> Starlette:
    """What is served of these studies; `guard.Guard` must stand before it.

    `ends`: whether the server is about to end, so that nobody waits for news any more.
    """
    pages = Pages(shelf, ends)
    routes = [
        Route("/", shell),
        Route("/frame", pages.frame),
        Route("/list", pages.studies),
        Route("/news", pages.news),
        Route("/part/{part}", pages.part),
        Route("/trials", pages.trials),
        Route("/drawing/{drawing}", pages.drawing),
        Route("/do", pages.do, methods=["POST"]),
        Route("/static/{name}", static),
    ]
    return Starlette(routes=routes)


@cache
def _file(name: str) -> bytes | None:
    """A file that the page loads; None: there is none of that name."""
    if name == "plotly.js":
        return plotly_source().encode()
    if name in ("page.css", "charts.js", "tables.js"):
        return asset(name).encode()
    if name in ("ui.css", "ui.js"):
        return files("shoal.ui").joinpath(name).read_bytes()
    return None


def static(request: Request) -> Response:
    """A style sheet or a script."""
    name = request.path_params["name"]
    data = _file(name)
    if data is None:
        return Response(status_code=404)
    kind = KINDS[name.rpartition(".")[2]]
    return Response(data, media_type=kind)


def shell(request: Request) -> Response:
    """The page before its script has asked for anything: it tells nothing of any study."""
    return HTMLResponse(parts.shell())


def _json(value: Any) -> Response:
    """Data for a script; numbers that JSON lacks are null."""
    return Response(embedded(value), media_type="application/json")


def of_study(
    answer: "Callable[[Pages, Request, LiveStudy], Response]",
) -> "Callable[[Pages, Request], Response]":
    """Have an answer given the study that the request names."""

    @wraps(answer)
    def answered(self: "Pages", request: Request) -> Response:
        study = self.shelf.get(request.query_params.get("study", ""))
        if study is None:
            return Response("there is no such study", status_code=404)
        return answer(self, request, study)

    return answered


class Pages:
    """Answers about the studies of a shelf. All but the news are plain functions in threads."""

    def __init__(self, shelf: Shelf, ends: Callable[[], bool]) -> None:
        self.shelf = shelf
        self.ends = ends
        self.actions = Actions()

    def frame(self, request: Request) -> Response:
        """What the page of a study, or the list of them, consists of before its parts come."""
        name = request.query_params.get("study")
        if name is None and self.shelf.alone:
            name = next(iter(self.shelf.studies()))
        if name is None:
            path = self.shelf.path
            return _json({"title": printable(path.name), "html": parts.list_frame(path)})
        study = self.shelf.get(name)
        if study is None:
            return Response("there is no such study", status_code=404)
        html = parts.study_frame(self.shelf.alone)
        return _json({"title": printable(study.name), "study": study.name, "html": html})

    def studies(self, request: Request) -> Response:
        """The studies, those with the newest entries first."""
        rows = []
        for study in self.shelf.studies().values():
            quiet = time() - study.changed()
            rows.append((study, study.seen(), quiet))
        rows.sort(key=lambda row: row[2])
        return HTMLResponse(parts.studies(rows))

    @of_study
    def part(self, request: Request, study: LiveStudy) -> Response:
        """A part of a study's page."""
        seen = study.seen()
        text: str | None = None
        match request.path_params["part"]:
            case "heading":
                text = self._heading(study)
            case "decisions":
                text = parts.decisions(study, seen)
            case "failures":
                text = parts.failures(seen)
            case "log":
                text = parts.log(study)
            case "new":
                text = parts.new_trial(seen)
            case "trial":
                row = seen.rows.get(request.query_params.get("trial", ""))
                if row is not None:
                    text = parts.trial(study, row)
        if text is None:
            return Response("there is no such part", status_code=404)
        return HTMLResponse(text)

    def _heading(self, study: LiveStudy) -> str:
        return parts.heading(study, study.seen(), self.actions.run_of(study))

    @of_study
    def trials(self, request: Request, study: LiveStudy) -> Response:
        """A page of the table of trials, or the whole of it as texts for its CSV."""
        query = request.query_params
        page = query.get("page", "")[:9]
        number = 0
        if page.isascii() and page.isdecimal():
            number = int(page)
        question = table.Question(
            sort=query.get("sort", ""),
            down=query.get("down") == "1",
            status=query.get("status", ""),
            text=query.get("text", "")[:500],
            page=number,
        )
        if query.get("whole") == "1":
            return _json(table.whole(study.seen(), question))
        return _json(table.answer(study.seen(), question))

    @of_study
    def drawing(self, request: Request, study: LiveStudy) -> Response:
        """A drawing, for plotly."""
        query = request.query_params
        match request.path_params["drawing"]:
            case "curves":
                chosen = query.getlist("trial")
                return _json(curve_drawing(study.seen(), query.get("name", ""), chosen))
            case "slots":
                return _json(slot_drawings(study.seen()))
            case name if name in CHARTS:
                return _json(score_drawing(study.seen(), name))
        return Response("there is no such drawing", status_code=404)

    async def do(self, request: Request) -> Response:
        """Do something to a study."""
        try:
            action = json.loads(await _body(request))
            study = self.shelf.get(str(action["study"]))
        except (ValueError, KeyError, TypeError, RecursionError):
            return JSONResponse({"error": "not a request"}, status_code=400)
        if study is None:
            return JSONResponse({"error": "there is no such study"}, status_code=404)
        try:
            message = await run_in_threadpool(self.actions.do, study, action)
        except (Refused, OSError) as error:
            return JSONResponse({"error": str(error)}, status_code=409)
        return JSONResponse({"said": message})

    async def news(self, request: Request) -> Response:
        """What is new, as it comes: of a study its heading, else the list's version."""
        name = request.query_params.get("study")
        if name is None:
            look = self._list_version
        else:
            study = await run_in_threadpool(self.shelf.get, name)
            if study is None:
                return Response("there is no such study", status_code=404)
            look = self._news_of(study)
        events = _events(look, self.ends)
        return StreamingResponse(events, media_type="text/event-stream")

    def _news_of(self, study: LiveStudy) -> Callable[[], Any]:
        """A function that returns how a study stands."""

        def look() -> Any:
            seen = study.seen()
            return {
                "version": seen.version,
                "standing": seen.standing,
                "run": self.actions.run_of(study),
                "heading": self._heading(study),
            }

        return look

    def _list_version(self) -> Any:
        """The versions of all studies, which change when the list does."""
        return {name: study.seen().version for name, study in self.shelf.studies().items()}


async def _body(request: Request) -> bytes:
    """The request's body.

    Raises:
        ValueError: it is too long, or not JSON by its own word.
    """
    if request.headers.get("content-type") != "application/json":
        raise ValueError("not JSON")
    data = b""
    async for part in request.stream():
        data += part
        if len(data) > LONGEST:
            raise ValueError("too long")
    return data


async def _events(look: Callable[[], Any], ends: Callable[[], bool]) -> AsyncIterator[str]:
    """An event whenever `look` sees something else than before; now and then a comment."""
    before = None
    quiet = 0
    while not ends():
        news = await run_in_threadpool(look)
        quiet += 1
        if news != before:
            before = news
            quiet = 0
            yield f"data: {json.dumps(news)}\n\n"
        elif quiet >= SILENCE:
            quiet = 0
            yield ": still here\n\n"
        await asyncio.sleep(EVERY)


# -- drawings --------------------------------------------------------------------------------------


def curve_drawing(seen: Seen, name: str, trials: Collection[str]) -> dict[str, Any]:
    """The learning curves of these trials, of the best ones if there are none.

    Without a name, of the first value.
    """
    names = curve_names(seen.account)
    if not names:
        return {"names": []}
    if name not in names:
        name = names[0]
    chosen = [TrialId(trial) for trial in trials if trial in seen.rows]
    if not chosen:
        curves = seen.account.curves[name]
        chosen = [row.id for row in seen.ranked if row.id in curves][:BEST]
    labels = [printable(each) for each in names]
    return {"names": names, "labels": labels, **curves_of(seen.account, name, chosen)}


def score_drawing(seen: Seen, name: str) -> dict[str, Any]:
    """A drawing of scores, with the texts of its trials; empty where there is no score yet."""
    drawing = CHARTS[name].make(seen.view)
    if drawing is None:
        return {}
    return {**drawing, "hover": seen.view.hover()}


def slot_drawings(seen: Seen) -> dict[str, Any]:
    """The Gantt chart, and the use of the slots; None: no slot was ever there."""
    chart = gantt(seen.account, BARS)
    if chart is None:
        return {"gantt": None, "use": None}
    return {"gantt": chart[0], "use": use(seen.account)}
