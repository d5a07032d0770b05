"""How long the engine decides, as a backend tells it."""

import pytest

from shoal.backend.ray import backend
from shoal.backend.ray.backend import TELL, DecidingTime
from shoal.core.event import Decided, Event


def test_it_is_told_now_and_then_and_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(backend, "monotonic", lambda: clock[0])
    time = DecidingTime()

    def decide(seconds: float) -> list[Event]:
        told: list[Event] = []
        for _, events in time.handed((0.0, ())):
            clock[0] += seconds
            told += events
        return told

    assert decide(2.0) == [], "it is too early"
    clock[0] = TELL
    assert decide(0.5) == [Decided(2.0)]
    assert time.last([]) == [], "there was only the moment that told it"
    assert decide(0.25) == []
    assert time.last([]) == [Decided(2.75)]
