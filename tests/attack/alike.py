# SPDX-License-Identifier: Apache-2.0
"""Whether two states are the same: types, bits, strides, and what shares what."""

import collections
import struct

import numpy as np
import torch

from tests.attack.run import Wrong

SHARED = (list, dict, set, torch.Tensor, np.ndarray)


def places(tensor):
    """The bytes of its storage that a tensor uses, in the order of its elements."""
    size = tensor.element_size()
    index = torch.tensor(tensor.storage_offset() * size)
    for count, stride in zip(tensor.shape, tensor.stride()):
        index = index.unsqueeze(-1) + torch.arange(count) * stride * size
    return (index.unsqueeze(-1) + torch.arange(size)).reshape(-1)


def bytes_of(tensor):
    tensor = tensor.detach()
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    if tensor.numel() == 0:
        return b""
    storage = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
    return storage[places(tensor)].numpy().tobytes()


def leaves(value, path=()):
    """(path, tensor) of a state."""
    if isinstance(value, torch.Tensor):
        yield path, value
    elif isinstance(value, dict):
        for key, part in value.items():
            yield from leaves(part, (*path, key))
    elif isinstance(value, (list, tuple)):
        for i, part in enumerate(value):
            yield from leaves(part, (*path, i))


def bits(number):
    return struct.pack("<dd", number.real, number.imag)


class Comparison:
    """of_store: a store keeps the part of a storage that is used, and lays it out as it likes."""

    def __init__(self, of_store):
        self.of_store = of_store
        self.partner = ({}, {})  # of an object, by its id
        self.storage_partner = ({}, {})
        self.alive = []

    @staticmethod
    def expect(holds, path, text):
        if not holds:
            raise Wrong(f"{path}: {text}")

    def pair(self, known, a, b, path, what):
        """Objects that are one in the first state are one in the second, and no others."""
        self.expect(known[0].setdefault(a, b) == b, path, f"{what} is not shared any more")
        self.expect(known[1].setdefault(b, a) == a, path, f"{what} is shared, and was not")

    def same(self, a, b, path):
        self.expect(type(a) is type(b), path, f"{type(a).__name__} became {type(b).__name__}")
        if isinstance(a, SHARED):
            known = id(a) in self.partner[0]
            self.pair(self.partner, id(a), id(b), path, "the object")
            if known:
                return
            self.alive.append((a, b))
        if isinstance(a, torch.Tensor):
            self.tensors(a, b, path)
        elif isinstance(a, (np.ndarray, np.generic)):
            alike = a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
            self.expect(alike, path, f"{a.dtype} {a.shape} {a!r} became {b.dtype} {b.shape} {b!r}")
        elif isinstance(a, (float, complex)):
            self.expect(bits(a) == bits(b), path, f"{a!r} became {b!r}")
        elif isinstance(a, dict):
            self.dicts(a, b, path)
        elif isinstance(a, (list, tuple)):
            self.expect(len(a) == len(b), path, f"{len(a)} values became {len(b)}")
            for i, (x, y) in enumerate(zip(a, b)):
                self.same(x, y, f"{path}[{i}]")
        elif isinstance(a, (set, frozenset)):
            texts = [sorted((type(x).__name__, repr(x)) for x in part) for part in (a, b)]
            self.expect(texts[0] == texts[1], path, f"{a!r} became {b!r}")
        else:
            self.expect(a == b and repr(a) == repr(b), path, f"{a!r} became {b!r}")

    def dicts(self, a, b, path):
        self.expect(len(a) == len(b), path, f"{len(a)} keys became {len(b)}")
        for (key, x), (other, y) in zip(a.items(), b.items()):
            self.same(key, other, f"{path}.<key {key!r}>")
            self.same(x, y, f"{path}[{key!r}]")
        if isinstance(a, collections.OrderedDict):
            Comparison(self.of_store).same(a.__dict__, b.__dict__, f"{path}.__dict__")
        if isinstance(a, collections.defaultdict):
            self.expect(a.default_factory is b.default_factory, path, "another factory")

    def tensors(self, a, b, path):
        for what in ("dtype", "shape", "requires_grad"):
            x, y = getattr(a, what), getattr(b, what)
            self.expect(x == y, path, f"{what} {x} became {y}")
        for what in ("stride", "is_conj", "is_neg"):
            x, y = getattr(a, what)(), getattr(b, what)()
            self.expect(x == y, path, f"{what} {x} became {y}")
        x, y = a.untyped_storage(), b.untyped_storage()
        if not self.of_store:
            self.expect(a.storage_offset() == b.storage_offset(), path, "another offset in its storage")
            self.expect(x.nbytes() == y.nbytes(), path, f"a storage of {x.nbytes()} bytes became {y.nbytes()}")
        if x.nbytes() and a.numel():
            self.pair(self.storage_partner, x._cdata, y._cdata, path, "the storage")
            self.alive.append((x, y))
        self.expect(bytes_of(a) == bytes_of(b), path, f"other bytes: {a.dtype} {tuple(a.shape)} {a.stride()}")


def same(a, b, what, of_store=False):
    """Raises Wrong with the place where two states differ."""
    Comparison(of_store).same(a, b, what)
