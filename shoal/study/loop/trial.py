"""A trial that was asked for: what a loop of one's own holds in its hands."""

from collections.abc import Mapping
from typing import Any, Protocol

from shoal.core.trial import TrialId, Value
from shoal.train.function.objective import ObjectiveTrial
from shoal.train.function.talk import TrialContext


class Listener(Protocol):
    """Where a trial's news go."""

    def drew(self, trial: TrialId, config: Mapping[str, Value]) -> None:
        """The trial has this configuration now."""
        ...

    def report(self, trial: TrialId, values: Any) -> bool:
        """The trial reports values; returns whether it was stopped."""
        ...


class AskedTrial(ObjectiveTrial):
    """A trial of `study.ask()`: Optuna's `Trial`, as far as Shoal has it.

    Parameters that are suggested become part of its configuration at once.
    """

    def __init__(self, context: TrialContext, listener: Listener) -> None:
        super().__init__(context)
        self.params = dict(context.chosen)
        self._listener = listener

    @property
    def id(self) -> TrialId:
        """The trial's name."""
        return self._context.trial.id

    @property
    def config(self) -> dict[str, Value]:
        """The configuration; a copy."""
        return dict(self._context.chosen)

    def report(self, value: Any, step: int | None = None) -> None:
        """Report an intermediate value, or several by name. Their order counts, not `step`.

        Raises:
            TypeError: it is no number.
        """
        if not isinstance(value, Mapping):
            value = {self._context.metric: value}
        noted, self.noted = self.noted, {}
        self._stopped = self._listener.report(self.id, {**noted, **value})

    def drew(self, name: str) -> None:
        """A parameter was drawn: it is written down."""
        self._listener.drew(self.id, self._context.chosen)

    def __repr__(self) -> str:
        return f"AskedTrial({self.id}, {self.config})"
