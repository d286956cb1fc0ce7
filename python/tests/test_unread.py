# SPDX-License-Identifier: Apache-2.0
"""An object of a `.pt` that is not read costs only itself: everything else loads, and a place-holder fails when it is
used."""

import argparse
import collections
import copy
import datetime
import decimal
import enum
import functools
import gc
import inspect
import io
import os
import pathlib
import pickle
import subprocess
import sys
import types
import weakref
import zipfile

import penstock
import pytest

torch = pytest.importorskip("torch")


class Mode(enum.Enum):
    FAST = 1
    SLOW = 2


class Config:
    def __init__(self, **attributes):
        self.__dict__.update(attributes)


class Slots:
    __slots__ = ("a", "b")

    def __init__(self, a, b):
        self.a, self.b = a, b


class Attributes(dict):
    """As the hparams of Lightning and the results of transformers."""


class Rows(list):
    pass


class Own(torch.Tensor):
    pass


class Keywords:
    """Is made by NEWOBJ_EX from protocol 4 on, by functools.partial below."""

    def __new__(cls, *, t):
        return super().__new__(cls)

    def __init__(self, *, t):
        self.t = t

    def __getnewargs_ex__(self):
        return (), {"t": self.t}


class Touch:
    """Writes a file where it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return pathlib.Path.touch, (self.path,)


def t(value=0.0):
    return torch.full((2,), float(value))


def ring():
    made = Config(t=t())
    made.me, made.row = made, [made, (made,)]
    return made


OBJECTS = {  # made, its name, its tensors by their names in it
    "namespace": (lambda: argparse.Namespace(lr=1, t=t()), "argparse.Namespace", ["t"]),
    "path": (lambda: pathlib.PurePosixPath("/data"), "pathlib.PurePosixPath", []),
    "date": (lambda: datetime.datetime(2026, 1, 2), "datetime.datetime", []),
    "decimal": (lambda: decimal.Decimal("0.1"), "decimal.Decimal", []),
    "enum": (lambda: Mode.FAST, "test_unread.Mode.FAST", []),
    "class": (lambda: Config, "test_unread.Config", []),
    "function": (lambda: inspect.signature, "inspect.signature", []),
    "method": (lambda: Config(t=t()).__init__, None, None),
    "own": (lambda: Config(a=1, row=[{"t": t()}]), "test_unread.Config", ["row.0.t"]),
    "slots": (lambda: Slots(t(), 3), "test_unread.Slots", ["a"]),
    "dict": (lambda: Attributes(lr=1, t=t()), "test_unread.Attributes", ["t"]),
    "list": (lambda: Rows([t(), t()]), "test_unread.Rows", ["0", "1"]),
    "deque": (lambda: collections.deque([t()], 3), "collections.deque", None),
    "partial": (lambda: functools.partial(print, t()), "functools.partial", None),
    "keywords": (lambda: Keywords(t=t()), None, None),
    "ring": (ring, "test_unread.Config", ["t"]),
    "module": (lambda: torch.nn.Linear(2, 2), "torch.nn.modules.linear.Linear",
               ["_parameters.weight", "_parameters.bias"]),
    "subclass": (lambda: t().as_subclass(Own), "test_unread.Own", ["data"]),
    "generator": (lambda: __import__("random").Random(1), "random.Random", []),
    "surrogate": (lambda: "\ud800", "str", []),
    "exception": (lambda: ValueError("x"), None, []),
    "range": (lambda: range(3), None, []),
    "slice": (lambda: slice(1, 2), None, []),
    "ellipsis": (lambda: ..., None, []),
    "set": (lambda: {pathlib.PurePosixPath("a")}, "set", []),
}  # fmt: skip


def saved(state, path, **how):
    torch.save(state, path, **how)
    return path


HOW = {
    "zip": {},
    "legacy": {"_use_new_zipfile_serialization": False},
    "protocol 4": {"pickle_protocol": 4},
    "protocol 1": {"pickle_protocol": 1},
}
CASES = [("zip", kind) for kind in OBJECTS]
CASES += [(form, kind) for form in list(HOW)[1:] for kind in ("own", "dict", "list", "module", "ring")]


@pytest.mark.parametrize(("form", "kind"), CASES)
def test_everything_beside_it_loads(form, kind, tmp_path):
    (make, name, inside), how = OBJECTS[kind], HOW[form]
    state = {"model": {"w": t(1), "b": t(2)}, "x": {"y": [0, make()]}, "step": 7}
    path = saved(state, tmp_path / "s.pt", **how)
    assert torch.equal(penstock.load(path, names="model.w"), t(1))
    assert penstock.load(path, names="step") == 7
    assert list(penstock.load(path, names="model")) == ["w", "b"]
    assert list(penstock.load(path, names=["model", "step"])) == ["model", "step"]
    assert torch.equal(penstock.load(path, names="model.*")["model.b"], t(2))
    into = {"model.w": torch.zeros(2)}
    penstock.load(path, names=["model.w"], into=into)
    assert torch.equal(into["model.w"], t(1))

    seen = penstock.inspect(path)
    names = [row.name for row in seen]
    assert names[:2] == ["model.w", "model.b"]
    assert inside is None or names[2:] == [f"x.y.1.{one}" for one in inside]
    (listed,) = seen.unread
    assert listed == f"state['x']['y'][1] ({name})" or name is None

    for read in (
        lambda: penstock.load(path),
        lambda: penstock.load(path, names="x"),
        lambda: penstock.load(path, mmap=True),
        lambda: penstock.load(path, names=["x.y", "step"]),
    ):
        with pytest.raises(penstock.Unsupported) as caught:
            read()
        assert "'keep'" in str(caught.value) or 'unread="keep"' in str(caught.value)

    kept = penstock.load(path, unread="keep")
    assert torch.equal(kept["model"]["w"], t(1)) and kept["step"] == 7 and kept["x"]["y"][0] == 0
    held = kept["x"]["y"][1]
    assert type(held) is penstock.Unread and held.place == "state['x']['y'][1]" and held.reason
    assert held.name == name or name is None
    tensors = list(held.tensors.items())
    assert len(tensors) == len(names) - 2
    for (place, tensor), info in zip(tensors, seen[2:], strict=True):
        assert place.startswith(held.place + "[") and tuple(tensor.shape) == info.shape
        assert torch.equal(penstock.load(path, names=info.name), tensor)


USES = {
    "call": lambda held: held(),
    "attribute": lambda held: held.lr,
    "set an attribute": lambda held: setattr(held, "lr", 2),
    "delete an attribute": lambda held: delattr(held, "name"),
    "item": lambda held: held["lr"],
    "set an item": lambda held: held.__setitem__("lr", 1),
    "iterate": lambda held: list(held),
    "length": len,
    "in": lambda held: 1 in held,
    "truth": bool,
    "equal": lambda held: held == 1,
    "not equal": lambda held: held != held,
    "less": lambda held: held < 1,
    "add": lambda held: held + 1,
    "hash": hash,
    "key": lambda held: {held: 1},
    "number": float,
    "path": lambda held: open(held),
    "pickle": pickle.dumps,
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "array": lambda held: __import__("numpy").asarray(held),
    "torch.save": lambda held: torch.save({"a": held}, io.BytesIO()),
    "save": lambda held: penstock.save({"a": [held]}, io.BytesIO()),
    "save a .safetensors": lambda held: penstock.save({"a": held}, "never_written.safetensors"),
    "save with default": lambda held: penstock.save({"a": held}, io.BytesIO(), default=penstock.Pickled),
    "save of an iterator": lambda held: penstock.save(iter([("a", held)]), "never_written.pt"),
    "save of an iterator to shards": lambda held: penstock.save(iter([("a", held)]), "n.safetensors.index.json"),
    "save of a lazy mapping": lambda held: penstock.save(types.MappingProxyType({"a": held}), "n.safetensors"),
    "save like it": lambda held: penstock.save(iter([("a", t())]), "n.safetensors", like={"a": held}),
    "save in the background": lambda held: penstock.save_async({"a": held}, "n.pt").result(),
    "pickled": penstock.Pickled,
    "tensor of it": torch.as_tensor,
    "from_dlpack": torch.from_dlpack,
    "in a list": lambda held: held in [1, 2],
    "write": lambda held: penstock.write(held, "never_written.bin"),
    "dtype": lambda held: held.dtype,
}


@pytest.mark.parametrize("use", USES)
def test_it_fails_when_it_is_used_and_says_what_it_is(use, tmp_path, monkeypatch):
    path = saved({"args": argparse.Namespace(lr=1)}, tmp_path / "s.pt")
    held = penstock.load(path, unread="keep")["args"]
    monkeypatch.chdir(tmp_path)
    with pytest.raises(penstock.Unsupported, match=r"argparse\.Namespace"):
        USES[use](held)
    assert os.listdir() == ["s.pt"]


def test_it_can_be_shown_and_has_no_callable(tmp_path):
    path = saved({"args": argparse.Namespace(f=inspect.signature, t=t())}, tmp_path / "s.pt")
    held = penstock.load(path, unread="keep")["args"]
    assert repr(held) == str(held) == f"{held}" == "<penstock.Unread argparse.Namespace, state['args'], 1 tensor>"
    assert [type(getattr(held, slot)) for slot in ("name", "place", "reason")] == [str] * 3
    assert all(torch.is_tensor(one) for one in held.tensors.values())
    with pytest.raises(AttributeError):
        _ = held._no_such_protocol_
    for make in (penstock.Unread, lambda: type("Own", (penstock.Unread,), {})):
        with pytest.raises(TypeError):
            make()


def test_one_in_a_ring_with_its_tensor_is_freed(tmp_path):
    held = penstock.load(saved({"args": argparse.Namespace(t=t())}, tmp_path / "s.pt"), unread="keep")["args"]
    (tensor,) = held.tensors.values()
    tensor.held, gone = held, weakref.ref(tensor)
    del held, tensor
    gc.collect()
    assert gone() is None


def test_a_store_saves_none(tmp_path):
    path = saved({"args": argparse.Namespace()}, tmp_path / "s.pt")
    with penstock.CheckpointStore(tmp_path / "store") as store:
        with pytest.raises(penstock.Unsupported, match=r"state\['args'\]"):
            store.save(penstock.load(path, unread="keep"))
        with pytest.raises(penstock.Unsupported, match=r"state\['args'\]"):
            store.save_async(penstock.load(path, unread="keep")).result()


def test_a_key_that_is_not_read(tmp_path):
    state = {"w": t(1), "by": {Mode.FAST: t(2), (Mode.SLOW, "lr"): 3, "plain": t(4)}}
    path = saved(state, tmp_path / "s.pt")
    assert torch.equal(penstock.load(path, names="w"), t(1))
    assert torch.equal(penstock.load(path, names="by.plain"), t(4))
    kept = penstock.load(path, unread="keep")
    assert list(kept["by"]) == ["(test_unread.Mode.FAST)", "(test_unread.Mode.SLOW)", "plain"]
    first, second, _ = kept["by"].values()
    assert torch.equal(first.tensors["state['by']['(test_unread.Mode.FAST)']['value']"], t(2))
    assert second.tensors == {} and "its key" in second.reason


def test_nothing_runs_and_nothing_is_imported(tmp_path, monkeypatch):
    made = tmp_path / "touched"
    module = types.ModuleType("canary_module")
    module.Thing = type("Thing", (), {"__module__": "canary_module"})
    monkeypatch.setitem(sys.modules, "canary_module", module)
    path = saved({"bad": Touch(made), "x": module.Thing(), "w": t(1)}, tmp_path / "s.pt")
    monkeypatch.delitem(sys.modules, "canary_module")
    (tmp_path / "canary_module.py").write_text("raise SystemExit('it was imported')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(penstock.Unsupported):
        penstock.load(path)
    kept = penstock.load(path, unread="keep")
    assert kept["x"].name == "canary_module.Thing" and torch.equal(penstock.load(path, names="w"), t(1))
    assert len(penstock.inspect(path).unread) == 2
    assert "canary_module" not in sys.modules and not made.exists()


def test_a_whole_module(tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
    path = saved(model, tmp_path / "m.pt")
    with pytest.raises(penstock.Unsupported, match=r"Sequential.*torch\.load"):
        penstock.load(path)
    held = penstock.load(path, unread="keep")
    assert held.name == "torch.nn.modules.container.Sequential" and held.place == "state"
    assert torch.equal(penstock.load(path, names="_modules.0._parameters.weight"), model[0].weight)
    assert len(held.tensors) == len(penstock.inspect(path)) == len(model.state_dict())


def test_into_and_load_into(tmp_path):
    class Hooked(torch.nn.Linear):
        def _load_from_state_dict(self, *arguments):
            super()._load_from_state_dict(*arguments)

    source = torch.nn.Linear(2, 2)
    path = saved({"model": source.state_dict(), "args": argparse.Namespace(t=t(5))}, tmp_path / "s.pt")
    flat = saved(source.state_dict() | {"args": argparse.Namespace()}, tmp_path / "flat.pt")
    for made in (torch.nn.Linear, Hooked):
        for file, names in ((path, "model"), (flat, None)):
            model = made(2, 2)
            penstock.load_into(model, file, names=names, strict=made is torch.nn.Linear)
            assert torch.equal(model.weight, source.weight) and torch.equal(model.bias, source.bias)
    into = {"model": torch.nn.Linear(2, 2).state_dict(), "args": {"t": torch.zeros(2)}}
    with pytest.raises(penstock.Unsupported):
        penstock.load(path, into=into)
    assert torch.equal(into["args"]["t"], torch.zeros(2))  # nothing was read
    found = penstock.load(path, into=into, unread="keep")
    assert torch.equal(into["model"]["weight"], source.weight)
    assert found["args"].tensors == {"state['args']['t']": into["args"]["t"]}
    assert torch.equal(into["args"]["t"], t(5))


@pytest.mark.parametrize("scale", [0.5, decimal.Decimal("0.5"), argparse.Namespace(t=t())], ids=type)
def test_a_scale_that_is_not_read_or_no_tensor(scale, tmp_path):
    """It is a scale of a weight that is taken: the weight alone would be wrong by its factor."""
    path = saved({**torch.nn.Linear(2, 2).state_dict(), "weight_scale": scale}, tmp_path / "s.pt")
    with pytest.raises(RuntimeError, match="weight_scale is a scale, zero point or table of weight"):
        penstock.load_into(torch.nn.Linear(2, 2), path, strict=False)
    state = {f"0.{name}": value for name, value in torch.load(path, weights_only=False).items()}
    with torch.device("meta"):
        model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    with pytest.raises(NotImplementedError, match=r"0\.weight_scale, a scale, zero point or table of 0\.weight"):
        penstock.stream(model, saved(state, tmp_path / "t.pt"), memory="8MiB")


def test_convert_and_diff(tmp_path):
    def run(*words):
        command = [sys.executable, "-m", "penstock", "checkpoint", *map(str, words)]
        return subprocess.run(command, capture_output=True, text=True)

    path = saved({"w": t(1), "args": argparse.Namespace(t=t(2))}, tmp_path / "a.pt")
    other = saved({"w": t(1), "args": argparse.Namespace(t=t(3))}, tmp_path / "b.pt")
    made = run("convert", path, tmp_path / "o.pt")
    assert made.returncode != 0 and "--tensors-only" in made.stderr and not (tmp_path / "o.pt").exists()
    assert run("convert", path, tmp_path / "o.safetensors", "--tensors-only").returncode == 0
    assert sorted(penstock.load(tmp_path / "o.safetensors")) == ["args.t", "w"]
    assert run("convert", path, tmp_path / "w.pt", "--names", "w").returncode == 0
    assert "not read: state['args'] (argparse.Namespace)" in run("show", path).stdout
    found = run("diff", path, other)
    assert found.returncode == 1 and "args.t" in found.stdout and "1 different, 1 the same" in found.stdout


def test_arguments():
    with pytest.raises(ValueError, match="unread: expected 'raise' or 'keep'"):
        penstock.load("x.pt", unread="ignore")


# ---- limits: what a hostile file could make of place-holders


def raw(*codes):
    """A .pt with this pickle."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("archive/data.pkl", b"".join((b"\x80\x02", *codes, b".")))
        archive.writestr("archive/version", "3\n")
    return io.BytesIO(out.getvalue())


def test_very_many_are_refused_and_cost_only_themselves():
    file = raw(b"}(X\x01\0\0\0wK\1X\x01\0\0\0x](", b"cmy\nThing\n)\x81" + b"cmy\nThing\n)\x81" * 65536, b"eu")
    assert penstock.load(file, names="w") == 1
    file.seek(0)
    with pytest.raises(penstock.Unsupported, match="more than 65536 objects"):
        penstock.load(file, unread="keep")


def test_chains_of_chains_do_not_overflow_the_stack():
    links = b""
    for i in range(300):  # each is 400 deep, and ends in the one before
        links += b"]" * 400 + (b"h" + bytes([i - 1]) if 0 < i < 256 else b"N") + b"a" * 400
        links += b"q" + bytes([i]) if i < 256 else b""
    file = raw(b"}(X\x01\0\0\0acmy\nThing\n)\x81(", links, b"eX\x01\0\0\0bh\xffu")
    for names in (None, "b", "a"):
        file.seek(0)
        try:
            penstock.load(file, names=names, unread="keep")
        except penstock.Unsupported as error:
            assert "nested" in str(error) or "deep" in str(error)


def of_attributes(levels):
    """An object with a tensor whose attribute is such an object."""
    made = Config(t=t())
    for _ in range(levels):
        made = Config(t=t(), inner=[tagged(t(), mode=made)])
    return made


def tagged(tensor, **attributes):
    tensor.__dict__.update(attributes)
    return tensor


def test_one_in_the_attributes_of_a_tensor_of_another(tmp_path):
    state = penstock.load(saved({"c": of_attributes(3), "w": t(1)}, tmp_path / "a.pt"), unread="keep")
    assert torch.equal(state["w"], t(1))
    inner = state["c"]
    for _ in range(3):
        assert list(inner.tensors) == ["state['c']['t']", "state['c']['inner'][0]"]
        inner = inner.tensors["state['c']['inner'][0]"].mode
        assert isinstance(inner, penstock.Unread) and inner.place == "state['c']"
    assert list(inner.tensors) == ["state['c']['t']"]
    for levels in (40, 90):  # with the stack of this process left alone
        penstock.load(saved({"c": of_attributes(levels)}, tmp_path / "a.pt"), unread="keep")


def test_one_row_in_very_many_of_them():
    row = b"](" + b"K\1" * 70000 + b"eq\0"
    each = b"cmy\nThing\n)\x81h\0a"
    file = raw(b"}(X\x01\0\0\0r", row, b"X\x01\0\0\0x](", each * 200, b"eu")
    with pytest.raises(penstock.Unsupported, match="too many values"):
        penstock.load(file, unread="keep")


def test_a_caller_that_trusts_the_file_gets_what_torch_loads(tmp_path):
    from torch.testing._internal.two_tensor import TwoTensor  # a tensor that wraps others, as torchao's do

    path = tmp_path / "t.pt"
    state = {"w": TwoTensor(torch.ones(3), torch.zeros(3)), "args": argparse.Namespace(lr=0.1), "x": torch.arange(4)}
    torch.save(state, path)
    with pytest.raises(penstock.Unsupported):
        penstock.load(path)
    for file in (path, str(path)):
        found = penstock.load(file, pickle=True)
        assert type(found["w"]) is TwoTensor and torch.equal(found["w"].a, torch.ones(3))
        assert found["args"] == state["args"] and torch.equal(found["x"], state["x"])
    assert penstock.load(path, "meta", pickle=True)["x"].device.type == "meta"
    assert torch.equal(penstock.load(path, names="x", pickle=True), state["x"])
    for how in ({"dtype": torch.float16}, {"names": ["args"]}):
        with pytest.raises(penstock.Unsupported):
            penstock.load(path, pickle=True, **how)
    penstock.save(state, path, default=penstock.Pickled)
    found = penstock.load(path, pickle=True)
    assert type(found["w"]) is TwoTensor and torch.equal(found["w"].b, torch.zeros(3))
