# SPDX-License-Identifier: Apache-2.0
"""The functions of safetensors.torch."""

from __future__ import annotations

import os
from typing import Any

import torch

from penstock._base import arguments as _arguments
from penstock.safetensors._file import all_of
from penstock.safetensors._model import load_model, save_model
from penstock.safetensors._torch_tensors import rows_of, tensors_of, tensors_on
from penstock.safetensors._write import to_bytes, to_file

__all__ = ["load", "load_file", "load_model", "save", "save_file", "save_model"]


@_arguments.named
def load_file(filename: str | os.PathLike[str], device: Any = "cpu") -> dict[str, torch.Tensor]:
    """Loads the tensors of a file. device: any device of torch, as a string, a torch.device or the number of a GPU;
    tensors are read straight to a CUDA GPU. Raises SafetensorError if it is not a .safetensors."""
    return all_of(filename, tensors_on("load_file", device))


@_arguments.named
def load(data: bytes) -> dict[str, torch.Tensor]:
    """Loads the tensors from the bytes of a file."""
    return all_of(data, tensors_of)


@_arguments.named
def save_file(
    tensors: dict[str, torch.Tensor], filename: str | os.PathLike[str], metadata: dict[str, str] | None = None
) -> None:
    """Writes a file, complete and durable when it returns. Raises ValueError for a tensor that is not dense and
    contiguous, RuntimeError for tensors that share memory."""
    to_file(rows_of(tensors), filename, metadata)


@_arguments.named
def save(tensors: dict[str, torch.Tensor], metadata: dict[str, str] | None = None) -> bytes:
    """Returns the bytes of a file."""
    return to_bytes(rows_of(tensors), metadata)
