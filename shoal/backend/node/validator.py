"""What a slot has other nodes do: read samples that lie there, and validate on parts that do.

Samples may be dealt between shards of several nodes in each epoch. Whoever visits a shard first in
an epoch brings together what the shard then holds, and writes it to a file of the node. What lies
at other nodes is read by their processes, and comes through Ray's object store. Shards as they were
made stay where they are, so any deal can be made again.
"""

import os
import pickle
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import ray
from ray.exceptions import RayError

from shoal.backend.node import data_copy
from shoal.backend.node.messages import SlotSetup
from shoal.backend.node.process import limit_threads, portable
from shoal.backend.ray import cluster
from shoal.backend.ray.node_tools import ask_holder
from shoal.core.cluster import ShardId
from shoal.engine.files import replaced
from shoal.engine.ownership import lock_file, make_folder
from shoal.train.data import columns as cols
from shoal.train.data.arrangement import Deal, Piece
from shoal.train.data.catalogue import LOCAL
from shoal.train.data.columns import Columns, DataError
from shoal.train.data.data import Data
from shoal.train.data.npz import NpzWriter, from_folder
from shoal.train.data.parts import Index, RowSource
from shoal.train.data.shards import RowForm
from shoal.train.lane.scoring import Record
from shoal.train.recipe.unit import Tree, TrialError, Unit
from shoal.train.slot.context import Records
from shoal.train.slot.trainer import SlotTrainer

KEPT_EPOCHS = 2  # epochs whose deals stay in files


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
        self._remove_before(deal.epoch - KEPT_EPOCHS + 1)
        pieces = [piece for piece in deal.pieces(shard) if len(piece.rows)]
        away = [piece for piece in pieces if not self.data.is_here(piece.home)]
        reads = {piece.home: self._ask(piece, ()) for piece in away}
        rows = [self._piece(piece, reads) for piece in pieces]
        form = RowForm.of(rows[0])
        with replaced(path) as part, NpzWriter(part) as file:
            for place, name in enumerate(form.files):
                shape = (deal.sizes[shard], *form.shapes[place])
                columns = [cols.parts(each)[place] for each in rows]
                file.write(name, form.dtypes[place], shape, columns)

    def _remove_before(self, epoch: int) -> None:
        """Remove the deals of epochs before this one."""
        for path in self.folder.glob("*-*.npz"):
            if int(path.name.partition("-")[0]) < epoch:
                self._opened.pop(path, None)
                path.unlink(missing_ok=True)

    def _piece(self, piece: Piece, reads: dict[ShardId, Any]) -> Columns:
        """The samples of the piece, read here or by a holder, as asked in `reads`."""
        if piece.home not in reads:
            return self.data.rows(piece.home, piece.rows)
        node, ref = reads[piece.home]
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
        rows: Columns = columns
        return rows

    def _ask(self, piece: Piece, lost: Collection[str]) -> tuple[str, Any]:
        """Have a holder read the samples: the node's id, and a reference to them.

        Raises:
            DataError: no holder is there.
        """
        catalogue = self.data.catalogue
        assert catalogue is not None, "its shards lie at nodes"
        read = ask_holder(catalogue, piece.home, lost, _read, self.user, piece.home, piece.rows)
        if read is not None:
            return read
        raise DataError(
            f"samples of {piece.home} are dealt to other shards in this epoch, and none of its "
            f"nodes is there: {', '.join(catalogue.parts[piece.home])}"
        )


def _read(user: bytes, shard: ShardId, rows: Index) -> tuple[Columns | None, str | None]:
    """Read at a holder: these samples of its shard, or why they cannot be read."""
    _, _, placed = pickle.loads(user)
    data = placed.at((*cluster.node_here().names, LOCAL))
    try:
        return data.rows(shard, rows), None
    except DataError as error:
        return None, str(error)


def with_deals(data: Data, folder: Path, user: bytes) -> Data:
    """The data as a slot reads it: by `NodeDeals` if it is dealt, and some lies elsewhere only.

    Raises:
        OSError: as `node.data.prepare`.
    """
    if not data.arrangement.reshuffles or all(map(data.is_here, data.shards)):
        return data
    data_copy.prepare(folder, os.getppid())
    deals = folder / "deals"
    make_folder(deals)
    return data.exchanging(NodeDeals(data, deals, ray.put(user)))


DATA_GB = 0.5  # for prepared chunks of validation parts


class Validator:
    """Validates models on the parts that lie at its node."""

    def __init__(self, setup: SlotSetup) -> None:
        limit_threads(setup.trainer.options.threads)
        recipe, _, placed = pickle.loads(setup.user)
        node = ray.get_runtime_context().get_node_id()
        folder = data_copy.place(setup.token, node, setup.cache)
        data = data_copy.data_here(recipe, placed, folder, setup.fingerprint)
        trainer = setup.trainer.with_options(data_memory_gb=DATA_GB, slot_memory_gb=None)
        trainer = replace(trainer, device="cpu")
        self._trainer = SlotTrainer(recipe, data, None, trainer)

    def record(
        self, unit: Unit, state: Tree, parts: Collection[ShardId]
    ) -> Records | BaseException:
        """What the parts give for the model in this state, or why they give nothing."""
        try:
            return self._trainer.validation_records(replace(unit, source=state), parts)
        except (TrialError, DataError, LookupError) as error:
            return portable(error)


class SentModel(NamedTuple):
    """What validators get: a unit without its source, and a reference to the model's state."""

    unit: Unit
    state: Any


class AskedParts(NamedTuple):
    """What a node's validator was asked for: `ref` refers to what these parts give."""

    node: str  # its id
    parts: list[ShardId]
    ref: Any


@dataclass
class ValidatorsElsewhere:
    """Asks the validators of other nodes. See `train.slot.inplace.elsewhere.Elsewhere`."""

    setup: SlotSetup
    data: Data
    _validators: dict[str, Any] = field(default_factory=dict)  # by node

    def open(self) -> None:
        """Start the validators that are asked first: it takes them seconds to be ready."""
        away = [part for part in self.data.validation if not self.data.is_here(part)]
        with suppress(DataError):  # a holder may still come
            for node in self._divided(away, ()):
                self._validator(node)

    def close(self) -> None:
        """End the validators."""
        for validator in self._validators.values():
            ray.kill(validator)

    def _validator(self, node: str) -> Any:
        """The node's validator; whoever needs it first starts it."""
        if node not in self._validators:
            self._validators[node] = started(self.setup, node)
        return self._validators[node]

    def begin(self, unit: Unit, parts: Collection[ShardId]) -> Callable[[], Records]:
        """Send the model to the holders of these parts."""
        model = SentModel(replace(unit, source=None, carry=False), ray.put(unit.source))
        return partial(self._answers, model, self._ask(model, parts, ()), ())

    def _ask(
        self, model: SentModel, parts: Collection[ShardId], lost: Collection[str]
    ) -> list[AskedParts]:
        """Ask holders that are not lost. Raises as `_divided`."""
        asked = []
        for node, some in self._divided(parts, lost).items():
            record = self._validator(node).record
            asked.append(AskedParts(node, some, record.remote(*model, some)))
        return asked

    def _answers(
        self, model: SentModel, asked: Sequence[AskedParts], lost: Collection[str]
    ) -> Records:
        """What the parts gave; what a node owed that was lost meanwhile comes from others."""
        records: dict[ShardId, Record] = {}
        for node, parts, ref in asked:
            try:
                answer = ray.get(ref)
            except RayError:
                self._validators.pop(node, None)
                lost_nodes = (*lost, node)
                answer = self._answers(model, self._ask(model, parts, lost_nodes), lost_nodes)
            if isinstance(answer, BaseException):
                raise answer
            records |= answer
        return records

    def _divided(
        self, parts: Collection[ShardId], lost: Collection[str]
    ) -> dict[str, list[ShardId]]:
        """The parts by the id of the node that is asked.

        Raises:
            DataError: a part has no holder that is there.
        """
        catalogue = self.data.catalogue
        assert catalogue is not None, "its parts lie at nodes"
        nodes = [node for node in cluster.live_nodes() if node.id not in lost]
        by_node: dict[str, list[ShardId]] = {}
        for number, part in enumerate(parts):
            holders = [node.id for node in nodes if part in catalogue.at(node.names)]
            if not holders:
                raise DataError(
                    f"validation part {part} lies at {', '.join(catalogue.valid[part])}, and none "
                    "of these nodes is in the cluster: bring one back, then resume"
                )
            by_node.setdefault(holders[number % len(holders)], []).append(part)
        return by_node


def elsewhere_of(setup: SlotSetup, data: Data) -> ValidatorsElsewhere | None:
    """What a slot needs if validation parts lie at other nodes only; None if all lie here.

    Their validators start now, unless they are there: a fleet starts them beside its slots.
    """
    if all(data.is_here(part) for part in data.validation):
        return None
    elsewhere = ValidatorsElsewhere(setup, data)
    elsewhere.open()
    return elsewhere


def started(setup: SlotSetup, node: str) -> Any:
    """The node's validator, started unless it is there."""
    options = {
        "num_cpus": 0,
        "scheduling_strategy": cluster.only_at(node),
        "name": f"shoal-validator-{setup.token}-{node}",
        "get_if_exists": True,
    }
    return ray.remote(Validator).options(**options).remote(setup)
