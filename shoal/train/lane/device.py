"""Which device a process trains on, what it may take of its memory, and whether it still works."""

from math import inf

import torch
from torch import Tensor

from shoal.core.errors import ArgumentError

# GiB of a GPU that a process may take beside what it allocates; not measured
CONTEXT = 0.5

_in_use: set[torch.device] = set()  # GPUs that this process trains on


def device_of(name: str = "auto") -> str:
    """The name of a device that is here; of "auto" a GPU's if there is one, else the CPU's.

    Raises:
        ArgumentError: there is no such device here.
    """
    available = ["cpu"]
    if torch.cuda.is_available():
        available.append("cuda")
    if torch.backends.mps.is_available():
        available.append("mps")
    if name == "auto":
        return next(kind for kind in ("cuda", "mps", "cpu") if kind in available)
    if name.partition(":")[0] not in available:
        raise ArgumentError(f"there is no device {name!r} here; there are {', '.join(available)}")
    return name


def gpus() -> int:
    """How many CUDA devices this machine has."""
    return torch.cuda.device_count()


def use(name: str) -> torch.device:
    """The device of that name, on which this process trains from now on.

    "cuda" without a number means this device, too.
    """
    device = torch.device(name)
    if device.type == "cuda":
        if device.index is not None:
            torch.cuda.set_device(device)
        _in_use.add(device)
    return device


def works() -> bool:
    """Whether the GPUs in use still compute: after some errors they never do, in this process."""
    try:
        initialized: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        if not initialized:
            return True
        devices = _in_use or {torch.device("cuda")}
        return all(bool(torch.ones(1, device=device).item() == 1) for device in devices)
    except torch.OutOfMemoryError:
        return True
    except RuntimeError:
        return False


def kind_of(device: torch.device) -> str:
    """The kind of device, on which speed depends: the name of a GPU's model, or else its type."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return device.type


def kind_of_name(name: str) -> str:
    """The kind of the device of that name; see `kind_of`."""
    return kind_of(torch.device(name))


def instructions() -> str:
    """The processor's instructions that torch uses, such as AVX2: its sums round by them."""
    return torch.backends.cpu.get_cpu_capability()


def limit_memory(device: str, most: float | None, share: float = 1.0, chunks: float = 0.0) -> float:
    """GiB that a slot has for trials on the device.

    That is `most`, or its `share` of a GPU, or what is free there now, whichever is least; on a GPU
    without what prepared `chunks` take. What is free excludes what other processes and the context
    of this one take. With `most` or a share of a GPU this process can allocate no more than that.
    """
    limit = inf if most is None else most
    if not device.startswith("cuda"):
        return limit
    total = memory_of(device)
    room = min(limit, free_memory(device))
    if share < 1:
        room = min(room, max(share * total - CONTEXT, share * total / 2))
    if room < total and (share < 1 or limit < total):
        torch.cuda.set_per_process_memory_fraction(room / total, torch.device(device).index)
    return room - min(chunks, room / 2)


def doubled(tensor: Tensor) -> Tensor:
    """The tensor in float64; from Apple's GPUs, which have none, in main memory."""
    if tensor.device.type == "mps":
        tensor = tensor.cpu()
    return tensor.double()


def memory_of(device: str) -> float:
    """GiB of memory of a GPU; infinite where main memory is used."""
    if not device.startswith("cuda"):
        return inf
    return float(torch.cuda.get_device_properties(device).total_memory / 2**30)


def free_memory(device: str) -> float:
    """GiB of a GPU's memory that this process could allocate now, or has allocated."""
    free, _ = torch.cuda.mem_get_info(torch.device(device))
    return float((free + torch.cuda.memory_reserved(device)) / 2**30)
