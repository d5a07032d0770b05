"""Recipes that train on a whole shard by themselves: Keras, scikit-learn, JAX, or any other code.

To the rest of Shoal such a trial is a torch module without parameters. What the module saves and
loads is what the recipe's `save` gives and its `load` takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from math import isfinite
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from shoal.core.event import Sum
from shoal.train.data import columns as cols
from shoal.train.data.columns import Columns
from shoal.train.recipe.guard import guarded
from shoal.train.recipe.recipe import Recipe, overrides
from shoal.train.recipe.unit import Diverged

# Settings of a `Recipe` that mean nothing where the user's own code makes the steps.
OF_STEPS = (
    "gradient_clip_val",
    "accumulate_grad_batches",
    "precision",
    "nan_patience",
    "fuse_random",
    "batch_per_slot",
    "lr_rule",
)
RULE = "must return {name: (sum, count)}: of each value its sum, and over how many samples"
SHARD_ON_ONE_SLOT = (
    "a ShardRecipe trains on one slot, for Shoal cannot split the steps that its train_shard "
    "makes: give widths=(1, 1), or leave them out"
)
SAVED = (
    "save(self, state) must return bytes, or nested dicts and lists of NumPy arrays, numbers "
    "and texts"
)
PLAIN = (bool, int, float, str, type(None))
NUMBERS = "biufc"  # kinds of arrays that a checkpoint can hold
BYTES = "~bytes"  # marks bytes in a state


class ShardRecipe(Recipe):
    """How to train a model of any kind, one shard at a time; subclass it.

    The state is the trial's model with all that its training depends on: a Keras model, a
    scikit-learn estimator, a dict of JAX arrays. `train_shard` changes it in place.

    Of the attributes of a `Recipe`, those about data, batches and the search mean the same here.
    Batches are tuples of NumPy arrays, or dicts if the data's columns have names. They are copies:
    code may write to them.
    """

    def init(self, config: Mapping[str, Any]) -> Any:
        """A new state; random numbers come from the trial's seed.

        Args:
            config: the trial's configuration.
        """
        raise NotImplementedError(
            f"{type(self).__name__} needs a method init(self, config) -> state"
        )

    def train_shard(
        self, state: Any, batches: Iterator[Any], config: Mapping[str, Any]
    ) -> Mapping[str, tuple[float, float]]:
        """Train the state on the batches of one pass over a shard.

        Returns {name: (sum, count)}; Shoal records sum / count.

        Args:
            state: the trial's, to be changed in place.
            batches: tuples of NumPy arrays, or dicts of them.
            config: the trial's configuration.
        """
        raise NotImplementedError(
            f"{type(self).__name__} needs a method "
            "train_shard(self, state, batches, config) -> {name: (sum, count)}"
        )

    def validate_shard(
        self, state: Any, batches: Iterator[Any], config: Mapping[str, Any]
    ) -> Mapping[str, tuple[float, float]]:
        """{name: (sum, count)} over some of the validation data; changes nothing of the state.

        Shoal calls it for one piece of the data after another, and adds up what it returns. Not
        defined: nothing is validated.

        Args:
            state: the trial's.
            batches: as for `train_shard`.
            config: the trial's configuration.
        """
        return {}

    def save(self, state: Any) -> Any:
        """The state as bytes, or as nested dicts and lists of NumPy arrays and plain values.

        Args:
            state: the trial's.
        """
        raise NotImplementedError(
            f"{type(self).__name__} needs a method save(self, state) -> bytes or arrays"
        )

    def load(self, config: Mapping[str, Any], saved: Any) -> Any:
        """The state that was saved. Learning rates and the like are to be those of `config`.

        Args:
            config: the trial's configuration.
            saved: what `save` returned.
        """
        raise NotImplementedError(
            f"{type(self).__name__} needs a method load(self, config, saved) -> state"
        )

    # -- as the rest of Shoal sees it ----------------------------------------------------------

    def configure_model(self, config: Mapping[str, Any]) -> nn.Module:
        """The new state, as a module."""
        return ShardModel(self, config)

    def configure_optimizers(self, model: nn.Module, config: Mapping[str, Any]) -> Any:
        """An optimizer with nothing to step."""
        return torch.optim.SGD(model.parameters(), lr=0.0)

    def training_step(self, model: nn.Module, batch: Any) -> Tensor | dict[str, Any]:
        """Train on one batch as on a shard of that size, where steps are tried or timed."""
        shard = shard_of(model)
        sums = shard.trained(iter([arrays(batch)]))
        values = {name: total / count for name, (total, count) in sums.items()}
        return {**values, "loss": shard.nothing.sum() + values.get("loss", 0.0)}

    def validation_step(self, model: nn.Module, batch: Any) -> Mapping[str, Any]:
        """The sums over a piece of the validation data."""
        shard = shard_of(model)
        sums = shard.validated(pieces(batch, shard.batch_size))
        return {name: ValueSum(*pair) for name, pair in sums.items()}


class ValueSum(NamedTuple):
    """A value's sum, and over how many samples."""

    total: float
    samples: float


class ShardModel(nn.Module):
    """A trial's state as a module."""

    def __init__(self, recipe: ShardRecipe, config: Mapping[str, Any]) -> None:
        super().__init__()
        self._recipe = recipe
        self._config = config
        self._bytes: int | None = None
        self.batch_size = int(config.get("batch_size", recipe.batch_size))
        # an optimizer needs a parameter
        self.nothing = nn.Parameter(torch.zeros(0))
        # within a list, for a Keras model may be a torch module itself
        self._boxed_state = [recipe.init(config)]

    @property
    def state(self) -> Any:
        """The recipe's own state."""
        return self._boxed_state[0]

    def trained(self, batches: Iterator[Any]) -> dict[str, Sum]:
        """Train on the batches; the sums of what was noted.

        Raises:
            Diverged: the loss is not finite.
            TypeError, ValueError: `train_shard` returned no sums.
        """
        with guarded("train_shard"):
            result = self._recipe.train_shard(self.state, batches, self._config)
        sums = check_sums("train_shard", result)
        total, _ = sums.get("loss", (0.0, 0.0))
        if not isfinite(total):
            raise Diverged("diverged: the loss of a pass was not finite")
        return sums

    def validated(self, batches: Iterator[Any]) -> dict[str, Sum]:
        """The sums over these batches of the validation data.

        Raises:
            TypeError, ValueError: `validate_shard` returned no sums.
        """
        with guarded("validate_shard"):
            result = self._recipe.validate_shard(self.state, batches, self._config)
        return check_sums("validate_shard", result)

    @property
    def bytes(self) -> int:
        """Bytes of the state, as it was first saved."""
        if self._bytes is None:
            self._bytes = sum(part.nbytes for part in _arrays_in(self.get_extra_state()))
        return self._bytes

    @property
    def form(self) -> str:
        """The state's kind and the shapes of its arrays: equal for states of about equal cost."""
        saved = self.get_extra_state()
        if _is_marked(saved):
            shapes = f"2^{saved[BYTES].size.bit_length()} bytes"
        else:
            shapes = repr([(part.shape, str(part.dtype)) for part in _arrays_in(saved)])
        return f"{type(self.state).__qualname__} {shapes}"

    def get_extra_state(self) -> Any:
        """What the recipe saves of the state, as a tree of arrays.

        Raises:
            TypeError: it is not what a checkpoint can hold.
        """
        saved = self._recipe.save(self.state)
        if isinstance(saved, bytes | bytearray):
            return {BYTES: np.frombuffer(bytes(saved), np.uint8)}
        return _mapped(saved, _leaf)

    def set_extra_state(self, state: Any) -> None:
        """Let the recipe load the state that was saved."""
        self._boxed_state[0] = self._recipe.load(self._config, _untree(state))


def shard_of(model: nn.Module) -> ShardModel:
    """The model of a shard recipe, as the `ShardModel` that it is."""
    assert isinstance(model, ShardModel), "a shard recipe's model"
    return model


def is_scored(recipe: Recipe) -> bool:
    """Whether the recipe brings a way to validate."""
    if isinstance(recipe, ShardRecipe):
        return type(recipe).validate_shard is not ShardRecipe.validate_shard
    return overrides(recipe, "validation_step")


def refuse_settings(recipe: Recipe, config: Mapping[str, Any]) -> None:
    """Raise ValueError if a shard recipe has a setting that means nothing to it."""
    if not isinstance(recipe, ShardRecipe):
        return
    kind = type(recipe).__name__
    for name in OF_STEPS:
        if name in config or getattr(recipe, name) != getattr(Recipe, name):
            raise ValueError(
                f"{kind} sets {name}, which Shoal cannot do for a ShardRecipe: "
                "its train_shard makes the steps; do it there, under another name"
            )
    if config.get("batch_size", recipe.batch_size) == "max":
        raise ValueError(
            f'{kind}: batch_size="max" is for a Recipe, whose memory Shoal can measure; '
            "give a number"
        )


# -- batches and sums ----------------------------------------------------------------------------


def arrays(batch: Columns) -> Columns:
    """The batch as NumPy arrays of its own; one that collate makes, in a tuple or a dict."""
    if isinstance(batch, cols.Lot):
        batch = cols.form(batch.batch())
    return cols.apply(batch, _copied)


def _copied(column: Any) -> Any:
    if isinstance(column, Tensor):
        return column.detach().cpu().numpy().copy()
    return column


def pieces(columns: Columns, size: int) -> Iterator[Columns]:
    """The columns in batches of that size."""
    for start in range(0, cols.rows(columns), size):
        yield arrays(cols.cut(columns, start, start + size))


def check_sums(method: str, result: Any) -> dict[str, Sum]:
    """What the recipe's method returned, as sums.

    Raises:
        TypeError, ValueError: it is something else.
    """
    if not isinstance(result, Mapping):
        raise TypeError(f"{method} {RULE}; got {type(result).__name__}")
    sums: dict[str, Sum] = {}
    for name, pair in result.items():
        try:
            total, count = (float(number) for number in pair)
        except (TypeError, ValueError) as error:
            raise TypeError(f"{method} {RULE}; {name}: got {pair!r}") from error
        if not count > 0:
            raise ValueError(f"{method} {RULE}; {name}: got the count {count!r}")
        sums[str(name)] = (total, count)
    return sums


# -- states --------------------------------------------------------------------------------------


def _untree(state: Any) -> Any:
    """What the recipe's `save` returned, made again from the tree in a checkpoint."""
    if _is_marked(state):
        return np.asarray(state[BYTES]).tobytes()
    return _mapped(state, _from_torch)


def _is_marked(state: Any) -> bool:
    return isinstance(state, Mapping) and BYTES in state


def _mapped(tree: Any, leaf: Callable[[Any], Any]) -> Any:
    if isinstance(tree, Mapping):
        return {name: _mapped(part, leaf) for name, part in tree.items()}
    if isinstance(tree, list | tuple):
        return [_mapped(part, leaf) for part in tree]
    return leaf(tree)


def _leaf(value: Any) -> Any:
    if type(value) in PLAIN:
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray) and value.dtype.kind in NUMBERS:
        return value
    raise TypeError(f"{SAVED}; got {type(value).__name__}")


def _from_torch(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.numpy()
    return value


def _arrays_in(tree: Any) -> Iterable[np.ndarray[Any, Any]]:
    if isinstance(tree, Mapping):
        tree = list(tree.values())
    if isinstance(tree, list):
        for part in tree:
            yield from _arrays_in(part)
    elif isinstance(tree, np.ndarray):
        yield tree
