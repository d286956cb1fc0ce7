# SPDX-License-Identifier: Apache-2.0
"""torch, which is imported only when it is needed."""

from __future__ import annotations

import sys
from typing import Any


def torch() -> Any:
    """Returns the module. If it is not installed, the ImportError says what to do."""
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
    """Whether it is a tensor of torch; False if torch is not imported."""
    module = sys.modules.get("torch")
    return module is not None and isinstance(candidate, module.Tensor)


def why_not_plain(tensor: Any) -> str:
    """The reason why a tensor is not a dense array of its values, and the fix; empty for an ordinary one."""
    if tensor.layout is not torch().strided:
        return f"its layout is {tensor.layout}; give tensor.to_dense(), or the parts that it is made of"
    if tensor.is_nested:
        return "it is nested; give its parts: tensor.unbind()"
    return ""


def why_lazy(tensor: Any) -> str:
    """The reason if the memory of a tensor does not hold its values, and the fix; empty otherwise."""
    if tensor.is_conj() or tensor.is_neg():
        return "it is a lazy conjugate or negative; give tensor.resolve_conj().resolve_neg()"
    return ""
