# SPDX-License-Identifier: Apache-2.0
"""An open .safetensors: its names, and tensors that are read at the call that returns them."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, overload

from penstock import _arguments, _core, _errors, _load, _state

if TYPE_CHECKING:
    import jax
    import torch
    from numpy.typing import NDArray

    from penstock._types import Device, Index

_Tensor = TypeVar("_Tensor")

_FRAMEWORKS = {"pt": "torch", "torch": "torch", "pytorch": "torch", "np": "numpy", "numpy": "numpy"}
_FRAMEWORKS |= {"flax": "flax", "jax": "flax"}


class SafetensorError(Exception):
    """The file is not a .safetensors, or lacks a tensor."""


@contextmanager
def errors() -> Iterator[None]:
    """Turns Damaged into the error of safetensors; errors of the system are not changed."""
    try:
        yield
    except _errors.Damaged as error:
        raise SafetensorError(str(error)) from error


class OpenFile:
    """An open file: names, and (type, shape) of each. source: a path, or bytes. handle: a descriptor of the path."""

    def __init__(self, source: Any, handle: int | None = None) -> None:
        is_bytes = isinstance(source, (bytes, bytearray))
        path, given = ("bytes", bytes(source)) if is_bytes else (os.fspath(source), handle)
        with errors():
            opened = _load.Source(os.fsdecode(path), "load", None, "auto", given, 0 if is_bytes else None)
        if opened.kind != "safetensors":
            raise SafetensorError(f"load: '{opened.path}' is not a .safetensors; penstock.load() reads it")
        self.path = opened.path
        self._file = opened.file
        self._rows = {row[0]: (item, row[1], list(row[2])) for item, row in enumerate(opened.rows)}

    def names(self) -> list[str]:
        return list(self._rows)

    def row(self, name: str) -> tuple[str, list[int]]:
        if name not in self._rows:
            lacking = _core._format.lacking(name, self.names())
            raise SafetensorError(f"load: '{self.path}' has {lacking}")
        return self._rows[name][1:]

    def read(self, names: list[str]) -> list[tuple[Any, int]]:
        """(memory, offset in it) of each."""
        parts = []
        for name in names:
            self.row(name)
            item, kind, shape = self._rows[name]
            parts.append((item, 0, bytes_of(kind, shape)))
        with errors():
            return list(self._file.read(parts, None))

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


def maker(framework: str) -> Callable[[OpenFile, list[str]], list[Any]]:
    """The function that makes tensors of a framework."""
    if framework not in _FRAMEWORKS:
        raise SafetensorError(f"framework {framework} is invalid: expected 'pt', 'np' or 'flax'")
    if _FRAMEWORKS[framework] == "torch":
        from penstock.safetensors.torch import tensors_of

        return tensors_of
    if _FRAMEWORKS[framework] == "flax":
        from penstock.safetensors.flax import tensors_of as arrays_of_jax

        return arrays_of_jax
    from penstock.safetensors.numpy import arrays_of

    return arrays_of


class safe_open(Generic[_Tensor]):  # noqa: N801 - the name that safetensors has
    """Opens a .safetensors, as safetensors.safe_open() does.

    framework: "pt", "np" or "flax". device: "cpu". Only get_tensor() and get_slice(name)[...] read data of
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
        self._make = maker(framework)
        _state.placing("safe_open", None, device)
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
        found: dict[str, str] | None = json.loads(self._header).get("__metadata__")
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

    def __getitem__(self, index: Index) -> _Tensor:
        whole = self._make(self._file, [self._name])[0]
        try:
            part = whole[index]
        except (IndexError, TypeError, ValueError) as error:
            raise SafetensorError(f"Error during slicing {index!r} of {self.get_shape()}: {error}") from error
        own: _Tensor = part.clone() if hasattr(part, "clone") else part.copy()
        return own
