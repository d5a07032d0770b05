"""What a torch scheduler was made with, told from what it counts: a trial that starts from another's state keeps its own."""

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from torch.optim.lr_scheduler import LRScheduler

_NOT = ("optimizer", "_last_lr")  # of a scheduler's attributes; the second follows from the optimizer's rates


def made_with(scheduler: Any) -> dict[str, Any]:
    """The plain attributes of a torch scheduler that has just been made, and those of the ones within it; {} of others."""
    if not isinstance(scheduler, LRScheduler):
        return {}
    inner = [made_with(each) for each in getattr(scheduler, "_schedulers", ())]
    plain = {name: _plain(value) for name, value in vars(scheduler).items() if name not in _NOT and _is_plain(value)}
    return {**plain, "_schedulers": inner} if inner else plain


def put_back(scheduler: Any, own: Mapping[str, Any], theirs: Mapping[str, Any]) -> None:
    """Undo what loading another trial's state did to attributes in which the two were made unlike: gamma, T_max, base rates."""
    for name, value in own.items():
        if name == "_schedulers":
            for each, mine, other in zip(scheduler._schedulers, value, theirs.get(name, ()), strict=False):
                put_back(each, mine, other)
        elif name in theirs and theirs[name] != value:
            now = getattr(scheduler, name)
            setattr(scheduler, name, type(now)(deepcopy(value)) if isinstance(now, tuple | list | dict) else value)


def _is_plain(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(map(_is_plain, value)) and all(map(_is_plain, value.values()))
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float | str)


def _plain(value: Any) -> Any:
    """A copy as it comes back from a checkpoint: lists for tuples."""
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value
