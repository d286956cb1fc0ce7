# SPDX-License-Identifier: Apache-2.0
"""Writes a .safetensors with the same content as the package safetensors: no checksums, only the caller's metadata."""

from __future__ import annotations

import os
from typing import Any

from penstock import _core
from penstock._base import arguments as _arguments


def _image(rows: list[Any], metadata: dict[str, str] | None) -> Any:
    pairs = _arguments.strings("save_file", "metadata", metadata)
    return _core._format.image_of_tensors(rows, pairs, False)


def to_file(rows: list[Any], filename: str | os.PathLike[str], metadata: dict[str, str] | None) -> None:
    _image(rows, metadata).save(os.path.realpath(os.fsdecode(filename)))


def to_bytes(rows: list[Any], metadata: dict[str, str] | None) -> bytes:
    out = bytearray()
    _image(rows, metadata).write_to(out.extend)
    return bytes(out)
