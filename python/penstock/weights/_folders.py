# SPDX-License-Identifier: Apache-2.0
"""The location of the files of a model: one folder, or several on several devices."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import penstock
from penstock import _core, _errors, _state
from penstock._arguments import got, local_path

_HUB_NAME = re.compile(r"[\w.-]*\w[\w.-]*/[\w.-]*\w[\w.-]*")
_SAMPLES, _SAMPLE_BYTES = 8, 4096  # of each copy of a file


def paths_of(folder: Any, verb: str) -> list[Path]:
    """The given folders, or the one file."""
    paths = [_path(one, verb) for one in (folder if isinstance(folder, (list, tuple)) else [folder])]
    if not paths:
        raise ValueError(f"{verb}: folder: got an empty list; expected a folder, or one for each device")
    return paths


def component(folder: Path, always: bool = False) -> Path:
    """Of the folder of a pipeline of diffusers, the folder of its largest model. Another folder as it is. One that has
    weights of its own is divided only `always`."""
    return Path(_core.model_folder(folder, always))


def _path(one: Any, verb: str) -> Path:
    if not isinstance(one, (str, bytes, os.PathLike)):
        raise TypeError(f"{verb}: folder: expected a path, or a list of paths, got {got(one)}")
    text = os.fsdecode(one)
    if not text:
        raise ValueError(f"{verb}: folder: expected the path of a folder or a file, got ''")
    path = Path(local_path(verb, text))
    if path.exists():
        return path
    if _HUB_NAME.fullmatch(text):
        return _cached(text, verb)
    raise _missing(verb, text, f"folder: there is no file or folder '{text}'; check the path")


def _missing(verb: str, path: str, what: str) -> BaseException:
    return _errors.from_core(_errors._SYSTEM, f"{verb}: {what}", errno.ENOENT, verb, path, None)


def _cached(name: str, verb: str) -> Path:
    """The folder of a model "organization/name" in the local cache of Hugging Face. Nothing is downloaded."""
    if found := _core.find_hub_model(name):
        return Path(found)
    cache = f"'{_core.hub_cache_folder()}'"
    what = f"no file or folder '{name}', and no model of that name in the local cache of Hugging Face ({cache})"
    raise _missing(verb, name, f"folder: there is {what}; check the path, or get the model: `hf download {name}`")


def weights_in(folder: Path) -> Path:
    """The file with the names of all weights of a folder: its index, or its only file of tensors."""
    return folder / _core.model_file(folder) if folder.is_dir() else folder


@contextlib.contextmanager
def shards_named(verb: str) -> Iterator[None]:
    """Says which tensors a missing shard has."""
    try:
        yield
    except FileNotFoundError as error:
        shard = Path(str(error.filename))
        inside = _names_of(shard)
        if not inside:
            raise
        names = f"'{inside[0]}'" + (f" and {len(inside) - 1} more tensors" if len(inside) > 1 else "")
        what = f"the shard '{shard}' is missing; by the index it has {names}: download or copy it again"
        raise _missing(verb, str(shard), what) from None


def _names_of(shard: Path) -> list[str]:
    """The names of the tensors of a shard, by the indexes next to it."""
    out = []
    for index in sorted(shard.parent.glob("*.index.json")):
        with contextlib.suppress(OSError, ValueError, LookupError, AttributeError, TypeError):
            found = json.loads(index.read_text())["weight_map"].items()
            out += [name for name, file in found if file == shard.name]
    return out


class Folders:
    """The files of a model: its tensors by name, and their content."""

    def __init__(self, paths: list[Path], verb: str = "stream") -> None:
        self.paths = [str(path) for path in paths]
        with shards_named(verb):
            rows = _core.weight_tensors(self.paths)
        self.infos = {
            name: _state.TensorInfo(name, _state._TORCH.get(kind, kind), tuple(shape), *place)
            for name, kind, shape, *place in rows
        }
        self._versions = {path: _version(path) for path in {info.path for info in self.infos.values()}}

    def check(self, paths: Iterable[str] | None = None) -> None:
        """Raises Damaged if one of the files (default: any) is no longer the one whose weights are streamed."""
        for path in self._versions if paths is None else paths:
            if self._versions[path] != (now := _version(path)):
                what = "was changed, replaced or moved" if now else "was removed"
                raise penstock.Damaged(
                    f"stream: '{path}' {what} since stream(): its weights are not those that are in memory; put the "
                    "file back as it was, or stream another model from it",
                    operation="stream",
                    path=path,
                )

    def compare_copies(self) -> None:
        """Refuses copies of a file in several folders if sampled blocks differ. Sizes and headers are the same."""
        for path in dict.fromkeys(info.path for info in self.infos.values()):
            home = next((folder for folder in self.paths if Path(path).is_relative_to(folder)), path)
            others = (os.path.join(folder, os.path.relpath(path, home)) for folder in self.paths if folder != home)
            for copy in filter(os.path.exists, others):
                for (at, block), (_, other) in zip(_blocks(path), _blocks(copy), strict=False):
                    if block != other:
                        raise ValueError(
                            f"stream: folder: '{copy}' differs from its copy '{path}' in the {len(block)} bytes from "
                            f"{at} on; give copies of the same file"
                        )

    def __str__(self) -> str:
        return ", ".join(self.paths)

    def load(self, keys: list[str]) -> dict[str, Any]:
        """The tensors of these names, in their own memory."""
        by_file: dict[str, list[str]] = {}
        for key in dict.fromkeys(keys):
            by_file.setdefault(self.infos[key].path, []).append(key)
        self.check(by_file)  # what is replaced may have other names
        loaded = {
            name: tensor for path, names in by_file.items() for name, tensor in penstock.load(path, names=names).items()
        }
        self.check(by_file)
        return loaded


def _version(path: str) -> tuple[int, ...]:
    """What differs between two files, and between two states of a file. Empty without a file."""
    try:
        now = os.stat(path)
    except FileNotFoundError:
        return ()
    return now.st_dev, now.st_ino, now.st_size, now.st_mtime_ns


def _blocks(path: str) -> Iterator[tuple[int, bytes]]:
    """(offset, bytes) of the sampled blocks of a file, of which the last is its end."""
    end = max(0, os.path.getsize(path) - _SAMPLE_BYTES)
    with _errors.opened(path, "stream") as file:
        for number in range(_SAMPLES):
            at = file.seek(end * number // (_SAMPLES - 1))
            yield at, file.read(_SAMPLE_BYTES)
