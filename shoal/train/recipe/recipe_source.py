"""A recipe as source: its form, and the texts of the user's own modules that it needs."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from shoal.train.recipe.plain_form import Encoder, NotPlain, modules_in
from shoal.train.recipe.text_modules import (
    RECIPE,
    ScriptPart,
    Text,
    assigned,
    definitions,
    known,
    modules_read,
    names_read,
    text_of,
)
from shoal.train.recipe.user_modules import MAIN, is_installed, modules_of, root_of


@dataclass(frozen=True, slots=True)
class RecipeSource:
    """What a recipe is made again of. `roots`: folders that its own modules are imported from.

    `outside`: packages that these modules import, beside the user's own modules.
    """

    form: Any
    texts: tuple[Text, ...]
    roots: tuple[str, ...]
    outside: frozenset[str]


def source_of(recipe: Any, name: str) -> RecipeSource:
    """The recipe as source. `name`: what the user calls it, for messages.

    Raises:
        NotPlain: a part of it has no file, or is no plain data.
    """
    script = _Script(sys.modules[MAIN])
    encoder = Encoder(script.name)
    form = encoder.form(recipe, name)
    closure = Closure()
    modules = dict(encoder.modules)
    for module in modules_of((recipe,)):
        if module.__name__ != MAIN:
            modules.setdefault(module.__name__, module)
    if encoder.of_main:
        closure.take(script.text(encoder.of_main, modules))
    closure.add(modules)
    for home, module in modules.items():
        if not is_installed(module) and home not in closure.texts:
            raise NotPlain(f"the file of the module {home} is no Python source")
    texts = sorted(closure.texts.values(), key=lambda text: text.name)
    return RecipeSource(form, tuple(texts), tuple(closure.roots), frozenset(closure.outside))


class _Script:
    """The file that Python was started with, of which only some definitions are needed."""

    def __init__(self, main: ModuleType) -> None:
        self._main = main
        file = getattr(main, "__file__", None)
        self._file = None if file is None else Path(file).resolve()

    @property
    def name(self) -> str | None:
        """The name by which the script is imported; None if there is no such file."""
        if self._file is None or self._file.suffix != ".py":
            return None
        if not self._file.is_file():
            return None
        return RECIPE + self._file.stem

    def text(self, wanted: dict[str, None], modules: dict[str, ModuleType]) -> Text:
        """The script, as far as the wanted definitions need it.

        `modules`: gets those that its variables name.

        Raises:
            NotPlain: a variable that they read is no plain data, or has changed.
        """
        assert self._file is not None
        content = self._file.read_bytes()
        sources = definitions(content)
        rebound = assigned(content)
        needed: dict[str, None] = {}
        values: dict[str, Any] = {}
        later: dict[str, Any] = {}
        todo = list(wanted)
        while todo:
            name = todo.pop()
            if name in needed or name in values or name in later:
                continue
            if name in sources and name not in rebound:
                needed[name] = None
                todo += names_read(sources[name])
            elif name in wanted:
                raise NotPlain(f"{name} is no definition at the top level of the script")
            elif name in vars(self._main):
                encoder = Encoder(self.name)
                form = encoder.form(vars(self._main)[name], f"the variable {name}")
                for main in encoder.of_main:
                    if main not in sources:
                        raise NotPlain(f"{main} is no definition at the top level of the script")
                modules.update(encoder.modules)
                todo += encoder.of_main
                (later if encoder.of_main else values)[name] = form
        part = ScriptPart(tuple(needed), values, later)
        return Text(str(self.name), str(self._file), content, part=part)


# Of modules beyond these, the texts are not stored: they are imported from where they lie.
MOST_MODULES, MOST_BYTES = 1000, 16 * 2**20


class Closure:
    """Collects texts. `roots`: folders in which modules are looked for that are not imported yet.

    `outside`: the packages that the texts import and that are not the user's own.
    """

    def __init__(self) -> None:
        self.texts: dict[str, Text] = {}
        self.roots: dict[str, None] = {}
        self.outside: set[str] = set()
        self._seen: set[str] = set()
        self._bytes = 0

    def add(self, names: Iterable[str]) -> None:
        """Take in the modules of these names that are the user's own, and what they import."""
        todo = [level for name in names for level in _levels(name)]
        while todo:
            name = todo.pop()
            if name in self._seen:
                continue
            self._seen.add(name)
            text = self._text(name)
            if text is None:
                continue
            self._bytes += len(text.content)
            if len(self.texts) < MOST_MODULES and self._bytes <= MOST_BYTES:
                self.texts[name] = text
                todo += (level for read in _modules_read(text) for level in _levels(read))

    def take(self, script: Text) -> None:
        """Take in a script, and the user's own modules that it imports."""
        self.roots[str(Path(script.file).parent)] = None
        self.texts[script.name] = script
        self._seen.add(script.name)
        self.add(_modules_read(script))

    def _text(self, name: str) -> Text | None:
        """The text of the module, if it is the user's own and has one."""
        top = name.partition(".")[0]
        if top == "shoal" or top in sys.stdlib_module_names:
            return None
        stored = text_of(name)
        if stored is not None:
            self._note_root(sys.modules[name])
            return stored
        module = sys.modules.get(name)
        if module is None:
            return self._not_imported(name)
        if is_installed(module):
            self.outside.add(top)
            return None
        self._note_root(module)
        return read_text(name, Path(str(module.__file__)))

    def _note_root(self, module: ModuleType) -> None:
        root = root_of(module)
        if root is not None:
            self.roots[root] = None

    def _not_imported(self, name: str) -> Text | None:
        for stored in known():
            if stored.name == name:
                return stored
        path = name.replace(".", "/")
        for root in self.roots:
            for end in (".py", "/__init__.py"):
                text = read_text(name, Path(root, path + end))
                if text is not None:
                    return text
        return None


def _modules_read(text: Text) -> Iterator[str]:
    """The modules that the text imports; of a script, those that what is needed of it imports."""
    if text.part is None:
        package = text.name if text.package else text.name.rpartition(".")[0]
        yield from modules_read(text.content, package)
        return
    sources = definitions(text.content)
    for name in text.part.wanted:
        yield from modules_read(sources.get(name, ""), "")
    yield from modules_in([text.part.values, text.part.later])


def read_text(name: str, file: Path) -> Text | None:
    """The text of the module in this file; None if it is no file with Python source."""
    if file.suffix != ".py" or not file.is_file():
        return None
    return Text(name, str(file), file.read_bytes(), file.name == "__init__.py")


def _levels(name: str) -> Iterator[str]:
    """The module's name, after those of the packages that it lies in."""
    parts = name.split(".")
    for count in range(1, len(parts) + 1):
        yield ".".join(parts[:count])
