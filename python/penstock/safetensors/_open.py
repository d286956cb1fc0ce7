# SPDX-License-Identifier: Apache-2.0
"""An open .safetensors: its names, and tensors that are read at the call that returns them."""

from __future__ import annotations

import contextlib
import copy
import json
import os
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, overload

from penstock import _core
from penstock._base import arguments as _arguments, errors as _errors, modes as _modes
from penstock._state import load as _load, save as _state

if TYPE_CHECKING:
    import jax
    import torch
    from numpy.typing import NDArray

    from penstock._base.types import Device, Index

_Tensor = TypeVar("_Tensor")

_METADATA_FIRST = b'{"__metadata__":'
_FRAMEWORKS = {"pt": "torch", "torch": "torch", "pytorch": "torch", "np": "numpy", "numpy": "numpy"}
_FRAMEWORKS |= {"flax": "flax", "jax": "flax"}


class SafetensorError(Exception):
    """The file is not a .safetensors, or lacks a tensor."""


class OpenFile:
    """An open file: names, and (type, shape) of each. source: a path, or bytes. handle: a descriptor of the path."""

    def __init__(self, source: Any, handle: int | None = None) -> None:
        is_bytes = isinstance(source, (bytes, bytearray))
        path, given = ("bytes", bytes(source)) if is_bytes else (os.fspath(source), handle)
        try:
            opened = _load.Source(os.fsdecode(path), "load", None, "auto", "keep", given, 0 if is_bytes else None)
        except (_errors.Damaged, _errors.Unsupported) as error:  # errors of the system are not changed
            raise SafetensorError(str(error)) from error
        if opened.kind != "safetensors":
            raise SafetensorError(f"load: '{opened.path}' is not a .safetensors; penstock.load() reads it")
        self.path = opened.path
        self._file, self._is_cut = opened.file, False
        # (item, its first byte that is read, type, shape)
        self._rows = {row[0]: (item, 0, row[1], list(row[2])) for item, row in enumerate(opened.rows)}

    def names(self) -> list[str]:
        return list(self._rows)

    def row(self, name: str) -> tuple[str, list[int]]:
        if name not in self._rows:
            lacking = _core._format.lacking(name, self.names())
            raise SafetensorError(f"load: '{self.path}' has {lacking}")
        return self._rows[name][2:]

    def read(self, names: list[str]) -> list[tuple[Any, int]]:
        """(memory, offset in it) of each."""
        parts = []
        for name in names:
            kind, shape = self.row(name)
            parts.append((*self._rows[name][:2], bytes_of(kind, shape)))
        try:
            return list(self._file.read(parts, None))
        except (_errors.Damaged, _errors.Unsupported) as error:
            raise SafetensorError(str(error)) from error

    def fill(self, names: list[str], tensors: list[Any]) -> list[int]:
        """Reads to tensors on a GPU. The numbers of those that have to go through the host."""
        if self._is_cut:
            return list(range(len(names)))
        items = [self._rows[name][0] for name in names]
        try:
            return list(self._file.fill(items, tensors, tensors, names, lambda _: None, None))
        except (_errors.Damaged, _errors.Unsupported) as error:
            raise SafetensorError(str(error)) from error

    def cut(self, name: str, begin: int, end: int) -> OpenFile | None:
        """The same file with one tensor, of which there are these rows (of the first dimension). None: a row has no
        whole number of bytes."""
        item, _, kind, shape = self._rows[name]
        row_bytes = bytes_of(kind, shape[1:])
        if row_bytes * shape[0] != bytes_of(kind, shape):
            return None
        made = copy.copy(self)
        made._is_cut = True
        made._rows = {name: (item, begin * row_bytes, kind, [end - begin, *shape[1:]])}
        return made

    def close(self) -> None:
        self._file = None


def all_of(source: Any, make: Callable[[OpenFile, list[str]], list[Any]]) -> dict[str, Any]:
    """All tensors of a path, or of bytes. make: tensors_of() of a framework."""
    file = OpenFile(source)
    names = file.names()
    return dict(zip(names, make(file, names), strict=True))


def bytes_of(kind: str, shape: list[int]) -> int:
    bits = _BITS[kind]
    for extent in shape:
        bits *= extent
    return bits // 8


def type_named(kind: str, path: str, name: str) -> str:
    """The name of the type in torch and NumPy."""
    if kind not in _state._TORCH:
        raise SafetensorError(f"load: '{path}': tensor {name!r} is of the type {kind}, which is not read")
    return _state._TORCH[kind]


_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "U16": 16, "I16": 16, "F16": 16, "BF16": 16, "U32": 32, "I32": 32, "F32": 32,
    "U64": 64, "I64": 64, "F64": 64, "C64": 64, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
}  # fmt: skip


def maker(framework: str, device: Any = "cpu") -> Callable[[OpenFile, list[str]], list[Any]]:
    """The function that makes tensors of a framework, on a device."""
    if framework not in _FRAMEWORKS:
        raise SafetensorError(f"framework {framework} is invalid: expected 'pt', 'np' or 'flax'")
    if _FRAMEWORKS[framework] == "torch":
        from penstock.safetensors.torch import tensors_on

        return tensors_on("safe_open", device)
    if str(device) != "cpu":
        raise ValueError(f"safe_open: device: got {device!r}; only framework='pt' reads to other devices than 'cpu'")
    if _FRAMEWORKS[framework] == "flax":
        from penstock.safetensors.flax import tensors_of as arrays_of_jax

        return arrays_of_jax
    from penstock.safetensors.numpy import arrays_of

    return arrays_of


class safe_open(Generic[_Tensor]):  # noqa: N801 - the name that safetensors has
    """Opens a .safetensors, as safetensors.safe_open() does.

    framework: "pt", "np" or "flax". device: with "pt" any device of torch, as a string, a torch.device or the number of
    a GPU; whole tensors are read straight to a CUDA GPU. Only get_tensor() and get_slice(name)[...] read data of
    tensors."""

    # fmt: off
    @overload
    def __init__(
        self: safe_open[torch.Tensor], filename: str | os.PathLike[str], framework: Literal["pt", "torch", "pytorch"],
        device: Device = "cpu",
    ) -> None: ...
    @overload
    def __init__(
        self: safe_open[NDArray[Any]], filename: str | os.PathLike[str], framework: Literal["np", "numpy"],
        device: Device = "cpu",
    ) -> None: ...
    @overload
    def __init__(
        self: safe_open[jax.Array], filename: str | os.PathLike[str], framework: Literal["flax", "jax"],
        device: Device = "cpu",
    ) -> None: ...
    @overload
    def __init__(
        self: safe_open[Any], filename: str | os.PathLike[str], framework: str, device: Device = "cpu"
    ) -> None: ...
    # fmt: on

    @_arguments.named
    def __init__(self, filename: str | os.PathLike[str], framework: str, device: Any = "cpu") -> None:
        self._make = maker(framework, device)
        if not os.path.exists(filename):
            raise FileNotFoundError(f'No such file or directory: "{os.fspath(filename)}"')
        # The path may name another file by the time that metadata() is called.
        with _errors.opened(os.fsdecode(filename), "load") as file:
            self._file: OpenFile | None = OpenFile(filename, file.fileno())
            self._header = file.read(struct.unpack("<Q", file.read(8))[0])

    def _open(self) -> OpenFile:
        if self._file is None:
            raise SafetensorError("File is closed")
        return self._file

    def keys(self) -> list[str]:
        return sorted(self._open().names())

    def offset_keys(self) -> list[str]:
        """The names in the order of their data in the file."""
        return self._open().names()

    def metadata(self) -> dict[str, str] | None:
        self._open()
        found: dict[str, str] | None
        if self._header.startswith(_METADATA_FIRST):  # where writers put it: the rest may be long
            found = json.JSONDecoder().raw_decode(self._header[len(_METADATA_FIRST) :].decode().lstrip())[0]
        else:
            found = json.loads(self._header).get("__metadata__")
        return found

    @_arguments.named
    def get_tensor(self, name: str) -> _Tensor:
        made: _Tensor = self._make(self._open(), [name])[0]
        return made

    @_arguments.named
    def get_slice(self, name: str) -> Slice[_Tensor]:
        self._open().row(name)
        return Slice(self._open(), name, self._make)

    def __enter__(self) -> safe_open[_Tensor]:
        return self

    def __exit__(self, *_: object) -> None:
        self._open().close()
        self._file = None


class Slice(Generic[_Tensor]):
    """A tensor of which parts are read by index."""

    def __init__(self, file: OpenFile, name: str, make: Callable[[OpenFile, list[str]], list[Any]]) -> None:
        self._file, self._name, self._make = file, name, make

    def get_shape(self) -> list[int]:
        return self._file.row(self._name)[1]

    def get_dtype(self) -> str:
        return self._file.row(self._name)[0]

    @_modes.plain
    def __getitem__(self, index: Index) -> _Tensor:
        """Of the first dimension only the rows that an integer or a slice selects are read."""
        begin, end, rest = _rows_of(index, self.get_shape())
        file = self._file.cut(self._name, begin, end) if begin < end else None
        read = self._make(file or self._file, [self._name])[0]
        try:
            part = read[rest if file else index]
        except (IndexError, TypeError, ValueError) as error:
            raise SafetensorError(f"Error during slicing {index!r} of {self.get_shape()}: {error}") from error
        is_all = file is not None and rest in (0, _ALL)
        own: _Tensor = part if is_all else part.clone() if hasattr(part, "clone") else part.copy()
        return own


_ALL = slice(None, None, 1)


def _rows_of(index: Any, shape: list[int]) -> tuple[int, int, Any]:
    """The range of rows that an index selects, and the index into them. An empty range: all have to be read, for the
    error of an index that is wrong, too."""
    first, *others = index if isinstance(index, tuple) and index else (index,)
    begin = end = 0
    inner: Any = 0
    if shape and type(first) is int and -shape[0] <= first < shape[0]:
        begin = first % shape[0]
        end = begin + 1
    elif shape and isinstance(first, slice):
        with contextlib.suppress(TypeError):
            begin, end, step = first.indices(shape[0])
            inner = slice(None, None, step)
            end = end if step > 0 else begin
    return begin, end, (inner, *others) if others else inner
