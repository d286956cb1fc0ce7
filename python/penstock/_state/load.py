# SPDX-License-Identifier: Apache-2.0
"""load(), of files and of checkpoints of a store: the compiled part recognises and opens what is loaded (a source: a
tree of values, and items with the bytes of its storages), and reads and checks the wanted bytes at the speed of the
device. This module makes tensors on that memory, or passes the tensors to be filled.

Without `into` all data of a file is in one mapping of huge pages. Each storage begins at the same offset in a page as
in the file, so the device writes straight into it. Each tensor's storage covers exactly its own bytes of the mapping,
so torch.save writes no more than those. Its pages are freed with it; small tensors that share a page, together. A whole
storage that map_location puts on a CUDA GPU is read to memory of that GPU instead.
"""

from __future__ import annotations

import contextlib
import errno
import io
import math
import mmap
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from penstock import _core
from penstock._base import errors as _errors
from penstock._base.arguments import got, shown
from penstock._base.arrays import torch_for_states as _torch
from penstock._base.devices import gpus_of, relocated
from penstock._state import into as _into, pickled as _pickled
from penstock._state.boxes import box
from penstock._state.rows import FLOATS, of_torch
from penstock._state.slices import HeldPart, is_part, parts_of

_format = _core._format

_TRIES = 3  # for an index whose shards cannot all be kept open: each attempt reads all of it
# The classes whose fileno() is the file that read() reads.
_REAL_FILES = (io.FileIO, io.BufferedReader, io.BufferedRandom)

Ready = Callable[[], object]  # called when all is known to fit, and nothing has changed yet
Part = tuple[Any, int, int] | None  # memory, offset in it, bytes; None: in the tensor that was given


def _read(source: Any, wanted: list[Any], mapped: bool, report: Any) -> Iterable[Part]:
    """wanted: see Wish in bind_source.cpp."""
    return _map(source, wanted) if mapped else source.read(wanted, None, report)


def _map(source: Any, wanted: list[Any]) -> Iterator[Part]:
    """The same with the files mapped; writes to the tensors stay in memory."""
    if isinstance(source.handle, bytes):
        raise ValueError("load: mmap: only a file of the system can be mapped; give its path")
    maps: dict[str, Any] = {}
    places, rows = source.places(), source.rows
    for one in wanted:
        item, begin, size = one if isinstance(one, tuple) else (one, 0, rows[one][0])
        shard, offset = places[item]
        if shard not in maps:
            with _errors.opened(shard, "load") if shard else contextlib.nullcontext() as file:
                fd = file.fileno() if shard else source.handle
                length = os.fstat(fd).st_size
                maps[shard] = _mapped(fd, length, shard) if length else b""
        yield maps[shard], offset + begin, size


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
) -> Iterator[Any]:
    """A source, which is closed at the end even if it is kept (by a traceback). unread: as of load()."""
    with contextlib.ExitStack() as stack:
        source, real, begin = _source_of(f, verb, names, mapped, cache, unread, stack)
        end = source.end if real is not None else None
        try:
            yield source
        finally:
            source.close()
        if real is not None and begin is not None:  # what follows in the file is read by the next call
            real.seek(0, os.SEEK_END) if end is None else real.seek(begin + end)


def open_file(
    path: str, verb: str, names: Any, cache: str, unread: str, handle: Any = None, begin: int | None = None
) -> Any:
    """The source of a file, or of an index with its shards. handle: a descriptor, or bytes; None: opens the path.
    begin: the offset of the file in the handle; None: the file of the path."""
    try:
        return _format.open_source(handle, path, begin, verb, *asked_for(names), cache, unread)
    except IsADirectoryError:
        raise _errors.folder_given(path, verb) from None


def asked_for(names: Any) -> tuple[list[str] | None, bool, bool]:
    """The names, whether they are wanted in this order, and whether it is one name alone."""
    wanted = names if names is None else [names] if isinstance(names, str) else list(names)
    return wanted, isinstance(names, Mapping), isinstance(names, str)


def _source_of(
    f: Any, verb: str, names: Any, mapped: bool, cache: str, unread: str, stack: contextlib.ExitStack
) -> tuple[Any, Any, int | None]:
    """The source, the file object if `f` is one, and what is added to an offset of the source to give one of that; None
    if it cannot be told. mapped: a path is opened to get a descriptor."""
    if isinstance(f, (str, bytes, os.PathLike)):
        path = os.fsdecode(f)
        if not mapped or path.endswith(".json"):
            return open_file(path, verb, names, cache, unread), None, None
        handle = stack.enter_context(_errors.opened(path, verb)).fileno()
        return open_file(path, verb, names, cache, unread, handle), None, None
    if isinstance(f, io.TextIOBase):
        raise TypeError(f"{verb}: f: this is a text file; open it with 'rb'")
    wrapper = getattr(sys.modules.get("tempfile"), "_TemporaryFileWrapper", ())  # without the import no file is one
    real = f.file if isinstance(f, wrapper) else f
    if type(real) in _REAL_FILES:
        if real.writable():
            real.flush()
        path = real.name if isinstance(real.name, str) else f"file {real.fileno()}"
        return open_file(path, verb, names, cache, unread, real.fileno(), real.tell()), real, 0
    if not callable(getattr(f, "read", None)):
        raise TypeError(f"{verb}: f: got {type(f).__name__}; give a path (str or os.PathLike) or a binary file")
    begin = f.tell() if getattr(f, "seekable", bool)() else None
    data = f.read()
    if not isinstance(data, (bytes, bytearray, memoryview)):
        raise TypeError(f"{verb}: f: its read() gave a {type(data).__name__}, not bytes; open it as a binary file")
    return open_file(str(getattr(f, "name", type(f).__name__)), verb, names, cache, unread, bytes(data), 0), f, begin


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
    """Of a file. Tries again if the shards of an index could not be kept open and may be of several saves."""
    check_indexes(names)
    for _ in range(_TRIES):
        with opened(f, "load", names, mapped, cache, unread) as source:
            try:
                found = load_from(source, map_location, into, names, mapped, dtype, pickle, report)
            except (FileNotFoundError, _errors.Damaged):
                if source.kind != "index" or source.is_still(mapped):
                    raise
                continue
            if source.kind != "index" or source.is_still(mapped):
                return found
    raise _errors.Damaged(
        f"load: '{source.path}': it was saved again each of the {_TRIES} times that its shards were read; load it "
        "again when that is over, or save to an index of another name each time",
        path=source.path,
    )


def load_from(
    source: Any, map_location: Any, into: Any, names: Any, mapped: bool, dtype: str | None, pickle: bool, report: Any,
    ready: Ready = lambda: None,
) -> Any:  # fmt: skip
    names = None if source.is_part else names
    if into is not None:
        # A name gives its value, a pattern gives a dict.
        into = {names: into} if isinstance(names, str) and not isinstance(into, Mapping) else into
        found = fill(source, into, names, pickle, report, ready)
    elif names is None or (source.kind in ("safetensors", "index") and not isinstance(names, Mapping)):
        found = _whole(source, map_location, mapped, dtype, pickle, report, ready)  # what is not wanted was not opened
    else:
        found = _named(source, map_location, names, mapped, dtype, report, ready)
    if names is None and not pickle:
        _pickled.warn(source)
    return found.get(names, found) if isinstance(names, str) else found


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
    return tensor if storage.device == tensor.device else view_of(storage, tensor)


def _aligned(storage: Any, view: Any) -> Any:
    """The storage lies in memory as in the file: anywhere, in one of torch before 1.6. On some complex128 that are not
    aligned torch ends the process."""
    width = view.element_size()
    return storage.clone() if width > 8 and storage.data_ptr() % width else storage


def _own(tensor: Any, name: str) -> Any:
    try:
        return tensor.clone()
    except RuntimeError as error:  # an expanded one may be of any size
        raise MemoryError(f"load: tensor {shown(name)}: no memory for its {tensor.nbytes} bytes") from error


def as_saved(tensor: Any, view: Any) -> Any:
    """A Parameter, and what requires a gradient, as in the state; not a part of one."""
    if tensor.shape != view.shape:
        return tensor
    if isinstance(view, _torch().nn.Parameter):
        return _torch().nn.Parameter(tensor, view.requires_grad)
    return tensor.requires_grad_(view.requires_grad)


def without_data(source: Any, pickle: bool = False) -> tuple[Any, dict[int, int]]:
    """The state with its tensors on the meta device, and the number of each of their storages."""
    storages = [_torch().UntypedStorage(size, device="meta") for size, _ in source.rows]
    return source.objects(storages, pickle, False), {s._cdata: i for i, s in enumerate(storages)}


# ---- the state, or a part of it


def _whole(
    source: Any, map_location: Any, mapped: bool, dtype: str | None, pickle: bool, report: Any, ready: Ready
) -> Any:
    rows = source.rows
    if not rows:  # needs no torch
        return source.objects([], pickle)
    path = source.path
    kinds = [None] * len(rows) if dtype is None else source.set_types(dtype)
    there: dict[int, Any] = {}
    if not mapped:
        torch = _torch()
        for i, device in enumerate(gpus_of((location for _, location in rows), map_location, path)):
            if device is not None:
                there[i] = torch.empty(rows[i][0], dtype=torch.uint8, device=device)
    wanted = [(i, there[i]) if i in there else i for i in range(len(rows))]
    ready()
    storages = [
        there.pop(i).untyped_storage() if part is None else storage_over(*part)
        for i, part in enumerate(_read(source, wanted, mapped, report))
    ]
    del wanted
    located = [
        relocated(storage, location, map_location, path)
        for storage, (_, location) in zip(storages_as(kinds, storages, dtype), rows, strict=True)
    ]
    return source.objects(located, pickle)


# ---- tensors by their names


class Wish:
    """A tensor that is wanted, or a box of it. wanted: for the source. view: what comes, on the meta device. after: the
    index to apply to that."""

    def __init__(self, name: str, item: int, whole: Any, index: Any, is_boxed: bool) -> None:
        self.name, self.view, self.after = name, whole, ()
        if index is not None or is_boxed:
            try:
                begin, end, self.after = box(... if index is None else index, whole.shape)
            except (IndexError, ValueError, TypeError) as error:
                raise ValueError(
                    f"load: names[{shown(name)}]: {list(whole.shape)} cannot be cut by {shown(index)}: {error}"
                ) from None
            self.view = whole.detach()[tuple(map(slice, begin, end))]
        if is_boxed:
            self.view = _torch().empty(self.view.shape, dtype=whole.dtype, device="meta")
            self.wanted: tuple[int, Any, Any] = (item, begin, end)
        else:
            self.wanted = (item, *_format.stretch(self.view))

    def on(self, device: Any, size: int) -> Any:
        """Memory on a GPU for all of the item, which has `size` bytes; None if it is not all, as it is."""
        view = self.view
        if self.after or view.nbytes != size or not view.is_contiguous() or view.is_conj() or view.is_neg():
            return None
        return _torch().empty(view.shape, dtype=view.dtype, device=device)


def _named(
    source: Any, map_location: Any, names: Any, mapped: bool, dtype: str | None, report: Any, ready: Ready
) -> dict[str, Any]:
    path, (state, numbers) = source.path, without_data(source)
    found, of_store = list(_into.tensors(state)), source.kind == "checkpoint"
    if of_store:
        found += _only_stored(source, names, {name for name, _, _ in found}, numbers)
    called, selection, rows = _into.labels(found), chosen(found, names, path), source.rows
    items = [_into.number_of(found[i][2], numbers, called[i], path) for i in selection]
    wishes = []
    for item, (i, index) in zip(items, selection.items(), strict=True):
        view = found[i][2]
        wishes.append(Wish(called[i], item, view, index, of_store and source.has_boxes(item, view)))
    locations = ["cpu" if of_store else rows[item][1] for item in items]
    wanted, there = [wish.wanted for wish in wishes], {}
    for k, device in enumerate([] if mapped else gpus_of(locations, map_location, path)):
        memory = wishes[k].on(device, rows[items[k]][0]) if device is not None else None
        if memory is not None:
            there[k], wanted[k] = memory, (items[k], memory)
    out = {}
    ready()
    parts = list(_read(source, wanted, mapped, report))
    del wanted
    for k, i in enumerate(selection):
        part, parts[k] = parts[k], None  # each is released before the next is converted
        tensor = there.pop(k) if part is None else _made(wishes[k], *part)
        tensor = _placed(converted(tensor, dtype), map_location, path, locations[k])
        out[found[i][0]] = as_saved(tensor, found[i][2])
    return out


def _only_stored(source: Any, names: Any, there: set[str], numbers: dict[int, int]) -> Iterator[_into.Row]:
    """Tensors of these names that the shards have, and the state has under other names."""
    torch = _torch()
    for name in [names] if isinstance(names, str) else names:
        if name not in there and (stored := source.add(name)) is not None:
            item, kind, shape = stored
            dtype, shape = of_torch(kind, shape)
            if not hasattr(torch, dtype):
                raise _errors.Unsupported(f"load: {shown(name)}: torch {torch.__version__} has no {dtype or kind}")
            view = torch.empty(shape, dtype=getattr(torch, dtype), device="meta")
            numbers[view.untyped_storage()._cdata] = item
            yield name, f"[{name!r}]", view


def _made(wish: Wish, memory: Any, at: int, length: int) -> Any:
    tensor = view_of(_aligned(storage_over(memory, at, length), wish.view), wish.view, 0)
    tensor = tensor[wish.after] if wish.after else tensor
    # A view with gaps does not own the memory between its elements, so it is copied.
    return tensor if tensor.numel() * tensor.element_size() == length else _own(tensor, wish.name)


# ---- into tensors that exist


def fill(
    source: Any,
    into: Any,
    names: Any,
    pickle: bool,
    report: Any,
    ready: Ready = lambda: None,
    only: bool = False,
) -> Any:
    """The elements of `into` are read where they are, or copied: see fill_plan.cpp. A file has to have the same names;
    what only a checkpoint has is in the result. only: nobody wants that, and there is no result."""
    _into.check_kind(into)
    into = dict(into) if isinstance(into, Mapping) and not isinstance(into, dict) else into
    path = source.path
    state, numbers = without_data(source, pickle)  # with names it is only looked at
    arrays = [] if names is not None else _into.arrays(state, path, into)
    found, given = list(_into.tensors(state)), list(_into.tensors(into))
    called, selection, theirs = _into.labels(found), chosen(found, names, path), _into.matched(found, given)
    targets = {i: row[2] for i, row in zip(theirs, given, strict=True) if i is not None}
    lacking = [called[i] for i in selection if i not in targets]
    if names is None and None in theirs:
        named = zip(theirs, _into.labels(given), strict=True)
        _into.check_missing(path, [name for i, name in named if i is None], lacking)
    if source.kind == "checkpoint" and not only:
        _into.check_others(path, found, list(targets))
    elif source.kind != "checkpoint":
        _into.check_lacking(path, lacking)
    chosen_ones = [i for i in selection if i in targets]
    views, own = [found[i][2] for i in chosen_ones], [targets[i] for i in chosen_ones]
    labels = [called[i] for i in chosen_ones]
    boxes: list[Any] = []
    if source.kind == "checkpoint":
        boxes, kept = _boxes(source, numbers, labels, views, own, path)
        labels, views, own = ([each[k] for k in kept] for each in (labels, views, own))
    items = []
    for name, view, target in zip(labels, views, own, strict=True):
        _into.check_dense(name, target)
        items.append(_into.number_of(view, numbers, name, path))
        _into.check_like(path, name, target, target.shape, view.dtype, view.shape)
    plan, copied, whole, shared = source.plan_fill(items, views, own, labels, names is None, boxes)
    ready()
    _into.touched([*own, *(row[2] for row in boxes if row[2] is not None)])
    read = source.read(whole, plan, report)
    storages = {item: storage_over(*part) for item, part in zip(whole, read, strict=True)}
    for k in copied:
        with _torch().no_grad():
            own[k].copy_(view_of(_aligned(storages[items[k]], views[k]), views[k]))
    if names is not None or only:
        return None if only else {found[i][0]: targets[i] for i in selection}
    rows = found
    if len(targets) < len(found):  # the rest of the state has data of its own
        torch = _torch()
        for item, (size, _) in enumerate(source.rows):
            if item in shared:
                memory = _into.memory_at(shared[item], size, own)
                storages[item] = torch.frombuffer(memory, dtype=torch.uint8).untyped_storage()
            elif item not in storages:
                storages[item] = torch.UntypedStorage(size, device="meta")  # nothing is left of it in the result
        state = source.objects([storages[item] for item in sorted(storages)], pickle)
        rows = list(_into.tensors(state))
    by_place = {rows[i][1]: target for i, target in targets.items()}
    return _into.filled(state, arrays, by_place, {id(rows[i][2]): target for i, target in targets.items()})


def _boxes(
    source: Any, numbers: dict[int, int], labels: list[str], views: list[Any], own: list[Any], path: str
) -> tuple[list[Any], list[int]]:
    """Targets that are parts of tensors, as (item, view, tensor, begin, end, name) for each box, without a tensor if it
    has the box already (a tied one); and the numbers of the others. A part of no dimensions is its local tensor."""
    boxes, kept, there = [], [], set()
    for k, (name, view, target) in enumerate(zip(labels, views, own, strict=True)):
        try:
            part = parts_of(target) if is_part(target) else None
        except ValueError as error:
            raise ValueError(f"load: into[{shown(name)}]: {error}") from None
        if not isinstance(part, HeldPart):
            own[k] = target if part is None else part
            kept.append(k)
            continue
        item = _into.number_of(view, numbers, name, path)
        _into.check_like(path, name, part.local, part.shape, view.dtype, view.shape)
        if not source.has_boxes(item, view):
            raise _errors.Unsupported(
                f"load: into[{shown(name)}] is a part of a tensor, which '{path}' has as bytes, because it was "
                "saved as a view among others; load it whole",
                path=path,
            )
        local = part.local.detach()
        if local.is_conj() or local.is_neg():
            raise ValueError(
                f"load: into[{shown(name)}] is a conjugated or negated view; give memory that is read as it is: "
                "resolve_conj().resolve_neg() makes some"
            )
        for offset, extent, begin in part.boxes:
            inside = local
            if tuple(local.shape) != tuple(extent):  # a range
                inside = local.view(-1)[begin : begin + math.prod(extent)].view(extent)
            end = [first + length for first, length in zip(offset, extent, strict=True)]
            key = (item, inside.data_ptr(), offset, extent, inside.stride())
            boxes.append((item, view, None if key in there else inside, offset, end, name))
            there.add(key)
    return boxes, kept


# ---- names


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
    check_indexes(names)
    wanted, as_wanted, _ = asked_for(names)
    there = list(rows)
    taken = _format.select(there, wanted, path)
    selection = {there[i]: names[wanted[k]] if as_wanted else None for i, k in (taken if as_wanted else sorted(taken))}
    for name in selection:
        if len(rows[name]) > 1:
            places = ", ".join("state" + found[i][1] for i in rows[name])
            raise ValueError(
                f"load: names: '{path}' has {len(rows[name])} tensors of the name {shown(name)} ({places}); load the "
                "whole state, and take them out of it"
            )
    return {rows[name][0]: index for name, index in selection.items()}
