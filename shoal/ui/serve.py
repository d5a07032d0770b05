"""Serves the page on this machine alone."""

import logging
import os
import secrets
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import uvicorn
from h11 import ProtocolError
from uvicorn.protocols.http.h11_impl import H11Protocol

from shoal.core.errors import StudyError
from shoal.ui.app import application
from shoal.ui.guard import PATIENCE, Connections, Guard
from shoal.ui.studies import Shelf

HOST = "127.0.0.1"
PORT = 8765
# How long the address waits for the journals of several studies: a page that is opened while they
# are read takes longer than both together.
READING = 2.0


def listening(port: int | None) -> socket.socket:
    """A socket at this port; None: at 8765, or any other if that is taken.

    Raises:
        StudyError: the port is taken.
    """
    wanted = PORT if port is None else port
    listener = _bound(wanted)
    if listener is None and port is None:
        listener = _bound(0)
    if listener is None:
        raise StudyError(
            f"port {wanted} of {HOST} cannot be used: give another one, or none, and a free one "
            "is taken"
        )
    return listener


def _bound(port: int) -> socket.socket | None:
    """A socket that listens at this port; None: it cannot be used."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    if os.name == "posix":  # elsewhere this would share the port with another process
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((HOST, port))
        listener.listen()
    except (OSError, OverflowError):
        listener.close()
        return None
    return listener


class Server:
    """The page of a folder, at a socket.

    `address`: what to open in a browser, with the token and the key.

    Raises:
        StudyError: there is no study in the folder, or the port is taken.
    """

    def __init__(self, path: Path, port: int | None = None) -> None:
        shelf = Shelf(path)
        self._socket = listening(port)
        if shelf.alone:
            shelf.read()
        else:  # the journals of several studies go on being read while they are served
            reading = threading.Thread(target=shelf.read, daemon=True)
            reading.start()
            reading.join(READING)
        number = self._socket.getsockname()[1]
        token = secrets.token_urlsafe(24)
        key = secrets.token_urlsafe(24)
        self.address = f"http://{HOST}:{number}/?token={token}#{key}"
        connections = Connections()
        guarded = Guard(
            application(shelf, lambda: self._server.should_exit),
            token,
            key,
            secrets.token_urlsafe(24),
            f"shoal-{number}",
            (f"{HOST}:{number}", f"localhost:{number}"),
            connections,
        )
        self._server = uvicorn.Server(_config(guarded, connections))

    def run(self) -> None:
        """Serve until Ctrl-C."""
        self._server.run(sockets=[self._socket])

    def stop(self) -> None:
        """End serving; other threads may call it."""
        self._server.should_exit = True


def _config(app: Any, connections: Connections) -> uvicorn.Config:
    """The server's settings: no log of requests, and an end three seconds after Ctrl-C."""

    class Counted(H11Protocol):  # type: ignore[misc]
        """HTTP over a connection that is counted, and must soon show something."""

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            connections.opened(self.client, transport)
            self.loop.call_later(PATIENCE, connections.late, self.client, transport)

        def connection_lost(self, exc: Exception | None) -> None:
            connections.closed(self.client)
            super().connection_lost(exc)

    logging.getLogger("uvicorn.error").addFilter(_worth_telling)
    return uvicorn.Config(
        app,
        http=Counted,
        ws="none",
        log_level="error",  # what strangers send is no warning to the owner
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=3,
        server_header=False,
        proxy_headers=False,  # a client is who connects, whatever it says
    )


def _worth_telling(record: logging.LogRecord) -> bool:
    """Whether an error is ours: nonsense behind a request, which h11 answers first, is not."""
    return not (record.exc_info and isinstance(record.exc_info[1], ProtocolError))


def serve(path: Path, port: int | None, say: Callable[[str], None]) -> None:
    """Serve the page of a folder until Ctrl-C, and say where.

    Raises:
        StudyError: see `Server`.
    """
    server = Server(path, port)
    say(server.address)
    with suppress(KeyboardInterrupt):  # uvicorn raises it again once it has ended
        server.run()
