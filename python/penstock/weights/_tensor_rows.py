# SPDX-License-Identifier: Apache-2.0
"""penstock.TensorRows: rows of a table that is one or several tensors of the user's files."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeVar, overload

from penstock import _core
from penstock._base import arguments as _arguments, gathered as _gathered
from penstock._state.rows import TORCH

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    from penstock._base.types import Path

_Out = TypeVar("_Out")


class TensorRows:
    """Rows of tensors that stay in their files: an embedding of any size as one table, also if it is cut into several
    tensors and shards.

    path: a `.safetensors`, a `.pt`, an index of shards, or a folder with one. names: of one tensor, or of several with
    the same dtype and the same dimensions except the first; their rows are numbered in this order.
    shape: of the whole table. dtype: a name of torch ("bfloat16").
    Raises ValueError for names and tensors that do not match, penstock.Error for files that cannot be read.
    Thread-safe, except for close(). A child of fork() may use it too."""

    @_arguments.named
    def __init__(self, path: Path, names: str | Iterable[str]) -> None:
        wanted = _arguments.texts("TensorRows", "names", names)
        self._rows = _core.TensorRows(path, [wanted] if isinstance(wanted, str) else list(wanted))
        self.shape: tuple[int, ...] = (self._rows.rows, *self._rows.row_shape)
        self.dtype: str = TORCH.get(self._rows.dtype, self._rows.dtype)

    @overload
    def gather(self, ids: torch.Tensor, out: None = None) -> torch.Tensor: ...
    @overload
    def gather(self, ids: Any, out: None = None) -> NDArray[Any]: ...
    @overload
    def gather(self, ids: Any, out: _Out) -> _Out: ...
    @_arguments.named
    def gather(self, ids: Any, out: Any = None) -> Any:
        """Returns rows: row i of the result is row ids[i] of the table. Its shape is (*ids.shape, *shape[1:]). Blocks.

        ids: an integer tensor or array (int64, int32, uint32, uint64) or a list. out: contiguous writable memory of the
        same size, which is returned; by default a new torch tensor if `ids` is one, else a NumPy array. All rows are
        one transfer, in the order of the files; near rows are read together, and a repeated row is read once.
        Raises ValueError for a row that does not exist, penstock.Error for reads that fail."""
        out = _gathered.made_for(ids, self.shape[1:], self.dtype) if out is None else out
        self._rows.gather(ids, out)
        return out

    @_arguments.named
    def gather_async(self, ids: Any, out: Any) -> _core.Transfer[int]:
        """The same without blocking: returns a Transfer; when it is done, the rows are in `out`. `ids` are used only
        during the call."""
        return self._rows.gather_async(ids, out)

    def close(self) -> None:
        """Closes the files. Later calls raise ValueError."""
        self._rows.close()

    def __enter__(self) -> TensorRows:
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"TensorRows(shape={self.shape}, dtype={self.dtype!r})"
