"""A recipe's frozen featurizer: what it makes of a chunk is made once, for all lanes that share the chunk."""

from __future__ import annotations

import torch
from torch import Tensor

from shoal.train import columns as cols
from shoal.train.columns import Columns
from shoal.train.recipe import Recipe, overrides
from shoal.train.rng import Rng

PIECE = 256  # samples at once


class Features:
    """`Recipe.features` over whole chunks, in pieces, without gradients.

    `there`: whether the recipe has one. `ready`: the first chunk was made; only from then on may chunks be made in another
    thread, for that first call may build a model and draw random numbers, here under the study's seed.
    """

    def __init__(self, recipe: Recipe, seed: int, device: torch.device) -> None:
        self.there = overrides(recipe, "features")
        self.ready = not self.there
        self._recipe, self._seed, self._device = recipe, seed, device

    def of(self, chunk: Columns) -> Columns:
        """The columns that steps see, on the device.

        Raises:
            ValueError: another number of samples, or, noticed at the first chunk, other results for the same samples.
        """
        rows = cols.rows(chunk)
        if not self.ready:
            self._begin(cols.cut(chunk, 0, PIECE))
        pieces = [self._piece(cols.cut(chunk, at, at + PIECE)) for at in range(0, rows, PIECE)]
        return pieces[0] if len(pieces) == 1 else cols.combine(pieces, torch.cat)

    def _begin(self, piece: Columns) -> None:
        with Rng(self._seed, self._device):
            one = self._piece(piece)
            before = torch.get_rng_state()
            other = self._piece(piece)
            drew = not torch.equal(before, torch.get_rng_state())
        if drew or not all(map(torch.equal, cols.parts(one), cols.parts(other))):
            raise ValueError("features must give the same for the same samples: put its model into evaluation mode, draw nothing")
        self.ready = True

    def _piece(self, piece: Columns) -> Columns:
        rows = cols.rows(piece)
        with torch.no_grad():
            made = cols.apply(cols.form(self._recipe.features(piece)), self._placed)
        got = {len(column) for column in cols.parts(made)}
        if got != {rows}:
            raise ValueError(f"features must return columns with as many samples as it got, {rows}; got {sorted(got)}")
        return made

    def _placed(self, column: object) -> Tensor:
        return torch.as_tensor(column).detach().to(self._device)
