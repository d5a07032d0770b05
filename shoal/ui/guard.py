"""Who may ask the page for anything: the browser that came with the token, and no other page."""

import hmac
from collections.abc import Collection
from typing import Any

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

# Scripts and everything else come from this server alone. Styles may stand in attributes, for
# plotly and the report's tables set them there.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; connect-src 'self'; form-action 'none'; base-uri 'none'; "
    "frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
READING = ("GET", "HEAD")
# The browser asks again from this page, so that a strict cookie is sent with it wherever the link
# was clicked, and the token does not stay in the address.
WELCOME = (
    '<!doctype html><html lang="en"><head><title>Shoal</title>'
    '<link rel="icon" href="data:,">'
    '<meta http-equiv="refresh" content="0;url=/"></head>'
    '<body><a href="/">Shoal</a></body></html>'
)


class Guard:
    """Lets through what carries the token's cookie, comes to the right host and from this page.

    `token`: what the address that is printed holds. `secret`: what the cookie holds instead.
    `hosts`: under which names the server is asked, as host:port.
    """

    def __init__(
        self, app: Any, token: str, secret: str, cookie: str, hosts: Collection[str]
    ) -> None:
        self._app = app
        self._token = token
        self._secret = secret
        self._cookie = cookie
        self._hosts = hosts

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return

        async def with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(HEADERS)
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        request = Request(scope)
        answer = self._answer(request) or self._app
        await answer(scope, receive, with_headers)

    def _answer(self, request: Request) -> Response | None:
        """What is answered here; None: the request may go on."""
        host = request.headers.get("host", "")
        if host not in self._hosts:  # another name that leads to this machine
            return Response(status_code=403)
        given = request.query_params.get("token")
        if given is not None and request.url.path == "/" and request.method == "GET":
            return self._welcome(given)
        if not _same(request.cookies.get(self._cookie, ""), self._secret):
            return Response(status_code=401)
        origin = request.headers.get("origin")
        if request.method not in READING and origin != f"http://{host}":
            return Response(status_code=403)
        return None

    def _welcome(self, given: str) -> Response:
        """Give the cookie for the token."""
        if not _same(given, self._token):
            return Response(status_code=401)
        answer = HTMLResponse(WELCOME)
        answer.set_cookie(
            self._cookie, self._secret, httponly=True, samesite="strict", path="/"
        )
        return answer


def _same(given: str, wanted: str) -> bool:
    """Whether two texts are equal, in a time that does not tell how far they are."""
    return hmac.compare_digest(given.encode(), wanted.encode())
