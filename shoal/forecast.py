"""What a study would take under each policy: a short probe of its trials, then the simulator with the ordinary engine."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import isnan, nan
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import TYPE_CHECKING, Any

from shoal import searchers, wiring
from shoal.backend.sim import Sim
from shoal.candidates import NAME, USUAL, WIDE, is_auto
from shoal.core.cluster import Slot, SlotId
from shoal.core.event import Finished, Joined, Measured, Opened, Planned
from shoal.core.ports import Policy, Profile, Searcher
from shoal.core.state import State, fold
from shoal.core.trial import Seconds, Trial
from shoal.engine.journal import Journal
from shoal.engine.run import run
from shoal.profile.given import Given
from shoal.profile.measure import AT, WIDER
from shoal.profile.table import Table
from shoal.profile.together import FORM

if TYPE_CHECKING:
    from shoal.study import Study
    from shoal.train.data import Data

TOGETHER, PROBE = 32, 5.0  # trials of a form, at most, whose fused steps are probed, and about how many seconds that may take
ROUND = 30  # steps of each trial that such a probe takes: six alone, six in each width, rarely more than four widths
RAY_START = 4.0  # seconds until slots of a new local Ray cluster have joined, as seen on small machines


def forecast(
    study: "Study",
    policies: tuple[str, ...],
    num_samples: int | None,
    max_epochs: int | None,
    profile: str | Path | None,
    options: Mapping[str, Any],
    out: Path | None = None,
    widths: tuple[int, int] | None = None,
) -> dict[str, Any]:
    """Predicted seconds of the study under each policy: {"policies": [row …], "trials": …, "probe_s": …}.

    `policies`: names; none: "auto" and what it chooses among. A row of "auto" also has what it follows at last, and why.
    Unless a profile says everything, each kind of trial is probed here for at most 48 batches, and those of one form for a few
    seconds more, fused. `out`: a folder for the simulated journals and their reports. `widths`: the fewest and most slots of
    each trial; the probe is of one slot, so that what is gained by more is a guess (`guessed`) unless the profile has it.

    Raises:
        StudyError: as `Study.optimize`.
    """
    chosen = wiring.Options.of(**options)
    data = wiring.data_of(study.recipe)
    epochs = wiring.epochs_of(study, max_epochs)
    wiring.check_widths(widths, chosen)
    searcher = searchers.searcher_of(study, None, num_samples=num_samples, max_epochs=epochs, max_concurrent=None, widths=widths)
    fewest, most = widths or (1, 1)
    wide, narrow = (WIDE, fewest == 1) if most > 1 else ((), True)
    wanted = policies or (NAME, *((*USUAL, "hop-lrw") if narrow else ()), *wide)
    rules = {name: wiring.policy_of(name, chosen, data, study.seed) for name in wanted}
    begin = perf_counter()
    given = wiring.profile_of(profile)
    believe: Any = wiring.believer(given)
    state = all_trials(searcher, data)
    if given is None or isinstance(given, Given):
        packs = any(is_auto(name) or "pack" in name for name in wanted)
        state = _probed(study, chosen, data, state, packs and chosen.fuse)
        believe = _Frozen(state, believe)
    took = perf_counter() - begin
    rows = [_row(study, name, rule, searcher, chosen, data, believe(state), out) for name, rule in rules.items()]
    said = wiring.given_rows(given) or () if most > 1 else ()
    guessed = most > 1 and not any(name.startswith(AT) for row in said for name in row["figures"])
    return {"policies": rows, "trials": len(state.known), "probe_s": took, "kinds": len(state.figures), "guessed": guessed}


class _Frozen:
    """The belief made of the probe, whatever a simulation measures."""

    def __init__(self, probed: State, believer: Callable[[State], Profile]) -> None:
        self.probed = probed
        self.believer = believer

    def __call__(self, state: State) -> Profile:
        return self.believer(replace(self.probed, known={**self.probed.known, **state.known}))


def all_trials(searcher: Searcher[Any], data: "Data") -> State:
    """Every trial that the searcher would submit, found by simulating it with made-up speeds."""
    sim = Sim(Table().of, [_slot(0, data)], shards=data.sizes)
    journal = Journal()
    state = fold(State(), [Opened(1, data.sizes)])
    from shoal.policy import Fifo

    return replace(run(searcher, Fifo(), sim, Table().believe, journal, state), figures={}, signature={})


def _probed(study: "Study", options: wiring.Options, data: "Data", state: State, fuse: bool) -> State:
    """`fuse`: also what steps of several take at once."""
    from shoal.train.checkpoint import Vault
    from shoal.train.device import device_of
    from shoal.train.station import Station

    device = device_of(options.device)
    with TemporaryDirectory() as folder:
        vault = Vault(folder, 1)
        threads, metric = options.threads, study.metric
        station = Station(
            study.recipe, data, vault, seed=study.seed, run=1, device=device, kind=device, threads=threads, metric=metric
        )
        found = {trial.id: station.probe(trial) for trial in state.known.values()}
        told = [Measured(trial, *figures) for trial, figures in found.items()]
        forms: dict[str, list[Trial]] = {}
        steps = {signature: figures["step"] for signature, figures in found.values() if "step" in figures}
        for trial, (signature, _) in found.items() if fuse else ():
            forms.setdefault(signature[:FORM], []).append(state.known[trial])
        for form, some in forms.items():
            step = max((step for signature, step in steps.items() if signature.startswith(form)), default=0.0)
            some = some[: max(2, min(TOGETHER, int(PROBE / max(1e-9, ROUND * step))))]
            told += [Measured(trial, *figures) for trial, figures in station.probe_packs(some).items()]
        return fold(state, told)


def _slot(number: int, data: "Data", slots: int = 1) -> Slot:
    """Slot `number` of so many, with every `slots`-th shard."""
    return Slot(SlotId(f"slot{number}" if slots > 1 else "local"), shards=frozenset(data.shards[number::slots]))


def _row(
    study: "Study",
    name: str,
    rule: Policy[Any],
    searcher: Searcher[Any],
    options: wiring.Options,
    data: "Data",
    truth: Profile,
    out: Path | None,
) -> dict[str, Any]:
    count = options.slots or wiring.slots_here(options.threads) if options.backend == "ray" else 1
    start = RAY_START if options.backend == "ray" else 0.0
    script = [(start, Joined(tuple(_slot(i, data, count) for i in range(count))))]
    sim = Sim(
        truth,
        script=script,
        shards=data.sizes,
        seed=study.seed,
        checkpoint_every=options.checkpoint_every,
        validate_every=options.validate_every,
    )
    path = None
    if out is not None:
        (out / name).mkdir(parents=True, exist_ok=True)
        path = out / name / "journal.jsonl"
        path.unlink(missing_ok=True)
    journal = Journal(path)
    head = wiring.head(study, data, searcher, name if is_auto(name) else rule, options) | {
        "simulated": True,
        "study": f"plan of {type(study.recipe).__name__} under {name}",
    }
    opened = Opened(1, data.sizes, head)
    journal.append(0.0, opened)
    end = _Ends()
    state = run(searcher, rule, sim, lambda state: truth, journal, fold(State(), [opened]), watch=[end])
    journal.close()
    row: dict[str, Any] = {"policy": name, "slots": count, "seconds": end.last, "training_s": end.last - end.first}
    if is_auto(name):
        row |= {key: state.memory["policy"][key] for key in ("follows", "why")}
    if path is not None and out is not None:
        from shoal import report

        row["report"] = str(report.write(path, out / name / "report.html"))
    return row


class _Ends:
    """Notes when the first plan was made and when the last trial was done."""

    def __init__(self) -> None:
        self.first: Seconds = nan
        self.last: Seconds = 0.0

    def __call__(self, now: Seconds, entries: tuple[Any, ...], state: State) -> None:
        for entry in entries:
            if isinstance(entry, Planned) and isnan(self.first):
                self.first = now
            if isinstance(entry, Finished):
                self.last = now


def forecast_lines(found: dict[str, Any]) -> list[str]:
    """The prediction for people, the fastest policy first."""
    lines = [f"{found['trials']} trials of {found['kinds']} kinds, probed in {found['probe_s']:.1f} s", ""]
    lines.append(f"{'policy':12} {'slots':>5} {'seconds':>9}")
    for row in sorted(found["policies"], key=lambda x: x["seconds"]):
        lines.append(f"{row['policy']:12} {row['slots']:5d} {row['seconds']:9.1f}   {row.get('report', '')}".rstrip())
    lines += ["", *(f"{row['policy']}: {row['follows']}, because {row['why']}" for row in found["policies"] if "why" in row)]
    if found["guessed"]:
        lines += ["", f"speeds at widths above 1 are guessed (width ** {WIDER}): `shoal profile` measures them, for --profile"]
    return lines
