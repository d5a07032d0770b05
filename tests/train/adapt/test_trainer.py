"""A trial of `shoal.huggingface` learns what transformers' own Trainer learns."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from reviews_kit import classifier, reviews
from reviews_kit import tokenizer as tokens

import shoal
from shoal.train.lane.lane import TrainingLane

transformers = pytest.importorskip(
    "transformers", reason="transformers is not installed: pip install transformers"
)
pytest.importorskip(
    "accelerate",
    reason="accelerate is not installed, which transformers.Trainer needs: pip install accelerate",
)
datasets = pytest.importorskip("datasets", reason="datasets is not installed: pip install datasets")

WORDS, LENGTH = 50, 12


class InOrder(transformers.Trainer):
    """A Trainer that takes the samples in their order."""

    def _get_train_sampler(self, *_: Any) -> Any:
        return torch.utils.data.SequentialSampler(self.train_dataset)


def given(folder: Path, **more: Any) -> Any:
    """The arguments for both."""
    return transformers.TrainingArguments(
        output_dir=str(folder / "trainer"),
        report_to="none",
        save_strategy="no",
        optim="adamw_torch",
        weight_decay=0.1,
        learning_rate=5e-3,
        num_train_epochs=2,
        per_device_train_batch_size=4,
        per_device_eval_batch_size=16,
        **more,
    )


def start_of(recipe: Any) -> dict[str, torch.Tensor]:
    """The weights with which Shoal's trial begins."""
    epoch = float(recipe.data().samples)
    lane = TrainingLane(recipe, {}, seed=0, device=torch.device("cpu"), epoch=epoch)
    return {name: each.clone() for name, each in lane.model.state_dict().items()}


def check_same(folder: Path, model: Any, train: Any, valid: Any, collator: Any, args: Any) -> None:
    """Train both ways; weights and scores agree within rounding."""
    recipe = shoal.huggingface(
        model, train, valid, collator, args, compute_metrics=accuracy, shuffle="sequential"
    )
    start = start_of(recipe)
    study = shoal.create_study(
        recipe,
        storage=folder / "shoal",
        metric="eval_accuracy",
        mode="max",
        search_space={"learning_rate": shoal.grid([args.learning_rate])},
    )
    study.optimize(progress=False)
    theirs = model()
    theirs.load_state_dict(start)
    trainer = InOrder(
        theirs, args, collator, train_dataset=train, eval_dataset=valid, compute_metrics=accuracy
    )
    trainer.train()
    ours = study.best_model().state_dict()
    moved = 0.0
    for name, value in theirs.state_dict().items():
        torch.testing.assert_close(ours[name], value, rtol=0, atol=1e-5)
        moved = max(moved, float((value - start[name]).abs().max()))
    assert moved > 1e-2, "nothing was learnt"
    (row,) = study.trials_dataframe().to_dict("records")
    scores = trainer.evaluate()
    for name in ("eval_loss", "eval_accuracy"):
        assert row[f"last.{name}"] == pytest.approx(scores[name], abs=1e-5)


def accuracy(seen: Any) -> dict[str, float]:
    right = seen.predictions.argmax(-1) == seen.label_ids
    return {"accuracy": float(right[seen.label_ids != -100].mean())}


def gpt() -> Any:
    config = transformers.GPT2Config(
        vocab_size=WORDS,
        n_positions=LENGTH,
        n_embd=16,
        n_layer=1,
        n_head=2,
        resid_pdrop=0,
        embd_pdrop=0,
        attn_pdrop=0,
        bos_token_id=0,
        eos_token_id=0,
    )
    model = transformers.GPT2LMHeadModel(config)
    # Otherwise the Trainer divides by one word too many in each text.
    model.loss_type = "ForCausalLM"
    return model


def blocks(count: int, seed: int) -> list[dict[str, list[int]]]:
    """Texts in blocks of one length, as for a language model; their words go up by ones."""
    starts = np.random.default_rng(seed).integers(0, WORDS, count)
    texts = [[(start + n) % WORDS for n in range(LENGTH)] for start in starts.tolist()]
    return [{"input_ids": text, "labels": text} for text in texts]


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_a_language_model_with_accumulation_warm_up_and_clipping(
    tmp_path: Path, schedule: str
) -> None:
    args = given(
        tmp_path,
        lr_scheduler_type=schedule,
        warmup_steps=2,
        gradient_accumulation_steps=2,
        max_grad_norm=0.5,
    )
    # 22 samples: six batches, the last one smaller, and three steps to an epoch
    collator = transformers.default_data_collator
    check_same(tmp_path, gpt, blocks(22, 0), blocks(20, 1), collator, args)


@pytest.mark.slow
def test_a_classifier_with_padded_texts_and_columns_that_it_does_not_take(tmp_path: Path) -> None:
    tokenizer = tokens()
    train, valid = (
        datasets.Dataset.from_dict(reviews(count, seed)).map(
            lambda rows: tokenizer(rows["text"]), batched=True
        )
        for count, seed in ((24, 0), (16, 1))
    )
    collator = transformers.DataCollatorWithPadding(tokenizer)
    args = given(tmp_path, warmup_steps=3)
    check_same(tmp_path, classifier, train, valid, collator, args)
