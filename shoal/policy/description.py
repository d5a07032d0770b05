"""Policies as a user names them, as plain data for a journal's head, and back from it.

Which names there are is in `registry`.
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
from shoal.policy.elastic.objective import FileObjective
from shoal.policy.elastic.placement import Spatial, rack_of
from shoal.policy.registry import POLICIES, SHOWN, full_name

KNOWN = [name for name in POLICIES if full_name(name) == name]  # the others are short for these
SPATIAL = "spatial"  # what a placement of `Elastic` is described as
Fill = Callable[[Mapping[str, Any]], dict[str, Any]]  # of a policy's description
# FILE.py:NAME without quotes; looked for where a word begins only, else long words take long
FILE = r"""(?<![^\s,()"'=])[^\s,()"'=]+\.py:\w+"""
OF_POLICIES = ("policy", "other")  # arguments that are policies


def describe(policy: Policy[Any]) -> dict[str, Any]:
    """The policy as JSON-able data, {"name": …, its fields}; `rebuild` makes it again.

    Raises:
        ValueError: a policy of one's own, which has no name here, or one with a function in it.
    """
    name = name_of(policy)
    if name is None:
        raise ValueError(
            f"{type(policy).__name__} is not one of {', '.join(KNOWN)}: "
            "to resume the study, give the policy again"
        )
    data: Any = policy  # a dataclass, as all that have a name
    return {
        "name": name,
        **{f.name: _plain(getattr(data, f.name), f.name) for f in fields(data) if f.init},
    }


def name_of(policy: object) -> str | None:
    """The name of the policy's class; None: it is one of the user's own."""
    kind = type(policy)
    place = f"{kind.__module__.removeprefix('shoal.policy.')}:{kind.__qualname__}"
    return next((name for name in KNOWN if POLICIES[name].place == place), None)


def _plain(value: Any, name: str) -> Any:
    """A policy within a policy, or a placement, described; what JSON holds as it is."""
    if hasattr(value, "decide"):
        return describe(value)
    if isinstance(value, Spatial):
        if value.position is not rack_of:
            raise ValueError(f"{name} has a function: to resume the study, give the policy again")
        return {
            "name": SPATIAL,
            "chance": value.chance,
            "reach": value.reach,
            "table": value.table,
        }
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
    for inner in nested(policy):
        objective = getattr(inner, "objective", None)
        if callable(objective):
            yield objective


def rebuild(data: Mapping[str, Any]) -> Policy[Any]:
    """The policy that `describe` described; a name alone gives its defaults.

    Raises:
        ValueError: no such name, or fields that do not fit it.
    """
    arguments = {name: _rebuilt(value) for name, value in data.items()}
    name = arguments.pop("name", None)
    if name not in KNOWN:
        raise ValueError(f"no policy is named {name!r}; there are {', '.join(SHOWN)}")
    if name == "hybrid" and "policy" not in arguments:
        arguments = {"policy": rebuild({"name": "hop", **arguments})}
    kind = POLICIES[name].kind
    # What is on or off must be one of the two: a word, such as "false", would be on.
    for field in fields(kind):
        value = arguments.get(field.name, False)
        if field.type is bool and not isinstance(value, bool):
            raise ValueError(f"policy {name}: {field.name} is True or False; got {value!r}")
    try:
        policy: Policy[Any] = kind(**arguments)
    except TypeError as error:
        takes = ", ".join(signature(kind).parameters) or "nothing"
        raise ValueError(f"policy {name}: {error}; it takes {takes}") from error
    return policy


def _rebuilt(value: Any) -> Any:
    """The field's value again, from what `_plain` made of it."""
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
    shown = text[:200]
    try:
        tree = parsed(_as_python(text.strip()))
    except SyntaxError as error:
        raise ValueError(
            f'a policy is named as "equi" or "explore(seconds=60, most=4)"; got {shown!r}'
        ) from error
    try:
        return rebuild(_Reader(usual, seed, fill).policy(tree))
    except RecursionError:
        raise ValueError(f"a policy is not so deep; got {shown!r}") from None


def _as_python(text: str) -> str:
    """The text as an expression of Python: names without hyphens, FILE.py:NAME in quotes."""
    names = sorted(POLICIES, key=len, reverse=True)
    known = "|".join(re.escape(name) for name in names if "-" in name)

    def written(match: re.Match[str]) -> str:
        if match["quoted"] is not None:
            return match["quoted"]
        if match["file"] is not None:
            return repr(match["file"])
        return match["name"].replace("-", "_")

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
        arguments = {str(x.arg): self.argument(x) for x in call.keywords}
        return self.completed(call.func.id.replace("_", "-"), arguments)

    def completed(self, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The policy's description, with what a short name stands for and what is usual."""
        short: Mapping[str, Any] = {}
        if name in POLICIES:
            short = POLICIES[name].given
            name = full_name(name)
        inner = {
            key: self.completed(**_split(value))
            for key, value in short.items()
            if isinstance(value, Mapping) and "name" in value
        }
        usual = dict(self.usual)
        if name == "hop" and self.seed is not None:
            usual["seed"] = self.seed
        names = set()
        if name in POLICIES:
            names = {f.name for f in fields(POLICIES[name].kind)}
        left_open = {key: value for key, value in usual.items() if key in names}
        return self.fill({"name": name, **left_open, **short, **inner, **arguments})

    def argument(self, keyword: ast.keyword) -> Any:
        """A policy, a word with or without quotes, or another plain value."""
        node = keyword.value
        if isinstance(node, ast.Name) and keyword.arg not in OF_POLICIES:
            return node.id
        if isinstance(node, (ast.Name, ast.Call)):
            return self.policy(node)
        try:
            return ast.literal_eval(node)
        except ValueError as error:
            raise ValueError(
                f"a policy's arguments are plain values, or policies; got {ast.unparse(node)}"
            ) from error


def _split(described: Mapping[str, Any]) -> dict[str, Any]:
    """The name and the arguments of a described policy, as `_Reader.completed` takes them."""
    arguments = {key: value for key, value in described.items() if key != "name"}
    return {"name": described["name"], "arguments": arguments}
