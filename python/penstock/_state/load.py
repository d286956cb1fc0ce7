# SPDX-License-Identifier: Apache-2.0
"""load(): the compiled part recognises and opens a file or an index, and reads and checks the wanted bytes at the speed
of the device. This module makes tensors on that memory, or passes the tensors to be filled.

Without `into` all data of a file is in one mapping of huge pages. Each storage begins at the same offset in a page as
in the file, so the device writes straight into it. Each tensor's storage covers exactly its own bytes of the mapping,
so torch.save writes no more than those. Its pages are freed with it; small tensors that share a page, together. A whole
storage that map_location puts on a CUDA GPU is read to memory of that GPU instead.
"""

from __future__ import annotations

import contextlib
import errno
import io
import mmap
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from penstock import _core
from penstock._base import errors as _errors
from penstock._base.arguments import got, shown
from penstock._base.arrays import torch_for_states as _torch
from penstock._base.devices import gpus_of, relocated
from penstock._state import into as _into, pickled as _pickled
from penstock._state.rows import FLOATS, of_torch

_format = _core._format

_TRIES = 3  # for an index whose shards cannot all be kept open: each attempt reads all of it
# The classes whose fileno() is the file that read() reads.
_REAL_FILES = (io.FileIO, io.BufferedReader, io.BufferedRandom)


class Source:
    """A file, or an index with its shards, open to be loaded. handle: a descriptor, or bytes; None: opens the path.
    begin: the offset of the file in the handle; None: the file of the path. kind, rows: as in bind_format.cpp.
    names: names that are still to be selected; None if the file was opened as only the wanted part."""

    def __init__(
        self, path: str, verb: str, names: Any, cache: str, unread: str, handle: Any = None, begin: int | None = None
    ) -> None:
        self.path, self.handle, self.pickle = path, handle, False
        wanted = names if names is None else [names] if isinstance(names, str) else list(names)
        try:
            self.file, self.kind, self.rows, is_part = _format.open_tensors(
                handle, path, begin, verb, wanted, isinstance(names, Mapping), isinstance(names, str), cache, unread
            )
            self.names = None if is_part else names
        except IsADirectoryError:
            raise _errors.folder_given(path, verb) from None

    def read(self, parts: list[tuple[int, int, int]] | None, mapped: bool, report: Any) -> Any:
        """(memory, offset in it) for each part. A part is (item, begin, bytes); None: all bytes of each item."""
        return self._map(parts) if mapped else self.file.read(parts, report)

    def _map(self, parts: list[tuple[int, int, int]] | None) -> Iterator[tuple[Any, int]]:
        """The same with the files mapped; writes to the tensors stay in memory."""
        if isinstance(self.handle, bytes):
            raise ValueError("load: mmap: only a file of the system can be mapped; give its path")
        maps: dict[str, Any] = {}
        places = self.file.places()
        for item, begin, _ in parts if parts is not None else ((i, 0, 0) for i in range(len(places))):
            shard, offset = places[item]
            if shard not in maps:
                with _errors.opened(shard, "load") if shard else contextlib.nullcontext() as file:
                    fd = file.fileno() if shard else self.handle
                    size = os.fstat(fd).st_size
                    maps[shard] = _mapped(fd, size, shard) if size else b""
            yield maps[shard], offset + begin


def _mapped(fd: int, size: int, path: str) -> mmap.mmap:
    try:
        return mmap.mmap(fd, size, access=mmap.ACCESS_COPY)
    except OSError as error:
        path = path or os.readlink(f"/proc/self/fd/{fd}")
        if error.errno == errno.ENOMEM:
            raise MemoryError(
                f"load: {size} bytes of addresses for '{path}' could not be had; raise `ulimit -v` or "
                "vm.max_map_count, or load without mmap=True"
            ) from None
        raise OSError(error.errno, os.strerror(error.errno or 0), path) from None


@contextlib.contextmanager
def opened(
    f: Any, verb: str, names: Any = None, mapped: bool = False, cache: str = "auto", unread: str = "keep"
) -> Iterator[Source]:
    """Closes the source at the end, even if it is kept (by a traceback). unread: as of load()."""
    with contextlib.ExitStack() as stack:
        source, real, begin = _source_of(f, verb, names, mapped, cache, unread, stack)
        end = source.file.end if real is not None else None
        try:
            yield source
        finally:
            source.file = None
        if real is not None and begin is not None:  # what follows in the file is read by the next call
            real.seek(0, os.SEEK_END) if end is None else real.seek(begin + end)


def _source_of(
    f: Any, verb: str, names: Any, mapped: bool, cache: str, unread: str, stack: contextlib.ExitStack
) -> tuple[Source, Any, int | None]:
    """The source, the file object if `f` is one, and what is added to an offset of the source to give one of that; None
    if it cannot be told. mapped: a path is opened to get a descriptor."""
    if isinstance(f, (str, bytes, os.PathLike)):
        path = os.fsdecode(f)
        if not mapped or path.endswith(".json"):
            return Source(path, verb, names, cache, unread), None, None
        handle = stack.enter_context(_errors.opened(path, verb)).fileno()
        return Source(path, verb, names, cache, unread, handle), None, None
    if isinstance(f, io.TextIOBase):
        raise TypeError(f"{verb}: f: this is a text file; open it with 'rb'")
    wrapper = getattr(sys.modules.get("tempfile"), "_TemporaryFileWrapper", ())  # without the import no file is one
    real = f.file if isinstance(f, wrapper) else f
    if type(real) in _REAL_FILES:
        if real.writable():
            real.flush()
        path = real.name if isinstance(real.name, str) else f"file {real.fileno()}"
        return Source(path, verb, names, cache, unread, real.fileno(), real.tell()), real, 0
    if not callable(getattr(f, "read", None)):
        raise TypeError(f"{verb}: f: got {type(f).__name__}; give a path (str or os.PathLike) or a binary file")
    begin = f.tell() if getattr(f, "seekable", bool)() else None
    data = f.read()
    if not isinstance(data, (bytes, bytearray, memoryview)):
        raise TypeError(f"{verb}: f: its read() gave a {type(data).__name__}, not bytes; open it as a binary file")
    return Source(str(getattr(f, "name", type(f).__name__)), verb, names, cache, unread, bytes(data), 0), f, begin


def load(
    f: Any,
    map_location: Any,
    into: Any,
    names: Any,
    mapped: bool,
    dtype: str | None,
    cache: str,
    pickle: bool,
    unread: str,
    report: Any,
) -> Any:
    """Tries again if the shards of an index could not be kept open and may be of several saves."""
    check_indexes(names)
    for _ in range(_TRIES):
        with opened(f, "load", names, mapped, cache, unread) as source:
            source.pickle = pickle
            try:
                found = _load_from(source, map_location, into, mapped, dtype, report)
            except (FileNotFoundError, _errors.Damaged):
                if source.kind != "index" or source.file.is_still(mapped):
                    raise
                continue
            if source.kind != "index" or source.file.is_still(mapped):
                if not pickle and source.kind == "pt" and source.names is None:
                    _pickled.warn(source.file, source.path)
                return found
    raise _errors.Damaged(
        f"load: '{source.path}': it was saved again each of the {_TRIES} times that its shards were read; load it "
        "again when that is over, or save to an index of another name each time",
        path=source.path,
    )


def _load_from(source: Source, map_location: Any, into: Any, mapped: bool, dtype: str | None, report: Any) -> Any:
    read = _load_pt if source.kind == "pt" else _load_safetensors
    names = source.names
    if not isinstance(names, str):
        return read(source, map_location, into, names, mapped, dtype, report)
    # A name gives its value, a pattern gives a dict.
    one = into if into is None or isinstance(into, Mapping) else {names: into}
    found = read(source, map_location, one, names, mapped, dtype, report)
    return found.get(names, found)


# ---- tensors


def storage_over(memory: Any, begin: int, size: int) -> Any:
    """A storage of exactly these bytes."""
    torch = _torch()
    if not size:
        return torch.UntypedStorage(0)
    return torch.frombuffer(memory, dtype=torch.uint8, count=size, offset=begin).untyped_storage()


def view_of(storage: Any, like: Any, begin: int | None = None) -> Any:
    """A view like `like` on another storage, from element `begin` on; None: from the same element as `like`."""
    torch = _torch()
    begin = like.storage_offset() if begin is None else begin
    out = torch.empty(0, dtype=like.dtype, device=storage.device).set_(storage, begin, like.shape, like.stride())
    out = out.conj() if like.is_conj() else out
    return torch._neg_view(out) if like.is_neg() else out


def converted(tensor: Any, dtype: str | None) -> Any:
    """The tensor converted to this type, if a load converts both types."""
    if dtype is None or str(tensor.dtype).removeprefix("torch.") not in FLOATS:
        return tensor
    return tensor.to(getattr(_torch(), dtype))


def storages_as(kinds: list[str | None], storages: list[Any], dtype: str | None) -> Iterator[Any]:
    """Converts storages to this type. kinds: the type of each storage, None for one that stays as it is. Each storage
    is released before the next is converted, to free its memory."""
    torch = _torch()
    for i, kind in enumerate(kinds):
        storage, storages[i] = storages[i], None
        if kind is None or dtype is None:
            yield storage
        else:
            whole = torch.empty(0, dtype=getattr(torch, kind), device=storage.device).set_(storage)
            yield whole.to(getattr(torch, dtype)).untyped_storage()


def _placed(tensor: Any, map_location: Any, path: str, location: str = "cpu") -> Any:
    if (map_location is None and location == "cpu") or tensor.device.type == "cuda":
        return tensor
    storage = relocated(tensor.untyped_storage(), location, map_location, path)
    return tensor if storage.device == tensor.device else view_of(storage, tensor, 0)


class Wish:
    """A wanted tensor, or a part of one. view: the part, on the meta device. item: has its bytes, `size` of them."""

    def __init__(self, name: str, view: Any, item: int, size: int) -> None:
        self.name, self.view, self.item, self.size = name, view, item, size


def _aligned(storage: Any, wish: Wish) -> Any:
    """The storage lies in memory as in the file: anywhere, in one of torch before 1.6. On some complex128 that are not
    aligned torch ends the process."""
    width = wish.view.element_size()
    return storage.clone() if width > 8 and storage.data_ptr() % width else storage


def _fetch(
    source: Source, wishes: list[Wish], mapped: bool, report: Any, whole: bool = False, devices: Sequence[Any] = ()
) -> list[Any]:
    """A separate tensor for each wish. whole: the wishes are all items, each of them whole. devices: for each wish the
    GPU to which it is read directly if possible, or None."""
    spans = [_format.stretch(wish.view) for wish in wishes]
    if not mapped and any(device is not None for device in devices):
        there = _on_gpus(source, wishes, spans, devices, report)
        rest = [i for i in range(len(wishes)) if i not in there]
        for i, tensor in zip(rest, _fetch(source, [wishes[i] for i in rest], False, None) if rest else [], strict=True):
            there[i] = tensor
        return [there[i] for i in range(len(wishes))]
    parts = None if whole else [(wish.item, *span) for wish, span in zip(wishes, spans, strict=True)]
    out = []
    for wish, (_, length), (memory, at) in zip(wishes, spans, source.read(parts, mapped, report), strict=True):
        tensor = view_of(_aligned(storage_over(memory, at, length), wish), wish.view, 0)
        # A view with gaps does not own the memory between its elements, so it is copied.
        out.append(tensor if tensor.numel() * tensor.element_size() == length else _own(tensor, wish.name))
    return out


def _on_gpus(
    source: Source, wishes: list[Wish], spans: list[Any], devices: Sequence[Any], report: Any
) -> dict[int, Any]:
    """By number: wishes that cover their whole item. The engine reads them to memory of their GPU and checks them."""
    torch, made = _torch(), {}
    for i, (wish, span, device) in enumerate(zip(wishes, spans, devices, strict=True)):
        view = wish.view
        plain = view.is_contiguous() and not view.is_conj() and not view.is_neg()
        if device is not None and plain and tuple(span) == (0, wish.size):
            made[i] = torch.empty(tuple(view.shape), dtype=view.dtype, device=device)
    numbers = [i for i in made if wishes[i].size]
    columns = [[wishes[i].item for i in numbers], [wishes[i].view for i in numbers], [made[i] for i in numbers]]
    others = source.file.fill(*columns, [wishes[i].name for i in numbers], lambda _: None, report)
    for k in others:  # the driver cannot use the GPU of these
        del made[numbers[k]]
    return made


def _own(tensor: Any, name: str) -> Any:
    try:
        return tensor.clone()
    except RuntimeError as error:  # an expanded one may be of any size
        raise MemoryError(f"load: tensor {shown(name)}: no memory for its {tensor.nbytes} bytes") from error


# ---- into tensors that exist


def _fill(source: Source, wishes: list[Wish], into: list[Any], report: Any) -> None:
    """Reads directly into tensors that are a whole storage in the file; others are copied from temporary memory."""
    rows = [(wish.item, wish.view, target, wish.name) for wish, target in zip(wishes, into, strict=True)]
    columns = map(list, zip(*rows, strict=True)) if rows else ([], [], [], [])
    others = source.file.fill(*columns, _into.touched, report)
    if not others:
        return
    with _torch().no_grad():
        for i, tensor in zip(others, _fetch_checked(source, [wishes[i] for i in others]), strict=True):
            into[i].copy_(tensor)


def _fetch_checked(source: Source, wishes: list[Wish]) -> list[Any]:
    """From a .pt whole storages are read, so that their CRCs can be checked; the results are views of them."""
    if source.kind != "pt":
        return _fetch(source, wishes, False, None)
    widest = {wish.item: wish for wish in sorted(wishes, key=lambda wish: wish.view.element_size())}
    data = source.read([(item, 0, wish.size) for item, wish in widest.items()], False, None)
    places = zip(widest.items(), data, strict=True)
    made = {item: _aligned(storage_over(*place, wish.size), wish) for (item, wish), place in places}
    return [view_of(made[wish.item], wish.view) for wish in wishes]


# ---- .safetensors, and an index of them


def _load_safetensors(
    source: Source, map_location: Any, into: Any, names: Any, mapped: bool, dtype: str | None, report: Any
) -> Any:
    indexes = list(names.values()) if isinstance(names, Mapping) else None
    wishes = []
    for item, (name, kind, shape, wanted) in enumerate(source.rows):
        view = _meta(source.path, name, kind, shape)
        size = view.numel() * view.element_size()
        wishes.append(Wish(name, view if indexes is None else sliced(view, indexes[wanted], name), item, size))
    if into is not None:
        _into.check_kind(into, (Mapping,))
        called = [wish.name for wish in wishes]
        _into.check_names(source.path, called, into, None if names is None else called)
        for wish in wishes:
            _into.check_like(source.path, wish.name, into[wish.name], wish.view.dtype, wish.view.shape)
        filled = {name: into[name] for name in called}
        _fill(source, wishes, list(filled.values()), report)
        return filled
    devices = gpus_of(["cpu"] * len(wishes), map_location, source.path)
    out = _fetch(source, wishes, mapped, report, whole=indexes is None, devices=devices)
    return _named([wish.name for wish in wishes], out, dtype, lambda i, t: _placed(t, map_location, source.path))


def _named(names: Iterable[str], tensors: list[Any], dtype: str | None, placed: Any) -> dict[str, Any]:
    """A dict of the tensors; each original is released before the next is converted."""
    out = {}
    for i, name in enumerate(names):
        tensor, tensors[i] = tensors[i], None
        out[name] = placed(i, converted(tensor, dtype))
    return out


def _meta(path: str, name: str, kind: str, shape: list[int]) -> Any:
    """The tensor without its data."""
    torch = _torch()
    named, shape = of_torch(kind, shape)
    dtype = getattr(torch, named, None) if named else None
    if dtype is None:
        raise _errors.Unsupported(
            f"load: '{path}': tensor {shown(name)}: torch has no type for {kind}; name the others in `names`", path=path
        )
    try:
        return torch.empty(shape, dtype=dtype, device="meta")
    except (RuntimeError, TypeError, OverflowError) as error:  # with an extent of 0, another may have any value
        raise _errors.Damaged(
            f"load: '{path}': tensor {shown(name)}: {shape} is no possible shape", path=path
        ) from error


def sliced(view: Any, index: Any, name: str) -> Any:
    if index is None:
        return view
    try:
        return view[index]
    except (IndexError, ValueError, TypeError) as error:
        raise ValueError(
            f"load: names[{shown(name)}]: {list(view.shape)} cannot be cut by {shown(index)}: {error}"
        ) from None


def as_saved(tensor: Any, view: Any) -> Any:
    """A Parameter, and what requires a gradient, as in the state; not a part of one."""
    if tensor.shape != view.shape:
        return tensor
    if isinstance(view, _torch().nn.Parameter):
        return _torch().nn.Parameter(tensor, view.requires_grad)
    return tensor.requires_grad_(view.requires_grad)


# ---- .pt


def _load_pt(
    source: Source, map_location: Any, into: Any, names: Any, mapped: bool, dtype: str | None, report: Any
) -> Any:
    if names is not None or into is not None:
        return _load_some_of_pt(source, map_location, into, names, mapped, dtype, report)
    if not source.rows:
        return source.file.objects([], source.pickle, source.path)
    kinds = [None] * len(source.rows) if dtype is None else source.file.set_types(dtype)
    wishes = [
        Wish(f"storage {i}", _torch().empty(size, dtype=_torch().uint8, device="meta"), i, size)
        for i, (size, _) in enumerate(source.rows)
    ]
    devices = gpus_of((location for _, location in source.rows), map_location, source.path)
    bytes_of = _fetch(source, wishes, mapped, report, whole=True, devices=devices)
    storages = storages_as(kinds, [tensor.untyped_storage() for tensor in bytes_of], dtype)
    del bytes_of
    located = [
        relocated(storage, location, map_location, source.path)
        for storage, (_, location) in zip(storages, source.rows, strict=True)
    ]
    return source.file.objects(located, source.pickle, source.path)


def without_data(made_by: Any, sizes: Iterable[int], path: str, pickle: bool = False) -> tuple[Any, dict[int, int]]:
    """The state of a file with its tensors on the meta device, and the number of each of their storages."""
    storages = [_torch().UntypedStorage(size, device="meta") for size in sizes]
    return made_by.objects(storages, pickle, path, False), {s._cdata: i for i, s in enumerate(storages)}


def _load_some_of_pt(
    source: Source, map_location: Any, into: Any, names: Any, mapped: bool, dtype: str | None, report: Any
) -> Any:
    makes = source.pickle and into is not None  # else the state is only inspected
    state, numbers = without_data(source.file, (size for size, _ in source.rows), source.path, makes)
    found = list(_into.tensors(state))
    called = _into.labels(found)
    selection = chosen(found, names, source.path)
    wishes = []
    for i, index in selection.items():
        view = found[i][2].detach()
        item = _into.number_of(view, numbers, called[i], source.path)
        wishes.append(Wish(called[i], sliced(view, index, called[i]), item, source.rows[item][0]))
    if into is None:
        locations = [source.rows[wish.item][1] for wish in wishes]
        devices = gpus_of(locations, map_location, source.path)
        out = _fetch(source, wishes, mapped, report, devices=devices)
        called, whole = [found[i][0] for i in selection], [found[i][2] for i in selection]
        return _named(
            called, out, dtype, lambda i, t: as_saved(_placed(t, map_location, source.path, locations[i]), whole[i])
        )
    _into.check_kind(into, (dict, list, tuple, _torch().Tensor))
    arrays = [] if names is not None else _into.arrays(state, source.path, into)
    given = list(_into.tensors(into))
    theirs = _into.matched(found, given)
    targets = {i: row[2] for i, row in zip(theirs, given, strict=True) if i is not None}
    if names is None:
        named = zip(theirs, _into.labels(given), strict=True)
        lacking = [called[i] for i in selection if i not in targets]
        _into.check_missing(source.path, [name for i, name in named if i is None], lacking)
    _into.check_lacking(source.path, [called[i] for i in selection if i not in targets])
    for i, wish in zip(selection, wishes, strict=True):
        _into.check_like(source.path, wish.name, targets[i], wish.view.dtype, wish.view.shape)
    _fill(source, wishes, [targets[i] for i in selection], report)
    if names is not None:
        return {found[i][0]: targets[i] for i in selection}
    by_place = {found[i][1]: target for i, target in targets.items()}
    return _into.filled(state, arrays, by_place, {id(found[i][2]): target for i, target in targets.items()})


def _selection(there: Iterable[str], names: Any, path: str) -> dict[str, Any]:
    """The selected names, each with the index (slices) that is wanted, or None for all of it. there: all names.
    KeyError if no name matches."""
    found = list(there)
    if names is None:
        return dict.fromkeys(found)
    check_indexes(names)
    wanted = [names] if isinstance(names, str) else list(names)
    chosen = _format.select(found, wanted, path)
    if not isinstance(names, Mapping):
        return dict.fromkeys(found[i] for i, _ in sorted(chosen))
    return {found[i]: names[wanted[k]] for i, k in chosen}


def check_indexes(names: Any) -> None:
    """Raises TypeError if a mapping of names has values that are not slices."""
    for wanted, index in names.items() if isinstance(names, Mapping) else ():
        for part in index if isinstance(index, tuple) else (index,):
            if part is not None and part is not ... and not isinstance(part, (slice, int)):
                raise TypeError(
                    f"load: names[{shown(wanted)}]: expected a slice, an integer, a tuple of them, or None "
                    f"for all of it, got {got(part)}"
                )


def chosen(found: list[_into.Row], names: Any, path: str) -> dict[int, Any]:
    """The numbers of the wanted rows, and the index of each; None: all of it."""
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
