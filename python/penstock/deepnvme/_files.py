# SPDX-License-Identifier: Apache-2.0
"""The file of an operation: a path, or a descriptor of the caller's, which is opened again through /proc.

So an operation has descriptors of its own, past the page cache where the file system can, whatever the caller's was
opened with; the caller may close it at once, and its position stays where it is.
"""

from __future__ import annotations

import errno
import fcntl
import operator
import os
from typing import Any

from penstock._errors import Error, Unsupported


def renamed(error: BaseException, path: Any, shown: str | None) -> BaseException:
    """The same error, about the name for people where there is another than the path."""
    if shown is None or not isinstance(error, Error) or error.filename != path:
        return error
    return type(error)(error.message.replace(path, shown), error.errno, error.operation, shown, error.offset)


def _bad_descriptor(verb: str, fd: int, what: str, cure: str) -> Error:
    return Error(f"{verb} by descriptor {fd}: {what}; {cure}", errno.EBADF, verb)


def _by_descriptor(fd: int, write: bool) -> tuple[str, str]:
    """The file of a descriptor. It is opened again, so the caller's may be closed, or lack O_DIRECT."""
    verb = "write" if write else "read"
    try:
        flags = fcntl.fcntl(fd, fcntl.F_GETFL)
    except (OSError, ValueError, OverflowError):
        raise _bad_descriptor(verb, fd, "it is not open", "open the file first, or give its path") from None
    mode = flags & os.O_ACCMODE
    if flags & os.O_PATH or mode == (os.O_RDONLY if write else os.O_WRONLY):
        asked = "writing" if write else "reading"
        raise _bad_descriptor(verb, fd, f"it is not open for {asked}", "open it with os.O_RDWR, or give the path")
    path = f"/proc/self/fd/{fd}"
    try:
        return path, f"{os.readlink(path)} (descriptor {fd})"
    except OSError as error:
        raise Unsupported(
            f"{verb} by descriptor {fd}: {path} cannot be read ({error.strerror}), and the file is reopened through "
            "it; mount /proc, or give the path",
            operation=verb,
        ) from None


def where(place: Any, write: bool) -> tuple[Any, str | None]:
    """The path that the engine opens, and the name for people where that is another."""
    try:
        return os.fspath(place), None
    except TypeError:
        pass
    try:
        if not isinstance(place, bool):
            return _by_descriptor(operator.index(place), write)  # also an integer of NumPy's
    except TypeError:
        pass
    raise TypeError(
        f"filename: got {type(place).__name__}; give a path (str, pathlib.Path) or an open descriptor (int)"
    )


def offset_in_file(value: Any) -> int:
    offset = operator.index(value)
    if offset < 0:
        raise ValueError(f"file_offset: {offset} is no place in a file; give bytes from its start, 0 or more")
    return offset


def make_private(path: Any) -> None:
    """As DeepNVMe does, a new file is its owner's alone: 0600 less umask, where File() would say 0666."""
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOCTTY, 0o600))
    except (OSError, ValueError):
        pass  # opening it says why
