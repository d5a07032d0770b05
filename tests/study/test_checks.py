"""What is wrong is said before the first line is written, in one clear error."""

import random
import re
import sys
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import preloaded
import pytest
import torch
from journal_kit import unsealed
from torch import nn

import shoal
from shoal.core.errors import StudyError
from shoal.options import Options
from shoal.study import head
from shoal.study.backends import check_slots, slots_here
from shoal.study.folder import TrialsFailed
from shoal.study.head import platform_facts
from shoal.tools.check import replay_lines


def refused(study: shoal.Study, match: str, **given: Any) -> None:
    """The call is refused, nothing is written, and the folder takes a right call afterwards."""
    with pytest.raises(StudyError, match=match):
        study.optimize(progress=False, **given)
    assert not study.folder.journal.exists()


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"searcher": lambda config: 0.0}, "a searcher is a name, or an object with start"),
        ({"policy": lambda view: None}, "a policy is a name, or an object with start"),
        ({"policy": shoal.Hop}, "give an instance as policy"),
        ({"searcher": shoal.Random}, "give an instance as searcher"),
        ({"timeout": "60"}, "timeout must be seconds"),
        ({"timeout": -1.0}, "timeout must be seconds"),
        ({"profile": 3}, "profile= takes the path"),
        ({"num_samples": 2, "n_trials": 3}, "two names of one number"),
        ({"n_trials": 2.5}, "num_samples must be a whole number; got 2.5"),
        ({"max_epochs": "3"}, "max_epochs must be a number; got '3'"),
    ],
)
def test_arguments_are_checked_before_the_first_line(
    tmp_path: Path, blobs: Any, given: dict[str, Any], match: str
) -> None:
    study = shoal.create_study(blobs(), storage=tmp_path / "s")
    refused(study, match, **given)
    study.optimize(max_epochs=1, progress=False)
    assert len(study.trials) == 4


def test_an_optuna_log_without_a_metric_is_refused_before_the_first_line(
    tmp_path: Path, blobs: Any
) -> None:
    recipe = blobs()
    recipe.metric = None
    study = shoal.create_study(recipe, storage=tmp_path / "s")
    with pytest.raises(ValueError, match="metric"):
        study.optimize(progress=False, optuna_log=True)
    assert not study.folder.journal.exists()


def test_a_run_that_trained_nothing_binds_nobody(tmp_path: Path, blobs: Any) -> None:
    class Own:
        """A searcher that proposes nothing and raises."""

        def start(self) -> dict[str, Any]:
            return {}

        def propose(self, view: Any, memory: Any) -> Any:
            raise AttributeError("wrong")

    study = shoal.create_study(blobs(), storage=tmp_path / "s")
    with pytest.raises(AttributeError, match="wrong"):
        study.optimize(Own(), progress=False)
    study.optimize(max_epochs=1, progress=False)
    assert len(study.trials) == 4


def test_n_trials_is_num_samples(tmp_path: Path, blobs: Any) -> None:
    space = {"width": 4, "lr": shoal.loguniform(1e-3, 1e-1)}
    study = shoal.create_study(blobs(), storage=tmp_path / "s", search_space=space)
    study.optimize(n_trials=2, max_epochs=1, progress=False)
    assert len(study.trials) == 2


# -- scores ------------------------------------------------------------------------------------


@pytest.mark.parametrize("searcher", [None, "asha"])
def test_a_misspelt_metric_is_an_error_before_the_first_line(
    tmp_path: Path, blobs: Any, searcher: str | None
) -> None:
    study = shoal.create_study(blobs(), storage=tmp_path / "s", metric="acuracy")
    count = None if searcher is None else 4
    with pytest.raises(
        StudyError,
        match="no metric 'acuracy'; evaluations give accuracy, loss: did you mean 'accuracy'",
    ):
        study.optimize(searcher, "fifo", num_samples=count, progress=False)
    assert not study.folder.journal.exists()
    again = shoal.create_study(
        blobs(), storage=tmp_path / "s", metric="accuracy", mode="max", load_if_exists=True
    )
    again.optimize(searcher, "fifo", num_samples=count, progress=False)
    assert again.best_trial.value > 0


def test_a_misspelt_metric_to_foretell_by_is_an_error_at_the_first_score(
    tmp_path: Path, blobs: Any
) -> None:
    study = shoal.create_study(blobs(), storage=tmp_path / "s")
    with pytest.raises(
        ValueError, match="got 'los', evaluations give accuracy, loss: say foretell='loss'"
    ):
        study.optimize(policy="doubling(foretell='los')", max_epochs=3, progress=False)
    assert all(len(trial.scores) <= 1 for trial in study.trials)
    study = shoal.create_study(blobs(), storage=tmp_path / "again")
    study.optimize(policy="doubling(foretell='loss')", max_epochs=3, progress=False)
    assert all(len(trial.scores) == 3 for trial in study.trials)


@pytest.mark.parametrize("policy", ["explore", "doubling", "equi", "wrate", "srpt-k"])
def test_a_metric_of_which_more_is_better_foretells_no_end(
    tmp_path: Path, blobs: Any, policy: str
) -> None:
    """Said by its name, or by the study's mode; before any work starts."""
    study = shoal.create_study(blobs(), storage=tmp_path / "s")
    with pytest.raises(ValueError, match="got 'val_acc'|'val_acc': say foretell='loss'"):
        study.optimize(policy=f"{policy}(foretell='val_acc')", progress=False)
    ranked = shoal.create_study(blobs(), storage=tmp_path / "t", metric="score", mode="max")
    with pytest.raises(StudyError, match="more is better of 'score': say foretell"):
        ranked.optimize(
            policy=f"every(seconds=9, policy={policy}(foretell='score'))", progress=False
        )
    assert not study.trials and not ranked.trials


def test_a_metric_that_nothing_can_give_is_refused(tmp_path: Path, blobs: Any) -> None:
    class NoValidation(blobs):  # type: ignore[misc,valid-type]
        def data(self) -> shoal.Data:
            return shoal.Data.arrays(
                np.zeros((8, 5), "float32"), np.zeros(8, "int64"), validation=None
            )

    study = shoal.create_study(NoValidation(), storage=tmp_path / "s")
    refused(study, "ranked by 'accuracy'.*no validation part")


def test_all_trials_failing_raises_with_the_first_errors(tmp_path: Path, blobs: Any) -> None:
    class Raising(blobs):  # type: ignore[misc,valid-type]
        def training_step(self, model: Any, batch: Any, epoch: int) -> Any:
            if epoch:
                raise RuntimeError("no such luck")
            return super().training_step(model, batch)

    study = shoal.create_study(Raising(), storage=tmp_path / "s")
    with pytest.raises(TrialsFailed, match="all of 4 trials failed: .*no such luck .4 trials"):
        study.optimize(progress=False)
    assert all(trial.status.startswith("failed") for trial in study.trials)


# -- the recipe --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("attributes", "match"),
    [
        ({"batchsize": 64}, "'batchsize', which Shoal does not know: did you mean 'batch_size'"),
        ({"max_epoch": 3}, "did you mean 'max_epochs'"),
        ({"shuffle": "always"}, "shuffle must be"),
        ({"batch_size": "big"}, "batch_size must be"),
        ({"precision": "fp8"}, "precision must be"),
    ],
)
def test_wrong_attributes_are_refused(
    tmp_path: Path, blobs: Any, attributes: dict[str, Any], match: str
) -> None:
    wrong = type("Wrong", (blobs,), attributes)
    refused(shoal.create_study(wrong(), storage=tmp_path / "s"), match)


def test_attributes_of_ones_own_are_welcome(tmp_path: Path, blobs: Any) -> None:
    class Own(blobs):  # type: ignore[misc,valid-type]
        metrics = ("accuracy",)  # read below
        folder = "somewhere"

        def validation_step(self, model: Any, batch: Any) -> Any:
            found = super().validation_step(model, batch)
            return {name: found[name] for name in self.metrics}

    study = shoal.create_study(Own(), storage=tmp_path / "s")
    study.optimize(max_epochs=1, progress=False)
    assert len(study.trials) == 4


@pytest.mark.parametrize(
    ("space", "match"),
    [
        ({"width": 4}, r"reads config\['lr'\], and a configuration of the search has width"),
        ({"width": 4, "lr": 0.1, "batch_size": shoal.grid([8, "all"])}, "batch_size must be"),
        ({"width": 4, "lr": 0.1, "batchsize": shoal.grid([8, 16])}, "dimension 'batchsize'"),
    ],
)
def test_wrong_spaces_are_refused(
    tmp_path: Path, blobs: Any, space: dict[str, Any], match: str
) -> None:
    study = shoal.create_study(blobs(), storage=tmp_path / "s", search_space=space)
    refused(study, match)


def test_what_is_no_optimizer_is_refused(tmp_path: Path, blobs: Any) -> None:
    class Wrong(blobs):  # type: ignore[misc,valid-type]
        def configure_optimizers(self, model: Any, config: Mapping[str, Any]) -> Any:
            return "adam"

    refused(shoal.create_study(Wrong(), storage=tmp_path / "s"), "configure_optimizers")


def test_trying_a_recipe_changes_no_random_state(tmp_path: Path, blobs: Any) -> None:
    class Drawing(blobs):  # type: ignore[misc,valid-type]
        def configure_model(self, config: Mapping[str, Any]) -> nn.Module:
            random.random()
            np.random.rand()
            torch.rand(1)
            raise RuntimeError("left to the trial")

    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    study = shoal.create_study(Drawing(), storage=tmp_path / "s")
    with pytest.raises(StudyError, match="raised RuntimeError: left to the trial"):
        study.optimize(progress=False)
    assert not study.folder.journal.exists()
    assert random.getstate() == states[0]
    assert np.array_equal(np.random.get_state()[1], states[1][1])
    assert torch.equal(torch.get_rng_state(), states[2])


def test_a_list_in_a_space_is_a_choice(tmp_path: Path, blobs: Any) -> None:
    space = {"width": [4, 8], "lr": 0.1}
    study = shoal.create_study(blobs(), storage=tmp_path / "s", search_space=space)
    study.optimize(n_trials=6, max_epochs=1, progress=False)
    assert {trial.config["width"] for trial in study.trials} == {4, 8}
    assert shoal.load_study(tmp_path / "s").setup.space["width"] == shoal.choice([4, 8])


# -- slots -------------------------------------------------------------------------------------


def test_many_more_slots_than_cpus_are_refused(tmp_path: Path, blobs: Any) -> None:
    study = shoal.create_study(blobs(), storage=tmp_path / "s")
    refused(study, "slots=99999 is more than 4 for each", backend="ray", slots=99999)
    check_slots(Options(backend="ray", slots=4 * slots_here()))
    check_slots(Options(backend="ray", slots=99999, address="auto"))


# -- files beside the recipe -------------------------------------------------------------------

RECIPE = """
import numpy as np
import shoal
from beside_{name} import width

class Small(shoal.Recipe):
    search_space = {{"lr": shoal.grid([0.1, 0.01])}}
    metric, mode, max_epochs = "error", "min", 1

    def data(self):
        x = np.random.default_rng(0).normal(size=(40, 3)).astype("float32")
        return shoal.Data.arrays(x, x[:, 0], shards=2, validation=0.25)

    def configure_model(self, config):
        from torch import nn
        return nn.Linear(3, width())

    def configure_optimizers(self, model, config):
        import torch
        from lazily_{name} import scale
        return torch.optim.SGD(model.parameters(), lr=config["lr"] * scale)

    def training_step(self, model, batch):
        return ((model(batch[0])[:, 0] - batch[1]) ** 2).mean()

    def validation_step(self, model, batch):
        return {{"error": (model(batch[0])[:, 0] - batch[1]) ** 2}}
"""


@pytest.mark.parametrize("backend", ["local", pytest.param("ray", marks=pytest.mark.slow)])
def test_a_recipe_may_import_what_lies_beside_it(tmp_path: Path, backend: str) -> None:
    """Run by the command; then added to, resumed and replayed by processes that start anew."""
    if backend == "ray":
        pytest.importorskip("ray")
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / f"beside_{backend}.py").write_text("def width():\n    return 1\n")
    (folder / f"lazily_{backend}.py").write_text("scale = 1.0\n")
    (folder / "recipe.py").write_text(RECIPE.format(name=backend))
    storage = tmp_path / "s"
    options = ["--storage", str(storage), "--backend", backend, "--policy", "fifo"]
    if backend == "ray":
        options += ["--slots", "1"]
    command(tmp_path, "run", str(folder / "recipe.py"), *options)
    shoal.load_study(storage).enqueue({"lr": 0.05})
    command(tmp_path, "resume", str(storage))
    study = shoal.load_study(storage)
    assert len(study.state.ended) == len(study.state.known) > 1
    assert all(row["equal"] for row in study.replay())


def command(folder: Path, *arguments: str) -> None:
    """A command of `shoal`, in a process of its own."""
    done = preloaded.run(
        [sys.executable, "-m", "shoal.cli", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_a_lazy_layer_without_a_shape_is_refused(tmp_path: Path, blobs: Any) -> None:
    class Lazy(blobs):  # type: ignore[misc]
        def configure_model(self, config: Any) -> nn.Module:
            return nn.Sequential(nn.Flatten(), nn.LazyLinear(3))

    space = {"width": 8, "lr": 0.1}
    study = shoal.create_study(Lazy(), storage=tmp_path / "s", search_space=space)
    refused(study, "its LazyLinear waits for a first batch; run the model once")


# -- replay ------------------------------------------------------------------------------------


def test_replay_of_a_fused_trial_notices_a_wrong_learning_rate(tmp_path: Path, blobs: Any) -> None:
    space = {"width": 8, "lr": shoal.grid([1e-3, 2e-3])}
    study = shoal.create_study(blobs(), storage=tmp_path / "s", search_space=space)
    study.optimize(policy="pack", max_epochs=3, progress=False)
    assert all(row["fused"] and row["verdict"] in ("equal", "agrees") for row in study.replay())
    text = unsealed(study.folder.journal.read_text())
    study.folder.journal.write_text(text.replace('"lr":0.001', '"lr":0.0015'))
    rows = shoal.load_study(tmp_path / "s").replay()
    assert [row["verdict"] for row in rows] == ["differs", "equal"]


def test_replay_says_in_what_another_place_differs(
    tmp_path: Path, blobs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = shoal.create_study(
        blobs(), storage=tmp_path / "s", search_space={"width": 8, "lr": 0.1}
    )
    study.optimize(num_samples=1, max_epochs=1, progress=False)
    (row,) = study.replay()
    assert row["equal"] and row["elsewhere"] == []
    journal = study.folder.journal
    torchs = version("torch")
    moved = unsealed(journal.read_text()).replace(f'"torch":"{torchs}"', '"torch":"1.0"')
    moved = moved.replace('"instructions":"', '"instructions":"NEON and ')
    moved = re.sub('"processor":"[^"]*"', '"processor":"AMD EPYC, model 1"', moved)
    journal.write_text(moved.replace('"lr":0.1', '"lr":0.2'))
    (row,) = shoal.load_study(tmp_path / "s").replay()
    here = torch.backends.cpu.get_cpu_capability()
    said = [
        f"processor was AMD EPYC, model 1, is {platform_facts('cpu')['processor']}",
        f"instructions was NEON and {here}, is {here}",
        f"torch was 1.0, is {torchs}",
    ]
    assert row["elsewhere"] == said
    text = replay_lines({"trials": [row]})[0]
    assert "DIFFERS by up to" in text and "elsewhere" in text and said[2] in text
    text = replay_lines({"trials": [{**row, "elsewhere": []}]})[0]
    assert "processor, libraries and threads are those of the study" in text
    older = re.sub(r'"place":{[^}]*},', "", journal.read_text())
    journal.write_text(older)
    (row,) = shoal.load_study(tmp_path / "s").replay()
    assert "the processor was not recorded" in row["elsewhere"]


@pytest.mark.parametrize(
    ("text", "was", "other"),
    [
        ("cpu family\t: 25\nmodel\t\t: 17\nmodel name\t: AMD EPYC\n", "17", "18"),
        ("CPU implementer\t: 0x41\nCPU part\t: 0xd0c\n", "0xd0c", "0xd4f"),
    ],
)
def test_models_of_a_processor_of_one_name_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, was: str, other: str
) -> None:
    monkeypatch.setattr(head, "CPUINFO", tmp_path / "cpuinfo")
    processors = []
    another = text.replace(was, other)
    for told in (text, text + another, another):  # of several it is the first
        (tmp_path / "cpuinfo").write_text(told)
        processors.append(platform_facts("cpu")["processor"])
    assert processors[0] == processors[1] != processors[2]


def test_shoal_offers_few_names() -> None:
    assert len(shoal.__all__) <= 31
    assert all(getattr(shoal, name) is not None for name in shoal.__all__)


def test_a_metric_whose_mode_was_forgotten_is_told(tmp_path: Path, blobs: Any) -> None:
    class Modeless(blobs):  # type: ignore[misc,valid-type]
        mode = None

    with pytest.warns(UserWarning, match='give mode="max"'):
        shoal.create_study(Modeless(), storage=tmp_path / "s", metric="val_accuracy")
    with pytest.raises(StudyError, match="metric must be the name of one value"):
        shoal.create_study(blobs(), storage=tmp_path / "s", metric=["accuracy"])  # type: ignore[arg-type]
