"""Searches on the local backend: what the study fills in, copies that start from others,
resuming, Optuna's log.
"""

import json
import re
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

import shoal
from shoal.core.event import Kept
from shoal.core.plan import Proposal
from shoal.engine.journal import read
from shoal.options import Options
from shoal.policy import Fifo, Pack
from shoal.policy.combine import Every
from shoal.reporting import status_lines, summary
from shoal.study import auto as candidates
from shoal.study.folder import last_head
from shoal.study.head import rebuild
from shoal.study.searcher import per_slot
from shoal.study.setup import data_of
from shoal.tools.status import _status_of_all
from shoal.train.lane.checkpoints import Checkpoints

SPACE = {"width": 8, "lr": shoal.loguniform(1e-3, 1e-1)}


def made(folder: Path, blobs: Any, **more: Any) -> shoal.Study:
    return shoal.create_study(
        blobs(shards=2, samples=60), storage=folder, search_space=SPACE, load_if_exists=True, **more
    )


@pytest.mark.parametrize(
    ("name", "trials"),
    [
        ("halving(reduction_factor=2)", 4),
        ("hyperband(reduction_factor=2)", 4),
        ("asha(reduction_factor=2)", 4),
        ("asha(stopping=True)", 4),
        ("median", 4),
        ("optuna", 4),
        ("random", 4),
    ],
)
def test_by_name(
    tmp_path: Path, blobs: Any, name: str, trials: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Metric, mode, space, seed and numbers are the study's; the journal's head makes it again.

    Trials that may have several slots train on the one that there is, as on a small cluster.
    """
    monkeypatch.setattr("shoal.study.study.check_used", lambda *_: None)
    study = made(tmp_path / "s", blobs)
    study.optimize(name, num_samples=4, max_epochs=2, widths=(1, 2), progress=False)
    assert {trial.widths for trial in study.state.known.values()} == {(1, 2)}
    assert len(study.trials) == trials and all(
        t.status in ("finished", "retired") for t in study.trials
    )
    assert max(t.epochs for t in study.trials) == 2 and {
        t.config["width"] for t in study.trials
    } == {8}
    study.resume(progress=False)
    assert len(study.trials) == trials
    with pytest.raises(shoal.StudyError, match="begun with another search"):
        study.optimize("asha(grace_period=2)", num_samples=4, max_epochs=2, progress=False)
    with pytest.raises(shoal.StudyError, match="widths: .*earlier trials have these"):
        study.optimize(name, num_samples=4, max_epochs=2, progress=False)


def test_copies_replay_bit_for_bit_and_survive_a_kill_anywhere(
    tmp_path: Path, blobs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    search = shoal.PBT(num_samples=4, max_epochs=3)
    study = made(tmp_path / "whole", blobs)
    with monkeypatch.context() as patch:
        patch.setattr(
            Checkpoints, "delete", lambda self, name: None
        )  # earlier prefixes need states that are replaced by then
        study.optimize(search, checkpoint_every=0, progress=False)
    copies = [t for t in study.state.known.values() if t.start is not None]
    assert len(copies) == 2 and all(trial.epochs == 3 for trial in study.trials if "-g" in trial.id)
    assert all(
        t.config["lr"] != study.state.known[t.start[0]].config["lr"] for t in copies if t.start
    )
    assert all(row["equal"] for row in study.replay())
    lines = (tmp_path / "whole" / "journal.jsonl").read_bytes().splitlines(keepends=True)
    for cut in range(20, len(lines), 17):
        folder = tmp_path / f"cut{cut}"
        folder.mkdir()
        (folder / "journal.jsonl").write_bytes(b"".join(lines[:cut]))
        (folder / "checkpoints").mkdir()
        (folder / "checkpoints" / "RUN").write_text("1")
        for name in {e.name for _, e in read(folder / "journal.jsonl") if isinstance(e, Kept)}:
            (folder / "checkpoints" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(tmp_path / "whole" / "checkpoints" / name, folder / "checkpoints" / name)
        again = made(folder, blobs)
        again.optimize(search, checkpoint_every=0, progress=False)
        assert {t: (x.config, x.start, x.samples) for t, x in again.state.known.items()} == {
            t: (x.config, x.start, x.samples) for t, x in study.state.known.items()
        }
        for t in study.state.known:
            one, two = (s.load_model(t).state_dict() for s in (study, again))
            assert all(np.array_equal(one[k].numpy(), two[k].numpy()) for k in one), (
                f"{t}, cut after line {cut}"
            )


@pytest.mark.parametrize("policy", ["hop", "fifo"])
def test_copies_of_trials_that_run_on(tmp_path: Path, blobs: Any, policy: str) -> None:
    """Nobody waits: a copy may start from a state that its donor is past already."""
    search = shoal.PBT(num_samples=4, max_epochs=4, asynchronous=True, quantile_fraction=0.5)
    study = made(tmp_path / "s", blobs)
    study.optimize(search, policy, checkpoint_every=0, max_checkpoint_gb=1e-9, progress=False)
    copies = [t for t in study.state.known.values() if t.start is not None]
    assert copies and all(t.status == "finished" for t in study.trials)
    assert all(row["equal"] for row in study.replay())
    study.resume(progress=False)
    assert len(study.state.known) == 4 + len(copies)


def test_checkpoints_that_copies_start_from_are_there_when_needed(
    tmp_path: Path, blobs: Any
) -> None:
    study = made(tmp_path / "s", blobs)
    study.optimize("pbt", num_samples=4, max_epochs=4, max_checkpoint_gb=1e-9, progress=False)
    assert all(t.status == "finished" for t in study.trials)
    assert all(
        row["equal"] for row in study.replay([t for t in study.state.known if "-g" in t][-1:])
    )


def test_optuna_opens_the_log(tmp_path: Path, blobs: Any) -> None:
    study = made(tmp_path / "s", blobs)
    study.optimize(num_samples=2, max_epochs=2, progress=False, optuna_log=True)
    study.optimize(
        num_samples=3, max_epochs=2, progress=False
    )  # the log goes on, since it is there
    log = JournalStorage(JournalFileBackend(str(tmp_path / "s" / "optuna.log")))
    seen = optuna.load_study(study_name="s", storage=log)
    assert [(t.user_attrs, t.params, t.value, t.state.name) for t in seen.trials] == [
        ({"trial": t.id, "width": 8}, {"lr": t.config["lr"]}, t.value, "COMPLETE")
        for t in study.trials
    ]
    assert seen.best_trial.user_attrs["trial"] == study.best_trial.id


def test_a_searcher_of_ones_own_gets_what_it_leaves_open(tmp_path: Path, blobs: Any) -> None:
    @dataclass(frozen=True)
    class Mine:
        metric: str | None = None
        mode: str | None = None

        def start(self) -> None:
            return None

        def propose(self, view: Any, memory: None) -> tuple[Proposal, None]:
            assert (self.metric, self.mode) == ("accuracy", "max")
            return Proposal(), None

    made(tmp_path / "s", blobs).optimize(Mine(), progress=False)
    head = json.loads((tmp_path / "s" / "journal.jsonl").read_bytes().splitlines()[1])["d"]["head"]
    assert "Mine" in head["searcher"]["own"]


def test_a_misspelt_metric_is_told_at_the_first_score_and_set_right(
    tmp_path: Path, blobs: Any
) -> None:
    study = made(tmp_path / "s", blobs, metric="acc")
    with pytest.raises(
        shoal.StudyError, match="trials have no metric 'acc'; evaluations give accuracy"
    ):
        study.optimize(
            "halving(reduction_factor=2)", "fifo", num_samples=4, max_epochs=2, progress=False
        )
    assert not study.trials
    study = made(tmp_path / "s", blobs, metric="accuracy")
    study.optimize("halving(reduction_factor=2)", num_samples=4, max_epochs=2, progress=False)
    assert len(study.trials) == 4 and max(t.epochs for t in study.trials) == 2
    assert all(found["equal"] for found in study.replay())
    with pytest.raises(shoal.StudyError, match="begun with another search"):
        made(tmp_path / "s", blobs, metric="loss").optimize(
            "halving(reduction_factor=2)", num_samples=4, max_epochs=2, progress=False
        )


def test_numbers_may_grow_within_another_searcher_but_not_a_population(
    tmp_path: Path, blobs: Any
) -> None:
    study = made(tmp_path / "s", blobs)
    study.optimize("median(inner='patience')", num_samples=2, max_epochs=1, progress=False)
    study.optimize("median(inner='patience')", "fifo", num_samples=3, max_epochs=1, progress=False)
    assert len(study.trials) == 3
    for name in ("pbt", "median(inner='pbt')"):
        study = made(tmp_path / name, blobs)
        study.optimize(name, num_samples=2, max_epochs=1, progress=False)
        with pytest.raises(shoal.StudyError, match="num_samples: 2, now 3: its population"):
            study.optimize(name, num_samples=3, max_epochs=1, progress=False)


def without(journal: str, text: str) -> str:
    """The journal as it was written before lines had checksums, without this text."""
    unsealed = re.sub(r',"n":\d+,"c":"[0-9a-f]{8}"}\n', "}\n", journal)
    assert text in unsealed
    return unsealed.replace(text, "")


def scores_by_config(study: shoal.Study) -> dict[Any, list[float]]:
    found: dict[Any, list[float]] = {}
    for trial in study.trials:
        found.setdefault(trial.config["width"], []).append(trial.value)
    return found


def test_repetitions_of_a_grid_are_unlike(tmp_path: Path, blobs: Any) -> None:
    """Without a warning: each has a seed of its own."""
    study = shoal.create_study(
        blobs(),
        storage=tmp_path / "s",
        metric="loss",
        search_space={"width": shoal.grid([4, 8]), "lr": 0.1},
    )
    study.optimize(num_samples=3, max_epochs=1, progress=False)
    for scores in scores_by_config(study).values():
        assert len(set(scores)) == 3
    seeds = [trial.config.get("seed") for trial in study.trials]
    assert seeds == [None, None, 1, 1, 2, 2]


@pytest.mark.parametrize(
    ("space", "asked", "added", "names"),
    [
        ({"k": shoal.grid([1, 2, 1])}, {}, None, "t002 repeats t000"),
        ({"k": shoal.choice([1, 1])}, {"num_samples": 2}, None, "t001 repeats t000"),
        (
            {"k": shoal.choice([1, 2])},
            {"searcher": "optuna", "num_samples": 4},
            None,
            "repeats t00. exactly",
        ),
        ({"k": shoal.grid([1, 2])}, {}, {"k": 2}, "repeats"),
    ],
)
def test_equal_trials_are_warned_of(
    tmp_path: Path, space: Any, asked: Any, added: Any, names: str
) -> None:
    def train(config: dict[str, Any]) -> float:
        return float(config["k"])

    study = shoal.create_study(train, storage=tmp_path / "s", metric="value", search_space=space)
    if added is not None:
        study.enqueue(added)
    with pytest.warns(UserWarning, match=names) as caught:
        study.optimize(progress=False, **asked)
    said = [each for each in caught if "repeats" in str(each.message)]
    assert len(said) == 1 and "the same seed" in str(said[0].message)


def test_an_objective_that_draws_alike_is_warned_of(tmp_path: Path) -> None:
    def objective(trial: Any) -> float:
        return float(trial.suggest_categorical("k", [1, 2]))

    study = shoal.create_study(storage=tmp_path / "s")
    with pytest.warns(UserWarning, match=r"t002 repeats t00\d exactly"):
        study.optimize(objective, n_trials=3, progress=False)
    loop = shoal.create_study(storage=tmp_path / "loop")

    def three() -> None:
        for _ in range(3):
            trial = loop.ask()
            loop.tell(trial, trial.suggest_categorical("k", [1, 2]))

    with pytest.warns(UserWarning, match=r"repeats t00\d exactly"):
        three()


def test_what_an_objective_draws_is_spread_and_a_stored_study_draws_as_before(
    tmp_path: Path,
) -> None:
    def objective(trial: Any) -> float:
        rate: float = trial.suggest_float("lr", 0, 1)
        return rate + trial.suggest_int("n", 0, 3)

    study = shoal.create_study(storage=tmp_path / "s")
    study.optimize(objective, n_trials=4, progress=False)
    assert sorted(int(4 * t.config["lr"]) for t in study.trials) == [0, 1, 2, 3]
    assert sorted(t.config["n"] for t in study.trials) == [0, 1, 2, 3]

    rates = {}
    for name, text in (("spread", ""), ("before", ',"sampling":"sobol"')):
        folder = tmp_path / name
        study = shoal.create_study(
            lambda config: config["lr"],
            storage=folder,
            metric="value",
            search_space={"lr": shoal.uniform(0, 1)},
        )
        study.optimize(num_samples=1, progress=False)
        journal = folder / "journal.jsonl"
        journal.write_text(without(journal.read_text(), text))
        again = shoal.create_study(
            lambda config: config["lr"],
            storage=folder,
            metric="value",
            search_space={"lr": shoal.uniform(0, 1)},
            load_if_exists=True,
        )
        again.optimize(num_samples=4, progress=False)
        rates[name] = [trial.config["lr"] for trial in again.trials]
    drawn = shoal.Random({"lr": shoal.uniform(0, 1)}, sampling=None)
    spread = shoal.Random({"lr": shoal.uniform(0, 1)})
    assert rates["spread"] == [spread.config(n)["lr"] for n in range(4)]
    assert rates["before"][1:] == [drawn.config(n)["lr"] for n in range(1, 4)]


def test_as_many_under_way_as_leave_something_to_learn() -> None:
    def room(samples: int, policy: Any = "auto", **options: Any) -> int | None:
        search, given = (shoal.MedianStopping(shoal.ASHA(SPACE, samples, 9)), Options.of(**options))
        rule = (
            candidates.auto("auto", lambda name: Pack() if "pack" in name else Fifo())
            if policy == "auto"
            else policy
        )
        found: Any = per_slot(search, rule, given)
        return found.inner.per_slot

    assert room(8, Fifo()) == room(4) == 1 and room(12) == 3 and room(1000) == 8
    assert room(8, Pack(most=5)) == room(8, Every(9, Pack(most=5))) == 5
    assert room(64, backend="ray", slots=4) == 4
    assert room(64, backend="ray", address="auto") == 1, "nobody knows how many slots there are"


def test_left_without_a_number(tmp_path: Path, blobs: Any) -> None:
    with pytest.raises(ValueError, match="ASHA needs num_samples="):
        made(tmp_path / "s", blobs).optimize("asha", progress=False)


# -- between runs
# ----------------------------------------------------------------------------------------------


def test_trials_added_copied_and_stopped_by_hand(tmp_path: Path, blobs: Any) -> None:
    study = made(tmp_path / "s", blobs)
    study.optimize(num_samples=2, max_epochs=2, progress=False)
    added = study.enqueue({"width": 4, "lr": 0.01}, max_epochs=1)
    warm = study.clone("t001", {"lr": 0.05}, max_epochs=3)
    cold = study.clone("t001", warm_start=False)
    gone = study.enqueue({"width": 4, "lr": 0.02}, max_epochs=1)
    study.stop(gone)
    assert (added, warm, cold, gone) == ("added1", "t001-c1", "t001-c2", "added2")
    study.resume(progress=False)
    found = {t.id: (t.config, t.status, t.epochs) for t in study.trials}
    lr = study.state.known["t001"].config["lr"]  # type: ignore[index]
    assert found[added] == ({"width": 4, "lr": 0.01}, "finished", 1)
    assert found[warm] == ({"width": 8, "lr": 0.05}, "finished", 3)
    assert found[cold] == ({"width": 8, "lr": lr}, "finished", 2)
    assert found[gone][1:] == ("retired", 0)
    assert all(row["equal"] for row in study.replay())
    one, two = (study.load_model(t).state_dict() for t in ("t001", cold))
    assert all(np.array_equal(one[k].numpy(), two[k].numpy()) for k in one), (
        "the same configuration learns the same"
    )


def test_priority_and_widths_of_trials_by_hand_are_on_record(tmp_path: Path, blobs: Any) -> None:
    study = made(tmp_path / "s", blobs)
    study.optimize(num_samples=1, max_epochs=1, progress=False, priority=2.0, searcher="random")
    added = study.enqueue({"width": 4, "lr": 0.01}, max_epochs=1, widths=(1, 2), priority=5)
    copy = study.clone(added, warm_start=False)
    known = study.state.known
    assert [known[t].priority for t in ("t000", added, copy)] == [2.0, 5.0, 5.0]  # type: ignore[index]
    assert known[added].widths == known[copy].widths == (1, 2)
    with pytest.raises(ValueError, match="a priority must be > 0"):
        study.enqueue({"width": 4, "lr": 0.01}, max_epochs=1, priority=0)
    study.resume(progress=False)
    assert {t.status for t in study.trials} == {"finished"}
    page = study.report().read_text()
    assert "priority" in page and "1–2" in page
    with pytest.raises(shoal.StudyError, match="makes trials of one priority"):
        study.optimize("hyperband", max_epochs=2, priority=2.0)


def test_what_cannot_be_added(tmp_path: Path, blobs: Any) -> None:
    study = made(tmp_path / "s", blobs)
    with pytest.raises(shoal.StudyError, match="has not begun"):
        study.enqueue({"width": 4, "lr": 0.01})
    study.optimize(num_samples=1, max_epochs=2, progress=False)
    with pytest.raises(shoal.StudyError, match="there is no trial t009; known: t000"):
        study.clone("t009")
    with pytest.raises(
        shoal.StudyError, match="trained 2 epochs already, and its copy is to train 2 in all"
    ):
        study.clone("t000", {"lr": 0.1})
    shutil.rmtree(tmp_path / "s" / "checkpoints" / "t000")
    with pytest.raises(shoal.StudyError, match="of trial t000 is not there any more"):
        study.clone("t000", max_epochs=3)
    with pytest.raises(ValueError, match="a configuration holds"):
        study.enqueue({"width": object()})
    with study.folder.lock(), pytest.raises(shoal.StudyError, match="there is no trial t007"):
        study.stop("t007")
    with pytest.raises(shoal.StudyError, match="is not running: there is nothing to stop"):
        study.stop()
    assert len(study.trials) == 1


def test_a_space_may_hold_what_json_lacks(tmp_path: Path, blobs: Any) -> None:
    """A study that was resumed draws what it would have drawn; nothing became None on the way."""
    space = {"width": 4, "lr": 0.01, "clip": shoal.choice([1.0, float("inf")])}
    study = shoal.create_study(blobs(), storage=tmp_path / "s", search_space=space, seed=1)
    study.optimize("asha", num_samples=3, max_epochs=1, progress=False)
    whole = shoal.create_study(blobs(), storage=tmp_path / "whole", search_space=space, seed=1)
    whole.optimize("asha", num_samples=8, max_epochs=1, progress=False)
    searcher = rebuild(last_head(study.folder.lines())).searcher
    drawn = [replace(searcher, num_samples=8)._draws(i)["clip"] for i in range(8)]  # type: ignore[type-var]
    assert drawn == [t.config["clip"] for t in whole.trials] and set(drawn) == {1.0, float("inf")}


def test_no_epochs_are_refused_and_not_taken_for_the_recipes(tmp_path: Path, blobs: Any) -> None:
    with pytest.raises(ValueError, match="max_epochs must be >= 1; got 0"):
        made(tmp_path / "s", blobs).optimize("asha", num_samples=2, max_epochs=0, progress=False)


def test_progress_tells_a_pause_at_a_rung_from_an_end(
    tmp_path: Path, blobs: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    study = made(tmp_path / "s", blobs)
    study.optimize("halving(reduction_factor=2)", num_samples=2, max_epochs=2)
    lines = capsys.readouterr().out.splitlines()
    said = [line.partition("] ")[2].partition(":")[0] for line in lines]
    (best,) = [line[:4] for line in said if "finished" in line]
    assert [line for line in said if line.startswith(best)] == [
        f"{best} paused at epoch 1",
        f"{best} promoted to epoch 2",
        f"{best} finished at epoch 2",
    ]
    (other,) = {"t000", "t001"} - {best}
    assert [line for line in said if line.startswith(other)] == [f"{other} paused at epoch 1"]


def test_progress_tells_who_was_stopped_at_which_epoch(
    tmp_path: Path, blobs: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    study = made(tmp_path / "s", blobs)
    study.optimize("asha(stopping=True)", num_samples=2, max_epochs=2)
    out = capsys.readouterr().out
    assert "t000 finished: " in out
    assert "t001 stopped early at epoch 1: " in out
    # one word wherever people read; the value of the API and the journal's stays
    assert study.trials[1].status == "retired"
    assert "t001  stopped early\n" in (tmp_path / "s" / "log.txt").read_text()
    shown = status_lines(summary(study.lines()))
    assert "trials   2: 1 finished, 1 stopped early" in shown
    page = study.report().read_text()
    assert '<i class="chip retired">stopped early</i>' in page
    assert summary(study.lines())["trials"]["retired"] == 1
    with pytest.raises(shoal.StudyError, match="t001 was stopped early, and only"):
        study.extend("t001", 9)


def test_a_new_study_says_at_once_what_it_does(
    tmp_path: Path,
    blobs: Any,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The check of the recipe takes seconds: until then nothing else is shown, nor is there a
    study for `shoal status`."""
    heard = []
    folder = tmp_path / "s"

    def slow(*given: Any) -> Any:
        heard.append(capsys.readouterr().out)
        if not folder.joinpath("journal.jsonl").exists():
            with pytest.raises(shoal.StudyError, match="has not begun: the process"):
                _status_of_all(folder, False, False)
        return data_of(*given)

    monkeypatch.setattr("shoal.study.run.data_of", slow)
    for progress, says in ((True, "checking the recipe with one batch …\n"), (False, "")):
        heard.clear()
        shutil.rmtree(folder, ignore_errors=True)
        study = made(folder, blobs)
        study.optimize(num_samples=1, max_epochs=1, progress=progress)
        assert heard[0].partition("data and ")[2] == says
    assert capsys.readouterr().out == ""
    study.optimize(num_samples=1, max_epochs=2)
    assert "checking" not in capsys.readouterr().out
    with pytest.raises(shoal.StudyError, match="there is no study"):
        _status_of_all(tmp_path / "nowhere", False, False)


# -- what functions give late, or never
# ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("searcher", "samples", "came"),
    [("hyperband", None, {1: 6, 3: 6, 9: 5}), ("halving", 27, {1: 18, 3: 6, 9: 3})],
)
def test_functions_without_checkpoints_keep_to_the_rungs(
    tmp_path: Path, searcher: str, samples: int | None, came: dict[int, int]
) -> None:
    """More wait at a rung than may be at rest, so that some begin again."""

    def train(config: dict[str, Any]) -> None:
        for _ in range(40):
            shoal.report({"score": config["q"]})

    study = shoal.create_study(
        train,
        storage=tmp_path / "s",
        metric="score",
        mode="max",
        search_space={"q": shoal.uniform(0, 1)},
    )
    study.optimize(searcher, num_samples=samples, max_epochs=9, progress=False)
    counts: dict[int, int] = {}
    for trial in study.trials:
        counts[int(trial.epochs)] = counts.get(int(trial.epochs), 0) + 1
    assert counts == came


def helper(score: float, kept: Any) -> None:
    shoal.report({"score": score}, checkpoint=kept)


def test_pbt_needs_checkpoints(tmp_path: Path) -> None:
    called = []

    def without(config: dict[str, Any]) -> None:
        called.append(config)
        for _ in range(4):
            shoal.report({"score": config["q"]})

    def objective(trial: Any) -> float:
        called.append(trial)
        trial.report(trial.suggest_float("q", 0, 1), 0)
        return 0.0

    space = {"q": shoal.uniform(0, 1)}
    for name, function in (("f", without), ("o", objective)):
        study = shoal.create_study(
            function, storage=tmp_path / name, metric="score", search_space=space
        )
        with pytest.raises(shoal.StudyError, match="this function reports without one"):
            study.optimize("pbt", num_samples=4, max_epochs=4, progress=False)
    assert not called and not (tmp_path / "f" / "journal.jsonl").exists()

    def through_a_helper(config: dict[str, Any]) -> None:
        kept = shoal.restore() or {"done": 0}
        while True:
            kept["done"] += 1
            helper(config["q"], kept)

    study = shoal.create_study(
        through_a_helper, storage=tmp_path / "h", metric="score", search_space=space
    )
    study.optimize("pbt", num_samples=4, max_epochs=3, progress=False)
    assert any("-g" in trial.id for trial in study.trials)

    def at_odd_reports(config: dict[str, Any]) -> None:
        for number in range(4):
            kept = {"number": number} if number % 2 else None
            shoal.report({"score": config["q"]}, checkpoint=kept)

    study = shoal.create_study(
        at_odd_reports, storage=tmp_path / "odd", metric="score", search_space=space
    )
    with pytest.raises(ValueError, match="has none at the end of an interval"):
        study.optimize("pbt", num_samples=4, max_epochs=4, progress=False)


def at_the_end(config: dict[str, Any]) -> dict[str, float]:
    for _ in range(4):
        shoal.report({"loss": 1.0})
    return {"score": float(config["k"])}


def each_second(config: dict[str, Any]) -> None:
    for number in range(5):
        late = {"score": float(config["k"])} if number % 2 else {}
        shoal.report({"loss": 1.0, **late})


@pytest.mark.parametrize("function", [at_the_end, each_second])
@pytest.mark.parametrize("searcher", [None, "median", "patience(epochs=9)", "optuna"])
@pytest.mark.filterwarnings("ignore:trials have no metric 'score' so far")
@pytest.mark.filterwarnings("ignore:trial t:UserWarning")
def test_a_metric_may_come_late(tmp_path: Path, function: Any, searcher: Any) -> None:
    study = shoal.create_study(
        function,
        storage=tmp_path / "s",
        metric="score",
        mode="max",
        search_space={"k": shoal.grid([1, 3, 2])},
    )
    asked = {"num_samples": 9} if searcher == "optuna" else {}
    study.optimize(searcher, progress=False, **asked)
    assert study.best_trial.config["k"] == max(t.config["k"] for t in study.trials)
    if searcher is None:
        rows = study.trials_dataframe()
        assert list(rows["last.score"]) == [1, 3, 2]
        assert list(rows["last.loss"]) == [1, 1, 1]


def test_a_rung_before_the_metric_is_one_error(tmp_path: Path) -> None:
    def run(name: str, searcher: str, **asked: Any) -> shoal.Study:
        study = shoal.create_study(
            each_second,
            storage=tmp_path / name,
            metric="score",
            mode="max",
            search_space={"k": shoal.grid([*range(9, 0, -1)])},
        )
        study.optimize(searcher, progress=False, max_epochs=4, **asked)
        return study

    for name, searcher in (
        ("halving", "halving"),
        ("asha", "asha"),
        ("hyperband", "hyperband(reduction_factor=4)"),
    ):
        with pytest.raises(
            ValueError, match="no metric 'score'; evaluations give loss: trial t... came to an end"
        ):
            run(name, searcher, num_samples=9)
    study = run("later", "asha(grace_period=2, reduction_factor=2)", num_samples=9)
    assert study.best_trial.epochs == 4
    study = run("stopping", "asha(stopping=True, reduction_factor=2)", num_samples=9)
    assert {trial.status for trial in study.trials} == {"finished", "retired"}


def test_a_metric_that_never_comes_is_warned_of_and_ends_the_study(tmp_path: Path) -> None:
    study = shoal.create_study(
        each_second,
        storage=tmp_path / "s",
        metric="f1",
        mode="max",
        search_space={"k": shoal.grid([1, 2, 3])},
    )
    with (
        pytest.warns(UserWarning, match="no metric 'f1' so far; evaluations give loss"),
        pytest.raises(ValueError, match="no metric 'f1'; evaluations give loss, score"),
    ):
        study.optimize(progress=False)
    assert len([t for t in study.trials if t.scores]) == 1


def test_a_recipe_may_score_by_epoch(tmp_path: Path, blobs: Any) -> None:
    class Seldom(blobs):  # type: ignore[misc]
        def validation_step(self, model: Any, batch: Any, epoch: int) -> Any:
            found = super().validation_step(model, batch)
            if epoch % 2:
                return {"other": found["accuracy"]}
            return found

    study = shoal.create_study(
        Seldom(), storage=tmp_path / "s", metric="accuracy", search_space=SPACE
    )
    study.optimize(num_samples=2, max_epochs=3, progress=False)
    assert study.best_trial.value == study.best_trial.scores[1][1]["accuracy"]
