"""What the recipes of the stored studies import from beside them."""

SMALL, LARGE = 3, 5


def decay(value: float) -> float:
    """A schedule, as a recipe may hold it."""
    return 1 / (1 + value)
