# SPDX-License-Identifier: Apache-2.0
"""Random states: tensors of all types and strides, arrays, numbers, texts, containers, sharing and cycles."""

import collections
import math
import struct

import numpy as np
import torch

DTYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.int16, torch.int32,
    torch.int64, torch.bool, torch.complex64, torch.complex128, torch.uint16, torch.uint32, torch.uint64,
    torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float8_e8m0fnu,
    torch.complex32,
]  # fmt: skip
TEXTS = [
    "", "a", "weight", "a.b", "\0", "a\nb", "a/b", "日本", "\U0001f600", "x" * 300, "~2", "a~2", ".", "..", "None",
    "storage", "a.storage", "é", "\x7f", "\u2028", '"', "\\", "0", "1", "__metadata__", " ",
]  # fmt: skip
WHOLE = [
    0, 1, -1, 255, 256, 65535, 65536, 2**31 - 1, 2**31, -(2**31), -(2**31) - 1, 2**63 - 1, 2**63, -(2**63),
    -(2**63) - 1, 2**64, 2**255, 2**2039, 2**2040, -(2**2047), 2**2048, 10**300,
]  # fmt: skip
NAN_WITH_BITS = [struct.unpack("<d", bits)[0] for bits in (b"\1\0\0\0\0\0\xf0\x7f", b"\1\2\0\0\0\0\xf8\xff")]
FLOATS = [0.0, -0.0, 1.5, math.inf, -math.inf, math.nan, 5e-324, 1.7976931348623157e308, *NAN_WITH_BITS]
COMPLEX = [1j, complex(math.nan, -0.0), complex(-0.0, math.inf)]
BYTES = [b"", b"\0", bytes(range(256)), bytearray(b"abc"), bytearray(), b"x" * 300]
OF_TORCH = [
    torch.Size([]), torch.Size([1, 2, 3]), torch.Size([2**40]), torch.float16, torch.int64, torch.uint16,
    torch.device("cpu"), torch.device("cuda", 3), torch.device("meta"), torch.device("mps"),
]  # fmt: skip
OF_NUMPY = [
    np.float32(1.5), np.float64(math.nan), np.int8(-3), np.uint64(2**64 - 1), np.bool_(False), np.complex64(1j),
    np.str_("héé"), np.bytes_(b"a\0b"), np.str_(""), np.float16(-0.0),
]  # fmt: skip
KEYS = [
    0, 1, -1, 2**31, 2**63, -(2**63) - 1, 2**200, True, False, None, 1.0, 0.5, -0.0, math.inf, 1 + 2j, math.nan,
    torch.float32, torch.device("cpu"), torch.Size([1, 2]), torch.device("cuda:1"), torch.bfloat16, np.float32(2.5),
    np.int64(7), np.str_("q"), np.bytes_(b"z"), np.bool_(True), np.float64(1e300),
]  # fmt: skip
ARRAYS = ["b1", "i1", "u2", "i4", "i8", "u8", "f2", "f4", "f8", "c8", "c16", "U0", "U3", "S0", "S5", "i2"]
FACTORIES = [None, list, dict, int, float, str, set]
DEEPEST = 5


def item_bytes(dtype):
    return torch.empty((), dtype=dtype).element_size()


def packed(shape):
    """The strides of a contiguous tensor."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.insert(0, step)
        step *= max(size, 1)
    return strides


def reach(shape, strides):
    """The elements from the first to the last that is used."""
    return 0 if 0 in shape else 1 + sum((size - 1) * stride for size, stride in zip(shape, strides))


class States:
    """Makes states. What was made before may come again: the same object, and views of the same storage."""

    def __init__(self, random):
        self.random = random
        self.made = []
        self.storages = []

    # ---- tensors

    def storage(self, dtype, count):
        """A tensor of one dimension with random bytes."""
        raw = torch.frombuffer(bytearray(self.random.randbytes(max(count * item_bytes(dtype), 1))), dtype=torch.uint8)
        if dtype == torch.bool:
            return raw[:count].gt(127)
        return raw[: count * item_bytes(dtype)].clone().view(dtype) if count else torch.empty(0, dtype=dtype)

    def base(self):
        """A storage and the type to look at it with; three in ten are storages that others have too."""
        r = self.random
        if self.storages and r.random() < 0.3:
            base = r.choice(self.storages)
            dtype = base.dtype if r.random() < 0.7 else r.choice(DTYPES)
            return (base, base.dtype) if torch.bool in (dtype, base.dtype) else (base, dtype)
        dtype = r.choice(DTYPES)
        sizes = [0, 1, 2, 3, 7, 16, 31, 64, 255, 1000, 4096 // item_bytes(dtype), 5000]
        self.storages.append(self.storage(dtype, r.choice(sizes)))
        return self.storages[-1], dtype

    def layout(self, count):
        """(offset, shape, strides) within `count` elements."""
        r = self.random
        offset = r.randrange(count + 1) if count else 0
        shape, strides = [], []
        for _ in range(r.choice([0, 1, 1, 2, 2, 3, 4])):
            shape.append(r.choice([0, 1, 1, 2, 3, 4, 5]) if r.random() < 0.8 else r.randrange(20))
            strides.append(r.choice([0, 1, 1, 2, 3, 5, 8]))
        if r.random() < 0.5:
            strides = packed(shape)
            if len(shape) > 1 and r.random() < 0.3:
                i, j = r.sample(range(len(shape)), 2)
                shape[i], shape[j] = shape[j], shape[i]
                strides[i], strides[j] = strides[j], strides[i]
        for i in range(len(shape)):
            while shape[i] > 1 and reach(shape, strides) > count - offset:
                shape[i] -= 1
        if reach(shape, strides) > count - offset:
            offset = 0
        return (offset, shape, strides) if reach(shape, strides) <= count else (0, [0], [1])

    def tensor(self):
        r = self.random
        base, dtype = self.base()
        storage = base.untyped_storage()
        offset, shape, strides = self.layout(storage.nbytes() // item_bytes(dtype))
        made = torch.empty(0, dtype=dtype).set_(storage, offset, tuple(shape), tuple(strides))
        if made.is_complex() and dtype != torch.complex32:
            if r.random() < 0.2:
                made = made.conj()
            if r.random() < 0.1 and made.is_conj():
                made = made.imag  # negated
        if r.random() < 0.15:
            grad = made.is_floating_point() and r.random() < 0.5
            made = torch.nn.Parameter(made.detach(), requires_grad=bool(grad))
        elif (made.is_floating_point() or made.is_complex()) and not made.is_conj() and r.random() < 0.2:
            made = made.detach().requires_grad_(True)
        return made

    # ---- the rest

    def key(self, depth=0):
        r = self.random
        kind = r.randrange(5)
        if kind < 2:
            return r.choice(TEXTS)
        if kind == 2 and depth < 2:
            return tuple(self.key(depth + 1) for _ in range(r.randrange(3)))
        return r.choice(TEXTS).encode() if kind == 3 else r.choice(KEYS)

    def array(self):
        r = self.random
        dtype = np.dtype(r.choice(ARRAYS))
        shape = tuple(r.choice([0, 1, 2, 3]) for _ in range(r.randrange(4)))
        if dtype.kind in "US":
            made = np.zeros(shape, dtype)
            for place in np.ndindex(*shape) if dtype.itemsize else ():
                made[place] = r.choice(["", "ab", "é" if dtype.kind == "U" else "e", "abc"])
        elif dtype.kind == "b":
            made = np.frombuffer(r.randbytes(math.prod(shape)), "u1").reshape(shape) > 100
        else:
            made = np.frombuffer(r.randbytes(math.prod(shape) * dtype.itemsize), dtype).reshape(shape).copy()
        return r.choice([made, np.asfortranarray(made), made[::-1] if made.ndim else made, made.T])

    def small(self):
        """A value that holds no other."""
        r = self.random
        return r.choice(
            [
                lambda: r.choice([*WHOLE, r.getrandbits(500), -r.getrandbits(64)]),
                lambda: r.choice([*FLOATS, r.random()]),
                lambda: r.choice(TEXTS),
                lambda: r.choice(BYTES),
                lambda: r.choice([None, True, False]),
                lambda: r.choice(COMPLEX),
                lambda: r.choice(OF_TORCH),
                lambda: r.choice(OF_NUMPY),
                lambda: torch.get_rng_state()[:16],
                lambda: frozenset(self.key() for _ in range(r.randrange(4))),
            ]
        )()

    def container(self, depth):
        """What holds values; it may hold itself, through what was made before."""
        r = self.random
        kind = r.choice(["dict", "dict", "ordered", "list", "list", "tuple", "set", "default", "counter"])
        if kind in ("tuple", "set"):
            parts = [self.value(depth + 1) if kind == "tuple" else self.key() for _ in range(r.randrange(6))]
            return self.keep(tuple(parts) if kind == "tuple" else set(parts))
        if kind == "list":
            made = self.keep([])
            made.extend(self.value(depth + 1) for _ in range(r.randrange(6)))
            return made
        made = self.keep(
            {
                "dict": dict,
                "ordered": collections.OrderedDict,
                "counter": collections.Counter,
                "default": lambda: collections.defaultdict(r.choice(FACTORIES)),
            }[kind]()
        )
        for _ in range(r.randrange(6)):
            made[self.key()] = r.choice([1, 2, -1, 2.5]) if kind == "counter" else self.value(depth + 1)
        if kind == "ordered" and r.random() < 0.4:
            made._metadata = collections.OrderedDict([("", {"version": 1})])
        return made

    def keep(self, made):
        self.made.append(made)
        return made

    def value(self, depth=0):
        r = self.random
        if self.made and r.random() < 0.12:
            return r.choice(self.made)
        kind = r.random()
        if kind < 0.2:
            return self.keep(self.tensor())
        if kind < 0.27:
            return self.keep(self.array())
        return self.container(depth) if kind > 0.6 and depth < DEEPEST else self.small()

    def state(self):
        """Anything at all."""
        if self.random.random() < 0.8:
            return {"root": [self.value() for _ in range(self.random.randrange(1, 8))]}
        return self.value()

    def model(self, depth=0):
        """Like the state of a model: names, tensors, and a few numbers."""
        r = self.random
        made = r.choice([dict, collections.OrderedDict])()
        for i in range(r.randrange(1, 6)):
            key = r.choice(["w", "b", "m.x", "layer", "0", "a.b", "q", "z", "W"]) + str(i)
            kind = r.random()
            if kind < 0.6:
                made[key] = self.tensor()
            elif kind < 0.8 and depth < 3:
                made[key] = self.model(depth + 1)
            elif kind < 0.87:
                made[key] = [self.tensor(), self.tensor()]
            else:
                made[key] = r.choice([1, 2.5, "t", None, True, b"x", (1, 2)])
        return made
