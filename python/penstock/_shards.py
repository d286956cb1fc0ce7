# SPDX-License-Identifier: Apache-2.0
"""An index of shards: finding its files, and having them of one save (src/state/index_writer.hpp writes it).

The names of the shards of one save are free after the next one, and the save after that may take them: a name alone
does not say of which save a file is. But while an index is there its shards are, and nobody else has their names; so
who has opened all of them looks whether it is the same index still. That one is held open meanwhile, so nobody else
gets its inode.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterable
from typing import TypeVar

from penstock import _core, _errors
from penstock._errors import Damaged

_format = _core._format

INDEX = ".safetensors.index.json"
_TRIES = 20  # to open all shards between two saves: moments

_T = TypeVar("_T")


def folder_of(path: str, names: Iterable[str]) -> str:
    """The folder of an index's shards: that of the index, or of a symbolic link's target. names: for each tensor."""
    names = set(names)
    beside, there = os.path.dirname(path), os.path.dirname(os.path.realpath(path))
    if all(os.path.exists(os.path.join(beside, name)) for name in names):
        return beside
    return there if any(os.path.exists(os.path.join(there, name)) for name in names) else beside


# ---- of one save


def of_one_save(path: str, verb: str, read: Callable[[str, dict[str, str], str], _T], tries: int = _TRIES) -> _T:
    """read(path, the shard of each tensor, their folder), again where the index was replaced before that was over: so
    all files that it opened are of one save."""
    for _ in range(tries):
        with _errors.opened(path, verb) as index:
            before = os.fstat(index.fileno())
            weight_map = dict(_format.parse_shard_index(index.read(), path))
            try:
                found = read(path, weight_map, folder_of(path, weight_map.values()))
            except (FileNotFoundError, Damaged):
                if _is_still(path, before):
                    raise
                continue
            if _is_still(path, before):
                return found
    raise Damaged(
        f"{verb}: '{path}': it was saved again each of the {tries} times that its shards were read; {verb} it again "
        "when that is over, or save to an index of another name each time",
        path=path,
    )


def _is_still(path: str, before: os.stat_result) -> bool:
    try:
        now = os.stat(path)
    except OSError:
        return False
    same = ("st_dev", "st_ino", "st_size", "st_mtime_ns")
    return all(getattr(now, name) == getattr(before, name) for name in same)


def can_hold(count: int) -> bool:
    """Whether so many files can be open at once, with as many for the engine, for mappings, and for others."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        return count * 4 <= soft - len(os.listdir("/proc/self/fd"))
    except OSError:
        return False
