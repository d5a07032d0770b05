"""What a person does to a study beside its searcher: add, copy, extend or stop a trial,
and change the number of slots.

While the study runs, the wish is left as a note in its inbox.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import count
from typing import Any, Protocol, TypeVar

from shoal.core.cluster import epoch_size, shards_of
from shoal.core.errors import StudyError
from shoal.core.event import Commanded, Entry, Kept, Retired, Submitted
from shoal.core.fold import fold
from shoal.core.state import State
from shoal.core.trial import Seconds, Trial, TrialId, shown
from shoal.engine.journal import WRONG, Journal, as_read
from shoal.engine.plain_files import is_there
from shoal.options import POOL, Options, check_for_width, check_widths
from shoal.reporting.format import plural, status_words
from shoal.search.space import value_of
from shoal.study.checks import check_added, check_one_slot
from shoal.study.folder import StudyBusy
from shoal.study.inbox import (
    AddNote,
    CopyNote,
    ExtendNote,
    Inbox,
    Meaning,
    Note,
    SlotsNote,
    StopNote,
    note_entries,
)
from shoal.study.results import check_known
from shoal.study.schedules import check_schedule_end
from shoal.study.setup import Setup, epochs_of, trains_itself
from shoal.train.function.recipe import UNLIMITED
from shoal.train.lane.checkpoints import Checkpoints
from shoal.train.recipe.recipes import changed, own_config

Names = frozenset[TrialId]  # of the trials that there are
N = TypeVar("N", AddNote, CopyNote, ExtendNote, StopNote, SlotsNote)


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
    existing = _trial_with(setup, plain) if skip_if_exists else None
    if existing is not None:
        return existing

    def note(names: Names) -> AddNote:
        return AddNote(_free_name(names, "added"), plain, epochs, widths or (1, 1), priority)

    begun = setup.folder.live is not None or is_there(setup.folder.journal)
    if trains_itself(setup) and not begun:
        return _leave_first(setup, note).add
    return _deliver(setup, note).add


def _trial_with(setup: Setup, config: Mapping[str, Any]) -> TrialId | None:
    """The first trial of this configuration, also one that waits in a note; None: there is none.

    An objective may have drawn more parameters for a trial that was added.
    """
    draws = getattr(setup.recipe, "draws", False)
    state = setup.folder.live or setup.folder.past().state
    configs = {trial.id: trial.config for trial in state.known.values()}
    for note in Inbox(setup.folder.path).read().values():
        if isinstance(note, AddNote):
            configs[note.add] = Trial(note.add, 1, note.config).config  # lists become tuples
    for name, known_config in configs.items():
        drew_more = draws and name.startswith("added") and config.items() <= known_config.items()
        if drew_more or known_config == config:
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
    changes = _plain(modify)

    def note(names: Names) -> CopyNote:
        return CopyNote(_free_name(names, f"{trial}-c"), trial, changes, warm_start, max_epochs)

    return _deliver(setup, note).copy


def extend(setup: Setup, trial: TrialId, max_epochs: float) -> None:
    """Have a trial train for more epochs; see `Study.extend`."""
    _deliver(setup, lambda names: ExtendNote(trial, max_epochs))


def stop(setup: Setup, trial: str | None) -> str:
    """Take a trial out before its end, or end the run; see `Study.stop`.

    Returns what came of it: "asked" of the run that is under way, "stopped", or how the trial had
    ended before: "finished", "failed" or "retired".
    """
    name = TrialId(str(trial))
    before = setup.folder.live or setup.folder.past().state
    _deliver(setup, lambda names: StopNote(None if trial is None else name))
    if trial is not None and name in before.ended:
        return before.ended[name].partition(": ")[0]
    if trial is None or name not in setup.folder.past().state.ended:
        return "asked"
    return "stopped"


def slots(setup: Setup, add: int | None, remove: int | None, count: int | None) -> None:
    """Have a run get more or fewer slots; see `Study.slots`."""
    change = slot_change(add, remove, count)
    _deliver(setup, lambda names: SlotsNote(change))


def take_notes(setup: Setup) -> bool:
    """Write down what unread notes ask for; returns whether there were any.

    The caller holds the study's lock.
    """
    inbox = Inbox(setup.folder.path)
    if not inbox:
        return False
    past = setup.folder.past()
    if not past.runs:
        return False
    paths, entries = note_entries(inbox, past.state, note_reader(setup))
    # A note that asks for an end, or for slots, was for a run that is over.
    _write(setup, [entry for entry in entries if not isinstance(entry, Commanded)])
    inbox.remove(paths)
    return True


# -- having it written down ------------------------------------------------------------------------


def _deliver(setup: Setup, make: Callable[[Names], N]) -> N:
    """Have a note written into the journal, here or by the process that runs the study.

    `make`: makes the note, given the names of the trials that there are.
    """
    inbox = Inbox(setup.folder.path)
    if setup.folder.live is not None:  # a callback asks, whose run has the study open
        with inbox.writing():
            return _leave(setup, inbox, make)
    if not setup.folder.past().runs:
        raise StudyError(f"the study in {setup.folder.path} has not begun: run optimize() first")
    try:
        with setup.folder.lock(), inbox.writing():
            return _write_now(setup, make)
    except StudyBusy:
        with inbox.writing():
            return _leave(setup, inbox, make)


def _leave_first(setup: Setup, make: Callable[[Names], N]) -> N:
    """Leave a note to the first run of a study that has not begun."""
    setup.folder.make()
    inbox = Inbox(setup.folder.path)
    with inbox.writing():
        waiting = [each for each in inbox.read().values() if isinstance(each, AddNote)]
        note = make(frozenset(each.add for each in waiting))
        inbox.leave(note)
    return note


def _write_now(setup: Setup, make: Callable[[Names], N]) -> N:
    """Write the note into the journal here, as nobody runs the study."""
    take_notes(setup)
    state = setup.folder.past().state
    note = make(frozenset(state.known))
    if note == StopNote(None):
        raise StudyError(
            f"the study in {setup.folder.path} is not running: there is nothing to stop"
        )
    if isinstance(note, SlotsNote):
        raise StudyError(
            f"the study in {setup.folder.path} is not running: say how many slots it is to have "
            "when you run it again, with slots="
        )
    _write(setup, note_reader(setup)(state, note))
    return note


def _leave(setup: Setup, inbox: Inbox, make: Callable[[Names], N]) -> N:
    """Leave a note to the process that runs the study."""
    # The notes are read before the journal, which has what is no longer among them.
    waiting = inbox.read().values()
    state = setup.folder.live or setup.folder.past().state
    entries = note_reader(setup)
    for earlier in waiting:
        with suppress(*WRONG, RuntimeError):  # the run will say so
            state = fold(state, entries(state, earlier))
    note = make(frozenset(state.known))
    fold(state, map(as_read, entries(state, note)))  # raises if it cannot be done
    inbox.leave(note)
    return note


def _write(setup: Setup, entries: Iterable[Entry]) -> None:
    """Append entries to the journal; the caller holds the study's lock."""
    past = setup.folder.past()
    new = [as_read(entry) for entry in entries]
    fold(past.state, new)  # raises if the journal could not be read with these entries
    journal = Journal(setup.folder.journal)
    try:
        for entry in new:
            journal.append(past.time, entry)
    finally:
        journal.close()


def _free_name(names: Names, stem: str) -> TrialId:
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


def note_reader(setup: Setup) -> Meaning:
    """The function that turns a note to this study into entries of its journal."""

    def entries(state: State, note: Note) -> Iterable[Entry]:
        match note:
            case StopNote(trial):
                return _stop_entries(state, trial)
            case SlotsNote(change):
                return slot_entries(setup, state, change)
            case ExtendNote(trial, max_epochs):
                return _extend_entries(setup, state, trial, max_epochs)
            case AddNote(name) | CopyNote(name) if name in state.known:
                return ()  # the note was taken before a crash
            case AddNote():
                return (Submitted(_added_trial(setup, state, note)),)
            case CopyNote():
                return (Submitted(_copied_trial(setup, state, note)),)

    return entries


def _stop_entries(state: State, trial: TrialId | None) -> tuple[Entry, ...]:
    """The entry that ends this trial, or the run; none if the trial has ended."""
    if trial is None:
        return (Commanded("stop", "asked for"),)
    check_known(state, trial)
    if trial not in state.trials:
        return ()
    return (Retired(trial),)


def _extend_entries(
    setup: Setup, state: State, trial: TrialId, max_epochs: float
) -> tuple[Entry, ...]:
    """The trial submitted again with more samples; empty if it is to train so long already."""
    known = check_known(state, trial)
    end = state.ended.get(trial)
    if end not in (None, "finished"):
        how = f"was {status_words(end)}" if end == "retired" else f"is {end.rstrip('.')}"
        remedy = "make a copy with warm_start=False, as nothing of it is durable"
        if end.startswith("failed"):
            remedy = "try it again with retry_failed=True"
        elif trial in state.kept:
            remedy = "make a copy of it, which goes on from its last durable state"
        raise StudyError(
            f"trial {trial} {how}, and only a trial that is finished or has work "
            f"left can be extended: {remedy}"
        )
    for shard in known.shards:
        if shard not in state.shards:
            raise StudyError(
                f"trial {trial} trains on shard {shard!r}, and no run in the journal has it: "
                "take a copy of the journal that is as Shoal wrote it"
            )
    size = sum(state.shards[shard] for shard in known.shards)
    samples = max_epochs * size
    if samples < known.samples and known.samples == UNLIMITED * size:
        raise StudyError(
            f"trial {trial} trains until its function or command ends, so that it cannot be "
            "extended: give max_epochs= when a study begins, or make the number of epochs a "
            "dimension of its search space"
        )
    check_schedule_end(setup.folder.head(), max_epochs)
    if samples < known.samples:
        raise StudyError(
            f"trial {trial} is to train {known.samples / size:g} epochs already: "
            f"give a larger max_epochs= than {max_epochs:g}"
        )
    if samples == known.samples:
        return ()
    kept = state.kept.get(trial)
    if end is not None and kept is not None:
        _check_checkpoint(setup, state, kept, "make a cold copy of the trial")
    return (Submitted(replace(known, samples=samples)),)


def _added_trial(setup: Setup, state: State, note: AddNote) -> Trial:
    head = setup.folder.head()
    check_schedule_end(head, note.max_epochs)
    options = Options.of(**head["options"])
    check_widths(note.widths, options)
    shards = shards_of(state.shards, note.config)
    check_for_width(options, len(shards), note.widths[1])
    samples = note.max_epochs * sum(shards.values())
    return Trial(
        note.add, samples, note.config, note.widths, frozenset(shards), priority=note.priority
    )


def _copied_trial(setup: Setup, state: State, note: CopyNote) -> Trial:
    known = check_known(state, note.of)
    config = changed(setup.space or {}, known.config, note.modify)
    own_config(setup.recipe, config)  # raises if it has one dimension twice
    size = epoch_size(state.shards, config)
    before = epoch_size(state.shards, known.config)
    samples = known.samples * (size / before)
    if note.max_epochs is not None:
        check_schedule_end(setup.folder.head(), note.max_epochs)
        samples = note.max_epochs * size
    shards = frozenset(shards_of(state.shards, config))
    start = None
    if note.warm_start:
        if shards != known.shards:
            raise StudyError(
                f"a copy of trial {known.id} with another recipe cannot go on from its weights: "
                "use warm_start=False"
            )
        kept = state.kept.get(known.id)
        if kept is None:
            raise StudyError(
                f"nothing of trial {known.id} is durable yet, so nothing can start from it: "
                "use warm_start=False"
            )
        if known.id in state.ended:  # of a trial that goes on a newer state may have come by now
            _check_checkpoint(setup, state, kept, "use warm_start=False")
        if samples <= kept.samples:
            raise StudyError(
                f"trial {known.id} has trained {kept.samples / size:g} epochs already, and its "
                f"copy is to train {samples / size:g} in all: give a larger max_epochs="
            )
        start = (known.id, kept.visits)
    return Trial(note.copy, samples, config, known.widths, shards, start, known.priority)


def _check_checkpoint(setup: Setup, state: State, kept: Kept, remedy: str) -> None:
    """Raise StudyError if a checkpoint is gone. `remedy`: what to do then."""
    if setup.folder.live is not None:
        return  # it may be on its way; the run looks again when it reads the note
    try:
        Checkpoints(setup.folder.checkpoints, state.run).size(kept.name)
    except FileNotFoundError as error:
        raise StudyError(
            f"checkpoint {kept.name} of trial {kept.trial} is not there any more (it was deleted "
            f"for max_checkpoint_gb, or by hand), so nothing can start from it: {remedy}"
        ) from error
    except OSError:  # the storage is in trouble: whoever loads the state will say so
        return


# "+2": two more; "-1": one fewer; "4": so many.
CHANGE = re.compile(r"([+-]?)(\d+)")


def slot_change(add: int | None, remove: int | None, count: int | None) -> str:
    """The change of the number of slots, as the journal writes it.

    Raises:
        StudyError: not exactly one of the three is given, or it is no number of slots.
    """
    by_sign = {"+": add, "-": remove, "": count}
    chosen = {sign: number for sign, number in by_sign.items() if number is not None}
    if len(chosen) != 1:
        raise StudyError(
            "say one of the three: how many slots to add, to remove, or to have in all"
        )
    ((sign, number),) = chosen.items()
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise StudyError(
            f"a number of slots must be a whole number above 0; got {number!r}. "
            "To end the run, use stop"
        )
    return f"{sign}{number}"


def slot_count(change: str, now: int) -> int:
    """How many slots there are to be, of a run that has so many `now`.

    Raises:
        ValueError: the text is no change.
    """
    parsed = CHANGE.fullmatch(change)
    if parsed is None:
        raise ValueError(f"{change!r} is not +N, -N or N")
    sign, number = parsed.groups()
    if not sign:
        return int(number)
    return now + int(f"{sign}{number}")


def slot_entries(setup: Setup, state: State, change: str) -> tuple[Entry, ...]:
    """The entry by which the run gets more or fewer slots.

    Raises:
        StudyError: the run cannot have so many.
    """
    head = setup.folder.head()
    if head.get("backend") != "ray":
        raise StudyError(
            "this run has one slot, its own process (backend local), and cannot get more: "
            "stop it, and run it again with --backend ray"
        )
    address = str(head.get("options", {}).get("address") or "")
    if address.startswith(POOL):
        raise StudyError(
            f"the slots of this run are lent by the pool in {address.removeprefix(POOL)}, "
            "which divides them by priority: other studies that end, or a larger pool, give it more"
        )
    present = len(state.slots)
    board = setup.folder.slots() or {}
    expected = board.get("asked") or present  # with those that are starting
    wanted = slot_count(change, max(present, expected))
    if wanted < 1:
        raise StudyError(
            f"the run has {plural(present, 'slot')}, and one must stay: remove fewer, "
            "or end the run with shoal stop"
        )
    room = board.get("room")
    if room is not None and wanted > max(room, present):
        raise StudyError(
            f"there is room for {plural(room, 'slot')} of this size at the nodes of the run, "
            f"and that would be {wanted}: ask for fewer, or start more nodes"
        )
    return (Commanded("slots", change),)


class Sizable(Protocol):
    """A backend that can have more or fewer slots."""

    def size(self) -> Any:
        """`asked`: slots that are there or start, without those that leave; and `room`."""
        ...

    def resize(self, n: int) -> None:
        """Have so many slots from now on."""
        ...


def slot_resizers(backend: Any) -> "list[SlotResizer]":
    """The watcher that resizes the backend as people ask; none if it cannot be resized."""
    if not hasattr(backend, "resize"):
        return []
    return [SlotResizer(backend)]


class SlotResizer:
    """Tells the backend how many slots to have when the journal says what somebody asked for."""

    def __init__(self, backend: Sizable) -> None:
        self._backend = backend

    def __call__(self, now: Seconds, entries: tuple[Entry, ...], state: State) -> None:
        changes = [
            entry.why for entry in entries if isinstance(entry, Commanded) and entry.what == "slots"
        ]
        if not changes:
            return
        wanted = self._backend.size().asked
        for change in changes:
            # The last slot stays, whoever asked at the same time.
            wanted = max(1, slot_count(change, wanted))
        self._backend.resize(wanted)
