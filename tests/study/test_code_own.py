"""A study's recipe is code: it runs only if this user stored it, or said that it is trusted."""

import json
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import preloaded
import pytest
from test_study import same_weights
from typer.testing import CliRunner

import shoal
from shoal import reporting
from shoal.cli import app
from shoal.core.errors import StudyError
from shoal.core.event import Opened
from shoal.engine.journal import Journal, read
from shoal.study.code.mark import key_file
from shoal.study.code.recipe_store import NotOwn

NET = """
import helper
import numpy as np
import torch
from torch import nn

import shoal


class Net(shoal.Recipe):
    search_space = {"width": shoal.grid([helper.WIDTH, 5]), "lr": 0.01}
    metric, mode, max_epochs = "loss", "min", 2

    def data(self):
        x = np.random.default_rng(0).normal(size=(40, 2)).astype("float32")
        y = (x.sum(1) > 0).astype("int64")
        return shoal.Data.arrays(x, y, shards=2, validation=0.25)

    def configure_model(self, config):
        width = config["width"]
        return nn.Sequential(nn.Linear(2, width), nn.ReLU(), nn.Linear(width, 2))

    def configure_optimizers(self, model, config):
        return torch.optim.SGD(model.parameters(), lr=config["lr"])

    def training_step(self, model, batch):
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    def validation_step(self, model, batch):
        logits = model(batch[0])
        return {"loss": nn.functional.cross_entropy(logits, batch[1], reduction="none")}
"""


class Bomb:
    """Whoever unpickles it leaves a file."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.mark}",)


@pytest.fixture
def file(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "helper.py").write_text("WIDTH = 4\n")
    path = tmp_path / "code" / "net.py"
    path.write_text(NET)
    yield path
    for name in ("helper", "shoal_recipe_net"):
        sys.modules.pop(name, None)
    sys.path[:] = [each for each in sys.path if each != str(path.parent)]


@pytest.fixture
def study(tmp_path: Path, file: Path) -> Path:
    """A study of the file's recipe."""
    folder = tmp_path / "study"
    ran = CliRunner().invoke(app, ["run", str(file), "--storage", str(folder)])
    assert ran.exit_code == 0, ran.output
    return folder


@pytest.fixture
def another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """From now on this is a user who has another key; returns a file that must not appear."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "HACKED"


def manifest(study: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((study / "recipe" / "recipe.json").read_text())
    return found


def rewritten(study: Path, whole: dict[str, Any]) -> None:
    (study / "recipe" / "recipe.json").write_text(json.dumps(whole))


def stored_net(study: Path) -> Path:
    (found,) = (study / "recipe").glob("*/net.py")
    return found


# -- attacks -----------------------------------------------------------------------------------


def former_pickle(study: Path, mark: Path) -> None:
    """A recipe as earlier versions of Shoal stored it."""
    shutil.rmtree(study / "recipe")
    (study / "recipe.pkl").write_bytes(pickle.dumps(Bomb(mark)))


def marked_pickle(study: Path, mark: Path) -> None:
    """A pickle, with marks that an attacker made up."""
    whole = manifest(study)
    (study / "recipe" / "a.pkl").write_bytes(pickle.dumps(Bomb(mark)))
    whole["recipe"] |= {"kind": "pickle", "pickle": "a.pkl", "sha256": "0"}
    rewritten(study, whole)


def source(study: Path, mark: Path) -> None:
    """Another text, with the right hash of it."""
    import hashlib

    text = f"import os\nos.system('touch {mark}')\n".encode()
    stored_net(study).write_bytes(text)
    whole = manifest(study)
    for module in whole["recipe"]["modules"]:
        module["sha256"] = hashlib.sha256(text).hexdigest()
    rewritten(study, whole)


def called(study: Path, mark: Path) -> None:
    """A form that calls a function of a foreign module."""
    whole = manifest(study)
    system = {"=": "name", "of": "os", "name": "system"}
    whole["recipe"]["recipe"] = {
        "=": "made",
        "of": system,
        "arguments": [f"touch {mark}"],
        "state": None,
        "items": [],
    }
    rewritten(study, whole)


def foreign_module(study: Path, mark: Path) -> None:
    """A recipe of a module beside the study."""
    (study.parent / "evil.py").write_text(f"import os\nos.system('touch {mark}')\n")
    whole = manifest(study)
    whole["recipe"]["recipe"]["of"] = {"=": "name", "of": "evil", "name": "Net"}
    whole["recipe"]["folders"] = [str(study.parent)]
    rewritten(study, whole)


def file_elsewhere(study: Path, mark: Path) -> None:
    """The journal and the manifest name another file as that of the code, which has changed."""
    evil = study.parent / "net.py"
    evil.write_text(f"import os\nos.system('touch {mark}')\n")
    whole = manifest(study)
    old = next(m["file"] for m in whole["recipe"]["modules"] if "net" in m["name"])
    rewritten(study, json.loads(json.dumps(whole).replace(old, str(evil))))
    path = study / "journal.jsonl"
    lines = list(read(path))
    path.unlink()
    journal = Journal(path)
    for time, entry in lines:
        if isinstance(entry, Opened):
            head = json.loads(json.dumps(dict(entry.head)).replace(old, str(evil)))
            entry = replace(entry, head=head)
        journal.append(time, entry)
    journal.close()
    assert str(evil) in path.read_text()


def outside(study: Path, mark: Path) -> None:
    """A path that leads out of the folder."""
    evil = study.parent / "net.py"
    evil.write_text(f"import os\nos.system('touch {mark}')\n")
    whole = manifest(study)
    for module in whole["recipe"]["modules"]:
        module["path"] = "../../net.py"
    rewritten(study, whole)


ATTACKS = (former_pickle, marked_pickle, source, called, foreign_module, file_elsewhere, outside)
COMMANDS = (
    ["resume", "DIR"],
    ["replay", "DIR"],
    ["add", "DIR", "width=5", "lr=0.1", "--max-epochs", "1"],
    ["profile", "DIR"],
    ["harvest", "DIR", "--slurm", "--partition", "scavenger"],
)
READING = (
    ["status", "DIR"],
    ["status", "DIR", "--json"],
    ["report", "DIR"],
    ["stop", "DIR", "t000"],
    ["extend", "DIR", "t000", "--max-epochs", "9"],
)


@pytest.mark.parametrize("attack", ATTACKS)
def test_nothing_of_a_foreign_study_runs(study: Path, another_user: Path, attack: Any) -> None:
    values = [trial.value for trial in shoal.load_study(study).trials]
    attack(study, another_user)
    for words in (*READING, *COMMANDS):
        typed = [str(study) if word == "DIR" else word for word in words]
        ran = CliRunner().invoke(app, typed)
        assert not another_user.exists(), words
        if words in COMMANDS:
            assert ran.exit_code == 2 and "not known as your own" in ran.output, words
            assert "--trust" in ran.output and str(study) in ran.output
        else:
            assert ran.exit_code == 0, ran.output
    found = shoal.load_study(study)
    assert [trial.value for trial in found.trials] == values
    assert found.best_trial.value == found.best_value and found.best_config["width"]
    assert len(found.get_trials()) == len(found.learning_curves().trial.unique())
    assert found.report().exists() and len(found.trials_dataframe()) == len(values)
    assert reporting.account(found.lines())
    refused = [
        found.best_model,
        found.resume,
        found.replay,
        found.data,
        lambda: found.recipe,
        lambda: found.models(1),
        lambda: found.load_model("t000"),
        lambda: found.optimize(progress=False),
        lambda: found.enqueue({"width": 1, "lr": 0.1}, max_epochs=1),
    ]
    for use in refused:
        with pytest.raises(NotOwn, match="is not known as your own"):
            use()
    assert not another_user.exists()


# -- trust -------------------------------------------------------------------------------------


def test_trust_is_said_once_for_the_code_that_lies_there(
    study: Path, file: Path, another_user: Path
) -> None:
    moved = study.rename(study.parent / "unpacked")
    with pytest.raises(NotOwn, match="Look at all in .*unpacked/recipe: .*net.py"):
        _ = shoal.load_study(moved).recipe
    # What its author's file has become is nothing that this user looked at.
    file.write_text(f"import os\nos.system('touch {another_user}')\n")
    trusted = shoal.load_study(moved, trust=True)
    assert trusted.best_model() is not None
    again = shoal.load_study(moved)
    again.resume(progress=False)
    assert again.best_trial == trusted.best_trial
    assert len(manifest(moved)["marks"]) == 2, "that of its author, and this user's"
    ran = CliRunner().invoke(app, ["replay", str(moved)])
    assert ran.exit_code == 0 and "equal bit for bit" in ran.output
    stored_net(moved).write_text(file.read_text())
    with pytest.raises(StudyError, match="is not what was stored: somebody changed it"):
        shoal.load_study(moved).best_model()
    assert not another_user.exists()


def test_a_study_may_be_two_users_own(
    study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = os.environ["XDG_STATE_HOME"]
    for user in (str(tmp_path / "state"), first, str(tmp_path / "state")):
        monkeypatch.setenv("XDG_STATE_HOME", user)
        found = shoal.load_study(study, trust=user != first)
        assert found.best_model() is not None
        found.resume(progress=False)
    whole = manifest(study)
    assert sorted(mark.split()[0] for mark in whole["marks"].values()) == ["made", "trusted"]


def test_a_trusted_path_that_leads_out_of_the_folder_is_refused(
    study: Path, another_user: Path
) -> None:
    outside(study, another_user)
    with pytest.raises(StudyError, match="names the file '../../net.py': only files"):
        shoal.load_study(study, trust=True).best_model()
    stored = stored_net(study)
    shutil.copy(stored, study.parent / "target.py")
    stored.unlink()
    stored.symlink_to(study.parent / "target.py")
    whole = manifest(study)
    for module in whole["recipe"]["modules"]:
        module["path"] = str(stored.relative_to(study / "recipe"))
    rewritten(study, whole)
    with pytest.raises(StudyError, match="must be a plain file"):
        shoal.load_study(study, trust=True).best_model()
    assert not another_user.exists()


def test_a_pickle_of_an_earlier_shoal_is_trusted_once(tmp_path: Path, blobs: Any) -> None:
    from shoal.train.recipe import pickling

    made = shoal.create_study(blobs(), storage=tmp_path / "s")
    made.optimize(progress=False)
    shutil.rmtree(tmp_path / "s" / "recipe")
    (tmp_path / "s" / "recipe.pkl").write_bytes(pickling.dumps(blobs()))
    with pytest.raises(NotOwn, match="an earlier Shoal stored it without a mark"):
        shoal.load_study(tmp_path / "s").best_model()
    assert same_weights(shoal.load_study(tmp_path / "s", trust=True), made)
    assert same_weights(shoal.load_study(tmp_path / "s"), made)
    shoal.load_study(tmp_path / "s").resume(progress=False)
    assert not (tmp_path / "s" / "recipe.pkl").exists()


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"recipe": 3, "marks": {}}', "[" * 100_000, "\xff"]
)
def test_a_damaged_manifest_is_one_error(study: Path, text: str) -> None:
    (study / "recipe" / "recipe.json").write_text(text)
    ran = CliRunner().invoke(app, ["resume", str(study), "--trust"])
    assert ran.exit_code == 2 and "recipe.json is damaged" in ran.output
    assert "Traceback" not in ran.output


# -- the key -----------------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="files have no modes here")
def test_a_key_that_others_may_read_marks_nothing(
    blobs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    made = shoal.create_study(blobs(), storage=tmp_path / "one")
    made.optimize(progress=False)
    assert key_file().is_relative_to(tmp_path)
    assert key_file().stat().st_mode & 0o777 == 0o600
    assert key_file().parent.stat().st_mode & 0o777 == 0o700
    key_file().chmod(0o644)
    with pytest.raises(NotOwn, match=r"others may read it \(mode 644; chmod 600"):
        _ = shoal.load_study(tmp_path / "one").recipe
    other = shoal.create_study(blobs(), storage=tmp_path / "other")
    with pytest.warns(UserWarning, match="cannot be used: others may read it"):
        other.optimize(progress=False)
    assert manifest(tmp_path / "other")["marks"] == {}


def test_processes_that_begin_at_once_have_one_key(tmp_path: Path) -> None:
    code = "from shoal.study.code.mark import make_key; print(make_key().name)"
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path)}
    processes = [
        preloaded.Popen(
            [sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True
        )
        for _ in range(6)
    ]
    names = {process.communicate(timeout=100)[0] for process in processes}
    assert len(names) == 1 and len(list((tmp_path / "shoal").iterdir())) == 1


# -- code that has changed ---------------------------------------------------------------------


def test_changed_files_of_ones_own_are_used_and_those_of_others_are_not(
    study: Path, file: Path
) -> None:
    helper = file.parent / "helper.py"
    file.write_text(NET.replace("0.01", "0.02"))
    with pytest.warns(UserWarning, match="net.py has changed since the study began; g"):
        found = shoal.load_study(study).recipe
    assert found.search_space is not None and found.search_space["lr"] == 0.02
    if not hasattr(os, "getuid"):
        return
    file.chmod(0o666)
    with pytest.warns(UserWarning, match=r"others may write to it .*as it was stored"):
        found = shoal.load_study(study).recipe
    assert found.search_space is not None and found.search_space["lr"] == 0.01
    assert helper.exists()


def as_pickle(study: Path) -> None:
    """The study's recipe is stored as a pickle, as of a notebook."""
    from shoal.study.code import recipe_store
    from shoal.study.code.mark import MADE, make_key
    from shoal.study.code.recipe_file import describe_recipe, sha256
    from shoal.train.recipe import pickling

    recipe = shoal.load_study(study).recipe
    content, about = pickling.dumps(recipe), describe_recipe(recipe)
    named = recipe_store.Manifest(
        1, "Net", "pickle", pickle="a.pkl", sha256=sha256(content), about=about
    )
    kept = recipe_store.new(study / "recipe", named)
    (kept.place / "a.pkl").write_bytes(content)
    kept.write(make_key(), MADE)


@pytest.mark.parametrize("kind", ["source", "pickle"])
def test_the_code_that_runs_is_what_was_looked_at(
    study: Path, file: Path, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody puts another file in its place after the look at its owner."""
    from shoal.study.code import recipe_store

    if kind == "pickle":
        as_pickle(study)
    file.write_text(NET + "\n# another\n")
    look = recipe_store.why_foreign

    def then_swapped(found: os.stat_result) -> str | None:
        if found.st_ino == file.stat().st_ino:
            file.write_text(f"import os\nos.system('touch {tmp_path}/HACKED')\n")
        return look(found)

    monkeypatch.setattr(recipe_store, "why_foreign", then_swapped)
    with pytest.warns(UserWarning, match="net.py has changed since the study began; g"):
        found = shoal.load_study(study).recipe
    assert "HACKED" in file.read_text() and type(found).__name__ == "Net"
    assert not (tmp_path / "HACKED").exists()


LATER = """
    def configure_model(self, config):
        try:
            import shoal_test_later
        except ImportError:
            pass
        width"""


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="files have no owners here")
@pytest.mark.parametrize("kind", ["source", "pickle"])
def test_modules_are_not_imported_from_a_folder_that_has_become_somebody_elses(
    study: Path, file: Path, kind: str, tmp_path: Path
) -> None:
    """In the temporary folder, say, which was emptied meanwhile."""
    name = f"shoal_test_later_{kind}"
    late = LATER.replace("shoal_test_later", name)
    file.write_text(NET.replace(LATER.split(":", maxsplit=1)[0] + ":\n        width", late))
    assert name in file.read_text()
    ran = CliRunner().invoke(app, ["run", str(file), "--storage", f"{study}2"])
    assert ran.exit_code == 0, ran.output
    if kind == "pickle":
        as_pickle(Path(f"{study}2"))
    later = file.parent / f"{name}.py"
    later.write_text(f"import os\nos.system('touch {tmp_path}/HACKED')\n")
    file.parent.chmod(0o777)
    code = "import shoal, sys; shoal.load_study(sys.argv[1]).best_model()"
    for mode in (0o777, 0o755):
        file.parent.chmod(mode)
        done = preloaded.run(
            [sys.executable, "-c", code, f"{study}2"],
            check=False,
            capture_output=True,
            text=True,
            cwd="/",
        )
        assert done.returncode == 0, done.stderr
        said = f"not imported from {file.parent}, as others may write to it (mode 777)"
        assert done.stderr.count(said) == (mode == 0o777)
        assert (tmp_path / "HACKED").exists() is (mode != 0o777)


@pytest.mark.slow
def test_a_module_that_is_put_into_a_package_after_it_was_trusted_is_not_imported(
    tmp_path: Path, another_user: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was not there when the user looked at all files."""
    package = tmp_path / "code" / "shoal_test_package"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(
        "try:\n    from . import quick\nexcept ImportError:\n    WIDTH = 4\n"
    )
    (package / "slow.py").write_text("HERE = 1\n")
    late = LATER.replace("shoal_test_later", "shoal_test_package.late")
    text = NET.replace(
        "import helper", "import shoal_test_package as helper\nfrom shoal_test_package import slow"
    )
    text = text.replace(LATER.split(":", maxsplit=1)[0] + ":\n        width", late)
    assert "package.late" in text
    (tmp_path / "code" / "net.py").write_text(text)
    first = ["run", str(tmp_path / "code" / "net.py"), "--storage", str(tmp_path / "s")]
    program = [sys.executable, "-m", "shoal.cli"]
    env = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "other")}
    preloaded.run([*program, *first], env=env, check=True, capture_output=True, cwd="/")
    shutil.rmtree(tmp_path / "code")
    code = "import shoal, sys; shoal.load_study(sys.argv[1], trust=bool(sys.argv[2])).best_model()"
    preloaded.run([sys.executable, "-c", code, str(tmp_path / "s"), "yes"], check=True, cwd="/")
    (stored,) = (tmp_path / "s" / "recipe").glob("*/shoal_test_package")
    for name in ("quick.py", "late.py"):
        (stored / name).write_text(f"import os\nos.system('touch {another_user}')\n")
    preloaded.run([sys.executable, "-c", code, str(tmp_path / "s"), ""], check=True, cwd="/")
    assert not another_user.exists()


def test_the_record_says_which_code_each_run_had(study: Path, file: Path) -> None:
    file.write_text(NET + "\n# another\n")
    with pytest.warns(UserWarning, match="changed since"):
        shoal.load_study(study).resume(progress=False)
    heads = [
        entry.head["recipe"]
        for _, entry in shoal.load_study(study).lines()
        if isinstance(entry, Opened)
    ]
    first, second = (head["imports"] for head in heads)
    assert first.keys() == second.keys() and str(file.resolve()) in first
    assert {name for name in first if first[name] != second[name]} == {str(file.resolve())}
    assert [head["stored"] for head in heads] == ["source", "source"]
    stored = [path.read_text() for path in (study / "recipe").glob("*/net.py")]
    assert sorted(stored) == sorted([NET, NET + "\n# another\n"])
