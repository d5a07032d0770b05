"""Packs: interleaved they learn to the last bit what each lane learns alone; fused, to rounding."""

import weakref
from dataclasses import replace
from itertools import groupby
from typing import Any

import pytest
import torch
from device_kit import HERE
from fused_kit import images
from hypothesis import given, settings
from hypothesis import strategies as st
from pack_kit import (
    OPTIMIZERS,
    SCHEDULES,
    SEED,
    Varied,
    Zoo,
    as_alone,
    by_hand,
    packed,
    plan,
    trial,
)
from train_kit import even_pace
from train_kit import trainer as slot_trainer

from shoal.core.trial import TrialId
from shoal.profile.pace import FORM
from shoal.train.data.data import Data
from shoal.train.fuse.fused import Fused, Unfusable
from shoal.train.fuse.gauge import Gauge
from shoal.train.fuse.graph import graph_key
from shoal.train.fuse.memory import Stack
from shoal.train.fuse.models import StackedModels
from shoal.train.fuse.optimizers import formula_key
from shoal.train.fuse.stacked import StackedSteps
from shoal.train.lane.lane import TrainingLane
from shoal.train.recipe.unit import OutOfMemory, Part, TrialError, Unit
from shoal.train.slot import pass_events
from shoal.train.slot.trainer import SlotTrainer
from shoal.train.stream.stream import Stream
from shoal.train.tools.verify import compare, differences

MODELS = ["mlp", "cnn", "transformer", "rnn"]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("equal", [True, False])
def test_interleaved_is_alone(model: str, equal: bool) -> None:
    """Four optimizers and schedules in one pack, over chunks that no batch size divides; one
    ends early, and one raises.
    """
    recipe = Zoo(chunk=13)
    data = recipe.data()
    schedules = ["cosine", "samples", "plateau", "epochs"]
    trials = [
        trial(
            o,
            1 if o == "momentum" else 2,
            data,
            model=model,
            optimizer=o,
            schedule=s,
            batch_size=8 if equal else 5 + 4 * i,
        )
        for i, (o, s) in enumerate(zip(OPTIMIZERS, schedules, strict=True))
    ]
    bad = trial("bad", 2, data, model=model, batch_size=8 if equal else 7, fail_at=9)
    found = packed(recipe, data, [*trials[:2], bad, *trials[2:]])
    assert found[bad.id].error is not None and "as asked" in found[bad.id].error.why
    as_alone(found, recipe, data, trials)


@pytest.mark.parametrize(
    "recipe", [Zoo(chunk=16, shuffle="each"), Varied(chunk=16), Varied(chunk=16, shuffle="each")]
)
def test_each_pass_its_own_order_and_augmentation(recipe: Zoo) -> None:
    data = recipe.data()
    trials = [
        trial(m, 2, data, model=m, batch_size=b, drop=0.3)
        for m, b in zip(MODELS, (7, 16, 16, 9), strict=True)
    ]
    as_alone(packed(recipe, data, trials), recipe, data, trials)


def test_lanes_of_unlike_orders_in_one_pack() -> None:
    """Some see each pass in another order, some do not; some accumulate, clip, or drop the last
    batch.
    """
    recipe = Zoo(chunk=16)
    data = recipe.data()
    extras = [
        {"shuffle": "each"},
        {"accumulate_grad_batches": 3},
        {"drop_last": True, "batch_size": 8},
        {"gradient_clip_val": 0.1},
        {"precision": "bf16"},
        {"accumulate_grad_batches": 3, "shuffle": "each"},
    ]
    trials = [
        trial(f"t{i}", 2, data, model="mlp", schedule="steps", **extra)
        for i, extra in enumerate(extras)
    ]
    as_alone(packed(recipe, data, trials), recipe, data, trials)


lane_configs = st.fixed_dictionaries(
    {
        "model": st.sampled_from(["mlp", "cnn"]),
        "optimizer": st.sampled_from(list(OPTIMIZERS)),
        "schedule": st.sampled_from(list(SCHEDULES)),
        "batch_size": st.integers(3, 40),
        "shuffle": st.sampled_from(["once", "each"]),
        "drop": st.sampled_from([0.0, 0.4]),
    }
)


@settings(max_examples=8, deadline=None)
@given(
    st.lists(st.tuples(lane_configs, st.integers(1, 2)), min_size=1, max_size=4),
    st.integers(7, 40),
    st.booleans(),
    st.booleans(),
)
def test_any_pack_is_each_alone(
    lanes: list[Any], chunk: int, varied: bool, in_pieces: bool
) -> None:
    recipe = (Varied if varied else Zoo)(samples=40, chunk=chunk)
    data = recipe.data()
    trials = [trial(f"t{i}", epochs, data, **config) for i, (config, epochs) in enumerate(lanes)]
    before = pass_events.PART_SECONDS
    pass_events.PART_SECONDS = 0.0 if in_pieces else before
    try:
        found = packed(recipe, data, trials)
    finally:
        pass_events.PART_SECONDS = before
    as_alone(found, recipe, data, trials)


def test_validation_data_is_prepared_once_for_all() -> None:
    """Also where nothing of it is kept, and one lane's validation fails."""
    seen: list[int] = []

    class Counting(Zoo):
        def prepare(self, samples: Any) -> Any:
            if len(samples[0]) == 25:  # a chunk of the validation data
                seen.append(len(samples[0]))
            return samples

        def validation_step(self, model: Any, batch: Any) -> Any:
            if getattr(model, "wrong", (None,))[0] == 1000:
                raise ArithmeticError("not this one")
            return super().validation_step(model, batch)

    recipe = Counting(samples=40, chunk=25, validation=75)
    data = recipe.data()
    trials = [trial(f"t{i}", 1, data, batch_size=4 + i // 2, drop=0.2) for i in range(4)]
    bad = trial("bad", 1, data, batch_size=4, fail_at=1000, drop=0.2)
    found = packed(recipe, data, [*trials[:1], bad, *trials[1:]], data_memory_gb=1e-9)
    assert len(seen) == 3
    assert "not this one" in str(found[bad.id].error)
    as_alone(found, recipe, data, trials)


# -- lanes that leave


@pytest.mark.parametrize(
    "wrong", [{"fail_at": 3}, {"nan_at": 3, "nan_patience": 2}, {"fail_at": 0}]
)
def test_a_lane_that_goes_wrong_leaves_alone(wrong: dict[str, int]) -> None:
    recipe = Zoo(chunk=16)
    data = recipe.data()
    others = [trial(o, 2, data, model="cnn", optimizer=o, batch_size=8) for o in OPTIMIZERS]
    bad = trial("bad", 2, data, model="cnn", batch_size=8, **wrong)
    found = packed(recipe, data, [*others[:2], bad, *others[2:]])
    assert found[bad.id].error is not None and len(found[bad.id].visits) < 4
    assert ("as asked" if "fail_at" in wrong else "diverged") in found[bad.id].error.why
    as_alone(found, recipe, data, others)


def test_a_lane_that_is_through_leaves() -> None:
    recipe = Varied(chunk=16, shards=3)
    data = recipe.data()
    trials = [
        trial(f"t{i}", 1 + i, data, model="mlp", optimizer=o)
        for i, o in enumerate(["adam", "momentum", "adamw"])
    ]
    as_alone(packed(recipe, data, trials), recipe, data, trials)


def test_a_model_that_cannot_be_built_or_validated_harms_no_other() -> None:
    class Picky(Zoo):
        def configure_model(self, config: Any) -> Any:
            if config.get("unbuilt"):
                raise RuntimeError("no model")
            return super().configure_model(config)

        def validation_step(self, model: Any, batch: Any) -> Any:
            if getattr(model, "wrong", (None,))[0] == 1000:
                raise RuntimeError("no scores")
            return super().validation_step(model, batch)

    recipe = Picky()
    data = recipe.data()
    bad = [trial("unbuilt", 1, data, unbuilt=True), trial("unscored", 1, data, fail_at=1000)]
    good = [trial("a", 1, data), trial("b", 1, data, optimizer="adam")]
    found = packed(recipe, data, [bad[0], good[0], bad[1], good[1]])
    assert "no model" in str(found[bad[0].id].error) and "no scores" in str(found[bad[1].id].error)
    as_alone(found, recipe, data, good)


def test_a_round_left_early_is_void() -> None:
    recipe = Zoo(chunk=10)
    data = recipe.data()
    trials = [trial("a", 1, data), trial("b", 1, data)]
    trainer = slot_trainer(recipe, data)
    units = [Unit(each, (), plan(data, 1)[0]) for each in trials]
    news = trainer.train_pack(units)
    assert isinstance(next(news)[1], Part)
    news.close()
    with pytest.raises(LookupError):
        trainer.state(trials[0].id)
    found = packed(recipe, data, trials, trainer=trainer)
    as_alone(found, recipe, data, trials)


def test_a_probe_tells_what_fused_steps_take_and_leaves_nothing() -> None:
    recipe = Zoo(chunk=10)  # a batch is cut by the chunk: there is only the rest
    data = recipe.data()
    trainer = slot_trainer(recipe, data)
    trials = [trial(name, 1, data, lr=lr) for name, lr in (("a", 0.1), ("b", 0.2), ("c", 0.3))]
    for each in trials:
        trainer.probe(each)
    found = trainer.probe_packs([*trials, trial("bad", 1, data, optimizer="no such")])
    assert found.keys() == {each.id for each in trials}, "what cannot be built is left out"
    figures = [name for _, news in found.values() for name in news]
    assert sorted(figures) == ["fused:2", "fused:3", "repack"], (
        "each figure of the signature is told once"
    )
    assert not any(trainer.holds(each.id, 0) for each in trials)


# -- fused


def distance(one: Any, other: Any) -> float:
    """Largest absolute difference of weights and buffers."""
    return compare(one["model"], other["model"]).difference


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("optimizer", list(OPTIMIZERS))
def test_fused_is_alone_in_double_precision(model: str, optimizer: str) -> None:
    recipe = Zoo(dtype=torch.float64, chunk=32)
    data = recipe.data()
    trials = [
        trial(
            f"t{i}", 3, data, model=model, optimizer=optimizer, lr=0.01 * (i + 1), schedule="epochs"
        )
        for i in range(3)
    ]
    found = packed(recipe, data, trials, fuse=True, pace=even_pace)
    for each in trials:
        alone, record = by_hand(recipe, data, each), found[each.id]
        assert record.visits == alone.visits
        assert distance(record.state, alone.state) < 1e-8
        assert [s["accuracy"] for s in record.scores] == pytest.approx(
            [s["accuracy"] for s in alone.scores], abs=0.005
        )


@pytest.mark.parametrize(
    ("model", "optimizer"),
    [("mlp", "adam"), ("cnn", "momentum"), ("transformer", "adamw"), ("rnn", "adam")],
)
def test_fused_scores(model: str, optimizer: str) -> None:
    """In single precision: within half a point.

    Not Adam for the CNN: the biases before its batch norms have gradients that are rounding
    errors only, and Adam makes whole steps of them.
    """
    recipe = Zoo(samples=160, validation=400)
    data = recipe.data()
    trials = [
        trial(f"t{i}", 3, data, model=model, optimizer=optimizer, lr=0.05 * (i + 1))
        for i in range(2)
    ]
    found = packed(recipe, data, trials, fuse=True, pace=even_pace)
    for each in trials:
        alone, record = by_hand(recipe, data, each), found[each.id]
        assert [s["accuracy"] for s in record.scores] == pytest.approx(
            [s["accuracy"] for s in alone.scores], abs=0.005
        )


def fused_of(trainer: SlotTrainer, name: TrialId) -> Any:
    return trainer.pack.stacks.of(trainer.lanes.get(name).lane)


@pytest.mark.parametrize("model", MODELS)
def test_it_is_really_fused_and_lanes_come_and_go(model: str) -> None:
    """Two lanes end early; what is left goes on fused; unlike lanes are fused with their like
    only.
    """
    recipe = Zoo(dtype=torch.float64)
    data = recipe.data()
    trials = [trial(f"t{i}", 1 + i // 2, data, lr=0.01 * (i + 1), model=model) for i in range(4)]
    trials += [trial(f"c{i}", 2, data, model="mlp" if model == "cnn" else "cnn") for i in range(2)]
    trials += [trial("odd", 2, data, batch_size=5, model=model)]
    trainer = slot_trainer(recipe, data, pace=even_pace)
    found = packed(recipe, data, trials, fuse=True, trainer=trainer)
    assert [len(fused_of(trainer, TrialId(name)).lanes) for name in ("t2", "t3", "c0")] == [2, 2, 2]
    assert fused_of(trainer, TrialId("odd")) is None
    for each in trials:
        assert distance(found[each.id].state, by_hand(recipe, data, each).state) < 1e-8


def test_lanes_of_several_optimizers_are_fused_in_one() -> None:
    """Those of one formula next to each other, wherever they were in the pack."""
    recipe = Zoo(dtype=torch.float64)
    data = recipe.data()
    names = ["sgd", "adam", "sgd", "adamw", "adam", "momentum"]
    trials = [
        trial(f"t{i}", 2, data, lr=0.01 * (i + 1), optimizer=name, schedule="epochs")
        for i, name in enumerate(names)
    ]
    trainer = slot_trainer(recipe, data, pace=even_pace)
    found = packed(recipe, data, trials, fuse=True, trainer=trainer)
    lanes = fused_of(trainer, TrialId("t0")).lanes
    formulas = [formula_key(lane.optimizer) for lane in lanes]
    assert len(lanes) == 6 and len(list(groupby(formulas))) == len(set(names)) == 4
    for each in trials:
        alone = by_hand(recipe, data, each)
        assert all(far < 1e-8 for _, far in differences(found[each.id].state, alone.state))


def test_what_a_step_takes_alone_is_the_mean_of_all_optimizers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And what is saved by fusing is a figure of each of them."""
    clock, costs = ([0.0], {torch.optim.SGD: 1.0, torch.optim.Adam: 3.0, torch.optim.AdamW: 2.0})
    step, fused = TrainingLane.step, Fused.step

    def timed(lane: TrainingLane, *batch: Any) -> int:
        clock[0] += costs[type(lane.optimizer)]
        return step(lane, *batch)

    def timed_together(these: Fused, *batch: Any) -> int:
        clock[0] += 2.5
        return fused(these, *batch)

    recipe = Zoo(samples=400)
    data = recipe.data()
    trials = [
        trial(f"t{i}", 2, data, optimizer=name, batch_size=8)
        for i, name in enumerate(["adam", "sgd"])
    ]
    trainer = slot_trainer(recipe, data)
    monkeypatch.setattr(TrainingLane, "step", timed)
    monkeypatch.setattr(Fused, "step", timed_together)
    monkeypatch.setattr(trainer.context.meter, "now", lambda: clock[0])
    found = packed(recipe, data, trials, fuse=True, trainer=trainer)
    assert trainer.pack.fusion.gauge.ratio(
        graph_key(trainer.lanes.get(trials[0].id).lane), 2
    ) == 2.5 / (1.0 + 3.0)
    assert len({record.signature[:FORM] for record in found.values()}) == 1
    assert len({record.signature for record in found.values()}) == 2
    told = [(record.figures["step"], record.figures["fused:2"]) for record in found.values()]
    assert told == [(3.0, 2 * 0.625 * 3.0), (1.0, 2 * 0.625 * 1.0)], (
        "to each as if both were of its optimizer"
    )
    later = [trial(f"l{i}", 2, data, optimizer="adamw", batch_size=8) for i in range(2)]
    figures: dict[str, float] = {}
    for record in packed(recipe, data, later, fuse=True, trainer=trainer).values():
        figures |= record.figures
    assert figures["rate"] and figures["memory"] and figures["step"] == 2.0, (
        "also those that come later are measured alone first"
    )
    assert figures["fused:2"] == 2 * 0.625 * 2.0, "and told what is known of the others"
    assert fused_of(trainer, later[0].id) is not None


def test_lanes_without_room_for_all_in_one_are_fused_by_less(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = StackedModels.run

    def cramped(these: StackedModels, *given: Any) -> Any:
        if len(these.rows) > 2:
            raise torch.OutOfMemoryError("no room for so many")
        return run(these, *given)

    recipe = Zoo()
    data = recipe.data()
    trials = [trial(f"t{i}", 3, data, lr=0.01 * (i + 1)) for i in range(5)]
    trainer = slot_trainer(recipe, data, pace=even_pace)
    monkeypatch.setattr(StackedModels, "run", cramped)
    found = packed(recipe, data, trials, fuse=True, trainer=trainer)
    assert all(record.error is None for record in found.values())
    assert not any("unfusable" in record.figures for record in found.values())
    widths = {
        len(fused.lanes) for each in trials if (fused := fused_of(trainer, each.id)) is not None
    }
    assert widths == {2}, "of five that have no room, two at a time have"


class Touchy(Zoo):
    """A step on the sample `spot` raises when fused; alone, only in lanes whose buffer says so."""

    spot: Any = None

    def configure_model(self, config: Any) -> Any:
        model = super().configure_model(config)
        model.register_buffer("touchy", torch.tensor(float(config.get("touchy", 0.0))))
        return model

    def training_step(self, model: Any, batch: Any) -> Any:
        if self.spot is not None and bool((batch[0] == self.spot).flatten(1).all(1).any()):
            weight = next(iter(model.parameters()))
            if torch._C._functorch.is_batchedtensor(weight) or bool(model.touchy > 0):
                raise ArithmeticError("the spot")
        return super().training_step(model, batch)


@pytest.mark.parametrize(("model", "bad"), [*((model, True) for model in MODELS), ("mlp", False)])
def test_a_fused_step_that_raises_is_undone_and_repeated(model: str, bad: bool) -> None:
    """The lanes that are well when alone go on; where all are, they are never fused again."""
    recipe = Touchy(dtype=torch.float64, chunk=64, samples=160)
    data = recipe.data()
    recipe.spot = next(
        Stream(recipe, data, seed=SEED, device=HERE, memory_gb=1.0).chunks(data.shards[0], 0)
    )[0][40]
    trials = [
        trial(
            f"t{i}",
            1,
            data,
            model=model,
            lr=0.01 * (i + 1),
            optimizer="adam",
            touchy=float(bad and i == 1),
        )
        for i in range(4)
    ]
    trainer = slot_trainer(recipe, data, pace=even_pace)
    found = packed(recipe, data, trials, fuse=True, trainer=trainer)
    for each in trials:
        if bad and each is trials[1]:
            assert "the spot" in found[each.id].error.why and found[each.id].visits == ()
        else:
            assert distance(found[each.id].state, by_hand(recipe, data, each).state) < 1e-8
    lanes = getattr(fused_of(trainer, trials[0].id), "lanes", ())
    assert len(lanes) == (3 if bad else 0)


@pytest.mark.parametrize("where", ["training_step", "validation_step"])
@pytest.mark.parametrize("fuse", [True, False])
def test_a_recipe_that_exits_ends_its_trials_only(where: str, fuse: bool) -> None:
    class Leaving(Zoo):
        def training_step(self, model: Any, batch: Any) -> Any:
            self.leave("training_step", batch)
            return super().training_step(model, batch)

        def validation_step(self, model: Any, batch: Any) -> Any:
            self.leave("validation_step", batch)
            return super().validation_step(model, batch)

        def leave(self, step: str, batch: Any) -> None:
            if step == where and bool(batch[0].isnan().any()):
                raise SystemExit(3)

    recipe = Leaving(chunk=16)
    parts = [(x.numpy(), y.numpy()) for x, y in (images(160), images(40, seed=1))]
    parts[where == "validation_step"][0][-1] = float("nan")
    data = Data.arrays(*parts[0], shards=2, validation=parts[1])
    trials = [trial(f"t{i}", 1, data, model="mlp", lr=0.01 * (i + 1)) for i in range(3)]
    trainer = slot_trainer(recipe, data, pace=even_pace)
    found = packed(recipe, data, trials, fuse=fuse, trainer=trainer)
    assert [record.error and record.error.why for record in found.values()] == ["SystemExit: 3"] * 3


def test_out_of_memory_of_one_ends_all_visits() -> None:
    class Heavy(Zoo):
        def training_step(self, model: Any, batch: Any) -> Any:
            if model.wrong[0] == 1000:
                raise MemoryError("no room")
            return super().training_step(model, batch)

    recipe = Heavy(chunk=16)
    data = recipe.data()
    trials = [trial("a", 1, data), trial("heavy", 1, data, fail_at=1000), trial("b", 1, data)]
    found = packed(recipe, data, trials)
    assert {name for name, record in found.items() if isinstance(record.error, OutOfMemory)} == {
        "a",
        "heavy",
        "b",
    }


# -- what goes wrong where lanes are fused


def of_one_graph(data: Any, **config: Any) -> list[Any]:
    return [
        trial(f"t{i}", 2, data, optimizer="adam", lr=0.01 * (i + 1), **config) for i in range(3)
    ]


def test_no_room_in_an_optimizer_of_fused_lanes_ends_all_visits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Part of them may have made the step: it must not be made again."""
    recipe = Zoo(dtype=torch.float64, chunk=32)
    data = recipe.data()
    trials, trainer = of_one_graph(data), slot_trainer(recipe, data, pace=even_pace)
    units = [Unit(each, (), plan(data, 2)[0]) for each in trials]

    def full(*_: Any) -> None:
        raise MemoryError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(StackedSteps, "step", full)
        told = list(trainer.train_pack(units, fuse=True))
    assert [name for name, news in told if isinstance(news, OutOfMemory)] == [
        each.id for each in trials
    ]
    for each in trials:
        assert (
            distance(packed(recipe, data, [each])[each.id].state, by_hand(recipe, data, each).state)
            == 0
        )


@pytest.mark.parametrize("where", ["split", "close"])
def test_no_room_to_take_fused_lanes_apart_ends_all_visits(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = Touchy(dtype=torch.float64, chunk=64, samples=160, accumulate_grad_batches=3)
    data = recipe.data()
    if where == "split":  # it is wanted where a fused step raises
        recipe.spot = next(
            Stream(recipe, data, seed=SEED, device=HERE, memory_gb=1.0).chunks(data.shards[0], 0)
        )[0][40]
    trials, trainer = of_one_graph(data), slot_trainer(recipe, data, pace=even_pace)

    def full(*_: Any) -> None:
        raise MemoryError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(Stack, "part", full)
        if where == "close":
            patch.setattr(Fused, "close", full)
        told = list(
            trainer.train_pack([Unit(each, (), plan(data, 2)[0]) for each in trials], fuse=True)
        )
    assert [name for name, news in told if isinstance(news, OutOfMemory)] == [
        each.id for each in trials
    ]


def test_lanes_that_cannot_end_a_pass_as_one_end_it_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = Zoo(dtype=torch.float64, chunk=32, accumulate_grad_batches=3)
    data = recipe.data()
    trials = of_one_graph(data)

    def failing(self: Fused) -> None:
        raise Unfusable("no more")

    with monkeypatch.context() as patch:
        patch.setattr(Fused, "close", failing)
        found = packed(recipe, data, trials, fuse=True, pace=even_pace)
    for each in trials:
        alone = by_hand(recipe, data, each)
        assert (
            found[each.id].visits == alone.visits
            and distance(found[each.id].state, alone.state) < 1e-8
        )


def test_what_a_fused_step_held_is_gone_while_it_is_repeated() -> None:
    class Holding(Zoo):
        held: weakref.WeakSet[torch.Tensor] = weakref.WeakSet()
        left: list[int] = []

        def training_step(self, model: Any, batch: Any) -> Any:
            made = super().training_step(model, batch)
            if torch._C._functorch.is_batchedtensor(made["loss"]):
                activation = torch.zeros(3)
                self.held.add(activation)
                raise ArithmeticError("not as one")
            self.left.append(len(self.held))
            return made

    recipe = Holding(dtype=torch.float64)
    data = recipe.data()
    packed(recipe, data, of_one_graph(data), fuse=True, pace=even_pace)
    assert len(recipe.left) > 6 and not any(recipe.left)


class Caching(Zoo):
    """Its model gets an attribute with its first batch."""

    def training_step(self, model: Any, batch: Any) -> Any:
        if not hasattr(model, "size"):
            model.size = tuple(batch[0].shape[1:])
        return super().training_step(model, batch)


def test_a_model_that_gets_attributes_with_its_first_batch_is_fused_later() -> None:
    """Although one joins that has none yet, or all are new."""
    recipe = Caching(dtype=torch.float64, chunk=16, samples=480)
    data = recipe.data()
    # long enough for it to be worth while to find out whether they go faster fused
    *old, new = [replace(each, samples=100.0 * data.samples) for each in of_one_graph(data)]
    trainer = slot_trainer(recipe, data)
    list(trainer.train_pack([Unit(each, (), plan(data, 2)[0]) for each in old], fuse=True))
    units = [Unit(each, trainer.lanes.get(each.id).lane.visits, plan(data, 2)[1]) for each in old]
    list(trainer.train_pack([*units, Unit(new, (), plan(data, 2)[1])], fuse=True))
    graph, gauge = (
        trainer.pack.fusion.graph(trainer.lanes.get(new.id).lane),
        trainer.pack.fusion.gauge,
    )
    assert graph is not None and gauge.why(graph) is None and gauge.ratio(graph, 3)
    trials, paced = of_one_graph(data), slot_trainer(recipe, data, pace=even_pace)
    packed(recipe, data, trials, fuse=True, trainer=paced)
    assert len(fused_of(paced, new.id).lanes) == 3


def test_a_model_that_has_no_key_is_not_fused() -> None:
    class Untold(Zoo):
        def configure_model(self, config: Any) -> Any:
            class Odd:
                @property
                def __dict__(self) -> Any:  # type: ignore[override]
                    raise RuntimeError("nothing to be seen")

            model = super().configure_model(config)
            model.odd = Odd()
            return model

    recipe = Untold()
    data = recipe.data()
    trials = of_one_graph(data)
    as_alone(packed(recipe, data, trials, fuse=True, pace=even_pace), recipe, data, trials)


@pytest.mark.parametrize("epochs", [2, 40])
def test_a_short_search_is_not_gauged(epochs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What stacking, checking and trying take, a search of a few seconds cannot gain."""
    recipe = Zoo()
    data = recipe.data()
    trials = [trial(f"t{i}", epochs, data, lr=0.01 * (i + 1)) for i in range(3)]
    trainer = slot_trainer(recipe, data)
    units = [Unit(each, (), plan(data, 1)[0]) for each in trials]
    tried = []
    took = Gauge.took

    def noted(gauge: Gauge, kind: str, width: int, *more: Any) -> bool:
        tried.append(width)
        return took(gauge, kind, width, *more)

    monkeypatch.setattr(Gauge, "took", noted)
    assert len(list(trainer.train_pack(units, fuse=True))) >= len(trials)
    assert bool(tried) == (epochs == 40)


def test_a_lane_that_fails_at_a_report_takes_no_more_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chunk is reported in pieces; the error comes once, though batches of it are left."""
    monkeypatch.setattr(pass_events, "PART_SECONDS", 0.0)
    recipe = Zoo()
    data = recipe.data()
    steps: list[Any] = []
    real = TrainingLane.step
    monkeypatch.setattr(
        TrainingLane, "step", lambda lane, *batch: steps.append(batch) or real(lane, *batch)
    )
    bad = trial("bad", 1, data, batch_size=3, nan_at=2, nan_patience=1)
    trainer = slot_trainer(recipe, data)
    told = list(trainer.train_pack([Unit(bad, (), plan(data, 1)[0])]))
    assert [isinstance(news, TrialError) for _, news in told].count(True) == 1
    assert len(steps) == 4 and isinstance(told[-1][1], TrialError)
