"""Storing a study's recipe: as source if it has one, else as a pickle."""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Iterable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.engine.files import write_durably
from shoal.engine.own import make_folder
from shoal.engine.plain_files import (
    NotPlainFile,
    TooLarge,
    names_in,
    read_file,
    remove_file,
)
from shoal.study.code import manifest as manifests
from shoal.study.code.files import code_name, describe_recipe, sha256
from shoal.study.code.manifest import (
    FORMAT,
    PLACE,
    Manifest,
    Module,
    StoredRecipe,
    version_of,
)
from shoal.study.code.mark import MADE, TRUSTED, Key, make_key
from shoal.study.folder import Folder, StudyError, versions
from shoal.train.recipe import pickled
from shoal.train.recipe.stored.form import NotPlain
from shoal.train.recipe.stored.source import RecipeSource, source_of
from shoal.train.recipe.stored.texts import RECIPE, Text

if TYPE_CHECKING:
    from shoal.train.recipe.recipe import Recipe

_PICKLE = re.compile(r"[0-9a-f]{16}\.pkl")  # what Shoal stores a pickle as
FORMER = "recipe.pkl"  # in the study's folder: what earlier versions of Shoal stored


def save(folder: Folder, recipe: Recipe) -> dict[str, Any]:
    """Store the recipe, and mark it as the user's own, so that runs go on without its file.

    Returns what the journal's head says of it: `stored`, "source" or "pickle"; `why` there is no
    source; and `imports`, the hash of each module's text by its file.

    Raises:
        StudyError: it holds something that cannot be pickled, such as a lock: so it could not be
            sent to other processes.
    """
    place = folder.path / PLACE
    name = code_name(recipe)
    blob = _pickled(name, recipe)
    try:
        files, manifest = _as_source(place, name, source_of(recipe, name))
    except NotPlain as error:
        files, manifest = _as_pickle(name, recipe, blob, str(error))
    for path, content in files.items():
        _put(place / path, content, folder.path)
    _write(manifests.new(place, manifest))
    pickles = [name for name in names_in(place, folder.path) if _PICKLE.fullmatch(name)]
    for old in (folder.path / FORMER, *(place / name for name in pickles)):
        if old.name not in files:
            remove_file(old, folder.path)
    found: dict[str, Any] = {"stored": manifest.kind}
    if manifest.why is not None:
        found["why"] = manifest.why
    else:
        found["imports"] = {each.file: each.sha256 for each in manifest.modules}
    return found


def _pickled(name: str, recipe: Recipe) -> bytes:
    """The recipe as it is sent to other processes.

    Raises:
        StudyError: it cannot be.
    """
    try:
        return pickled.dumps(recipe)
    except Exception as error:
        raise StudyError(
            f"{name} cannot be stored: {pickled.culprit(recipe)} cannot be "
            f"pickled ({error}); make it where it is used, in data() or in a step, not on "
            "the recipe or beside its class"
        ) from error


def _put(target: Path, content: bytes, root: Path) -> None:
    with suppress(FileNotFoundError, NotPlainFile, TooLarge):
        if read_file(target, len(content), root) == content:
            return
    make_folder(target.parent, root)
    write_durably(target, content, root)


def _write(kept: StoredRecipe) -> None:
    """Write the manifest with the user's mark, unless it is there with it."""
    key = make_key()
    with suppress(StudyError):  # if it is damaged, it is replaced
        former = manifests.read(kept.place.parent)
        if former is not None and _stays(former, kept, key):
            return
    if key.secret is None:
        warnings.warn(
            f"the key that marks your own recipes, {key.file}, cannot be used: {key.why}. This "
            "study is stored without a mark, so that to resume it in another process needs "
            "--trust: mend this, or set XDG_STATE_HOME to a folder that stays",
            stacklevel=2,
        )
    make_folder(kept.place, kept.place.parent)
    kept.write(key, MADE)


def _stays(former: StoredRecipe, kept: StoredRecipe, key: Key) -> bool:
    """Whether the manifest that is there already says the same, and is the user's own."""
    standing = former.standing(key)
    if standing == TRUSTED:  # it has the marks of others, too
        return former.essence == kept.essence
    return standing == MADE and former.plain == kept.plain


def _as_source(place: Path, name: str, source: RecipeSource) -> tuple[dict[str, bytes], Manifest]:
    """The files of a recipe that is source, by path, and its manifest."""
    # What lies in the study's folder and is not in the manifest is never imported.
    here = place.resolve()
    roots = [each for each in source.roots if not Path(each).is_relative_to(here)]
    paths = _paths(source.texts)
    texts = {paths[text.name]: text.content for text in source.texts}
    own = version_of(texts)
    modules = [_module(text, f"{own}/{paths[text.name]}") for text in source.texts]
    manifest = Manifest(
        format=FORMAT,
        name=name,
        kind="source",
        recipe=source.form,
        modules=modules,
        folders=roots,
        environment=_environment(),
        versions=_versions(source.outside),
    )
    return {f"{own}/{path}": content for path, content in texts.items()}, manifest


def _module(text: Text, path: str) -> Module:
    module = Module(text.name, path, text.file, text.sha256, text.package)
    if text.part is None:
        return module
    return Module(
        text.name,
        path,
        text.file,
        text.sha256,
        wanted=list(text.part.wanted),
        values=dict(text.part.values),
        later=dict(text.part.later),
    )


def _paths(texts: Iterable[Text]) -> dict[str, str]:
    """Where each module's text lies, as it lay beside the others; by module."""
    found: dict[str, str] = {}
    for text in texts:
        place = text.name.replace(".", "/")
        short = place.removeprefix(RECIPE) + ".py"
        if text.package:
            found[text.name] = f"{place}/__init__.py"
        elif short in found.values():
            found[text.name] = f"{place}.py"
        else:
            found[text.name] = short
    return found


def _as_pickle(
    name: str, recipe: Recipe, blob: bytes, why: str
) -> tuple[dict[str, bytes], Manifest]:
    """The file of a recipe that has no source, and its manifest."""
    path = f"{sha256(blob)[:16]}.pkl"
    manifest = Manifest(
        format=FORMAT,
        name=name,
        kind="pickle",
        pickle=path,
        sha256=sha256(blob),
        why=why,
        about=describe_recipe(recipe),
        versions=_versions(()),
    )
    return {path: blob}, manifest


def _environment() -> dict[str, str]:
    return {name: os.environ[name] for name in pickled.ENVIRONMENT if name in os.environ}


def _versions(packages: Iterable[str]) -> dict[str, str]:
    """Versions of what decides the numbers, and of packages that the code imports."""
    found = versions()
    return {**{name: _version(name) for name in sorted(packages)}, **found}


def _version(package: str) -> str:
    """The package's version, as it says itself."""
    said = getattr(sys.modules.get(package), "__version__", None)
    if isinstance(said, str):
        return said
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"
