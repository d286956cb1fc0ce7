# SPDX-License-Identifier: Apache-2.0
"""Parameters that transformers makes of other tensors when it loads a model: experts that were saved one by one, the
parts of a fused product, transposed weights."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

import penstock

# Operations of transformers that put each row of their sources somewhere, as it is.
_PLACING = ("MergeModulelist", "Concatenate", "Chunk", "Split")

Part = tuple[str, int, int]  # a tensor of the files, its first byte, bytes
Infos = Mapping[str, penstock.TensorInfo]


class Conversion:
    """Tensors of the files, and the parameters that one WeightConverter of transformers makes of them."""

    def __init__(self, model: Any, converter: Any, first: str) -> None:
        self.model, self.converter, self.first = model, converter, first
        self.sources: list[tuple[str, str]] = []  # a pattern of the converter, and the key that it matched

    @property
    def keys(self) -> list[str]:
        return [key for _, key in self.sources]

    def made(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """{parameter: its values}, by transformers' own code, of {key: its tensor}."""
        converter = copy.deepcopy(self.converter)
        for pattern, key in self.sources:
            converter.add_tensor(self.first, key, pattern, tensors[key])
        made = converter.convert(self.first, model=self.model, config=self.model.config)
        return {name: one[0] if isinstance(one, list) else one for name, one in made.items()}

    def outline(self, empty: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """made() of meta tensors, for the shapes. Raises NotImplementedError where transformers fails."""
        try:
            return self.made(empty)
        except Exception as error:
            operations = ", ".join(type(one).__name__ for one in self.converter.operations)
            raise NotImplementedError(
                f"stream: transformers converts '{self.keys[0]}' to '{self.first}' when it loads it, by {operations}, "
                f"which failed: {error}"
            ) from error

    def parts(self, infos: Infos, outline: Mapping[str, torch.Tensor]) -> dict[str, list[Part]] | None:
        """{parameter: the bytes that it is put together of}, or None where its values are computed. The conversion
        shows it itself: it gets numbers of rows in place of rows."""
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
                return None  # rows were cut
            out[name] = [
                (self.keys[first >> 32], (first & 0xFFFFFFFF) * row_bytes, count * row_bytes)
                for first, count in _runs(rows.flatten())
            ]
        return out if set(out) == set(outline) else None


def _runs(numbers: torch.Tensor) -> list[tuple[int, int]]:
    """(first, count) of each run of numbers that follow one another."""
    cuts = torch.nonzero(numbers[1:] != numbers[:-1] + 1).flatten() + 1
    bounds = [0, *cuts.tolist(), len(numbers)]
    return [(int(numbers[begin]), end - begin) for begin, end in zip(bounds, bounds[1:], strict=False) if end > begin]


class Converted:
    """The parameters that conversions make, as further tensors next to those of the files: each has a key, and
    an entry that is added to `infos`."""

    def __init__(self, conversions: Iterable[Conversion], infos: dict[str, penstock.TensorInfo]) -> None:
        self.keys: dict[str, str] = {}  # {parameter: key}
        self.joined: list[tuple[str, tuple[int, ...], list[Part]]] = []  # key, shape: their bytes are only placed
        self.computed: dict[str, Conversion] = {}  # {key: what makes it on arrival}
        self._made_by: dict[str, Conversion] = {}
        for conversion in conversions:
            self._add(conversion, infos)

    def _add(self, conversion: Conversion, infos: dict[str, penstock.TensorInfo]) -> None:
        sources = [infos[key] for key in conversion.keys]
        dtypes = {one.dtype for one in sources}
        empty = {one.name: torch.empty(one.shape, device="meta") for one in sources}
        outline = conversion.outline(empty)
        parts = conversion.parts(infos, outline)
        for name, tensor in outline.items():
            key, shape = name, tuple(tensor.shape)
            if tensor is empty[sources[0].name]:  # nothing to do, as where a file has it transposed already
                self.keys[name] = sources[0].name
                continue
            while key in infos:
                key += " (converted)"
            element = sources[0].nbytes // max(1, math.prod(sources[0].shape))
            dtype = sources[0].dtype if len(dtypes) == 1 else " and ".join(sorted(dtypes))
            infos[key] = penstock.TensorInfo(key, dtype, shape, 0, math.prod(shape) * element)
            self.keys[name] = key
            self._made_by[key] = conversion
            if parts is None:
                self.computed[key] = conversion
            else:
                self.joined.append((key, shape, parts[name]))

    def __contains__(self, key: str) -> bool:
        return key in self._made_by

    def reads(self, key: str) -> list[str]:
        """The tensors of the files, and joined ones, that are read for it."""
        return self.computed[key].keys if key in self.computed else [key]

    def made(
        self, keys: Iterable[str], tensors_of: Callable[[Conversion], Mapping[str, torch.Tensor]]
    ) -> dict[str, torch.Tensor]:
        """Those of `keys` that conversions make, each conversion once; `tensors_of(conversion)` has its tensors."""
        out: dict[str, torch.Tensor] = {}
        for key in keys:
            if key in self._made_by and key not in out:
                conversion = self._made_by[key]
                made = conversion.made(tensors_of(conversion))
                out |= {self.keys[name]: tensor for name, tensor in made.items()}
        return out
