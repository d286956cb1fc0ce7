# SPDX-License-Identifier: Apache-2.0
"""The interface of the package safetensors, read and written by Penstock.

    from penstock.safetensors import safe_open
    from penstock.safetensors.torch import load_file, save_file       # or .numpy, .flax

Functions, arguments, results and kinds of errors are those of safetensors. These differ: tensors are read when they are
asked for, into memory of their own; a file is replaced whole and durably, or not at all; its header ends in more
spaces, so that data begins where a device can read it straight into memory; device is "cpu"."""

from penstock.safetensors._open import SafetensorError, safe_open

__all__ = ["SafetensorError", "safe_open"]
