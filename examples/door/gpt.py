"""A GPT from a small configuration, which learns the words of Python's own help texts.

shoal run examples/door/gpt.py
"""

import pydoc_data.topics

from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import (
    DataCollatorForLanguageModeling,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
)

import shoal

LONGEST = 32
PARAGRAPHS = pydoc_data.topics.topics["compound"].split("\n\n")


def trained_tokenizer():
    """A number for each of the most frequent words."""
    words = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    special = ["[UNK]", "[PAD]"]
    trainer = trainers.WordLevelTrainer(vocab_size=500, special_tokens=special)
    words.train_from_iterator(PARAGRAPHS, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=words,
        unk_token="[UNK]",
        pad_token="[PAD]",
        model_input_names=["input_ids", "attention_mask"],
    )


tokenizer = trained_tokenizer()
items = [tokenizer(each, truncation=True, max_length=LONGEST) for each in PARAGRAPHS]


def model(config):
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=len(tokenizer),
            n_positions=LONGEST,
            n_embd=config["width"],
            n_layer=2,
            n_head=2,
            bos_token_id=None,
            eos_token_id=None,
        )
    )


recipe = shoal.huggingface(
    model,
    items[::2],
    items[1::2],
    DataCollatorForLanguageModeling(tokenizer, mlm=False),
    {"per_device_train_batch_size": 16, "num_train_epochs": 4, "warmup_steps": 0.1},
    search_space={
        "width": shoal.grid([32, 64]),
        "learning_rate": shoal.grid([1e-3, 5e-3]),
    },
    metric="eval_loss",
    mode="min",
)
