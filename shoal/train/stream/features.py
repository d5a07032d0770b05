"""A recipe's frozen featurizer, which runs once a chunk for all lanes that share the chunk."""

from __future__ import annotations

import torch
from torch import Tensor

from shoal.train.data import columns as cols
from shoal.train.data.columns import Columns
from shoal.train.recipe.recipe import Recipe, overrides
from shoal.train.rng import Rng

PIECE = 256  # samples at once


class Features:
    """`Recipe.features` over whole chunks, in pieces, without gradients.

    `there`: whether the recipe has a featurizer. `ready`: whether chunks may be made in another
    thread. They may only after the first one: that call may build a model and draw random numbers,
    which it does under the study's seed.
    """

    def __init__(self, recipe: Recipe, seed: int, device: torch.device) -> None:
        self.there = overrides(recipe, "features")
        self.ready = not self.there
        self._recipe = recipe
        self._seed = seed
        self._device = device

    def of(self, chunk: Columns) -> Columns:
        """The columns that steps see, on the device.

        Raises:
            ValueError: there are more or fewer samples than before. Or the same samples gave two
                results, which is noticed at the first chunk.
        """
        if not self.ready:
            self._begin(cols.cut(chunk, 0, PIECE))
        pieces = []
        for start in range(0, cols.rows(chunk), PIECE):
            piece = cols.cut(chunk, start, start + PIECE)
            pieces.append(self._piece(piece))
        if len(pieces) == 1:
            return pieces[0]
        return cols.combine(pieces, torch.cat)

    def _begin(self, piece: Columns) -> None:
        """Make the first piece twice, and compare the results."""
        with Rng(self._seed, self._device):
            one = self._piece(piece)
            before = torch.get_rng_state()
            other = self._piece(piece)
            drew = not torch.equal(before, torch.get_rng_state())
        same = all(map(torch.equal, cols.parts(one), cols.parts(other)))
        if drew or not same:
            raise ValueError(
                "features must give the same for the same samples: "
                "put its model into evaluation mode, draw nothing"
            )
        self.ready = True

    def _piece(self, piece: Columns) -> Columns:
        """What the featurizer makes of some samples."""
        rows = cols.rows(piece)
        with torch.no_grad():
            made = cols.form(self._recipe.features(piece))
            made = cols.apply(made, self._placed)
        got = {len(column) for column in cols.parts(made)}
        if got != {rows}:
            raise ValueError(
                "features must return columns with as many samples as it got, "
                f"{rows}; got {sorted(got)}"
            )
        return made

    def _placed(self, column: object) -> Tensor:
        """The column as a tensor on the device, without gradients."""
        return torch.as_tensor(column).detach().to(self._device)
