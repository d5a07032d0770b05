"""What `shoal profile` finds: how fast each kind of trial is, and what else takes time.

That is its speed at several widths, what a rescale takes, and what feeders prepare. Every slot is a
process of one machine. Widths as in Guan et al., "FLEET", MLSys 2020, appendix B.3; the table is
that of Capes et al. 2019 (table 1).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shoal.core.cluster import RECIPE, shards_of
from shoal.core.trial import Trial, TrialId
from shoal.engine.process import cpus_here
from shoal.profile.fleet import feeders as enough
from shoal.profile.fleet import widths_to_profile
from shoal.reporting.format import plural
from shoal.search.space import grid
from shoal.study.backends import Perform, perform_here, slots_here
from shoal.study.checks import first_config
from shoal.study.code.recipe_file import parts_of
from shoal.study.folder import StudyError
from shoal.study.searcher import SearcherArguments, default_searcher
from shoal.study.setup import Setup
from shoal.tools.probe import all_trials
from shoal.tools.profile_slots import ProfileSlots, slots_of
from shoal.tools.profile_times import (
    HOP,
    Kind,
    kinds_of,
    time_feeders,
    time_rescales,
    time_width,
)
from shoal.train.lane.device import device_of, gpus, kind_of_name
from shoal.train.recipe.recipes import brought_by
from shoal.train.recipe.shard import ShardRecipe

if TYPE_CHECKING:
    from shoal.study.study import Study
    from shoal.train.data.data import Data


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
        there = max(1, self.slots or slots_here())
        if device == "cuda":
            there = gpus()
        return min(self.slots or there, there)


def profiled(
    study: "Study",
    data: "Data",
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
    found: dict[str, Any] = perform(
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
    return found


def _profiled(
    setup: Setup,
    data: "Data",
    trials: Sequence[Trial],
    request: ProfileRequest,
    measured: "_Measured | None",
    say: Callable[[str], None],
) -> dict[str, Any]:
    """What `profiled` does, on the machine that is timed."""
    device = device_of(request.device)
    count = request.slots_for(device)
    if isinstance(setup.recipe, ShardRecipe):
        count = 1  # its trials cannot be wide
    widths = wanted_widths(request.widths, count)
    most = count
    if not request.every:
        most = min(count, widths[-1] * len(trials))

    helpers = max(request.feeders, default=0)
    with slots_of(setup, data, most, helpers, device, request.threads) as slots:
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
        fed = _fed(slots, kinds, request.feeders)
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
    """What the study's last run measured, by signature, and the head of that run."""

    head: Mapping[str, Any]
    figures: Mapping[str, Mapping[str, float]]

    @classmethod
    def of(cls, study: "Study") -> "_Measured":
        return cls(study.folder.head(), study.state.figures)

    def give(
        self,
        kinds: Sequence[Kind],
        device: str,
        threads: int,
        say: Callable[[str], None],
    ) -> None:
        """Have the kinds take it over.

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
    wanted = sorted({1, *(widths or _doubled(count))})
    if wanted[0] < 1 or wanted[-1] > count:
        raise StudyError(
            f"widths must lie between 1 and {count}, the slots that there are; "
            f"got {wanted[-1]}: say how many slots="
        )
    return wanted


def _doubled(most: int) -> list[int]:
    """1, 2, 4 … up to `most`."""
    return [1 << power for power in range(most.bit_length())]


def rates_alone(kinds: Sequence[Kind]) -> list[float]:
    """Samples/s on one slot of each kind that could be timed.

    Raises:
        StudyError: none could.
    """
    rates = [kind.widths[1]["rate"] for kind in kinds if 1 in kind.widths]
    if not rates:
        raise StudyError(f"nothing could be timed: {kinds[0].failed}")
    return rates


def _fed(slots: ProfileSlots, kinds: Sequence[Kind], numbers: Sequence[int]) -> dict[int, float]:
    """Samples/s that so many feeders prepare for the fastest kind."""
    timed = [kind for kind in kinds if 1 in kind.widths]
    fastest = max(timed, key=lambda kind: kind.widths[1]["rate"])
    return {number: time_feeders(slots, fastest, number) for number in numbers}


def feeders_needed(alone: Sequence[float], fed: Mapping[int, float]) -> int | None:
    """Feeders that keep up with any of the kinds on one slot each; None: more than were tried."""
    try:
        return enough(alone, fed)
    except ValueError:
        return None


def trials_of(
    study: "Study",
    data: "Data",
    given: Mapping[str, Any],
    num_samples: int | None = None,
) -> list[Trial]:
    """The trials to be timed.

    With given values it is one trial, which takes other values from the first configuration of the
    search space. Without any, these are the trials that the study knows, or else all of its search
    space.

    Raises:
        StudyError: the space cannot be listed, and nobody says how many samples to draw.
    """
    if given:
        config = {**first_config(_space_with(study, given.get(RECIPE))), **given}
        shards = frozenset(shards_of(data.sizes, config))
        return [Trial(TrialId("t000"), 1.0, config, shards=shards)]
    if study.folder.size() and study.state.known:
        return list(study.state.known.values())
    return _trials_of_space(study, data, num_samples)


def _space_with(study: "Study", recipe: Any) -> Mapping[str, Any]:
    """The search space; of several recipes the part of it that this one has."""
    space = study.setup.space or {}
    if recipe is None or recipe not in parts_of(study.recipe):
        return space
    return {**space, RECIPE: grid({recipe: brought_by(space, recipe)})}


def _trials_of_space(study: "Study", data: "Data", num_samples: int | None) -> list[Trial]:
    """The trials of the whole search space."""
    samples = num_samples or getattr(study.recipe, "num_samples", None)
    wishes = SearcherArguments(num_samples=samples, max_epochs=1)
    searcher = default_searcher(study.setup.space, wishes, study.setup.seed)
    return list(all_trials(searcher, data).known.values())
