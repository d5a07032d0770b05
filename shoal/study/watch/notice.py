"""What a run tells its user: a misspelt metric, equal trials, idle slots, damaged checkpoints."""

import warnings
from collections.abc import Iterable

from shoal.core.cluster import RECIPE
from shoal.core.event import Entry, Evaluated, Fell, Finished, Submitted
from shoal.core.masking import masked_config
from shoal.core.state import State
from shoal.core.trial import Seconds, Trial, TrialId
from shoal.train.recipe.several.recipes import Aim

# Idle seconds of slots that are not worth a warning.
LITTLE = 5.0
# So many damaged checkpoints are warned of one by one, and so many scores may lack the metric.
FEW = 3


class Damage:
    """Warns of checkpoints that cannot be read, and says from where their trials go on."""

    def __init__(self) -> None:
        self._count = 0

    def __call__(self, now: Seconds, entries: tuple[Entry, ...], state: State) -> None:
        for entry in entries:
            if isinstance(entry, Fell) and entry.why:
                self._count += 1
                self._warn(entry)

    def _warn(self, entry: Fell) -> None:
        whence = "its beginning"
        if entry.visits:
            whence = f"its former checkpoint, after {entry.visits} visits"
        more = ""
        if self._count == FEW:
            more = "; further ones are in log.txt only"
        if self._count <= FEW:
            warnings.warn(
                f"{entry.why}: trial {entry.trial} goes on from {whence}{more}",
                stacklevel=2,
            )


class Repeats:
    """Warns, once, of a trial with the configuration and the seed of an earlier one.

    It would be equal to the last bit. `known`: the trials that there are.
    """

    def __init__(self, known: Iterable[Trial]) -> None:
        self._seen: set[int] = set()
        self._names: set[TrialId] = set()
        self._warned = False
        for trial in known:
            self._is_repeat(trial)

    def __call__(self, now: Seconds, entries: tuple[Entry, ...], state: State) -> None:
        for entry in entries:
            if self._warned:
                return
            if isinstance(entry, Submitted) and self._is_repeat(entry.trial):
                self._warn(entry.trial, state)

    def _is_repeat(self, trial: Trial) -> bool:
        """Whether it is new, and equals one that was seen; it counts as seen from now on.

        A trial without a configuration, which will draw its own, is looked at once it has.
        """
        if trial.id in self._names or not trial.config:
            return False
        self._names.add(trial.id)
        key = _key(trial)
        if key in self._seen:
            return True
        self._seen.add(key)
        return False

    def _warn(self, trial: Trial, state: State) -> None:
        twin = next(
            name
            for name, each in state.known.items()
            if _key(each) == _key(trial) and name != trial.id
        )
        self._warned = True
        config = masked_config(trial.config)
        warnings.warn(
            f"trial {trial.id} repeats {twin} exactly: both have {config!r} and the same seed. "
            "Name each value once, ask for fewer trials, or give the configurations a seed "
            "of their own, as seed=randint(0, 1000) in the search space",
            stacklevel=2,
        )


def _key(trial: Trial) -> int:
    """Equal for trials that would be equal."""
    return hash((frozenset(trial.config.items()), trial.start, trial.shards))


class MetricCheck:
    """Ends the run when a recipe's first trial has finished, if no score is the study's metric.

    Until then it may still come: some evaluations may give it only, or the last one. After a few
    without it, a warning says so.
    """

    def __init__(self, aim: Aim) -> None:
        self._aim = aim
        self._seen: set[object] = set()  # recipes by name whose metric came
        self._warned: set[object] = set()

    def __call__(self, now: Seconds, entries: tuple[Entry, ...], state: State) -> None:
        """Look at evaluations and ends.

        Raises:
            ValueError: a trial has finished, and no evaluation of its recipe's gave the metric.
        """
        for entry in entries:
            if not isinstance(entry, Evaluated | Finished):
                continue
            if entry.trial not in state.known:
                continue
            config = state.known[entry.trial].config
            recipe = config.get(RECIPE)  # its name, among several
            if recipe not in self._seen:
                self._look(entry.trial, recipe, self._aim(config)[0], state)

    def _look(self, trial: TrialId, recipe: object, metric: str | None, state: State) -> None:
        """Note that the metric came, warn that it has not, or raise ValueError."""
        scores = state.scores[trial]
        names = sorted(set().union(*(values for _, values in scores)))
        if metric is None or metric in names:
            self._seen.add(recipe)
            return
        lack = f"trials{_of(recipe)} have no metric {metric!r}"
        gives = f"evaluations give {', '.join(names)}"
        if names and state.ended.get(trial) == "finished":
            raise ValueError(
                f"{lack}; {gives}: run again with metric= set to one of them, or let an evaluation "
                "give it"
            )
        if len(scores) >= FEW and recipe not in self._warned:
            self._warned.add(recipe)
            warnings.warn(
                f"{lack} so far; {gives}: the run waits for it until a trial has finished. If the "
                "name is wrong, stop the run and set metric= to one of these",
                stacklevel=2,
            )


def _of(recipe: object) -> str:
    """Whose trials they are, in an error."""
    return "" if recipe is None else f" of recipe {recipe!r}"


class Idleness:
    """Warns, once, if slots had nothing to do although more trials were to come.

    It warns after a tenth of all slot seconds were idle, when the searcher submits trials again.
    """

    def __init__(self) -> None:
        self._since: Seconds | None = None
        self._free = 0  # slots without work since then
        self._slots = 0
        self._idle = 0.0  # seconds of slots
        self._all = 0.0  # seconds of slots
        self._warned = False

    def __call__(self, now: Seconds, entries: tuple[Entry, ...], state: State) -> None:
        if self._since is not None:
            self._idle += (now - self._since) * self._free
            self._all += (now - self._since) * self._slots
        if not self._warned and self._idle > max(0.1 * self._all, LITTLE):
            self._warn(entries)
        waiting = len(state.trials) > len(state.running)
        self._since = now
        self._slots = len(state.slots)
        self._free = 0
        if not waiting:
            self._free = self._slots - len(state.busy)

    def _warn(self, entries: tuple[Entry, ...]) -> None:
        if not any(isinstance(entry, Submitted) for entry in entries):
            return
        self._warned = True
        warnings.warn(
            f"slots stood idle for {100 * self._idle / self._all:.0f} % of the time so far, since "
            "the searcher had fewer trials than slots (a rung smaller than that?): asha waits for "
            "no rung, hyperband(concurrent=True) fills the gaps, max_concurrent= may be too small, "
            "or fewer slots would do",
            stacklevel=2,
        )
