"""Optuna's samplers (Akiba et al., KDD 2019), asked for one configuration at a time.

An Optuna study in memory holds the trials that the view knows. For each new trial a sampler seeded
by (seed, number of the trial) is asked. So the searcher is pure, and a resumed study goes on as if
it had not stopped. Below the searcher: a search space in Optuna's terms, and what to write in place
of Optuna's own samplers, pruners and distributions.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from logging import CRITICAL, getLogger
from math import inf
from typing import Any, ClassVar
from warnings import catch_warnings, simplefilter

import numpy as np

from shoal.core.install import install
from shoal.core.plan import Proposal
from shoal.core.state import View, having
from shoal.core.trial import Trial, TrialId, Value
from shoal.search.batch import Widths
from shoal.search.draws import check_needs, check_numbers, new_trial, numbered, room
from shoal.search.look import Look
from shoal.search.membership import holds
from shoal.search.rank import Mode, check_scores, cost
from shoal.search.space import Config, LogUniform, RandInt, Space, Uniform, build, validated

SAMPLERS = {
    "tpe": "optuna.samplers:TPESampler",
    "gp": "optuna.samplers:GPSampler",
    "random": "optuna.samplers:RandomSampler",
}
# Samplers that keep more than trials: notes of their own, in Optuna's storage.
KEEPING = ("CmaEsSampler", "NSGAIISampler", "NSGAIIISampler", "QMCSampler", "GridSampler")


@dataclass(frozen=True, slots=True)
class Optuna:
    """Trials whose configurations are asked of an Optuna sampler, each when there is room for it.

    A trial's value is its last score. The sampler learns of trials under way, too; a retired trial
    counts as pruned. Grid dimensions are sampled like choices. What is None is the study's.

    Args:
        sampler: "tpe", "gp", "random", or "module:Class" of one that takes `seed` and learns from
            trials alone. CMA-ES, NSGA-II and the like keep notes of their own in Optuna's storage,
            which a rebuilt study does not have.
        space: the dimensions, by name.
        num_samples: trials in all.
        max_epochs: epochs that each trial trains.
        options: the sampler's other arguments.
        metric: the score to learn from.
        mode: "min" or "max".
        seed: of the samplers, 0 or more: each trial's is seeded by it and the trial's number.
        max_concurrent: trials under way. None: `per_slot` for each slot.
        per_slot: trials under way for each slot. None: one, and more for policies that pack; where
            a trial needs several slots, so many for as many slots.
        widths: the fewest and most slots of each trial. None: one.

    Raises:
        ValueError: a number is out of range, there is no such sampler, or Optuna is not installed.
    """

    needs: ClassVar = ("num_samples", "max_epochs")

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
    widths: Widths | None = None
    _space: Space = field(init=False, repr=False, compare=False)
    _past: "Past" = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_numbers(self)
        object.__setattr__(self, "_space", validated(self.space or {}))
        if not isinstance(self.sampler, str):
            hint = instead(self.sampler) or 'write its name, as "tpe"'
            raise ValueError(f"a sampler is made anew for each trial, by its name: {hint}")
        module, colon, name = self.sampler.partition(":")
        unknown = self.sampler not in SAMPLERS and not colon
        if module.startswith("optuna") and name in KEEPING:
            raise ValueError(f"Optuna's {name} cannot be used: {NO_KEEPER}")
        if unknown:
            raise ValueError(
                f"no sampler is named {self.sampler!r}: there are {', '.join(SAMPLERS)}, and "
                '"module:Class" for others that keep nothing but trials; '
                f"{', '.join(KEEPING)} keep more in Optuna's storage, "
                "which is rebuilt from the journal"
            )
        if "seed" in self.options:
            raise ValueError(
                "Optuna: a sampler is made for each trial, seeded by (seed, number of the trial); "
                f"options say seed={self.options['seed']!r}, with which all would ask alike: "
                "say seed= instead"
            )
        optuna()
        try:
            with quietly():
                self._sampler(0)
        except (ImportError, AttributeError, TypeError, ValueError) as error:
            raise ValueError(
                f"Optuna's sampler {self.sampler!r} cannot be made with {dict(self.options)}: "
                f"{error}"
            ) from error
        object.__setattr__(self, "_past", Past(self._space, self.metric, self.mode))

    def start(self) -> None:
        return None

    def propose(self, view: View, memory: None) -> tuple[Proposal, None]:
        check_needs(self)
        check_scores(view, self.metric)
        assert self.num_samples is not None and self.max_epochs is not None
        free = room(self, view)
        self._past.look(view)
        came = self._past.came(view, self.num_samples)
        numbers = range(came, min(self.num_samples, came + free))
        if not numbers:
            return Proposal(), memory
        new: list[Trial] = []
        with quietly():
            study = self._past.study(view)
            for number in numbers:
                study.sampler = self._sampler(number)
                name = numbered(number)
                config = self._past.ask(study, name)
                trial = new_trial(view, name, config, self.max_epochs, self.widths)
                new.append(trial)
        return Proposal(tuple(new)), memory

    def _sampler(self, number: int) -> Any:
        module, _, name = SAMPLERS.get(self.sampler, self.sampler).partition(":")
        usual: dict[str, Any] = {}
        if self.sampler == "tpe":
            usual["constant_liar"] = True  # it learns of trials under way
            if any(getattr(domain, "under", ()) for domain in self._space.values()):
                usual |= {"multivariate": True, "group": True}
        seed = int(np.random.SeedSequence([self.seed or 0, number]).generate_state(1)[0])
        return getattr(import_module(module), name)(**{"seed": seed, **usual, **self.options})


@dataclass(frozen=True, slots=True)
class _Record:
    """A trial in Optuna's terms: a state by name, the value, values by epoch of a pruned one."""

    state: str
    value: float | None = None
    steps: Mapping[int, float] = field(default_factory=dict)


class Past(Look):
    """The trials of a study as an Optuna study, which follows them as they change.

    `_records`: what the Optuna study says of each trial; `_numbers`: the trials' numbers there, of
    those whose configuration is of this space. `_asked`: trials that were asked for, and should be
    the next that become known.
    """

    def __init__(self, space: Space, metric: str | None, mode: Mode | None) -> None:
        super().__init__()
        self._space = space
        self._metric = metric
        self._mode = mode
        self.forget()

    def forget(self) -> None:
        self._study: Any = None
        self._records: dict[TrialId, _Record] = {}
        self._numbers: dict[TrialId, int] = {}
        self._asked: list[TrialId] = []
        self._stale: dict[TrialId, None] = {}

    def look(self, view: View) -> None:
        """Note which trials changed."""
        changed = self.changed(view)
        self._stale.update(dict.fromkeys(changed))

    def study(self, view: View) -> Any:
        """The Optuna study, up to date: its trials come in the order of the view."""
        new = [trial for trial in self._stale if trial not in self._records]
        if self._study is None or new[: len(self._asked)] != self._asked:
            return self._rebuilt(view)
        self._asked = []
        for trial in self._stale:
            if not self._follow(view, trial):
                return self._rebuilt(view)
        self._stale = {}
        return self._study

    def ask(self, study: Any, name: TrialId) -> Config:
        """What the study's sampler suggests for the trial of that name."""
        trial = study.ask()
        # Note that the trial of that name was asked for, and has this number in the study.
        self._numbers[name] = trial.number
        self._asked.append(name)
        return build(self._space, lambda _, domain, label: suggested(trial, label, domain))

    def _rebuilt(self, view: View) -> Any:
        """The Optuna study, made anew from all trials."""
        self.forget()
        self._study = optuna().create_study(direction=_direction(self._mode))
        for trial in view.known:
            self._add(view, trial)
        return self._study

    def _add(self, view: View, trial: TrialId) -> None:
        record = self._record(view, trial)
        self._records[trial] = record
        found = parameters(self._space, view.known[trial].config)
        if found is None:  # of another space: the samplers do not learn of it
            return
        params, distributions = found
        frozen = optuna().trial.create_trial(
            state=optuna().trial.TrialState[record.state],
            params=params,
            distributions=distributions,
            value=record.value,
            intermediate_values=dict(record.steps),
        )
        self._numbers[trial] = len(self._numbers)
        self._study.add_trial(frozen)

    def _follow(self, view: View, trial: TrialId) -> bool:
        """Tell the Optuna study how the trial stands now; False if that needs a new study."""
        known = trial in self._numbers
        if trial not in self._records and not known:
            self._add(view, trial)
            return True
        before = self._records.get(trial, _Record("RUNNING"))
        record = self._record(view, trial)
        self._records[trial] = record
        if record == before or not known:
            return True
        if before.state != "RUNNING" or record.state == "PRUNED":
            return False
        state = optuna().trial.TrialState[record.state]
        self._study.tell(self._numbers[trial], record.value, state=state)
        return True

    def _record(self, view: View, trial: TrialId) -> _Record:
        costs = [
            (epoch, cost(values, self._metric, self._mode))
            for epoch, values in having(view.scores[trial], self._metric)
        ]
        last = inf
        if costs:
            last = costs[-1][1]
        how = _state(view.ended.get(trial), last)
        if how == "COMPLETE":
            return _Record(how, self._value(last))
        if how == "PRUNED":
            steps = {round(epoch): self._value(each) for epoch, each in costs if each < inf}
            return _Record(how, self._value(last), steps)
        return _Record(how)

    def _value(self, cost: float) -> float:
        """The metric again, of a cost."""
        if self._mode == "max":
            return -cost
        return cost


def _direction(mode: Mode | None) -> str:
    """Optuna's name for the mode."""
    if mode == "max":
        return "maximize"
    return "minimize"


def _state(ended: str | None, last: float) -> str:
    """Optuna's name for how a trial stands, whose last cost is this."""
    if ended is None:
        return "RUNNING"
    if last == inf or ended.startswith("failed"):
        return "FAIL"
    if ended == "retired":
        return "PRUNED"
    return "COMPLETE"


def optuna() -> Any:
    """The package.

    Raises:
        ValueError: it is not installed.
    """
    try:
        import optuna as package
    except ImportError as error:
        raise ValueError(f"this needs Optuna: {install('optuna')}") from error
    return package


@contextmanager
def quietly() -> Iterator[None]:
    """A context without Optuna's log lines and warnings of what is experimental."""
    log = getLogger("optuna")
    level = log.level
    log.setLevel(CRITICAL)
    try:
        with catch_warnings():
            simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)


def distribution(domain: Any) -> Any:
    """The Optuna distribution of a dimension; a grid's is that of a choice."""
    made = optuna().distributions
    if isinstance(domain, (Uniform, LogUniform)):
        return made.FloatDistribution(domain.low, domain.high, log=isinstance(domain, LogUniform))
    if isinstance(domain, RandInt):
        return made.IntDistribution(domain.low, domain.high - 1)
    return made.CategoricalDistribution(tuple(map(_told, domain.values)))


def _told(value: Value) -> Any:
    if isinstance(value, tuple):  # Optuna's choices are plain values
        return repr(value)
    return value


def suggested(trial: Any, label: str, domain: Any) -> Value:
    """The configuration's value of this dimension, asked of an Optuna trial."""
    found: Any
    if isinstance(domain, (Uniform, LogUniform)):
        found = trial.suggest_float(
            label, domain.low, domain.high, log=isinstance(domain, LogUniform)
        )
    elif isinstance(domain, RandInt):
        found = trial.suggest_int(label, domain.low, domain.high - 1)
    else:
        told = trial.suggest_categorical(label, list(map(_told, domain.values)))
        found = next(value for value in domain.values if _told(value) == told)
    return found  # type: ignore[no-any-return]


def parameters(
    space: Space, config: Mapping[str, Value]
) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """The configuration's parameters and their distributions, by label.

    None if the configuration is not of this space.
    """
    params: dict[str, Any] = {}
    kinds: dict[str, Any] = {}

    def pick(name: str, domain: Any, label: str) -> Value:
        value = config[name]
        if not holds(domain, value):
            raise KeyError(name)
        kinds[label] = distribution(domain)
        params[label] = _told(value)
        return value

    try:
        build(space, pick)
    except (KeyError, ValueError):
        return None
    return params, kinds


# The samplers that Shoal asks by a name of its own, by their classes.
SHORT_NAMES = {"TPESampler": "tpe", "GPSampler": "gp", "RandomSampler": "random"}
# How others are called, without signs between letters; they keep notes in Optuna's storage.
KEEPERS = ("cmaes", "cmaessampler", "nsgaii", "nsgaiisampler", "nsgaiiisampler", "qmc")
NO_KEEPER = (
    "it keeps notes of its own in Optuna's storage, which a study that is rebuilt from its journal "
    "does not have: use \"optuna(sampler='tpe')\" or \"optuna(sampler='gp')\""
)
PRUNERS = {"MedianPruner": 'searcher="median"', "PatientPruner": 'searcher="patience(epochs=3)"'}
OTHER_PRUNER = 'searcher="asha(stopping=True, max_epochs=9)" or searcher="median"'


def instead(given: Any) -> str | None:
    """What to write in place of an object of Optuna's, or its class; None: it is none."""
    kind = given if isinstance(given, type) else type(given)
    module, name = kind.__module__, kind.__name__
    if module.startswith("optuna.distributions"):
        return _domain(name, given)
    if module.startswith("optuna.pruners"):
        return f"for {name} write {PRUNERS.get(name, OTHER_PRUNER)}"
    if not module.startswith("optuna."):
        return None
    if name in SHORT_NAMES:
        return (
            f'for {name}(…) write searcher=shoal.Optuna("{SHORT_NAMES[name]}", '
            "options={…}): options takes the sampler's arguments, and the seed is the study's"
        )
    if name.lower() in KEEPERS:
        return f"{name} cannot be used: {NO_KEEPER}"
    return f'for {name}(…) write searcher=shoal.Optuna("{module}:{name}", options={{…}})'


def named_instead(name: str) -> str:
    """What to add to an error that no searcher has this name; perhaps nothing."""
    plain = name.lower().replace("-", "").replace("_", "").replace(" ", "")
    for kind, short in SHORT_NAMES.items():
        if plain in (short, kind.lower()):
            return f": write \"optuna(sampler='{short}')\""
    if plain in (*KEEPERS, "cma"):
        return f". It is one of Optuna's, and {NO_KEEPER}"
    return ""


def _domain(name: str, given: Any) -> str:
    """What to write in place of a distribution."""
    low, high = getattr(given, "low", "low"), getattr(given, "high", "high")
    if name == "CategoricalDistribution":
        values = list(getattr(given, "choices", ("…",)))
        return f"for {name} write shoal.choice({values!r})"
    if getattr(given, "step", None) not in (None, 1):
        return f"for {name} with a step write shoal.choice([{low!r}, …, {high!r}])"
    if name.startswith("Int"):
        end = high + 1 if isinstance(high, int) else "high + 1"
        return f"for {name} write shoal.randint({low!r}, {end}), whose end is left out"
    kind = "loguniform" if getattr(given, "log", False) else "uniform"
    return f"for {name} write shoal.{kind}({low!r}, {high!r})"
