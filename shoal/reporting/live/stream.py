"""Lines for a reader who may go away."""

import os
from contextlib import suppress
from typing import TextIO

from shoal.reporting.facts.format import printable


def write_line(stream: TextIO, text: str) -> None:
    """Write the line; nothing once nobody reads any more."""
    try:
        stream.write(printable(text))
        stream.flush()
    except BrokenPipeError:
        into_nothing(stream)


def into_nothing(stream: TextIO) -> None:
    """What is written from now on goes nowhere: the reader, as `head`, closed the pipe."""
    with suppress(OSError):  # one without a file of the system's has nothing to close
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, stream.fileno())
        os.close(nothing)
