"""Where classes and functions of Shoal were once, and where they are now.

A study's folder holds its recipe for years, and names what the recipe takes from Shoal by module.
Leave a line here for each class or function that moves and that a stored recipe can name.
"""

from collections.abc import Mapping

MOVED: Mapping[tuple[str, str], tuple[str, str]] = {
    ("shoal.train.columns", "DataError"): ("shoal.train.data.columns", "DataError"),
    ("shoal.train.data", "Data"): ("shoal.train.data.data", "Data"),
    ("shoal.train.data.dataset", "Items"): ("shoal.train.data.items.dataset", "Items"),
    ("shoal.train.dataset", "Items"): ("shoal.train.data.items.dataset", "Items"),
    ("shoal.train.folder", "Files"): ("shoal.train.data.npz", "Files"),
    ("shoal.train.recipe", "LRSchedule"): ("shoal.train.recipe.recipe", "LRSchedule"),
    ("shoal.train.recipe", "Recipe"): ("shoal.train.recipe.recipe", "Recipe"),
    ("shoal.train.recipe.arrays", "Arrays"): ("shoal.train.data.arrays", "Arrays"),
    ("shoal.train.recipe.columns", "DataError"): (
        "shoal.train.data.columns",
        "DataError",
    ),
    ("shoal.train.recipe.data", "Data"): ("shoal.train.data.data", "Data"),
    ("shoal.train.recipe.dataset", "Items"): (
        "shoal.train.data.items.dataset",
        "Items",
    ),
    ("shoal.train.recipe.npz", "Files"): ("shoal.train.data.npz", "Files"),
    ("shoal.train.sources", "Arrays"): ("shoal.train.data.arrays", "Arrays"),
}


def now_at(module: str, name: str) -> tuple[str, str]:
    """Module and name under which a stored recipe's (module, name) is to be found today.

    Of a name with dots (`Class.method`) its first part decides.
    """
    first, dot, rest = name.partition(".")
    module, first = MOVED.get((module, first), (module, first))
    return module, first + dot + rest
