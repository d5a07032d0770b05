"""A function's checkpoint as a plain tree that can be stored, and back.

{"kind": "tree", "tree": …}: what a user gave; in it, NumPy arrays are {"numpy array": array}, for a
stored array comes back as a tensor. {"kind": "file" or "folder", "name": …, "files": {path: its
bytes as an array}}: what lay at a path.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from shoal.train.lane import tree
from shoal.train.lane.checkpoints import Damaged

_ARRAY = "numpy array"


def pack_checkpoint(checkpoint: Any) -> dict[str, Any]:
    """The checkpoint as a plain tree, which may share memory with it.

    Raises:
        TypeError: it holds something else than tensors, arrays and plain values.
        ValueError: it is a path, and nothing is there.
    """
    if isinstance(checkpoint, str | os.PathLike):
        path = Path(checkpoint)
        if path.is_file():
            files = {path.name: _content(path)}
            return {"kind": "file", "name": path.name, "files": files}
        if not path.is_dir():
            raise ValueError(
                f"a checkpoint given as text is a path, and there is nothing at {path}: "
                "write it first, or give a dict"
            )
        files = {}
        for file in sorted(path.rglob("*")):
            if file.is_file():
                name = Path(path.name) / file.relative_to(path)
                files[name.as_posix()] = _content(file)
        return {"kind": "folder", "name": path.name, "files": files}
    return {"kind": "tree", "tree": tree.to_numpy(_marked(checkpoint))}


def without_place(packed: Mapping[str, Any]) -> Mapping[str, Any]:
    """The packed checkpoint without the name of its file or folder, which may be a random one."""
    if packed["kind"] == "tree":
        return packed
    files = {}
    for name, content in packed["files"].items():
        files["/".join(PurePosixPath(name).parts[1:])] = content
    return {"kind": packed["kind"], "files": files}


def unpacked(packed: Mapping[str, Any], folder: Path) -> Any:
    """The checkpoint that was packed; what was a path is written into the folder, which must exist.

    Raises:
        Damaged: it names a place outside of the folder.
    """
    if packed["kind"] == "tree":
        return _unmarked(tree.to_torch(packed["tree"]))
    path = _within(folder, packed["name"])
    if packed["kind"] == "folder":
        path.mkdir(parents=True, exist_ok=True)
    for name, content in packed["files"].items():
        target = _within(folder, name)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(np.asarray(content).tobytes())
    return path


def _within(folder: Path, name: Any) -> Path:
    """The path of that name in the folder: a checkpoint that others made must write nowhere else.

    Raises:
        Damaged: the name leads out of the folder.
    """
    parts = PurePosixPath(str(name)).parts
    if not parts or parts[0].startswith("/") or ".." in parts or "\0" in str(name):
        raise Damaged(
            f"a checkpoint's files must lie within it; this one has {str(name)[:80]!r}, which "
            "Shoal never wrote: do not use it"
        )
    return folder.joinpath(*parts)


def _marked(value: Any) -> Any:
    """The tree with its NumPy arrays marked as such."""
    if isinstance(value, np.ndarray):
        return {_ARRAY: value}
    if isinstance(value, Mapping):
        return {name: _marked(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_marked(each) for each in value]
    if isinstance(value, tuple):
        return tuple(_marked(each) for each in value)
    return value


def _unmarked(value: Any) -> Any:
    """The tree with NumPy arrays where they were."""
    if isinstance(value, Mapping):
        if value.keys() == {_ARRAY}:
            return value[_ARRAY].numpy()
        return {name: _unmarked(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_unmarked(each) for each in value)
    return value


def _content(path: Path) -> np.ndarray[Any, Any]:
    """A file's bytes."""
    return np.frombuffer(path.read_bytes(), dtype=np.uint8)
