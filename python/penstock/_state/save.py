# SPDX-License-Identifier: Apache-2.0
"""save(): a training state in one file.

A save leaves a complete, durable file under its name, or the old file untouched:

    1. the state becomes an image: every offset of the file is known, and its pickle and headers are made
    2. a temporary file is made next to the target, with space for all of it, and the mode that the target has or gets
    3. the engine writes it directly from the tensors; checksums are computed on other cores meanwhile; sync
    4. it is renamed to the target, and the folder is synced

The compiled part does all of that (docs/formats.md has the bytes). This module has the arguments and torch.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from penstock import _core
from penstock._base import arguments as _arguments, log as _log
from penstock._base.progress import Progress, reporter
from penstock._state import streamed as _streamed
from penstock._state.rows import INDEX, metadata_rows, safetensors_rows

if TYPE_CHECKING:
    from penstock._base.types import Changing, Path, Writable

_format = _core._format

_SHARD_BYTES = 5_000_000_000  # the default of Hugging Face's writers


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
    changing: Changing = "raise",
    like: Mapping[str, Any] | None = None,
    progress: Progress = False,
) -> None:
    """Saves a state to a file that stock `torch.load` (or `safetensors`) reads. When it returns, the file is complete
    and survives a power failure. When it raises, an existing file is unchanged.

    obj: tensors, parameters, numbers, strings, bytes, None, NumPy data, and dicts, lists, tuples, sets,
        OrderedDict, defaultdict, Counter of them (docs/formats.md, "The grammar"). For `.safetensors`: a dict of names
        and dense tensors. Or tensors that are not in memory together, which are saved one after another: an iterator
        of (name, tensor), a Checkpoint, or a mapping whose values have shape and dtype and are read by [...], or whose
        tensors are made when they are asked for (docs/checkpoint.md, "More than memory").
    f: a path. ".safetensors" at its end selects that format, ".safetensors.index.json" an index with its shards in the
        same folder, any other ending a `.pt` of torch. Any other ".json" is a ValueError, because load() would read it
        as an index. Or a binary file: a `.pt` is written to it, from its current position on; its durability is up to
        the caller.
    pickle_module, pickle_protocol, and the next two: accepted for compatibility with torch.save. Penstock makes the
        pickle, at protocol 2; another pickle_module, or the legacy form, is a ValueError.
    metadata: for `.safetensors` only: strings; the default is {"format": "pt"}.
    shard_bytes: for an index: the limit on the bytes of tensors in a shard. A larger tensor has its own shard.
    sync: False does not wait for the device. Other processes still see either the old file or the complete new one.
        After a power failure within moments of the call, the file may be damaged or missing. It has no effect for a
        binary file.
    default: a function that is called with each object that a `.pt` cannot hold (a Path, a dataclass, an Enum). Its
        result is saved, and loaded, in place of the object, as in json.dumps. Its exceptions end the call.
        default=penstock.Pickled pickles the objects, and load(pickle=True) makes them again.
    changing: what the save does if a tensor changes while it is written. "raise": penstock.Changed, with the name of
        the tensor, and nothing is saved. "torn": what is found is saved, maybe half old and half new, as torch.save
        does (for Hogwild). Its checksums are right.
    like: for tensors that are saved one after another: those that will come, as a mapping of names to objects with
        shape and dtype (a state_dict() on the meta device), in any order. One `.safetensors` needs it for an iterator,
        because its header is at its beginning; else it is a ValueError before anything is written. If it is given, a
        tensor that is missing, or is not as announced, is a ValueError.
    progress: True for a line on stderr, or a function that is called with (done, total) in bytes; total is 0 while it
        is not known.

    A symbolic link is followed; mode and owner of a file that exists are kept. When the call raises, a binary file has
    a part of the bytes. Ctrl-C leaves the old file. Raises TypeError with the place in the state ("state['opt'][3]")
    for an object that cannot be saved, and penstock.Error (an OSError) for errors of the system. A full disk is
    reported before the first byte, with the missing bytes. Safe to call from several threads."""
    if pickle_module is not None and getattr(pickle_module, "__name__", "") not in ("pickle", "_pickle"):
        raise ValueError(
            f"save: pickle_module: {_arguments.shown(pickle_module)} is not used: the pickle holds plain values only "
            "and is made by Penstock; leave it out, or use torch.save"
        )
    if pickle_protocol not in range(2, 6):
        raise ValueError(
            f"save: pickle_protocol: expected 2 to 5 (2 is what is written), got {_arguments.got(pickle_protocol)}"
        )
    if not _use_new_zipfile_serialization:
        raise ValueError("save: the legacy form (_use_new_zipfile_serialization=False) is read, not written")
    shard_bytes = _arguments.size("save", "shard_bytes", shard_bytes, 1)
    _arguments.default("save", default)
    if not isinstance(sync, bool):
        raise TypeError(f"save: sync: expected True or False, got {_arguments.got(sync)}")
    report = reporter(progress, "save")
    if _streamed.takes(obj, like):
        _streamed.save(obj, f, like, metadata, shard_bytes, report, sync, changing)
        return
    if not isinstance(f, (str, bytes, os.PathLike)) and callable(getattr(f, "write", None)):
        _save_to_file(obj, f, metadata, default, report, changing)
        return
    path = _arguments.path("save", f)
    if path.endswith(INDEX):
        rows = metadata_rows(metadata)
        _format.save_index(path, safetensors_rows(obj), rows, min(shard_bytes, 2**63), report, sync, changing)
        return
    path, image = _image_of(obj, path, metadata, default)
    with _log.timed(f"saved '{path}'", image.total_bytes):
        image.save(path, report, sync, changing)


def _image_of(obj: Any, f: str | os.PathLike[str], metadata: dict[str, str] | None, default: Any) -> tuple[str, Any]:
    """The path, absolute and without symbolic links, and the image of the file."""
    path = check_target(f, metadata)
    if os.fsdecode(f).endswith(".safetensors"):
        return path, _format.image_of_tensors(safetensors_rows(obj), metadata_rows(metadata))
    stem = os.path.basename(path).rsplit(".", 1)[0]
    return path, _format.image_of_state(obj, stem if stem.isidentifier() else "archive", default)


def check_target(f: str | os.PathLike[str], metadata: dict[str, str] | None) -> str:
    """That one file may be saved there. Gives the path as _image_of() does."""
    given = _arguments.path("save", f)
    if given.endswith("/"):
        raise ValueError(f"save: '{given}': it ends as a folder does; give the path of a file, '{given.rstrip('/')}'")
    path = os.path.realpath(given)
    if given.endswith(".safetensors"):
        metadata_rows(metadata)
        return path
    if given.endswith(".json"):
        raise ValueError(
            f"save: '{given}': load() takes what ends in .json for an index of shards; end it in {INDEX} for "
            "that, in .safetensors for one file of tensors, or in .pt"
        )
    if metadata is not None:
        raise ValueError("save: metadata: a .pt has none; put it into the state, or save to a .safetensors")
    return path


def _save_to_file(obj: Any, f: Any, metadata: dict[str, str] | None, default: Any, report: Any, changing: str) -> None:
    if isinstance(f, io.TextIOBase):
        raise TypeError("save: f: this is a text file; open it with 'wb'")
    if metadata is not None:
        raise ValueError("save: metadata: a .pt has none; put it into the state, or save to the path of a .safetensors")
    image = _format.image_of_state(obj, "archive", default)

    def write(piece: memoryview) -> None:
        rest = memoryview(piece)
        while rest:
            done = f.write(rest)
            # Only raw files may take a part of the bytes; other writers may return anything.
            if not isinstance(f, io.RawIOBase):
                return
            if not done:
                raise BlockingIOError(
                    f"save: f: write() gave {done}; use a file that blocks, or save to an io.BytesIO and write that"
                )
            rest = rest[done:]

    image.write_to(write, report, changing)
