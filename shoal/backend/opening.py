"""What is said while slots open: that takes a while on Ray, and nothing trains meanwhile."""

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
