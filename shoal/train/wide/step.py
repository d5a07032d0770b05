"""One optimizer step of a wide lane: each rank's part of the gradient, and the sum of the parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from shoal.train.lane.blame import blaming, noting_rest
from shoal.train.lane.lane import TrainingLane
from shoal.train.overdue import in_time
from shoal.train.recipe.seat import Move, Seat
from shoal.train.stream.reader import JointReader, Part, Reader
from shoal.train.wide import handover
from shoal.train.wide.buckets import Buckets
from shoal.train.wide.clock import Clock
from shoal.train.wide.gate import Halted, Moves
from shoal.train.wide.group import Group
from shoal.train.wide.notes import Bytes, Notes, RankMessage

AnyReader = Reader | JointReader


class SharedStep:
    """Steps of the lane that this process makes by itself or with the others of its generation."""

    def __init__(self, lane: TrainingLane, moves: Moves, clock: Clock) -> None:
        self.notes = Notes()
        self._lane = lane
        self._moves = moves
        self._clock = clock
        self._seat: Seat | None = None
        self._group: Group | None = None
        self._buckets: Buckets | None = None
        self._mark: handover.Mark | None = None
        self._generation = 0  # that this process is ready for; 0: none

    def enter(self, seat: Seat, group: Group | None) -> None:
        """Make steps with that group from now on; None: alone."""
        self._seat = seat
        self._group = group
        if group is not None and self._buckets is None:
            self._buckets = Buckets(self._lane.parameters)

    def refit(self) -> None:
        """Sum the gradients of the parameters that need one now: a pass begins."""
        if self._buckets is not None and not self._buckets.fit:
            self._buckets.close()
            self._buckets = Buckets(self._lane.parameters)

    def leave(self) -> None:
        """Forget the group and its unfinished sums."""
        self._group = None
        if self._buckets is not None:
            self._buckets.drop()

    def restart(self) -> None:
        """Begin a pass: nothing is noted, and there is no step to undo."""
        self._mark = None
        self.notes.clear()

    def undo(self) -> None:
        """Take the lane back to where it was before the step that is not finished."""
        self.notes.clear()
        if self._mark is not None:
            handover.back(self._lane, self._mark)
            self._mark = None

    def settle(self) -> None:
        """Keep the step that was made: it cannot be undone any more."""
        self._mark = None

    def make(
        self, reader: AnyReader, move: Move | None, on_batch: Callable[[], None]
    ) -> tuple[int, bool]:
        """Take one step of the optimizer, over all ranks.

        Returns the position in the pass after it, and whether all ranks agree on the move.
        `on_batch` is called when a batch is there.

        Raises:
            Halted: any rank is.
            PeerLost: another process is gone; `undo` takes the lane back.
        """
        lane = self._lane
        self._generation = 0
        if move is not None:
            self._generation = move.generation
        if self._group is not None:
            self._mark = handover.mark(lane)
        last = False
        while not last:
            with self._clock.on("data"), blaming():
                part = reader.part(lane.size)
            assert part is not None, "there are samples left"
            on_batch()
            last = self._completes(reader)
            with lane.rng:
                self._differentiate(part, last)
                if last:
                    agreed = self._sum()
                    position = self._apply(reader)
        return position, agreed

    def _completes(self, reader: AnyReader) -> bool:
        """Whether the batch that was just taken is the last of its group."""
        settings = self._lane.settings
        if self._lane.batches + 1 == settings.accumulate_grad_batches:
            return True
        least = 1
        if settings.drop_last:
            least = self._lane.size
        return reader.samples - reader.at < least

    def _apply(self, reader: AnyReader) -> int:
        """Take the optimizer's step; returns the position in the pass after it."""
        lane = self._lane
        position = reader.at
        left = reader.samples - reader.at
        with self._clock.on("step"), blaming():
            if left and not lane.full:
                # The group is cut short, so that the rest of the pass is dropped.
                lane.drop(left)
                position = reader.samples
            lane.close()
            lane.adapter.after_batch()
        return position

    def rehearse(self, reader: AnyReader, seat: Seat) -> None:
        """Make a step whose result is thrown away, while the others of that generation train.

        It allocates memory and warms up code for the first real step. What it changes is
        overwritten by the state of those that train.
        """
        lane = self._lane
        reader.sit(seat.rank, seat.width)
        with blaming():
            part = reader.part(min(lane.size, reader.samples))
        batch, rows, count = part or (None, 0, 0)
        with blaming(), lane.rng:
            loss = lane.forward(batch, rows)
            lane.backward(loss, count, rows / max(count, 1))
            lane.close()
        reader.seek(0)

    def _differentiate(self, part: Part, last: bool) -> None:
        """Forward and backward pass on this rank's rows.

        With the last batch of a group the sums of the gradients begin.
        """
        lane = self._lane
        batch, rows, count = part
        # What waits for the other ranks is not watched.
        with blaming(watched=False):
            rest = noting_rest(count, lane.size, lane.of_pass)
            with self._clock.on("forward"), in_time(("wide", lane.signature)), rest:
                loss = lane.forward(batch, rows)
            if self._group is not None:
                self.notes.take(lane)
                if self._buckets is not None and not self._buckets.fit:
                    raise ValueError(
                        "training_step changed requires_grad while several slots train the trial, "
                        "whose gradients are summed for the parameters that needed one as the "
                        "pass began: give widths=(1, 1)"
                    )
                if last and self._buckets is not None:
                    self._buckets.open(self._group, self._packed)
            with self._clock.on("backward"):
                lane.backward(loss, count, rows / count)

    def _packed(self, present: Sequence[bool]) -> Bytes:
        """The message that this rank tells the others with the step, packed.

        To read the notes is to wait for the device, but so is to wait for the gradients' sums,
        which must be there before a step is made.
        """
        notes = self.notes
        halted = self._moves.orders.halted
        unknown = not notes.own_names <= set(notes.names)
        message = RankMessage(self._generation, halted, unknown, present, notes.numbers())
        return message.packed()

    def _sum(self) -> bool:
        """Sum gradients and notes over the ranks; returns whether all ranks agree on the move."""
        if self._group is None:
            return False
        assert self._buckets is not None and self._seat is not None, "enter comes first"
        buckets = self._buckets
        with self._clock.on("reduce"):
            with blaming(watched=False):
                buckets.flush()
            messages = self._messages(self._group, buckets.end())
            if any(each.halted for each in messages):
                raise Halted
            self.notes.give(self._lane, [each.notes for each in messages])
            by_parameter = zip(*(each.present for each in messages), strict=True)
            buckets.fill([any(ranks) for ranks in by_parameter])
        generations = {each.generation for each in messages}
        return len(generations) == 1 and max(generations) > self._seat.generation

    def _messages(self, group: Group, packed: Sequence[Bytes]) -> list[RankMessage]:
        """The ranks' messages.

        When there are new names of notes, the ranks learn them first, and tell once more.
        """
        assert self._buckets is not None, "enter comes first"
        parameters = len(self._buckets.parameters)
        while True:
            messages = [RankMessage.of(each, parameters) for each in packed]
            if not any(each.unknown for each in messages):
                return messages
            notes = self.notes
            notes.names = group.union(notes.own_names | set(notes.names))
            message = torch.from_numpy(self._packed(messages[group.seat.rank].present))
            packed = list(group.gather_rows(message).numpy())
