"""A Keras 3 model, trained by its own train_on_batch.

KERAS_BACKEND=torch shoal run examples/door/keras_digits.py
"""

import os

os.environ.setdefault("KERAS_BACKEND", "torch")

import keras
from keras import layers
from sklearn.datasets import load_digits

import shoal


class KerasDigits(shoal.ShardRecipe):
    """Handwritten digits."""

    search_space = {
        "units": shoal.grid([32, 64]),
        "lr": shoal.grid([1e-3, 1e-2]),
        "dropout": 0.2,
    }
    metric, mode, max_epochs, batch_size = "accuracy", "max", 3, 50

    def data(self):
        x, y = load_digits(return_X_y=True)
        x = (x / 16).astype("float32")
        return shoal.Data.arrays(x, y, shards=3, validation=0.25)

    def init(self, config):
        model = keras.Sequential(
            [
                layers.Input((64,)),
                layers.Dense(config["units"], activation="relu"),
                layers.Dropout(config["dropout"]),
                layers.Dense(10),
            ]
        )
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(config["lr"]), loss)
        model.optimizer.build(model.trainable_variables)
        return model

    def train_shard(self, state, batches, config):
        total = count = 0
        for x, y in batches:
            total += len(y) * float(state.train_on_batch(x, y))
            count += len(y)
            state.reset_metrics()
        return {"loss": (total, count)}

    def validate_shard(self, state, batches, config):
        right = count = 0
        for x, y in batches:
            right += int((state.predict_on_batch(x).argmax(1) == y).sum())
            count += len(y)
        return {"accuracy": (right, count)}

    def save(self, state):
        variables = state.variables + state.optimizer.variables
        return [keras.ops.convert_to_numpy(each) for each in variables]

    def load(self, config, saved):
        model = self.init(config)
        for each, value in zip(model.variables + model.optimizer.variables, saved, strict=True):
            each.assign(value)
        model.optimizer.learning_rate = config["lr"]
        return model
