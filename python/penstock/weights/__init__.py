# SPDX-License-Identifier: Apache-2.0
"""Models larger than memory: weights streamed from the user's own shards, layer by layer.

_stream        binds parameters to memory for the time of a unit's call
_units         which modules are a unit
_rows          embeddings, gathered by row
_folders       where the files are: one folder, or several on several devices
_plan          what a budget keeps and reads, before anything is run
_device        weights that are streamed to a GPU
_experts       experts of a mixture, read when the router chose them
_conversions   parameters that transformers makes of other tensors
_tensor_rows   penstock.TensorRows
_refusals      what a streamed model cannot do
_hugging_face  what transformers knows: the class, names in the files, buffers, generation config
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, overload, runtime_checkable

from penstock import _arguments
from penstock._progress import Progress
from penstock.weights._plan import Plan, PlannedExperts, PlannedUnit, plan

if TYPE_CHECKING:
    import torch

    from penstock._types import Device, Path
    from penstock.weights._stream import StreamStats

    _Model = TypeVar("_Model", bound=torch.nn.Module)

    class _StreamedModel(torch.nn.Module):
        """A model of transformers with what stream() adds to it. Whatever else its class has, it has."""

        def stream_stats(self) -> StreamStats: ...
        def set_memory(self, memory: int | str) -> None: ...
        def unstream(self) -> torch.nn.Module: ...
        def __getattr__(self, name: str) -> Any: ...


__all__ = ["Plan", "PlannedExperts", "PlannedUnit", "Streamed", "plan", "stream"]


@runtime_checkable
class Streamed(Protocol):
    """What stream() adds to a model. To a type checker a model that was given to stream() keeps its own class;
    `assert isinstance(model, Streamed)` adds these."""

    def stream_stats(self) -> StreamStats: ...
    def set_memory(self, memory: int | str) -> None: ...
    def unstream(self) -> torch.nn.Module: ...


# fmt: off
@overload
def stream(
    model: _Model, folder: Path | Sequence[Path], *, memory: int | str = "auto",
    units: Iterable[str] | None = None, slots: int = 2, progress: Progress = None,
    device: Device | None = None, device_memory: int | str | None = None,
) -> _Model: ...
@overload
def stream(
    model: type | None, folder: Path | Sequence[Path], *, memory: int | str = "auto",
    units: Iterable[str] | None = None, slots: int = 2, progress: Progress = None,
    device: Device | None = None, device_memory: int | str | None = None,
) -> _StreamedModel: ...
# fmt: on


@_arguments.named
def stream(
    model: torch.nn.Module | type | None,
    folder: Any,
    *,
    memory: int | str = "auto",
    units: Iterable[str] | None = None,
    slots: int = 2,
    progress: Progress = None,
    device: Any = None,
    device_memory: int | str | None = None,
) -> Any:
    """Makes a model that is larger than memory run: `memory` bytes of its weights stay, the others are read from the
    user's own files in each pass, ahead of their layer. What the model computes is bit for bit what it computes with
    all weights in memory.

    model: a torch.nn.Module with its parameters on the meta device; or a class of transformers; or None for the one
        that `config.json` in the folder names. It is changed and returned.
    folder: with the `.safetensors` and their index; or one file. A list of folders on several devices: shards that are
        spread over them, copies, or copies of some. What several have is read from all of them at once, in the ratio
        of their speeds, which are measured now.
    memory: bytes, "8GiB", or "auto": what this process may still take, less a reserve for activations and code. It
        holds all weights that are in memory, not activations, the KV cache or rows of embeddings.
    units: names of modules that are read as a whole, in the order of their use. By default the children of each list
        of modules (the layers), other modules with parameters by themselves, and parts of what is too large.
    slots: 2 read one unit ahead of the one that runs; more read further ahead and leave less to stay.
    progress: of reading what stays; as in load(). Not for a GPU.
    device, device_memory: "cuda:0" and the bytes of it for weights: the model computes there, with input that is there.
        As much as fits device_memory stays on the GPU; of the rest, as much as fits `memory` stays in pinned host
        memory and is copied in each pass, and the remainder is read from the files. set_memory() is refused, and
        experts are read with their layer. Not yet run on a GPU.

    A parameter outside the turn of its unit is a meta tensor: who uses it gets an error. Inference only. The model has
    stream_stats(), set_memory(bytes) and unstream(), which a type checker knows after
    `isinstance(model, Streamed)`, of penstock.weights. Two threads that call it run one pass after the other.
    Raises MemoryError for a budget that is too small, with the least that works; KeyError and ValueError for tensors
    that are missing or of another shape or dtype, and for copies that differ, before anything is read;
    NotImplementedError for tensors that transformers cannot convert; penstock.Unsupported for a device where torch has
    no CUDA; penstock.Error in a pass whose read failed (the
    next one tries again)."""
    from penstock.weights._stream import start

    return start(model, folder, memory, units, slots, progress, device, device_memory)
