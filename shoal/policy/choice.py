"""Arguments of policies that are one of a few words."""

from typing import Any, get_args


def check_one_of(what: str, words: Any, value: object) -> None:
    """Raise ValueError unless the value is one of the words. `words`: a Literal type of them."""
    known = get_args(words)
    if value not in known:
        raise ValueError(f"{what} is one of {', '.join(known)}; got {value!r}")
