# SPDX-License-Identifier: Apache-2.0
"""torch's modes: what a call gives does not depend on them. Each public call runs without a default device, outside of
FakeTensorMode (or is refused there), and is not traced by torch.compile(). What costs little is looked at each time."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable
from typing import Any, TypeVar

_Call = TypeVar("_Call", bound=Callable[..., Any])

# Calls that make tensors, which would have data among others that have none.
_MAKE_TENSORS = ("load", "load_into", "load_file", "load_model", "gather", "get_tensor", "__getitem__", "stream")
_looked_at: set[Any] = set()  # code of functions that were made before torch was there


def are_on() -> bool:
    """Whether a call has to leave one of them."""
    core = sys.modules.get("torch._C")
    if core is None:
        return False
    if _looked_at:
        _skip()
    try:
        return bool(core._len_torch_function_stack() or core._len_torch_dispatch_stack() or _is_compiled())
    except AttributeError:  # torch is being imported
        return False


def _is_compiled() -> bool:
    """Whether frames that begin on this thread are traced."""
    try:
        return sys.modules["torch._C"]._dynamo.eval_frame.get_eval_frame_callback() not in (None, False)
    except AttributeError:  # another torch
        return "torch._dynamo" in sys.modules


def _fakes() -> bool:
    """Whether FakeTensorMode is on."""
    fakes, torch = sys.modules.get("torch._subclasses.fake_tensor"), sys.modules["torch"]
    if fakes is None or not torch._C._len_torch_dispatch_stack():
        return False
    modes = torch.utils._python_dispatch._get_current_dispatch_mode_stack()
    return any(isinstance(mode, fakes.FakeTensorMode) for mode in modes)


def run(function: Callable[..., Any], arguments: Any, keywords: Any) -> Any:
    """The call, outside of the modes."""
    torch = sys.modules["torch"]
    if _is_compiled():
        function = _disabled(function)
    with contextlib.ExitStack() as without:
        if torch._C._len_torch_function_stack():
            without.enter_context(torch.device("cpu"))
        if _fakes():
            if function.__name__ in _MAKE_TENSORS:
                raise RuntimeError(
                    f"{function.__name__}: torch's FakeTensorMode is on, and its tensors have no data; call it outside "
                    "of the mode, or use penstock.inspect(), which lists names, types and shapes"
                )
            without.enter_context(torch.utils._python_dispatch._disable_current_modes())
        return function(*arguments, **keywords)


@functools.lru_cache(1024)
def _disabled(function: Any) -> Any:
    return sys.modules["torch"].compiler.disable(function)


def plain(function: _Call) -> _Call:
    """The function, outside of the modes."""

    @functools.wraps(function)
    def call(*arguments: Any, **keywords: Any) -> Any:
        return run(function, arguments, keywords) if are_on() else function(*arguments, **keywords)

    return untraced(call)


def untraced(call: _Call, because: str = "penstock reads and writes storage when it is called") -> _Call:
    """Marks a function as torch.compiler.disable() marks what it returns: the compiler ends its graph before the call.
    The import of the compiler takes a second, so it is left to those who use it."""
    call.__dict__.update(_torchdynamo_disable=True, _torchdynamo_disable_msg=because)
    _looked_at.add(call.__code__)
    if "torch._C" in sys.modules:
        _skip()
    return call


def _skip() -> None:
    """The compiler looks no more at the code of these functions."""
    with contextlib.suppress(AttributeError, TypeError):  # another torch: then it looks at this code, too, and says so
        frames: Any = sys.modules["torch._C"]._dynamo.eval_frame
        how = frames._FrameExecStrategy(frames._FrameAction.SKIP, frames._FrameAction.DEFAULT)
        for code in _looked_at:
            frames.set_code_exec_strategy(code, how)
    _looked_at.clear()
