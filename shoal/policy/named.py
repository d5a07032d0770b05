"""Policies by name: plain data for a journal's head, and back from it."""

import ast
from collections.abc import Mapping
from dataclasses import fields
from types import MappingProxyType
from typing import Any

from shoal.core.ports import Policy
from shoal.policy.combine import Admit, Every, Fallback
from shoal.policy.doubling import Doubling, Width
from shoal.policy.elastic import Elastic
from shoal.policy.equi import Equi, HeSrpt, SrptK, Wrate
from shoal.policy.explore import Explore
from shoal.policy.fifo import Fifo
from shoal.policy.fixed import Fixed
from shoal.policy.flotilla import Flotilla, Rounds
from shoal.policy.hop import Hop
from shoal.policy.hybrid import Hybrid
from shoal.policy.killable import Killable
from shoal.policy.milp import NodeMilp
from shoal.policy.pack import Pack
from shoal.policy.packed import Packed
from shoal.policy.waterfill import WaterFill

KNOWN: Mapping[str, type[Any]] = {
    "fifo": Fifo,
    "fixed": Fixed,
    "hop": Hop,
    "hybrid": Hybrid,
    "pack": Pack,
    "packed": Packed,
    "doubling": Doubling,
    "explore": Explore,
    "width": Width,
    "equi": Equi,
    "wrate": Wrate,
    "hesrpt": HeSrpt,
    "srpt-k": SrptK,
    "waterfill": WaterFill,
    "flotilla": Flotilla,
    "rounds": Rounds,
    "elastic": Elastic,
    "milp": NodeMilp,
    "killable": Killable,
    "admit": Admit,
    "fallback": Fallback,
    "every": Every,
}


def describe(policy: Policy[Any]) -> dict[str, Any]:
    """The policy as JSON-able data, {"name": …, its fields}; `rebuild` makes it again.

    Raises:
        ValueError: a policy of one's own, which has no name here.
    """
    made: Any = type(policy)
    for name, kind in KNOWN.items():
        if made is kind:
            return {"name": name, **{f.name: _plain(getattr(policy, f.name)) for f in fields(kind) if f.init}}
    raise ValueError(f"{type(policy).__name__} is not one of {', '.join(KNOWN)}: to resume the study, give the policy again")


def rebuild(data: Mapping[str, Any]) -> Policy[Any]:
    """The policy that `describe` described; a name alone gives its defaults.

    Raises:
        ValueError: no such name, or fields that do not fit it.
    """
    fields: dict[str, Any] = {k: rebuild(v) if isinstance(v, Mapping) and "name" in v else v for k, v in data.items()}
    name = fields.pop("name", None)
    if name not in KNOWN:
        raise ValueError(f"no policy is named {name!r}; there are {', '.join(KNOWN)}")
    try:
        policy: Policy[Any] = KNOWN[name](**fields)
    except TypeError as error:
        raise ValueError(f"policy {name}: {error}") from error
    return policy


def parse(text: str, usual: Mapping[str, Any] = MappingProxyType({})) -> Policy[Any]:
    """The policy that a user names, as "equi", "explore(seconds=60, most=4)" or "every(seconds=600, policy=doubling)".

    Arguments are plain values, or policies named in the same way. `usual`: arguments by name, for each policy that has them,
    where the text leaves them open.

    Raises:
        ValueError: no such name, or arguments that do not fit it.
    """
    for name in KNOWN:
        text = text.replace(name, name.replace("-", "_"))
    try:
        return _made(ast.parse(text.strip(), mode="eval").body, usual)
    except SyntaxError as error:
        raise ValueError(f'a policy is named as "equi" or "explore(seconds=60, most=4)"; got {text!r}') from error


def _made(node: ast.expr, usual: Mapping[str, Any]) -> Policy[Any]:
    call = node if isinstance(node, ast.Call) else ast.Call(node, [], [])
    if not isinstance(call.func, ast.Name) or call.args or any(x.arg is None for x in call.keywords):
        raise ValueError(f"a policy is a name with named arguments; got {ast.unparse(node)}")
    given = {str(x.arg): _argument(x.value, usual) for x in call.keywords}
    name = call.func.id.replace("_", "-")
    has = {f.name for f in fields(KNOWN[name])} if name in KNOWN else set()
    return rebuild({"name": name, **{k: v for k, v in usual.items() if k in has}, **given})


def _argument(node: ast.expr, usual: Mapping[str, Any]) -> Any:
    if isinstance(node, (ast.Name, ast.Call)):
        return describe(_made(node, usual))
    try:
        return ast.literal_eval(node)
    except ValueError as error:
        raise ValueError(f"a policy's arguments are plain values, or policies; got {ast.unparse(node)}") from error


def _plain(value: Any) -> Any:
    """A policy within a policy, described."""
    return describe(value) if hasattr(value, "decide") else value
