"""How far a wide lane's pass is, and at which widths it was made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from shoal.core.event import Sum
from shoal.train.lane.lane import TrainingLane
from shoal.train.recipe.seat import lr_factor


@dataclass(slots=True)
class PassProgress:
    """The progress of a pass, equal on all ranks.

    `follow`: with a batch per slot, the widths of a former run of this pass.
    """

    follow: Sequence[tuple[int, int]] = ()
    # samples of the pass, up to the last step
    position: int = 0
    # sums of the values noted in the pass
    totals: dict[str, Sum] = field(default_factory=dict)
    # (sample of the pass, width from there on)
    widths: list[tuple[int, int]] = field(default_factory=list)

    def enter(self, width: int) -> None:
        """Note that from this position on the pass is made at that width."""
        if self.follow:
            self.widths = list(self.follow)
            return
        if self.widths and self.widths[-1][1] == width:
            return
        earlier = [each for each in self.widths if each[0] < self.position]
        self.widths = [*earlier, (self.position, width)]

    def fit(self, lane: TrainingLane, width: int) -> None:
        """Set batch size and learning rate for this width, or for that of the former run."""
        settings = lane.settings
        for start, former in self.follow:
            if start <= self.position:
                width = former
        lane.size = settings.batch_size
        lane.factor = 1.0
        if settings.batch_per_slot:
            lane.size = settings.batch_size * width
            lane.factor = lr_factor(settings.lr_rule, width)

    def for_joining(self) -> dict[str, Any]:
        """The progress as a rank that joins gets it."""
        return {"position": self.position, "totals": self.totals, "widths": self.widths}

    def take(self, sent: Mapping[str, Any]) -> None:
        """Take over the progress of another rank."""
        self.position = sent["position"]
        self.totals = sent["totals"]
        self.widths = sent["widths"]
