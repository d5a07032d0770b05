"""What a note to a study means, as entries of its journal."""

from collections.abc import Iterable
from dataclasses import replace

from shoal.core.cluster import ShardId, epoch_size, shards_of
from shoal.core.event import Commanded, Entry, Kept, Retired, Submitted
from shoal.core.state import State
from shoal.core.trial import Samples, Trial, TrialId
from shoal.options import Options, check_for_width, check_widths
from shoal.study.folder import StudyError
from shoal.study.inbox import Meaning, Note
from shoal.study.notes.slots import slots_asked
from shoal.study.parts.planned import check_within
from shoal.study.results import check_known
from shoal.study.setup import Setup
from shoal.train.function.recipe import UNLIMITED
from shoal.train.lane.checkpoint import Checkpoints
from shoal.train.recipe.several.recipes import changed, own_config


def meaning(setup: Setup) -> Meaning:
    """What notes to this study ask for, as entries of its journal."""

    def entries(state: State, note: Note) -> Iterable[Entry]:
        if "stop" in note:
            return _stopped(state, note["stop"])
        if "slots" in note:
            return slots_asked(setup, state, note["slots"])
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


def _extended(setup: Setup, state: State, trial: TrialId, max_epochs: float) -> tuple[Entry, ...]:
    """The trial once more, with more samples; nothing if it is to train that long already."""
    known = check_known(state, trial)
    how = state.ended.get(trial)
    if how not in (None, "finished"):
        raise StudyError(
            f"trial {trial} is {how.rstrip('.')}, and only a trial that is finished or has work "
            f"left can be extended: {_instead(state, trial)}"
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
    if trial in state.ended:  # of a trial that goes on a newer state may have come by now
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
