"""Policies by what a user says: a name, or "auto", which chooses among several."""

import ast
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import is_dataclass, replace
from functools import partial
from typing import Any

from shoal.backend.sim.lookahead import Ahead
from shoal.core.errors import StudyError, arguments_checked
from shoal.core.ports import Policy
from shoal.core.site import page
from shoal.core.visits import LEAST, ValidateEvery
from shoal.options import Options
from shoal.policy import Auto, Fifo, Pack
from shoal.policy.aim import MAKESPAN, Objective, check_objective
from shoal.policy.description import FILE, name_of, nested, parse
from shoal.policy.elastic.elastic import Elastic
from shoal.policy.hop.hop import Hop
from shoal.policy.registry import AUTO, CANDIDATES, POLICIES, SHOWN, suiting
from shoal.policy.width.convergence import rises
from shoal.search.optuna import instead
from shoal.search.space import Choice, GridDomain, dimensions
from shoal.simulate.policy_files import with_files
from shoal.study.setup import Setup, trains_itself
from shoal.train.data.catalogue import Catalogue
from shoal.train.data.data import Data
from shoal.train.recipe.shard import ShardRecipe

# The gain for which the current policy is left. Early figures are rougher than 2 %.
GAIN = 0.05
FORM = 'auto takes an objective alone, as in "auto(objective=mean_completion)"'


# -- the policy of a study -------------------------------------------------------------------------


@arguments_checked()
def study_policy(
    setup: Setup, policy: Policy[Any] | str, options: Options, data: Data, hop_cost_known: bool
) -> Policy[Any]:
    """The policy that the user gave, itself or by name, made to fit this study and its data.

    `hop_cost_known`: a profile says what a hop costs.

    Raises:
        StudyError: as of `policy_of`; or the policy cannot do what the data needs.
        ArgumentError: the arguments in the name do not fit the policy.
    """
    if trains_itself(setup):
        return function_policy(policy)
    fuse = options.fuse and not isinstance(setup.recipe, ShardRecipe)
    every = about_every(setup, options, data)
    hopping = needs_hops(data, hop_cost_known)
    chosen = policy_of(policy, fuse, setup.seed, every, hopping)
    for metric, mode in [(setup.metric, setup.mode), *setup.aims.values()]:
        check_foretells(chosen, metric, mode)
    if data.catalogue is not None:
        chosen = over_placed(chosen, data.catalogue, data.arrangement.reshuffles)
        check_place_of_data(chosen, data.catalogue, policy)
    if hopping and data.arrangement.reshuffles:
        chosen = with_barrier(chosen)
    return with_levels(chosen, setup.space)


def function_policy(policy: Policy[Any] | str) -> Policy[Any]:
    """The policy for trials that are functions: each has a slot for itself.

    Raises:
        StudyError: the policy packs trials, moves them between slots, or gives them several.
    """
    if policy == "auto":
        return policy_of("auto:fifo", fuse=False, seed=0)
    if policy == "fifo":
        return Fifo()
    if isinstance(policy, str) or name_of(policy) not in (None, "fifo"):
        raise StudyError(
            "a function has one slot for itself: it is neither packed nor moved nor resized, so "
            f'policy={policy!r} cannot be met: use "fifo", or leave policy= out'
        )
    return policy_of(policy, fuse=False, seed=0)


def policy_of(
    policy: Policy[Any] | str,
    fuse: bool,
    seed: int,
    every: ValidateEvery = ValidateEvery(),
    hopping: bool | None = None,
) -> Policy[Any]:
    """The policy of that name; "auto" simulates some policies and follows the quickest.

    `every`: when trials are evaluated, which takes time in such a simulation. `hopping`: "auto"
    considers only policies that hop, or none that hops; None: all. See `needs_hops`.

    Raises:
        StudyError: no policy has that name.
        ValueError: the arguments in the name do not fit the policy.
    """
    if not isinstance(policy, str):
        check_methods("policy", policy, ("start", "decide"))
        return policy
    if is_auto(policy):
        return auto(policy, lambda name: policy_of(name, fuse, seed), every, hopping)
    if "(" not in policy and policy != AUTO and policy not in POLICIES:
        raise StudyError(f"unknown policy {policy!r}; {known_names()}")
    return parse(policy, {"fuse": fuse}, seed, with_files)


@arguments_checked()
def check_policy(policy: Policy[Any] | str) -> None:
    """Refuse what is no policy. Whether it fits the data is seen once these are read.

    Raises:
        StudyError: no policy has that name.
        ArgumentError: the arguments in the name do not fit the policy.
    """
    policy_of(policy, fuse=False, seed=0)


def check_methods(kind: str, decider: Any, methods: tuple[str, ...]) -> None:
    """Raise StudyError unless the object has these methods, and is no class."""
    hint = instead(decider)
    if hint is not None:
        raise StudyError(f"Optuna's objects are none of Shoal's: {hint}")
    if isinstance(decider, type):
        raise StudyError(
            f"give an instance as {kind}: {decider.__name__}(…), not {decider.__name__}"
        )
    if not all(callable(getattr(decider, name, None)) for name in methods):
        raise StudyError(
            f"a {kind} is a name, or an object with {' and '.join(methods)}; got {decider!r}"
        )


def known_names() -> str:
    """The text that lists the names of policies, in lines that fit a terminal."""
    names = textwrap.fill(", ".join(SHOWN), 78, initial_indent="  ", subsequent_indent="  ")
    return f"{page('policy')} lists:\n{names}"


def about_every(setup: Setup, options: Options, data: Data) -> ValidateEvery:
    """When trials are evaluated, for a simulation: in parts of an epoch, also what is in steps."""
    every = options.every
    size = setup.recipe.batch_size
    if not every.steps or not isinstance(size, int):
        return every
    samples = every.steps * size * setup.recipe.accumulate_grad_batches
    return ValidateEvery(max(LEAST, samples / data.samples))


def check_foretells(policy: Policy[Any], metric: str | None, mode: str) -> None:
    """Raise StudyError if what trials have left is foretold from a metric that rises."""
    foretold = {getattr(each, "foretell", None) for each in nested(policy)}
    if metric is not None and mode == "max" and metric in foretold:
        raise StudyError(rises(metric))


# -- policies and where data lies ------------------------------------------------------------------


def hops(policy: Any) -> bool:
    """Whether each gang of the policy reads one shard, at one slot that holds it.

    A class that is not Shoal's counts as one that does: what its gangs read is checked as they
    start.
    """
    if isinstance(policy, Auto):
        return all(hops(each) for each in policy.candidates.values())
    inner = getattr(policy, "policy", None)
    if inner is not None:
        return hops(inner)
    of_user = not type(policy).__module__.startswith("shoal.")
    return of_user or isinstance(policy, Hop) or getattr(policy, "placed", False)


def needs_hops(data: Data, hop_cost_known: bool) -> bool | None:
    """Whether models must go to the data: True where some node lacks some of it.

    False where each slot has all data at hand anyway, so that hops are needless. None where that
    depends: data is read from files, and may be more than a machine's memory holds; or a profile
    says what a hop costs (`hop_cost_known`).
    """
    if data.catalogue is not None and not data.catalogue.is_whole_everywhere:
        return True
    if hop_cost_known or not (data.in_memory or data.catalogue is not None):
        return None
    return False


def check_place_of_data(policy: Policy[Any], catalogue: Catalogue, user_policy: object) -> None:
    """Raise StudyError if the policy needs a node with all of the data, and there is none."""
    if hops(policy) or catalogue.is_whole:
        return
    name = user_policy if isinstance(user_policy, str) else type(user_policy).__name__
    raise StudyError(
        f"policy {name} reads the whole data set at each slot, and no node holds all "
        f"{len(catalogue.train)} shards: use one that moves models from shard to shard (hop, "
        "hop-packs, hop-quick4, hybrid, elastic, or auto), or give one node all shards"
    )


def over_placed(policy: Any, catalogue: Catalogue, reshuffles: bool) -> Any:
    """The policy; if it is `elastic`, its trials read at each slot what lies there.

    Where some node holds all of the data, slots are there only, and nothing changes.

    Raises:
        StudyError: samples are dealt anew in each epoch, which `elastic` does not wait for.
    """
    if catalogue.is_whole:
        return policy
    if isinstance(policy, Elastic):
        if reshuffles:
            raise StudyError(
                "elastic begins an epoch of a trial without waiting for the others, and data that "
                "is dealt anew between nodes needs that: use hop or hybrid, or leave out reshuffle"
            )
        return replace(policy, placed=True)
    inner = getattr(policy, "policy", None)
    if isinstance(inner, Elastic) and is_dataclass(policy):
        return replace(policy, policy=over_placed(inner, catalogue, reshuffles))  # type: ignore[type-var]
    return policy


def with_barrier(policy: Any) -> Any:
    """The policy; where trials hop, none begins an epoch before all others ended the one before."""
    if isinstance(policy, Hop):
        return replace(policy, barrier=True)
    if isinstance(policy, Auto):
        candidates = {name: with_barrier(each) for name, each in policy.candidates.items()}
        return replace(policy, candidates=candidates)
    inner = getattr(policy, "policy", None)
    if inner is not None and is_dataclass(policy):
        return replace(policy, policy=with_barrier(inner))  # type: ignore[type-var]
    return policy


def with_levels(policy: Policy[Any], space: Mapping[str, Any] | None) -> Policy[Any]:
    """The policy; one that packs by nearness counts distances in the levels of this space."""
    if not isinstance(policy, Pack) or policy.grouping != "nearest" or policy.levels:
        return policy
    listed = {
        name: list(domain.values)
        for name, domain in dimensions(space or {})
        if isinstance(domain, (Choice, GridDomain))
    }
    return replace(policy, levels=listed)


# -- the automatic choice --------------------------------------------------------------------------


def is_auto(policy: object) -> bool:
    """Whether it is "auto", perhaps with arguments, or with names of policies to choose among."""
    if not isinstance(policy, str):
        return False
    before, _, _ = policy.partition(":")
    name, _, _ = before.partition("(")
    return name.strip() == AUTO


def auto(
    policy: str,
    make: Callable[[str], Policy[Any]],
    every: ValidateEvery = ValidateEvery(),
    hopping: bool | None = None,
) -> Auto:
    """The automatic choice among the usual candidates, or those named in "auto:fifo,hop-lrw".

    Arguments precede the names: "auto(objective=mean_completion):fifo,hop-lrw".

    `make`: returns the policy of a name. `every`: when trials are evaluated. `hopping`: what
    `needs_hops` says. Policies that need all of the data at a slot are left out, if others remain;
    or policies that hop, unless the user named them.

    Raises:
        StudyError: no names follow the colon, or "auto" is among them.
        ValueError: an argument is not known, or has another value than it may have.
    """
    objective = objective_of(policy)
    names = candidate_names(policy)
    if not names or AUTO in names:
        raise StudyError(f'say what to choose among, as in "auto:fifo,hop-lrw"; got {policy!r}')
    if any(re.search(FILE, name) for name in names):
        raise ValueError(
            "auto compares policies by its own objective, so that none of its candidates takes one "
            f"from a file: give elastic(objective=FILE.py:NAME) alone; got {policy!r}"
        )
    foresee = Ahead(every=every, objective=objective)
    candidates = {name: make(name) for name in names}
    if hopping:
        names = tuple(name for name in names if hops(candidates[name])) or names
    elif hopping is False and ":" not in policy:
        names = tuple(name for name in names if not POLICIES[name].hops)
    candidates = {name: candidates[name] for name in names}
    return Auto(
        candidates,
        foresee,
        GAIN,
        partial(suiting, names),
        foresee.price,
        objective=objective,
        simple=_simple(policy, names),
    )


def _simple(policy: str, names: Sequence[str]) -> str | None:
    """The candidate that trains one trial a slot, whole data or hop as the data demands.

    None where the user said what to choose among.
    """
    if ":" in policy:
        return None
    return next((name for name in ("fifo", "hop") if name in names), None)


def candidate_names(policy: str) -> tuple[str, ...]:
    """The candidates' names in "auto" or "auto:…"."""
    if ":" not in policy:
        return CANDIDATES
    _, _, listed = policy.partition(":")
    return tuple(dict.fromkeys(_split(listed)))


def objective_of(policy: str) -> Objective:
    """The objective in "auto(objective=…)", a word with or without quotes; by default makespan.

    Raises:
        ValueError: another argument, or no such objective.
    """
    before, _, _ = policy.partition(":")
    try:
        tree = ast.parse(before.strip(), mode="eval").body
    except SyntaxError:
        tree = None
    arguments: dict[str | None, object] = {}
    if isinstance(tree, ast.Call) and not tree.args:
        arguments = {each.arg: _word(each.value) for each in tree.keywords}
    elif not isinstance(tree, ast.Name):
        raise ValueError(f"{FORM}; got {policy!r}")
    objective: Any = arguments.pop("objective", MAKESPAN)
    if arguments:
        raise ValueError(f"{FORM}; got {policy!r}")
    check_objective(objective)
    return objective  # type: ignore[no-any-return]


def _word(value: ast.expr) -> object:
    """The value of an argument: a word, or a constant."""
    if isinstance(value, ast.Name):
        return value.id
    if isinstance(value, ast.Constant):
        return value.value
    return ast.unparse(value)


def _split(listed: str) -> list[str]:
    """The parts of a text between commas; a comma within parentheses does not count."""
    names = [""]
    depth = 0
    for character in listed:
        if character == "," and depth == 0:
            names.append("")
            continue
        depth += (character == "(") - (character == ")")
        names[-1] += character
    return [name.strip() for name in names if name.strip()]


def describe(policy: str) -> dict[str, Any]:
    """The automatic choice as a journal's head has it; `policy_text` gives the name back."""
    described: dict[str, Any] = {"name": AUTO}
    objective = objective_of(policy)
    if objective != MAKESPAN:
        described["objective"] = objective
    if ":" in policy:
        described["candidates"] = list(candidate_names(policy))
    return described


def policy_text(data: Mapping[str, Any]) -> str:
    """What the user said, as `describe` wrote it down."""
    text = AUTO
    if "objective" in data:
        text += f"(objective={data['objective']})"
    if "candidates" in data:
        text += f":{','.join(data['candidates'])}"
    return text
