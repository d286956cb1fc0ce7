# SPDX-License-Identifier: Apache-2.0
"""A .safetensors: its names, and the bytes of its tensors. Frameworks make tensors of them."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from typing import Any

from penstock import _core
from penstock._base import errors as _errors
from penstock._state import load as _load
from penstock._state.rows import TORCH


class SafetensorError(Exception):
    """The file is not a .safetensors, or lacks a tensor."""


class OpenFile:
    """An open file: names, and (type, shape) of each. source: a path, or bytes. handle: a descriptor of the path."""

    def __init__(self, source: Any, handle: int | None = None) -> None:
        self.is_cut = False
        is_bytes = isinstance(source, (bytes, bytearray))
        path, given = ("bytes", bytes(source)) if is_bytes else (os.fspath(source), handle)
        try:
            self._file = _load.open_file(
                os.fsdecode(path), "load", None, "auto", "keep", given, 0 if is_bytes else None
            )
        except (_errors.Damaged, _errors.Unsupported) as error:  # errors of the system are not changed
            raise SafetensorError(str(error)) from error
        self.path = self._file.path
        if self._file.kind != "safetensors":
            raise SafetensorError(f"load: '{self.path}' is not a .safetensors; penstock.load() reads it")
        # (item, its first byte that is read, type, shape)
        self._rows = {row[0]: (item, 0, row[1], list(row[2])) for item, row in enumerate(self._file.tensors())}

    def names(self) -> list[str]:
        return list(self._rows)

    def row(self, name: str) -> tuple[str, list[int]]:
        if name not in self._rows:
            lacking = _core._format.lacking(name, self.names())
            raise SafetensorError(f"load: '{self.path}' has {lacking}")
        return self._rows[name][2:]

    def read(self, names: list[str], tensors: list[Any] | None = None) -> list[tuple[Any, int]]:
        """(memory, offset in it) of each; or to tensors on a GPU, which have all of theirs."""
        wanted: list[Any] = []
        for i, name in enumerate(names):
            kind, shape = self.row(name)
            item, begin, *_ = self._rows[name]
            wanted.append((item, begin, bytes_of(kind, shape)) if tensors is None else (item, tensors[i]))
        try:
            return [part[:2] for part in self._file.read(wanted) if part]
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
        made.is_cut = True
        made._rows = {name: (item, begin * row_bytes, kind, [end - begin, *shape[1:]])}
        return made

    def metadata(self) -> dict[str, str] | None:
        found: dict[str, str] | None = self._file.metadata()
        return found

    def close(self) -> None:
        self._file = None


def all_of(source: Any, make: Callable[[OpenFile, list[str]], list[Any]]) -> dict[str, Any]:
    """All tensors of a path, or of bytes. make: tensors_of() of a framework."""
    file = OpenFile(source)
    names = file.names()
    return dict(zip(names, make(file, names), strict=True))


bytes_of = _core._format.tensor_bytes  # of a type and a shape


def type_named(kind: str, path: str, name: str) -> str:
    """The name of the type in torch and NumPy."""
    if kind not in TORCH:
        raise SafetensorError(f"load: '{path}': tensor {name!r} is of the type {kind}, which is not read")
    return TORCH[kind]
