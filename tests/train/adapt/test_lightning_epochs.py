"""A LightningModule whose schedule depends on the number of epochs, in studies that say it."""

import warnings
from pathlib import Path
from typing import Any

import adapt_kit as kit
import pytest
import torch
from adapt_kit import Dots, Net, OneCycle
from torch.utils.data import DataLoader
from typer.testing import CliRunner

import shoal
from shoal.cli import app
from shoal.core.errors import StudyError

SPACE = {"lr": shoal.grid([0.05])}


def trained(folder: Path, epochs: int, kind: Any = OneCycle, **given: Any) -> Any:
    """A study of one trial, for so many epochs."""
    recipe = shoal.lightning(kind, datamodule=Dots, **given)
    return kit.searched(recipe, folder, SPACE, max_epochs=epochs)


def same(one: Any, other: Any) -> bool:
    """Whether the last weights of two studies' trials are equal."""
    first, second = (study.best_model(which="last").state_dict() for study in (one, other))
    return all(torch.equal(first[name], second[name]) for name in first)


def scheduled(study: Any) -> Any:
    """For how many epochs schedules are, as the journal has it."""
    return study.folder.head()["schedule_epochs"]


def test_a_study_says_how_long_its_trials_train(tmp_path: Path) -> None:
    said = trained(tmp_path / "said", 3)
    given = trained(tmp_path / "given", 3, max_epochs=3)
    assert same(said, given)
    assert (scheduled(said), scheduled(given)) == (3, 3)
    assert all(
        row["verdict"] in ("equal", "agrees")
        for row in shoal.load_study(tmp_path / "said").replay()
    )


def test_one_recipe_is_in_two_studies(tmp_path: Path) -> None:
    recipe = shoal.lightning(OneCycle, datamodule=Dots)
    short = kit.searched(recipe, tmp_path / "short", SPACE, max_epochs=2)
    long = kit.searched(recipe, tmp_path / "long", SPACE, max_epochs=4)
    assert (scheduled(short), scheduled(long)) == (2, 4)
    assert all(row["verdict"] in ("equal", "agrees") for row in [*short.replay(), *long.replay()])


def test_the_longest_rung_counts(tmp_path: Path) -> None:
    recipe = shoal.lightning(OneCycle, datamodule=Dots)
    space = {"lr": shoal.grid([0.05, 0.1, 0.2, 0.4])}
    study = kit.searched(
        recipe, tmp_path, space, searcher="asha(num_samples=4, reduction_factor=2)", max_epochs=4
    )
    assert scheduled(study) == 4
    assert all(row["verdict"] in ("equal", "agrees") for row in study.replay())


def test_trials_longer_than_the_recipes_schedule_are_refused(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="max_epochs=2, and trials are to train for 3"):
        trained(tmp_path, 3, max_epochs=2)
    assert not (tmp_path / "journal.jsonl").exists()


def test_a_recipes_longer_schedule_is_warned_of_and_grown_into(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="schedules are laid out for 4"):
        study = trained(tmp_path / "grown", 2, max_epochs=4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        study.optimize(max_epochs=4, progress=False)
    assert same(study, trained(tmp_path / "once", 4, max_epochs=4))
    recipe = shoal.lightning(OneCycle, datamodule=Dots, max_epochs=6)
    again = shoal.create_study(
        recipe,
        storage=tmp_path / "grown",
        metric="val_loss",
        search_space=SPACE,
        load_if_exists=True,
    )
    with pytest.raises(StudyError, match="laid out for 4 epochs, and the recipe now"):
        again.optimize(max_epochs=4, progress=False)


def test_no_trial_trains_beyond_its_schedule(tmp_path: Path) -> None:
    study = trained(tmp_path, 2)
    lines = len(study.folder.lines())
    for longer in (
        lambda: shoal.load_study(tmp_path).optimize(max_epochs=3, progress=False),
        lambda: study.extend("t000", max_epochs=3),
        lambda: study.enqueue({"lr": 0.1}, max_epochs=3),
        lambda: study.clone("t000", {"lr": 0.1}, max_epochs=3),
    ):
        with pytest.raises(StudyError, match="laid out for max_epochs=2"):
            longer()
    assert len(study.folder.lines()) == lines
    study.enqueue({"lr": 0.1}, max_epochs=2)
    shoal.load_study(tmp_path).optimize(max_epochs=2, progress=False)
    assert [trial.status for trial in study.trials] == ["finished", "finished"]


class InItsStep(Net):
    """It asks nothing while it is built."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        left = 1 - self.current_epoch / self.trainer.max_epochs
        return super().training_step(batch, batch_idx) * left


def test_a_step_that_asks_is_found_and_others_may_grow(tmp_path: Path) -> None:
    assert scheduled(trained(tmp_path / "asks", 2, InItsStep)) == 2
    function = shoal.lightning(lambda config: InItsStep(**config), datamodule=Dots)
    made = kit.searched(function, tmp_path / "made", SPACE, max_epochs=2)
    assert scheduled(made) == 2
    free = trained(tmp_path / "free", 2, Net)
    free.optimize(max_epochs=3, progress=False)
    assert scheduled(free) is None
    assert same(free, trained(tmp_path / "once", 3, Net))


FILE = """
import sys
sys.path.insert(0, {kit!r})
from adapt_kit import Dots as Given, OneCycle

class Module(OneCycle):
    pass

class Data(Given):
    pass
"""


def test_the_command_line_says_it(tmp_path: Path) -> None:
    file = tmp_path / "file.py"
    file.write_text(FILE.format(kit=str(Path(__file__).parent)))
    place = tmp_path / "study"
    asked = [f"{file}:Module", "--space", "lr=grid([0.05,0.1])"]
    more = ["--metric", "val_loss", "--max-epochs", "2", "--storage", str(place)]
    for command in (["check", *asked], ["run", *asked, *more]):
        found = CliRunner().invoke(app, command)
        assert found.exit_code == 0, found.output
    assert scheduled(shoal.load_study(place)) == 2


class ByPass(OneCycle):
    """It logs two scores of a whole pass over the validation data, as many modules do."""

    def __init__(self, lr: float = 0.1) -> None:
        super().__init__(lr=lr)
        self.seen: list[Any] = []

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.seen.append((self(batch[0]), batch[1]))

    def on_validation_epoch_end(self) -> None:
        out, labels = (torch.cat(parts) for parts in zip(*self.seen, strict=True))
        self.seen.clear()
        self.log("val_loss", torch.nn.functional.cross_entropy(out, labels))
        self.log("val_acc", (out.argmax(1) == labels).float().mean())


def test_trains_and_stops_early_as_in_a_trainer(tmp_path: Path) -> None:
    rate = 0.1
    loader = DataLoader(kit.dots(100, 0), batch_size=16)
    scored = DataLoader(kit.dots(50, 1), batch_size=32)
    recipe = shoal.lightning(ByPass, train=loader, valid=scored)
    study = kit.searched(
        recipe,
        tmp_path,
        {"lr": shoal.grid([rate])},
        metric="val_acc",
        mode="max",
        searcher="patience(epochs=2, metric='val_loss', mode='min')",
        max_epochs=20,
    )
    plain = ByPass(lr=rate)
    plain.load_state_dict(kit.begun(study.recipe, {"lr": rate}))
    early = kit.L.pytorch.callbacks.EarlyStopping("val_loss", patience=2)
    trainer = kit.fitted(plain, list(loader), scored, 20, callbacks=[early])
    ours = study.trials_dataframe().iloc[0]
    assert ours["status"] == "retired"
    assert ours["epochs"] == trainer.current_epoch < 20
    for name in ("val_loss", "val_acc"):
        theirs = float(trainer.callback_metrics[name])
        assert ours[f"last.{name}"] == pytest.approx(theirs, abs=1e-5)
    weights = study.best_model(which="last").state_dict()
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(weights[name], value, rtol=0, atol=1e-5)
