"""Lines for a reader who may go away."""

import os
from contextlib import suppress
from typing import TextIO

from shoal.reporting.facts.format import printable


def write_line(stream: TextIO | None, text: str) -> None:
    """Write the line; nothing where there is no stream, or once it takes no more.

    A closed pipe, a terminal that is gone or a full disk behind a log end no training.
    """
    if stream is None or getattr(stream, "closed", False):
        return
    encoding = getattr(stream, "encoding", None) or "utf-8"
    shown = printable(text).encode(encoding, "backslashreplace").decode(encoding)
    try:
        stream.write(shown)
        stream.flush()
    except OSError:
        into_nothing(stream)


def into_nothing(stream: TextIO) -> None:
    """What is written from now on goes nowhere: the reader, as `head`, closed the pipe."""
    with suppress(OSError):  # one without a file of the system's has nothing to close
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, stream.fileno())
        os.close(nothing)
