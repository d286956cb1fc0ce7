# SPDX-License-Identifier: Apache-2.0
"""Penstock moves tensors between storage and memory at the speed of the device.

    import penstock, torch

    tensor = torch.empty(1 << 20, dtype=torch.bfloat16)
    penstock.write("weights.bin", tensor)          # any tensor, any offset; blocks
    transfer = penstock.read_async("weights.bin", tensor)
    transfer.result()                              # or: await transfer

docs/python.md has all of it.
"""

import atexit as _atexit
import os as _os

from penstock import _core
from penstock._base import futures as _futures
from penstock._base.errors import Cancelled, Changed, Damaged, EndOfFile, Error, Unsupported, WouldBlock
from penstock._core import (
    Buffer,
    CheckpointInfo,
    CuFileReport,
    DepthLimit,
    DeviceDescription,
    Engine,
    EngineDescription,
    EngineOptions,
    EngineStats,
    File,
    FileInfo,
    Future,
    Gpu,
    GpuDescription,
    GpuReport,
    LatencyStats,
    PendingSave,
    RowTable,
    Transfer,
    Unread,
    as_bytes,
    cufile_conditions,
    default_engine,
    empty,
    evict,
    gpus,
    prefetch,
    read,
    read_async,
    read_rows,
    read_rows_async,
    write,
    write_async,
)
from penstock._state.file_writer import FileWriter
from penstock._state.load_call import TensorInfo, inspect, load
from penstock._state.load_into import IncompatibleKeys, load_into
from penstock._state.npy import read_npy
from penstock._state.per_rank import PerRank
from penstock._state.pickled import Pickled
from penstock._state.save import save
from penstock._state.save_async import save_async
from penstock._state.slices import FlatSlice, Slice
from penstock._state.update import update
from penstock._store.checkpoint import Checkpoint, CheckpointProblem, CheckpointTensor
from penstock._store.ranks import Ranks
from penstock._store.sigterm import SaveOnSigterm
from penstock._store.step_overlap import StepOverlap
from penstock._store.store import CheckpointStore
from penstock.features import FeatureStore
from penstock.weights import stream
from penstock.weights._tensor_rows import TensorRows

__version__: str = _core.version

__all__ = [
    "Buffer",
    "Cancelled",
    "Changed",
    "Checkpoint",
    "CheckpointInfo",
    "CheckpointProblem",
    "CheckpointStore",
    "CheckpointTensor",
    "CuFileReport",
    "DepthLimit",
    "DeviceDescription",
    "Damaged",
    "EndOfFile",
    "Engine",
    "EngineDescription",
    "EngineOptions",
    "EngineStats",
    "Error",
    "FeatureStore",
    "File",
    "FileInfo",
    "FileWriter",
    "FlatSlice",
    "Future",
    "Gpu",
    "GpuDescription",
    "GpuReport",
    "IncompatibleKeys",
    "LatencyStats",
    "PendingSave",
    "PerRank",
    "Pickled",
    "Ranks",
    "RowTable",
    "SaveOnSigterm",
    "Slice",
    "StepOverlap",
    "TensorInfo",
    "TensorRows",
    "Transfer",
    "Unread",
    "Unsupported",
    "WouldBlock",
    "__version__",
    "as_bytes",
    "cufile_conditions",
    "default_engine",
    "empty",
    "evict",
    "gpus",
    "inspect",
    "load",
    "load_into",
    "prefetch",
    "read",
    "read_async",
    "read_npy",
    "read_rows",
    "read_rows_async",
    "save",
    "save_async",
    "stream",
    "update",
    "write",
    "write_async",
]

# Finishes running transfers at exit: they use memory that belongs to Python. atexit runs these in reverse order.
_atexit.register(_futures.at_exit)  # runs last
_atexit.register(_core.at_exit)
_atexit.register(_core._async.at_exit)
_atexit.register(_core.refuse_other_threads)  # runs first
_os.register_at_fork(
    before=_core.prepare_fork, after_in_parent=_core.end_fork, after_in_child=_core.after_fork_in_child
)
_os.register_at_fork(after_in_child=_futures.after_fork_in_child)
