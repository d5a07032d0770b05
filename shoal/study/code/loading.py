"""Loading a study's recipe, if it is the user's own or the user trusts it."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import msgspec

from shoal.engine.files import write_durably
from shoal.engine.own import make_folder, why_foreign
from shoal.engine.plain_files import is_there
from shoal.study.code import manifest as manifests
from shoal.study.code.files import function_in, module_of, recipe_class, sha256
from shoal.study.code.manifest import (
    FILE,
    FORMAT,
    PLACE,
    Manifest,
    Module,
    StoredRecipe,
)
from shoal.study.code.mark import (
    MADE,
    TRUSTED,
    make_key,
    read_key,
)
from shoal.study.code.saving import FORMER
from shoal.study.folder import Folder, StudyError
from shoal.train.recipe import pickled
from shoal.train.recipe.several.parts import parts_of
from shoal.train.recipe.stored.form import restored
from shoal.train.recipe.stored.texts import OtherModule, ScriptPart, Text, preferred

if TYPE_CHECKING:
    from shoal.train.recipe.recipe import Recipe

GONE_ON = "going on with the code as it is now"


class NotOwn(StudyError):  # noqa: N818 - what the recipe is, as its reader sees it
    """The study's recipe is not known as the user's own, and the user did not trust it."""


def load(folder: Folder, head: Mapping[str, Any], trust: bool = False) -> Recipe:
    """The recipe as stored; with files as they are now that have changed since (with a warning).

    Nothing of it runs unless it is marked as this user's own. With `trust` it counts as such from
    now on. `head`: of the study's newest run.

    Raises:
        NotOwn: it is somebody else's.
        StudyError: the folder has no recipe, or it cannot be loaded.
    """
    kept = manifests.read(folder.path)
    standing: str | None = MADE
    if kept is None:
        kept = _former(folder, head, trust)
    else:
        standing = kept.standing(read_key())
        if standing is None and not trust:
            raise NotOwn(_refusal(folder, kept))
        if standing is None:
            kept = _trusted(kept)
    if standing != MADE:
        kept = _here_alone(kept)
    if kept.manifest.kind == "pickle":
        return _from_pickle(kept)
    return _from_source(kept)


# -- whose it is -------------------------------------------------------------------------------


def _refusal(folder: Folder, kept: StoredRecipe) -> str:
    """Why the recipe is not loaded, and what to do."""
    key = read_key()
    marked = f"it has no mark of your key {key.file}"
    if key.secret is None:
        marked = f"your key {key.file} cannot tell: {key.why}"
    files = list(islice(_files_of(kept.place), 9))
    look = f"Look at all in {kept.place}: {', '.join(files)}{' …' * (len(files) == 9)}"
    if kept.manifest.kind == "pickle":
        look = (
            f"It is a pickle ({kept.place / str(kept.manifest.pickle)}), which nobody can read "
            "beforehand: ask who made it"
        )
    return _rule(folder, marked, look)


def _files_of(place: Path) -> Iterator[str]:
    """The files below the folder, by their paths in it; links are not followed."""
    for where, folders, files in os.walk(place):
        folders.sort()
        yield from (os.path.relpath(os.path.join(where, name), place) for name in sorted(files))


def _rule(folder: Folder, marked: str, look: str) -> str:
    place = folder.path
    return (
        f"the recipe in {place} is not known as your own ({marked}), and to load it runs its "
        f"code. {look}. If you trust it, say so once: shoal resume {place} --trust (replay, "
        f"add, profile and harvest take it, too), or shoal.load_study({str(place)!r}, trust=True). "
        f"Or give the recipe's own file: shoal run FILE.py --storage {place}. Results need no "
        "recipe: shoal status, report, ui"
    )


def _former(folder: Folder, head: Mapping[str, Any], trust: bool) -> StoredRecipe:
    """The recipe as an earlier Shoal stored it, which marked nothing.

    Raises:
        StudyError: there is none.
        NotOwn: the user did not trust it.
    """
    saved = folder.path / FORMER
    if not is_there(saved):
        raise StudyError(
            f"{folder.path} has no {PLACE}/{FILE}: give the recipe's file again "
            f"(shoal run FILE.py --storage {folder.path})"
        )
    if not trust:
        raise NotOwn(
            _rule(
                folder,
                "an earlier Shoal stored it without a mark",
                f"It is a pickle ({saved}), which nobody can read beforehand: trust it if you "
                "made this study yourself",
            )
        )
    content = manifests.read_plain(saved, None, folder.path)
    path = f"{sha256(content)[:16]}.pkl"
    about = dict(head.get("recipe") or {})
    manifest = Manifest(
        format=FORMAT,
        name=str(about.get("name")),
        kind="pickle",
        pickle=path,
        sha256=sha256(content),
        why="stored by an earlier Shoal",
        about=about,
    )
    kept = manifests.new(folder.path / PLACE, manifest)
    with suppress(OSError):  # then the user has to trust it each time
        make_folder(kept.place, folder.path)
        write_durably(kept.place / path, content, folder.path)
        kept.write(make_key(), MADE)
    if not is_there(kept.place / path, folder.path):
        return StoredRecipe(folder.path, msgspec.structs.replace(manifest, pickle=FORMER), {})
    return kept


def _trusted(kept: StoredRecipe) -> StoredRecipe:
    """The recipe as it lies there, marked as trusted by this user."""
    changed = [
        msgspec.structs.replace(each, sha256=sha256(kept.read(each.path)))
        for each in kept.manifest.modules
    ]
    manifest = msgspec.structs.replace(kept.manifest, modules=changed)
    if manifest.kind == "pickle":
        content = kept.read(str(manifest.pickle), most=None)
        manifest = msgspec.structs.replace(manifest, sha256=sha256(content))
    found = kept
    if manifest != kept.manifest:
        found = manifests.new(kept.place, manifest)
    with suppress(OSError):  # then the user has to trust it each time
        found.write(make_key(), TRUSTED)
    return found


def _here_alone(kept: StoredRecipe) -> StoredRecipe:
    """The recipe without the files and folders elsewhere that it names.

    The user has looked at what is in the study's folder; nothing else is taken for it, nor what
    somebody puts there later.
    """
    modules = [
        msgspec.structs.replace(each, file=str(kept.place.resolve() / each.path))
        for each in kept.manifest.modules
    ]
    manifest = msgspec.structs.replace(kept.manifest, modules=modules, folders=[], about={})
    return replace(kept, manifest=manifest, is_complete=True)


# -- source ------------------------------------------------------------------------------------


def _from_source(kept: StoredRecipe) -> Recipe:
    """The recipe made of its modules' texts.

    Raises:
        StudyError: a text is not what was marked, or it cannot be imported.
    """
    stored = [_text(kept, module) for module in kept.manifest.modules]
    texts, changed = (stored, []) if kept.is_complete else _as_now(stored)
    for name in pickled.ENVIRONMENT:
        if name in kept.manifest.environment:
            os.environ.setdefault(name, kept.manifest.environment[name])
    for folder in kept.manifest.folders:
        if Path(folder).is_dir() and _is_own_folder(folder):
            pickled.import_from(folder)
    what = ", ".join(changed) or str(kept.place)
    try:
        with preferred(texts):
            recipe: Recipe = restored(kept.manifest.recipe)
    except OtherModule as error:
        raise StudyError(
            f"{error} than the study in {kept.place.parent} has: load the study in a process of "
            "its own"
        ) from error
    except StudyError:
        raise
    except ImportError as error:
        raise StudyError(
            f"the recipe in {what} cannot be loaded: {error}: put the modules that it imports "
            "where they were, or on PYTHONPATH"
        ) from error
    except Exception as error:
        raise StudyError(
            f"the recipe in {what} cannot be loaded: it raised {type(error).__name__}: {error}"
        ) from error
    return recipe


def _text(kept: StoredRecipe, module: Module) -> Text:
    """The module's text as it was stored.

    Raises:
        StudyError: it has been changed.
    """
    content = kept.read(module.path)
    if sha256(content) != module.sha256:
        raise StudyError(
            f"{kept.place / module.path} is not what was stored: somebody changed it since. Give "
            f"the recipe's own file again (shoal run FILE.py --storage {kept.place.parent})"
        )
    part = None
    if module.wanted is not None:
        part = ScriptPart(tuple(module.wanted), module.values, module.later)
    complete = kept.is_complete
    return Text(module.name, module.file, content, module.package, part, complete)


def _as_now(stored: list[Text]) -> tuple[list[Text], list[str]]:
    """The texts as the user's files have them now, and the files that have changed."""
    found = []
    changed = []
    for text in stored:
        now = _content_now(Path(text.file), text.sha256)
        if now is not None:
            changed.append(text.file)
            text = Text(text.name, text.file, now, text.package, text.part)
        found.append(text)
    if changed:
        what = f"{', '.join(changed)} {'has' if len(changed) == 1 else 'have'}"
        warnings.warn(f"{what} changed since the study began; {GONE_ON}", stacklevel=6)
    return found, changed


def _content_now(file: Path, stored: str | None) -> bytes | None:
    """The file's content, if it is another than what was stored, and nobody else's."""
    if stored is None or not file.is_file():
        return None
    with open(file, "rb") as opened:  # what is looked at is what was read
        found = os.fstat(opened.fileno())
        content = opened.read()
    if sha256(content) == stored:
        return None
    foreign = why_foreign(found)
    if foreign is not None:
        warnings.warn(
            f"{file} has changed since the study began, and {foreign}; going on with the code as "
            "it was stored",
            stacklevel=7,
        )
        return None
    return content


def _is_own_folder(folder: str) -> bool:
    """Whether nobody else can put modules into the folder; a warning says so otherwise.

    It was this user's when the study began. It may have been deleted, and made by somebody else.
    """
    place = str(Path(folder).resolve())
    if place in sys.path:
        return True
    foreign = why_foreign(os.stat(place))
    if foreign is None:
        return True
    warnings.warn(
        f"modules that the recipe's code asks for later are not imported from {place}, as "
        f"{foreign}; put it on PYTHONPATH if that is right",
        stacklevel=6,
    )
    return False


# -- pickles -----------------------------------------------------------------------------------


def _from_pickle(kept: StoredRecipe) -> Recipe:
    """The recipe out of its pickle, or with code from its file if that has changed.

    Raises:
        StudyError: it is not what was marked, or what its code imports is not there.
    """
    path = str(kept.manifest.pickle)
    content = kept.read(path, most=None)
    if sha256(content) != kept.manifest.sha256:
        raise StudyError(
            f"{kept.place / path} is not what was stored: somebody changed it since. Give the "
            f"recipe's own file again (shoal run FILE.py --storage {kept.place.parent})"
        )
    is_own = cache(_is_own_folder)  # one warning of each
    about = kept.manifest.about
    parts = about.get("parts", {})
    for each in (about, *parts.values()):
        file = Path(each.get("file") or "")
        if file.is_file() and is_own(str(file.parent)):
            pickled.import_from(file.parent)
    try:
        recipe: Recipe = pickled.loads(content, is_own)
    except ImportError as error:
        raise StudyError(
            f"the recipe in {kept.place / path} cannot be loaded: {error}: put the modules that "
            "it imports where they were, or on PYTHONPATH"
        ) from error
    own = parts_of(recipe)
    if own:
        vars(recipe)["parts"] = {
            name: _renewed(part, parts.get(name, {})) for name, part in own.items()
        }
    return _renewed(recipe, about)


def _renewed(recipe: Recipe, about: Mapping[str, Any]) -> Recipe:
    """The recipe as its file has it, if that has changed since (with a warning)."""
    file = Path(about.get("file") or "")
    content = _content_now(file, about.get("sha256"))
    if content is None:
        return recipe
    warnings.warn(
        f"{file} has changed since the study began; {GONE_ON}",
        stacklevel=6,
    )
    module = module_of(file, content)  # what was looked at, not what lies there by now
    name = str(about.get("name"))
    if function_in(recipe) is not None:
        _renew(module, name, lambda found: vars(recipe).update(function=found))
        return recipe
    if hasattr(recipe, "renew"):
        _renew(module, name, recipe.renew)
        return recipe
    fresh = recipe_class(module, name)
    renewed = fresh.__new__(fresh)
    vars(renewed).update(vars(recipe))
    return renewed


def _renew(module: ModuleType, name: str, take: Callable[[Any], Any]) -> None:
    """Give the module's class or function of that name, if there is one."""
    found = getattr(module, name, None)
    if callable(found):
        take(found)
