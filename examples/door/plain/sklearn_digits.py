"""The loop of `sklearn_digits` without Shoal: a grid of four configurations, and the best kept."""

import itertools
import pickle
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import SGDClassifier
from sklearn.model_selection import train_test_split


def train(model, x, y, batch_size):
    for start in range(0, len(x), batch_size):
        part = slice(start, start + batch_size)
        model.partial_fit(x[part], y[part], classes=np.arange(10))


def main(epochs=4, batch_size=50):
    x, y = load_digits(return_X_y=True)
    train_x, valid_x, train_y, valid_y = train_test_split(x / 16, y, test_size=0.25, random_state=0)
    best = 0.0
    for alpha, eta0 in itertools.product([1e-4, 1e-3], [0.01, 0.1]):
        model = SGDClassifier(
            loss="log_loss",
            learning_rate="constant",
            alpha=alpha,
            eta0=eta0,
            random_state=0,
        )
        for epoch in range(epochs):
            train(model, train_x, train_y, batch_size)
            accuracy = float((model.predict(valid_x) == valid_y).mean())
            print(f"alpha={alpha} eta0={eta0} epoch {epoch} accuracy {accuracy:.4f}")
        if accuracy > best:
            best = accuracy
            Path("best.pickle").write_bytes(pickle.dumps(model))
    print(f"best accuracy {best:.4f}")


if __name__ == "__main__":
    main()
