"""An objective of one's own, as `elastic(objective=FILE.py:NAME)`: tried before work starts."""

from pathlib import Path
from typing import Any

import pytest
from stranger_kit import forge
from typer.testing import CliRunner

import shoal
from shoal import policy as policies
from shoal.cli import app
from shoal.core.trial import Trial, TrialId
from shoal.policy import Elastic
from shoal.policy.combine import Every
from shoal.policy.description import describe
from shoal.policy.elastic.objective import FileObjective
from shoal.simulate.policy_files import objective_in, with_objective
from shoal.study.auto import policy_of

AIMS = """
import aims_helper
calls = []
def short_ones_first(trial, rates):
    return [aims_helper.weight(trial) * rate for rate in rates]
def by_rate(trial, rates):
    return [trial.config["lr"] * rate for rate in rates]
def raises(trial, rates):
    return trial.config["no such key"] * rates
def nan(trial, rates):
    return [float("nan")] * len(rates)
def none(trial, rates):
    return None
def text(trial, rates):
    return ["much"] * len(rates)
def one(trial, rates):
    return rates[:1]
def number(trial, rates):
    return rates[-1]
def seconds(trial, rates):
    return [1 / rate for rate in rates]
def negative(trial, rates):
    return [-1 / rate for rate in rates]
def restless(trial, rates):
    calls.append(1)
    return [len(calls) * rate for rate in rates]
def eight_only(trial, rates):
    return [rates[i] for i in range(8)]
value = 3
"""
HELPER = "def weight(trial):\n    return 2.0 if trial.samples < 100_000 else 1.0\n"


@pytest.fixture
def aims(tmp_path: Path) -> Path:
    folder = tmp_path / "hop-lrw" / "my-aims"  # with hyphens, as names of policies
    folder.mkdir(parents=True)
    (folder / "aims_helper.py").write_text(HELPER)
    (folder / "aims.py").write_text(AIMS)
    return folder / "aims.py"


@pytest.fixture
def study(tmp_path: Path, blobs: type[Any]) -> shoal.Study:
    return shoal.create_study(blobs(), storage=tmp_path / "s")


@pytest.mark.parametrize("quote", ["", '"', "'"])
def test_the_function_is_the_policys_objective(aims: Path, quote: str) -> None:
    place = f"{aims}:short_ones_first"
    text = f"every(seconds=9, policy=elastic(objective={quote}{place}{quote}, admit=3))"
    made = policy_of(text, fuse=False, seed=0)
    assert isinstance(made, Every) and isinstance(made.policy, Elastic)
    objective = made.policy.objective
    assert isinstance(objective, FileObjective) and made.policy.admit == 3
    assert objective(Trial(TrialId("t"), 5.0), [1.0, 3.0]) == [2.0, 6.0]
    described = describe(made)
    assert described["policy"]["objective"] == place, "plain data for the journal"
    with pytest.raises(ValueError, match="objective is one of"):
        policies.rebuild(described)  # what only reads runs no file
    again: Any = policies.rebuild(with_objective(described))
    assert again.policy.objective.place == place


def test_a_place_is_whole_wherever_it_was_named(
    aims: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(aims.parent)
    assert objective_in("aims.py:by_rate").place == f"{aims}:by_rate"


@pytest.mark.parametrize(
    ("place", "why"),
    [
        ("nowhere.py:f", "there is no file"),
        ("aims.py:absent", "aims.py has no function absent"),
        ("aims.py:value", "aims.py has no function value"),
        ("broken.py:f", "broken.py raised ZeroDivisionError when it was imported"),
    ],
)
def test_a_place_without_a_function_is_one_error(
    aims: Path, monkeypatch: pytest.MonkeyPatch, place: str, why: str
) -> None:
    monkeypatch.chdir(aims.parent)
    Path("broken.py").write_text("1 / 0")
    with pytest.raises(ValueError, match=why):
        policy_of(f"elastic(objective={place})", fuse=False, seed=0)


BAD = [
    ("raises", r"raised KeyError: .*no such key"),
    ("nan", "must give one finite number for each of the 8 rates"),
    ("none", "must give one finite number.* it gave None"),
    ("text", "must give one finite number"),
    ("one", "must give one finite number"),
    ("number", "must give one finite number"),
    ("seconds", "falls with each slot more"),
    ("negative", "nothing above 0"),
    ("restless", "gives other numbers each time"),
    ("eight_only", "raised IndexError"),
]


@pytest.mark.parametrize(("name", "why"), BAD)
def test_a_bad_objective_is_one_line_before_anything_starts(
    aims: Path, study: shoal.Study, name: str, why: str
) -> None:
    with pytest.raises(shoal.StudyError, match=why) as caught:
        study.optimize(
            policy=f"elastic(objective={aims}:{name})", num_samples=1, max_epochs=1, progress=False
        )
    assert f"aims.py:{name}" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not study.folder.journal.exists()


def test_a_function_of_python_is_tried_too(study: shoal.Study) -> None:
    def cost(trial: Any, rates: Any) -> Any:
        return [-rate for rate in rates]

    with pytest.raises(shoal.StudyError, match="objective cost gives -100"):
        study.optimize(policy=Elastic(objective=cost), num_samples=1, max_epochs=1, progress=False)


def test_it_is_tried_with_a_configuration_of_the_space(aims: Path, study: shoal.Study) -> None:
    study.optimize(
        policy=f"elastic(objective={aims}:by_rate)", num_samples=2, max_epochs=1, progress=False
    )
    assert {trial.status for trial in study.trials} == {"finished"}
    head = study.folder.head()
    assert head["policy"]["objective"] == f"{aims}:by_rate"


def test_resume_takes_it_from_the_journal_only_under_the_users_mark(
    aims: Path, study: shoal.Study, tmp_path: Path
) -> None:
    study.optimize(
        policy=f"elastic(objective={aims}:by_rate)", num_samples=1, max_epochs=1, progress=False
    )
    folder = study.folder.path
    shoal.load_study(folder).resume(progress=False)  # the user's own

    strange = tmp_path / "strange.py"
    strange.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\ndef f(t, r): return r\n")
    forge(folder, ("head", "policy", "objective"), f"{strange}:f")
    with pytest.raises(shoal.StudyError, match="not known as your own choice"):
        shoal.load_study(folder).resume(progress=False)
    done = CliRunner().invoke(app, ["resume", str(folder)])
    assert done.exit_code == 2 and len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "ran").exists(), "its code was run"


def test_resume_without_the_file_says_so(aims: Path, study: shoal.Study) -> None:
    study.optimize(
        policy=f"elastic(objective={aims}:by_rate)", num_samples=1, max_epochs=1, progress=False
    )
    aims.unlink()
    with pytest.raises(shoal.StudyError, match=r"there is no file .*put it back"):
        shoal.load_study(study.folder.path).resume(progress=False)


def test_auto_has_an_objective_of_its_own(aims: Path) -> None:
    with pytest.raises(ValueError, match="give elastic.* alone"):
        policy_of(f"auto:fifo,elastic(objective={aims}:by_rate)", fuse=False, seed=0)
