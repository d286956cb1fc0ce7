# SPDX-License-Identifier: Apache-2.0
"""save(), load() and inspect() against stock torch and safetensors, both ways."""

import collections
import io
import json
import math
import os
import random
import stat
import zipfile

import penstock
import pytest

torch = pytest.importorskip("torch")
numpy = pytest.importorskip("numpy")
safetensors = pytest.importorskip("safetensors.torch")

_NAMES = (
    "float32 float64 float16 bfloat16 int64 int32 int16 int8 uint8 bool complex64 complex128 uint16 uint32 uint64 "
    "float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu"
)
DTYPES = [name for name in _NAMES.split() if hasattr(torch, name)]  # torch 2.6 has not the last one


def bytes_like(dtype, *shape):
    size = math.prod(shape) * getattr(torch, dtype).itemsize
    data = torch.arange(size).to(torch.uint8)
    return (data % 2 if dtype == "bool" else data).view(getattr(torch, dtype)).reshape(shape)


def raw(tensor):
    """The bytes of its storage."""
    storage = tensor.untyped_storage()
    return torch.empty(0, dtype=torch.uint8).set_(storage).numpy().tobytes()


def equal(a, b):
    """Same types, values, bits, strides, and sharing of objects and storages."""
    seen, storages = {}, {}

    def same(x, y):
        assert type(x) is type(y), (x, y)
        if id(x) in seen:
            assert seen[id(x)] == id(y) or isinstance(x, (int, str, float, bool, tuple, bytes, type(None)))
            return
        if isinstance(x, torch.Tensor):
            seen[id(x)] = id(y)
            assert (x.dtype, x.shape, x.stride()) == (y.dtype, y.shape, y.stride())
            assert x.storage_offset() == y.storage_offset() and x.requires_grad == y.requires_grad
            assert (x.is_conj(), x.is_neg()) == (y.is_conj(), y.is_neg())
            key = x.untyped_storage()._cdata
            assert storages.setdefault(key, y.untyped_storage()._cdata) == y.untyped_storage()._cdata
            assert raw(x) == raw(y)
        elif isinstance(x, numpy.ndarray):
            assert x.dtype == y.dtype and x.tobytes() == y.tobytes() and x.flags.f_contiguous == y.flags.f_contiguous
        elif isinstance(x, dict):
            seen[id(x)] = id(y)
            assert list(x) == list(y) and getattr(x, "default_factory", 0) is getattr(y, "default_factory", 0)
            for key in x:
                same(x[key], y[key])
            same(getattr(x, "__dict__", None), getattr(y, "__dict__", None))
        elif isinstance(x, (list, tuple)):
            seen[id(x)] = id(y)
            assert len(x) == len(y)
            for left, right in zip(x, y, strict=True):
                same(left, right)
        else:
            assert x == y or (x != x and y != y)

    same(a, b)


def plain_state():
    """What every reader reads, weights_only among them."""
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()
    base = torch.arange(48.0).reshape(6, 8)
    shared = [1, 2]
    return {
        "model": model.state_dict(),
        "opt": optimizer.state_dict(),
        "views": [base, base[1:3, 2:], base.t(), base[0].expand(3, 8), base[:0]],
        "parameter": torch.nn.Parameter(torch.ones(3), requires_grad=False),
        "grad": torch.ones(2, requires_grad=True),
        "dtypes": {d: bytes_like(d, 4, 2) for d in DTYPES},
        "conj": torch.ones(2, dtype=torch.complex64).conj(),
        "scalar": torch.tensor(3.5),
        "large": torch.arange(1 << 19).reshape(512, -1),
        "numbers": [0, -1, 255, 256, 65535, 65536, -(1 << 31), 1 << 31, -(1 << 63), 1 << 63, 1 << 200, -(1 << 200)],
        "floats": [0.0, -0.0, 1e-300, math.inf, -math.inf, math.nan],
        "strings": ["", "a", "\u20ac\U0001f600", "x" * 70000],
        "bytes": [b"", b"\x00\xff\x80", bytes(range(256))],
        "array": bytearray(b"ab"),
        "none": [None, True, False, 1 + 2j],
        "shared": (shared, shared),
        "set": {1, 2, "x"},
        "ordered": collections.OrderedDict([("b", 1), (2, ())]),
        "size": torch.Size([1, 2, 3]),
        "dtype": torch.bfloat16,
        "device": [torch.device("cpu"), torch.device("cuda", 3)],
        ("key", 1): {1: 1, 2.5: 2, None: 3, False: 4},
        "rng": [torch.get_rng_state(), random.getstate()],
        "many": list(range(3000)),
    }


def other_state():
    """What stock torch reads with weights_only=False only."""
    loop = [1]
    loop.append({"loop": loop})
    return {
        "default": collections.defaultdict(list, {"a": [1]}),
        "frozen": frozenset([1, 2]),
        "numpy": [
            numpy.arange(12).reshape(3, 4),
            numpy.asfortranarray(numpy.ones((3, 2), dtype="f4")),
            numpy.array("abc"),
        ],
        "empty": numpy.zeros((0, 3)),
        "scalars": [numpy.float64(1.5), numpy.int32(7), numpy.bool_(True), numpy.complex64(1j), numpy.str_("ab")],
        "rng": numpy.random.RandomState(3).get_state(),
        "bool": numpy.array([True, False]),
        "loop": loop,
    }


@pytest.mark.parametrize("how", ["plain", "mmap", "weights_only", "penstock"])
def test_pt_is_read_by_torch_and_by_us(tmp_path, how):
    state = plain_state()
    path = tmp_path / "state.pt"
    penstock.save(state, path)
    readers = {
        "plain": lambda: torch.load(path, weights_only=False),
        "mmap": lambda: torch.load(path, mmap=True, weights_only=True),
        "weights_only": lambda: torch.load(path, weights_only=True),
        "penstock": lambda: penstock.load(path),
    }
    equal(state, readers[how]())


def test_a_tensor_that_requires_grad_is_read_where_its_storage_has_no_type(tmp_path):
    """torch's own form of it cannot be read by torch: it sets the storage of a tensor that requires grad."""
    base = torch.arange(6.0)
    state = {
        "float8": torch.ones(4).to(torch.float8_e4m3fn).requires_grad_(),
        "leaf": base[1:4].requires_grad_(),
        "bits": base.view(torch.int32),
        "parameter": torch.nn.Parameter(base),
        "half": torch.zeros(3, dtype=torch.complex64).to(torch.complex32).requires_grad_(),
    }
    path = tmp_path / "state.pt"
    penstock.save({"all": state, "again": [state["leaf"]]}, path)
    for found in (
        torch.load(path, weights_only=True),
        torch.load(path, weights_only=False),
        torch.load(path, mmap=True),
        penstock.load(path),
    ):
        equal(state, found["all"])
        assert found["again"][0] is found["all"]["leaf"] and type(found["all"]["leaf"]) is torch.Tensor
        assert [one.requires_grad for one in found["all"].values()] == [True, True, False, True, True]
        assert found["all"]["leaf"].untyped_storage()._cdata == found["all"]["bits"].untyped_storage()._cdata
    with penstock.CheckpointStore(tmp_path / "c") as store:
        store.save(state)
        equal(state, store.load())


def test_what_weights_only_does_not_know_is_read_by_torch_and_by_us(tmp_path):
    state = other_state()
    path = tmp_path / "state.pt"
    penstock.save(state, path)
    for back in (torch.load(path, weights_only=False), penstock.load(path)):
        assert back["loop"][1]["loop"] is back["loop"]
        equal({**state, "loop": 0}, {**back, "loop": 0})


@pytest.mark.parametrize("legacy", [False, True])
def test_files_of_torch_are_read(tmp_path, legacy):
    path = tmp_path / "theirs.pt"
    state = plain_state()
    if legacy:  # torch itself does not reread these there
        state["dtypes"] = {d: t for d, t in state["dtypes"].items() if not d.startswith(("uint", "float8"))}
    torch.save(state, path, _use_new_zipfile_serialization=not legacy)
    equal(state, penstock.load(path))
    if not legacy:
        torch.save(other_state() | {"loop": 0}, path)
        equal(other_state() | {"loop": 0}, penstock.load(path))


def test_checksums_are_true_and_checked(tmp_path):
    path = tmp_path / "state.pt"
    penstock.save({"a": torch.arange(100_000), "b": torch.ones(3)}, path)
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        names = archive.namelist()
        assert not any(name.endswith(".format_version") for name in names)
        assert "state/version" in names and "state/byteorder" in names
    offset = next(t.offset for t in penstock.inspect(path) if t.name == "a")
    damaged = bytearray(path.read_bytes())
    damaged[offset + 4321] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(ValueError, match="tensor .a.*damaged"):
        penstock.load(path)


def test_zero_is_an_unknown_checksum(tmp_path):
    path = tmp_path / "state.pt"
    before = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)
    try:
        torch.save({"a": torch.arange(1000)}, path)
    finally:
        torch.serialization.set_crc32_options(before)
    assert torch.equal(penstock.load(path)["a"], torch.arange(1000))


def test_payloads_are_aligned_and_each_tensor_has_its_own_storage(tmp_path):
    path = tmp_path / "state.pt"
    state = {"small": [torch.ones(3) for _ in range(20)], "large": [torch.ones(1 << 18) for _ in range(3)]}
    penstock.save(state, path)
    infos = penstock.inspect(path)
    assert len(infos) == 23
    for info in infos:
        assert info.offset % (4096 if info.nbytes >= 1 << 20 else 64) == 0
    back = penstock.load(path)
    assert {t.untyped_storage().nbytes() for t in back["small"]} == {12}


class Custom:
    pass


@pytest.mark.parametrize(
    "state, place, says",
    [
        ({"opt": {"groups": [0, Custom()]}}, "state['opt']['groups'][1]", "Custom"),
        ({"f": print}, "state['f']", "builtin_function"),
        ({Custom(): 1}, "state[...]", "Custom"),
        ({"s": torch.ones(3).untyped_storage()}, "state['s']", "UntypedStorage"),
        ({"m": torch.ones(3, device="meta")}, "state['m']", "meta"),
        ({"n": numpy.array([object()])}, "state['n']", "NumPy"),
        ({"d": collections.defaultdict(Custom)}, "state['d']", "default_factory"),
    ],
)
def test_what_cannot_be_saved_is_named_with_its_place_and_leaves_the_old_file(tmp_path, state, place, says):
    path = tmp_path / "state.pt"
    penstock.save({"old": 1}, path)
    with pytest.raises(TypeError) as raised:
        penstock.save(state, path)
    assert place in str(raised.value) and says in str(raised.value)
    assert penstock.load(path) == {"old": 1}
    assert os.listdir(tmp_path) == ["state.pt"]


def test_what_is_not_a_state_is_refused_with_its_place_and_not_run(tmp_path):
    path = tmp_path / "hostile.pt"

    class Hostile:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "made"),)

    torch.save({"opt": {"groups": [1, Hostile()]}}, path)
    with pytest.raises(penstock.Unsupported, match=r"state\['opt'\]\['groups'\]\[1\].*posix.mkdir"):
        penstock.load(path)
    assert not (tmp_path / "made").exists()


def test_map_location(tmp_path):
    path = tmp_path / "state.pt"
    torch.save({"a": torch.ones(3)}, path)
    assert penstock.load(path, "meta")["a"].device.type == "meta"
    assert penstock.load(path, lambda storage, location: storage)["a"].tolist() == [1, 1, 1]


# ---- safetensors ----


def tensors():
    return {
        **{d: bytes_like(d, 2, 3) for d in DTYPES if d != "complex128"},
        "large": torch.arange(300_000),
        "scalar": torch.tensor(2.5),
        "empty": torch.ones(0, 3),
        'quote"\u20ac': torch.ones(5),
    }


def same_bits(a, b):
    assert set(a) == set(b)
    for name, tensor in a.items():
        other = b[name]
        assert (tensor.dtype, tensor.shape) == (other.dtype, other.shape)
        assert raw(tensor.contiguous()) == raw(other.contiguous())


def test_safetensors_reads_ours_and_we_read_theirs(tmp_path):
    path = tmp_path / "m.safetensors"
    penstock.save(tensors(), path)
    same_bits(tensors(), safetensors.load_file(path))
    same_bits(tensors(), penstock.load(path))
    with safetensors.safe_open(path, "pt") as opened:
        metadata = opened.metadata()
        assert metadata.pop("penstock.checksums").startswith("xxh3-64 262144 ") and metadata == {"format": "pt"}
    safetensors.save_file(tensors(), path, {"who": "them"})
    same_bits(tensors(), penstock.load(path))
    begins = {t.name: t.offset for t in penstock.inspect(path)}
    assert begins.keys() == tensors().keys()


def test_safetensors_is_aligned(tmp_path):
    path = tmp_path / "m.safetensors"
    penstock.save({"odd": torch.ones(3), "rows": torch.ones(512, 1024), "more": torch.ones(1024, 2)}, path)
    infos = {t.name: t for t in penstock.inspect(path)}
    assert infos["rows"].offset % 4096 == 0 and infos["more"].offset % 4096 == 0
    same_bits(safetensors.load_file(path), penstock.load(path))


def test_names_and_shards(tmp_path):
    shards = {f"model-{i:05}-of-00002.safetensors": {f"layer.{i}.w": torch.full((4,), i)} for i in (1, 2)}
    for name, state in shards.items():
        penstock.save(state, tmp_path / name)
    index = tmp_path / "model.safetensors.index.json"
    weight_map = {tensor: name for name, state in shards.items() for tensor in state}
    index.write_text(json.dumps({"metadata": {"total_size": 64}, "weight_map": weight_map}))
    whole = penstock.load(index)
    assert sorted(whole) == ["layer.1.w", "layer.2.w"]
    assert list(penstock.load(index, names="*.2.*")) == ["layer.2.w"]
    with pytest.raises(KeyError, match="layer.9"):
        penstock.load(index, names=["layer.9"])
    index.write_text(json.dumps({"weight_map": {"a": "../x.safetensors"}}))
    with pytest.raises(penstock.Unsupported, match="own folder"):
        penstock.load(index)


def test_what_safetensors_cannot_say_is_refused(tmp_path):
    base = torch.ones(10)
    with pytest.raises(ValueError, match=r"state\['a'\] and state\['b'\] share memory"):
        penstock.save({"a": base[:6], "b": base[4:]}, tmp_path / "m.safetensors")
    with pytest.raises(TypeError, match="state.'n'."):
        penstock.save({"n": 1}, tmp_path / "m.safetensors")
    penstock.save({"a": base[:5], "b": base[5:], "t": torch.ones(2, 3).t()}, tmp_path / "m.safetensors")
    assert os.listdir(tmp_path) == ["m.safetensors"]


# ---- files ----


def test_link_mode_and_umask(tmp_path):
    target, link = tmp_path / "target.pt", tmp_path / "link.pt"
    old = os.umask(0o027)
    try:
        penstock.save([1], target)
        assert stat.S_IMODE(target.stat().st_mode) == 0o640
        target.chmod(0o604)
        link.symlink_to(target)
        penstock.save([2], link)
    finally:
        os.umask(old)
    assert link.is_symlink() and penstock.load(target) == [2]
    assert stat.S_IMODE(target.stat().st_mode) == 0o604


def test_errors_of_the_system(tmp_path):
    with pytest.raises(FileNotFoundError):
        penstock.save([1], tmp_path / "no" / "state.pt")
    with pytest.raises(FileNotFoundError):
        penstock.load(tmp_path / "no.pt")
    with pytest.raises(ValueError, match="it is a folder"):
        penstock.save([1], tmp_path)
    with pytest.raises(TypeError, match="give a path"):
        penstock.save([1], 5)
    with pytest.raises(TypeError, match="text file"):
        penstock.save([1], io.StringIO())


def test_a_cut_or_damaged_file_is_an_error(tmp_path):
    path = tmp_path / "state.pt"
    penstock.save({"a": torch.arange(50), "b": [1, "x"]}, path)
    whole = path.read_bytes()
    for cut in range(0, len(whole), 97):
        path.write_bytes(whole[:cut])
        with pytest.raises(ValueError):
            penstock.load(path)
