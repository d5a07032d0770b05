"""Command lines as trials."""

import os
import re
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import preloaded
import pytest

import shoal
from shoal.cli import app
from shoal.core.errors import StudyError
from shoal.engine import printed
from shoal.train.function import command as commands
from shoal.train.function.command import CommandRecipe, scores

PROGRAM = """
import os, sys
from pathlib import Path

folder, rate, epochs = Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
kept = folder / "state"
begun, value = 0, 1.0
if os.environ.get("SHOAL_RESTORED"):
    begun, value = kept.read_text().split()
begun, value = int(begun), float(value)
print("from", begun, "of", os.environ["SHOAL_TRIAL"], os.environ["SHOAL_SEED"])
if rate > 1:
    print("no luck", file=sys.stderr)
    sys.exit(3)
for epoch in range(begun, epochs):
    value *= 1 - rate
    kept.write_text(f"{epoch + 1} {value}")
    print(f"epoch {epoch}")
    print(f"loss={value} rate={rate}")
    sys.stdin.readline()
"""


def command(folder: Path, epochs: int = 4) -> str:
    """A command line that runs the program above."""
    program = folder / "program.py"
    program.write_text(PROGRAM)
    return f"'{sys.executable}' '{program}' {{checkpoint}} {{lr}} {epochs}"


def made(folder: Path, text: str, rates: list[Any]) -> shoal.Study:
    """A study of a command line."""
    return shoal.create_study(
        command=text, storage=folder / "s", metric="loss", search_space={"lr": shoal.grid(rates)}
    )


def alone(rate: float, epochs: int) -> list[float]:
    """The losses that the program prints."""
    found = [1.0]
    for _ in range(epochs):
        found.append(found[-1] * (1 - rate))
    return found[1:]


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("loss=0.5\n", {"loss": 0.5}),
        ("loss=1e-3, val/accuracy=.9", {"loss": 0.001, "val/accuracy": 0.9}),
        ("epoch 3 loss=0.5", None),
        ("file=x.txt", None),
        ("\n", None),
    ],
)
def test_lines_of_pairs_are_scores(line: str, found: Any) -> None:
    assert scores(line) == found


def test_lines_are_reports_and_folders_are_checkpoints(tmp_path: Path) -> None:
    study = made(tmp_path, command(tmp_path), [0.1, 0.5, 2.0])
    study.optimize(progress=False)
    how = [t.status for t in study.trials]
    assert how[:2] == ["finished"] * 2
    assert "ended with 3" in how[2]
    assert "no luck" in (tmp_path / "s/trials/t002/error.txt").read_text()
    for trial, rate in zip(study.trials, (0.1, 0.5), strict=False):
        assert [v["loss"] for _, v in trial.scores] == alone(rate, 4)
        place = study.checkpoint(trial)
        assert (place / "state").read_text() == f"4 {alone(rate, 4)[-1]}"
    log = (tmp_path / "s/trials/t001/log.txt").read_text()
    assert "from 0 of t001 0" in log and "epoch 3" in log
    study.report()


def test_commands_go_on_from_their_folders(tmp_path: Path) -> None:
    made(tmp_path, command(tmp_path, 6), [0.1, 0.5]).optimize(progress=False, max_epochs=2)
    study = shoal.load_study(tmp_path / "s")
    study.extend("t000", 5)
    study.resume(progress=False)
    assert [v["loss"] for _, v in study.trials[0].scores] == alone(0.1, 5)
    assert "from 2 of t000" in (tmp_path / "s/trials/t000/log.txt").read_text()
    assert all(row["equal"] for row in study.replay())


@pytest.mark.skipif(os.name != "posix", reason="process groups are POSIX's")
def test_what_a_stopped_trial_started_is_ended(tmp_path: Path) -> None:
    program = tmp_path / "parent.py"
    program.write_text(
        "import os, subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "open(sys.argv[1], 'w').write(f'{os.getpid()} {child.pid}')\n"
        "print('loss=1')\n"
        "time.sleep(600)\n"
    )
    text = f"'{sys.executable}' '{program}' '{tmp_path}/{{lr}}'"
    made(tmp_path, text, [1]).optimize(progress=False, max_epochs=1)
    numbers = [int(word) for word in (tmp_path / "1").read_text().split()]
    deadline = time.monotonic() + 120
    while any(map(_lives, numbers)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(_lives, numbers))


def _lives(number: int) -> bool:
    """Whether a process runs; one that has ended and waits for its parent does not."""
    try:
        os.kill(number, signal.SIG_DFL)
        return ") Z" not in Path(f"/proc/{number}/stat").read_text()
    except OSError:
        return False


def test_a_log_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(printed, "PART_BYTES", 100)
    log = commands.OutputLog(tmp_path / "t" / "log.txt")
    for number in range(100):
        log.write(f"line {number}\n")
    sizes = {place.name: place.stat().st_size for place in (tmp_path / "t").iterdir()}
    assert sizes.keys() == {"log.0.txt", "log.1.txt", "log.txt"}
    assert max(sizes.values()) < 300
    assert log.newest[-1] == "line 99\n"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("python x.py --lr {lrr}", r"did you mean \{lr\}"),
        ("python x.py", "does not use lr"),
        ("no-such-program {lr}", "no program"),
        ("python 'x.py {lr}", "is none"),
        (" ", "empty"),
    ],
)
def test_what_is_wrong_is_said_first(tmp_path: Path, text: str, why: str) -> None:
    text = text.replace("python", f"'{sys.executable}'")
    with pytest.raises(StudyError, match=why):
        made(tmp_path, text, [0.1]).optimize(progress=False)
    assert not (tmp_path / "s" / "journal.jsonl").exists()


@pytest.mark.parametrize(
    "text",
    [
        "sh -c 'echo loss={lr}'",
        "sh -c {lr}",
        "/bin/bash -lc 'echo loss={lr}'",
        "bash -o pipefail -c 'echo loss={lr}'",
        "bash -c -- 'echo loss={lr}'",
        'bash -c "echo loss={lr} {checkpoint}"',
        "env A=1 timeout 5m bash --norc -ec 'echo loss={lr}'",
        "env -S 'echo loss={lr}'",
        "nice -n 5 python3.11 -c 'print({lr})'",
        "python -W ignore -cprint({lr})",
        "python -c 'print(1)' -c '{lr}' sh -c 'echo {lr}'",
        "perl -ne 'print {lr}'",
        "node --eval=f({lr})",
        "xargs -n 1 sh -c 'echo loss={lr}'",
        "docker run image sh -c 'echo loss={lr}'",
        "ssh host python t.py --lr {lr}",
        "ssh host 'python t.py --lr {lr}'",
        "su bob -c 'echo loss={lr}'",
        "sed s/lr/{lr}/ config.yaml",
        "awk 'BEGIN {{ print {lr} }}'",
    ],
)
def test_values_are_no_code(tmp_path: Path, text: str) -> None:
    """Refused before any work, whatever the values are; the remedies that are named work."""
    with pytest.raises(StudyError, match="runs as code") as caught:
        made(tmp_path, text, [0.1]).optimize(progress=False)
    assert "\n" not in str(caught.value)
    assert "as in sh -c 'python t.py \"$1\"' sh {lr}" in str(caught.value)
    assert not (tmp_path / "s" / "journal.jsonl").exists()


@pytest.mark.parametrize("text", ["{lr}", "{lr}.sh x", "env A=1 {lr} x", "env {lr}=1 x"])
def test_a_value_is_not_the_program(tmp_path: Path, text: str) -> None:
    with pytest.raises(StudyError, match="would say which program"):
        made(tmp_path, text, ["x"]).optimize(progress=False)


@pytest.mark.skipif(os.name != "posix", reason="needs sh")
@pytest.mark.parametrize(
    "text",
    [
        "sh -c 'echo loss=${#1}' sh {lr}",
        "env VALUE={lr} sh -c 'echo loss=${#VALUE}'",
        "sh -c 'echo x > {checkpoint}/x; echo loss=${#1}' sh {lr}",
    ],
)
def test_values_reach_a_shell_as_arguments_and_variables(tmp_path: Path, text: str) -> None:
    mark = tmp_path / "HACKED"
    bad = f"$(touch {mark})';touch {mark};`touch {mark}`"
    study = made(tmp_path, text, [bad])
    study.optimize(progress=False)
    assert study.trials[0].value == len(bad), study.trials[0].status
    assert not mark.exists()


@pytest.mark.parametrize(
    ("text", "value", "why"),
    [
        ("echo {lr}", "--exec=sh x", "would be taken for an option: write --lr={lr}"),
        ("echo {lr}", "-c import os", "would be taken for an option"),
        ("echo {lr}x", "--a=b", "would be taken for an option"),
        ("runner 'train {lr}'", "1; rm x", "cannot stand within 'train {lr}'"),
        ("""runner '{"lr": "{lr}"}'""", '","x":"', "cannot stand within"),
        ("echo {lr}", "--nesterov", None),
        ("echo {lr}", "-1e-3", None),
        ("echo {lr}", -0.1, None),
        ("echo --lr={lr}", "-c import os; x", None),
        ("echo '/My Runs/{lr}'", "adam-0.1", None),
        ("""echo '{"lr": {lr}}'""", -1e-9, None),
        ("python t.py -c {lr}", "a b", None),
        ("python t.py --level node -lr {lr}", "x y", None),
        ("python -m train eval --lr {lr} --shell bash", "x y", None),
    ],
)
def test_texts_are_checked_where_they_stand(text: str, value: Any, why: Any) -> None:
    """In the space, in a configuration that is added, and before a program begins."""
    recipe = CommandRecipe(text.replace("runner", "echo").replace("python", "echo"))
    spaces = [
        {"lr": shoal.choice([value])},
        {"lr": value},
        {"lr": shoal.choice({"a": {}, value: {}})},
    ]
    if "python" in text:
        recipe.words[0] = sys.executable
    for space in spaces:
        if why is None:
            recipe.check(space)
            recipe.check_values({"lr": value})
        else:
            with pytest.raises(ValueError, match=re.escape(why)):
                recipe.check(space)
            with pytest.raises(ValueError, match=re.escape(why)):
                recipe.check_values({"lr": value})


def test_added_values_are_checked(tmp_path: Path) -> None:
    study = made(tmp_path, "echo {lr}", ["x"])
    with pytest.raises(StudyError, match="would be taken for an option"):
        study.enqueue({"lr": "--exec=x"})


def test_a_command_that_prints_no_scores_fails(tmp_path: Path) -> None:
    code = "import sys; print(sys.argv[1])"
    study = made(tmp_path, f"'{sys.executable}' -c '{code}' {{lr}}", [0.1])
    with pytest.raises(StudyError, match="every trial failed|all"):
        study.optimize(progress=False)
    status = study.trials[0].status
    assert "printed no scores" in status and status.endswith("printed at last: 0.1")


def test_a_command_that_fails_tells_its_last_errors(tmp_path: Path) -> None:
    study = made(tmp_path, command(tmp_path), [0.1, 2])
    study.optimize(progress=False, max_epochs=2)
    assert study.trials[1].status == (
        "failed: RuntimeError: the command ended with 3; it printed at last: no luck"
    )


def test_a_command_without_max_epochs_cannot_be_extended(tmp_path: Path) -> None:
    study = made(tmp_path, command(tmp_path), [0.1])
    study.optimize(progress=False)
    with pytest.raises(StudyError, match="until its function or command ends"):
        study.extend("t000", max_epochs=30)


def test_a_switch_may_be_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without checkpoints, only what works is offered next."""
    code = "import sys; print(f'loss={len(sys.argv)}')"
    line = f'{sys.executable} -c "{code}" {{fast}} x{{fast}}'
    storage = tmp_path / "s"
    space = 'fast=grid(["--fast", ""])'
    arguments = ["run", "--command", line, "--space", space, "--metric", "loss"]
    with pytest.raises(SystemExit) as ended:
        app([*arguments, "--storage", str(storage)])
    out = capsys.readouterr().out
    assert ended.value.code == 0
    assert [t.value for t in shoal.load_study(storage).trials] == [3, 2]
    assert "replay" not in out and "best_config" in out


def test_a_run_of_which_all_failed_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "script.py"
    script.write_text("import argparse\nargparse.ArgumentParser().parse_args(['x'])")
    arguments = ["run", "--metric", "loss", "--storage", str(tmp_path / "s")]
    with pytest.raises(SystemExit):
        app([*arguments, "--command", f"{sys.executable} {script}", "--num-samples=1"])
    out = capsys.readouterr().out
    assert "every trial failed" in out and "error.txt has its traceback" in out
    with pytest.raises(SystemExit) as ended:
        app(["run", str(script)])
    assert ended.value.code == 2
    assert 'shoal run --command "python' in capsys.readouterr().err


def test_the_command_line(tmp_path: Path) -> None:
    from typer.testing import CliRunner

    args = ["run", "--command", command(tmp_path), "--storage", str(tmp_path / "s")]
    more = ["--space", "lr=grid([0.1,0.5])", "--metric", "loss", "--max-epochs", "3"]
    done = CliRunner().invoke(app, [*args, *more])
    assert done.exit_code == 0, done.output
    assert "study.checkpoint(" in done.output
    study = shoal.load_study(tmp_path / "s")
    assert study.best_trial.config == {"lr": 0.5} and study.best_trial.epochs == 3
    done = CliRunner().invoke(app, ["run", "--metric", "loss"])
    assert done.exit_code == 2 and "--command" in done.output


def test_another_command_is_refused(tmp_path: Path) -> None:
    made(tmp_path, command(tmp_path), [0.1]).optimize(progress=False, max_epochs=1)
    other = shoal.create_study(
        command=command(tmp_path, 5),
        storage=tmp_path / "s",
        metric="loss",
        search_space={"lr": shoal.grid([0.1])},
        load_if_exists=True,
    )
    with pytest.raises(StudyError) as caught:
        other.optimize(progress=False, max_epochs=2)
    assert command(tmp_path, 4) in str(caught.value)
    assert command(tmp_path, 5) in str(caught.value)
    same = shoal.load_study(tmp_path / "s")
    same.optimize(progress=False, max_epochs=2)
    assert same.trials[0].epochs == 2


def test_a_killed_run_leaves_no_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next run of the study removes them; other studies' stay."""
    scratch = tmp_path / "scratch"
    others = scratch / "shoal-0123456789abcdef-1-x"
    others.mkdir(parents=True)
    program = tmp_path / "slow.py"
    program.write_text(
        "import os, sys, time\n"
        "open(sys.argv[1] + '/state', 'w').write(sys.argv[2])\n"
        "print('loss=1')\n"
        "if not os.environ.get('SHOAL_RESTORED'):\n"
        "    sys.stdin.readline()\n"
        "    sys.stdin.readline()\n"
    )
    words = f"'{sys.executable}' '{program}' {{checkpoint}} {{lr}}"
    script = (
        "import sys, shoal\n"
        "study = shoal.create_study(command=sys.argv[1], storage=sys.argv[2], metric='loss',"
        " search_space={'lr': 1.0})\n"
        "study.optimize(progress=False, checkpoint_every=0)\n"
    )
    process = preloaded.Popen(
        [sys.executable, "-c", script, words, str(tmp_path / "s")],
        env=os.environ | {"TMPDIR": str(scratch)},
    )
    journal = tmp_path / "s" / "journal.jsonl"
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        if journal.exists() and b'"Kept"' in journal.read_bytes():
            break
        time.sleep(0.01)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    assert len(list(scratch.iterdir())) == 2
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    study = shoal.load_study(tmp_path / "s")
    study.resume(progress=False)
    assert study.trials[0].status == "finished"
    assert list(scratch.iterdir()) == [others]


def test_functions_on_the_command_line(tmp_path: Path) -> None:
    from typer.testing import CliRunner

    file = tmp_path / "code.py"
    file.write_text(
        "import shoal\n"
        "def train(config):\n"
        "    for epoch in range(5):\n"
        "        shoal.report({'loss': config['lr'] / (epoch + 1)})\n"
        "def objective(trial):\n"
        "    return trial.suggest_float('x', 0.0, 1.0)\n"
    )
    lr = ["--space", "lr=uniform(0.1,0.5)", "--metric", "loss"]
    asked = {"train": [*lr, "--n-trials", "3"], "objective": ["--n-trials", "2"]}
    for name, more in asked.items():
        args = ["run", f"{file}:{name}", "--storage", str(tmp_path / name), *more]
        done = CliRunner().invoke(app, args)
        assert done.exit_code == 0, done.output
        done = CliRunner().invoke(app, ["replay", str(tmp_path / name)])
        assert "nothing durable" in done.output
        done = CliRunner().invoke(app, ["resume", str(tmp_path / name)])
        assert done.exit_code == 0, done.output
    study = shoal.load_study(tmp_path / "train")
    assert [t.epochs for t in study.trials] == [5.0] * 3
    assert len(shoal.load_study(tmp_path / "objective").trials) == 2
    for command_name in ("check", "plan"):
        done = CliRunner().invoke(app, [command_name, f"{file}:train"])
        assert done.exit_code == 2 and "is a function" in done.output
