"""What commands take: their arguments and options, and how what a user typed becomes a recipe, a space, a configuration."""

import ast
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from shoal.study import Study
    from shoal.train.recipe import Recipe

File = Annotated[str, typer.Argument(metavar="FILE.py[:Recipe]", help="a Python file with a shoal.Recipe in it")]
Dir = Annotated[Path, typer.Argument(metavar="DIR", help="the study's folder")]
AsJson = Annotated[bool, typer.Option("--json", help="print figures as JSON")]
Storage = Annotated[Path | None, typer.Option(help="the study's folder [default: runs/<recipe>]")]
Space = Annotated[
    list[str] | None,
    typer.Option("--space", help="a dimension, e.g. 'lr=loguniform(1e-4,1e-1)' or 'width=grid([64,128])'; repeat"),
]
Samples = Annotated[int | None, typer.Option(help="configurations to draw")]
Epochs = Annotated[int | None, typer.Option(help="epochs of each trial")]
SearcherName = Annotated[
    str | None,
    typer.Option(help="grid, random, halving, hyperband, asha, pbt, median, patience, optuna; or as 'asha(grace_period=2)'"),
]
PolicyName = Annotated[str, typer.Option(help="auto, fifo, pack, hop, hop-packs …, auto:fifo,hop-lrw (docs/policy.md)")]
BackendName = Annotated[str, typer.Option(help="local (this process) or ray")]
Slots = Annotated[int | None, typer.Option(help="slots of the ray backend")]
Threads = Annotated[int, typer.Option(help="threads of each slot")]
Device = Annotated[str, typer.Option(help="of the local backend: auto, cpu, cuda, mps")]
ProfileFile = Annotated[Path | None, typer.Option(help="given speeds (TOML) instead of measured ones")]
Seed = Annotated[int, typer.Option(help="the study's seed")]
Timeout = Annotated[float | None, typer.Option(help="stop after so many seconds; run again to go on")]
Widths = Annotated[tuple[int, int] | None, typer.Option(help="fewest and most slots of a trial [default: 1 1]")]
Priority = Annotated[float | None, typer.Option(help="of a trial against others [default: 1]")]
Concurrent = Annotated[int | None, typer.Option(help="trials under way at once")]


def open_study(
    file: str, storage: Path | None, space: list[str] | None, metric: str | None, mode: str | None, seed: int
) -> "Study":
    """The study of a recipe's file; new, or going on in its folder."""
    from shoal.study import create_study

    recipe = recipe_of(file)
    return create_study(
        recipe,
        storage=storage,
        metric=metric,
        mode=mode,
        search_space=space_of(recipe, space),
        load_if_exists=True,
        seed=seed,
    )


def recipe_of(file: str) -> "Recipe":
    """An instance of the recipe that FILE.py[:NAME] names."""
    from shoal.folder import load_module, recipe_class

    path, name = file, None
    if ":" in file and not Path(file).exists():
        path, _, name = file.rpartition(":")
    made = recipe_class(load_module(Path(path)), name)
    try:
        return made()
    except TypeError as error:
        raise ValueError(
            f"{made.__name__}() raised TypeError: {error}; here a recipe is made without arguments: give defaults"
        ) from error


def space_of(recipe: "Recipe", given: list[str] | None) -> dict[str, Any] | None:
    """The recipe's search space, with the dimensions that were given put in place of its own, or added."""
    own, more = getattr(recipe, "search_space", None), parse_space(given)
    return {**(own or {}), **(more or {})} if own is not None or more is not None else None


def parse_space(given: list[str] | None) -> dict[str, Any] | None:
    """A search space from "name=domain(arguments)" or "name=value"; nothing is executed.

    Raises:
        ValueError: not of that form.
    """
    from shoal.search import space

    if not given:
        return None
    domains = {name: getattr(space, name) for name in ("uniform", "loguniform", "randint", "choice", "grid")}
    found: dict[str, Any] = {}
    for text in given:
        name, _, value = text.partition("=")
        try:
            node = ast.parse(value.strip(), mode="eval").body
            domain, parts = None, [node]
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                domain, parts = domains.get(node.func.id), node.args
            values = [ast.literal_eval(x) for x in (parts if domain else [node])]
        except (SyntaxError, TypeError, ValueError) as error:
            raise ValueError(
                f"--space takes name=domain(arguments), domains {', '.join(domains)}, text in quotes; got {text!r}"
            ) from error
        found[name] = domain(*values) if domain is not None else values[0]
    return found


def parse_config(given: list[str]) -> dict[str, Any]:
    """A configuration from "name=value": Python literals, and text where that is none.

    Raises:
        ValueError: not of that form.
    """
    found: dict[str, Any] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not (name.strip() and equals):
            raise ValueError(f"a configuration is given as NAME=VALUE; got {text!r}")
        try:
            found[name.strip()] = ast.literal_eval(value.strip())
        except (SyntaxError, ValueError):
            found[name.strip()] = value.strip()
    return found


def whole_numbers(text: str, option: str) -> list[int]:
    """Numbers with commas between them.

    Raises:
        ValueError: not of that form.
    """
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not all(part.isdecimal() and int(part) >= 1 for part in parts):
        raise ValueError(f"{option} takes whole numbers >= 1, as 1,2,4; got {text!r}")
    return [int(part) for part in parts]
