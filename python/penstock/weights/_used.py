# SPDX-License-Identifier: Apache-2.0
"""Finds parameters of children that the code of a module uses itself, without a call of the child."""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from collections.abc import Iterator
from typing import Any

import torch

# What does not need the values of a parameter.
_OUTLINE = ("device", "dim", "dtype", "element_size", "is_floating_point", "ndim", "nelement", "numel", "requires_grad",
            "shape", "size", "stride")  # fmt: skip


def used_by(
    module: torch.nn.Module, by_methods: bool = False, but_rows: bool = False
) -> list[tuple[torch.nn.Module, str]]:
    """(child, name of its parameter) for each parameter of another module that forward() uses: in `self.child.weight`,
    or in a ParameterList, which cannot be called. `by_methods`: and those of each child in `self.child.method()`.
    `but_rows`: not those of embeddings in `self.child.weight[rows]`."""
    lists = (torch.nn.ParameterList, torch.nn.ParameterDict)
    out: list[tuple[torch.nn.Module, str]] = []
    out += [(child, name) for child in module.children() if isinstance(child, lists) for name in child._parameters]
    for chain in _chains(type(module)):  # type: ignore[arg-type]
        owner: Any = module
        for number, name in enumerate(chain):
            if not isinstance(owner, torch.nn.Module):
                break
            use = chain[number + 1 : number + 2]
            is_rows = but_rows and isinstance(owner, torch.nn.Embedding) and use == _INDEXED
            if owner is not module and name in owner._parameters and use not in _SKIPPED and not is_rows:
                out.append((owner, name))
            if owner is not module and by_methods and _is_method(type(owner), name):
                out += [(part, its) for part in owner.modules() for its in part._parameters]
            owner = owner._modules.get(name)
    return [(owner, name) for owner, name in dict.fromkeys(out) if owner._parameters[name] is not None]


_INDEXED = ("[]",)
_SKIPPED = {(name,) for name in _OUTLINE}


def _is_method(cls: type, name: str) -> bool:
    """Whether a call of it does not come to forward()."""
    return name != "forward" and not hasattr(torch.nn.Module, name) and callable(getattr(cls, name, None))


@functools.cache
def _chains(cls: Any) -> frozenset[tuple[str, ...]]:
    """("child", "weight", "shape") for each `self.child.weight.shape` that forward() and the methods that it uses
    read."""
    chains: set[tuple[str, ...]] = set()
    todo, done = {"forward"}, set()
    while todo:
        name = todo.pop()
        done.add(name)
        for base in cls.__mro__:
            if base in (torch.nn.Module, object) or base.__module__.partition(".")[0] == "torch":
                continue
            found = set(_read(base.__dict__[name])) if name in base.__dict__ else set()
            chains |= found
            todo |= {chain[0] for chain in found} - done
    return frozenset(chain for chain in chains if len(chain) > 1)


def _read(member: Any) -> Iterator[tuple[str, ...]]:
    """The longest chain of attributes of each use of `self` in a method or a property; with "[]" for an index."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(getattr(member, "fget", member))))
    except (OSError, TypeError, SyntaxError):
        return
    first = next((node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)), None)
    inner = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    indexed = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Subscript)}
    for node in ast.walk(tree):  # questions about an object, not its values
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance":
            inner.add(id(node.args[0]))
        elif isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.Is, ast.IsNot)):
            inner.add(id(node.left))
    for node in ast.walk(tree):
        chain: list[str] = []
        at: ast.AST = node
        if id(node) in inner or not isinstance(getattr(node, "ctx", None), ast.Load):
            continue
        while isinstance(at, ast.Attribute):
            chain.insert(0, at.attr)
            at = at.value
        if chain and isinstance(at, ast.Name) and at.id == first:
            yield (*chain, *(_INDEXED if id(node) in indexed else ()))
