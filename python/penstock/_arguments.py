# SPDX-License-Identifier: Apache-2.0
"""Plain arguments, looked at before anything is done with them: an error names the verb, the argument, what came and
what is allowed."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping
from typing import Any

NUMBER_MAX = (1 << 64) - 1


def whole(verb: str, name: str, value: Any, least: int = 0, most: int = NUMBER_MAX) -> int:
    """An integer, NumPy's too."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{verb}: {name}: this is {value!r}, a {type(value).__name__}; give an integer") from None
    if not least <= number <= most:
        raise ValueError(f"{verb}: {name}: this is {number}; give {least} to {most}")
    return number


def seconds(verb: str, name: str, value: Any) -> float:
    """A time, 0 or more; inf is one."""
    if isinstance(value, (str, bytes)) or not hasattr(value, "__float__"):
        raise TypeError(f"{verb}: {name}: this is {value!r}, a {type(value).__name__}; give seconds")
    number = float(value)
    if math.isnan(number) or number < 0:
        raise ValueError(f"{verb}: {name}: this is {value}; give seconds, 0 or more")
    return number


def function(verb: str, name: str, value: Any) -> Any:
    """Something that can be called."""
    if not callable(value):
        raise TypeError(f"{verb}: {name}: this is {value!r}, a {type(value).__name__}; give a function")
    return value


def flag(verb: str, name: str, value: Any) -> bool | None:
    """True, False (NumPy's too) or None."""
    if value is None or isinstance(value, bool) or type(value).__module__ == "numpy" and value.dtype == bool:
        return value
    raise TypeError(f"{verb}: {name}: this is {value!r}, a {type(value).__name__}; give True, False or None")


def texts(verb: str, name: str, value: Any) -> Any:
    """A str, or several: of a mapping the keys."""
    if isinstance(value, bytes) or not isinstance(value, Iterable):
        raise TypeError(f"{verb}: {name}: this is {value!r}, a {type(value).__name__}; give a str, or several")
    if isinstance(value, str):
        return value
    several = value if isinstance(value, Mapping) else list(value)
    for one in several:
        if not isinstance(one, str):
            raise TypeError(f"{verb}: {name}: {one!r} is a {type(one).__name__}; give str")
    return several


def strings(verb: str, name: str, value: Any) -> list[tuple[str, str]]:
    """The rows of a dict of strings, or of None."""
    if value is None:
        return []
    if not isinstance(value, Mapping):
        raise TypeError(f"{verb}: {name}: this is {value!r}, a {type(value).__name__}; give a dict of strings")
    for key, text in value.items():
        if not isinstance(key, str) or not isinstance(text, str):
            raise TypeError(f"{verb}: {name}: {key!r}: {text!r}: keys and values are strings")
    return list(value.items())
