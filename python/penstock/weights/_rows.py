# SPDX-License-Identifier: Apache-2.0
"""Embeddings of a streamed model: only the rows that a call uses are read, each once, in the order of the file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import penstock
from penstock.weights import _refusals


class Rows:
    """The table of one torch.nn.Embedding. During a call its weight is the rows that the call needs, and the input is
    changed to numbers of these rows. So the code of a subclass around the lookup still works."""

    def __init__(
        self, module: torch.nn.Embedding, path: str, name: str, put: Callable[[torch.Tensor], torch.Tensor]
    ) -> None:
        """`put`: a function that moves a tensor of the host to the device of the model."""
        self._put = put
        self._table = penstock.TensorRows(path, name)
        self._meta = module._parameters["weight"]
        self._padding = module.padding_idx
        self._handles = [
            module.register_forward_pre_hook(self._enter, with_kwargs=True),
            module.register_forward_hook(self._leave, always_call=True),
        ]
        self.bytes_read = 0

    def gather(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The rows of `ids`, and for each of `ids` its place among these rows."""
        unique, where = torch.unique(ids, return_inverse=True)
        count = self._table.shape[0]
        if unique.numel() and not 0 <= int(unique[0]) <= int(unique[-1]) < count:
            raise IndexError(f"embedding: the numbers {int(unique[0])} to {int(unique[-1])} of rows: there are {count}")
        rows = self._table.gather(unique.to(torch.int64).cpu())
        self.bytes_read += rows.nbytes
        return self._put(rows), where

    def _enter(self, module: torch.nn.Embedding, args: tuple, kwargs: dict) -> Any:
        name = None if args else next(iter(kwargs))
        rows, where = self.gather(args[0] if args else kwargs[name])
        module._parameters["weight"] = _refusals.bound(rows, self._meta)
        module.padding_idx = None  # it only matters for gradients
        return ((where, *args[1:]), kwargs) if args else (args, {**kwargs, name: where})

    def _leave(self, module: torch.nn.Embedding, args: Any, output: Any) -> None:
        module._parameters["weight"] = self._meta
        module.padding_idx = self._padding

    def close(self, module: torch.nn.Embedding) -> None:
        for handle in self._handles:
            handle.remove()
        self._leave(module, None, None)
        self._table.close()
