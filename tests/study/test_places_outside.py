"""Places outside of a study's folder count under the user's mark, or where the user names them."""

import os
from pathlib import Path
from typing import Any

import pytest
from stranger_kit import forge
from typer.testing import CliRunner

import shoal
from shoal.cli import app


def forged(folder: Path, **head: Any) -> None:
    """The study's journal says this of its newest run, as whoever made the folder can have it."""
    for name, value in head.pop("options", {}).items():
        forge(folder, ("head", "options", name), value)
    for name, value in head.items():
        forge(folder, ("head", name), value)


def files_of(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.fixture
def trained(tmp_path: Path, blobs: type[Any]) -> shoal.Study:
    study = shoal.create_study(blobs(), storage=tmp_path / "s")
    study.optimize(policy="fifo", num_samples=1, progress=False)
    return study


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """Somebody's weights: of another tool, and of another study."""
    folder = tmp_path / "victim"
    for name in ("a.pt", "deep/b.pt", "t000/000009-1.pt", "x.part", "t000/best.pt"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    return folder


def test_a_forged_place_of_checkpoints_is_refused_and_nothing_there_is_touched(
    trained: shoal.Study, victim: Path, blobs: type[Any]
) -> None:
    folder, before = trained.folder.path, files_of(victim)
    forged(folder, checkpoints=str(victim))
    for act in (
        lambda: shoal.load_study(folder).resume(progress=False),
        lambda: shoal.load_study(folder).best_model(),
        lambda: shoal.load_study(folder).replay(),
        lambda: shoal.create_study(blobs(), storage=folder, load_if_exists=True).optimize(
            num_samples=3, progress=False
        ),
    ):
        with pytest.raises(shoal.StudyError, match="not known as your own choice"):
            act()
    for command in ("resume", "replay", "repair"):
        done = CliRunner().invoke(app, [command, str(folder)])
        assert done.exit_code == 2 and "Traceback" not in done.output
        assert len(done.stderr.splitlines()) == 1
    assert files_of(victim) == before
    assert len(shoal.load_study(folder).trials) == 4, "results need no weights"


def test_in_a_place_that_the_user_names_only_this_studys_checkpoints_are_deleted(
    trained: shoal.Study, victim: Path
) -> None:
    folder, before = trained.folder.path, files_of(victim)
    for name, content in files_of(folder / "checkpoints").items():
        (victim / name).parent.mkdir(exist_ok=True)
        (victim / name).write_bytes(content)
    (victim / "t000" / "000099-1.pt").write_text("this study's, and no entry names it")
    (victim / "other").mkdir()
    (victim / "other" / "000001-1.pt").write_text("another study's")
    study = shoal.load_study(folder, checkpoints=str(victim))
    study.extend(study.trials[0].id, 5)
    study.resume(progress=False)
    after = files_of(victim)
    assert "t000/000099-1.pt" not in after and "other/000001-1.pt" in after
    for name in ("a.pt", "deep/b.pt", "x.part", "t000/best.pt"):
        assert after[name] == before[name]


@pytest.mark.parametrize(
    ("said", "named"),
    [
        ({"options": {"backend": "ray", "address": "203.0.113.7:6379"}}, "address"),
        ({"loggers": ["csv:/somewhere"]}, "loggers"),
        ({"loggers": ["wandb:online"]}, "loggers"),
        ({"profile": "/etc/passwd"}, "profile"),
        ({"checkpoints": "s3://bucket/x"}, "checkpoints"),
    ],
    ids=lambda each: str(each)[:40],
)
def test_other_places_of_a_forged_head_are_refused(
    trained: shoal.Study, said: dict[str, Any], named: str
) -> None:
    forged(trained.folder.path, **said)
    done = CliRunner().invoke(app, ["resume", str(trained.folder.path)])
    assert done.exit_code == 2, done.output
    assert f"names {named} " in done.stderr and "own choice" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_ones_own_places_are_remembered(tmp_path: Path, blobs: type[Any]) -> None:
    study = shoal.create_study(
        blobs(), storage=tmp_path / "s", checkpoints=str(tmp_path / "weights")
    )
    loggers = [f"csv:{tmp_path / 'scores'}"]
    study.optimize(policy="fifo", num_samples=1, loggers=loggers, progress=False)
    again = shoal.load_study(tmp_path / "s")
    again.resume(progress=False)
    assert again.folder.checkpoints == str((tmp_path / "weights").resolve())

    # In another folder the mark is none: a head may have been copied from another study.
    os.rename(tmp_path / "s", tmp_path / "moved")
    with pytest.raises(shoal.StudyError, match="or the folder was moved"):
        shoal.load_study(tmp_path / "moved").best_model()
    moved = shoal.load_study(tmp_path / "moved", checkpoints=str(tmp_path / "weights"))
    moved.best_model()
    with pytest.raises(shoal.StudyError, match="names loggers"):
        moved.resume(progress=False)
    moved.resume(progress=False, loggers=())
    shoal.load_study(tmp_path / "moved").resume(progress=False)


@pytest.mark.parametrize("name", ["a\nb", "a\x1b[2Jb"])
def test_a_study_named_so_is_refused(tmp_path: Path, blobs: Any, name: str) -> None:
    with pytest.raises(shoal.StudyError, match="named"):
        shoal.create_study(blobs(), storage=tmp_path / name).optimize(progress=False)
