"""Studies of wide trials under the policies that plan them, as a user runs them."""

from pathlib import Path
from threading import Thread
from time import sleep

import pytest
from ray_wide_kit import Exact

import shoal
from shoal.core.event import Planned
from shoal.core.state import State
from shoal.engine.journal import read, replay


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["doubling", "equi", "elastic", "waterfill", "flotilla"])
def test_wide_trials_finish_and_learn_as_on_one_slot(tmp_path: Path, policy: str) -> None:
    recipe = Exact(tmp_path / "traces", samples=1203, shards=2, slow=0.01)
    study = shoal.create_study(recipe, storage=tmp_path / "study", search_space={"width": shoal.grid([4, 8, 16])})
    study.optimize("grid", policy=policy, max_epochs=2, widths=(1, 4), backend="ray", slots=4, progress=False)
    assert set(study.state.ended.values()) == {"finished"}
    gangs = [gang for line in study.lines() if isinstance(line.entry, Planned) for gang in line.entry.start]
    assert max(len(gang.slots) for gang in gangs) > 1
    rows = study.replay()
    assert len(rows) == 3
    assert all(row["agrees"] and row["difference"] < 1e-8 for row in rows), rows
    assert study.report().exists()


@pytest.mark.slow
def test_a_study_of_wide_trials_is_stopped_and_goes_on(tmp_path: Path) -> None:
    """With a batch for each slot, too: what is durable holds the widths that it was made with."""
    recipe = Exact(tmp_path / "traces", samples=2403, shards=2, slow=0.02, batch_per_slot=True)
    study = shoal.create_study(recipe, storage=tmp_path / "study", search_space={"width": shoal.grid([8])})
    options = {"policy": "doubling", "widths": (1, 2), "backend": "ray", "slots": 2, "checkpoint_every": 0.1, "progress": False}

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
    half = study.state
    assert not half.ended
    study.optimize("grid", max_epochs=4, **options)
    assert set(study.state.ended.values()) == {"finished"}
    for trial, visits in study.state.visits.items():
        kept = half.kept.get(trial)
        assert kept is not None and visits[: kept.visits] == half.visits[trial][: kept.visits]
        assert any(visit.widths for visit in visits)
    rows = study.replay()
    assert all(row["agrees"] and row["difference"] < 1e-8 for row in rows), rows
