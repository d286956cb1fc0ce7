# SPDX-License-Identifier: Apache-2.0
"""Results do not depend on torch's modes: a table of calls and modes. Each call gives under a mode what it gives
without one. Under FakeTensorMode, where tensors have no data, it may be a RuntimeError that names the mode."""

import collections
import contextlib

import numpy
import penstock
import penstock.safetensors.torch
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode


@contextlib.contextmanager
def default_dtype(dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextlib.contextmanager
def default_device(device):
    torch.set_default_device(device)
    try:
        yield
    finally:
        torch.set_default_device(None)


MODES = {
    "meta as a context": lambda: torch.device("meta"),
    "meta by default": lambda: default_device("meta"),
    # Nothing can be made there: this torch has no CUDA.
    "a GPU by default": lambda: default_device("cuda"),
    "float64 by default": lambda: default_dtype(torch.float64),
    "float16 by default": lambda: default_dtype(torch.float16),
    "inference mode": torch.inference_mode,
    "no_grad": torch.no_grad,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "deterministic": lambda: deterministic(),
    "FakeTensorMode": FakeTensorMode,
}


@contextlib.contextmanager
def deterministic():
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(8, 16)
        self.norm = torch.nn.BatchNorm1d(16)
        self.second = torch.nn.Linear(16, 4)

    def forward(self, x):
        return self.second(self.norm(self.first(x)))


def _state():
    generator = torch.Generator().manual_seed(7)
    w = torch.randn(40, 6, generator=generator)
    return {
        "w": w,
        "shared": w[3:9, ::2],
        "half": w.half(),
        "bits": w.bfloat16(),
        "whole": torch.arange(30, dtype=torch.int64),
        "flags": w > 0,
        "scalar": torch.tensor(3.5),
        "empty": torch.zeros(0, 3),
        "complex": torch.view_as_complex(w[:, :2].contiguous()),
        "conjugated": torch.view_as_complex(w[:, 2:4].contiguous()).conj(),
        "parameter": torch.nn.Parameter(w[:2].clone()),
        "nested": collections.OrderedDict(a=[w[0].clone(), (1, 2.5, "text", None)]),
        "array": numpy.arange(12.0).reshape(3, 4),
        "coo": torch.sparse_coo_tensor([[0, 2], [1, 0]], [1.5, 2.5], (3, 3)).coalesce(),
        "csr": torch.sparse_csr_tensor([0, 1, 2], [1, 0], [1.5, 2.5], (2, 2)),
        "q8": torch.quantize_per_tensor(w, 0.1, 3, torch.qint8),
        "device": torch.device("cpu"),
        "dtype": torch.float8_e4m3fn,
    }


PLAIN = ("w", "half", "bits", "whole", "flags", "scalar", "empty")


class Files:
    """Files and tensors that the calls use, made without a mode."""

    def __init__(self, folder):
        self.folder = folder
        self.state = _state()
        self.plain = {name: self.state[name].clone() for name in PLAIN}
        torch.save(self.state, folder / "theirs.pt")
        torch.save(self.state, folder / "legacy.pt", _use_new_zipfile_serialization=False)
        penstock.save(self.state, folder / "f.pt")
        penstock.save(self.plain, folder / "f.safetensors")
        penstock.save(self.plain, folder / "f.safetensors.index.json", shard_bytes=500)
        torch.manual_seed(3)
        self.net = Net().eval()
        penstock.save(self.net.state_dict(), folder / "net.safetensors")
        torch.save(self.net.state_dict(), folder / "net.pt")
        with penstock.CheckpointStore(folder / "store") as store:
            store.save(self.state, step=4)
        numpy.save(folder / "a.npy", numpy.arange(60.0, dtype=numpy.float32).reshape(20, 3))
        self.ids = torch.tensor([3, 1, 3, 19])
        self.x = torch.linspace(0, 1, 16).reshape(2, 8)
        self.targets = {name: torch.zeros_like(value) for name, value in self.plain.items()}
        self.other = Net().eval()
        with torch.device("meta"):
            self.empty = Net().eval()
        self.rows = torch.empty(4, 6)
        self.bytes = torch.empty(240, dtype=torch.float32)

    def path(self, name):
        return str(self.folder / name)


def _saved(files, name, save):
    save(files.path(name))
    return files


def _store_loads(files, **how):
    with penstock.CheckpointStore(files.path("store")) as store:
        return store.load(**how)


def _opened(files, use):
    with penstock.CheckpointStore(files.path("store")) as store:
        return use(store.open(1))


def _store_saves(files):
    with penstock.CheckpointStore(files.path("saved"), keep=1) as store:
        store.save(files.state, step=1)
        store.save_async(files.state, step=2).result()
        store.save_async(files.state, step=3, copy=False).result()
    return None


def _streamed(files):
    """Whether the outputs are those of the model in memory, under the same mode."""
    net = penstock.stream(files.empty, files.path("net.safetensors"), memory="32KiB")
    return torch.equal(net(files.x), files.net(files.x))


def _faces(files):
    with penstock.safetensors.safe_open(files.path("f.safetensors"), "pt") as f:
        return [f.get_tensor("w"), f.get_slice("w")[2:7, 1:], f.get_slice("whole")[:4]]


def _file(files):
    penstock.write(files.path("raw"), files.plain["w"])
    penstock.read(files.path("raw"), files.bytes)
    return files.bytes


def _table(files):
    penstock.FeatureStore.write(files.path("table"), {"x": files.plain["w"]}, progress=False)
    store = penstock.FeatureStore(files.path("table"), "1MiB", hot=[1, 3])
    return [store["x"].gather(files.ids), store["x"].gather(files.ids.tolist()), store.gather({"x": files.ids})]


CALLS = {
    "load .pt": lambda f: penstock.load(f.path("f.pt")),
    "load torch's .pt": lambda f: penstock.load(f.path("theirs.pt")),
    "load a legacy .pt": lambda f: penstock.load(f.path("legacy.pt")),
    "load .safetensors": lambda f: penstock.load(f.path("f.safetensors")),
    "load an index": lambda f: penstock.load(f.path("f.safetensors.index.json")),
    "load a name": lambda f: penstock.load(f.path("f.pt"), names="w"),
    "load names": lambda f: penstock.load(f.path("f.pt"), names=["half", "coo", "q8"]),
    "load mapped": lambda f: penstock.load(f.path("f.pt"), mmap=True),
    "load a type": lambda f: penstock.load(f.path("f.safetensors"), dtype=torch.float32),
    "load rows": lambda f: penstock.load(f.path("f.pt"), names={"w": slice(3, 9), "half": (slice(0, 2), 1)}),
    "load to a device": lambda f: penstock.load(f.path("f.pt"), "cpu"),
    "load into": lambda f: penstock.load(f.path("f.safetensors"), into=f.targets),
    "load_into": lambda f: penstock.load_into(f.other, f.path("net.pt")) and f.other.state_dict(),
    "a store's load": _store_loads,
    "a store's load into": lambda f: _opened(f, lambda c: c.load(into={"w": f.targets["w"]})),
    "a checkpoint's names": lambda f: _opened(f, lambda c: c.load(names=["w", "half"])),
    "a checkpoint's tensor": lambda f: _opened(f, lambda c: [c["w"][:], c["w"][3:5, 1], c["whole"][2]]),
    "a checkpoint verifies": lambda f: _opened(f, lambda c: c.verify()),
    "save .pt": lambda f: _saved(f, "s.pt", lambda p: penstock.save(f.state, p)),
    "save .safetensors": lambda f: _saved(f, "s.safetensors", lambda p: penstock.save(f.plain, p)),
    "save an index": lambda f: _saved(f, "s.safetensors.index.json", lambda p: penstock.save(f.plain, p)),
    "save an iterator": lambda f: _saved(f, "i.pt", lambda p: penstock.save(iter(f.plain.items()), p)),
    "save_async": lambda f: _saved(f, "b.pt", lambda p: penstock.save_async(f.state, p).result()),
    "a store saves": _store_saves,
    "inspect": lambda f: [(i.name, i.dtype, i.shape) for i in penstock.inspect(f.path("f.pt"))],
    "safe_open": _faces,
    "load_file": lambda f: penstock.safetensors.torch.load_file(f.path("f.safetensors")),
    "load bytes": lambda f: penstock.safetensors.torch.load((f.folder / "f.safetensors").read_bytes()),
    "read": _file,
    "read_npy": lambda f: penstock.read_npy([f.path("a.npy")] * 2),
    "gather rows": lambda f: penstock.TensorRows(f.path("f.safetensors"), "w").gather(f.ids),
    "gather into": lambda f: penstock.TensorRows(f.path("f.safetensors"), "w").gather(f.ids, f.rows),
    "a feature table": _table,
    "stream": _streamed,
}


def _same(a, b, at=""):
    assert type(a) is type(b), f"{at}: {type(a)} {type(b)}"
    if isinstance(a, torch.Tensor):
        assert (a.dtype, a.shape, a.device, a.layout) == (b.dtype, b.shape, b.device, b.layout), at
        assert (a.requires_grad, a.is_conj()) == (b.requires_grad, b.is_conj()), at
        if a.layout == torch.sparse_coo:
            a, b = a.to_dense(), b.to_dense()
        elif a.layout != torch.strided:
            a, b = a.to_dense(), b.to_dense()
        elif a.is_quantized:
            assert a.q_scale() == b.q_scale()
            a, b = a.int_repr(), b.int_repr()
        assert torch.equal(a.detach().resolve_conj(), b.detach().resolve_conj()), at
    elif isinstance(a, dict):
        assert list(a) == list(b), at
        for key in a:
            _same(a[key], b[key], f"{at}[{key}]")
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b), at
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            _same(x, y, f"{at}[{i}]")
    elif isinstance(a, numpy.ndarray):
        assert a.dtype == b.dtype and numpy.array_equal(a, b), at
    else:
        assert a == b, at


def _bytes_of_files(folder):
    """What a call wrote, but for what each save makes as it likes: identities."""
    return {p.name: p.read_bytes() for p in folder.glob("[sib].*")}


@pytest.fixture(scope="module")
def without(tmp_path_factory):
    """Results without a mode."""
    out = {}
    for name, call in CALLS.items():
        files = Files(tmp_path_factory.mktemp("without"))
        result = call(files)
        out[name] = (None if result is files else result, _bytes_of_files(files.folder))
    return out


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", CALLS)
def test_a_mode_changes_nothing(tmp_path, without, name, mode):
    files = Files(tmp_path)
    try:
        with MODES[mode]():
            result = CALLS[name](files)
    except RuntimeError as error:
        assert mode == "FakeTensorMode" and "FakeTensorMode" in str(error), error
        return
    expected, written = without[name]
    with torch.inference_mode(mode == "inference mode"):
        _same(expected, None if result is files else result)
    assert _bytes_of_files(tmp_path) == written
    if name == "a store saves":
        with penstock.CheckpointStore(tmp_path / "saved") as store:
            _same(files.state, store.load())


@pytest.mark.parametrize("name", CALLS)
def test_a_caller_that_is_compiled_gets_the_same(tmp_path, without, name):
    files = Files(tmp_path)
    torch._dynamo.reset()
    result = torch.compile(CALLS[name], backend="eager")(files)
    expected, written = without[name]
    _same(expected, None if result is files else result)
    assert _bytes_of_files(tmp_path) == written
