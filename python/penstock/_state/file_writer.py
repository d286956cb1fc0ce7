# SPDX-License-Identifier: Apache-2.0
"""FileWriter: a file object for code that writes to one and cannot be changed, such as torch.save.

Data goes to a temporary file next to the target, through two blocks of memory: one is filled while the other is written
to the device (by a BlockWriter). close() makes the file durable and renames it to the target.
"""

from __future__ import annotations

import io
import os
import warnings
from types import TracebackType
from typing import Any

from penstock import _core
from penstock._base import arguments as _arguments
from penstock._state.block_writer import BlockWriter

_format = _core._format
_BUFFER_BYTES = 32 << 20


class FileWriter:
    """A binary file for writing. close() replaces the file of that name: completely, durably, and in one step.

        with penstock.FileWriter("state.pt") as f:
            torch.save(state, f)

    The old file is untouched until then. After abort(), or an exception in the `with` block, it stays. A writer that is
    dropped without close() is aborted with a ResourceWarning. A symbolic link is followed; mode and owner of a file
    that exists are kept. Bytes can only be appended. Not thread-safe.

    An error of the storage (a full disk) is raised by the call that finds it and by every later one. If torch.save
    turns it into a RuntimeError, the end of the `with` block raises the original error.

    file: the path. buffer_bytes: memory to use for the two blocks."""

    _writer: BlockWriter | None = None  # set in the class for __del__, which also runs if __init__ failed

    @_arguments.named
    def __init__(self, file: str | os.PathLike[str], *, buffer_bytes: int = _BUFFER_BYTES) -> None:
        self.name = _arguments.path("FileWriter", file)
        if buffer_bytes < 2:
            raise ValueError(f"FileWriter: buffer_bytes: {buffer_bytes}; give some MiB")
        self._replacement = _format.Replacement(os.path.abspath(self.name))
        try:
            self._writer = BlockWriter(self._replacement.temporary, memoryview(_core.empty(buffer_bytes)))
        except BaseException:
            self._replacement.give_up()
            raise
        self._position = 0

    @_arguments.named
    def write(self, data: Any) -> int:
        """Takes the bytes of a bytes-like object and returns their number. They may be changed when it returns."""
        view = memoryview(data).cast("B")
        self._open().write(view)
        self._position += len(view)
        return len(view)

    @_arguments.named
    def read(self, size: int = -1) -> bytes:
        """Refuses. numpy.savez takes an object for a file if it has this method."""
        raise io.UnsupportedOperation("FileWriter: not readable")

    def flush(self) -> None:
        """Writes buffered data to the temporary file; nothing is durable before close()."""
        self._open().flush()

    def tell(self) -> int:
        """The number of bytes written so far."""
        self._open()
        return self._position

    def close(self) -> None:
        """Makes the file durable and gives it its name. When it raises, the old file is unchanged. May be repeated."""
        if self._writer is None:
            return
        writer, self._writer = self._writer, None
        try:
            writer.close()
            self._replacement.commit()
        finally:
            self._replacement.give_up()

    def abort(self) -> None:
        """Discards the new file; the old file stays. Does nothing after close()."""
        if self._writer is None:
            return
        writer, self._writer = self._writer, None
        try:
            writer.close()
        except OSError:
            pass  # an earlier call raised it
        finally:
            self._replacement.give_up()

    @property
    def closed(self) -> bool:
        return self._writer is None

    def writable(self) -> bool:
        return True

    def readable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False

    def fileno(self) -> int:
        raise io.UnsupportedOperation("FileWriter: nobody may write past it")

    def _open(self) -> BlockWriter:
        if self._writer is None:
            raise ValueError(f"FileWriter({self.name!r}): it is closed")
        return self._writer

    def __enter__(self) -> FileWriter:
        self._open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
            return
        cause = None if self._writer is None else self._writer.error
        self.abort()
        if cause is not None and cause is not error and isinstance(error, Exception):
            raise cause from error

    def __del__(self) -> None:
        if self._writer is not None:
            warnings.warn(f"FileWriter({self.name!r}) was not closed, and is given up", ResourceWarning, stacklevel=2)
            self.abort()
