"""What people read while Ray starts, before slots open; and whether a cluster answers."""

import re
import socket
import time
from contextlib import suppress

from shoal.core.trial import Seconds

# The label of a Ray node that says when it will leave, in seconds since 1970.
UNTIL = "shoal-until"
# Seconds that a cluster may take to answer: it may be starting. Ray itself waits for minutes.
PATIENCE: Seconds = 10.0
# Slots for each GPU, or for each CPU, of this machine; more are taken for a slip of the pen.
MOST_EACH = 4
# How a program greets a server of gRPC, as Ray's head is: HTTP/2's preface and no settings.
GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"


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

    A process that was stopped takes connections, and says nothing.

    Raises:
        ConnectionError: nothing did, for as long as `patience`.
    """
    match = re.fullmatch(r"(?:ray://)?([^/:]+):(\d+)", address)
    if match is None:
        return
    end = time.monotonic() + patience
    while True:
        try:
            _greet(match[1], int(match[2]), patience)
        except (OSError, OverflowError) as error:  # the latter: no number of a port
            if time.monotonic() < end:
                time.sleep(0.2)
                continue
            raise ConnectionError(
                f"no Ray cluster answers at {address} ({error}; tried for {patience:g} s): give "
                "the address that `ray start --head` printed where the cluster was started"
            ) from error
        return


def _greet(host: str, port: int, patience: Seconds) -> None:
    """Have a server answer. Whatever it says, and if it hangs up, it lives.

    Raises:
        OSError: nobody takes the connection, or says anything within `patience`.
    """
    server = socket.create_connection((host, port), timeout=patience)
    with server, suppress(ConnectionError):
        server.sendall(GREETING)
        server.recv(1)
