# SPDX-License-Identifier: Apache-2.0
"""Models larger than memory: weights streamed from the user's own shards, layer by layer.

_stream        binds parameters to memory during the call of a unit
_matching      the tensor of the files for each parameter and buffer, and what is left of both
_construction  a model with its buffers, and parameters without memory
_outputs       results of a call do not use its weights, and no change is kept
_turns         one call at a time, which gives back what it took
_units         divides a model into units
_used          weights that a module uses without calling the child that has them
_away          what is in the place of a parameter that is not in memory
_rows          embeddings, gathered by row
_folders       the location of the files: one folder, or several on several devices
_plan          the bytes that a budget keeps and reads, before anything is run
_device        weights that are streamed to a GPU
_experts       experts of a mixture, read when the router has chosen them
_conversions   parameters that transformers makes from other tensors
_tensor_rows   penstock.TensorRows
_class         the class of a streamed model
_refusals      operations that a streamed model refuses
_parts         conversions that change nothing, and copies of parts
_hugging_face  information from transformers: the class, names in the files, buffers, generation config
_diffusers     models of diffusers: the class, types
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, overload, runtime_checkable

from penstock._base import arguments as _arguments
from penstock._base.progress import Progress
from penstock.weights._plan import Plan, PlannedExperts, PlannedUnit, plan

if TYPE_CHECKING:
    import torch

    from penstock._base.types import Device, Path
    from penstock.weights._stats import StreamStats

    _Model = TypeVar("_Model", bound=torch.nn.Module)

    class _StreamedModel(torch.nn.Module):
        """A model of transformers with the members that stream() adds. It also has all members of its own class."""

        def stream_stats(self) -> StreamStats: ...
        def set_memory(self, memory: int | str | None = None, *, device_memory: int | str | None = None) -> None: ...
        def unstream(self) -> torch.nn.Module: ...
        def __getattr__(self, name: str) -> Any: ...


__all__ = ["Plan", "PlannedExperts", "PlannedUnit", "Streamed", "plan", "stream"]


@runtime_checkable
class Streamed(Protocol):
    """The members that stream() adds to a model. For a type checker, the result of stream() keeps the class of the
    model; `assert isinstance(model, Streamed)` adds these members."""

    def stream_stats(self) -> StreamStats: ...
    def set_memory(self, memory: int | str | None = None, *, device_memory: int | str | None = None) -> None: ...
    def unstream(self) -> torch.nn.Module: ...


# fmt: off
@overload
def stream(
    model: _Model, folder: Path | Sequence[Path], *, memory: int | str = "auto",
    units: Iterable[str] | None = None, slots: int = 2, progress: Progress = None,
    device: Device | None = None, device_memory: int | str | None = None, strict: bool = False,
) -> _Model: ...
@overload
def stream(
    model: type | None, folder: Path | Sequence[Path], *, memory: int | str = "auto",
    units: Iterable[str] | None = None, slots: int = 2, progress: Progress = None,
    device: Device | None = None, device_memory: int | str | None = None, strict: bool = False,
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
    strict: bool = False,
) -> Any:
    """Runs a model that is larger than memory. `memory` bytes of its weights stay in memory; the others are read from
    the user's own files in each pass, ahead of their layer. The results are bit for bit the same as with all weights in
    memory.

    model: a torch.nn.Module with its parameters on the meta device; or a class of transformers, also AutoModel..., or
        of diffusers; or None for the class that `config.json` in the folder names. It is changed, also by model.eval(),
        and returned.
    folder: a folder with the `.safetensors` and their index, or one file, or the name of a model in the local cache of
        Hugging Face ("organization/name"; nothing is downloaded). Of a pipeline of diffusers, its transformer or UNet;
        give the folder of another of its models for that one. Or a list of folders on several devices, with spread
        shards, copies, or copies of some shards. Files that several folders have are read from all of them
        concurrently, in the ratio of their speeds, which are measured now. Of copies, a few blocks are compared now.
    memory: bytes, "8GiB", or "auto": the memory that this process may still take, less a reserve for activations and
        code. It holds all weights that are in memory, but not activations, the KV cache or rows of embeddings.
    units: names of modules that are read as a whole, in the order of their use. By default: the children of each list
        of modules (the layers), and other modules with parameters. Units that are too large are divided.
    slots: 2 read one unit ahead of the running one. More slots read further ahead, and fewer weights stay in memory.
    progress: reports the read of the weights that stay; as in load(). With True, a line about the passes follows, which
        says what str(model.stream_stats()) says.
    device, device_memory: "cuda:0", and bytes of its memory for weights, or "auto": what is free there, less a reserve.
        The model computes there, and its input must be there. As much as fits device_memory stays on the GPU. Of the
        rest, as much as fits `memory` stays in pinned host memory and is copied in each pass. The remainder is read
        from the files.
    strict: a tensor of the files that nothing of the model takes is a KeyError. By default it is a RuntimeWarning,
        unless the class of the model says that it does not want it (`_keys_to_ignore_on_load_unexpected`). A scale,
        zero point or table of a weight that is taken is always an error.

    Outside the call of its unit a parameter has no memory: using its values is an error. Inference only. The model has
    stream_stats(), set_memory(memory) (with a GPU, set_memory(device_memory=)) and unstream(); for a type checker after
    `isinstance(model, Streamed)`, of penstock.weights. If two threads call it, the passes run one after the other.
    Raises MemoryError for a budget that is too small, with the minimum; KeyError and ValueError for tensors that are
    missing or have another shape or type (only float16, bfloat16, float32 and float64 are converted), for buffers that
    nobody computes, and for copies that differ, before anything is read; NotImplementedError for quantized files, and
    for tensors that transformers cannot convert; penstock.Unsupported for a device if torch has no CUDA; penstock.Error
    in a pass with a failed read (the next pass tries again)."""
    from penstock.weights._stream import start

    return start(model, folder, memory, units, slots, progress, device, device_memory, strict)
