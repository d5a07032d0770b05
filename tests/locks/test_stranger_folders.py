"""Every command on a folder that a stranger has made: it answers, or refuses with one line.

Nothing outside of the folder changes, no code of the stranger runs, nothing waits.
"""

import json
import os
import platform
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from stranger_kit import (
    COMMANDS,
    LIMIT,
    OWN,
    STRANGER,
    TRAPS,
    VICTIM,
    Answer,
    Typist,
    digest,
    fields_of,
    forge,
    forge_entries,
    give,
    hostile,
    lay,
    make_home,
    names_of,
)

import shoal
from shoal.study.code.recipe_file import load_module, recipe_class

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs links and FIFOs")


@dataclass
class Stage:
    """A home, a stranger's sound study, and somebody who types."""

    place: Path
    home: Path
    sound: Path
    typist: Typist

    def folder(self) -> Path:
        """A copy of the study where the commands look for it."""
        copy = self.place / "stranger" / "s"
        if os.path.lexists(copy):
            shutil.rmtree(copy)
        shutil.copytree(self.sound, copy)
        return copy

    def check(self, command: str, folder: Path, case: str) -> Answer:
        """Type the command; then all around is as before, and no code ran."""
        give(folder, STRANGER, 0o666)
        self.typist.ready()
        before = digest(self.place, folder)
        answer = self.typist.type(COMMANDS[command], folder)
        about = f"{command} on {case}: {answer}"
        for name in ("out.html", "profile.toml"):
            (self.home / name).unlink(missing_ok=True)
        assert digest(self.place, folder) == before, f"changed what is outside: {about}"
        assert not list(self.place.rglob("code-ran")), f"ran code: {about}"
        assert answer.code is not None and answer.seconds < LIMIT, about
        assert answer.code in (0, 1, 2, 3), about
        assert "Traceback" not in answer.err + answer.out, about
        if answer.code == 2:
            errors = [x for x in answer.err.splitlines() if not x.startswith("warning: ")]
            assert len(errors) == 1 and errors[0].startswith("error: "), about
        return answer


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    place = Path(tempfile.mkdtemp(prefix="shoal-stranger-"))
    place.chmod(0o755)
    try:
        home = make_home(place)
        code = place / "theirs.py"
        sound = place / "sound"
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("XDG_STATE_HOME", str(place / "key of the stranger"))
            code.write_text(OWN)
            recipe = recipe_class(load_module(code))()
            study = shoal.create_study(recipe, storage=sound)
            study.optimize(policy="fifo", progress=False, loggers=["csv"])
        for file in (sound / "recipe").rglob("*.py"):
            file.write_text(OWN.replace("MARK = None", f"MARK = {str(place / 'code-ran')!r}"))
        (sound / "trials" / "t000").mkdir(parents=True)
        (sound / "trials" / "t000" / "error.txt").write_text("Traceback")
        give(home, VICTIM)
        (place / "stranger").mkdir()
        give(place / "stranger", STRANGER, 0o666)
        typist = Typist(home, sound)
        try:
            yield Stage(place, home, sound, typist)
        finally:
            typist.close()
    finally:
        shutil.rmtree(place)


@pytest.mark.slow
def test_a_sound_folder_of_a_stranger_is_read_and_gone_on_with(stage: Stage) -> None:
    """What the commands do where nothing is wrong, so that the tests below try something."""
    codes = {
        command: stage.check(command, stage.folder(), "a sound folder").code for command in COMMANDS
    }
    refused = {name for name, code in codes.items() if code == 2}
    assert {"resume", "replay", "profile"} <= refused, "their recipe is not loaded"
    assert {"harvest", "harvest DIR", "pool"} <= refused, "there is neither Slurm nor Ray"
    for command in ("status", "report", "report --out", "repair", "run", "extend", "ui"):
        assert codes[command] == 0, command


SAMPLE = [
    ("report", "report.html", "link"),
    ("report", "report.html", "dangling link"),
    ("report", "report.html.part", "link"),
    ("run", "log.txt", "link"),
    ("run", "log.txt", "hard link"),
    ("run", "log.txt", "FIFO"),
    ("run", ".writable", "link"),
    ("run", "study.lock", "link"),
    ("run", "holder.json", "FIFO"),
    ("run", "running", "dangling link"),
    ("run", "checkpoints", "link to a folder"),
    ("run", "csv", "link to a folder"),
    ("run", "csv/scores.csv", "link"),
    ("run", "trials", "link to a folder"),
    ("run", "recipe", "link to a folder"),
    ("run --optuna-log", "optuna.log", "link"),
    ("stop", "inbox", "link to a folder"),
    ("stop", "inbox/lock", "link"),
    ("extend", "journal.jsonl", "link"),
    ("status", "journal.jsonl", "FIFO"),
    ("status", "journal.jsonl", "huge"),
    ("status", "slots.json", "device"),
    ("repair", "checkpoints/RUN", "huge"),
    ("resume", "recipe/recipe.json", "FIFO"),
    ("ui", "log.txt", "link"),
    ("ui", "log.txt", "FIFO"),
    ("ui", "trials/t000/error.txt", "link"),
    ("ui", "holder.json", "device"),
    ("harvest", "harvest", "link to a folder"),
    ("harvest", "harvest/harvest.lock", "link"),
    ("pool", "pool.lock", "dangling link"),
    ("pool", "studies", "link to a folder"),
    ("pool", "opening.json", "link"),
]


HERE = platform.node()
SMALL: dict[str, dict[str, Any]] = {
    "holder.json": {
        "pid": 2**31 - 1,
        "host": HERE,
        "since": "2026-01-01T00:00:00+00:00",
        "key": "a",
        "beat": 1,
    },
    "slots.json": {
        "written": 1.0,
        "slots": [
            {"slot": "a", "node": "b", "kind": "cpu", "trials": [], "shards": [], "silent": 1}
        ],
        "asked": 1,
        "room": 1,
    },
}


@pytest.mark.parametrize(("command", "name", "trap"), SAMPLE, ids=str)
def test_some_commands_on_some_traps(stage: Stage, command: str, name: str, trap: str) -> None:
    folder = stage.folder()
    lay(trap, folder / name, stage.home)
    stage.check(command, folder, f"{name} as {trap}")


@pytest.mark.parametrize("what", ["a place", "up", "a URL", "an address"])
def test_some_commands_on_forged_heads(stage: Stage, what: str) -> None:
    for field in (("head", "checkpoints"), ("head", "options", "address")):
        for command in ("run", "repair", "resume"):
            folder = stage.folder()
            forge(folder, field, hostile(stage.home)[what])
            stage.check(command, folder, f"{field} is {what}")


FORGED = [
    ("Submitted", ("trial", "shards"), ["x"], "trains shard 'x', and the data has s000 only"),
    ("Submitted", ("trial", "shards"), ["s000", "s001"], "trains shard 's001'"),
    *(
        ("Remembered", ("memory",), value, "searcher Grid cannot go on with what")
        for value in ("x", [], {"a": 1}, [2])
    ),
]


@pytest.mark.parametrize(("kind", "path", "value", "said"), FORGED, ids=str)
def test_what_a_run_cannot_go_on_with_is_said_before_work(
    stage: Stage, kind: str, path: tuple[str, ...], value: Any, said: str
) -> None:
    folder = stage.folder()
    forge_entries(folder, kind, path, value, most=6)
    for file in (folder / "checkpoints").rglob("*.pt"):
        file.unlink()
    answer = stage.check("run", folder, f"{kind} {path} is {value}")
    assert answer.code == 2 and said in answer.err
    assert not list((folder / "checkpoints").rglob("*.pt")), "nothing was trained"


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("each", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_small_files_that_say_anything(stage: Stage, each: bool, name: str) -> None:
    """Each field is missing, or has a value that it may not have. `each`: for each command, not by
    turns.
    """
    commands = ("status", "stop", "repair")
    sound = SMALL[name]
    values = (None, [1], 10**30, -1e308, 1e308, "a\n\x1b[2J", {"a": "b"})
    said = [{k: v for k, v in sound.items() if k != field} for field in sound]
    said += [{**sound, field: value} for field in sound for value in values]
    for number, about in enumerate(said):
        for command in commands if each else (commands[number % len(commands)],):
            folder = stage.folder()
            if name == "slots.json":  # its run goes on
                lines = (folder / "journal.jsonl").read_text().splitlines(True)
                (folder / "journal.jsonl").write_text("".join(lines[:8]))
            (folder / name).write_text(json.dumps(about))
            answer = stage.check(command, folder, f"{name} as {about}")
            assert "\x1b" not in answer.out + answer.err


@pytest.mark.nightly
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("trap", TRAPS)
def test_every_command_on_every_trap(stage: Stage, trap: str) -> None:
    wrong = []
    for name in names_of(stage.sound):
        for command in COMMANDS.keys() - {"doctor"}:  # it reads nothing there, and takes seconds
            folder = stage.folder()
            lay(trap, folder / name, stage.home)
            try:
                stage.check(command, folder, f"{name} as {trap}")
            except AssertionError as error:
                wrong.append(str(error)[:600])
    assert not wrong, "\n".join([f"{len(wrong)} are wrong:", *wrong[:30]])


@pytest.mark.nightly
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("command", ["status", "report", "resume", "repair", "run", "add"])
def test_commands_on_every_forged_head(stage: Stage, command: str) -> None:
    wrong = []
    for field in fields_of(stage.sound):
        for what, value in hostile(stage.home).items():
            folder = stage.folder()
            forge(folder, field, value)
            try:
                stage.check(command, folder, f"{'.'.join(field)} is {what}")
            except AssertionError as error:
                wrong.append(str(error)[:600])
    assert not wrong, "\n".join([f"{len(wrong)} are wrong:", *wrong[:30]])
