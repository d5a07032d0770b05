"""What to write in place of Optuna's samplers, pruners and distributions."""

from typing import Any

# The samplers that Shoal asks by a name of its own, by their classes.
NAMES = {"TPESampler": "tpe", "GPSampler": "gp", "RandomSampler": "random"}
# How others are called, without signs between letters; they keep notes in Optuna's storage.
KEEPERS = ("cmaes", "cmaessampler", "nsgaii", "nsgaiisampler", "nsgaiiisampler", "qmc")
NO_KEEPER = (
    "it keeps notes of its own in Optuna's storage, which a study that is rebuilt from its journal "
    "does not have: use \"optuna(sampler='tpe')\" or \"optuna(sampler='gp')\""
)
PRUNERS = {
    "MedianPruner": 'searcher="median"',
    "PatientPruner": 'searcher="patience(epochs=3)"',
}
OTHER_PRUNER = 'searcher="asha(stopping=True, max_epochs=9)" or searcher="median"'


def instead(given: Any) -> str | None:
    """What to write in place of an object of Optuna's, or its class; None: it is none."""
    kind = given if isinstance(given, type) else type(given)
    module, name = kind.__module__, kind.__name__
    if module.startswith("optuna.distributions"):
        return _domain(name, given)
    if module.startswith("optuna.pruners"):
        return f"for {name} write {PRUNERS.get(name, OTHER_PRUNER)}"
    if not module.startswith("optuna."):
        return None
    if name in NAMES:
        return (
            f'for {name}(…) write searcher=shoal.Optuna("{NAMES[name]}", options={{…}}): options '
            "takes the sampler's arguments, and the seed is the study's"
        )
    if name.lower() in KEEPERS:
        return f"{name} cannot be used: {NO_KEEPER}"
    return f'for {name}(…) write searcher=shoal.Optuna("{module}:{name}", options={{…}})'


def named_instead(name: str) -> str:
    """What to add to an error that no searcher has this name; perhaps nothing."""
    plain = name.lower().replace("-", "").replace("_", "").replace(" ", "")
    for kind, short in NAMES.items():
        if plain in (short, kind.lower()):
            return f": write \"optuna(sampler='{short}')\""
    if plain in (*KEEPERS, "cma"):
        return f". It is one of Optuna's, and {NO_KEEPER}"
    return ""


def _domain(name: str, given: Any) -> str:
    """What to write in place of a distribution."""
    low, high = getattr(given, "low", "low"), getattr(given, "high", "high")
    if name == "CategoricalDistribution":
        values = list(getattr(given, "choices", ("…",)))
        return f"for {name} write shoal.choice({values!r})"
    if getattr(given, "step", None) not in (None, 1):
        return f"for {name} with a step write shoal.choice([{low!r}, …, {high!r}])"
    if name.startswith("Int"):
        end = high + 1 if isinstance(high, int) else "high + 1"
        return f"for {name} write shoal.randint({low!r}, {end}), whose end is left out"
    kind = "loguniform" if getattr(given, "log", False) else "uniform"
    return f"for {name} write shoal.{kind}({low!r}, {high!r})"
