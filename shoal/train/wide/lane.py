"""A lane trained by several processes, whose number changes while it trains.

Every process has the whole trial and reads the same batches. Each trains on its share of a batch's
rows, and the gradients, weighted by the shares, are summed. When the processes change, those that
stay and those that join form a new generation. The process that took the most steps gives its state
to the others, and training goes on with the next batch (docs/decisions/0010).
"""

from __future__ import annotations

import zlib
from collections.abc import Generator, Sequence

from torch import nn

from shoal.core.errors import warn
from shoal.core.event import Sum
from shoal.profile.all_reduce import GIB
from shoal.train.lane.blame import blaming
from shoal.train.lane.lane import TrainingLane
from shoal.train.lane.model_changes import digest
from shoal.train.lane.training_metrics import add_sums
from shoal.train.recipe.seat import Move, Orders, Seat
from shoal.train.wide import handover
from shoal.train.wide.clock import Clock, WidthChanges
from shoal.train.wide.gate import Adrift, Halted, Moves
from shoal.train.wide.group import Group
from shoal.train.wide.peers import PeerLost
from shoal.train.wide.progress import PassProgress
from shoal.train.wide.step import AnyReader, SharedStep

__all__ = ["Adrift", "Halted", "WideLane"]

# Alone on a GPU, the noted values are read every so many steps: to read them is to wait for it.
REPORT = 32
BATCH_NORMS = (
    nn.BatchNorm1d,
    nn.BatchNorm2d,
    nn.BatchNorm3d,
    nn.SyncBatchNorm,
    nn.LazyBatchNorm1d,
    nn.LazyBatchNorm2d,
    nn.LazyBatchNorm3d,
)
BATCH_NORM = (
    "batch norm sees only a slot's share of each batch: at widths above 1 results differ from "
    "those of width 1 (measured: by 3e-2); use group or layer norm, or widths=(1, 1), where that "
    "matters"
)
OWN = (
    "the slots made something else of what training changes of the model beside its weights, for "
    "each sees only its share of each batch, or none of a small one: at widths above 1 results "
    "differ from those of width 1; use a buffer that follows from the step alone, or widths=(1, 1)"
)


class WideLane:
    """One process's part in a wide lane. At width 1 its results are a lane's alone, to the bit.

    `begin` starts a pass, `run` makes it. Random layers draw from each rank's own copy of the
    trial's random states, so that widths above 1 give other results than width 1. `exact`: see
    `Clock`.
    """

    def __init__(self, lane: TrainingLane, orders: Orders, *, exact: bool = False) -> None:
        self.lane = lane
        self.clock = Clock(lane.device, exact)
        self.moves = Moves(orders)  # what the driver wants of this process
        self._step = SharedStep(lane, self.moves, self.clock)
        self.changes = WidthChanges(self.clock)  # that this process took part in
        self._seat: Seat | None = None
        self._group: Group | None = None
        self._state = handover.SharedState(lane, self._step.notes)
        self._unread = 0  # steps whose values are not in the totals yet
        self._links: dict[str, float] = {}  # figures that were measured and not taken
        self._pass = PassProgress()

    def begin(
        self,
        reader: AnyReader,
        *,
        whole: bool = True,
        same: bool = True,
        follow: Sequence[tuple[int, int]] = (),
    ) -> None:
        """Start the pass that the reader gives.

        `whole`: the lane is in the trial's state before the pass; if not, a peer must be. `same`:
        the lane was not touched since the pass before. `follow`: with a batch per slot, the widths
        of a former run of this pass; batch sizes and learning rates are then those of that run.
        """
        self._reader = reader
        self._pass = PassProgress(follow)
        self._unread = 0
        self.changes.restart()
        self._step.restart()
        self._state.restart(whole, same)

    def run(self, seat: Seat) -> Generator[int, None, bool]:
        """Train to the end of the pass, through all changes of width.

        Yields the samples of each step when it is done. Returns whether the pass was made; if not,
        this process has left the lane on order.

        Raises:
            Halted: the driver gave the pass up.
            Adrift: a peer was lost and no order came. Call `run` with another seat to go on.
            TrialError: the recipe's code raised, or the loss diverged. Its peers lose this process.
            LookupError: no process of the generation has the trial's state.
            DataError: the study must pause.
        """
        try:
            while True:
                move = yield from self._generation(seat)
                if move is None:
                    return True
                if move.seat is None:
                    self.leave()
                    return False
                seat = move.seat
        except BaseException:
            self.leave()
            raise

    def _generation(self, seat: Seat) -> Generator[int, None, Move | None]:
        """Train in one generation; returns where to go from there, None at the end of the pass."""
        try:
            self._enter(seat)
            return (yield from self._train())
        except PeerLost as error:
            self.leave()
            self._step.undo()
            return self.moves.after_loss(seat, error)

    @property
    def position(self) -> int:
        """Samples of the pass, up to the last step."""
        return self._pass.position

    @property
    def totals(self) -> dict[str, Sum]:
        """Sums of the values noted in the pass."""
        return self._pass.totals

    @property
    def widths(self) -> list[tuple[int, int]]:
        """(sample of the pass, width from there on)."""
        return self._pass.widths

    @property
    def seat(self) -> Seat:
        """The seat of this process in the present generation, or in the last one."""
        assert self._seat is not None, "run comes first"
        return self._seat

    @property
    def whole(self) -> bool:
        """Whether this process has the trial's state, at `position` of the pass."""
        return self._state.whole

    @property
    def connected(self) -> bool:
        """Whether others count on this process in a generation."""
        return self._group is not None

    def leave(self) -> None:
        """Leave the generation. The lane's state stays."""
        group = self._group
        self._group = None
        self._step.leave()
        if group is not None:
            group.close()

    # -- generations -------------------------------------------------------------------------------

    def _enter(self, seat: Seat) -> None:
        """Become part of the seat's generation, in the state of the rank that is furthest."""
        lane = self.lane
        width = seat.width
        same = self._seat is not None and seat.generation == self._seat.generation
        if not same or (width > 1) != self.connected:
            self._connect(seat)
        self._step.enter(seat, self._group)
        self._reader.sit(seat.rank, seat.width)
        self._state.sync(self._group, seat.rank, self._pass)
        if width > 1 and not self._state.warned:
            self._state.warned = True  # of all ranks
            modules = lane.model.modules()
            if seat.rank == 0 and any(isinstance(module, BATCH_NORMS) for module in modules):
                warn(f"trial {seat.lane}: {BATCH_NORM}")
        self._pass.enter(width)
        self._pass.fit(lane, width)
        with blaming():
            lane.begin(self._reader.samples, at=self.position)
        self._step.refit()
        self._reader.seek(self.position)

    def _connect(self, seat: Seat) -> None:
        """Leave the present generation, and connect to the seat's."""
        lane = self.lane
        self.leave()
        if seat.width > 1:
            if not self.whole and not lane.optimizer.state:
                self._pass.fit(lane, seat.width)
                self._step.rehearse(self._reader, seat)
            self._group = self.moves.connect(seat, lane.device)
        self.moves.settle()
        self._seat = seat
        self.changes.interrupt()
        if seat.links and self._group is not None:
            begin = self.clock.now()
            link = self._group.link(lane.device)
            self._links = {"latency": link.latency, "transfer": link.transfer * GIB}
            if self._group.rings:
                self._links["rings"] = 1.0
            self.changes.exclude(self.clock.now() - begin)

    def take_links(self) -> dict[str, float]:
        """Figures of the links between nodes, where they were measured since the last call."""
        links, self._links = self._links, {}
        return links

    # -- training ----------------------------------------------------------------------------------

    def _train(self) -> Generator[int, None, Move | None]:
        """Train to the end of the pass, or until all ranks agree on a move."""
        reader = self._reader
        lane = self.lane
        while reader.at < reader.samples:
            self._pass.fit(lane, self.seat.width)
            rest = reader.samples - reader.at
            if lane.settings.drop_last and rest < lane.size:
                lane.drop(rest)
                yield self._stepped(reader.samples)
                break
            move = self.moves.ready_move(self.seat, self.connected)
            if self._group is None:  # in a group the ranks find out together
                if self.moves.orders.halted:
                    raise Halted
                if move is not None:
                    self._read_values()
                    return move
            position, agreed = self._step.make(reader, move, self._resumed)
            yield self._stepped(position)
            if agreed:
                return move
        self._read_values()
        self._compare_changes()
        with blaming():
            reader.end()
        return None

    def _compare_changes(self) -> None:
        """Warn, once, if the slots made something else of the model's attributes."""
        if self._group is None:
            return
        with blaming():
            changes = digest(self.lane.changes_now())
        checksum = zlib.crc32(repr(changes).encode())
        if len(set(self._group.gather(checksum))) > 1 and not self._state.warned_of_own:
            self._state.warned_of_own = True
            if self.seat.rank == 0:
                warn(f"trial {self.seat.lane}: {OWN}")

    def _stepped(self, position: int) -> int:
        """Conclude the step that was made, up to that position; it cannot be undone any more.

        Returns its samples.
        """
        before = self.position
        self._pass.position = position
        self._step.settle()
        if position != self._reader.at:
            self._reader.seek(position)
        else:
            self._reader.keep()
        self._unread += 1
        alone_on_gpu = self._group is None and self.lane.device.type != "cpu"
        if not alone_on_gpu or self._unread >= REPORT:
            self._read_values()
        self.clock.stepped()
        self.changes.stepped(self.seat.width)
        return position - before

    def _read_values(self) -> None:
        """Add what was noted to the totals.

        Raises:
            TrialError: the loss diverged.
        """
        if self._unread:
            self._unread = 0
            with blaming():
                _, values = self.lane.taken()
            add_sums(self.totals, values)

    def _resumed(self) -> None:
        """Note that training goes on: a batch is there."""
        sent = getattr(self._group, "sent", 0)
        self.changes.resumed(self.seat, self.position, sent)
