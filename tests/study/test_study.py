"""The door, on the local backend."""

import json
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import preloaded
import pytest

import shoal
from shoal import reporting
from shoal.core.errors import StudyError
from shoal.core.event import Advanced, Commanded, Evaluated, Failed, Fell, Kept, Opened, Planned
from shoal.core.plan import Proposal
from shoal.engine.journal import Line, encode, read, replay
from shoal.study.folder import Folder
from shoal.study.speeds import believer, profile_of


def finished(study: shoal.Study) -> bool:
    return all(trial.status == "finished" for trial in study.trials)


def same_weights(one: shoal.Study, two: shoal.Study) -> bool:
    pairs = [
        (one.load_model(t).state_dict(), two.load_model(t).state_dict()) for t in one.state.known
    ]
    return all(np.array_equal(a[k].numpy(), b[k].numpy()) for a, b in pairs for k in a)


def test_a_grid_is_trained_ranked_and_loaded(tmp_path: Path, blobs: Any) -> None:
    study = shoal.create_study(blobs(), storage=tmp_path / "s")
    study.optimize(progress=False)
    assert [t.config for t in study.trials] == [
        {"width": w, "lr": lr} for w in (4, 8) for lr in (1e-2, 1e-3)
    ]
    assert finished(study) and all(t.epochs == 2 and t.samples == 180 for t in study.trials)
    best = study.best_trial
    assert best.value == max(t.value for t in study.trials) == best.scores[-1][1]["accuracy"]
    model = study.best_model()
    assert not model.training
    data = study.recipe.data()
    x, y = (
        np.concatenate(parts)
        for parts in zip(*(data.read(s) for s in data.validation), strict=True)
    )
    import torch

    right = (model(torch.as_tensor(x)).argmax(1).numpy() == y).mean()
    assert right == pytest.approx(best.value)
    assert len(study.models(top=3)) == 3
    table = study.trials_dataframe()
    assert list(table["config.width"]) == [4, 4, 8, 8] and table["last.accuracy"].notna().all()
    log = (tmp_path / "s" / "log.txt").read_text().splitlines()
    assert any("t000" in line and "accuracy" in line for line in log)


@pytest.mark.parametrize("policy", ["fifo", "hop", "hop-lrw", "hop-random"])
def test_each_policy_visits_every_shard_once_an_epoch_and_replays_bit_for_bit(
    tmp_path: Path, blobs: Any, policy: str
) -> None:
    study = shoal.create_study(blobs(), storage=tmp_path / "s")
    study.optimize(policy=policy, progress=False)
    for trial in study.state.known:
        visits = study.state.visits[trial]
        assert sorted((v.epoch, v.shard) for v in visits) == [
            (e, s) for e in (0, 1) for s in ("s000", "s001", "s002")
        ]
    rows = study.replay()
    assert len(rows) == 4 and all(row["equal"] and row["difference"] == 0 for row in rows)


def test_training_on_the_whole_data_equals_hopping_in_the_same_order(
    tmp_path: Path, blobs: Any
) -> None:
    """A trial's weights are a function of its visits: both policies over one shard make the
    same ones.
    """
    studies = []
    for policy in ("fifo", "hop"):
        study = shoal.create_study(blobs(shards=1), storage=tmp_path / policy)
        study.optimize(policy=policy, progress=False)
        studies.append(study)
    assert same_weights(*studies)


def timeless(path: Path) -> list[str]:
    """The journal without what a clock or the place had a hand in."""
    kept = []
    for _, entry in read(path):
        if isinstance(entry, Opened):
            continue
        if isinstance(entry, Advanced):
            entry = Advanced(entry.samples, entry.values, entry.visits)
        kept.append(encode(0.0, entry).decode())
    return kept


@pytest.mark.parametrize("policy", ["fifo", "hop", "hop-random"])
def test_equal_seeds_give_equal_journals_with_a_given_profile(
    tmp_path: Path, blobs: Any, policy: str
) -> None:
    profile = tmp_path / "p.toml"
    costs = "".join(f"{name} = 0.0\n" for name in ("memory", "build", "evaluate", "save", "switch"))
    profile.write_text(
        f"[[rows]]\nrates = [50.0]\n{costs}"
    )  # 90 samples an epoch: a state is kept every 2 of 3 visits
    journals = []
    for name in ("a", "b"):
        study = shoal.create_study(blobs(), storage=tmp_path / name)
        study.optimize(policy=policy, profile=profile, checkpoint_every=1.0, progress=False)
        journals.append(timeless(tmp_path / name / "journal.jsonl"))
    assert journals[0] == journals[1]
    assert sum('"Kept"' in line for line in journals[0]) > 4


def test_what_a_profile_leaves_open_is_measured_and_the_report_says_which(
    tmp_path: Path, blobs: Any
) -> None:
    profile = tmp_path / "p.toml"
    profile.write_text("[[rows]]\npoints = { 1 = 50.0, 2 = 90.0 }\nup = 3.0\n")
    study = shoal.create_study(blobs(), storage=tmp_path / "s")
    study.optimize(policy="fifo", profile=profile, progress=False)
    (head,) = [entry.head for _, entry in read(study.folder.journal) if isinstance(entry, Opened)]
    assert head["given"] == [{"config": {}, "figures": {"rate": 50.0, "rate@2": 90.0, "up": 3.0}}]
    believed = believer(profile_of(profile))(study.state)
    trial = study.trials[0].id
    assert believed.curve(trial, 2) == pytest.approx([50.0, 90.0])
    measured = next(iter(study.state.figures.values()))
    assert measured["build"] > 0 and believed.cost(trial).build == measured["build"]
    page = study.report().read_text()
    assert "p.toml" in page and "What it leaves open was measured" in page
    assert any(
        "given" in line and "rate@2" in line
        for line in reporting.status_lines(reporting.summary(study.lines()))
    )


def test_a_raising_and_a_diverging_trial_harm_no_other(tmp_path: Path, blobs: Any) -> None:
    space = {"width": shoal.grid([4, 6, 8]), "lr": 1e-2}
    recipe = blobs(fail=4, diverge=6)
    recipe.nan_patience = 3
    study = shoal.create_study(recipe, storage=tmp_path / "s", search_space=space)
    study.optimize(progress=False)
    raised, diverged, fine = study.trials
    assert raised.status == "failed: RuntimeError: no such width"
    assert diverged.status.startswith("failed: diverged")
    assert fine.status == "finished" and study.best_trial.id == fine.id
    text = (tmp_path / "s" / "trials" / "t000" / "error.txt").read_text()
    assert "Traceback" in text and "no such width" in text


@pytest.mark.nightly
def test_resume_from_every_prefix_of_the_journal(
    tmp_path: Path, blobs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever was written when the power went, the study ends with the undisturbed weights."""
    from shoal.train.lane.checkpoints import Checkpoints

    whole = shoal.create_study(blobs(), storage=tmp_path / "whole")
    with monkeypatch.context() as patch:
        patch.setattr(
            Checkpoints, "delete", lambda self, name: None
        )  # later prefixes need states that are replaced by then
        whole.optimize(policy="hop", checkpoint_every=0, progress=False)
    journal = (tmp_path / "whole" / "journal.jsonl").read_bytes().splitlines(keepends=True)
    stored = {
        str(p.relative_to(tmp_path / "whole" / "checkpoints")): p
        for p in (tmp_path / "whole" / "checkpoints").rglob("*")
        if p.is_file()
    }
    assert len(journal) > 60
    for cut in range(1, len(journal)):
        folder = tmp_path / f"cut{cut}"
        folder.mkdir()
        (folder / "journal.jsonl").write_bytes(
            b"".join(journal[:cut]) + journal[cut][: len(journal[cut]) // 2]
        )
        kept = [e for _, e in read(folder / "journal.jsonl") if isinstance(e, Kept)]
        for name in ["RUN", *{entry.name for entry in kept}]:
            (folder / "checkpoints" / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / "checkpoints" / name).write_bytes(stored[name].read_bytes())
        study = shoal.create_study(blobs(), storage=folder, load_if_exists=True)
        study.optimize(policy="hop", checkpoint_every=0, progress=False)
        assert finished(study) and same_weights(whole, study), f"cut after line {cut}"


def test_a_timeout_stops_with_everything_durable_and_resume_goes_on(
    tmp_path: Path, blobs: Any, late_after: Any
) -> None:
    recipe = blobs(samples=300)
    study = shoal.create_study(recipe, storage=tmp_path / "s")
    with late_after(3):
        study.optimize(max_epochs=8, timeout=5_000, progress=False)
    state = study.state
    assert state.stopped == "timeout" and state.trials
    assert all(
        len(state.visits[t]) == (state.kept[t].visits if t in state.kept else 0)
        for t in state.known
    )
    done = dict(state.done)
    study.resume(progress=False)
    assert finished(study)
    fell = [x.entry for x in study.lines() if isinstance(x.entry, Fell)]
    assert not fell and sum(done.values()) > 0
    undisturbed = shoal.create_study(recipe, storage=tmp_path / "u")
    undisturbed.optimize(max_epochs=8, progress=False)
    assert same_weights(study, undisturbed)


def test_an_optimized_study_is_left_as_it_is_and_more_samples_extend_it(
    tmp_path: Path, blobs: Any
) -> None:
    study = shoal.create_study(
        blobs(),
        storage=tmp_path / "s",
        search_space={"width": 4, "lr": shoal.loguniform(1e-4, 1e-1)},
    )
    study.optimize(num_samples=2, progress=False)
    first = [t.config for t in study.trials]
    study.optimize(num_samples=2, progress=False)
    assert len(study.trials) == 2
    study.optimize(num_samples=4, progress=False)
    assert (
        [t.config for t in study.trials][:2] == first and len(study.trials) == 4 and finished(study)
    )


def test_what_must_not_go_on_is_refused_before_any_work(tmp_path: Path, blobs: Any) -> None:
    study = shoal.create_study(blobs(), storage=tmp_path / "s")
    study.optimize(progress=False)
    size = (tmp_path / "s" / "journal.jsonl").stat().st_size
    with pytest.raises(StudyError, match="holds a study already"):
        shoal.create_study(blobs(), storage=tmp_path / "s")
    changed = shoal.create_study(blobs(seed=5), storage=tmp_path / "s", load_if_exists=True)
    with pytest.raises(StudyError, match="the data changed"):
        changed.optimize(progress=False)
    other = shoal.create_study(
        blobs(),
        storage=tmp_path / "s",
        load_if_exists=True,
        search_space={"width": shoal.grid([5]), "lr": 0.1},
    )
    with pytest.raises(StudyError, match="begun with another search"):
        other.optimize(progress=False)
    assert (tmp_path / "s" / "journal.jsonl").stat().st_size == size


class Silent:
    """A searcher of a user's own."""

    def start(self) -> None:
        return None

    def propose(self, view: Any, memory: None) -> tuple[Proposal, None]:
        return Proposal(), None


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"backend": "cloud"}, "backend must be"),
        ({"slots": 2}, "local backend has one slot"),
        ({"threads": 0}, "threads must be >= 1"),
        ({"feeders": "many"}, 'feeders must be "auto", or'),
        ({"feeders": -1}, 'feeders must be "auto", or'),
        ({"workers": -1}, 'workers must be "auto", or'),
        ({"workers": 1, "backend": "ray"}, "of the local backend.*use feeders="),
        ({"device": "cpu", "backend": "ray"}, "of the local backend.*leave it out"),
        ({"feeders": 1}, "of the ray backend.*use workers="),
        ({"address": "auto"}, "address is of the ray backend; got address='auto'"),
        ({"copies": 2}, "copies is of the ray backend.*give backend="),
        ({"stream_memory_gb": 2.0}, "stream_memory_gb is of the ray backend"),
        ({"stream_samples": 7}, "stream_samples is of the ray backend"),
        ({"widths": (1, 2)}, "one slot; got widths=\\(1, 2\\)"),
        ({"stream_samples": -1}, "stream_samples must be >= 0"),
        ({"speed": 3}, "unknown option speed"),
        ({"metric": "loss"}, "metric: give it to create_study, not to optimize"),
        ({"policy": "best"}, "unknown policy"),
        ({"max_epochs": -1}, "max_epochs must be > 0"),
        ({"widths": (2, 1)}, "widths must be"),
        ({"widths": (2, 4)}, "needs 2 slots for a trial; there are 1"),
        (
            {"widths": (2, 4), "searcher": "hyperband", "max_epochs": 2},
            "needs 2 slots for a trial; there are 1",
        ),
        (
            {"widths": (1, 2), "searcher": Silent()},
            "Silent has no field widths, so widths=.1, 2. cannot be met: use one of Shoal's",
        ),
        (
            {"max_concurrent": 2, "searcher": "hyperband"},
            "says itself how many are under way, so max_concurrent=2 cannot be met",
        ),
    ],
)
def test_bad_arguments_give_one_clear_error(
    tmp_path: Path, blobs: Any, wrong: dict[str, Any], says: str
) -> None:
    study = shoal.create_study(blobs(), storage=tmp_path / "s")
    with pytest.raises((StudyError, ValueError), match=says):
        study.optimize(progress=False, **wrong)
    assert not (tmp_path / "s" / "journal.jsonl").exists()


def test_widths_are_on_record_and_resume_keeps_them(tmp_path: Path, blobs: Any) -> None:
    study = shoal.create_study(blobs(), storage=tmp_path / "s")
    search = shoal.Random(blobs.search_space, 2, 1, widths=(1, 2))
    study.optimize(search, progress=False, timeout=0.0)
    head = next(line.entry.head for line in study.lines() if isinstance(line.entry, Opened))
    assert head["searcher"]["widths"] == [1, 2]
    with pytest.raises(StudyError, match="begun with another search"):
        study.optimize(progress=False)
    study.resume(progress=False)
    assert finished(study) and {t.widths for t in study.state.known.values()} == {(1, 2)}


def test_a_study_is_open_once(tmp_path: Path, blobs: Any) -> None:
    study = shoal.create_study(blobs(), storage=tmp_path / "s")
    study.folder.make()
    with study.folder.lock(), pytest.raises(StudyError, match=r"open already, held by process"):
        study.optimize(progress=False)


def test_an_unwritable_folder_is_one_error(tmp_path: Path, blobs: Any) -> None:
    (tmp_path / "file").write_text("")
    study = shoal.create_study(blobs(), storage=tmp_path / "file" / "s")
    with pytest.raises(StudyError, match="cannot be written to"):
        study.optimize(progress=False)


def test_a_full_disk_pauses_and_resume_goes_on(
    tmp_path: Path, blobs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from shoal.train.lane.checkpoints import Checkpoints

    save, calls = Checkpoints.save, []

    def full(self: Checkpoints, name: str, state: Any) -> Any:
        calls.append(name)
        if len(calls) == 2:
            raise OSError(28, "No space left on device")
        return save(self, name, state)

    study = shoal.create_study(blobs(), storage=tmp_path / "s")
    monkeypatch.setattr(Checkpoints, "save", full)
    with pytest.raises(shoal.StudyPaused, match=r"No space left on device.*the same command"):
        study.optimize(policy="fifo", progress=False)
    assert study.trials[0].status == "finished" and not any(
        t.status.startswith("failed") for t in study.trials
    )
    study.resume(progress=False)
    assert finished(study) and all(row["equal"] for row in study.replay())


def test_a_lost_shard_pauses_and_resume_goes_on(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for i in range(3):
        np.savez(
            tmp_path / f"part{i}.npz",
            x=rng.normal(size=(20, 5)).astype("float32"),
            y=rng.integers(0, 3, 20),
        )
    recipe = Files(tmp_path)
    study = shoal.create_study(
        recipe, storage=tmp_path / "s", search_space={"lr": shoal.grid([0.1, 0.01])}
    )
    (tmp_path / "part1.npz").rename(tmp_path / "away")
    with pytest.raises(shoal.StudyPaused, match="part1.npz"):
        study.optimize(max_epochs=1, progress=False, data_memory_gb=0)
    (tmp_path / "away").rename(tmp_path / "part1.npz")
    study.optimize(max_epochs=1, progress=False)
    assert finished(study)


class Files(shoal.Recipe):
    """Trains on a folder of .npz shards, listed once: a file lost later is noticed when it is
    read.
    """

    def __init__(self, folder: Path) -> None:
        self.listed = shoal.Data.folder(folder)

    def data(self) -> shoal.Data:
        return self.listed

    def configure_model(self, config: Any) -> Any:
        from torch import nn

        return nn.Linear(5, 3)

    def configure_optimizers(self, model: Any, config: Any) -> Any:
        import torch

        return torch.optim.SGD(model.parameters(), lr=config["lr"])

    def training_step(self, model: Any, batch: Any) -> Any:
        import torch

        return torch.nn.functional.cross_entropy(model(batch["x"]), batch["y"])


def test_retention_keeps_last_and_best_and_a_limit_spares_final_weights(
    tmp_path: Path, blobs: Any
) -> None:
    study = shoal.create_study(blobs(), storage=tmp_path / "s")
    study.optimize(max_epochs=6, checkpoint_every=0, progress=False)
    for trial in study.trials:
        files = {p.name for p in (tmp_path / "s" / "checkpoints" / trial.id).glob("*.pt")}
        assert f"{18:06d}-1.pt" in files and len(files) <= 2
        best = study.load_model(trial, "best")
        assert best is not None
    tight = shoal.create_study(blobs(), storage=tmp_path / "t")
    with pytest.warns(UserWarning, match="max_checkpoint_gb"):
        tight.optimize(max_epochs=3, checkpoint_every=0, max_checkpoint_gb=1e-6, progress=False)
    assert all(row["equal"] for row in tight.replay())


def test_checkpoints_may_lie_at_another_url(tmp_path: Path, blobs: Any) -> None:
    study = shoal.create_study(
        blobs(), storage=tmp_path / "s", checkpoints=f"file://{tmp_path}/weights"
    )
    study.optimize(checkpoint_every=0, progress=False)
    assert (
        list((tmp_path / "weights").rglob("*.pt")) and not (tmp_path / "s" / "checkpoints").exists()
    )
    assert shoal.load_study(tmp_path / "s").best_model() is not None


def test_a_study_keeps_its_checkpoints_wherever_it_is_opened_from(
    tmp_path: Path, blobs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Begun in a relative folder; moved; copied, and the copy gone on with; with weights
    elsewhere that nobody names again.
    """
    (tmp_path / "one").mkdir()
    monkeypatch.chdir(tmp_path / "one")
    shoal.create_study(blobs(), storage="s").optimize(
        max_epochs=1, checkpoint_every=0, progress=False
    )
    monkeypatch.chdir(tmp_path)
    assert shoal.load_study("one/s").best_model() is not None
    (tmp_path / "one" / "s").rename(tmp_path / "moved")
    moved = shoal.load_study("moved")
    held = sorted((tmp_path / "moved").rglob("*.pt"))
    assert moved.best_model() is not None
    shutil.copytree("moved", "copied")
    copied = shoal.load_study("copied")
    copied.resume(progress=False)
    copied.enqueue({"width": 4, "lr": 0.1}, max_epochs=1)
    copied.resume(progress=False)
    assert (
        all(row["equal"] for row in copied.replay())
        and sorted((tmp_path / "moved").rglob("*.pt")) == held
    )
    space = {"width": 4, "lr": shoal.loguniform(1e-3, 1e-1)}
    away = shoal.create_study(blobs(), storage="t", checkpoints="weights", search_space=space)
    away.optimize(num_samples=1, checkpoint_every=0, progress=False)
    again = shoal.create_study(blobs(), storage="t", search_space=space, load_if_exists=True)
    again.optimize(num_samples=2, checkpoint_every=0, progress=False)
    assert len(list(Path("weights").rglob("*.pt"))) >= 2 and not Path("t/checkpoints").exists()
    for _ in range(2):
        with pytest.raises(
            StudyError, match="there are checkpoints in .*/weights already, of another study"
        ):
            shoal.create_study(
                blobs(), storage="u", checkpoints="weights", load_if_exists=True
            ).optimize(progress=False)
    assert again.best_model() is not None
    like_its_own = shoal.create_study(blobs(), storage="v", checkpoints="far/v/checkpoints")
    like_its_own.optimize(max_epochs=1, checkpoint_every=0, progress=False)
    assert shoal.load_study("v").best_model() is not None and not Path("v/checkpoints").exists()


def test_scores_that_are_not_finite_are_not_the_best(tmp_path: Path, blobs: Any) -> None:
    class Odd(blobs):  # type: ignore[misc]
        def validation_step(self, model: Any, batch: Any) -> Any:
            scores = super().validation_step(model, batch)["accuracy"]
            return {"accuracy": scores + (float("inf") if model.infinite else 0.0)}

        def configure_model(self, config: Any) -> Any:
            model = super().configure_model(config)
            model.infinite = config["lr"] > 0.05
            return model

    space = {"width": 4, "lr": shoal.grid([0.1, 0.01])}
    study = shoal.create_study(
        Odd(), storage=tmp_path / "s", metric="accuracy", mode="max", search_space=space
    )
    study.optimize(max_epochs=1, checkpoint_every=0, progress=False)
    assert study.best_trial.id == "t001" and 0 < study.trials[1].best_value <= 1
    assert study.trials[0].best_value != study.trials[0].best_value, "nan"
    (tmp_path / "s" / "checkpoints" / study.state.kept[study.trials[1].id].name).unlink()
    with pytest.raises(StudyError, match="checkpoint t001/.* of trial t001 is not in .* any more"):
        study.best_model()


def test_load_study_needs_no_recipe_file(tmp_path: Path, blobs: Any) -> None:
    study = shoal.create_study(blobs(), storage=tmp_path / "s")
    study.optimize(progress=False)
    again = shoal.load_study(tmp_path / "s")
    assert again.best_trial == study.best_trial
    with pytest.raises(StudyError, match="there is no study"):
        shoal.load_study(tmp_path / "none")


KILLED = """
import sys, time
sys.path.insert(0, {tests!r})
import shoal
from conftest import Blobs
study = shoal.create_study(Blobs(), storage={folder!r}, load_if_exists=True)
study.optimize(max_epochs={epochs}, policy={policy!r}, checkpoint_every=0, progress=False)
"""


# Dies as the journal gets its 20th state, before that is written.
DIES = """
import os
from shoal.engine.journal import Journal
kept, append = [], Journal.append
def dying(journal, now, entry):
    kept.extend([entry] * (type(entry).__name__ == "Kept"))
    if len(kept) == 20:
        os.kill(os.getpid(), 9)
    append(journal, now, entry)
Journal.append = dying
"""


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["fifo", "hop"])
def test_kill_9_of_the_process_loses_no_trial(tmp_path: Path, blobs: Any, policy: str) -> None:
    script = DIES + KILLED.format(
        tests=str(Path(__file__).parents[1]), folder=str(tmp_path / "s"), policy=policy, epochs=6
    )
    killed = preloaded.run([sys.executable, "-c", script])
    assert killed.returncode == -signal.SIGKILL
    assert any(isinstance(x.entry, Planned) for x in Folder(tmp_path / "s").lines())
    study = shoal.create_study(blobs(), storage=tmp_path / "s", load_if_exists=True)
    assert study.state.trials
    study.optimize(max_epochs=6, policy=policy, progress=False)
    undisturbed = shoal.create_study(blobs(), storage=tmp_path / "u")
    undisturbed.optimize(max_epochs=6, policy=policy, progress=False)
    assert finished(study) and same_weights(study, undisturbed)
    assert all(row["equal"] for row in study.replay())


def test_sigterm_stops_at_the_next_moment_and_keeps_what_was_done(tmp_path: Path) -> None:
    script = KILLED.format(
        tests=str(Path(__file__).parents[1]), folder=str(tmp_path / "s"), policy="fifo", epochs=9999
    )
    running = preloaded.Popen([sys.executable, "-c", script])
    journal = tmp_path / "s" / "journal.jsonl"
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not (
        journal.exists() and b'"Evaluated"' in journal.read_bytes()
    ):
        time.sleep(0.05)
    running.terminate()
    assert running.wait(timeout=60) == 0
    lines: list[Line] = Folder(tmp_path / "s").lines()
    assert any(isinstance(x.entry, Commanded) and x.entry.why == "SIGTERM" for x in lines)
    state = replay(lines)
    assert all(
        len(state.visits[t]) == (state.kept[t].visits if t in state.kept else 0)
        for t in state.known
    )


def test_events_come_in_the_order_that_backends_owe(tmp_path: Path, blobs: Any) -> None:
    study = shoal.create_study(blobs(), storage=tmp_path / "s")
    study.optimize(policy="hop", checkpoint_every=0, progress=False)
    names = [type(x.entry).__name__ for x in study.lines()]
    rank = {"Advanced": 0, "Measured": 1, "Evaluated": 2, "Kept": 3, "Ended": 4, "Finished": 5}
    groups: list[list[str]] = [[]]
    for name in names:
        groups[-1].append(name) if name in rank else groups.append([])
    assert all(g == sorted(g, key=rank.__getitem__) for g in groups)
    assert not any(isinstance(x.entry, Failed) for x in study.lines())
    evaluated = [x.entry for x in study.lines() if isinstance(x.entry, Evaluated)]
    assert [e.epoch for e in evaluated if e.trial == "t000"] == [1, 2]
    assert json.loads(json.dumps(study.lines()[0].entry.head))["recipe"]["name"] == "Blobs"


@pytest.mark.usefixtures("shared_ray")
@pytest.mark.slow
@pytest.mark.parametrize("policy", ["equi", "doubling", "elastic", "waterfill", "hop-lrw"])
def test_policies_of_the_papers_drive_real_slots(tmp_path: Path, blobs: Any, policy: str) -> None:
    """No policy knows where it runs: the objects that the simulator runs train for real."""
    study = shoal.create_study(blobs(), storage=tmp_path / "s")
    study.optimize(policy=policy, backend="ray", slots=2, progress=False)
    assert finished(study)
    used = {
        slot
        for x in study.lines()
        if isinstance(x.entry, Planned)
        for gang in x.entry.start
        for slot in gang.slots
    }
    assert len(used) == 2
    assert all(row["equal"] for row in study.replay())


def test_what_a_study_looks_like(tmp_path: Path, blobs: Any) -> None:
    """It loads no recipe, and a damaged journal is no error there."""
    study = shoal.create_study(blobs(fail=4), storage=tmp_path / "s")
    assert repr(study) == f"<Study in {tmp_path / 's'}: not begun, max accuracy>"
    study.optimize(progress=False, max_epochs=1)
    said = f"<Study in {tmp_path / 's'}: 4 trials, 2 failed, 2 finished, max accuracy>"
    assert repr(study) == said
    shutil.rmtree(tmp_path / "s" / "recipe")
    assert repr(shoal.load_study(tmp_path / "s")) == said
    journal = tmp_path / "s" / "journal.jsonl"
    first, *others = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join([first, b"!", *others]))
    assert repr(study).startswith(f"<Study in {tmp_path / 's'}: ")


def test_a_trial_is_named_by_its_id_or_is_one_of_those_listed(tmp_path: Path, blobs: Any) -> None:
    study = shoal.create_study(blobs(), storage=tmp_path / "s")
    with pytest.raises(StudyError, match="there is no study in"):
        study.report()
    study.optimize(progress=False, workers=0)
    first = study.trials[0]
    assert study.clone(first, max_epochs=3) == f"{first.id}-c1"
    study.extend(first, 4)
    study.stop(study.trials[1])
    assert [row["trial"] for row in study.replay([first])] == [first.id]
    for odd in (None, [("lr", 0.1)], 3):
        with pytest.raises(StudyError, match="a configuration is a dict"):
            study.enqueue(odd, max_epochs=2)  # type: ignore[arg-type]
    for odd in (-1, "x", 1.5, None):
        with pytest.raises(StudyError, match="top must be a number of trials"):
            study.models(top=odd)  # type: ignore[arg-type]
