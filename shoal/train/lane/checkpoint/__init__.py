"""Durable states of trials.

- `checkpoints`: `Checkpoints`, the states of one study, written by one of its runs.
- `folder`: files at any fsspec URL. `packs`: small states that share a file. `sound`: whether a
  file is what was written.
"""

from shoal.train.lane.checkpoint.checkpoints import SMALL, Checkpoints, StaleRun
from shoal.train.lane.checkpoint.sound import Damaged

__all__ = ["SMALL", "Checkpoints", "Damaged", "StaleRun"]
