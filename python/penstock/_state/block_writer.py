# SPDX-License-Identifier: Apache-2.0
"""BlockWriter: a stream of bytes becomes large writes of the engine."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import Any

from penstock import _core


class BlockWriter:
    """A new file of exactly the bytes that come, however they are split into calls. The memory is cut into parts. A
    full part is one transfer of the engine to its place in the file, while the next part is filled.

    An error of the storage is raised by the call that finds it, and by every later one. Not thread-safe.

    options: of each transfer, as of penstock.write_async(). error: the error of the storage, or None. fills, fill_s,
    begun_bytes, write_s: counts and times, of pieces that were put into the memory, and of transfers."""

    def __init__(
        self, path: str | os.PathLike[str], memory: memoryview, parts: int = 2, options: Mapping[str, Any] | None = None
    ) -> None:
        self._part_bytes = len(memory) // parts
        self._parts = [memory[i * self._part_bytes : (i + 1) * self._part_bytes] for i in range(parts)]
        self._options = options or {}
        self._filling = 0  # the part that is being filled,
        self._filled = 0  # its bytes so far,
        self._offset = 0  # and the offset of its first byte in the file
        self._under_way: _core.Transfer[int] | None = None
        self.error: BaseException | None = None
        self.fills = self.begun_bytes = 0
        self.fill_s = self.write_s = 0.0
        self._file: _core.File | None = _core.File(path, "w", truncate=True)

    @property
    def closed(self) -> bool:
        return self._file is None

    def write(self, data: memoryview) -> None:
        """Takes bytes. They may be changed when it returns."""

        def fill(into: memoryview, begin: int) -> None:
            into[:] = data[begin : begin + len(into)]

        self.take(len(data), fill)

    def take(self, size: int, fill: Callable[[memoryview, int], None]) -> None:
        """Takes `size` bytes. fill(into, begin) is called for each piece: it puts the bytes from `begin` on there."""
        self._raise_error()
        done = 0
        while done < size:
            # After flush() a part may begin unaligned; it is cut so that the next one begins aligned.
            room = self._part_bytes - self._offset % self._part_bytes - self._filled
            piece = min(room, size - done)
            began = time.perf_counter()
            fill(self._parts[self._filling][self._filled : self._filled + piece], done)
            self.fill_s += time.perf_counter() - began
            self.fills += 1
            self._filled += piece
            done += piece
            if piece == room:
                self._start_transfer()

    def flush(self) -> None:
        """Writes buffered data to the file; it is durable only after close()."""
        self._raise_error()
        if self._file is not None:
            self._start_transfer()
            self._finish_transfer()

    def close(self) -> None:
        """Writes the remaining data, syncs it to the device and closes the file. May be called again."""
        if self._file is None:
            return
        try:
            self.flush()
            self._file.sync()
        finally:
            file, self._file = self._file, None
            self._parts = []  # the caller may use the memory again
            file.close()

    def _start_transfer(self) -> None:
        """Starts to write the part that is being filled. The next part is free when it returns."""
        if not self._filled:
            return
        self._finish_transfer()
        assert self._file is not None
        began = time.perf_counter()
        data = self._parts[self._filling][: self._filled]
        try:
            self._under_way = _core.write_async(self._file, data, self._offset, **self._options)
        except Exception as error:
            self.error = error
            raise
        self.write_s += time.perf_counter() - began
        self.begun_bytes += self._filled
        self._offset += self._filled
        self._filled = 0
        self._filling = (self._filling + 1) % len(self._parts)
        if len(self._parts) == 1:
            self._finish_transfer()

    def _finish_transfer(self) -> None:
        if self._under_way is None:
            return
        began = time.perf_counter()
        try:
            self._under_way.result()
        except Exception as error:
            self._under_way = None  # the transfer holds the file open
            self.error = error
            raise
        self._under_way = None  # not reached after Ctrl-C: then the transfer is waited for again
        self.write_s += time.perf_counter() - began

    def _raise_error(self) -> None:
        if self.error is not None:
            raise self.error
