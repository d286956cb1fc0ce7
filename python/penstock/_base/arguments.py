# SPDX-License-Identifier: Apache-2.0
"""Checks of plain arguments. An error names the call, the argument, the given value and the allowed values."""

from __future__ import annotations

import contextlib
import errno
import functools
import math
import operator
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from penstock import _core
from penstock._base import log as _log, modes as _modes

NUMBER_MAX = (1 << 64) - 1
_SHOWN_MAX = 80


def shown(value: Any) -> str:
    """repr(value), cut to what fits into a message."""
    try:
        text = repr(value)
    except Exception:  # raised by the object's class, or for an int of 5,000 digits
        return f"a {_type(value)}"
    text = " ".join(text.split()) if "\n" in text else text
    return text if len(text) <= _SHOWN_MAX else text[:_SHOWN_MAX] + "..."


def got(value: Any) -> str:
    """The given value, for "expected an integer, got ...": for containers only their length."""
    if isinstance(value, (Mapping, list, tuple, set, frozenset)):
        return f"a {_type(value)} of {len(value)}"
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"a {_type(value)} of shape {list(value.shape)}"
    return f"{shown(value)} ({_type(value)})"


def _type(value: Any) -> str:
    made = type(value)
    return made.__qualname__ if made.__module__ == "builtins" else f"{made.__module__}.{made.__qualname__}"


_Call = TypeVar("_Call", bound=Callable[..., Any])


def named(function: _Call) -> _Call:
    """Wraps a public function: it runs outside of torch's modes (modes.py), and for an unknown keyword, the TypeError
    names the nearest valid one."""
    code = function.__code__
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    verb = function.__qualname__.removesuffix(".__init__").rpartition(".")[2]

    @functools.wraps(function)
    def call(*arguments: Any, **keywords: Any) -> Any:
        for name in keywords:
            if name not in names:
                own = [known for known in names if known not in ("self", "cls") and not known.startswith("_")]
                near = _core.nearest(name, own)
                hint = f"did you mean '{near}'?" if near else f"expected {', '.join(own)}"
                raise TypeError(f"{verb}(): there is no argument '{name}'; {hint}")
        return _modes.run(function, arguments, keywords) if _modes.are_on() else function(*arguments, **keywords)

    return _modes.untraced(call)  # type: ignore[return-value]


def whole(verb: str, name: str, value: Any, least: int = 0, most: int = NUMBER_MAX) -> int:
    """An integer, also of NumPy; no bool."""
    number = None
    if not isinstance(value, bool):
        with contextlib.suppress(TypeError):
            number = operator.index(value)
    if number is None:
        raise TypeError(f"{verb}: {name}: expected an integer, got {got(value)}")
    if not least <= number <= most:
        raise ValueError(f"{verb}: {name}: expected {least} to {most}, got {shown(number)}")
    return number


def size(verb: str, name: str, value: Any, least: int = 0, most: int = NUMBER_MAX) -> int:
    """Bytes: an integer, or a text with a unit ("4MiB")."""
    number = _core.parse_bytes(value, f"{verb}: {name}") if isinstance(value, str) else value
    if not hasattr(number, "__index__"):
        raise TypeError(f'{verb}: {name}: expected bytes (an integer), or a size such as "4MiB", got {got(value)}')
    return whole(verb, name, number, least, most)


def step(verb: str, value: Any, state: Any) -> int:
    """The step of a save of that state."""
    if isinstance(state, int) and isinstance(value, Mapping):
        raise TypeError(f"{verb}: step: got {got(value)}; the state comes first: {verb}(state, step)")
    return whole(verb, "step", value)


def seconds(verb: str, name: str, value: Any) -> float:
    """A time in seconds, 0 or more; may be inf."""
    if isinstance(value, (str, bytes)) or not hasattr(value, "__float__"):
        raise TypeError(f"{verb}: {name}: expected seconds, got {got(value)}")
    number = float(value)
    if math.isnan(number) or number < 0:
        raise ValueError(f"{verb}: {name}: expected seconds, 0 or more, got {number}")
    return number


def path(verb: str, f: Any) -> str:
    try:
        return local_path(verb, os.fsdecode(f))
    except TypeError:
        raise TypeError(
            f"{verb}: f: got {type(f).__name__}; give a path (str or os.PathLike) or a binary file"
        ) from None


def local_path(verb: str, path: str) -> str:
    """The path, unchanged. Refuses a URL, which would become the name of a local folder if it was made absolute."""
    if _core.is_remote(path):
        raise _core.system_error(errno.ENOENT, verb, path)
    return path


def function(verb: str, name: str, value: Any) -> Any:
    """A callable."""
    if not callable(value):
        raise TypeError(f"{verb}: {name}: expected a function, got {got(value)}")
    return value


def default(verb: str, value: Any) -> None:
    """The function of a save for objects that a state cannot hold, or None."""
    if value is not None:
        function(verb, "default", value)


def flag(verb: str, name: str, value: Any) -> bool | None:
    """True, False (NumPy's too) or None."""
    if value is None or isinstance(value, bool) or type(value).__module__ == "numpy" and value.dtype == bool:
        return value
    raise TypeError(f"{verb}: {name}: expected True, False or None, got {got(value)}")


def texts(verb: str, name: str, value: Any) -> Any:
    """A str, or several; of a mapping its keys are checked."""
    if isinstance(value, bytes) or not isinstance(value, Iterable):
        raise TypeError(f"{verb}: {name}: expected a str or several, got {got(value)}")
    if isinstance(value, str):
        return value
    several = value if isinstance(value, Mapping) else list(value)
    for one in several:
        if not isinstance(one, str):
            raise TypeError(f"{verb}: {name}: expected str in it, got {got(one)}")
    return several


def strings(verb: str, name: str, value: Any) -> list[tuple[str, str]]:
    """The rows of a dict of strings; None has no rows."""
    if value is None:
        return []
    if not isinstance(value, Mapping):
        raise TypeError(f"{verb}: {name}: expected a dict of strings, got {got(value)}")
    for key, text in value.items():
        if not isinstance(key, str) or not isinstance(text, str):
            raise TypeError(f"{verb}: {name}: expected strings as keys and values, got {shown(key)}: {got(text)}")
        for part in (key, text):
            utf8(verb, name, part)
    return list(value.items())


def utf8(verb: str, name: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{verb}: {name}: {shown(text)} is not UTF-8: it has half a character") from None


def metadata(verb: str, value: Any, metric: str | None) -> list[tuple[str, Any]]:
    """The rows of a dict of plain values; None has no rows. A NumPy scalar, or a tensor of one element, is its item().
    metric: the name by which checkpoints are compared; warns if only a similar name is in the dict."""
    if value is None:
        return []
    if not isinstance(value, Mapping):
        raise TypeError(f"{verb}: metadata: expected a dict of plain values, got {got(value)}")
    rows = []
    for key, given in value.items():
        plain = given
        if hasattr(given, "item"):
            with contextlib.suppress(ValueError, RuntimeError):  # it has several elements
                plain = given.item()
        if not isinstance(key, str) or not isinstance(plain, str | float | int | None):
            raise TypeError(
                f"{verb}: metadata: expected names, and text, numbers, True, False or None, got {shown(key)}: "
                f"{got(given)}"
            )
        for part in (key, plain):
            if isinstance(part, str):
                utf8(verb, "metadata", part)
        rows.append((key, plain))
    near = "" if metric is None or metric in value else _core.nearest(metric, list(value))
    if near:
        _log.warn(f"{verb}: metadata: it has '{near}', and the store's metric is '{metric}'; did you mean that?")
    return rows
