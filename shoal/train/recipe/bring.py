"""The recipe's data, made ready for the recipe: whoever trains gets it from here."""

from __future__ import annotations

from typing import Any

from shoal.train.data.columns import DataError
from shoal.train.data.data import Data
from shoal.train.recipe.recipe import Recipe, overrides


def bring(recipe: Recipe) -> Data:
    """What the recipe's `data` returns, as `Data`.

    Raises:
        DataError: it returns something else, or items of which no batch can be made.
    """
    data = _as_data(recipe, recipe.data())
    collate = getattr(recipe, "collate", None)
    if collate is not None:
        data.collate_with(collate)
    if data.collates and overrides(recipe, "features"):
        raise DataError(
            "features gets columns of equal shapes, and this data's batches are made by collate: "
            "call the featurizer in the step"
        )
    data.check()
    return data


def _as_data(recipe: Recipe, made: Any) -> Data:
    if isinstance(made, Data):
        return made
    raise DataError(
        f"{type(recipe).__name__}.data() must return shoal.Data; "
        f"got {type(made).__name__}: see shoal.Data.arrays(…)"
    )
