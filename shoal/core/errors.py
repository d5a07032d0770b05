"""The error that all rooms raise for what a user can mend, and the warning that they give."""

import inspect
import warnings

# What stands between a caller and Shoal without being code of the caller's.
_BETWEEN = ("shoal", "contextlib", "functools", "threading", "concurrent")


class StudyError(RuntimeError):
    """The study cannot be opened, or cannot do what is asked for.

    The message gives the rule, the values and the remedy.
    """


def warn(text: str) -> None:
    """Warn at the line of the user's code from which Shoal was called, however deep this call is.

    In a thread of Shoal's own, where there is none, at the line of this call.
    """
    level, frame = 1, inspect.currentframe()
    while frame and frame.f_globals.get("__name__", "").partition(".")[0] in _BETWEEN:
        level, frame = level + 1, frame.f_back
    warnings.warn(text, stacklevel=level if frame else 2)
