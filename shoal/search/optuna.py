"""Optuna's samplers (Akiba et al., KDD 2019), asked for one configuration at a time.

Each time an Optuna study is built anew, in memory, from the trials that the view knows, and a sampler seeded by (seed,
number of the trial) is asked: so the searcher is pure, and a resumed study goes on as if it had not stopped.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from math import inf
from typing import Any

import numpy as np

from shoal.core.plan import Proposal
from shoal.core.state import View
from shoal.core.trial import TrialId
from shoal.search.draws import check_numbers, mine, needed, new_trial, numbered, room
from shoal.search.optuna_space import optuna, parameters, quietly, suggested
from shoal.search.rank import Mode, check_scores, cost
from shoal.search.space import Config, Space, build, validated

SAMPLERS = {"tpe": "optuna.samplers:TPESampler", "gp": "optuna.samplers:GPSampler", "random": "optuna.samplers:RandomSampler"}
KEEPING = ("CmaEsSampler", "NSGAIISampler", "NSGAIIISampler", "QMCSampler", "GridSampler")  # more than trials


@dataclass(frozen=True, slots=True)
class Optuna:
    """`num_samples` trials, each configuration asked of an Optuna sampler when there is room for one.

    `sampler`: "tpe", "gp", "random", or "module:Class" of one that takes `seed` and learns from trials alone: CMA-ES, NSGA-II
    and the like keep notes of their own in Optuna's storage, which a rebuilt study does not have. `options`: its other arguments.
    A trial's value is its last score; it learns of trials under way, too, and a retired one counts as pruned. Grid dimensions are
    sampled like choices. `max_concurrent`: as for `ASHA`. What is None is the study's.

    Raises:
        ValueError: numbers out of range, no such sampler, or Optuna is not installed.
    """

    sampler: str = "tpe"
    space: Space | None = field(default=None, hash=False)
    num_samples: int | None = None
    max_epochs: float | None = None
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    metric: str | None = None
    mode: Mode | None = None
    seed: int | None = None
    max_concurrent: int | None = None
    per_slot: int | None = None
    _space: Space = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_numbers(self)
        object.__setattr__(self, "_space", validated(self.space or {}))
        module, colon, name = self.sampler.partition(":")
        if (self.sampler not in SAMPLERS and not colon) or (module.startswith("optuna") and name in KEEPING):
            raise ValueError(
                f'no sampler is named {self.sampler!r}: there are {", ".join(SAMPLERS)}, and "module:Class" for others that keep '
                f"nothing but trials; {', '.join(KEEPING)} keep more in Optuna's storage, which is rebuilt from the journal"
            )
        if "seed" in self.options:
            raise ValueError(
                f"Optuna: a sampler is made for each trial, seeded by (seed, number of the trial); options say seed="
                f"{self.options['seed']!r}, with which all would ask alike: say seed= instead"
            )
        optuna()
        try:
            with quietly():
                self._sampler(0)
        except (ImportError, AttributeError, TypeError, ValueError) as error:
            raise ValueError(f"Optuna's sampler {self.sampler!r} cannot be made with {dict(self.options)}: {error}") from error

    def start(self) -> None:
        return None

    def propose(self, view: View, memory: None) -> tuple[Proposal, None]:
        needed(self, "num_samples", "max_epochs")
        check_scores(view, self.metric)
        assert self.num_samples is not None and self.max_epochs is not None
        came = len(mine(view, self.num_samples))
        more = range(came, min(self.num_samples, came + room(view, self.max_concurrent, self.per_slot)))
        if not more:
            return Proposal(), memory
        with quietly():
            past = [trial for t in view.known if (trial := self._told(view, t)) is not None]
            new = []
            for number in more:
                config = self._asked(past, number)
                new.append(new_trial(view, numbered(number), config, self.max_epochs))
                past.append(_frozen("RUNNING", self._space, config))
        return Proposal(tuple(new)), memory

    def _asked(self, past: list[Any], number: int) -> Config:
        """What the sampler has for the trial of this number."""
        study = optuna().create_study(sampler=self._sampler(number), direction="maximize" if self.mode == "max" else "minimize")
        study.add_trials(past)
        trial = study.ask()
        return build(self._space, lambda _, domain, label: suggested(trial, label, domain))

    def _sampler(self, number: int) -> Any:
        module, _, name = SAMPLERS.get(self.sampler, self.sampler).partition(":")
        branches = any(getattr(domain, "under", ()) for domain in self._space.values())
        usual: dict[str, Any] = {}
        if self.sampler == "tpe":  # "constant_liar": it learns of trials under way
            usual = {"constant_liar": True} | ({"multivariate": True, "group": True} if branches else {})
        seed = int(np.random.SeedSequence([self.seed or 0, number]).generate_state(1)[0])
        return getattr(import_module(module), name)(**{"seed": seed, **usual, **self.options})

    def _told(self, view: View, trial: TrialId) -> Any:
        """The trial as Optuna knows it; None for one of another space."""
        scores = [(epoch, cost(values, self.metric, self.mode)) for epoch, values in view.scores[trial]]
        sound = {round(epoch): -c if self.mode == "max" else c for epoch, c in scores if c < inf}
        ended = view.ended.get(trial)
        last = scores[-1][1] if scores else inf
        state = "RUNNING" if ended is None else "FAIL" if last == inf or ended.startswith("failed") else "COMPLETE"
        if state == "COMPLETE" and ended == "retired":
            state = "PRUNED"
        value = (-last if self.mode == "max" else last) if state in ("COMPLETE", "PRUNED") else None
        return _frozen(state, self._space, view.known[trial].config, value, sound if state == "PRUNED" else {})


def _frozen(
    state: str, space: Space, config: Mapping[str, Any], value: float | None = None, steps: Mapping[int, float] | None = None
) -> Any:
    found = parameters(space, config)
    if found is None:
        return None
    states = optuna().trial.TrialState
    return optuna().trial.create_trial(
        state=states[state], params=found[0], distributions=found[1], value=value, intermediate_values=dict(steps or {})
    )
