# SPDX-License-Identifier: Apache-2.0
"""Embeddings of a streamed model: only the rows that a use needs are read, each once, in the order of the file."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from penstock._base.errors import EndOfFile, Error
from penstock.weights._tensor_rows import TensorRows


class Rows:
    """The table of one torch.nn.Embedding. Operations that choose rows of the weight get these rows, wherever the code
    of the model or of a subclass uses it."""

    def __init__(self, path: str, name: str, dtype: torch.dtype, put: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """dtype: of the parameter, which the files may have in another. put(): moves a tensor of the host to the device
        of the model."""
        self._name, self._dtype, self._put = name, dtype, put
        self._table = TensorRows(path, name)
        self._stored = getattr(torch, self._table.dtype)
        self.bytes_read = 0

    def gather(self, ids: torch.Tensor) -> torch.Tensor:
        """The rows of `ids`, in its shape."""
        unique, where = torch.unique(ids, return_inverse=True)
        count = self._table.shape[0]
        if unique.numel() and not 0 <= int(unique[0]) <= int(unique[-1]) < count:
            raise IndexError(f"embedding: the numbers {int(unique[0])} to {int(unique[-1])} of rows: there are {count}")
        rows = torch.empty((len(unique), *self._table.shape[1:]), dtype=self._stored, device="cpu")
        # Ctrl-C in Tensor.__dlpack__(), which is written in Python, would become another error; NumPy has a buffer.
        with _tensor_named(self._name):
            self._table.gather(unique.to(torch.int64).cpu().numpy(), rows.view(torch.uint8).numpy())
        self.bytes_read += rows.nbytes
        return torch.embedding(self._put(rows.to(self._dtype)), where)

    def instead(self, operation: Any, args: Any) -> torch.Tensor | None:
        """The result of an operation on the weight that chooses rows; None for another operation."""
        ids = self._ids(operation, args)
        return None if ids is None else self.gather(ids)

    def _ids(self, operation: Any, args: Any) -> torch.Tensor | None:
        aten, count = torch.ops.aten, self._table.shape[0]
        weight, *rest = args
        if operation is aten.embedding.default:
            torch.embedding(rest[0].new_empty((0, 1), dtype=torch.float32), rest[0].new_empty(0))  # checks the dtype
            return torch.as_tensor(rest[0])
        if operation is aten.index.Tensor and len(rest[0]) == 1 and rest[0][0].dtype in (torch.int64, torch.int32):
            return torch.where(rest[0][0] < 0, rest[0][0] + count, rest[0][0])
        if operation is aten.index_select.default and rest[0] in (0, -2):
            none = rest[1].new_zeros((0,) * rest[1].dim())
            torch.index_select(none.new_empty((1, 1), dtype=torch.float32), 0, none)  # checks the dtype and the shape
            return torch.as_tensor(rest[1]).reshape(-1)
        if operation is aten.select.int and rest[0] in (0, -2):
            return torch.tensor(rest[1] + count if rest[1] < 0 else rest[1], device="cpu")
        if operation is aten.slice.Tensor and (not rest or rest[0] in (0, -2)):
            return torch.arange(count, device="cpu")[slice(*rest[1:])].to(weight.device)
        return None

    def close(self) -> None:
        self._table.close()


@contextlib.contextmanager
def _tensor_named(name: str) -> Iterator[None]:
    """Says which tensor could not be read."""
    try:
        yield
    except Error as error:
        what = error.message
        if isinstance(error, EndOfFile):
            what = (
                f"'{error.path}' ends before byte {error.offset}: it was cut; copy it again, and stream the model again"
            )
        raise type(error)(
            f"stream: rows of '{name}': {what}", error.errno, error.operation, error.path, error.offset
        ) from error
