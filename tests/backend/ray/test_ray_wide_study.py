"""Studies of wide trials under the policies that plan them, as a user runs them."""

from itertools import pairwise
from pathlib import Path
from threading import Thread
from time import sleep

import pytest
from ray_wide_kit import Exact, check_replay, gangs_of

import shoal
from shoal.core.event import Advanced, Fell, Planned, Remembered
from shoal.core.fold import fold
from shoal.core.state import State
from shoal.engine.journal import read, replay
from shoal.policy import Mixed
from shoal.profile.pack import Packing
from shoal.profile.table import Row, Table

pytestmark = pytest.mark.usefixtures("shared_ray")


def studied(recipe: Exact, widths: list[int]) -> shoal.Study:
    """A study of layers of these widths, in the folder in which the recipe leaves its traces."""
    return shoal.create_study(
        recipe, storage=recipe.traces.parent / "study", search_space={"width": shoal.grid(widths)}
    )


@pytest.mark.parametrize(
    "policy",
    [
        pytest.param("elastic", marks=pytest.mark.slow),
        pytest.param("flotilla", marks=pytest.mark.nightly),
        *(
            pytest.param(policy, marks=pytest.mark.soak)
            for policy in ("doubling", "equi", "waterfill")
        ),
    ],
)
def test_wide_trials_finish_and_learn_as_on_one_slot(tmp_path: Path, policy: str) -> None:
    recipe = Exact(tmp_path / "traces", samples=1203, shards=2, slow=0.01)
    study = studied(recipe, [4, 8, 16])
    study.optimize(
        "grid", policy=policy, max_epochs=2, widths=(1, 4), backend="ray", slots=4, progress=False
    )
    assert set(study.state.ended.values()) == {"finished"}
    gangs = gangs_of(study)
    assert max(len(gang.slots) for gang in gangs) > 1
    check_replay(study, trials=3)
    assert study.report().exists()


@pytest.mark.nightly
def test_flotillas_measure_in_fewer_batches_than_a_visit_has(tmp_path: Path) -> None:
    """Four kinds on two slots: those measured first make room at once, with nothing kept of it."""
    recipe = Exact(tmp_path / "traces", samples=3003, shards=1, slow=0.005)
    study = studied(recipe, [4, 8, 16, 32])
    study.optimize(
        "grid",
        policy="flotilla",
        max_epochs=1,
        widths=(1, 2),
        backend="ray",
        slots=2,
        progress=False,
    )
    assert set(study.state.ended.values()) == {"finished"}
    lines = study.lines()
    begun: set[str] = set()
    visited: set[str] = set()
    for _, entry in lines:
        if isinstance(entry, Planned):
            begun |= {trial for gang in entry.start for trial in gang.trials}
        if isinstance(entry, Advanced):
            visited |= entry.visits.keys()
        if visited:
            break
    assert len(begun) == 4, "all kinds were begun before any made a visit"
    assert any(isinstance(entry, Fell) for _, entry in lines)
    check_replay(study, trials=4)


@pytest.mark.nightly
def test_packs_and_a_wide_lane_run_at_one_moment(tmp_path: Path) -> None:
    """The profile says that small models gain by a pack, and the large one by more slots."""
    small = Packing.shared(0.9, 1000.0, 10)
    rows = [Row((1000.0,), {"width": width}, packing=small) for width in (4, 5, 6, 7)]
    rows.append(Row((50.0, 98.0, 145.0, 190.0), {"width": 16}))
    recipe = Exact(tmp_path / "traces", samples=1203, shards=2, slow=0.01)
    study = studied(recipe, [4, 5, 6, 7, 16])
    study.optimize(
        "grid",
        Mixed(),
        max_epochs=2,
        widths=(1, 4),
        profile=Table(tuple(rows)),
        backend="ray",
        slots=4,
        progress=False,
    )
    assert set(study.state.ended.values()) == {"finished"}
    state = State()
    shapes = set()
    for line in study.lines():
        state = fold(state, [line.entry])
        shapes.add(tuple(sorted((len(g.slots), len(g.lanes)) for g in state.gangs)))
    assert ((1, 4), (3, 1)) in shapes, shapes
    visits = study.state.visits.values()
    assert all(len(each) == 4 for each in visits)
    check_replay(study, trials=5)


@pytest.mark.nightly
def test_a_trial_explores_its_widths_within_a_unit(tmp_path: Path) -> None:
    """How far a unit is comes while it is made, so that speeds are seen at every width."""
    recipe = Exact(tmp_path / "traces", samples=12003, slow=0.01)
    study = studied(recipe, [8])
    policy = "explore(seconds=12, most=4)"
    study.optimize(
        "grid", policy=policy, max_epochs=2, widths=(1, 4), backend="ray", slots=4, progress=False
    )
    assert [len(gang.slots) for gang in gangs_of(study)][:3] == [1, 2, 4]
    entries = [line.entry for line in study.lines()]
    said = [
        entry.memory
        for entry in entries
        if isinstance(entry, Remembered) and entry.who == "policy" and entry.memory
    ]
    stamps = max((seen for memory in said for seen in memory["tried"].values()), key=len)
    # Between two widths the trial may stand still for a moment.
    speeds = {
        before[2]: (after[1] - before[1]) / (after[0] - before[0])
        for before, after in pairwise(stamps)
        if before[2]
    }
    assert list(speeds) == [1, 2, 4]
    assert (
        min(speeds.values()) > 0 and max(speeds.values()) < 1 / 0.001
    )  # a batch of 10 takes 10 ms at any width
    assert set(study.state.ended.values()) == {"finished"}


@pytest.mark.nightly
def test_few_trials_hop_between_groups_of_slots(tmp_path: Path) -> None:
    """The hybrid of hopping and data-parallel training: each group of slots reads the shards
    that lie there. The profile says that two slots pay.
    """
    rows = [Row((50.0, 98.0), {"width": width}) for width in (8, 16)]
    recipe = Exact(tmp_path / "traces", samples=1203, shards=4, slow=0.01)
    study = studied(recipe, [8, 16])
    study.optimize(
        "grid",
        policy="hybrid",
        max_epochs=2,
        widths=(1, 2),
        profile=Table(tuple(rows)),
        backend="ray",
        slots=4,
        progress=False,
    )
    assert set(study.state.ended.values()) == {"finished"}
    gangs = gangs_of(study)
    for trial in study.state.known:
        own = [gang for gang in gangs if trial in gang.trials]
        assert {len(gang.slots) for gang in own} == {2} and all(
            gang.quota and gang.shards for gang in own
        )
        assert len({gang.slots for gang in own}) == 2  # both groups
    moved = [entry.moved for line in study.lines() if isinstance(entry := line.entry, Advanced)]
    assert sum(sum(each.values()) for each in moved) > 0
    check_replay(study, trials=2)


@pytest.mark.slow
def test_a_study_of_wide_trials_is_stopped_and_goes_on(tmp_path: Path) -> None:
    """With a batch for each slot, too: what is durable holds the widths that it was made with."""
    recipe = Exact(tmp_path / "traces", samples=2403, shards=2, slow=0.02, batch_per_slot=True)
    recipe.held = 0.1  # on a busy machine it takes a while until the stop is heard of
    held = recipe.traces / "held"
    held.touch()
    study = studied(recipe, [8])
    options = {
        "policy": "doubling",
        "widths": (1, 2),
        "backend": "ray",
        "slots": 2,
        "checkpoint_every": 0.1,
        "progress": False,
    }

    def stop() -> None:
        while not so_far().kept:
            sleep(0.1)
        shoal.load_study(tmp_path / "study").stop()

    def so_far() -> State:
        journal = tmp_path / "study" / "journal.jsonl"
        return replay(list(read(journal))) if journal.exists() else State()

    stopper = Thread(target=stop)
    stopper.start()
    study.optimize("grid", max_epochs=4, **options)
    stopper.join()
    held.unlink()
    half = study.state
    assert not half.ended
    study.optimize("grid", max_epochs=4, **options)
    assert set(study.state.ended.values()) == {"finished"}
    for trial, visits in study.state.visits.items():
        kept = half.kept.get(trial)
        assert kept is not None and visits[: kept.visits] == half.visits[trial][: kept.visits]
        assert any(visit.widths for visit in visits)
    check_replay(study, trials=1)


@pytest.mark.slow
def test_sharded_data_and_trials_that_always_take_two_slots(tmp_path: Path) -> None:
    """The default policy reads shards where they lie, and still starts such trials."""
    recipe = Exact(tmp_path / "traces", samples=803, shards=4, slow=0.0)
    study = studied(recipe, [4, 8])
    study.optimize(
        "grid", policy="auto", max_epochs=2, widths=(2, 2), backend="ray", slots=2, progress=False
    )
    assert set(study.state.ended.values()) == {"finished"}
    gangs = gangs_of(study)
    assert gangs
    assert all(len(lane.slots) == 2 for gang in gangs for lane in gang.lanes)
    visited = study.state.visits.values()
    assert all(len({visit.shard for visit in visits}) == 4 for visits in visited)
