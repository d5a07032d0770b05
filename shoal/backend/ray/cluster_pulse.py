"""Whether the cluster lives: its head, which knows the nodes, and this process's own node.

Without them Ray waits for minutes, or for ever, and then ends this process without a word. So a run
whose cluster is silent for long pauses with an error.
"""

import socket
import threading
from collections.abc import Callable
from time import monotonic

from shoal.backend.ray import reaper
from shoal.backend.ray.cluster import Unanswered, alive, here, raylet_socket
from shoal.core.trial import Seconds

EVERY: Seconds = 2.0  # between two questions
ANSWER: Seconds = 5.0  # that one answer may take
AT_ONCE: Seconds = 1.0
PATIENCE: Seconds = 30.0  # without any answer
# Ray's own processes, for people.
NAMES = {"raylet": "its raylet", "gcs_server": "its head (gcs_server)"}


class ClusterPulse:
    """Asks the cluster in a thread of its own whether it lives. `started_here`: by this process."""

    def __init__(
        self,
        started_here: bool,
        patience: Seconds = PATIENCE,
        ask: Callable[[Seconds], frozenset[str]] = alive,
    ) -> None:
        self._started_here = started_here
        self._patience = patience
        self._ask = ask
        self._node = here()
        self._socket = raylet_socket()
        self._heard = monotonic()
        self._trouble = ""  # what was wrong at the last look
        self._gone = ""  # which process or node will not come back, as a sentence
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="shoal-pulse", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ask no more."""
        self._over.set()
        self._thread.join(EVERY + ANSWER)

    def answers(self, patience: Seconds = AT_ONCE) -> bool:
        """Whether the cluster answers at once: then Ray's calls do not block."""
        try:
            self._ask(patience)
        except Unanswered:
            return False
        return True

    def lost(self) -> bool:
        """Whether the cluster does not answer; waiting for it has no end."""
        if self._gone or monotonic() - self._heard > self._patience:
            return True
        return not self.answers(ANSWER)

    def explained(self, error: Unanswered) -> ConnectionError:
        """What the user is told where the run had to know something of the cluster."""
        why = f"the Ray cluster does not answer ({_line(error)})"
        return ConnectionError(f"{self._gone or why}. {_remedy(self._started_here)}")

    def check(self) -> None:
        """Raise ConnectionError if the cluster is lost."""
        if self._gone:
            raise ConnectionError(f"{self._gone}. {_remedy(self._started_here)}")
        silent = monotonic() - self._heard
        if silent > self._patience:
            raise ConnectionError(
                f"the Ray cluster has not answered for {silent:.0f} s ({self._trouble}), and "
                f"{self._patience:.0f} s are allowed. {_remedy(self._started_here)}"
            )

    def _run(self) -> None:
        before = monotonic()
        while not self._over.wait(EVERY):
            late = monotonic() - before - EVERY
            if late > EVERY:
                self._heard += late  # this process stood still itself
            self._look()
            before = monotonic()

    def _look(self) -> None:
        """See whether everything answers that the run needs."""
        states = reaper.states() if self._started_here else {}
        for name, state in states.items():
            if state in "ZX":
                self._gone = f"Ray on this machine has ended: {NAMES[name]} was killed"
                return
            if state in "Tt":
                self._trouble = f"{NAMES[name]} was stopped"
                return
        if not self._started_here and not _listens(self._socket):
            self._gone = "the raylet of this machine's node has ended"
            return
        try:
            nodes = self._ask(ANSWER)
        except Unanswered as error:
            self._trouble = _line(error)
            return
        if self._node not in nodes:
            self._gone = "the Ray cluster counts this machine's node as dead"
            return
        self._heard = monotonic()


def _listens(path: str) -> bool:
    """Whether a process takes connections at this path."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(ANSWER)
        try:
            connection.connect(path)
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:
            return True  # it is busy, or this machine is
    return True


def _line(error: Exception) -> str:
    """The error's first line, in short."""
    return str(error).split("\n", maxsplit=1)[0][:200].rstrip(".")


def _remedy(started_here: bool) -> str:
    """What the user does about a lost cluster."""
    if started_here:
        return "The next run starts Ray anew"
    return "See that the head and this machine's node run, and that they reach one another"
