"""Files that were damaged or forged, for readers that refuse them with one clear error."""

import gzip
import io
import json
import os
import re
import resource
import tarfile
import time
import traceback
import warnings
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

MIB = 2**20
HUGE = (
    b"1e999",
    b"-1",
    b"NaN",
    b"Infinity",
    b"0",
    b"9" * 40,
    b"-" + b"9" * 400,
    b"1e308",
    b"4294967296",
    b"9223372036854775807",
    b"null",
    b'"~"',
    b'{"~": "nan"}',
    b"{}",
    b"[]",
    b'""',
    b"true",
    b"../../x",
    b"\0",
    b"\xff\xfe",
    b"\xed\xa0\x80",
    "\u202e".encode(),
    b"<script>",
    b"\n",
    b",",
    b"|",
    b"=",
    b"(" * 3000,
    b"[" * 20000,
    b'{"a":' * 20000,
    b"[[a]]\n" * 2000,
    b"x" * MIB,
    b"-" * 100000,
    b"node[1-99999999999]",
    b"n[000000001-999999999]",
)
NUMBER = re.compile(rb"[0-9][0-9.eE+-]*")


# -- damage --------------------------------------------------------------------------------------

Damage = tuple[str, int, int]
KINDS = ("flip", "cut", "double", "insert", "number", "swap", "zero", "drop", "field")


def damages() -> st.SearchStrategy[list[Damage]]:
    """What happens to a file, one thing after the other."""
    place = st.integers(0, 2**20)
    one = st.tuples(st.sampled_from(KINDS), place, place)
    return st.lists(one, min_size=1, max_size=4)


def damaged(content: bytes, what: Sequence[Damage]) -> bytes:
    """The content after all of that."""
    for kind, first, second in what:
        content = _damage(content, kind, first, second)
    return content[: 8 * MIB]


def _damage(content: bytes, kind: str, first: int, second: int) -> bytes:
    size = len(content) or 1
    at = first % size
    token = HUGE[second % len(HUGE)]
    match kind:
        case "flip":
            turned = bytes([content[at] ^ (1 << second % 8)]) if content else b""
            return content[:at] + turned + content[at + 1 :]
        case "cut":
            return content[:at]
        case "double":
            end = at + second % size
            return content[:end] + content[at:end] + content[end:]
        case "insert":
            return content[:at] + token + content[at:]
        case "number":
            return _other_number(content, at, token)
        case "swap":
            end = min(size, at + second % 64)
            return content[:at] + content[at:end][::-1] + content[end:]
        case "zero":
            end = min(len(content), at + second % 64)
            return content[:at] + bytes(end - at) + content[end:]
        case "field":  # a number of four or eight bytes, as headers have them
            width = 4 + 4 * (second % 2)
            big = (2**31 - 1, 2**32 - 1, 2**63 - 1, 2**40)[second // 2 % 4]
            number = (big % 2 ** (8 * width)).to_bytes(width, "little")
            return content[:at] + number + content[at + width :]
    return content[:at] + content[at + second % 64 :]


def _other_number(content: bytes, at: int, token: bytes) -> bytes:
    """The content with the next number after that place replaced."""
    found = NUMBER.search(content, at)
    if found is None:
        return content
    return content[: found.start()] + token + content[found.end() :]


# -- readers -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reader:
    """Something that reads what others may have written.

    `seeds`: contents that it reads, or what makes them as they are needed. `read`: of the folder
    where the content lies in the file `name`. `errors`: what it may raise.
    """

    name: str
    seeds: Sequence[bytes] | Callable[[], Sequence[bytes]]
    read: Callable[[Path], Any]
    errors: tuple[type[BaseException], ...]
    file: str


@dataclass
class Tally:
    """What came of the examples."""

    examples: int = 0
    refused: int = 0
    slowest: float = 0.0  # seconds of this process
    begun: float = field(default_factory=time.monotonic)

    def line(self, name: str) -> str:
        took = time.monotonic() - self.begun
        return (
            f"| {name} | {self.examples} | {self.refused} | {self.examples - self.refused} | "
            f"{self.slowest:.2f} | {took:.0f} |"
        )


def try_on(reader: Reader, folder: Path, content: bytes, tally: Tally) -> None:
    """Have the content read: either it is read, or refused with an error of the right class."""
    place = folder / reader.file
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(content)
    began = time.process_time()
    tally.examples += 1
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            reader.read(folder)
    except reader.errors as error:
        tally.refused += 1
        for each in _chain(error):
            assert not _lacks_memory(each), f"{reader.name} took all memory"
            assert "allocate memory" not in str(each)
        said = str(error)
        assert said, f"{reader.name} said nothing"
        assert len(said) < 5000, f"{reader.name} said {len(said)} characters"
    finally:
        took = time.process_time() - began
        tally.slowest = max(tally.slowest, took)
        with suppress(FileNotFoundError):
            place.unlink()
    assert took < 20, f"{reader.name} took {took:.1f} s of CPU"


def _lacks_memory(error: BaseException) -> bool:
    """Whether memory was asked for that is not there.

    Python's parser also says so of a text that is too deep for it.
    """
    frames = traceback.extract_tb(error.__traceback__)
    parses = bool(frames) and Path(frames[-1].filename).name == "ast.py"
    return isinstance(error, MemoryError) and not parses


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """The error, and those that led to it."""
    while error is not None:
        yield error
        hidden = error.__suppress_context__
        error = error.__cause__ or (None if hidden else error.__context__)


def tries(examples: int, few: int) -> settings:
    """So many examples. Up to `few` are the same ones in each run."""
    return settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=examples <= few,
        suppress_health_check=list(HealthCheck),
    )


@contextmanager
def little_memory(more: int) -> Iterator[None]:
    """Let this process take so many MiB more than it has, and no more."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * os.sysconf("SC_PAGE_SIZE") + more * MIB
    if before[1] != resource.RLIM_INFINITY:
        limit = min(limit, before[1])
    resource.setrlimit(resource.RLIMIT_AS, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


# -- forged files ----------------------------------------------------------------------------------


def zipped(members: dict[str, bytes], packed: bool = False) -> bytes:
    file = io.BytesIO()
    kind = zipfile.ZIP_DEFLATED if packed else zipfile.ZIP_STORED
    with zipfile.ZipFile(file, "w", kind) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return file.getvalue()


def npy(shape: str, dtype: str = "<f4", content: bytes = b"") -> bytes:
    """An array's file with any header."""
    head = f"{{'descr': {dtype!r}, 'fortran_order': False, 'shape': {shape}, }}"
    head += " " * (-(len(head) + 11) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head.encode("latin-1") + content


def tarred(members: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return file.getvalue()


def bomb(size: int) -> bytes:
    """So many zeros, packed to a thousandth."""
    return gzip.compress(bytes(size), 9)


def lines(*values: Any) -> bytes:
    return b"".join(json.dumps(value).encode() + b"\n" for value in values)
