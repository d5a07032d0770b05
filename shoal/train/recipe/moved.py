"""Where classes and functions of Shoal were once, and where they are now.

A study's folder holds its recipe for years, and names what the recipe takes from Shoal by module.
Leave a line here for each class or function that moves and that a stored recipe can name.
"""

from collections.abc import Mapping

MOVED: Mapping[tuple[str, str], tuple[str, str]] = {
    ("shoal.train.function.talk", "TrialStopped"): ("shoal.train.function.session", "TrialStopped"),
    ("shoal.train.function.talk", "report"): ("shoal.train.function.session", "report"),
    ("shoal.train.function.talk", "restore"): ("shoal.train.function.session", "restore"),
    ("shoal.train.recipe.adapted", "Adapted"): ("shoal.train.recipe.adapter", "Adapted"),
    ("shoal.train.recipe.several.recipes", "Recipes"): ("shoal.train.recipe.recipes", "Recipes"),
    ("shoal.train.adapt.arguments", "Arguments"): (
        "shoal.train.adapt.training_arguments",
        "Arguments",
    ),
    ("shoal.train.adapt.module_recipe", "LightningRecipe"): (
        "shoal.train.adapt.lightning",
        "LightningRecipe",
    ),
    ("shoal.train.adapt.module_recipe", "ManualLightningRecipe"): (
        "shoal.train.adapt.lightning",
        "ManualLightningRecipe",
    ),
    ("shoal.train.adapt.terms", "GivenData"): ("shoal.train.adapt.lightning_data", "GivenData"),
    ("shoal.train.adapt.terms", "Terms"): ("shoal.train.adapt.lightning_data", "Terms"),
    ("shoal.train.columns", "DataError"): ("shoal.train.data.columns", "DataError"),
    ("shoal.train.data", "Data"): ("shoal.train.data.data", "Data"),
    ("shoal.train.data.arranged", "Arranged"): ("shoal.train.data.data", "Data"),
    ("shoal.train.data.arranged", "Arrangement"): ("shoal.train.data.arrangement", "Arrangement"),
    ("shoal.train.data.arranged", "FewRows"): ("shoal.train.data.data", "FewRows"),
    ("shoal.train.data.formats", "FromFiles"): ("shoal.train.data.data", "Data"),
    ("shoal.train.data.items.readers", "ItemReaders"): ("shoal.train.data.data", "Data"),
    ("shoal.train.data.joined", "DataByName"): ("shoal.train.data.data", "DataByName"),
    ("shoal.train.data.joined", "JoinedData"): ("shoal.train.data.data", "Data"),
    ("shoal.train.data.make.made", "MakesShards"): ("shoal.train.data.data", "Data"),
    ("shoal.train.data.placed.at_nodes", "AtNodes"): ("shoal.train.data.data", "Data"),
    ("shoal.train.data.dataset", "Items"): ("shoal.train.data.items", "Items"),
    ("shoal.train.dataset", "Items"): ("shoal.train.data.items", "Items"),
    ("shoal.train.folder", "Files"): ("shoal.train.data.npz", "Files"),
    ("shoal.train.recipe", "LRSchedule"): ("shoal.train.recipe.recipe", "LRSchedule"),
    ("shoal.train.recipe", "Recipe"): ("shoal.train.recipe.recipe", "Recipe"),
    ("shoal.train.recipe.arrays", "Arrays"): ("shoal.train.data.arrays", "Arrays"),
    ("shoal.train.recipe.columns", "DataError"): ("shoal.train.data.columns", "DataError"),
    ("shoal.train.recipe.data", "Data"): ("shoal.train.data.data", "Data"),
    ("shoal.train.recipe.dataset", "Items"): ("shoal.train.data.items", "Items"),
    ("shoal.train.recipe.npz", "Files"): ("shoal.train.data.npz", "Files"),
    ("shoal.train.recipe.pickled", "_prepare_to_import"): (
        "shoal.train.recipe.pickling",
        "_prepare_to_import",
    ),
    ("shoal.train.recipe.pickled", "_second"): ("shoal.train.recipe.pickling", "_second"),
    ("shoal.train.sources", "Arrays"): ("shoal.train.data.arrays", "Arrays"),
}

# Modules whose classes and functions have kept their names, and where these are now.
MODULES: Mapping[str, str] = {
    "shoal.train.data.draws": "shoal.train.data.arrangement",
    "shoal.train.data.folds": "shoal.train.data.arrangement",
    "shoal.train.data.items.collate": "shoal.train.data.collate",
    "shoal.train.data.items.dataset": "shoal.train.data.items",
    "shoal.train.data.items.form": "shoal.train.data.items",
    "shoal.train.data.items.loader": "shoal.train.data.loaders",
    "shoal.train.data.items.stored": "shoal.train.data.iterables",
    "shoal.train.data.make.deals": "shoal.train.data.arrangement",
    "shoal.train.data.make.shards": "shoal.train.data.shards",
    "shoal.train.data.make.sources": "shoal.train.data.formats",
    "shoal.train.data.mapped": "shoal.train.data.columns",
    "shoal.train.data.placed": "shoal.train.data.node_shards",
    "shoal.train.data.placed.cache": "shoal.train.data.url_cache",
    "shoal.train.data.placed.catalogue": "shoal.train.data.catalogue",
    "shoal.train.data.placed.constructor": "shoal.train.data.node_shards",
    "shoal.train.data.placed.forms": "shoal.train.data.formats",
    "shoal.train.data.placed.source": "shoal.train.data.node_shards",
    "shoal.train.data.placed.survey": "shoal.train.data.survey",
    "shoal.train.data.ragged": "shoal.train.data.columns",
    "shoal.train.data.read.arrow": "shoal.train.data.arrow",
    "shoal.train.data.read.encode": "shoal.train.data.tables",
    "shoal.train.data.read.files": "shoal.train.data.files",
    "shoal.train.data.read.images": "shoal.train.data.images",
    "shoal.train.data.read.lacking": "shoal.train.data.table_advice",
    "shoal.train.data.read.pictures": "shoal.train.data.images",
    "shoal.train.data.read.table": "shoal.train.data.parts",
    "shoal.train.data.read.table_files": "shoal.train.data.table_files",
    "shoal.train.data.read.tables": "shoal.train.data.tables",
    "shoal.train.data.read.tar": "shoal.train.data.tar",
}


def now_at(module: str, name: str) -> tuple[str, str]:
    """Module and name under which a stored recipe's (module, name) is to be found today.

    Of a name with dots (`Class.method`) its first part decides.
    """
    first, dot, rest = name.partition(".")
    module, first = MOVED.get((module, first), (MODULES.get(module, module), first))
    return module, first + dot + rest
