# SPDX-License-Identifier: Apache-2.0
"""What torch.load(weights_only=True) reads is read, bit for bit. It is saved again, or refused by name."""

import collections
import copy
import io
import pathlib
import struct
import subprocess
import sys
import zipfile

import penstock
import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore")

DOCS = pathlib.Path(__file__).parents[2] / "docs" / "formats.md"
COMPRESSED = {torch.sparse_csr: ("crow", "col"), torch.sparse_bsr: ("crow", "col")}
COMPRESSED |= {torch.sparse_csc: ("ccol", "row"), torch.sparse_bsc: ("ccol", "row")}


def parts(tensor):
    """What a tensor is made of, down to bytes."""
    plain = tensor.detach()
    if plain.is_meta:
        return plain.stride()
    if plain.is_nested:
        return [parts(one) for one in plain.unbind()]
    if plain.layout is torch.sparse_coo:
        return parts(plain._indices()), parts(plain._values()), plain.is_coalesced(), plain.shape
    if plain.layout in COMPRESSED:
        ends, indices = (getattr(plain, f"{name}_indices")() for name in COMPRESSED[plain.layout])
        return parts(ends), parts(indices), parts(plain.values()), plain.shape
    bits = [bytes(plain.untyped_storage()), plain.storage_offset(), plain.shape, plain.stride(), plain.dtype]
    if plain.is_quantized and plain.qscheme() is torch.per_tensor_affine:
        return *bits, plain.q_scale(), plain.q_zero_point()
    if plain.is_quantized:
        scales = parts(plain.q_per_channel_scales()), parts(plain.q_per_channel_zero_points())
        return *bits, plain.qscheme(), *scales, plain.q_per_channel_axis()
    return *bits, plain.is_conj(), plain.is_neg()


def same(a, b, place="state"):
    assert type(a) is type(b), place
    if isinstance(a, torch.Tensor):
        for name in ("layout", "dtype", "device", "requires_grad", "is_nested"):
            assert getattr(a, name) == getattr(b, name), (place, name)
        assert repr(parts(a)) == repr(parts(b)), place
        same(a.__dict__, b.__dict__, f"{place}.__dict__")
    elif isinstance(a, torch.storage.TypedStorage):
        assert a.dtype == b.dtype and bytes(a._untyped_storage) == bytes(b._untyped_storage), place
    elif isinstance(a, dict):
        assert list(a) == list(b), place
        for key in a:
            same(a[key], b[key], f"{place}[{key!r}]")
        if type(a) is collections.OrderedDict:
            same(a.__dict__, b.__dict__, f"{place}.__dict__")
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b), place
        for i, (one, other) in enumerate(zip(a, b, strict=True)):
            same(one, other, f"{place}[{i}]")
    else:
        assert a is b or a == b, place


def tagged(tensor, **attributes):
    for name, value in attributes.items():
        setattr(tensor, name, value)
    return tensor


def numbers(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape)))


def by_channel(dtype, floats):
    scales, zeros = torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0.0, 1, 2])
    scales, zeros = (scales, zeros) if floats else (scales.double(), zeros.long())
    return torch.quantize_per_channel(numbers(3, 5), scales, zeros, 0, dtype)


def quantized(dtype=torch.qint8):
    return torch.quantize_per_tensor(numbers(3, 4), 0.1, 3, dtype)


def own(tensor):
    """A compressed one whose parts are no views."""
    ends, indices = (getattr(tensor, f"{name}_indices")().clone() for name in COMPRESSED[tensor.layout])
    return torch.sparse_compressed_tensor(ends, indices, tensor.values().clone(), tensor.shape, layout=tensor.layout)


def values():
    grid = torch.tensor([[0, 1.0, 0], [2, 0, 3]])
    octets = torch.arange(8, dtype=torch.uint8)
    return {
        "attributes": tagged(torch.ones(2), note="mine", more=[1, torch.zeros(2)]),
        "attributes and grad": tagged(torch.ones(2, requires_grad=True), a=1),
        "attributes of a float8": tagged(torch.ones(2).to(torch.float8_e4m3fn), a=1),
        "buffer": torch.nn.Buffer(torch.ones(2)),
        "parameter with state": tagged(torch.nn.Parameter(numbers(2)), _is_hf_initialized=True),
        "coo": grid.to_sparse(),
        "coo that is not coalesced": torch.sparse_coo_tensor([[0, 0, 1]], [1.0, 2.0, 3.0], (2,)),
        "hybrid coo": numbers(3, 4, 5).to_sparse(2),
        "empty coo": torch.sparse_coo_tensor(size=(3, 4)),
        "csr": own(grid.to_sparse_csr()),
        "csc": own(grid.to_sparse_csc()),
        "bsr": own(numbers(4, 6).to_sparse_bsr((2, 3))),
        "bsc": own(numbers(4, 6).to_sparse_bsc((2, 3))),
        "csr batches": own(torch.ones(2, 3, 4).to_sparse_csr()),
        "sparse with attributes": tagged(own(grid.to_sparse_csr()), a=1),
        "sparse parameter": tagged(torch.nn.Parameter(grid.to_sparse()), a=[1]),
        "qint8": quantized(),
        "view of qint8": quantized().t()[1:, ::2],
        "quint8": quantized(torch.quint8),
        "qint32": quantized(torch.qint32),
        "per channel": by_channel(torch.qint8, False),
        "per channel, floats": by_channel(torch.quint8, True),
        "quint4x2": by_channel(torch.quint4x2, True),
        "quint2x4": by_channel(torch.quint2x4, True),
        "quantized parameter": torch.nn.Parameter(quantized(), requires_grad=False),
        "nested": torch.nested.nested_tensor([numbers(2, 3), numbers(1, 3), numbers(4, 3)]),
        "bits8": octets.clone().view(torch.bits8)[1:],
        "bits16": octets.clone().view(torch.bits16),
        "float4": octets.clone().view(torch.float4_e2m1fn_x2).view(2, 4),
        "meta": torch.ones(2, 3, device="meta").t(),
        "meta parameter": torch.nn.Parameter(torch.ones(2, 2, device="meta")),
        "storage": numbers(5).storage(),
        "storage of qint8": quantized().storage(),
        "untyped storage": torch.arange(6, dtype=torch.uint8).untyped_storage(),
        "empty storage": torch.FloatStorage(),
        "layouts": [torch.strided, torch.sparse_coo, torch.sparse_csr, torch.jagged],
        "schemes": [torch.per_tensor_affine, torch.per_channel_affine_float_qparams],
        "dtypes": [torch.qint8, torch.quint4x2, torch.bits8, torch.uint4, torch.int1, torch.complex32],
        "classes": [torch.Tensor, torch.FloatTensor, torch.cuda.HalfTensor, torch.sparse.IntTensor],
        "bytes": [b"\0\xff\n\x80", b"", bytearray(b"a\xff\0"), bytearray()][::2],
        "containers": [{1, 2}, collections.Counter("aab"), collections.OrderedDict(a=1), torch.Size([2, 3]), 1 - 2j],
        "flags": [torch.tensor([1 + 2j]).conj(), torch.tensor([1 + 2j]).conj().imag],
        "strides": [numbers(2, 3, 4, 5).contiguous(memory_format=torch.channels_last), numbers(1, 3).expand(4, 3)],
    }


def file_of(state, legacy=False):
    out = io.BytesIO()
    torch.save(state, out, _use_new_zipfile_serialization=not legacy)
    return out.getvalue()


def torchs(data):
    return torch.load(io.BytesIO(data), weights_only=True)


def ours(data, **options):
    return penstock.load(io.BytesIO(data), **options)


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
def test_it_is_read_as_torch_reads_it(legacy):
    beside, torch_cannot = torch.ones(3), []
    for name, value in values().items():
        if legacy and name == "nested":  # torch looks into its sizes before it has read them
            continue
        try:
            data = file_of({"w": beside, "v": value, "again": [value, beside]}, legacy)
            wanted = torchs(data)
        except (AttributeError, RuntimeError):
            torch_cannot.append(name)
            continue
        found = ours(data)
        same(wanted, found, name)
        assert found["again"][1] is found["w"], name
        if not isinstance(value, list):
            assert found["again"][0] is found["v"], name
        same(wanted["v"], ours(data, names="v"), name)
        same(beside, ours(data, names="w"), name)
        assert penstock.inspect(io.BytesIO(data))[0].name == "w", name
    untyped = ["attributes of a float8", "bits8", "bits16", "float4", "untyped storage"]
    assert torch_cannot == (untyped if legacy else [])


def test_what_was_read_is_saved_again_with_equal_bits_or_refused(tmp_path):
    state, out = values(), tmp_path / "again.pt"
    for name in ("meta", "meta parameter"):
        with pytest.raises(TypeError, match=r"state\['v'\]: the tensor is on the meta device and has no data"):
            penstock.save(ours(file_of({"v": state.pop(name)})), out)
        assert not out.exists()
    data = file_of(state)
    wanted, found = torchs(data), ours(data)
    penstock.save(found, out)
    same(wanted, torchs(out.read_bytes()))
    same(wanted, penstock.load(out))
    with penstock.CheckpointStore(tmp_path / "store") as store:
        store.save(found, step=1)
        loaded = store.load()
    penstock.save(loaded, out)
    for name in ("flags", "strides", "bits8", "view of qint8"):  # a store keeps of a storage what its tensors use
        del wanted[name], loaded[name]
    same(wanted, loaded)
    same(wanted, {name: value for name, value in torchs(out.read_bytes()).items() if name in wanted})


def test_a_sparse_tensor_keeps_what_torch_loses(tmp_path):
    tensor = torch.eye(3).to_sparse().requires_grad_()
    penstock.save({"v": tensor}, tmp_path / "m.pt")
    same(tensor, penstock.load(tmp_path / "m.pt")["v"])
    assert torch.load(tmp_path / "m.pt", weights_only=True)["v"].requires_grad


def test_a_type_for_floats_leaves_scales_as_they_are():
    value, weight = by_channel(torch.qint8, False), numbers(3)
    found = ours(file_of({"v": value, "w": weight, "s": torch.eye(2).to_sparse()}), dtype="bfloat16")
    same(torchs(file_of(value)), found["v"])
    assert torch.equal(found["w"], weight.bfloat16()) and found["s"].dtype is torch.bfloat16


def test_a_state_with_attributes_of_tensors_is_not_converted_without_a_word(tmp_path):
    torch.save({"w": tagged(torch.ones(2), note=1)}, tmp_path / "m.pt")
    run = [sys.executable, "-m", "penstock", "checkpoint", "convert", tmp_path / "m.pt", tmp_path / "m.safetensors"]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    assert done.returncode != 0 and "state['w'], which is a tensor with attributes" in done.stderr
    subprocess.run([*run, "--tensors-only"], check=True, capture_output=True)
    assert list(penstock.load(tmp_path / "m.safetensors")) == ["w"]


def test_parts_have_names(tmp_path):
    path = tmp_path / "m.pt"
    torch.save({"w": torch.ones(2), "v": torch.eye(3).to_sparse(), "t": tagged(torch.ones(3), note=[1])}, path)
    assert [row.name for row in penstock.inspect(path)] == ["w", "v.indices", "v.values", "t"]
    same(torch.eye(3).to_sparse(), penstock.load(path, names="v"))
    assert penstock.load(path, names="t").note == [1]
    assert torch.equal(penstock.load(path, names="v.values"), torch.ones(3))
    same({"t": tagged(torch.ones(3), note=[1]), "w": torch.ones(2)}, penstock.load(path, names=["t", "w"]))
    assert torch.equal(penstock.load(path, names={"w": slice(1)})["w"], torch.ones(1))
    with pytest.raises(penstock.Unsupported, match="'v' is no dense tensor"):
        penstock.load(path, names={"v": slice(1)})


def test_a_type_that_torch_lacks_is_no_other_type(tmp_path, monkeypatch):
    path = tmp_path / "m.pt"
    torch.save({"w": torch.ones(2), "v": torch.zeros(2).to(torch.float8_e8m0fnu), "q": torch.bits8}, path)
    monkeypatch.delattr(torch, "float8_e8m0fnu")
    monkeypatch.delattr(torch, "bits8")
    with pytest.raises(penstock.Unsupported, match=r"state\['v'\] is of torch.float8_e8m0fnu, which torch .* not have"):
        penstock.load(path)
    with pytest.raises(penstock.Unsupported, match="is of torch.bits8"):
        penstock.load(path, names="q")
    assert torch.equal(penstock.load(path, names="w"), torch.ones(2))


# ---- torch's own list

NOT_READ = {
    "torch._utils._rebuild_wrapper_subclass": "its class is of another package",
    "torch._utils._rebuild_device_tensor_from_numpy": "of torch before 2.6, for XLA",
    "torch.storage.TypedStorage": "no file names it: its classes have names of their own",
}


def test_all_names_of_torchs_list_are_read():
    from torch._weights_only_unpickler import _get_allowed_globals

    lacking = [name for name in _get_allowed_globals() if not penstock._core.is_name_read(*name.rpartition(".")[::2])]
    assert sorted(lacking) == sorted(name for name in NOT_READ if name in _get_allowed_globals())
    assert not penstock._core.is_name_read("os", "system")
    text = DOCS.read_text()
    assert all(f"`{name}`" in text for name in NOT_READ)


def test_the_list_in_the_docs_is_the_table():
    text = DOCS.read_text()
    for module, name, gives in penstock._core.names_read():
        assert f"| `{module}.{name}` | {gives} |" in text


# ---- layouts of other torches, byte for byte


def pickle_of(body):
    return b"\x80\x02" + body + b"."


def text(string):
    return b"X" + struct.pack("<I", len(string)) + string.encode()


def storage(kind, key, elements, view=b""):
    return (
        b"("
        + text("storage")
        + b"ctorch\n"
        + kind
        + b"\n"
        + text(key)
        + text("cpu")
        + b"K"
        + bytes([elements])
        + (view + b"tQ")
    )


def legacy_file(state, storages, little=True):
    """As torch before 1.6 wrote it. storages: (key, elements, bytes)."""
    out = pickle_of(b"\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19") + pickle_of(b"M\xe9\x03")
    out += pickle_of(b"}" + text("little_endian") + (b"\x88" if little else b"\x89") + b"s")
    out += pickle_of(state) + pickle_of(b"](" + b"".join(text(key) for key, *_ in storages) + b"e")
    return out + b"".join(struct.pack("<q", count) + data for _, count, data in storages)


def test_what_older_torches_wrote_is_read():
    floats = struct.pack("<4f", 1, 2, 3, 4)
    store = storage(b"FloatStorage", "a", 4, b"N")
    sizes = b"K\x00K\x02K\x02\x86K\x02K\x01\x86"
    v2 = b"ctorch._utils\n_rebuild_tensor_v2\n(" + store + sizes + b"\x89ccollections\nOrderedDict\n)RtR"
    forms = {
        "torch 0.4 of Python 2": b"ccollections\nOrderedDict\n](](U\x01w" + v2 + b"ee\x85R",
        "torch 0.3": b"}U\x01wctorch._utils\n_rebuild_tensor\n(" + store + sizes + b"tRs",
        "torch 0.1": b"}U\x01wctorch\nFloatTensor\n)R(" + store + sizes + b"tbs",
        "a new object": b"}U\x01wctorch\nFloatTensor\n)\x81(" + store + sizes + b"tbs",
    }
    for name, state in forms.items():
        data = legacy_file(state, [("a", 4, floats)])
        wanted, found = torchs(data), ours(data)
        same(wanted, found, name)
        assert found["w"].tolist() == [[1, 2], [3, 4]], name
    parameter = b"}U\x01wctorch.nn.parameter\nParameter\n" + v2 + b"\x88\x86"
    for call in (b"\x81", b"R"):
        data = legacy_file(parameter + call + b"(\x89\x89ccollections\nOrderedDict\n)Rtbs", [("a", 4, floats)])
        same(torchs(data), ours(data))
        assert not ours(data)["w"].requires_grad
    view = storage(b"FloatStorage", "a", 4, text("b") + b"K\x01K\x02\x87")
    data = legacy_file(
        b"}U\x01wctorch._utils\n_rebuild_tensor\n(" + view + b"K\x00K\x02\x85K\x01\x85tRs", [("a", 4, floats)]
    )
    assert torchs(data)["w"].tolist() == ours(data)["w"].tolist() == [2, 3]
    # A machine that is big-endian wrote this form little-endian, too.
    same(torchs(data), ours(legacy_file(b"}U\x01w" + v2 + b"s", [("a", 4, floats)], little=False)) and torchs(data))


def rewritten(data, change):
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(out, "w") as new:
        for info in old.infolist():
            new.writestr(info.filename, change(info.filename, old.read(info)))
    return out.getvalue()


def swapped(data):
    """The file as a big-endian machine would have written it."""
    state, widths = torchs(data), {}
    for tensor in state.values():
        width = tensor.element_size() // (2 if tensor.is_complex() else 1)
        widths[bytes(tensor.untyped_storage())] = width

    def turned(name, content):
        if "/data/" not in name:
            return b"big" if name.endswith("/byteorder") else content
        width = widths[content]
        return b"".join(content[i : i + width][::-1] for i in range(0, len(content), width))

    return rewritten(data, turned)


def test_big_endian_files_are_turned_by_element(tmp_path):
    kinds = [torch.float64, torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.complex64]
    untyped = [torch.uint16, torch.uint64, torch.float8_e4m3fn, torch.complex32]
    state = {str(kind): torch.arange(1, 7).to(torch.float32).to(kind).clone() for kind in kinds + untyped}
    data = file_of(state)
    turned = swapped(data)
    assert turned != data
    same(state, ours(turned))
    same({str(kind): state[str(kind)] for kind in kinds}, {str(kind): torchs(turned)[str(kind)] for kind in kinds})
    # torch leaves what has no class of storages as it is.
    assert not torch.equal(torchs(turned)["torch.uint16"].view(torch.uint8), state["torch.uint16"].view(torch.uint8))
    path = tmp_path / "big.pt"
    path.write_bytes(turned)
    same(state, penstock.load(path))
    assert torch.equal(penstock.load(path, names={"torch.int64": slice(1, 3)})["torch.int64"], torch.tensor([2, 3]))
    into = copy.deepcopy(state)
    for tensor in into.values():
        tensor.view(torch.uint8).zero_()
    penstock.load(path, into=into)
    same(state, into)
    with pytest.raises(penstock.Unsupported, match="a big-endian machine"):
        penstock.load(path, mmap=True)
    one, mixed = torch.arange(8, dtype=torch.uint8).view(torch.float16), io.BytesIO()
    penstock.save({"a": one, "b": one.view(torch.int32), "w": torch.ones(2)}, mixed)
    with pytest.raises(penstock.Unsupported, match="tensors of 2 and of 4 bytes an element"):
        ours(rewritten(mixed.getvalue(), lambda name, content: b"big" if name.endswith("byteorder") else content))


# ---- several objects in one stream


def several(save, count=3):
    states = [{"w": torch.full((200 * i + 1,), float(i)), "i": i} for i in range(count)]
    out = io.BytesIO()
    for state in states:
        save(state, out)
    return states, out.getvalue()


def legacy_save(state, out):
    torch.save(state, out, _use_new_zipfile_serialization=False)


@pytest.mark.parametrize("save", [penstock.save, torch.save, legacy_save], ids=["ours", "torch", "legacy"])
def test_several_objects_in_one_file_are_read_in_order(tmp_path, save):
    states, data = several(save)
    path = tmp_path / "several.pt"
    path.write_bytes(b"head" + data + b"tail")
    with open(path, "rb") as file:
        file.seek(4)
        for state in states:
            same(state, penstock.load(file))
        assert file.read() == b"tail"
    stream = io.BytesIO(data)
    for state in states:
        same(state, penstock.load(stream))
    assert stream.read() == b""
    path.write_bytes(data)
    same(states[0], penstock.load(path))
    same(states[0]["w"], penstock.load(path, mmap=True)["w"])


@pytest.mark.parametrize("save", [penstock.save, torch.save, legacy_save], ids=["ours", "torch", "legacy"])
def test_bytes_after_the_end_are_no_damage(tmp_path, save):
    (state,), data = several(save, 1)
    for more in (b"\0" * 100, b"PK\x05\x06", b"x" * 60000):
        same(state, ours(data + more))
        if more[0] == 0:
            same(state, torchs(data + more))
    for cut in range(1, len(data), 97):
        with pytest.raises(penstock.Damaged):
            ours(data[:-cut])


def test_two_of_equal_size_are_told_apart():
    out = io.BytesIO()
    for i in range(4):
        penstock.save({"w": torch.full((300000,), i, dtype=torch.int64)}, out)
    out.seek(0)
    assert [int(penstock.load(out)["w"][7]) for _ in range(4)] == [0, 1, 2, 3]


# ---- other things


def test_others_are_named(tmp_path):
    script = torch.jit.script(torch.nn.Linear(2, 2))
    script.save(tmp_path / "script.pt")
    with pytest.raises(penstock.Error, match="TorchScript archive"):
        penstock.load(tmp_path / "script.pt")
    tar = tmp_path / "tar.pt"
    tar.write_bytes(b"sys_info".ljust(257, b"\0") + b"ustar\x0000".ljust(255, b"\0"))
    with pytest.raises(penstock.Error, match=r"tar archive; if torch 0.1 wrote it"):
        penstock.load(tar)


@pytest.mark.parametrize(
    "attack",
    [
        lambda t: torch.sparse_coo_tensor(torch.tensor([[0, 99]]), torch.ones(2), (3,), check_invariants=False),
        lambda t: torch.sparse_csr_tensor(
            torch.tensor([0, 1, 2]), torch.tensor([0, 99]), torch.ones(2), (2, 3), check_invariants=False
        ),
        lambda t: torch.sparse_csr_tensor(
            torch.tensor([0, 99, 2]), torch.tensor([0, 1]), torch.ones(2), (2, 3), check_invariants=False
        ),
    ],
)
def test_indices_past_the_end_are_damage(attack):
    data = file_of({"v": attack(None), "w": torch.ones(1)})
    with pytest.raises(penstock.Damaged):
        ours(data)
    assert torch.equal(ours(data, names="w"), torch.ones(1))


def test_float4_in_a_safetensors(tmp_path):
    from penstock.safetensors import safe_open
    from penstock.safetensors.torch import save_file as our_save_file
    from safetensors.torch import load_file, save_file

    packed = torch.arange(24, dtype=torch.uint8).view(torch.float4_e2m1fn_x2).view(2, 3, 4)
    state = {"packed": packed, "turned": packed.view(torch.uint8).clone().view(packed.dtype).transpose(0, 1)}
    state["scale"] = torch.ones(2)
    plain = {name: tensor.view(torch.uint8).contiguous() for name, tensor in state.items()}
    theirs, mine, face = (tmp_path / f"{name}.safetensors" for name in ("theirs", "mine", "face"))
    save_file({name: tensor.view(state[name].dtype) for name, tensor in plain.items()}, theirs)
    penstock.save(state, mine)
    our_save_file({"packed": packed, "scale": torch.ones(2)}, face)
    for path in (theirs, mine):
        for found in (penstock.load(path), load_file(path), penstock.load(path, mmap=True)):
            assert {name: tensor.dtype for name, tensor in found.items()} == {n: t.dtype for n, t in state.items()}
            assert all(torch.equal(found[name].view(torch.uint8), plain[name]) for name in plain)
    assert torch.equal(load_file(face)["packed"].view(torch.uint8), plain["packed"])
    assert torch.equal(safe_open(theirs, "pt").get_tensor("turned").view(torch.uint8), plain["turned"])
    part = penstock.load(mine, names={"packed": (slice(1), slice(1, 3))})["packed"]
    assert torch.equal(part.view(torch.uint8), plain["packed"][:1, 1:3])
    into = {
        name: torch.empty_like(tensor.contiguous().view(torch.uint8)).view(tensor.dtype)
        for name, tensor in state.items()
    }
    penstock.load(theirs, into=into)
    assert torch.equal(into["packed"].view(torch.uint8), plain["packed"])
