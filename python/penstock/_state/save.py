# SPDX-License-Identifier: Apache-2.0
"""save(): a training state in one file. Also the code that save(), load() and the stores share: the names of types,
and the selection of tensors.

A save leaves a complete, durable file under its name, or the old file untouched:

    1. the state becomes an image: every offset of the file is known, and its pickle and headers are made
    2. a temporary file is made next to the target, with space for all of it, and the mode that the target has or gets
    3. the engine writes it directly from the tensors; checksums are computed on other cores meanwhile; sync
    4. it is renamed to the target, and the folder is synced

The compiled part does all of that (docs/formats.md has the bytes). This module has the arguments and torch.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, overload

from penstock import _core
from penstock._base import arguments as _arguments, devices as _devices, log as _log
from penstock._base.arguments import shown
from penstock._base.errors import Unsupported
from penstock._base.progress import Progress, reporter as _reporter

if TYPE_CHECKING:
    import torch

    from penstock._base.types import (
        Cache,
        Changing,
        Device,
        Dtype,
        Index,
        Into,
        MapLocation,
        Names,
        OnUnread,
        Path,
        Readable,
        Writable,
    )

_format = _core._format

_TORCH = dict(_format.torch_types())  # name in safetensors: name in torch
_SAFETENSORS = {name: ours for ours, name in _TORCH.items()}
_F4 = "float4_e2m1fn_x2"
Row = tuple[tuple[str, str, list[int], int, Any], tuple[Any, int, int]]  # see torch_row()

FLOATS = ("float64", "float32", "float16", "bfloat16")  # types that a load converts, and converts to

INDEX = ".safetensors.index.json"
_SHARD_BYTES = 5_000_000_000  # the default of Hugging Face's writers


def torch_or_none() -> Any:
    try:
        import torch
    except ImportError:
        return None
    return torch


def _torch() -> Any:
    torch = torch_or_none()
    if torch is None:
        raise ImportError("penstock: tensors of a state are torch's; install torch")
    return torch


def _path(f: Any, verb: str) -> str:
    try:
        return os.fsdecode(f)
    except TypeError:
        raise TypeError(
            f"{verb}: f: got {type(f).__name__}; give a path (str or os.PathLike) or a binary file"
        ) from None


# ---- save


@_arguments.named
def save(
    obj: Any,
    f: Path | Writable,
    pickle_module: object = None,
    pickle_protocol: int = 2,
    _use_new_zipfile_serialization: bool = True,
    _disable_byteorder_record: bool = False,
    *,
    metadata: dict[str, str] | None = None,
    shard_bytes: int | str = _SHARD_BYTES,
    sync: bool = True,
    default: Callable[[Any], Any] | None = None,
    changing: Changing = "raise",
    like: Mapping[str, Any] | None = None,
    progress: Progress = False,
) -> None:
    """Saves a state to a file that stock `torch.load` (or `safetensors`) reads. When it returns, the file is complete
    and survives a power failure. When it raises, an existing file is unchanged.

    obj: tensors, parameters, numbers, strings, bytes, None, NumPy data, and dicts, lists, tuples, sets,
        OrderedDict, defaultdict, Counter of them (docs/formats.md, "The grammar"). For `.safetensors`: a dict of names
        and dense tensors. Or tensors that are not in memory together, which are saved one after another: an iterator
        of (name, tensor), a Checkpoint, or a mapping whose values have shape and dtype and are read by [...], or whose
        tensors are made when they are asked for (docs/checkpoint.md, "More than memory").
    f: a path. ".safetensors" at its end selects that format, ".safetensors.index.json" an index with its shards in the
        same folder, any other ending a `.pt` of torch. Any other ".json" is a ValueError, because load() would read it
        as an index. Or a binary file: a `.pt` is written to it, from its current position on; its durability is up to
        the caller.
    pickle_module, pickle_protocol, and the next two: accepted for compatibility with torch.save. Penstock makes the
        pickle, at protocol 2; another pickle_module, or the legacy form, is a ValueError.
    metadata: for `.safetensors` only: strings; the default is {"format": "pt"}.
    shard_bytes: for an index: the limit on the bytes of tensors in a shard. A larger tensor has its own shard.
    sync: False does not wait for the device. Other processes still see either the old file or the complete new one.
        After a power failure within moments of the call, the file may be damaged or missing. It has no effect for a
        binary file.
    default: a function that is called with each object that a `.pt` cannot hold (a Path, a dataclass, an Enum). Its
        result is saved, and loaded, in place of the object, as in json.dumps. Its exceptions end the call.
        default=penstock.Pickled pickles the objects, and load(pickle=True) makes them again.
    changing: what the save does if a tensor changes while it is written. "raise": penstock.Changed, with the name of
        the tensor, and nothing is saved. "torn": what is found is saved, maybe half old and half new, as torch.save
        does (for Hogwild). Its checksums are right.
    like: for tensors that are saved one after another: those that will come, as a mapping of names to objects with
        shape and dtype (a state_dict() on the meta device), in any order. One `.safetensors` needs it for an iterator,
        because its header is at its beginning; else it is a ValueError before anything is written. If it is given, a
        tensor that is missing, or is not as announced, is a ValueError.
    progress: True for a line on stderr, or a function that is called with (done, total) in bytes; total is 0 while it
        is not known.

    A symbolic link is followed; mode and owner of a file that exists are kept. When the call raises, a binary file has
    a part of the bytes. Ctrl-C leaves the old file. Raises TypeError with the place in the state ("state['opt'][3]")
    for an object that cannot be saved, and penstock.Error (an OSError) for errors of the system. A full disk is
    reported before the first byte, with the missing bytes. Safe to call from several threads."""
    if pickle_module is not None and getattr(pickle_module, "__name__", "") not in ("pickle", "_pickle"):
        raise ValueError(
            f"save: pickle_module: {shown(pickle_module)} is not used: the pickle holds plain values only "
            "and is made by Penstock; leave it out, or use torch.save"
        )
    if pickle_protocol not in range(2, 6):
        raise ValueError(
            f"save: pickle_protocol: expected 2 to 5 (2 is what is written), got {_arguments.got(pickle_protocol)}"
        )
    if not _use_new_zipfile_serialization:
        raise ValueError("save: the legacy form (_use_new_zipfile_serialization=False) is read, not written")
    shard_bytes = _arguments.size("save", "shard_bytes", shard_bytes, 1)
    check_default("save", default)
    if not isinstance(sync, bool):
        raise TypeError(f"save: sync: expected True or False, got {_arguments.got(sync)}")
    report = _reporter(progress, "save")
    from penstock._state import streamed as _streamed

    if _streamed.takes(obj, like):
        _streamed.save(obj, f, like, metadata, shard_bytes, report, sync, changing)
        return
    if not isinstance(f, (str, bytes, os.PathLike)) and callable(getattr(f, "write", None)):
        _save_to_file(obj, f, metadata, default, report, changing)
        return
    path = _path(f, "save")
    if path.endswith(INDEX):
        rows = list(_metadata(metadata).items())
        _format.save_index(path, _safetensors_rows(obj), rows, min(shard_bytes, 2**63), report, sync, changing)
        return
    path, image = _image_of(obj, path, metadata, default)
    with _log.timed(f"saved '{path}'", image.total_bytes):
        image.save(path, report, sync, changing)


def check_default(verb: str, default: Any) -> None:
    if default is not None:
        _arguments.function(verb, "default", default)


def _image_of(obj: Any, f: str | os.PathLike[str], metadata: dict[str, str] | None, default: Any) -> tuple[str, Any]:
    """The path, absolute and without symbolic links, and the image of the file."""
    path = check_target(f, metadata)
    if os.fsdecode(f).endswith(".safetensors"):
        return path, _format.image_of_tensors(_safetensors_rows(obj), list(_metadata(metadata).items()))
    stem = os.path.basename(path).rsplit(".", 1)[0]
    return path, _format.image_of_state(obj, stem if stem.isidentifier() else "archive", default)


def check_target(f: str | os.PathLike[str], metadata: dict[str, str] | None) -> str:
    """That one file may be saved there. Gives the path as _image_of() does."""
    given = _path(f, "save")
    if given.endswith("/"):
        raise ValueError(f"save: '{given}': it ends as a folder does; give the path of a file, '{given.rstrip('/')}'")
    path = os.path.realpath(given)
    if given.endswith(".safetensors"):
        _metadata(metadata)
        return path
    if given.endswith(".json"):
        raise ValueError(
            f"save: '{given}': load() takes what ends in .json for an index of shards; end it in {INDEX} for "
            "that, in .safetensors for one file of tensors, or in .pt"
        )
    if metadata is not None:
        raise ValueError("save: metadata: a .pt has none; put it into the state, or save to a .safetensors")
    return path


def _metadata(metadata: dict[str, str] | None) -> dict[str, str]:
    return {"format": "pt"} if metadata is None else dict(_arguments.strings("save", "metadata", metadata))


def _save_to_file(obj: Any, f: Any, metadata: dict[str, str] | None, default: Any, report: Any, changing: str) -> None:
    if isinstance(f, io.TextIOBase):
        raise TypeError("save: f: this is a text file; open it with 'wb'")
    if metadata is not None:
        raise ValueError("save: metadata: a .pt has none; put it into the state, or save to the path of a .safetensors")
    image = _format.image_of_state(obj, "archive", default)

    def write(piece: memoryview) -> None:
        rest = memoryview(piece)
        while rest:
            done = f.write(rest)
            # Only raw files may take a part of the bytes; other writers may return anything.
            if not isinstance(f, io.RawIOBase):
                return
            if not done:
                raise BlockingIOError(
                    f"save: f: write() gave {done}; use a file that blocks, or save to an io.BytesIO and write that"
                )
            rest = rest[done:]

    image.write_to(write, report, changing)


def _safetensors_rows(obj: Any) -> list[tuple[str, str, list[int], int, Any]]:
    if type(obj) is _core._async.Collected:
        return obj.rows()
    if not isinstance(obj, Mapping):
        raise TypeError(f"save: a .safetensors holds a dict of tensors, got {type(obj).__name__}")
    torch = sys.modules.get("torch")  # without the import there are no tensors of torch
    rows, ranges = [], []
    for name, tensor in obj.items():
        is_torch = torch is not None and isinstance(tensor, torch.Tensor)
        if not isinstance(name, str) or not (is_torch or hasattr(tensor, "__dlpack__")):
            raise TypeError(
                f"save: state[{shown(name)}]: a .safetensors holds named tensors and arrays, got "
                f"{type(tensor).__name__}; save it as .pt"
            )
        row, extent = (torch_row if is_torch else array_row)(name, tensor)
        rows.append(row)
        ranges.append((*extent, name))
    ranges = sorted((r for r in ranges if r[2]), key=lambda r: (str(r[0]), r[1]))
    for (device, begin, size, first), (other, at, _, second) in zip(ranges, ranges[1:], strict=False):
        if device == other and at < begin + size:
            raise ValueError(
                f"save: state[{shown(first)}] and state[{shown(second)}] share memory, which a .safetensors cannot "
                "say; save one of them, or a clone, or a .pt"
            )
    return rows


def torch_row(name: str, tensor: Any, types: Mapping[str, str] = _SAFETENSORS, verb: str = "save") -> Row:
    """A row (name, type, shape, address and owner of the bytes) and an extent (device, address and size of memory)."""
    torch = _torch()
    if tensor.is_nested:
        do = "save its parts (what its unbind() gives), or a dict of it to a .pt"
        do = do if verb == "save" else f"give its parts, by the names that inspect() gives ({shown(name + '.values')})"
        raise TypeError(f"{verb}: state[{shown(name)}]: a nested tensor has no form here; {do}")
    dtype = str(tensor.dtype).removeprefix("torch.")
    if types is _SAFETENSORS and tensor.layout is torch.strided and dtype == _F4 and tensor.ndim:
        (_, _, shape, *data), extent = torch_row(name, tensor.view(torch.uint8), types, verb)  # of two F4 each
        return (name, "F4", [*shape[:-1], 2 * shape[-1]], *data), extent
    if tensor.layout is not torch.strided or dtype not in types:
        one_by_one = "a .pt whose tensors come one after another; save a dict of them"
        where = ".safetensors; save it as .pt" if types is _SAFETENSORS else one_by_one
        raise TypeError(f"{verb}: state[{shown(name)}]: a tensor of {dtype} ({tensor.layout}) has no form in {where}")
    if tensor.device.type == "meta":
        raise TypeError(f"{verb}: state[{shown(name)}]: the tensor is on the meta device and has no data")
    data = _core.in_its_storage(tensor, f"{verb}: state[{shown(name)}]").detach()
    if not (data.device.type == "cuda" and data.is_contiguous() and not data.is_conj() and not data.is_neg()):
        data = data.resolve_conj().resolve_neg().cpu().contiguous()
    row = (name, types[dtype], list(data.shape), data.data_ptr(), data)
    return row, (tensor.device, tensor.data_ptr(), tensor.nbytes)


def of_torch(kind: str, shape: list[int]) -> tuple[str, list[int]]:
    """The type and shape in torch of what a .safetensors has; "": torch has no such type."""
    if kind == "F4" and shape and shape[-1] % 2 == 0:
        return _F4, [*shape[:-1], shape[-1] // 2]
    return _TORCH.get(kind, ""), shape


def array_row(name: str, array: Any, verb: str = "save") -> Row:
    """The same for an array of NumPy, or an object that NumPy converts: an array of JAX, a Buffer."""
    import numpy

    if isinstance(array, numpy.ma.MaskedArray):
        raise TypeError(f"{verb}: state[{shown(name)}]: a masked array, whose mask would be lost; give array.filled()")
    host = array.numpy() if isinstance(array, _core.Buffer) else numpy.asarray(array)
    if host.dtype.name not in _SAFETENSORS or not host.dtype.isnative:
        raise TypeError(f"{verb}: state[{shown(name)}]: no .safetensors has {host.dtype}; give another dtype")
    extent = ("cpu", host.ctypes.data, host.nbytes)
    host = host if host.flags.c_contiguous else numpy.array(host, order="C")
    return (name, _SAFETENSORS[host.dtype.name], list(host.shape), host.ctypes.data, host), extent


# ---- selection of tensors


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
                    f"for all of it, got {_arguments.got(part)}"
                )


# ---- storages


def _asked_for(location: str, map_location: Any) -> Any:
    """Where map_location, which is no function, puts a storage of `location`."""
    where = map_location.get(location, location) if isinstance(map_location, Mapping) else map_location
    return location if where is None else where


def _not_here(location: str, where: Any, map_location: Any, path: str) -> ValueError | None:
    """The error for a storage of `location` that is to come to a device which is not here."""
    try:
        why = _devices.missing(_torch().device(where))
    except RuntimeError:
        why = "torch knows no such device"
    if why is None:
        return None
    of_file = map_location is None or (isinstance(map_location, Mapping) and location not in map_location)
    what = f"a storage in it is of the device {shown(location)}" if of_file else f"map_location={str(where)!r}"
    return ValueError(f"load: '{path}': {what}: {why}; give map_location='cpu', or another device that is here")


def gpu_of(location: str, map_location: Any) -> Any:
    """The CUDA device on which map_location puts a storage of `location`. None: the storage is read to host memory, and
    torch moves it."""
    torch = _torch()
    where = _asked_for(location, map_location)
    if not isinstance(where, (str, torch.device)) or not str(where).startswith("cuda"):
        return None
    if torch.version.hip is not None or not torch.cuda.is_available():
        return None
    try:
        device = torch.device(where)
    except RuntimeError:  # not a device; torch raises the error later
        return None
    if device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    reached = _core.gpu_count() == torch.cuda.device_count()
    return device if reached and device.index < torch.cuda.device_count() else None


def gpus_of(locations: Iterable[str], map_location: Any, path: str) -> list[Any]:
    """gpu_of() of each. A missing GPU is an error before anything is read."""
    known: dict[str, Any] = {}
    for location in (locations := list(locations)):
        if location not in known:
            if not callable(map_location):
                where = _asked_for(location, map_location)
                if str(where).startswith("cuda") and (error := _not_here(location, where, map_location, path)):
                    raise error
            known[location] = gpu_of(location, map_location)
    return [known[location] for location in locations]


def _located(storage: Any, location: str, map_location: Any, path: str) -> Any:
    """The storage on the device that map_location selects, as in torch.load."""
    torch = _torch()
    if storage.device.type == "cuda":
        return storage  # it was read to the GPU of gpu_of()
    restore = torch.serialization._get_restore_location(map_location)
    try:
        there = restore(storage, location)
    except Exception as error:  # torch raises many types
        if callable(map_location) or isinstance(error, (MemoryError, torch.cuda.OutOfMemoryError)):
            raise
        where = _asked_for(location, map_location)
        known = _not_here(location, where, map_location, path)
        raise known or ValueError(
            f"load: '{path}': map_location: torch cannot put a storage of {shown(location)} on {shown(str(where))}; "
            "give map_location='cpu', or another device that is here"
        ) from error
    return there if isinstance(there, torch.UntypedStorage) else there._untyped_storage


# ---- load, inspect


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


@_arguments.named
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
    from penstock._state import load as _load

    if pickle_module is not None and getattr(pickle_module, "__name__", "") not in ("pickle", "_pickle"):
        raise ValueError(
            f"load: pickle_module: {shown(pickle_module)} is not used: nothing of a file is executed; leave "
            "it out, or use torch.load for a file that you trust"
        )
    if into is not None and (mmap or map_location is not None):
        raise ValueError("load: into: the tensors say where they are; leave out map_location and mmap")
    if into is not None and isinstance(names, Mapping) and any(i is not None for i in names.values()):
        raise ValueError("load: into fills whole tensors; leave out the slices in names")
    _arguments.flag("load", "weights_only", weights_only)
    mmap = _arguments.flag("load", "mmap", mmap)
    map_location, dtype = placing("load", map_location, device, into), float_name("load", dtype, into)
    names = None if names is None else _arguments.texts("load", "names", names)
    pickle = bool(_arguments.flag("load", "pickle", pickle))
    report = _reporter(progress, "load")
    try:
        return _load.load(f, map_location, into, names, bool(mmap), dtype, cache, pickle, unread, report)
    except Unsupported:
        parts = any(one is not None for one in (into, names, dtype))
        if not pickle or parts or not isinstance(f, (str, os.PathLike)) or not inspect(f).unread:
            raise
        return _torch().load(f, map_location, weights_only=False)  # the caller trusts the file


def placing(verb: str, map_location: Any, device: Any, into: Any) -> Any:
    """The map_location to use, with `device` taken into account. A device that is not here is an error at once."""
    if device is None:
        if map_location is None or isinstance(map_location, (str, Mapping)) or callable(map_location):
            return map_location  # a string may be of a device that only torch's own loader knows
        return _devices.device_of(verb, "map_location", map_location)
    if map_location is not None:
        raise ValueError(f"{verb}: device or map_location, not both")
    if isinstance(device, str) and device == "cpu":  # needs no torch
        return device
    where = _devices.device_of(verb, "device", device)
    if into is not None and where.type != "cpu":
        raise ValueError(f"{verb}: into: the tensors say where they are; leave out device")
    _devices.check_here(verb, "device", where)
    return "cpu" if where.type == "cpu" else where


def float_name(verb: str, dtype: Any, into: Any) -> str | None:
    """The name of the type to convert tensors to, or None."""
    if dtype is None:
        return None
    if into is not None:
        raise ValueError(f"{verb}: into: the tensors say their types; leave out dtype")
    name = str(dtype).removeprefix("torch.")
    if name not in FLOATS:
        raise ValueError(f"{verb}: dtype: expected {', '.join(FLOATS[:-1])} or {FLOATS[-1]}, got {shown(name)}")
    return name


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


@_arguments.named
def inspect(f: Path | Readable) -> Inspection:
    """Lists the tensors of a `.pt`, a `.safetensors`, an `.npz` or an index of shards, without reading their data.
    Names are keys of a `.safetensors` or `.npz`, or keys in the state of a `.pt` joined by dots ("model.0.weight").
    Raises as load()."""
    from penstock._state import load as _load

    with _load.opened(f, "inspect") as source:
        rows, pickled, unread = source.file.tensors(), source.file.pickled(), source.file.unread()
    made = Inspection(
        TensorInfo(name, _TORCH.get(kind, kind), tuple(shape), *place) for name, kind, shape, *place in rows
    )
    made.pickled, made.unread = pickled, unread
    return made
