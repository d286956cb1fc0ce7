# SPDX-License-Identifier: Apache-2.0
"""Converts options of Python to the texts that the library reads."""

from __future__ import annotations

from typing import Any

from penstock import _core
from penstock._base.arguments import got
from penstock.plan._answer import Answer
from penstock.plan._measure_options import measure_of

_TEXTS = ("model", "preset", "accelerator", "optimizer")


def ask(verb: str, options: dict[str, Any]) -> Answer:
    """The answer of a question. Its functions pass their arguments as locals(): each is the option of its name, except
    `measure`, with which the rates of folders are measured first. An option that is None has its default."""
    measured = options.get("measure")
    for name in _TEXTS:
        text(verb, name, options.get(name))
    words = [(name, word(verb, name, it)) for name, it in options.items() if it is not None and name != "measure"]
    if measured is None:
        return Answer.from_json(_core.plan_ask(verb, words))
    return Answer.from_json(
        _core.plan_measure(verb, words, *measure_of("measure" if verb == "feeds" else verb, measured))
    )


def word(verb: str, name: str, value: Any) -> str:
    """A number, True, False or a text, as it would be written on the command line."""
    if isinstance(value, str):
        return _utf8(verb, name, value)
    if hasattr(value, "item") and getattr(value, "shape", None) == ():  # a NumPy scalar
        value = value.item()
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, int | float):
        raise TypeError(f'plan {verb}: {name}: expected a number or words such as "2.5GB", got {got(value)}')
    return repr(value)


def text(verb: str, name: str, value: Any) -> str | None:
    """Checks that it is a text or None."""
    if value is not None and not isinstance(value, str):
        raise TypeError(f"plan {verb}: {name}: expected a str, got {got(value)}")
    return value if value is None else _utf8(verb, name, value)


def _utf8(verb: str, name: str, value: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"plan {verb}: {name}: {got(value)} is not UTF-8: it has half a character") from None
    return value
