"""Checkpoints that cannot be read: the trial goes on from the one before, and that is said."""

import json
import os
import shutil
import signal
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from damage_kit import DAMAGE, Harmful, check_equal, empty, falls, flip, flip_often, pause_after
from fault_kit import Driver, Steady, kill
from typer.testing import CliRunner

import shoal
from shoal.cli import app
from shoal.core.trial import TrialId
from shoal.train.lane.checkpoints import Checkpoints, Damaged

pytestmark = pytest.mark.faults
needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="Ray is an extra")
RAY = {"backend": "ray", "slots": 2}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, shoal.Study]:
    studies = {}
    for policy in ("fifo", "hop"):
        folder = tmp_path_factory.mktemp(policy) / "s"
        studies[policy] = shoal.create_study(Steady(slow=0), storage=folder)
        studies[policy].optimize(policy=policy, checkpoint_every=0, progress=False)
    return studies


def paused(
    folder: Path, patch: pytest.MonkeyPatch, policy: str = "hop", saves: int = 15
) -> tuple[shoal.Study, dict[TrialId, str]]:
    """A study that stopped after so many states; the names of the newest ones."""
    study = shoal.create_study(Steady(slow=0), storage=folder)
    pause_after(study, saves, patch, policy=policy, checkpoint_every=0)
    names = {trial: kept.name for trial, kept in study.state.kept.items()}
    assert names
    return study, names


@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_checkpoint_is_not_used_and_the_one_before_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undisturbed: dict[str, shoal.Study], how: str
) -> None:
    study, names = paused(tmp_path / "s", monkeypatch)
    before = dict(study.state.kept)
    for name in names.values():
        DAMAGE[how](tmp_path / "s" / "checkpoints" / name)
    with pytest.warns(UserWarning, match="goes on from its former checkpoint"):
        study.optimize(policy="hop", checkpoint_every=0, progress=False)
    assert {fell.trial for fell in falls(study)} == set(names)
    assert all(fell.visits == before[fell.trial].visits - 1 for fell in falls(study))
    said = (tmp_path / "s" / "log.txt").read_text()
    assert "missing" in said if how == "missing" else "cannot be read" in said
    check_equal(study, undisturbed["hop"])


@pytest.mark.parametrize("policy", ["fifo", "hop"])
def test_without_one_before_a_trial_begins_again(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    undisturbed: dict[str, shoal.Study],
    policy: str,
) -> None:
    study, _ = paused(tmp_path / "s", monkeypatch, policy)
    for file in (tmp_path / "s" / "checkpoints").rglob("*.pt"):
        flip(file)
    with pytest.warns(UserWarning, match="goes on from its beginning"):
        study.optimize(policy=policy, checkpoint_every=0, progress=False)
    assert {fell.visits for fell in falls(study)} >= {0}
    check_equal(study, undisturbed[policy])
    shoal.load_study(tmp_path / "s").report()


def test_another_trials_checkpoint_is_not_taken_for_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undisturbed: dict[str, shoal.Study]
) -> None:
    study, names = paused(tmp_path / "s", monkeypatch)
    place = tmp_path / "s" / "checkpoints"
    one, other, *_ = names.values()
    content = (place / one).read_bytes()
    shutil.copy(place / other, place / one)
    (place / other).write_bytes(content)
    with pytest.warns(UserWarning, match="holds another state"):
        study.optimize(policy="hop", checkpoint_every=0, progress=False)
    assert len(falls(study)) == 2
    check_equal(study, undisturbed["hop"])


def test_an_older_checkpoint_under_the_name_of_the_newest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also among checkpoints that do not say their names, as those of before."""
    study, names = paused(tmp_path / "s", monkeypatch)
    trial, name = next(iter(names.items()))
    place = tmp_path / "s" / "checkpoints"
    former = study.state.former[trial].name
    state = Checkpoints(place, 1).load(former)
    shutil.copy(place / former, place / name)
    with pytest.raises(Damaged, match="holds another state"):
        Checkpoints(place, 1).load(name)
    _saved_as_before(place / name, state)
    with pytest.warns(UserWarning, match="is another one's"):
        study.optimize(policy="hop", checkpoint_every=0, progress=False)
    check_equal(study)


def _saved_as_before(file: Path, state: dict[str, Any]) -> None:
    """Without its name, as former versions did."""
    import torch

    from shoal.train.lane import tree

    torch.save(tree.to_torch(state), file)


@pytest.mark.parametrize("damage", [flip_often, empty, Path.unlink], ids=lambda f: f.__name__)
def test_damaged_packs(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    undisturbed: dict[str, shoal.Study],
    damage: Callable[[Path], None],
) -> None:
    """Small states that share files: in whatever part of them the damage is."""
    study = shoal.create_study(Steady(slow=0), storage=tmp_path / "s")
    pause_after(study, 30, monkeypatch, policy="hop", checkpoint_every=1e-9)
    study.optimize(policy="hop", timeout=0, progress=False)
    packs = sorted((tmp_path / "s" / "checkpoints").glob("pack-*.zip"))
    assert packs and study.state.trials
    damage(packs[-1])
    with pytest.warns(UserWarning, match="goes on from"):
        study.optimize(policy="hop", checkpoint_every=1e-9, progress=False)
    assert falls(study)
    check_equal(study, undisturbed["hop"])


def test_checkpoints_that_are_damaged_while_the_study_runs(
    tmp_path: Path, undisturbed: dict[str, shoal.Study]
) -> None:
    """Models at rest have no memory, so that each unit begins from a checkpoint."""
    folder = tmp_path / "s"
    study = shoal.create_study(Harmful(str(folder)), storage=folder)
    with pytest.warns(UserWarning, match="goes on from its former checkpoint"):
        study.optimize(policy="hop", checkpoint_every=0, state_memory_gb=0, progress=False)
    assert falls(study)
    check_equal(study, undisturbed["hop"])


def test_the_model_of_a_damaged_checkpoint_is_one_clear_error(
    tmp_path: Path, undisturbed: dict[str, shoal.Study]
) -> None:
    folder = tmp_path / "s"
    shutil.copytree(undisturbed["hop"].folder.path, folder)
    study = shoal.load_study(folder)
    trial = next(iter(study.state.known))
    flip(folder / "checkpoints" / study.state.kept[trial].name)
    with pytest.raises(shoal.StudyError, match=r"was changed.*bring it back from a copy"):
        study.load_model(trial)
    assert study.load_model(study.trials[-1]) is not None


def test_repair_names_damaged_checkpoints_and_leaves_a_sound_journal_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undisturbed: dict[str, shoal.Study]
) -> None:
    study, names = paused(tmp_path / "s", monkeypatch)
    (one, first), (other, second), *_ = names.items()
    flip(tmp_path / "s" / "checkpoints" / first)
    (tmp_path / "s" / "checkpoints" / second).unlink()
    said = CliRunner().invoke(app, ["repair", str(tmp_path / "s"), "--json"])
    found = json.loads(said.output)
    assert found["copy"] is None and found["cut"] == 0
    assert set(found["damaged_checkpoints"]) == {one, other}
    assert "was changed" in found["damaged_checkpoints"][one]
    assert "missing" in found["damaged_checkpoints"][other]
    with pytest.warns(UserWarning, match="goes on from its former checkpoint"):
        study.optimize(policy="hop", checkpoint_every=0, progress=False)
    check_equal(study, undisturbed["hop"])


def test_a_copy_of_a_damaged_checkpoint_fails_and_says_why(
    tmp_path: Path, undisturbed: dict[str, shoal.Study]
) -> None:
    """It did not begin from nothing, so that it cannot begin again."""
    folder = tmp_path / "s"
    shutil.copytree(undisturbed["hop"].folder.path, folder)
    study = shoal.load_study(folder)
    trial = next(iter(study.state.known))
    flip(folder / "checkpoints" / study.state.kept[trial].name)
    made = study.clone(trial, {"width": study.state.known[trial].config["width"]}, max_epochs=7)
    study.resume(progress=False)
    ends = {each.id: each.status for each in study.trials}
    assert ends.pop(made).startswith("failed: checkpoint")
    assert set(ends.values()) == {"finished"}


def test_a_place_of_checkpoints_that_is_gone_pauses_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undisturbed: dict[str, shoal.Study]
) -> None:
    """As if a disk was not mounted: nobody begins again because of that."""
    study, _ = paused(tmp_path / "s", monkeypatch)
    place = tmp_path / "s" / "checkpoints"
    place.rename(tmp_path / "away")
    with pytest.raises(shoal.StudyPaused, match="place of the study's checkpoints is gone"):
        study.optimize(policy="hop", checkpoint_every=0, progress=False)
    shutil.rmtree(place, ignore_errors=True)
    (tmp_path / "away").rename(place)
    study.optimize(policy="hop", checkpoint_every=0, progress=False)
    assert not falls(study)
    check_equal(study, undisturbed["hop"])


def test_checkpoints_at_a_url_that_are_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fsspec

    url = "memory://shoal-faults-gone"
    study = shoal.create_study(Steady(slow=0), storage=tmp_path / "s", checkpoints=url)
    pause_after(study, 15, monkeypatch, policy="hop", checkpoint_every=0)
    memory = fsspec.filesystem("memory")
    memory.rm("/shoal-faults-gone", recursive=True)
    with pytest.raises(shoal.StudyPaused, match="place of the study's checkpoints is gone"):
        study.optimize(policy="hop", checkpoint_every=0, progress=False)
    Checkpoints(url, 1).mark()  # the user says that they are lost
    with pytest.warns(UserWarning, match="goes on from its beginning"):
        study.optimize(policy="hop", checkpoint_every=0, progress=False)
    check_equal(study)
    memory.rm("/shoal-faults-gone", recursive=True)


def test_a_damaged_mark_of_the_newest_run_is_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study, _ = paused(tmp_path / "s", monkeypatch)
    (tmp_path / "s" / "checkpoints" / "RUN").write_bytes(b"\0\0")
    study.optimize(policy="hop", checkpoint_every=0, progress=False)
    assert (tmp_path / "s" / "checkpoints" / "RUN").read_text() == "2"


# -- on ray --------------------------------------------------------------------------------------


@needs_ray
@pytest.mark.slow
def test_damaged_checkpoints_on_ray(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undisturbed: dict[str, shoal.Study]
) -> None:
    """At the begin of a run of trials that hop; the run before was a local one."""
    folder = tmp_path / "s"
    _, names = paused(folder, monkeypatch)
    check_damaged(folder, names, {"slow": 0.0}, policy="hop", checkpoint_every=0, **RAY)
    check_equal(shoal.load_study(folder), undisturbed["hop"])


@needs_ray
@pytest.mark.slow
def test_damaged_checkpoints_of_wide_lanes_on_ray(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    options: dict[str, Any] = {"policy": "waterfill", "widths": [2, 2], **RAY}
    recipe = {"dropout": 0.0}  # slots draw numbers of their own
    with Driver(folder, recipe, checkpoint_every=0, **options) as first:
        first.until(lambda: first.visits() >= 12, "some visits")
        first.kill()
    state = shoal.load_study(folder).state
    newest = {trial: kept.name for trial, kept in state.kept.items() if trial in state.trials}
    check_damaged(folder, newest)
    check_equal(shoal.load_study(folder))


def check_damaged(folder: Path, newest: dict[TrialId, str], *recipe: Any, **options: Any) -> None:
    """Damage these checkpoints; the next run goes on from former ones."""
    assert newest
    for name in newest.values():
        flip(folder / "checkpoints" / name)
    with Driver(folder, *recipe, **options) as run:
        code, said = run.end()
        assert code == 0 and "goes on from" in said, said
        run.vanish()
    assert {fell.trial for fell in falls(shoal.load_study(folder))} == set(newest)


@needs_ray
@pytest.mark.slow
def test_a_checkpoint_that_is_damaged_while_the_study_runs_on_ray(
    tmp_path: Path, undisturbed: dict[str, shoal.Study]
) -> None:
    """A slot dies, and what it had in memory must come from checkpoints, which are damaged."""
    folder = tmp_path / "s"
    with Driver(folder, {}, policy="fifo", checkpoint_every=0, **RAY) as driver:
        driver.until(lambda: driver.visits() >= 10 and driver.slots(), "some visits")
        slots = driver.slots()
        for slot in slots:  # what they make now would come from sound checkpoints
            os.kill(slot, signal.SIGSTOP)
        written = -1
        while written != (written := (folder / "journal.jsonl").stat().st_size):
            time.sleep(1.0)  # what they have told is being noted
        driver.pause()
        state = shoal.load_study(folder).state
        for trial, kept in state.kept.items():
            if trial in state.trials:
                flip(folder / "checkpoints" / kept.name)
        for slot in slots:
            kill(slot)
        driver.go_on()
        code, said = driver.end()
        assert code == 0, said
    study = shoal.load_study(folder)
    assert falls(study)
    check_equal(study, undisturbed["fifo"])
