# SPDX-License-Identifier: Apache-2.0
"""Writes tables to a feature file: arrays, tensors, memmaps, `.npy` files, tables of other feature files, iterators of
blocks of rows."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from penstock import _core
from penstock._base import arguments as _arguments
from penstock.features._table import FeatureTable

_PIECE_BYTES = 4 << 20


def write(
    path: Any,
    tables: Any,
    folders: Any,
    sync: bool,
    report: Callable[[int, int], object] | None,
) -> None:
    """FeatureStore.write()."""
    if not isinstance(tables, Mapping):
        raise TypeError(f"write: tables: expected a dict of names and rows, got {_arguments.got(tables)}")
    if not isinstance(path, (str, bytes, os.PathLike)):
        raise TypeError(f"write: path: expected a path, got {_arguments.got(path)}")
    if folders is not None and not hasattr(folders, "__iter__"):
        raise TypeError(f"write: folders: expected a list of folders, got {_arguments.got(folders)}")
    if isinstance(folders, (str, bytes, os.PathLike)):
        raise TypeError("write: folders: this is one path; give a list of folders")
    for rows in tables.values():
        _refuse_to_replace(path, rows)
    sources = {name: _source(name, rows) for name, rows in tables.items()}
    total = sum(_bytes_of(rows) for rows in sources.values())
    done = 0
    writer = _core.FeatureWriter(path, [] if folders is None else list(folders), bool(sync))
    try:
        for name, rows in sources.items():
            begun: tuple[str, tuple[int, ...]] | None = None
            for piece in _pieces(name, rows):
                dtype, shape = _dtype(name, piece), tuple(piece.shape)[1:]
                if dtype == "float4_e2m1fn_x2" and shape:
                    shape = (*shape[:-1], 2 * shape[-1])  # an element of torch is two elements of the file
                if begun is None:
                    writer.begin_table(name, dtype, shape)
                    begun = dtype, shape
                elif begun != (dtype, shape):
                    raise ValueError(
                        f"write: table '{name}': its first rows are {begun[0]} of shape {list(begun[1])}, and a later "
                        f"block has {dtype} of shape {list(shape)}; give blocks of one dtype and row shape"
                    )
                piece = _plain(piece)
                if piece.shape[0]:
                    writer.append(piece)
                done += piece.nbytes
                if report is not None:
                    report(done, max(total, done))
            if begun is None:
                raise ValueError(f"write: table '{name}': the iterator has no block; give one, of 0 rows if need be")
        writer.commit()
    finally:
        writer.close()


def _refuse_to_replace(path: Any, rows: Any) -> None:
    source = rows if isinstance(rows, (str, os.PathLike)) else getattr(rows, "filename", None)  # of a memmap
    if isinstance(rows, FeatureTable):
        source = os.fsdecode(rows._remade[1][1][0])  # the path of its store
    if isinstance(source, (str, os.PathLike)) and os.path.realpath(source) == os.path.realpath(os.fsdecode(path)):
        raise ValueError(
            f"write: path: {_arguments.shown(os.fsdecode(path))} is a source of rows, which the new file would "
            "replace; give another path"
        )


def _source(name: Any, rows: Any) -> Any:
    if not isinstance(name, str):
        raise TypeError(f"write: tables: expected a str as each name, got {_arguments.got(name)}")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise ValueError(
            f"write: tables: the name {_arguments.shown(name)} is no text of UTF-8; give another"
        ) from None
    if isinstance(rows, (str, os.PathLike)):
        import numpy as np

        why = "it has several arrays"
        try:
            loaded = np.load(rows, mmap_mode="r")
            if isinstance(loaded, np.ndarray):
                return _with_rows(name, loaded)
            loaded.close()
        except FileNotFoundError:
            raise _core.system_error(errno.ENOENT, "write", os.fspath(rows)) from None
        except OSError as error:
            what = f"write: table '{name}': {error.strerror or error}; give the path of a .npy that can be read"
            raise type(error)(error.errno or errno.EIO, what, os.fspath(rows)) from None
        except (ValueError, EOFError) as error:
            why = str(error).splitlines()[0]
        raise ValueError(
            f"write: table '{name}': '{os.fspath(rows)}' is no .npy that can be mapped ({why}); give an array, or the "
            "path of a .npy of numbers"
        )
    _check_dense(name, rows)
    if hasattr(rows, "shape") and hasattr(rows, "dtype"):
        return _with_rows(name, _array_of(rows))
    if isinstance(rows, (list, tuple)) and any(len(getattr(block, "shape", (0, 0))) == 1 for block in rows):
        raise TypeError(
            f"write: table '{name}': expected blocks of rows in the list, got arrays of one dimension; give "
            "numpy.stack(rows) if each is a row, numpy.concatenate(blocks) if each element is one"
        )
    if isinstance(rows, Mapping) or not hasattr(rows, "__iter__") or isinstance(rows, (bytes, bytearray, memoryview)):
        raise TypeError(
            f"write: table '{name}': expected an array, a tensor, the path of a .npy or an iterator of arrays, got "
            f"{_arguments.got(rows)}"
        )
    return rows


def _with_rows(name: str, rows: Any) -> Any:
    if len(rows.shape) == 0:
        raise ValueError(f"write: table '{name}': a scalar has no rows; give 1 dimension or more")
    return rows


def _array_of(rows: Any) -> Any:
    """A Buffer as an array, or as a tensor if NumPy does not know its dtype; anything else unchanged."""
    if not isinstance(rows, _core.Buffer):
        return rows
    try:
        return rows.numpy()
    except TypeError:
        return rows.torch()


def _check_dense(name: str, rows: Any) -> None:
    """Refuses tensors and arrays whose memory does not hold their rows, contiguous or strided."""
    begin = f"write: table '{name}': expected "
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(rows, torch.Tensor) and (rows.is_nested or rows.layout != torch.strided):
        raise TypeError(f"{begin}dense tensors, got a sparse or nested one; give its to_dense(), or parts")
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(rows, numpy.ma.MaskedArray):
        raise TypeError(f"{begin}plain arrays, got a masked one, whose mask would be lost; give array.filled()")
    if hasattr(rows, "nnz") and hasattr(rows, "toarray"):  # of SciPy
        raise TypeError(
            f"{begin}dense rows, got a sparse {_arguments.got(rows)}; give rows.toarray(), or blocks: "
            "(rows[i : i + 65536].toarray() for i in range(0, rows.shape[0], 65536))"
        )


def _bytes_of(rows: Any) -> int:
    if isinstance(rows, FeatureTable):
        return len(rows) * rows.row_bytes
    return int(getattr(rows, "nbytes", 0))


def _gathered(table: FeatureTable, begin: int, end: int) -> Any:
    """Rows as an array, or as a tensor if NumPy does not know their dtype."""
    try:
        return table.gather(range(begin, end))
    except TypeError:
        return table.gather(range(begin, end), device="cpu")


def _pieces(name: str, rows: Any) -> Iterator[Any]:
    """Blocks of rows; blocks that are cut here have some MiB."""
    if not hasattr(rows, "shape"):
        for block in rows:
            _check_dense(name, block)
            block = _array_of(block)
            if not hasattr(block, "shape") or not hasattr(block, "dtype") or len(block.shape) == 0:
                raise TypeError(
                    f"write: table '{name}': expected arrays or tensors of shape (rows, ...) from the iterator, got "
                    f"{_arguments.got(block)}"
                )
            yield from _pieces(name, block)
        return
    count = rows.shape[0]
    step = max(1, _PIECE_BYTES // max(1, _bytes_of(rows) // max(1, count)))
    is_table = isinstance(rows, FeatureTable)
    if count == 0:
        yield _gathered(rows, 0, 0) if is_table else rows
    for begin in range(0, count, step):
        end = min(count, begin + step)
        yield _gathered(rows, begin, end) if is_table else rows[begin:end]


def _dtype(name: str, piece: Any) -> str:
    kind = getattr(piece.dtype, "kind", None)
    if kind is not None and kind not in "biufcV":
        raise TypeError(f"write: table '{name}': expected numbers, got elements of {piece.dtype}")
    return str(getattr(piece.dtype, "name", piece.dtype)).removeprefix("torch.")


def _plain(piece: Any) -> Any:
    """Contiguous rows, in the byte order of this machine."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(piece, torch.Tensor):
        return piece.detach().contiguous()
    import numpy as np

    array = np.asarray(piece)
    return np.ascontiguousarray(array, array.dtype.newbyteorder("=")).reshape(array.shape)
