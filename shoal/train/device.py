"""Which device a process trains on."""

from math import inf

import torch


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
    """GiB that a slot has on the device: `most`, else its `share` of a GPU; on a GPU this process gets no more from now on."""
    whole = memory_of(device) * share
    if most is None:
        return whole
    if device.startswith("cuda"):
        torch.cuda.set_per_process_memory_fraction(min(1.0, most / memory_of(device)), device)
    return min(most, whole)


def memory_of(device: str) -> float:
    """GiB of memory of a GPU; infinite where main memory is used."""
    if not device.startswith("cuda"):
        return inf
    return float(torch.cuda.get_device_properties(device).total_memory / 2**30)
