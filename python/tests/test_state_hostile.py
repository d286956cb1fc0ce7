# SPDX-License-Identifier: Apache-2.0
"""Whatever a file holds, load() and inspect() end with a value, an OSError or a ValueError (Damaged is both), and a
KeyError for a name that was asked for: files made by hand, and thousands of changed ones."""

import collections
import io
import json
import pickle
import random
import struct
import zipfile
from pathlib import Path

import penstock
import pytest

torch = pytest.importorskip("torch")
utils = torch._utils


class Storage:
    """A storage of a .pt, as its pickle has it."""

    def __init__(self, kind=torch.FloatStorage, key="0", location="cpu", elements=6):
        self.row = ("storage", kind, key, location, elements)


class Call:
    """A call of a function that torch's files name."""

    def __init__(self, function, *arguments):
        self.function, self.arguments = function, arguments

    def __reduce__(self):
        return self.function, self.arguments


class Pickler(pickle.Pickler):
    def persistent_id(self, obj):
        return obj.row if isinstance(obj, Storage) else None


def pickled(obj):
    out = io.BytesIO()
    Pickler(out, 2).dump(obj)
    return out.getvalue()


def zipped(data_pkl, storages=(24,)):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("archive/data.pkl", data_pkl)
        archive.writestr("archive/byteorder", "little")
        for i, size in enumerate(storages):
            archive.writestr(f"archive/data/{i}", bytes(size))
        archive.writestr("archive/version", "3\n")
    return out.getvalue()


def tensor(storage=None, offset=0, size=(2, 3), stride=(3, 1), grad=False):
    return Call(utils._rebuild_tensor_v2, storage or Storage(), offset, size, stride, grad, collections.OrderedDict())


def untyped(dtype, size=(24,), stride=(1,), elements=24):
    storage = Storage(torch.storage.UntypedStorage, elements=elements)
    return Call(utils._rebuild_tensor_v3, storage, 0, size, stride, False, collections.OrderedDict(), dtype)


def graded(*changes):
    """A tensor that requires grad, as the writer makes it on an untyped storage, with other arguments at places."""
    made = untyped(torch.float32, (6,))
    arguments = [made.function, torch.Tensor, made.arguments, {"requires_grad": True}]
    for place, value in changes:
        arguments[place] = value
    return Call(torch._tensor._rebuild_from_type_v2, *arguments)


HUGE = 1 << 62
PT = {
    "a gradient of bytes": {"w": graded((2, untyped(torch.uint8).arguments))},
    "a gradient that is no bool": {"w": graded((3, {"requires_grad": 5}))},
    "a tensor with another attribute": {"w": graded((3, {"data": True}))},
    "a tensor with two attributes": {"w": graded((3, {"requires_grad": True, "x": True}))},
    "a tensor without attributes": {"w": graded((3, {}))},
    "a tensor whose attributes are a list": {"w": graded((3, ["requires_grad", True]))},
    "a tensor of a storage class": {"w": graded((1, torch.FloatStorage))},
    "a tensor that a set makes": {"w": graded((0, set))},
    "a tensor of a tensor that is made already": {"w": graded((2, (untyped(torch.float32, (6,)),)))},
    "the class of tensors": {"w": torch.Tensor},
    "the class of tensors, called": {"w": Call(torch.Tensor, 3)},
    "a device that nobody knows": {"d": Call(torch.device, "nonsense")},
    "a device with a number that cannot be": {"d": Call(torch.device, "cuda", HUGE)},
    "a device of a name with NUL": {"d": Call(torch.device, "cp\0u")},
    "a storage of a device that nobody knows": {"w": tensor(Storage(location="nonsense:7"))},
    "a storage without a place": {"w": tensor(Storage(location=""))},
    "a storage of an accelerator that torch knows": {"w": tensor(Storage(location="hpu:0"))},
    "a storage of mps": {"w": tensor(Storage(location="mps"))},
    "a storage of xla": {"w": tensor(Storage(location="xla:0"))},
    "a storage of a GPU that no machine has": {"w": tensor(Storage(location="cuda:12345"))},
    "a storage of a GPU with no number": {"w": tensor(Storage(location="cuda:x"))},
    "a storage of the meta device": {"w": tensor(Storage(location="meta"))},
    "a gradient of integers": {"w": tensor(Storage(torch.LongStorage, elements=3), 0, (3,), (1,), True)},
    "a gradient of bool": {"w": tensor(Storage(torch.BoolStorage, elements=24), 0, (3,), (1,), True)},
    "a parameter of integers": {
        "w": Call(utils._rebuild_parameter, tensor(Storage(torch.LongStorage, elements=3), 0, (3,), (1,)), True, {})
    },
    "sizes whose product overflows": {"w": tensor(None, 0, (HUGE, 8, 0), (1, 1, 1))},
    "sizes next to a zero": {"w": tensor(None, 0, (0, HUGE, HUGE), (HUGE, HUGE, 1))},
    "strides that overflow": {"w": tensor(None, 0, (1, 2), (HUGE, HUGE))},
    "strides of one element": {"w": tensor(None, 0, (1, 1), (HUGE * 2 - 1, HUGE))},
    "an offset that overflows": {"w": tensor(None, HUGE, (0,), (1,))},
    "an offset that is negative": {"w": tensor(None, -1, (1,), (1,))},
    "a size that is negative": {"w": tensor(None, 0, (-1, 3), (3, 1))},
    "a stride that is negative": {"w": tensor(None, 5, (3,), (-1,))},
    "sizes and strides of two lengths": {"w": tensor(None, 0, (2, 3), (1,))},
    "65 dimensions": {"w": tensor(None, 0, (1,) * 65, (1,) * 65)},
    "elements of less than a byte": {"w": untyped(getattr(torch, "float4_e2m1fn_x2", torch.uint8))},
    "elements of no tensor": {"w": untyped(getattr(torch, "uint4", torch.uint8))},
    "quantized elements": {"w": untyped(torch.quint8)},
    "a storage that is longer than its record": {"w": tensor(Storage(elements=HUGE))},
    "a storage that is not there": {"w": tensor(Storage(key="7"))},
    "a dict in a set": {"s": Call(set, [{}])},
    "a list as a key": Call(dict, [([1], 2)]),
    "a tensor as a factory": Call(collections.defaultdict, tensor(), {}),
    "a complex number of strings": Call(complex, "x", "y"),
    "a size of strings": Call(torch.Size, ("x",)),
    "a size of huge numbers": Call(torch.Size, (HUGE, 1 << 80)),
    "attributes that are no dict": Call(utils._rebuild_parameter, 5, True, {}),
}


def outcomes(path, data):
    """What each way to read it ended with: None or the exception."""
    path.write_bytes(data)
    for read in (
        lambda: penstock.load(path),
        lambda: penstock.inspect(path),
        lambda: penstock.load(path, mmap=True),
        lambda: penstock.load(path, names="w"),
        lambda: penstock.load(path, into={"w": torch.zeros(2, 3)}),
        lambda: penstock.load(io.BytesIO(data)),
        lambda: penstock.inspect(io.BytesIO(data)),
    ):
        try:
            read()
            yield None
        except BaseException as error:
            yield error


def allowed(error):
    return error is None or isinstance(error, (OSError, ValueError, KeyError))


@pytest.mark.parametrize("what", PT)
def test_pt(tmp_path, what):
    for error in outcomes(tmp_path / "m.pt", zipped(pickled(PT[what]))):
        assert allowed(error), repr(error)


def test_the_hand_made_files_are_read_where_they_are_sound(tmp_path):
    """Or none of the others would show anything."""
    path = tmp_path / "m.pt"
    path.write_bytes(zipped(pickled({"w": tensor(), "s": Call(set, [1])})))
    for load in (torch.load, penstock.load):
        found = load(path)
        assert found["s"] == {1} and torch.equal(found["w"], torch.zeros(2, 3))


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_storage_of_a_gpu_names_the_cure(tmp_path):
    path = tmp_path / "m.pt"
    path.write_bytes(zipped(pickled({"model": {"w": tensor(Storage(location="cuda:0"))}})))
    with pytest.raises(ValueError, match=r"load: '.*m\.pt': .*'cuda:0'.*map_location='cpu'"):
        penstock.load(path)
    assert torch.equal(penstock.load(path, map_location="cpu")["model"]["w"], torch.zeros(2, 3))
    assert torch.equal(penstock.load(path, map_location={"cuda:0": "cpu"})["model"]["w"], torch.zeros(2, 3))


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
@pytest.mark.parametrize("where", ["cuda", torch.device("cuda:1"), {"cpu": "cuda"}])
@pytest.mark.parametrize("name", ["m.pt", "m.safetensors"])
def test_a_map_location_that_is_not_here_is_named(tmp_path, name, where):
    path = tmp_path / name
    penstock.save({"w": torch.zeros(3)}, path)
    with pytest.raises(ValueError, match=r"load: '.*': map_location='cuda.*': no GPU .*map_location='cpu'") as raised:
        penstock.load(path, map_location=where)
    assert "is of the device" not in str(raised.value)


@pytest.mark.parametrize("name", ["m.pt", "m.safetensors"])
def test_a_long_name_is_cut_in_messages(tmp_path, name):
    path, key = tmp_path / name, "w" * 100_000
    penstock.save({key: torch.zeros(3)}, path)
    wrong = [
        lambda: penstock.load(path, into={key: torch.zeros(4)}),
        lambda: penstock.load(path, into={key: torch.zeros(3, device="meta")}),
        lambda: penstock.load(path, into={key + "x": torch.zeros(3)}),
        lambda: penstock.load(path, names=[key + "x"]),
        lambda: penstock.load(path, names={key: slice(0, 1, 0)}),
        lambda: penstock.save({key: object()}, path),
        lambda: penstock.save({key: {key: torch.zeros(3, device="meta")}}, path),
    ]
    for call in wrong:
        with pytest.raises((ValueError, KeyError, TypeError)) as raised:
            call()
        assert len(str(raised.value)) < 1000, str(raised.value)[:200]


def test_a_tensor_that_is_larger_than_any_memory_is_a_memory_error(tmp_path):
    """One element, expanded: the state is read, and a tensor of its own cannot be had."""
    path = tmp_path / "m.pt"
    path.write_bytes(zipped(pickled({"w": tensor(None, 0, (HUGE >> 4,), (0,))})))
    assert penstock.load(path)["w"].shape == (HUGE >> 4,)
    with pytest.raises(MemoryError, match="tensor 'w': no memory"):
        penstock.load(path, names="w")


def test_what_a_map_location_of_ones_own_raises_is_its_own(tmp_path):
    path = tmp_path / "m.pt"
    path.write_bytes(zipped(pickled({"w": tensor()})))

    def wrong(storage, location):
        raise RuntimeError("of mine")

    with pytest.raises(RuntimeError, match="of mine"):
        penstock.load(path, map_location=wrong)


# ---- .safetensors


def safetensors(header, data=None):
    if data is None:
        ends = (
            [row["data_offsets"][1] for row in header.values() if "dtype" in row] if isinstance(header, dict) else [4]
        )
        data = bytes(min(1000, *ends, *ends))
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(dtype="F32", shape=(2, 3), begin=0, end=24):
    return {"w": {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}}


SAFETENSORS = {
    "an unknown type": entry("F33"),
    "elements of 4 bits": entry("F4", (48,)),
    "elements of 6 bits": entry("F6_E2M3", (32,)),
    "elements of 6 bits, the other": entry("F6_E3M2", (32,)),
    "a type of two complex numbers": entry("C128", (1, 1), 0, 16),
    "E8M0": entry("F8_E8M0", (24,)),
    "sizes whose product overflows": entry("F32", (HUGE, HUGE, 0), 0, 0),
    "a size beyond 64 bits": entry("F32", (1 << 70, 0), 0, 0),
    "a size that is negative": entry("F32", (-1,), 0, 0),
    "a size that is no integer": entry("F32", (1.5,)),
    "300 dimensions": entry("F32", (1,) * 300, 0, 4),
    "offsets backwards": entry("F32", (0,), 9, 3),
    "offsets past the end": entry("F32", (1 << 40,), 0, 1 << 42),
    "metadata of numbers": {**entry(), "__metadata__": {"a": 1}},
    "names that are no UTF-8": b'{"\xff":{"dtype":"F32","shape":[],"data_offsets":[0,4]}}',
    "a lone surrogate": b'{"\\ud800":{"dtype":"F32","shape":[],"data_offsets":[0,4]}}',
    "a table of sums that is none": {**entry(), "__metadata__": {"penstock.sums": "x", "penstock": "[1"}},
    "depth": b"[" * 100_000,
}


@pytest.mark.parametrize("what", SAFETENSORS)
def test_safetensors(tmp_path, what):
    for error in outcomes(tmp_path / "m.safetensors", safetensors(SAFETENSORS[what])):
        assert allowed(error), repr(error)


@pytest.mark.parametrize("kind", ["F4", "F6_E2M3", "F6_E3M2"])
def test_types_that_torch_lacks_are_named(tmp_path, kind):
    path = tmp_path / "m.safetensors"
    shape = (16, 3) if kind == "F4" else (32,)  # torch has two F4 as one element
    path.write_bytes(safetensors(entry(kind, shape, 0, 24)))
    with pytest.raises(penstock.Unsupported, match=f"tensor 'w': torch has no type for {kind}"):
        penstock.load(path)


# ---- many


def plain_state():
    pair = torch.ones(3, 2)
    return {
        "w": torch.arange(6.0).reshape(2, 3),
        "p": torch.nn.Parameter(pair),
        "i": torch.arange(4),
        "h": torch.ones(5, dtype=torch.bfloat16).t(),
        "c": torch.ones(2, dtype=torch.complex64).conj(),
        "values": [1, 2.5, None, True, 1 << 80, 1 + 2j, "text", (1, 2), {3, "a"}, torch.float16, torch.Size([1, 2])],
        "od": collections.OrderedDict(a=1, b=pair),
        "device": torch.device("cpu"),
    }


def changed(data, draw, first, end):
    """Some bytes of [first, end) are others, gone, new, or moved."""
    data = bytearray(data)
    for _ in range(draw.choice([1, 1, 1, 2, 4])):
        at, length = draw.randrange(first, end), draw.randrange(1, 9)
        kind = draw.randrange(6)
        if kind == 0:
            data[at : at + 1] = bytes([data[min(at, len(data) - 1)] ^ 1 << draw.randrange(8)])
        elif kind == 1:
            data[at : at + 1] = bytes([draw.choice(b"\x00\x01\x7f\x80\xff09-.QKMJ(tRc")])
        elif kind == 2:
            del data[at : at + length]
        elif kind == 3:
            data[at:at] = draw.randbytes(length)
        elif kind == 4:
            number = draw.choice([0, -1, HUGE, 1 << 31, (1 << 63) - 1, -(1 << 63)])
            data[at : at + 8] = struct.pack("<q", number)
        else:
            other = draw.randrange(first, end)
            data[at : at + length] = data[other : other + length]
    return bytes(data)


def sources(tmp_path):
    """(suffix, function from a changed middle to a file, the middle)."""
    stock = io.BytesIO()
    torch.save(plain_state(), stock)
    path = tmp_path / "ours.pt"
    penstock.save(plain_state(), path)
    for data in (stock.getvalue(), path.read_bytes()):
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            records = {name: archive.read(name) for name in archive.namelist()}
        (name,) = (name for name in records if name.endswith("data.pkl"))

        def remade(text, records=records, name=name):
            out = io.BytesIO()
            with zipfile.ZipFile(out, "w") as made:
                for key, value in records.items():
                    made.writestr(key, text if key == name else value)
            return out.getvalue()

        yield "pt", remade, records[name]
        yield "pt", lambda data: data, data
    legacy = io.BytesIO()
    torch.save(plain_state(), legacy, _use_new_zipfile_serialization=False)
    yield "pt", lambda data: data, legacy.getvalue()
    path = tmp_path / "ours.safetensors"
    penstock.save({name: tensor for name, tensor in plain_state().items() if isinstance(tensor, torch.Tensor)}, path)
    data = path.read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    yield "safetensors", lambda text: safetensors(text, data[end:]), data[8:end]
    yield "safetensors", lambda data: data, data


@pytest.mark.parametrize("number", range(7))
def test_changed_files(tmp_path, number):
    suffix, made, middle = list(sources(tmp_path))[number]
    draw, refused, taken = random.Random(number), 0, 0
    for _ in range(100):
        data = made(changed(middle, draw, 0, len(middle)))
        for error in outcomes(tmp_path / f"m.{suffix}", data):
            assert allowed(error), (repr(error), data)
            refused, taken = refused + (error is not None), taken + (error is None)
    assert refused > 70 and taken > 0


def test_changed_stores(tmp_path):
    with penstock.CheckpointStore(tmp_path / "c") as store:
        folder = store.save(plain_state()).path
    draw, taken = random.Random(5), 0
    files = {path: path.read_bytes() for path in sorted(Path(folder).iterdir())}
    reader = penstock.CheckpointStore(tmp_path / "c")
    for _ in range(60):
        path = draw.choice(list(files))
        path.write_bytes(changed(files[path], draw, 0, min(len(files[path]), 4000)))
        for read in (
            lambda: reader.load(generation=1),
            lambda: reader.load(generation=1, into={"w": torch.zeros(2, 3)}),
            lambda: reader.load(generation=1, names="w"),
            lambda: penstock.Checkpoint(folder).verify(),
            reader.list,
        ):
            try:
                read()
                taken += 1
            except BaseException as error:
                assert allowed(error), repr(error)
        path.write_bytes(files[path])
    assert taken > 30
