# SPDX-License-Identifier: Apache-2.0
"""Arrays that must not change are refused as destinations, however they give their memory; as sources they are fine."""

import penstock
import pytest


class Array:
    """Gives memory by DLPack alone."""

    def __init__(self, buffer, versioned):
        self.buffer, self._versioned = buffer, versioned

    def __dlpack_device__(self):
        return (1, 0)

    def __dlpack__(self, *, max_version=None, **_):
        asked = max_version if self._versioned else None
        return self.buffer.__dlpack__(max_version=asked)


def of(module, name="ArrayImpl", base=Array):
    return type(name, (base,), {"__module__": module})


def ways(tmp_path):
    """Verbs that read into one destination."""
    path = tmp_path / "f"
    path.write_bytes(bytes(range(200)))
    with penstock.CheckpointStore(tmp_path / "c") as store:
        import numpy

        store.save({"a": numpy.zeros(3)})
    yield lambda into: penstock.read(path, into)
    yield lambda into: penstock.read_async(path, into).result()
    yield lambda into: penstock.read([path, path], [bytearray(5), into])
    yield lambda into: penstock.read(path, into, 150, allow_short=True)
    with penstock.File(path) as file:
        yield lambda into: penstock.read(file, into)


def refused(tmp_path, make, words):
    for read in ways(tmp_path):
        array, memory = make()
        with pytest.raises(ValueError, match=words):
            read(array)
        assert bytes(memory) == bytes(100)
    array, memory = make()
    out = tmp_path / "out"
    assert penstock.write(out, array) == 100 and out.read_bytes() == bytes(100)


def test_what_says_that_it_is_read_only_is_refused(tmp_path):
    def make():
        memory = bytes(100)
        return Array(penstock.as_bytes(memory), versioned=True), memory

    refused(tmp_path, make, r"into.*: read-only memory \(.*Array\) cannot be read into; give writable memory")


@pytest.mark.parametrize("versioned", [False, True])
@pytest.mark.parametrize("module", ["jaxlib._jax", "jaxlib.xla_extension", "jax._src.array", "jax"])
def test_arrays_of_jax_are_refused_whatever_their_capsule_says(tmp_path, module, versioned):
    """Of bfloat16 and float8 they have no buffer protocol, and a capsule that does not say that they are immutable."""

    def make():
        memory = bytearray(100)
        return of(module)(penstock.as_bytes(memory), versioned), memory

    words = r"arrays of JAX are immutable.*penstock\.empty\(shape, dtype\).*jax\.numpy\.from_dlpack\(buffer\)"
    refused(tmp_path, make, words)


def test_classes_derived_from_theirs_are_refused_too(tmp_path):
    def make():
        memory = bytearray(100)
        return of("mine", "Mine", of("jaxlib._jax"))(penstock.as_bytes(memory), False), memory

    refused(tmp_path, make, "arrays of JAX are immutable")


def test_tensors_of_tensorflow_are_refused(tmp_path):
    def make():
        memory = bytearray(100)
        return of("tensorflow.python.framework.ops", "EagerTensor")(penstock.as_bytes(memory), False), memory

    refused(tmp_path, make, "arrays of TensorFlow are immutable.*tf.experimental.dlpack")


@pytest.mark.parametrize("versioned", [False, True])
@pytest.mark.parametrize("module", ["cupy", "jaxtyping", "mine.jax"])
def test_arrays_of_others_are_filled(tmp_path, module, versioned):
    for read in ways(tmp_path):
        memory = bytearray(50)
        read(of(module)(penstock.as_bytes(memory), versioned))
        assert any(memory)


def test_real_arrays_of_jax_are_refused(tmp_path):
    jax = pytest.importorskip("jax")
    from jax import numpy as jnp

    path = tmp_path / "f"
    penstock.write(path, bytes(range(256)) * 40)
    types = ["bool_", "int8", "uint16", "int32", "float16", "float32", "bfloat16", "float8_e4m3fn", "float8_e5m2"]
    for name in types:
        array = jnp.zeros(100, getattr(jnp, name))
        alias = jnp.asarray(array)
        with pytest.raises(ValueError, match="arrays of JAX are immutable"):
            penstock.read(path, array)
        assert not alias.any() and not array.any(), name
        assert penstock.write(tmp_path / "out", array) == array.nbytes
    buffer = penstock.empty(100, "bfloat16")
    penstock.read(path, buffer)
    assert jax.dlpack.from_dlpack(buffer).nbytes == 200
