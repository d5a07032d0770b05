"""What a person does to a study beside its searcher: add a trial, copy one, stop one. While it runs, by a note in its inbox."""

from collections.abc import Callable, Iterable, Mapping
from itertools import count
from typing import TYPE_CHECKING, Any

from shoal.core.event import Commanded, Entry, Retired, Submitted
from shoal.core.state import State, fold
from shoal.core.trial import Trial, TrialId
from shoal.engine.journal import Journal, replay
from shoal.folder import StudyBusy, StudyError, last_head
from shoal.inbox import Inbox, Meaning, Note, answers
from shoal.search.space import value_of

if TYPE_CHECKING:
    from shoal.study import Study

Names = frozenset[TrialId]  # taken


def enqueue(
    study: "Study", config: Mapping[str, Any], max_epochs: float | None, widths: tuple[int, int] | None, priority: float
) -> TrialId:
    """A trial of this configuration; see `Study.enqueue`."""
    from shoal.wiring import epochs_of

    epochs = epochs_of(study, max_epochs)
    if epochs is None:
        raise StudyError("say how long to train: max_epochs= (or a max_epochs attribute of the recipe)")
    said = {"config": _plain(config), "max_epochs": epochs, "widths": widths or (1, 1), "priority": priority}
    return TrialId(_ask(study, lambda names: {"add": _free(names, "added"), **said})["add"])


def clone(study: "Study", trial: TrialId, modify: Mapping[str, Any], warm_start: bool, max_epochs: float | None) -> TrialId:
    """A trial like this one; see `Study.clone`."""
    said = {"of": trial, "modify": _plain(modify), "warm_start": warm_start, "max_epochs": max_epochs}
    return TrialId(_ask(study, lambda names: {"copy": _free(names, f"{trial}-c"), **said})["copy"])


def stop(study: "Study", trial: TrialId | None) -> None:
    """Take a trial out before its end, or end the run; see `Study.stop`."""
    _ask(study, lambda names: {"stop": trial})


def take(study: "Study") -> None:
    """Write down what notes ask for that no run has read; only by who holds the study's lock."""
    inbox = Inbox(study.folder.path)
    if not inbox:
        return
    lines = study.folder.lines()
    if lines:
        paths, entries = answers(inbox, replay(lines), meaning(study))
        _write(study, [entry for entry in entries if not isinstance(entry, Commanded)])  # that was for a run which is over
        for path in paths:
            path.unlink(missing_ok=True)


def meaning(study: "Study") -> Meaning:
    """What notes to this study ask for, as entries of its journal."""

    def entries(state: State, note: Note) -> Iterable[Entry]:
        if "add" in note:
            return _new(state, TrialId(note["add"]), lambda name: _added(study, state, name, note))
        if "copy" in note:
            return _new(state, TrialId(note["copy"]), lambda name: _copied(study, state, name, note))
        if note["stop"] is None:
            return (Commanded("stop", "asked for"),)
        trial = TrialId(note["stop"])
        _known(state, trial)
        return (Retired(trial),) if trial in state.trials else ()

    return entries


def _new(state: State, name: TrialId, made: Callable[[TrialId], Trial]) -> tuple[Entry, ...]:
    return () if name in state.known else (Submitted(made(name)),)  # a note that was taken before a crash


def _added(study: "Study", state: State, name: TrialId, note: Note) -> Trial:
    from shoal.wiring import Options, check_widths

    fewest, most = note["widths"]
    check_widths((fewest, most), Options.of(**last_head(study.folder.lines())["options"]))
    samples = note["max_epochs"] * sum(state.shards.values())
    return Trial(name, samples, note["config"], (fewest, most), frozenset(state.shards), priority=note.get("priority", 1.0))


def _copied(study: "Study", state: State, name: TrialId, note: Note) -> Trial:
    trial = TrialId(note["of"])
    known, kept, epochs = _known(state, trial), state.kept.get(trial), note["max_epochs"]
    if note["warm_start"] and kept is None:
        raise StudyError(f"nothing of trial {trial} is durable yet, so nothing can start from it: use warm_start=False")
    if note["warm_start"] and kept is not None and trial in state.ended:  # of others a newer one may have come by now
        _check_there(study, state, trial, kept.name)
    start = (trial, kept.visits) if note["warm_start"] and kept is not None else None
    size = sum(state.shards[shard] for shard in known.shards)
    samples = known.samples if epochs is None else epochs * size
    if start is not None and kept is not None and samples <= kept.samples:
        raise StudyError(
            f"trial {trial} has trained {kept.samples / size:g} epochs already, and its copy is to train "
            f"{samples / size:g} in all: give a larger max_epochs="
        )
    return Trial(name, samples, {**known.config, **note["modify"]}, known.widths, known.shards, start, known.priority)


def _check_there(study: "Study", state: State, trial: TrialId, name: str) -> None:
    from shoal.train.checkpoint import Vault

    try:
        Vault(study.folder.checkpoints, state.run).size(name)
    except FileNotFoundError as error:
        raise StudyError(
            f"checkpoint {name} of trial {trial} is not there any more (it was deleted for max_checkpoint_gb, or by hand), "
            "so nothing can start from it: use warm_start=False"
        ) from error
    except OSError:  # the storage is in trouble: whoever loads it will say so
        return


def _ask(study: "Study", said: Callable[[Names], Note]) -> Note:
    """Have it written down: by oneself where nobody runs the study, else by who does."""
    if not study.folder.lines():
        raise StudyError(f"the study in {study.folder.path} has not begun: run optimize() first")
    inbox = Inbox(study.folder.path)
    try:
        with study.folder.lock(), inbox.writing():
            take(study)
            state = replay(study.folder.lines())
            note = said(frozenset(state.known))
            if note.get("stop", "") is None:
                raise StudyError(f"the study in {study.folder.path} is not running: there is nothing to stop")
            _write(study, meaning(study)(state, note))
    except StudyBusy:
        with inbox.writing():
            waiting = inbox.read().values()  # before the journal, which has what is no longer here
            state = replay(study.folder.lines())
            for other in waiting:
                state = _after(study, state, other)
            note = said(frozenset(state.known))
            fold(state, meaning(study)(state, note))  # refuses what cannot be
            inbox.leave(note)
    return note


def _after(study: "Study", state: State, note: Note) -> State:
    try:
        return fold(state, meaning(study)(state, note))
    except (ValueError, RuntimeError, KeyError, TypeError):  # who runs the study will say so
        return state


def _write(study: "Study", entries: Iterable[Entry]) -> None:
    """Append to the journal, which nobody else does now."""
    lines, new = study.folder.lines(), list(entries)
    fold(replay(lines), new)  # refuses what the journal could not be read with
    journal = Journal(study.folder.journal)
    try:
        for entry in new:
            journal.append(lines[-1].time, entry)
    finally:
        journal.close()


def _known(state: State, trial: TrialId) -> Trial:
    if trial not in state.known:
        raise StudyError(f"there is no trial {trial}; known: {', '.join(sorted(state.known)[:8])}")
    return state.known[trial]


def _free(names: Names, stem: str) -> TrialId:
    return next(name for i in count(1) if (name := TrialId(f"{stem}{i}")) not in names)


def _plain(config: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value_of(value) for name, value in config.items()}
