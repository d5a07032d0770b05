"""A search procedure of one's own, outside the package: a race.

After each epoch the laggard gives way to a fresh draw.

`python examples/own_searcher.py` trains it in runs/race; run again, it goes on where it was
stopped.
"""

from dataclasses import dataclass
from typing import Any

from digits import Digits

import shoal
from shoal.core.plan import Proposal
from shoal.core.trial import Trial, TrialId

SPACE = Digits.search_space | {"lr": shoal.loguniform(1e-4, 1e-1)}
DRAWS = shoal.Random(SPACE, seed=1)


@dataclass(frozen=True)
class Race:
    """`lanes` trials at a time, `starts` in all.

    Whenever all have a score, the worst is stopped and another one begins.
    """

    lanes: int = 3
    starts: int = 6
    epochs: int = 3

    def start(self) -> int:
        # The memory: how many have begun. It may be any JSON-able value, and is written
        # to the journal whenever it changes.
        return 0

    def propose(self, view: Any, begun: int) -> tuple[Proposal, int]:
        last = {t: view.scores[t][-1][1] for t in view.trials if view.scores[t]}
        worst: list[TrialId] = []
        if begun < self.starts and len(last) == len(view.trials) == self.lanes:
            worst = sorted(last, key=lambda t: (last[t]["accuracy"], t))[:1]
        room = min(self.lanes - len(view.trials) + len(worst), self.starts - begun)

        size = self.epochs * sum(view.shards.values())
        shards = frozenset(view.shards)
        new = []
        for number in range(begun, begun + room):
            config = DRAWS.config(number)
            new.append(Trial(TrialId(f"r{number:02}"), size, config, shards=shards))
        return Proposal(submit=tuple(new), retire=frozenset(worst)), begun + room


if __name__ == "__main__":
    study = shoal.create_study(Digits(), storage="runs/race", load_if_exists=True)
    # hop: trials advance together, shard by shard
    study.optimize(Race(), "hop", progress=False)
    for trial in study.trials:
        print(
            trial.id,
            trial.config,
            f"{trial.epochs:.1f} epochs, accuracy {trial.value:.3f},",
            trial.status,
        )
    print("best:", study.best_trial.config)
