"""The trainer: units, what it holds, what it keeps, what it measures, and whose fault it is."""

from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from train_kit import (
    S0,
    Linear,
    Small,
    blobs,
    copied,
    drive,
    even_pace,
    go,
    planned,
    trainer,
    trial,
)

from shoal.core.trial import Trial, TrialId, Visit
from shoal.train.data.data import DataError
from shoal.train.lane.checkpoints import Checkpoints, StaleRun
from shoal.train.recipe.unit import TrialError
from shoal.train.slot import lane_cache, pass_events
from shoal.train.slot import trainer as module
from shoal.train.slot.lane_builder import LaneBuilder
from shoal.train.slot.setup import machine_memory
from shoal.train.slot.trainer import Done, Unit
from shoal.train.tools.verify import compare

ID = trial().id
FIRST = Visit(0, S0, 0, 0)


def unit(what: Trial, made: Any = (), visit: Visit = FIRST, **fields: Any) -> Unit:
    return Unit(what, made, visit, **fields)


def test_a_unit_reports_its_chunks_and_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pass_events, "PART_SECONDS", inf)  # however long a step takes
    held = trainer(Small(), blobs(chunk=12))
    parts, done = drive(held.train(unit(trial(), evaluate=True)))
    assert [part.samples for part in parts] == [
        8,
        16,
        6,
    ]  # 12, 12 and 6, less what waits for the next chunk
    assert sum(part.values["loss"][1] for part in parts) == 30 == done.visit.samples
    assert done.visit == Visit(0, S0, 0, 30)
    assert set(parts[0].spent) == {"switch", "data", "train"} and set(parts[1].spent) == {
        "data",
        "train",
    }
    assert set(done.spent) == {"evaluate"}
    assert done.scores is not None and 0 <= done.scores["accuracy"] <= 1
    assert done.kept is None and done.state is None
    assert done.age == pytest.approx(
        sum(part.spent["data"] + part.spent["train"] for part in parts)
    )


def test_nothing_to_validate_with_gives_no_scores() -> None:
    assert (
        drive(trainer(Small(), blobs(validation=None)).train(unit(trial(), evaluate=True)))[
            1
        ].scores
        is None
    )

    class Silent(Small):
        validation_step = module.Recipe.validation_step

    assert drive(trainer(Silent(), blobs()).train(unit(trial(), evaluate=True)))[1].scores is None


def test_long_chunks_are_reported_in_pieces_that_change_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = blobs()
    monkeypatch.setattr(pass_events, "PART_SECONDS", inf)
    whole = trainer(Small(), data)
    parts, _ = drive(whole.train(unit(trial())))
    monkeypatch.setattr(pass_events, "PART_SECONDS", 0.0)
    pieces = trainer(Small(), data)
    more, _ = drive(pieces.train(unit(trial())))
    assert [part.samples for part in parts] == [30] and [part.samples for part in more] == [
        8,
        8,
        8,
        6,
    ]
    assert compare(whole.state(ID), pieces.state(ID)).equal
    paced = trainer(Small(), data, pace=even_pace)
    assert len(drive(paced.train(unit(trial())))[0]) == 1  # never cut by the clock


def test_the_config_may_bring_its_seed() -> None:
    data = blobs()
    weights = []
    for study, own in ((3, None), (4, 3), (4, None), (3, 3.0)):
        held = trainer(Small(), data, seed=study)
        config = {} if own is None else {"seed": own}
        with LaneBuilder(held.context).build(trial(**config)).rng:
            weights.append(
                LaneBuilder(held.context).build(trial(**config)).model[0].weight.detach().numpy()
            )
    assert np.array_equal(weights[0], weights[1]) and np.array_equal(weights[0], weights[3])
    assert not np.array_equal(weights[0], weights[2])
    with pytest.raises(TrialError, match="seed must be a whole number; got 'x'"):
        drive(trainer(Small(), data).train(unit(trial(seed="x"))))
    with pytest.raises(ValueError, match="seed must be >= 0; got -1"):
        trainer(Small(), data, seed=-1)


# -- what is kept, and when


def kept(tmp_path: Path, every: float, ages: list[float], **fields: Any) -> list[bool]:
    data = blobs()
    held = trainer(
        Small(),
        data,
        Checkpoints(tmp_path, 1),
        checkpoint_every=every,
        pace=lambda trial, samples: 10.0,
    )
    made, found = (), []
    for visit, age in zip(planned(data, 9), ages, strict=False):
        _, done = drive(held.train(unit(trial(), made, visit, age=age, **fields)))
        made = (*made, done.visit)
        found.append(done.kept is not None)
        assert done.age == (0.0 if done.kept else age + 10)
    return found


def test_checkpoints_come_by_age_and_at_the_last_unit(tmp_path: Path) -> None:
    assert kept(tmp_path / "a", 30, [0, 10, 19.9, 20, 50]) == [False, False, False, True, True]
    assert kept(tmp_path / "b", 0, [0, 0]) == [True, True]
    assert kept(tmp_path / "c", 30, [0], last=True) == [True]
    assert Checkpoints(tmp_path / "a", 1).names() == ("a/000004-1.pt", "a/000005-1.pt")


def test_carry_returns_the_state() -> None:
    held = trainer(Small(), blobs())
    _, done = drive(held.train(unit(trial(), carry=True)))
    assert done.state is not None and compare(done.state, held.state(ID)).equal
    assert done.state["visits"] == [[0, "s000", 0, 30, ()]]


def test_the_first_few_states_that_come_are_measured() -> None:
    home, away = trainer(Small(), blobs()), trainer(Small(), blobs())
    first, then = planned(blobs(), 1)[:2]
    made = go(home, trial(), [first], evaluate=False)
    source = copied(home.state(ID))
    told = []
    for _ in range(lane_cache.HOPS + 2):
        _, done = drive(away.train(unit(trial(), made, then, source=source)))
        told.append("switch" in done.figures)
    assert told == [True] * lane_cache.HOPS + [False] * 2


def test_keep_makes_durable_what_is_held(tmp_path: Path) -> None:
    held = trainer(Small(), blobs(), Checkpoints(tmp_path, 1))
    with pytest.raises(LookupError, match="not held here"):
        held.keep(ID)
    go(held, trial(), [FIRST])
    assert compare(Checkpoints(tmp_path, 1).load(held.keep(ID)), held.state(ID)).equal


# -- what is held


def test_of_trials_that_are_over_only_the_last_few_lanes_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lane_cache, "OVER", 2)
    data = blobs()
    held = trainer(Small(), data, Checkpoints(tmp_path, 1), checkpoint_every=inf)
    alone = trainer(Small(), data)
    first, then = planned(data, 1)[:2]
    for name in "abcd":
        drive(held.train(unit(trial(name), visit=first, last=True)))
    assert held.lanes.trials == ("c", "d")
    made = go(alone, trial(), [first], evaluate=False)
    assert held.holds(ID, 1) and compare(held.state(ID), alone.state(ID)).equal
    # A search gives the first trial more samples: it goes on as if its lane had stayed.
    drive(held.train(unit(trial(), made, then)))
    drive(alone.train(unit(trial(), made, then)))
    assert held.lanes.trials == ("c", "d", "a")
    assert compare(held.state(ID), alone.state(ID)).equal


def test_a_trial_goes_on_where_it_is_held() -> None:
    builds = []

    class Built(Small):
        def configure_model(self, config: Any) -> Any:
            builds.append(config)
            return super().configure_model(config)

    data = blobs()
    held = trainer(Built(), data)
    made = go(held, trial(), planned(data, 1)[:1])
    assert held.holds(ID, 1) and not held.holds(ID, 0) and not held.holds(ID, 2)
    state = copied(held.state(ID))
    made = go(held, trial(), planned(data, 1)[1:2], made)
    back = made[:1]
    go(
        held, trial(), planned(data, 1)[1:2], back, source=state
    )  # an older state, into the same model
    assert len(builds) == 1
    go(held, trial(), planned(data, 1)[:1])  # from the beginning
    assert len(builds) == 2
    held.forget(ID)
    assert not held.holds(ID, 1)
    with pytest.raises(LookupError, match="trial a is not held here"):
        held.state(ID)
    with pytest.raises(
        LookupError, match="trial a after 1 visits is not held here: its unit needs a source"
    ):
        go(held, trial(), planned(data, 1)[1:], made[:1])


def test_a_source_of_another_moment_is_refused() -> None:
    data = blobs()
    held = trainer(Small(), data)
    made = go(held, trial(), planned(data, 1)[:2])
    state = copied(held.state(ID))
    held.forget(ID)
    with pytest.raises(
        LookupError, match="its unit comes after 1 visits, its source is the state after 2"
    ):
        go(held, trial(), planned(data, 1)[1:], made[:1], source=state)


def test_a_unit_left_early_counts_as_not_made() -> None:
    data = blobs(chunk=8)
    held, alone = trainer(Small(), data), trainer(Small(), data)
    made = go(held, trial(), planned(data, 1)[:1])
    state = copied(held.state(ID))
    leaving = held.train(unit(trial(), made, planned(data, 1)[1]))
    next(leaving)
    leaving.close()
    assert not held.holds(ID, 1) and not held.holds(ID, 2)
    go(held, trial(), planned(data, 1)[1:], made, source=state)
    go(alone, trial(), planned(data, 1))
    assert compare(held.state(ID), alone.state(ID)).equal


def test_a_trials_own_seed_does_not_change_the_order_of_its_samples() -> None:
    """Trials share chunks, whose order is the study's; the trial's seed is that of its model."""
    data = blobs()

    def seen(study: int, **config: Any) -> list[Any]:
        batches: list[Any] = []

        class Watching(Linear):
            shuffle = "each"

            def training_step(self, model: Any, batch: Any) -> Any:
                batches.append(batch[0].numpy().tobytes())
                return super().training_step(model, batch)

            def augment(self, samples: Any, rng: np.random.Generator) -> Any:
                x, y = samples
                return x + rng.random(x.shape, dtype=np.float32), y

        held = trainer(Watching(), data, seed=study)
        go(held, trial(**config), planned(data, 2))
        return batches

    assert seen(3) == seen(3, seed=7)
    assert seen(3) != seen(7)


def fill(held: Any, count: int, **fields: Any) -> list[Any]:
    return [drive(held.train(unit(trial(f"t{i}"), **fields)))[1] for i in range(count)]


def size() -> float:
    """GiB of one lane after a unit."""
    held = trainer(Small(), blobs())
    fill(held, 1)
    return held.lanes.get(TrialId("t0")).bytes / 2**30


def test_lanes_that_were_carried_or_kept_make_room_used_longest_ago_first(tmp_path: Path) -> None:
    held = trainer(Small(), blobs(), Checkpoints(tmp_path, 1), state_memory_gb=2.5 * size())
    fill(held, 4, carry=True)
    assert [held.holds(TrialId(f"t{i}"), 1) for i in range(4)] == [False, False, True, True]
    held = trainer(Small(), blobs(), Checkpoints(tmp_path, 1), state_memory_gb=2.5 * size())
    assert all(done.kept for done in fill(held, 4, last=True))
    assert held.lanes.trials == ("t2", "t3")
    assert all(held.holds(TrialId(f"t{i}"), 1) for i in range(4))  # from their checkpoints


def test_a_state_that_is_nowhere_else_is_saved_before_it_makes_room(tmp_path: Path) -> None:
    data = blobs()
    plan = planned(data, 1)
    vault = Checkpoints(tmp_path, 1)
    held = trainer(Small(), data, vault, state_memory_gb=2.5 * size())
    done = fill(held, 4)
    assert [d.kept for d in done] == [None] * 4, "nobody but the trainer needs to know"
    assert held.lanes.trials == ("t0", "t3")
    assert vault.names() == ("t1/000001-1.pt", "t2/000001-1.pt")
    for i in range(4):  # each goes on without anybody telling where its state is
        go(held, trial(f"t{i}"), plan[1:], (done[i].visit,))
        assert held.holds(TrialId(f"t{i}"), 3)
    alone = trainer(Small(), data)
    for i in range(4):
        go(alone, trial(f"t{i}"), plan)
        assert compare(held.state(TrialId(f"t{i}")), alone.state(TrialId(f"t{i}"))).equal
    names = vault.names()
    assert len(names) == 2, "those that made room before were deleted when their trials went on"
    aside = next(i for i in range(4) if any(name.startswith(f"t{i}/") for name in names))
    assert held.keep(TrialId(f"t{aside}")) in names
    held.forget(TrialId(f"t{aside}"))
    assert len(vault.names()) == 2, "what was handed out as kept stays"


class Counted(Small):
    """Counts how often a model is built."""

    built = 0

    def configure_model(self, config: Any) -> Any:
        type(self).built += 1
        return super().configure_model(config)


@pytest.mark.parametrize("together", [1, 3])
def test_lanes_about_to_go_on_stay_however_large_they_are(tmp_path: Path, together: int) -> None:
    """Above the limit a trial was saved, dropped and built again at each visit."""

    class Recipe(Counted):
        built = 0

    data = blobs()
    saves: list[str] = []
    vault = Checkpoints(tmp_path, 1)
    save = vault.save
    vault.save = lambda name, state: (saves.append(name), save(name, state))  # type: ignore
    held = trainer(Recipe(), data, vault, state_memory_gb=0.5 * size(), checkpoint_every=inf)
    trials = [trial(f"p{i}") for i in range(together)]
    made: dict[TrialId, tuple[Visit, ...]] = {each.id: () for each in trials}
    for visit in planned(data, 7)[:20]:
        units = [Unit(each, made[each.id], visit) for each in trials]
        for name, news in held.train_pack(units):
            if isinstance(news, Done):
                made[name] = (*made[name], news.visit)
    assert all(len(visits) == 20 for visits in made.values())
    assert Recipe.built == together and not saves
    fill(held, 1)  # another trial needs the room
    assert len(saves) == together and held.lanes.trials == ("t0",)


def test_the_default_limit_follows_the_machines_memory() -> None:
    held = trainer(Small(), blobs())
    assert held.context.state_room == pytest.approx(machine_memory() * 2**30 / 4)


def test_without_a_vault_nothing_unsaved_is_given_up() -> None:
    held = trainer(Small(), blobs(), state_memory_gb=0.0)
    fill(held, 3)
    assert all(held.holds(TrialId(f"t{i}"), 1) for i in range(3))


# -- whose fault it is


@pytest.mark.parametrize(
    "method",
    [
        "configure_model",
        "configure_optimizers",
        "training_step",
        "validation_step",
        "prepare",
        "augment",
    ],
)
def test_what_the_recipe_raises_sets_its_trial_aside(method: str) -> None:
    def fail(self: Any, *_: Any) -> Any:
        raise FileNotFoundError("no\nsuch file")  # even this: it is not the study's storage

    data, recipe = blobs(), type("Raising", (Small,), {method: fail})()
    held = trainer(recipe, data)
    with pytest.raises(TrialError) as raised:
        drive(held.train(unit(trial(), evaluate=True)))
    assert raised.value.why == "FileNotFoundError: no"
    assert (
        "Traceback" in raised.value.text
        and "in fail" in raised.value.text
        and "such file" in raised.value.text
    )
    assert not held.holds(ID, 0) and not held.holds(ID, 1)


class _Hiding(torch.nn.Sequential):
    def get_extra_state(self) -> Any:
        return object()


@pytest.mark.parametrize("fields", [{"last": True}, {"carry": True}])
def test_a_state_that_cannot_be_kept_sets_its_trial_aside(fields: Any, tmp_path: Path) -> None:
    class Odd(Small):
        def configure_model(self, config: Any) -> Any:
            return _Hiding(*super().configure_model(config))

    with pytest.raises(TrialError, match="TypeError: a trial's state may hold tensors"):
        drive(trainer(Odd(), blobs(), Checkpoints(tmp_path, 1)).train(unit(trial(), **fields)))


def test_divergence_sets_the_trial_aside() -> None:
    class Diverging(Small):
        nan_patience = 1

        def training_step(self, model: Any, batch: Any) -> Any:
            return super().training_step(model, batch) * float("inf")

    with pytest.raises(TrialError) as raised:
        drive(trainer(Diverging(), blobs()).train(unit(trial())))
    assert raised.value.why == "diverged: loss was not finite for 2 steps"


def test_an_error_travels() -> None:
    import pickle

    twin = pickle.loads(pickle.dumps(TrialError("why", "text")))
    assert (twin.why, twin.text, str(twin)) == ("why", "text", "why")


def test_a_raising_trial_leaves_the_others_and_the_global_generators_alone() -> None:
    class Raising(Small):
        def training_step(self, model: Any, batch: Any) -> Any:
            if self.raises:
                torch.manual_seed(99)
                raise RuntimeError
            return super().training_step(model, batch)

    data, recipe = blobs(), Raising(raises=False)
    held = trainer(recipe, data)
    made = go(held, trial("good"), planned(data, 1)[:1])
    recipe.raises, before = True, torch.get_rng_state()
    with pytest.raises(TrialError, match="RuntimeError"):
        drive(held.train(unit(trial("bad"))))
    assert torch.equal(torch.get_rng_state(), before)
    recipe.raises = False
    go(held, trial("good"), planned(data, 1)[1:], made)
    alone = trainer(Small(), data)
    go(alone, trial("good"), planned(data, 1))
    assert compare(held.state(TrialId("good")), alone.state(TrialId("good"))).equal


def test_storage_and_data_are_the_studys(tmp_path: Path) -> None:
    data = blobs()
    (tmp_path / "v").write_text("a file where a folder is needed")
    with pytest.raises(OSError):
        drive(
            trainer(Small(), data, Checkpoints(tmp_path / "v", 1)).train(unit(trial(), last=True))
        )
    Checkpoints(tmp_path / "w", 5).mark()
    with pytest.raises(StaleRun):
        drive(
            trainer(Small(), data, Checkpoints(tmp_path / "w", 4)).train(unit(trial(), last=True))
        )
    data._source = None  # type: ignore[assignment]
    with pytest.raises(DataError, match="s000 cannot be read"):
        drive(trainer(Small(), data).train(unit(trial())))
    with pytest.raises(FileNotFoundError):
        drive(
            trainer(Small(), data, Checkpoints(tmp_path / "x", 1)).train(
                unit(trial(), (FIRST,), FIRST, source="a/000001-1.pt")
            )
        )


# -- figures


def test_figures_come_from_the_first_steps_of_a_signature(tmp_path: Path) -> None:
    data = blobs(samples=800, shards=2)
    held = trainer(Small(), data, Checkpoints(tmp_path, 1))
    figures = [
        drive(held.train(unit(trial(name), evaluate=True, last=True)))[1]
        for name in ("a", "b", "c")
    ]
    first = dict(figures[0].figures)
    first.pop("first", None)  # only of the first model of the process
    assert set(first) == {
        "build",
        "step",
        "rate",
        "memory",
        "transient",
        "model",
        "batch",
        "evaluate",
        "save",
    }
    assert first["rate"] == pytest.approx(8 / first["step"]) and first["step"] > 0
    assert first["memory"] * 2**30 > held.lanes.get(ID).bytes > 4 * 4 * (6 * 16 + 16 * 3)
    timed = held.context.meter._steps[figures[0].signature]
    assert "rate" in figures[1].figures or len(timed) == 48
    assert not set(figures[2].figures)
    other = drive(held.train(unit(trial("d", batch_size=4))))[1]
    assert other.signature != figures[0].signature and "rate" in other.figures


def test_measuring_changes_nothing() -> None:
    data = blobs()
    measured, paced = (
        trainer(Small(), data),
        trainer(Small(), data, pace=lambda trial, samples: samples / 10),
    )
    go(measured, trial(), planned(data, 2))
    go(paced, trial(), planned(data, 2))
    assert compare(measured.state(ID), paced.state(ID)).equal


def test_a_pace_replaces_the_clock(tmp_path: Path) -> None:
    held = trainer(
        Small(), blobs(chunk=12), Checkpoints(tmp_path, 1), pace=lambda trial, samples: samples / 10
    )
    for name in ("a", "b"):
        parts, done = drive(held.train(unit(trial(name), evaluate=True, last=True, age=1.0)))
        assert [part.spent for part in parts] == [{"train": 0.8}, {"train": 1.6}, {"train": 0.6}]
        assert done.spent == {} and done.figures == {}


def test_probing_leaves_nothing_behind(tmp_path: Path) -> None:
    held = trainer(Small(), blobs(), Checkpoints(tmp_path, 1))
    signature, figures = held.probe(trial())
    assert {"rate", "step", "memory", "build", "evaluate", "save", "switch"} <= set(figures)
    assert not held.holds(ID, 0) and Checkpoints(tmp_path, 1).names() == ()
    go(held, trial(), planned(blobs(), 1))
    alone = trainer(Small(), blobs())
    go(alone, trial(), planned(blobs(), 1))
    assert compare(held.state(ID), alone.state(ID)).equal
    assert held.probe(trial("b"))[0] == signature


def test_threads_are_set_at_every_turn() -> None:
    before = torch.get_num_threads()
    seen = []

    class Watching(Linear):
        def training_step(self, model: Any, batch: Any) -> Any:
            seen.append(torch.get_num_threads())
            return super().training_step(model, batch)

    data = blobs(samples=20, shards=1, chunk=8, validation=None)
    try:
        units = [trainer(Watching(), data, threads=n).train(unit(trial())) for n in (1, 2)]
        for _ in range(2):
            for one in units:
                next(one)
        assert seen == [1, 2, 1, 2]
    finally:
        torch.set_num_threads(before)
