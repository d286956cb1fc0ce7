# SPDX-License-Identifier: Apache-2.0
"""PyTorch Lightning on Penstock: plugins that write and read the checkpoints of a Trainer.

    from penstock.lightning import CheckpointIO

    trainer = lightning.Trainer(plugins=[CheckpointIO()])

A checkpoint is one .ckpt file, which torch.load reads too. This module imports lightning, or pytorch_lightning where
that is imported already or is the only one of the two; nothing else of Penstock does."""

from __future__ import annotations

import importlib
import os
import shutil
import sys
from collections.abc import Callable
from typing import Any

import penstock
from penstock import _arguments, _state

__all__ = ["AsyncCheckpointIO", "CheckpointIO"]


def _base() -> Any:
    """The class whose children the Trainer takes: each of the two packages has its own."""
    names = ["pytorch_lightning", "lightning.pytorch"]
    for name in names if "pytorch_lightning" in sys.modules else reversed(names):
        try:
            return importlib.import_module(f"{name}.plugins.io").CheckpointIO
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] != name.partition(".")[0]:
                raise
    raise ImportError("penstock.lightning: PyTorch Lightning is not installed: pip install lightning")


class CheckpointIO(_base()):  # type: ignore[misc]
    """Writes each checkpoint as penstock.save() does: it is durable, and has checksums, when the call returns.

    default: as for penstock.save(): called with each object that a checkpoint cannot hold, such as an object in the
    hyperparameters; returns what is saved instead. Folders that are missing are made. Thread-safe."""

    @_arguments.named
    def __init__(self, *, default: Callable[[Any], Any] | None = None) -> None:
        super().__init__()
        _state.check_default("CheckpointIO", default)
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
        """Removes a file, or the folder of a checkpoint that another plugin wrote. One that is missing is no error."""
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        elif os.path.lexists(path):
            os.remove(path)


class AsyncCheckpointIO(CheckpointIO):
    """The same, written while training continues, as by penstock.save_async(). A checkpoint is in its place when the
    next call of any plugin of this class returns, or teardown(): docs/lightning.md has what that means for a Trainer.
    """

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
