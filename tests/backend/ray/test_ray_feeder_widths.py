"""A feeder prepares each chunk once for the slots of a wide lane and for the lanes beside it."""

import os
from pathlib import Path

import pytest
from ray_wide_kit import check_replay, gangs_of
from test_ray_shared_chunks import NotedWide, Notes

import shoal
from shoal.policy.width.flotilla import Flotilla

pytestmark = pytest.mark.nightly


@pytest.mark.parametrize("together", [False, True])
def test_each_chunk_is_made_once_for_a_wide_lane_and_one_beside_it(
    tmp_path: Path, together: bool
) -> None:
    """Of three slots one trial has two. `replay` trains each trial alone, and prepares all.

    The driver makes a chunk for itself, to see whether the recipe works.
    """
    recipe = NotedWide(tmp_path / "traces", samples=803, shards=2, slow=0.01)
    recipe.notes = Notes(tmp_path / "notes")
    study = shoal.create_study(
        recipe, storage=tmp_path / "study", search_space={"width": shoal.grid([8, 16])}
    )
    study.optimize(
        "grid",
        policy=Flotilla(delta=1e9, together=together),
        max_epochs=2,
        widths=(1, 2),
        backend="ray",
        slots=3,
        feeders=1,
        progress=False,
    )
    widths = {tuple(sorted(len(lane.slots) for lane in gang.lanes)) for gang in gangs_of(study)}
    assert ((1, 2) if together else (2,)) in widths, "a lane of two slots"
    data = recipe.data()
    chunks = sum(-(-size // data.chunk) for size in data.sizes.values())
    files = [path.read_text() for path in recipe.notes.folder.iterdir()]
    makers = [int(process) for text in files for process in text.split()]
    makers = [process for process in makers if process != os.getpid()]
    assert len(makers) == 2 * chunks, "each chunk once in each pass"
    assert len(set(makers)) == 1, "by the feeder"
    check_replay(study, trials=2)
