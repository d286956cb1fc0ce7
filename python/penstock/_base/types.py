# SPDX-License-Identifier: Apache-2.0
"""Types that several signatures name."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from types import EllipsisType
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

# The use of the page cache by reads.
Cache = Literal["auto", "cached", "direct", "required"]

# A part of a tensor.
_Part = int | slice | EllipsisType
Index = _Part | tuple[_Part, ...]

# Several names, not as a Mapping.
Names = Sequence[str] | Set[str] | Iterator[str]

Path = str | bytes | os.PathLike[str] | os.PathLike[bytes]


class SupportsBuffer(Protocol):
    """Memory with the buffer protocol: bytearray, mmap, array."""

    def __buffer__(self, flags: int, /) -> memoryview: ...


class SupportsDLPack(Protocol):
    """Memory with DLPack: of torch, NumPy, JAX, CuPy."""

    def __dlpack__(self, *args: Any, **kwargs: Any) -> object: ...


class HasCudaArrayInterface(Protocol):
    """Memory of a GPU, with the interface of Numba."""

    @property
    def __cuda_array_interface__(self) -> Mapping[str, Any]: ...


# A tensor, array or buffer.
Memory = SupportsBuffer | SupportsDLPack | HasCudaArrayInterface

# The answer of a save to a tensor that changes meanwhile.
Changing = Literal["raise", "torn"]

# Numbers of rows.
Ids = Memory | Sequence[int]


class SupportsCudaStream(Protocol):
    """A stream with CUDA's stream protocol: a version, and the handle."""

    def __cuda_stream__(self) -> tuple[int, int]: ...


class HasCudaStream(Protocol):
    """A stream of torch."""

    @property
    def cuda_stream(self) -> int: ...


# The fate of objects that a load does not read.
OnUnread = Literal["raise", "keep"]

# A CUDA stream: its handle, or an object that has it.
Stream = int | SupportsCudaStream | HasCudaStream


class Readable(Protocol):
    """A binary file that is read."""

    def read(self) -> bytes: ...


class Writable(Protocol):
    """A binary file that is written."""

    def write(self, data: memoryview, /) -> object: ...


if TYPE_CHECKING:
    import torch

    Dtype = torch.dtype | str
    Device = torch.device | str | int
    MapLocation = Device | Mapping[str, str] | Callable[[Any, str], Any]

    # Tensors that are filled in place; the result has the same type.
    Into = TypeVar("Into", bound=Mapping[Any, Any] | list[Any] | tuple[Any, ...] | torch.Tensor)
