"""Which hyper-parameters matter for the score, by a forest over the trials.

Optuna's fANOVA is asked where Optuna and scikit-learn are installed. Its time grows with the square
of the number of trials, so of many, and without Optuna, `forest` says how much each matters. (Its
PED-ANOVA is quick, but gave parameters of three values that change nothing up to half of all.)
"""

import random
import threading
import warnings
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from typing import NamedTuple

from shoal.reporting.accounting import Account
from shoal.reporting.parameters import Parameter, Rows, parameters_of
from shoal.reporting.tally import TrialRow

LEAST = 10  # scored trials; of fewer nothing can be told
MOST = 1000  # trials that are looked at
FANOVA = 100  # trials up to which fANOVA takes less than a second
GROWTH = 1.05  # a live study is looked at again when it has so many times the scores
UNCLEAR = 0.1  # part of the variance that a forest must explain for its word to count
SEED = 0
ENDED = ("finished", "retired", "failed")

Table = Sequence[Sequence[float]]  # a row for each trial, a column for each parameter


class Importance(NamedTuple):
    """How much each hyper-parameter matters.

    `parts`: of 1 in all, by name, the largest first. `by`: who says so. `trials`: of how many, out
    of `scored`. `explained`: the part of the variance of the scores' ranks that a forest predicts
    for trials that it has not seen.
    """

    parts: Mapping[str, float]
    by: str
    trials: int
    scored: int
    explained: float

    @property
    def unclear(self) -> bool:
        """Whether the parts say nothing, for no forest can predict the scores."""
        return self.explained < UNCLEAR


def importance(account: Account) -> Importance | None:
    """How much each hyper-parameter matters; None: too few trials have a score, or none varies."""
    rows = scored_rows(account)
    if len(rows) < LEAST:
        return None
    chosen = rows
    if len(rows) > MOST:
        chosen = random.Random(SEED).sample(rows, MOST)
    varying, _ = parameters_of(chosen)
    if not varying:
        return None
    # They take a while to import.
    import numpy as np

    from shoal.reporting import forest

    ranks = _ranks(chosen, account.mode)
    table = [*zip(*(_column(parameter, chosen) for parameter in varying), strict=True)]
    categories = [n for n, each in enumerate(varying) if each.scale == "category"]
    found = forest.permutation_importance(np.array(table), categories, np.array(ranks), SEED)
    by, parts = f"a forest of {forest.TREES} regression trees", found.parts
    if asked := _optuna(table, varying, ranks):
        by, parts = f"fANOVA of Optuna {version('optuna')}", asked
    named = zip((each.name for each in varying), parts, strict=True)
    ordered = dict(sorted(named, key=lambda pair: -pair[1]))
    return Importance(ordered, by, len(chosen), len(rows), found.explained)


def scored_rows(account: Account) -> list[TrialRow]:
    """The trials with a score."""
    return [row for row in account.trials if row.scored]


def _ranks(rows: Rows, mode: str) -> list[float]:
    """Where each trial's score stands among the others, from 0, the best, to 1; equal ones alike.

    So a few diverged trials do not outweigh the others.
    """
    sign = -1.0 if mode == "max" else 1.0
    scores = [sign * (row.last or 0.0) for row in rows]
    ordered = sorted(scores)
    first: dict[float, int] = {}
    for place, each in enumerate(ordered):
        first.setdefault(each, place)
    last = {each: place for place, each in enumerate(ordered)}
    return [(first[each] + last[each]) / 2 / (len(rows) - 1) for each in scores]


def _column(parameter: Parameter, rows: Rows) -> list[float]:
    """The parameter's places.

    A trial without the parameter gets the value of some trial that has it: then that it lacks it,
    which another parameter decides, tells nothing of its score.
    """
    draw = random.Random(f"{SEED} {parameter.name}")
    places = {row.id: parameter.place(row.id) for row in rows if parameter.name in row.config}
    others = list(places.values()) or [0.0]
    return [places[row.id] if row.id in places else draw.choice(others) for row in rows]


# -- Optuna's evaluator ----------------------------------------------------------------------------


def _optuna(
    table: Table, varying: Sequence[Parameter], ranks: Sequence[float]
) -> tuple[float, ...] | None:
    """The parts by Optuna; None: it is not there, or cannot tell."""
    if len(ranks) > FANOVA or find_spec("optuna") is None or find_spec("sklearn") is None:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what is experimental there
            return _fanova(table, varying, ranks)
    except Exception:  # noqa: BLE001 - whatever another version of it lacks: there is the forest
        return None


def _fanova(
    table: Table, varying: Sequence[Parameter], ranks: Sequence[float]
) -> tuple[float, ...]:
    """The parts by fANOVA, of a study of these trials in memory."""
    from optuna import create_study, importance, logging
    from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution
    from optuna.trial import create_trial

    names = [f"p{number}" for number in range(len(varying))]  # the user's may be anything
    kinds: dict[str, BaseDistribution] = {}
    for name, parameter, column in zip(names, varying, zip(*table, strict=True), strict=True):
        if parameter.scale == "category":
            kinds[name] = CategoricalDistribution(sorted(set(column)))
        else:
            kinds[name] = FloatDistribution(min(column), max(column))
    trials = [
        create_trial(params=dict(zip(names, row, strict=True)), distributions=kinds, value=rank)
        for row, rank in zip(table, ranks, strict=True)
    ]
    level = logging.get_verbosity()
    logging.set_verbosity(logging.ERROR)
    try:
        study = create_study(direction="minimize")
        study.add_trials(trials)
        evaluator = importance.FanovaImportanceEvaluator(seed=SEED)
        found = importance.get_param_importances(study, evaluator=evaluator)
    finally:
        logging.set_verbosity(level)
    return tuple(float(found.get(name, 0.0)) for name in names)


# -- of a study that goes on -----------------------------------------------------------------------


class Memory:
    """The importances of a study that goes on; looked at again when it has some more scores."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[str, tuple[int, Importance]] = {}

    def of(self, name: str, account: Account) -> Importance | None:
        """The importances as of now or a little before. `name`: of these trials among others."""
        curves = account.curves.get(account.metric or "", {})
        scores = sum(len(curves.get(row.id, ())) for row in account.trials)
        is_over = all(row.status in ENDED for row in account.trials)
        with self._lock:
            before = self._known.get(name)
            if before is not None:
                count, known = before
                grown = not count <= scores <= GROWTH * count
                if not grown and (scores == count or not is_over):
                    return known
            found = importance(account)
            if found is not None:
                self._known[name] = scores, found
            return found
