"""What a function says to Shoal while it trains: its reports, and what it goes on from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from math import nan
from pathlib import Path
from typing import Any, Protocol

from shoal.core.cluster import fits_utf8
from shoal.core.trial import Trial, shown
from shoal.engine.process import in_forks

Values = dict[str, float]
EXACT = 2**53  # up to here, floats hold each whole number


@dataclass(frozen=True, slots=True)
class TrialContext:
    """What a function's trial knows of itself.

    `chosen`: the configuration, to which an objective adds what it draws. `restored`: whether it
    goes on from a checkpoint. `log`: where its output belongs; None: nowhere. `scratch`: how the
    names of its temporary folders begin. `spread`: whether what an objective draws is spread over
    trials.
    """

    trial: Trial
    seed: int
    metric: str
    chosen: dict[str, Any]
    restored: bool
    log: Path | None
    scratch: str = "shoal-"
    spread: bool = False


class TrialStopped(BaseException):
    """The trial goes no further, here at least. `finally` blocks run; nothing else should."""


class Pruned(Exception):  # noqa: N818
    """An objective gave its trial up."""


class Session(Protocol):
    """The trial whose function runs."""

    def report(self, values: Any, checkpoint: Any) -> None: ...

    def restore(self) -> Any: ...


class _Elsewhere:
    """The session in a fork of the trial's process, where nothing can be reported."""

    def report(self, values: Any, checkpoint: Any) -> None:
        """Refuse the report.

        Raises:
            RuntimeError: always.
        """
        raise RuntimeError(
            "shoal.report() and restore() work in the process in which Shoal calls the function, "
            "and not in one that the function starts: send the values there, and report them there"
        )

    def restore(self) -> Any:
        """Refuse to restore, as `report` refuses."""
        self.report(None, None)


# The functions of a process take turns, so that one session at most is open.
_open: list[Session] = []


def _leave_to_parent() -> None:
    """Refuse reports in a fork, where nobody would answer them."""
    if _open:
        _open[:] = [_Elsewhere()]


in_forks(_leave_to_parent)


@contextmanager
def talking(session: Session) -> Iterator[None]:
    """Within it, `report` and `restore` are those of this session's trial."""
    _open.append(session)
    try:
        yield
    finally:
        _open.pop()


def report(
    values: Mapping[str, Any] | float | None = None, *, checkpoint: Any = None, **others: Any
) -> None:
    """Report a trial's scores: the end of an epoch. It returns when the trial is to go on.

    Outside of a trial the values are checked, and nothing else happens.

    Args:
        values: {name: number}, or the number of the study's metric.
        checkpoint: what `restore` is to give when the trial is started again: a tree of dicts and
            lists that holds tensors, arrays, numbers, texts and bytes (as a state_dict does), or
            the path of a file or folder, whose contents are kept. None: nothing new is kept.
        **others: not taken: an error says what to write.

    Raises:
        TypeError: the values are no numbers or have no dict around them, or the checkpoint holds
            what cannot be kept.
        ValueError: a value or a name cannot be written down exactly, or there is no such file.
        TrialStopped: the trial goes no further. It is no `Exception`; let it pass.
    """
    if others:
        named = ", ".join(f'"{name}": …' for name in others)
        raise TypeError(
            f"report takes values by name as one dict: write shoal.report({{{named}}}), "
            "with checkpoint= beside it"
        )
    if _open:
        _open[-1].report(values, checkpoint)
    else:
        numbers(values, "value")


def restore() -> Any:
    """The trial's newest checkpoint; None if it begins, and outside of a trial.

    Of a checkpoint that was a path, the path of a copy. Random states are what they were at the
    report, so call it when everything is made that draws random numbers.
    """
    if not _open:
        return None
    return _open[-1].restore()


def numbers(values: Any, metric: str) -> Values:
    """The values as floats. A number alone is called `metric`.

    Raises:
        TypeError: they are no numbers by name.
    """
    if not isinstance(values, Mapping):
        values = {metric: values}
    floats = numbers_in(values, metric)
    wrong = [name for name, value in floats.items() if value is None]
    if wrong or not floats:
        raise TypeError(
            "report takes numbers by name, as report({'loss': 0.3}), or one number; "
            f"got {dict(values)!r}"
        )
    return {name: nan if value is None else value for name, value in floats.items()}


def numbers_in(values: Mapping[Any, Any], metric: str) -> dict[str, float | None]:
    """The values as floats by name; None for what is no number.

    Raises:
        ValueError: the metric is a whole number that a float cannot hold, or a name is no text.
    """
    by_name = {str(name): value for name, value in values.items()}
    for name, value in by_name.items():
        if not fits_utf8(name):
            raise ValueError(
                f"names of values are texts that UTF-8 can hold; got {shown(name)}: give another"
            )
        if name == metric:
            _check_exact(metric, value)
    return {name: number(value) for name, value in by_name.items()}


def _check_exact(metric: str, value: Any) -> None:
    """Raise ValueError if trials are ranked by a whole number that a float cannot hold."""
    with suppress(TypeError, ValueError, RuntimeError):  # of several numbers
        value = value.item() if hasattr(value, "item") else value
    if isinstance(value, int) and abs(value) > EXACT:
        raise ValueError(
            f"{metric!r} ranks trials, and is a whole number beyond 2**53, where two of them may "
            "be one float: report a smaller number, such as a part of it, or its logarithm"
        )


def number(value: Any) -> float | None:
    """The value as a float; None if it is no number."""
    if isinstance(value, str | bytes):
        return None
    if hasattr(value, "detach"):
        value = value.detach()
    try:
        return float(value)
    # A whole number may be too large; a tensor of several raises the last one.
    except (TypeError, ValueError, OverflowError, RuntimeError):
        return None
