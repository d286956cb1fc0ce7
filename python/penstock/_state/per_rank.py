# SPDX-License-Identifier: Apache-2.0
"""PerRank: what each rank has for itself in a state that all ranks save."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock._base import arguments as _arguments
from penstock._base.arguments import got


class PerRank:
    """A value that each rank has for itself, for CheckpointStore.save() by several ranks: the state of its random
    generator, its place in the data.

        store.save({"model": model.state_dict(), "rng": penstock.PerRank(torch.get_rng_state())}, step=100)
        store.load()["rng"]                     # the tensor that this rank has saved

    value: any state, without parts of tensors and another PerRank. A load gives each rank its own value, bare, where as
    many ranks load as have saved; else see per_rank of CheckpointStore.load(). In `into`, its tensors are filled."""

    __slots__ = ("value",)

    @_arguments.named
    def __init__(self, value: Any) -> None:
        self.value = value

    def __repr__(self) -> str:
        return f"penstock.PerRank({self.value!r})"


def as_list(per_rank: Any) -> bool:
    """The argument of load()."""
    if per_rank not in ("own", "list"):
        raise ValueError(f"load: per_rank: expected 'own' or 'list', got {got(per_rank)}")
    return bool(per_rank == "list")


def has_per_rank(state: Any) -> bool:
    """Whether one is in the state."""
    seen: set[int] = set()
    left = [state]
    while left:
        one = left.pop()
        if type(one) is PerRank:
            return True
        if isinstance(one, (Mapping, list, tuple)) and id(one) not in seen:
            seen.add(id(one))
            left.extend(one.values() if isinstance(one, Mapping) else one)
    return False
