# SPDX-License-Identifier: Apache-2.0
"""Embeddings of a streamed model: only the rows that a call uses are read, each once, in the order of the file."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

import penstock
from penstock.weights import _refusals
from penstock.weights._units import Unit


class Rows:
    """The table of one torch.nn.Embedding. During a call its weight is a _Table, from which a lookup takes rows. So the
    code of a subclass may compute the numbers of rows from any arguments: ids, a mask or a shape."""

    def __init__(self, unit: Unit, path: str, name: str, put: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """`put`: a function that moves a tensor of the host to the device of the model."""
        self._unit, self._put, self.places = unit, put, unit.places
        self._name, self._rows = name, penstock.TensorRows(path, name)
        self.meta = unit.places[0].parameter
        self._table = _Table(self, put(torch.empty(0)).device)
        self.bytes_read = 0
        unit.wrap(self._held)

    def gather(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The rows of `ids`, and for each of `ids` its place among these rows."""
        unique, where = torch.unique(ids, return_inverse=True)
        count = self._rows.shape[0]
        if unique.numel() and not 0 <= int(unique[0]) <= int(unique[-1]) < count:
            raise IndexError(f"embedding: the numbers {int(unique[0])} to {int(unique[-1])} of rows: there are {count}")
        with _tensor_named(self._name):
            rows = self._rows.gather(unique.to(torch.int64).cpu())
        self.bytes_read += rows.nbytes
        return self._put(rows.to(self.meta.dtype)), where

    @contextlib.contextmanager
    def _held(self) -> Iterator[None]:
        parameters: dict[str, Any] = self._unit.module._parameters
        parameters["weight"] = self._table
        try:
            yield
        finally:
            parameters["weight"] = self.meta

    def close(self) -> None:
        self._unit.unwrap()
        self._rows.close()


@contextlib.contextmanager
def _tensor_named(name: str) -> Iterator[None]:
    """Says which tensor could not be read."""
    try:
        yield
    except penstock.Error as error:
        what = error.message
        if isinstance(error, penstock.EndOfFile):
            what = (
                f"'{error.path}' ends before byte {error.offset}: it was cut; copy it again, and stream the model again"
            )
        raise type(error)(
            f"stream: rows of '{name}': {what}", error.errno, error.operation, error.path, error.offset
        ) from error


class _Table(torch.Tensor):
    """A table without memory, with the shape, dtype and device of the whole one. torch.nn.functional.embedding() reads
    the rows that it needs. Any other operation reads the whole table."""

    rows: Rows

    @staticmethod
    def __new__(cls, rows: Rows, device: torch.device) -> Any:
        meta = rows.meta
        return torch.Tensor._make_wrapper_subclass(cls, meta.shape, dtype=meta.dtype, device=device)

    def __init__(self, rows: Rows, device: torch.device) -> None:
        self.rows = rows

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.nn.functional.embedding and isinstance(args[1], cls):
            rows, where = args[1].rows.gather(args[0])
            # The rows have other numbers than in the table, and padding_idx only matters for gradients.
            return func(where, _refusals.bound(rows, args[1].rows.meta), **(kwargs | {"padding_idx": None}))
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def whole(one: Any) -> Any:
            return one.rows.gather(torch.arange(len(one)))[0] if isinstance(one, cls) else one

        args, kwargs = torch.utils._pytree.tree_map(whole, (args, kwargs or {}))
        return func(*args, **kwargs)
