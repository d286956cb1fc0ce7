# SPDX-License-Identifier: Apache-2.0
"""The functions of safetensors.flax: arrays of JAX."""

from __future__ import annotations

import os
from typing import Any

import jax
import jax.numpy as jnp

from penstock._base import arguments as _arguments
from penstock.safetensors import numpy
from penstock.safetensors._file import OpenFile, all_of


def tensors_of(file: OpenFile, names: list[str]) -> list[Any]:
    return [jnp.asarray(array) for array in numpy.arrays_of(file, names)]


@_arguments.named
def load_file(filename: str | os.PathLike[str]) -> dict[str, jax.Array]:
    """Loads the arrays of a file. Raises SafetensorError if it is not a .safetensors."""
    return all_of(filename, tensors_of)


@_arguments.named
def load(data: bytes) -> dict[str, jax.Array]:
    """Loads the arrays from the bytes of a file."""
    return all_of(data, tensors_of)


@_arguments.named
def save_file(
    tensors: dict[str, jax.Array], filename: str | os.PathLike[str], metadata: dict[str, str] | None = None
) -> None:
    """Writes a file, complete and durable when it returns. Arrays of an accelerator are copied to the host first."""
    numpy.save_file({name: numpy.np.asarray(array) for name, array in tensors.items()}, filename, metadata)


@_arguments.named
def save(tensors: dict[str, jax.Array], metadata: dict[str, str] | None = None) -> bytes:
    """Returns the bytes of a file."""
    return numpy.save({name: numpy.np.asarray(array) for name, array in tensors.items()}, metadata)
