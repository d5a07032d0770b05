"""What tutorials of transformers write trains in Shoal; what it does not follow, it names."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from reviews_kit import classifier, reviews
from reviews_kit import tokenizer as tokens

import shoal

transformers = pytest.importorskip(
    "transformers", reason="transformers is not installed: pip install transformers"
)
datasets = pytest.importorskip("datasets", reason="datasets is not installed: pip install datasets")

from shoal.train.adapt.huggingface import inputs_of  # noqa: E402 - it needs transformers

ARGS = {
    "output_dir": "out",
    "per_device_train_batch_size": 4,
    "per_device_eval_batch_size": 64,
    "num_train_epochs": 4,
    "learning_rate": 1e-2,
    "gradient_accumulation_steps": 2,
    "eval_strategy": "epoch",
    "save_strategy": "epoch",
    "load_best_model_at_end": True,
    "metric_for_best_model": "accuracy",
    "logging_steps": 10,
    "push_to_hub": False,
    "fp16": False,
    "report_to": "none",
}


def compute_metrics(seen: Any) -> dict[str, Any]:
    """As with the metrics of `evaluate`: numbers of NumPy's, from a pair."""
    logits, labels = seen
    return {"accuracy": np.mean(np.argmax(logits, axis=-1) == labels)}


def tokenized(tokenizer: Any, count: int, seed: int) -> Any:
    """Texts, tokenized by `map`; the columns that the model does not take stay."""
    made = datasets.Dataset.from_dict(reviews(count, seed))
    return made.map(lambda rows: tokenizer(rows["text"], truncation=True), batched=True)


def recipe_of(args: Any, **more: Any) -> Any:
    tokenizer = tokens()
    return shoal.huggingface(
        classifier,
        tokenized(tokenizer, 64, 0),
        tokenized(tokenizer, 32, 1),
        transformers.DataCollatorWithPadding(tokenizer),
        args,
        compute_metrics=compute_metrics,
        **more,
    )


def searched(recipe: Any, folder: Path, policy: str = "fifo") -> Any:
    study = shoal.create_study(
        recipe,
        storage=folder,
        metric="eval_accuracy",
        mode="max",
        search_space={"dropout": shoal.grid([0.0, 0.1])},
    )
    study.optimize(policy=policy, progress=False)
    assert [trial.status for trial in study.trials] == ["finished"] * 2
    return study


@pytest.mark.slow
def test_a_classifier_of_a_tutorial_trains_alone_as_packed(tmp_path: Path) -> None:
    recipe = recipe_of(ARGS)
    alone = searched(recipe, tmp_path / "alone").trials_dataframe()
    packed = searched(recipe, tmp_path / "packed", "pack").trials_dataframe()
    for name in ("last.eval_loss", "last.eval_accuracy"):
        assert sorted(alone[name]) == sorted(packed[name])
    assert alone["last.eval_accuracy"].max() > 0.8


def test_arguments_name_the_score_that_counts() -> None:
    recipe = recipe_of(ARGS)
    assert (recipe.metric, recipe.mode) == ("eval_accuracy", "max")
    recipe = recipe_of(ARGS, metric="eval_loss", mode="min")
    assert (recipe.metric, recipe.mode) == ("eval_loss", "min")


def test_an_object_of_arguments_is_as_a_dict() -> None:
    pytest.importorskip(
        "accelerate",
        reason="accelerate is not installed, which TrainingArguments needs: pip install accelerate",
    )
    made = recipe_of(transformers.TrainingArguments(**ARGS))
    filled_in = {**ARGS, "greater_is_better": True}
    assert made.args == recipe_of(filled_in).args
    plain = recipe_of(transformers.TrainingArguments("out"))
    assert plain.args == recipe_of({}).args
    for field, value in (("max_steps", 5), ("torch_compile", True), ("seed", 7)):
        with pytest.raises(ValueError, match=f"args has {field}|args has '{field}'"):
            recipe_of(transformers.TrainingArguments("out", **{field: value}))


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ({"learning_rate": "2e-5"}, "learning_rate must be a number; got '2e-5'"),
        ({"torch_compile": True}, "args has 'torch_compile', which Shoal does not"),
        ({"push_to_hub": True}, "args has push_to_hub.*best_model"),
        ({"num_epochs": 3}, "args has 'num_epochs'"),
    ],
)
def test_fields_that_are_not_followed_are_named(args: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        recipe_of(args)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("train_dataset", "give train"),
        ("processing_class", "DataCollatorWithPadding"),
        ("callbacks", "study.optimize"),
    ],
)
def test_the_names_of_a_trainer_lead_to_those_here(name: str, says: str) -> None:
    with pytest.raises(TypeError, match=says):
        shoal.huggingface(classifier, **{name: []})


def test_use_cpu_is_refused_only_where_there_is_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    args = {"use_cpu": True, "bf16": True}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert recipe_of(args).precision == "bf16"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(ValueError, match="CUDA_VISIBLE_DEVICES"):
        recipe_of(args)


def test_a_dataset_dict_is_refused() -> None:
    both = datasets.DatasetDict(train=datasets.Dataset.from_dict(reviews(4, 0)))
    with pytest.raises(TypeError, match=r"data\['train'\] of a DatasetDict"):
        shoal.huggingface(classifier, both)


@pytest.mark.parametrize(
    ("schedule", "kwargs", "last"),
    [
        ("polynomial", {"power": 2.0}, 0.0),
        ("cosine_with_min_lr", {"min_lr": 0.1}, 0.1),
        ("inverse_sqrt", None, 0.5),
    ],
)
def test_schedules_with_arguments_of_their_own(schedule: str, kwargs: Any, last: float) -> None:
    args = {"learning_rate": 1.0, "num_train_epochs": 1}
    args |= {"lr_scheduler_type": schedule, "lr_scheduler_kwargs": kwargs}
    if schedule == "inverse_sqrt":
        args |= {"warmup_steps": 2}
    recipe = recipe_of(args)
    recipe.data()
    made = recipe.configure_optimizers(classifier(), {})
    for _ in range(8):
        made["optimizer"].step()
        made["lr_scheduler"]["scheduler"].step()
    assert made["optimizer"].param_groups[0]["lr"] == pytest.approx(last, abs=1e-6)


def test_schedules_whose_arguments_do_not_fit_are_refused() -> None:
    recipe = recipe_of({"lr_scheduler_type": "cosine_with_min_lr"})
    with pytest.raises(ValueError, match="lr_scheduler_kwargs do not fit"):
        recipe.check_config({})


def test_batches_have_what_the_model_takes() -> None:
    tokenizer = tokens()
    rows = tokenized(tokenizer, 4, 0)
    tagged = rows.add_column("tags", [[0] * (n + 1) for n in range(4)])
    recipe = shoal.huggingface(
        classifier, tagged, 0.5, transformers.DataCollatorWithPadding(tokenizer)
    )
    data = recipe.data()
    batch = data.collate([tagged[n] for n in range(4)])
    assert "text" not in batch and "tags" not in batch and "number" in batch
    loss = recipe.training_step(classifier(), batch)
    assert torch.isfinite(loss)
    lists = shoal.huggingface(classifier, rows.remove_columns("text"), 0.5).data()
    assert lists.collate is not None, "lists of numbers become tensors"


def test_labels_that_the_collator_makes_stay() -> None:
    """Also where the data set has labels of another kind."""
    tokenizer = tokens()
    collator = transformers.DataCollatorForLanguageModeling(tokenizer, mlm=False)
    rows = tokenized(tokenizer, 8, 0)
    recipe = shoal.huggingface(classifier, rows, 0.5, collator)
    batch = recipe.data().collate([rows[n] for n in range(4)])
    assert batch["label"].shape == (4,)
    inputs = inputs_of(classifier(), batch, recipe.columns)
    assert inputs["labels"] is batch["labels"]
    assert "label" not in inputs and "number" not in inputs


def test_a_collator_that_cannot_make_a_batch_is_named() -> None:
    rows = tokenized(tokens(), 8, 0)
    with pytest.raises(shoal.DataError, match="default_data_collator cannot make one"):
        shoal.huggingface(classifier, rows, 0.5).data().check()


def test_a_streamed_dataset(tmp_path: Path) -> None:
    tokenizer = tokens()
    recipe = shoal.huggingface(
        classifier,
        tokenized(tokenizer, 16, 0).to_iterable_dataset(),
        tokenized(tokenizer, 8, 1),
        transformers.DataCollatorWithPadding(tokenizer),
        {"num_train_epochs": 1},
    )
    study = shoal.create_study(
        recipe, storage=tmp_path, metric="eval_loss", mode="min", search_space={}
    )
    study.optimize(num_samples=1, progress=False)
    assert study.trials[0].status == "finished"


def test_activations_are_computed_again_on_request() -> None:
    batch = {"input_ids": torch.ones(2, 3, dtype=torch.long)}
    batch["labels"] = torch.tensor([0, 1])
    gradients = []
    for wanted in (False, True):
        recipe = shoal.huggingface(classifier, [batch], args={"gradient_checkpointing": wanted})
        torch.manual_seed(0)
        model = recipe.configure_model({}).train()
        assert model.is_gradient_checkpointing == wanted
        recipe.training_step(model, batch).backward()
        gradients.append([each.grad for each in model.parameters()])
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)
    recipe = shoal.huggingface(
        lambda: torch.nn.Linear(1, 1), [batch], args={"gradient_checkpointing": True}
    )
    with pytest.raises(TypeError, match="gradient_checkpointing"):
        recipe.configure_model({})


def test_several_outputs_and_labels_reach_the_metrics(tmp_path: Path) -> None:
    """A model for question answering gives two logits, and has two labels."""
    config = transformers.BertConfig(
        vocab_size=20,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
    )
    rng = np.random.default_rng(0)
    items = [
        {
            "input_ids": rng.integers(0, 20, 6),
            "start_positions": int(rng.integers(6)),
            "end_positions": int(rng.integers(6)),
        }
        for _ in range(24)
    ]
    seen = []

    def exact(found: Any) -> dict[str, float]:
        (begins, ends), (starts, stops) = found.predictions, found.label_ids
        seen.append((begins.shape, ends.shape, starts.shape, stops.shape))
        right = (begins == starts) & (ends == stops)
        return {"exact": float(right.mean())}

    def best(logits: Any, labels: Any) -> Any:
        assert len(labels) == 2
        return tuple(each.argmax(-1) for each in logits)

    recipe = shoal.huggingface(
        lambda: transformers.BertForQuestionAnswering(config),
        items[:16],
        items[16:],
        compute_metrics=exact,
        preprocess_logits_for_metrics=best,
        max_epochs=1,
    )
    study = shoal.create_study(
        recipe, storage=tmp_path, metric="eval_exact", mode="max", search_space={}
    )
    study.optimize(num_samples=1, progress=False)
    assert seen[-1] == ((8,), (8,), (8,), (8,))
    assert study.trials[0].status == "finished"
