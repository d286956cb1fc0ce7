# SPDX-License-Identifier: Apache-2.0
"""read_npy(): many .npy files as one array."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from penstock import _core
from penstock._base import arguments as _arguments
from penstock._base.progress import Progress, reporter

if TYPE_CHECKING:
    import numpy.typing

    from penstock._base.types import Cache, Path


def _array_for(count: int, dtype: str, shape: tuple[int, ...], out: Any) -> Any:
    import numpy

    wanted_shape, wanted = (count, *shape), numpy.dtype(dtype)
    if out is None:
        return numpy.empty(wanted_shape, wanted)
    if not isinstance(out, numpy.ndarray):
        raise TypeError(
            f"read_npy: out: got {type(out).__name__}; give a numpy.ndarray of shape {wanted_shape} and dtype "
            f"{wanted}, or None for a new one"
        )
    if out.shape != wanted_shape or out.dtype != wanted:
        raise ValueError(
            f"read_npy: out: this has shape {out.shape} and dtype {out.dtype}; {count} files of shape {shape} and "
            f"dtype {wanted} make {wanted_shape}; give an array of that, or None for a new one"
        )
    if not out.flags.c_contiguous or not out.flags.writeable:
        raise ValueError("read_npy: out: this is not C-contiguous or not writable; give another, or None for a new one")
    return out


@_arguments.named
def read_npy(
    paths: Iterable[Path],
    out: numpy.typing.NDArray[Any] | None = None,
    *,
    cache: Cache | None = None,
    progress: Progress = True,
) -> numpy.typing.NDArray[Any]:
    """Reads .npy files of one dtype and shape into one array, stacked along a new first axis.

    paths: any number of files; only a few are open at a time. out: None, or a C-contiguous array of shape
    (len(paths), *shape) and the files' dtype. cache: as in read(). progress: True (a line on stderr if it takes more
    than two seconds), None, or a function of (done, total) in bytes. Raises ValueError for a file that is not .npy or
    whose dtype or shape differs from the first; penstock.Unsupported for Fortran order, structured or object
    elements; EndOfFile for a truncated file; OSError for errors of the system. Each names the file; the contents
    of `out` are then undefined. Blocks; thread-safe; Ctrl-C stops it."""
    if isinstance(paths, (str, bytes, os.PathLike)):
        raise TypeError("read_npy: paths: this is one path; give a list of them, [path] for one")
    names = list(paths)
    if not names:
        raise ValueError("read_npy: paths: this is empty, so there is no dtype and no shape; give at least one file")
    header = _core.npy_header(names[0])
    dtype, shape = header[0], header[1]
    array = _array_for(len(names), dtype, shape, out)
    memory = array.reshape(-1).view("u1") if array.size else bytearray()
    _core.npy_files(names, header, memory, "auto" if cache is None else cache, reporter(progress, "read_npy"))
    return array
