"""Who may ask the page for anything: the browser that came with the token, and no other page.

A cookie goes to every port of its host, so whoever serves anything else on this machine gets it.
It is good for the empty frame of the page and its scripts alone. All that is shown of a study, and
all that is done to one, needs the key: it stands behind the # of the address, which no browser
sends, and the page's script sends it in a header.
"""

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
KEY = "x-shoal-key"  # the header
# The script keeps the key, which stands behind the #, and asks again from this page, so that a
# strict cookie is sent with it wherever the link was clicked, and neither stays in the address.
WELCOME = (
    '<!doctype html><html lang="en"><head><title>Shoal</title>'
    '<link rel="icon" href="data:,"><script src="/static/ui.js"></script></head>'
    "<body>The page needs JavaScript.</body></html>"
)
MOST = 64  # connections that are open and have shown nothing; and as many that showed the cookie
PATIENCE = 10.0  # seconds until a connection must have shown something


class Connections:
    """Which connections stay open: those that showed the key, and the newest of the others.

    So connections that send nothing, or a byte now and then, take no place from the owner. Each is
    known by its client: the host and the port at its other end.
    """

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._strange: dict[Any, Any] = {}  # transports by client, the oldest first
        self._with_cookie: dict[Any, Any] = {}

    def opened(self, client: Any, transport: Any) -> None:
        """A connection begins."""
        self._add(self._strange, client, transport)

    def showed_cookie(self, client: Any) -> None:
        """A request through the connection had the cookie."""
        transport = self._strange.pop(client, None)
        if transport is not None:
            self._add(self._with_cookie, client, transport)

    def showed_key(self, client: Any) -> None:
        """The connection is the owner's, and stays open."""
        self.closed(client)

    def closed(self, client: Any) -> None:
        """Forget the connection."""
        self._strange.pop(client, None)
        self._with_cookie.pop(client, None)

    def late(self, client: Any, transport: Any) -> None:
        """End a connection that has shown nothing until now."""
        if self._strange.get(client) is transport:
            self._strange.pop(client).abort()

    def _add(self, group: dict[Any, Any], client: Any, transport: Any) -> None:
        """Add a connection to a group; the oldest is ended if there are too many."""
        group[client] = transport
        if len(group) > self._most:
            group.pop(next(iter(group))).abort()


class Guard:
    """Lets through what carries the key, comes to the right host and from this page.

    `token`: what the address that is printed holds before its #, and `key`: behind it. `secret`:
    what the cookie holds. `hosts`: under which names the server is asked, as host:port.
    `connections` are told who has shown what.
    """

    def __init__(
        self,
        app: Any,
        token: str,
        key: str,
        secret: str,
        cookie: str,
        hosts: Collection[str],
        connections: Connections,
    ) -> None:
        self._app = app
        self._token = token
        self._key = key
        self._secret = secret
        self._cookie = cookie
        self._hosts = hosts
        self._connections = connections

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
            return _refusal(403)
        path = request.url.path
        token = request.query_params.get("token")
        if token is not None and path == "/" and request.method == "GET":
            return self._welcome(token)
        if not _same(request.cookies.get(self._cookie, ""), self._secret):
            return _refusal(401)
        client = request.scope.get("client")
        self._connections.showed_cookie(client)
        origin = request.headers.get("origin")
        if request.method not in READING and origin != f"http://{host}":
            return _refusal(403)
        if path != "/" and not path.startswith("/static/"):
            if not _same(request.headers.get(KEY, ""), self._key):
                return _refusal(403)
            self._connections.showed_key(client)
        return None

    def _welcome(self, token: str) -> Response:
        """Give the cookie for the token."""
        if not _same(token, self._token):
            return _refusal(401)
        answer = HTMLResponse(WELCOME)
        answer.set_cookie(self._cookie, self._secret, httponly=True, samesite="strict", path="/")
        return answer


def _refusal(status: int) -> Response:
    """An answer of nothing but a status, after which the connection ends."""
    return Response(status_code=status, headers={"Connection": "close"})


def _same(text: str, wanted: str) -> bool:
    """Whether two texts are equal, in a time that does not tell how far they are."""
    return hmac.compare_digest(text.encode(), wanted.encode())
