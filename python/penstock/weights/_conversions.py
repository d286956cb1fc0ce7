# SPDX-License-Identifier: Apache-2.0
"""Parameters that transformers makes from other tensors when it loads a model: experts that were saved one by one, the
parts of a fused product, transposed weights."""

from __future__ import annotations

import copy
import math
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from penstock._state.load_call import TensorInfo

# Operations of transformers that move whole rows of their sources and do not change them.
_PLACING = ("MergeModulelist", "Concatenate", "Chunk", "Split")

Part = tuple[str, int, int]  # a tensor of the files, its first byte, bytes
Infos = Mapping[str, TensorInfo]


class Conversion:
    """Tensors of the files, and the parameters that one WeightConverter of transformers makes from them."""

    def __init__(self, model: Any, converter: Any, first: str) -> None:
        self._model = weakref.ref(model)  # it keeps the weights, and these the conversions
        self.converter, self.first = converter, first
        self.sources: list[tuple[str, str]] = []  # a pattern of the converter, and the matching key

    @property
    def keys(self) -> list[str]:
        return [key for _, key in self.sources]

    def made(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Converts {key: its tensor} to {parameter: its values}, by the code of transformers."""
        converter, model = copy.deepcopy(self.converter), self._model()
        assert model is not None
        for pattern, key in self.sources:
            converter.add_tensor(self.first, key, pattern, tensors[key])
        made = converter.convert(self.first, model=model, config=model.config)
        return {name: one[0] if isinstance(one, list) else one for name, one in made.items()}

    def outline(self, empty: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """made() with meta tensors, to get the shapes. Raises NotImplementedError if transformers fails."""
        try:
            return self.made(empty)
        except Exception as error:
            operations = ", ".join(type(one).__name__ for one in self.converter.operations)
            raise NotImplementedError(
                f"stream: transformers converts '{self.keys[0]}' to '{self.first}' when it loads it, by {operations}, "
                f"which failed: {error}"
            ) from error

    def parts(self, infos: Infos, outline: Mapping[str, torch.Tensor]) -> dict[str, list[Part]] | None:
        """{parameter: the parts of tensors that it is joined from}, or None if its values are computed. To find the
        parts, the conversion is run with row numbers in place of rows."""
        sources = [infos[key] for key in self.keys]
        row = tuple(sources[0].shape[1:])
        if any(type(one).__name__ not in _PLACING for one in self.converter.operations):
            return None
        if any((one.dtype, tuple(one.shape[1:])) != (sources[0].dtype, row) for one in sources):
            return None
        numbered = {}
        for number, one in enumerate(sources):
            rows = torch.arange(math.prod(one.shape[:1])) + (number << 32)
            numbered[one.name] = rows.reshape(*one.shape[:1], *(1 for _ in row))
        row_bytes = sources[0].nbytes // max(1, math.prod(sources[0].shape[:1]))
        out = {}
        for name, rows in self.made(numbered).items():
            shape = tuple(outline[name].shape)
            lead = shape[: len(shape) - len(row)]
            if shape[len(lead) :] != row or tuple(rows.shape) != (*lead, *(1 for _ in row)):
                return None  # the conversion cuts rows
            out[name] = [
                (self.keys[first >> 32], (first & 0xFFFFFFFF) * row_bytes, count * row_bytes)
                for first, count in _runs(rows.flatten())
            ]
        return out if set(out) == set(outline) else None


class Cast:
    """A tensor, and the same in another dtype under a name of its own."""

    def __init__(self, name: str, key: str, dtype: torch.dtype) -> None:
        self.name, self.keys, self.dtype = name, [key], dtype

    def made(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {self.name: tensors[self.keys[0]].to(self.dtype)}


def _runs(numbers: torch.Tensor) -> list[tuple[int, int]]:
    """(first, count) of each run of consecutive numbers."""
    cuts = torch.nonzero(numbers[1:] != numbers[:-1] + 1).flatten() + 1
    bounds = [0, *cuts.tolist(), len(numbers)]
    return [(int(numbers[begin]), end - begin) for begin, end in zip(bounds, bounds[1:], strict=False) if end > begin]


class Converted:
    """The parameters that conversions make, as additional tensors next to those of the files. Each has a key, and an
    entry that is added to `infos`."""

    def __init__(self, conversions: Iterable[Conversion], infos: dict[str, TensorInfo]) -> None:
        self.keys: dict[str, str] = {}  # {parameter: key}
        self.joined: list[tuple[str, tuple[int, ...], list[Part]]] = []  # key, shape, parts: bytes are only moved
        self.computed: dict[str, Conversion | Cast] = {}  # {key: the conversion to run when its tensors are read}
        self.casts: dict[str, Cast] = {}  # those of `computed` that only change the dtype
        self._made_by: dict[str, Conversion | Cast] = {}
        for conversion in conversions:
            self._add(conversion, infos)

    def _add(self, conversion: Conversion, infos: dict[str, TensorInfo]) -> None:
        sources = [infos[key] for key in conversion.keys]
        dtypes = {one.dtype for one in sources}
        empty = {one.name: torch.empty(one.shape, device="meta") for one in sources}
        outline = conversion.outline(empty)
        parts = conversion.parts(infos, outline)
        for name, tensor in outline.items():
            key, shape = name, tuple(tensor.shape)
            if tensor is empty[sources[0].name]:  # no change, for example if the file has it already transposed
                self.keys[name] = sources[0].name
                continue
            while key in infos:
                key += " (converted)"
            element = sources[0].nbytes // max(1, math.prod(sources[0].shape))
            dtype = sources[0].dtype if len(dtypes) == 1 else " and ".join(sorted(dtypes))
            infos[key] = TensorInfo(key, dtype, shape, 0, math.prod(shape) * element)
            self.keys[name] = key
            self._made_by[key] = conversion
            if parts is None:
                self.computed[key] = conversion
            else:
                self.joined.append((key, shape, parts[name]))

    def cast(self, key: str, dtype: torch.dtype, infos: dict[str, TensorInfo]) -> str:
        """A key for the tensor `key` in another dtype. The computed values of a conversion keep their key."""
        kind = str(dtype).removeprefix("torch.")
        out = f"{key} ({kind})"
        if key in self.computed:
            return key
        if out not in self.casts:
            shape = tuple(infos[key].shape)
            infos[out] = TensorInfo(out, kind, shape, 0, math.prod(shape) * dtype.itemsize)
            self.casts[out] = self.computed[out] = self._made_by[out] = Cast(out, key, dtype)
        return out

    def __contains__(self, key: str) -> bool:
        """Whether the files have no such tensor."""
        return key in self._made_by

    def is_cast(self, key: str) -> bool:
        """Whether this is a tensor of the files in another dtype."""
        return key in self.casts and self.reads(key)[0] not in self

    def reads(self, key: str) -> list[str]:
        """The tensors of the files, and joined ones, that must be read for this key."""
        return self.computed[key].keys if key in self.computed else [key]

    def sources(self, key: str) -> list[str]:
        """The tensors of the files that this key is made from."""
        if key not in self._made_by:
            return [key]
        return [source for one in self._made_by[key].keys for source in self.sources(one)]

    def made(
        self, keys: Iterable[str], tensors_of: Callable[[Conversion | Cast], Mapping[str, torch.Tensor]]
    ) -> dict[str, torch.Tensor]:
        """Makes those of `keys` that are converted; runs each conversion once. tensors_of(conversion): its tensors."""
        out: dict[str, torch.Tensor] = {}
        for key in keys:
            if key in self._made_by and key not in out:
                conversion = self._made_by[key]
                made = conversion.made(tensors_of(conversion))
                out |= {self.keys.get(name, name): tensor for name, tensor in made.items()}
        return out
