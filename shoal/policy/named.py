"""Policies by name: what a user may say, plain data for a journal's head, and back from it.

`NAMES` is what users are shown. `KNOWN` has more: what a policy is described as in a journal, and
the baselines of papers. `SHORT` are names for one setting of a policy.
"""

import ast
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from inspect import signature
from types import MappingProxyType
from typing import Any

from shoal.core.ports import Policy
from shoal.core.trial import parsed
from shoal.policy.combine import Admit, Every, Fallback
from shoal.policy.elastic.elastic import Elastic
from shoal.policy.elastic.objective import FileObjective
from shoal.policy.elastic.placement import Spatial, rack_of
from shoal.policy.fifo import Fifo
from shoal.policy.hop.hop import RULES, Hop
from shoal.policy.hop.hybrid import Hybrid
from shoal.policy.mixed import Mixed
from shoal.policy.pack.pack import Pack
from shoal.policy.pack.packs_as_trials import PacksAsTrials
from shoal.policy.reference.baselines import Fixed, HeSrpt, Killable, Rounds, SrptK, Width, Wrate
from shoal.policy.reference.milp import NodeMilp
from shoal.policy.width.doubling import Doubling
from shoal.policy.width.equi import Equi
from shoal.policy.width.explore import Explore
from shoal.policy.width.flotilla import Flotilla
from shoal.policy.width.waterfill import WaterFill

KNOWN: Mapping[str, type[Any]] = {
    "fifo": Fifo,
    "fixed": Fixed,
    "hop": Hop,
    "hybrid": Hybrid,
    "pack": Pack,
    "packed": PacksAsTrials,
    "doubling": Doubling,
    "explore": Explore,
    "width": Width,
    "equi": Equi,
    "wrate": Wrate,
    "hesrpt": HeSrpt,
    "srpt-k": SrptK,
    "waterfill": WaterFill,
    "mixed": Mixed,
    "flotilla": Flotilla,
    "rounds": Rounds,
    "elastic": Elastic,
    "milp": NodeMilp,
    "killable": Killable,
    "admit": Admit,
    "fallback": Fallback,
    "every": Every,
}
SPATIAL = "spatial"  # what a placement of `Elastic` is described as
NAMES: Mapping[str, str] = {
    "auto": "the default: simulates those that suit and follows the quickest",
    "fifo": "one trial per slot, first come first served: what all others must beat",
    "pack": "small models: several on one slot, over one stream of data",
    "hop": "data spread over the slots: models move from shard to shard, data stays",
    "hop-packs": "as hop, for small models: packs of them move together",
    "hybrid": "hops while trials abound; the last ones read several shards at once",
    "doubling": "trials of several widths: slots go where one more saves most time",
    "explore": "as doubling, when nobody knows yet how trials scale: tries each width first",
    "equi": "trials of several widths: equal shares for all, whatever their lengths",
    "waterfill": "trials of several widths: ends all of them as early as can be",
    "mixed": "small and large models: packs on some slots, wide trials on the others",
    "flotilla": "trials of unlike speed over one costly stream: those of like pace together",
    "elastic": "slots that come and go: best widths for the next while, at each change",
    "every": "every(seconds=600, policy=doubling): changes at intervals only",
}
Fill = Callable[[Mapping[str, Any]], dict[str, Any]]  # of a policy's description
FILE = r"""[^\s,()"'=]+\.py:\w+"""  # FILE.py:NAME without quotes
OF_POLICIES = ("policy", "other")  # arguments that are policies
SHORT: Mapping[str, Mapping[str, Any]] = {
    **{f"hop-{rule}": {"name": "hop", "rule": rule} for rule in RULES},
    "hop-packs": {"name": "packed", "policy": {"name": "hop"}},
}


def describe(policy: Policy[Any]) -> dict[str, Any]:
    """The policy as JSON-able data, {"name": …, its fields}; `rebuild` makes it again.

    Raises:
        ValueError: a policy of one's own, which has no name here, or one with a function in it.
    """
    made: Any = type(policy)
    for name, kind in KNOWN.items():
        if made is kind:
            return {"name": name, **_fields_of(policy)}
    raise ValueError(
        f"{made.__name__} is not one of {', '.join(KNOWN)}: "
        "to resume the study, give the policy again"
    )


def _fields_of(value: Any) -> dict[str, Any]:
    return {f.name: _plain(getattr(value, f.name), f.name) for f in fields(value) if f.init}


def _plain(value: Any, name: str) -> Any:
    """A policy within a policy, or a placement, described; what JSON holds as it is."""
    if hasattr(value, "decide"):
        return describe(value)
    if isinstance(value, Spatial):
        if value.position is not rack_of:
            raise ValueError(f"{name} has a function: to resume the study, give the policy again")
        said = {"chance": value.chance, "reach": value.reach, "table": value.table}
        return {"name": SPATIAL, **said}
    if isinstance(value, FileObjective):
        return value.place
    if callable(value):
        raise ValueError(f"{name} is a function: to resume the study, give the policy again")
    return value


def nested(policy: Any) -> Iterator[Any]:
    """The policy, and those within it."""
    yield policy
    within = [getattr(policy, name, None) for name in OF_POLICIES]
    candidates = getattr(policy, "candidates", None)
    if isinstance(candidates, Mapping):
        within += candidates.values()
    for inner in within:
        if hasattr(inner, "decide"):
            yield from nested(inner)


def objectives_of(policy: Any) -> Iterator[Callable[..., Any]]:
    """The functions that are objectives of the policy, and of those within it."""
    for each in nested(policy):
        objective = getattr(each, "objective", None)
        if callable(objective):
            yield objective


def rebuild(data: Mapping[str, Any]) -> Policy[Any]:
    """The policy that `describe` described; a name alone gives its defaults.

    Raises:
        ValueError: no such name, or fields that do not fit it.
    """
    given = {name: _rebuilt(value) for name, value in data.items()}
    name = given.pop("name", None)
    if name not in KNOWN:
        raise ValueError(f"no policy is named {name!r}; there are {', '.join(NAMES)}")
    if name == "hybrid" and "policy" not in given:
        given = {"policy": rebuild({"name": "hop", **given})}
    _check_switches(name, given)
    try:
        policy: Policy[Any] = KNOWN[name](**given)
    except TypeError as error:
        takes = ", ".join(signature(KNOWN[name]).parameters) or "nothing"
        raise ValueError(f"policy {name}: {error}; it takes {takes}") from error
    return policy


def _check_switches(name: str, given: Mapping[str, Any]) -> None:
    """Raise ValueError if what is on or off is neither: a word, such as false, would be on."""
    for field in fields(KNOWN[name]):
        value = given.get(field.name, False)
        if field.type is bool and not isinstance(value, bool):
            raise ValueError(f"policy {name}: {field.name} is True or False; got {value!r}")


def _rebuilt(value: Any) -> Any:
    if not isinstance(value, Mapping) or "name" not in value:
        return value
    if value["name"] != SPATIAL:
        return rebuild(value)
    return Spatial(**{name: field for name, field in value.items() if name != "name"})


def parse(
    text: str,
    usual: Mapping[str, Any] = MappingProxyType({}),
    seed: int | None = None,
    fill: Fill = dict,
) -> Policy[Any]:
    """The policy that a user names, as "equi", "hop-lrw" or "every(seconds=600, policy=doubling)".

    Arguments are plain values, or policies named in the same way. `usual`: arguments by name, for
    each policy that has them, where the text leaves them open. `seed`: of policies that hop, where
    the text leaves it open. `fill`: puts values for what the text only names, such as a file.

    Raises:
        ValueError: no such name, or arguments that do not fit it.
    """
    given = text[:200]
    try:
        tree = parsed(_as_python(text.strip()))
    except SyntaxError as error:
        raise ValueError(
            f'a policy is named as "equi" or "explore(seconds=60, most=4)"; got {given!r}'
        ) from error
    try:
        return rebuild(_Reader(usual, seed, fill).policy(tree))
    except RecursionError:
        raise ValueError(f"a policy is not so deep; got {given!r}") from None


def _as_python(text: str) -> str:
    """The text as an expression of Python: names without hyphens, FILE.py:NAME in quotes."""
    names = sorted([*KNOWN, *SHORT], key=len, reverse=True)
    known = "|".join(re.escape(name) for name in names if "-" in name)

    def written(found: re.Match[str]) -> str:
        if found["quoted"] is not None:
            return found["quoted"]
        if found["file"] is not None:
            return repr(found["file"])
        return found["name"].replace("-", "_")

    pieces = rf"""(?P<quoted>"[^"]*"|'[^']*')|(?P<file>{FILE})|(?P<name>{known})"""
    return re.sub(pieces, written, text)


@dataclass(frozen=True, slots=True)
class _Reader:
    """From what a user wrote to what `rebuild` takes. Its fields are as for `parse`."""

    usual: Mapping[str, Any]
    seed: int | None
    fill: Fill

    def policy(self, node: ast.expr) -> dict[str, Any]:
        call = node
        if not isinstance(call, ast.Call):
            call = ast.Call(node, [], [])
        named = all(keyword.arg is not None for keyword in call.keywords)
        if not isinstance(call.func, ast.Name) or call.args or not named:
            raise ValueError(f"a policy is a name with named arguments; got {ast.unparse(node)}")
        given = {str(x.arg): self.argument(x) for x in call.keywords}
        return self.completed(call.func.id.replace("_", "-"), given)

    def completed(self, name: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """With what a short name stands for, and what is usual."""
        short = dict(SHORT.get(name, {}))
        name = short.pop("name", name)
        inner = {key: self.completed(**_split(value)) for key, value in short.items() if _is(value)}
        usual = dict(self.usual)
        if name == "hop" and self.seed is not None:
            usual["seed"] = self.seed
        has = set()
        if name in KNOWN:
            has = {f.name for f in fields(KNOWN[name])}
        left_open = {key: value for key, value in usual.items() if key in has}
        return self.fill({"name": name, **left_open, **short, **inner, **given})

    def argument(self, given: ast.keyword) -> Any:
        """A policy, a word with or without quotes, or another plain value."""
        node = given.value
        if isinstance(node, ast.Name) and given.arg not in OF_POLICIES:
            return node.id
        if isinstance(node, (ast.Name, ast.Call)):
            return self.policy(node)
        try:
            return ast.literal_eval(node)
        except ValueError as error:
            raise ValueError(
                f"a policy's arguments are plain values, or policies; got {ast.unparse(node)}"
            ) from error


def _is(value: Any) -> bool:
    """Whether this describes a policy."""
    return isinstance(value, Mapping) and "name" in value


def _split(described: Mapping[str, Any]) -> dict[str, Any]:
    """Its name, and what else it gives."""
    given = {key: value for key, value in described.items() if key != "name"}
    return {"name": described["name"], "given": given}
