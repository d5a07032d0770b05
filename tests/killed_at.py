"""A command of Python that kills its process as soon as its study's journal says something.

The kill comes from within: from outside, a quick machine's study may be over before it comes.
"""

import os
import runpy
import signal
import sys
from pathlib import Path
from typing import Any


def command(entry: str, trials: int, python: list[str]) -> list[str]:
    """The command line that kills its process once such an entry of so many trials is durable."""
    return [python[0], __file__, entry, str(trials), *python[1:]]


def _dies(kind: str, trials: int) -> None:
    from shoal.engine.journal import Journal

    of: set[str] = set()
    append, sync, sync_soon = Journal.append, Journal.sync, Journal.sync_soon

    def noted(journal: Any, time: float, entry: Any) -> None:
        append(journal, time, entry)
        if type(entry).__name__ == kind:
            of.add(entry.trial)

    def dying(journal: Any) -> None:
        sync(journal)
        if len(of) >= trials:
            os.kill(os.getpid(), signal.SIGKILL)

    def soon(journal: Any) -> None:
        (dying if len(of) >= trials else sync_soon)(journal)

    Journal.append, Journal.sync, Journal.sync_soon = noted, dying, soon  # type: ignore[method-assign]


if __name__ == "__main__":
    _, kind, trials, *rest = sys.argv
    _dies(kind, int(trials))
    sys.argv = rest[rest[0] == "-m" :]
    if rest[0] == "-m":
        sys.path[0] = os.getcwd()
        runpy.run_module(rest[1], run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = str(Path(rest[0]).parent)
        runpy.run_path(rest[0], run_name="__main__")
