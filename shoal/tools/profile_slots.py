"""Processes that stand for slots while `shoal profile` times trials."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from shoal.core.trial import Seconds
from shoal.engine.process import away_from_folder
from shoal.study.folder import StudyError
from shoal.study.schedules import plan_to_measure
from shoal.study.setup import Setup
from shoal.train.data.data import Data
from shoal.train.recipe.pickling import dumps
from shoal.train.tools.timing import TimedSetup, serve

# How long a process that lives may be silent.
PATIENCE: Seconds = 600.0


class ProfileSlots:
    """Processes that stand for slots, each at the end of a link.

    `device`: cpu, cuda or mps. `addresses`: where the lanes of each slot meet others.
    """

    def __init__(self, links: Sequence[Any], processes: Sequence[Any], device: str) -> None:
        self.device = device
        self._links = links
        self._processes = processes
        self.addresses = [self.hear(number, "at") for number in range(len(links))]

    def __len__(self) -> int:
        return len(self._links)

    def ask(self, number: int, name: str, *arguments: Any) -> None:
        """Have a slot call this method of `Timed`."""
        self._links[number].send((name, arguments))

    def order(self, number: int, name: str, argument: Any = None) -> None:
        """Give an order to the lane that the slot trains."""
        self._links[number].send((name, argument))

    def hear(self, number: int, name: str) -> Any:
        """The slot's next answer of that name.

        Raises:
            RuntimeError: it failed, and why.
            StudyError: the process is gone, or says nothing.
        """
        link = self._links[number]
        process = self._processes[number]
        try:
            while link.poll(PATIENCE):
                got, answer = link.recv()
                if got == "failed":
                    raise RuntimeError(answer)
                if got == name:
                    return answer
        except (EOFError, OSError) as error:
            process.join(10)
            raise StudyError(
                f"a slot's process died (exit code {process.exitcode}): its messages are above, or "
                "with --address in Ray's logs at the node"
            ) from error
        raise StudyError(f"a slot's process has not answered for {PATIENCE:g} s")


@contextmanager
def slots_of(
    setup: Setup, data: Data, slots: int, feeders: int, device: str, threads: int
) -> Iterator[ProfileSlots]:
    """So many slots. If feeders need more processes, the others have no device of their own."""
    placed = None if data.catalogue is None else data
    user = dumps((plan_to_measure(setup.recipe), placed))
    links = []
    processes = []
    with TemporaryDirectory() as folder:
        try:
            for number in range(max(slots, feeders)):
                timed = TimedSetup(
                    user,
                    str(Path(folder) / "lock"),
                    _place(number, slots, device),
                    threads,
                    setup.seed,
                    setup.metric,
                )
                link, process = _started(timed)
                links.append(link)
                processes.append(process)
            yield ProfileSlots(links, processes, device)
        finally:
            _end(links, processes)


def _started(setup: TimedSetup) -> tuple[Any, Any]:
    """A new process, and the link to it."""
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(theirs, setup), daemon=True)
    with away_from_folder():
        process.start()
    theirs.close()
    return ours, process


def _end(links: Sequence[Any], processes: Sequence[Any]) -> None:
    """Close the links, and end the processes."""
    for link in links:
        link.close()
    for process in processes:
        process.kill()
        process.join()


def _place(number: int, slots: int, device: str) -> str:
    """The device of a process; those that only feed have the CPU."""
    if number >= slots:
        return "cpu"
    if device == "cuda":
        return f"cuda:{number}"
    return device
