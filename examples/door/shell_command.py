"""A program that trains a linear classifier of handwritten digits, and goes on from its files.

shoal run --command "python examples/door/shell_command.py --lr {lr} --momentum {momentum} --out
{checkpoint}/state.npz" --space "lr=grid([0.05,0.1])" --space "momentum=grid([0.0,0.9])" --metric
accuracy --mode max
"""

import argparse
from pathlib import Path

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
    begun, weights, velocity = 0, np.zeros((64, 10)), np.zeros((64, 10))
    if Path(args.out).exists():
        kept = np.load(args.out)
        begun, weights, velocity = int(kept["epoch"]), kept["weights"], kept["velocity"]
    for epoch in range(begun, args.epochs):
        order = np.random.default_rng(epoch).permutation(train)
        for batch in np.array_split(order, 50):
            step = gradient(weights, x[batch], y[batch])
            velocity = args.momentum * velocity - args.lr * step
            weights += velocity
        accuracy = np.mean((x[valid] @ weights).argmax(1) == y[valid])
        np.savez(args.out, weights=weights, velocity=velocity, epoch=epoch + 1)
        print(f"accuracy={accuracy:.4f}")
        input()
