# SPDX-License-Identifier: Apache-2.0
"""Tensors of torch's own on a real GPU, as programs have them, and what CuPy, JAX and Numba have there.

No fake can stand for torch's CUDA build: its allocators, its streams, its graphs and its kernels are what these are
about. Without a GPU they are skipped."""

import os
import subprocess
import sys
import textwrap

import numpy
import penstock
import penstock.safetensors
import pytest
import torch

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU")

DTYPES = (
    torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32,
    torch.float64, torch.complex64, torch.bool, torch.float8_e4m3fn, torch.float8_e5m2,
)  # fmt: skip
SIZES = (1, 511, 4096, 65_537, 1 << 20, 7_340_033, 96 << 20)


def random_bytes(size, seed=0):
    made = torch.Generator(device="cuda").manual_seed(seed)
    return torch.randint(0, 256, (size,), dtype=torch.uint8, device="cuda", generator=made)


def raw(tensor):
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).cpu().numpy().tobytes()


def busy(milliseconds):
    """Work on the current stream that takes so long."""
    torch.cuda._sleep(int(milliseconds * 1.5e6))


# ---- reads and writes


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_comes_back(dtype, tmp_path):
    there = (
        random_bytes(48_000).remainder(2).to(torch.bool) if dtype == torch.bool else random_bytes(48_000).view(dtype)
    )
    there = there.reshape(4, -1)
    assert penstock.write(tmp_path / "x", there) == there.nbytes
    back = torch.empty_like(there)
    assert penstock.read(tmp_path / "x", back) == there.nbytes
    assert raw(back) == raw(there) == (tmp_path / "x").read_bytes()


@pytest.mark.parametrize("gpu_path", ["auto", "bounce"])
@pytest.mark.parametrize("cache", ["auto", "direct", "cached"])
def test_sizes_and_offsets(tmp_path, cache, gpu_path):
    with penstock.Engine(gpu_path=gpu_path) as engine:
        for size in SIZES:
            for offset in (0, 4096, 12_345):
                path = tmp_path / "x"
                there = random_bytes(size, size)
                frame = torch.full((size + 512,), 7, dtype=torch.uint8, device="cuda")
                engine.write(path, there, offset, cache=cache)
                assert engine.read(path, frame[256 : 256 + size], offset, cache=cache) == size
                assert torch.equal(frame[256 : 256 + size], there)
                assert frame[:256].eq(7).all() and frame[256 + size :].eq(7).all()
                os.unlink(path)


def test_many_tensors_in_one_transfer(tmp_path):
    state = {
        str(i): random_bytes(int(n), i) for i, n in enumerate(numpy.random.default_rng(1).integers(1, 900_000, 200))
    }
    offsets = [0, *numpy.cumsum([t.nbytes for t in state.values()])[:-1].tolist()]
    path = tmp_path / "x"
    penstock.write(path, list(state.values()), offsets, sync=True)
    back = [torch.empty_like(t) for t in state.values()]
    penstock.read(path, back, offsets)
    assert all(torch.equal(a, b) for a, b in zip(back, state.values(), strict=True))


def test_a_write_comes_after_the_work_of_the_current_stream(tmp_path):
    side = torch.cuda.Stream()
    for stream in (torch.cuda.current_stream(), side):
        with torch.cuda.stream(stream):
            there = torch.zeros(32 << 20, dtype=torch.uint8, device="cuda")
            busy(100)
            there.fill_(5)
            penstock.write(tmp_path / "x", there)
            assert set((tmp_path / "x").read_bytes()) == {5}
            busy(100)
            there.fill_(6)
            transfer = penstock.write_async(tmp_path / "x", there)
            transfer.join(stream)
            there.fill_(7)
            transfer.result()
            assert set((tmp_path / "x").read_bytes()) == {6}


def test_work_of_a_stream_comes_after_a_read_that_it_joins(tmp_path):
    data = random_bytes(64 << 20)
    penstock.write(tmp_path / "x", data)
    side = torch.cuda.Stream()
    for _ in range(5):
        back = torch.zeros_like(data)
        torch.cuda.synchronize()
        transfer = penstock.read_async(tmp_path / "x", back)
        transfer.join(side)
        with torch.cuda.stream(side):
            copy = back.clone()
        side.synchronize()
        assert torch.equal(copy, data)
        transfer.result()


def test_a_stream_that_captures_a_graph_is_an_error(tmp_path):
    data = random_bytes(1 << 20)
    penstock.write(tmp_path / "x", data)
    graph = torch.cuda.CUDAGraph()
    side = torch.cuda.Stream()
    back = torch.zeros_like(data)
    with torch.cuda.graph(graph, stream=side):
        back.add_(1)
        with pytest.raises((OSError, ValueError, RuntimeError)):
            penstock.read(tmp_path / "x", back)
    graph.replay()
    torch.cuda.synchronize()
    assert penstock.read(tmp_path / "x", back) == data.nbytes
    assert torch.equal(back, data)


def test_transfers_go_on_while_a_graph_is_captured(tmp_path):
    data, back = random_bytes(256 << 20), torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    state = {"weight": torch.randn(1000, 1000, device="cuda")}
    x = torch.ones(1000, device="cuda")
    torch.cuda.synchronize()
    penstock.write(tmp_path / "x", data)
    for _ in range(5):
        transfer = penstock.read_async(tmp_path / "x", back)
        pending = penstock.save_async(state, tmp_path / "x.pt", copy=False)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = x * 2
            for _ in range(200):
                y = y + x
        transfer.result()
        pending.result()
        graph.replay()
        torch.cuda.synchronize()
        assert y[0].item() == 202 and torch.equal(back, data)


def test_a_dropped_tensor_is_kept_until_the_transfer_is_over(tmp_path):
    expected = raw(random_bytes(64 << 20, 4))
    transfer = penstock.write_async(tmp_path / "x", random_bytes(64 << 20, 4))
    for _ in range(20):
        torch.zeros(64 << 20, dtype=torch.uint8, device="cuda")
    transfer.result()
    assert (tmp_path / "x").read_bytes() == expected


def test_views_and_refusals(tmp_path):
    there = random_bytes(1 << 20).view(1024, 1024)
    penstock.write(tmp_path / "x", there[3:9])
    assert (tmp_path / "x").read_bytes() == raw(there[3:9])
    with pytest.raises(ValueError, match="contiguous"):
        penstock.write(tmp_path / "x", there[:, :5])
    penstock.write(tmp_path / "x", there.requires_grad_(False).view(-1)[5:5])
    assert (tmp_path / "x").stat().st_size >= 0
    pinned = torch.arange(100_000).pin_memory()
    penstock.write(tmp_path / "pinned", pinned)
    back = torch.empty_like(pinned, device="cuda")
    penstock.read(tmp_path / "pinned", back)
    assert torch.equal(back.cpu(), pinned)


def test_threads(tmp_path):
    import concurrent.futures

    def work(i):
        with torch.cuda.stream(torch.cuda.Stream()):
            there = random_bytes(3_000_000 + i, i)
            penstock.write(tmp_path / str(i), there)
            back = torch.empty_like(there)
            penstock.read(tmp_path / str(i), back)
            return torch.equal(back, there)

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        assert all(pool.map(work, range(64)))


# ---- torch's other allocators: memory that no single allocation of the driver holds

_ALLOCATOR = """
import sys, torch, penstock
path = sys.argv[1]
# Grown by pieces: a tensor of this size lies over many of the driver's mappings.
parts = [torch.empty(30 << 20, dtype=torch.uint8, device="cuda") for _ in range(8)]
del parts
there = torch.randint(0, 256, (200_000_001,), dtype=torch.uint8, device="cuda")
small = [torch.randint(0, 256, (n,), dtype=torch.uint8, device="cuda") for n in (1, 700, 5000, 1 << 20, 21 << 20)]
for tensor in [there, there[12_345:190_000_000], *small]:
    penstock.write(path, tensor)
    back = torch.zeros_like(tensor)
    assert penstock.read(path, back) == tensor.nbytes
    assert torch.equal(back, tensor)
    with open(path, "rb") as file:
        assert file.read() == tensor.cpu().numpy().tobytes()
    import os
    os.unlink(path)
penstock.save({"a": there, "b": small}, path + ".pt")
found = penstock.load(path + ".pt", map_location="cuda")
assert torch.equal(found["a"], there) and all(torch.equal(a, b) for a, b in zip(found["b"], small))
pending = penstock.save_async({"a": there}, path + ".pt")
there.zero_()
pending.result()
assert torch.equal(penstock.load(path + ".pt", map_location="cuda")["a"], found["a"])
print("good")
"""


@pytest.mark.parametrize("setting", ["expandable_segments:True", "backend:cudaMallocAsync", "max_split_size_mb:64"])
def test_the_allocators_of_torch(tmp_path, setting):
    env = {**os.environ, "PYTORCH_CUDA_ALLOC_CONF": setting, "PYTORCH_ALLOC_CONF": setting}
    words = [sys.executable, "-c", textwrap.dedent(_ALLOCATOR), str(tmp_path / "x")]
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=90)
    assert done.returncode == 0 and done.stdout.strip() == "good", done.stdout + done.stderr


# ---- other libraries


def test_cupy(tmp_path):
    cupy = pytest.importorskip("cupy")
    there = cupy.random.randint(0, 255, (3, 100_001)).astype(cupy.uint8)
    penstock.write(tmp_path / "x", there)
    assert (tmp_path / "x").read_bytes() == there.get().tobytes()
    back = cupy.zeros_like(there)
    penstock.read(tmp_path / "x", back)
    assert (back == there).all()
    stream = cupy.cuda.Stream(non_blocking=True)
    penstock.read(tmp_path / "x", back, stream=stream)
    managed = cupy.ndarray((100_000,), dtype=cupy.uint8, memptr=cupy.cuda.malloc_managed(100_000))
    penstock.read(tmp_path / "x", managed)
    assert (managed == there.ravel()[:100_000]).all()


def test_jax_is_written_from(tmp_path):
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    jax = pytest.importorskip("jax")
    if jax.default_backend() != "gpu":
        pytest.skip("jax sees no GPU")
    there = jax.numpy.arange(100_000, dtype=jax.numpy.float32).reshape(10, -1) * 3
    penstock.write(tmp_path / "x", there)
    assert (tmp_path / "x").read_bytes() == numpy.asarray(there).tobytes()


def test_numba(tmp_path):
    cuda = pytest.importorskip("numba.cuda")
    there = cuda.to_device(numpy.arange(100_000, dtype=numpy.int32))
    penstock.write(tmp_path / "x", there)
    back = cuda.device_array_like(there)
    penstock.read(tmp_path / "x", back)
    assert (back.copy_to_host() == there.copy_to_host()).all()


# ---- checkpoints


def trained():
    torch.manual_seed(2)
    model = torch.nn.Sequential(
        torch.nn.Embedding(3000, 256), torch.nn.Linear(256, 1024), torch.nn.GELU(), torch.nn.Linear(1024, 256)
    ).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        model(torch.randint(0, 3000, (64,), device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


def state_of(model, optimizer):
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 3}


def same(found, expected, device=None):
    if isinstance(expected, torch.Tensor):
        assert found.dtype == expected.dtype and found.shape == expected.shape
        assert raw(found) == raw(expected)
        assert device is None or found.device.type == device or found.numel() == 1
    elif isinstance(expected, dict):
        assert list(found) == list(expected)
        for name, value in expected.items():
            same(found[name], value, device)
    elif isinstance(expected, (list, tuple)):
        for one, other in zip(found, expected, strict=True):
            same(one, other, device)
    else:
        assert found == expected


@pytest.mark.parametrize("way", ["save", "save_async", "store", "store_async"])
def test_a_training_state_comes_back(tmp_path, way):
    model, optimizer = trained()
    state = state_of(model, optimizer)
    kept = torch.load(_torch_saved(state, tmp_path), map_location="cpu", weights_only=True)
    path = tmp_path / "state.pt"
    if way == "save":
        penstock.save(state, path)
    elif way == "save_async":
        pending = penstock.save_async(state, path)
    store = penstock.CheckpointStore(tmp_path / "store")
    if way == "store":
        store.save(state, step=3)
    elif way == "store_async":
        pending = store.save_async(state, step=3)
    if way.endswith("async"):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(1)
        pending.result(60)
    if way.startswith("store"):
        same(store.load(map_location="cpu"), kept, "cpu")
        same(store.load(map_location="cuda"), kept, "cuda")
    else:
        same(torch.load(path, map_location="cpu", weights_only=True), kept, "cpu")
        same(torch.load(path, weights_only=True), kept)
        same(penstock.load(path, map_location="cpu"), kept, "cpu")
        same(penstock.load(path, map_location="cuda"), kept, "cuda")
        same(penstock.load(path, map_location="cuda:0"), kept, "cuda")
    store.close()


def _torch_saved(state, folder):
    torch.save(state, folder / "torch.pt")
    return folder / "torch.pt"


def test_files_of_torch_and_safetensors_go_to_the_gpu(tmp_path):
    model, optimizer = trained()
    state = state_of(model, optimizer)
    same(penstock.load(_torch_saved(state, tmp_path), map_location="cuda"), state, "cuda")
    same(penstock.load(tmp_path / "torch.pt"), state)
    penstock.save(model.state_dict(), tmp_path / "x.safetensors")
    torch_safetensors = pytest.importorskip("safetensors.torch")
    same(torch_safetensors.load_file(tmp_path / "x.safetensors", device="cuda:0"), dict(model.state_dict()), "cuda")
    same(penstock.load(tmp_path / "x.safetensors", map_location="cuda"), dict(model.state_dict()), "cuda")
    with penstock.safetensors.safe_open(tmp_path / "x.safetensors", framework="pt", device="cuda:0") as file:
        for name, tensor in model.state_dict().items():
            same(file.get_tensor(name), tensor, "cuda")
            if tensor.dim() == 2:
                same(file.get_slice(name)[3:7], tensor[3:7], "cuda")
    other, _ = trained()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    into = other.state_dict()
    places = [tensor.data_ptr() for tensor in into.values()]
    penstock.load(tmp_path / "x.safetensors", into=into)
    assert [tensor.data_ptr() for tensor in into.values()] == places
    same(dict(other.state_dict()), dict(model.state_dict()), "cuda")


def test_views_and_ties_of_a_gpu(tmp_path):
    base = torch.randn(1000, 300, device="cuda")
    state = {"base": base, "row": base[3], "t": base.t(), "part": base[5:9], "tied": base, "conj": torch.randn(
        50, dtype=torch.complex64, device="cuda").conj()}  # fmt: skip
    penstock.save(state, tmp_path / "x.pt")
    found = penstock.load(tmp_path / "x.pt", map_location="cuda")
    for name, tensor in state.items():
        assert torch.equal(found[name], tensor) and found[name].stride() == tensor.stride(), name
    assert found["base"].data_ptr() == found["tied"].data_ptr()
    same(torch.load(tmp_path / "x.pt", map_location="cpu")["row"], base[3].cpu())


# ---- weights


def test_a_streamed_model_gives_the_bits_of_the_model_on_the_gpu(tmp_path):
    torch.manual_seed(1)

    def made():
        layers = [torch.nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True) for _ in range(6)]
        return torch.nn.Sequential(torch.nn.Embedding(5000, 256), *layers, torch.nn.Linear(256, 5000)).eval()

    model = made()
    penstock.save(model.state_dict(), tmp_path / "model.safetensors")
    total = sum(parameter.nbytes for parameter in model.parameters())
    ids = torch.randint(0, 5000, (4, 64), device="cuda")
    model = model.cuda()
    with torch.no_grad():
        expected = model(ids)
    for on_device, in_host in ((0.6, 0), (0.6, 0.2), (0.5, 2), (2, 0)):
        with torch.device("meta"):
            empty = made()
        streamed = penstock.stream(
            empty,
            tmp_path / "model.safetensors",
            memory=int(in_host * total),
            device="cuda:0",
            device_memory=int(on_device * total),
        )
        for _ in range(4):
            with torch.no_grad():
                assert torch.equal(streamed(ids), expected), (on_device, in_host)
        side = torch.cuda.Stream()
        with torch.no_grad(), torch.cuda.stream(side):
            found = streamed(ids)
        side.synchronize()
        assert torch.equal(found, expected)
        plan = streamed.stream_stats().plan
        assert plan["device_bytes"] <= on_device * total and plan["host_bytes"] <= in_host * total
        streamed.unstream()


# ---- rows


def test_rows_of_a_feature_store(tmp_path):
    table = torch.randn(5000, 100)
    penstock.FeatureStore.write(tmp_path / "x.features", {"x": table}, progress=False)
    for options in ({}, {"ram": "500KB"}, {"device_memory": "1MB"}, {"device_memory": "1GB"}):
        with penstock.FeatureStore.open(tmp_path / "x.features", **options) as store:
            for seed in range(5):
                ids = torch.randint(0, 5000, (777,), generator=torch.Generator().manual_seed(seed))
                found = store["x"].gather(ids, device="cuda")
                assert found.device.type == "cuda" and torch.equal(found.cpu(), table[ids])
                assert torch.equal(store["x"].gather(ids.cuda(), device="cuda:0").cpu(), table[ids])
                out = torch.empty(777, 100, device="cuda")
                store["x"].gather(ids, out=out)
                assert torch.equal(out.cpu(), table[ids])


# ---- what goes wrong


def test_memory_of_the_gpu_that_is_gone(tmp_path):
    code = """
        import sys, torch, penstock
        there = torch.ones(64 << 20, dtype=torch.uint8, device="cuda")
        class Gone:
            __cuda_array_interface__ = {"shape": (64 << 20,), "typestr": "|u1", "data": (there.data_ptr(), False),
                                        "strides": None, "version": 3}
        penstock.write(sys.argv[1], Gone())
        del there
        torch.cuda.empty_cache()
        try:
            penstock.write(sys.argv[1], Gone())
        except (OSError, ValueError) as error:
            print("refused:", error)
        print(torch.ones(3, device="cuda").sum().item())
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), str(tmp_path / "x")], capture_output=True, text=True, timeout=60
    )
    assert "refused:" in done.stdout and "3.0" in done.stdout, done.stdout + done.stderr


def test_a_kernel_that_failed_surfaces_as_an_error(tmp_path):
    code = """
        import sys, torch, penstock
        there = torch.ones(1 << 20, device="cuda")
        penstock.write(sys.argv[1], there)
        torch.ones(10, device="cuda")[torch.tensor([1 << 30], device="cuda")]
        try:
            penstock.write(sys.argv[1], there)
            print("silent")
        except OSError as error:
            print("error:", error)
        host = bytearray(1 << 20)
        print("host", penstock.read(sys.argv[1], host))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), str(tmp_path / "x")], capture_output=True, text=True, timeout=60
    )
    assert "error:" in done.stdout and "host 1048576" in done.stdout, done.stdout + done.stderr


def test_a_forked_child_says_so_and_reads_to_the_host(tmp_path):
    code = """
        import os, sys, torch, penstock
        there = torch.ones(1 << 20, dtype=torch.uint8, device="cuda")
        penstock.write(sys.argv[1], there)
        child = os.fork()
        if child == 0:
            try:
                penstock.read(sys.argv[1], there)
            except OSError as error:
                print("child:", error, flush=True)
            print("host", penstock.read(sys.argv[1], bytearray(1 << 20)), flush=True)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        print("parent", penstock.read(sys.argv[1], there))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), str(tmp_path / "x")], capture_output=True, text=True, timeout=60
    )
    assert "child:" in done.stdout and "host 1048576" in done.stdout and "parent 1048576" in done.stdout, (
        done.stdout + done.stderr
    )


def test_exit_with_transfers_in_flight(tmp_path):
    code = """
        import sys, torch, penstock
        there = torch.ones(256 << 20, dtype=torch.uint8, device="cuda")
        transfers = [penstock.write_async(f"{sys.argv[1]}{i}", there) for i in range(4)]
        print("out", flush=True)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), str(tmp_path / "x")], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0 and done.stdout == "out\n", (done.returncode, done.stderr)
