# SPDX-License-Identifier: Apache-2.0
"""Tensors of which a process has a part: torch's DTensor and ShardedTensor, Slice and FlatSlice.

A part is a list of boxes of the whole tensor, whose elements follow one another in the memory of one local tensor.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from penstock._base import arguments as _arguments
from penstock._base.arguments import got

_BYTES_MAX = 1 << 60  # of a whole tensor

Box = tuple[tuple[int, ...], tuple[int, ...], int]  # offset, shape, and the first element in the local tensor


class HeldPart(NamedTuple):
    local: Any  # contiguous, on the host or a CUDA GPU
    shape: tuple[int, ...]  # of the whole tensor
    boxes: list[Box]
    copy: int  # among equal parts on several ranks; 0 is written
    made: bool  # local was made for this call
    requires_grad: bool
    is_parameter: bool
    tie: tuple[Any, ...]  # equal for parts that are one tensor, on all ranks: also where the part is empty
    given: Any  # the local tensor as it was given: the tie has the address of its storage


class _Fixed:
    """What was checked stays."""

    __slots__ = ()

    def __setattr__(self, name: str, value: Any) -> None:
        if hasattr(self, name):
            raise AttributeError(f"{type(self).__name__}: {name} cannot be changed; make another one")
        object.__setattr__(self, name, value)


class Slice(_Fixed):
    """A box of a larger tensor: this rank's part of it, for CheckpointStore.save() and load(into=).

        store.save({"w": penstock.Slice(rows, shape=(1000, 64), offset=(250, 0))}, step=1)

    tensor: a dense torch tensor with the elements of the box. shape: of the whole tensor. offset: where the box begins,
    in elements, for each dimension. Slices of all ranks have to tile the whole. ValueError for a box that reaches past
    it. The checkpoint has the whole tensor."""

    __slots__ = ("offset", "shape", "tensor")

    @_arguments.named
    def __init__(self, tensor: Any, shape: Sequence[int], offset: Sequence[int]) -> None:
        _check_tensor("Slice", tensor)
        self.tensor = tensor
        self.shape = _numbers("Slice", "shape", shape)
        self.offset = _numbers("Slice", "offset", offset)
        if not tensor.dim() == len(self.shape) == len(self.offset):
            raise ValueError(
                f"Slice: tensor has {tensor.dim()} dimensions, shape {len(self.shape)}, and offset {len(self.offset)}; "
                "give as many of each"
            )
        for d, (begin, extent, whole) in enumerate(zip(self.offset, tensor.shape, self.shape, strict=True)):
            if begin + extent > whole:
                raise ValueError(
                    f"Slice: offset: elements {begin} to {begin + extent} of dimension {d}, which has {whole}"
                )

    def __repr__(self) -> str:
        return f"penstock.Slice({list(self.tensor.shape)} at {list(self.offset)} of {list(self.shape)})"


class FlatSlice(_Fixed):
    """A range of a flattened tensor: this rank's part of it, as ZeRO and FSDP1 cut a tensor.

        store.save({"w": penstock.FlatSlice(flat, shape=(1000, 64), begin=12_345)}, step=1)

    tensor: a dense torch tensor of one dimension. shape: of the whole tensor. begin: the first element of the range.
    The checkpoint has the whole tensor in its shape. ValueError for a range that reaches past it."""

    __slots__ = ("begin", "shape", "tensor")

    @_arguments.named
    def __init__(self, tensor: Any, shape: Sequence[int], begin: int) -> None:
        _check_tensor("FlatSlice", tensor)
        self.tensor = tensor
        self.shape = _numbers("FlatSlice", "shape", shape)
        self.begin = _arguments.whole("FlatSlice", "begin", begin)
        if tensor.dim() != 1:
            raise ValueError(f"FlatSlice: tensor: it has {tensor.dim()} dimensions; give a flat one: view(-1)")
        if self.begin + tensor.numel() > math.prod(self.shape):
            raise ValueError(
                f"FlatSlice: begin: elements {self.begin} to {self.begin + tensor.numel()}, and the tensor has "
                f"{math.prod(self.shape)}"
            )

    def __repr__(self) -> str:
        return f"penstock.FlatSlice({self.tensor.numel()} at {self.begin} of {list(self.shape)})"


def _check_tensor(what: str, tensor: Any) -> None:
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{what}: tensor: expected a torch tensor, got {got(tensor)}")
    if is_part(tensor):
        raise ValueError(f"{what}: tensor: it is a part of a tensor itself; give it alone, or its local tensor")
    if tensor.layout is not torch.strided or tensor.is_nested:
        raise ValueError(f"{what}: tensor: it is not dense; give a dense one")


def _numbers(what: str, argument: str, given: Any) -> tuple[int, ...]:
    return tuple(_arguments.whole(what, argument, number) for number in given)


def is_part(obj: Any) -> bool:
    """Whether parts_of() knows its type. DTensors are known once torch.distributed.tensor is imported."""
    return isinstance(obj, _kinds(sys.modules.get("torch.distributed.tensor"), _sharded_module()))


def _sharded_module() -> Any:
    return sys.modules.get("torch.distributed._shard.sharded_tensor")


@lru_cache(maxsize=8)
def _kinds(tensors: Any, sharded: Any) -> tuple[type, ...]:
    found = (Slice, FlatSlice, getattr(tensors, "DTensor", None), getattr(sharded, "ShardedTensor", None))
    return tuple(kind for kind in found if kind is not None)


def parts_of(obj: Any, number: int = 0, ranks: int = 0) -> Any:
    """The HeldPart of an object of is_part(); or a tensor, for one without dimensions. number: how many parts the state
    had before it, the same on all ranks: equal parts of several tensors are written by several ranks. ranks: how many
    save it.
    Raises ValueError, without the place in the state, for what has no parts."""
    if isinstance(obj, Slice):
        part: Any = _part(obj.tensor, obj.tensor, obj.shape, [(obj.offset, tuple(obj.tensor.shape), 0)])
    elif isinstance(obj, FlatSlice):
        boxes = flat_boxes(obj.shape, obj.begin, obj.tensor.numel())
        part = _part(obj.tensor, obj.tensor, obj.shape, boxes)
        if not obj.tensor.numel():  # all parts that a flat buffer has nothing of are at one place in it
            part = part._replace(tie=(object(),))
    elif type(obj).__name__ == "ShardedTensor":
        part = _of_sharded(obj)
    else:
        part = _of_dtensor(obj, number, ranks)
    if not part.shape:
        return part.local
    if math.prod(part.shape) * part.local.element_size() >= _BYTES_MAX:
        raise ValueError(f"a tensor of {list(part.shape)} has more bytes than a file can have")
    return part


def saved_parts(obj: Any, number: int, ranks: int) -> Any:
    """The same for a save: the local tensor is contiguous, and where it can be read."""
    part = parts_of(obj, number, ranks)
    if not isinstance(part, HeldPart):
        return part
    if 0 in part.shape:  # one box says all of it
        part = part._replace(boxes=[((0,) * len(part.shape), part.shape, 0)])
    local = part.local.detach()
    local = local.resolve_conj().resolve_neg().contiguous()
    if local.device.type not in ("cpu", "cuda", "meta"):
        local = local.cpu()
    return part._replace(local=local, made=local.data_ptr() != part.local.data_ptr())


def _part(obj: Any, local: Any, shape: tuple[int, ...], boxes: list[Box], copy: int = 0) -> HeldPart:
    """obj: the tensor as the state has it."""
    import torch

    place = (local.untyped_storage()._cdata, local.storage_offset(), tuple(local.shape), local.stride())
    tie = (*place, local.dtype, local.is_conj(), local.is_neg(), tuple(shape), tuple(boxes))
    return HeldPart(
        local, shape, boxes, copy, False, obj.requires_grad, isinstance(obj, torch.nn.Parameter), tie, local
    )


def _of_dtensor(obj: Any, number: int, ranks: int) -> HeldPart:
    import torch

    with torch.no_grad():
        local = obj.to_local()
    if hasattr(local, "wait"):  # the result of a collective operation that goes on
        local = local.wait()
    mesh, placements = obj.device_mesh, tuple(obj.placements)
    for d, placement in enumerate(placements):
        if placement.is_partial():
            raise ValueError(
                f"a DTensor with the placement {placement} holds sums that are not made yet; redistribute() it to "
                "Replicate or Shard"
            )
        dimension = getattr(placement, "dim", None)
        after = [mesh.size(e) for e in range(d + 1, mesh.ndim) if getattr(placements[e], "dim", None) == dimension]
        # FSDP over TP makes boxes of strided shards, and a view of other dimensions does not.
        if getattr(placement, "split_factor", None) not in (None, math.prod(after)):
            raise ValueError(
                f"a DTensor with the placements {placements} on a mesh of {list(mesh.shape)} has parts that are no "
                "boxes of the tensor; redistribute() it to Shard"
            )
    shape = tuple(obj.shape)
    here = mesh.get_coordinate()
    if here is None:  # a rank that the mesh does not have
        nothing = (0,) * len(shape)
        return _part(obj, local.new_empty(nothing), shape, [(nothing, nothing, 0)])
    extent, offset = _box_of_dtensor(shape, mesh, placements, tuple(here))
    if tuple(local.shape) != extent:
        raise ValueError(f"a DTensor of {list(shape)} has a part of {list(local.shape)}, and not {list(extent)}")
    copy, copies = _beside(mesh, _root_of(mesh), ranks)
    for d, placement in enumerate(placements):
        if placement.is_replicate():
            copy, copies = copy * mesh.size(d) + here[d], copies * mesh.size(d)
    return _part(obj, local, shape, [(offset, extent, 0)], (copy + number) % copies)


def _root_of(mesh: Any) -> Any:
    """The mesh that this one is a slice of, or itself."""
    from torch.distributed import device_mesh

    if hasattr(mesh, "_get_root_mesh"):
        return mesh._get_root_mesh()
    resources = getattr(device_mesh, "_mesh_resources", None)
    return resources.get_root_mesh(mesh) if hasattr(resources, "get_root_mesh") else mesh


@lru_cache(maxsize=1 << 10)
def _beside(mesh: Any, root: Any, ranks: int) -> tuple[int, int]:
    """Which one a mesh is among those along the other dimensions of its root, and how many they are. What one holds,
    the others hold too, as where each replica of DDP is tensor parallel. Stages of a pipeline hold other tensors."""
    if root is mesh or root.size() != ranks:
        return 0, 1
    own = set(mesh.mesh.flatten().tolist())
    places = [place for place in itertools.product(*map(range, root.mesh.shape)) if int(root.mesh[place]) in own]
    beside = [d for d in range(root.ndim) if len({place[d] for place in places}) == 1]
    if len(places) * math.prod(root.size(d) for d in beside) != ranks:  # it is no slice
        return 0, 1
    index, count = 0, 1
    for d in beside:
        if not (root.mesh_dim_names and root.mesh_dim_names[d].startswith("pp")):
            index, count = index * root.size(d) + places[0][d], count * root.size(d)
    return index, count


@lru_cache(maxsize=1 << 16)  # it takes 40 us
def _box_of_dtensor(
    shape: tuple[int, ...], mesh: Any, placements: tuple[Any, ...], here: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    extent, offset = compute_local_shape_and_global_offset(shape, mesh, placements)
    extent, offset = tuple(map(int, extent)), tuple(map(int, offset))
    if 0 in extent:  # its offset may be anything
        offset = tuple(0 for _ in offset)
    return extent, offset


def _of_sharded(obj: Any) -> HeldPart:
    import torch

    shards, shape = obj.local_shards(), tuple(obj.size())
    if len(shards) > 1:
        raise ValueError(f"a ShardedTensor has {len(shards)} shards on one rank; give penstock.Slice for each")
    if not shards:
        nothing = (0,) * len(shape)
        return _part(obj, torch.empty(nothing, dtype=obj.dtype), shape, [(nothing, nothing, 0)])
    where = shards[0].metadata
    return _part(obj, shards[0].tensor, shape, [(tuple(where.shard_offsets), tuple(where.shard_sizes), 0)])


def flat_boxes(shape: Sequence[int], begin: int, count: int) -> list[Box]:
    """A range of a flattened tensor as boxes, in its order: at most two a dimension, and one."""
    if not shape:
        return [((), (), 0)] if count else []
    if count == 0:
        nothing = (0,) * len(shape)
        return [(nothing, nothing, 0)]
    row = math.prod(shape[1:])
    boxes: list[Box] = []
    at, end = begin, begin + count

    def inner(first: int, length: int) -> None:
        boxes.extend(
            ((first // row, *offset), (1, *extent), first - begin + start)
            for offset, extent, start in flat_boxes(shape[1:], first % row, length)
        )

    if at % row:
        length = min(end, (at // row + 1) * row) - at
        inner(at, length)
        at += length
    if (rows := (end - at) // row) > 0:
        boxes.append(((at // row, *(0,) * (len(shape) - 1)), (rows, *shape[1:]), at - begin))
        at += rows * row
    if at < end:
        inner(at, end - at)
    return boxes
