"""The texts of all of the user's own modules that a recipe needs, directly or over others."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType

from shoal.train.recipe.stored.form import modules_in
from shoal.train.recipe.stored.own import is_installed, root_of
from shoal.train.recipe.stored.statements import definitions, modules_read
from shoal.train.recipe.stored.texts import Text, known, text_of

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
        todo = [each for name in names for each in _levels(name)]
        while todo:
            name = todo.pop()
            if name in self._seen:
                continue
            self._seen.add(name)
            text = self._text(name)
            if text is not None and self._has_room(text):
                self.texts[name] = text
                todo += self._needed(text)

    def take(self, script: Text) -> None:
        """Take in a script, and the user's own modules that it imports."""
        self.roots[str(Path(script.file).parent)] = None
        self.texts[script.name] = script
        self._seen.add(script.name)
        self.add(_modules_read(script))

    def _has_room(self, text: Text) -> bool:
        self._bytes += len(text.content)
        return len(self.texts) < MOST_MODULES and self._bytes <= MOST_BYTES

    def _needed(self, text: Text) -> Iterator[str]:
        for name in _modules_read(text):
            yield from _levels(name)

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
        for text in known():
            if text.name == name:
                return text
        place = name.replace(".", "/")
        for root in self.roots:
            for end in (".py", "/__init__.py"):
                found = read_text(name, Path(root, place + end))
                if found is not None:
                    return found
        return None


def _modules_read(text: Text) -> Iterator[str]:
    """The modules that the text imports; of a script, those that what is needed of it imports."""
    if text.part is None:
        package = text.name if text.package else text.name.rpartition(".")[0]
        yield from modules_read(text.content, package)
        return
    found = definitions(text.content)
    for name in text.part.wanted:
        yield from modules_read(found.get(name, ""), "")
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
