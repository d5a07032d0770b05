"""From what a user says of a search to a searcher that fits the study: its space, its metric, its recipe, its slots."""

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from shoal.core.ports import Policy, Searcher
from shoal.folder import StudyError
from shoal.policy import Pack, Packed
from shoal.wiring import Options, slots_here

if TYPE_CHECKING:
    from shoal.study import Study
    from shoal.train.data import Data
    from shoal.train.recipe import Recipe

PACKED = 8  # trials under way for each slot, of searchers that learn from those before


def default_searcher(
    space: Mapping[str, Any] | None, num_samples: int | None, max_epochs: int | None, max_concurrent: int | None, seed: int
) -> Searcher[Any]:
    """A grid where every dimension is one and no number of samples is asked for, else random samples."""
    from shoal.search import Grid, Random
    from shoal.search.space import dimensions, validated

    if max_epochs is None:
        raise StudyError("say how long to train: max_epochs= (or a max_epochs attribute of the recipe)")
    space = space or {}
    if num_samples is None and not any(hasattr(domain, "sample") for _, domain in dimensions(validated(space))):
        return Grid(space, max_epochs=max_epochs, max_concurrent=max_concurrent)
    if num_samples is None:
        raise StudyError("the search space is not only grids: say how many samples to draw, num_samples=")
    return Random(space, num_samples=num_samples, max_epochs=max_epochs, seed=seed, max_concurrent=max_concurrent)


def searcher_of(study: "Study", searcher: Searcher[Any] | str | None, **given: Any) -> Searcher[Any]:
    """The searcher, by name or as it is, with what it leaves open taken from the study and from what `optimize` was given."""
    from shoal.search import completed, nested, parse

    wide = {"widths": given.get("widths"), "priority": given.get("priority")}
    own = {"space": study.search_space, "metric": study.metric, "mode": study.mode, "seed": study.seed}

    def usual() -> Searcher[Any]:
        counts = given["num_samples"], given["max_epochs"], given["max_concurrent"]
        return completed(default_searcher(study.search_space, *counts, study.seed), wide, usual)

    found = parse(searcher) if isinstance(searcher, str) else searcher
    whole = usual() if found is None else completed(found, {**own, **given}, usual)
    unmet = {"widths": "makes trials of one slot", "priority": "makes trials of one priority"}
    unmet["max_concurrent"] = "says itself how many are under way"
    for name, does in unmet.items():
        if given.get(name) is not None and not any(hasattr(each, name) for each in nested(whole)):
            raise StudyError(
                f"{type(found).__name__} {does}, so {name}={given[name]!r} cannot be met: use Grid or Random"
                + (", ASHA or Optuna" if name == "max_concurrent" else "")
            )
    for each in nested(whole):
        _check_repeats(each)
    return whole


def _check_repeats(searcher: Any) -> None:
    """Trials of one configuration and seed are equal to the bit: more of them than there are unlike ones tell nothing new."""
    from shoal.search import PBT, Hyperband, Random
    from shoal.search.draws import Draws
    from shoal.search.halving import hyperband_brackets
    from shoal.search.space import dimensions

    draws, count = getattr(searcher, "_draws", None), getattr(searcher, "num_samples", None)
    if isinstance(searcher, Hyperband) and count is None and searcher.max_epochs is not None:
        count = sum(bracket[0].trials for bracket in hyperband_brackets(searcher.max_epochs, searcher.reduction_factor))
    if not isinstance(draws, Draws) or isinstance(searcher, PBT) or count is None:
        return
    if any(hasattr(domain, "sample") for _, domain in dimensions(draws.space)):
        return
    count *= draws.combinations if isinstance(searcher, Random) else 1
    if count > draws.combinations:
        warnings.warn(
            f"the space has {draws.combinations} configurations, all of grids: of {count} trials "
            f"{count - draws.combinations} repeat others exactly; ask for fewer samples, "
            "or draw something (loguniform, choice, a seed=randint(…))",
            stacklevel=4,
        )


def check_scores(searcher: Searcher[Any], recipe: "Recipe", data: "Data") -> None:
    """Raise StudyError where trials are to be compared and the recipe gives nothing to compare them by."""
    from shoal.search import compares, nested
    from shoal.train.recipe import overrides

    if data.validation and overrides(recipe, "validation_step"):
        return
    for each in nested(searcher):
        if compares(each):
            lack = "its data have no validation part" if not data.validation else "it has no validation_step"
            raise StudyError(
                f"{type(each).__name__} compares trials by their scores, and {type(recipe).__name__} gives none: {lack}; "
                "see docs/recipe.md, or search with grid or random"
            )


def per_slot(searcher: Searcher[Any], policy: Policy[Any], options: Options) -> Searcher[Any]:
    """The searcher, with some trials under way for each slot where the policy may pack; with more it would search blindly.

    Where packing is only considered (`Auto`), no more than make up a quarter of all, for later ones are to learn from them.
    """
    from shoal.policy import Auto
    from shoal.search import completed, nested

    policies = [*policy.candidates.values()] if isinstance(policy, Auto) else [policy]
    for each in policies:  # also what a policy goes by that is about another one (`Every`, `Admit`)
        policies += [inner] if (inner := getattr(each, "policy", None)) is not None else []
    most = max((each.most for each in policies if isinstance(each, (Pack, Packed))), default=1)
    count = min(most, PACKED)
    if isinstance(policy, Auto):
        slots = 1 if options.backend == "local" else options.slots or slots_here(options.threads)
        samples = next((n for each in nested(searcher) if (n := getattr(each, "num_samples", None)) is not None), 1)
        count = min(count, max(1, samples // (4 * slots))) if options.slots or not options.address else 1
    return completed(searcher, {"per_slot": count}, lambda: searcher)
