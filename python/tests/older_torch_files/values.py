# SPDX-License-Identifier: Apache-2.0
"""Values that files of torch have, and what they are: bytes, shapes, types, sharing. It runs under torch 2.0 and later,
with nothing but torch and NumPy.

    python values.py FOLDER

saves them in FOLDER with the torch that is installed, and in expected.json what each value is, as that torch
sees it.
tools/older_torches.py runs this under many torches; python/tests/test_older_torches.py reads the files.
"""

import collections
import hashlib
import io
import json
import pathlib
import sys
import warnings

import numpy
import torch

CONTAINERS = (list, tuple, set, frozenset, torch.Size)
ATOMS = (int, float, complex, bytes, torch.dtype, torch.device, torch.layout, torch.qscheme, type)
CLASSES = {torch.Tensor: "Tensor", torch.nn.Parameter: "Parameter"}
if hasattr(torch.nn, "Buffer"):
    CLASSES[torch.nn.Buffer] = "Buffer"
PARTS = {
    torch.sparse_csr: ("crow_indices", "col_indices", "values"),
    torch.sparse_bsr: ("crow_indices", "col_indices", "values"),
    torch.sparse_csc: ("ccol_indices", "row_indices", "values"),
    torch.sparse_bsc: ("ccol_indices", "row_indices", "values"),
}


def digest(data):
    return hashlib.sha256(data).hexdigest()[:16]


class Description:
    """What a value is, as JSON. Objects and storages that occur again are named by the place of their first time."""

    def __init__(self):
        self.seen = {}  # id: (number, the object, which stays alive for its id)
        self.storages = []

    def storage(self, storage):
        where = storage.data_ptr(), storage.nbytes()
        if where[0] == 0 or where not in self.storages:
            self.storages.append(where)
        return [self.storages.index(where), storage.nbytes(), digest(bytes(storage))]

    def tensor(self, t):
        plain = t.detach()
        out = {"class": CLASSES[type(t)], "dtype": str(t.dtype), "requires_grad": t.requires_grad}
        if t.__dict__:
            out["attributes"] = {name: self.of(value) for name, value in t.__dict__.items()}
        if plain.is_nested:
            return out | {"nested": [self.tensor(one.contiguous()) for one in plain.unbind()]}
        out["shape"] = list(t.shape)
        if plain.layout is torch.sparse_coo:
            parts = [self.tensor(plain._indices()), self.tensor(plain._values())]
            return out | {"layout": str(t.layout), "parts": parts, "coalesced": plain.is_coalesced()}
        if plain.layout in PARTS:
            parts = [self.tensor(getattr(plain, name)()) for name in PARTS[plain.layout]]
            return out | {"layout": str(t.layout), "parts": parts}
        out["strides"] = list(t.stride())
        if plain.is_meta:
            return out | {"device": "meta"}
        out["storage"], out["offset"] = self.storage(plain.untyped_storage()), plain.storage_offset()
        if plain.is_conj() or plain.is_neg():
            out["flags"] = [plain.is_conj(), plain.is_neg()]
        if plain.is_quantized:
            out["scheme"] = str(plain.qscheme())
            if plain.qscheme() is torch.per_tensor_affine:
                return out | {"scale": plain.q_scale().hex(), "zero": plain.q_zero_point()}
            scales = [plain.q_per_channel_scales(), plain.q_per_channel_zero_points()]
            return out | {"scales": [self.tensor(one) for one in scales], "axis": plain.q_per_channel_axis()}
        return out

    def array(self, a):
        a = a.astype(a.dtype.newbyteorder("<"))  # which Penstock makes of others
        order = "F" if a.flags.f_contiguous and not a.flags.c_contiguous else "C"
        return {"array": a.dtype.str, "shape": list(a.shape), "order": order, "bytes": digest(a.tobytes("A"))}

    def of(self, value):
        if value is None or isinstance(value, (bool, str)):
            return value
        if isinstance(value, numpy.generic):
            return {"scalar": value.dtype.str, "bytes": digest(value.tobytes())}
        if isinstance(value, ATOMS):
            return {type(value).__name__: repr(value)}
        if id(value) in self.seen:
            return {"again": self.seen[id(value)][0]}
        self.seen[id(value)] = len(self.seen), value
        if isinstance(value, torch.Tensor):
            return self.tensor(value)
        if isinstance(value, (torch.UntypedStorage, torch.TypedStorage)):  # a load makes a typed one of both
            untyped = getattr(value, "_untyped_storage", value)
            dtype = getattr(value, "dtype", torch.uint8)
            return {"of a storage": str(dtype), "storage": self.storage(untyped)}
        if isinstance(value, numpy.ndarray):
            return self.array(value)
        if isinstance(value, dict):
            out = {type(value).__name__: [[self.of(key), self.of(one)] for key, one in value.items()]}
            if getattr(value, "__dict__", None):
                out["attributes"] = [[key, self.of(one)] for key, one in value.__dict__.items()]
            return out
        if isinstance(value, bytearray):
            return {"bytearray": repr(bytes(value))}
        assert isinstance(value, CONTAINERS), type(value)
        items = sorted(value, key=repr) if isinstance(value, (set, frozenset)) else value
        return {type(value).__name__: [self.of(one) for one in items]}


def described(value):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Description().of(value)


def numbers(*shape):
    count = 1
    for extent in shape:
        count *= extent
    return (torch.arange(count, dtype=torch.float32) * 0.37 - 1).reshape(shape)


def tagged(tensor, **attributes):
    for name, value in attributes.items():
        setattr(tensor, name, value)
    return tensor


def dtypes():
    """Those of this torch, by name."""
    found = {str(value): value for value in vars(torch).values() if isinstance(value, torch.dtype)}
    return dict(sorted(found.items()))


def types():
    out = {}
    octets = torch.arange(32, dtype=torch.uint8) * 7 + 1
    for name, dtype in dtypes().items():
        try:
            if name.startswith(("torch.q", "torch.uint")) and name[6] == "q":
                raise RuntimeError("made below")
            bits = torch.arange(4, dtype=torch.uint8) % 2 if dtype is torch.bool else octets.clone()
            out[name] = bits.view(dtype)
        except (RuntimeError, TypeError):
            continue  # a type without tensors, or one that is made otherwise
    out["dtypes"] = list(dtypes().values())
    return out


def own(tensor):
    """A compressed one whose parts are no views."""
    *ends, values = (getattr(tensor, name)().clone() for name in PARTS[tensor.layout])
    return torch.sparse_compressed_tensor(*ends, values, tensor.shape, layout=tensor.layout)


def by_channel(dtype, floats=False):
    scales, zeros = torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0.0, 1, 2])
    scales, zeros = (scales, zeros) if floats else (scales.double(), zeros.long())
    return torch.quantize_per_channel(numbers(3, 5), scales, zeros, 0, dtype)


def quantized(dtype=torch.qint8):
    return torch.quantize_per_tensor(numbers(3, 4), 0.1, 3, dtype)


def objects():
    grid = torch.tensor([[0, 1.0, 0], [2, 0, 3]])
    blocks = numbers(4, 6)
    return {
        "coo": grid.to_sparse(),
        "coo that is not coalesced": torch.sparse_coo_tensor([[0, 0, 1]], [1.0, 2.0, 3.0], (2,)),
        "hybrid coo": numbers(3, 2, 2).to_sparse(2),
        "empty coo": torch.sparse_coo_tensor(size=(3, 4)),
        "csr": own(grid.to_sparse_csr()),
        "csc": own(grid.to_sparse_csc()),
        "bsr": own(blocks.to_sparse_bsr((2, 3))),
        "bsc": own(blocks.to_sparse_bsc((2, 3))),
        "sparse parameter": torch.nn.Parameter(grid.to_sparse()),
        "qint8": quantized(),
        "view of qint8": quantized().t()[1:, ::2],
        "quint8": quantized(torch.quint8),
        "qint32": quantized(torch.qint32),
        "per channel": by_channel(torch.qint8),
        "per channel, floats": by_channel(torch.quint8, True),
        "quint4x2": by_channel(torch.quint4x2, True),
        "quint2x4": by_channel(torch.quint2x4, True),
        "nested": torch.nested.nested_tensor([numbers(2, 3), numbers(1, 3)]),
        "meta": torch.ones(2, 3, device="meta").t(),
        "storage": numbers(3).storage(),
        "storage of halves": numbers(3).half().storage(),
        "empty storage": torch.FloatStorage(),
        "untyped storage": torch.arange(6, dtype=torch.uint8).untyped_storage(),
    }


def plain():
    base, cyclic, twice = numbers(4, 6), [1], numbers(2)
    cyclic.append(cyclic)
    return {
        "views": [base, base.t(), base[1:, ::2], base[:0], base.flatten()[3:7], numbers(1, 3).expand(4, 3)],
        "two types of a storage": [numbers(4), numbers(4).view(torch.int32)],
        "one storage, two types": (lambda t: [t, t.view(torch.int32), t.view(torch.uint8)[5:]])(numbers(4)),
        "channels last": numbers(2, 3, 2, 2).contiguous(memory_format=torch.channels_last),
        "no elements": [torch.empty(0), torch.empty(2, 0, 3), torch.empty(0, dtype=torch.int64)],
        "a number": torch.tensor(2.5),
        "parameters": [torch.nn.Parameter(numbers(3)), torch.nn.Parameter(numbers(2), requires_grad=False)],
        "requires grad": numbers(2).requires_grad_(),
        "attributes": tagged(numbers(2), note="mine", more=[1, numbers(1)]),
        "parameter with attributes": tagged(torch.nn.Parameter(numbers(2)), shared=True),
        "buffer": torch.nn.Buffer(numbers(2)) if hasattr(torch.nn, "Buffer") else None,
        "conj": torch.tensor([1 + 2j]).conj(),
        "neg": torch.tensor([1 + 2j]).conj().imag,
        "an object twice": [twice, twice, {"again": twice}],
        "a cycle": cyclic,
        "numbers": [0, -1, 255, 65536, -(2**31), 2**63, -(2**200), 0.1, -0.0, float("inf"), 1 - 2j, True, None],
        "texts": ["", "a", "ä€𝄞", "x" * 300],
        "bytes": [b"\0\xff\n", bytearray(b"a\xff")],
        "containers": [(), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4), {1, 2}, {}, [], [[{"a": ([],)}]]],
        "keys": {1: "a", "1": "b", (1, "x"): "c", None: "d", 2.5: "e"},
        "ordered": tagged(collections.OrderedDict(a=1, b=numbers(1)), _metadata={"": {"version": 1}}),
        "counter": collections.Counter("aab"),
        "size": [torch.Size([2, 3]), torch.Size([])],
        "devices": [torch.device("cpu"), torch.device("cuda", 1), torch.device("meta")],
        "layouts": [torch.strided, torch.sparse_coo, torch.sparse_csr, torch.sparse_bsc],
        "schemes": [torch.per_tensor_affine, torch.per_channel_affine_float_qparams],
        "classes": [torch.Tensor, torch.FloatTensor, torch.cuda.HalfTensor, torch.sparse.IntTensor],
    }


def training():
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2), torch.nn.Linear(2, 1, bias=False))
    adam = torch.optim.AdamW(model.parameters(), lr=0.01)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.StepLR(sgd, 3)
    for _ in range(2):
        model(numbers(4, 3)).sum().backward()
        adam.step()
        sgd.step()
        schedule.step()
    return {
        "model": model.state_dict(),
        "adamw": adam.state_dict(),
        "sgd": sgd.state_dict(),
        "schedule": schedule.state_dict(),
        "generator": torch.get_rng_state(),
        "epoch": 3,
    }


def arrays():
    """What torch.load(weights_only=True) does not read, or not without a list of names."""
    grid = numpy.arange(6.0).reshape(2, 3)
    return {
        "arrays": [grid, numpy.asfortranarray(grid), grid[:, 1], numpy.array(3), numpy.zeros((2, 0)), grid[::2]],
        "types of arrays": [numpy.arange(3).astype(t) for t in "? i1 u2 i4 u8 f2 f4 c8 c16 U3 S2 >f4 >i8".split()],
        "scalars": [numpy.float64(0.1), numpy.int32(-5), numpy.bool_(True), numpy.float16(2), numpy.complex64(1j)],
        "generator of NumPy": numpy.random.RandomState(1).get_state(),
        "default dict": collections.defaultdict(list, a=[1]),
        "frozenset": frozenset([1, 2]),
        "empty bytes": [b"", bytearray()],
    }


FILES = {"types": types, "plain": plain, "objects": objects, "training": training, "arrays": arrays}


def written(state, legacy=False, protocol=2):
    out = io.BytesIO()
    torch.save(state, out, pickle_protocol=protocol, _use_new_zipfile_serialization=not legacy)
    return out.getvalue()


def again(data):
    """As this torch reads it. Its files are ours, so it may read all of it."""
    more = {"weights_only": False}
    return torch.load(io.BytesIO(data), **more)


def as_read(name, value, **how):
    """What this torch reads of what it writes of a value, or None: some values have no such form."""
    try:
        return described(again(written({"v": value}, **how))["v"])
    except Exception as error:  # noqa: BLE001  of any kind: the value is left out
        print(f"{name} is left out ({how}): {error}"[:150], file=sys.stderr)
        return None


def make(folder, names=tuple(FILES), jagged_too=False):
    """Saves the files, and what they have: {"types": {name: description}}, and the names that other forms lack.
    What this torch itself reads otherwise than it was ("changed") is described as it reads it.
    A jagged tensor imports most of torch, which takes seconds."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    values, forms, changed = {}, {}, []
    warnings.simplefilter("ignore")
    for file in names:
        state = {name: value for name, value in FILES[file]().items() if value is not None}
        values[file] = {name: as_read(name, value) for name, value in state.items()}
        values[file] = {name: is_ for name, is_ in values[file].items() if is_ is not None}
        state = {name: state[name] for name in values[file]}
        changed += [name for name, value in state.items() if described(value) != values[file][name]]
        if file == "objects":  # to a stream; the others to a path, so that the archive has the name of the file
            (folder / f"{file}.pt").write_bytes(written(state))
        else:
            torch.save(state, folder / f"{file}.pt")
        if file in ("types", "plain", "objects"):
            fit = {k: v for k, v in state.items() if as_read(k, v, legacy=True) == values[file][k]}
            (folder / f"{file}_legacy.pt").write_bytes(written(fit, legacy=True))
            forms[f"{file}_legacy"] = sorted(set(state) - set(fit))
    for protocol in (3, 4):
        (folder / f"plain_protocol{protocol}.pt").write_bytes(written(plain_small(), protocol=protocol))
        forms[f"plain_protocol{protocol}"] = sorted(set(values["plain"]) - set(plain_small()))
    if jagged_too and hasattr(torch, "jagged"):
        torch.save({"jagged": jagged(), "beside": numbers(2)}, folder / "jagged.pt")
    expected = {"torch": torch.__version__, "values": values, "left out": forms, "changed": changed}
    (folder / "expected.json").write_text(json.dumps(expected))


def plain_small():
    wanted = ("parameters", "numbers", "texts", "bytes", "containers", "an object twice", "a cycle", "size", "ordered")
    return {name: value for name, value in plain().items() if name in wanted}


def jagged():
    return torch.nested.nested_tensor([numbers(2, 3), numbers(1, 3)], layout=torch.jagged)


if __name__ == "__main__":
    make(sys.argv[1], jagged_too=True)
