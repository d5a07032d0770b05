"""Evaluations within an epoch: `validate_every=0.25` follows each of four shards."""

from pathlib import Path
from typing import Any

import pytest

import shoal
from shoal.core.visits import falls_on_visits, is_scored
from shoal.study.folder import StudyError
from shoal.train.lane.checkpoint import Checkpoints
from shoal.train.tools.verify import differences


def test_which_fractions_fall_on_shards() -> None:
    assert [falls_on_visits(4, every) for every in (0.25, 0.5, 0.75, 1, 1.25)] == [
        True
    ] * 5
    assert not any(falls_on_visits(4, every) for every in (0.1, 0.3, 0.6, 1.1))
    assert falls_on_visits(3, 1 / 3) and not falls_on_visits(1, 0.5)
    assert [is_scored(count, 4, 0.5, False) for count in range(1, 5)] == [
        False,
        True,
        False,
        True,
    ]


@pytest.mark.parametrize("policy", ["fifo", "pack", "hop"])
def test_they_change_nothing_of_the_training(
    tmp_path: Path, blobs: Any, policy: str
) -> None:
    states = []
    for every in (0.25, 1):
        study = shoal.create_study(blobs(shards=4), storage=tmp_path / f"{every}")
        study.optimize(policy=policy, validate_every=every, fuse=False, progress=False)
        epochs = [epoch for epoch, _ in study.trials[0].scores]
        assert epochs == [every * number for number in range(1, round(2 / every) + 1)]
        vault = Checkpoints(study.folder.checkpoints, 1)
        kept = study.state.kept
        states.append({each: vault.load(kept[each].name) for each in kept})
        assert all(row["equal"] for row in study.replay())
    assert not list(differences(*states))


def test_what_falls_within_a_shard_is_refused(tmp_path: Path, blobs: Any) -> None:
    for every, shards, why in (
        (0.3, 4, r"0.3 of an epoch is 1.2 of 4: use a multiple of 0.25"),
        (0.5, 1, r"0.5 of an epoch is 0.5 of 1: use a multiple of 1, or other shards"),
        (0, 4, "validate_every must be epochs > 0; got 0"),
    ):
        study = shoal.create_study(blobs(shards=shards), storage=tmp_path / f"{every}")
        with pytest.raises(StudyError, match=why):
            study.optimize(validate_every=every, progress=False)
        assert not study.folder.journal.exists()
