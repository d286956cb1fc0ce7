# SPDX-License-Identifier: Apache-2.0
"""load() and inspect(): the calls. load.py is what they do."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, overload

from penstock._base.arguments import flag, named, shown, texts
from penstock._base.arrays import torch_for_states as _torch
from penstock._base.devices import placing
from penstock._base.errors import Unsupported
from penstock._base.progress import Progress, reporter as _reporter
from penstock._state import load as _load
from penstock._state.rows import TORCH, float_name

if TYPE_CHECKING:
    import torch

    from penstock._base.types import Cache, Device, Dtype, Index, Into, MapLocation, Names, OnUnread, Path, Readable


# fmt: off
@overload
def load(
    f: Path | Readable, map_location: None = None, pickle_module: object = None, *, into: Into,
    names: Iterable[str] | None = None, device: Device | None = None, dtype: None = None,
    weights_only: bool | None = True, mmap: bool | None = None, pickle: bool = False, unread: OnUnread = "raise",
    cache: Cache = "auto", progress: Progress = False,
) -> Into: ...
@overload
def load(
    f: Path | Readable, map_location: MapLocation | None = None, pickle_module: object = None, *, into: None = None,
    names: Mapping[str, Index | None], device: Device | None = None, dtype: Dtype | None = None,
    weights_only: bool | None = True, mmap: bool | None = None, pickle: bool = False, unread: OnUnread = "raise",
    cache: Cache = "auto", progress: Progress = False,
) -> dict[str, torch.Tensor]: ...
@overload
def load(
    f: Path | Readable, map_location: MapLocation | None = None, pickle_module: object = None, *, into: None = None,
    names: str, device: Device | None = None, dtype: Dtype | None = None,
    weights_only: bool | None = True, mmap: bool | None = None, pickle: bool = False, unread: OnUnread = "raise",
    cache: Cache = "auto", progress: Progress = False,
) -> Any: ...
@overload
def load(
    f: Path | Readable, map_location: MapLocation | None = None, pickle_module: object = None, *, into: None = None,
    names: Names | None = None, device: Device | None = None, dtype: Dtype | None = None,
    weights_only: bool | None = True, mmap: bool | None = None, pickle: bool = False, unread: OnUnread = "raise",
    cache: Cache = "auto", progress: Progress = False,
) -> dict[str, Any]: ...
# fmt: on


@named
def load(
    f: Any,
    map_location: Any = None,
    pickle_module: Any = None,
    *,
    into: Any = None,
    names: str | Iterable[str] | Mapping[str, Any] | None = None,
    device: Any = None,
    dtype: Any = None,
    weights_only: bool | None = True,
    mmap: bool | None = None,
    pickle: bool = False,
    unread: OnUnread = "raise",
    cache: str = "auto",
    progress: Progress = False,
) -> Any:
    """Reads a state that penstock.save, torch.save, safetensors or numpy.savez wrote. Nothing in the file is executed:
    containers, numbers, strings and tensors are made. Any other object costs only itself: see `unread`.

    f: the path of a `.pt` (zip or legacy), a `.safetensors`, an index of shards, or an `.npz` that is not compressed (a
        dict of tensors). It is recognised by its content; a path that ends in `.json` is always an index. Or a binary
        file, read from its position to its end.
    map_location: as in torch.load: a device, or its number, a dict, a function (storage, location) -> storage.
    pickle_module, weights_only: accepted for compatibility with torch.load. Whatever their values are, only plain
        values are read, and another pickle_module is a ValueError.
    into: tensors that are filled in place, directly from storage if they are contiguous, on a GPU too: a dict
        of names for `.safetensors`, a state like the one in the file for a `.pt`. Names, types and shapes are compared
        before a byte is read. Without `names`, both sides must have the same names. The result is the state of the
        file with these tensors in it. After an error while data is read, their contents are undefined.
    names: the wanted parts of the state; nothing else is read, or takes memory.
        a name ("model", "model.0.weight": keys joined by dots, as in inspect()): gives the same value as in the whole
            state, load(f)["model"]: a dict or list with everything in it, a tensor, a number. If the keys themselves
            contain dots, as in a `.safetensors`: a dict of the tensors below the name, without that prefix.
        a pattern ("layers.3.*"): a dict of the tensors with matching names.
        several of both: a dict of them, each under its name; from a `.safetensors`, tensors have their full names.
        a mapping of names or patterns of tensors to slices, {"wte": slice(0, 10), "wpe": (..., 0)}: a dict of these
            slices. Rows outside a slice of the first dimension are not read. None as a slice is the whole tensor.
    device: where the tensors go: "cuda", "cuda:1", 1, a torch.device, or "cpu". ValueError if it is not here. None
        leaves them on the devices that they were saved from, unless map_location says another.
    dtype: float64, float32, float16 or bfloat16, as torch.dtype or name: tensors of these types are converted to it,
        one storage after another, and each is freed before the next is converted. Other types are not converted
        (integers, bool, complex, float8), nor is a storage that tensors of several types share.
    pickle: True unpickles the objects that save(default=penstock.Pickled) pickled; and a file of torch.save at a path
        that holds others is loaded whole by torch.load(weights_only=False). This can run any code: use it only for
        trusted files. False gives a penstock.Pickled for each, and a RuntimeWarning that names them.
    unread: for an object that is not read (an argparse.Namespace, a module, a function) in what is loaded. "raise":
        penstock.Unsupported with its place, before data is read; `names` can load everything else. "keep": a
        penstock.Unread in its place, which has its name, place and tensors. inspect() lists such objects.
    mmap: True: nothing is read, the file is mapped, and pages are read at their first use, without a check.
    cache: "auto" takes cached bytes from the page cache and the rest directly from the device. "cached" reads all bytes
        through the page cache, so that several processes that load one file read the device once. "direct" bypasses it.
        "required" raises penstock.Unsupported if the file system has no direct I/O (docs/page_cache.md).
    progress: True for a line on stderr, or a function that is called with (done, total) in bytes.

    Checksums are checked during the read: the CRCs of a `.pt`, and the table in a `.safetensors` that Penstock wrote.
    The CRC of a `.pt` covers whole storages: a slice, or a tensor that is a part of a larger storage, is not checked.
    Storages cannot be resized; the memory of each is freed when the last tensor on it is deleted.
    Type checkers see a state as dict[str, Any], the common case; use typing.cast() for another type.
    Raises penstock.Damaged (a ValueError and an OSError) with the tensor for a file that is damaged, hostile or
    written to during the load, ValueError for a storage of a missing device (give device="cpu"),
    penstock.Unsupported for an object that is not read, an element type that torch lacks, or a file of another form
    (a program, compressed, of a later version), KeyError for an unknown name, ValueError and TypeError for an `into`
    that does not match, MemoryError if memory runs out, penstock.Error for errors of the system. Safe to call from
    several threads."""
    if pickle_module is not None and getattr(pickle_module, "__name__", "") not in ("pickle", "_pickle"):
        raise ValueError(
            f"load: pickle_module: {shown(pickle_module)} is not used: nothing of a file is executed; leave "
            "it out, or use torch.load for a file that you trust"
        )
    if into is not None and (mmap or map_location is not None):
        raise ValueError("load: into: the tensors say where they are; leave out map_location and mmap")
    if into is not None and isinstance(names, Mapping) and any(i is not None for i in names.values()):
        raise ValueError("load: into fills whole tensors; leave out the slices in names")
    flag("load", "weights_only", weights_only)
    mmap = flag("load", "mmap", mmap)
    map_location, dtype = placing("load", map_location, device, into), float_name("load", dtype, into)
    names = None if names is None else texts("load", "names", names)
    pickle = bool(flag("load", "pickle", pickle))
    report = _reporter(progress, "load")
    try:
        return _load.load(f, map_location, into, names, bool(mmap), dtype, cache, pickle, unread, report)
    except Unsupported:
        parts = any(one is not None for one in (into, names, dtype))
        if not pickle or parts or not isinstance(f, (str, os.PathLike)) or not inspect(f).unread:
            raise
        return _torch().load(f, map_location, weights_only=False)  # the caller trusts the file


@dataclass(frozen=True)
class TensorInfo:
    """A tensor in a file. offset: of its first element, in bytes from the start of the file. nbytes: of its elements.
    path: of the file, if it is a shard."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int
    path: str = ""


class Inspection(list[TensorInfo]):
    """The tensors of a file. pickled: places and types of its pickled objects, which only load(pickle=True) makes:
    ["state['args'] (argparse.Namespace)"]. unread: the same of objects that no load makes; load(unread="keep") gives a
    penstock.Unread for each. Their tensors are in the list."""

    pickled: list[str]
    unread: list[str]


@named
def inspect(f: Path | Readable) -> Inspection:
    """Lists the tensors of a `.pt`, a `.safetensors`, an `.npz` or an index of shards, without reading their data.
    Names are keys of a `.safetensors` or `.npz`, or keys in the state of a `.pt` joined by dots ("model.0.weight").
    Raises as load()."""
    with _load.opened(f, "inspect") as source:
        rows, pickled, unread = source.tensors(), source.pickled(), source.unread()
    made = Inspection(
        TensorInfo(name, TORCH.get(kind, kind), tuple(shape), *place) for name, kind, shape, *place in rows
    )
    made.pickled, made.unread = pickled, unread
    return made
