"""Whether a run in which nothing can go on waits for nodes that may come."""

import warnings
from collections.abc import Sequence
from time import monotonic

from shoal.backend.ray.placed.shards import NodeShards
from shoal.backend.ray.slots import ShardRegister, SlotProcess
from shoal.core.trial import Seconds

PATIENCE: Seconds = 60.0  # for a node that has what lies at no slot


class NodeWait:
    """Waits for any node without an end, and for the holder of a shard for `PATIENCE`.

    Most often any node can help. But a shard that stays at its nodes can only be read there. If
    they are gone for long, somebody has to know: the run ends, and its error names the shard.
    """

    def __init__(self, shards: ShardRegister | NodeShards) -> None:
        self._shards = shards
        self._missing: Sequence[str] = ()
        self._until = 0.0
        self._said = ""

    def goes_on(self, ready: Sequence[SlotProcess]) -> bool:
        """Whether to wait on, while these are the slots that are ready."""
        missing = self._shards.missing(ready)
        if not ready or not missing:
            self._warn(f"no trial can run on the {len(ready)} slots there are")
            return True
        if missing != self._missing:
            self._missing = missing
            self._until = monotonic() + PATIENCE
        self._warn(f"no slot holds {'; '.join(missing)}")
        return monotonic() < self._until

    def over(self) -> None:
        """Something goes on: the next wait is another one."""
        self._missing = ()
        self._said = ""

    def _warn(self, what: str) -> None:
        """Say it once while the wait lasts."""
        if what != self._said:
            self._said = what
            warnings.warn(f"{what}: waiting for nodes; Ctrl-C ends the run", stacklevel=2)
