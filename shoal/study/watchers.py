"""What follows a run and decides nothing: log, warnings, slots, snapshots, other forms."""

import json
import logging
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from shoal.core.cluster import RECIPE
from shoal.core.errors import ArgumentError, warn
from shoal.core.event import Entry, Evaluated, Failed, Fell, Finished, Kept, Retired, Submitted
from shoal.core.masking import masked_config
from shoal.core.ports import Searcher
from shoal.core.state import State
from shoal.core.trial import Seconds, Trial, TrialId
from shoal.engine.files import whole, write_whole
from shoal.engine.journal import Journal, Line
from shoal.engine.plain_files import check_plain, is_there, open_file, remove_file
from shoal.engine.snapshot import EVERY, History, Snapshot, Snapshots, runs_in
from shoal.reporting.format import plural, status_words
from shoal.reporting.optuna_log import OptunaLog
from shoal.reporting.progress import Progress
from shoal.search import nested
from shoal.study.setup import Setup, trains_itself
from shoal.train.function.recipe import UNLIMITED, FunctionRecipe
from shoal.train.recipe.recipes import Aim

# Silent unless the user's program sets logging up.
LOGGER = logging.getLogger("shoal")
LOGGER.addHandler(logging.NullHandler())


# Seconds whose lines the log gets at once: opening a file takes longer than to write to it.
TOGETHER: Seconds = 1.0


class Log:
    """Appends what happens to the trials to a file, within about a second, and logs it.

    The logger "shoal" gets failures as warnings, durable states for debugging, the rest as
    information.

    One file for all: with a file a trial, making files takes a fifth of a tiny trial's time.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self._waiting: list[str] = []  # lines that are to be appended
        self._since: Seconds = 0.0  # when the first of them came

    def __call__(self, now: Seconds, entries: tuple[Entry, ...], state: State) -> None:
        if not self._waiting:
            self._since = now
        for entry in entries:
            line = _line(entry)
            if line is not None:
                trial, text = line
                self._waiting.append(f"{now:10.2f} s  {trial}  {text}\n")
                level = logging.DEBUG if isinstance(entry, Kept) else logging.INFO
                if isinstance(entry, Failed) or (isinstance(entry, Fell) and entry.why):
                    level = logging.WARNING
                LOGGER.log(level, "%s: %s", trial, text)
        if now - self._since >= TOGETHER or not state.gangs:
            self.close()

    def tell(self, now: Seconds, text: str) -> None:
        """Write a line at once of what the run waits for before its first moment."""
        self._waiting.append(f"{now:10.2f} s  {text}\n")
        LOGGER.info("%s", text)
        self.close()

    def close(self) -> None:
        """Write the lines that wait."""
        if self._waiting:
            with open_file(self.file, "a") as log:
                log.writelines(self._waiting)
        self._waiting = []


def _line(entry: Entry) -> tuple[TrialId, str] | None:
    """The trial that the entry is about, and what the log says of it; None: nothing."""
    match entry:
        case Evaluated(trial, epoch, values):
            listed = ", ".join(f"{name} {value:.6g}" for name, value in values.items())
            return trial, f"epoch {epoch:g}: {listed}"
        case Kept(trial, visits, samples, name):
            return trial, f"kept as {name} after {plural(visits, 'pass')}, {samples:g} samples"
        case Fell(trial, visits, samples, why):
            lost = why or "newer work was lost or void"
            return trial, f"back to pass {visits}, {samples:g} samples: {lost}"
        case Failed(trial, why):
            return trial, f"failed: {why}"
        case Finished(trial) | Retired(trial):
            return trial, status_words(type(entry).__name__.lower())
        case _:
            return None


# Idle seconds of slots that are not worth a warning.
LITTLE = 5.0
# So many damaged checkpoints are warned of one by one, and so many scores may lack the metric.
FEW = 3


class DamageWarner:
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
            whence = f"its former checkpoint, after {plural(entry.visits, 'pass')}"
        more = ""
        if self._count == FEW:
            more = "; further ones are in log.txt only"
        if self._count <= FEW:
            warn(f"{entry.why}: trial {entry.trial} goes on from {whence}{more}")


class RepeatWarner:
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
        """Whether a trial is new, and equals one that was seen; it counts as seen from now on.

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
        warn(
            f"trial {trial.id} repeats {twin} exactly: both have {config!r} and the same seed. "
            "Name each value once, ask for fewer trials, or give the configurations a seed "
            "of their own, as seed=randint(0, 1000) in the search space"
        )


def _key(trial: Trial) -> int:
    """A hash that is equal for trials which training makes equal to the last bit."""
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
            ArgumentError: a trial has finished, and no evaluation of its recipe's gave the metric.
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
        """Note that the metric came, warn that it has not, or raise ArgumentError."""
        scores = state.scores[trial]
        names = sorted(set().union(*(values for _, values in scores)))
        if metric is None or metric in names:
            self._seen.add(recipe)
            return
        whose = "" if recipe is None else f" of recipe {recipe!r}"
        lack = f"trials{whose} have no metric {metric!r}"
        gives = f"evaluations give {', '.join(names)}"
        if names and state.ended.get(trial) == "finished":
            raise ArgumentError(
                f"{lack}; {gives}: run again with metric= set to one of them, or let an evaluation "
                "give it"
            )
        if len(scores) >= FEW and recipe not in self._warned:
            self._warned.add(recipe)
            warn(
                f"{lack} so far; {gives}: the run waits for it until a trial has finished. If the "
                "name is wrong, stop the run and set metric= to one of these"
            )


class IdleWarner:
    """Warns, once, if slots had nothing to do although more trials were to come.

    It warns after a tenth of all slot seconds were idle, when the searcher submits trials again.
    """

    def __init__(self) -> None:
        self._since: Seconds | None = None
        self._free = 0  # slots without work since then
        self._slots = 0
        self._idle = 0.0  # seconds of slots
        self._total = 0.0  # seconds of slots
        self._warned = False

    def __call__(self, now: Seconds, entries: tuple[Entry, ...], state: State) -> None:
        if self._since is not None:
            self._idle += (now - self._since) * self._free
            self._total += (now - self._since) * self._slots
        if not self._warned and self._idle > max(0.1 * self._total, LITTLE):
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
        percent = 100 * self._idle / self._total
        warn(
            f"slots stood idle for {percent:.0f} % of the time so far, since "
            "the searcher had fewer trials than slots (a rung smaller than that?): asha waits for "
            "no rung, hyperband(concurrent=True) fills the gaps, max_concurrent= may be too small, "
            "or fewer slots would do"
        )


# Between two writings. The journal says nothing of slots that wait, or that fall silent.
BOARD_EVERY: Seconds = 3.0


class SlotBoard:
    """Writes which slots there are, when each was heard of last, and what it does.

    A thread writes, so that the file tells the truth while the run waits. A run that is killed
    leaves the file, which then grows old; one that ends removes it.

    `backend`: if it has `silent`, that says for how long nothing was heard of each slot. Other
    slots are heard of at each moment of the run. If it has `size`, that says how many slots it has
    or starts, and how many fit its nodes.
    """

    def __init__(self, path: Path, backend: Any) -> None:
        self._path = path
        self._size = getattr(backend, "size", None)
        self._silent = getattr(backend, "silent", None)
        self._state = State()
        self._moment = time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._write_on, name="shoal-slots", daemon=True)

    def __call__(self, now: Seconds, entries: tuple[Entry, ...], state: State) -> None:
        self._state = state
        self._moment = time.monotonic()
        if self._thread.ident is None:
            self._thread.start()

    def close(self) -> None:
        """Stop writing, and remove the file."""
        self._over.set()
        if self._thread.ident is not None:
            self._thread.join()
        remove_file(self._path)

    def _write_on(self) -> None:
        while not self._over.is_set():
            with suppress(OSError):  # a full disk pauses the study by itself
                self._write()
            self._over.wait(BOARD_EVERY)

    def _write(self) -> None:
        board: dict[str, Any] = {"written": time.time(), "slots": self._slots()}
        if self._size is not None:
            size = self._size()
            board |= {"asked": size.asked, "room": size.room}
        write_whole(self._path, json.dumps(board).encode())

    def _slots(self) -> list[dict[str, Any]]:
        """The slots, in the order in which they came."""
        state = self._state
        silent: dict[str, Seconds] = {}
        if self._silent is not None:
            silent = self._silent()
        since = time.monotonic() - self._moment
        rows: list[dict[str, Any]] = []
        for name, slot in state.slots.items():
            gang = state.busy.get(name)
            trials: list[str] = []
            if gang is not None:
                trials = [lane.trial for lane in gang.lanes if name in lane.slots]
            row: dict[str, Any] = {"slot": name, "node": slot.node, "kind": slot.kind}
            row["trials"] = trials
            row["shards"] = sorted(slot.shards)
            row["silent"] = silent.get(name, since)
            rows.append(row)
        return rows


class SnapshotWriter:
    """Writes a snapshot of the study's state whenever the journal has grown by `EVERY` lines.

    `past`: what the journal came to before. `learnt`: what a snapshot is to hold beside the state.
    """

    def __init__(
        self,
        snapshots: Snapshots,
        journal: Journal,
        past: History,
        learnt: Callable[[], Any] = lambda: None,
    ) -> None:
        self._snapshots = snapshots
        self._journal = journal
        self._runs = [*past.runs]
        self._learnt = learnt
        self._due = EVERY + (past.since.lines if past.since else 0)

    def __call__(self, now: Seconds, entries: tuple[Entry, ...], state: State) -> None:
        self._runs += runs_in([Line(now, entry) for entry in entries])
        if self._journal.number < self._due:
            return
        self._due = self._journal.number + EVERY
        self._journal.sync()
        position = self._journal.number, self._journal.size
        # Without one the next run reads more. The journal itself says so if the disk is full.
        with suppress(OSError):
            self._snapshots.write(Snapshot(*position, now, self._runs, state, self._learnt()))


LARGEST_LOG = 2**30  # bytes of optuna.log, which Optuna reads whole


def display(wanted: bool, setup: Setup) -> list[Progress]:
    """The live display, if wanted."""
    if not wanted:
        return []
    endless = None
    if isinstance(setup.recipe, FunctionRecipe):
        endless = UNLIMITED
    return [Progress(setup.metric, setup.mode, endless=endless, aim=setup.aim)]


def optuna_log(setup: Setup, wanted: bool | str | Path, searcher: Searcher[Any]) -> list[OptunaLog]:
    """Optuna's journal of the study, if wanted, or if there is one in its folder already."""
    place = setup.folder.path / "optuna.log"
    if not wanted and not is_there(place):
        return []
    if isinstance(wanted, bool):
        check_plain(place, most=LARGEST_LOG)
    else:
        place = whole(wanted)
    name = setup.folder.path.name
    ends = (getattr(each, "max_epochs", None) for each in nested(searcher))
    epochs = next((each for each in ends if each is not None), None)
    return [OptunaLog(place, name, setup.space, setup.metric, setup.mode, epochs)]


def function_enders(setup: Setup, backend: Any) -> list[Any]:
    """The watcher that ends the functions of trials that are taken out; none for recipes."""
    if not trains_itself(setup):
        return []
    return [FunctionEnder(backend)]


class FunctionEnder:
    """Ends the functions of trials that were taken out."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend

    def __call__(self, now: Seconds, entries: tuple[Entry, ...], state: State) -> None:
        for entry in entries:
            if isinstance(entry, Retired | Failed):
                self._backend.forget(entry.trial)
