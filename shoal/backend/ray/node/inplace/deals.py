"""Samples that are dealt between shards of several nodes, in each epoch.

Whoever visits a shard first in an epoch brings together what the shard then holds, and writes it to
a file of the node. What lies at other nodes is read by their processes, and comes through Ray's
object store. Shards as they were made stay where they are, so any deal can be made again.
"""

import os
import pickle
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import ray
from ray.exceptions import RayError

from shoal.backend.ray import cluster
from shoal.backend.ray.node import data as node_data
from shoal.backend.ray.placed.holders import ask_holder
from shoal.core.cluster import ShardId
from shoal.engine.files import replaced
from shoal.engine.own import lock_file, make_folder
from shoal.train.data import columns as cols
from shoal.train.data.arrangement import Deal, Piece
from shoal.train.data.catalogue import LOCAL
from shoal.train.data.columns import Columns, DataError
from shoal.train.data.data import Data
from shoal.train.data.npz import NpzWriter, from_folder
from shoal.train.data.parts import Index, RowSource
from shoal.train.data.shards import RowForm

KEPT = 2  # epochs whose deals stay in files


@dataclass
class NodeDeals:
    """The shards of one node as they are dealt. See `train.data.arrangement.Exchange`.

    `folder`: of the node, for the files. `user`: as of `SlotSetup`, for processes of other nodes.
    """

    data: Data
    folder: Path
    user: Any
    _bytes: int = 0
    _opened: dict[Path, RowSource] = field(default_factory=dict)

    def rows(self, deal: Deal, shard: ShardId, index: Index) -> Columns:
        """These samples of the shard, as it is dealt.

        Raises:
            DataError: some of its samples have no holder that is there.
        """
        path = self.folder / f"{deal.epoch}-{quote(shard, safe='')}.npz"
        with lock_file(path.with_name(f"{path.name}.lock")):
            if not path.exists():
                self._opened.pop(path, None)
                self._write(path, deal, shard)
            if path not in self._opened:
                source = from_folder(path.parent, path.name, None, 0).source
                assert isinstance(source, RowSource), "its arrays are not compressed"
                self._opened[path] = source
            return self._opened[path].rows(ShardId("s000"), index)

    def taken(self) -> int:
        """Bytes that came from other nodes since this was asked last."""
        taken = self._bytes
        self._bytes = 0
        return taken

    def _write(self, path: Path, deal: Deal, shard: ShardId) -> None:
        """Bring together what the shard holds, and write it: whole or not at all."""
        self._remove_before(deal.epoch - KEPT + 1)
        pieces = [piece for piece in deal.pieces(shard) if len(piece.rows)]
        away = [piece for piece in pieces if not self.data.is_here(piece.home)]
        asked = {piece.home: self._ask(piece, ()) for piece in away}
        found = [self._piece(piece, asked) for piece in pieces]
        form = RowForm.of(found[0])
        with replaced(path) as part, NpzWriter(part) as file:
            for place, name in enumerate(form.files):
                shape = (deal.sizes[shard], *form.shapes[place])
                columns = [cols.parts(each)[place] for each in found]
                file.write(name, form.dtypes[place], shape, columns)

    def _remove_before(self, epoch: int) -> None:
        """Remove the deals of epochs before this one."""
        for path in self.folder.glob("*-*.npz"):
            if int(path.name.partition("-")[0]) < epoch:
                self._opened.pop(path, None)
                path.unlink(missing_ok=True)

    def _piece(self, piece: Piece, asked: dict[ShardId, Any]) -> Columns:
        """The samples, read here or by a holder."""
        if piece.home not in asked:
            return self.data.rows(piece.home, piece.rows)
        node, ref = asked[piece.home]
        tried = [node]
        while True:
            try:
                columns, error = ray.get(ref)
                break
            except RayError:
                node, ref = self._ask(piece, tried)
                tried.append(node)
        if error is not None:
            raise DataError(error)
        self._bytes += cols.nbytes(columns)
        made: Columns = columns
        return made

    def _ask(self, piece: Piece, lost: Collection[str]) -> tuple[str, Any]:
        """Have a holder read the samples: the node's id, and a reference to them.

        Raises:
            DataError: no holder is there.
        """
        catalogue = self.data.catalogue
        assert catalogue is not None, "its shards lie at nodes"
        given = (self.user, piece.home, piece.rows)
        asked = ask_holder(catalogue, piece.home, lost, _read, *given)
        if asked is not None:
            return asked
        raise DataError(
            f"samples of {piece.home} are dealt to other shards in this epoch, and none of its "
            f"nodes is there: {', '.join(catalogue.parts[piece.home])}"
        )


def _read(user: bytes, shard: ShardId, rows: Index) -> tuple[Columns | None, str | None]:
    """What runs at a holder: these samples of its shard, or why they cannot be read."""
    _, _, placed = pickle.loads(user)
    data = placed.at((*cluster.node_here().names, LOCAL))
    try:
        return data.rows(shard, rows), None
    except DataError as error:
        return None, str(error)


def with_deals(data: Data, folder: Path, user: bytes) -> Data:
    """The data as a slot reads it; if it is dealt, and some of it lies at other nodes only.

    Raises:
        OSError: as `node.data.prepare`.
    """
    if not data.arrangement.reshuffles or all(map(data.is_here, data.shards)):
        return data
    node_data.prepare(folder, os.getppid())
    deals = folder / "deals"
    make_folder(deals)
    return data.exchanging(NodeDeals(data, deals, ray.put(user)))
