"""A recipe as a form and the texts of its modules."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from shoal.train.recipe.stored.closure import Closure
from shoal.train.recipe.stored.form import Encoder, NotPlain
from shoal.train.recipe.stored.own import MAIN, is_installed, modules_of
from shoal.train.recipe.stored.statements import (
    assigned,
    definitions,
    names_read,
)
from shoal.train.recipe.stored.texts import RECIPE, ScriptPart, Text


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
        self._sources: dict[str, str] = {}
        self._kept: dict[str, None] = {}

    @property
    def name(self) -> str | None:
        """The name by which it is imported; None if there is no such file."""
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
        self._sources = definitions(content)
        rebound = assigned(content)
        values: dict[str, Any] = {}
        later: dict[str, Any] = {}
        todo = list(wanted)
        while todo:
            name = todo.pop()
            if name in self._kept or name in values or name in later:
                continue
            if name in self._sources and name not in rebound:
                self._kept[name] = None
                todo += names_read(self._sources[name])
            elif name in wanted:
                raise NotPlain(f"{name} is no definition at the top level of the script")
            elif name in vars(self._main):
                encoder = Encoder(self.name)
                form = encoder.form(vars(self._main)[name], f"the variable {name}")
                self._check(encoder)
                modules.update(encoder.modules)
                todo += encoder.of_main
                (later if encoder.of_main else values)[name] = form
        part = ScriptPart(tuple(self._kept), values, later)
        return Text(str(self.name), str(self._file), content, part=part)

    def _check(self, encoder: Encoder) -> None:
        for name in encoder.of_main:
            if name not in self._sources:
                raise NotPlain(f"{name} is no definition at the top level of the script")
