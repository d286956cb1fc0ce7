# SPDX-License-Identifier: Apache-2.0
"""save(), load() and inspect(): a training state in one file.

What is saved is whole, durable and under its name, or the old file is untouched:

    1. the state becomes a layout: every offset of the file is known, its pickle and headers are made
    2. a temporary file beside the target, with the mode that the target has or would get
    3. checksums on all cores, then one transfer of the engine from the tensors to the device, and sync
    4. rename over the target, sync of the folder

The compiled part makes and reads the formats (docs/formats.md); here are names, files and torch.
"""

from __future__ import annotations

import contextlib
import fnmatch
import os
import secrets
import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from penstock import _core

_format = _core._format

# What safetensors calls a type, and torch.
_TORCH = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "I16": "int16",
    "U16": "uint16",
    "F16": "float16",
    "BF16": "bfloat16",
    "I32": "int32",
    "U32": "uint32",
    "F32": "float32",
    "C64": "complex64",
    "F64": "float64",
    "I64": "int64",
    "U64": "uint64",
    "F8_E5M2": "float8_e5m2",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
}
_SAFETENSORS = {name: ours for ours, name in _TORCH.items()}


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
        raise TypeError(f"{verb}: f: this is a {type(f).__name__}; give a path (str or os.PathLike)") from None


# ---- save ----


def save(obj: Any, f: str | os.PathLike[str], *, metadata: dict[str, str] | None = None) -> None:
    """Saves a state to a file that stock `torch.load` (or `safetensors`) reads. When it returns the file is whole and
    survives a power failure; when it raises, a file that was there before is as it was.

    obj: tensors, parameters, numbers, strings, bytes, None, NumPy data, and dicts, lists, tuples, sets,
        OrderedDict, defaultdict of them. For `.safetensors`: a dict of names and dense tensors.
    f: the path. Ends it in ".safetensors", that is the format; otherwise it is a `.pt` of torch.
    metadata: of `.safetensors` only, strings; {"format": "pt"} where none is given.

    A symbolic link is followed; mode and owner of a file that exists are kept. Tensors must not change meanwhile.
    Raises TypeError naming the place in the state for what cannot be saved ("state['opt'][3]"), penstock.Error
    (an OSError) for what the system refuses. Safe to call from several threads."""
    path, image = _image_of(obj, f, metadata)
    image.save(path)


def _image_of(obj: Any, f: Any, metadata: dict[str, str] | None) -> tuple[str, Any]:
    """Where a state is to be saved, and the file that it becomes."""
    path = os.path.realpath(_path(f, "save"))
    if path.endswith(".safetensors"):
        return path, _new_safetensors(obj, {"format": "pt"} if metadata is None else metadata)
    if metadata is not None:
        raise ValueError("save: metadata: a .pt has none; put it into the state, or save to a .safetensors")
    stem = os.path.basename(path).rsplit(".", 1)[0]
    return path, _format.image_of_state(obj, stem if stem.isidentifier() else "archive")


def _new_safetensors(obj: Any, metadata: dict[str, str]) -> Any:
    torch = _torch()
    if not isinstance(obj, dict):
        raise TypeError(f"save: a .safetensors holds a dict of tensors, and this is a {type(obj).__name__}")
    rows, ranges = [], []
    for name, tensor in obj.items():
        if not isinstance(name, str) or not isinstance(tensor, torch.Tensor):
            raise TypeError(
                f"save: state[{name!r}]: a .safetensors holds tensors under names, and this is a "
                f"{type(tensor).__name__}; save it as .pt"
            )
        dtype = str(tensor.dtype).removeprefix("torch.")
        if tensor.layout is not torch.strided or dtype not in _SAFETENSORS:
            raise TypeError(f"save: state[{name!r}]: a tensor of {dtype} ({tensor.layout}) has no form in .safetensors")
        host = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
        rows.append((name, _SAFETENSORS[dtype], list(host.shape), host.data_ptr(), host))
        ranges.append((tensor.device, tensor.data_ptr(), tensor.nbytes, name))
    ranges = sorted((r for r in ranges if r[2]), key=lambda r: (str(r[0]), r[1]))
    for (device, begin, size, first), (other, at, _, second) in zip(ranges, ranges[1:], strict=False):
        if device == other and at < begin + size:
            raise ValueError(
                f"save: state[{first!r}] and state[{second!r}] share memory, which a .safetensors cannot say; "
                "save one of them, or a clone, or a .pt"
            )
    return _format.image_of_tensors(rows, list(metadata.items()))


@contextlib.contextmanager
def _replacing(path: str) -> Iterator[str]:
    """A temporary file beside `path` that takes its place at the end, durably, or is gone."""
    folder, name = os.path.split(path)
    try:
        old = os.stat(path)
    except FileNotFoundError:
        old = None
    if old is not None and not stat.S_ISREG(old.st_mode):
        raise ValueError(f"save: '{path}' is no regular file; give the path of one")
    temporary = os.path.join(folder, f".{name[:200]}.{secrets.token_hex(6)}.tmp")
    descriptor = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o666)
    try:
        try:
            if old is not None:
                os.fchmod(descriptor, stat.S_IMODE(old.st_mode))
                with contextlib.suppress(PermissionError):
                    os.fchown(descriptor, old.st_uid, old.st_gid)
        finally:
            os.close(descriptor)
        yield temporary
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
    _sync_folder(folder)


def _sync_folder(folder: str) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# ---- load ----


def load(
    f: str | os.PathLike[str],
    map_location: Any = None,
    *,
    names: str | Iterable[str] | None = None,
) -> Any:
    """Reads a state that penstock.save, torch.save or safetensors wrote. Nothing in the file is executed: it can build
    containers, numbers, strings and tensors, and an object that is anything else is an error with its place.

    f: the path of a `.pt` (zip or legacy), a `.safetensors`, or an index of shards (`.index.json`): told apart by
        content, the index by its name.
    map_location: as in torch.load: a device, a dict, a function (storage, location) -> storage.
    names: of `.safetensors` alone: names of tensors or patterns ("layers.3.*"); only these are read.

    Checksums of a `.pt` are checked. Raises ValueError for a file that is damaged or hostile, KeyError for a name that
    is not there, penstock.Error (an OSError) for what the system refuses."""
    path = _path(f, "load")
    if path.endswith(".json"):
        return _load_shards(path, map_location, names)
    with open(path, "rb") as file:
        head = file.read(4)
        if head[:4] == b"PK\x03\x04" or head[:1] == b"\x80":
            if names is not None:
                raise ValueError("load: names: a .pt is read whole; names are for .safetensors")
            return _load_pt(path, file.fileno(), map_location)
        return _load_safetensors(path, file.fileno(), map_location, _wanted(names))


def _load_pt(path: str, descriptor: int, map_location: Any) -> Any:
    read = _format.read_pt(descriptor)
    places = read.storages
    if not places:
        return read.objects([])
    torch = _torch()
    storages = [torch.UntypedStorage(size) for _, size, _, _ in places]
    _fill(path, [(s, offset) for s, (offset, _, _, _) in zip(storages, places, strict=True)])
    for i, (storage, (offset, size, _, crc)) in enumerate(zip(storages, places, strict=True)):
        found = _format.crc32(storage.data_ptr(), size) if crc and size else crc
        if found != crc:
            raise ValueError(
                f"load: '{path}': storage {i} ({size} bytes at {offset}) has the CRC {found:08x}, and the file says "
                f"{crc:08x}: its bytes were damaged"
            )
    locate: Callable[[Any, str], Any] = torch.serialization._get_restore_location(map_location)
    located = []
    for storage, (_, _, location, _) in zip(storages, places, strict=True):
        there = locate(storage, location)
        located.append(there if isinstance(there, torch.UntypedStorage) else there._untyped_storage)
    return read.objects(located)


def _fill(path: str, storages: list[tuple[Any, int]]) -> None:
    """Reads each storage from its offset: one transfer."""
    torch = _torch()
    parts = [(torch.empty(0, dtype=torch.uint8).set_(s), offset) for s, offset in storages if s.nbytes()]
    parts.sort(key=lambda part: part[1])
    if parts:
        _core.read(path, [memory for memory, _ in parts], offset=[offset for _, offset in parts])


def _wanted(names: str | Iterable[str] | None) -> list[str] | None:
    if names is None:
        return None
    return [names] if isinstance(names, str) else list(names)


def _chosen(all_names: list[str], wanted: list[str] | None, path: str) -> set[str]:
    if wanted is None:
        return set(all_names)
    out: set[str] = set()
    for name in wanted:
        found = {name} & set(all_names) or set(fnmatch.filter(all_names, name))
        if not found:
            raise KeyError(f"load: '{path}' has no tensor {name!r}")
        out |= found
    return out


def _load_safetensors(path: str, descriptor: int, map_location: Any, wanted: list[str] | None) -> dict[str, Any]:
    torch = _torch()
    rows, _ = _format.read_safetensors(descriptor)
    chosen = _chosen([row[0] for row in rows], wanted, path)
    out, storages = {}, []
    for name, kind, shape, begin, end in rows:
        if name not in chosen:
            continue
        if kind not in _TORCH:
            raise TypeError(f"load: '{path}': tensor {name!r}: torch has no type for {kind}")
        storage = torch.UntypedStorage(end - begin)
        storages.append((storage, begin))
        out[name] = torch.empty(0, dtype=getattr(torch, _TORCH[kind])).set_(storage, 0, shape)
    _fill(path, storages)
    if map_location is not None:
        locate = torch.serialization._get_restore_location(map_location)
        for name, tensor in out.items():
            there = locate(tensor.untyped_storage(), "cpu")
            there = there if isinstance(there, torch.UntypedStorage) else there._untyped_storage
            out[name] = torch.empty(0, dtype=tensor.dtype, device=there.device).set_(there, 0, tensor.shape)
    return out


def _load_shards(path: str, map_location: Any, names: str | Iterable[str] | None) -> dict[str, Any]:
    with open(path, "rb") as file:
        weight_map: dict[str, str] = dict(_format.parse_shard_index(file.read()))
    chosen = _chosen(list(weight_map), _wanted(names), path)
    shards: dict[str, list[str]] = {}
    for name, file_name in weight_map.items():
        if name in chosen:
            shards.setdefault(file_name, []).append(name)
    out: dict[str, Any] = {}
    for file_name, own in shards.items():
        out.update(load(os.path.join(os.path.dirname(path), file_name), map_location, names=own))
    return out


# ---- inspect ----


@dataclass(frozen=True)
class TensorInfo:
    """A tensor in a file. offset: of its first element, in bytes from the start of the file; -1 where its file was
    not opened. nbytes: of its elements."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


def inspect(f: str | os.PathLike[str]) -> list[TensorInfo]:
    """The tensors of a `.pt` or `.safetensors`, without reading their data. Names are keys of `.safetensors`, or the
    places in the state of a `.pt`, joined by dots ("model.0.weight"). Raises as load()."""
    path = _path(f, "inspect")
    with open(path, "rb") as file:
        head = file.read(4)
        if head[:4] != b"PK\x03\x04" and head[:1] != b"\x80":
            rows, _ = _format.read_safetensors(file.fileno())
            return [TensorInfo(n, _TORCH.get(k, k), tuple(s), b, e - b) for n, k, s, b, e in rows]
        read = _format.read_pt(file.fileno())
    places = read.storages
    if not places:
        return []
    torch = _torch()
    storages = [torch.UntypedStorage(size, device="meta") for _, size, _, _ in places]
    begins = {s._cdata: offset for s, (offset, _, _, _) in zip(storages, places, strict=True)}
    out = []
    for name, tensor in _tensors(read.objects(storages), "", set()):
        begin = begins[tensor.untyped_storage()._cdata] + tensor.storage_offset() * tensor.element_size()
        dtype = str(tensor.dtype).removeprefix("torch.")
        out.append(TensorInfo(name, dtype, tuple(tensor.shape), begin, tensor.nbytes))
    return out


def _tensors(obj: Any, name: str, seen: set[int]) -> Iterator[tuple[str, Any]]:
    if isinstance(obj, _torch().Tensor):
        yield name, obj
    elif isinstance(obj, (dict, list, tuple)) and id(obj) not in seen:
        seen.add(id(obj))
        for key, value in obj.items() if isinstance(obj, dict) else enumerate(obj):
            yield from _tensors(value, f"{name}.{key}" if name else str(key), seen)
