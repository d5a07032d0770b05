"""How far one trial is at its backend."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from shoal.core.event import (
    Advanced,
    Event,
    Fell,
    Finished,
    Kept,
    Measured,
    Retired,
    Submitted,
)
from shoal.core.state import durable
from shoal.core.trial import Samples, Seconds, Trial, Value, Visit
from shoal.train.recipe.unit import Reached, Returned, Scored


@dataclass(slots=True)
class Position:
    """How far a trial is at its backend."""

    trial: Trial
    visits: tuple[Visit, ...] = ()
    samples: Samples = 0.0
    # The samples of the unit under way that were reported already.
    reported: Samples = 0.0
    # How many of its evaluations were told already.
    told: int = 0
    # The figures measured in it that were told already.
    rates: Mapping[str, float] = field(default_factory=dict)
    # The newest durable state, and the seconds of training since it was written.
    kept: Kept | None = None
    # The durable state before that one.
    former: Kept | None = None
    age: Seconds = 0.0
    signature: str = ""
    # The newest state on its way between two slots, in the backend's own form.
    carried: Any = None
    # Whether the trial's function is over, or gave it up: there is nothing left to train.
    over: bool = False
    pruned: bool = False

    def restart(self) -> None:
        """Nothing of a unit under way was reported."""
        self.reported = 0.0
        self.told = 0
        self.rates = {}

    def untold(self, within: tuple[Scored, ...]) -> tuple[Scored, ...]:
        """Those of the unit's evaluations so far that were not told before; now they are."""
        fresh = within[self.told :]
        self.told += len(fresh)
        return fresh

    def reach(self, reached: Reached, shards: int) -> list[Event]:
        """The unit under way went on to there: what is new."""
        events: list[Event] = []
        if reached.samples > self.reported:
            more = reached.samples - self.reported
            events.append(Advanced({self.trial.id: more}))
            self.reported = reached.samples
        if reached.rates != self.rates:
            fresh = dict(reached.rates.items() - self.rates.items())
            self.rates = reached.rates
            events.append(Measured(self.trial.id, reached.signature, fresh))
        for scored in self.untold(reached.within):
            events.append(scored.event(self.trial.id, len(self.visits), shards))
        return events

    def keep(self, kept: Kept) -> None:
        """This is the newest durable state from now on."""
        if self.kept is not None and self.kept.visits < kept.visits:
            self.former = self.kept
        self.kept = kept

    def durable(self) -> tuple[int, Samples]:
        """The visits and the samples of the newest durable state."""
        return durable(self.kept)

    def lost(self, visits: Sequence[Visit]) -> list[Event]:
        """What to tell if the trial had ended in an earlier run, which kept less than these."""
        if len(visits) <= len(self.visits):
            return []
        return [Fell(self.trial.id, len(self.visits), self.samples)]

    def returned(self, news: Returned) -> list[Event]:
        """The trial's function is over, and made no visit."""
        self.over = True
        self.pruned = news.pruned
        return self.chose(news.config)

    def chose(self, config: Mapping[str, Value] | None) -> list[Event]:
        """The trial drew its configuration itself: it is submitted again with that."""
        if config is None:
            return []
        self.trial = replace(self.trial, config=config)
        return [Submitted(self.trial)]

    def ending(self) -> Event:
        """What ends a trial that is over."""
        if self.pruned:
            return Retired(self.trial.id)
        return Finished(self.trial.id)
