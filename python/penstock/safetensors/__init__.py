# SPDX-License-Identifier: Apache-2.0
"""The interface of the package safetensors, read and written by Penstock.

    from penstock.safetensors import safe_open
    from penstock.safetensors.torch import load_file, save_file       # or .numpy, .flax

Functions, arguments, results and types of errors are those of safetensors. Differences: tensors are read at the call
that returns them, into their own memory; a file is replaced completely and durably, or not at all; its header ends in
more spaces, so that a device can read the data directly into memory; device is "cpu"."""

from penstock.safetensors._file import SafetensorError
from penstock.safetensors._open import safe_open

__all__ = ["SafetensorError", "safe_open"]
