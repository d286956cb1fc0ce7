# SPDX-License-Identifier: Apache-2.0
"""save() of tensors that are not in memory together: iterators, lazy mappings, checkpoints. What was given is saved,
and what goes wrong leaves the old file."""

import io
import itertools
import json
import os
import signal
import threading
import weakref
from collections.abc import Mapping

import numpy as np
import penstock
import pytest

torch = pytest.importorskip("torch")
safetensors_torch = pytest.importorskip("safetensors.torch")

FORMATS = ("s.pt", "s.safetensors", "s.safetensors.index.json")


def state(count=9):
    torch.manual_seed(3)
    made = {f"layer.{i}.weight": torch.randn(i + 1, 777) for i in range(count)}
    made["big"] = torch.randn(3_000_000)
    made["half"] = torch.randn(5, 3).to(torch.bfloat16)
    made["flags"] = torch.arange(77_001) % 3 == 0
    made["none"] = torch.zeros(0, 4)
    made["scalar"] = torch.tensor(7)
    made["t"] = torch.randn(40, 30).t()
    return made


def on_meta(tensors):
    return {name: tensor.to("meta") for name, tensor in tensors.items()}


def same(a, b):
    assert list(a) == list(b) or sorted(a) == sorted(b)
    for name in a:
        assert a[name].dtype == b[name].dtype and a[name].shape == b[name].shape, name
        assert torch.equal(a[name], b[name]), name


def stock(path):
    """The file as other programs read it."""
    if str(path).endswith(".pt"):
        return torch.load(path, weights_only=True)
    if str(path).endswith(".json"):
        found = {}
        for shard in set(json.loads(path.read_text())["weight_map"].values()):
            found.update(safetensors_torch.load_file(path.parent / shard))
        return found
    return safetensors_torch.load_file(path)


class Made(Mapping):
    """Tensors that are made when they are asked for."""

    def __init__(self, tensors):
        self.tensors, self.asked = tensors, []

    def __getitem__(self, name):
        self.asked.append(name)
        return self.tensors[name].clone()

    def __iter__(self):
        return iter(self.tensors)

    def __len__(self):
        return len(self.tensors)


class Lazy:
    """A tensor that is read when it is indexed, as those of h5py are."""

    def __init__(self, tensor):
        self.shape, self.dtype, self.tensor, self.read = tuple(tensor.shape), tensor.dtype, tensor, 0

    def __getitem__(self, index):
        self.read += 1
        return self.tensor[index]


@pytest.mark.parametrize("name", FORMATS)
def test_an_iterator_that_uses_its_memory_again(tmp_path, name):
    tensors = state()
    memory = torch.empty(16 << 20, dtype=torch.uint8)

    def given():
        for key, tensor in tensors.items():
            memory.fill_(0xEE)
            here = memory[: tensor.nbytes].view(tensor.dtype).view(tensor.shape)
            here.copy_(tensor)
            yield key, here
        memory.fill_(0xEE)

    penstock.save(given(), tmp_path / name, like=on_meta(tensors))
    same(stock(tmp_path / name), tensors)
    same(penstock.load(tmp_path / name), tensors)
    if name != FORMATS[1]:
        penstock.save(given(), tmp_path / name, shard_bytes="2MiB")
        same(stock(tmp_path / name), tensors)
    shuffled = dict(sorted(tensors.items(), reverse=True))
    penstock.save(iter(shuffled.items()), tmp_path / name, like=on_meta(tensors))
    same(stock(tmp_path / name), tensors)


@pytest.mark.parametrize("name", FORMATS)
def test_lazy_mappings(tmp_path, name):
    tensors = state()
    made = Made(tensors)
    penstock.save(made, tmp_path / name)
    same(stock(tmp_path / name), tensors)
    assert len(made.asked) <= 2 * len(tensors) + 2
    made = Made(tensors)
    penstock.save(made, tmp_path / name, like=on_meta(tensors))
    same(stock(tmp_path / name), tensors)
    assert made.asked == list(tensors)
    lazy = {key: Lazy(tensor) for key, tensor in tensors.items()}
    penstock.save(lazy, tmp_path / name)
    same(stock(tmp_path / name), tensors)
    assert all(one.read == 1 for one in lazy.values())
    arrays = {"a": np.arange(12, dtype=np.int16).reshape(3, 4), "b": np.float64(2) * np.ones(3)}
    penstock.save(iter(arrays.items()), tmp_path / name, like=arrays)
    same(stock(tmp_path / name), {key: torch.from_numpy(array) for key, array in arrays.items()})


def test_a_torch_file_holds_all_types(tmp_path):
    tensors = {"c": torch.randn(3, dtype=torch.complex128), "h": torch.randn(3, dtype=torch.complex64).conj()}
    penstock.save(iter(tensors.items()), tmp_path / "s.pt")
    found = torch.load(tmp_path / "s.pt")
    assert torch.equal(found["c"], tensors["c"]) and torch.equal(found["h"], tensors["h"].resolve_conj())
    with pytest.raises(TypeError, match="complex128"):
        penstock.save(iter(tensors.items()), tmp_path / FORMATS[2])
    model = torch.nn.Linear(3, 2)
    penstock.save(model.named_parameters(), tmp_path / "s.pt")
    model.load_state_dict(torch.load(tmp_path / "s.pt", weights_only=True))


def test_one_tensor_is_held_at_a_time(tmp_path):
    alive = []

    def given():
        for i in range(20):
            assert sum(one() is not None for one in alive) == 0
            tensor = torch.full((1000,), float(i))
            alive.append(weakref.ref(tensor))
            yield str(i), tensor
            del tensor

    penstock.save(given(), tmp_path / "s.pt")
    assert len(penstock.load(tmp_path / "s.pt")) == 20


@pytest.mark.parametrize("name", FORMATS)
def test_a_checkpoint_is_saved_without_being_loaded(tmp_path, name):
    tensors = state()
    del tensors["t"]
    with penstock.CheckpointStore(tmp_path / "store") as store:
        store.save(tensors, 1)
        checkpoint = store.open(1)
        penstock.save(checkpoint, tmp_path / name)
        same(stock(tmp_path / name), tensors)
        nested = {
            "model": dict(tensors),
            "tied": tensors["big"],
            "step": 3,
            "list": [torch.ones(2).t(), "x", np.arange(3)],
        }
        nested["rows"] = tensors["big"][10:20]
        store.save(nested, 2)
        checkpoint = store.open(2)
        if name != FORMATS[0]:
            with pytest.raises(ValueError, match="tensors by name"):
                penstock.save(checkpoint, tmp_path / name)
            same(stock(tmp_path / name), tensors)
            return
        penstock.save(checkpoint, tmp_path / name)
        found = penstock.load(tmp_path / name)
        same(found["model"], tensors)
        assert found["step"] == 3 and found["list"][1] == "x" and np.array_equal(found["list"][2], np.arange(3))
        assert found["tied"].data_ptr() == found["model"]["big"].data_ptr()
        assert torch.equal(found["rows"], tensors["big"][10:20])
        assert torch.equal(torch.load(tmp_path / name, weights_only=False)["tied"], tensors["big"])


def raising():
    yield "a", torch.ones(3)
    raise LookupError("the source failed")


MISTAKES = {
    "raises": (raising, LookupError, "the source failed"),
    "twice": (lambda: iter([("a", torch.ones(3)), ("a", torch.ones(3))]), ValueError, "'a': it comes twice"),
    "no pair": (lambda: iter([("a", torch.ones(3)), 5]), TypeError, r"item 1: expected \(name, tensor\), got 5"),
    "no name": (lambda: iter([(1, torch.ones(3))]), TypeError, "item 0: expected"),
    "no tensor": (lambda: iter([("a", "text")]), TypeError, "item 0, 'a': expected a tensor"),
    "sparse": (lambda: iter([("a", torch.eye(3).to_sparse())]), TypeError, "'a'"),
    "meta": (lambda: iter([("a", torch.ones(3, device="meta"))]), TypeError, "meta"),
    "half a character": (lambda: iter([("a\udc80", torch.ones(3))]), ValueError, r"item 0: 'a.*not UTF-8"),
    "masked": (lambda: iter([("a", np.ma.array([1.0], mask=[1]))]), TypeError, r"'a'.*mask.*filled\(\)"),
    "missing": (lambda: iter([("a", torch.ones(3))]), ValueError, "'b': it was announced"),
    "another": (lambda: iter([("a", torch.ones(3)), ("c", torch.ones(3))]), ValueError, "'c': it is not among"),
    "shape": (lambda: iter([("a", torch.ones(4))]), ValueError, r"\[4\] of F32, and \[3\] of F32"),
    "dtype": (lambda: iter([("a", torch.ones(3).double())]), ValueError, r"\[3\] of F64"),
}


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("mistake", MISTAKES)
def test_what_goes_wrong_leaves_the_old_file(tmp_path, name, mistake):
    make, error, text = MISTAKES[mistake]
    old = {"old": torch.arange(5)}
    penstock.save(iter(old.items()), tmp_path / name, like=on_meta(old))
    before = sorted(os.listdir(tmp_path))
    with pytest.raises(error, match=text):
        penstock.save(make(), tmp_path / name, like=on_meta({"a": torch.ones(3), "b": torch.ones(2)}))
    same(stock(tmp_path / name), old)
    assert sorted(os.listdir(tmp_path)) == before


def test_one_safetensors_needs_to_know_what_comes(tmp_path):
    asked = []
    with pytest.raises(ValueError, match=r"\(like\)"):
        penstock.save((asked.append(1) for _ in range(2)), tmp_path / "s.safetensors")
    assert not asked and not os.listdir(tmp_path)


def test_wrong_arguments(tmp_path):
    pairs = [("a", torch.ones(3))]
    for call, error, text in [
        (lambda: penstock.save(iter(pairs), io.BytesIO()), TypeError, "to a path"),
        (lambda: penstock.save(iter(pairs), tmp_path / "s.pt", like=["a"]), TypeError, "like: expected a mapping"),
        (lambda: penstock.save(pairs, tmp_path / "s.pt", like={}), TypeError, "like: is for"),
        (lambda: penstock.save(iter(pairs), tmp_path / "s.pt", metadata={"a": "b"}), ValueError, "metadata"),
        (lambda: penstock.save(iter(pairs), tmp_path / "s.json"), ValueError, "index of shards"),
        (lambda: penstock.save(iter(pairs), str(tmp_path) + "/s/"), ValueError, "folder"),
        (lambda: penstock.save(iter(pairs), tmp_path / "s.pt", like={"a": 5}), TypeError, "shape and dtype"),
    ]:
        with pytest.raises(error, match=text):
            call()
    assert not os.listdir(tmp_path)


def test_progress_knows_no_total_before_the_end(tmp_path, capsys):
    calls = []
    penstock.save(iter(state().items()), tmp_path / "s.pt", progress=lambda done, total: calls.append((done, total)))
    assert calls[-1][0] == calls[-1][1] == os.path.getsize(tmp_path / "s.pt")
    assert all(total == 0 for _, total in calls[:-1])
    penstock.save(iter(state().items()), tmp_path / "s.pt", progress=True)

    def stop(done, total):
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        penstock.save(iter(state().items()), tmp_path / "s.pt", progress=stop)
    same(stock(tmp_path / "s.pt"), state())


def test_ctrl_c_ends_an_endless_iterator(tmp_path):
    def given():
        for i in itertools.count():
            if i == 3:
                signal.raise_signal(signal.SIGINT)
            yield str(i), torch.zeros(1000)

    with pytest.raises(KeyboardInterrupt):
        penstock.save(given(), tmp_path / "s.pt")
    assert not os.listdir(tmp_path)


def test_it_may_be_called_from_an_iterator_and_from_threads(tmp_path):
    tensors = state(2)

    def inner(path):
        penstock.save(iter(tensors.items()), path)
        return penstock.load(path)["big"]

    penstock.save(((str(i), inner(tmp_path / f"{i}.pt")) for i in range(2)), tmp_path / "s.pt")
    assert torch.equal(penstock.load(tmp_path / "s.pt")["1"], tensors["big"])
    threads = [threading.Thread(target=inner, args=(tmp_path / f"{i}.pt",)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    same(penstock.load(tmp_path / "3.pt"), tensors)


def test_mappings_in_memory_are_saved_as_before(tmp_path):
    tensors = {"a": torch.ones(3)}
    penstock.save(tensors, tmp_path / "s.safetensors")
    from types import MappingProxyType

    penstock.save(MappingProxyType(tensors), tmp_path / "t.safetensors")
    assert (tmp_path / "s.safetensors").read_bytes() == (tmp_path / "t.safetensors").read_bytes()
    with pytest.raises(TypeError, match="mappingproxy"):
        penstock.save(MappingProxyType(tensors), tmp_path / "t.pt")
