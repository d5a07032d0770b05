"""Evaluations within a visit: at the steps that were asked for, alone, in turns and fused."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import pytest
from pack_kit import Varied, Zoo, plan, trial
from train_kit import even_pace
from train_kit import trainer as slot_trainer

from shoal.core.trial import Trial, TrialId
from shoal.train.data.data import Data
from shoal.train.recipe.unit import Done, Part, Scored, TrialError, Unit
from shoal.train.slot.trainer import SlotTrainer
from shoal.train.tools.verify import differences

Found = dict[TrialId, list[tuple[float, Scored]]]  # by trial: samples so far, scores


trainer = partial(slot_trainer, pace=even_pace)


def made(at: SlotTrainer, units: Sequence[Unit], fuse: bool) -> tuple[Found, dict[TrialId, Any]]:
    """The evaluations within the units, and what ended each."""
    found: Found = {unit.trial.id: [] for unit in units}
    samples = dict.fromkeys(found, 0.0)
    ends: dict[TrialId, Any] = {}
    for name, news in at.train_pack(units, fuse):
        if not isinstance(news, Part):
            ends[name] = news
            continue
        samples[name] += news.samples
        if news.scored is not None:
            found[name].append((samples[name], news.scored))
    return found, ends


def trials(data: Data, **config: Any) -> list[Trial]:
    return [trial(f"t{i}", 2, data, lr=0.01 * (i + 1), **config) for i in range(3)]


def units(some: Sequence[Trial], data: Data, **given: Any) -> list[Unit]:
    return [Unit(each, (), plan(data, 1)[0], evaluate=True, **given) for each in some]


@pytest.mark.parametrize("model", ["mlp", "cnn", "transformer"])
def test_fused_lanes_are_evaluated_at_the_same_step(model: str) -> None:
    recipe = Zoo(samples=90, shards=1, chunk=25)
    data = recipe.data()
    lanes = trials(data, model=model, optimizer="adam")
    plain = trainer(recipe, data)
    made(plain, units(lanes, data), fuse=True)
    fused = trainer(recipe, data)
    found, ends = made(fused, units(lanes, data, within=(0.3, 0.7)), fuse=True)
    at = [[samples for samples, _ in each] for each in found.values()]
    assert at[0] == at[1] == at[2]
    size = recipe.batch_size
    assert at[0] == [size * -(-0.3 * 90 // size), size * -(-0.7 * 90 // size)]
    for each in lanes:
        assert isinstance(ends[each.id], Done)
        state = fused.state(each.id)
        assert not list(differences(state, plain.state(each.id)))
        alone, _ = made(trainer(recipe, data), units([each], data, within=(0.3, 0.7)), fuse=False)
        for (_, one), (_, other) in zip(found[each.id], alone[each.id], strict=True):
            assert one.part == other.part
            assert one.scores == pytest.approx(other.scores, abs=0.03)
            assert one.trained == pytest.approx(other.trained, rel=1e-3)


def test_some_of_the_fused_lanes_may_be_evaluated() -> None:
    recipe = Zoo(samples=90, shards=1)
    data = recipe.data()
    lanes = trials(data, model="cnn")
    plain = trainer(recipe, data)
    made(plain, units(lanes, data), fuse=True)
    fused = trainer(recipe, data)
    some = [*units(lanes[:1], data, within=(0.5,)), *units(lanes[1:], data, steps=2)]
    found, _ = made(fused, some, fuse=True)
    assert [len(each) for each in found.values()] == [1, *[len(found[lanes[1].id])] * 2]
    for each in lanes:
        assert not list(differences(fused.state(each.id), plain.state(each.id)))


@pytest.mark.parametrize("kind", [Zoo, Varied])
def test_in_turns_it_is_as_alone(kind: type[Zoo]) -> None:
    recipe = kind(samples=90, shards=1, chunk=25)
    data = recipe.data()
    lanes = [
        trial("a", 2, data, model="cnn", drop=0.2, batch_size=8),
        trial("b", 2, data, model="mlp", batch_size=12, optimizer="adam"),
    ]
    together = trainer(recipe, data)
    found, _ = made(together, units(lanes, data, within=(0.2, 0.5)), fuse=False)
    for each in lanes:
        alone = trainer(recipe, data)
        own, _ = made(alone, units([each], data, within=(0.2, 0.5)), fuse=False)
        assert own[each.id] == found[each.id]
        assert len(own[each.id]) == 2
        plain = trainer(recipe, data)
        made(plain, units([each], data), fuse=False)
        for at in (alone, together):
            assert not list(differences(at.state(each.id), plain.state(each.id)))


def test_a_lane_whose_validation_raises_ends_alone() -> None:
    class Picky(Zoo):
        def validation_step(self, model: Any, batch: Any) -> Mapping[str, Any]:
            if not model.training and model.wrong[0] == 99:
                raise ValueError("as asked")
            return super().validation_step(model, batch)

    recipe = Picky(samples=90, shards=1)
    data = recipe.data()
    good, bad = trials(data, model="mlp")[0], trial("bad", 2, data, fail_at=99)
    some = units([good, bad], data, within=(0.5,))
    found, ends = made(trainer(recipe, data), some, fuse=False)
    assert isinstance(ends[good.id], Done)
    assert isinstance(ends[bad.id], TrialError)
    assert len(found[good.id]) == 1
    assert not found[bad.id]
