# SPDX-License-Identifier: Apache-2.0
"""PyTorch Lightning on Penstock: plugins that write and read the checkpoints of a Trainer.

    from penstock.lightning import CheckpointIO

    trainer = lightning.Trainer(plugins=[CheckpointIO()])

A checkpoint is one .ckpt file, which torch.load reads too. The Trainer is of lightning or of pytorch_lightning: import
it first where both are installed. Nothing else of Penstock imports them."""

from __future__ import annotations

import importlib
import os
import shutil
import sys
from collections.abc import Callable
from typing import Any

import penstock
from penstock._base import arguments as _arguments, log as _log

__all__ = ["AsyncCheckpointIO", "CheckpointIO"]


def _bases() -> list[Any]:
    """The classes whose children a Trainer takes. The two packages have one each: those of the packages that are
    imported, or of the first that is installed."""
    names = ["lightning.pytorch", "pytorch_lightning"]
    imported = [name for name in names if name.partition(".")[0] in sys.modules]
    found = []
    for name in imported or names:
        if found and not imported:
            break
        try:
            found.append(importlib.import_module(f"{name}.plugins.io").CheckpointIO)
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] != name.partition(".")[0]:
                raise
    if not found:
        raise ImportError("penstock.lightning: PyTorch Lightning is not installed: pip install lightning")
    return found


class CheckpointIO(*_bases()):  # type: ignore[misc]
    """Writes each checkpoint as penstock.save() does: it is durable, and has checksums, when the call returns.

    default: as for penstock.save(): called with each object that a checkpoint cannot hold, such as an object in the
    hyperparameters; returns what is saved instead. Folders that are missing are made. Thread-safe."""

    @_arguments.named
    def __init__(self, *, default: Callable[[Any], Any] | None = None) -> None:
        super().__init__()
        _arguments.default("CheckpointIO", default)
        self._default = default

    def save_checkpoint(self, checkpoint: Any, path: Any, storage_options: Any = None) -> None:
        """storage_options: None; TypeError for anything else, as of Lightning's own plugin. Raises as penstock.save().
        An existing file stays as it is until the new one is whole."""
        penstock.save(checkpoint, self._prepared(path, storage_options), default=self._default)

    def _prepared(self, path: Any, storage_options: Any) -> Any:
        if storage_options is not None:
            raise TypeError(
                f"save_checkpoint: storage_options: {type(self).__name__} has none, got "
                f"{_arguments.got(storage_options)}; give trainer.save_checkpoint() the path alone"
            )
        if "://" in os.fspath(path):
            raise ValueError(
                f"save_checkpoint: '{path}' is not a path on this machine; give one, and copy the file there"
            )
        os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
        return path

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: bool | None = None) -> Any:
        """The checkpoint; its tensors are on the CPU if map_location is None. weights_only: False for a file that is
        trusted: torch.load() makes objects of any class then. Otherwise raises as penstock.load(), which runs nothing
        of a file."""
        if weights_only is False:
            import torch

            return torch.load(path, "cpu" if map_location is None else map_location, weights_only=False)
        return penstock.load(path, "cpu" if map_location is None else map_location)

    def remove_checkpoint(self, path: Any) -> None:
        """Removes a file, or the folder of a checkpoint that another plugin wrote. One that is missing is no error. One
        that cannot be removed stops no training: a RuntimeWarning names it."""
        try:
            if os.path.isdir(path) and not os.path.islink(path):
                shutil.rmtree(path)
            elif os.path.lexists(path):
                os.remove(path)
        except OSError as error:
            _log.warn(f"checkpoint '{path}' could not be removed: {error}; delete it yourself")


class AsyncCheckpointIO(CheckpointIO):
    """The same, written while training continues, as by penstock.save_async(). A checkpoint is in its place when the
    next call of any plugin of this class returns, or teardown(): docs/lightning.md has what that means for a Trainer.
    Not thread-safe."""

    _pending: penstock.PendingSave[None] | None = None  # of the class: one save is in progress at most

    def save_checkpoint(self, checkpoint: Any, path: Any, storage_options: Any = None) -> None:
        """Returns when training may change the tensors again. Raises what the save before failed with; then this one
        has not begun."""
        self.teardown()
        path = self._prepared(path, storage_options)
        AsyncCheckpointIO._pending = penstock.save_async(checkpoint, path, default=self._default)

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: bool | None = None) -> Any:
        self.teardown()
        return super().load_checkpoint(path, map_location, weights_only)

    def remove_checkpoint(self, path: Any) -> None:
        self.teardown()
        super().remove_checkpoint(path)

    def teardown(self) -> None:
        """Waits for the save in progress. Raises what it failed with."""
        pending, AsyncCheckpointIO._pending = AsyncCheckpointIO._pending, None
        if pending is not None:
            pending.result()
