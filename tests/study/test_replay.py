"""`replay` finds what is wrong with a trial, in whatever company it was trained; and it says of
what it cannot tell.

Wrong checkpoints are made by training a trial again, alone, with a fault put in.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from math import inf, nan
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from journal_kit import unsealed
from torch import nn
from typer.testing import CliRunner

import shoal
from shoal.cli import app
from shoal.core.errors import StudyError
from shoal.core.event import Kept
from shoal.study import replay
from shoal.train.fuse import gauge
from shoal.train.fuse.fused import Fused
from shoal.train.lane import optimizers
from shoal.train.lane.checkpoints import Checkpoints
from shoal.train.lane.optimization import Schedule
from shoal.train.slot.setup import TrainerSetup
from shoal.train.tools.verify import retrain

EPOCHS, SAMPLES, BATCH = 5, 96, 16
STEPS = 6  # of an epoch
_numbers = np.random.default_rng(0)
X = _numbers.normal(size=(SAMPLES, 6)).astype("float32")
Y = (X.sum(1) > 0).astype("int64")


class Net(shoal.Recipe):
    """Adam, a schedule by epochs, a layer with an integer buffer."""

    batch_size = BATCH
    middle: Any = staticmethod(nn.ReLU)

    def data(self) -> shoal.Data:
        return shoal.Data.arrays(X, Y, validation=None)

    def configure_model(self, config: Any) -> nn.Module:
        return nn.Sequential(nn.Linear(6, 8), self.middle(), nn.Linear(8, 2))

    def configure_optimizers(self, model: nn.Module, config: Any) -> Any:
        optimizer = torch.optim.Adam(model.parameters(), lr=config["lr"])
        return optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)

    def training_step(self, model: nn.Module, batch: Any) -> torch.Tensor:
        return nn.functional.cross_entropy(model(batch[0]), batch[1])


class Plain(Net):
    """SGD with momentum, whose steps nothing counts."""

    def configure_optimizers(self, model: nn.Module, config: Any) -> Any:
        optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"], momentum=0.9)
        return optimizer, shoal.LRSchedule(lambda epoch: 0.9**epoch)


class Normed(Net):
    middle = staticmethod(lambda: nn.BatchNorm1d(8))


class Random(Net):
    middle = staticmethod(lambda: nn.Dropout(0.5))


class Hot(Net):
    """At rates that are far too high any difference grows."""

    def configure_model(self, config: Any) -> nn.Module:
        layers = [nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear(32, 2))

    def configure_optimizers(self, model: nn.Module, config: Any) -> Any:
        return torch.optim.Adam(model.parameters(), lr=100 * config["lr"])


COMPANIES = {
    "alone": {"policy": "fifo"},
    "interleaved": {"policy": "pack", "fuse": False},
    "fused": {"policy": "pack"},
    "wide": {"policy": "fifo"},
}


@pytest.fixture(params=COMPANIES)
def company(request: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    """How trials were trained. "wide": they count as trained on several slots."""
    if request.param == "wide":
        as_wide(monkeypatch)
    return str(request.param)


def as_wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        replay, "_wide", lambda gangs: {each for gang in gangs for each in gang.trials}
    )


def trained(
    folder: Path, recipe: Net, company: str = "fused", epochs: int = EPOCHS, **options: Any
) -> shoal.Study:
    """Three trials."""
    options = {**COMPANIES[company], **options}
    study = shoal.create_study(
        recipe, storage=folder / "s", search_space={"lr": shoal.grid([0.001, 0.003, 0.01])}
    )
    study.optimize(max_epochs=epochs, progress=False, workers=0, **options)
    for name in names_kept(study):  # in files of their own, to be exchanged
        with suppress(FileNotFoundError):
            vault(study).save(name, vault(study).load(name))
    for pack in Path(study.folder.checkpoints).glob("*.zip"):
        pack.unlink()
    return study


def names_kept(study: shoal.Study, trial: str = "") -> dict[str, int]:
    """The durable states that there were, and how many visits each holds."""
    found = [line.entry for line in study.lines() if isinstance(line.entry, Kept)]
    return {each.name: each.visits for each in found if trial in ("", each.trial)}


def kept(study: shoal.Study, trial: str = "t001") -> dict[str, Any]:
    return vault(study).load(study.state.kept[trial].name)


def put(study: shoal.Study, state: Any, trial: str = "t001") -> None:
    """Make this the trial's checkpoint."""
    vault(study).save(study.state.kept[trial].name, state)


def vault(study: shoal.Study) -> Checkpoints:
    return Checkpoints(study.folder.checkpoints, study.state.run)


def again(study: shoal.Study, visits: int = EPOCHS) -> dict[str, Any]:
    """The state of t001 after so many visits, trained alone."""
    state = study.state
    trial = state.known["t001"]
    made = state.visits["t001"][:visits]
    found = retrain(study.recipe, study.recipe.data(), trial, made, TrainerSetup())
    return dict(found)


@contextmanager
def without_call(of: Any, name: str, number: int) -> Iterator[None]:
    """The call of that number, from 1, does nothing."""
    former: Callable[..., Any] = getattr(of, name)
    calls = 0

    def call(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        return None if calls == number else former(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(of, name, call)
        yield
    assert calls >= number


# -- faults ------------------------------------------------------------------------------------


def without_last_visit(study: shoal.Study) -> dict[str, Any]:
    return again(study, EPOCHS - 1)


def with_weights_of(visits: int) -> Callable[[shoal.Study], dict[str, Any]]:
    """A state that says that all visits were made; its weights are of fewer."""

    def fault(study: shoal.Study) -> dict[str, Any]:
        return kept(study) | {"model": again(study, visits)["model"]}

    return fault


def without_step(number: int) -> Callable[[shoal.Study], dict[str, Any]]:
    def fault(study: shoal.Study) -> dict[str, Any]:
        with without_call(optimizers, "step_scaled", number):
            return again(study)

    return fault


def without_step_of_weights(study: shoal.Study) -> dict[str, Any]:
    """All counts are those of the whole training."""
    wrong = without_step(EPOCHS * STEPS)(study)
    return kept(study) | {"model": wrong["model"]}


def without_schedule_step(study: shoal.Study) -> dict[str, Any]:
    with without_call(Schedule, "end_epoch", EPOCHS - 1):
        return again(study)


def with_rate_of_before(study: shoal.Study) -> dict[str, Any]:
    state = kept(study)
    state["optimizer"]["param_groups"][0]["lr"] /= 0.9
    return state


def without_moment(study: shoal.Study) -> dict[str, Any]:
    state = kept(study)
    for name in ("exp_avg", "momentum_buffer"):
        for moments in state["optimizer"]["state"].values():
            if name in moments:
                moments[name] = np.zeros_like(moments[name])
                return state
    raise AssertionError("there is no moment")


def with_old_moments(study: shoal.Study) -> dict[str, Any]:
    """Those of the step before."""
    wrong = without_step(EPOCHS * STEPS)(study)["optimizer"]["state"]
    state = kept(study)
    for number, moments in state["optimizer"]["state"].items():
        moments |= {name: value for name, value in wrong[number].items() if name != "step"}
    return state


def with_other_random_state(study: shoal.Study) -> dict[str, Any]:
    state = kept(study)
    state["rng"]["torch"] = state["rng"]["torch"].copy()
    state["rng"]["torch"][100] += 1
    return state


def with_fewer_samples(study: shoal.Study) -> dict[str, Any]:
    state = kept(study)
    state["visits"][0][3] -= BATCH
    return state


def with_number(value: float) -> Callable[[shoal.Study], dict[str, Any]]:
    def fault(study: shoal.Study) -> dict[str, Any]:
        state = kept(study)
        state["model"]["0.bias"] = np.full_like(state["model"]["0.bias"], value)
        return state

    return fault


def without_part(name: str) -> Callable[[shoal.Study], dict[str, Any]]:
    def fault(study: shoal.Study) -> dict[str, Any]:
        state = kept(study)
        del state[name]
        return state

    return fault


PARTS = ("optimizer", "scheduled", "configured", "rng", "bad", "noted", "found")
FAULTS = {
    "last visit": without_last_visit,
    "weights of the visit before": with_weights_of(EPOCHS - 1),
    "weights of two visits": with_weights_of(2),
    "last step": without_step(EPOCHS * STEPS),
    "a step in the middle": without_step(2 * STEPS + 1),
    "weights of the step before": without_step_of_weights,
    "a moment": without_moment,
    "moments of the step before": with_old_moments,
    "random state": with_other_random_state,
    "samples": with_fewer_samples,
    "inf": with_number(inf),
    "NaN": with_number(nan),
    **{f"no {name}": without_part(name) for name in PARTS},
}
OF_TORCH = {"schedule": without_schedule_step, "rate": with_rate_of_before}
CASES = [*((Net, fault) for fault in {**FAULTS, **OF_TORCH}), *((Plain, fault) for fault in FAULTS)]


@pytest.mark.slow
def test_each_fault_is_found(tmp_path: Path, company: str) -> None:
    """And the other trials are as they were."""
    for recipe in (Net, Plain):
        study = trained(tmp_path / recipe.__name__, recipe(), company)
        sound = kept(study)
        assert {row["verdict"] for row in study.replay()} <= {"equal", "agrees"}
        for name in [fault for kind, fault in CASES if kind is recipe]:
            put(study, {**FAULTS, **OF_TORCH}[name](study))
            rows = {row["trial"]: row for row in study.replay()}
            assert rows["t001"]["verdict"] == "differs", (recipe, name, rows)
            assert rows["t001"]["why"]
            if name == "last visit":
                assert "holds 4 passes, the record 5" in rows["t001"]["why"]
            others = {row["verdict"] for trial, row in rows.items() if trial != "t001"}
            assert others <= {"equal", "agrees"}
            put(study, sound)


class Unlearning(Plain):
    """Its best score is an early one."""

    metric, mode = "loss", "max"

    def validation_step(self, model: nn.Module, batch: Any) -> Any:
        x, y = batch
        loss = nn.functional.cross_entropy(model(x), y, reduction="none")
        return {"loss": loss}


def test_an_earlier_state_that_is_another_one_is_found(tmp_path: Path, company: str) -> None:
    """The best state, from which `best_model` comes."""
    study = trained(tmp_path, Unlearning(), company, checkpoint_every=0)
    assert {row["verdict"] for row in study.replay()} <= {"equal", "agrees"}
    best, visits = next(iter(names_kept(study, "t001").items()))
    assert visits < study.state.kept["t001"].visits
    state = dict(vault(study).load(best))
    state["model"] = {**state["model"]}
    name = next(iter(state["model"]))
    state["model"][name] = state["model"][name] * 1.1
    vault(study).save(best, state)
    rows = {row["trial"]: row for row in study.replay()}
    assert rows["t001"]["verdict"] == "differs"
    assert f"model.{name}" in rows["t001"]["why"]
    if company in ("alone", "interleaved"):
        assert "its checkpoint after 1 pass: " in rows["t001"]["why"]
    assert {rows[each]["verdict"] for each in ("t000", "t002")} <= {"equal", "agrees"}


# -- faults in the code of fused packs ---------------------------------------------------------


def undone(fused: Fused, what: str) -> Callable[[], None]:
    """Puts back what a step does to the second trial of a pack, and to its count if `what` says."""
    lane = fused.lanes[1]
    arrays = [each.detach().clone() for each in lane.model.state_dict().values()]
    steps, own = lane.steps, [*lane.optimizer.state.values()]
    moments = [value.clone() for each in own for value in each.values()]

    def put_back() -> None:
        with torch.no_grad():
            if what != "a moment":
                for now, then in zip(lane.model.state_dict().values(), arrays, strict=True):
                    now.copy_(then)
            now_own = [value for each in lane.optimizer.state.values() for value in each.values()]
            if what != "weights":
                for now, then in zip(now_own, moments, strict=False):
                    now.copy_(then)
        if what == "a step":
            lane.steps = steps

    return put_back


@pytest.mark.parametrize("recipe", [Net, Plain])
@pytest.mark.parametrize("what", ["a step", "weights", "a moment", "nothing"])
def test_a_fused_step_that_leaves_out_a_trial_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recipe: type[Net], what: str
) -> None:
    """In the last step of the study, once it was found that fusing is quicker."""
    complete = Fused._complete
    epochs, faults = 6, 0

    def faulty(fused: Fused) -> None:
        nonlocal faults
        lane = fused.lanes[1]
        last = lane.passed + lane.grouped == epochs * SAMPLES
        put_back = undone(fused, what)
        complete(fused)
        if last:
            faults += 1
            if what != "nothing":
                put_back()

    monkeypatch.setattr(Fused, "_complete", faulty)
    # to fuse is worth while, whatever it takes
    monkeypatch.setattr(gauge, "SAVED", 101.0)
    monkeypatch.setattr(recipe, "batch_size", 4)
    study = trained(tmp_path, recipe(), epochs=epochs)
    assert faults == 1, "it was not fused to the end"
    monkeypatch.setattr(Fused, "_complete", complete)
    verdicts = {row["trial"]: row["verdict"] for row in study.replay()}
    wrong = int(what != "nothing")
    assert list(verdicts.values()).count("differs") == wrong, verdicts
    assert list(verdicts.values()).count("not comparable") == 0, verdicts


def test_a_rounded_trial_agrees_and_an_integer_does_not(tmp_path: Path, company: str) -> None:
    """A bit of the weights may be another one only where sums are rounded otherwise."""
    study = trained(tmp_path, Plain(), company)
    state = kept(study)
    weights = state["model"]["0.weight"]
    state["model"]["0.weight"] = np.nextafter(weights, np.float32(inf))
    put(study, state)
    (row,) = study.replay(["t001"])
    rounded = company in ("fused", "wide")
    assert row["verdict"] == ("agrees" if rounded else "differs")
    assert not row["equal"] and 0 < row["difference"] < 1e-6


class Plateau(Net):
    """Its rate follows the metric, which rounding moves."""

    metric, mode = "loss", "min"

    def data(self) -> shoal.Data:
        return shoal.Data.arrays(X, Y, validation=0.25)

    def configure_optimizers(self, model: nn.Module, config: Any) -> Any:
        optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"])
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau
        return optimizer, plateau(optimizer, factor=0.5, patience=0, threshold=0.01)

    def validation_step(self, model: nn.Module, batch: Any) -> Any:
        loss = nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")
        return {"loss": loss}


def test_a_rate_that_followed_the_metric_follows_it_as_it_was_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wide or fused, scores are rounded otherwise than those of the trial trained again."""
    study = trained(tmp_path, Plateau(), "alone", epochs=8)
    as_wide(monkeypatch)
    lines = unsealed(study.folder.journal.read_text())
    nearly = re.sub(r'("values":{"loss":0\.\d{6})\d+', r"\g<1>1", lines)
    assert nearly != lines
    study.folder.journal.write_text(nearly)
    study = shoal.load_study(study.folder.path)
    state = kept(study)
    scores = [values["loss"] for _, values in study.state.scores["t001"]]
    best = state["scheduler"]["best"]
    near = min(scores, key=lambda score: abs(score - best))
    assert 0 < abs(near - best) < 1e-5
    state["scheduler"]["best"] = near
    state["model"]["0.bias"] = np.nextafter(state["model"]["0.bias"], np.float32(1))
    put(study, state)
    (row,) = study.replay(["t001"])
    assert row["verdict"] == "agrees", row


class Scored(Net):
    metric, mode = "accuracy", "max"

    def data(self) -> shoal.Data:
        return shoal.Data.arrays(X, Y, validation=0.25, shards=2)

    def validation_step(self, model: nn.Module, batch: Any) -> Any:
        return {"accuracy": (model(batch[0]).argmax(1) == batch[1]).float()}


@pytest.mark.parametrize("form", ["alone", "interleaved"])
def test_a_score_that_was_altered_in_the_journal_is_found(tmp_path: Path, form: str) -> None:
    study = trained(tmp_path, Scored(), form)
    assert {row["verdict"] for row in study.replay()} == {"equal"}
    lines = unsealed(study.folder.journal.read_text())
    altered, times = re.subn(
        r'("trial":"t001","epoch":3(?:\.0)?,"values":{[^}]*"accuracy":)[\d.]+', r"\g<1>0.999", lines
    )
    assert times == 1
    study.folder.journal.write_text(altered)
    rows = {row["trial"]: row for row in shoal.load_study(study.folder.path).replay()}
    assert rows["t000"]["verdict"] == rows["t002"]["verdict"] == "equal"
    assert rows["t001"]["verdict"] == "differs"
    why = r"the score after 6 passes is 0.999 in the record, and 0\.\d+ trained again"
    assert re.fullmatch(why, rows["t001"]["why"])


def test_an_integer_buffer_is_exact(tmp_path: Path) -> None:
    study = trained(tmp_path, Normed(), epochs=1)
    assert all(row["fused"] for row in study.replay())
    state = kept(study)
    batches = state["model"]["1.num_batches_tracked"]
    state["model"]["1.num_batches_tracked"] = np.asarray(batches - 1)
    put(study, state)
    (row,) = study.replay(["t001"])
    assert row["verdict"] == "differs" and "num_batches_tracked" in row["why"]


# -- not comparable ----------------------------------------------------------------------------


def said(study: shoal.Study, code: int) -> str:
    done = CliRunner().invoke(app, ["replay", str(study.folder.path)])
    assert done.exit_code == code, done.output
    return done.output


@pytest.mark.parametrize(("recipe", "why"), [(Normed, "batch norm"), (Random, "random numbers")])
def test_layers_that_see_a_slots_part_of_a_batch_are_not_comparable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recipe: type[Net], why: str
) -> None:
    """What is exact is compared nevertheless."""
    study = trained(tmp_path, recipe(), "wide")
    assert [row["verdict"] for row in study.replay()] == ["equal"] * 3
    as_wide(monkeypatch)
    state = kept(study)
    state["model"]["0.weight"] = state["model"]["0.weight"] * 1.1
    put(study, state)
    rows = study.replay()
    verdicts = [row["verdict"] for row in rows]
    assert verdicts == ["equal", "not comparable", "equal"]
    assert why in rows[1]["why"]
    put(study, without_last_visit(study))
    assert study.replay()[1]["verdict"] == "differs"


def test_a_rate_at_which_rounding_grows_is_not_comparable(tmp_path: Path) -> None:
    """The command says so, and nowhere that all is equal."""
    study = trained(tmp_path, Hot(), epochs=30)
    state = kept(study, "t002")
    state["model"]["0.weight"] = state["model"]["0.weight"] * 1.01
    put(study, state, "t002")
    rows = study.replay()
    assert rows[2]["verdict"] == "not comparable", rows[2]
    assert "rounding" in rows[2]["why"]
    *_, last = said(study, 4).strip().splitlines()
    assert "not comparable" in last and "equal" not in last


# -- what is not there -------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["gone", "damaged"])
def test_one_missing_checkpoint_is_a_line_and_the_others_go_on(tmp_path: Path, fault: str) -> None:
    study = trained(tmp_path, Net(), "alone")
    file = Path(study.folder.checkpoints) / study.state.kept["t001"].name
    if fault == "gone":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:500])
    verdicts = [row["verdict"] for row in study.replay()]
    assert verdicts == ["equal", "missing", "equal"]
    lines = said(study, 1).strip().splitlines()
    assert len(lines) == 4 and lines[1].startswith("t001: MISSING")


def test_a_finished_trial_whose_checkpoint_is_older_than_the_journal_differs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = trained(tmp_path, Net(), "alone")
    older = study.state.kept["t001"]
    state = study.state
    monkeypatch.setitem(state.kept, "t001", older.__class__(older.trial, 3, 0.0, "old.pt"))
    vault(study).save("old.pt", again(study, 3))
    rows = replay.replayed(study.setup, state)
    assert [row["verdict"] for row in rows] == ["equal", "differs", "equal"]
    assert "checkpoint holds 3 passes, the record 5" in rows[1]["why"]


def test_other_code_that_makes_another_model_is_one_error(tmp_path: Path) -> None:
    text = Path(__file__).read_text().partition("class Plain")[0]
    file = tmp_path / "net.py"
    run = ["run", f"{file}:Net", "--storage", str(tmp_path / "s"), "--max-epochs", "1"]
    run += ["--space", "lr=grid([0.001, 0.003])"]
    for hidden in ("8", "9"):
        code = text.replace("(6, 8)", f"(6, {hidden})")
        file.write_text(code.replace("(8, 2)", f"({hidden}, 2)"))
        assert CliRunner().invoke(app, run).exit_code == 0
    with pytest.raises(StudyError, match="the code differs from the one that trained t000"):
        shoal.load_study(tmp_path / "s").replay()
