# SPDX-License-Identifier: Apache-2.0
"""safe_open(): the names of a .safetensors, and tensors that are read at the call that returns them."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, overload

from penstock._base import arguments as _arguments, errors as _errors, modes as _modes
from penstock._state.boxes import box
from penstock.safetensors._file import OpenFile, SafetensorError

if TYPE_CHECKING:
    import jax
    import torch
    from numpy.typing import NDArray

    from penstock._base.types import Device, Index

_Tensor = TypeVar("_Tensor")

_FRAMEWORKS = {"pt": "torch", "torch": "torch", "pytorch": "torch", "np": "numpy", "numpy": "numpy"}
_FRAMEWORKS |= {"flax": "flax", "jax": "flax"}


def maker(framework: str, device: Any = "cpu") -> Callable[[OpenFile, list[str]], list[Any]]:
    """The function that makes tensors of a framework, on a device. Only that framework is imported."""
    if framework not in _FRAMEWORKS:
        raise SafetensorError(f"framework {framework} is invalid: expected 'pt', 'np' or 'flax'")
    if _FRAMEWORKS[framework] == "torch":
        from penstock.safetensors._torch_tensors import tensors_on

        return tensors_on("safe_open", device)
    if str(device) != "cpu":
        raise ValueError(f"safe_open: device: got {device!r}; only framework='pt' reads to other devices than 'cpu'")
    if _FRAMEWORKS[framework] == "flax":
        from penstock.safetensors.flax import tensors_of as arrays_of_jax

        return arrays_of_jax
    from penstock.safetensors.numpy import arrays_of

    return arrays_of


class safe_open(Generic[_Tensor]):  # noqa: N801 - the name that safetensors has
    """Opens a .safetensors, as safetensors.safe_open() does.

    framework: "pt", "np" or "flax". device: with "pt" any device of torch, as a string, a torch.device or the number of
    a GPU; whole tensors are read straight to a CUDA GPU. Only get_tensor() and get_slice(name)[...] read data of
    tensors."""

    # fmt: off
    @overload
    def __init__(
        self: safe_open[torch.Tensor], filename: str | os.PathLike[str], framework: Literal["pt", "torch", "pytorch"],
        device: Device = "cpu",
    ) -> None: ...
    @overload
    def __init__(
        self: safe_open[NDArray[Any]], filename: str | os.PathLike[str], framework: Literal["np", "numpy"],
        device: Device = "cpu",
    ) -> None: ...
    @overload
    def __init__(
        self: safe_open[jax.Array], filename: str | os.PathLike[str], framework: Literal["flax", "jax"],
        device: Device = "cpu",
    ) -> None: ...
    @overload
    def __init__(
        self: safe_open[Any], filename: str | os.PathLike[str], framework: str, device: Device = "cpu"
    ) -> None: ...
    # fmt: on

    @_arguments.named
    def __init__(self, filename: str | os.PathLike[str], framework: str, device: Any = "cpu") -> None:
        self._make = maker(framework, device)
        if not os.path.exists(filename):
            raise FileNotFoundError(f'No such file or directory: "{os.fspath(filename)}"')
        with _errors.opened(os.fsdecode(filename), "load") as file:
            self._file: OpenFile | None = OpenFile(filename, file.fileno())

    def _open(self) -> OpenFile:
        if self._file is None:
            raise SafetensorError("File is closed")
        return self._file

    def keys(self) -> list[str]:
        return sorted(self._open().names())

    def offset_keys(self) -> list[str]:
        """The names in the order of their data in the file."""
        return self._open().names()

    def metadata(self) -> dict[str, str] | None:
        return self._open().metadata()

    @_arguments.named
    def get_tensor(self, name: str) -> _Tensor:
        made: _Tensor = self._make(self._open(), [name])[0]
        return made

    @_arguments.named
    def get_slice(self, name: str) -> Slice[_Tensor]:
        self._open().row(name)
        return Slice(self._open(), name, self._make)

    def __enter__(self) -> safe_open[_Tensor]:
        return self

    def __exit__(self, *_: object) -> None:
        self._open().close()
        self._file = None


class Slice(Generic[_Tensor]):
    """A tensor of which parts are read by index."""

    def __init__(self, file: OpenFile, name: str, make: Callable[[OpenFile, list[str]], list[Any]]) -> None:
        self._file, self._name, self._make = file, name, make

    def get_shape(self) -> list[int]:
        return self._file.row(self._name)[1]

    def get_dtype(self) -> str:
        return self._file.row(self._name)[0]

    @_modes.plain
    def __getitem__(self, index: Index) -> _Tensor:
        """Of the first dimension only the rows that integers and slices select are read."""
        shape = self.get_shape()
        try:
            begin, end, after = box(index, shape)
            file = self._file.cut(self._name, begin[0], end[0]) if begin and begin[0] < end[0] else None
        except (IndexError, TypeError, ValueError):  # the framework may know such an index
            file = None
        whole = self._make(file or self._file, [self._name])[0]
        try:
            part = whole[(slice(None), *map(slice, begin[1:], end[1:]))] if file else whole[index]
            part = part[after] if file and after else part
        except (IndexError, TypeError, ValueError) as error:
            raise SafetensorError(f"Error during slicing {index!r} of {shape}: {error}") from error
        is_all = file is not None and part.nbytes == whole.nbytes
        own: _Tensor = part if is_all else part.clone() if hasattr(part, "clone") else part.copy()
        return own
