"""Whether the last run of a study came to an end, or its process did in the midst of it."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from shoal.engine.plain_files import is_there, open_file, remove_file
from shoal.study.folder import Folder

NAME = "running"  # of a file that is there while a run is


@contextmanager
def at_work(folder: Folder) -> Iterator[None]:
    """A run is at work on the study within. However it ends, it ends here, unless it is killed."""
    mark = folder.path / NAME
    with suppress(OSError):  # without room for it nothing is known of the end
        open_file(mark, "ab").close()
    try:
        yield
    finally:
        with suppress(OSError):
            remove_file(mark)


def was_cut_off(folder: Folder) -> bool:
    """Whether the process of the last run ended in its midst; asked by who holds the study."""
    return is_there(folder.path / NAME)
