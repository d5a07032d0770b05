"""What a person does to a study beside its searcher: add, copy, extend or stop a trial,
and change the number of slots.

While the study runs, the wish is left as a note in its inbox.
"""

from collections.abc import Callable, Iterable, Mapping
from itertools import count
from typing import Any

from shoal.core.event import Commanded, Entry
from shoal.core.fold import fold
from shoal.core.state import State
from shoal.core.trial import Trial, TrialId, shown
from shoal.engine.journal import WRONG, Journal, as_read
from shoal.engine.plain_files import is_there
from shoal.search.space import value_of
from shoal.study.folder import StudyBusy, StudyError
from shoal.study.inbox import Inbox, Note, answers
from shoal.study.notes.meaning import meaning
from shoal.study.notes.slots import change_of
from shoal.study.parts.functions import trains_itself
from shoal.study.setup import Setup, check_added, check_one_slot, epochs_of

Names = frozenset[TrialId]  # of the trials that there are


def enqueue(
    setup: Setup,
    config: Mapping[str, Any],
    max_epochs: float | None,
    widths: tuple[int, int] | None,
    priority: float,
    skip_if_exists: bool = False,
) -> TrialId:
    """Add a trial of this configuration; see `Study.enqueue`."""
    epochs = epochs_of(setup.recipe, max_epochs)
    if epochs is None:
        raise StudyError(
            "say how long to train: max_epochs= (or a max_epochs attribute of the recipe)"
        )
    check_one_slot(setup.recipe, widths)
    plain = _plain(config)
    check_added(setup, plain)
    former = _alike(setup, plain) if skip_if_exists else None
    if former is not None:
        return former
    said = {
        "config": plain,
        "max_epochs": epochs,
        "widths": widths or (1, 1),
        "priority": priority,
    }

    def asked(names: Names) -> Note:
        return {"add": _free(names, "added"), **said}

    begun = setup.folder.live is not None or is_there(setup.folder.journal)
    if trains_itself(setup) and not begun:
        return TrialId(_leave_first(setup, asked)["add"])
    return TrialId(_ask(setup, asked)["add"])


def _alike(setup: Setup, config: Mapping[str, Any]) -> TrialId | None:
    """The first trial of this configuration, also one that waits in a note; None: there is none.

    An objective may have drawn more parameters for a trial that was added.
    """
    draws = getattr(setup.recipe, "draws", False)
    state = setup.folder.live or setup.folder.past().state
    found = {trial.id: trial.config for trial in state.known.values()}
    for note in Inbox(setup.folder.path).read().values():
        if "add" in note:
            name = TrialId(note["add"])
            found[name] = Trial(name, 1, note["config"]).config  # lists become tuples
    for name, other in found.items():
        more = draws and name.startswith("added") and config.items() <= other.items()
        if more or other == config:
            return name
    return None


def clone(
    setup: Setup,
    trial: TrialId,
    modify: Mapping[str, Any],
    warm_start: bool,
    max_epochs: float | None,
) -> TrialId:
    """Add a copy of a trial; see `Study.clone`."""
    said = {
        "of": trial,
        "modify": _plain(modify),
        "warm_start": warm_start,
        "max_epochs": max_epochs,
    }
    note = _ask(setup, lambda names: {"copy": _free(names, f"{trial}-c"), **said})
    return TrialId(note["copy"])


def extend(setup: Setup, trial: TrialId, max_epochs: float) -> None:
    """Have a trial train for more epochs; see `Study.extend`."""
    _ask(setup, lambda names: {"extend": trial, "max_epochs": max_epochs})


def stop(setup: Setup, trial: str | None) -> str:
    """Take a trial out before its end, or end the run; see `Study.stop`.

    Returns what came of it: "asked" of the run that is under way, "stopped", or how the trial had
    ended before: "finished", "failed" or "retired".
    """
    name = TrialId(str(trial))
    before = setup.folder.live or setup.folder.past().state
    _ask(setup, lambda names: {"stop": trial})
    if trial is not None and name in before.ended:
        return before.ended[name].partition(": ")[0]
    if trial is None or name not in setup.folder.past().state.ended:
        return "asked"
    return "stopped"


def slots(setup: Setup, add: int | None, remove: int | None, count: int | None) -> None:
    """Have a run get more or fewer slots; see `Study.slots`."""
    change = change_of(add, remove, count)
    _ask(setup, lambda names: {"slots": change})


def take(setup: Setup) -> bool:
    """Write down what notes ask for that no run has read; whether there were any.

    The caller holds the study's lock.
    """
    inbox = Inbox(setup.folder.path)
    if not inbox:
        return False
    past = setup.folder.past()
    if not past.runs:
        return False
    paths, entries = answers(inbox, past.state, meaning(setup))
    # A note that asks for an end, or for slots, was for a run that is over.
    _write(setup, [entry for entry in entries if not isinstance(entry, Commanded)])
    inbox.remove(paths)
    return True


# -- having it written down ------------------------------------------------------------------------


def _ask(setup: Setup, said: Callable[[Names], Note]) -> Note:
    """Have a note written into the journal, here or by the process that runs the study.

    `said`: makes the note, given the names of the trials that there are.
    """
    inbox = Inbox(setup.folder.path)
    if setup.folder.live is not None:  # a callback asks, whose run has the study open
        with inbox.writing():
            return _leave(setup, inbox, said)
    if not setup.folder.past().runs:
        raise StudyError(f"the study in {setup.folder.path} has not begun: run optimize() first")
    try:
        with setup.folder.lock(), inbox.writing():
            return _write_now(setup, said)
    except StudyBusy:
        with inbox.writing():
            return _leave(setup, inbox, said)


def _leave_first(setup: Setup, said: Callable[[Names], Note]) -> Note:
    """Leave a note to the first run of a study that has not begun."""
    setup.folder.make()
    inbox = Inbox(setup.folder.path)
    with inbox.writing():
        names = [TrialId(str(note.get("add"))) for note in inbox.read().values()]
        note = said(frozenset(names))
        inbox.leave(note)
    return note


def _write_now(setup: Setup, said: Callable[[Names], Note]) -> Note:
    """Write it down here, as nobody runs the study."""
    take(setup)
    state = setup.folder.past().state
    note = said(frozenset(state.known))
    if note.get("stop", "") is None:
        raise StudyError(
            f"the study in {setup.folder.path} is not running: there is nothing to stop"
        )
    if "slots" in note:
        raise StudyError(
            f"the study in {setup.folder.path} is not running: say how many slots it is to have "
            "when you run it again, with slots="
        )
    _write(setup, meaning(setup)(state, note))
    return note


def _leave(setup: Setup, inbox: Inbox, said: Callable[[Names], Note]) -> Note:
    """Leave a note to the process that runs the study."""
    # The notes are read before the journal, which has what is no longer among them.
    waiting = inbox.read().values()
    state = setup.folder.live or setup.folder.past().state
    for other in waiting:
        state = _after(setup, state, other)
    note = said(frozenset(state.known))
    fold(state, map(as_read, meaning(setup)(state, note)))  # raises if it cannot be done
    inbox.leave(note)
    return note


def _after(setup: Setup, state: State, note: Note) -> State:
    try:
        return fold(state, meaning(setup)(state, note))
    except (*WRONG, RuntimeError):  # the run will say so
        return state


def _write(setup: Setup, entries: Iterable[Entry]) -> None:
    """Append to the journal, which nobody else does now."""
    past = setup.folder.past()
    new = [as_read(entry) for entry in entries]
    fold(past.state, new)  # raises if the journal could not be read with these entries
    journal = Journal(setup.folder.journal)
    try:
        for entry in new:
            journal.append(past.time, entry)
    finally:
        journal.close()


def _free(names: Names, stem: str) -> TrialId:
    """The first name that no trial has: the stem and a number."""
    for number in count(1):
        name = TrialId(f"{stem}{number}")
        if name not in names:
            return name
    raise AssertionError("there is always a larger number")


def _plain(config: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(config, Mapping):
        raise StudyError(f"a configuration is a dict of names and values; got {shown(config)}")
    return {name: value_of(value) for name, value in config.items()}
