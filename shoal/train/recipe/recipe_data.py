"""The recipe's data, made ready for the recipe: whoever trains gets it from here."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch.utils.data import DataLoader, Dataset

from shoal.train.data.columns import DataError
from shoal.train.data.data import Data, join_data
from shoal.train.data.node_shards import Survey, current_survey, surveying
from shoal.train.recipe.hooks import carries_state
from shoal.train.recipe.recipe import Recipe, overrides
from shoal.train.recipe.recipes import Recipes


def bring(recipe: Recipe, survey: Survey | None = None) -> Data:
    """What the recipe's `data` returns, as `Data`.

    `survey`: who looks at shards that lie at nodes; None: as `surveying` says, else this process,
    which must hold them.

    Raises:
        DataError: it returns something else, or items of which no batch can be made; or nodes
            are to read it, and it does not lie at nodes.
    """
    survey = survey or current_survey()
    if isinstance(recipe, Recipes):
        parts = recipe.parts.items()
        return join_data({name: bring(part, survey) for name, part in parts})
    if overrides(recipe, "read"):
        survey = replace(survey, recipe=recipe)
    with surveying(survey):
        data = _as_data(recipe, recipe.data())
    if survey.holders is not None and data.catalogue is None:
        raise DataError(
            "address= (--address) names the nodes where shards lie (Data.shards), and this data "
            "is read here: leave it out"
        )
    collate = getattr(recipe, "collate", None)
    if collate is not None:
        data = data.collated(collate)
    adopt(recipe, data)
    if data.collates and overrides(recipe, "features"):
        raise DataError(
            "features gets columns of equal shapes, and this data's batches are made by collate: "
            "call the featurizer in the step"
        )
    if carries_state(recipe):
        _check_in_order(data)
    data.check()
    return data


def adopt(recipe: Recipe, data: Data) -> None:
    """Give the recipe the attributes that its data brings along, unless it sets them itself."""
    if isinstance(recipe, Recipes) and data.of:
        for name, part in recipe.parts.items():
            adopt(part, data.of[name])
        return
    arrangement = data.arrangement
    classes = type(recipe).__mro__
    owners = (recipe, *classes[: classes.index(Recipe)])
    for name, value in arrangement.defaults.items():
        if not any(name in vars(owner) for owner in owners):
            setattr(recipe, name, value)
    if arrangement.folds is not None:
        recipe.data_folds = arrangement.folds.count


def _check_in_order(data: Data) -> None:
    """Raise DataError unless a batch can continue the batch before."""
    arrangement = data.arrangement
    dealt = arrangement.draws is not None or arrangement.reshuffles
    if dealt or arrangement.buckets is not None:
        raise DataError(
            "a step that takes `state` needs the samples in order: leave weights, buckets and "
            "reshuffle out"
        )
    if data.is_shuffled:
        raise DataError(
            "a step that takes `state` needs the samples in order: use Data.sequence(…), or give "
            'order="sequential" where the data is made'
        )


def _as_data(recipe: Recipe, result: Any) -> Data:
    """The `Data` of what a recipe's `data` gave: that, or one or two DataLoaders or Datasets."""
    if isinstance(result, Data):
        return result
    train, valid = result, None
    if isinstance(result, tuple | list) and len(result) == 2:
        train, valid = result
    if isinstance(train, DataLoader):
        return Data.loader(train, valid)
    if isinstance(train, Dataset):
        return Data.dataset(train, valid)
    raise DataError(
        f"{type(recipe).__name__}.data() must return shoal.Data, a DataLoader or Dataset, or two "
        f"of them; got {type(result).__name__}: for arrays return shoal.Data.arrays(x, y)"
    )
