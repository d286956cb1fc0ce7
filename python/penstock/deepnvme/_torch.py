# SPDX-License-Identifier: Apache-2.0
"""torch, which is imported when it is needed and not before."""

from __future__ import annotations

import sys
from typing import Any


def torch() -> Any:
    """The module; ImportError that says what to do where it is not installed."""
    module = sys.modules.get("torch")
    if module is not None:
        return module
    try:
        import torch as imported
    except ImportError as error:
        raise ImportError(
            "penstock.deepnvme makes torch tensors here, and torch cannot be imported "
            f"({error}); install it: pip install torch"
        ) from error
    return imported


def is_tensor(candidate: object) -> bool:
    """Without torch being imported nothing is a tensor."""
    module = sys.modules.get("torch")
    return module is not None and isinstance(candidate, module.Tensor)
