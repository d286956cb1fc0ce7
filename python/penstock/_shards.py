# SPDX-License-Identifier: Apache-2.0
"""An index of shards: saving one, finding its files, and having them of one save.

    1. what dead saves of the same index left goes
    2. a record: a locked temporary file of the index (as every file that is replaced has), with the names of the shards
       that are going to be written, synced. It stays until the save is over
    3. the shards, under names that nobody has, each whole and durable
    4. the index, which makes them the state in one step; the shards of the one before it go

Locks of dead processes are gone, so the next save of the same index removes their records, and what these name. The
steps 1 and 2, and 4, are done by one save at a time (a lock of the folder, for moments only).

The names of the old shards are free then, and the save after that may take them: a name alone does not say of which
save a file is. But while an index is there its shards are, and nobody else has their names; so who has opened all of
them looks whether it is the same index still. That one is held open meanwhile, so nobody else gets its inode.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import resource
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from penstock import _core, _errors
from penstock._errors import Damaged, from_core

_format = _core._format

INDEX = ".safetensors.index.json"
_RECORD_NAME_BYTES = 200  # of the name of the index in that of a record, as in src/state/replace.cpp
_HALF_WRITTEN = re.compile(r"\.(.*)\.[0-9a-f]{16}\.tmp", re.DOTALL)  # a file before it has its name
_ALONE_WAIT_S = 5.0
_TRIES = 20  # to open all shards between two saves: moments

_T = TypeVar("_T")


def save_shards(path: str, rows: list[Any], metadata: list[tuple[str, str]], shard_bytes: int, report: Any) -> None:
    """rows: as image_of_tensors() takes them."""
    if os.path.basename(path) != os.fsencode(os.path.basename(path)).decode("utf-8", "replace"):
        raise ValueError(
            f"save: '{path}': an index names its shards after itself, in JSON, which is UTF-8; give it a name of UTF-8"
        )
    shards: list[list[Any]] = [[]]
    sizes = [0]
    for row in rows:
        size = row[4].nbytes
        if shards[-1] and sizes[-1] + size > shard_bytes:
            shards.append([])
            sizes.append(0)
        shards[-1].append(row)
        sizes[-1] += size
    images = [_format.image_of_tensors(own, metadata) for own in shards]
    beside, path = os.path.dirname(os.path.abspath(path)), os.path.realpath(path)
    folder = os.path.dirname(path)
    names: list[str] = []
    record: Any = None
    try:
        with _alone_in(folder) as alone:
            left = _records(path)
            record = _format.Replacement(path)  # takes away those of the dead
            kept = _records(path)
            _remove(folder, {shard for file, own in left.items() if file not in kept for shard in own})
            names = _names(path, {folder, beside}, len(images), {n for own in kept.values() for n in own}, alone)
            _note(record, names)
        _refuse_full(path, sum(image.total_bytes for image in images))
        for i, image in enumerate(images):
            before, total = sum(sizes[:i]), sum(sizes)
            part = None if report is None else lambda done, _, before=before, total=total: report(before + done, total)
            image.save(os.path.join(folder, names[i]), part)
        weight_map = {row[0]: names[i] for i, own in enumerate(shards) for row in own}
        index = {"metadata": {"total_size": sum(sizes)}, "weight_map": weight_map}
        with _alone_in(folder):
            old = shards_of(path)
            _note(record, [*names, *sorted(old)])
            _write_whole(path, json.dumps(index, indent=2).encode() + b"\n")
            _remove(folder, old - set(names))
    except BaseException:
        # The index may be there already, where the sync of its folder failed: then they are its.
        _remove(folder, set(names))
        raise
    finally:
        if record is not None:
            record.give_up()


def shards_of(path: str) -> set[str]:
    """The files that an index names; none where there is no index."""
    try:
        with open(path, "rb") as file:
            return {name for _, name in _format.parse_shard_index(file.read())}
    except (OSError, ValueError):
        return set()


def folder_of(path: str, names: Iterable[str]) -> str:
    """Where the shards of an index lie: beside it, or beside what it is a symbolic link to. names: for each tensor."""
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
        f"{verb}: '{path}': it was saved anew each of the {tries} times that its shards were read; {verb} it again "
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


# ---- names, and what has none any more


def _own_names(path: str) -> re.Pattern[str]:
    stem = os.path.basename(path).removesuffix(INDEX)
    return re.compile(re.escape(stem) + r"(\.[0-9a-f]{8})?-\d{5,}-of-\d{5,}\.safetensors")


def _names(path: str, folders: set[str], count: int, taken: set[str], alone: bool) -> list[str]:
    """Under which nothing is, in the folder of the index and in that of a link to it."""
    stem = own = os.path.basename(path).removesuffix(INDEX)
    while True:
        names = [f"{own}-{i + 1:05d}-of-{count:05d}.safetensors" for i in range(count)]
        there = (os.path.lexists(os.path.join(folder, name)) for folder in folders for name in names)
        if (alone or own != stem) and taken.isdisjoint(names) and not any(there):
            return names
        own = f"{stem}.{secrets.token_hex(4)}"


def _records(path: str) -> dict[str, set[str]]:
    """The temporary files of the index, and the shards of its own that they name."""
    folder, name = os.path.split(path)
    prefix = os.fsencode(name)[:_RECORD_NAME_BYTES]
    record = re.compile(rb"\." + re.escape(prefix) + rb"\.[0-9a-f]{16}\.tmp")
    own = _own_names(path)
    try:
        files = [os.fsdecode(file) for file in os.listdir(os.fsencode(folder)) if record.fullmatch(file)]
    except OSError:  # the save says what is wrong with it
        return {}
    return {file: {n for n in shards_of(os.path.join(folder, file)) if own.fullmatch(n)} for file in files}


def _note(record: Any, names: list[str]) -> None:
    # Longer than what it had before, if it had something: nothing is left of that.
    text = json.dumps({"weight_map": {str(i): name for i, name in enumerate(names)}})
    _core.write(record.temporary, text.encode(), sync=True)


def _remove(folder: str, shards: set[str]) -> None:
    """But for those that an index names, and for what is called like no shard: an index is a file that others write.
    Files and links that lie in this very folder; what a link leads to stays."""
    shards = {shard for shard in shards if shard.endswith(".safetensors")}
    if not shards:
        return
    try:
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return
    try:
        files = os.listdir(opened)
        for file in files:
            if file.endswith(".index.json"):
                shards = shards - shards_of(os.path.join(folder, file))
        for file in files:
            half = _HALF_WRITTEN.fullmatch(file)
            if file in shards or (half and half[1] in shards):
                with contextlib.suppress(OSError):
                    os.unlink(file, dir_fd=opened)
    except OSError:
        return
    finally:
        os.close(opened)


@contextlib.contextmanager
def _alone_in(folder: str) -> Iterator[bool]:
    """Whether nobody else saves an index here is at this point too. False: there are no locks, or one is held for long
    by somebody with other business; the save goes on."""
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:  # the save says what is wrong with it
        yield False
        return
    try:
        yield _locked(fd)
    finally:
        os.close(fd)


def _locked(fd: int) -> bool:
    deadline = time.monotonic() + _ALONE_WAIT_S
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.005)
        except OSError:
            return False


def _refuse_full(path: str, need: int) -> None:
    """Before the first of several files is written; each makes room for itself too."""
    room = os.statvfs(os.path.dirname(path))
    free = room.f_bavail * room.f_frsize
    if need > free:
        raise from_core(
            2,
            f"save '{path}': {os.strerror(errno.ENOSPC)}: the shards need {need} bytes and {free} are free: "
            f"{need - free} bytes are missing; nothing was written. Free room, or save elsewhere",
            errno.ENOSPC, "preallocate", path, None,
        )  # fmt: skip


def _write_whole(path: str, data: bytes) -> None:
    replacement = _format.Replacement(path)
    try:
        _core.write(replacement.temporary, data)
        replacement.commit()
    finally:
        replacement.give_up()
