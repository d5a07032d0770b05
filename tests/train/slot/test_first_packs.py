"""What a slot learns of trials of a new kind before they first train in a pack."""

import random
from collections.abc import Mapping
from math import inf
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from train_kit import S0, S1, Small, blobs, drive, trainer, trial

from shoal.core.trial import Trial, TrialId, Visit
from shoal.train.fuse.gauge import Gauge
from shoal.train.recipe.unit import Done, PackRefused, TrialError, Unit
from shoal.train.slot.trainer import SlotTrainer
from shoal.train.tools.verify import differences

GIB = 2**30
FIRST = Visit(0, S0, 0, 0)


class Counted(Small):
    """Counts the models built, by width. `broken`: a width whose steps raise."""

    def __init__(self, broken: int | None = None, **settings: Any) -> None:
        super().__init__(**settings)
        self.built: list[int] = []
        self.broken = broken

    def configure_model(self, config: Mapping[str, Any]) -> nn.Module:
        self.built.append(config["width"])
        return nn.Sequential(
            nn.Linear(6, config["width"]), nn.Dropout(0.3), nn.Linear(config["width"], 3)
        )

    def training_step(self, model: nn.Module, batch: Any) -> Any:
        if model[0].out_features == self.broken:  # type: ignore[index]
            raise ArithmeticError("broken")
        return super().training_step(model, batch)


def wide(name: str, width: int = 64) -> Trial:
    return trial(name, width=width)


def first_units(*trials: Trial) -> list[Unit]:
    return [Unit(each, (), FIRST) for each in trials]


def news_of(held: SlotTrainer, *units: Unit) -> dict[TrialId, Any]:
    """The last news of each trial."""
    return dict(held.train_pack(units))


def limited(recipe: Small, gib: float) -> SlotTrainer:
    return trainer(recipe, blobs(), slot_memory_gb=gib)


def need_of(width: int = 64) -> float:
    """GiB that such a trial needs, as measured when it trains alone."""
    held = trainer(Counted(), blobs())
    _, done = drive(held.train(*first_units(wide("a", width))))
    return done.figures["memory"]


def random_states() -> tuple[Any, ...]:
    return (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist())  # type: ignore[index]


def test_a_pack_without_room_is_not_begun_and_its_memory_is_told() -> None:
    held = limited(Counted(), 2.5 * need_of())
    trials = [wide(name) for name in "abcd"]
    found = news_of(held, *first_units(*trials))
    assert {type(news) for news in found.values()} == {PackRefused}
    told = [news.figures["memory"] for news in found.values() if news.figures]
    assert told == pytest.approx([need_of()]), "once, and as much as when it trains"
    assert not held.lanes.trials, "what has not trained leaves nothing"
    found = news_of(held, *first_units(*trials[:2]))
    assert {type(news) for news in found.values()} == {Done}


def test_a_pack_is_refused_only_by_what_was_just_learnt() -> None:
    """Whoever asks for it again, though its memory is known, gets it."""
    recipe = Counted()
    held = limited(recipe, 1.5 * need_of())
    units = first_units(wide("a"), wide("b"))
    assert {type(news) for news in news_of(held, *units).values()} == {PackRefused}
    built = len(recipe.built)
    assert {type(news) for news in news_of(held, *units).values()} == {Done}
    assert len(recipe.built) == built + 2, "no more steps to learn from"


@pytest.mark.parametrize("measured", [None, frozenset()])
def test_learning_changes_nothing_of_the_trials(measured: frozenset[str] | None) -> None:
    """What memory they take, where it is limited, and how fast they are."""
    trials = [wide("a"), wide("b", 32), wide("c")]
    recipe = Counted()
    held, plain = limited(recipe, 1.0), trainer(Counted(), blobs())
    before = random_states()
    found = dict(held.train_pack(first_units(*trials), measured=measured))
    assert random_states() == before
    assert sorted(recipe.built) == [32, 32, 64, 64, 64], "one more of each signature"
    if measured is not None:
        known = {news.signature for news in found.values()}
        dict(held.train_pack(first_units(*trials), measured=known))
    news_of(plain, *first_units(*trials))
    for each in trials:
        assert list(differences(held.state(each.id), plain.state(each.id))) == []


@pytest.mark.parametrize("options", [{}, {"slot_memory_gb": 1.0, "pace": lambda *_: 1.0}])
def test_nothing_is_learnt_without_a_limit_or_without_a_clock(options: Any) -> None:
    recipe = Counted()
    held = trainer(recipe, blobs(), **options)
    news_of(held, *first_units(wide("a"), wide("b")))
    assert recipe.built == [64, 64]


def test_a_trial_that_raises_fails_when_it_trains() -> None:
    held = limited(Counted(broken=8), 1.0)
    found = news_of(held, *first_units(wide("a"), wide("b", 8)))
    assert isinstance(found[TrialId("a")], Done)
    assert str(found[TrialId("b")]) == "ArithmeticError: broken"
    assert type(found[TrialId("b")]) is TrialError


def test_a_step_without_room_means_a_slot_for_the_trial_alone() -> None:
    class Full(Counted):
        def training_step(self, model: nn.Module, batch: Any) -> Any:
            if model[0].out_features == 8:  # type: ignore[index]
                raise torch.OutOfMemoryError("full")
            return super().training_step(model, batch)

    held = limited(Full(), 1.0)
    found = news_of(held, *first_units(wide("a"), wide("b", 8)))
    assert found[TrialId("b")].figures["memory"] == 1.0
    assert {type(news) for news in found.values()} == {PackRefused}


def test_a_trial_that_trained_before_loses_nothing_when_its_pack_is_refused() -> None:
    held = limited(Counted(), need_of() + need_of(32) / 2)
    old, new = wide("a"), wide("b", 32)
    _, done = drive(held.train(*first_units(old)))
    second = Unit(old, (done.visit,), Visit(1, S0, 1, 0))
    found = news_of(held, second, *first_units(new))
    assert {type(news) for news in found.values()} == {PackRefused}
    assert held.holds(old.id, 1)
    assert not held.holds(new.id, 0)
    drive(held.train(second))
    plain = trainer(Counted(), blobs())
    drive(plain.train(*first_units(old)))
    drive(plain.train(second))
    assert list(differences(held.state(old.id), plain.state(old.id))) == []


# -- how many take a step at once


class Broad(Small):
    """A small model whose step takes much."""

    def configure_model(self, config: Mapping[str, Any]) -> nn.Module:
        return nn.Sequential(
            nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, config["width"]), nn.Linear(config["width"], 3)
        )


class All(Gauge):
    """As many in one step as there may be."""

    def __init__(self) -> None:
        super().__init__()
        self.widths: list[int] = []

    def wants(self, *_: Any, **__: Any) -> int | None:
        return None

    def choose(self, kind: str, lanes: int) -> int:
        self.widths.append(lanes)
        return lanes


@pytest.mark.parametrize("way", ["fused", "summed"])
@pytest.mark.parametrize(("steps", "at_once"), [(1.5, 1), (2.5, 2), (3.5, 2), (4.5, 4)])
def test_no_more_lanes_step_at_once_than_have_room(way: str, steps: float, at_once: int) -> None:
    """Beside the states of all four. Three would leave one alone: they are parted evenly."""
    alone = trainer(Broad(batch_size=16), blobs())
    name = wide("a", 256)
    _, done = drive(alone.train(*first_units(name)))
    step = done.figures["transient"]
    state = done.figures["memory"] - step
    assert step > 0.2 * state
    held = limited(Broad(batch_size=16), 4 * state + steps * step)
    gauge = All()
    if way == "fused":
        held.pack.fusion.gauge = gauge
    else:
        held.pack.summation.gauge = gauge
    trials = [wide(each, 256) for each in "abcd"]
    for turn in range(2):
        units = [
            Unit(
                each,
                tuple(held.lanes.get(each.id).lane.visits) if turn else (),
                Visit(turn, (S0, S1)[turn], turn, 0),
            )  # type: ignore[union-attr]
            for each in trials
        ]
        found = dict(held.train_pack(units, way == "fused"))
        assert {type(news) for news in found.values()} == {Done}
    assert max(gauge.widths) == at_once


# -- how fast trials of a new kind are


@pytest.mark.parametrize("gib", [inf, 1.0])
def test_a_pack_with_a_kind_that_nobody_has_measured_is_not_begun(gib: float) -> None:
    """Its slot tries some steps of each such kind, and tells how fast they are."""
    recipe = Counted()
    held = limited(recipe, gib)
    units = first_units(wide("a"), wide("b", 32), wide("c"))
    found = dict(held.train_pack(units, measured=frozenset()))
    assert {type(news) for news in found.values()} == {PackRefused}
    assert "nobody had measured 2 of the kinds" in str(found[TrialId("a")])
    told = {news.signature: news.figures for news in found.values() if news.figures}
    assert len(told) == 2
    for figures in told.values():
        assert figures["rate"] > 0 and figures["step"] > 0 and figures["memory"] > 0
    assert recipe.built.count(64) == 3 and recipe.built.count(32) == 2
    assert {type(x) for x in dict(held.train_pack(units, measured=told)).values()} == {Done}, (
        "it is not said a second time"
    )


def test_what_another_slot_has_measured_is_begun() -> None:
    there = trainer(Counted(), blobs())
    units = first_units(wide("a"), wide("b"))
    told = dict(there.train_pack(units, measured=frozenset()))
    known = {news.signature for news in told.values()}
    here = trainer(Counted(), blobs())
    found = dict(here.train_pack(units, measured=known))
    assert {type(news) for news in found.values()} == {Done}


def test_a_trial_alone_is_begun_and_measured_as_it_trains() -> None:
    recipe = Counted()
    held = trainer(recipe, blobs())
    (news,) = dict(held.train_pack(first_units(wide("a")), measured=())).values()
    assert isinstance(news, Done) and recipe.built == [64]


@pytest.mark.parametrize("measured", [frozenset(), None])
def test_lanes_that_can_never_be_fused_are_told_before_or_with_their_first_unit(
    measured: frozenset[str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else they would be taken to gain by company for ever: nothing can be measured of it."""
    held = trainer(Counted(), blobs())
    monkeypatch.setattr(type(held.pack.fusion), "graph", lambda *_: None)
    units = first_units(wide("a"), wide("b"))
    found = dict(held.train_pack(units, True, measured))
    told = [news.figures for news in found.values() if "unfusable" in news.figures]
    assert [figures["unfusable"] for figures in told] == [1.0], "once"
    plain = dict(trainer(Counted(), blobs()).train_pack(units, False, measured))
    assert not any("unfusable" in news.figures for news in plain.values())
