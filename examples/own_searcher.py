"""A search procedure of one's own, outside the package: a race. After each epoch the laggard gives way to a fresh draw.

`python examples/own_searcher.py` trains it in runs/race; run again, it goes on where it was stopped.
"""

from dataclasses import dataclass
from typing import Any

from digits import Digits

import shoal
from shoal.core.plan import Proposal
from shoal.core.trial import Trial, TrialId


@dataclass(frozen=True)
class Race:
    """`lanes` trials at a time, `starts` in all; whenever all have a score, the worst is stopped and another one begins."""

    lanes: int = 3
    starts: int = 6
    epochs: int = 3

    def start(self) -> int:
        return 0  # memory: how many have begun; any JSON-able value, written to the journal whenever it changes

    def propose(self, view: Any, begun: int) -> tuple[Proposal, int]:
        score = {t: view.scores[t][-1][1]["accuracy"] for t in view.trials if view.scores[t]}
        abreast = begun < self.starts and len(score) == len(view.trials) == self.lanes
        worst = frozenset([min(score, key=lambda t: (score[t], t))]) if abreast else frozenset()
        room = min(self.lanes - len(view.trials) + len(worst), self.starts - begun)
        size, shards = self.epochs * sum(view.shards.values()), frozenset(view.shards)
        draws = shoal.Random(Digits.search_space | {"lr": shoal.loguniform(1e-4, 1e-1)}, seed=1)
        new = [Trial(TrialId(f"r{i:02}"), size, draws.config(i), shards=shards) for i in range(begun, begun + room)]
        return Proposal(submit=tuple(new), retire=worst), begun + room


if __name__ == "__main__":
    study = shoal.create_study(Digits(), storage="runs/race", load_if_exists=True)
    study.optimize(Race(), "hop", progress=False)  # hop: trials advance together, shard by shard
    for trial in study.trials:
        print(trial.id, trial.config, f"{trial.epochs:.1f} epochs, accuracy {trial.value:.3f},", trial.status)
    print("best:", study.best_trial.config)
