# SPDX-License-Identifier: Apache-2.0
"""update(): new values of tensors in a saved file. The compiled part (src/state/update) does it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from penstock import _core
from penstock._base import arguments as _arguments
from penstock._base.progress import Progress, reporter
from penstock._state.rows import ALL, F4, SAFETENSORS, array_row, torch_row

if TYPE_CHECKING:
    from penstock._base.types import Path


@_arguments.named
def update(f: Path, tensors: Mapping[str, Any], *, progress: Progress = False) -> None:
    """Writes new values of tensors into a saved file, in place, with the checksums that cover them. The rest of the
    file is not written. After a crash at any point Penstock reads all of the old tensors or all of the new ones.

    f: the path of a `.pt`, a `.safetensors` or an index of shards, of any writer. Of an index all shards change
        together. A symbolic link is followed.
    tensors: by the names that inspect() gives, of the type and shape that they have in the file. {} finishes an update
        that a crash interrupted, and does nothing else.
    progress: as for save(), while the tensors go to the log.

    The new bytes first go, durably, to a log next to the file (FILE.penstock-update), which is removed at the end.
    docs/checkpoint.md ("One tensor in place") says what other programs may meet after a crash, and what a mapped or
    streamed model sees. When the call raises, nothing has changed, unless the message says that the log is complete.

    Raises KeyError for an unknown name. ValueError for another type or shape, a tensor that shares its memory with
    others, a file with several hard links or of a CheckpointStore, and for a log that does not fit the file, which is
    left. Unsupported for a tensor that is a part of its storage. Changed for a file that another program writes to or
    replaces meanwhile, which stays. penstock.Error (an OSError) for a read-only file, a full disk, a name too long for
    a log, or another update that is under way. One process at a time updates a file."""
    if not isinstance(tensors, Mapping):
        raise TypeError(f"update: tensors: expected a mapping of names to tensors, got {_arguments.got(tensors)}")
    rows, torch = [], sys.modules.get("torch")
    for name, tensor in tensors.items():
        is_torch = torch is not None and isinstance(tensor, torch.Tensor)
        if not isinstance(name, str) or not (is_torch or hasattr(tensor, "__dlpack__")):
            raise TypeError(
                f"update: tensors[{_arguments.shown(name)}]: expected a name and a tensor, got {type(tensor).__name__}"
            )
        is_known = str(getattr(tensor, "dtype", "")).removeprefix("torch.") in (*SAFETENSORS, F4)
        types = SAFETENSORS if is_known else ALL
        row = torch_row(name, tensor, types, "update") if is_torch else array_row(name, tensor, "update")
        rows.append(row[0])
    _core._format.update(_arguments.path("update", f), rows, reporter(progress, "update"))
