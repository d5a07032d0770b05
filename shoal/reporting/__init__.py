"""What a journal tells, for people: pure functions of its lines.

rich is imported when it is needed.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shoal.reporting.accounting import account as account
    from shoal.reporting.facts import rescales_line as rescales_line
    from shoal.reporting.gantt import chart as chart
    from shoal.reporting.html import page as page
    from shoal.reporting.html import save as save
    from shoal.reporting.html import write as write
    from shoal.reporting.progress import Progress as Progress
    from shoal.reporting.slots import asked as asked
    from shoal.reporting.slots import standing as standing
    from shoal.reporting.text import status_lines as status_lines
    from shoal.reporting.text import summary as summary
    from shoal.reporting.text import table as table

_HOME = {
    "chart": "gantt",
    "page": "html",
    "save": "html",
    "write": "html",
    "account": "accounting",
    "Progress": "progress",
    "asked": "slots",
    "standing": "slots",
    "rescales_line": "facts",
    "status_lines": "text",
    "summary": "text",
    "table": "text",
}
__all__ = [
    "Progress",
    "account",
    "asked",
    "chart",
    "page",
    "rescales_line",
    "save",
    "standing",
    "status_lines",
    "summary",
    "table",
    "write",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(
            f"module 'shoal.reporting' has no attribute {name!r}; it offers {', '.join(__all__)}"
        )
    return getattr(import_module(f"shoal.reporting.{_HOME[name]}"), name)
