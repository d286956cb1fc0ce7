# SPDX-License-Identifier: Apache-2.0
"""penstock.safetensors, compared with the package safetensors: the same files but for where the data is aligned, the
same results, and the same kinds of errors."""

import json
import math
import random
import struct

import numpy as np
import penstock
import pytest

torch = pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors")
import safetensors.numpy as their_numpy  # noqa: E402
import safetensors.torch as their_torch  # noqa: E402
from penstock.safetensors import (  # noqa: E402
    SafetensorError,
    numpy as our_numpy,  # noqa: E402
    safe_open,
    torch as our_torch,  # noqa: E402
)

DTYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
]
DTYPES += [torch.uint8, torch.bool, torch.float8_e4m3fn, torch.float8_e5m2]


def state_of(seed):
    rng = random.Random(seed)
    torch.manual_seed(seed)
    out = {}
    for _ in range(rng.randint(0, 8)):
        name = "".join(rng.choice('ab.ü"\\_é0') for _ in range(rng.randint(1, 12)))
        shape = [rng.randint(0, 5) for _ in range(rng.randint(0, 3))]
        out[name] = (torch.rand(shape) * 5).to(rng.choice(DTYPES))
    metadata = {"format": "pt", "x": "é\n"[: rng.randint(0, 2)]} if rng.random() < 0.6 else None
    return out, metadata


def content(data):
    """What a file says and holds, wherever the data lies."""
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + size])
    metadata = header.pop("__metadata__", None)
    rows = {}
    for name, row in header.items():
        begin, end = row["data_offsets"]
        rows[name] = (row["dtype"], row["shape"], data[8 + size + begin : 8 + size + end])
    return metadata, rows


def same(a, b):
    assert a.keys() == b.keys()
    for name in a:
        x, y = a[name], b[name]
        assert type(x) is type(y) and x.dtype == y.dtype and x.shape == y.shape
        if isinstance(x, torch.Tensor):
            assert torch.equal(x.contiguous().view(-1).view(torch.uint8), y.contiguous().view(-1).view(torch.uint8))
        else:
            assert x.tobytes() == y.tobytes()


@pytest.mark.parametrize("seed", range(40))
def test_torch(tmp_path, seed):
    state, metadata = state_of(seed)
    ours, theirs = tmp_path / "ours.safetensors", tmp_path / "theirs.safetensors"
    their_torch.save_file(state, theirs, metadata)
    our_torch.save_file(state, ours, metadata)
    data = theirs.read_bytes()
    assert content(ours.read_bytes()) == content(data) == content(our_torch.save(state, metadata))
    same(our_torch.load_file(theirs), their_torch.load_file(ours))
    same(our_torch.load(data), their_torch.load(data))
    with safe_open(theirs, framework="pt") as f, safetensors.safe_open(theirs, framework="pt") as g:
        assert list(f.keys()) == list(g.keys()) and f.metadata() == g.metadata()
        filled = {name for name, tensor in state.items() if tensor.numel()}  # others lie at the same place
        assert [n for n in f.offset_keys() if n in filled] == [n for n in g.offset_keys() if n in filled]
        for name in g.keys():  # noqa: SIM118
            same({name: f.get_tensor(name)}, {name: g.get_tensor(name)})
            a, b = f.get_slice(name), g.get_slice(name)
            assert a.get_shape() == b.get_shape() and a.get_dtype() == b.get_dtype()
            if len(b.get_shape()) and b.get_shape()[0] > 1:
                same({name: a[1:]}, {name: b[1:]})


@pytest.mark.parametrize("seed", range(20))
def test_numpy(tmp_path, seed):
    state, metadata = state_of(seed)
    kinds = ("bfloat16", "float8_e4m3fn", "float8_e5m2")
    arrays = {name: t.numpy() for name, t in state.items() if str(t.dtype).removeprefix("torch.") not in kinds}
    ours, theirs = tmp_path / "ours.safetensors", tmp_path / "theirs.safetensors"
    their_numpy.save_file(arrays, theirs, metadata)
    our_numpy.save_file(arrays, ours, metadata)
    assert content(ours.read_bytes()) == content(theirs.read_bytes()) == content(our_numpy.save(arrays, metadata))
    same(our_numpy.load_file(theirs), their_numpy.load_file(ours))
    same(our_numpy.load(theirs.read_bytes()), their_numpy.load(theirs.read_bytes()))
    with safe_open(theirs, framework="np") as f:
        same({name: f.get_tensor(name) for name in f.keys()}, their_numpy.load_file(theirs))  # noqa: SIM118


def kind_of(call):
    try:
        call()
    except Exception as error:
        return type(error).__name__
    return None


def test_errors_are_of_the_same_kind(tmp_path):
    good = tmp_path / "good.safetensors"
    their_torch.save_file({"a": torch.ones(4, 3)}, good)
    data = good.read_bytes()
    damaged = {
        "empty": b"",
        "short": data[:-1],
        "long": data + b"x",
        "header": struct.pack("<Q", 1 << 40) + data[8:],
        "json": data[:8] + b"x" + data[9:],
    }
    for name, content in damaged.items():
        path = tmp_path / name
        path.write_bytes(content)
        for ours, theirs in (
            (lambda path=path: our_torch.load_file(path), lambda path=path: their_torch.load_file(path)),
            (lambda path=path: our_numpy.load_file(path), lambda path=path: their_numpy.load_file(path)),
            (lambda content=content: our_torch.load(content), lambda content=content: their_torch.load(content)),
        ):
            assert kind_of(ours) == kind_of(theirs) == "SafetensorError", name
    one = torch.ones(6)
    for state in (
        {"a": one[:4], "b": one[2:]},
        {"a": torch.ones(3, 2).t()},
        {"a": 3},
        [one],
        {"a": torch.ones(3).to_sparse()},
    ):
        expected = kind_of(lambda state=state: their_torch.save(state))
        assert expected and kind_of(lambda state=state: our_torch.save(state)) == expected, state
    assert kind_of(lambda: our_torch.load_file(tmp_path / "absent")) == "FileNotFoundError"
    with safe_open(good, "pt") as f, safetensors.safe_open(good, "pt") as g:
        for call in ("get_tensor", "get_slice"):
            assert kind_of(lambda call=call: getattr(f, call)("b")) == kind_of(lambda call=call: getattr(g, call)("b"))
    with pytest.raises(SafetensorError, match="closed"):
        f.keys()
    with pytest.raises(SafetensorError, match="invalid"):
        safe_open(good, framework="jpeg")


def test_metadata_is_of_the_file_that_is_open(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for opens in (safetensors.safe_open, safe_open):
        our_torch.save_file({"w": torch.zeros(2)}, "m.safetensors", {"step": "1"})
        with opens("m.safetensors", "pt") as file:
            our_torch.save_file({"w": torch.ones(2)}, "m.safetensors", {"step": "2"})
            assert file.metadata() == {"step": "1"} and file.get_tensor("w").tolist() == [0, 0]
            (tmp_path / "m.safetensors").unlink()
            monkeypatch.chdir("/")
            assert file.metadata() == {"step": "1"} and file.get_tensor("w").tolist() == [0, 0]
            monkeypatch.chdir(tmp_path)


def test_save_takes_arrays(tmp_path):
    path = tmp_path / "a.safetensors"
    buffer = penstock.empty((2, 3), "float32")
    buffer.numpy()[:] = 7
    arrays = {"a": np.arange(6.0).reshape(2, 3), "t": np.arange(6, dtype="i4").reshape(2, 3).T, "b": buffer}
    penstock.save(arrays, path)
    found = their_numpy.load_file(path)
    assert all(np.array_equal(found[name], np.asarray(arrays[name])) for name in arrays)
    penstock.save(arrays, tmp_path / "i.safetensors.index.json")
    assert torch.equal(penstock.load(tmp_path / "i.safetensors.index.json", names="b"), torch.full((2, 3), 7.0))
    base = np.arange(10.0)
    with pytest.raises(ValueError, match="share memory"):
        penstock.save({"a": base[:6], "b": base[4:]}, path)
    for wrong in (np.array(["x"]), np.arange(3, dtype=">i4"), np.array([object()])):
        with pytest.raises(TypeError, match=r"state\['a'\]: no .safetensors has .*; give another dtype"):
            penstock.save({"a": wrong}, path)


def some_index(rng, shape):
    """An index as people write them; now and then one that is wrong."""
    chosen = []
    for extent in shape[: rng.randint(0, len(shape))]:
        a, b = (rng.choice([None, rng.randint(-extent - 2, extent + 2)]) for _ in range(2))
        one = slice(a, b, rng.choice([None, 1, 2, 3]))
        chosen.append(rng.choice([one, one, slice(None), rng.randint(-extent, extent), Ellipsis, None]))
    index = tuple(one for i, one in enumerate(chosen) if one is not Ellipsis or Ellipsis not in chosen[:i])
    return index[0] if len(index) == 1 and rng.random() < 0.7 else index


@pytest.mark.parametrize("framework", ["pt", "np"])
def test_a_slice_is_what_the_tensor_gives(tmp_path, framework):
    rng = random.Random(5)
    shapes = [(), (0,), (7,), (5, 3), (0, 4), (4, 0), (6, 2, 3), (300, 70)]
    state = {str(i): torch.arange(math.prod(shape), dtype=torch.int16).reshape(shape) for i, shape in enumerate(shapes)}
    our_torch.save_file(state, tmp_path / "s.safetensors")
    with safe_open(tmp_path / "s.safetensors", framework) as file:
        for _ in range(1500):
            name = rng.choice(list(state))
            whole = state[name] if framework == "pt" else state[name].numpy()
            index = some_index(rng, whole.shape)
            try:
                expected = whole[index]
            except (IndexError, TypeError, ValueError):
                with pytest.raises(SafetensorError, match="slicing"):
                    file.get_slice(name)[index]
                continue
            part = file.get_slice(name)[index]
            assert part.shape == expected.shape and (part == expected).all(), (whole.shape, index)
            if framework == "pt":
                assert part.untyped_storage().nbytes() == part.nbytes


def test_a_slice_of_rows_reads_no_others(tmp_path):
    state = {"w": torch.arange(1 << 22, dtype=torch.float32).reshape(-1, 1024), "v": torch.ones(8)}
    our_torch.save_file(state, tmp_path / "s.safetensors")
    with safe_open(tmp_path / "s.safetensors", "pt") as file:
        part = file.get_slice("w")
        engine = penstock.default_engine()
        wanted = [(slice(1000, 1008), 8), (5, 1), (-1, 1), ((slice(7, 9), slice(3, 4)), 2), (slice(0, 64, 2), 64)]
        for index, rows in wanted:
            before = engine.stats()
            assert torch.equal(part[index], state["w"][index])
            after = engine.stats()
            read = after.bytes_read + after.bytes_cached - before.bytes_read - before.bytes_cached
            assert read <= rows * 4096 + 8192, index


@pytest.mark.parametrize("space", ["", " ", "\n\t"])
@pytest.mark.parametrize("metadata", [{}, {"a": "b", "ü": '"}'}])
@pytest.mark.parametrize("first", [True, False])
def test_metadata_wherever_it_is_in_the_header(tmp_path, space, metadata, first):
    rows = {"__metadata__": metadata, "w": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}
    words = [f'"{name}":{space}{json.dumps(rows[name])}' for name in sorted(rows, reverse=not first)]
    header = ("{" + ",".join(words) + "}").encode()
    path = tmp_path / "m.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header + b"x")
    with safe_open(path, "np") as file:
        assert file.metadata() == metadata
