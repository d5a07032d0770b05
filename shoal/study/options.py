"""How a study runs: the options that `optimize` takes, and the speeds that a user may give."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from difflib import get_close_matches
from numbers import Number
from pathlib import Path
from typing import Any, Literal

from shoal.backend.opening import MOST_EACH
from shoal.core.profile import Profile
from shoal.core.state import State
from shoal.core.trial import shown
from shoal.core.visits import ValidateEvery
from shoal.engine.files import read_named, whole
from shoal.engine.process import cpus_here
from shoal.pool.member import whole_address
from shoal.profile.given import Given, load
from shoal.profile.measure import Believer
from shoal.profile.table import Table
from shoal.search.batch import is_number, is_whole
from shoal.study.folder import StudyError
from shoal.train.lane.device import gpus

# Arguments of `create_study`, which users may look for here.
OF_THE_STUDY = frozenset(
    {
        "storage",
        "study_name",
        "metric",
        "mode",
        "search_space",
        "seed",
        "checkpoints",
    }
)
# Other arguments of `optimize`, and what users of other tools look for.
OF_OPTIMIZE = (
    "searcher",
    "policy",
    "num_samples",
    "n_trials",
    "max_epochs",
    "max_concurrent",
    "widths",
    "priority",
    "timeout",
    "profile",
    "progress",
    "callbacks",
    "loggers",
)
MEANT = {
    "n_jobs": "backend='ray' with slots=N, for N at once; on one slot recipes are packed",
    "num_workers": "workers=",
    "epochs": "max_epochs=",
    "num_epochs": "max_epochs=",
    "max_t": "max_epochs=",
    "scheduler": "searcher='asha'",
    "search_alg": "searcher=",
    "sampler": "searcher='optuna'",
    "pruner": "searcher='median'",
    "direction": "create_study(direction=)",
    "config": "create_study(search_space=)",
    "param_space": "create_study(search_space=)",
    "space": "create_study(search_space=)",
    "local_dir": "create_study(storage=)",
    "name": "create_study(study_name=)",
    "resources_per_trial": "widths=, slots= and threads=",
    "max_concurrent_trials": "max_concurrent=",
    "time_budget_s": "timeout=",
    "show_progress_bar": "progress=",
    "verbose": "progress=",
}
# What needs no argument here, and why.
NEEDLESS = {
    "catch": "a trial that raises fails, and the others go on",
    "gc_after_trial": "Python collects garbage by itself",
    "func": "give the function first, by place",
}
# Arguments of other tools' studies, and what to use in `create_study`.
OF_OTHER_STUDIES = {
    "sampler": "searcher='optuna' (Optuna's TPE), or 'random'",
    "pruner": "searcher='median', or 'asha' with max_epochs= in optimize()",
    "directions": "metric= and direction=, of one value",
    "objective": "the function as the first argument",
    "model": "a shoal.Recipe as the first argument",
    "name": "study_name=",
    "space": "search_space=",
    "param_space": "search_space=",
    "config": "search_space=",
    "n_trials": "optimize(n_trials=)",
    "num_samples": "optimize(num_samples=)",
    "max_epochs": "optimize(max_epochs=)",
    "policy": "optimize(policy=)",
    "backend": "optimize(backend=)",
}
# Options that one backend alone uses, and what to write with the other one.
_ON_RAY = 'leave it out, or give backend="ray"'
USED_BY = {
    "local": {
        "workers": "use feeders=",
        "device": "leave it out; a slot has a GPU where the cluster has any",
    },
    "ray": {
        "address": _ON_RAY,
        "copies": _ON_RAY,
        "feeders": "use workers=",
        "stream_memory_gb": _ON_RAY,
        "stream_samples": _ON_RAY,
    },
}
LEAST = {
    "threads": 1,
    "copies": 1,
    "checkpoint_every": 0,
    "max_checkpoint_gb": 0,
    "data_memory_gb": 0,
    "state_memory_gb": 0,
    "slot_memory_gb": 0,
    "hang_after": 0,
    "stuck_after": 0,
    "stream_memory_gb": 0,
    "stream_samples": 0,
}


_WHOLE = ("a whole number", is_whole)
_NUMBER = ("a number", is_number)
_TEXT = ("a text", lambda value: isinstance(value, str))
# What kind of value each option has, in words and as a test; others have checks of their own.
KINDS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "backend": _TEXT,
    "slots": _WHOLE,
    "threads": _WHOLE,
    "device": _TEXT,
    "address": _TEXT,
    "copies": _WHOLE,
    "checkpoint_every": _NUMBER,
    "max_checkpoint_gb": _NUMBER,
    "data_memory_gb": _NUMBER,
    "hang_after": _NUMBER,
    "stuck_after": _NUMBER,
    "state_memory_gb": _NUMBER,
    "slot_memory_gb": _NUMBER,
    "fuse": ("True or False", lambda value: isinstance(value, bool)),
    "stream_memory_gb": _NUMBER,
    "stream_samples": _WHOLE,
}


@dataclass(frozen=True, slots=True)
class Options:
    """How a study runs.

    What a trial learns over its visits depends on `device`, `threads` and `fuse` by rounding only.
    There are two exceptions: ReduceLROnPlateau follows `validate_every`, and batch_size="max"
    follows the memory. The order of visits may depend on `backend`, `slots` and `copies`.

    Raises:
        StudyError: a value is out of its range.
    """

    backend: str = "local"
    # Of the ray backend: how many slots. By default one for each GPU, else one for each CPU.
    slots: int | None = None
    # CPU threads of each slot.
    threads: int = 1
    # Of the local backend: processes that read, prepare and augment data. "auto": as many as cores
    # are left over; they start only where making data takes longer than starting them.
    workers: int | Literal["auto"] = "auto"
    # Of the local backend: cpu, cuda or mps; auto takes a GPU if there is one.
    device: str = "auto"
    # Of a running Ray cluster; None starts one on this machine.
    address: str | None = None
    # Slots that hold each shard.
    copies: int = 1
    # Epochs between two evaluations, perhaps a fraction; or "200 steps": optimizer steps.
    validate_every: float | str = 1
    # Seconds of a trial's training between two durable states; 0: after every unit.
    checkpoint_every: float = 30.0
    # The limit for all checkpoints of the study.
    max_checkpoint_gb: float | None = None
    # Prepared shards that each slot keeps in memory.
    data_memory_gb: float = 2.0
    # Of the ray backend: seconds without an answer after which a slot counts as hung and is started
    # again; inf: none does.
    hang_after: float = 30.0
    # Seconds that one call of the recipe's code may take, such as a few steps, before its trial
    # fails. None: far longer than such calls took so far.
    stuck_after: float | None = None
    # Models that rest in each slot's memory. None: a quarter of that memory.
    state_memory_gb: float | None = None
    # What a slot may take in all. By default all of its GPU; without a limit on a CPU.
    slot_memory_gb: float | None = None
    # Packed trials of one graph may train in one step, equal to rounding. False: bit for bit
    # as alone.
    fuse: bool = True
    # Of the ray backend: processes of each node that prepare chunks once for all its slots.
    feeders: int | Literal["auto"] = "auto"
    # Prepared chunks that a node's feeders keep for slots that come later.
    stream_memory_gb: float = 1.0
    # Samples that feeders prepare before a slot asks for them.
    stream_samples: int = 2048
    # In an allocation of Slurm: seconds before its end at which the run stops. None: a minute, or
    # more where visits take longer.
    stop_before: float | None = None

    @classmethod
    def of(cls, **given: Any) -> "Options":
        """The options with these values.

        Raises:
            StudyError: an option has no such name, or a value is out of its range.
        """
        known = [field.name for field in fields(cls)]
        wrong = sorted(set(given) - set(known))
        elsewhere = sorted(OF_THE_STUDY.intersection(wrong))
        if elsewhere:
            raise StudyError(f"{', '.join(elsewhere)}: give it to create_study, not to optimize")
        if wrong:
            hints = "".join(_hint(name, known) for name in wrong)
            raise StudyError(f"unknown option {', '.join(wrong)}{hints}; known: {', '.join(known)}")
        if isinstance(given.get("address"), str):
            given["address"] = whole_address(given["address"])
        return cls(**given)

    def __post_init__(self) -> None:
        self._take_plain()
        if self.backend not in ("local", "ray"):
            raise StudyError(f'backend must be "local" or "ray"; got {self.backend!r}')
        if self.backend == "local" and self.slots not in (None, 1):
            raise StudyError(
                f"the local backend has one slot; got slots={self.slots}: "
                'use backend="ray" for more'
            )
        self._check_number("feeders")
        self._check_number("workers")
        for name, least in LEAST.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise StudyError(f"{name} must be >= {least}; got {shown(value)}")
        try:
            ValidateEvery.of(self.validate_every)
        except ValueError as error:
            raise StudyError(str(error)) from error
        if not self.hang_after > 0:
            raise StudyError(
                f"hang_after must be seconds > 0, or inf for no limit; got {self.hang_after!r}"
            )
        _check_seconds("stop_before", self.stop_before, "for as many as visits take")
        if self.stuck_after is not None and not self.stuck_after > 0:
            raise StudyError(
                "stuck_after must be seconds > 0, or None for what such calls took; got "
                f"{self.stuck_after!r}"
            )
        if self.slots is not None and self.slots < 1:
            raise StudyError(f"slots must be >= 1; got {self.slots}")
        if self.slot_memory_gb is not None and not self.slot_memory_gb > 0:
            raise StudyError(
                f"slot_memory_gb must be > 0, or None for no limit; got {self.slot_memory_gb}"
            )

    def _take_plain(self) -> None:
        """Make values plain: None is the default, a number of NumPy one of Python.

        Raises:
            StudyError: a value is of another kind.
        """
        for each in fields(self):
            value = getattr(self, each.name)
            if value is None:
                value = each.default
            if isinstance(value, Number) and hasattr(value, "item"):
                value = value.item()
            object.__setattr__(self, each.name, value)
            kind = KINDS.get(each.name)
            if kind is not None and value is not None and not kind[1](value):
                raise StudyError(f"{each.name} must be {kind[0]}; got {shown(value)}")

    def _check_number(self, name: str) -> None:
        """Raise StudyError unless this option is "auto", or a number of processes."""
        value = getattr(self, name)
        if isinstance(value, str) and value == "auto":
            return
        if not is_whole(value) or value < 0:
            raise StudyError(f'{name} must be "auto", or a whole number >= 0; got {shown(value)}')

    @property
    def every(self) -> ValidateEvery:
        """When trials are evaluated."""
        return ValidateEvery.of(self.validate_every)

    def workers_here(self, asked: int) -> int:
        """How many workers a slot of this process may start.

        `asked`: how many the data's DataLoader has; that counts where the user gave no `workers`.
        """
        if self.workers != "auto":
            return self.workers
        if asked:
            return min(asked, cpus_here())
        return max(0, cpus_here() - self.threads)

    @property
    def known_slots(self) -> int | None:
        """How many slots there will be; None if that depends on the cluster."""
        if self.backend == "local":
            return 1
        return self.slots

    def slots_on_this_machine(self) -> int:
        """How many slots there will be when the study runs on this machine alone."""
        return self.known_slots or slots_here(self.threads)


def _hint(name: str, known: Sequence[str]) -> str:
    """What the user may have meant by an option of that name."""
    if name in NEEDLESS:
        return f" (leave it out: {NEEDLESS[name]})"
    meant = MEANT.get(name)
    if meant is None:
        meant = " or ".join(get_close_matches(name, [*known, *OF_OPTIMIZE], 2))
    if not meant:
        return ""
    return f" (did you mean {meant}?)"


def check_names(others: Mapping[str, Any]) -> None:
    """Raise StudyError if `create_study` was given arguments that it does not have."""
    known = {*OF_THE_STUDY, "command", "direction", "load_if_exists", "searcher"}
    for name in others:
        meant = OF_OTHER_STUDIES.get(name)
        if meant is None:
            meant = " or ".join(f"{near}=" for near in get_close_matches(name, known, 2))
        hint = ""
        if meant:
            hint = f": did you mean {meant}?"
        raise StudyError(f"create_study has no argument {name}={hint}")


def check_used(options: Options, widths: tuple[int, int] | None) -> None:
    """Raise StudyError if an option has a value that the backend does not use.

    `widths`: those that were asked for beside the options.
    """
    if options.backend == "local" and widths is not None and widths[1] > 1:
        raise StudyError(
            f"the local backend has one slot; got widths={widths!r}: leave it out, or give "
            'backend="ray"'
        )
    for backend, names in USED_BY.items():
        for field in fields(options):
            value = getattr(options, field.name)
            unused = backend != options.backend and field.name in names
            # To ask for no feeders is to ask for what the local backend has.
            if unused and value not in (field.default, 0):
                raise StudyError(
                    f"{field.name} is of the {backend} backend; got {field.name}={value!r} with "
                    f"backend={options.backend!r}, which has no use for it: {names[field.name]}"
                )


def check_widths(widths: tuple[int, int] | None, options: Options) -> None:
    """Raise StudyError if no trial of these widths can have as many slots as it needs."""
    slots = options.known_slots
    if widths is not None and slots is not None and widths[0] > slots:
        raise StudyError(
            f"widths={widths!r} needs {widths[0]} slots for a trial; there are {slots}: "
            "ask for fewer, or give more"
        )


def check_whole_visits(options: Options, shards: int, why: str) -> None:
    """Raise StudyError if evaluations are asked for within a visit, which cannot be. `why`: not."""
    if options.every.within(shards):
        raise StudyError(
            f"validate_every={options.validate_every!r} asks for evaluations within a visit to a "
            f"shard, and {why}: use a multiple of {1 / shards:.3g} epochs"
        )


def check_for_width(options: Options, shards: int, most: int) -> None:
    """Raise StudyError if evaluations are asked for within a visit, and trials may be wide."""
    if most > 1:
        why = f"a trial may have {most} slots, which make whole visits together"
        check_whole_visits(options, shards, why)


def check_timeout(timeout: Any) -> None:
    """Raise StudyError unless it is None or seconds from now on."""
    _check_seconds("timeout", timeout, "for no limit")


def _check_seconds(name: str, value: Any, none: str) -> None:
    """Raise StudyError unless the value is None or a number of seconds. `none`: what None is."""
    if value is None:
        return
    if not is_number(value) or value < 0:
        raise StudyError(f"{name} must be seconds >= 0, or None {none}; got {shown(value)}")


def check_slots(options: Options, room: int | None = None) -> None:
    """Raise StudyError if far more slots are asked for than there is room for.

    In a cluster that the user has started, or that this process is in, Ray says what there is.

    `room`: the slots of the run's allocation; None: it is in none, and has this machine.
    """
    if options.backend != "ray" or options.slots is None or options.address is not None:
        return
    ray = sys.modules.get("ray")
    if ray is not None and ray.is_initialized():
        return
    where = "this machine"
    if room is not None:
        where = "the allocation"
    most = MOST_EACH * (room or slots_here())
    if options.slots > most:
        raise StudyError(
            f"slots={options.slots} is more than {MOST_EACH} for each GPU or CPU of {where} "
            f"({most}): ask for fewer. If it is meant, start a cluster that has as many CPUs "
            f"(ray start --head --num-cpus={options.slots}), and give address='auto'"
        )


def slots_here(threads: int = 1) -> int:
    """Slots of a Ray cluster on this machine alone: its GPUs, else its CPUs by so many threads."""
    return gpus() or max(1, cpus_here() // threads)


# -- given speeds --------------------------------------------------------------------------------


def profile_of(profile: Profile | str | Path | None) -> Profile | Given | None:
    """The given profile; a path is read as a TOML file.

    Raises:
        StudyError: it is no profile, or cannot be read.
        ValueError: the file is none.
    """
    if isinstance(profile, (str, Path)):
        try:
            read_named(whole(profile))  # raises if it has no end
        except OSError as error:
            raise StudyError(
                f"profile= takes the path of a TOML file, and this cannot be read: {error}"
            ) from error
        return load(whole(profile))
    if profile is not None and not hasattr(profile, "curve"):
        raise StudyError(f"profile= takes the path of a TOML file, or a Table; got {profile!r}")
    return profile


def believer(given: Profile | Given | None) -> Callable[[State], Profile]:
    """What deciders believe: what is given, and for the rest what was measured so far."""
    if given is None:
        return Believer(Given(()))
    if isinstance(given, Given):
        return Believer(given)
    if isinstance(given, Table):
        return given.believe
    return lambda state: given
