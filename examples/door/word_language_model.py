"""PyTorch's word_language_model: an LSTM whose state is carried from batch to batch.

shoal run examples/door/word_language_model.py
"""

import pydoc_data.topics

import torch
from torch import nn

import shoal


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


class WordLanguageModel(shoal.Recipe):
    metric = "loss"
    mode = "min"
    max_epochs = 12
    gradient_clip_val = 0.25
    search_space = {"lr": shoal.grid([1.0, 5.0]), "batch_size": shoal.grid([4, 8])}

    def data(self):
        return shoal.Data.sequence(words()[0], window=12, validation=0.1)

    def configure_model(self, config):
        return LanguageModel(words()[1], 32)

    def configure_optimizers(self, model, config):
        return torch.optim.SGD(model.parameters(), lr=config["lr"])

    def training_step(self, model, batch, state):
        inputs, targets = batch
        logits, state = model(inputs, state)
        return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten()), state

    def validation_step(self, model, batch, state):
        loss, state = self.training_step(model, batch, state)
        return {"loss": loss}, state
