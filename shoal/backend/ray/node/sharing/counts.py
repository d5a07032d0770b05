"""What a window and its feeders did in this run."""

import platform

from shoal.core.event import Fed
from shoal.core.trial import Seconds

COUNTED = (  # of a window, in this run so far
    "feeders",
    "made",  # chunks
    "served",  # chunks handed out
    "waits",  # of these, not ready when they were asked for
    "waited",  # seconds, of all slots
    "cpu",  # seconds of the feeders' processors
    "bytes",  # of chunks held and being made, at most
    "ahead",  # samples prepared and not asked for yet, at most
    "received",  # chunks that another node's feeders made
    "received_bytes",
)
MOST = ("bytes", "ahead")  # of these: not sums


class WindowCounts:
    """The figures of one window's process."""

    def __init__(self) -> None:
        self._figures = dict.fromkeys(COUNTED, 0.0)
        self._cpu: dict[int, Seconds] = {}  # of each feeder, by its process
        self.told = self.fed(0)  # when the driver last heard of them

    def add(self, **more: float) -> None:
        """So much more was done."""
        for name, each in more.items():
            self._figures[name] += each

    def most(self, **figures: float) -> None:
        """The figures were as high as this, for once."""
        for name, each in figures.items():
            self._figures[name] = max(self._figures[name], each)

    def spent(self, pid: int, cpu: Seconds) -> None:
        """The seconds of a feeder's processor so far."""
        self._cpu[pid] = cpu
        self._figures["cpu"] = sum(self._cpu.values())

    def fed(self, feeders: int) -> Fed:
        """All figures. `feeders`: how many there are now."""
        figures = self._figures | {"feeders": float(feeders)}
        return Fed(platform.node(), figures)
