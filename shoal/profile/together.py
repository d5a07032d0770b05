"""What lanes cost that share a slot, from the figures measured on it."""

from collections.abc import Mapping

from shoal.core.trial import Seconds

FORM = 12  # letters at a signature's beginning: lanes that agree in them may be fused
GUESS = 0.6  # so many fused lanes are taken to cost as much as k ** GUESS alone, until some were measured


def fused_seconds(figures: Mapping[str, float], lanes: int, alone: Seconds) -> Seconds:
    """Seconds per sample of so many lanes of one form that may be fused, where one alone takes `alone` (in the mean).

    The figure `fused:w` is the seconds of a step of w lanes, `step` that of one. Lanes are fused by the width that takes
    the least of those measured, or not at all.
    """
    one_by_one = lanes * alone
    if lanes < 2 or "unfusable" in figures:
        return one_by_one
    widths = {int(name[6:]): took for name, took in figures.items() if name.startswith("fused:")}
    if not widths or not figures.get("step"):
        return float(alone * lanes**GUESS)
    # a width above what there is of lanes counts as if its step took as long with fewer
    per_lane = min(took / min(width, lanes) for width, took in widths.items())
    return min(one_by_one, lanes * alone * per_lane / figures["step"])
