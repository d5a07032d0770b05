"""PyTorch's word_language_model: an LSTM whose state is carried from batch to batch."""

import pydoc_data.topics

import torch
from torch import nn

BPTT = 12
EPOCHS = 2


class LanguageModel(nn.Module):
    def __init__(self, words, width):
        super().__init__()
        self.encoder = nn.Embedding(words, width)
        self.rnn = nn.LSTM(width, width, batch_first=True)
        self.drop = nn.Dropout(0.2)
        self.decoder = nn.Linear(width, words)

    def forward(self, inputs, state):
        seen, state = self.rnn(self.drop(self.encoder(inputs)), state)
        return self.decoder(self.drop(seen)), state


def words():
    text = pydoc_data.topics.topics["class"].split()
    number = {word: n for n, word in enumerate(sorted(set(text)))}
    return torch.tensor([number[word] for word in text]), len(number)


def batchify(tokens, rows):
    length = len(tokens) // rows
    return tokens[: rows * length].view(rows, length)


def windows(tokens):
    for start in range(0, tokens.size(1) - 1, BPTT):
        size = min(BPTT, tokens.size(1) - 1 - start)
        yield tokens[:, start : start + size], tokens[:, start + 1 : start + 1 + size]


def detached(state):
    return tuple(part.detach() for part in state)


def train(tokens, count, lr, rows):
    torch.manual_seed(0)
    cut = int(0.9 * len(tokens))
    training, validation = batchify(tokens[:cut], rows), batchify(tokens[cut:], rows)
    model = LanguageModel(count, 32)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    loss_of = nn.CrossEntropyLoss()
    for epoch in range(EPOCHS):
        model.train()
        state = None
        for inputs, targets in windows(training):
            optimizer.zero_grad()
            logits, state = model(inputs, state)
            state = detached(state)
            loss = loss_of(logits.flatten(0, 1), targets.flatten())
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.25)
            optimizer.step()
        model.eval()
        state, total, batches = None, 0.0, 0
        with torch.no_grad():
            for inputs, targets in windows(validation):
                logits, state = model(inputs, state)
                total += loss_of(logits.flatten(0, 1), targets.flatten()).item()
                batches += 1
        print(f"lr {lr:g}, {rows} rows, epoch {epoch}: loss {total / batches:.3f}")


tokens, count = words()
for lr in (1.0, 5.0):
    for rows in (4, 8):
        train(tokens, count, lr, rows)
