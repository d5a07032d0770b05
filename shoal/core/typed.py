"""What a user types, as Python's own parser sees it; nothing of it is run."""

import ast

LONGEST = 100_000  # characters


def parsed(text: str) -> ast.expr:
    """The one expression that the text is.

    Raises:
        SyntaxError: it is none, or too long or too deep for one.
    """
    if len(text) > LONGEST:
        raise SyntaxError(f"it has {len(text)} characters, over {LONGEST}")
    try:
        return ast.parse(text, mode="eval").body
    except (MemoryError, RecursionError, ValueError) as error:  # too deep; a NUL in it
        raise SyntaxError(f"it is too deep, or no text ({error})") from None
