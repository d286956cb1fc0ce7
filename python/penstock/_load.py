# SPDX-License-Identifier: Apache-2.0
"""How load() reads: what is wanted of a file becomes rows (offset, address, bytes, checksum), the compiled part reads
them at the speed of the device and checks them beside the reading, and tensors are put over the memory.

Without `into` all of a file's data is in one mapping of huge pages, laid out so that each storage begins as far into a
page as it does in the file: then the device writes straight into it. Each tensor's storage covers exactly its own
bytes of the mapping, so torch.save writes no more than those; the mapping goes with the last of them.
"""

from __future__ import annotations

import contextlib
import io
import mmap
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from penstock import _core, _state
from penstock._errors import Damaged, EndOfFile
from penstock._state import _located, _selection, _torch

_format = _core._format

_PAGE = mmap.PAGESIZE
_HUGE = 2 << 20
# Of these, and no others, fileno() is the file that read() reads.
_REAL_FILES = (io.FileIO, io.BufferedReader, io.BufferedRandom)


class Source:
    """A file that is being loaded. path: for messages; handle: a descriptor, or its bytes; base: where it begins."""

    def __init__(self, path: str, handle: Any, base: int = 0, by_path: bool = False) -> None:
        self.path, self.handle, self.base = path, handle, base
        self._by_path = by_path
        self._before = None if isinstance(handle, bytes) else os.fstat(handle)

    @property
    def in_memory(self) -> bool:
        return isinstance(self.handle, bytes)

    def head(self) -> bytes:
        return self.handle[:4] if self.in_memory else os.pread(self.handle, 4, self.base)

    def is_pt(self) -> bool:
        head = self.head()
        return head == b"PK\x03\x04" or head[:1] == b"\x80"

    def engine_file(self) -> Any:
        """The same file, opened by the engine: what the path names may have been replaced meanwhile."""
        assert self._before is not None
        if self._by_path:
            with contextlib.suppress(FileNotFoundError):
                file = _core.File(self.path)
                there = os.stat(self.path)
                if (there.st_dev, there.st_ino) == (self._before.st_dev, self._before.st_ino):
                    return file
        return _core.File(f"/proc/self/fd/{self.handle}")

    def check_unchanged(self) -> None:
        if self._before is None:
            return
        now = os.fstat(self.handle)
        if (now.st_size, now.st_mtime_ns) != (self._before.st_size, self._before.st_mtime_ns):
            raise Damaged(
                f"load: '{self.path}': somebody wrote to the file while it was read; load it again when that is over",
                path=self.path,
            )


@contextlib.contextmanager
def opened(f: Any, verb: str) -> Iterator[Source]:
    if isinstance(f, (str, bytes, os.PathLike)):
        path = os.fsdecode(f)
        with open(path, "rb") as file:
            yield Source(path, file.fileno(), by_path=True)
        return
    if isinstance(f, io.TextIOBase):
        raise TypeError(f"{verb}: f: this is a text file; open it with 'rb'")
    real = f.file if isinstance(f, tempfile._TemporaryFileWrapper) else f
    if type(real) in _REAL_FILES:
        if real.writable():
            real.flush()
        path = real.name if isinstance(real.name, str) else f"file {real.fileno()}"
        yield Source(path, real.fileno(), real.tell())
        real.seek(0, os.SEEK_END)
        return
    if not callable(getattr(f, "read", None)):
        raise TypeError(f"{verb}: f: this is a {type(f).__name__}; give a path (str or os.PathLike) or a binary file")
    data = f.read()
    if not isinstance(data, (bytes, bytearray, memoryview)):
        raise TypeError(f"{verb}: f: its read() gave a {type(data).__name__}, not bytes; open it as a binary file")
    yield Source(str(getattr(f, "name", type(f).__name__)), bytes(data))


# ---- memory


class Fresh:
    """Memory for stretches of a file, each with a storage of its own that covers a part of it."""

    def __init__(self, stretches: list[tuple[int, int]]) -> None:
        """stretches: (offset in the file, bytes) each."""
        self._positions = [0] * len(stretches)
        at = end = 0
        for i in sorted(range(len(stretches)), key=lambda i: stretches[i][0]):
            offset, size = stretches[i]
            if not size:
                continue
            if at and 0 <= offset - end < _PAGE:
                at += offset - end
            else:
                at = -(-at // _PAGE) * _PAGE + offset % _PAGE
            self._positions[i] = at
            at, end = at + size, offset + size
        self.arena: Any = None
        if at:
            huge = at >= _HUGE
            try:
                self.arena = mmap.mmap(-1, at + (_HUGE if huge else 0), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            except OSError as error:
                raise MemoryError(
                    f"load: no memory for {at} bytes ({error.strerror}); load a part by `names`, or with mmap=True"
                ) from None
            self._base = self._view(0, 1).data_ptr()
            if huge:
                with contextlib.suppress(OSError, AttributeError):  # a kernel without them
                    self.arena.madvise(mmap.MADV_HUGEPAGE)
                shift = -self._base % _HUGE
                self._positions = [position + shift for position in self._positions]

    def _view(self, position: int, size: int) -> Any:
        torch = _torch()
        return torch.frombuffer(self.arena, dtype=torch.uint8, count=size, offset=position)

    def address(self, i: int) -> int:
        return self._base + self._positions[i] if self.arena is not None else 0

    def storage(self, i: int, begin: int, size: int) -> Any:
        """Over `size` bytes of stretch i, from `begin` on."""
        if not size:
            return _torch().UntypedStorage(0)
        return self._view(self._positions[i] + begin, size).untyped_storage()


class Mapped:
    """The same over the file itself; what is written into the tensors stays in memory."""

    def __init__(self, source: Source, stretches: list[tuple[int, int]]) -> None:
        if source.in_memory:
            raise ValueError("load: mmap: only a file of the system can be mapped; give its path")
        self._stretches, self._base = stretches, source.base
        size = os.fstat(source.handle).st_size
        self._map = mmap.mmap(source.handle, size, access=mmap.ACCESS_COPY) if size else None

    def storage(self, i: int, begin: int, size: int) -> Any:
        torch = _torch()
        if not size:
            return torch.UntypedStorage(0)
        at = self._base + self._stretches[i][0] + begin
        return torch.frombuffer(self._map, dtype=torch.uint8, count=size, offset=at).untyped_storage()


def _read(
    source: Source, rows: list[tuple[int, int, int, int, int]], sums: Any, fresh: bool, report: Any, name_of: Any
) -> None:
    """rows: (offset, address, bytes, CRC or 0, tensor of `sums` or -1) each. name_of(number of a row): for messages."""
    if source.in_memory:
        wrong = _format.read_rows(source.handle, rows, sums, fresh, report)
    else:
        shifted = [(row[0] + source.base, *row[1:]) for row in rows] if source.base else rows
        try:
            wrong = _format.read_rows(source.engine_file(), shifted, sums, fresh, report)
        except EndOfFile as error:
            raise Damaged(
                f"load: '{source.path}': the file became shorter while it was read", path=source.path
            ) from error
        source.check_unchanged()
    if wrong is not None:
        i, offset, size, expected, found = wrong
        raise Damaged(
            f"load: '{source.path}': {name_of(i)}: its {size} bytes from {offset} on have the checksum "
            f"{found:08x}, and the file says {expected:08x}: they were damaged; restore the file from a copy",
            path=source.path,
            offset=offset,
        )


# ---- tensors


def tensors(obj: Any, name: str, seen: set[int]) -> Iterator[tuple[str, Any]]:
    """Those of a state, under their places joined by dots."""
    if isinstance(obj, _torch().Tensor):
        yield name, obj
    elif isinstance(obj, (dict, list, tuple)) and id(obj) not in seen:
        seen.add(id(obj))
        for key, value in obj.items() if isinstance(obj, dict) else enumerate(obj):
            yield from tensors(value, f"{name}.{key}" if name else str(key), seen)


def _stretch(view: Any) -> tuple[int, int]:
    """The bytes of its storage that a tensor covers, from its first element to its last."""
    if view.numel() == 0:
        return 0, 0
    elements = 1 + sum((n - 1) * step for n, step in zip(view.shape, view.stride(), strict=True))
    size = view.element_size()
    return view.storage_offset() * size, elements * size


def _tensor_over(storage: Any, like: Any) -> Any:
    """A tensor as `like`, over a storage that begins with its first element."""
    torch = _torch()
    out = torch.empty(0, dtype=like.dtype, device=storage.device).set_(storage, 0, like.shape, like.stride())
    if like.is_conj():
        out = out.conj()
    if like.is_neg():
        out = torch._neg_view(out)
    return out


def _placed(tensor: Any, map_location: Any, location: str = "cpu") -> Any:
    if map_location is None and location == "cpu":
        return tensor
    storage = _located(tensor.untyped_storage(), location, map_location)
    return tensor if storage.device == tensor.device else _tensor_over(storage, tensor)


class Wish:
    """A tensor of which some is wanted. view: on the meta device, of that; its storage begins at `begin` in the file
    and has `size` bytes; crc: of it, or 0; number: in the table of sums, or -1."""

    def __init__(self, name: str, view: Any, begin: int, size: int, crc: int = 0, number: int = -1) -> None:
        self.name, self.view = name, view
        self.begin, self.size, self.crc, self.number = begin, size, crc, number
        self.first, self.length = _stretch(view)

    def whole_pieces(self, piece_bytes: int) -> tuple[int, int]:
        """(begin, bytes) in the storage of what must be read so that it can be checked."""
        if not piece_bytes or not self.length:
            return self.first, self.length
        begin = self.first // piece_bytes * piece_bytes
        end = -(-(self.first + self.length) // piece_bytes) * piece_bytes
        return begin, min(end, self.size) - begin


def _fetch(source: Source, wishes: list[Wish], sums: Any, mapped: bool, report: Any) -> dict[str, Any]:
    """A tensor of its own for each wish."""
    piece_bytes = sums.piece_bytes if sums is not None and not mapped else 0
    pieces = [wish.whole_pieces(piece_bytes) for wish in wishes]
    stretches = [(wish.begin + begin, size) for wish, (begin, size) in zip(wishes, pieces, strict=True)]
    if mapped:
        memory: Any = Mapped(source, stretches)
    else:
        memory = Fresh(stretches)
        rows = []
        for i, (wish, (offset, size)) in enumerate(zip(wishes, stretches, strict=True)):
            crc = wish.crc if size == wish.size else 0
            rows.append((offset, memory.address(i), size, crc, wish.number))
        _read(source, rows, sums, True, report, lambda i: f"tensor {wishes[i].name!r}")
    out = {}
    for i, (wish, (begin, _)) in enumerate(zip(wishes, pieces, strict=True)):
        tensor = _tensor_over(memory.storage(i, wish.first - begin, wish.length), wish.view)
        # What lies between its elements is not its own.
        out[wish.name] = tensor if tensor.numel() * tensor.element_size() == wish.length else tensor.clone()
    return out


# ---- into tensors that exist


def _check_into(path: str, name: str, tensor: Any, dtype: Any, shape: Iterable[int]) -> None:
    torch = _torch()
    if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.strided:
        raise TypeError(f"load: into[{name!r}]: this is a {type(tensor).__name__}; give dense tensors")
    if tensor.device.type == "meta":
        raise ValueError(f"load: into[{name!r}] is on the meta device and has no memory; give it some (to_empty())")
    if tensor.dtype != dtype or tuple(tensor.shape) != tuple(shape):
        raise ValueError(
            f"load: into[{name!r}] is {tensor.dtype} of {list(tensor.shape)}, and in '{path}' it is {dtype} of "
            f"{list(shape)}; nothing was read"
        )


def _plain(tensor: Any) -> bool:
    """Whether its elements follow one another, as they are."""
    return bool(tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg())


def _fill(source: Source, wishes: list[Wish], into: dict[str, Any], sums: Any, report: Any) -> None:
    """Straight into memory where a tensor is all of its storage in the file; by way of other memory where not."""
    direct, others = [], []
    for wish in wishes:
        target = into[wish.name]
        whole = wish.first == 0 and wish.length == wish.size and _plain(wish.view)
        (direct if whole and target.device.type == "cpu" and _plain(target) else others).append(wish)
    rows = [(w.begin, into[w.name].data_ptr(), w.length, w.crc, w.number) for w in direct]
    _read(source, rows, sums, False, report, lambda i: f"tensor {direct[i].name!r}")
    torch = _torch()
    with torch.no_grad():
        for name, tensor in _fetch_whole(source, others, sums).items():
            into[name].copy_(tensor)


def _fetch_whole(source: Source, wishes: list[Wish], sums: Any) -> dict[str, Any]:
    """Views of storages that are read whole, so that their CRCs can be checked."""
    if sums is not None or not wishes:
        return _fetch(source, wishes, sums, False, None)
    storages = sorted({(w.begin, w.size, w.crc) for w in wishes})
    memory = Fresh([(begin, size) for begin, size, _ in storages])
    rows = [(begin, memory.address(i), size, crc, -1) for i, (begin, size, crc) in enumerate(storages)]
    _read(source, rows, None, True, None, lambda i: f"the storage of tensor {_first_of(wishes, storages[i]).name!r}")
    made = {key: memory.storage(i, 0, key[1]) for i, key in enumerate(storages)}
    torch = _torch()
    out = {}
    for w in wishes:
        tensor = torch.empty(0, dtype=w.view.dtype)
        tensor.set_(made[w.begin, w.size, w.crc], w.view.storage_offset(), w.view.shape, w.view.stride())
        tensor = tensor.conj() if w.view.is_conj() else tensor
        out[w.name] = torch._neg_view(tensor) if w.view.is_neg() else tensor
    return out


def _first_of(wishes: list[Wish], storage: tuple[int, int, int]) -> Wish:
    return next(w for w in wishes if (w.begin, w.size, w.crc) == storage)


def _replaced(obj: Any, by: dict[int, Any], done: dict[int, Any]) -> Any:
    """The state with other tensors in the place of its own."""
    if id(obj) in by:
        return by[id(obj)]
    if id(obj) in done:
        return done[id(obj)]
    if isinstance(obj, dict):
        done[id(obj)] = obj
        for key in obj:
            obj[key] = _replaced(obj[key], by, done)
    elif isinstance(obj, list):
        done[id(obj)] = obj
        obj[:] = [_replaced(item, by, done) for item in obj]
    elif type(obj) is tuple:
        made = tuple(_replaced(item, by, done) for item in obj)
        done[id(obj)] = obj = obj if all(a is b for a, b in zip(made, obj, strict=True)) else made
    return obj


def _same_names(path: str, there: Iterable[str], into: Mapping[str, Any], chosen: Iterable[str] | None) -> None:
    names = set(there)
    missing = [name for name in into if name not in names] if chosen is None else []
    if missing:
        raise KeyError(f"load: into: '{path}' has no tensor {missing[0]!r} ({len(missing)} such); nothing was read")
    lacking = [name for name in (names if chosen is None else chosen) if name not in into]
    if lacking:
        raise KeyError(
            f"load: into has no tensor {min(lacking)!r}, which is in '{path}' ({len(lacking)} such); name in `names` "
            "what is wanted; nothing was read"
        )


# ---- .safetensors


def load_safetensors(source: Source, map_location: Any, into: Any, names: Any, mapped: bool, report: Any) -> Any:
    torch = _torch()
    file = _format.read_safetensors(source.handle, source.path, source.base)
    rows = {row[0]: (i, *row[1:]) for i, row in enumerate(file.tensors)}
    selection = _selection(list(rows), names, source.path)
    wishes = []
    for name, index in selection.items():
        number, kind, shape, begin, end = rows[name]
        if kind not in _state._TORCH or not hasattr(torch, _state._TORCH[kind]):
            raise TypeError(f"load: '{source.path}': tensor {name!r}: torch has no type for {kind}")
        view = torch.empty(shape, dtype=getattr(torch, _state._TORCH[kind]), device="meta")
        wishes.append(Wish(name, _sliced(view, index, name), begin, end - begin, number=number))
    if into is not None:
        _same_names(source.path, rows, into, None if names is None else selection)
        for wish in wishes:
            _check_into(source.path, wish.name, into[wish.name], wish.view.dtype, wish.view.shape)
        _fill(source, wishes, into, file, report)
        return {name: into[name] for name in selection}
    out = _fetch(source, wishes, file, mapped, report)
    return {name: _placed(tensor, map_location) for name, tensor in out.items()}


def _sliced(view: Any, index: Any, name: str) -> Any:
    if index is None:
        return view
    try:
        return view[index]
    except (IndexError, ValueError, TypeError) as error:
        raise ValueError(f"load: names[{name!r}]: {list(view.shape)} cannot be cut by {index!r}: {error}") from None


# ---- .pt


def load_pt(source: Source, map_location: Any, into: Any, names: Any, mapped: bool, report: Any) -> Any:
    file = _format.read_pt(source.handle, source.path, source.base)
    places = file.storages
    if names is not None or into is not None:
        return _load_some_of_pt(source, file, map_location, into, names, mapped, report)
    if not places:
        return file.objects([])
    stretches = [(offset, size) for offset, size, _, _ in places]
    if mapped:
        memory: Any = Mapped(source, stretches)
    else:
        memory = Fresh(stretches)
        rows = [(offset, memory.address(i), size, crc, -1) for i, (offset, size, _, crc) in enumerate(places)]
        _read(source, rows, None, True, report, lambda i: _name_at(file, places[i][0]))
    storages = [memory.storage(i, 0, size) for i, (_, size, _, _) in enumerate(places)]
    located = [_located(s, location, map_location) for s, (_, _, location, _) in zip(storages, places, strict=True)]
    return file.objects(located)


def skeleton(file: Any) -> tuple[Any, dict[int, int]]:
    """The state without data, and of each of its storages which it is."""
    torch = _torch()
    storages = [torch.UntypedStorage(size, device="meta") for _, size, _, _ in file.storages]
    return file.objects(storages), {s._cdata: i for i, s in enumerate(storages)}


def _name_at(file: Any, offset: int) -> str:
    state, numbers = skeleton(file)
    places = file.storages
    for name, tensor in tensors(state, "", set()):
        if places[numbers[tensor.untyped_storage()._cdata]][0] == offset:
            return f"tensor {name!r}"
    return f"the storage at {offset}"


def _load_some_of_pt(
    source: Source, file: Any, map_location: Any, into: Any, names: Any, mapped: bool, report: Any
) -> Any:
    state, numbers = skeleton(file)
    found = dict(tensors(state, "", set()))
    selection = _selection(list(found), names, source.path)
    wishes, locations, places = [], {}, file.storages
    for name, index in selection.items():
        view = found[name].detach()
        offset, size, location, crc = places[numbers[view.untyped_storage()._cdata]]
        wishes.append(Wish(name, _sliced(view, index, name), offset, size, crc))
        locations[name] = location
    if into is None:
        out = _fetch(source, wishes, None, mapped, report)
        return {name: _placed(tensor, map_location, locations[name]) for name, tensor in out.items()}
    targets = dict(tensors(into, "", set()))
    _same_names(source.path, found, targets, None if names is None else selection)
    for wish in wishes:
        _check_into(source.path, wish.name, targets[wish.name], wish.view.dtype, wish.view.shape)
    _fill(source, wishes, targets, None, report)
    if names is not None:
        return {name: targets[name] for name in selection}
    return _replaced(state, {id(tensor): targets[name] for name, tensor in found.items()}, {})


# ---- an index of shards


def load_shards(path: str, map_location: Any, into: Any, names: Any, mapped: bool, report: Any) -> dict[str, Any]:
    folder = os.path.dirname(path)
    weight_map = read_index(path)
    selection = _selection(list(weight_map), names, path)
    if into is not None:
        _same_names(path, weight_map, into, None if names is None else selection)
    shards: dict[str, dict[str, Any]] = {}
    for name, index in selection.items():
        shards.setdefault(os.path.join(folder, weight_map[name]), {})[name] = index
    sizes = {shard: os.stat(shard).st_size for shard in shards}
    # All headers before the first byte of data: what is missing or does not fit stops it here.
    for shard, own in shards.items():
        with opened(shard, "load") as source:
            rows = {r[0]: r for r in _format.read_safetensors(source.handle, shard).tensors}
        for name in own:
            if name not in rows:
                raise Damaged(f"load: '{path}' says that tensor {name!r} is in '{shard}', and it is not", path=shard)
            if into is not None:
                dtype = getattr(_torch(), _state._TORCH.get(rows[name][1], ""), None)
                _check_into(shard, name, into[name], dtype, rows[name][2])
    out: dict[str, Any] = {}
    before, total = 0, sum(sizes.values())
    for shard, own in shards.items():
        part = None if report is None else lambda done, _, before=before: report(before + done, total)
        with opened(shard, "load") as source:
            out.update(load_safetensors(source, map_location, into, own, mapped, part))
        before += sizes[shard]
    return {name: out[name] for name in selection}


def read_index(path: str) -> dict[str, str]:
    with open(path, "rb") as file:
        text = file.read()
    return dict(_format.parse_shard_index(text, path))
