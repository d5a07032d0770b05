"""The loop of `keras_digits` without Shoal: a grid of four configurations, and the best kept."""

import itertools
import os

os.environ.setdefault("KERAS_BACKEND", "torch")

import keras
import numpy as np
from keras import layers
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split


def load():
    x, y = load_digits(return_X_y=True)
    x = (x / 16).astype("float32")
    return train_test_split(x, y, test_size=0.25, random_state=0)


def build(units, lr, dropout):
    model = keras.Sequential(
        [
            layers.Input((64,)),
            layers.Dense(units, activation="relu"),
            layers.Dropout(dropout),
            layers.Dense(10),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(lr), loss)
    return model


def train(model, x, y, batch_size):
    total = 0
    for start in range(0, len(x), batch_size):
        part = slice(start, start + batch_size)
        total += len(y[part]) * float(model.train_on_batch(x[part], y[part]))
        model.reset_metrics()
    return total / len(x)


def validate(model, x, y, batch_size):
    right = 0
    for start in range(0, len(x), batch_size):
        part = slice(start, start + batch_size)
        right += int((model.predict_on_batch(x[part]).argmax(1) == y[part]).sum())
    return right / len(x)


def main(epochs=3, batch_size=50):
    train_x, valid_x, train_y, valid_y = load()
    order = np.random.default_rng(0).permutation(len(train_x))
    best = 0.0
    for units, lr in itertools.product([32, 64], [1e-3, 1e-2]):
        keras.utils.set_random_seed(0)
        model = build(units, lr, dropout=0.2)
        for epoch in range(epochs):
            loss = train(model, train_x[order], train_y[order], batch_size)
            accuracy = validate(model, valid_x, valid_y, batch_size)
            print(f"units={units} lr={lr} {epoch} loss={loss:.4f} accuracy={accuracy}")
        if accuracy > best:
            best = accuracy
            model.save_weights(os.environ.get("BEST", "best.weights.h5"))
    print(f"best accuracy {best}")


if __name__ == "__main__":
    main()
