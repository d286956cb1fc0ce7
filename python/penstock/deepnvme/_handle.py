# SPDX-License-Identifier: Apache-2.0
"""aio_handle: DeepNVMe's interface for reads and writes, on the engine of the process.

A handle is a view: it counts its operations, and its block size and depth apply to each transfer. An operation is

    submitted (async_*: its file is open, the engine has it)  ->  waited for, by wait() or a blocking call  ->  counted

and is counted once, by the first wait(). No lock is held while a thread blocks: wait() takes all operations that no
thread waits for yet, and also waits for those of other threads. So when it returns, everything that was submitted
before is done. Operations of an interrupted wait (Ctrl-C) become pending again, and the next wait() counts them. The
lock is reentrant, because the garbage collector may run a finalizer that uses the handle at any allocation.

An operation keeps the descriptors of its file until it is released. So a submission first releases the oldest
operations that are done, and waits for the oldest one if too many are open.
"""

from __future__ import annotations

import errno
import operator
import os
import resource
from _thread import RLock
from collections import deque
from itertools import islice
from typing import Any

from penstock import _core
from penstock._base import arguments as _arguments
from penstock._base.errors import Error, WouldBlock
from penstock.deepnvme import _memory, _pinned
from penstock.deepnvme._files import make_private, offset_in_file, renamed, where

_MISSING: Any = object()
ALIGNMENT_BYTES = 512  # the value of DeepNVMe for every device
_COMPARED_BYTES = 4 << 20  # bytes of a file that validate compares at a time
_BLOCK_BYTES_MAX = 1 << 30
_WAITED_AT_ONCE = 32

_forks = 0


def _count_fork() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_child=_count_fork)


def _files_open_max() -> int:
    """Limit on operations of a handle with an open file: each has two descriptors, and the process needs others."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return 1024 if limit == resource.RLIM_INFINITY else max(4, min(1024, limit // 8))


def _count(name: str, value: Any, at_most: int) -> int:
    try:
        count = operator.index(value)
    except TypeError:
        raise TypeError(f"{name}: got {type(value).__name__}; give an int, 1 or more") from None
    if not 1 <= count <= at_most:
        raise ValueError(f"{name}: got {count}; expected 1 to {at_most}")
    return count


def _flag(name: str, value: Any) -> bool:
    # 'false' would be true.
    if value is True or value is False:
        return bool(value)
    if isinstance(value, (str, bytes)) or not hasattr(type(value), "__bool__"):
        raise TypeError(f"{name}: expected True or False, got {_arguments.got(value)}")
    return bool(value)


def _meta_or_same(buffer: Any, error: ValueError) -> ValueError:
    if getattr(buffer, "is_meta", False):
        return ValueError("buffer: a meta tensor has no memory; give torch.empty_like(tensor, device='cpu')")
    return error


def _source(buffer: Any, later: bool, copies_device_tensors: bool) -> Any:
    """The source of a write. DeepNVMe writes the values at the call. So with `later` a tensor is copied, on its own
    device, unless it is locked. A strided tensor is always copied, as in DeepNVMe."""
    if _pinned.is_tensor(buffer):
        if not buffer.is_cpu and not buffer.is_cuda:
            return buffer  # the engine will raise the reason
        if buffer.is_cuda and not _memory.why_not_plain(buffer):
            if not buffer.is_contiguous():
                return buffer.detach().contiguous()
            return buffer.detach().clone() if later and copies_device_tensors else buffer
        if not _memory.why_not_plain(buffer) and not buffer.is_contiguous():
            return buffer.detach().contiguous()
        if later and _pinned.is_pinned(buffer):
            return buffer
    return _memory.copied(buffer) if later else buffer


def _compare(shown: str, file: _core.File, buffer: Any, offset: int) -> None:
    """Reads the transferred bytes again, and raises at the first byte that differs."""
    expected = memoryview(_core.as_bytes(_memory.on_host(buffer)))  # type: ignore[arg-type]
    scratch = bytearray(min(len(expected), _COMPARED_BYTES))
    for begin in range(0, len(expected), _COMPARED_BYTES):
        part = expected[begin : begin + _COMPARED_BYTES]
        again = memoryview(scratch)[: len(part)]
        _core.read(file, again, offset + begin)
        # Compares bytes objects, which takes one memcmp; Python compares memoryviews byte by byte.
        if bytes(again) != bytes(part):
            at = next(i for i in range(len(part)) if again[i] != part[i])
            raise Error(
                f"validate '{shown}': byte {begin + at} of the tensor is {part[at]}, and the file has "
                f"{again[at]} at offset {offset + begin + at}; was either changed meanwhile? If not, look at the "
                "kernel log (dmesg)",
                errno.EIO,
                "validate",
                shown,
                offset + begin + at,
            )


def _close(file: _core.File, check: tuple[str, _core.File, Any, int] | None) -> None:
    """Closes the file explicitly: a kept exception keeps its frames, and so their open files. On a full disk the
    space of a deleted file would then not be freed."""
    file.close()
    if check is not None:
        check[1].close()


class _Followed:
    """A transfer with another name in its errors, or with a comparison to make when it is done."""

    __slots__ = ("_check", "_error", "_lock", "_over", "_path", "_shown", "_transfer")

    def __init__(self, transfer: _core.Transfer[Any], path: Any, shown: str | None, check: Any) -> None:
        self._transfer: _core.Transfer[Any] | None = transfer
        self._path = path
        self._shown = shown
        self._check = check  # the arguments of _compare(), or None
        self._error: BaseException | None = None
        self._over = False
        self._lock = RLock()  # threads that share a handle wait for the same operation

    def result(self) -> None:
        with self._lock:
            if not self._over:
                self._finish()
        if self._error is not None:
            raise self._error

    def _finish(self) -> None:
        transfer, check = self._transfer, self._check
        error = _outcome(transfer)
        if check is not None:
            try:
                if error is None:
                    _compare(*check)
            except Error as found:
                error = found.with_traceback(None)
            finally:
                check[1].close()
        self._error = None if error is None else renamed(error, self._path, self._shown)
        self._over = True
        self._transfer = self._check = None

    def done(self) -> bool:
        transfer = self._transfer
        return transfer is None or (self._check is None and transfer.done())

    @property
    def status(self) -> str:
        if not self._over:
            return "running"
        return "done" if self._error is None else "failed"


def _outcome(operation: Any) -> BaseException | None:
    """Waits for an operation. Returns its error, or None. Exceptions of signal handlers are raised."""
    try:
        operation.result()
    except Exception as error:
        if operation.status in ("running", "done"):
            raise
        # The traceback would keep the operation alive, and with it the descriptors of a file.
        return error.with_traceback(None)
    return None


def _first_of(errors: list[BaseException]) -> BaseException | None:
    if len(errors) > 1:
        import logging

        for error in errors[1:]:
            logging.getLogger("penstock.deepnvme").error("wait: another operation failed as well: %s", error)
    return errors[0] if errors else None


def _bind(verb: str, given: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, Any, bool, bool, int]:
    """The arguments of pread and pwrite; one of them is named `async`, a keyword of Python."""
    names = ("buffer", "filename", "validate", "async", "file_offset")
    if len(given) > len(names):
        raise TypeError(f"{verb}() takes {len(names)} arguments at most, and {len(given)} came")
    values = dict(zip(names, given))
    for name, value in named.items():
        name = "filename" if name == "fd" else name
        if name not in names:
            raise TypeError(f"{verb}() has no argument '{name}'; it has {', '.join(names)}")
        if name in values:
            raise TypeError(f"{verb}() got its argument '{name}' twice")
        values[name] = value
    missing = [name for name in names[:4] if name not in values]
    if missing:
        raise TypeError(f"{verb}() lacks {', '.join(missing)} (async is a word of Python's: give **{{'async': True}})")
    return (
        values["buffer"],
        values["filename"],
        _flag("validate", values["validate"]),
        _flag("async", values["async"]),
        values.get("file_offset", 0),
    )


def _place(verb: str, filename: Any, fd: Any) -> Any:
    if fd is _MISSING:
        if filename is _MISSING:
            raise TypeError(f"{verb}() lacks filename: a path, or an open descriptor")
        return filename
    if filename is not _MISSING:
        raise TypeError(f"{verb}() got a filename and a descriptor; give one of them")
    try:
        return operator.index(fd)
    except TypeError:
        raise TypeError(f"fd: got {type(fd).__name__}; give an open descriptor (int)") from None


class aio_handle:  # noqa: N801 (DeepNVMe's name)
    """Blocking and non-blocking reads and writes of tensors; a view of the process's engine that costs nothing to make.

    block_size: limit on the bytes of a request (the engine has its own limit, 1 MiB unless PENSTOCK_BLOCK_BYTES sets
    another). queue_depth: limit on requests of this handle at a device. intra_op_parallelism: checked and returned;
    get_alignment() depends on it. single_submit, overlap_events: returned; the engine always overlaps and batches.

    Tensors: on the CPU or a GPU, of any dtype, shape, size (also 0) and address; any offset and file size. Strided
    tensors are written through a copy, and refused as destinations (ValueError). Files: a path (str, pathlib.Path) or
    an open descriptor. The file of a descriptor is opened again: its position does not change, and it may be closed at
    once.

    Errors: the call raises TypeError and ValueError for arguments, and OSError for a file that cannot be opened
    (missing, no permission, descriptor closed or read-only: EBADF). wait() and the blocking calls raise OSError for
    errors of the I/O (end of file, full disk). The operations are counted anyway; errors after the first are logged.

    An asynchronous write has the values at the call: a tensor is copied unless it is locked; a GPU tensor is copied on
    the GPU. Transfers of a GPU tensor begin after the work that torch's current stream holds at the call. Memory that
    is mapped read-only is refused as a destination; other memory that must not be written (bytes objects) is not
    recognised.

    Thread-safe: the first wait() counts an operation, and a wait() returns when everything that was submitted before
    is done. Threads that need their own counts use one handle each. In the child of a fork the handle starts empty:
    operations of the parent belong to the parent, and a wait() for them raises penstock.Cancelled. The operations of a
    dropped handle continue; penstock.default_engine().drain() raises their errors.
    """

    __slots__ = (
        "__weakref__",
        "_block_bytes",
        "_block_size",
        "_claims",
        "_completed",
        "_depth",
        "_errors",
        "_files_max",
        "_forks",
        "_intra_op_parallelism",
        "_lock",
        "_overlap_events",
        "_pending",
        "_queue_depth",
        "_single_submit",
    )

    _COPIES_DEVICE_TENSORS = True

    def __init__(
        self,
        block_size: int = 1024 * 1024,
        queue_depth: int = 128,
        single_submit: bool = False,
        overlap_events: bool = False,
        intra_op_parallelism: int = 1,
    ) -> None:
        self._block_size = _count("block_size", block_size, (1 << 63) - 1)
        self._queue_depth = _count("queue_depth", queue_depth, (1 << 31) - 1)
        self._single_submit = _flag("single_submit", single_submit)
        self._overlap_events = _flag("overlap_events", overlap_events)
        self._intra_op_parallelism = _count("intra_op_parallelism", intra_op_parallelism, (1 << 31) - 1)
        self._block_bytes = min(self._block_size, _BLOCK_BYTES_MAX)
        self._files_max = _files_open_max()
        self._begin()

    def _begin(self) -> None:
        self._lock = RLock()
        self._depth = _core.DepthLimit(self._queue_depth)
        self._pending: deque[Any] = deque()  # operations that no thread waits for
        self._claims: dict[int, deque[Any]] = {}  # operations that a wait() waits for, by the wait()
        self._completed = 0  # operations that were released and not counted yet
        self._errors: list[BaseException] = []  # the errors of these
        self._forks = _forks

    def _inherit(self) -> None:
        """Makes the parent's operations pending in the child of a fork, where they end as cancelled."""
        claimed = [operation for claim in self._claims.values() for operation in claim]
        inherited = (deque([*claimed, *self._pending]), self._completed, self._errors)
        self._begin()
        self._pending, self._completed, self._errors = inherited

    # ---- settings

    def get_block_size(self) -> int:
        """The given bytes."""
        return self._block_size

    def get_queue_depth(self) -> int:
        """The given number of requests."""
        return self._queue_depth

    def get_single_submit(self) -> bool:
        """As given."""
        return self._single_submit

    def get_overlap_events(self) -> bool:
        """As given."""
        return self._overlap_events

    def get_intra_op_parallelism(self) -> int:
        """As given."""
        return self._intra_op_parallelism

    def get_alignment(self) -> int:
        """512 bytes times intra_op_parallelism, as DeepNVMe requires of sizes. This handle accepts any size."""
        return self._intra_op_parallelism * ALIGNMENT_BYTES

    # ---- opening

    def _open(self, path: Any, shown: str | None, write: bool, buffer: Any, offset: int) -> _core.File:
        if write and not os.access(path, os.F_OK):
            # Checked first, so that a write that cannot be done creates no file.
            _memory.check_end(offset, _core.movable_bytes(buffer))
            make_private(path)
        while True:
            try:
                return _core.File(path, "w" if write else "r", cache="direct")  # DeepNVMe uses O_DIRECT
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE) or not self._let_go(len(self._pending) // 2):
                    raise renamed(error, path, shown) from None

    def _prepare(
        self, write: bool, buffer: Any, place: Any, offset: Any, validate: bool, later: bool
    ) -> tuple[_core.File, Any, int, Any, Any, Any]:
        """Makes all checks of the call. Returns (file, buffer, offset, path, shown, check)."""
        if isinstance(buffer, (list, tuple)):
            raise TypeError(f"buffer: got {type(buffer).__name__}; give one tensor")
        if type(offset) is not int or offset < 0:
            offset = offset_in_file(offset)
        path, shown = (place, None) if type(place) is str else where(place, write)
        try:
            if write:
                buffer = _source(buffer, later, self._COPIES_DEVICE_TENSORS)
            else:
                _memory.check_writable("buffer", buffer)
            file = self._open(path, shown, write, buffer, offset)
        except ValueError as error:
            raise _meta_or_same(buffer, error) from None
        check = None
        if validate:
            try:
                check = (shown or os.fsdecode(path), self._open(path, shown, False, buffer, offset), buffer, offset)
            except BaseException:
                file.close()
                raise
        return file, buffer, offset, path, shown, check

    # ---- moving

    def _move(self, verb: Any, file: _core.File, buffer: Any, offset: int) -> Any:
        try:
            return verb(file, buffer, offset, block_bytes=self._block_bytes, depth_limit=self._depth)
        except ValueError as error:
            raise _meta_or_same(buffer, error) from None

    def _submit(
        self, write: bool, buffer: Any, place: Any, offset: Any, validate: bool = False, later: bool = True
    ) -> None:
        if self._forks != _forks:
            self._begin()  # pending operations belong to the parent
        if len(self._pending) >= self._files_max:
            self._let_go(self._files_max // 2)
        file, buffer, offset, path, shown, check = self._prepare(write, buffer, place, offset, validate, later)
        verb = _core.write_async if write else _core.read_async
        try:
            while True:
                try:
                    operation = self._move(verb, file, buffer, offset)
                    break
                except WouldBlock:
                    if not self._let_go(0):
                        raise
        except BaseException:
            _close(file, check)
            raise
        if check is not None or shown is not None:
            operation = _Followed(operation, path, shown, check)
        with self._lock:
            self._pending.append(operation)

    def _run(self, write: bool, buffer: Any, place: Any, offset: Any, validate: bool) -> None:
        """Runs one operation alone, on this thread."""
        if self._forks != _forks:
            self._begin()
        file, buffer, offset, path, shown, check = self._prepare(write, buffer, place, offset, validate, False)
        try:
            self._move(_core.write if write else _core.read, file, buffer, offset)
            if check is not None:
                _compare(*check)
        except Error as error:
            raise renamed(error, path, shown) from None
        finally:
            _close(file, check)

    def _now(self, write: bool, buffer: Any, place: Any, offset: Any, validate: bool = False) -> int:
        """Runs one operation, and waits for all pending ones."""
        if self._pending or self._claims or self._completed or self._errors:
            self._submit(write, buffer, place, offset, validate, later=False)
            return self.wait()
        self._run(write, buffer, place, offset, validate)
        return 1

    # A signal handler can raise only after a call. So statements that belong together have no call between them.

    def _finish(self, operations: deque[Any], errors: list[BaseException]) -> None:
        """Waits for each, counts it and releases it, with the descriptors of its file."""
        while operations:
            # Operations end about in the order in which they began, so one sleep serves many.
            _outcome(operations[min(len(operations), _WAITED_AT_ONCE) - 1])
            for _ in range(min(len(operations), _WAITED_AT_ONCE)):
                error = _outcome(operations[0])
                if error is not None:
                    errors.append(error)
                with self._lock:
                    self._completed += 1
                    operations.popleft()

    def _give_back(self, operations: deque[Any], errors: list[BaseException]) -> None:
        """Makes operations of an interrupted wait pending again, before later ones."""
        with self._lock:
            self._errors[:0] = errors
            if self._pending is not operations:
                self._pending.extendleft(reversed(operations))
            self._claims.pop(id(operations), None)

    def _let_go(self, most: int) -> bool:
        """Waits for the oldest operations until `most` are left, and counts them. Returns whether there were any."""
        oldest: deque[Any] = deque()
        errors: list[BaseException] = []
        try:
            with self._lock:
                pending = self._pending
                count = max(0, len(pending) - most)
                first, rest = deque(islice(pending, count)), deque(islice(pending, count, None))
                if self._pending is pending:
                    self._pending, oldest = rest, first
                self._claims[id(oldest)] = oldest
            self._finish(oldest, errors)
        finally:
            self._give_back(oldest, errors)
        return count > 0

    def wait(self) -> int:
        """Waits for all operations of the handle. Returns the number of operations that no wait() has counted yet.

        Raises the first of their errors (OSError); they are counted anyway. Ctrl-C leaves them unchanged.
        """
        count, error = self._wait()
        if error is not None:
            try:
                raise error
            finally:
                del error  # it holds this frame
        return count

    def _wait(self) -> tuple[int, BaseException | None]:
        if self._forks != _forks:
            self._inherit()
        pending: deque[Any] = deque()
        mine, completed = pending, 0
        errors: list[BaseException] = []
        none: list[BaseException] = []
        try:
            with self._lock:
                claims = list(self._claims.values())
                mine = self._pending
                self._claims[id(mine)] = mine
                self._pending = pending
            self._finish(mine, errors)
            theirs = [*filter(None, (_outcome(operation) for claim in claims for operation in list(claim)))]
            with self._lock:
                del self._claims[id(mine)]
                errors = self._errors + errors + theirs
                completed = self._completed
                self._errors = none
                self._completed = 0
        except BaseException:
            self._completed += completed
            self._give_back(mine, errors)
            raise
        return completed, _first_of(errors)

    # ---- reads and writes

    def read(self, buffer: Any, filename: Any, validate: bool, file_offset: int = 0) -> int:
        """Fills `buffer` from the file at `file_offset` (bytes); blocks. Returns 0. Pending operations continue.

        validate: reads the bytes again and raises OSError if they differ.
        """
        self._run(False, buffer, filename, file_offset, _flag("validate", validate))
        return 0

    def write(self, buffer: Any, filename: Any, validate: bool, file_offset: int = 0) -> int:
        """Writes `buffer` to the file at `file_offset` (bytes); blocks. Returns 0. Pending operations continue.

        Creates a missing file (0600 less umask) and never truncates one. validate: reads the bytes back and raises
        OSError if they differ.
        """
        self._run(True, buffer, filename, file_offset, _flag("validate", validate))
        return 0

    def pread(self, *args: Any, **kwargs: Any) -> int:
        """pread(buffer, filename, validate, async, file_offset=0). With async it returns 0; call wait() later. Else it
        waits for all pending operations and returns their number plus 1. By keyword: **{"async": True}."""
        buffer, place, validate, later, offset = _bind("pread", args, kwargs)
        if later:
            self._submit(False, buffer, place, offset, validate)
            return 0
        return self._now(False, buffer, place, offset, validate)

    def pwrite(self, *args: Any, **kwargs: Any) -> int:
        """pwrite(buffer, filename, validate, async, file_offset=0). With async it returns 0; call wait() later. Else it
        waits for all pending operations and returns their number plus 1. By keyword: **{"async": True}."""
        buffer, place, validate, later, offset = _bind("pwrite", args, kwargs)
        if later:
            self._submit(True, buffer, place, offset, validate)
            return 0
        return self._now(True, buffer, place, offset, validate)

    def sync_pread(self, buffer: Any, filename: Any = _MISSING, file_offset: int = 0, *, fd: Any = _MISSING) -> int:
        """Fills `buffer`, and waits for all pending operations. Returns their number plus 1."""
        return self._now(False, buffer, _place("sync_pread", filename, fd), file_offset)

    def sync_pwrite(self, buffer: Any, filename: Any = _MISSING, file_offset: int = 0, *, fd: Any = _MISSING) -> int:
        """Writes `buffer`, and waits for all pending operations. Returns their number plus 1."""
        return self._now(True, buffer, _place("sync_pwrite", filename, fd), file_offset)

    def async_pread(self, buffer: Any, filename: Any = _MISSING, file_offset: int = 0, *, fd: Any = _MISSING) -> int:
        """Begins to fill `buffer`. Returns 0. Do not use it, nor resize its storage, before wait()."""
        self._submit(False, buffer, _place("async_pread", filename, fd), file_offset)
        return 0

    def async_pwrite(self, buffer: Any, filename: Any = _MISSING, file_offset: int = 0, *, fd: Any = _MISSING) -> int:
        """Begins to write the present values of `buffer`. Returns 0. A locked or pinned tensor is not copied: do not
        change it before wait()."""
        self._submit(True, buffer, _place("async_pwrite", filename, fd), file_offset)
        return 0

    # ---- locked tensors

    def new_cpu_locked_tensor(self, num_elem: int, example_tenosr: Any) -> Any:
        """pin_handle.new_cpu_locked_tensor(); the second keyword has DeepNVMe's spelling."""
        return _pinned.new_locked_tensor(num_elem, example_tenosr)

    def free_cpu_locked_tensor(self, tensor: Any) -> bool:
        """pin_handle.free_cpu_locked_tensor()."""
        return _pinned.free(tensor)

    def is_pinned(self, buffer: Any) -> bool:
        """pin_handle.is_pinned()."""
        return _pinned.is_pinned(buffer)
