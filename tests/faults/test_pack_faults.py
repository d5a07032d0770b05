"""Packs, and searches in packs, killed at any moment: the same ranking and weights;
asynchronous ones equal their own record.
"""

import random
import shutil
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fault_kit import EVERY, Steady, check_repeated, chosen, endure, runs

import shoal
from shoal.core.event import Left, Planned
from shoal.study.results import ranked
from shoal.train.lane.checkpoints import Checkpoints

RAY = {"backend": "ray", "slots": 2}
needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="Ray is an extra")
HYPERBAND = {"searcher": "hyperband(reduction_factor=2)", "max_epochs": 4}
ASHA = {
    "searcher": "asha(reduction_factor=2)",
    "max_epochs": 4,
    "num_samples": 8,
    "max_concurrent": 4,
}
PACK = {"name": "pack", "grouping": "random", "most": 3}
HOPS = {
    "name": "packed",
    "policy": {"name": "hop"},
    "most": 3,
    "fuse": False,
}  # with a profile by which packs gain
DRAWN = {"drawn": True}


def undisturbed(folder: Path, policy: Mapping[str, Any], **options: Any) -> shoal.Study:
    """The same study, left alone."""
    study = shoal.create_study(Steady(slow=0, **DRAWN), storage=folder)
    study.optimize(
        progress=False,
        **chosen({"policy": policy, "checkpoint_every": EVERY, **HYPERBAND, **options}),
    )
    assert together(study) > 1
    return study


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> shoal.Study:
    return undisturbed(tmp_path_factory.mktemp("pack") / "s", PACK)


@pytest.fixture(scope="module")
def hopped(tmp_path_factory: pytest.TempPathFactory) -> shoal.Study:
    """On as many slots: there a pack is no larger than leaves each slot one, and has the order
    of its first trial.
    """
    return undisturbed(tmp_path_factory.mktemp("hops") / "s", HOPS, profile=True, **RAY)


def together(study: shoal.Study) -> int:
    """Lanes in the largest gang planned."""
    return max(
        len(gang.lanes)
        for line in study.lines()
        if isinstance(line.entry, Planned)
        for gang in line.entry.start
    )


def check_sound(folder: Path) -> shoal.Study:
    """No trial lost, and each has the weights of its own record."""
    study = shoal.load_study(folder)
    study.recipe.slow = 0.0
    assert {t.status for t in study.trials} == {"finished"} and together(study) > 1
    assert all(row["equal"] for row in study.replay() if not row["fused"])
    return study


def check_same(study: shoal.Study, alone: shoal.Study) -> None:
    """The same trials went as far, scored alike all the way, and have the same weights."""
    assert study.trials == alone.trials
    assert ranked(study.setup, study.state) == ranked(alone.setup, alone.state)
    for trial in alone.state.known:
        one, two = (s.load_model(trial).state_dict() for s in (study, alone))
        assert all(np.array_equal(one[name].numpy(), two[name].numpy()) for name in one), trial


# -- everywhere, without processes
# --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "profile", "step"),
    [
        (PACK, False, 149),
        (HOPS, True, 151),
        pytest.param(PACK, False, 37, marks=pytest.mark.slow),
        pytest.param(HOPS, True, 41, marks=pytest.mark.slow),
        pytest.param(PACK, False, 11, marks=pytest.mark.nightly),
        pytest.param(HOPS, True, 13, marks=pytest.mark.nightly),
    ],
)
def test_resume_packed_hyperband_from_prefixes_of_the_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: Any, profile: bool, step: int
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(
            Checkpoints, "delete", lambda self, name: None
        )  # earlier prefixes need states that are replaced by then
        whole = undisturbed(tmp_path / "whole", policy, profile=profile, checkpoint_every=0.3)
    journal = whole.folder.journal.read_bytes().splitlines(keepends=True)
    for cut in range(step // 2, len(journal), step):
        folder = tmp_path / f"cut{cut}"
        folder.mkdir()
        (folder / "journal.jsonl").write_bytes(b"".join(journal[:cut]))
        shutil.copytree(tmp_path / "whole" / "checkpoints", folder / "checkpoints")
        again = shoal.create_study(whole.recipe, storage=folder, load_if_exists=True)
        options = chosen(
            {"policy": policy, "profile": profile, "checkpoint_every": 0.3, **HYPERBAND}
        )
        again.optimize(progress=False, **options)
        check_same(again, whole)


# -- kill -9
# ----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_kill_9_of_a_packed_search_on_local(tmp_path: Path, packed: shoal.Study) -> None:
    endure(tmp_path / "s", PACK, ["driver"], 1, {"slow": 0.02, **DRAWN}, **HYPERBAND)
    check_same(study := check_sound(tmp_path / "s"), packed)
    assert runs(study) == 2
    check_repeated(study.lines())


@pytest.mark.slow
def test_a_search_that_waits_for_nobody_equals_its_own_record(tmp_path: Path) -> None:
    endure(tmp_path / "s", PACK, ["driver", "driver"], 2, {"slow": 0.04, **DRAWN}, **ASHA)
    study = check_sound(tmp_path / "s")
    assert len(study.trials) == 8 and runs(study) == 3
    check_repeated(study.lines())


@needs_ray
@pytest.mark.slow
@pytest.mark.parametrize(
    "kills",
    [pytest.param(["slot", "driver"], marks=pytest.mark.soak), ["both", "slot"]],
    ids="-".join,
)
def test_kill_9_of_a_packed_search_on_ray(
    tmp_path: Path, packed: shoal.Study, kills: list[str]
) -> None:
    endure(tmp_path / "s", PACK, kills, len(kills), {"slow": 0.05, **DRAWN}, **HYPERBAND, **RAY)
    check_same(study := check_sound(tmp_path / "s"), packed)
    died = sum(isinstance(line.entry, Left) and line.entry.died for line in study.lines())
    slots = kills.count("slot")
    assert died == slots and runs(study) == 1 + len(kills) - slots
    check_repeated(study.lines())


@needs_ray
@pytest.mark.nightly  # packs that stay and single trials that hop are met in each run
def test_kill_9_of_packs_that_hop_on_ray(tmp_path: Path, hopped: shoal.Study) -> None:
    endure(
        tmp_path / "s",
        HOPS,
        ["slot", "driver"],
        3,
        {"slow": 0.02, **DRAWN},
        **HYPERBAND,
        **RAY,
        profile=True,
    )
    check_same(check_sound(tmp_path / "s"), hopped)


@needs_ray
@pytest.mark.slow
def test_kill_9_of_fused_packs_on_ray(tmp_path: Path) -> None:
    """In one step, or alone while the company is gone: no trial is lost, and rounding changes
    no score by half a point.
    """
    recipe = {"dropout": 0.0, "samples": 1500, **DRAWN}
    options = {"searcher": "random", "num_samples": 8, "max_epochs": 4}
    fused = {**PACK, "most": 4, "fuse": True}
    alone = shoal.create_study(Steady(slow=0, **recipe), storage=tmp_path / "alone")
    alone.optimize(policy="fifo", progress=False, **options)
    endure(
        tmp_path / "s",
        fused,
        ["slot"],  # the driver's death is no other than that of packs that are not fused
        4,
        {"slow": 0.15, **recipe},
        **options,
        **RAY,
    )
    study = check_sound(tmp_path / "s")
    for one, other in zip(study.trials, alone.trials, strict=True):
        assert (one.id, one.config, one.epochs) == (other.id, other.config, other.epochs)
        assert abs(one.value - other.value) < 0.005, one.id


@needs_ray
@pytest.mark.soak
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("hops", [False, True])
def test_20_kills_of_packed_searches_on_ray(
    tmp_path: Path, request: pytest.FixtureRequest, hops: bool, seed: int
) -> None:
    """8 studies with 20 kills in all, of packs and of packs that hop."""
    kills = random.Random(f"{hops} {seed}").choices(["slot", "driver", "both"], k=2 + hops)
    more = {"profile": True} if hops else {}
    endure(
        tmp_path / "s",
        HOPS if hops else PACK,
        kills,
        seed,
        {"slow": 0.02, **DRAWN},
        **HYPERBAND,
        **RAY,
        **more,
    )
    check_same(check_sound(tmp_path / "s"), request.getfixturevalue("hopped" if hops else "packed"))


@needs_ray
@pytest.mark.soak
@pytest.mark.parametrize("seed", range(4))
def test_kills_of_a_search_that_waits_for_nobody(tmp_path: Path, seed: int) -> None:
    kills = random.Random(seed).choices(["slot", "driver", "both"], k=3)
    endure(tmp_path / "s", PACK, kills, seed, {"slow": 0.02, **DRAWN}, **ASHA, **RAY)
    check_sound(tmp_path / "s")
