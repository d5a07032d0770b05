"""An uncompressed .npz file, written piece by piece."""

from __future__ import annotations

import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from shoal.train.data.columns import Array


class NpzWriter:
    """Writes a file that `numpy.load` reads, and whose arrays can be mapped."""

    def __init__(self, path: Path) -> None:
        self._file = zipfile.ZipFile(path, "w", zipfile.ZIP_STORED, allowZip64=True)

    def __enter__(self) -> NpzWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write(
        self,
        name: str,
        dtype: np.dtype[Any],
        shape: tuple[int, ...],
        pieces: Iterable[Array],
    ) -> None:
        """Write one array, its pieces along the first axis."""
        header = {
            "descr": np.lib.format.dtype_to_descr(dtype),
            "fortran_order": False,
            "shape": shape,
        }
        # A date of its own would give equal rows unequal files.
        info = zipfile.ZipInfo(f"{name}.npy", (1980, 1, 1, 0, 0, 0))
        with self._file.open(info, "w", force_zip64=True) as member:
            np.lib.format.write_array_header_2_0(member, header)
            for piece in pieces:
                member.write(np.ascontiguousarray(piece).reshape(-1).view(np.uint8).data)
