"""Where a study was trained: what decides the last bits of its numbers, recorded with each run."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from typing import Any

from shoal.core.event import Opened
from shoal.engine.journal import Line
from shoal.study.folder import versions
from shoal.train.lane.device import device_of, instructions, kind_of_name

LIBRARIES = ("torch", "numpy", "shoal")
UNKNOWN = "the processor was not recorded"


def place(device: str) -> dict[str, str]:
    """What the numbers depend on beside libraries and threads. `device`: "auto" or a name.

    With a cluster of several machines this is the one that runs the study.
    """
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "instructions": instructions(),
        "device": kind_of_name(device_of(device)),
    }


def _processor() -> str:
    """The processor's name, as the system tells it."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
            found = [line for line in lines if line.startswith("model name")]
    except OSError:
        found = []
    if found:
        return found[0].partition(":")[2].strip()
    return platform.processor() or platform.machine()


def unlike_here(lines: Sequence[Line]) -> list[str]:
    """In what the places of a study's runs differ from this process, in words."""
    heads = [line.entry.head for line in lines if isinstance(line.entry, Opened)]
    if not heads:
        return []
    options = heads[-1]["options"]
    here = {
        **place(options["device"]),
        **{name: versions().get(name, "none") for name in LIBRARIES},
        "threads": str(options["threads"]),
    }
    found: dict[str, None] = {}
    for head in heads:
        found |= dict.fromkeys(_unlike(head, here))
    return list(found)


def _unlike(head: Mapping[str, Any], here: Mapping[str, str]) -> list[str]:
    """In what a run's place differs from this one."""
    there = {
        **head.get("place", {}),
        **head.get("versions", {}),
        "threads": str(head["options"]["threads"]),
    }
    texts = [
        f"{name} was {there[name]}, is {value}"
        for name, value in here.items()
        if name in there and there[name] != value
    ]
    return texts if "place" in head else [*texts, UNKNOWN]
