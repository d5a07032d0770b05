"""Before slots open: what is said, for that takes a while on Ray; and whether a cluster answers."""

import re
import socket
import time

from shoal.core.trial import Seconds

# Seconds that a cluster may take to answer: it may be starting. Ray itself waits for minutes.
PATIENCE: Seconds = 10.0
# Slots for each GPU, or for each CPU, of this machine; more are taken for a slip of the pen.
MOST_EACH = 4


def ray_starts(address: str | None, slots: int | None) -> str:
    """What a process waits for that starts Ray with so many slots, or joins it at an address."""
    if address is not None:
        return f"Joining the Ray cluster at {address} …"
    if slots is None:
        return "Starting Ray …"
    return f"Starting Ray ({slots_text(slots)}) …"


def slots_text(count: int) -> str:
    """1 slot, 2 slots."""
    return f"{count} slot" if count == 1 else f"{count} slots"


def check_reached(address: str, patience: Seconds = PATIENCE) -> None:
    """Wait until something answers at the address, if it names a host and a port.

    Raises:
        ConnectionError: nothing did, for as long as `patience`.
    """
    named = re.fullmatch(r"(?:ray://)?([^/:]+):(\d+)", address)
    if named is None:
        return
    end = time.monotonic() + patience
    while True:
        try:
            socket.create_connection(
                (named[1], int(named[2])), timeout=patience
            ).close()
        except (OSError, OverflowError) as error:  # the latter: no number of a port
            if time.monotonic() < end:
                time.sleep(0.2)
                continue
            raise ConnectionError(
                f"no Ray cluster answers at {address} ({error}; tried for {patience:g} s): give "
                "the address that `ray start --head` printed where the cluster was started"
            ) from error
        return
