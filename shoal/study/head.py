"""What the journal says of each run, and what can be made from it again."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from shoal import policy as policies
from shoal import search
from shoal.core.errors import StudyError, warn
from shoal.core.event import Advanced, Entry, Opened
from shoal.core.ports import Policy, Searcher
from shoal.core.site import page
from shoal.core.state import State
from shoal.core.trial import TrialId
from shoal.engine.files import current_folder
from shoal.engine.journal import WRONG, Line, plain
from shoal.options import Options
from shoal.policy.registry import AUTO
from shoal.reporting.format import plural
from shoal.search.space import describe_space, rebuild_space
from shoal.simulate.policy_files import with_objective
from shoal.study import auto
from shoal.study.code.recipe_file import describe_recipe
from shoal.study.folder import foreign_head_error, timestamp, versions
from shoal.study.search_extension import failed_trials, refused_changes
from shoal.study.setup import Setup
from shoal.train.data.data import Data
from shoal.train.lane.device import device_of, instructions, kind_of_name

Head = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Deciders:
    """The searcher, the policy and the options of a run."""

    searcher: Searcher[Any]
    policy: Policy[Any] | str  # "auto" and "auto:…" stay as the user wrote them
    options: Options


def head(setup: Setup, data: Data, deciders: Deciders, before: Head | None = None) -> Head:
    """The journal's head of a run: for people, for resume, for the report.

    `before`: the head of the run before it.
    """
    space = None
    if setup.space is not None:
        space = describe_space(setup.space)
    if isinstance(deciders.policy, str):
        policy = auto.describe(deciders.policy)
    else:
        policy = _described(policies.describe, deciders.policy)
    fingerprints = {name: part.fingerprint for name, part in data.of.items()}  # of several recipes
    described = {
        "study": setup.folder.name,
        "recipe": _code(describe_recipe(setup.recipe), (before or {}).get("recipe", {})),
        "data": {
            "fingerprint": data.fingerprint,
            **({"recipes": fingerprints} if fingerprints else {}),
            "samples": sum(data.sizes.values()),
            "shards": len(data.shards),
        },
        "metric": setup.metric,
        "mode": setup.mode,
        **({"aims": setup.aims} if setup.aims else {}),
        "seed": setup.seed,
        "space": space,
        "searcher": _described(search.describe, deciders.searcher),
        "policy": policy,
        "backend": deciders.options.backend,
        "options": asdict(deciders.options),
        "checkpoints": setup.folder.elsewhere,
        "versions": versions(),
        "place": platform_facts(deciders.options.device),
        "host": platform.node(),
        "cwd": current_folder(),
        "started": timestamp(),
    }
    as_it_will_be_read: dict[str, Any] = plain(described)
    return as_it_will_be_read


def _code(now: dict[str, Any], before: Head) -> Head:
    """The recipe's code; a recipe that was loaded by value knows no file and keeps the former."""
    if "parts" in now:
        parts = before.get("parts", {})
        coded = {name: _code(each, parts.get(name, {})) for name, each in now["parts"].items()}
        return {**now, "parts": coded}
    by_value = now["sha256"] is None and "command" not in now
    if by_value and now["name"] == before.get("name"):
        return before
    return now


def _described(describe: Callable[[Any], dict[str, Any]], decider: Any) -> dict[str, Any]:
    """The searcher or policy as data; of the user's own class only the name."""
    try:
        return describe(decider)
    except ValueError:
        return {"own": f"{type(decider).__module__}.{type(decider).__qualname__}"}


def rebuild(head: Head) -> Deciders:
    """Searcher, policy and options as a journal's head describes them.

    Raises:
        StudyError: the searcher or the policy is the user's own, or Shoal writes no such head.
    """
    try:
        return _rebuilt(head)
    except WRONG as error:
        raise foreign_head_error(error) from error


def _rebuilt(head: Head) -> Deciders:
    of_user = [head[name]["own"] for name in ("searcher", "policy") if "own" in head[name]]
    if of_user:
        raise StudyError(
            f"the study was run with {', '.join(of_user)}, which the journal cannot make again: "
            "run your script again instead"
        )
    described = head["policy"]
    chosen: Policy[Any] | str
    if described["name"] == AUTO:
        chosen = auto.policy_text(described)
    else:
        chosen = policies.rebuild(_with_objective(described))
    return Deciders(search.rebuild(head["searcher"]), chosen, Options.of(**head["options"]))


def _with_objective(described: Mapping[str, Any]) -> Mapping[str, Any]:
    """The policy's description, with the function that the user named as its objective.

    `Folder.check_places` has seen that the user named it.

    Raises:
        StudyError: it is not there any more.
    """
    try:
        return with_objective(described)
    except ValueError as error:
        raise StudyError(
            f"{error}. The study's last run had it in its policy: put it back, or give another "
            "policy with shoal run"
        ) from error


@contextmanager
def refusing_foreign_head(head: Head) -> Iterator[None]:
    """Within, what a head that Shoal does not write leads to becomes one clear error.

    Raises:
        StudyError: Shoal writes no such head.
    """
    try:
        yield
    except (TypeError, LookupError, AttributeError, OverflowError) as error:
        if not head:
            raise
        raise foreign_head_error(error) from error


def head_space(head: Head) -> Mapping[str, Any] | None:
    """The search space that the head describes.

    Raises:
        StudyError: Shoal writes no such head.
    """
    described = head.get("space")
    if described is None:
        return None
    try:
        return rebuild_space(described)
    except WRONG as error:
        raise foreign_head_error(error) from error


def check_same_study(before: Head, now: Head, state: State) -> None:
    """Refuse to go on with a study on other data, seeds or searches; warn of changed code.

    Raises:
        StudyError: what was trained and what would be trained do not belong together.
    """
    if not before:
        return
    if not state.known and state.stopped is None:  # the run before raised, and trained nothing
        return
    if before["data"]["fingerprint"] != now["data"]["fingerprint"]:
        former, latter = (each["data"].get("recipes", {}) for each in (before, now))
        names = sorted(name for name in {*former, *latter} if former.get(name) != latter.get(name))
        whose = f" of recipe {', '.join(names)}" if names else ""
        was = before["data"]["fingerprint"][:12]
        is_now = now["data"]["fingerprint"][:12]
        raise StudyError(
            f"the data{whose} changed since this study began "
            f"(fingerprint {was}, now {is_now}): restore the data, or start a new study with "
            "another storage="
        )
    command = before["recipe"].get("command")
    if command not in (None, now["recipe"].get("command")):
        about = now["recipe"]
        trains = about.get("command") or about["name"]
        raise StudyError(
            f"this study was begun with the command {command!r}, and would go on with "
            f"{trains!r}: give the same command, or start a new study with another storage="
        )
    changes = refused_changes(before, now, state)
    if changes:
        raise StudyError(
            f"this study was begun with another search, and what is on record would become untrue "
            f"({'; '.join(changes)}): see {page('study', 'with-more-than-before')} "
            "for what may grow, or start a new study with another storage="
        )
    if _is_other_code(before["recipe"], now["recipe"]):
        failed = failed_trials(state)
        stay = f"; failed trials ({len(failed)}) stay failed unless retry_failed=True"
        warn(
            "the recipe's file has changed since this study began; "
            f"trials go on with the code as it is now{stay if failed else ''}"
        )


def _is_other_code(before: Head, now: Head) -> bool:
    """Whether the code's files of two heads are known and differ; of several recipes any."""
    parts = before.get("parts", {})
    if any(_is_other_code(parts.get(n, {}), each) for n, each in now.get("parts", {}).items()):
        return True
    return len({before.get("sha256"), now.get("sha256")} - {None}) > 1


def trained_by_other_code(
    runs: Iterable[Line], lines: Callable[[], Iterable[Line]], recipe: Head
) -> set[TrialId]:
    """The trials that were last trained by other code than this recipe's, as heads say it.

    `runs`: the lines that began runs. `lines`: reads them all, if one of these had other code.
    """
    trials: set[TrialId] = set()
    if not any(_had_other_code(line.entry, recipe) for line in runs):
        return trials
    by_other_code = False
    for _, entry in lines():
        if isinstance(entry, Opened):
            by_other_code = _had_other_code(entry, recipe)
        elif isinstance(entry, Advanced):
            if by_other_code:
                trials.update(entry.samples)
            else:
                trials.difference_update(entry.samples)
    return trials


def _had_other_code(entry: Entry, recipe: Head) -> bool:
    """Whether the entry begins a run with other code than this recipe's."""
    if not isinstance(entry, Opened):
        return False
    then = entry.head.get("recipe", {})
    return _is_other_code(then, recipe) or _are_other_texts(then, recipe)


def code_now(setup: Setup, before: Head) -> Head:
    """What a head would say of the recipe as it is loaded. `before`: the newest head."""
    then = before.get("recipe", {})
    now = _code(describe_recipe(setup.recipe), then)
    if _is_other_code(then, now):
        return now
    return {**then, **now}


def _are_other_texts(before: Head, now: Head) -> bool:
    """Whether the texts of all modules of two heads are known and differ, wherever they lay."""
    then, here = (each.get("imports") for each in (before, now))
    if then is None or here is None:
        return False
    return sorted(then.values()) != sorted(here.values())


def warn_of_former_code(former: Iterable[TrialId], before: State, now: State) -> None:
    """Warn if a run's results are those of former code. `before`: the state as the run began.

    `former`: the trials that other code had trained until then.
    """
    if before.done == now.done and former:
        warn(
            "nothing was trained: the code differs from the one that gave these scores. To train "
            "it as it is now, begin a new study with another storage="
        )
        return
    stay = [x for x in former if before.done.get(x) == now.done.get(x)]
    if stay:
        verb = "was" if len(stay) == 1 else "were"
        warn(
            f"{plural(len(stay), 'trial')} of {len(now.known)} {verb} not trained in this run, and "
            "kept the scores that former code gave: to train all of them with the code as it is "
            "now, begin a new study with another storage="
        )


def platform_facts(device: str) -> dict[str, str]:
    """What the numbers depend on beside libraries and threads. `device`: "auto" or a name.

    With a cluster of several machines this is the one that runs the study.
    """
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "instructions": instructions(),
        "device": kind_of_name(device_of(device)),
    }


CPUINFO = "/proc/cpuinfo"
# What tells processors apart that virtual machines give one name; on ARM there is no name at all.
MODEL = ("cpu family", "model", "CPU implementer", "CPU part")


def _processor() -> str:
    """The processor's name and model, as the system tells them."""
    try:
        with open(CPUINFO, encoding="utf-8", errors="replace") as lines:
            pairs = [line.partition(":")[::2] for line in lines]
    except OSError:
        pairs = []
    # Of the first of several processors.
    facts = {name.strip(): value.strip() for name, value in reversed(pairs)}
    name = facts.get("model name") or platform.processor() or platform.machine()
    return ", ".join([name, *(f"{key} {facts[key]}" for key in MODEL if key in facts)])
