"""A GPT without Shoal: a grid of four configurations."""

import itertools
import pydoc_data.topics

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from torch.utils.data import DataLoader
from transformers import (
    DataCollatorForLanguageModeling,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
    get_scheduler,
)

LONGEST, EPOCHS = 32, 2
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


def train(width, learning_rate):
    torch.manual_seed(0)
    collator = DataCollatorForLanguageModeling(tokenizer, mlm=False)
    loader = DataLoader(items[::2], 16, shuffle=True, collate_fn=collator)
    held_out = DataLoader(items[1::2], 64, collate_fn=collator)
    net = model({"width": width})
    optimizer = torch.optim.AdamW(net.parameters(), lr=learning_rate, weight_decay=0)
    steps = EPOCHS * len(loader)
    schedule = get_scheduler("linear", optimizer, steps // 10, steps)
    for _ in range(EPOCHS):
        net.train()
        for batch in loader:
            net(**batch).loss.backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        net.eval()
        with torch.no_grad():
            losses = [float(net(**batch).loss) for batch in held_out]
    return sum(losses) / len(losses)


for width, rate in itertools.product((32, 64), (1e-3, 5e-3)):
    print(f"width {width}, rate {rate:g}: loss {train(width, rate):.3f}")
