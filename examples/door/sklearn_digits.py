"""A scikit-learn classifier, trained by partial_fit.

shoal run examples/door/sklearn_digits.py
"""

import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import SGDClassifier

import shoal


class SklearnDigits(shoal.ShardRecipe):
    """Handwritten digits."""

    search_space = {"alpha": shoal.grid([1e-4, 1e-3]), "eta0": shoal.grid([0.01, 0.1])}
    metric, mode, max_epochs, batch_size = "accuracy", "max", 4, 50

    def data(self):
        x, y = load_digits(return_X_y=True)
        return shoal.Data.arrays(x / 16, y, shards=3, validation=0.25)

    def init(self, config):
        return SGDClassifier(loss="log_loss", learning_rate="constant", **config)

    def train_shard(self, state, batches, config):
        for x, y in batches:
            state.partial_fit(x, y, classes=np.arange(10))
        return {}

    def validate_shard(self, state, batches, config):
        right = count = 0
        for x, y in batches:
            right += int((state.predict(x) == y).sum())
            count += len(y)
        return {"accuracy": (right, count)}

    def save(self, state):
        fitted = vars(state).items()
        return {name: value for name, value in fitted if name[-1] == "_" != name[0]}

    def load(self, config, saved):
        state = self.init(config)
        vars(state).update(saved)
        return state
