"""Waiting for the answer of a process, as long as it lives."""

from math import inf
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayTaskError

from shoal.backend.ray.slots import SlotProcess
from shoal.core.trial import Seconds


def answer(process: SlotProcess, ref: Any, patience: Seconds) -> Any:
    """What the call returns, or raises. It may take as long as it likes.

    `patience`: seconds in which the process must answer another call meanwhile.

    Raises:
        GetTimeoutError: it did not.
    """
    timeout = None
    if patience < inf:
        timeout = patience
    while not ray.wait([ref], timeout=timeout)[0]:
        sign = process.actor.__ray_ready__.remote()
        if not ray.wait([ref, sign], timeout=timeout)[0]:
            raise GetTimeoutError(f"{process.id} gave no answer for {patience:g} s")
    try:
        return ray.get(ref)
    except RayTaskError as error:
        raise error.cause from None
