"""Scores of Hugging Face models over the whole validation set, as a Trainer computes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from shoal.train.adapt.of_transformers import (
    EvalPrediction,
    find_labels,
    nested_concat,
    nested_detach,
    nested_numpify,
)

EVAL = "eval"
Metrics = Callable[[Any], Mapping[str, float]]


class EvalScores:
    """The scores of one evaluation, over the whole validation set."""

    def __init__(self, metrics: Metrics | None) -> None:
        self._metrics = metrics
        self.reset()

    def reset(self) -> None:
        """Begin an evaluation."""
        self._total, self._rows = 0.0, 0
        self._seen: Any = None

    def update(self, loss: Tensor, rows: int, *seen: Any) -> None:
        """Take the mean loss of so many rows; `seen`: their predictions and labels."""
        self._total += float(loss) * rows
        self._rows += rows
        if not seen:
            return
        arrays = nested_numpify(nested_detach(seen))
        if self._seen is not None:
            arrays = nested_concat(self._seen, arrays)
        self._seen = arrays

    def compute(self) -> dict[str, float]:
        """The scores, by name without the prefix."""
        scores = {"loss": self._total / self._rows}
        if self._metrics is not None:
            found = self._metrics(EvalPrediction(*self._seen))
            scores |= {name.removeprefix(f"{EVAL}_"): value for name, value in found.items()}
        return scores


def loss_of(output: Any) -> Tensor:
    """The loss in a model's output.

    Raises:
        ValueError: it has none.
    """
    loss = output.get("loss") if isinstance(output, Mapping) else None
    if loss is None:
        raise ValueError("the model's output must have a loss: the collator's batch needs labels")
    return loss  # type: ignore[no-any-return]


def predictions_of(model: nn.Module, output: Mapping[str, Any]) -> Any:
    """All outputs but the loss: one, or a tuple of them."""
    config = getattr(model, "config", None)
    ignored = getattr(config, "keys_to_ignore_at_inference", None) or ["past_key_values"]
    found = [value for name, value in output.items() if name not in ("loss", *ignored)]
    return found[0] if len(found) == 1 else tuple(found)


def labels_of(model: nn.Module, inputs: Mapping[str, Any], names: list[str] | None) -> Any:
    """The labels among the model's inputs: one, or a tuple of them.

    `names`: of the labels; None: those that models of this class have.
    """
    wanted = names or find_labels(type(model))
    found = [inputs[name] for name in wanted if name in inputs]
    return found[0] if len(found) == 1 else tuple(found)
