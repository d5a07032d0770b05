"""The slots of a run at this moment, in a file beside the journal: `shoal status` reads it."""

import json
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from shoal.core.event import Entry
from shoal.core.state import State
from shoal.core.trial import Seconds
from shoal.engine.files import write_whole
from shoal.engine.plain_files import remove_file

# Between two writings. The journal says nothing of slots that wait, or that fall silent.
EVERY: Seconds = 3.0


class SlotBoard:
    """Writes which slots there are, when each was heard of last, and what it does.

    A thread writes, so that the file tells the truth while the run waits. A run that is killed
    leaves the file, which then grows old; one that ends removes it.

    `backend`: if it has `silent`, that says for how long nothing was heard of each slot. Other
    slots are heard of at each moment of the run. If it has `size`, that says how many slots it has
    or starts, and how many fit its nodes.
    """

    def __init__(self, path: Path, backend: Any) -> None:
        self._path = path
        self._size = getattr(backend, "size", None)
        self._silent = getattr(backend, "silent", None)
        self._state = State()
        self._moment = time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._write_on, name="shoal-slots", daemon=True)

    def __call__(self, now: Seconds, entries: tuple[Entry, ...], state: State) -> None:
        self._state = state
        self._moment = time.monotonic()
        if self._thread.ident is None:
            self._thread.start()

    def close(self) -> None:
        """The run ends."""
        self._over.set()
        if self._thread.ident is not None:
            self._thread.join()
        remove_file(self._path)

    def _write_on(self) -> None:
        while not self._over.is_set():
            with suppress(OSError):  # a full disk pauses the study by itself
                self._write()
            self._over.wait(EVERY)

    def _write(self) -> None:
        found: dict[str, Any] = {"written": time.time(), "slots": self._slots()}
        if self._size is not None:
            size = self._size()
            found |= {"asked": size.asked, "room": size.room}
        write_whole(self._path, json.dumps(found).encode())

    def _slots(self) -> list[dict[str, Any]]:
        """The slots, in the order in which they came."""
        state = self._state
        silent: dict[str, Seconds] = {}
        if self._silent is not None:
            silent = self._silent()
        since = time.monotonic() - self._moment
        rows: list[dict[str, Any]] = []
        for name, slot in state.slots.items():
            gang = state.busy.get(name)
            trials: list[str] = []
            if gang is not None:
                trials = [lane.trial for lane in gang.lanes if name in lane.slots]
            row: dict[str, Any] = {"slot": name, "node": slot.node, "kind": slot.kind}
            row["trials"] = trials
            row["shards"] = sorted(slot.shards)
            row["silent"] = silent.get(name, since)
            rows.append(row)
        return rows
