"""Names that people try, from Optuna, Ray Tune, Lightning and scikit-learn."""

from pathlib import Path
from typing import Any

import pytest
import torch

import shoal
from shoal.core.errors import StudyError
from shoal.tools.plan import forecast


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory, blobs: Any) -> shoal.Study:
    folder = tmp_path_factory.mktemp("names")
    made = shoal.create_study(blobs(), storage=folder / "s", direction="maximize")
    made.optimize(policy="fifo", max_epochs=3, checkpoint_every=0, progress=False)
    return made


def test_what_came_out_under_other_names(study: shoal.Study) -> None:
    best = study.best_trial
    assert study.best_config == study.best_params == best.config == best.params
    assert study.best_value == best.value == max(t.value for t in study.trials)
    assert study.get_trials() == study.trials
    assert best.metrics == best.scores[-1][1]
    columns = ["id", "status", "value", "best_value", "epochs", "samples"]
    found = list(study.trials_dataframe().columns)
    assert found[:6] == columns
    assert set(found[6:]) == {"config.width", "config.lr", "last.accuracy", "last.loss"}


def test_every_name_that_people_try(study: shoal.Study, tmp_path: Path) -> None:
    """Each does what its like in another tool does."""
    for name in ("report", "restore", "lightning", "huggingface", "ShardRecipe"):
        assert name in shoal.__all__ and callable(getattr(shoal, name))
    assert shoal.report({"loss": 1.0}) is None and shoal.restore() is None
    drawn = {}
    for name in ("n_trials", "num_samples"):
        other = shoal.create_study(storage=tmp_path / name, direction="maximize")
        other.optimize(lambda trial: trial.suggest_float("x", 0, 1), progress=False, **{name: 3})
        drawn[name] = [t.params for t in other.get_trials()]
        assert other.setup.mode == "max"
        best = max(drawn[name], key=lambda params: float(params["x"]))
        assert (other.best_params, other.best_config) == (best, best)
        assert other.best_value == best["x"]
        trial = other.ask()
        other.tell(trial, 2.0)
        assert (other.best_value, other.best_trial.number) == (2.0, trial.number)
    assert drawn["n_trials"] == drawn["num_samples"]
    assert isinstance(study.best_model(which="best"), torch.nn.Module)
    assert len(study.trials_dataframe()) == len(study.trials)
    curves = study.learning_curves()
    assert set(curves["name"]) == {"loss", "accuracy"}
    assert set(curves["trial"]) == {t.id for t in study.trials}


def test_the_best_weights_of_the_best_trial(study: shoal.Study) -> None:
    for which in ("last", "best"):
        model = study.best_model(which=which).state_dict()
        same = study.load_model(study.best_trial, which).state_dict()
        assert all(torch.equal(model[name], same[name]) for name in model)
    with pytest.raises(StudyError, match='which must be "last" or "best"'):
        study.best_model(which="first")


@pytest.mark.parametrize(
    ("given", "mode"),
    [
        ({"direction": "minimize"}, "min"),
        ({"direction": "max"}, "max"),
        ({"mode": "maximize"}, "max"),
        ({"mode": "min", "direction": "minimize"}, "min"),
        ({}, "max"),
    ],
)
def test_direction_is_mode(tmp_path: Path, blobs: Any, given: dict[str, str], mode: str) -> None:
    assert shoal.create_study(blobs(), storage=tmp_path, **given).setup.mode == mode


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"mode": "min", "direction": "maximize"}, "are two names of one thing"),
        ({"direction": "up"}, 'mode must be "min" or "max"; got \'up\''),
    ],
)
def test_wrong_directions_are_refused(
    tmp_path: Path, blobs: Any, given: dict[str, str], says: str
) -> None:
    with pytest.raises(StudyError, match=says):
        shoal.create_study(blobs(), storage=tmp_path, **given)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("fit", "optimize()"),
        ("run", "optimize()"),
        ("results", "trials, or trials_dataframe()"),
        ("best_result", "best_trial"),
        ("enqueue_trial", "enqueue(config)"),
        ("best_trail", "best_trial or"),
        ("trials_datframe", "trials_dataframe"),
    ],
)
def test_misnomers_of_a_study(study: shoal.Study, name: str, meant: str) -> None:
    with pytest.raises(AttributeError) as caught:
        getattr(study, name)
    assert f"a study has no {name!r}: did you mean {meant}" in str(caught.value)


def test_names_like_nothing_have_no_hint(study: shoal.Study) -> None:
    assert not hasattr(study, "__array__")
    with pytest.raises(AttributeError, match="a study has no 'qqq'$"):
        study.qqq


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("n_jobs", "unknown option n_jobs (did you mean backend='ray' with slots=N"),
        ("epochs", "did you mean max_epochs=?"),
        ("max_epoch", "did you mean max_epochs"),
        ("scheduler", "did you mean searcher='asha'?"),
        ("direction", "did you mean create_study(direction=)?"),
        ("thread", "did you mean threads"),
        ("ckpt_path", "did you mean create_study(load_if_exists=True), with which"),
        ("accelerator", "did you mean device="),
        ("devices", "did you mean slots="),
        ("monitor", "did you mean create_study(metric=)"),
        ("strategy", "did you mean widths="),
        ("max_steps", "did you mean max_epochs="),
        ("num_train_epochs", "did you mean max_epochs=?"),
        ("per_device_train_batch_size", "did you mean batch_size of the recipe"),
        ("batch_size", "did you mean batch_size of the recipe"),
        ("eval_steps", "did you mean validate_every="),
        ("output_dir", "did you mean create_study(storage=)"),
        ("count", "did you mean num_samples=?"),
        ("hp_space", "did you mean create_study(search_space=)"),
        ("trainer", "leave it out: Shoal trains without a Trainer"),
        ("retry_fail", "did you mean retry_failed"),
    ],
)
def test_misnomers_of_arguments(tmp_path: Path, blobs: Any, name: str, says: str) -> None:
    made = shoal.create_study(blobs(), storage=tmp_path / "s")
    with pytest.raises(StudyError) as caught:
        made.optimize(**{name: 2})
    assert says in str(caught.value)
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"searcher": "asha(max_t=9)"}, "'max_t' (did you mean max_epochs?); it takes space, "),
        ({"searcher": "pbt(population_size=9)"}, "(did you mean num_samples?)"),
        ({"searcher": "asha(grace=2)"}, "(did you mean grace_period?)"),
        ({"searcher": "median(n_startup_trials=2)"}, "(did you mean min_trials?)"),
        ({"searcher": "best"}, "no searcher is named 'best'"),
        ({"searcher": "asha(grace_period=0)"}, "ASHA: grace_period must be >= 1; got 0"),
        ({"searcher": "asha(num_samples=4)"}, "ASHA needs max_epochs=: give it to"),
        ({"num_samples": 0}, "num_samples must be >= 1"),
        ({"policy": "pack(nix=3)"}, "policy pack: "),
        ({"policy": "auto:fifo,pack(nix=3)"}, "policy pack: "),
        ({"policy": "auto(aim=2)"}, "auto takes an objective alone"),
        ({"loggers": ["best"]}, "no logger is named 'best'"),
        ({"device": "tpu"}, "there is no device 'tpu' here"),
        ({"backend": "ray", "slots": 99999}, "slots=99999 is more than 4 for each"),
        ({"profile": "nowhere.toml"}, "this cannot be read"),
    ],
)
def test_what_an_argument_refuses_is_an_error_of_the_study(
    tmp_path: Path, blobs: Any, arguments: dict[str, Any], says: str
) -> None:
    """It stays the ValueError that it was, and comes before the data are read."""

    class NoEnd(blobs):  # type: ignore[misc]
        max_epochs = None if "needs max_epochs" in says else 2

        def data(self) -> Any:
            pytest.fail("read")

    made = shoal.create_study(NoEnd(), storage=tmp_path / "s", metric="loss")
    with pytest.raises(StudyError) as caught:
        made.optimize(**arguments, progress=False)
    assert says in str(caught.value)
    assert isinstance(caught.value, ValueError) or "backend" in arguments or "profile" in arguments


@pytest.mark.parametrize(
    ("policies", "profile", "says"),
    [
        (("fifo", "best"), None, "unknown policy 'best'"),
        ((), "nowhere.toml", "this cannot be read"),
    ],
)
def test_a_plan_refuses_before_the_data_are_read(
    tmp_path: Path, blobs: Any, policies: tuple[str, ...], profile: str | None, says: str
) -> None:
    class Unread(blobs):  # type: ignore[misc]
        def data(self) -> Any:
            pytest.fail("read")

    made = shoal.create_study(Unread(), storage=tmp_path / "s")
    with pytest.raises(StudyError, match=says):
        forecast(made, policies, None, None, profile, {})


def test_a_loop_and_a_function_refuse_them_alike(tmp_path: Path) -> None:
    made = shoal.create_study(storage=tmp_path / "s", metric="loss", searcher="best")
    with pytest.raises(StudyError, match="no searcher is named 'best'"):
        made.ask()
    made = shoal.create_study(storage=tmp_path / "s", metric="loss")
    with pytest.raises(StudyError, match="a policy is a name, or an object with start and decide"):
        made.optimize(lambda trial: 1.0, policy=3.5, n_trials=1, progress=False)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("monitor", "did you mean metric=?"),
        ("project", "did you mean study_name=?"),
        ("num_train_epochs", "did you mean optimize(max_epochs=)?"),
        ("accelerator", "did you mean optimize(device=)?"),
        ("timeout", "did you mean optimize(timeout=)?"),
        ("devices", "did you mean optimize(slots=), with backend='ray'?"),
        ("trainer", "did you mean shoal.lightning(YourModule) or"),
        ("logging_steps", "leave it out: scores are logged at each evaluation"),
        ("storag", "did you mean storage=?"),
        ("batch_size", "did you mean batch_size of the recipe?"),
    ],
)
def test_misnomers_of_create_study(tmp_path: Path, name: str, says: str) -> None:
    with pytest.raises(StudyError) as caught:
        shoal.create_study(storage=tmp_path / "s", **{name: 2})
    assert says in str(caught.value)


def test_optuna_is_no_backend(tmp_path: Path, blobs: Any) -> None:
    made = shoal.create_study(blobs(), storage=tmp_path / "s")
    with pytest.raises(StudyError, match=r'for optuna write searcher="optuna\(\)"'):
        made.optimize(backend="optuna")


class Other:
    """Stands for another tool's class of such a name."""


def of_tool(module: str, *names: str) -> Any:
    """An object of a class of that module, whose bases have these names, the last one first."""
    kind: type = Other
    for name in names:
        kind = type(name, (kind,), {"__module__": module, "on_train_end": lambda self: None})
    return kind()


@pytest.mark.parametrize(
    ("option", "module", "names", "says"),
    [
        (
            "callbacks",
            "lightning.pytorch.callbacks.early_stopping",
            ("Callback", "EarlyStopping"),
            "EarlyStopping is a callback of Lightning.*patience",
        ),
        (
            "callbacks",
            "pytorch_lightning.callbacks.checkpoint",
            ("Callback", "ModelCheckpoint", "Mine"),
            "Mine is a callback of Lightning.*best_model",
        ),
        ("callbacks", "lightning.x", ("Callback", "Odd"), "shoal.Callback"),
        (
            "callbacks",
            "transformers.trainer_callback",
            ("TrainerCallback", "EarlyStoppingCallback"),
            "of the Hugging Face Trainer.*patience",
        ),
        ("callbacks", "optuna.x", ("WeightsAndBiasesCallback",), r'Optuna.*loggers=\["wandb"\]'),
        ("callbacks", "optuna._callbacks", ("MaxTrialsCallback",), "n_trials="),
        ("loggers", "lightning.x", ("Logger", "CSVLogger"), r'loggers=\["csv"\]'),
        ("loggers", "lightning.x", ("Logger", "CometLogger"), "loggers are names"),
    ],
)
def test_objects_of_other_tools(
    tmp_path: Path, blobs: Any, option: str, module: str, names: tuple[str, ...], says: str
) -> None:
    for given in (of_tool(module, *names), [of_tool(module, *names)]):
        made = shoal.create_study(blobs(), storage=tmp_path / "s")
        with pytest.raises(StudyError, match=says):
            made.optimize(**{option: given})
        assert not (tmp_path / "s" / "journal.jsonl").exists()


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("tune", "create_study(…).optimize()"),
        ("fit", "create_study(…).optimize()"),
        ("ASHAScheduler", "ASHA"),
        ("grid_search", "grid"),
        ("loguniforms", "loguniform"),
    ],
)
def test_misnomers_of_the_package(name: str, meant: str) -> None:
    with pytest.raises(AttributeError) as caught:
        getattr(shoal, name)
    assert f"no attribute {name!r}: did you mean {meant}" in str(caught.value)
