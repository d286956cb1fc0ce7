# SPDX-License-Identifier: Apache-2.0
"""The exceptions of Penstock. A wrong argument is a ValueError or TypeError, a failed allocation is a MemoryError, and
an error of the system or of a transfer is an Error."""

from __future__ import annotations

import errno as _errno
import os as _os
import re as _re
from typing import Any, BinaryIO

from penstock import _core


class Error(OSError):
    """An operation failed. An error of the system is also of the built-in class for its errno, so that
    `except FileNotFoundError` works.

    operation: the operation that failed: "open", "read", "write", "sync", ...
    filename, path: the file concerned, or None.
    offset: byte offset in the file, or None.
    errno: the errno of the system, or None if the error is not of the system."""

    operation: str | None
    offset: int | None
    _code = 2  # penstock::ErrorCode

    def __init__(
        self,
        message: str = "",
        errno: int | None = None,
        operation: str | None = None,
        path: str | None = None,
        offset: int | None = None,
    ) -> None:
        # OSError with two or more arguments takes errno, text and filename from them.
        if errno is None:
            super().__init__(message)
            self.filename = path
        else:
            super().__init__(errno, _os.strerror(errno), path)
        self.message = message
        self.operation = operation
        self.offset = offset

    @property
    def path(self) -> str | None:
        name: str | None = self.filename
        return name

    @property
    def is_about_the_file(self) -> bool:
        """True if the file is the reason: it is damaged, cut short, missing, or can no longer be read. False if this
        machine is the reason (memory, open files, a permission, a server); the file may then be valid."""
        return _core.is_about_the_file(self._code, self.errno or 0)

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> tuple[object, ...]:
        return _remake, (type(self).__name__, self.message, self.errno, self.operation, self.filename, self.offset)


class EndOfFile(Error, EOFError):
    """A read met the end of the file, and allow_short was not given."""

    _code = 3


class Cancelled(Error):
    """The transfer was cancelled: the memory of a read and the extent of a write are undefined."""

    _code = 4


class WouldBlock(Error, BlockingIOError):
    """The limit on transfers in flight is reached (transfers_max); wait for one and try again."""

    _code = 5


class Unsupported(Error):
    """This machine, file system or file cannot do it; the message says why."""

    _code = 6


class Damaged(Error, ValueError):
    """A file is invalid: cut short, changed, or hostile. Nothing of it was executed."""

    _code = 9


class Changed(Error):
    """A tensor changed, or its memory was freed, while it was saved. Nothing was saved, and nothing removed."""

    _code = 10


def _of_system(builtin: type[OSError]) -> type[Error]:
    """A class that is both an Error and Python's built-in class for the errno."""
    made: type[Error] = type(builtin.__name__, (Error, builtin), {"__module__": __name__, "__doc__": builtin.__doc__})
    return made


_BY_ERRNO: dict[int, type[Error]] = {
    number: _of_system(builtin)
    for number, builtin in (
        (_errno.ENOENT, FileNotFoundError),
        (_errno.EEXIST, FileExistsError),
        (_errno.EISDIR, IsADirectoryError),
        (_errno.ENOTDIR, NotADirectoryError),
        (_errno.EACCES, PermissionError),
        (_errno.EAGAIN, BlockingIOError),
    )
}
_BY_ERRNO[_errno.EPERM] = _BY_ERRNO[_errno.EACCES]
_ALL: tuple[type[Error], ...] = (
    Error,
    EndOfFile,
    Cancelled,
    WouldBlock,
    Unsupported,
    Damaged,
    Changed,
    *_BY_ERRNO.values(),
)
_BY_NAME = {made.__name__: made for made in _ALL}

_CHECKPOINT = _re.compile(r"[0-9]{8,}-step-[0-9]+")  # the folder of one, in a store's

# penstock::ErrorCode
_INVALID_ARGUMENT, _SYSTEM, _OUT_OF_MEMORY, _CLOSED = 1, 2, 7, 8
_BY_CODE = {made._code: made for made in (EndOfFile, Cancelled, WouldBlock, Unsupported, Damaged, Changed)}


def _remake(name: str, *arguments: Any) -> Error:
    return _BY_NAME.get(name, Error)(*arguments)


def opened(path: str, verb: str) -> BinaryIO:
    """The file, for reading. Errors are those of this module and name the path."""
    try:
        return open(path, "rb")
    except IsADirectoryError:
        raise folder_given(path, verb) from None
    except OSError as error:
        raise _core.system_error(error.errno, verb, path) from None


def folder_given(path: str, verb: str) -> BaseException:
    return from_core(_SYSTEM, _folder(path, verb), _errno.EISDIR, verb, path, None)


def _folder(path: str, verb: str) -> str:
    """Describes the content of a folder that was given for a file, and the call that takes it."""
    try:
        names = sorted(_os.listdir(path))
    except OSError:
        names = []
    if "manifest.json" in names:
        return f"{verb}: '{path}' is a checkpoint of a store; penstock.Checkpoint({path!r}).load() loads it"
    if any(_CHECKPOINT.fullmatch(name) for name in names):
        return f"{verb}: '{path}' is the folder of a store; penstock.CheckpointStore({path!r}).load() loads its newest"
    from penstock import _core

    if names and (file := _core.tensors_in(path)):
        return f"{verb}: '{path}' is a folder; give the path of a file, such as '{file}'"
    return f"{verb}: '{path}' is a folder, and has no checkpoint in it; give the path of a file"


def from_core(
    code: int, message: str, number: int, operation: str, path: str | None, offset: int | None
) -> BaseException:
    """The exception of the compiled part."""
    if code in (_INVALID_ARGUMENT, _CLOSED):
        return ValueError(message)
    if code == _OUT_OF_MEMORY:
        return MemoryError(message)
    if code == _SYSTEM:
        made = _BY_ERRNO.get(number, Error)
    else:
        made = _BY_CODE.get(code, Error)
    return made(message, number or None, operation or None, path, offset)
