"""The recipe in a study's folder: stored as source, marked as its user's own, loaded again.

`recipe/recipe.json` is the manifest: the recipe's class or function and its attributes as plain
data, and the user's own modules that it needs, whose texts lie beside it. What has no source (of a
notebook, a lambda, attributes that are arrays) is a pickle under the same mark. Nothing of either
runs unless the user's key has marked the manifest (shoal/study/code/mark.py), or the user says that
it is trusted. Why it is source: docs/decisions/0031, 0082.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from importlib.metadata import PackageNotFoundError, version
from itertools import islice
from pathlib import Path, PurePosixPath
from types import ModuleType
from typing import TYPE_CHECKING, Any

import msgspec

from shoal.core.errors import StudyError, warn
from shoal.engine.files import write_durably
from shoal.engine.ownership import make_folder, why_foreign
from shoal.engine.plain_files import (
    NotPlainFile,
    TooLarge,
    is_there,
    names_in,
    read_file,
    remove_file,
)
from shoal.study.code.mark import MADE, TRUSTED, Key, make_key, read_key
from shoal.study.code.recipe_file import (
    code_name,
    describe_recipe,
    function_in,
    is_adapted,
    module_of,
    parts_of,
    recipe_class,
    sha256,
)
from shoal.study.folder import Folder, versions
from shoal.train.recipe.pickling import ENVIRONMENT, culprit, dumps, import_from, loads
from shoal.train.recipe.plain_form import NotPlain, restored
from shoal.train.recipe.recipe_source import RecipeSource, source_of
from shoal.train.recipe.text_modules import RECIPE, OtherModule, ScriptPart, Text, preferred

if TYPE_CHECKING:
    from shoal.train.recipe.recipe import Recipe

FORMAT = 1
PLACE = "recipe"
FILE = "recipe.json"
FORMER = "recipe.pkl"  # in the study's folder: what earlier versions of Shoal stored
LARGEST_PICKLE = 2**36  # bytes
LARGEST_TEXT = 64 * 2**20  # bytes of recipe.json, and of each module's text
_PICKLE = re.compile(r"[0-9a-f]{16}\.pkl")  # what Shoal stores a pickle as
GONE_ON = "going on with the code as it is now"


class NotOwn(StudyError):  # noqa: N818 - what the recipe is, as its reader sees it
    """The study's recipe is not known as the user's own, and the user did not trust it."""


class Module(msgspec.Struct, frozen=True):
    """A module whose text is stored. `path`: in the folder `recipe`; `file`: where it was."""

    name: str
    path: str
    file: str
    sha256: str
    package: bool = False
    # Of a script: what of it is needed.
    wanted: list[str] | None = None
    values: dict[str, Any] = {}
    later: dict[str, Any] = {}


class Manifest(msgspec.Struct, frozen=True):
    """What a stored recipe consists of: source, or a pickle."""

    format: int
    name: str
    kind: str  # "source" or "pickle"
    recipe: Any = None  # as a form
    modules: list[Module] = []
    pickle: str | None = None  # the file's path
    sha256: str | None = None  # of the pickle
    why: str | None = None  # there is no source
    about: dict[str, Any] = {}  # of a pickle: its file and that file's hash, as in the head
    folders: list[str] = []
    environment: dict[str, str] = {}
    versions: dict[str, str] = {}


@dataclass(frozen=True, slots=True)
class StoredRecipe:
    """A manifest as it was read or is to be written. `plain`: as JSON has it.

    `is_complete`: its packages have no other modules than those that it names.
    """

    place: Path
    manifest: Manifest
    plain: dict[str, Any]
    marks: dict[str, str] = field(default_factory=dict)
    is_complete: bool = False

    @property
    def content(self) -> bytes:
        """The bytes that are marked: everything that decides which code is loaded."""
        return json.dumps(self.plain).encode()

    @property
    def essence(self) -> tuple[Any, ...]:
        """What tells one stored recipe's code from another's, wherever its files were."""
        texts = [msgspec.structs.replace(m, file="") for m in self.manifest.modules]
        return self.manifest.recipe, texts, self.manifest.sha256

    def standing(self, key: Key) -> str | None:
        """How the recipe has become the own of the key's owner; None if it has not."""
        return key.standing(self.content, self.marks)

    def write(self, key: Key, how: str) -> None:
        """Write the manifest, with the mark of this key beside those of others."""
        marks = dict(self.marks)
        if key.secret is not None:
            marks[key.name] = key.mark(self.content, how)
        text = json.dumps({"recipe": self.plain, "marks": marks}, indent=1)
        write_durably(self.place / FILE, text.encode(), self.place.parent)

    def read(self, path: str, most: int | None = LARGEST_TEXT) -> bytes:
        """The content of a file beside the manifest, of `most` bytes.

        Raises:
            StudyError: it is not there, is no plain file of this folder, or is larger.
        """
        named = PurePosixPath(path)
        outside = named.is_absolute() or ".." in named.parts or "\\" in path
        if outside or not named.parts or ":" in path:
            raise StudyError(
                f"{self.place / FILE} names the file {path!r}: only files below "
                f"{self.place} can be part of a recipe; do not use this study's recipe"
            )
        return read_plain(self.place / path, most, self.place.parent)

    def read_as_stored(
        self, path: str, hashed: str | None, most: int | None = LARGEST_TEXT
    ) -> bytes:
        """The content of a file beside the manifest, which must have this hash.

        Raises:
            StudyError: it has another one.
        """
        content = self.read(path, most)
        if sha256(content) != hashed:
            raise StudyError(
                f"{self.place / path} is not what was stored: somebody changed it since. Give the "
                f"recipe's own file again (shoal run FILE.py --storage {self.place.parent})"
            )
        return content


def new(place: Path, manifest: Manifest) -> StoredRecipe:
    """A manifest that is to be written there; no marks are taken over."""
    return StoredRecipe(place, manifest, msgspec.to_builtins(manifest))


def read_plain(file: Path, most: int | None, root: Path) -> bytes:
    """The content of a file of the study in the folder `root`.

    Raises:
        StudyError: it is not there, is no plain file, or is larger.
    """
    try:
        return read_file(file, LARGEST_PICKLE if most is None else most, root)
    except OSError as error:
        raise StudyError(f"{file} is part of the recipe: {error}") from error


def read_manifest(folder: Path) -> StoredRecipe | None:
    """The manifest of the study in that folder; None if there is none.

    Raises:
        StudyError: it is damaged, or of a later Shoal.
    """
    place = folder / PLACE
    if not is_there(place / FILE, folder):
        return None
    content = read_plain(place / FILE, LARGEST_TEXT, folder)
    try:
        whole = json.loads(content)
        manifest = msgspec.convert(whole["recipe"], Manifest)
        marks = msgspec.convert(whole["marks"], dict[str, str])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise StudyError(
            f"{place / FILE} is damaged ({type(error).__name__}: {error}): give the recipe's file "
            f"again (shoal run FILE.py --storage {folder})"
        ) from error
    if manifest.format > FORMAT or manifest.kind not in ("source", "pickle"):
        raise StudyError(
            f"{place / FILE} is of a later Shoal (format {manifest.format}, kind "
            f"{manifest.kind!r}): use that one"
        )
    return StoredRecipe(place, manifest, whole["recipe"], marks)


# -- storing -----------------------------------------------------------------------------------


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
    try:
        blob = dumps(recipe)  # as it is sent to other processes
    except Exception as error:
        raise StudyError(
            f"{name} cannot be stored: {culprit(recipe)} cannot be "
            f"pickled ({error}); make it where it is used, in data() or in a step, not on "
            "the recipe or beside its class"
        ) from error
    try:
        files, manifest = _as_source(place, name, source_of(recipe, name))
    except NotPlain as error:
        files, manifest = _as_pickle(name, recipe, blob, str(error))
    for path, content in files.items():
        _put(place / path, content, folder.path)
    _write(new(place, manifest))
    pickles = [name for name in names_in(place, folder.path) if _PICKLE.fullmatch(name)]
    for old in (folder.path / FORMER, *(place / name for name in pickles)):
        if old.name not in files:
            remove_file(old, folder.path)
    described: dict[str, Any] = {"stored": manifest.kind}
    if manifest.why is not None:
        described["why"] = manifest.why
    else:
        described["imports"] = {each.file: each.sha256 for each in manifest.modules}
    return described


def _put(target: Path, content: bytes, root: Path) -> None:
    with suppress(FileNotFoundError, NotPlainFile, TooLarge):
        if read_file(target, len(content), root) == content:
            return
    make_folder(target.parent, root)
    write_durably(target, content, root)


def _write(stored: StoredRecipe) -> None:
    """Write the manifest with the user's mark, unless it is there with it."""
    key = make_key()
    with suppress(StudyError):  # if it is damaged, it is replaced
        former = read_manifest(stored.place.parent)
        standing = None if former is None else former.standing(key)
        if former is not None and standing == TRUSTED and former.essence == stored.essence:
            return  # it has the marks of others, too
        if former is not None and standing == MADE and former.plain == stored.plain:
            return
    if key.secret is None:
        warn(
            f"the key that marks your own recipes, {key.file}, cannot be used: {key.why}. This "
            "study is stored without a mark, so that to resume it in another process needs "
            "--trust: mend this, or set XDG_STATE_HOME to a folder that stays"
        )
    make_folder(stored.place, stored.place.parent)
    stored.write(key, MADE)


def _as_source(place: Path, name: str, source: RecipeSource) -> tuple[dict[str, bytes], Manifest]:
    """The files of a recipe that is source, by path, and its manifest."""
    # What lies in the study's folder and is not in the manifest is never imported.
    here = place.resolve()
    roots = [each for each in source.roots if not Path(each).is_relative_to(here)]
    paths = _paths(source.texts)
    texts = {paths[text.name]: text.content for text in source.texts}
    listed = "".join(f"{path} {sha256(content)}\n" for path, content in texts.items())
    folder = sha256(listed.encode())[:16]
    modules = [_module(text, f"{folder}/{paths[text.name]}") for text in source.texts]
    manifest = Manifest(
        format=FORMAT,
        name=name,
        kind="source",
        recipe=source.form,
        modules=modules,
        folders=roots,
        environment={name: os.environ[name] for name in ENVIRONMENT if name in os.environ},
        versions=_versions(source.outside),
    )
    return {f"{folder}/{path}": content for path, content in texts.items()}, manifest


def _module(text: Text, path: str) -> Module:
    module = Module(text.name, path, text.file, text.sha256, text.package)
    if text.part is None:
        return module
    return msgspec.structs.replace(
        module,
        wanted=list(text.part.wanted),
        values=dict(text.part.values),
        later=dict(text.part.later),
    )


def _paths(texts: Iterable[Text]) -> dict[str, str]:
    """The path of each module's text, by module; modules lie beside each other as they did."""
    paths: dict[str, str] = {}
    for text in texts:
        place = text.name.replace(".", "/")
        short = place.removeprefix(RECIPE) + ".py"
        if text.package:
            paths[text.name] = f"{place}/__init__.py"
        elif short in paths.values():
            paths[text.name] = f"{place}.py"
        else:
            paths[text.name] = short
    return paths


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


def _versions(packages: Iterable[str]) -> dict[str, str]:
    """Versions of what decides the numbers, and of packages that the code imports."""
    return {**{name: _version(name) for name in sorted(packages)}, **versions()}


def _version(package: str) -> str:
    """The package's version, as it says itself."""
    stated = getattr(sys.modules.get(package), "__version__", None)
    if isinstance(stated, str):
        return stated
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"


# -- loading -----------------------------------------------------------------------------------


class UnreadRecipe:
    """A recipe that is loaded when it is first asked for: to look at results needs none.

    `head`: of the study's newest run. `load`: loads the recipe.
    """

    def __init__(self, head: Mapping[str, Any], load: Callable[[], Recipe]) -> None:
        self._head = head
        self._load = load

    @cached_property
    def recipe(self) -> Recipe:
        """The recipe, loaded."""
        return self._load()

    @property
    def names(self) -> tuple[str, ...]:
        """The names of several recipes, as the journal has them."""
        return tuple(self._head.get("recipe", {}).get("parts", ()))

    @property
    def aims(self) -> Mapping[Any, tuple[str, str]]:
        """Metric and mode of each of several recipes, where they have unlike ones."""
        aims = self._head.get("aims") or {}
        return {name: (str(metric), str(mode)) for name, (metric, mode) in aims.items()}


def load(folder: Folder, head: Mapping[str, Any], trust: bool = False) -> Recipe:
    """The recipe as stored; with files as they are now that have changed since (with a warning).

    Nothing of it runs unless it is marked as this user's own. With `trust` it counts as such from
    now on. `head`: of the study's newest run.

    Raises:
        NotOwn: it is somebody else's.
        StudyError: the folder has no recipe, or it cannot be loaded.
    """
    stored = read_manifest(folder.path)
    standing: str | None = MADE
    if stored is None:
        stored = _former_recipe(folder, head, trust)
    else:
        standing = stored.standing(read_key())
        if standing is None and not trust:
            raise NotOwn(_refusal(folder, stored))
        if standing is None:
            stored = _trusted(stored)
    if standing != MADE:
        stored = _without_outside(stored)
    if stored.manifest.kind == "pickle":
        return _from_pickle(stored)
    return _from_source(stored)


# -- whose it is -------------------------------------------------------------------------------


def _refusal(folder: Folder, stored: StoredRecipe) -> str:
    """Why the recipe is not loaded, and what to do."""
    key = read_key()
    marked = f"it has no mark of your key {key.file}"
    if key.secret is None:
        marked = f"your key {key.file} cannot tell: {key.why}"
    files = list(islice(_files_of(stored.place), 9))
    look = f"Look at all in {stored.place}: {', '.join(files)}{' …' * (len(files) == 9)}"
    if stored.manifest.kind == "pickle":
        look = (
            f"It is a pickle ({stored.place / str(stored.manifest.pickle)}), which nobody can read "
            "beforehand: ask who made it"
        )
    return _refusal_text(folder, marked, look)


def _files_of(place: Path) -> Iterator[str]:
    """The files below the folder, by their paths in it; links are not followed."""
    for where, folders, files in os.walk(place):
        folders.sort()
        yield from (os.path.relpath(os.path.join(where, name), place) for name in sorted(files))


def _refusal_text(folder: Folder, marked: str, look: str) -> str:
    place = folder.path
    return (
        f"the recipe in {place} is not known as your own ({marked}), and to load it runs its "
        f"code. {look}. If you trust it, say so once: shoal resume {place} --trust (replay, "
        f"add, profile and harvest take it, too), or shoal.load_study({str(place)!r}, trust=True). "
        f"Or give the recipe's own file: shoal run FILE.py --storage {place}. Results need no "
        "recipe: shoal status, report, ui"
    )


def _trusted(stored: StoredRecipe) -> StoredRecipe:
    """The recipe as it lies there, marked as trusted by this user."""
    changed = [
        msgspec.structs.replace(each, sha256=sha256(stored.read(each.path)))
        for each in stored.manifest.modules
    ]
    manifest = msgspec.structs.replace(stored.manifest, modules=changed)
    if manifest.kind == "pickle":
        content = stored.read(str(manifest.pickle), most=None)
        manifest = msgspec.structs.replace(manifest, sha256=sha256(content))
    trusted = stored
    if manifest != stored.manifest:
        trusted = new(stored.place, manifest)
    with suppress(OSError):  # then the user has to trust it each time
        trusted.write(make_key(), TRUSTED)
    return trusted


def _without_outside(stored: StoredRecipe) -> StoredRecipe:
    """The recipe without the files and folders elsewhere that it names.

    The user has looked at what is in the study's folder; nothing else is taken for it, nor what
    somebody puts there later.
    """
    modules = [
        msgspec.structs.replace(each, file=str(stored.place.resolve() / each.path))
        for each in stored.manifest.modules
    ]
    manifest = msgspec.structs.replace(stored.manifest, modules=modules, folders=[], about={})
    return replace(stored, manifest=manifest, is_complete=True)


# -- source ------------------------------------------------------------------------------------


def _from_source(stored: StoredRecipe) -> Recipe:
    """The recipe made of its modules' texts.

    Raises:
        StudyError: a text is not what was marked, or it cannot be imported.
    """
    texts = [_text(stored, module) for module in stored.manifest.modules]
    changed: list[str] = []
    if not stored.is_complete:
        texts, changed = _current_texts(texts)
    for name in ENVIRONMENT:
        if name in stored.manifest.environment:
            os.environ.setdefault(name, stored.manifest.environment[name])
    for folder in stored.manifest.folders:
        if Path(folder).is_dir() and _is_own_folder(folder):
            import_from(folder)
    where = ", ".join(changed) or str(stored.place)
    try:
        with preferred(texts):
            recipe: Recipe = restored(stored.manifest.recipe)
    except OtherModule as error:
        raise StudyError(
            f"{error} than the study in {stored.place.parent} has: load the study in a process of "
            "its own"
        ) from error
    except StudyError:
        raise
    except ImportError as error:
        raise StudyError(
            f"the recipe in {where} cannot be loaded: {error}: put the modules that it imports "
            "where they were, or on PYTHONPATH"
        ) from error
    except Exception as error:
        raise StudyError(
            f"the recipe in {where} cannot be loaded: it raised {type(error).__name__}: {error}"
        ) from error
    return recipe


def _text(stored: StoredRecipe, module: Module) -> Text:
    """The module's text as it was stored.

    Raises:
        StudyError: it has been changed.
    """
    content = stored.read_as_stored(module.path, module.sha256)
    part = None
    if module.wanted is not None:
        part = ScriptPart(tuple(module.wanted), module.values, module.later)
    complete = stored.is_complete
    return Text(module.name, module.file, content, module.package, part, complete)


def _current_texts(texts: list[Text]) -> tuple[list[Text], list[str]]:
    """The texts as the user's files have them now, and the files that have changed."""
    current = []
    changed = []
    for text in texts:
        now = _changed_content(Path(text.file), text.sha256)
        if now is not None:
            changed.append(text.file)
            text = Text(text.name, text.file, now, text.package, text.part)
        current.append(text)
    if changed:
        files = f"{', '.join(changed)} {'has' if len(changed) == 1 else 'have'}"
        warn(f"{files} changed since the study began; {GONE_ON}")
    return current, changed


def _changed_content(file: Path, hashed: str | None) -> bytes | None:
    """The file's content, if it is another than what was stored, and nobody else's."""
    if hashed is None or not file.is_file():
        return None
    with open(file, "rb") as opened:  # what is looked at is what was read
        status = os.fstat(opened.fileno())
        content = opened.read()
    if sha256(content) == hashed:
        return None
    foreign = why_foreign(status)
    if foreign is not None:
        warn(
            f"{file} has changed since the study began, and {foreign}; going on with the code as "
            "it was stored"
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
    warn(
        f"modules that the recipe's code asks for later are not imported from {place}, as "
        f"{foreign}; put it on PYTHONPATH if that is right"
    )
    return False


# -- pickles -----------------------------------------------------------------------------------


def _from_pickle(stored: StoredRecipe) -> Recipe:
    """The recipe from its pickle, or with code from its file if that has changed.

    Raises:
        StudyError: it is not what was marked, or what its code imports is not there.
    """
    path = str(stored.manifest.pickle)
    content = stored.read_as_stored(path, stored.manifest.sha256, most=None)
    is_own = cache(_is_own_folder)  # one warning of each
    about = stored.manifest.about
    parts = about.get("parts", {})
    for each in (about, *parts.values()):
        file = Path(each.get("file") or "")
        if file.is_file() and is_own(str(file.parent)):
            import_from(file.parent)
    try:
        recipe: Recipe = loads(content, is_own)
    except ImportError as error:
        raise StudyError(
            f"the recipe in {stored.place / path} cannot be loaded: {error}: put the modules that "
            "it imports where they were, or on PYTHONPATH"
        ) from error
    recipes = parts_of(recipe)
    if recipes:
        vars(recipe)["parts"] = {
            name: _renewed(part, parts.get(name, {})) for name, part in recipes.items()
        }
    return _renewed(recipe, about)


def _renewed(recipe: Recipe, about: Mapping[str, Any]) -> Recipe:
    """The recipe as its file has it, if that has changed since (with a warning)."""
    file = Path(about.get("file") or "")
    content = _changed_content(file, about.get("sha256"))
    if content is None:
        return recipe
    warn(f"{file} has changed since the study began; {GONE_ON}")
    module = module_of(file, content)  # what was looked at, not what lies there by now
    name = str(about.get("name"))
    if function_in(recipe) is not None:
        _renew(module, name, lambda function: vars(recipe).update(function=function))
        return recipe
    if is_adapted(recipe):
        _renew(module, name, recipe.renew)  # type: ignore[attr-defined]
        return recipe
    fresh = recipe_class(module, name)
    renewed = fresh.__new__(fresh)
    vars(renewed).update(vars(recipe))
    return renewed


def _renew(module: ModuleType, name: str, take: Callable[[Any], Any]) -> None:
    """Call `take` with the module's class or function of that name, if there is one."""
    value = getattr(module, name, None)
    if callable(value):
        take(value)


# -- what an earlier Shoal stored: to be read for one more version ----------------------------


def _former_recipe(folder: Folder, head: Mapping[str, Any], trust: bool) -> StoredRecipe:
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
            _refusal_text(
                folder,
                "an earlier Shoal stored it without a mark",
                f"It is a pickle ({saved}), which nobody can read beforehand: trust it if you "
                "made this study yourself",
            )
        )
    content = read_plain(saved, None, folder.path)
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
    stored = new(folder.path / PLACE, manifest)
    with suppress(OSError):  # then the user has to trust it each time
        make_folder(stored.place, folder.path)
        write_durably(stored.place / path, content, folder.path)
        stored.write(make_key(), MADE)
    if not is_there(stored.place / path, folder.path):
        return StoredRecipe(folder.path, msgspec.structs.replace(manifest, pickle=FORMER), {})
    return stored
