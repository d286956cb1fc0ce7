# SPDX-License-Identifier: Apache-2.0
"""The class GIDS with the arguments and methods of the GIDS project (Park et al., VLDB 2024), over a feature file.

    loader = GIDS(cache_dim=1024, cache_size=4096, window_buffer=True, path="igb.features")
    batches = iter(dgl_or_other_loader)          # batch[0]: ids, or {type: ids}
    batch = loader.fetch_feature(1024, batches, "cpu")   # the batch, and its rows at the end

Arguments for the layout of rows on raw disks (page_size, off, num_ele, num_ssd, ssd_list, heterograph_map's offsets)
are ignored: the feature file has this information. Arguments that keep the queues of GIDS full are ignored too: a
gather does that by itself."""

from __future__ import annotations

import collections
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from penstock._base import arguments as _arguments
from penstock.features._store import FeatureStore

__all__ = ["GIDS"]


class GIDS:
    """Gathers the rows of batches that a loader samples.

    cache_dim: elements of a row. cache_size: MB of memory for rows. window_buffer: sample wb_size batches ahead, and
    report their rows by hint(). heterograph: batches are {type: ids}, and types are tables.
    accumulator_flag, ctrl_idx, long_type and the arguments that the module docstring names: ignored. path: the feature
    file. store: instead, an open penstock.FeatureStore, with its own memory.
    Raises ValueError for a table whose rows do not have cache_dim elements. Not thread-safe."""

    @_arguments.named
    def __init__(
        self,
        page_size: int = 4096,
        off: int = 0,
        cache_dim: int = 1024,
        num_ele: int = 300 * 1000 * 1000 * 1024,
        num_ssd: int = 1,
        ssd_list: Any = None,
        cache_size: int = 10,
        ctrl_idx: int = 0,
        window_buffer: bool = False,
        wb_size: int = 8,
        accumulator_flag: bool = False,
        long_type: bool = False,
        heterograph: bool = False,
        heterograph_map: Mapping[str, int] | None = None,
        *,
        path: Any = None,
        store: Any = None,
    ) -> None:
        if (path is None) == (store is None):
            raise ValueError("GIDS: expected a path or a store, and not both")
        self.store = _opened(path, cache_size) if store is None else store
        self.cache_dim = _arguments.whole("GIDS", "cache_dim", cache_dim, 1)
        self.wb_size = _arguments.whole("GIDS", "wb_size", wb_size)
        self.window_buffering_flag, self.heterograph = bool(window_buffer), bool(heterograph)
        for name, table in self.store.tables.items():
            elements = torch.Size(table.shape[1:]).numel()
            if elements != self.cache_dim:
                raise ValueError(f"GIDS: cache_dim: '{name}' has rows of {elements} elements, got {self.cache_dim}")
        if not heterograph and len(self.store.tables) != 1:
            raise ValueError(f"GIDS: heterograph: expected True, for there are {len(self.store.tables)} tables")
        self.window_buffer: collections.deque[Any] = collections.deque()

    def _ids(self, batch: Any) -> dict[str, torch.Tensor]:
        given = batch[0] if self.heterograph else {next(iter(self.store.tables)): batch[0]}
        return {name: torch.as_tensor(ids) for name, ids in given.items()}

    def window_buffering(self, batch: Any) -> None:
        """Reports the rows of a later batch to the store, if it has hint()."""
        if hasattr(self.store, "hint"):
            self.store.hint(self._ids(batch))

    def fill_wb(self, it: Iterator[Any], num: int) -> None:
        """Takes `num` batches from the loader, or as many as are left."""
        for _ in range(num):
            batch = next(it, None)
            if batch is None:
                return
            self.window_buffer.append(batch)
            if self.window_buffering_flag:
                self.window_buffering(batch)

    def fetch_feature(self, dim: int, it: Iterator[Any], device: Any = "cpu") -> Any:
        """The next batch with its rows appended, the first `dim` elements of each, on `device`: a tensor, or a dict by
        type. Raises StopIteration after the last batch, ValueError for a dim other than 1 to cache_dim. GIDS loses the
        last wb_size batches of an iterator; this class returns them."""
        dim = _arguments.whole("fetch_feature", "dim", dim, 1, self.cache_dim)
        ahead = self.wb_size if self.window_buffering_flag else 0
        self.fill_wb(it, ahead + 1 - len(self.window_buffer))
        if not self.window_buffer:
            raise StopIteration
        batch = self.window_buffer.popleft()
        where = {} if torch.device(device).type == "cpu" else {"device": device}
        found = self.store.gather(self._ids(batch), **where)
        rows = {name: value.flatten(1)[:, :dim] for name, value in found.items()}
        added = rows if self.heterograph else next(iter(rows.values()))
        return (*batch, added) if isinstance(batch, tuple) else [*batch, added]

    def read_tensor(self, num: int, offset: int) -> torch.Tensor:
        """`num` rows of the first table, from row `offset` on."""
        num, offset = (
            _arguments.whole("read_tensor", name, value) for name, value in [("num", num), ("offset", offset)]
        )
        return next(iter(self.store.tables.values())).gather(torch.arange(offset, offset + num, device="cpu"))

    def set_required_storage_access(self, *ignored: Any) -> None:
        """Does nothing: a gather keeps the device's queue full without this setting."""

    def cpu_backing_buffer(self, *ignored: Any) -> None:
        """Does nothing: the store has the memory for rows."""

    def set_cpu_buffer(self, *ignored: Any) -> None:
        """Does nothing: open the store with a hot set instead, and give it as `store`."""

    def flush_cache(self) -> None:
        """Does nothing: rows are read-only."""

    def print_stats(self) -> None:
        """Prints the store's counts."""
        print(self.store.stats())

    def store_tensor(self, *ignored: Any) -> None:
        """Raises NotImplementedError."""
        raise NotImplementedError("store_tensor: a feature file is written whole, with penstock.FeatureStore.write()")

    store_mmap_tensor = store_tensor

    def __repr__(self) -> str:
        return f"GIDS({self.store!r}, wb_size={self.wb_size if self.window_buffering_flag else 0})"


def _opened(path: Any, cache_mb: int) -> FeatureStore:
    megabytes = _arguments.whole("GIDS", "cache_size", cache_mb, 0, 1 << 40)
    return FeatureStore.open(path, ram=megabytes * 1_000_000 or None)
