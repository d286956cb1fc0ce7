# SPDX-License-Identifier: Apache-2.0
"""Arrays of JAX, and of NumPy with the types of ml_dtypes, in .safetensors: by penstock.save and penstock.safetensors,
compared with the package safetensors."""

import random

import numpy as np
import penstock
import pytest

safetensors = pytest.importorskip("safetensors")
import safetensors.numpy as their_numpy  # noqa: E402
from penstock.safetensors import numpy as our_numpy, safe_open  # noqa: E402

TYPES = [np.float64, np.float32, np.float16, np.int64, np.int32, np.int16, np.int8, np.uint64, np.uint32, np.uint16]
TYPES += [np.uint8, np.bool_, np.complex64]
NARROW = ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"]


def narrow_types():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    return [getattr(ml_dtypes, name) for name in NARROW]


def arrays_of(seed, types):
    rng = random.Random(seed)
    out = {}
    for dtype in types:
        shape = [rng.randint(0, 5) for _ in range(rng.randint(0, 3))]
        values = np.array([rng.randint(1, 9) for _ in range(int(np.prod(shape)))]).reshape(shape).astype(dtype)
        turned = rng.random() < 0.3
        out[np.dtype(dtype).name] = values.T if turned else values
    return out


def same(found, expected):
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        one = np.asarray(found[name])
        assert one.dtype == array.dtype and one.shape == array.shape and one.tobytes() == np.asarray(array).tobytes(), (
            name
        )


@pytest.mark.parametrize("narrow", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_numpy(tmp_path, seed, narrow):
    arrays = arrays_of(seed, narrow_types() if narrow else TYPES)
    ours, by_save = tmp_path / "ours.safetensors", tmp_path / "save.safetensors"
    our_numpy.save_file(arrays, ours, {"a": "b"})
    penstock.save(arrays, by_save)
    for path in (ours, by_save):
        same(our_numpy.load_file(path), arrays)
    same(our_numpy.load(our_numpy.save(arrays)), arrays)
    known = {name: array for name, array in arrays.items() if name in ("float32", "bfloat16", "int8", "bool", "uint64")}
    our_numpy.save_file(known, ours)
    same(their_numpy.load_file(ours), known)
    with safe_open(ours, "np") as file:
        same({name: file.get_tensor(name) for name in file.keys()}, known)  # noqa: SIM118


def test_numpy_as_torch_reads_it(tmp_path):
    torch = pytest.importorskip("torch")
    array = np.arange(12).reshape(3, 4).astype(narrow_types()[0])
    penstock.save({"a": array}, tmp_path / "a.safetensors")
    found = penstock.load(tmp_path / "a.safetensors")["a"]
    assert found.dtype == torch.bfloat16 and torch.equal(found.float(), torch.arange(12.0).reshape(3, 4))


@pytest.mark.parametrize("seed", range(5))
def test_jax(tmp_path, seed):
    jnp = pytest.importorskip("jax.numpy")
    from penstock.safetensors import flax as our_flax

    arrays = {}
    for name, array in arrays_of(seed, TYPES + narrow_types()).items():
        if array.dtype.itemsize < 8 or name == "complex64":  # JAX makes others of 64 bits
            arrays[name] = jnp.asarray(array)
    ours, by_save = tmp_path / "ours.safetensors", tmp_path / "save.safetensors"
    our_flax.save_file(arrays, ours, {"a": "b"})
    penstock.save(arrays, by_save)
    for path in (ours, by_save):
        found = our_flax.load_file(path)
        same(found, arrays)
        assert {type(array) for array in found.values()} == {type(jnp.ones(1))}
    same(our_flax.load(our_flax.save(arrays)), arrays)
    known = {name: arrays[name] for name in ("float32", "bfloat16", "int8", "bool")}
    our_flax.save_file(known, ours)
    same(pytest.importorskip("safetensors.flax").load_file(ours), known)
    with safe_open(ours, "flax") as file:
        same({name: file.get_tensor(name) for name in file.keys()}, known)  # noqa: SIM118
        assert file.get_slice("float32")[...].dtype == jnp.float32
