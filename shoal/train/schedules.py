"""What a torch scheduler was made with, told from what it counts: a trial that starts from another's state keeps its own."""

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from torch.optim.lr_scheduler import CyclicLR, LRScheduler

_COUNTED = ("_last_lr", "T_i", "T_cur")  # attributes that tell how far it is, though they begin as it was made
_WITHIN = ("_schedulers", "lr_lambdas")  # those that hold schedulers, or functions, with attributes of their own


def made_with(scheduler: Any) -> dict[str, Any]:
    """The plain attributes of a torch scheduler that has just been made, and of what is within it; {} of others."""
    return _attributes(scheduler) if isinstance(scheduler, LRScheduler) else {}


def _attributes(of: Any) -> dict[str, Any]:
    found = getattr(of, "__dict__", {})
    plain = {name: _plain(value) for name, value in found.items() if name not in (*_COUNTED, *_WITHIN) and _is_plain(value)}
    return plain | {name: [_attributes(each) for each in found[name]] for name in _WITHIN if name in found}


def put_back(scheduler: Any, own: Mapping[str, Any], theirs: Mapping[str, Any]) -> None:
    """Undo what loading another trial's state did to attributes in which the two were made unlike: gamma, T_max, base rates."""
    for name, value in own.items():
        if name in _WITHIN:
            for each, mine, other in zip(getattr(scheduler, name), value, theirs.get(name, ()), strict=False):
                put_back(each, mine, other)
        elif name in theirs and theirs[name] != value:
            now = getattr(scheduler, name)
            setattr(scheduler, name, type(now)(deepcopy(value)) if isinstance(now, tuple | list | dict) else value)
    if isinstance(scheduler, CyclicLR):
        scheduler._init_scale_fn()  # it holds the gamma that was there when it was made


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
