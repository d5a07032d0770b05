"""Colours that read on white and on black: trials by their number, causes by shade and pattern."""

from collections.abc import Iterable
from functools import cache
from typing import NamedTuple

from shoal.core.trial import TrialId
from shoal.reporting.facts.metrics import Account

BASE = (
    "#3b82d6",
    "#e8743b",
    "#2fa36b",
    "#b15fd0",
    "#d64561",
    "#18a2b8",
    "#c9a227",
    "#7a68e0",
    "#8aa83a",
    "#d45fa4",
    "#4f9d9a",
    "#b0764a",
)
GREY = "#8b93a1"


class Cause(NamedTuple):
    """How a kind of a slot's time is drawn.

    `colour` None: the trial's own; `pattern` as plotly names it.
    """

    kind: str
    label: str
    colour: str | None
    pattern: str
    total: str  # its colour where all trials are drawn together
    text: str = "#ffffff"  # what reads on that


CAUSES = (
    Cause("train", "training", None, "", "#3b82d6"),
    Cause("evaluate", "evaluating", None, ".", "#9cc4f2", "#1c2430"),
    Cause("save", "saving", None, "|", "#7a68e0"),
    Cause("data", "waiting for data", "#c98a1b", "x", "#c98a1b"),
    Cause("switch", "switching", "#6b7280", "/", "#6b7280"),
    Cause("lost", "cut off", "#e06a80", "\\", "#e06a80"),
    Cause("other", "held, unreported", "#b3bac5", "", "#b3bac5", "#1c2430"),
    Cause("idle", "idle", "rgba(139,147,161,0.20)", "", "rgba(139,147,161,0.20)", GREY),
)


def painted_by(account: Account) -> dict[TrialId, str]:
    """A colour for each trial, the same in all drawings.

    The best trials have a colour of their own, the others a shade of one.
    """
    names = [row.id for row in account.ranked()[: len(BASE)]]
    names += [row.id for row in account.trials]
    return numbered(list(dict.fromkeys(names)))


def numbered(trials: Iterable[TrialId]) -> dict[TrialId, str]:
    """A colour for each trial by its place, the first ones unshaded."""
    painted: dict[TrialId, str] = {}
    for number, trial in enumerate(trials):
        lap, place = divmod(number, len(BASE))
        colour = BASE[place]
        if lap > 0:
            colour = _shade(colour, lap % 2 == 1)
        painted[trial] = colour
    return painted


def mix(colour: str, other: str, part: float) -> str:
    """The colour with a part (0 to 1) of another one in it; both as #rrggbb."""
    mixed = "#"
    for a, b in zip(_rgb(colour), _rgb(other), strict=True):
        mixed += f"{round(a + (b - a) * part):02x}"
    return mixed


def _rgb(colour: str) -> tuple[int, ...]:
    """Red, green and blue of #rrggbb, from 0 to 255."""
    return tuple(int(colour[at : at + 2], 16) for at in (1, 3, 5))


@cache
def _shade(colour: str, darker: bool) -> str:
    """The colour of a trial that shares it with others: a darker or a lighter one."""
    if darker:
        return mix(colour, "#000000", 0.2)
    return mix(colour, "#ffffff", 0.3)
