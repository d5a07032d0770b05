"""Hugging Face models in Shoal: they learn what a loop with the same arguments learns."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import shoal
from shoal.train.lane.lane import TrainingLane

transformers = pytest.importorskip(
    "transformers", reason="transformers is not installed: pip install transformers"
)


class Small(nn.Module):
    """A model with the form of Hugging Face's."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(4, 8)
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 2)

    def forward(self, x: Any, labels: Any) -> dict[str, Any]:
        logits = self.head(self.norm(self.body(x)).relu())
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def items(count: int, seed: int) -> list[dict[str, Any]]:
    x = torch.randn(count, 4, generator=torch.Generator().manual_seed(seed))
    return [{"x": row, "labels": int(row.sum() > 0)} for row in x]


def collator(rows: list[dict[str, Any]]) -> dict[str, Any]:
    labels = torch.tensor([int(row["labels"]) for row in rows])
    return {"x": torch.stack([torch.as_tensor(row["x"]) for row in rows]), "labels": labels}


def accuracy(seen: Any) -> dict[str, float]:
    assert len(seen.label_ids) == 40, "the whole validation set"
    return {"accuracy": float((seen.predictions.argmax(1) == seen.label_ids).mean())}


ARGS = {
    "per_device_train_batch_size": 16,
    "num_train_epochs": 2,
    "weight_decay": 0.1,
    "warmup_steps": 3,
    "learning_rate": 0.5,
}


def recipe_of(args: Any = ARGS) -> Any:
    return shoal.huggingface(
        Small, items(64, 0), items(40, 1), collator, args, compute_metrics=accuracy
    )


def searched(folder: Path, rates: list[float], policy: str) -> shoal.Study:
    study = shoal.create_study(
        recipe_of(),
        storage=folder,
        metric="eval_accuracy",
        mode="max",
        search_space={"learning_rate": shoal.grid(rates)},
    )
    study.optimize(policy=policy, progress=False)
    return study


def test_scores_of_the_whole_validation_set_and_packs_as_alone(tmp_path: Path) -> None:
    rates = [0.001, 0.01]
    alone = searched(tmp_path / "alone", rates, "fifo").trials_dataframe()
    packed = searched(tmp_path / "packed", rates, "pack").trials_dataframe()
    for name in ("last.eval_loss", "last.eval_accuracy"):
        assert sorted(alone[name]) == sorted(packed[name])
    assert alone["last.eval_accuracy"].between(0, 1).all()


def test_decay_leaves_out_biases_and_norms_and_rates_warm_up() -> None:
    recipe = recipe_of()
    recipe.data()
    model = Small()
    made = recipe.configure_optimizers(model, {"learning_rate": 0.02})
    with_decay, without = made["optimizer"].param_groups
    assert [each.shape for each in with_decay["params"]] == [(8, 4), (2, 8)]
    assert with_decay["weight_decay"] == 0.1
    assert without["weight_decay"] == 0.0
    assert len(without["params"]) == 4
    rates = []
    for _ in range(8):
        rates.append(with_decay["lr"])
        made["optimizer"].step()
        made["lr_scheduler"]["scheduler"].step()
    assert rates == pytest.approx(
        [0.02 * each for each in (0, 1 / 3, 2 / 3, 1, 0.8, 0.6, 0.4, 0.2)]
    )


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ({"fp16": True}, "fp16.*bf16"),
        ({"max_steps": 5}, "num_train_epochs"),
        ({"learning_rat": 1}, "learning_rate"),
        ({"lr_scheduler_type": "reduce_lr_on_plateau"}, "linear"),
        ({"optim": "sgd"}, "adamw_torch"),
        ({"num_train_epochs": 1.5}, "whole number"),
    ],
)
def test_fields_that_are_not_followed_are_refused(args: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        recipe_of(args)


def test_all_that_is_refused_is_in_one_error() -> None:
    given = {"max_steps": 20, "seed": 1, "label_smoothing_factor": 0.1}
    says = r"args has label_smoothing_factor \(.*\), max_steps \(give .*\), seed \(give .*=N\)\)"
    with pytest.raises(ValueError, match=says):
        recipe_of(given)
    with pytest.raises(ValueError, match=says):
        recipe_of(transformers.TrainingArguments(output_dir="unused", **given))
    with pytest.raises(ValueError) as caught:
        recipe_of({**given, "learning_rat": 1, "fit_quickly": 1, "optim": "sgd", "adam_beta1": "a"})
    for each in ("max_steps", "fit_quickly", "did you mean learning_rate", "optim", "adam_beta1"):
        assert each in str(caught.value)


@pytest.mark.parametrize("given", [{"warmup_steps": 0.1}, {"warmup_ratio": 0.1}])
def test_a_fraction_of_warmup_steps_is_that_part_of_all_steps(given: Any) -> None:
    assert recipe_of(given).args.warmup(32) == recipe_of({"warmup_steps": 4}).args.warmup(32) == 4


def test_callbacks_of_a_trainer_are_answered() -> None:
    with pytest.raises(TypeError, match=r"optimize\(callbacks=.*shoal.Callback.*patience"):
        shoal.huggingface(Small, items(8, 0), callbacks=[transformers.EarlyStoppingCallback()])


@pytest.mark.parametrize(
    ("reads", "says"),
    [
        (lambda trial: trial.params["hidden"], r'write config\["NAME"\] in place of trial.p'),
        (lambda trial: trial.suggest_float("lr", 0, 1), "name the range in search_space=, and"),
        (lambda trial: trial.hidden, r"write config\['hidden'\]"),
    ],
)
def test_a_model_init_for_a_trial_is_told_of_its_configuration(
    tmp_path: Path, reads: Any, says: str
) -> None:
    def model_init(trial: Any) -> Any:
        reads(trial)
        return Small()

    recipe = shoal.huggingface(model_init, items(64, 0), items(40, 1), collator, ARGS)
    space = {"hidden": shoal.grid([8])}
    study = shoal.create_study(
        recipe, storage=tmp_path, search_space=space, metric="eval_loss", mode="min"
    )
    with pytest.raises(shoal.StudyError, match=says):
        study.optimize(progress=False)


@pytest.mark.parametrize(
    ("more", "means"),
    [
        ({"eval_strategy": "steps", "eval_steps": 200}, "200 steps"),
        ({"eval_strategy": "steps", "eval_steps": 0.1}, pytest.approx(0.2)),
        ({"eval_strategy": "steps", "logging_steps": 50}, "50 steps"),
        ({"eval_strategy": "epoch"}, None),
        ({}, None),
    ],
)
def test_evaluations_come_as_the_arguments_say(more: Any, means: Any) -> None:
    given = {**ARGS, "num_train_epochs": 2, **more}
    assert recipe_of(given).validate_every == means
    if "eval_strategy" in given:
        former = {**given, "evaluation_strategy": given["eval_strategy"]}
        del former["eval_strategy"]
        assert recipe_of(former).validate_every == means
    given["output_dir"] = "unused"
    assert recipe_of(transformers.TrainingArguments(**given)).validate_every == means


def test_a_model_instead_of_a_function_is_refused() -> None:
    with pytest.raises(TypeError, match="function that returns a new model"):
        shoal.huggingface(Small(), items(8, 0))


def test_names_that_are_not_searched_are_refused() -> None:
    with pytest.raises(ValueError, match="search over batch_size"):
        recipe_of().check_config({"per_device_train_batch_size": 4})


def test_learns_what_a_loop_with_the_same_arguments_learns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = recipe_of()
    config = {"learning_rate": 0.02}
    epoch = float(recipe.data().samples)
    cpu = torch.device("cpu")
    plain = Small()
    lane = TrainingLane(recipe, config, seed=0, device=cpu, epoch=epoch)
    plain.load_state_dict(lane.model.state_dict())
    seen: list[dict[str, Any]] = []
    step = type(recipe).training_step

    def seeing(self: Any, model: Any, batch: Any) -> Any:
        seen.append({name: value.clone() for name, value in batch.items()})
        return step(self, model, batch)

    monkeypatch.setattr(type(recipe), "training_step", seeing)
    study = shoal.create_study(
        recipe,
        storage=tmp_path,
        metric="eval_loss",
        mode="min",
        search_space={"learning_rate": shoal.grid([0.02])},
    )
    study.optimize(progress=False)
    del seen[0]  # of the rehearsal before the study
    assert len(seen) == 8
    decaying = [plain.body.weight, plain.head.weight]
    others = [plain.body.bias, *plain.norm.parameters(), plain.head.bias]
    groups = [{"params": decaying, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=0.02)
    schedule = transformers.get_scheduler("linear", optimizer, 3, 8)
    for batch in seen:
        optimizer.zero_grad()
        plain(**batch)["loss"].backward()
        torch.nn.utils.clip_grad_norm_(plain.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    ours = study.best_model().state_dict()
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(ours[name], value, rtol=0, atol=1e-6)


def test_arguments_of_a_trainer_are_told_where_they_go() -> None:
    for name, says in (
        ("num_train_epochs", r"give args=\{'num_train_epochs': …\}"),
        ("callbacks", "study.optimize.callbacks="),
        ("output_dir", r"did you mean create_study\(storage=\)"),
        ("report_to", "loggers="),
    ):
        with pytest.raises(TypeError, match=says):
            shoal.huggingface(lambda config: None, [{"x": 1}], **{name: 1})
