"""From what a user says (names, numbers) to the parts of a run: options, policy, profile; what the journal says of them."""

import os
import platform
import warnings
from collections.abc import Callable, Mapping, Set
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, Protocol

from shoal import candidates
from shoal.core.event import Event
from shoal.core.ports import Policy, Profile, Searcher
from shoal.core.state import State
from shoal.engine.journal import plain
from shoal.folder import StudyError, describe_recipe, timestamp, versions
from shoal.policy import Fifo, Hop, Pack, Packed
from shoal.policy.hop import Rule
from shoal.policy.named import KNOWN
from shoal.policy.named import parse as parse_policy
from shoal.profile.given import Given, load
from shoal.profile.table import Table

if TYPE_CHECKING:
    from shoal.study import Study
    from shoal.train.data import Data
    from shoal.train.recipe import Recipe

HOPS: Mapping[str, Rule] = {
    "hop": "rotation",
    "hop-lrw": "lrw",
    "hop-random": "random",
    "hop-early": "early",
    "hop-quick4": "quick4",
    "hop-quota": "quota",
}
POLICIES = ("auto", "fifo", "pack", *HOPS, "hop-packs")


class Wired(Protocol):
    """A backend that can also be told of events."""

    def tell(self, event: Event) -> None: ...


@dataclass(frozen=True, slots=True)
class Options:
    """How a study runs. What a trial learns over its visits depends on `device`, `threads` and `fuse` by rounding, else on none.

    But ReduceLROnPlateau follows `validate_every`, and batch_size="max" the memory. The order of visits may depend on `backend`,
    `slots` and `copies`.

    Raises:
        StudyError: a value out of its range.
    """

    backend: str = "local"
    slots: int | None = None  # of the ray backend: how many (default: one per GPU, else one per CPU)
    threads: int = 1  # of each slot
    device: str = "auto"  # of the local backend: cpu, cuda, mps; auto takes a GPU if there is one
    address: str | None = None  # of a running Ray cluster; None starts one here
    copies: int = 1  # slots that hold each shard
    validate_every: int = 1  # epochs
    checkpoint_every: float = 30.0  # seconds of a trial's training between durable states; 0: every unit
    max_checkpoint_gb: float | None = None
    data_memory_gb: float = 2.0  # prepared shards kept in memory, per slot
    state_memory_gb: float = 2.0  # resident models, per slot
    slot_memory_gb: float | None = None  # what a slot may take in all; default: all of its GPU, without limit on a CPU
    fuse: bool = True  # packed trials of one graph may train in one step: equal to rounding; False: bit for bit as alone
    feeders: int | Literal["auto"] = "auto"  # ray: processes of each node that prepare chunks once for all its slots
    stream_memory_gb: float = 1.0  # prepared chunks that a node's feeders hold for slots that come later
    stream_samples: int = 2048  # that they prepare before a slot asks for them

    @classmethod
    def of(cls, **given: Any) -> "Options":
        known = [f.name for f in fields(cls)]
        wrong = sorted(set(given) - set(known))
        if wrong:
            raise StudyError(f"unknown option {', '.join(wrong)}; known: {', '.join(known)}")
        return cls(**given)

    def __post_init__(self) -> None:
        if self.backend not in ("local", "ray"):
            raise StudyError(f'backend must be "local" or "ray"; got {self.backend!r}')
        if self.backend == "local" and self.slots not in (None, 1):
            raise StudyError(f'the local backend has one slot; got slots={self.slots}: use backend="ray" for more')
        if self.feeders != "auto" and (not isinstance(self.feeders, int) or self.feeders < 0):
            raise StudyError(f'feeders must be "auto", or a whole number >= 0; got {self.feeders!r}')
        leasts = {"threads": 1, "copies": 1, "validate_every": 1, "checkpoint_every": 0}
        for name, least in {**leasts, "stream_memory_gb": 0, "stream_samples": 0}.items():
            if getattr(self, name) < least:
                raise StudyError(f"{name} must be >= {least}; got {getattr(self, name)!r}")
        if self.slots is not None and self.slots < 1:
            raise StudyError(f"slots must be >= 1; got {self.slots}")
        if self.slot_memory_gb is not None and not self.slot_memory_gb > 0:
            raise StudyError(f"slot_memory_gb must be > 0, or None for no limit; got {self.slot_memory_gb}")


def check_recipe_type(recipe: Any) -> None:
    """Raise StudyError unless this is a recipe's instance."""
    from shoal.train.recipe import Recipe

    if isinstance(recipe, type) and issubclass(recipe, Recipe):
        raise StudyError(f"give an instance: {recipe.__name__}() instead of {recipe.__name__}")
    if not isinstance(recipe, Recipe):
        raise StudyError(f"the recipe must be an instance of a shoal.Recipe subclass; got {type(recipe).__name__}")


def data_of(recipe: "Recipe") -> "Data":
    """The recipe's data, checked."""
    from shoal.train.data import Data

    data = recipe.data()
    if not isinstance(data, Data):
        raise StudyError(
            f"{type(recipe).__name__}.data() must return shoal.Data; got {type(data).__name__}: see shoal.Data.arrays(…)"
        )
    return data


def check_widths(widths: tuple[int, int] | None, options: Options) -> None:
    """Raise StudyError where no trial of these widths can have the slots that it needs at least."""
    slots = 1 if options.backend == "local" else options.slots
    if widths is not None and slots is not None and widths[0] > slots:
        raise StudyError(f"widths={widths!r} needs {widths[0]} slots for a trial; there are {slots}: ask for fewer, or give more")


def rebuild_space(described: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """The search space that a journal's head describes."""
    from shoal.search.space import rebuild_space as rebuild

    return None if described is None else rebuild(described)


def policy_of(policy: Policy[Any] | str, options: Options, data: "Data", seed: int) -> Policy[Any]:
    """The policy by that name; "auto" simulates some and follows the quickest."""
    if not isinstance(policy, str):
        return policy
    if candidates.is_auto(policy):
        return candidates.auto(policy, lambda name: policy_of(name, options, data, seed))
    if policy not in POLICIES and (policy in KNOWN or "(" in policy):
        return parse_policy(policy, {"fuse": options.fuse})
    if policy not in POLICIES:
        names = [*POLICIES, *(name for name in KNOWN if name not in POLICIES)]
        raise StudyError(f"unknown policy {policy!r}; known: {', '.join(names)}, or an object with start and decide")
    if policy == "pack":
        return Pack(fuse=options.fuse)
    if policy == "hop-packs":
        return Packed(Hop(seed=seed), fuse=options.fuse)
    return Fifo() if policy == "fifo" else Hop(rule=HOPS[policy], seed=seed)


def slots_here(threads: int = 1) -> int:
    """Slots that a Ray cluster of this machine alone would have: its GPUs, else its CPUs by so many threads."""
    from shoal.train.device import gpus

    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return gpus() or max(1, cpus // threads)


def profile_of(profile: Profile | str | Path | None) -> Profile | Given | None:
    """A given profile; from a TOML file where it is a path, and of that what it says."""
    return load(profile) if isinstance(profile, (str, Path)) else profile


def believer(given: Profile | Given | None) -> Callable[[State], Profile]:
    """What deciders believe: the given profile; what it leaves open, or all of it, as it was measured so far."""
    from shoal.profile.measure import Believer

    if given is None or isinstance(given, Given):
        return Believer(given or Given(()))
    return given.believe if isinstance(given, Table) else lambda state: given


def given_rows(given: Profile | Given | None) -> list[dict[str, Any]] | None:
    """What a head says of the figures that were given: {"config": …, "figures": …} each; None: nothing that can be listed."""
    rows = Given.of(given.rows) if isinstance(given, Table) else given
    if not isinstance(rows, Given):
        return None
    return [{"config": dict(c), "figures": {k: v for k, v in f.items() if k != "data"}} for c, f in rows.rows]


def head(
    study: "Study",
    data: "Data",
    searcher: Searcher[Any],
    policy: Policy[Any] | str,
    options: Options,
    before: Mapping[str, Any] = MappingProxyType({}),
) -> dict[str, Any]:
    """What the journal says of a run: for people, for resume, for the report. `before`: the head of the run before it."""
    from shoal import policy as policies
    from shoal import search
    from shoal.search.space import describe_space

    said = {
        "study": study.folder.path.name,
        "recipe": _code(describe_recipe(study.recipe), before.get("recipe", {})),
        "data": {"fingerprint": data.fingerprint, "samples": sum(data.sizes.values()), "shards": len(data.shards)},
        "metric": study.metric,
        "mode": study.mode,
        "seed": study.seed,
        "space": describe_space(study.search_space) if study.search_space is not None else None,
        "searcher": _described(search.describe, searcher),
        "policy": candidates.described(policy) if isinstance(policy, str) else _described(policies.describe, policy),
        "backend": options.backend,
        "options": asdict(options),
        "checkpoints": study.folder.elsewhere,
        "versions": versions(),
        "host": platform.node(),
        "started": timestamp(),
    }
    told: dict[str, Any] = plain(said)  # as it will be read back
    return told


def _code(now: dict[str, Any], before: Mapping[str, Any]) -> Mapping[str, Any]:
    """A recipe that was loaded by value knows no file: it is the code of the run before."""
    return before if now["sha256"] is None and now["name"] == before.get("name") else now


def _described(describe: Callable[[Any], dict[str, Any]], decider: Any) -> dict[str, Any]:
    try:
        return describe(decider)
    except ValueError:  # the user's own: it cannot be made again from the journal
        return {"own": f"{type(decider).__module__}.{type(decider).__qualname__}"}


def rebuild(head: Mapping[str, Any]) -> tuple[Searcher[Any], Policy[Any] | str, Options]:
    """Searcher, policy (or what the user said instead, "auto") and options as a journal's head describes them."""
    from shoal import policy, search

    own = [head[name]["own"] for name in ("searcher", "policy") if "own" in head[name]]
    if own:
        raise StudyError(
            f"the study was run with {', '.join(own)}, which the journal cannot make again: run your script again instead"
        )
    rule = head["policy"]
    chosen = candidates.said(rule) if rule["name"] == candidates.NAME else policy.rebuild(rule)
    return search.rebuild(head["searcher"]), chosen, Options.of(**head["options"])


def epochs_of(study: "Study", max_epochs: float | None) -> Any:
    """How long trials train: as said, else as the recipe says; None where neither does."""
    return getattr(study.recipe, "max_epochs", None) if max_epochs is None else max_epochs


def first_config(space: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """A configuration of the space, to try a recipe with."""
    from shoal.search import Random

    return Random(space or {}, num_samples=1).config(0)


def check_same(before: Mapping[str, Any], now: Mapping[str, Any], scores: Set[str]) -> None:
    """Refuse to go on with a study on other data, seeds or searches; warn of changed code.

    `scores`: names of all that trials have; a metric that is not among them was misspelt, and may be set right.

    Raises:
        StudyError: what was trained and what would be trained do not belong together.
    """
    if not before:
        return
    if before["data"]["fingerprint"] != now["data"]["fingerprint"]:
        raise StudyError(
            f"the data changed since this study began (fingerprint {before['data']['fingerprint'][:12]}, now "
            f"{now['data']['fingerprint'][:12]}): restore the data, or start a new study with another storage="
        )
    old, new = (_fixed(x["searcher"], before["searcher"], scores) | {"seed": x["seed"]} for x in (before, now))
    differ = sorted(k for k in old.keys() | new.keys() if old.get(k) != new.get(k))
    if differ:
        changes = "; ".join(f"{k}: {old.get(k)!r}, now {new.get(k)!r}" for k in differ)
        raise StudyError(
            f"this study was begun with another search ({changes}): only num_samples (not PBT's, which is its population) and "
            "max_concurrent may change; start a new study with another storage="
        )
    if before["recipe"].get("sha256") != now["recipe"].get("sha256"):
        warnings.warn(
            "the recipe's file has changed since this study began; trials go on with the code as it is now", stacklevel=4
        )


def _fixed(searcher: Mapping[str, Any], before: Mapping[str, Any], scores: Set[str]) -> dict[str, Any]:
    """What of a searcher's description may not change: a population has its size, and a metric that there is compared trials."""
    free = {"max_concurrent", "per_slot"} | ({"num_samples"} if searcher.get("name") != "pbt" else set())
    free |= {"metric", "mode"} if before.get("metric") not in scores else set()
    fixed = {k: v for k, v in searcher.items() if k not in free}
    inner = fixed.get("inner")
    return fixed | {"inner": _fixed(inner, before.get("inner") or {}, scores)} if inner else fixed


def progress(wanted: bool, metric: str | None, mode: str) -> list[Any]:
    """The live display, if wanted."""
    if not wanted:
        return []
    from shoal.report.progress import Progress

    return [Progress(metric=metric, mode=mode)]


def optuna_log(study: "Study", wanted: bool | str | Path, searcher: Searcher[Any]) -> list[Any]:
    """Optuna's journal of the study, if wanted, or if there is one in its folder already."""
    place = study.folder.path / "optuna.log"
    if not wanted and not place.exists():
        return []
    from shoal.report.optuna_log import OptunaLog
    from shoal.search import nested

    epochs = next((e for each in nested(searcher) if (e := getattr(each, "max_epochs", None)) is not None), None)
    path = place if isinstance(wanted, bool) else Path(wanted)
    return [OptunaLog(path, study.folder.path.name, study.search_space, study.metric, study.mode, epochs)]
