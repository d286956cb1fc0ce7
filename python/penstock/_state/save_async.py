# SPDX-License-Identifier: Apache-2.0
"""save_async() of single files.

queued  ->  staged  ->  durable        the states of a PendingSave; the compiled part does the work
   |           tensors may change
   +-- not waited for if a copy was made
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from penstock import _core
from penstock._base import arguments as _arguments, children as _children, log as _log
from penstock._base.progress import Progress, reporter
from penstock._state import save as _save, streamed as _streamed
from penstock._state.rows import INDEX

if TYPE_CHECKING:
    from penstock._base.types import Changing

_files: Any = None


def _file_saver() -> Any:
    global _files
    if _files is None:
        _files = _core._async.FileSaver(_core._async.default_host_memory())
    return _files


@_arguments.named
def save_async(
    obj: Any,
    f: str | os.PathLike[str],
    *,
    metadata: dict[str, str] | None = None,
    copy: bool = True,
    default: Callable[[Any], Any] | None = None,
    changing: Changing = "raise",
    progress: Progress = False,
) -> _core.PendingSave[None]:
    """Saves a state to a file as save() does, and returns when training may change its tensors again: a copy of them is
    made on all cores, and written in the background. Several saves may be in flight; they run in order.

    obj, f, metadata, default, changing: as for save(); f is the path of one file, not of an index of shards. An
        iterator of (name, tensor) is read to its end by the call, which copies each tensor before it asks for the
        next one; nothing is written before. Its copies must fit into the memory for copies, else it is a MemoryError
        with the name of the tensor: penstock.save() of an iterator holds one tensor at a time. Lazy mappings and a
        Checkpoint are for save() alone.
    copy: False: no copy is made, and the caller must not change the tensors until
        `pending.wait_before_update()` returns.
    progress: True, or a function that is called with (done, total) in bytes, while a caller waits for the save.

    Copies take at most half of the memory that this process may use. If saves in flight hold all of it, the call waits
    for one. If one state needs more, the call waits for its own save. Both give a RuntimeWarning.

    Raises as save() for a state that cannot be saved. Raises the error of an earlier save_async() that was not reported
    yet; then this save has not begun. `result()` raises later errors. Safe to call from several threads."""
    if _arguments.path("save_async", f).endswith(INDEX):
        raise ValueError(
            f"save_async: '{os.fsdecode(f)}': an index of shards is written by save() alone; give the path of one file "
            "(.safetensors, .pt), or use CheckpointStore.save_async, whose checkpoints have an index"
        )
    _arguments.default("save_async", default)
    _save.check_target(f, metadata)
    report = reporter(progress, "save")
    _children.watch()
    obj = _streamed.collected("save_async", obj, _file_saver(), os.fsdecode(f), copy, changing)
    path, image = _save._image_of(obj, f, metadata, default)
    pending = _file_saver().save(image, path, copy, report, changing)
    _log.watch(pending, f"'{path}'")
    return pending
