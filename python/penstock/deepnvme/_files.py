# SPDX-License-Identifier: Apache-2.0
"""The file of an operation: a path, or a descriptor of the caller, which is opened again through /proc.

So an operation has its own descriptors. They bypass the page cache if the file system can, whatever the flags of the
caller's descriptor are. The caller may close that one at once, and its position does not change.
"""

from __future__ import annotations

import errno
import fcntl
import operator
import os
from typing import Any

from penstock._base.errors import Error, Unsupported


def renamed(error: BaseException, path: Any, shown: str | None) -> BaseException:
    """The same error, with the name to show in place of the path."""
    if shown is None or not isinstance(error, Error) or error.filename != path:
        return error
    return type(error)(error.message.replace(path, shown), error.errno, error.operation, shown, error.offset)


def _bad_descriptor(verb: str, fd: int, what: str, cure: str) -> Error:
    return Error(f"{verb} by descriptor {fd}: {what}; {cure}", errno.EBADF, verb)


def _by_descriptor(fd: int, write: bool) -> tuple[str, str]:
    """The file of a descriptor. It is opened again, so the caller may close its own, and that needs no O_DIRECT."""
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
    """The path that the engine opens, and the name to show if that differs."""
    try:
        return os.fspath(place), None
    except TypeError:
        pass
    try:
        if not isinstance(place, bool):
            return _by_descriptor(operator.index(place), write)  # also takes an integer of NumPy
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
    """Makes a new file with mode 0600 less umask, as DeepNVMe does; File() would use 0666."""
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOCTTY, 0o600))
    except (OSError, ValueError):
        pass  # opening it will raise the reason
