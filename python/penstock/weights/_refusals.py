# SPDX-License-Identifier: Apache-2.0
"""Refuses operations that a streamed model cannot do, with the reason; and backward()."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any, NoReturn

import torch

from penstock._base import modes as _modes

_UNTRACED = "penstock.stream() reads the weights of a layer when it is called"


def refuse(what: str, because: BaseException | None = None) -> NoReturn:
    raise RuntimeError(
        f"{what}: the weights of this model are streamed, and outside their layer's turn they are not in memory; "
        "model.unstream() loads them all"
    ) from because


def _keep_nothing(tensor: torch.Tensor) -> None:
    """Refuses to save a tensor for backward(): by then its memory holds the weights of another unit."""


def refuse_backward(unused: Any) -> NoReturn:
    refuse("backward()")


def without_backward() -> Any:
    """A context for calls, also in grad mode: torch saves nothing for backward(), and a later backward() is refused."""
    if not torch.is_grad_enabled():
        return contextlib.nullcontext()
    return torch.autograd.graph.saved_tensors_hooks(_keep_nothing, refuse_backward)


@contextlib.contextmanager
def without_caches() -> Iterator[None]:
    """A context in which torch keeps nothing of weights: torch.autocast() keeps copies of all until it ends, beyond the
    budget. What parametrize.cached() keeps of a weight may be the weight itself, whose memory is that of another unit
    after the call. (Parameters that require no gradients would not be copied either; but torch chooses by that how it
    computes products, and so their bits.)"""
    parametrize = sys.modules.get("torch.nn.utils.parametrize")
    copies, count = torch.is_autocast_cache_enabled(), parametrize and parametrize._cache_enabled
    torch.set_autocast_cache_enabled(False)
    if parametrize:
        parametrize._cache_enabled = 0  # type: ignore[attr-defined]
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(copies)
        if parametrize:
            parametrize._cache_enabled = count  # type: ignore[attr-defined]


def bound(tensor: torch.Tensor, requires_grad: bool) -> torch.nn.Parameter:
    """A parameter for the duration of a call; it never gets a gradient."""
    parameter = torch.nn.Parameter(tensor, requires_grad)
    if requires_grad and not tensor.is_inference():
        parameter.register_hook(refuse_backward)
    return parameter


def untraced(function: Any) -> Any:
    """The function, which torch.compile() does not trace: it would trace the reads."""

    disabled: list[Any] = []  # functools.cache would be a warning of the compiler

    def call(*args: Any, **kwargs: Any) -> Any:
        if "torch._dynamo" not in sys.modules:
            return function(*args, **kwargs)
        if not disabled:
            disabled.append(torch.compiler.disable(function))
        return disabled[0](*args, **kwargs)

    return _modes.untraced(call, _UNTRACED)
