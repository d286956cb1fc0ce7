# SPDX-License-Identifier: Apache-2.0
"""How load() reads: what is wanted of a file becomes rows (offset, address, bytes, checksum), the compiled part reads
them at the speed of the device and checks them beside the reading, and tensors are put over the memory.

Without `into` all of a file's data is in one mapping of huge pages, laid out so that each storage begins as far into a
page as it does in the file: then the device writes straight into it. Each tensor's storage covers exactly its own
bytes of the mapping, so torch.save writes no more than those. Its pages go with it, those of small ones with their
neighbours'.
"""

from __future__ import annotations

import contextlib
import io
import mmap
import os
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any

from penstock import _core, _errors, _into, _shards, _state
from penstock._arguments import shown
from penstock._errors import Damaged, EndOfFile, Unsupported
from penstock._state import _located, _objects, _selection, _torch

_format = _core._format

_TRIES_WITH_DATA = 3  # of an index, where an attempt has read all of it
# The classes whose fileno() is the file that read() reads.
_REAL_FILES = (io.FileIO, io.BufferedReader, io.BufferedRandom)


class Source:
    """A file that is being loaded: opened, recognised by its content and read but for its data, by the compiled part.

    path: for messages. begin: where it begins. kind, rows: what it says (open_tensors() in bind_format.cpp has them).
    piece_bytes: of what has a checksum of its own, or 0."""

    def __init__(self, path: str, verb: str, handle: Any = None, begin: int = 0) -> None:
        """handle: a descriptor, or bytes; None: what the path names."""
        self.path, self.handle, self.begin = path, handle, begin
        self.in_memory = isinstance(handle, bytes)
        self._before = self._status()
        try:
            self.file, self.kind, self.rows, self.piece_bytes = _format.open_tensors(handle, path, begin, verb)
        except IsADirectoryError:
            raise _errors.folder_given(path, verb) from None

    def objects(self, storages: list[Any]) -> Any:
        """The state of a .pt."""
        return _objects(self.file, storages, self.path)

    def _status(self) -> os.stat_result | None:
        try:
            return None if self.in_memory else os.stat(self.path if self.handle is None else self.handle)
        except OSError:
            return None

    def check_unchanged(self) -> None:
        now = self._status()
        if now is None or self._before is None:
            return
        if (now.st_dev, now.st_ino) != (self._before.st_dev, self._before.st_ino):
            return  # another file has the name: what was opened is whole
        if (now.st_size, now.st_mtime_ns) != (self._before.st_size, self._before.st_mtime_ns):
            raise Damaged(
                f"load: '{self.path}': the file was written to while it was read; load it again when that is over",
                path=self.path,
            )


@contextlib.contextmanager
def opened(f: Any, verb: str) -> Iterator[Source]:
    """Closes the source at the end, even if it is kept (by a traceback)."""
    source, real = _source_of(f, verb)
    try:
        yield source
    finally:
        source.file = None
    if real is not None:
        real.seek(0, os.SEEK_END)


def _source_of(f: Any, verb: str) -> tuple[Source, Any]:
    """And the file of the system that it was given as."""
    if isinstance(f, (str, bytes, os.PathLike)):
        return Source(os.fsdecode(f), verb), None
    if isinstance(f, io.TextIOBase):
        raise TypeError(f"{verb}: f: this is a text file; open it with 'rb'")
    real = f.file if isinstance(f, tempfile._TemporaryFileWrapper) else f
    if type(real) in _REAL_FILES:
        if real.writable():
            real.flush()
        path = real.name if isinstance(real.name, str) else f"file {real.fileno()}"
        return Source(path, verb, real.fileno(), real.tell()), real
    if not callable(getattr(f, "read", None)):
        raise TypeError(f"{verb}: f: this is a {type(f).__name__}; give a path (str or os.PathLike) or a binary file")
    data = f.read()
    if not isinstance(data, (bytes, bytearray, memoryview)):
        raise TypeError(f"{verb}: f: its read() gave a {type(data).__name__}, not bytes; open it as a binary file")
    return Source(str(getattr(f, "name", type(f).__name__)), verb, bytes(data)), None


@contextlib.contextmanager
def mapped_or_opened(path: str, mapped: bool) -> Iterator[Source]:
    """Opened by its path; where it will be mapped, with a descriptor."""
    if not mapped:
        with opened(path, "load") as source:
            yield source
        return
    with _errors.opened(path, "load") as file, opened(file, "load") as source:
        yield source


# ---- memory


class Fresh:
    """Memory for stretches of a file, each with a storage of its own that covers a part of it. What no tensor uses any
    more is the system's again, in parts of a MiB or more (src/memory/fresh_memory.hpp)."""

    def __init__(self, stretches: list[tuple[int, int]]) -> None:
        """stretches: (offset in the file, bytes) each."""
        self._memory = _format.FreshMemory(stretches)

    def address(self, i: int) -> int:
        return self._memory.address(i)

    def storage(self, i: int, begin: int, size: int) -> Any:
        """Over `size` bytes of stretch i, from `begin` on."""
        torch = _torch()
        if not size:
            return torch.UntypedStorage(0)
        part, at = self._memory.part(i)
        return torch.frombuffer(part, dtype=torch.uint8, count=size, offset=at + begin).untyped_storage()


class Mapped:
    """The same over the file itself; what is written into the tensors stays in memory."""

    def __init__(self, source: Source, stretches: list[tuple[int, int]]) -> None:
        if source.in_memory:
            raise ValueError("load: mmap: only a file of the system can be mapped; give its path")
        self._stretches, self._base = stretches, source.begin
        size = os.fstat(source.handle).st_size
        self._map = mmap.mmap(source.handle, size, access=mmap.ACCESS_COPY) if size else None

    def storage(self, i: int, begin: int, size: int) -> Any:
        torch = _torch()
        if not size:
            return torch.UntypedStorage(0)
        at = self._base + self._stretches[i][0] + begin
        return torch.frombuffer(self._map, dtype=torch.uint8, count=size, offset=at).untyped_storage()


def _read(
    source: Source,
    rows: list[tuple[int, int, int, int, int]],
    fresh: bool,
    report: Any,
    name_of: Any,
    targets: Any = (),
) -> None:
    """rows: (offset, address, bytes, CRC or 0, tensor of the header or -1) each. name_of(number of a row): for
    messages. targets: (name, tensor) of those that are filled: nothing is read where one of them cannot be written."""
    pages = [(name, page) for name, tensor in targets for page in _into.pages_of(tensor)]
    try:
        wrong = source.file.read(rows, [page for _, page in pages], fresh, report)
    except EndOfFile as error:
        raise Damaged(f"load: '{source.path}': the file became shorter while it was read", path=source.path) from error
    if wrong is not None and wrong[0] == "page":
        raise _into.unwritable(pages[wrong[1]][0], wrong[2])
    source.check_unchanged()
    if wrong is not None:
        _, i, offset, size, expected, found = wrong
        raise Damaged(
            f"load: '{source.path}': {name_of(i)}: its {size} bytes from {offset} on have the checksum "
            f"{found:08x}, and the file says {expected:08x}: they were damaged; restore the file from a copy",
            path=source.path,
            offset=offset,
        )


# ---- tensors


def view_of(storage: Any, like: Any, begin: int | None = None) -> Any:
    """A tensor as `like` on another storage, there from element `begin` on, or from the one that it has on its own."""
    torch = _torch()
    begin = like.storage_offset() if begin is None else begin
    out = torch.empty(0, dtype=like.dtype, device=storage.device).set_(storage, begin, like.shape, like.stride())
    out = out.conj() if like.is_conj() else out
    return torch._neg_view(out) if like.is_neg() else out


def _placed(tensor: Any, map_location: Any, path: str, location: str = "cpu") -> Any:
    if map_location is None and location == "cpu":
        return tensor
    storage = _located(tensor.untyped_storage(), location, map_location, path)
    return tensor if storage.device == tensor.device else view_of(storage, tensor, 0)


class Wish:
    """A tensor of which some is wanted. view: on the meta device, of that; its storage begins at `begin` in the file
    and has `size` bytes; crc: of it, or 0; number: in the table of sums, or -1."""

    def __init__(self, name: str, view: Any, begin: int, size: int, crc: int = 0, number: int = -1) -> None:
        self.name, self.view = name, view
        self.begin, self.size, self.crc, self.number = begin, size, crc, number
        self.first, self.length = _into.stretch(view)

    def whole_pieces(self, piece_bytes: int) -> tuple[int, int]:
        """(begin, bytes) in the storage of what must be read so that it can be checked."""
        if not piece_bytes or not self.length:
            return self.first, self.length
        begin = self.first // piece_bytes * piece_bytes
        end = -(-(self.first + self.length) // piece_bytes) * piece_bytes
        return begin, min(end, self.size) - begin


def _fetch(source: Source, wishes: list[Wish], mapped: bool, report: Any) -> list[Any]:
    """A tensor of its own for each wish."""
    piece_bytes = 0 if mapped else source.piece_bytes
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
        _read(source, rows, True, report, lambda i: f"tensor {shown(wishes[i].name)}")
    out = []
    for i, (wish, (begin, _)) in enumerate(zip(wishes, pieces, strict=True)):
        tensor = view_of(memory.storage(i, wish.first - begin, wish.length), wish.view, 0)
        # A view with gaps does not own the memory between its elements, so it is copied.
        out.append(tensor if tensor.numel() * tensor.element_size() == wish.length else _own(tensor, wish.name))
    return out


def _own(tensor: Any, name: str) -> Any:
    try:
        return tensor.clone()
    except RuntimeError as error:  # an expanded one may be of any size
        raise MemoryError(f"load: tensor {shown(name)}: no memory for its {tensor.nbytes} bytes") from error


# ---- into tensors that exist


def _plain(tensor: Any) -> bool:
    """Whether its elements follow one another, as they are."""
    return bool(tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg())


def _fill(source: Source, wishes: list[Wish], into: list[Any], report: Any) -> None:
    """Straight into memory where a tensor is all of its storage in the file; by way of other memory where not."""
    direct: dict[tuple[int, int, int], tuple[Wish, Any]] = {}
    others: list[tuple[Wish, Any]] = []
    filled: list[Any] = []
    for wish, target in zip(wishes, into, strict=True):
        whole = wish.first == 0 and wish.length == wish.size and _plain(wish.view)
        if whole and target.device.type == "cpu" and _plain(target):
            direct[wish.begin, target.data_ptr(), wish.length] = wish, target  # once, where two are one
            filled.append(target)
        else:
            others.append((wish, target))
    rows = [(*place, wish.crc, wish.number) for place, (wish, _) in direct.items()]
    named = [wish.name for wish, _ in direct.values()]
    try:
        targets = [(wish.name, target) for wish, target in zip(wishes, into, strict=True)]
        _read(source, rows, False, report, lambda i: f"tensor {shown(named[i])}", targets)
    finally:
        _into.touched(filled)
    if not others:
        return
    with _torch().no_grad():
        for tensor, (_, target) in zip(_fetch_whole(source, [w for w, _ in others]), others, strict=True):
            target.copy_(tensor)


def _fetch_whole(source: Source, wishes: list[Wish]) -> list[Any]:
    """Views of storages that are read whole, so that their CRCs can be checked."""
    if source.kind != "pt":
        return _fetch(source, wishes, False, None)
    storages = sorted({(w.begin, w.size, w.crc) for w in wishes})
    memory = Fresh([(begin, size) for begin, size, _ in storages])
    rows = [(begin, memory.address(i), size, crc, -1) for i, (begin, size, crc) in enumerate(storages)]
    _read(source, rows, True, None, lambda i: f"the storage of tensor {shown(_first_of(wishes, storages[i]).name)}")
    made = {key: memory.storage(i, 0, key[1]) for i, key in enumerate(storages)}
    return [view_of(made[w.begin, w.size, w.crc], w.view) for w in wishes]


def _first_of(wishes: list[Wish], storage: tuple[int, int, int]) -> Wish:
    return next(w for w in wishes if (w.begin, w.size, w.crc) == storage)


# ---- .safetensors


def load_safetensors(source: Source, map_location: Any, into: Any, names: Any, mapped: bool, report: Any) -> Any:
    torch = _torch()
    rows = {row[0]: (i, *row[1:]) for i, row in enumerate(source.rows)}
    selection = _selection(rows, names, source.path)
    wishes = []
    for name, index in selection.items():
        number, kind, shape, begin, end = rows[name]
        if kind not in _state._TORCH or not hasattr(torch, _state._TORCH[kind]):
            raise Unsupported(
                f"load: '{source.path}': tensor {shown(name)}: torch has no type for {kind}; name the others in "
                "`names`",
                path=source.path,
            )
        try:
            view = torch.empty(shape, dtype=getattr(torch, _state._TORCH[kind]), device="meta")
        except (RuntimeError, TypeError, OverflowError) as error:  # next to a 0 an extent may be anything
            raise Damaged(
                f"load: '{source.path}': tensor {shown(name)}: {list(shape)} is no possible shape", path=source.path
            ) from error
        wishes.append(Wish(name, sliced(view, index, name), begin, end - begin, number=number))
    if into is not None:
        _into.check_kind(into, (Mapping,))
        _into.check_names(source.path, rows, into, None if names is None else selection)
        for wish in wishes:
            _into.check_like(source.path, wish.name, into[wish.name], wish.view.dtype, wish.view.shape)
        _into.refuse_shared([(name, into[name], None) for name in selection])
        _fill(source, wishes, [into[name] for name in selection], report)
        return {name: into[name] for name in selection}
    out = _fetch(source, wishes, mapped, report)
    return {name: _placed(tensor, map_location, source.path) for name, tensor in zip(selection, out, strict=True)}


def sliced(view: Any, index: Any, name: str) -> Any:
    if index is None:
        return view
    try:
        return view[index]
    except (IndexError, ValueError, TypeError) as error:
        raise ValueError(
            f"load: names[{shown(name)}]: {list(view.shape)} cannot be cut by {shown(index)}: {error}"
        ) from None


# ---- .pt


def load_pt(source: Source, map_location: Any, into: Any, names: Any, mapped: bool, report: Any) -> Any:
    places = source.rows
    if names is not None or into is not None:
        return _load_some_of_pt(source, map_location, into, names, mapped, report)
    if not places:
        return source.objects([])
    stretches = [(offset, size) for offset, size, _, _ in places]
    if mapped:
        memory: Any = Mapped(source, stretches)
    else:
        memory = Fresh(stretches)
        rows = [(offset, memory.address(i), size, crc, -1) for i, (offset, size, _, crc) in enumerate(places)]
        _read(source, rows, True, report, lambda i: _name_at(source, places[i][0]))
    storages = [memory.storage(i, 0, size) for i, (_, size, _, _) in enumerate(places)]
    located = [
        _located(s, location, map_location, source.path)
        for s, (_, _, location, _) in zip(storages, places, strict=True)
    ]
    return source.objects(located)


def skeleton(source: Source) -> tuple[Any, dict[int, int]]:
    """The state without data, and of each of its storages which it is."""
    torch = _torch()
    storages = [torch.UntypedStorage(size, device="meta") for _, size, _, _ in source.rows]
    return source.objects(storages), {s._cdata: i for i, s in enumerate(storages)}


def _name_at(source: Source, offset: int) -> str:
    state, numbers = skeleton(source)
    places = source.rows
    for name, _, tensor in _into.tensors(state):
        if places[numbers[tensor.untyped_storage()._cdata]][0] == offset:
            return f"tensor {shown(name)}"
    return f"the storage at {offset}"


def _load_some_of_pt(source: Source, map_location: Any, into: Any, names: Any, mapped: bool, report: Any) -> Any:
    state, numbers = skeleton(source)
    found = list(_into.tensors(state))
    called = _into.labels(found)
    selection = chosen(found, names, source.path)
    wishes, locations, places = [], [], source.rows
    for i, index in selection.items():
        view = found[i][2].detach()
        offset, size, location, crc = places[numbers[view.untyped_storage()._cdata]]
        wishes.append(Wish(called[i], sliced(view, index, called[i]), offset, size, crc))
        locations.append(location)
    if into is None:
        out = _fetch(source, wishes, mapped, report)
        return {
            found[i][0]: _placed(tensor, map_location, source.path, location)
            for i, tensor, location in zip(selection, out, locations, strict=True)
        }
    _into.check_kind(into, (dict, list, tuple, _torch().Tensor))
    arrays = [] if names is not None else _into.arrays(state, source.path, into)
    given = list(_into.tensors(into))
    theirs = _into.matched(found, given)
    targets = {i: row[2] for i, row in zip(theirs, given, strict=True) if i is not None}
    if names is None:
        named = zip(theirs, _into.labels(given), strict=True)
        _into.check_missing(source.path, [name for i, name in named if i is None])
    _into.check_lacking(source.path, [called[i] for i in selection if i not in targets])
    kin = []
    for i, wish in zip(selection, wishes, strict=True):
        target = targets[i]
        _into.check_like(source.path, wish.name, target, wish.view.dtype, wish.view.shape)
        tied = _into.lies_as(target, wish.view)
        kin.append((wish.begin, target.data_ptr() - wish.first) if tied else None)
    filled = [targets[i] for i in selection]
    _into.refuse_shared([(w.name, *row) for w, *row in zip(wishes, filled, kin, strict=True)])
    _fill(source, wishes, filled, report)
    if names is not None:
        return {found[i][0]: targets[i] for i in selection}
    by_place = {found[i][1]: target for i, target in targets.items()}
    return _into.filled(state, arrays, by_place, {id(found[i][2]): target for i, target in targets.items()})


def chosen(found: list[_into.Row], names: Any, path: str) -> dict[int, Any]:
    """The rows that are wanted, and what of each."""
    if names is None:
        return dict.fromkeys(range(len(found)))
    rows: dict[str, list[int]] = {}
    for i, (name, _, _) in enumerate(found):
        rows.setdefault(name, []).append(i)
    selection = _selection(rows, names, path)
    for name in selection:
        if len(rows[name]) > 1:
            places = ", ".join("state" + found[i][1] for i in rows[name])
            raise ValueError(
                f"load: names: '{path}' has {len(rows[name])} tensors of the name {shown(name)} ({places}); load the "
                "whole state, and take them out of it"
            )
    return {rows[name][0]: index for name, index in selection.items()}


# ---- an index of shards


def index_without_path(source: Source, verb: str) -> Damaged:
    return Damaged(f"{verb}: '{source.path}': this is JSON, an index of shards: give its path", path=source.path)


def load_shards(path: str, map_location: Any, into: Any, names: Any, mapped: bool, report: Any) -> dict[str, Any]:
    """All shards are open before the first byte of data is read, and kept open: what another save does to their names
    is nothing to them. Where there are too many of them for that, the index is looked at again behind the data."""

    def opened_all(path: str, weight_map: dict[str, str], folder: str) -> tuple[list[str], list[_Shard]]:
        held.close()  # those of an attempt before
        selection = _selection(weight_map, names, path)
        if into is not None:
            _into.check_kind(into, (Mapping,))
            _into.check_names(path, weight_map, into, None if names is None else selection)
        shards = _by_shard(weight_map, folder, selection)
        hold = _shards.can_hold(len(shards))
        # All headers before the first byte of data: what is missing or does not fit stops it here.
        for shard in shards:
            with contextlib.ExitStack() as stack:
                source = stack.enter_context(mapped_or_opened(shard.path, mapped))
                _check_shard(path, shard, source, into)
                shard.size = max((row[4] for row in source.rows), default=0)
                if hold:
                    shard.source = source
                    held.push(stack.pop_all())
        if into is not None:
            _into.refuse_unfit([(name, into[name], None) for name in selection])
        return list(selection), shards

    def data(order: list[str], shards: list[_Shard]) -> dict[str, Any]:
        out: dict[str, Any] = {}
        before, total = 0, sum(shard.size for shard in shards)
        for shard in shards:
            part = None if report is None else lambda done, _, before=before: report(before + done, total)
            again = (
                contextlib.nullcontext(shard.source)
                if shard.source is not None
                else mapped_or_opened(shard.path, mapped)
            )
            with again as source:
                out.update(load_safetensors(source, map_location, into, shard.names, mapped, part))
            before += shard.size
        return {name: out[name] for name in order}

    with contextlib.ExitStack() as held:
        order, shards = _shards.of_one_save(path, "load", opened_all)
        if all(shard.source is not None for shard in shards):
            return data(order, shards)
        return _shards.of_one_save(path, "load", lambda *index: data(*opened_all(*index)), _TRIES_WITH_DATA)


class _Shard:
    """names: what of each tensor is wanted; source: where it is held open."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.names: dict[str, Any] = {}
        self.source: Source | None = None
        self.size = 0


def _by_shard(weight_map: dict[str, str], folder: str, selection: dict[str, Any]) -> list[_Shard]:
    shards: dict[str, _Shard] = {}
    for name, index in selection.items():
        file = weight_map[name]
        if file not in shards:
            shards[file] = _Shard(os.path.join(folder, file))
        shards[file].names[name] = index
    return list(shards.values())


def _check_shard(path: str, shard: _Shard, source: Source, into: Any) -> None:
    if source.kind != "safetensors":
        what = "is no .safetensors; load that file itself"
        raise Damaged(f"load: '{path}': its shard '{shard.path}' {what}", path=shard.path)
    rows = {row[0]: row for row in source.rows}
    for name in shard.names:
        if name not in rows:
            raise lacks(path, name, shard.path)
        if into is not None:
            dtype = getattr(_torch(), _state._TORCH.get(rows[name][1], ""), None)
            _into.check_like(shard.path, name, into[name], dtype, rows[name][2])


def lacks(path: str, name: str, shard: str, verb: str = "load") -> Damaged:
    return Damaged(f"{verb}: '{path}' says that tensor {shown(name)} is in '{shard}', and it is not", path=shard)
