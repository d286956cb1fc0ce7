# SPDX-License-Identifier: Apache-2.0
"""FileWriter: a file for code that cannot be changed and writes to one, torch.save first of all.

What is written goes to a temporary file next to the target, through two blocks of memory of which one is filled while
the other is on its way to the device (FastFileWriter does that); close() makes it durable and gives it its name.
"""

from __future__ import annotations

import io
import os
import warnings
from types import TracebackType
from typing import Any

from penstock import _arguments, _core
from penstock._state import _path

_format = _core._format
_BUFFER_BYTES = 32 << 20


class FileWriter:
    """A binary file being written, which takes the place of the one under its name when it is closed: whole, durable,
    and at once.

        with penstock.FileWriter("state.pt") as f:
            torch.save(state, f)

    Until then, and for good after abort() or an exception in the `with` block, the old file is untouched. A writer that
    is dropped without close() is given up with a ResourceWarning. A symbolic link is followed; mode and owner of an
    existing file are kept. Bytes can only be appended. Not thread-safe.

    An error of the storage (a full disk) is raised by the call that finds it and by every later one. Where torch.save
    makes a RuntimeError of it, the end of the `with` block raises the error itself.

    file: the path. buffer_bytes: of memory that is used."""

    _writer: Any = None  # of an object whose making failed, too: for __del__

    @_arguments.named
    def __init__(self, file: str | os.PathLike[str], *, buffer_bytes: int = _BUFFER_BYTES) -> None:
        from penstock.deepnvme._fast_file_writer import FastFileWriter, FastFileWriterConfig

        self.name = _path(file, "FileWriter")
        if buffer_bytes < 2:
            raise ValueError(f"FileWriter: buffer_bytes: {buffer_bytes}; give some MiB")
        self._replacement = _format.Replacement(os.path.abspath(self.name))
        try:
            config = FastFileWriterConfig(None, _core.empty(buffer_bytes))
            self._writer = FastFileWriter(self._replacement.temporary, config)
        except BaseException:
            self._replacement.give_up()
            raise
        self._position = 0

    @_arguments.named
    def write(self, data: Any) -> int:
        """Takes the bytes of a bytes-like object; gives their number. They may be changed as soon as it returns."""
        size: int = self._open().write(data)
        self._position += size
        return size

    def flush(self) -> None:
        """Writes buffered data to the temporary file; nothing is durable before close()."""
        self._open().flush()

    def tell(self) -> int:
        """Bytes that were written."""
        self._open()
        return self._position

    def close(self) -> None:
        """Makes the file durable and gives it its name. Again is fine and does nothing. When it raises, the old file is
        as it was."""
        if self._writer is None:
            return
        writer, self._writer = self._writer, None
        try:
            writer.close()
            self._replacement.commit()
        finally:
            self._replacement.give_up()

    def abort(self) -> None:
        """Gives it up; the old file stays. Nothing after close()."""
        if self._writer is None:
            return
        writer, self._writer = self._writer, None
        try:
            writer.close()
        except OSError:
            pass  # it was raised when it was found
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

    def _open(self) -> Any:
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
        cause = None if self._writer is None else self._writer._error
        self.abort()
        if cause is not None and cause is not error and isinstance(error, Exception):
            raise cause from error

    def __del__(self) -> None:
        if self._writer is not None:
            warnings.warn(f"FileWriter({self.name!r}) was not closed, and is given up", ResourceWarning, stacklevel=2)
            self.abort()
