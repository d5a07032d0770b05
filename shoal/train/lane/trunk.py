"""A frozen trunk that several trials of a slot have, held once.

Source: Liu et al., "Understanding and Optimizing Packed Neural Network Training for Hyper-Parameter
Tuning", 2020, section 3.2: what packed models have in common is in memory once.

Trials often begin with the same pretrained network and train only what comes after it, each with a
copy that its own `configure_model` made. Where the frozen parameters of two lanes are equal to the
bit, their values move into one file in memory. Each lane's parameters become a private mapping of
it: the system copies a page for the lane that writes to it. So a lane may write to its parameters
in whatever way, unfreeze them or load others, as if they were its own: no other lane sees it, and
only the memory that was saved is spent again.

Only Linux and memory of the CPU have such mappings; elsewhere each lane keeps its own trunk.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from hashlib import blake2b
from typing import Protocol
from weakref import WeakKeyDictionary, WeakValueDictionary

import numpy as np
import torch
from torch import Tensor, nn

from shoal.core.profile import SHARED
from shoal.train.lane.tensors import unique
from shoal.train.lane.tree import view_of
from shoal.train.private import is_compiled, is_only_user, writes

LEAST = 2**20  # bytes of a trunk that are worth sharing
ALIGNED = 64  # bytes, as torch aligns tensors
BEGIN = 4096  # bytes of each tensor that tell trunks apart before they are compared
POSSIBLE = hasattr(os, "memfd_create") and hasattr(mmap, "MAP_PRIVATE")

Frozen = Sequence[Tensor]
Bytes = np.ndarray[tuple[int], np.dtype[np.uint8]]


class HasTrunk(Protocol):
    """A lane, as far as its trunk is concerned: `trunk` is None while it has one for itself."""

    model: nn.Module
    device: torch.device
    parameters: list[nn.Parameter]  # of its optimizers
    trunk: LaneTrunk | None

    @property
    def signature(self) -> str:
        """The cost signature: lanes with equal ones have equal step cost and memory."""
        ...


class Trunk:
    """The values of frozen parameters, in a file in memory.

    `key`: equal for equal values, on any slot. `bytes`: what it takes.

    Raises:
        OSError: the system has no memory for it.
    """

    def __init__(self, frozen: Frozen) -> None:
        self._starts = []
        end = 0
        for tensor in frozen:
            self._starts.append(end)
            end += -(-tensor.nbytes // ALIGNED) * ALIGNED
        self.bytes = end
        self._file = os.fdopen(os.memfd_create("shoal-trunk"), "r+b")
        self._file.truncate(end)
        content = np.frombuffer(mmap.mmap(self._file.fileno(), end), np.uint8)
        self._values = [
            content[start : start + tensor.nbytes]
            for start, tensor in zip(self._starts, frozen, strict=True)
        ]
        values = blake2b(_beginnings(frozen), digest_size=8)
        for value, tensor in zip(self._values, frozen, strict=True):
            value[:] = _bytes_of(tensor)
            values.update(value.data)
        content.flags.writeable = False
        self.key = values.hexdigest()

    def is_equal(self, frozen: Frozen) -> bool:
        """Whether these parameters, of the trunk's forms, have its values."""
        return _are_equal(self._values, [_bytes_of(tensor) for tensor in frozen])

    def private(self) -> mmap.mmap:
        """A mapping of the values, of which a page is copied when it is written to.

        Raises:
            OSError: the system has none.
        """
        return mmap.mmap(self._file.fileno(), self.bytes, flags=mmap.MAP_PRIVATE)

    def places(self, memory: mmap.mmap, frozen: Frozen) -> list[Tensor]:
        """The parameters' places in such a mapping."""
        flat = torch.frombuffer(memory, dtype=torch.uint8)
        return [
            flat[start : start + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
            for start, tensor in zip(self._starts, frozen, strict=True)
        ]


class LaneTrunk:
    """A lane's frozen parameters, which from here on lie in its own mapping of the trunk."""

    def __init__(self, trunk: Trunk, frozen: Frozen) -> None:
        self.trunk = trunk
        self.frozen = tuple(frozen)
        self._memory = trunk.private()
        places = trunk.places(self._memory, frozen)
        for tensor, place in zip(self.frozen, places, strict=True):
            tensor.data = place
        self._addresses = [place.data_ptr() for place in places]
        self._writes = [writes(tensor) for tensor in self.frozen]

    @property
    def untouched(self) -> bool:
        """Whether autograd knows of no change; see `is_equal`, which reads all values."""
        return not any(tensor.requires_grad for tensor in self.frozen) and (
            [writes(tensor) for tensor in self.frozen] == self._writes
        )

    def is_equal(self) -> bool:
        """Whether the lane's parameters are there, and have the trunk's values."""
        in_place = [tensor.data_ptr() for tensor in self.frozen] == self._addresses
        return in_place and self.trunk.is_equal(self.frozen)

    def renew(self) -> bool:
        """Give back pages that were written to with the values that they had.

        A state that is loaded does that. Returns whether the lane still has the trunk.
        """
        if any(tensor.requires_grad for tensor in self.frozen) or not self.is_equal():
            return False
        self._memory.madvise(mmap.MADV_DONTNEED)
        self._writes = [writes(tensor) for tensor in self.frozen]
        return True


class Trunks:
    """Finds the lanes of a slot that have a trunk in common.

    `tell` hears of kinds of lanes, by their signature: so many GiB of such a lane are a trunk that
    others have, too, in a figure named after it; 0 once one of the kind was seen with another.
    """

    def __init__(self, tell: Callable[..., None]) -> None:
        self._tell = tell
        # by signature: the trunk's key; "": they differ
        self._reported: dict[str, str] = {}
        self._frozen: WeakKeyDictionary[HasTrunk, list[Tensor]] = WeakKeyDictionary()
        # by the beginnings of their tensors: lanes that may be the first of several, and trunks
        self._lanes: WeakValueDictionary[bytes, HasTrunk] = WeakValueDictionary()
        self._trunks: WeakValueDictionary[bytes, Trunk] = WeakValueDictionary()

    def enter(self, lane: HasTrunk) -> None:
        """Note what a new lane may share, before anything else uses its memory."""
        frozen = frozen_of(lane)
        if frozen:
            self._frozen[lane] = frozen

    def share(self, lane: HasTrunk) -> None:
        """Let the lane share its trunk with others of the slot, if any has the same.

        A lane's trunk is looked at again after a state was loaded.
        """
        if lane.trunk is None:
            frozen = self._shareable(lane)
            if frozen:
                with suppress(OSError):  # without memory to share each keeps its own
                    self._share(lane, frozen)
        elif not lane.trunk.renew():
            lane.trunk = None
        self._report(lane)

    def settle(self, lane: HasTrunk, wide: bool) -> None:
        """After training, part a lane from the trunk that it changed, or may have if it is `wide`.

        `wide`: it trained together with other processes.
        """
        if lane.trunk is not None and (wide or not lane.trunk.untouched):
            lane.trunk = None
        self._report(lane)

    def _report(self, lane: HasTrunk) -> None:
        """Tell what is new of the trunks of lanes of this kind."""
        reported = self._reported.get(lane.signature)
        if lane.trunk is not None:
            trunk = lane.trunk.trunk
            if reported is None:
                self._reported[lane.signature] = trunk.key
                self._tell(lane.signature, **{f"{SHARED}{trunk.key}": trunk.bytes / 2**30})
            differs = reported is not None and reported != trunk.key
        else:
            differs = any(trunk.key == reported for trunk in self._trunks.values())
        if reported and differs:
            self._reported[lane.signature] = ""
            self._tell(lane.signature, **{f"{SHARED}{reported}": 0.0})

    def _share(self, lane: HasTrunk, frozen: Frozen) -> None:
        begins = _beginnings(frozen)
        trunk = self._trunks.get(begins)
        first = self._lanes.get(begins)
        if trunk is None and (first is None or first is lane):
            self._lanes[begins] = lane
        elif trunk is not None:
            if trunk.is_equal(frozen):
                lane.trunk = LaneTrunk(trunk, frozen)
        elif first is not None:
            first_frozen = self._shareable(first)
            if _beginnings(first_frozen) != begins or not _are_equal(
                map(_bytes_of, first_frozen), map(_bytes_of, frozen)
            ):
                self._lanes[begins] = lane
                return
            trunk = Trunk(frozen)
            first.trunk = LaneTrunk(trunk, first_frozen)
            lane.trunk = LaneTrunk(trunk, frozen)
            self._trunks[begins] = trunk

    def _shareable(self, lane: HasTrunk) -> list[Tensor]:
        """The lane's frozen parameters, if all are frozen still and lie in memory of their own."""
        frozen = self._frozen.get(lane, [])
        if all(not each.requires_grad and _has_own_memory(each) for each in frozen):
            return frozen
        return []


def frozen_of(lane: HasTrunk) -> list[Tensor]:
    """The lane's parameters that nothing trains; none where they cannot be shared.

    Those of an optimizer wait to be trained. What lies in memory that others use, too, stays there.
    """
    if not POSSIBLE or lane.device.type != "cpu":
        return []
    stepped = {id(parameter) for parameter in lane.parameters}
    frozen = [
        parameter
        for parameter in unique(lane.model.parameters())
        if not parameter.requires_grad and id(parameter) not in stepped
    ]
    if not frozen or any(map(is_compiled, lane.model.modules())):
        return []
    frozen = [
        parameter
        for parameter in frozen
        # what another library made has a size that cannot change; torch says so, too, of memory
        # that was ever seen as an array
        if _has_own_memory(parameter) and parameter.untyped_storage().resizable()
    ]
    if sum(parameter.nbytes for parameter in frozen) < LEAST:
        return []
    return frozen


def shared_bytes(lanes: Iterable[HasTrunk]) -> int:
    """The bytes that these lanes do not take, because another of them has the same trunk."""
    trunks = [lane.trunk.trunk for lane in lanes if lane.trunk is not None]
    return sum(trunk.bytes for trunk in trunks) - sum(trunk.bytes for trunk in set(trunks))


def in_common(lanes: Sequence[HasTrunk]) -> set[int]:
    """The ids of the tensors of all these lanes that lie in a trunk that all of them have."""
    trunks = [lane.trunk for lane in lanes if lane.trunk is not None]
    if len(trunks) < len(lanes) or len({each.trunk for each in trunks}) != 1:
        return set()
    if not all(each.is_equal() for each in trunks):
        return set()
    return {id(tensor) for each in trunks for tensor in each.frozen}


def _has_own_memory(parameter: Tensor) -> bool:
    """Whether the parameter has a piece of torch's memory for itself."""
    if type(parameter) is not nn.Parameter or type(parameter.data) is not Tensor:
        return False
    if parameter.layout is not torch.strided or not parameter.is_contiguous():
        return False
    storage = parameter.untyped_storage()
    return 0 < storage.nbytes() == parameter.nbytes and is_only_user(storage)


def _bytes_of(tensor: Tensor) -> Bytes:
    """The tensor's memory."""
    flat: Bytes = view_of(tensor).reshape(-1).view(np.uint8)
    return flat


def _beginnings(frozen: Frozen) -> bytes:
    """The tensors' forms, and how their values begin."""
    values = blake2b(digest_size=16)
    for tensor in frozen:
        values.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
        values.update(_bytes_of(tensor)[:BEGIN].data)
    return values.digest()


def _are_equal(some: Iterable[Bytes], others: Iterable[Bytes]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(some, others, strict=True))
