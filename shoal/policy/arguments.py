"""What several policies check of their arguments."""

from typing import Any, get_args

from shoal.core.trial import Seconds


def check_one_of(argument: str, words: Any, value: object) -> None:
    """Raise ValueError unless the value is one of the words. `words`: a Literal type of them."""
    known = get_args(words)
    if value not in known:
        raise ValueError(f"{argument} is one of {', '.join(known)}; got {value!r}")


def check_interval(seconds: Seconds | None) -> None:
    """Raise ValueError unless it is positive, or None."""
    if seconds is not None and not seconds > 0:
        raise ValueError(f"an interval must be > 0 seconds, or None; got {seconds!r}")
