# SPDX-License-Identifier: Apache-2.0
"""save(): a training state in one file. Also what save(), load() and the stores share: the names of types, and
which tensors are meant.

What is saved is whole, durable and under its name, or the old file is untouched:

    1. the state becomes an image: every offset of the file is known, its pickle and headers are made
    2. a temporary file next to the target, with room for all of it, and the mode that the target has or would get
    3. the engine writes it from the tensors themselves, checksums are made on other cores meanwhile; sync
    4. rename over the target, sync of the folder

The compiled part does all of that (docs/formats.md has the bytes); here are arguments and torch.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, overload

from penstock import _arguments, _core, _log, _pickled
from penstock._arguments import shown
from penstock._errors import Damaged
from penstock._progress import Progress
from penstock._progress import reporter as _reporter

if TYPE_CHECKING:
    import torch

    from penstock._types import Cache, Device, Dtype, Index, Into, MapLocation, Names, Path, Readable, Writable

_format = _core._format

_TORCH = dict(_format.torch_types())  # name in safetensors: name in torch
_SAFETENSORS = {name: ours for ours, name in _TORCH.items()}

FLOATS = ("float64", "float32", "float16", "bfloat16")  # what a load converts, and to what

INDEX = ".safetensors.index.json"
_NESTED = "a nested tensor cannot be saved; save its parts (a list of what its unbind() gives)"
_SHARD_BYTES = 5_000_000_000  # what Hugging Face's writers take


def torch_or_none() -> Any:
    try:
        import torch
    except ImportError:
        return None
    return torch


def _torch() -> Any:
    try:
        import torch
    except ImportError:
        raise ImportError("penstock: tensors of a state are torch's; install torch") from None
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
    progress: Progress = False,
) -> None:
    """Saves a state to a file that stock `torch.load` (or `safetensors`) reads. When it returns the file is whole and
    survives a power failure; when it raises, a file that was there before is as it was.

    obj: tensors, parameters, numbers, strings, bytes, None, NumPy data, and dicts, lists, tuples, sets,
        OrderedDict, defaultdict, Counter of them (docs/formats.md, "The grammar"). For `.safetensors`: a dict of names
        and dense tensors.
    f: a path: one that ends in ".safetensors" is that format, one in ".safetensors.index.json" an index with its
        shards next to it, any other a `.pt` of torch (but for another ".json", which load() would take for an index: a
        ValueError). Or a binary file to write to, which gets a `.pt`, from where it stands on; its durability is the
        caller's.
    pickle_module, pickle_protocol, and the two after them: as in torch.save, so that calls of it go on working. The
        pickle is made by Penstock, at protocol 2; another pickle_module, or the legacy form, is a ValueError.
    metadata: of `.safetensors` only, strings; {"format": "pt"} where none is given.
    shard_bytes: of an index: bytes of tensors in a shard at most (one that is larger has a shard of its own).
    sync: False does not wait for the device. Other processes still see the old file or the new one, whole; after a
        power failure within moments of the call, the file may be damaged or missing. Of a binary file to write to it
        says nothing.
    default: a function, called with each object that a `.pt` cannot hold (a Path, a dataclass, an Enum): what it gives
        is saved in its place, as in json.dumps. What it raises ends the call. load() gives what was saved.
        penstock.Pickled is one that pickles them: load(pickle=True) makes them again.
    progress: True for a line on stderr, or a function that is called with (done, total) in bytes.

    A symbolic link is followed; mode and owner of a file that exists are kept. Tensors must not change meanwhile.
    Ctrl-C leaves the old file. Raises TypeError naming the place in the state for what cannot be saved
    ("state['opt'][3]"), penstock.Error (an OSError) for what the system refuses: a full disk before the first byte,
    with the bytes that are missing. Safe to call from several threads."""
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
    if not isinstance(f, (str, bytes, os.PathLike)) and callable(getattr(f, "write", None)):
        _save_to_file(obj, f, metadata, default, report)
        return
    path = _path(f, "save")
    if path.endswith(INDEX):
        rows = list(_metadata(metadata).items())
        _format.save_index(path, _safetensors_rows(obj), rows, min(shard_bytes, 2**63), report, sync)
        return
    path, image = _image_of(obj, path, metadata, default)
    with _log.timed(f"saved '{path}'", image.total_bytes):
        image.save(path, report, sync)


def check_default(verb: str, default: Any) -> None:
    if default is not None:
        _arguments.function(verb, "default", default)


def _image_of(obj: Any, f: str | os.PathLike[str], metadata: dict[str, str] | None, default: Any) -> tuple[str, Any]:
    """The path, absolute and without symbolic links, and what is going to be the file."""
    given = _path(f, "save")
    path = os.path.realpath(given)
    if given.endswith(".safetensors"):
        rows = _safetensors_rows(obj)
        return path, _format.image_of_tensors(rows, list(_metadata(metadata).items()))
    if given.endswith(".json"):
        raise ValueError(
            f"save: '{given}': load() takes what ends in .json for an index of shards; end it in {INDEX} for "
            "that, in .safetensors for one file of tensors, or in .pt"
        )
    if metadata is not None:
        raise ValueError("save: metadata: a .pt has none; put it into the state, or save to a .safetensors")
    stem = os.path.basename(path).rsplit(".", 1)[0]
    with named_in(obj):
        return path, _format.image_of_state(obj, stem if stem.isidentifier() else "archive", default)


@contextlib.contextmanager
def named_in(obj: Any) -> Iterator[None]:
    """Turns torch's error about a nested tensor into one that names its place in the state."""
    try:
        yield
    except RuntimeError as error:
        if "Nested" not in str(error):
            raise
        from penstock import _into

        for _, place, tensor in _into.tensors(obj):
            if tensor.is_nested:
                raise TypeError(f"save: state{place}: {_NESTED}") from None
        raise


def _metadata(metadata: dict[str, str] | None) -> dict[str, str]:
    return {"format": "pt"} if metadata is None else dict(_arguments.strings("save", "metadata", metadata))


def _save_to_file(obj: Any, f: Any, metadata: dict[str, str] | None, default: Any, report: Any) -> None:
    if isinstance(f, io.TextIOBase):
        raise TypeError("save: f: this is a text file; open it with 'wb'")
    if metadata is not None:
        raise ValueError("save: metadata: a .pt has none; put it into the state, or save to the path of a .safetensors")
    with named_in(obj):
        image = _format.image_of_state(obj, "archive", default)

    def write(piece: memoryview) -> None:
        rest = memoryview(piece)
        while rest:
            done = f.write(rest)
            # Raw files may take a part; other writers return what they like.
            if not isinstance(f, io.RawIOBase):
                return
            rest = rest[done or 0 :]

    image.write_to(write, report)


def _safetensors_rows(obj: Any) -> list[tuple[str, str, list[int], int, Any]]:
    if not isinstance(obj, Mapping):
        raise TypeError(f"save: a .safetensors holds a dict of tensors, got {type(obj).__name__}")
    torch = sys.modules.get("torch")  # who has not imported it has no tensors of it
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


def torch_row(name: str, tensor: Any) -> tuple[tuple[str, str, list[int], int, Any], tuple[Any, int, int]]:
    """Name, type, shape, address and owner of its bytes; device, address and bytes of the memory that it has."""
    torch = _torch()
    if tensor.is_nested:
        raise TypeError(f"save: state[{shown(name)}]: {_NESTED}")
    dtype = str(tensor.dtype).removeprefix("torch.")
    if tensor.layout is not torch.strided or dtype not in _SAFETENSORS:
        raise TypeError(
            f"save: state[{shown(name)}]: a tensor of {dtype} ({tensor.layout}) has no form in .safetensors"
        )
    if tensor.device.type == "meta":
        raise TypeError(f"save: state[{shown(name)}]: the tensor is on the meta device and has no data")
    data = tensor.detach()
    if not (data.device.type == "cuda" and data.is_contiguous() and not data.is_conj() and not data.is_neg()):
        data = data.resolve_conj().resolve_neg().cpu().contiguous()
    row = (name, _SAFETENSORS[dtype], list(data.shape), data.data_ptr(), data)
    return row, (tensor.device, tensor.data_ptr(), tensor.nbytes)


def array_row(name: str, array: Any) -> tuple[tuple[str, str, list[int], int, Any], tuple[Any, int, int]]:
    """The same of an array of NumPy, or of what NumPy sees as one: of JAX, a Buffer."""
    import numpy

    host = array.numpy() if isinstance(array, _core.Buffer) else numpy.asarray(array)
    if host.dtype.name not in _SAFETENSORS or not host.dtype.isnative:
        raise TypeError(f"save: state[{shown(name)}]: an array of {host.dtype} has no form in .safetensors")
    extent = ("cpu", host.ctypes.data, host.nbytes)
    host = host if host.flags.c_contiguous else numpy.array(host, order="C")
    return (name, _SAFETENSORS[host.dtype.name], list(host.shape), host.ctypes.data, host), extent


# ---- which tensors are meant


def _selection(there: Iterable[str], names: Any, path: str) -> dict[str, Any]:
    """Names and what of each is wanted: an index (slices), or None for all of it. there: the names that there are.
    KeyError for what nothing has."""
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
    """TypeError for what a mapping of names has in place of slices."""
    for wanted, index in names.items() if isinstance(names, Mapping) else ():
        for part in index if isinstance(index, tuple) else (index,):
            if part is not None and part is not ... and not isinstance(part, (slice, int)):
                raise TypeError(
                    f"load: names[{shown(wanted)}]: expected a slice, an integer, a tuple of them, or None "
                    f"for all of it, got {_arguments.got(part)}"
                )


# ---- storages


def gpu_of(location: str, map_location: Any) -> Any:
    """The CUDA device on which map_location puts a storage of `location`, or None: it is read into host memory, and
    torch puts it where it belongs."""
    torch = _torch()
    where = map_location.get(location, location) if isinstance(map_location, Mapping) else map_location
    where = location if where is None else where
    if not isinstance(where, (str, torch.device)) or not str(where).startswith("cuda"):
        return None
    if torch.version.hip is not None or not torch.cuda.is_available():
        return None
    try:
        device = torch.device(where)
    except RuntimeError:  # no name of a device; torch says so
        return None
    if device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    reached = len(_core.gpus().gpus) == torch.cuda.device_count()
    return device if reached and device.index < torch.cuda.device_count() else None


def _located(storage: Any, location: str, map_location: Any, path: str) -> Any:
    """The storage where map_location has it, as torch.load does it."""
    torch = _torch()
    if storage.device.type == "cuda":
        return storage  # it was read to where gpu_of() said
    restore = torch.serialization._get_restore_location(map_location)
    try:
        there = restore(storage, location)
    except Exception as error:  # torch's are of many kinds
        if callable(map_location) or isinstance(error, (MemoryError, torch.cuda.OutOfMemoryError)):
            raise
        given = map_location.get(location, location) if isinstance(map_location, Mapping) else map_location
        if map_location is None or given == location:
            why = f"a storage in it is of the device {shown(location)}, and torch cannot put it there"
        else:
            why = f"map_location: torch cannot put a storage of {shown(location)} on {shown(str(given))}"
        raise ValueError(
            f"load: '{path}': {why}: {_first_line(error)}; give map_location='cpu', or another device that is here"
        ) from error
    return there if isinstance(there, torch.UntypedStorage) else there._untyped_storage


def _objects(made_by: Any, storages: list[Any], path: str, pickle: bool = False) -> Any:
    """The state that a file holds, as objects. Where torch refuses to make one of them, the file is not sound: it says
    what it likes, and torch's errors are of many kinds."""
    try:
        return made_by.objects(storages, _pickled.unpickler(pickle))
    except (RuntimeError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise Damaged(
            f"load: '{path}': it holds an object that cannot be made: {_first_line(error)}; torch.load may say more "
            "of it",
            path=path,
        ) from error


def _first_line(error: BaseException) -> str:
    lines = str(error).splitlines()
    return lines[0][:200] if lines else type(error).__name__


# ---- load, inspect


# fmt: off
@overload
def load(
    f: Path | Readable, map_location: None = None, pickle_module: object = None, *, into: Into,
    names: Iterable[str] | None = None, device: Device | None = None, dtype: None = None,
    weights_only: bool | None = True, mmap: bool | None = None, pickle: bool = False, cache: Cache = "auto",
    progress: Progress = False,
) -> Into: ...
@overload
def load(
    f: Path | Readable, map_location: MapLocation | None = None, pickle_module: object = None, *, into: None = None,
    names: Mapping[str, Index | None], device: Device | None = None, dtype: Dtype | None = None,
    weights_only: bool | None = True, mmap: bool | None = None, pickle: bool = False, cache: Cache = "auto",
    progress: Progress = False,
) -> dict[str, torch.Tensor]: ...
@overload
def load(
    f: Path | Readable, map_location: MapLocation | None = None, pickle_module: object = None, *, into: None = None,
    names: str, device: Device | None = None, dtype: Dtype | None = None,
    weights_only: bool | None = True, mmap: bool | None = None, pickle: bool = False, cache: Cache = "auto",
    progress: Progress = False,
) -> Any: ...
@overload
def load(
    f: Path | Readable, map_location: MapLocation | None = None, pickle_module: object = None, *, into: None = None,
    names: Names | None = None, device: Device | None = None, dtype: Dtype | None = None,
    weights_only: bool | None = True, mmap: bool | None = None, pickle: bool = False, cache: Cache = "auto",
    progress: Progress = False,
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
    cache: str = "auto",
    progress: Progress = False,
) -> Any:
    """Reads a state that penstock.save, torch.save or safetensors wrote. Nothing in the file is executed: it can build
    containers, numbers, strings and tensors, and an object that is anything else is an error with its place.

    f: the path of a `.pt` (zip or legacy), a `.safetensors`, or an index of shards: recognised by content (what ends in
        `.json` is always an index). Or a binary file, from where it stands to its end, where it is left.
    map_location: as in torch.load: a device, a dict, a function (storage, location) -> storage.
    pickle_module, weights_only: as in torch.load, so that calls of it go on working; whatever they say, nothing but
        plain values is read, and a pickle_module of one's own is a ValueError.
    into: tensors that are filled in place, straight from storage where they are contiguous, on a GPU too: a dict
        of names for `.safetensors`, a state like the one in the file for a `.pt`. Names, types and shapes are compared
        before a byte is read, both ways unless `names` says which are meant. What comes back is the state of the file
        with these tensors in it. After an error while data is read, their contents are undefined.
    names: what is wanted of the state; nothing else is read, or takes memory.
        a name ("model", "model.0.weight": keys joined by dots, as inspect() has them): what is there, as it would be in
            the whole state, load(f)["model"]: a dict or list with all that is in it, a tensor, a number. Where keys
            have dots in them, as in a `.safetensors`: a dict of the tensors below the name, without it.
        a pattern ("layers.3.*"): a dict of the tensors that have such names.
        several of both: a dict of them, each under its name; of a `.safetensors` all tensors have their full names.
        a mapping of names or patterns of tensors to slices, {"wte": slice(0, 10), "wpe": (..., 0)}: a dict of these
            slices, and what the first dimension cuts off costs nothing. None as a slice is all of it.
    device: "cpu", where all is read to; for another, map_location.
    dtype: a torch.dtype or its name: tensors of float64, float32, float16 and bfloat16 become this one of these,
        storage after storage, and each is freed as the next is converted. Other types stay as they are (integers,
        bool, complex, float8), and so does a storage that tensors of several types share.
    pickle: True makes the objects that save(default=penstock.Pickled) pickled, and runs what the pickles say: only
        where the file is trusted. False gives a penstock.Pickled for each, and a RuntimeWarning that names them.
    mmap: True: nothing is read, the file is mapped, and pages come when they are touched (and are not checked).
    cache: "auto" takes what is in the page cache from there and the rest directly from the device; "cached" reads all
        of it through the page cache (several processes that load one file at once read the device once), "direct" none,
        and "required" is penstock.Unsupported where the file system has no direct I/O (docs/page_cache.md).
    progress: True for a line on stderr, or a function that is called with (done, total) in bytes.

    Checksums are checked during the reading: the CRCs of a `.pt`, the table in a `.safetensors` of ours. Of a slice of
    a `.pt`, or one of its tensors that is a part of a larger storage, the CRC says nothing and is not checked.
    Storages cannot be resized; the memory of each is given back when the last tensor on it is gone.
    To a type checker a state is a dict[str, Any], which most are; typing.cast() says so of another.
    Raises penstock.Damaged (a ValueError and an OSError) naming the tensor for a file that is damaged, hostile or
    written to meanwhile, ValueError for a storage of a device that is not here (give map_location),
    penstock.Unsupported for a type of elements that torch lacks, KeyError for a name that is not there, ValueError and
    TypeError for `into` that does not fit, MemoryError for more than there is, penstock.Error for what the system
    refuses. Safe to call from several threads."""
    from penstock import _load

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
    map_location, dtype = placing("load", map_location, device), float_name("load", dtype, into)
    names = None if names is None else _arguments.texts("load", "names", names)
    pickle = bool(_arguments.flag("load", "pickle", pickle))
    report = _reporter(progress, "load")
    return _load.load(f, map_location, into, names, bool(mmap), dtype, cache, pickle, report)


def placing(verb: str, map_location: Any, device: Any) -> Any:
    """map_location, where `device` asks for the host."""
    if device is None or map_location is None and str(device) == "cpu":
        return map_location if device is None else "cpu"
    if map_location is not None:
        raise ValueError(f"{verb}: device or map_location, not both")
    if not isinstance(device, str) and type(device).__module__ != "torch":
        raise TypeError(f"{verb}: device: expected 'cpu', got {_arguments.got(device)}")
    raise ValueError(
        f"{verb}: device: expected 'cpu', got {shown(str(device))}; give map_location={str(device)!r}, which reads to "
        "that device"
    )


def float_name(verb: str, dtype: Any, into: Any) -> str | None:
    """The name of a type that tensors are converted to."""
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
    path: of the file, where it is a shard."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int
    path: str = ""


class Inspection(list[TensorInfo]):
    """The tensors of a file. pickled: places and types of the objects that it holds as pickles, which load() makes with
    pickle=True alone: ["state['args'] (argparse.Namespace)"]."""

    pickled: list[str]


@_arguments.named
def inspect(f: Path | Readable) -> Inspection:
    """The tensors of a `.pt`, a `.safetensors` or an index of shards, without reading their data. Names are keys of
    `.safetensors`, or the places in the state of a `.pt`, joined by dots ("model.0.weight"). Raises as load()."""
    from penstock import _load

    with _load.opened(f, "inspect") as source:
        rows, pickled = source.file.tensors(), source.file.pickled()
    made = Inspection(
        TensorInfo(name, _TORCH.get(kind, kind), tuple(shape), *place) for name, kind, shape, *place in rows
    )
    made.pickled = pickled
    return made
