"""What `policy="auto"` chooses among, and by what rule while it knows no figures."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from shoal.backend.ahead import Ahead
from shoal.core.ports import Policy
from shoal.core.state import View
from shoal.folder import StudyError
from shoal.policy import Auto

NAME = "auto"
# each fixes a trial's order of shards when it first sees it, whatever units then take
USUAL = ("hop-packs", "hop", "hop-quick4", "pack", "fifo")
WIDE = ("hybrid", "waterfill")  # besides, where trials may have several slots
GAIN = 0.05  # to leave what is followed: early figures are rougher than 2 %
HOPPING = ("hop", "hybrid")  # beginnings of names of policies that need several slots with shards of their own


def is_auto(policy: object) -> bool:
    """Whether it is "auto", or "auto:" with names of policies to choose among."""
    return isinstance(policy, str) and policy.partition(":")[0] == NAME


def auto(policy: str, make: Callable[[str], Policy[Any]]) -> Auto:
    """The automatic choice among the usual candidates, or ("auto:fifo,hop-lrw") those named. `make`: a policy by its name.

    Raises:
        StudyError: no names after the colon, or "auto" among them.
    """
    names = named(policy)
    if not names or NAME in names:
        raise StudyError(f'say what to choose among, as in "auto:fifo,hop-lrw"; got {policy!r}')
    foresee = Ahead()
    return Auto({name: make(name) for name in names}, foresee, GAIN, Among(names), foresee.price)


def named(policy: str) -> tuple[str, ...]:
    """The candidates' names in "auto" or "auto:…"."""
    _, colon, listed = policy.partition(":")
    return tuple(dict.fromkeys(_split(listed))) if colon else (*USUAL, *WIDE)


def _split(listed: str) -> list[str]:
    """What stands between commas that are in no parentheses."""
    names, depth = [""], 0
    for sign in listed:
        depth += (sign == "(") - (sign == ")")
        if sign == "," and depth == 0:
            names.append("")
        else:
            names[-1] += sign
    return [name.strip() for name in names if name.strip()]


def described(policy: str) -> dict[str, Any]:
    """The choice for a journal's head; `said` gives the name back."""
    return {"name": NAME} if ":" not in policy else {"name": NAME, "candidates": list(named(policy))}


def said(data: Mapping[str, Any]) -> str:
    """What the user said, as `described` wrote it down."""
    return NAME if "candidates" not in data else f"{NAME}:{','.join(data['candidates'])}"


@dataclass(frozen=True, slots=True)
class Among:
    """Of these candidates, those that suit the slots and shards in view, the usual choice first.

    Hopping needs several slots and several shards, and is usual where there is a shard for every slot. Wide lanes are for trials
    that may have several slots, and usual where such trials are fewer than slots; for trials that need several there is
    nothing else.
    """

    names: tuple[str, ...]

    def __call__(self, view: View) -> tuple[str, ...]:
        slots, shards, trials = len(view.slots), len(view.shards), view.trials.values()
        wide = slots > 1 and any(trial.widths[1] > 1 for trial in trials)
        need = wide and any(trial.widths[0] > 1 for trial in trials)
        names = [name for name in self.names if (name in WIDE and wide) or (name not in WIDE and not need)]
        hops = [name for name in names if name.startswith(HOPPING)] if slots > 1 and shards > 1 else []
        rest = [name for name in names if not name.startswith(HOPPING)]
        suit = [*hops, *rest] if shards >= slots else [*rest, *hops]
        if len(trials) < slots:
            suit.sort(key=lambda name: name not in WIDE)
        return tuple(suit) or self.names
