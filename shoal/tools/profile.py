"""What `shoal profile` does: it times each kind of trial, and what else takes time.

That is its speed at several widths, what a rescale takes, and what feeders prepare. Every slot is a
process of one machine. Widths as in Guan et al., "FLEET", MLSys 2020, appendix B.3; the table is
that of Capes et al. 2019 (table 1).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal

import typer

import shoal
from shoal.core.cluster import RECIPE, shards_of
from shoal.core.errors import StudyError
from shoal.core.trial import Seconds, Trial, TrialId
from shoal.engine.process import away_from_folder, cpus_here
from shoal.options import SearchArguments
from shoal.profile.fleet import feeders as enough
from shoal.profile.fleet import widths_to_profile
from shoal.profile.widths import wide_rates
from shoal.reporting.format import plural
from shoal.search.space import grid
from shoal.study.backends import Perform, at_holders, perform_here, slots_here
from shoal.study.checks import first_config
from shoal.study.code.recipe_file import parts_of
from shoal.study.schedules import plan_to_measure
from shoal.study.searcher import default_searcher
from shoal.study.setup import Setup, data_of
from shoal.tools import profile_page as page
from shoal.tools.arguments import check_driven, open_study, parse_config, whole_numbers
from shoal.tools.outcome import errors, show, teller
from shoal.tools.plan import all_trials
from shoal.tools.profile_page import CAUSES
from shoal.train.data.data import Data
from shoal.train.lane.device import device_of, gpus, kind_of_name
from shoal.train.recipe.pickling import dumps
from shoal.train.recipe.recipes import brought_by
from shoal.train.recipe.seat import Move, Seat
from shoal.train.recipe.shard import ShardRecipe
from shoal.train.tools.timing import TimedSetup, serve

if TYPE_CHECKING:
    from shoal.study.study import Study


@errors()
def profile(
    target: str,
    values: list[str] | None,
    space: list[str] | None,
    num_samples: int | None,
    seed: int,
    out: Path,
    trust: bool,
    as_json: bool,
    address: str | None,
    **wanted: Any,
) -> None:
    """Time every kind of trial, and write a profile. `wanted`: fields of a `ProfileRequest`.

    Raises:
        Exit: with 1 when every kind failed.
    """

    if Path(target).is_dir():
        study = shoal.load_study(target, trust=trust)
    else:
        study = open_study(target, None, space, None, None, seed)
    check_driven(study.recipe, "profile")
    wanted["every"] = wanted["widths"] == "all"
    if wanted["every"]:
        wanted["widths"] = None
    if wanted["widths"] is not None:
        wanted["widths"] = whole_numbers(wanted["widths"], "--widths")
    wanted["feeders"] = whole_numbers(wanted["feeders"], "--feeders")
    config = parse_config(values or [])
    say = teller(as_json)
    with at_holders(address, say) as perform:
        data = data_of(study.recipe)
        trials = trials_of(study, data, config, num_samples)
        request = ProfileRequest(**wanted)
        figures = profiled(study, data, trials, request, say, perform)
    path = str(page.write(figures, out))
    figures["profile"] = path
    last = ["", f"profile: {path}"]
    chart = None
    if out.suffix == ".toml":
        chart = page.write_page(figures, out.with_suffix(".html"))
    if chart is not None:
        figures["chart"] = str(chart)
        last.append(f"rates against width: {chart}")
    show(figures, as_json, lambda x: [*page.lines(x), *last])
    if all(kind["failed"] for kind in figures["kinds"]):
        raise typer.Exit(1)


@dataclass(frozen=True, slots=True)
class ProfileRequest:
    """What is to be timed, and on what. Kinds are timed side by side as far as there are slots."""

    # By default 1, 2, 4 … up to `slots`.
    widths: Sequence[int] | None = None
    # FLEET's widths: 1, 2, 3 … until the slowest kind could be as fast as the fastest on one slot.
    # They are two at least, if there are so many slots.
    every: bool = False
    # By default one for each GPU, else one for each CPU.
    slots: int | None = None
    # CPU threads of each slot.
    threads: int = 1
    device: str = "auto"
    # Numbers of processes that prepare data together.
    feeders: Sequence[int] = (1, 2, 4)
    # Time also what a run of the study has measured.
    again: bool = False

    def slots_for(self, device: str) -> int:
        """How many slots may be used on this kind of device."""
        available = max(1, self.slots or slots_here())
        if device == "cuda":
            available = gpus()
        return min(self.slots or available, available)


def profiled(
    study: Study,
    data: Data,
    trials: Sequence[Trial],
    request: ProfileRequest,
    say: Callable[[str], None] = lambda _: None,
    perform: Perform = perform_here,
) -> dict[str, Any]:
    """Figures of each signature among the trials, as JSON can hold them.

    `profile_page.lines` shows the figures, `profile_page.write` makes a profile of them.

    Raises:
        StudyError: more slots are asked for than there are, a process died, or every kind failed.
    """
    figures: dict[str, Any] = perform(
        _profiled,
        study.setup,
        data,
        trials,
        request,
        None if request.again else _Measured.of(study),
        say,
        device=request.device,
        slots=request.slots,
        threads=request.threads,
    )
    return figures


def _profiled(
    setup: Setup,
    data: Data,
    trials: Sequence[Trial],
    request: ProfileRequest,
    measured: _Measured | None,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """The figures of `profiled`, timed on this machine."""
    device = device_of(request.device)
    count = request.slots_for(device)
    if isinstance(setup.recipe, ShardRecipe):
        count = 1  # its trials cannot be wide
    widths = wanted_widths(request.widths, count)
    most = count
    if not request.every:
        most = min(count, widths[-1] * len(trials))

    feeders = max(request.feeders, default=0)
    with slots_of(setup, data, most, feeders, device, request.threads) as slots:
        say(f"{plural(len(slots), 'slot')} started")
        kinds = kinds_of(slots, trials)
        say(f"{plural(len(kinds), 'kind')} among {plural(len(trials), 'trial')}")
        if measured is not None:
            measured.give(kinds, device, request.threads, say)
        timing = _Timing(slots, kinds, most, say)
        timing.widths([1])
        alone = rates_alone(kinds)
        if request.every:
            widths = every_width(alone, count)
        timing.widths(widths[1:])
        timing.rescales()
        timed = [kind for kind in kinds if 1 in kind.widths]
        fastest = max(timed, key=lambda kind: kind.widths[1]["rate"])
        fed = {number: time_feeders(slots, fastest, number) for number in request.feeders}
    return {
        "kinds": [kind.figures() for kind in kinds],
        "feeders": fed,
        "needed": feeders_needed(alone, fed),
        "cpus": cpus_here(),
        "threads": request.threads,
        "device": device,
    }


@dataclass(frozen=True, slots=True)
class _Measured:
    """The measurements of the study's last run, by signature, and the head of that run."""

    head: Mapping[str, Any]
    figures: Mapping[str, Mapping[str, float]]

    @classmethod
    def of(cls, study: Study) -> _Measured:
        return cls(study.folder.head(), study.state.figures)

    def give(
        self, kinds: Sequence[Kind], device: str, threads: int, say: Callable[[str], None]
    ) -> None:
        """Have the kinds take the measurements over.

        Nothing if the run had another number of threads, or another kind of device. What a hop
        costs is taken from a run on Ray only: elsewhere states have no way to go.
        """
        options = self.head.get("options", {})
        trained_on = self.head.get("place", {}).get("device")
        if options.get("threads") != threads or trained_on != kind_of_name(device):
            return
        known = 0
        for kind in kinds:
            figures = dict(self.figures.get(kind.signature, {}))
            if options.get("backend") != "ray":
                figures.pop(HOP, None)
            known += kind.take(figures)
        if known:
            say(f"{plural(known, 'speed')} known from the study")


@dataclass(frozen=True, slots=True)
class _Timing:
    """Times kinds of trial on so many slots, and says what is done."""

    slots: ProfileSlots
    kinds: Sequence[Kind]
    count: int
    say: Callable[[str], None]

    def widths(self, chosen: Sequence[int]) -> None:
        """Time every kind at each of these widths."""
        for width in chosen:
            time_width(self.slots, self.kinds, width, self.count)
            self.say(f"width {width} timed")

    def rescales(self) -> None:
        """Time what a change of the width takes, if there are several slots."""
        if self.count > 1:
            for kind in self.kinds:
                time_rescales(self.slots, kind)


def every_width(alone: Sequence[float], count: int) -> list[int]:
    """FLEET's widths 1..Mt, as far as there are slots.

    All slots are of one node, so that two slots must do for the two nodes that the paper asks for.
    """
    return list(range(1, min(count, widths_to_profile(alone, 1)) + 1))


def wanted_widths(widths: Sequence[int] | None, count: int) -> list[int]:
    """The widths to time, with 1 among them; by default 1, 2, 4 … up to `count`.

    Raises:
        StudyError: one of them is more than there are slots.
    """
    doubled = [1 << power for power in range(count.bit_length())]
    chosen = sorted({1, *(widths or doubled)})
    if chosen[0] < 1 or chosen[-1] > count:
        raise StudyError(
            f"widths must lie between 1 and {count}, the slots that there are; "
            f"got {chosen[-1]}: say how many slots="
        )
    return chosen


def rates_alone(kinds: Sequence[Kind]) -> list[float]:
    """Samples/s on one slot of each kind that could be timed.

    Raises:
        StudyError: none could.
    """
    rates = [kind.widths[1]["rate"] for kind in kinds if 1 in kind.widths]
    if not rates:
        raise StudyError(f"nothing could be timed: {kinds[0].failed}")
    return rates


def feeders_needed(alone: Sequence[float], fed: Mapping[int, float]) -> int | None:
    """Feeders that keep up with any of the kinds on one slot each; None: more than were tried."""
    try:
        return enough(alone, fed)
    except ValueError:
        return None


def trials_of(
    study: Study, data: Data, values: Mapping[str, Any], num_samples: int | None = None
) -> list[Trial]:
    """The trials to be timed.

    With `values` it is one trial, which takes other values from the first configuration of the
    search space. Without any, these are the trials that the study knows, or else all of its search
    space.

    Raises:
        StudyError: the space cannot be listed, and nobody says how many samples to draw.
    """
    if values:
        space = study.setup.space or {}
        recipe = values.get(RECIPE)
        # One of several recipes has its own part of the space.
        if recipe is not None and recipe in parts_of(study.recipe):
            space = {**space, RECIPE: grid({recipe: brought_by(space, recipe)})}
        config = {**first_config(space), **values}
        shards = frozenset(shards_of(data.sizes, config))
        return [Trial(TrialId("t000"), 1.0, config, shards=shards)]
    if study.folder.size() and study.state.known:
        return list(study.state.known.values())
    samples = num_samples or getattr(study.recipe, "num_samples", None)
    arguments = SearchArguments(num_samples=samples, max_epochs=1)
    searcher = default_searcher(study.setup.space, arguments, study.setup.seed)
    return list(all_trials(searcher, data).known.values())


Answer = Mapping[str, Any]  # what a rank measured

# The costs of a `profile.table.Row`, as a slot measures them.
COSTS = ("memory", "build", "first", "evaluate", "save")
CHANGES = ("up", "down")
# Known of a run only, since the way between slots is most of it.
HOP = "switch"


@dataclass(slots=True)
class Kind:
    """Trials of one signature: they take as long as each other."""

    signature: str
    # The first of them, which is timed.
    trial: Trial
    # Why it cannot be timed.
    failed: str | None
    configs: list[dict[str, Any]] = field(default_factory=list)
    # Seconds and bytes, by the names of `COSTS`, and "up" and "down" of a rescale, "switch".
    costs: dict[str, float] = field(default_factory=dict)
    # Of each width: seconds of each part of a step, and samples/s. What a run measured does not
    # have the seconds.
    widths: dict[int, dict[str, Any]] = field(default_factory=dict)

    def add(self, trial: Trial, figures: Mapping[str, float]) -> None:
        """Add a trial of this kind, and what one slot costs as it was measured for the trial."""
        self.configs.append(dict(trial.config))
        self.costs |= {name: figures[name] for name in COSTS if name in figures}

    def take(self, measured: Mapping[str, float]) -> int:
        """Take over what a run has measured of this kind; returns how many widths that are."""
        names = (*COSTS, *CHANGES, HOP)
        self.costs |= {name: measured[name] for name in names if name in measured}
        rates = wide_rates(measured)
        if "rate" in measured and "step" in measured:
            waits = measured.get("data", 0.0)
            rates[1] = 1.0 / (1.0 / measured["rate"] + waits)
        for width, rate in sorted(rates.items()):
            self.widths[width] = {"rate": rate}
        if 1 in rates:
            self.widths[1]["batch"] = round(measured["rate"] * measured["step"])
        return len(rates)

    def figures(self) -> dict[str, Any]:
        """The figures as JSON can hold them. Efficiency: of what so many slots make at best."""
        alone = self.widths[1]["rate"] if 1 in self.widths else None
        return {
            "signature": self.signature,
            "configs": self.configs,
            "figures": self.costs,
            "widths": {
                width: row | {"efficiency": row["rate"] / (width * alone) if alone else 1.0}
                for width, row in sorted(self.widths.items())
            },
            "failed": self.failed,
        }


def kinds_of(slots: ProfileSlots, trials: Sequence[Trial]) -> list[Kind]:
    """The kinds of trial, each with its configurations and what one slot costs."""
    slots.ask(0, "probe", list(trials))
    probed = slots.hear(0, "probe")
    kinds: dict[str, Kind] = {}
    for trial in trials:
        signature, figures, failed = probed[trial.id]
        key = failed or signature
        if key not in kinds:
            kinds[key] = Kind(signature, trial, failed)
        kinds[key].add(trial, figures)
    return list(kinds.values())


def time_width(slots: ProfileSlots, kinds: Sequence[Kind], width: int, count: int) -> None:
    """Time the kinds at this width, side by side as far as `count` slots allow.

    Left out are those whose speed there is known.
    """
    untimed = [kind for kind in kinds if kind.failed is None and width not in kind.widths]
    at_once = count // width
    for begin in range(0, len(untimed), at_once):
        _time_together(slots, untimed[begin : begin + at_once], width)


def _time_together(slots: ProfileSlots, kinds: Sequence[Kind], width: int) -> None:
    """Time these kinds at this width, each on slots of its own."""
    for number, kind in enumerate(kinds):
        first, lane = number * width, f"{kind.signature} {width}"
        for rank in range(width):
            seat = _seat(slots, lane, 1, rank, width, first)
            slots.ask(first + rank, "train", kind.trial, seat)
    for number, kind in enumerate(kinds):
        first = number * width
        ranks = [_answer(slots, slot, kind) for slot in range(first, first + width)]
        _note(kind, width, ranks)


def _seat(
    slots: ProfileSlots,
    lane: str,
    generation: int,
    rank: int,
    width: int,
    first: int = 0,
    joining: tuple[int, ...] = (),
) -> Seat:
    """A rank's seat in a lane whose first rank is slot `first`."""
    store = slots.addresses[first] if width > 1 else ""
    gradients: Literal["gloo", "nccl"] = "nccl" if slots.device == "cuda" else "gloo"
    return Seat(lane, generation, rank, width, store, joining=joining, gradients=gradients)


def _answer(slots: ProfileSlots, number: int, kind: Kind) -> Answer | None:
    """What a rank measured; None if it failed."""
    try:
        answer: Answer = slots.hear(number, "train")
        return answer
    except RuntimeError as error:
        kind.failed = str(error)
        return None


def _note(kind: Kind, width: int, ranks: Sequence[Answer | None]) -> None:
    """Note what the ranks of one lane measured: the lane is as slow as the slowest of them."""
    answers = [rank for rank in ranks if rank is not None]
    if len(answers) < len(ranks):
        return
    first = answers[0]
    seconds = max(answer["seconds"] for answer in answers)
    steps = first["steps"]
    # Seconds of each part of a step, as the mean of the ranks.
    row: dict[str, Any] = {
        cause: fmean(answer["spent"].get(cause, 0.0) for answer in answers) / steps
        for cause in CAUSES
    }
    row["total"] = seconds / steps
    row["batch"] = first["batch"]
    row["rate"] = first["samples"] / seconds
    kind.widths[width] = row


def time_rescales(slots: ProfileSlots, kind: Kind) -> None:
    """Note the seconds without training when such a trial goes from one slot to two, and back.

    Nothing is timed if they are known.

    Raises:
        StudyError: the trial failed meanwhile.
    """
    if kind.failed is not None or kind.costs.keys() >= set(CHANGES):
        return
    try:
        rescales = _rescale(slots, kind)
    except RuntimeError as error:
        raise StudyError(f"a trial failed when its width changed: {error}") from error
    for before, after, seconds in rescales:
        kind.costs["up" if after > before else "down"] = seconds


def _rescale(slots: ProfileSlots, kind: Kind) -> list[tuple[int, int, Seconds]]:
    """Have a trial go from one slot to two and back: the width before, after, and seconds.

    Raises:
        RuntimeError: the trial failed.
    """
    lane = f"{kind.signature} rescaled"
    slots.ask(0, "train", kind.trial, _seat(slots, lane, 1, 0, 1), False, None)
    _wait_until_settled(slots, 1)

    first = _seat(slots, lane, 2, 0, 2, joining=(1,))
    second = _seat(slots, lane, 2, 1, 2, joining=(1,))
    slots.ask(1, "train", kind.trial, second, True, None)
    slots.order(0, "move", Move(2, first))
    _wait_until_settled(slots, 2)

    slots.order(1, "move", Move(3, None))
    slots.order(0, "move", Move(3, _seat(slots, lane, 3, 0, 1)))
    _wait_until_settled(slots, 1)

    slots.order(0, "halt")
    rescales: list[tuple[int, int, Seconds]] = slots.hear(0, "train")["rescales"]
    slots.hear(1, "train")
    return rescales


def _wait_until_settled(slots: ProfileSlots, width: int) -> None:
    """Wait until the lane of slot 0 has made some steps at this width."""
    while slots.hear(0, "settled") != width:
        pass


def time_feeders(slots: ProfileSlots, kind: Kind, count: int) -> float:
    """Samples/s that so many processes prepare together for such trials."""
    batch = kind.widths[1]["batch"]
    for number in range(count):
        slots.ask(number, "feed", kind.trial, batch, number, count)
    rate = 0.0
    for number in range(count):
        samples, seconds = slots.hear(number, "feed")
        rate += samples / max(seconds, 1e-9)
    return rate


# How long a process that lives may be silent.
PATIENCE: Seconds = 600.0


class ProfileSlots:
    """Processes that stand for slots, each at the end of a link.

    `device`: cpu, cuda or mps. `addresses`: where the lanes of each slot meet others.
    """

    def __init__(self, links: Sequence[Any], processes: Sequence[Any], device: str) -> None:
        self.device = device
        self._links = links
        self._processes = processes
        self.addresses = [self.hear(number, "at") for number in range(len(links))]

    def __len__(self) -> int:
        return len(self._links)

    def ask(self, number: int, name: str, *arguments: Any) -> None:
        """Have a slot call this method of `Timed`."""
        self._links[number].send((name, arguments))

    def order(self, number: int, name: str, argument: Any = None) -> None:
        """Give an order to the lane that the slot trains."""
        self._links[number].send((name, argument))

    def hear(self, number: int, name: str) -> Any:
        """The slot's next answer of that name.

        Raises:
            RuntimeError: it failed, and why.
            StudyError: the process is gone, or says nothing.
        """
        link = self._links[number]
        process = self._processes[number]
        try:
            while link.poll(PATIENCE):
                kind, answer = link.recv()
                if kind == "failed":
                    raise RuntimeError(answer)
                if kind == name:
                    return answer
        except (EOFError, OSError) as error:
            process.join(10)
            raise StudyError(
                f"a slot's process died (exit code {process.exitcode}): its messages are above, or "
                "with --address in Ray's logs at the node"
            ) from error
        raise StudyError(f"a slot's process has not answered for {PATIENCE:g} s")


@contextmanager
def slots_of(
    setup: Setup, data: Data, slots: int, feeders: int, device: str, threads: int
) -> Iterator[ProfileSlots]:
    """So many slots. If feeders need more processes, the others have no device of their own."""
    placed = None if data.catalogue is None else data
    pickled = dumps((plan_to_measure(setup.recipe), placed))
    links = []
    processes = []
    with TemporaryDirectory() as folder:
        try:
            for number in range(max(slots, feeders)):
                place = f"cuda:{number}" if device == "cuda" else device
                timed = TimedSetup(
                    pickled,
                    str(Path(folder) / "lock"),
                    place if number < slots else "cpu",
                    threads,
                    setup.seed,
                    setup.metric,
                )
                link, process = _started(timed)
                links.append(link)
                processes.append(process)
            yield ProfileSlots(links, processes, device)
        finally:
            for link in links:
                link.close()
            for process in processes:
                process.kill()
                process.join()


def _started(setup: TimedSetup) -> tuple[Any, Any]:
    """A new process, and the link to it."""
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(theirs, setup), daemon=True)
    with away_from_folder():
        process.start()
    theirs.close()
    return ours, process
