# SPDX-License-Identifier: Apache-2.0
"""The location of the files of a model: one folder, or several on several devices."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import penstock
from penstock import _core, _state
from penstock._arguments import got, local_path


def paths_of(folder: Any, verb: str) -> list[Path]:
    """The given folders, or the one file."""
    paths = [_path(one, verb) for one in (folder if isinstance(folder, (list, tuple)) else [folder])]
    if not paths:
        raise ValueError(f"{verb}: folder: got an empty list; expected a folder, or one for each device")
    return paths


def _path(one: Any, verb: str) -> Path:
    if not isinstance(one, (str, bytes, os.PathLike)):
        raise TypeError(f"{verb}: folder: expected a path, or a list of paths, got {got(one)}")
    text = os.fsdecode(one)
    if not text:
        raise ValueError(f"{verb}: folder: expected the path of a folder or a file, got ''")
    return Path(local_path(verb, text))


class Folders:
    """The files of a model: its tensors by name, and their content."""

    def __init__(self, paths: list[Path]) -> None:
        self.paths = [str(path) for path in paths]
        rows = _core.weight_tensors(self.paths)
        self.infos = {
            name: _state.TensorInfo(name, _state._TORCH.get(kind, kind), tuple(shape), *place)
            for name, kind, shape, *place in rows
        }

    def __str__(self) -> str:
        return ", ".join(self.paths)

    def load(self, keys: list[str]) -> dict[str, Any]:
        """The tensors of these names, in their own memory."""
        by_file: dict[str, list[str]] = {}
        for key in dict.fromkeys(keys):
            by_file.setdefault(self.infos[key].path, []).append(key)
        return {
            name: tensor for path, names in by_file.items() for name, tensor in penstock.load(path, names=names).items()
        }
