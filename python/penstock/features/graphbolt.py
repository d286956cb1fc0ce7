# SPDX-License-Identifier: Apache-2.0
"""A table as a feature of DGL's GraphBolt, which is not imported: the methods are those of its `Feature`.

Untested against GraphBolt itself, which has no release for a torch of today (DGL's last is of 2024)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from penstock._base import arguments as _arguments

__all__ = ["Feature"]


class Feature:
    """A table of a penstock.FeatureStore, `store["paper"]`, as a GraphBolt `Feature`. Rows are returned as torch
    tensors on the device of their ids. Thread-safe."""

    @_arguments.named
    def __init__(self, table: Any) -> None:
        self._table = table

    @_arguments.named
    def read(self, ids: Any = None) -> torch.Tensor:
        """The rows of `ids`; None: all. Blocks."""
        return (
            self._table.gather(torch.arange(len(self._table), device="cpu"))
            if ids is None
            else self._table.gather(**_asked(ids))
        )

    @_arguments.named
    def read_async(self, ids: Any) -> Iterator[Any]:
        """Yields once: an object whose wait() returns the rows."""
        yield _Waiter(self._table.gather_async(**_asked(ids)))

    def read_async_num_stages(self, ids_device: Any) -> int:
        """The number of times that read_async() yields."""
        return 1

    def size(self) -> torch.Size:
        """The shape of a row."""
        return torch.Size(self._table.shape[1:])

    def count(self) -> int:
        """The number of rows."""
        return len(self._table)

    def metadata(self) -> dict[str, Any]:
        return {}

    def update(self, value: Any, ids: Any = None) -> None:
        """Raises NotImplementedError: a feature file is not changed."""
        raise NotImplementedError("update: a feature file is not changed; write another with FeatureStore.write()")

    def __repr__(self) -> str:
        return f"Feature({self._table!r})"


def _asked(ids: torch.Tensor) -> dict[str, Any]:
    return {"ids": ids} if ids.is_cpu else {"ids": ids, "device": ids.device}


class _Waiter:
    def __init__(self, future: Any) -> None:
        self._future = future

    def wait(self) -> Any:
        return self._future.result()
