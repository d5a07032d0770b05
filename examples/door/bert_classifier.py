"""A BERT from a small configuration, which tells whether a sequence has more high words than low.

shoal run examples/door/bert_classifier.py
"""

import torch
from transformers import BertConfig, BertForSequenceClassification

import shoal

WORDS, PAD = 40, 0


def sentences(count, seed):
    """Sequences of 4 to 12 words, with labels."""
    rng = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(count):
        length = int(torch.randint(4, 13, (), generator=rng))
        words = torch.randint(1, WORDS, (length,), generator=rng)
        label = int((words > WORDS // 2).float().mean() > 0.5)
        found.append({"input_ids": words, "label": label})
    return found


def collator(items):
    words = [item["input_ids"] for item in items]
    padded = torch.nn.utils.rnn.pad_sequence(words, True, PAD)
    labels = torch.tensor([item["label"] for item in items])
    mask = (padded != PAD).long()
    return {"input_ids": padded, "attention_mask": mask, "labels": labels}


def compute_metrics(seen):
    return {"accuracy": (seen.predictions.argmax(1) == seen.label_ids).mean()}


def model(config):
    return BertForSequenceClassification(
        BertConfig(
            vocab_size=WORDS,
            hidden_size=config["width"],
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=2 * config["width"],
            max_position_embeddings=16,
        )
    )


recipe = shoal.huggingface(
    model,
    sentences(512, 0),
    sentences(128, 1),
    collator,
    {"per_device_train_batch_size": 32, "num_train_epochs": 4, "warmup_steps": 0.1},
    compute_metrics=compute_metrics,
    search_space={
        "width": shoal.grid([16, 32]),
        "learning_rate": shoal.grid([1e-3, 5e-3]),
    },
    metric="eval_accuracy",
    mode="max",
)
