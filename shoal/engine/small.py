"""Small files that others may have written: what they say is checked before it is used.

JSON has no infinite numbers: `marked` writes them so that `unmarked` finds them again.
"""

import gzip
import io
from math import isfinite
from typing import Annotated, Any, NotRequired, TypedDict, TypeVar

import msgspec

from shoal.core.cluster import is_name

T = TypeVar("T")
# The id of a process.
Pid = Annotated[int, msgspec.Meta(ge=1, lt=2**31)]
MIB = 2**20
ALWAYS = 16 * MIB  # bytes that even a small file may unpack to
DEEPEST = 64  # lists within lists
RATIO = 200  # times its own size that a file may unpack to: logs and pictures stay far below


Finite = Annotated[float, msgspec.Meta(ge=0, le=1e12)]  # of seconds


class HolderFile(TypedDict):
    """Who holds a study, or did until then; see `engine.lock`. Earlier versions gave no beat."""

    pid: Pid
    host: NotRequired[str]
    since: NotRequired[str]
    key: NotRequired[str]
    beat: NotRequired[int]
    until: NotRequired[str]


class SlotLine(TypedDict):
    """What a run says of one of its slots: see `study.watchers.SlotBoard`."""

    slot: str
    node: str
    kind: str
    trials: list[str]
    shards: list[str]
    silent: Finite


class SlotsFile(TypedDict):
    """What a run says of its slots, and when, in seconds since 1970."""

    written: Finite
    slots: list[SlotLine]
    asked: NotRequired[int]  # slots that are there or start, without those that leave
    room: NotRequired[int | None]  # how many fit the nodes


class RecipeHead(TypedDict, total=False):
    """What a journal's head says of a recipe."""

    name: str
    command: str
    sha256: str | None
    parts: dict[str, dict[str, Any]]
    imports: dict[str, Any]


class DataHead(TypedDict, total=False):
    """What a journal's head says of the data."""

    fingerprint: Annotated[str, msgspec.Meta(pattern=r"^[ -~]*$")]
    recipes: dict[str, str]


class StudyHead(TypedDict, total=False):
    """What Shoal uses of a journal's head: see `study.head.head`."""

    study: str | None
    recipe: RecipeHead | None
    data: DataHead
    metric: str | None
    mode: str | None
    aims: dict[str, tuple[str | None, str | None]] | None
    seed: int
    options: dict[str, Any]
    checkpoints: str | None
    place: dict[str, Any]
    versions: dict[str, Any]
    loggers: list[str] | None
    profile: str | None


def check_head(head: object) -> None:
    """Raise ValueError unless a journal's head has the form of those that Shoal writes."""
    try:
        msgspec.convert(head, StudyHead)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ValueError(str(error)[:200]) from error
    name = head.get("study") if isinstance(head, dict) else None
    if name and not is_name(name):
        raise ValueError(f"no folder of a study is named {name[:40]!r}")


def decoded(content: bytes, kind: type[T]) -> T:
    """The value of this type that JSON holds; fields that the type lacks are left out.

    Raises:
        ValueError: it is no JSON, or something else.
    """
    try:
        value = msgspec.json.decode(content, type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ValueError(f"{type(error).__name__}: {str(error)[:200]}") from error
    check_depth(content, value)
    return value


def check_depth(content: bytes, value: object) -> None:
    """Raise ValueError if what this JSON holds is nested deeper than Shoal writes."""
    if content.count(b"[") + content.count(b"{") > DEEPEST and _is_deeper(value, DEEPEST):
        raise ValueError(f"it is nested more than {DEEPEST} deep")


def _is_deeper(value: object, most: int) -> bool:
    """Whether lists and dictionaries are nested deeper: what follows them calls itself."""
    level = [value]
    for _ in range(most):
        below: list[object] = []
        for each in level:
            if isinstance(each, dict):
                below += each.values()
            elif isinstance(each, list):
                below += each
        if not below:
            return False
        level = below
    return True


def marked(value: Any) -> Any:
    """The value with nan, inf and -inf written as {"~": text}, which JSON can hold."""
    if isinstance(value, float) and not isfinite(value):
        return {"~": repr(value)}
    if isinstance(value, dict):
        return {key: marked(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [marked(item) for item in value]
    return value


def unmarked(value: Any) -> Any:
    """Undo `marked`."""
    if isinstance(value, list):
        return [unmarked(item) for item in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {"~"} and value["~"] in ("nan", "inf", "-inf"):
        return float(value["~"])
    return {key: unmarked(item) for key, item in value.items()}


def gunzip(content: bytes) -> bytes:
    """What a gzipped file holds.

    Raises:
        ValueError: it holds far more than such files do.
        OSError, EOFError, zlib.error: it is damaged.
    """
    most = ALWAYS + RATIO * len(content)
    pieces: list[bytes] = []
    found = 0
    with gzip.GzipFile(fileobj=io.BytesIO(content)) as file:
        while piece := file.read(MIB):
            found += len(piece)
            if found > most:
                raise ValueError(
                    f"its {len(content)} bytes unpack to more than {most}, which no file does "
                    "that is used here"
                )
            pieces.append(piece)
    return b"".join(pieces)
