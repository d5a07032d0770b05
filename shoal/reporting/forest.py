"""A small random forest of regression trees: which columns tell the scores apart."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

Floats = np.ndarray[Any, np.dtype[np.float64]]
Ints = np.ndarray[Any, np.dtype[np.int64]]

TREES = 32
LEAF = 2  # rows of a leaf at least; of many rows a hundredth


class Importances(NamedTuple):
    """What a forest says of its columns.

    `parts`: of each column, of 1 in all; all 0 where no column helps. `explained`: which part of
    the scores' variance the trees predict for rows that they were not grown on; below 0 where they
    do worse than the mean.
    """

    parts: tuple[float, ...]
    explained: float


class _Tree:
    """One tree, as lists of its nodes: the column and the threshold of each, and its children."""

    def __init__(self, table: Floats, scores: Floats, leaf: int) -> None:
        self._leaf = leaf
        self.column: list[int] = []  # -1: a leaf
        self.threshold: list[float] = []
        self.left: list[int] = []
        self.right: list[int] = []
        self.mean: list[float] = []
        self._grow(table, scores)

    def _grow(self, table: Floats, scores: Floats) -> int:
        """Add the node of these rows, and those below it; returns its number."""
        node = len(self.column)
        self.mean.append(float(scores.mean()))
        for values in (self.column, self.left, self.right):
            values.append(-1)
        self.threshold.append(0.0)
        split = self._split(table, scores)
        if split is not None:
            column, threshold = split
            below = table[:, column] <= threshold
            self.column[node], self.threshold[node] = column, threshold
            self.left[node] = self._grow(table[below], scores[below])
            self.right[node] = self._grow(table[~below], scores[~below])
        return node

    def _split(self, table: Floats, scores: Floats) -> tuple[int, float] | None:
        """The column and threshold after which the scores differ least; None: a leaf."""
        rows = len(scores)
        if rows < 2 * self._leaf or np.ptp(scores) == 0:
            return None
        order = np.argsort(table, axis=0, kind="stable")
        values = np.take_along_axis(table, order, axis=0)
        sums = np.cumsum(scores[order], axis=0)
        first = np.arange(1, rows)[:, None]  # rows before each place
        gain = sums[:-1] ** 2 / first + (sums[-1] - sums[:-1]) ** 2 / (rows - first)
        gain[values[:-1] == values[1:]] = -np.inf
        gain[: self._leaf - 1] = gain[rows - self._leaf :] = -np.inf
        place, column = divmod(int(np.argmax(gain)), table.shape[1])
        if not gain[place, column] > sums[-1, 0] ** 2 / rows:
            return None
        # Between two values; the lower one where nothing lies between.
        middle = (values[place, column] + values[place + 1, column]) / 2
        return column, float(min(middle, np.nextafter(values[place + 1, column], -np.inf)))

    def predict(self, table: Floats) -> Floats:
        """The score of each row."""
        column, left, right = (np.array(each) for each in (self.column, self.left, self.right))
        threshold, mean = np.array(self.threshold), np.array(self.mean)
        nodes = np.zeros(len(table), dtype=np.int64)
        while True:
            at = np.flatnonzero(column[nodes] >= 0)
            if not len(at):
                return mean[nodes]
            node = nodes[at]
            below = table[at, column[node]] <= threshold[node]
            nodes[at] = np.where(below, left[node], right[node])


def permutation_importance(
    table: Floats, categories: Sequence[int], scores: Floats, seed: int = 0
) -> Importances:
    """Grow a forest, and see how much worse it predicts when one column after the other is mixed.

    Each tree is grown on as many rows, drawn with repetition, and judged by the others.
    `categories`: columns whose values are numbers of categories; a tree has them in the order of
    their mean scores.
    """
    draw = np.random.default_rng(seed)
    rows, columns = table.shape
    loss = np.zeros(columns)
    predicted = np.zeros(rows)
    judged = np.zeros(rows)
    for drawn, rest in _draws(rows, draw):
        coded = _in_order(table, categories, drawn, scores)
        tree = _Tree(coded[drawn], scores[drawn], max(LEAF, rows // 100))
        seen = coded[rest]
        guess = tree.predict(seen)
        predicted[rest] += guess
        judged[rest] += 1
        wrong = np.square(guess - scores[rest]).sum()
        for column in range(columns):
            mixed = seen.copy()
            mixed[:, column] = draw.permutation(mixed[:, column])
            loss[column] += np.square(tree.predict(mixed) - scores[rest]).sum() - wrong
    parts = np.maximum(loss, 0.0)
    total = float(parts.sum())
    known = judged > 0
    error = np.square(predicted[known] / judged[known] - scores[known]).sum()
    spread = np.square(scores[known] - scores[known].mean()).sum()
    explained = 1.0 - float(error / spread) if spread > 0 else 0.0
    return Importances(tuple(map(float, parts / (total or 1.0))), explained)


def _draws(rows: int, draw: np.random.Generator) -> Iterator[tuple[Ints, Ints]]:
    """For each tree the rows that it is grown on, and the others."""
    for _ in range(TREES):
        drawn = draw.integers(rows, size=rows)
        rest = np.setdiff1d(np.arange(rows), drawn)
        if len(rest):
            yield drawn, rest


def _in_order(table: Floats, categories: Sequence[int], drawn: Ints, scores: Floats) -> Floats:
    """The table with each category's mean score among the drawn rows in its place."""
    coded = table.copy()
    for column in categories:
        codes = table[:, column].astype(np.int64)
        size = int(codes.max()) + 1
        count = np.bincount(codes[drawn], minlength=size)
        total = np.bincount(codes[drawn], weights=scores[drawn], minlength=size)
        means = np.where(count > 0, total / np.maximum(count, 1), scores[drawn].mean())
        coded[:, column] = means[codes]
    return coded
