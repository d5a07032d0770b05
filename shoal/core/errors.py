"""The error that all rooms raise for what a user can mend, and the warning that they give."""

import inspect
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

# What stands between a caller and Shoal without being code of the caller's.
_BETWEEN = ("shoal", "contextlib", "functools", "threading", "concurrent")
# What calls Shoal in processes and threads of its own, where no user's code does.
_OWN = ("ray", "multiprocessing", "asyncio")


class StudyError(RuntimeError):
    """The study cannot be opened, or cannot do what is asked for.

    The message gives the rule, the values and the remedy.
    """


class ArgumentError(StudyError, ValueError):
    """An argument is wrong, of a searcher, policy or logger, too. It stays a `ValueError`."""


@contextmanager
def arguments_checked() -> Iterator[None]:
    """Within, what a study is given refuses its arguments by a `ValueError`, which is passed on.

    Other kinds of it, such as a `UnicodeDecodeError`, come from elsewhere and stay as they are.

    Raises:
        ArgumentError: with the same text.
    """
    try:
        yield
    except ValueError as error:
        if type(error) is not ValueError:
            raise
        raise ArgumentError(*error.args) from error


def warn(text: str) -> None:
    """Warn at the line of the user's code from which Shoal was called, however deep this call is.

    In a process or thread of Shoal's own, where there is none, at the line of this call.
    """
    level, frame = 1, inspect.currentframe()
    while frame and _package(frame) in _BETWEEN:
        level, frame = level + 1, frame.f_back
    warnings.warn(text, stacklevel=level if frame and _package(frame) not in _OWN else 2)


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]
