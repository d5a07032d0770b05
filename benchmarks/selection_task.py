"""The work that `model_selection.py` gives to each way of dividing it: shards, network, times.

What is real: files in a folder of each node, batches, gradients, states. What is not: the time of
a step, slept on top: `FIXED` seconds a step and `PER_SAMPLE` for each of its samples. So slots are
independent on few cores.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

BATCHES, RATES = (16, 32, 64), (1e-3, 3e-3)
CONFIGS = [{"batch_size": batch, "lr": rate} for batch, rate in itertools.product(BATCHES, RATES)]
ROWS = 1408  # of scikit-learn's 1797 digits to train on; the others are for validation
# Of the seconds below, for a short form.
SCALE = float(os.environ.get("SELECTION_SCALE", "1"))
FIXED, PER_SAMPLE = 0.010 * SCALE, 0.0028 * SCALE  # seconds
SEED, COLUMNS, WIDTH = 3, 64, 256

Places = dict[str, dict[str, str]]  # of each part: node, path
Tables = dict[str, Places]


def named(config: Mapping[str, Any]) -> str:
    """The configuration's name: its batch size and its rate."""
    return f"{config['batch_size']} {config['lr']:g}"


def emulate(rows: int) -> None:
    """Take the time of a step over so many rows."""
    time.sleep(FIXED + PER_SAMPLE * rows)


def network() -> nn.Module:
    """A perceptron of two layers."""
    return nn.Sequential(nn.Linear(COLUMNS, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 10))


def optimizer(model: nn.Module, config: Mapping[str, Any]) -> torch.optim.Optimizer:
    """Adam with the configuration's rate."""
    return torch.optim.Adam(model.parameters(), lr=config["lr"])


def correct(model: nn.Module, batch: Any) -> torch.Tensor:
    """Of each row: 1 if the network is right."""
    return (model(batch[0]).argmax(1) == batch[1]).float()


# -- files -------------------------------------------------------------------------------------


def nodes(slots: int) -> list[str]:
    """The names of so many nodes."""
    return [f"n{number}" for number in range(slots)]


@lru_cache(maxsize=1)
def digits() -> tuple[Any, Any]:
    """Rows in [0, 1] and labels, shuffled once."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(SEED).permutation(len(x))
    return (x[order] / 16).astype("float32"), y[order].astype("int64")


def shards(slots: int) -> list[tuple[Any, Any]]:
    """The training rows, in as many equal parts."""
    x, y = digits()
    parts = np.split(np.arange(ROWS), slots)
    return [(x[part], y[part]) for part in parts]


def held() -> tuple[Any, Any]:
    """Rows to validate with."""
    x, y = digits()
    return x[ROWS:], y[ROWS:]


def laid_out(folder: Path, names: Sequence[str], slots: int, replicas: int) -> Tables:
    """Write the shards, each at so many of the nodes, in a folder of each node.

    The files that every node can read lie in the folder `all`.
    """
    tables: Tables = {"train": {}, "valid": {}}
    for number, (x, y) in enumerate(shards(slots)):
        holders = [names[(number + k) % len(names)] for k in range(replicas)]
        tables["train"][f"s{number}"] = {
            name: written(folder / name / f"s{number}.npz", x, y) for name in holders
        }
    tables["valid"]["held"] = {"*": written(folder / "all" / "held.npz", *held())}
    return tables


def written(path: Path, x: Any, y: Any) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, x=x, y=y)
    return str(path)


def stored(folder: Path) -> int:
    """Bytes of the training shards in the folders of all nodes."""
    return sum(file.stat().st_size for file in folder.glob("n*/s*.npz"))


def catalogue(path: Path, tables: Tables) -> Path:
    """Write the tables as `shoal.Data.shards` reads them."""
    lines = []
    for table, parts in tables.items():
        for part, places in parts.items():
            lines.append(f"[{table}.{part}]")
            lines += [f'"{node}" = "{place}"' for node, place in places.items()]
    path.write_text("\n".join(lines) + "\n")
    return path


def on_this_machine(tables: Tables) -> Tables:
    """The same parts, each read here."""
    return {
        table: {part: {"local": next(iter(at.values()))} for part, at in parts.items()}
        for table, parts in tables.items()
    }
