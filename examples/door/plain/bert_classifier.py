"""A BERT classifier without Shoal: a grid of four configurations."""

import itertools

import torch
from torch.utils.data import DataLoader
from transformers import BertConfig, BertForSequenceClassification, get_scheduler

WORDS, PAD, EPOCHS = 40, 0, 2


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


def train(width, learning_rate):
    torch.manual_seed(0)
    loader = DataLoader(sentences(512, 0), 32, shuffle=True, collate_fn=collator)
    held_out = DataLoader(sentences(128, 1), 128, collate_fn=collator)
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
            (batch,) = held_out
            right = net(**batch).logits.argmax(1) == batch["labels"]
    return float(right.float().mean())


for width, rate in itertools.product((16, 32), (1e-3, 5e-3)):
    print(f"width {width}, rate {rate:g}: accuracy {train(width, rate):.3f}")
