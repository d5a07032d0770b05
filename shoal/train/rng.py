"""The global random generators, swapped in for one trial at a time."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

_WORDS = 624  # of an MT19937, which lie in memory with its position behind them
_global_bits: Any = np.random.get_bit_generator  # type: ignore[attr-defined]
_set_global_bits: Any = np.random.set_bit_generator  # type: ignore[attr-defined]


class _Generator:
    """A bit generator of NumPy's global functions, and the normal number that those may hold back beside it.

    NumPy takes 60 us to tell its state and as long to set it; exchanging the generator takes none. Only the number held back
    must be asked for, and it can have changed only if the generator has moved since there was none.
    """

    __slots__ = ("_none_at", "bits", "waiting")

    def __init__(self, bits: Any) -> None:
        self.bits = bits
        self.waiting: float | None = None
        self._none_at = b""  # the generator's memory when none was held back

    def put(self) -> None:
        """Make it the one that NumPy's global functions use."""
        _set_global_bits(self.bits)
        if self.waiting is not None:
            np.random.set_state({**self.bits.state, "has_gauss": 1, "gauss": self.waiting})

    def memory(self) -> bytes:
        """The state of an MT19937."""
        return ctypes.string_at(self.bits.ctypes.state_address, 4 * (_WORDS + 1))

    def restore(self, memory: bytes, waiting: float | None) -> None:
        """Go back to what `memory()` and `waiting` were; to be called while it is not the global one."""
        if self.memory() != memory:
            words = np.frombuffer(memory, dtype=np.uint32)
            self.bits.state = _described(words[:_WORDS], int(words[_WORDS]))
        if self.waiting != waiting:
            self.waiting, self._none_at = waiting, b""

    def note(self) -> None:
        """Look what is held back; to be called while it is the global one."""
        memory = self.memory() if isinstance(self.bits, np.random.MT19937) else b""
        if memory and memory == self._none_at:
            return
        state: Any = np.random.get_state(legacy=False)
        self.waiting = float(state["gauss"]) if state.get("has_gauss") else None
        self._none_at = memory if self.waiting is None else b""


def _described(key: Any, position: int) -> dict[str, Any]:
    return {"bit_generator": "MT19937", "state": {"key": key, "pos": position}}


_outer = _Generator(_global_bits())


def _outside() -> _Generator:
    """The generator that is global now, as it was left."""
    global _outer  # noqa: PLW0603
    if _global_bits() is not _outer.bits:
        _outer = _Generator(_global_bits())
    _outer.note()
    return _outer


def _made(key: Any, position: int) -> _Generator:
    bits: Any = np.random.MT19937(0)
    bits.state = _described(key, position)
    return _Generator(bits)


class _Others(NamedTuple):
    """The states of torch's and Python's global generators, and of the device's where it has one; torch's global modes."""

    torch: Tensor
    python: tuple[Any, ...]
    device: Tensor | None
    dtype: torch.dtype  # of new tensors
    grad: bool  # whether operations are recorded


def _read(device: torch.device) -> _Others:
    own = None
    if device.type == "cuda":
        own = torch.cuda.get_rng_state(device)
    elif device.type == "mps":
        own = torch.mps.get_rng_state()
    return _Others(torch.get_rng_state(), random.getstate(), own, torch.get_default_dtype(), torch.is_grad_enabled())


def _write(state: _Others, device: torch.device) -> None:
    torch.set_rng_state(state.torch)
    random.setstate(state.python)
    if torch.get_default_dtype() != state.dtype:
        torch.set_default_dtype(state.dtype)
    if torch.is_grad_enabled() != state.grad:
        torch.set_grad_enabled(state.grad)
    if state.device is not None and device.type == "cuda":
        torch.cuda.set_rng_state(state.device, device)
    elif state.device is not None:
        torch.mps.set_rng_state(state.device)


class Rng:
    """A trial's random states. `with rng:` the global generators are the trial's; afterwards what they were before.

    So are torch's default dtype and whether it records gradients, which a recipe's code may set, too.
    """

    __slots__ = ("_around", "_device", "_numpy", "_others", "_outer")

    def __init__(self, seed: int, device: torch.device) -> None:
        self._device = device
        self._outer = _read(device)
        torch.manual_seed(seed)
        random.seed(seed)
        self._others = _read(device)
        _write(self._outer, device)
        seeded: Any = np.random.RandomState(seed % 2**32).get_state(legacy=False)
        self._numpy = self._around = _made(seeded["state"]["key"], seeded["state"]["pos"])

    def __enter__(self) -> None:
        self._outer, self._around = _read(self._device), _outside()
        _write(self._others, self._device)
        self._numpy.put()

    def __exit__(self, *_: object) -> None:
        self._others = _read(self._device)
        self._numpy.note()
        _write(self._outer, self._device)
        self._around.put()

    @contextmanager
    def untouched(self) -> Iterator[None]:
        """As `with rng:`, but the trial's states stay what they are."""
        mark = self.mark()
        try:
            with self:
                yield
        finally:
            self.back(mark)

    def mark(self) -> tuple[Any, ...]:
        """Where the trial's states are now; to be taken outside `with rng:`, as `back` is to be called."""
        return self._others, self._numpy, self._numpy.memory(), self._numpy.waiting

    def back(self, mark: tuple[Any, ...]) -> None:
        """Go back to where they were."""
        self._others, self._numpy = mark[:2]
        self._numpy.restore(*mark[2:])

    def state(self) -> dict[str, Any]:
        """As arrays and plain values."""
        (version, words, gauss), numpy = self._others.python, self._numpy
        inner: Any = numpy.bits.state["state"]
        return {
            "torch": self._others.torch.numpy(),
            "numpy": {"key": inner["key"].view(np.int32), "pos": int(inner["pos"]), "waiting": numpy.waiting},
            "python": {"version": version, "words": np.array(words, dtype=np.uint32).view(np.int32), "gauss": gauss},
            "device": None if self._others.device is None else self._others.device.numpy(),
        }

    def load(self, state: Any) -> None:
        """Take over what `state()` gave. A state that comes from a device of another kind leaves this device's own."""
        python, device = state["python"], state["device"]
        words = np.asarray(python["words"]).view(np.uint32).tolist()
        self._others = _Others(
            torch.from_numpy(np.array(state["torch"])),
            (python["version"], tuple(words), python["gauss"]),
            self._others.device if device is None or self._others.device is None else torch.from_numpy(np.array(device)),
            *self._others[3:],
        )
        self._numpy = _made(np.array(state["numpy"]["key"]).view(np.uint32), state["numpy"]["pos"])
        self._numpy.waiting = state["numpy"]["waiting"]
