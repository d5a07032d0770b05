"""A lane trained by several processes, whose number changes while it trains.

Every process holds the whole trial and reads the same batches; each trains on its share of a batch's rows, and gradients,
weighted by the shares, are summed. When the processes change, those that stay form a new generation, the one that took the most
steps gives its state to the others, and training goes on with the next batch (docs/decisions/0010).
"""

from __future__ import annotations

import secrets
import warnings
from collections.abc import Generator, Mapping, Sequence
from typing import Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from shoal.core.event import Sum
from shoal.train import columns as cols
from shoal.train import handover
from shoal.train.account import add, blaming
from shoal.train.batches import Batch
from shoal.train.buckets import Buckets
from shoal.train.clock import Clock
from shoal.train.group import Gate, Group, PeerLost
from shoal.train.lane import Lane
from shoal.train.notes import Notes
from shoal.train.reader import Open, Reader
from shoal.train.seat import Move, Orders, Rescale, Seat, lr_factor, share

__all__ = ["Adrift", "Halted", "Wide"]

BATCH_NORM = (
    "batch norm sees only a slot's share of each batch: at widths above 1 results differ from those of width 1 "
    "(measured: by 3e-2); use group or layer norm, or widths=(1, 1), where that matters"
)


class Halted(Exception):  # noqa: N818
    """The driver gave the pass up; it counts as not made."""


class Adrift(Exception):  # noqa: N818
    """A peer was lost and no order came. The lane is as before the step in flight: `run` goes on with another seat."""


class Wide:
    """One process's part in a wide lane; at width 1 the lane trains as if alone, to the bit.

    `begin` starts a pass, `run` makes it. Random layers draw from each rank's own copy of the trial's random states, so at
    widths above 1 they differ from width 1. What is read here (`position`, `totals`, `widths`) is equal on all ranks.
    """

    def __init__(self, lane: Lane, orders: Orders, *, exact: bool = False) -> None:
        self.lane, self.orders = lane, orders
        self.clock = Clock(lane._device, exact)
        self.position = 0  # samples of the pass, up to the last step
        self.totals: dict[str, Sum] = {}  # of the values noted in the pass
        self.widths: list[tuple[int, int]] = []  # from that sample of the pass on, that width
        self.rescales: list[Rescale] = []  # that this process went through while it trained
        self._seat: Seat | None = None
        self._group: Group | None = None
        self._gate: Gate | None = None
        self._vain = 0  # a generation whose gate was not found
        self._buckets: Buckets | None = None
        self._notes = Notes()
        self._mark: handover.Mark | None = None
        self._lineage = 0  # which sync this state comes from
        self._whole = self._warned = False
        self._left: tuple[int, float] | None = None  # width, and when its last step ended
        self._since: tuple[int, float] | None = None  # the same, while there is no progress
        self._follow: Sequence[tuple[int, int]] = ()

    def begin(
        self, chunks: Open, samples: int, *, whole: bool = True, same: bool = True, follow: Sequence[tuple[int, int]] = ()
    ) -> None:
        """Start a pass over so many samples. `whole`: the lane is in the trial's state before it; if not, a peer must be.

        `same`: it is in that state since the pass before. `follow`: with a batch per slot, the widths of a former run of this
        pass; batches and rates are those, at any width.
        """
        self._reader = Reader(chunks, samples)
        self.position, self.totals, self.widths, self._follow = 0, {}, [], follow
        self._left = self._since = self._mark = None
        self._notes.clear()
        if not whole or not same:
            self._lineage = 0
        self._whole = whole

    def run(self, seat: Seat) -> Generator[int, None, bool]:
        """Train to the end of the pass, through all changes of width: the samples of each step as it is done.

        Returns whether the pass was made; if not, this process has left the lane on order.

        Raises:
            Halted, Adrift: see there.
            TrialError: the recipe's code raised, or the loss diverged. The peers lose this process by it.
            LookupError: no process of the generation has the trial's state.
            DataError: the study must pause.
        """
        try:
            while True:
                move: Move | None
                try:
                    self._enter(seat)
                    move = yield from self._train()
                    if move is None:
                        return True
                except PeerLost as error:
                    self._undo()
                    move = self._ordered(seat, error)
                if move.seat is None:
                    self.leave()
                    return False
                seat = move.seat
        except BaseException:
            self.leave()
            raise

    @property
    def seat(self) -> Seat:
        """Where it sits, or sat last."""
        assert self._seat is not None, "run comes first"
        return self._seat

    @property
    def whole(self) -> bool:
        """Whether this process has the trial's state, at `position` of the pass."""
        return self._whole

    @property
    def connected(self) -> bool:
        """Whether others count on this process in a generation."""
        return self._group is not None

    def leave(self) -> None:
        """Leave the generation. The state stays."""
        group, self._group = self._group, None
        if self._buckets is not None:
            self._buckets.drop()
        if group is not None:
            group.close()

    # -- generations ---------------------------------------------------------------------------------------------------

    def _enter(self, seat: Seat) -> None:
        if self._seat is None or seat.generation != self._seat.generation or (seat.width > 1) != (self._group is not None):
            self.leave()
            if seat.width > 1:
                self._rehearse(seat)
                gate = self._gate if self._gate is not None and self._gate.seat == seat else Gate(seat)
                self._group = gate.connect(self.orders)
            self._gate, self._seat, self._since = None, seat, self._left
        if self._group is not None and self._buckets is None:
            self._buckets = Buckets(self.lane._parameters)
        self._sync(seat.rank)
        self._warn(seat)
        if self._follow:
            self.widths = list(self._follow)
        elif not self.widths or self.widths[-1][1] != seat.width:
            self.widths = [(at, width) for at, width in self.widths if at < self.position] + [(self.position, seat.width)]
        self._fit()
        with blaming():
            self.lane.begin(self._reader.samples, at=self.position)
        self._reader.seek(self.position)

    def _rehearse(self, seat: Seat) -> None:
        """Make a step that leads to nothing while the others train on: memory is there, and code warm, for the first real one.

        What it changes is overwritten by the state of those that train.
        """
        lane = self.lane
        if self._whole or lane.optimizer.state:
            return
        self._seat = seat
        self._fit()
        with blaming():
            columns, count = self._reader.take(min(lane.size, self._reader.samples)) or ((), 0)
        start, stop = share(count, seat.width, seat.rank)
        rows = stop - start
        with blaming(), lane.rng:  # its share only: there may be no room for more
            lane.backward(lane.forward(cols.cut(columns, start, stop) if rows else None, rows), count, rows / max(count, 1))
            lane.close()
        self._seat = None
        self._reader.seek(0)

    def _sync(self, rank: int) -> None:
        """All ranks take over the state of the one that is furthest."""
        if self._group is None:
            if not self._whole:
                raise LookupError("the lane's only process does not have the trial's state: its unit needs a source")
            return
        own = (len(self.lane.visits), self.position, self._lineage) if self._whole else (-1, 0, 0)
        ranks = self._group.gather(*own)
        furthest = max(one[:2] for one in ranks)
        if furthest[0] < 0:
            raise LookupError("no process of the lane has the trial's state: one of their units needs a source")
        source = next(at for at, one in enumerate(ranks) if one[:2] == furthest)
        bulk = ranks[source][2] == 0 or any(one != ranks[source] for one in ranks)
        into = None if self._whole else {"lane": handover.whole(self.lane)}
        given = self._group.send(self._given(bulk) if rank == source else None, source, into)
        if rank != source:
            self._take(given)
        self._lineage, self._whole = given["lineage"], True

    def _given(self, bulk: bool) -> Mapping[str, Any]:
        return {
            "lane": handover.whole(self.lane) if bulk else handover.light(self.lane),
            "position": self.position,
            "totals": self.totals,
            "widths": self.widths,
            "names": self._notes.names,
            "warned": self._warned,
            "lineage": secrets.randbits(62) + 1,
        }

    def _take(self, given: Mapping[str, Any]) -> None:
        with blaming():
            if given["lane"].get("whole", {}).get("found", self.lane.found) != self.lane.found:
                raise ValueError('a lane\'s slots found different largest batches: say a number instead of batch_size="max"')
            handover.take(self.lane, given["lane"])
        self.position, self.totals, self.widths = given["position"], given["totals"], given["widths"]
        self._notes.names, self._warned = given["names"], given["warned"]

    def _warn(self, seat: Seat) -> None:
        if seat.width > 1 and not self._warned:
            self._warned = True
            if seat.rank == 0 and any(isinstance(module, _BatchNorm) for module in self.lane.model.modules()):
                warnings.warn(f"trial {seat.lane}: {BATCH_NORM}", stacklevel=2)

    def _undo(self) -> None:
        """Give the step in flight up."""
        self.leave()
        self._notes.clear()
        if self._mark is not None:
            handover.back(self.lane, self._mark)
            self._mark = None

    def _ordered(self, seat: Seat, lost: PeerLost) -> Move:
        """What the driver wants now that the generation is over."""
        move = self.orders.wait(seat.generation, seat.patience)
        if self.orders.halted:
            raise Halted
        if move is None:
            raise Adrift(str(lost)) from lost
        return move

    def _asked(self) -> Move | None:
        """A move that this process is ready for.

        Raises:
            PeerLost: the driver knows that one is gone.
        """
        assert self._seat is not None
        move = self.orders.after(self._seat.generation)
        if self._group is not None and self.orders.broken(self._seat.generation):
            raise PeerLost("the driver says so")
        return move if move is None or self._ready(move) else None

    def _ready(self, move: Move) -> bool:
        """Whether those that join are there. One rank of those that stay looks, the others take its word."""
        seat = move.seat
        if seat is None or not seat.joining:
            return True
        joined = seat.rank in seat.joining  # since the order was given
        if not joined and seat.rank != min(set(range(seat.width)) - set(seat.joining)):
            return True
        if self._vain == seat.generation:
            return False
        try:
            if self._gate is None or self._gate.seat != seat:
                self._gate = Gate(seat)
            if not self._gate.reached():
                return False
            if joined:
                self._gate.arrive()
            return joined or self._gate.there(seat.joining)
        except PeerLost:
            self._vain = seat.generation
            return False

    # -- training ------------------------------------------------------------------------------------------------------

    def _train(self) -> Generator[int, None, Move | None]:
        """To the end of the pass, or until all ranks agree on a move."""
        reader, lane = self._reader, self.lane
        while reader.at < reader.samples:
            self._fit()
            left = reader.samples - reader.at
            if lane.settings.drop_last and left < lane.size:
                lane.drop(left)
                yield from self._stepped(reader.samples)
                break
            move = self._asked()
            if self._group is None:
                if self.orders.halted:
                    raise Halted
                if move is not None:
                    return move
            agreed = self._group_of_batches(move)
            yield from self._stepped(self._closed())
            if agreed:
                return move
        with blaming():
            reader.end()
        return None

    def _fit(self) -> None:
        """Batch size and learning rate for the present width."""
        assert self._seat is not None
        lane, s = self.lane, self.lane.settings
        width = next((width for at, width in reversed(self._follow) if at <= self.position), self._seat.width)
        lane.size = s.batch_size * width if s.batch_per_slot else s.batch_size
        lane.factor = lr_factor(s.lr_rule, width) if s.batch_per_slot else 1.0

    def _group_of_batches(self, move: Move | None) -> bool:
        """The gradient of one optimizer's step, over all ranks. Whether all of them agree on the move."""
        lane, reader, s = self.lane, self._reader, self.lane.settings
        if self._group is not None:
            self._mark = handover.mark(lane)
        last = False
        while not last:
            with self.clock.on("data"), blaming():
                batch = reader.take(lane.size)
            assert batch is not None, "there are samples left"
            self._resumed()
            left = reader.samples - reader.at
            last = lane._batches + 1 == s.accumulate_grad_batches or left < (lane.size if s.drop_last else 1)
            self._differentiate(batch, last)
        if self._group is None:
            return False
        with self.clock.on("reduce"):
            return self._sum(move)

    def _differentiate(self, batch: Batch, last: bool) -> None:
        """Forward and backward pass on this rank's rows; with the last batch of a group the gradients' sums begin."""
        assert self._seat is not None
        lane, (columns, count) = self.lane, batch
        start, stop = share(count, self._seat.width, self._seat.rank)
        rows = stop - start
        mine = None if rows == 0 else columns if rows == count else cols.cut(columns, start, stop)
        with blaming(), lane.rng:
            with self.clock.on("forward"):
                loss = lane.forward(mine, rows)
            if self._group is not None:
                self._notes.take(lane)
                if last and self._buckets is not None:
                    self._buckets.open(self._group)
            with self.clock.on("backward"):
                lane.backward(loss, count, rows / count)

    def _sum(self, move: Move | None) -> bool:
        """Sum gradients and notes over the ranks. Whether all of them agree on the move.

        Raises:
            Halted: on any rank.
        """
        assert self._buckets is not None and self._seat is not None
        with blaming():
            present = self._buckets.flush()
        self._buckets.check()
        told, halted, present = self._exchange(0 if move is None else move.generation, present)
        if halted:
            raise Halted
        self._buckets.fill(present)
        return min(told) == max(told) > self._seat.generation

    def _exchange(self, generation: int, present: Sequence[bool]) -> tuple[list[int], bool, list[bool]]:
        """By rank the generation it is ready for; whether one is halted; which gradients there are. Notes become the lane's.

        One sum of numbers in main memory, with every step.
        """
        assert self._group is not None and self._seat is not None
        width, notes = self._seat.width, self._notes
        while True:
            head = [0.0] * width + [float(self.orders.halted), float(not notes.own <= set(notes.names))]
            head[self._seat.rank] = float(generation)
            numbers = torch.tensor([*head, *map(float, present), *notes.numbers()], dtype=torch.float64)
            self._group.sum(numbers)
            found = numbers.tolist()
            if found[width + 1] == 0:
                break
            notes.names = self._group.union(notes.own | set(notes.names))
        at = width + 2
        notes.give(self.lane, found[at + len(present) :])
        return [int(x) for x in found[:width]], found[width] > 0, [x > 0 for x in found[at : at + len(present)]]

    def _closed(self) -> int:
        """Take the optimizer's step; the position after it."""
        lane, reader = self.lane, self._reader
        position, left = reader.at, reader.samples - reader.at
        with self.clock.on("step"), blaming(), lane.rng:
            if not lane.full and left:  # a group cut short, because the rest of the pass is dropped
                lane.drop(left)
                position = reader.samples
            lane.close()
        return position

    def _stepped(self, position: int) -> Generator[int, None, None]:
        """From here on there is no way back."""
        assert self._seat is not None
        before, self.position, self._mark = self.position, position, None
        self._reader.seek(position) if position != self._reader.at else self._reader.keep()
        with blaming():
            _, values = self.lane.taken()
        add(self.totals, values)
        self.clock.stepped()
        self._left = (self._seat.width, self.clock.now())
        yield position - before

    def _resumed(self) -> None:
        """A batch is there; if it is the first after a change, that took so long."""
        if self._since is not None and self._seat is not None:
            width, stopped = self._since
            sent = 0 if self._group is None else self._group.sent
            seconds = self.clock.now() - stopped
            self.rescales.append(Rescale(self._seat.generation, width, self._seat.width, seconds, self.position, sent))
            self._since = None
