"""Kinds that follow from those of the decision before are those of who looks at all trials anew."""

from types import SimpleNamespace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.core.trial import TrialId
from shoal.policy.pack.kinds import Kinds

TRIALS = [TrialId(f"t{number:02d}") for number in range(14)]


@settings(deadline=None, max_examples=300)
@given(st.data())
def test_kinds_follow_from_those_before(data: st.DataObject) -> None:
    """Trials begin in any order, of one graph or of two; figures draw who gains with whom."""
    numbers = [data.draw(st.integers(0, 2)) for _ in TRIALS]
    config = st.fixed_dictionaries({"x": st.integers(0, 2), "depth": st.integers(0, 1)})
    configs = [data.draw(config) for _ in TRIALS]
    pairs = [(0, 0), (1, 1), (2, 2), (0, 1), (0, 2), (1, 2)]
    gaining = {pair for pair in pairs if data.draw(st.booleans())}
    number = dict(zip(TRIALS, numbers, strict=True))

    def gains(_: Any, couple: tuple[TrialId, TrialId]) -> bool:
        return tuple(sorted(map(number.__getitem__, couple))) in gaining

    view = SimpleNamespace(
        trials={t: SimpleNamespace(config=c) for t, c in zip(TRIALS, configs, strict=True)},
        strikes={},
        slots={"g": None},
        news=SimpleNamespace(since=lambda _: ()),
    )
    figures: Any = SimpleNamespace(
        view=view, fuse=False, number=number.__getitem__, form=lambda _: None, gains=gains
    )
    window, ahead = TRIALS[:6], TRIALS[6:]
    kept = None
    while window:
        kept = Kinds.of(figures, window, ("depth",), 32, kept)
        assert kept.all() == Kinds.of(figures, window, ("depth",), 32, None).all()
        begun = data.draw(st.sets(st.sampled_from(window), min_size=1, max_size=3))
        window = [trial for trial in window if trial not in begun] + ahead[: len(begun)]
        ahead = ahead[len(begun) :]
