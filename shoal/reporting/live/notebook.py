"""A display in a notebook: one output below the cell, which changes as the run goes on."""

import sys
from io import StringIO
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import RenderableType

COLUMNS = 100


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    shell = sys.modules.get("IPython.core.getipython")
    found: Any = shell.get_ipython() if shell is not None else None
    return getattr(found, "kernel", None) is not None


class NotebookDisplay:
    """What was shown last is replaced by what is shown next."""

    def __init__(self) -> None:
        self._handle: Any = None

    def show(self, picture: "RenderableType") -> None:
        """Show this, a rich renderable, as text."""
        from rich.console import Console

        text = StringIO()
        # In a kernel rich shows an output of its own for each frame, whatever the file is.
        Console(file=text, width=COLUMNS, force_jupyter=False).print(picture)
        data = {"text/plain": text.getvalue()}
        if self._handle is None:
            display = sys.modules["IPython.display"].display
            self._handle = display(data, raw=True, display_id=True)
        else:
            self._handle.update(data, raw=True)
