# SPDX-License-Identifier: Apache-2.0
"""Archives of NumPy arrays (.npz), and tensors that lie anywhere in their file."""

import json
import zipfile

import numpy as np
import penstock
import pytest
import torch

KINDS = ["b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16"]


def arrays():
    rng = np.random.default_rng(7)
    made = {f"of_{kind}": rng.integers(0, 2 if kind == "b1" else 100, (3, 5)).astype(kind) for kind in KINDS}
    made |= {"nothing": np.zeros((0, 4), "f4"), "one": np.float64(2.5), "layer.0.weight": rng.random((257, 129))}
    return made


def test_arrays_are_tensors(tmp_path):
    path, made = tmp_path / "a.npz", arrays()
    np.savez(path, **made)
    found = penstock.load(path)
    assert list(found) == list(made)
    for name, array in made.items():
        assert found[name].numpy().dtype == array.dtype and found[name].shape == array.shape
        assert found[name].numpy().tobytes() == array.tobytes(), name
        assert found[name].data_ptr() % found[name].element_size() == 0 or found[name].element_size() <= 8
    assert torch.equal(penstock.load(path, names=["one"])["one"], torch.tensor(2.5, dtype=torch.float64))
    into = {name: torch.zeros_like(tensor) for name, tensor in found.items()}
    penstock.load(path, into=into)
    assert all(torch.equal(into[name], found[name]) for name in found)
    mapped = penstock.load(path, mmap=True)
    assert all(torch.equal(mapped[name], found[name]) for name in found)


def test_of_positions_and_of_any_text():
    import io

    file = io.BytesIO()
    np.savez(file, np.arange(3), **{"größe/x": np.ones(2, "f4")})
    file.seek(0)
    found = penstock.load(file)
    assert found["arr_0"].tolist() == [0, 1, 2] and found["größe/x"].tolist() == [1, 1]


REFUSED = {
    "compressed": (lambda at: np.savez_compressed(at, a=np.ones(9)), "numpy.load()"),
    "text": (lambda at: np.savez(at, a=np.array(["one"])), "state['a']: its dtype '<U3' is text"),
    "objects": (lambda at: np.savez(at, a=np.array([{}], dtype=object)), "state['a']: its dtype"),
    "Fortran": (lambda at: np.savez(at, a=np.asfortranarray(np.ones((2, 3)))), "Fortran"),
    "big-endian": (lambda at: np.savez(at, a=np.ones(2, ">f4")), "big-endian"),
    "fields": (lambda at: np.savez(at, a=np.zeros(2, [("x", "f4")])), "structured"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_not_read_is_unsupported(what, tmp_path):
    make, text = REFUSED[what]
    make(tmp_path / "a.npz")
    with pytest.raises(penstock.Unsupported, match=r"a\.npz") as refused:
        penstock.load(tmp_path / "a.npz")
    assert text in str(refused.value)


def test_what_is_not_read_costs_only_itself(tmp_path):
    path = tmp_path / "a.npz"
    more = {"turned": np.asfortranarray(np.ones((2, 3)))}
    more |= {"text": np.array(["one"]), "objects": np.array([{}], dtype=object), "big": np.ones(2, ">f4")}
    np.savez(path, w=np.arange(3.0), **more, last=np.ones(2, "f4"))
    with pytest.raises(penstock.Unsupported, match=r"state\['turned'\]: .*; nor are read: state\['text'\]"):
        penstock.load(path)
    assert penstock.load(path, names="w").tolist() == [0, 1, 2]
    assert list(penstock.load(path, names=["w", "last"])) == ["w", "last"]
    found = penstock.load(path, unread="keep")
    assert list(found) == ["w", *more, "last"] and found["last"].tolist() == [1, 1]
    assert all(isinstance(found[name], penstock.Unread) for name in more)
    assert found["text"].name == "numpy.ndarray" and "state['text'] (numpy.ndarray)" in penstock.inspect(path).unread
    with zipfile.ZipFile(path, "a") as zipped:
        zipped.writestr("note.txt", b"no array")
    assert penstock.load(path, unread="keep")["note.txt"].name == "bytes"
    with zipfile.ZipFile(path, "a") as zipped:
        zipped.writestr("w", b"the key of w.npy")
    with pytest.raises(penstock.Unsupported, match="that another one has"):
        penstock.load(path, unread="keep")


def test_a_key_may_be_any_text(tmp_path):
    path = tmp_path / "a.npz"
    for name in ("../up", "./here", "/params/Dense_0/kernel", "a\\b", "", "x.npy", "größe", "a//b", ".."):
        np.savez(path, **{name: np.arange(2)})
        assert np.load(path).files == [name]
        assert {key: one.tolist() for key, one in penstock.load(path).items()} == {name: [0, 1]}
        assert [one.name for one in penstock.inspect(path)] == [name]


def archive(at, **records):
    with zipfile.ZipFile(at, "w") as zipped:
        for name, data in records.items():
            zipped.writestr(name.replace("__", "."), data)


def npy(array):
    import io

    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def test_bytes_that_contradict_are_damaged(tmp_path):
    path = tmp_path / "a.npz"
    for data in (npy(np.ones(9))[:-1], npy(np.ones(9)) + b"x", npy(np.ones(9))[:40], b"\x93NUMPY", b""):
        archive(path, a__npy=data)
        with pytest.raises(penstock.Damaged, match="array 'a'"):
            penstock.load(path)
    np.savez(path, a=np.arange(1000.0))
    whole = path.read_bytes()
    at = whole.index(np.arange(1000.0).tobytes()) + 4000
    path.write_bytes(whole[:at] + b"\xff" + whole[at + 1 :])
    with pytest.raises(penstock.Damaged):
        penstock.load(path)
    np.savez(path, a=np.zeros((0, 3)))
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b"(0, 3)", b"(0, 2)"))
    with pytest.raises(penstock.Damaged, match="array 'a': its header has another CRC"):
        penstock.load(path)
    archive(path, a__npy=npy(np.ones(3)), b__txt=b"no array")
    with pytest.raises(penstock.Unsupported, match=r"state\['b.txt'\]: it is not an array"):
        penstock.load(path)


def test_it_is_listed_and_not_changed(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, a=np.ones((2, 3), "f4"))
    assert [(t.name, t.shape) for t in penstock.inspect(path)] == [("a", (2, 3))]
    with pytest.raises(penstock.Unsupported, match="only read"):
        penstock.update(path, {"a": torch.zeros(2, 3)})
    index = {"weight_map": {"a": "a.npz"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(penstock.Unsupported, match="npz"):
        penstock.load(tmp_path / "model.safetensors.index.json")


@pytest.mark.parametrize("mapped", [False, True])
def test_complex_numbers_are_aligned_wherever_they_lie(mapped, tmp_path):
    """torch ends the process on some complex128 that begin at an odd address."""
    path = tmp_path / "a.pt"
    for pad in range(4):
        state = {"name" + "x" * pad: 1, "c": torch.full((1,), 1 + 2j, dtype=torch.complex128), "v": torch.arange(3)}
        state["view"] = state["c"][:1]
        torch.save(state, path, _use_new_zipfile_serialization=False)
        found = penstock.load(path, mmap=mapped)
        assert found["c"].data_ptr() % 16 == 0 and found["c"].tolist() == [1 + 2j]
        assert found["view"].data_ptr() == found["c"].data_ptr()
        one = penstock.load(path, names=["c"], mmap=mapped)["c"]
        assert one.data_ptr() % 16 == 0 and torch.equal(torch.empty_like(one).copy_(one), state["c"])
        into = {"c": torch.zeros(1, dtype=torch.complex128), "view": torch.zeros(2, dtype=torch.complex128)[1:]}
        penstock.load(path, names=["c", "view"], into=into)
        assert into["c"].tolist() == into["view"].tolist() == [1 + 2j]
