"""Which device a process trains on."""

import ctypes
import os
import sys
from contextlib import suppress
from math import inf

import torch
from torch import Tensor

HELD = 128 * 2**20  # bytes, freed, that a process keeps
CONTEXT = 0.5  # GiB of a GPU that a process may take beside what it allocates; not measured


def device_of(name: str = "auto") -> str:
    """The device by that name; "auto": a GPU if there is one, else the CPU.

    Raises:
        ValueError: there is no such device here.
    """
    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if name == "auto":
        return "cuda" if there["cuda"] else "mps" if there["mps"] else "cpu"
    if not there.get(name.partition(":")[0], False):
        raise ValueError(f"there is no device {name!r} here; there are {', '.join(k for k, found in there.items() if found)}")
    return name


def gpus() -> int:
    """How many CUDA devices this machine has."""
    return torch.cuda.device_count()


def limit_memory(device: str, most: float | None, share: float = 1.0) -> float:
    """GiB that a slot has on the device: `most`, or its `share` of a GPU, if less. On a GPU this process gets no more then."""
    whole = memory_of(device)
    room = min(whole if share >= 1 else max(share * whole - CONTEXT, share * whole / 2), inf if most is None else most)
    if room < whole < inf:
        torch.cuda.set_per_process_memory_fraction(room / whole, torch.device(device).index)
    return room


def keep_freed() -> None:
    """Have this process keep what memory a step frees for the next one, within bounds (glibc; elsewhere nothing happens).

    Left to itself glibc gives it back and asks for it again at every step of a fused pack, and the system zeroes each page
    anew: a tenth of the time of 16 small convolutional nets. Who has set an option of glibc's allocator is left alone.
    """
    trim_threshold, mmap_threshold = -1, -3  # of mallopt; either one also stops glibc from adapting both
    if sys.platform == "linux" and not any(name == "GLIBC_TUNABLES" or name.startswith("MALLOC_") for name in os.environ):
        with suppress(AttributeError, OSError):
            library = ctypes.CDLL(None)
            if library.mallopt(mmap_threshold, 32 * 2**20):  # the largest that it takes
                library.mallopt(trim_threshold, HELD)


def doubled(tensor: Tensor) -> Tensor:
    """The tensor in float64; from Apple's GPUs, which have none, in main memory."""
    return (tensor.cpu() if tensor.device.type == "mps" else tensor).double()


def memory_of(device: str) -> float:
    """GiB of memory of a GPU; infinite where main memory is used."""
    if not device.startswith("cuda"):
        return inf
    return float(torch.cuda.get_device_properties(device).total_memory / 2**30)
