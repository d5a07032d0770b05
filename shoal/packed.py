"""Driving a pack by hand: several models on one device, over one stream of data, without a study.

The primitives are those of Liu et al., "Understanding and Optimizing Packed Neural Network Training for Hyper-Parameter
Tuning", 2020, section 2.2: load, pack, free.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from copy import deepcopy
from dataclasses import dataclass, field
from math import ceil, inf
from typing import TYPE_CHECKING, Any

from shoal.core.cluster import shard_order
from shoal.core.trial import Trial, TrialId, Visit
from shoal.folder import StudyError
from shoal.train.account import add
from shoal.train.device import device_of
from shoal.train.station import Station
from shoal.train.unit import Done, OutOfMemory, Part, Tree, TrialError, Unit
from shoal.train.verify import model_from
from shoal.wiring import check_recipe_type, data_of

if TYPE_CHECKING:
    from torch import nn

    from shoal.core.event import Sum
    from shoal.train.recipe import Recipe


@dataclass(slots=True)
class _Model:
    trial: Trial
    visits: tuple[Visit, ...] = ()
    source: Tree | None = None  # its state, while it is not on the device
    sums: dict[str, Sum] = field(default_factory=dict)  # of its newest epoch


class Packed:
    """Models of one recipe that train together on one device. Each learns what it would learn alone, in a study as here.

    `fuse`: models of one graph may train in one step where that is measured to be faster (equal to rounding); otherwise equal
    to the last bit. `metric`: of the validation that ends each epoch, as in a study, where a recipe's scheduler is
    ReduceLROnPlateau (default: the recipe's). Where the models have no room together they are trained in smaller packs, one
    after the other.

    Raises:
        StudyError: not a recipe, or its data is not `shoal.Data`.
        ValueError: there is no such device, or the seed is negative.
    """

    def __init__(
        self,
        recipe: Recipe,
        *,
        seed: int = 0,
        fuse: bool = False,
        device: str = "auto",
        threads: int = 1,
        metric: str | None = None,
        data_memory_gb: float = 2.0,
    ) -> None:
        check_recipe_type(recipe)
        self._recipe, self._data, self._seed, self._fuse = recipe, data_of(recipe), seed, fuse
        self._device, self._metric = device_of(device), metric or recipe.metric
        self._station = Station(
            recipe,
            self._data,
            None,
            seed=seed,
            device=self._device,
            kind=self._device,
            threads=threads,
            metric=self._metric,
            data_memory_gb=data_memory_gb,
            state_memory_gb=inf,
        )
        self._models: dict[TrialId, _Model] = {}
        self._number = 0
        self._most: float = inf  # that are known to have room together
        self._fewer = False  # models than when that was found out
        self.failed: dict[str, str] = {}  # models that were freed because they raised or diverged, and why

    @property
    def names(self) -> tuple[str, ...]:
        """The models loaded, in their order."""
        return tuple(self._models)

    def load(self, config: Mapping[str, Any], state: Tree | None = None, name: str | None = None) -> str:
        """Add a model of this configuration, new or in a state that `free` or `state` gave; its name, "m0", "m1" … if not given.

        Raises:
            StudyError: the name is in use.
        """
        while name is None and f"m{self._number}" in self._models:
            self._number += 1
        chosen = TrialId(name or f"m{self._number}")
        if chosen in self._models:
            raise StudyError(f"a model named {chosen} is loaded already; free it first, or choose another name")
        self._number += 1
        trial = Trial(chosen, float(self._data.samples), dict(config), shards=frozenset(self._data.shards))
        visits = () if state is None else tuple(Visit(*visit) for visit in state["visits"])
        self._models[chosen] = _Model(trial, visits, state)
        return chosen

    def train(self, epochs: int = 1) -> dict[str, dict[str, float]]:
        """Train all models so many epochs more: the means of their training values over the last one, by name.

        A model that raises or diverges is freed, and noted in `failed`. Where training ends early, as by Ctrl-C or data that
        cannot be read, the other models are as before the call.
        """
        self._try_all()
        before: dict[TrialId, Tree | None] = {name: deepcopy(self._state(name)) for name in self._models}
        try:
            self._train([*self._models], epochs, before)
        except BaseException:
            self._rewind_all(before)
            raise
        return {name: {k: total / n for k, (total, n) in model.sums.items() if n} for name, model in self._models.items()}

    def evaluate(self) -> dict[str, dict[str, float]]:
        """The means of each model's validation values, by name; {} for each where there is nothing to validate with.

        Raises:
            TrialError: a recipe raised; no model is lost by that.
        """
        self._try_all()
        return self._evaluate([*self._models])

    def state(self, name: str) -> Tree:
        """A copy of all that the model's further training depends on, as NumPy arrays: model, optimizer, random states …

        Raises:
            StudyError: no such model.
            TrialError: it was not built yet, and its recipe raised.
        """
        source = self._known(name).source
        if source is None:
            self._place([TrialId(name)])
            source = self._station.state(TrialId(name))
        state: Tree = deepcopy(source)  # of one that is not on the device: there may be no room for it now
        return state

    def model(self, name: str) -> nn.Module:
        """A copy of the model, in evaluation mode.

        Raises:
            StudyError: no such model.
        """
        return model_from(self._recipe, self._known(name).trial.config, self._seed, self.state(name), self._device)

    def free(self, name: str) -> Tree:
        """Take the model out, and give its memory back: its state, to go on with by `load`.

        Raises:
            StudyError: no such model.
            TrialError: it was not built yet, and its recipe raised; it is taken out all the same.
        """
        try:
            state = self.state(name)
        except TrialError:
            if not self._known(name).visits:
                self._forget(TrialId(name))
            raise
        self._forget(TrialId(name))
        return state

    # -- training ------------------------------------------------------------------------------------------------------

    def _train(self, names: Sequence[TrialId], epochs: int, before: Mapping[TrialId, Tree | None]) -> None:
        """In packs that have room."""
        if len(names) > self._most:
            for part in self._parts(names):
                self._train(part, epochs, before)
            return
        goals = {name: len(self._models[name].visits) + epochs * len(self._data.shards) for name in names}
        while going := [name for name in names if name in self._models and len(self._models[name].visits) < goals[name]]:
            short = self._round(going)
            if short:
                self._most = max(1, ceil(len(going) / 2))
                self._rewind_all({name: before[name] for name in names})  # all again, from the beginning
                self._train([name for name in names if name in self._models], epochs, before)
                return

    def _parts(self, names: Sequence[TrialId]) -> Iterator[Sequence[TrialId]]:
        """As many at once as have room; the others are not on the device meanwhile."""
        size = len(names) if self._most == inf else int(self._most)
        for at in range(0, len(names), size):
            part = names[at : at + size]
            aside = [name for name in self._models if name not in part] if self._most < inf else []
            for name in aside:
                if self._models[name].source is None:
                    self._rewind(name, deepcopy(self._state(name)))
            yield part

    def _rewind_all(self, states: Mapping[TrialId, Tree | None]) -> None:
        """Those that are loaded still."""
        for name, state in states.items():
            if name in self._models:
                self._rewind(name, state)

    def _rewind(self, name: TrialId, state: Tree | None) -> None:
        model = self._models[name]
        self._station.forget(name)
        model.source = state
        model.visits = () if state is None else tuple(Visit(*visit) for visit in state["visits"])

    def _round(self, names: Sequence[TrialId]) -> list[TrialId]:
        """A shard's visit of each; those that had no room together."""
        units = [self._unit(name) for name in names]
        short = []
        with closing(self._station.together(units, self._fuse)) as told:
            for name, news in told:
                model = self._models[name]
                if isinstance(news, Part):
                    add(model.sums, news.values)
                elif isinstance(news, Done):
                    model.visits, model.source = (*model.visits, news.visit), None
                elif isinstance(news, OutOfMemory) and (len(names) > 1 or news.freed):
                    short.append(name)
                else:
                    self._fail(name, news)
        return short

    def _unit(self, name: TrialId) -> Unit:
        model = self._models[name]
        epoch, seen = divmod(len(model.visits), len(self._data.shards))
        if not seen:
            model.sums = {}
        past = {visit.shard for visit in model.visits[len(model.visits) - seen :]}
        shard = shard_order(self._seed, epoch, set(self._data.shards) - past)[0]
        wanted = self._metric is not None and seen + 1 == len(self._data.shards) and self._station.follows_scores(name)
        return Unit(model.trial, model.visits, Visit(epoch, shard, epoch, 0), model.source, wanted)

    def _try_all(self) -> None:
        """Some that were there when others had no room are gone."""
        if self._fewer:
            self._most, self._fewer = inf, False

    def _place(self, names: Iterable[TrialId]) -> None:
        """Have them on the device."""
        for name in names:
            model = self._models[name]
            if model.source is not None or not self._station.holds(name, len(model.visits)):
                self._station.place(Unit(model.trial, model.visits, Visit(0, self._data.shards[0], 0, 0), model.source))
                model.source = None

    def _evaluate(self, names: Sequence[TrialId]) -> dict[str, dict[str, float]]:
        found: dict[str, dict[str, float]] = {}
        for part in self._parts(names):
            try:
                self._place(part)
                scores = self._station.evaluate(part)
            except TrialError as error:
                if isinstance(error, OutOfMemory) and len(part) > 1:
                    self._most = ceil(len(part) / 2)
                    return found | self._evaluate([name for name in names if name not in found and name in self._models])
                scores = {part[0]: error} if len(part) == 1 else self._one_by_one(part)
            for name, values in scores.items():
                if isinstance(values, TrialError):
                    raise type(values)(f"{name}: {values.why}", values.text, values.signature)
                found[name] = values
        return found

    def _one_by_one(self, names: Sequence[TrialId]) -> dict[TrialId, dict[str, float] | TrialError]:
        """Where one of them raised."""
        found: dict[TrialId, dict[str, float] | TrialError] = {}
        for name in names:
            try:
                self._place([name])
                found |= self._station.evaluate([name])
            except TrialError as error:
                found[name] = error
        return found

    def _fail(self, name: TrialId, error: TrialError) -> None:
        self.failed[name] = error.why
        self._forget(name)

    def _forget(self, name: TrialId) -> None:
        self._station.forget(name)
        del self._models[name]
        self._fewer = True

    def _known(self, name: str) -> _Model:
        if name not in self._models:
            why = f"; it failed: {self.failed[name]}" if name in self.failed else ""
            raise StudyError(f"no model named {name} is loaded{why}; loaded: {', '.join(self._models) or 'none'}")
        return self._models[TrialId(name)]

    def _state(self, name: TrialId) -> Tree | None:
        """None: it is new, and not built yet."""
        model = self._models[name]
        if model.source is not None or not self._station.holds(name, len(model.visits)):
            return model.source
        return self._station.state(name)


def pack(recipe: Recipe, configs: Iterable[Mapping[str, Any]], **options: Any) -> Packed:
    """A `Packed` with a model of each configuration loaded; `options`: its own.

    >>> models = shoal.pack(MyRecipe(), [{"lr": 0.1}, {"lr": 0.01}])
    >>> models.train(epochs=3)
    >>> models.evaluate()
    """
    made = Packed(recipe, **options)
    for config in configs:
        made.load(config)
    return made
