"""Each form of code and data on slots of Ray: as in one process, bit for bit, also where a slot is
killed, and where trials hop.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import ray_forms_kit as kit
from door_kit import differences
from one_cluster import KILL
from ray_forms_kit import Files, Points, Sentences

import shoal
from shoal.core.event import Fed, Fell, Left, Planned
from shoal.core.trial import TrialId
from shoal.study.folder import Folder
from shoal.train.lane.checkpoints import Checkpoints

pytestmark = pytest.mark.filterwarnings("ignore:feeders=1 has no")
EACH: dict[str, Any] = {"progress": False, "checkpoint_every": 0, "fuse": False}
HALVES = {"validate_every": 0.5}
FORMS: dict[str, Callable[[Path], Any]] = {
    "collate, buckets, augmented": lambda _: kit.Noisy(kit.bucketed),
    "IterableDataset": lambda _: Points(kit.iterable),
    "DataLoader": lambda _: Points(kit.two_loaders),
    "DataLoader, weighted": lambda _: Points(kit.weighing_loader),
    "DataLoader, own sampler": lambda _: Points(kit.ordering_loader),
    "folds": lambda _: Points(kit.folded, search_space={"fold": shoal.grid(range(2)), "lr": 0.01}),
    "carried state": lambda _: kit.Carried(),
    "two optimizers": lambda _: kit.Rivals(kit.arrays),
    "closure": lambda _: kit.Closure(kit.balanced),
    "metrics": lambda _: kit.Whole(kit.in_order),
    "csv": lambda path: Points(Files(path).csv),
    "arrow": lambda path: Points(Files(path).arrow),
    "images": lambda path: Points(Files(path).images, inputs=48),
    "tar": lambda path: Points(Files(path).tar, inputs=48),
    "mapped arrays": lambda path: Points(Files(path).mapped),
    "files": lambda path: Points(Files(path).files),
    "lightning": lambda _: kit.lightning_recipe(),
    "huggingface": lambda _: kit.huggingface_recipe(),
    "scikit-learn": lambda _: kit.Linear(),
    "Keras": lambda _: kit.keras_recipe(),
}
# Feeders read, prepare or augment for all slots of the node; the others say that they cannot.
FED = {
    *("collate, buckets, augmented", "IterableDataset", "DataLoader"),
    *("DataLoader, weighted", "DataLoader, own sampler", "arrow", "images", "tar"),
    *("files", "lightning", "huggingface"),
}
ONE_SHARD = {"DataLoader, weighted", "DataLoader, own sampler"}
# Looked at with each change; the others go the same ways.
OFTEN = {"DataLoader", "carried state", "csv"}
# Points out of files: trials hop with them as with those of other forms.
FILES = {"csv", "arrow", "images", "tar", "mapped arrays", "files"}


@pytest.fixture
def kill(shared_ray: None) -> Path:
    """A file that tells a slot to die, if it is there."""
    return Path(os.environ[KILL])


def train(recipe: Any, folder: Path, policy: str, **options: Any) -> Path:
    study = shoal.create_study(recipe, storage=folder, seed=5)
    study.optimize(policy=policy, **EACH, **options)
    assert [trial.status for trial in study.trials] == ["finished"] * 2
    return folder


def ended(folder: Path) -> dict[str, Any]:
    """By configuration, the scores and the last state of each trial."""
    study = shoal.load_study(folder)
    vault = Checkpoints(folder / "checkpoints", study.state.run)
    found = {}
    for trial in study.trials:
        kept = study.state.kept[TrialId(trial.id)]
        scores = [(epoch, dict(values)) for epoch, values in trial.scores]
        assert scores, "each form has scores"
        found[repr(trial.config)] = {"scores": scores, "state": vault.load(kept.name)}
    return found


def entries(folder: Path, kind: type) -> list[Any]:
    lines = Folder(folder).lines()
    return [line.entry for line in lines if isinstance(line.entry, kind)]


def check_equal(one: Path, other: Path) -> None:
    found = list(differences(ended(one), ended(other)))
    assert not found, "\n".join(found[:20])


def moved(folder: Path) -> bool:
    """Whether a trial was on several slots."""
    places: dict[Any, set[Any]] = {}
    for entry in entries(folder, Planned):
        for gang in entry.start:
            for trial in gang.trials:
                places.setdefault(trial, set()).update(gang.slots)
    return any(len(slots) > 1 for slots in places.values())


@pytest.mark.parametrize(
    "form",
    [
        pytest.param(each, marks=pytest.mark.slow if each in OFTEN else pytest.mark.nightly)
        for each in FORMS
    ],
)
def test_it_trains_as_in_one_process(form: str, kill: Path, tmp_path: Path) -> None:
    recipe = FORMS[form](tmp_path)
    more = HALVES if form == "metrics" else {}
    here = train(recipe, tmp_path / "here", "fifo", workers=0, **more)

    kill.write_text(str(tmp_path / "killed" / "checkpoints"))
    feeders = 1 if form in FILES else 0
    slot = {"backend": "ray", "slots": 1, "feeders": feeders}
    killed = train(recipe, tmp_path / "killed", "fifo", **slot, **more)
    assert not kill.exists() and entries(killed, Left) and entries(killed, Fell)
    check_equal(here, killed)
    if form in FILES:
        assert bool(entries(killed, Fed)) == (form in FED)
        return

    policy = "fifo" if form in ONE_SHARD else "hop"
    slots = {"backend": "ray", "slots": 2, "feeders": 1}
    beside = train(recipe, tmp_path / "beside", policy, **slots, **more)
    assert bool(entries(beside, Fed)) == (form in FED)
    if form in ONE_SHARD:
        check_equal(here, beside)
    else:
        assert moved(beside)
        rows = shoal.load_study(beside).replay()
        assert len(rows) == 2 and all(row["equal"] for row in rows), rows


WIDE: dict[str, Callable[[], Any]] = {
    "collate": lambda: Sentences(kit.ragged, drop=0.0),
    "lightning": lambda: kit.lightning_recipe(drop=0.0),
}


@pytest.mark.usefixtures("shared_ray")
@pytest.mark.parametrize(
    "form",
    [
        pytest.param("collate", marks=pytest.mark.slow),
        pytest.param("lightning", marks=pytest.mark.nightly),  # each slot imports it for long
    ],
)
def test_a_trial_may_have_several_slots(form: str, tmp_path: Path) -> None:
    recipe = WIDE[form]()
    slots = {"backend": "ray", "slots": 2, "widths": (2, 2)}
    wide = train(recipe, tmp_path / "wide", "doubling", **slots)
    gangs = [gang for entry in entries(wide, Planned) for gang in entry.start]
    assert max(len(gang.slots) for gang in gangs) == 2
    rows = shoal.load_study(wide).replay()
    assert len(rows) == 2
    for row in rows:
        if form == "lightning":  # it counts samples in an attribute, which each slot does
            assert row["verdict"] == "not comparable", rows
            assert "adapted.attributes.seen is what the samples of one" in row["why"]
        else:
            assert row["verdict"] in ("equal", "agrees"), rows
