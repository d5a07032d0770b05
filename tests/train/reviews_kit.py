"""Texts with labels, and a tokenizer for them, as tutorials of transformers have them."""

from collections.abc import Mapping
from typing import Any

import numpy as np

GOOD = ["good", "great", "fine", "lovely", "moving"]
BAD = ["bad", "dull", "poor", "slow", "weak"]
OTHER = ["the", "film", "was", "rather", "and", "so", "very", "plot"]


def reviews(count: int, seed: int) -> dict[str, list[Any]]:
    """Columns of short texts; the label is 1 if a text praises."""
    rng = np.random.default_rng(seed)
    texts, labels = [], []
    for _ in range(count):
        label = int(rng.integers(2))
        words = [*rng.choice(OTHER, rng.integers(2, 8)), *rng.choice((BAD, GOOD)[label], 2)]
        texts.append(" ".join(words))
        labels.append(label)
    return {"text": texts, "label": labels, "number": list(range(count))}


def tokenizer() -> Any:
    """A tokenizer of these words."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = ["[UNK]", "[PAD]", *GOOD, *BAD, *OTHER]
    numbers = {word: number for number, word in enumerate(words)}
    made = Tokenizer(models.WordLevel(numbers, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=made, unk_token="[UNK]", pad_token="[PAD]")


def classifier(config: Mapping[str, Any] | None = None) -> Any:
    """A small BERT that tells which texts praise."""
    from transformers import BertConfig, BertForSequenceClassification

    dropout = (config or {}).get("dropout", 0.0)
    return BertForSequenceClassification(
        BertConfig(
            vocab_size=20,
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=32,
            max_position_embeddings=16,
            pad_token_id=1,
            hidden_dropout_prob=dropout,
            attention_probs_dropout_prob=dropout,
        )
    )
