"""The global random generators, swapped in for one trial at a time."""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from shoal.train.private import WORDS, generator_memory

_global_bits: Any = np.random.get_bit_generator  # type: ignore[attr-defined]
_set_global_bits: Any = np.random.set_bit_generator  # type: ignore[attr-defined]


class _Generator:
    """A bit generator for NumPy's global functions, and the normal number that they hold back.

    These functions draw normal numbers in pairs, and hold the second one back beside the generator.
    NumPy takes 60 us to give its state and as long to set it; to exchange the generator takes
    nothing. Only the number held back must be asked for. It can have changed only if the generator
    has moved since there was none.
    """

    __slots__ = ("_none_at", "bits", "waiting")

    def __init__(self, bits: Any) -> None:
        self.bits = bits
        self.waiting: float | None = None
        self._none_at = b""  # the generator's memory when none was held back

    def put(self) -> None:
        """Make this the generator that NumPy's global functions use."""
        _set_global_bits(self.bits)
        if self.waiting is not None:
            np.random.set_state({**self.bits.state, "has_gauss": 1, "gauss": self.waiting})

    def memory(self) -> bytes:
        """The generator's memory, which is the state of an MT19937."""
        return generator_memory(self.bits)

    def restore(self, memory: bytes, waiting: float | None) -> None:
        """Go back to what `memory()` and `waiting` were. Call it outside `with rng:` only."""
        if self.memory() != memory:
            words = np.frombuffer(memory, dtype=np.uint32)
            self.bits.state = _described(words[:WORDS], int(words[WORDS]))
        if self.waiting != waiting:
            self.waiting = waiting
            self._none_at = b""

    def note(self) -> None:
        """Look which number is held back. Call it while this is the global generator."""
        memory = b""
        if isinstance(self.bits, np.random.MT19937):
            memory = self.memory()
        if memory and memory == self._none_at:
            return
        state: Any = np.random.get_state(legacy=False)
        if state.get("has_gauss"):
            self.waiting = float(state["gauss"])
            self._none_at = b""
        else:
            self.waiting = None
            self._none_at = memory


def _described(key: Any, position: int) -> dict[str, Any]:
    """The state of an MT19937 as NumPy wants it."""
    return {"bit_generator": "MT19937", "state": {"key": key, "pos": position}}


_outer = _Generator(_global_bits())


def _outside() -> _Generator:
    """The generator that is global now, as it was left."""
    global _outer  # noqa: PLW0603
    if _global_bits() is not _outer.bits:
        _outer = _Generator(_global_bits())
    _outer.note()
    return _outer


class _States(NamedTuple):
    """The states of torch's, Python's and the device's global generators, and torch's modes."""

    torch: Tensor
    python: tuple[Any, ...]
    device: Tensor | None
    dtype: torch.dtype  # of new tensors
    grad: bool  # whether operations are recorded


def _read(device: torch.device) -> _States:
    """The states of the global generators, and torch's modes, as they are now."""
    device_state = None
    if device.type == "cuda":
        device_state = torch.cuda.get_rng_state(device)
    elif device.type == "mps":
        device_state = torch.mps.get_rng_state()
    return _States(
        torch.get_rng_state(),
        random.getstate(),
        device_state,
        torch.get_default_dtype(),
        torch.is_grad_enabled(),
    )


def _write(state: _States, device: torch.device) -> None:
    """Set the global generators and modes to these states."""
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


def global_state(device: torch.device) -> tuple[Any, ...]:
    """A value that changes as soon as a global generator is drawn from, or torch's modes set.

    The device's generator is looked at, too.
    """
    states = _read(device)
    numpy = _outside()
    device_state = None if states.device is None else states.device.numpy().tobytes()
    bits: Any = repr(numpy.bits.state)
    if isinstance(numpy.bits, np.random.MT19937):
        bits = numpy.memory()
    return (
        states.torch.numpy().tobytes(),
        states.python,
        device_state,
        states.dtype,
        states.grad,
        bits,
        numpy.waiting,
    )


def _filter(filters: list[Any]) -> None:
    """Make these the filters of warnings."""
    present: Any = warnings.filters
    present[:] = filters


class Rng:
    """A trial's random states.

    Within `with rng:` the global generators are the trial's. Afterwards they are what they were.
    The same holds for torch's default dtype, whether it records gradients, and Python's filters of
    warnings, for a recipe's code may set these, too.
    """

    __slots__ = ("_around", "_device", "_filters", "_numpy", "_outer", "_outer_filters", "_states")

    def __init__(self, seed: int, device: torch.device) -> None:
        self._device = device
        self._outer = _read(device)
        if device.type == "cpu":
            # torch.manual_seed also notes the seed, with a traceback, for GPUs that nobody uses.
            torch.default_generator.manual_seed(seed)
        else:
            torch.manual_seed(seed)
        random.seed(seed)
        self._states = _read(device)
        _write(self._outer, device)
        bits = np.random.MT19937(0)
        np.random.RandomState(bits).seed(seed % 2**32)  # as np.random.seed would
        self._numpy = _Generator(bits)
        self._around = self._numpy
        self._outer_filters = list(warnings.filters)
        # of warnings, once the trial's code has set others than there were
        self._filters: list[Any] | None = None

    def __enter__(self) -> None:
        self._outer_filters = list(warnings.filters)
        if self._filters is not None:
            _filter(self._filters)
        self._outer = _read(self._device)
        self._around = _outside()
        _write(self._states, self._device)
        self._numpy.put()

    def __exit__(self, *_: object) -> None:
        self._states = _read(self._device)
        self._numpy.note()
        _write(self._outer, self._device)
        self._around.put()
        filters = list(warnings.filters)
        if filters != self._outer_filters:
            self._filters = filters
            _filter(self._outer_filters)

    @contextmanager
    def untouched(self) -> Iterator[None]:
        """Do as `with rng:` does, but leave the trial's states what they are."""
        mark = self.mark()
        try:
            with self:
                yield
        finally:
            self.back(mark)

    def mark(self) -> tuple[Any, ...]:
        """The trial's states as they are now. Call it, and `back`, outside `with rng:` only."""
        numpy = (self._numpy.memory(), self._numpy.waiting)
        return self._states, self._filters, self._numpy, *numpy

    def back(self, mark: tuple[Any, ...]) -> None:
        """Go back to the states that `mark` gave."""
        self._states, self._filters, self._numpy, *numpy = mark
        self._numpy.restore(*numpy)

    def state(self) -> dict[str, Any]:
        """The trial's states as arrays and plain values."""
        states = self._states
        device = None
        if states.device is not None:
            device = states.device.numpy()
        words: Any = self._numpy.bits.state["state"]
        return {
            "torch": states.torch.numpy(),
            "numpy": {
                "key": words["key"].view(np.int32),
                "pos": int(words["pos"]),
                "waiting": self._numpy.waiting,
            },
            "python": _python_state(states.python),
            "device": device,
        }

    def load(self, state: Any) -> None:
        """Take over what `state()` gave.

        A state that comes from a device of another kind leaves the states of this device as they
        are.
        """
        states = self._states
        device = states.device
        if device is not None and state["device"] is not None:
            device = _tensor(state["device"])
        self._states = states._replace(
            torch=_tensor(state["torch"]), python=_python_of(state["python"]), device=device
        )
        numpy = state["numpy"]
        bits: Any = np.random.MT19937(0)
        bits.state = _described(np.array(numpy["key"]).view(np.uint32), numpy["pos"])
        self._numpy = _Generator(bits)
        self._numpy.waiting = numpy["waiting"]


def _tensor(array: Any) -> Tensor:
    """A copy of the array as a tensor."""
    return torch.from_numpy(np.array(array))


def _python_state(state: tuple[Any, ...]) -> dict[str, Any]:
    """The state of Python's generator as arrays and plain values."""
    version, words, gauss = state
    numbers = np.array(words, dtype=np.uint32)
    return {"version": version, "words": numbers.view(np.int32), "gauss": gauss}


def _python_of(state: Any) -> tuple[Any, ...]:
    """The state of Python's generator out of what `_python_state` gave."""
    words = np.asarray(state["words"]).view(np.uint32).tolist()
    return state["version"], tuple(words), state["gauss"]
