# SPDX-License-Identifier: Apache-2.0
"""A file object for torch.save, with the interface of deepspeed.io.FastFileWriter.

Data goes into one half of the caller's pinned tensor while the other half is written to storage, by a BlockWriter. So
the file has exactly the written bytes, however they are split into calls. penstock.deepnvme.install() replaces
DeepSpeed's class with this one. It also works without DeepSpeed, and for tensors in host memory without a GPU.
"""

from __future__ import annotations

import functools
import operator
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import penstock
from penstock import _core
from penstock._state.block_writer import BlockWriter
from penstock.deepnvme._memory import check_writable
from penstock.deepnvme._torch import is_tensor

_GIB = 1 << 30


@dataclass
class FastFileWriterConfig:
    """The configuration of a FastFileWriter.

    dnvme_handle: an aio_handle; the transfers use its block size and depth. None: those of the engine.
    pinned_tensor: contiguous host memory for the bytes on their way, of any size and type; some MiB are enough. For a
        tensor on a GPU, locked host memory of the same size is used instead.
    double_buffer: one half is filled while the other is written.
    num_parallel_writers, writer_rank: save_torch_storage_object_list() writes only this writer's share of the bytes.
    global_rank: not used; it can be read back.
    """

    dnvme_handle: Any
    pinned_tensor: Any
    double_buffer: bool = True
    num_parallel_writers: int = 1
    writer_rank: int = 0
    global_rank: int = 0


class FastFileWriter:
    """A file being written: a new one, or one that replaces the content of an existing file.

    `torch.save(state, writer)` and `pickle.dump(state, writer)` work. The file is complete and durable when close() has
    returned. An error of the storage (a full disk) is raised by the call that finds it, and by every later one,
    including close(): an incomplete file never closes without an error. Not thread-safe; one writer for each file.
    """

    def __init__(self, file_path: str | os.PathLike[str], config: Any) -> None:
        """Opens and empties the file.

        Raises ValueError or TypeError for an invalid configuration (pinned_tensor is not contiguous host memory),
        OSError if the file cannot be opened.
        """
        self._blocks: BlockWriter | None = None  # set first, for __del__
        counts = {name: getattr(config, name) for name in ("num_parallel_writers", "writer_rank")}
        for name, value in counts.items():
            if isinstance(value, bool) or not hasattr(type(value), "__index__"):
                raise TypeError(f"FastFileWriter({os.fspath(file_path)!r}): {name}: expected an integer, got {value!r}")
        writers, rank = map(operator.index, counts.values())
        if not isinstance(config.double_buffer, (bool, int)):
            raise TypeError(
                f"FastFileWriter({os.fspath(file_path)!r}): double_buffer: expected True or False, got "
                f"{config.double_buffer!r}"
            )
        if writers < 1 or not 0 <= rank < writers:
            raise ValueError(
                f"FastFileWriter({os.fspath(file_path)!r}): writer_rank is {rank} of {writers} num_parallel_writers; "
                "ranks go from 0 to one less than the writers"
            )
        check_writable("pinned_tensor", config.pinned_tensor)
        memory = memoryview(_host_buffer(config.pinned_tensor))
        if memory.readonly:
            raise ValueError(
                f"FastFileWriter({os.fspath(file_path)!r}): pinned_tensor is read-only; give a tensor, or a bytearray"
            )
        parts = 2 if config.double_buffer else 1
        if len(memory) < parts:
            raise ValueError(
                f"FastFileWriter({os.fspath(file_path)!r}): pinned_tensor has {len(memory)} bytes, which is no buffer; "
                "give it some MiB"
            )
        self._file_path = file_path
        self._writers, self._rank = writers, rank
        self._memory = memory
        self._pinned: Any = None  # pinned when the first bytes of a GPU arrive
        self._stats: dict[str, Any] = dict.fromkeys(_STATS, 0)
        self._blocks = BlockWriter(file_path, memory, parts, _transfer_options(config.dnvme_handle))

    # ---- the interface

    def write(self, buffer: Any) -> int:
        """Takes the bytes of a bytes-like object and returns their number. They may be changed when it returns."""
        return self._write(memoryview(buffer).cast("B"))

    def save_torch_storage_object_list(self, storage_obj_list: Sequence[Any], save_size: bool) -> int:
        """Writes the bytes of storages, each a (torch.UntypedStorage, torch.dtype). Returns the bytes that this writer
        wrote. With save_size each storage is preceded by its number of elements, in 8 bytes in this machine's order.

        With several parallel writers the bytes are cut into that many equal ranges; if they do not divide evenly, the
        first ranges are a byte longer. Only the range of writer_rank is written.
        """
        pieces = []
        for storage, dtype in storage_obj_list:
            data = _storage_bytes(storage)
            if save_size:
                pieces.append(_bytes_of_size(data.numel() // dtype.itemsize))
            pieces.append(data)
        total = sum(piece.numel() for piece in pieces)
        share, longer = divmod(total, self._writers)
        start = share * self._rank + min(self._rank, longer)
        end = start + share + (self._rank < longer)
        written = at = 0
        for piece in pieces:
            first, last = max(start - at, 0), min(end - at, piece.numel())
            if first < last:
                written += self._write(piece[first:last])
            at += piece.numel()
        self._stats["save_storage"] += len(storage_obj_list)
        self._stats["save_storage_bytes"] += written
        return written

    def flush(self) -> None:
        """Writes buffered data to the file. Other processes can then read it; it is durable only after close()."""
        self._stats["flush"] += 1
        if self._blocks is not None:
            self._blocks.flush()

    def close(self) -> None:
        """Writes the remaining data, syncs it to the device (fsync) and closes the file. May be called again."""
        if self._blocks is None or self._blocks.closed:
            return
        self._stats["close"] += 1
        start = time.perf_counter()
        try:
            self._blocks.close()
        finally:
            self._stats["write_secs"] += time.perf_counter() - start

    def fileno(self) -> int:
        """-1, so that torch, which asks for the descriptor, does not write to the file directly."""
        self._stats["fileno"] += 1
        return -1

    def file_path(self) -> str | os.PathLike[str]:
        return self._file_path

    def _dump_state(self) -> None:
        """Prints the statistics in a line that begins with `stats = `. Times are in seconds, speeds in GiB a second."""
        stats, blocks = self._stats, self._blocks
        if blocks is not None:
            stats |= {"aio_write_secs": blocks.write_s, "aio_bytes": blocks.begun_bytes}
            stats |= {"fill_buffer_secs": blocks.fill_s, "fill_buffer_count": blocks.fills}
        for speed, size, seconds in (
            ("write_GB/s", "bytes", "write_secs"),
            ("aio_GB/s", "aio_bytes", "aio_write_secs"),
            ("fill_buffer_GB/s", "aio_bytes", "fill_buffer_secs"),
        ):
            stats[speed] = stats[size] / stats[seconds] / _GIB if stats[seconds] else 0
        stats["path"] = self.file_path()
        print(f"stats = {stats}")

    def __del__(self) -> None:
        reported = None if self._blocks is None else self._blocks.error
        try:
            self.close()
        except Exception as error:
            if error is not reported:  # another was raised when it occurred
                raise

    def _write(self, data: Any) -> int:
        """data: a memoryview, or a tensor of bytes on any device."""
        if self._blocks is None or (self._blocks.closed and self._blocks.error is None):
            raise ValueError(f"FastFileWriter({os.fspath(self._file_path)!r}): write after close()")
        start = time.perf_counter()
        if isinstance(data, memoryview):
            total = len(data)
            self._blocks.write(data)
        else:
            total = data.numel()
            self._blocks.take(total, functools.partial(self._copy, data))
        self._stats["write"] += 1
        self._stats["bytes"] += total
        self._stats["write_secs"] += time.perf_counter() - start
        return total

    def _copy(self, tensor: Any, into: memoryview, begin: int) -> None:
        data = tensor[begin : begin + len(into)]
        if tensor.device.type == "cuda" and _core.gpu_count():
            if self._pinned is None:
                self._pinned = _core._pin_for_gpu(self._memory, tensor.device.index) or False
            _core._copy_from_gpu(into, data)
        else:
            _as_tensor(into).copy_(data)


_STATS = (
    ("close", "fileno", "flush", "write", "bytes", "write_secs", "write_GB/s")
    + ("aio_write_secs", "aio_bytes", "aio_GB/s", "slow_bytes", "slow_write_secs")
    + ("fill_buffer_count", "fill_buffer_secs", "fill_buffer_GB/s", "save_storage", "save_storage_bytes")
)


def _host_buffer(pinned: Any) -> penstock.Buffer:
    if is_tensor(pinned) and pinned.is_cuda and pinned.nbytes:
        return _core.locked_memory(pinned.nbytes)
    return penstock.as_bytes(pinned)


def _transfer_options(handle: Any) -> dict[str, Any]:
    if handle is None:
        return {}
    block_bytes = min(handle.get_block_size(), 1 << 30)
    return {"block_bytes": block_bytes, "depth_limit": penstock.DepthLimit(handle.get_queue_depth())}


def _as_tensor(memory: memoryview) -> Any:
    import torch

    return torch.frombuffer(memory, dtype=torch.uint8)


def _storage_bytes(storage: Any) -> Any:
    """The bytes of a torch.UntypedStorage, on its device."""
    import torch

    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def _bytes_of_size(count: int) -> Any:
    import torch

    return torch.tensor([count], dtype=torch.int64).view(torch.uint8)
