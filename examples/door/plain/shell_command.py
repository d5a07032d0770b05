"""A program that trains a linear classifier of handwritten digits.

python examples/door/plain/shell_command.py --lr 0.1 --momentum 0.9
"""

import argparse

import numpy as np
from sklearn.datasets import load_digits


def gradient(weights, x, y):
    logits = x @ weights
    exponents = np.exp(logits - logits.max(1, keepdims=True))
    wrong = exponents / exponents.sum(1, keepdims=True) - np.eye(10)[y]
    return x.T @ wrong / len(x)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--out", default="weights.npz")
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    x, y = load_digits(return_X_y=True)
    x = x / 16
    train, valid = np.split(rng.permutation(len(x)), [1400])
    weights, velocity = np.zeros((64, 10)), np.zeros((64, 10))
    for epoch in range(args.epochs):
        order = np.random.default_rng(epoch).permutation(train)
        for batch in np.array_split(order, 50):
            step = gradient(weights, x[batch], y[batch])
            velocity = args.momentum * velocity - args.lr * step
            weights += velocity
        accuracy = np.mean((x[valid] @ weights).argmax(1) == y[valid])
        print(f"epoch {epoch} accuracy {accuracy:.4f}")
    np.savez(args.out, weights=weights)
    print(f"best accuracy {accuracy:.4f}")
