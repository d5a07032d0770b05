"""How a study runs: a value with what to search, and one with all options, from door to slot.

An option is one field of `Options`: its name, type, default, what the command line says of it, and
its rules. `Study.optimize` takes the fields by name, the command line is made of those that have a
help text (`shoal.cli`), the journal stores the value, and backends and slots read it: a trainer has
it as `setup.options`. A new option needs its field here, and the line that uses it.

What else `Study.optimize` takes is a field of `SearchArguments`, of which the command line is made
in the same way: which trials there are, for how long they train, and what follows them.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from math import inf
from numbers import Number
from pathlib import Path
from typing import Any, Literal

from shoal.core import other_tools
from shoal.core.errors import StudyError
from shoal.core.ports import Policy, Searcher
from shoal.core.profile import Profile
from shoal.core.trial import is_number, is_whole, shown
from shoal.core.visits import ValidateEvery
from shoal.engine.files import whole
from shoal.engine.process import cpus_here
from shoal.policy.registry import SHOWN

# What a value must be, in words and as a test.
Rule = tuple[str, Callable[[Any], bool]]

WHOLE: Rule = ("a whole number", is_whole)
NUMBER: Rule = ("a number", is_number)
TEXT: Rule = ("a text", lambda value: isinstance(value, str))
FLAG: Rule = ("True or False", lambda value: isinstance(value, bool))
PROCESSES: Rule = (
    '"auto", or a whole number >= 0',
    lambda value: (isinstance(value, str) and value == "auto") or (is_whole(value) and value >= 0),
)
# The begin of an address that names a pool's folder.
POOL = "pool:"
_ON_RAY = 'leave it out, or give backend="ray"'


def one_of(*words: str) -> Rule:
    """The rule of a text that is one of these."""
    return " or ".join(f'"{word}"' for word in words), lambda value: value in words


def at_least(least: float) -> Rule:
    """The rule of a lower bound."""
    return f">= {least}", lambda value: not value < least


def above_zero(words: str) -> Rule:
    """The rule of a number above 0. `words`: what a message says of it."""
    return words, lambda value: value > 0


def seconds_or_none(none: str) -> Rule:
    """The rule of seconds that may be None. `none`: what None stands for."""
    return f"seconds >= 0, or None {none}", lambda value: is_number(value) and value >= 0


def number_in(text: str) -> int | float | str:
    """The text as a number, or unchanged if it is none."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def whole_in(text: str) -> int | str:
    """The text as a whole number, or unchanged if it is none."""
    return int(text) if text.isdecimal() else text


def option(
    default: Any,
    kind: Rule | None,
    help: str = "",
    *,
    rules: Iterable[Rule] = (),
    typed: Callable[[str], Any] | None = None,
    backend: str | None = None,
    instead: str = "",
    typed_as: Any = None,
    flags: Sequence[str] = (),
) -> Any:
    """A field of `Options` or of `SearchArguments`.

    `kind`: of its value, None apart; its `rules` come after the kinds of all options. `help`: on
    the command line; options without one are for Python alone. `typed`: the value of what was typed
    (None: as its type says). `backend`: the only one that uses it, and what to write `instead` with
    the other one. `typed_as`: its type on the command line, if not the field's own. `flags`: its
    names there, if not the field's.
    """
    about = {
        "kind": kind,
        "help": help,
        "rules": tuple(rules),
        "typed": typed,
        "backend": backend,
        "instead": instead,
        "typed_as": typed_as,
        "flags": flags,
    }
    return field(default=default, metadata=about)


def _plain(value: Any, default: Any) -> Any:
    """The value as plain Python: None is the default, a number of NumPy one of Python."""
    if value is None:
        return default
    if isinstance(value, Number) and hasattr(value, "item"):
        return value.item()
    return value


def _check(name: str, value: Any, rule: Rule | None) -> None:
    """Raise StudyError unless the value is None, or as the rule says."""
    if rule is None or value is None:
        return
    words, holds = rule
    if not holds(value):
        raise StudyError(f"{name} must be {words}; got {shown(value)}")


def _make_plain(options: Any) -> None:
    """Make each value plain Python, and see that it is of its kind."""
    for each in fields(options):
        value = _plain(getattr(options, each.name), each.default)
        object.__setattr__(options, each.name, value)
        _check(each.name, value, each.metadata["kind"])


@dataclass(frozen=True, slots=True)
class Options:
    """How a study runs.

    What a trial learns over its passes depends on `device`, `threads` and `fuse` by rounding only.
    There are two exceptions: ReduceLROnPlateau follows `validate_every`, and batch_size="max"
    follows the memory. The order of passes may depend on `backend`, `slots` and `copies`.

    Args:
        backend: "local": this process; "ray": a Ray cluster.
        slots: how many. None: one for each GPU, else one for each CPU. More than four for each GPU
            or CPU of this machine are refused, unless a cluster is at `address`.
        threads: CPU threads of each slot.
        workers: processes that read, prepare and augment data. "auto": as many as cores are left
            over; they start only where making data takes longer than starting them.
        device: "cpu", "cuda" or "mps". "auto": a GPU if there is one.
        address: of a running Ray cluster, or "pool:DIR" of a pool that several studies share. None:
            one is started on this machine.
        copies: slots that hold each shard. With more than one, states become durable after every
            unit.
        validate_every: epochs between two evaluations of a trial, perhaps a fraction; or "200
            steps", so many optimizer steps. A trial's end is always evaluated.
        checkpoint_every: seconds of a trial's training between two durable states. 0: after every
            unit.
        max_checkpoint_gb: GiB, the limit for all checkpoints of the study. Final weights, the
            newest states of running trials and the best trial's weights always stay. None: no
            limit.
        data_memory_gb: GiB of prepared shards that each slot keeps in memory.
        hang_after: seconds without an answer, after which a slot counts as hung and is started
            again. inf: none does.
        stuck_after: seconds that one call of the recipe's code may take, such as a few steps,
            before its trial fails. None: far longer than such calls took so far.
        state_memory_gb: GiB of models at rest in each slot's memory; those that are training always
            stay. None: a quarter of the memory, shared by the slots.
        slot_memory_gb: GiB that a slot may take in all. None: all of its GPU; no limit on a CPU.
        fuse: packed trials of one graph may train in one step, equal to rounding. False: bit for
            bit as alone.
        feeders: processes of each node that prepare chunks once for all its slots. "auto": none at
            first, and more where preparing once saves time.
        stream_memory_gb: GiB of prepared chunks that a node's feeders keep for slots that come
            later.
        stream_samples: samples that feeders prepare before a slot asks for them.
        stop_before: in an allocation of Slurm, seconds before its end at which the run stops. None:
            60, or more where passes over shards take longer.

    Raises:
        StudyError: a value is out of its range.
    """

    backend: str = option(
        "local", TEXT, "local (this process) or ray", rules=[one_of("local", "ray")]
    )
    slots: int | None = option(None, WHOLE, "slots of the ray backend", rules=[at_least(1)])
    threads: int = option(1, WHOLE, "threads of each slot", rules=[at_least(1)])
    workers: int | Literal["auto"] = option(
        "auto",
        None,
        "processes that read, prepare and augment data (local): a number, or auto",
        rules=[PROCESSES],
        typed=whole_in,
        backend="local",
        instead="use feeders=",
    )
    device: str = option(
        "auto",
        TEXT,
        "of the local backend: auto, cpu, cuda, mps",
        backend="local",
        instead="leave it out; a slot has a GPU where the cluster has any",
    )
    address: str | None = option(
        None,
        TEXT,
        "of a running Ray cluster, or pool:DIR (shoal pool)",
        backend="ray",
        instead=_ON_RAY,
    )
    copies: int = option(
        1, WHOLE, "slots that hold each shard", rules=[at_least(1)], backend="ray", instead=_ON_RAY
    )
    validate_every: float | str = option(
        1,
        None,
        "epochs between evaluations, as 1 or 0.25, or optimizer steps, as '200 steps' "
        "[default: the recipe's, or 1]",
        typed=number_in,
    )
    checkpoint_every: float = option(
        30.0,
        NUMBER,
        "seconds of training between durable states; 0: every unit",
        rules=[at_least(0)],
    )
    max_checkpoint_gb: float | None = option(
        None, NUMBER, "limit for all checkpoints", rules=[at_least(0)]
    )
    data_memory_gb: float = option(2.0, NUMBER, rules=[at_least(0)])
    hang_after: float = option(
        30.0, NUMBER, rules=[at_least(0), above_zero("seconds > 0, or inf for no limit")]
    )
    stuck_after: float | None = option(
        None,
        NUMBER,
        rules=[at_least(0), above_zero("seconds > 0, or None for what such calls took")],
    )
    state_memory_gb: float | None = option(None, NUMBER, rules=[at_least(0)])
    slot_memory_gb: float | None = option(
        None,
        NUMBER,
        "limit for what a slot takes",
        rules=[at_least(0), above_zero("> 0, or None for no limit")],
    )
    fuse: bool = option(
        True, FLAG, "packed trials may train in one step; --no-fuse: bit for bit as alone"
    )
    feeders: int | Literal["auto"] = option(
        "auto",
        None,
        "processes of each node that prepare data for all its slots (ray)",
        rules=[PROCESSES],
        typed=whole_in,
        backend="ray",
        instead="use workers=",
    )
    stream_memory_gb: float = option(
        1.0, NUMBER, rules=[at_least(0)], backend="ray", instead=_ON_RAY
    )
    stream_samples: int = option(2048, WHOLE, rules=[at_least(0)], backend="ray", instead=_ON_RAY)
    stop_before: float | None = option(
        None,
        None,
        "in an allocation of Slurm: stop so many seconds before its end "
        "[default: 60, or more where passes over shards take longer]",
        rules=[seconds_or_none("for as many as passes take")],
    )

    @classmethod
    def of(cls, **values: Any) -> "Options":
        """The options with these values.

        Raises:
            StudyError: an option has no such name, or a value is out of its range.
        """
        known = [each.name for each in fields(cls)]
        wrong = sorted(set(values) - set(known))
        of_study = sorted(OF_THE_STUDY.intersection(wrong))
        if of_study:
            raise StudyError(f"{', '.join(of_study)}: give it to create_study, not to optimize")
        if wrong:
            hints = "".join(_hint(name, known) for name in wrong)
            raise StudyError(f"unknown option {', '.join(wrong)}{hints}; known: {', '.join(known)}")
        address = values.get("address")
        if isinstance(address, str) and address.startswith(POOL):
            # good in whatever folder a later run of the study begins
            values["address"] = f"{POOL}{whole(address.removeprefix(POOL))}"
        return cls(**values)

    def __post_init__(self) -> None:
        _make_plain(self)
        if self.backend == "local" and self.slots not in (None, 1):
            raise StudyError(
                f"the local backend has one slot; got slots={self.slots}: "
                'use backend="ray" for more'
            )
        if self.backend in ("optuna", "wandb"):
            meant = {"optuna": 'searcher="optuna()"', "wandb": 'loggers=["wandb"]'}[self.backend]
            raise StudyError(
                f"backend= is where trials train, local or ray; for {self.backend} write {meant}"
            )
        for each in fields(self):
            for rule in each.metadata["rules"]:
                _check(each.name, getattr(self, each.name), rule)
        try:
            ValidateEvery.of(self.validate_every)
        except ValueError as error:
            raise StudyError(str(error)) from error

    @property
    def every(self) -> ValidateEvery:
        """When trials are evaluated."""
        return ValidateEvery.of(self.validate_every)

    @property
    def slot_limit(self) -> float:
        """GiB that a slot may take in all; infinite without a limit."""
        return inf if self.slot_memory_gb is None else self.slot_memory_gb

    @property
    def known_slots(self) -> int | None:
        """How many slots there will be; None if that depends on the cluster."""
        return 1 if self.backend == "local" else self.slots

    def workers_here(self, of_loader: int) -> int:
        """How many workers a slot of this process may start.

        `of_loader`: those of the data's DataLoader; they count where the user gave no `workers`.
        """
        if self.workers != "auto":
            return self.workers
        if of_loader:
            return min(of_loader, cpus_here())
        return max(0, cpus_here() - self.threads)


DEFAULTS = Options()


@dataclass(frozen=True, slots=True)
class SearchArguments:
    """What `Study.optimize` takes beside `Options`. None leaves a value to searcher or study.

    Raises:
        StudyError: a value is of the wrong kind.
    """

    searcher: Searcher[Any] | str | None = option(
        None,
        None,
        "grid, random, halving, hyperband, asha, pbt, median, patience, optuna; "
        "or as 'asha(grace_period=2)'",
        typed_as=str,
    )
    policy: Policy[Any] | str = option(
        "auto",
        None,
        f"{', '.join([*SHOWN][:-1])} or {[*SHOWN][-1]}, with arguments as in explore(seconds=60); "
        "auto:fifo,pack chooses among these (below: when to use which)",
        typed_as=str,
    )
    num_samples: int | None = option(
        None, WHOLE, "configurations to draw", flags=("--num-samples", "--n-trials")
    )
    max_epochs: float | None = option(None, NUMBER, "epochs of each trial", typed_as=int)
    max_concurrent: int | None = option(None, WHOLE, "trials under way at once")
    widths: tuple[int, int] | None = option(
        None, None, "fewest and most slots of a trial [default: 1 1]"
    )
    priority: float | None = option(None, None, "of a trial against others [default: 1]")
    timeout: float | None = option(
        None, seconds_or_none("for no limit"), "stop after so many seconds; run again to go on"
    )
    profile: Profile | str | Path | None = option(
        None, None, "given speeds (TOML) instead of measured ones", typed_as=Path
    )
    progress: bool = option(True, None)
    optuna_log: bool | str | Path = option(
        False,
        None,
        "write optuna.log, too, for optuna-dashboard",
        typed_as=bool,
        flags=("--optuna-log",),
    )
    callbacks: Sequence[Any] = option((), None)
    loggers: Sequence[Any] = option(
        (),
        None,
        "csv, tensorboard, mlflow or wandb, perhaps with a place as csv:FOLDER; repeat",
        typed_as=list[str],
        flags=("--logger",),
    )
    retry_failed: bool = option(
        False,
        None,
        "failed trials go on from their newest durable state, or begin again",
        flags=("--retry-failed",),
    )

    def __post_init__(self) -> None:
        _make_plain(self)


# The options that have a help text, and so can be typed.
TYPED: Mapping[str, Field[Any]] = {
    each.name: each
    for each in (*fields(SearchArguments), *fields(Options))
    if each.metadata["help"]
}


def typed_default(each: Field[Any]) -> Any:
    """What a command passes on where the option was not typed.

    None: the field's default, or what the study or its recipe says. An option that may be a word as
    well is text.
    """
    if each.default == () or (each.metadata["typed"] and not isinstance(each.default, str)):
        return None
    return each.default


# -- options beside others -------------------------------------------------------------------------


def check_used(options: Options, widths: tuple[int, int] | None) -> None:
    """Raise StudyError if an option has a value that the backend does not use.

    `widths`: those that were asked for beside the options.
    """
    if options.backend == "local" and widths is not None and widths[1] > 1:
        raise StudyError(
            f"the local backend has one slot; got widths={widths!r}: leave it out, or give "
            'backend="ray"'
        )
    for backend in ("local", "ray"):
        for each in fields(options):
            value = getattr(options, each.name)
            unused = backend != options.backend and each.metadata["backend"] == backend
            # To ask for no feeders is to ask for what the local backend has.
            if unused and value not in (each.default, 0):
                raise StudyError(
                    f"{each.name} is of the {backend} backend; got {each.name}={value!r} with "
                    f"backend={options.backend!r}, which has no use for it: "
                    f"{each.metadata['instead']}"
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
    """Raise StudyError if evaluations are asked for within a visit. `why`: it cannot be."""
    if options.every.within(shards):
        raise StudyError(
            f"validate_every={options.validate_every!r} asks for evaluations within a pass over a "
            f"shard, and {why}: use a multiple of {1 / shards:.3g} epochs"
        )


def check_for_width(options: Options, shards: int, most: int) -> None:
    """Raise StudyError if evaluations are asked for within a visit, and trials may be wide."""
    if most > 1:
        why = f"a trial may have {most} slots, which make whole passes together"
        check_whole_visits(options, shards, why)


# -- names that are no option ----------------------------------------------------------------------

# Arguments of `create_study`, which users may look for among the options.
OF_THE_STUDY = frozenset(
    {"storage", "study_name", "metric", "mode", "search_space", "seed", "checkpoints"}
)
# Attributes of a recipe, which users may look for among the options, too.
OF_RECIPES = frozenset(
    {"accumulate_grad_batches", "batch_size", "gradient_clip_val", "lr_schedule", "precision"}
)


def _hint(name: str, known: Iterable[str]) -> str:
    """What the user may have meant by an option of that name."""
    arguments = ["n_trials", *(each.name for each in fields(SearchArguments))]
    meant = other_tools.for_optimize(name, OF_RECIPES)
    return other_tools.hint(name, meant, [*known, *arguments])


def check_names(arguments: Mapping[str, Any]) -> None:
    """Raise StudyError if `create_study` was given arguments that it does not have."""
    known = {*OF_THE_STUDY, "command", "direction", "load_if_exists", "searcher"}
    options = {"n_trials", *(each.name for each in (*fields(SearchArguments), *fields(Options)))}
    for name in arguments:
        meant = other_tools.for_create(name, options, OF_RECIPES)
        hint = other_tools.hint(name, meant, (f"{each}=" for each in known))
        raise StudyError(f"create_study has no argument {name}={hint}")
