"""Data out of tar files in webdataset's layout: each is a shard, members share a sample's name."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from math import prod
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch

from shoal.core.cluster import ShardId
from shoal.train.data import columns as cols
from shoal.train.data.columns import Array, Columns, DataError
from shoal.train.data.files import divide_files, file_fingerprint
from shoal.train.data.images import Size, check_size, picture, stack_arrays
from shoal.train.data.npz import npy_header
from shoal.train.data.parts import Index, Parts, named_parts, parts_of, seed_of_rows
from shoal.train.rng import Rng

Decoder = Callable[[bytes], Any]


@dataclass(frozen=True, slots=True)
class Tar:
    """A tar file, and where the members of each sample lie."""

    path: Path
    spans: Array  # (samples, columns, 2): where each begins, and its bytes


@dataclass(frozen=True, slots=True)
class TarShards:
    """Parts that are tar files. `names`: the columns, by the members' endings."""

    tars: Mapping[ShardId, Tar]
    names: Sequence[str]
    named: bool  # batches are dicts
    decoders: Mapping[str, Decoder]
    serial: bool  # some decoders are the user's
    seed: int

    def read(self, part: ShardId) -> Columns:
        """All samples of the part."""
        return self.rows(part, np.arange(len(self.tars[part].spans)))

    def rows(self, part: ShardId, index: Index) -> Columns:
        """These samples of the part, in this order, read in that of the file."""
        with self.tars[part].path.open("rb") as file:
            if not self.serial:
                return self._columns(file, self.tars[part].spans[index])
            with Rng(seed_of_rows(self.seed, part, index), torch.device("cpu")):
                return self._columns(file, self.tars[part].spans[index])

    def _columns(self, file: IO[bytes], spans: Array) -> Columns:
        """The samples whose members lie at these spans."""
        values: list[list[Any]] = [[None] * len(spans) for _ in self.names]
        for row in np.argsort(spans[:, 0, 0], kind="stable"):
            for place, name in enumerate(self.names):
                start, size = spans[row, place].tolist()
                file.seek(start)
                values[place][row] = self._decoded(name, file.read(size))
        remedy = "give size=, or decode="
        columns = {
            name: stack_arrays(arrays, name, remedy)
            for name, arrays in zip(self.names, values, strict=True)
        }
        if self.named:
            return columns
        return tuple(columns.values())

    def _decoded(self, name: str, content: bytes) -> Array:
        """The member as an array of numbers.

        Raises:
            DataError: it cannot be decoded, or gives no numbers.
        """
        try:
            value = np.asarray(self.decoders[name](content))
        except DataError:
            raise
        except Exception as error:
            if self.serial:
                raise
            raise DataError(
                f"a member .{name} cannot be read ({type(error).__name__}: {error})"
            ) from error
        if value.dtype.kind not in "biufc":
            raise DataError(
                f"members .{name} must become numbers; got {value.dtype}: "
                f'give decode={{"{name}": a function of the bytes}}'
            )
        return value


def from_tars(
    paths: Any,
    columns: Sequence[str] | None,
    decode: Mapping[str, Decoder] | None,
    size: Any,
    validation: Any,
    seed: int,
) -> Parts:
    """The data of `Data.tar`."""
    check_size(size)
    train, test = divide_files(paths, "*.tar", validation, seed)
    names = list(columns or _endings(train[0]))
    decoders = {name: _decoder(name, decode or {}, size) for name in names}
    tars = {part: _tar_index(path, names) for part, path in named_parts(train, test).items()}
    serial = bool(decode)
    source = TarShards(tars, names, columns is None, decoders, serial, seed)

    first = source.rows(ShardId("s000"), np.arange(1))
    contents = [(part, file_fingerprint(tar.path), len(tar.spans)) for part, tar in tars.items()]
    hashed = blake2b(repr([names, size, contents]).encode(), digest_size=16)
    sizes = {part: len(tar.spans) for part, tar in tars.items()}
    return parts_of(source, sizes, cols.nbytes(first), hashed)


def _decoder(name: str, decode: Mapping[str, Decoder], size: Size) -> Decoder:
    """The decoder of members with this ending. `decode`: the user's decoders.

    Raises:
        DataError: there is none.
    """
    if name in decode:
        return decode[name]
    kind = name.rpartition(".")[2].lower()
    if kind in ("jpg", "jpeg", "png"):
        return partial(picture, size=size)
    known: dict[str, Decoder] = {"npy": _array, "cls": int, "json": json.loads}
    if kind not in known:
        raise DataError(
            f"members .{name} are not jpg, png, npy, cls or json: "
            f'give decode={{"{name}": a function of the bytes}}, or columns= without it'
        )
    return known[kind]


def _array(content: bytes) -> Any:
    """The array that the content of an .npy file is.

    Raises:
        ValueError: it says that it is larger than it is, or whatever NumPy raises.
    """
    file = io.BytesIO(content)
    shape, _, dtype = npy_header(file)
    if file.tell() + dtype.itemsize * prod(shape) != len(content):
        raise ValueError(f"{len(content)} bytes do not hold {dtype} of shape {shape}")
    file.seek(0)
    return np.load(file, allow_pickle=False)


def _members(path: Path) -> Iterator[tuple[str, str, int, int]]:
    """(sample, ending, start, bytes) of each file in the tar.

    Raises:
        DataError: it is no tar file, or packed.
    """
    try:
        with tarfile.open(path, "r:") as tar:
            for member in tar:
                if member.isfile():
                    folder, _, name = member.name.rpartition("/")
                    key, _, ending = name.partition(".")
                    yield f"{folder}/{key}", ending, member.offset_data, member.size
    except (OSError, ValueError, OverflowError, tarfile.TarError) as error:
        raise DataError(
            f"{path} cannot be read as a tar file that is not packed "
            f"({type(error).__name__}: {error})"
        ) from error


def _endings(path: Path) -> list[str]:
    """The endings of the first sample's members.

    Raises:
        DataError: there is none.
    """
    first = None
    endings = []
    for key, ending, _, _ in _members(path):
        first = first or key
        if key != first:
            break
        endings.append(ending)
    if not endings:
        raise DataError(f"{path} has no members")
    return sorted(endings)


def _tar_index(path: Path, names: Sequence[str]) -> Tar:
    """The tar file, with the spans of its samples.

    Raises:
        DataError: there are no samples, or one lacks a member.
    """
    spans: dict[str, dict[str, tuple[int, int]]] = {}
    file_size = path.stat().st_size
    for key, ending, start, size in _members(path):
        if size < 0 or start + size > file_size:
            raise DataError(f"{path} is cut short: {key.lstrip('/')}.{ending} ends beyond it")
        spans.setdefault(key, {})[ending] = (start, size)
    if not spans:
        raise DataError(f"{path} has no members")
    for key, members in spans.items():
        lacks = [name for name in names if name not in members]
        if lacks:
            raise DataError(
                f"{path}: sample {key.lstrip('/')} must have the members {', '.join(names)}; "
                f"it lacks {', '.join(lacks)}"
            )
    rows = [[members[name] for name in names] for members in spans.values()]
    return Tar(path, np.array(rows, np.int64))
