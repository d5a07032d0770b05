"""What `shoal profile` finds: how fast each kind of trial is at several widths, what a rescale takes, what feeders prepare.

Every slot is a process of this machine. Widths as in Guan et al., "FLEET", MLSys 2020, appendix B.3; the table is that of
Capes et al. 2019 (table 1).
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from shoal import searchers, wiring
from shoal.core.trial import Seconds, Trial, TrialId
from shoal.folder import StudyError, dumps
from shoal.forecast import all_trials
from shoal.profile.fleet import feeders as enough
from shoal.profile.fleet import widths_to_profile
from shoal.profile.measure import TUNING
from shoal.report.format import config as told
from shoal.report.format import count as counted
from shoal.report.format import duration, plural, size

if TYPE_CHECKING:
    from shoal.study import Study

PATIENCE: Seconds = 600.0  # without a word from a process that lives
CAUSES = ("forward", "backward", "reduce", "step", "data")
COSTS = ("memory", "build", "first", "evaluate", "save")  # of a `profile.table.Row`, as a slot measures them
Say = Callable[[str], None]


def profiled(
    study: "Study",
    trials: Sequence[Trial],
    widths: Sequence[int] | None = None,
    *,
    slots: int | None = None,
    threads: int = 1,
    device: str = "auto",
    every: bool = False,
    feeders: Sequence[int] = (1, 2, 4),
    say: Say = lambda _: None,
) -> dict[str, Any]:
    """Figures of each signature among the trials, JSON-able; `lines` shows them, `write` makes a profile of them.

    `widths`: by default 1, 2, 4 … up to `slots` (default: one for each GPU, else for each CPU). `every`: FLEET's, 1, 2, 3 … until
    the slowest kind could be as fast as the fastest on one slot, and twice the slots of a node at least, if there are so many.
    Kinds are timed side by side as far as there are slots. `feeders`: numbers of processes that prepare data together.

    Raises:
        StudyError: more slots are asked for than there are, a process died, or every kind failed.
    """
    from shoal.train.device import device_of, gpus

    kind = device_of(device)
    there = gpus() if kind == "cuda" else max(1, slots or wiring.slots_here())
    count = min(slots or there, there)
    wanted = sorted({1, *(_doubled(count) if widths is None else widths)})
    if wanted[0] < 1 or wanted[-1] > count:
        raise StudyError(
            f"widths must lie between 1 and {count}, the slots that there are; got {wanted[-1]}: say how many slots="
        )
    most = count if every else min(count, wanted[-1] * len(trials))
    with _slots(study, most, max(feeders, default=0), kind, threads) as at:
        say(f"{plural(len(at.links), 'slot')} started")
        kinds = _kinds(at, trials)
        say(f"{plural(len(kinds), 'kind')} among {plural(len(trials), 'trial')}")
        _widen(at, kinds, [1], most, say)
        alone = [each["widths"][1]["rate"] for each in kinds if 1 in each["widths"]]
        if not alone:
            raise StudyError(f"nothing could be timed: {kinds[0]['failed']}")
        if every:
            wanted = list(range(1, min(count, widths_to_profile(alone, count)) + 1))
        _widen(at, kinds, wanted[1:], most, say)
        if most > 1:
            for each in kinds:
                _rescale(at, each)
        fastest = max((each for each in kinds if 1 in each["widths"]), key=lambda each: each["widths"][1]["rate"])
        fed = {number: _fed(at, fastest, number) for number in feeders}
    for each in kinds:
        del each["trial"]
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return {"kinds": kinds, "feeders": fed, "needed": _needed(alone, fed), "cpus": cpus, "threads": threads, "device": at.kind}


def _needed(alone: Sequence[float], fed: Mapping[int, float]) -> int | None:
    """Feeders that keep up with any of the kinds on one slot each; None: more than were tried."""
    try:
        return enough(alone, fed)
    except ValueError:
        return None


def trials_of(study: "Study", given: Mapping[str, Any], num_samples: int | None = None) -> list[Trial]:
    """The trials to be timed: one with these values (and the first of the search space for the others); without any, those that
    the study knows, or else all of its search space.

    Raises:
        StudyError: the space cannot be listed, and nobody says how many samples to draw.
    """
    data = wiring.data_of(study.recipe)
    if given:
        return [Trial(TrialId("t000"), 1.0, {**wiring.first_config(study.search_space), **given}, shards=frozenset(data.shards))]
    if study.folder.journal.exists() and study.state.known:
        return list(study.state.known.values())
    samples = num_samples or getattr(study.recipe, "num_samples", None)
    searcher = searchers.default_searcher(study.search_space, samples, 1, None, study.seed)
    return list(all_trials(searcher, data).known.values())


def _doubled(most: int) -> list[int]:
    return [1 << k for k in range(most.bit_length()) if 1 << k <= most]


# -- the processes -------------------------------------------------------------------------------------------------------


class _Slots:
    """Processes that stand for slots, each at the end of a link."""

    def __init__(self, links: Sequence[Any], processes: Sequence[Any], kind: str) -> None:
        self.links, self._processes, self.kind = links, processes, kind
        self.addresses = [self.hear(number, "at") for number in range(len(links))]

    def ask(self, number: int, kind: str, *told: Any) -> None:
        self.links[number].send((kind, told))

    def order(self, number: int, kind: str, told: Any = None) -> None:
        """Something for the lane that it trains."""
        self.links[number].send((kind, told))

    def hear(self, number: int, kind: str) -> Any:
        """The next answer of that kind.

        Raises:
            RuntimeError: it failed, and why.
            StudyError: the process is gone, or says nothing.
        """
        link, process = self.links[number], self._processes[number]
        try:
            while link.poll(PATIENCE):
                got, told = link.recv()
                if got == "failed":
                    raise RuntimeError(told)
                if got == kind:
                    return told
        except (EOFError, OSError) as error:
            process.join(10)
            raise StudyError(f"a slot's process died (exit code {process.exitcode}): its messages are above") from error
        raise StudyError(f"a slot's process has not answered for {PATIENCE:g} s")


@contextmanager
def _slots(study: "Study", slots: int, feeders: int, kind: str, threads: int) -> Iterator[_Slots]:
    """So many slots; and more processes, without a device of their own, where feeders need them."""
    from shoal.train import timed

    context, recipe = get_context("spawn"), dumps(study.recipe)
    links, processes = [], []
    with TemporaryDirectory() as folder:
        try:
            for number in range(max(slots, feeders)):
                place = "cpu" if number >= slots else f"cuda:{number}" if kind == "cuda" else kind
                setup = timed.Setup(recipe, str(Path(folder) / "lock"), place, kind, threads, study.seed, study.metric)
                ours, theirs = context.Pipe()
                process = context.Process(target=timed.serve, args=(theirs, setup), daemon=True)
                process.start()
                theirs.close()
                links.append(ours)
                processes.append(process)
            yield _Slots(links, processes, kind)
        finally:
            for link in links:
                link.close()
            for process in processes:
                process.kill()
                process.join()


# -- what is measured ----------------------------------------------------------------------------------------------------


def _kinds(at: _Slots, trials: Sequence[Trial]) -> list[dict[str, Any]]:
    """The signatures, each with its first trial, the configurations that have it, and what one slot costs."""
    at.ask(0, "probe", list(trials))
    probed = at.hear(0, "probe")
    kinds: dict[str, dict[str, Any]] = {}
    for trial in trials:
        signature, figures, why = probed[trial.id]
        new = {"signature": signature, "trial": trial, "configs": [], "figures": {}, "widths": {}, "failed": why}
        kind = kinds.setdefault(f"{why}" if why else signature, new)
        kind["configs"].append(dict(trial.config))
        kind["figures"] |= {name: figures[name] for name in COSTS if name in figures}
    return list(kinds.values())


def _widen(at: _Slots, kinds: Sequence[dict[str, Any]], widths: Sequence[int], slots: int, say: Say) -> None:
    """Time the kinds at these widths, side by side as far as there are slots."""
    for width in widths:
        left = iter([kind for kind in kinds if kind["failed"] is None])
        while some := list(islice(left, slots // width)):
            for n, kind in enumerate(some):
                lane = f"{kind['signature']} {width}"
                for rank in range(width):
                    at.ask(n * width + rank, "train", kind["trial"], _seat(at, lane, 1, rank, width, n * width))
            for n, kind in enumerate(some):
                _note(kind, width, [_answer(at, n * width + rank, kind) for rank in range(width)])
        say(f"width {width} timed")


def _seat(at: _Slots, lane: str, generation: int, rank: int, width: int, first: int, joining: tuple[int, ...] = ()) -> Any:
    """A rank's seat in a lane whose first rank is that slot."""
    from shoal.train.seat import Seat

    store = at.addresses[first] if width > 1 else ""
    return Seat(lane, generation, rank, width, store, joining=joining, gradients="nccl" if at.kind == "cuda" else "gloo")


def _answer(at: _Slots, number: int, kind: dict[str, Any]) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = at.hear(number, "train")
        return found
    except RuntimeError as error:
        kind["failed"] = str(error)
        return None


def _note(kind: dict[str, Any], width: int, ranks: Sequence[Mapping[str, Any] | None]) -> None:
    """What the ranks of one lane found: it is as slow as the slowest, and causes are means."""
    told = [each for each in ranks if each is not None]
    if len(told) < len(ranks):
        return
    seconds, steps, first = max(each["seconds"] for each in told), told[0]["steps"], kind["widths"].get(1)
    rate = told[0]["samples"] / seconds
    kind["widths"][width] = {
        **{cause: fmean(each["spent"].get(cause, 0.0) for each in told) / steps for cause in CAUSES},
        "total": seconds / steps,
        "batch": told[0]["batch"],
        "rate": rate,
        "efficiency": rate / (width * first["rate"]) if first is not None else 1.0,
    }


def _rescale(at: _Slots, kind: dict[str, Any]) -> None:
    """Seconds without training when such a trial goes from one slot to two, and back."""
    from shoal.train.seat import Move

    if kind["failed"] is not None:
        return
    lane, trial = f"{kind['signature']} rescaled", kind["trial"]

    def settled(width: int) -> None:
        while at.hear(0, "settled") != width:
            pass

    try:
        at.ask(0, "train", trial, _seat(at, lane, 1, 0, 1, 0), False, None)
        settled(1)
        at.ask(1, "train", trial, _seat(at, lane, 2, 1, 2, 0, (1,)), True, None)
        at.order(0, "move", Move(2, _seat(at, lane, 2, 0, 2, 0, (1,))))
        settled(2)
        at.order(1, "move", Move(3, None))
        at.order(0, "move", Move(3, _seat(at, lane, 3, 0, 1, 0)))
        settled(1)
        at.order(0, "halt")
        found = at.hear(0, "train")["rescales"]
        at.hear(1, "train")
    except RuntimeError as error:
        raise StudyError(f"a trial failed when its width changed: {error}") from error
    kind["figures"] |= {"up" if after > before else "down": seconds for before, after, seconds in found}


def _fed(at: _Slots, kind: Mapping[str, Any], count: int) -> float:
    """Samples/s that so many processes prepare together for such trials."""
    there = range(count)
    for number in there:
        at.ask(number, "feed", kind["trial"], kind["widths"][1]["batch"], number, count)
    made: list[tuple[int, Seconds]] = [at.hear(number, "feed") for number in there]
    return sum(samples / max(seconds, 1e-9) for samples, seconds in made)


# -- what is made of it --------------------------------------------------------------------------------------------------


def lines(found: Mapping[str, Any]) -> list[str]:
    """The figures for people: a table for each kind, times in milliseconds a step."""
    shown: list[str] = []
    heads = ("width", "forward", "backward", "all-reduce", "optimizer", "data", "step ms", "samples/s", "efficiency")
    for kind in found["kinds"]:
        example = told(kind["configs"][0], 60)
        shown += [
            f"{kind['signature']}: {plural(len(kind['configs']), 'trial')}" + (f", for example {example}" if example else "")
        ]
        shown += ["".join(f"{head:>11}" for head in heads)] if kind["widths"] else []
        for width, row in sorted(kind["widths"].items()):
            times = [f"{1000 * row[name]:.2f}" for name in (*CAUSES, "total")]
            cells = [str(width), *times, counted(row["rate"]), f"{row['efficiency']:.2f}"]
            shown.append("".join(f"{cell:>11}" for cell in cells))
        told_costs = {name: size(x * 2**30) if name == "memory" else duration(x) for name, x in kind["figures"].items()}
        shown += [", ".join(f"{name} {value}" for name, value in told_costs.items())] if told_costs else []
        shown += [f"failed: {kind['failed']}"] if kind["failed"] else []
        shown.append("")
    if found["feeders"]:
        shown.append(f"{'feeders':>11}{'samples/s':>11}")
        shown += [f"{n:11d}{counted(rate):>11}" for n, rate in found["feeders"].items()]
        enough_said = "more than were tried" if found["needed"] is None else str(found["needed"])
        shown.append(f"feeders needed, whichever kinds train on one slot each: {enough_said}")
    widest = max((max(kind["widths"], default=1) for kind in found["kinds"]), default=1)
    if found["device"] != "cuda" and widest * found["threads"] > found["cpus"]:
        shown += ["", f"{widest} slots of {plural(found['threads'], 'thread')} share {plural(found['cpus'], 'CPU')} here."]
    return shown


def write(found: Mapping[str, Any], path: str | Path) -> Path:
    """A profile for `profile=` and `shoal simulate`: a row for each kind, told by what of a configuration speed depends on.

    Raises:
        OSError: the file cannot be written.
    """
    rows = [f"# made by shoal profile, on {found['device']}, {plural(found['threads'], 'thread')} a slot"]
    rows += [f"# {plural(n, 'feeder')}: {rate:.6g} samples/s" for n, rate in found["feeders"].items()]
    for config, kind in _told_apart([kind for kind in found["kinds"] if kind["widths"]]):
        points = ", ".join(f"{width} = {row['rate']:.6g}" for width, row in sorted(kind["widths"].items()))
        rows += ["", "[[rows]]", f"config = {_toml(config)}", f"points = {{ {points} }}"]
        rows += [f"{name} = {float(value):.6g}" for name, value in kind["figures"].items()]
    target = Path(path)
    target.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return target


def _told_apart(kinds: Sequence[Mapping[str, Any]]) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Kinds with the values that tell them apart: not those that differ within a kind; if that is not enough, all values."""
    differ = {k for kind in kinds for c in kind["configs"] for k in c if c[k] != kind["configs"][0].get(k)} | TUNING
    short = [{k: v for k, v in kind["configs"][0].items() if k not in differ} for kind in kinds]
    for kind, config in zip(kinds, short, strict=True):
        for each in [config] if short.count(config) == 1 else kind["configs"]:
            yield each, kind


def _toml(value: Any) -> str:
    """As TOML writes it; it has no None."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{json.dumps(k)} = {_toml(v)}" for k, v in value.items() if v is not None) + " }"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value)
