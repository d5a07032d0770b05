"""What `shoal harvest` does: a Ray head, a thread that looks for idle nodes, and the study."""

import os
import re
import secrets
import shlex
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields, replace
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

import shoal
from shoal.core.errors import StudyError
from shoal.engine.lock import Taken, alone
from shoal.engine.ownership import own_folder
from shoal.engine.plain_files import open_file
from shoal.engine.process import python_module
from shoal.harvest.harvester import Harvester
from shoal.harvest.head import RayHead
from shoal.harvest.lsf import Lsf
from shoal.harvest.observer import Observer
from shoal.harvest.pbs import Pbs
from shoal.harvest.scheduler import NODE, UNTIL, PilotNames, Scheduler, Site
from shoal.harvest.slurm import Slurm
from shoal.options import TYPED, SearchArguments, typed_default
from shoal.simulate.log_files import read_log
from shoal.simulate.policy_files import elastic_for
from shoal.study.auto import policy_of
from shoal.study.checks import try_objectives
from shoal.study.code.recipe_file import function_in
from shoal.study.folder import Folder
from shoal.study.head import rebuild
from shoal.study.holder import HARVEST
from shoal.study.run import Request, train
from shoal.study.searcher import widths_of
from shoal.tools.arguments import open_study, run_options
from shoal.tools.outcome import Terminated, concluded, errors

if TYPE_CHECKING:
    from shoal.core.ports import Policy
    from shoal.study.study import Study


# For slots that come and go, as BFTrainer has it.
POLICY = 'elastic(horizon="learned", placement="spatial")'
# The batch systems by name, and a command that each of them alone has.
SYSTEMS: Mapping[str, tuple[Callable[[Site, PilotNames], Scheduler], str]] = {
    "slurm": (Slurm, "squeue"),
    "pbs": (Pbs, "pbsnodes"),
    "lsf": (Lsf, "bhosts"),
}
SHORTEST = 2  # minutes that a pilot is worth its start
# What a study's folder says itself, with the values of options that were not given.
OF_A_NEW_STUDY: Mapping[str, Any] = {
    **dict.fromkeys(("command", "storage", "space", "metric", "mode")),
    # What may be given for a folder, too, is left out.
    **{
        name: typed_default(each)
        for name, each in TYPED.items()
        if name not in ("policy", "timeout", "retry_failed", "threads")
    },
    "seed": 0,
}

Train = Callable[[str], None]  # runs the study on the cluster at this address


@dataclass(frozen=True, slots=True)
class HarvestRequest:
    """How nodes are to be harvested, as it was typed.

    Raises:
        StudyError: no batch system was named, and not just one is installed here; or two were.
    """

    slurm: bool
    scheduler: str | None
    partition: str
    main_partition: list[str] | None
    no_preemption: bool
    tick: float
    min_ticks: int
    most: int | None
    minutes: int
    cpus_per_node: int | None
    gpus_per_node: int | None
    gpu_nodes: bool
    ip: str | None
    sbatch: list[str] | None

    def __post_init__(self) -> None:
        _ = self.system

    @property
    def system(self) -> str:
        """The batch system that has the nodes: the one named, else the one installed here."""
        named = "slurm" if self.slurm else self.scheduler
        if self.slurm and self.scheduler not in (None, "slurm"):
            raise StudyError(
                f"--slurm and --scheduler {self.scheduler} name two batch systems: leave out one"
            )
        if named is not None and named in SYSTEMS:
            return named
        known = ", ".join(SYSTEMS)
        if named is not None:
            raise StudyError(f"--scheduler is one of {known}; got {named[:50]!r}")
        systems = [name for name, (_, command) in SYSTEMS.items() if shutil.which(command)]
        if len(systems) == 1:
            return systems[0]
        installed = f"commands of {', '.join(systems)} are here" if systems else "none is here"
        raise StudyError(
            f"say which batch system has the nodes: --scheduler {' or '.join(systems or SYSTEMS)} "
            f"({installed})"
        )

    def site(self, threads: int) -> Site:
        """Where pilots go. `threads`: of a slot; smaller nodes are of no use."""
        options: list[str] = []
        for option in self.sbatch or ():
            if self.system == "slurm":
                options.append(option if option.startswith("-") else f"--{option}")
            else:
                options += shlex.split(option)
        watched = tuple(self.main_partition or ())
        return Site(self.partition, watched, tuple(options), threads, self.gpu_nodes)

    def batch_system(self, threads: int, names: PilotNames) -> Scheduler:
        """The scheduler of the batch system, for jobs of these names.

        Raises:
            SchedulerError: a command of it is not installed here.
        """
        kind, _ = SYSTEMS[self.system]
        return kind(self.site(threads), names)

    def observer(self) -> Observer:
        """What decides which nodes to take."""
        return Observer(
            self.min_ticks, self.most, self.minutes, min(SHORTEST, self.minutes), self.no_preemption
        )

    def pilot(self, folder: Path) -> list[str]:
        """The command of a pilot, for the head in this folder."""
        module = python_module("shoal.harvest.pilot")
        words = [*module, "--folder", str(folder), "--node", NODE, "--until", UNTIL]
        if self.cpus_per_node is not None:
            words += ["--cpus", str(self.cpus_per_node)]
        if self.gpus_per_node is not None:
            words += ["--gpus", str(self.gpus_per_node)]
        return words


@errors()
def harvested(target: str | None, as_json: bool, **typed: Any) -> None:
    """Train a study on idle nodes. `typed`: a `HarvestRequest`'s fields, and the study's options.

    Raises:
        Exit: as of `shoal run`.
    """
    request = HarvestRequest(
        **{field.name: typed.pop(field.name) for field in fields(HarvestRequest)}
    )
    typed["policy"] = _policy(typed.pop("policy"), typed.pop("log"))
    trust = typed.pop("trust")
    if target is not None and Path(target).is_dir():
        study, threads, run = _continued_study(target, typed, as_json, trust)
    elif trust:
        raise StudyError(
            "--trust is for the folder of a study; the code of a file that you name is run anyway"
        )
    else:
        study, threads, run = _new_study(target, typed, as_json)
    command = f"shoal harvest {shlex.quote(str(study.folder.path))} --partition …"
    with harvesting(study.folder, request, threads) as address, concluded(study, as_json, command):
        run(address)


# -- the study ----------------------------------------------------------------------------------


def _policy(name: str | None, log: Path | None) -> "Policy[Any] | str | None":
    """The policy of this name, or the one that a site's log of idle nodes gives; None: neither.

    Raises:
        StudyError: both were given.
        TraceError: the log breaks a rule.
        OSError: as `open`.
    """
    if log is None:
        return name
    if name is not None:
        raise StudyError(
            f"--log means the policy elastic with what {log} says: leave out --policy, or name "
            f"the log in it, as --policy 'elastic(log=\"{log}\")'"
        )
    return elastic_for(read_log(log))


def _check_kind(study: "Study", policy: "Policy[Any] | str | None") -> None:
    """Raise StudyError if a log gave this policy, and the study's recipe is a function."""
    function = function_in(study.recipe)
    if function is not None and not isinstance(policy, str | None):
        raise StudyError("a function has one slot for itself: leave out --log")


def _try_policy(study: "Study", policy: "Policy[Any] | str", widths: tuple[int, int]) -> None:
    """See that the policy can be, and its objective is one, before any pilot starts.

    `widths`: of new trials.

    Raises:
        StudyError: no policy has that name, or its objective is none.
        ValueError: the arguments in the name do not fit the policy.
    """
    rule = policy_of(policy, fuse=True, seed=0)
    known = study.state.trials.values()
    try_objectives(study.setup, rule, study.setup.space, known, widths)


def _new_study(
    target: str | None, typed: dict[str, Any], quiet: bool
) -> "tuple[Study, int, Train]":
    """The study of a recipe's file or a command line; the threads of a slot; how to run it."""
    names = ("storage", "space", "metric", "mode", "seed", "command")
    study_options = {name: typed.pop(name) for name in names}
    study = open_study(target, **study_options)
    options = run_options(study, typed)
    threads = options.pop("threads") or 1
    policy = options.pop("policy")
    _check_kind(study, policy)
    if policy is None:
        policy = "auto" if function_in(study.recipe) is not None else POLICY
    _try_policy(study, policy, options["widths"] or (1, 1))

    def begin(address: str) -> None:
        study.optimize(
            policy=policy,
            progress=not quiet,
            backend="ray",
            address=address,
            threads=threads,
            **options,
        )

    return study, threads, begin


def _continued_study(
    target: str, typed: dict[str, Any], quiet: bool, trust: bool
) -> "tuple[Study, int, Train]":
    """The study in a folder, which goes on as its last run was set up, but for what was typed.

    Also the threads of a slot, and how to run it.

    `trust`: as of `shoal.load_study`.

    Raises:
        StudyError: nothing was run there yet, or an option was given that the folder says itself.
    """
    refused = [name for name, usual in OF_A_NEW_STUDY.items() if typed.get(name, usual) != usual]
    if refused:
        options = ", ".join(f"--{name.replace('_', '-')}" for name in refused)
        raise StudyError(
            f"the study in {target} goes on as its last run was set up: leave out {options}"
        )
    study = shoal.load_study(target, trust=trust)
    former = study.folder.head()
    if not former:
        raise StudyError(
            f"nothing to go on with in {target}: no run was begun; give the recipe's file, and "
            f"--storage {target}"
        )
    # If the recipe is refused, that is said before any pilot starts.
    _check_kind(study, typed["policy"])
    study.folder.check_places(former, "address")  # it gets another one
    deciders = rebuild(former)
    threads = typed["threads"] or deciders.options.threads
    policy = typed["policy"] or deciders.policy
    _try_policy(study, policy, widths_of(deciders.searcher))

    arguments = SearchArguments(
        timeout=typed["timeout"],
        profile=former.get("profile"),
        progress=not quiet,
        loggers=former.get("loggers") or (),
        retry_failed=typed["retry_failed"],
    )

    def go_on(address: str) -> None:
        options = replace(
            deciders.options, backend="ray", address=address, slots=None, threads=threads
        )
        deciders_here = replace(deciders, policy=policy, options=options)
        train(study.setup, Request(deciders_here, arguments, study))

    return study, threads, go_on


# -- the nodes ----------------------------------------------------------------------------------


@contextmanager
def harvesting(folder: Folder, request: HarvestRequest, threads: int) -> Iterator[str]:
    """Idle nodes join a Ray cluster, whose address this gives; all is gone at the end.

    Raises:
        StudyError: the study is open elsewhere.
        SchedulerError: the batch system does not answer, or refuses what was asked for.
        HeadError: Ray is not installed, or does not start.
    """
    folder.make()
    place = folder.path.resolve() / HARVEST
    own_folder(place)
    with _alone(folder, place), _sigterm_as_interrupt():
        # The study in the names of its pilots' jobs: for people, and no other study's.
        path = folder.path.resolve()
        word = re.sub(r"[^A-Za-z0-9_.]+", "_", path.name)[:20]
        job = f"{word}.{blake2b(str(path).encode(), digest_size=4).hexdigest()}"
        names = PilotNames(job, secrets.token_hex(3), place)
        scheduler = request.batch_system(threads, names)
        scheduler.check()
        say = _teller(place / "harvest.log")
        with RayHead(place, request.ip) as head:
            os.environ.update(head.environment)
            say(f"Ray's head is at {head.address}; looking for idle nodes")
            command = request.pilot(place)
            with Harvester(scheduler, request.observer(), command, request.tick, say):
                yield head.address


@contextmanager
def _alone(folder: Folder, place: Path) -> Iterator[None]:
    """Hold the lock of the study's harvest.

    Raises:
        StudyError: another process harvests for this study, or runs it.
    """
    with ExitStack() as opened:
        try:
            opened.enter_context(alone(place / "harvest.lock", timeout=0))
        except Taken:
            raise StudyError(
                f"the study in {folder.path} is being harvested for already, by another process"
            ) from None
        with folder.lock():  # a run that is under way is seen before pilots are submitted
            pass
        yield


@contextmanager
def _sigterm_as_interrupt() -> Iterator[None]:
    """SIGTERM ends this process as Ctrl-C does: in good order. A run has its own ways."""

    def end(*_: object) -> None:
        raise Terminated

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _teller(log: Path) -> Callable[[str], None]:
    """Says what is done, on the screen and in the log."""

    def say(text: str) -> None:
        with open_file(log, "a") as file:
            file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {text}\n")
        typer.echo(f"harvest  {text}", err=True)

    return say
