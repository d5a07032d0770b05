"""What a person does to a study beside its searcher: add, copy, extend or stop a trial.

While the study runs, the wish is left as a note in its inbox.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import count
from typing import Any

from shoal.core.cluster import ShardId, epoch_size, shards_of
from shoal.core.event import Commanded, Entry, Kept, Retired, Submitted
from shoal.core.fold import fold
from shoal.core.state import State
from shoal.core.trial import Samples, Trial, TrialId
from shoal.engine.journal import Journal, replay
from shoal.search.space import value_of
from shoal.study.folder import StudyBusy, StudyError
from shoal.study.inbox import Inbox, Meaning, Note, answers
from shoal.study.options import Options, check_for_width, check_widths
from shoal.study.parts.functions import trains_itself
from shoal.study.parts.planned import check_within
from shoal.study.results import check_known
from shoal.study.setup import Setup, check_added, check_one_slot, epochs_of
from shoal.train.function.recipe import UNLIMITED
from shoal.train.lane.checkpoint import Checkpoints
from shoal.train.recipe.several.recipes import changed, own_config

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

    begun = setup.folder.live is not None or setup.folder.journal.exists()
    if trains_itself(setup) and not begun:
        return TrialId(_leave_first(setup, asked)["add"])
    return TrialId(_ask(setup, asked)["add"])


def _alike(setup: Setup, config: Mapping[str, Any]) -> TrialId | None:
    """The first trial of this configuration, also one that waits in a note; None: there is none.

    An objective may have drawn more parameters for a trial that was added.
    """
    draws = getattr(setup.recipe, "draws", False)
    state = setup.folder.live or replay(setup.folder.lines())
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


def stop(setup: Setup, trial: str | None) -> None:
    """Take a trial out before its end, or end the run; see `Study.stop`."""
    _ask(setup, lambda names: {"stop": trial})


def take(setup: Setup) -> bool:
    """Write down what notes ask for that no run has read; whether there were any.

    The caller holds the study's lock.
    """
    inbox = Inbox(setup.folder.path)
    if not inbox:
        return False
    lines = setup.folder.lines()
    if not lines:
        return False
    paths, entries = answers(inbox, replay(lines), meaning(setup))
    # A note that asks for an end was for a run that is over.
    _write(setup, [entry for entry in entries if not isinstance(entry, Commanded)])
    for path in paths:
        path.unlink(missing_ok=True)
    return True


# -- what a note means -----------------------------------------------------------------------------


def meaning(setup: Setup) -> Meaning:
    """What notes to this study ask for, as entries of its journal."""

    def entries(state: State, note: Note) -> Iterable[Entry]:
        if "stop" in note:
            return _stopped(state, note["stop"])
        if "extend" in note:
            return _extended(setup, state, TrialId(note["extend"]), note["max_epochs"])
        made = _added
        if "copy" in note:
            made = _copied
        name = TrialId(note.get("add") or note["copy"])
        if name in state.known:  # the note was taken before a crash
            return ()
        return (Submitted(made(setup, state, name, note)),)

    return entries


def _stopped(state: State, trial: TrialId | None) -> tuple[Entry, ...]:
    """What ends this trial, or the run; nothing if the trial has ended."""
    if trial is None:
        return (Commanded("stop", "asked for"),)
    check_known(state, trial)
    if trial not in state.trials:
        return ()
    return (Retired(trial),)


def _extended(
    setup: Setup, state: State, trial: TrialId, max_epochs: float
) -> tuple[Entry, ...]:
    """The trial once more, with more samples; nothing if it is to train that long already."""
    known = check_known(state, trial)
    how = state.ended.get(trial)
    if how not in (None, "finished"):
        raise StudyError(
            f"trial {trial} is {how.rstrip('.')}, and only a trial that is finished or has work "
            f"left can be extended: {_instead(state, trial)}"
        )
    size = sum(state.shards[shard] for shard in known.shards)
    samples = max_epochs * size
    if samples < known.samples and known.samples == UNLIMITED * size:
        raise StudyError(
            f"trial {trial} trains until its function or command ends, so that it cannot be "
            "extended: give max_epochs= when a study begins, or make the number of epochs a "
            "dimension of its search space"
        )
    check_within(setup.folder.head(), max_epochs)
    if samples < known.samples:
        raise StudyError(
            f"trial {trial} is to train {known.samples / size:g} epochs already: "
            f"give a larger max_epochs= than {max_epochs:g}"
        )
    if samples == known.samples:
        return ()
    kept = state.kept.get(trial)
    if how is not None and kept is not None:
        _check_there(setup, state, kept, "make a cold copy of the trial")
    return (Submitted(replace(known, samples=samples)),)


def _instead(state: State, trial: TrialId) -> str:
    """What to do with an ended trial that cannot be extended."""
    if state.ended[trial].startswith("failed"):
        return "try it again with retry_failed=True"
    if trial in state.kept:
        return "make a copy of it, which goes on from its last durable state"
    return "make a copy with warm_start=False, as nothing of it is durable"


def _added(setup: Setup, state: State, name: TrialId, note: Note) -> Trial:
    fewest, most = note["widths"]
    former = setup.folder.head()
    check_within(former, note["max_epochs"])
    options = Options.of(**former["options"])
    check_widths((fewest, most), options)
    own = shards_of(state.shards, note["config"])
    check_for_width(options, len(own), most)
    return Trial(
        name,
        note["max_epochs"] * sum(own.values()),
        note["config"],
        (fewest, most),
        frozenset(own),
        priority=note.get("priority", 1.0),
    )


def _copied(setup: Setup, state: State, name: TrialId, note: Note) -> Trial:
    known = check_known(state, TrialId(note["of"]))
    config = changed(setup.space or {}, known.config, note["modify"])
    own_config(setup.recipe, config)  # raises if it has one dimension twice
    size = epoch_size(state.shards, config)
    before = epoch_size(state.shards, known.config)
    samples = known.samples * (size / before)
    if note["max_epochs"] is not None:
        check_within(setup.folder.head(), note["max_epochs"])
        samples = note["max_epochs"] * size
    shards = frozenset(shards_of(state.shards, config))
    start = None
    if note["warm_start"]:
        _check_same_data(known, shards)
        kept = _source(setup, state, known.id)
        _check_longer(kept, samples, size)
        start = (known.id, kept.visits)
    return Trial(
        name,
        samples,
        config,
        known.widths,
        shards,
        start,
        known.priority,
    )


def _check_same_data(known: Trial, shards: frozenset[ShardId]) -> None:
    """Raise StudyError if a copy would go on with another recipe's data."""
    if shards != known.shards:
        raise StudyError(
            f"a copy of trial {known.id} with another recipe cannot go on from its weights: "
            "use warm_start=False"
        )


def _check_longer(kept: Kept, samples: Samples, size: Samples) -> None:
    """Raise StudyError if a copy has nothing left to train. `size`: samples of an epoch."""
    if samples <= kept.samples:
        raise StudyError(
            f"trial {kept.trial} has trained {kept.samples / size:g} epochs already, and its "
            f"copy is to train {samples / size:g} in all: give a larger max_epochs="
        )


def _source(setup: Setup, state: State, trial: TrialId) -> Kept:
    """The durable state that a copy of the trial starts from."""
    kept = state.kept.get(trial)
    if kept is None:
        raise StudyError(
            f"nothing of trial {trial} is durable yet, so nothing can start from it: "
            "use warm_start=False"
        )
    if (
        trial in state.ended
    ):  # of a trial that goes on a newer state may have come by now
        _check_there(setup, state, kept, "use warm_start=False")
    return kept


def _check_there(setup: Setup, state: State, kept: Kept, remedy: str) -> None:
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


# -- having it written down ------------------------------------------------------------------------


def _ask(setup: Setup, said: Callable[[Names], Note]) -> Note:
    """Have a note written into the journal, here or by the process that runs the study.

    `said`: makes the note, given the names of the trials that there are.
    """
    inbox = Inbox(setup.folder.path)
    if setup.folder.live is not None:  # a callback asks, whose run has the study open
        with inbox.writing():
            return _leave(setup, inbox, said)
    if not setup.folder.lines():
        raise StudyError(
            f"the study in {setup.folder.path} has not begun: run optimize() first"
        )
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
    state = replay(setup.folder.lines())
    note = said(frozenset(state.known))
    if note.get("stop", "") is None:
        raise StudyError(
            f"the study in {setup.folder.path} is not running: there is nothing to stop"
        )
    _write(setup, meaning(setup)(state, note))
    return note


def _leave(setup: Setup, inbox: Inbox, said: Callable[[Names], Note]) -> Note:
    """Leave a note to the process that runs the study."""
    # The notes are read before the journal, which has what is no longer among them.
    waiting = inbox.read().values()
    state = setup.folder.live or replay(setup.folder.lines())
    for other in waiting:
        state = _after(setup, state, other)
    note = said(frozenset(state.known))
    fold(state, meaning(setup)(state, note))  # raises if it cannot be done
    inbox.leave(note)
    return note


def _after(setup: Setup, state: State, note: Note) -> State:
    try:
        return fold(state, meaning(setup)(state, note))
    except (ValueError, RuntimeError, KeyError, TypeError):  # the run will say so
        return state


def _write(setup: Setup, entries: Iterable[Entry]) -> None:
    """Append to the journal, which nobody else does now."""
    lines = setup.folder.lines()
    new = list(entries)
    fold(
        replay(lines), new
    )  # raises if the journal could not be read with these entries
    journal = Journal(setup.folder.journal)
    try:
        for entry in new:
            journal.append(lines[-1].time, entry)
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
    return {name: value_of(value) for name, value in config.items()}
