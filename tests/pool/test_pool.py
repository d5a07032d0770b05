"""Studies that share a pool's slots: real processes, on a real Ray cluster."""

import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_kit import RECIPE, Commands, ended, until

import shoal
from shoal.core.event import Finished, Joined, Left, Submitted
from shoal.core.fold import fold
from shoal.core.state import State
from shoal.core.trial import Trial, TrialId
from shoal.options import Options
from shoal.pool import folder as pool_folder
from shoal.pool.folder import OpenPool, PoolError, PoolFolder, StudySign
from shoal.pool.member import PoolMember
from shoal.study.folder import Folder
from shoal.tools.arguments import recipe_of

pytest.importorskip("ray", reason="a pool needs Ray")
from shoal.pool.folder import SlotClaim
from shoal.pool.pool import SILENT, Attendance


@pytest.fixture
def shoal_(tmp_path: Path) -> Iterator[Commands]:
    commands = Commands(tmp_path)
    yield commands
    commands.close()


def study(start: Commands, name: str, trials: int, *more: str) -> subprocess.Popen[str]:
    values = ",".join(str((i + 1) / 10) for i in range(trials))
    return start(
        *("run", "recipe.py", "--space", f"lr=grid([{values}])", "--policy", "fifo"),
        *("--max-epochs", "40", "--storage", name, "--backend", "ray"),
        *("--address", "pool:shared", *more),
    )


def has(pool: PoolFolder, study: str) -> int:
    """How many slots the study says that it has."""
    return sum(each.slots for each in pool.signs() if each.claim.study.startswith(study))


def opened(path: Path) -> PoolFolder:
    pool = PoolFolder(path / "shared")
    until(lambda: pool.opened() is not None)
    return pool


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_studies_share_and_a_crash_of_one_leaves_the_other_untouched(
    tmp_path: Path, shoal_: Commands
) -> None:
    owner = shoal_("pool", "shared", "--slots", "3")
    pool = opened(tmp_path)
    first = study(shoal_, "first", 10)
    until(lambda: has(pool, "first") == 3)
    second = study(shoal_, "second", 4, "--priority", "2")
    until(lambda: has(pool, "second") == 2 and has(pool, "first") == 1)
    status = shoal_("status", "shared")
    assert "priority 2, has 2 slots" in ended(status)

    third = study(shoal_, "third", 1, "--widths", "4", "4", "--priority", "9")
    out, _ = third.communicate(timeout=180)
    assert third.returncode == 2 and "needs 4 slots or more" in out

    second.kill()
    second.wait()
    until(lambda: has(pool, "first") == 3)
    shoal_.hurry()
    ended(first)
    ended(shoal_("resume", "second"))
    owner.send_signal(signal.SIGTERM)
    ended(owner)

    for name in ("first", "second"):
        ended(shoal_("replay", name))  # it fails if any weight differs
        found = shoal.load_study(str(tmp_path / name))
        assert all(trial.status == "finished" for trial in found.trials)
    events = [line.entry for line in Folder(tmp_path / "first").lines()]
    assert any(isinstance(event, Joined) for event in events)
    assert any(isinstance(event, Left) and not event.died for event in events)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_pool_that_closes_or_dies_loses_nothing(tmp_path: Path, shoal_: Commands) -> None:
    for number in (signal.SIGINT, signal.SIGKILL):
        owner = shoal_("pool", "shared", "--slots", "2")
        pool = opened(tmp_path)
        only = study(shoal_, "only", 4) if number == signal.SIGINT else shoal_("resume", "only")
        until(lambda: has(pool, "only") == 2)
        time.sleep(2.0)
        owner.send_signal(number)
        said, _ = only.communicate(timeout=240)
        if number == signal.SIGKILL:
            assert only.returncode in (1, 3)  # it paused, or was stopped in good order before
            assert only.returncode == 3 or "paused: ConnectionError: " in said
            assert "Traceback" not in said and "ray." not in said
        owner.wait(240)
        assert pool.opened() is None

    shoal_.hurry()
    owner = shoal_("pool", "shared", "--slots", "2", "--until-empty")
    opened(tmp_path)
    ended(shoal_("resume", "only"))
    ended(owner)
    assert ended(shoal_("replay", "only"))


def test_without_a_pool_one_clear_error(tmp_path: Path, shoal_: Commands) -> None:
    out, _ = study(shoal_, "lonely", 2).communicate(timeout=240)
    assert "there is no open pool in" in out
    assert "shoal pool" in out


def test_a_pool_that_is_about_to_open_is_awaited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A study that is run right after `shoal pool` came while the pool's Ray was starting."""
    folder = PoolFolder(tmp_path / "pool")
    folder.make()
    assert folder.awaited() is None, "nobody opens it"
    folder.begin()
    opened = OpenPool("127.0.0.1:1", 1, platform.node(), os.getpid())
    monkeypatch.setattr(pool_folder, "sleep", lambda seconds: folder.open(opened))
    with pytest.warns(UserWarning, match="is starting: waiting for it"):
        assert folder.awaited() == opened
    folder.close()
    assert folder.awaited() is None

    gone = subprocess.Popen([sys.executable, "-c", ""])
    folder.begin()
    about = (folder.path / "opening.json").read_text()
    about = about.replace(str(os.getpid()), str(gone.pid))
    (folder.path / "opening.json").write_text(about)
    gone.wait()
    assert folder.awaited() is None, "it was killed while Ray started"


def test_the_address_of_a_pool_is_good_in_every_folder(tmp_path: Path) -> None:
    found = Options.of(backend="ray", address="pool:shared").address
    assert found == f"pool:{Path('shared').absolute()}"
    assert Options.of(backend="ray", address="auto").address == "auto"


def test_signs_of_processes_that_are_gone_are_removed(tmp_path: Path) -> None:
    pool = PoolFolder(tmp_path)
    pool.make()
    ended_one = subprocess.Popen([sys.executable, "-c", ""])
    ended_one.wait()
    for name, pid in (("here", os.getpid()), ("gone", ended_one.pid)):
        pool.say(StudySign(SlotClaim(name), name, 1, platform.node(), pid, 0))
    pool.bury()
    assert [sign.claim.study for sign in pool.signs()] == ["here"]


def test_a_study_whose_trials_need_more_slots_than_the_pool_has_ends_with_one_error(
    tmp_path: Path,
) -> None:
    pool = PoolFolder(tmp_path)
    pool.make()
    narrow, wide = (Trial(TrialId(f"t{width}"), 10.0, {}, (width, 4)) for width in (2, 3))
    said = [Submitted(narrow), Submitted(wide)]
    state = fold(State(), said)
    for slots in (2, None):
        pool.open(OpenPool("a", 1, platform.node(), os.getpid(), slots=slots))
        member = PoolMember(pool, tmp_path, None, 1, State())
        member(0.0, tuple(said), state)
        over = [Finished(narrow.id)]
        if slots is None:
            member(1.0, tuple(over), fold(state, over))
            continue
        with pytest.raises(PoolError, match="needs 3 slots or more, and the pool in"):
            member(1.0, tuple(over), fold(state, over))
        with pytest.raises(PoolError, match="has 2: give smaller widths="):
            PoolMember(pool, tmp_path, None, 1, fold(state, over)).wait()


def test_without_trials_a_study_claims_by_what_its_searcher_makes(tmp_path: Path) -> None:
    pool = PoolFolder(tmp_path)
    pool.make()
    pool.open(OpenPool("a", 1, platform.node(), os.getpid(), slots=8))

    def claim() -> SlotClaim:
        (sign,) = pool.signs()
        return sign.claim

    trial = Trial(TrialId("t"), 10.0, {}, (1, 1), priority=7.0)
    said: list[Submitted] = [Submitted(trial)]
    state = fold(State(), said)
    with PoolMember(pool, tmp_path, None, 1, State(), 2.0, (3, 4)) as member:
        first = claim()
        assert (first.priority, first.least, first.most) == (2.0, 3, 5)
        member(0.0, tuple(said), state)
        until(lambda: claim().priority == 7.0)
        assert claim().least == 1
        over = [Finished(trial.id)]
        member(1.0, tuple(over), fold(state, over))
        until(lambda: claim().priority == 2.0)
        assert claim().least == 3


@pytest.mark.parametrize("asked", [{"priority": 3.0}, {"searcher": "asha"}])
def test_the_first_sign_of_a_new_study_has_its_own_priority(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: dict[str, Any]
) -> None:
    pool = PoolFolder(tmp_path / "shared")
    pool.make()
    pool.open(OpenPool("a", 1, platform.node(), os.getpid(), slots=4))
    seen: list[SlotClaim] = []
    say = PoolFolder.say

    def noted(self: PoolFolder, sign: StudySign) -> None:
        say(self, sign)
        seen.append(sign.claim)
        self.open(OpenPool("a", 1, platform.node(), os.getpid(), closing=True))

    monkeypatch.setattr(PoolFolder, "say", noted)
    (tmp_path / "recipe.py").write_text(RECIPE)
    mine = shoal.create_study(
        recipe_of(str(tmp_path / "recipe.py")),
        storage=tmp_path / "mine",
        search_space={"lr": shoal.loguniform(0.01, 0.1)},
        metric="loss",
        mode="min",
    )
    with pytest.raises(shoal.StudyError, match="closes: run again later"):
        mine.optimize(
            num_samples=2,
            max_epochs=1,
            widths=(2, 4),
            backend="ray",
            address=f"pool:{pool.path}",
            progress=False,
            **asked,
        )
    assert seen[0].priority == asked.get("priority", 1.0)
    assert (seen[0].least, seen[0].most) == (2, 5)


def test_who_is_there() -> None:
    attendance = Attendance()
    sign = StudySign(SlotClaim("a"), "a", 1, "another machine", 1, 0)
    assert attendance.hear([sign], 0.0) == [sign]
    assert attendance.hear([sign], SILENT - 1) == [sign]
    assert attendance.hear([sign], SILENT + 1) == []
