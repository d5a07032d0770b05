"""What a checkpoint's file holds, if it is what Shoal writes: others may have written it.

A file may say that it holds more than it does: packed weights, a tensor of one number that claims
a shape of terabytes, lists that hold each other. What it says is looked at before memory is taken.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import IO, Any
from zipfile import ZIP_STORED, BadZipFile, ZipFile

import torch
from torch import Tensor

from shoal.train.lane import tree
from shoal.train.lane.tensors import is_sparse

DEEPEST = 100  # levels of a state
FEW = 2**16  # values that even a small file may hold
SMALL = 2**26  # bytes that even a small file may unpack to
REPEATED = 64  # how often the bytes of a file may be repeated in its tensors


def read_state(file: IO[bytes]) -> dict[str, Any]:
    """The state that the file holds, its tensors as arrays. No code that it names runs.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no state, or takes more memory than a state of its size does.
        Exception: whatever torch raises for a damaged file.
    """
    size = _size(file)
    loaded = torch.load(file, map_location="cpu", weights_only=True)
    _check_tree(loaded, size)
    state = tree.to_numpy(loaded)
    if not isinstance(state, dict):
        raise ValueError(f"it holds a {type(state).__name__}, not the state of a trial")
    return state


def short(error: BaseException) -> str:
    """What the error says, as far as one line takes it."""
    return f"{type(error).__name__}: {error}"[:300]


def _size(file: IO[bytes]) -> int:
    """Bytes of the file, which is at its begin afterwards."""
    size = file.seek(0, 2)
    file.seek(0)
    return size


def check_members(file: IO[bytes]) -> None:
    """Raise ValueError unless this is a zip file with nothing packed."""
    size = _size(file)
    try:
        infos = ZipFile(file).infolist()
    except (BadZipFile, NotImplementedError) as error:
        raise ValueError(f"it is no zip file: {error}") from error
    packed = any(
        info.compress_type != ZIP_STORED or info.file_size != info.compress_size for info in infos
    )
    if packed or sum(info.file_size for info in infos) > size:
        raise ValueError("its parts are packed, or say that they are larger than it is")
    file.seek(0)


def _check_tree(loaded: Any, size: int) -> None:
    """Raise ValueError if the tree is too deep, or repeats what it holds too often."""
    values = 0
    nbytes = 0
    left = [(loaded, 0)]
    while left:
        value, depth = left.pop()
        values += 1
        if depth > DEEPEST or values > max(FEW, size):
            raise ValueError(f"its values lie more than {DEEPEST} deep, or within each other")
        if isinstance(value, Tensor) and not is_sparse(value):
            nbytes += value.nbytes
        elif isinstance(value, Mapping):
            left += [(each, depth + 1) for each in value.values()]
        elif isinstance(value, list | tuple | set | frozenset):
            left += [(each, depth + 1) for each in value]
    if nbytes > max(SMALL, REPEATED * size):
        raise ValueError(f"its {size} bytes say that they are {nbytes} bytes")
