# SPDX-License-Identifier: Apache-2.0
"""The advice of error messages works: each row provokes an error, finds the advice in its message, and follows it.

A row has the call that fails, the words of the advice, and what they say to do, which is true if it worked."""

import argparse
import io
import os
import pathlib
import shutil
import subprocess
import sys
import types

import pytest

torch = pytest.importorskip("torch")
np = pytest.importorskip("numpy")

import penstock  # noqa: E402
from penstock import CheckpointStore, load, load_into, save, save_async  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")


def net():
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2))


@pytest.fixture(scope="module")
def at(tmp_path_factory):
    """A folder with files of each kind; the working directory while its tests run."""
    folder = tmp_path_factory.mktemp("advice")
    before = os.getcwd()
    os.chdir(folder)
    x, model = torch.arange(6.0), net()
    state = model.state_dict()
    save(state, "m.pt")
    save(state, "m.safetensors")
    save({"module." + name: tensor for name, tensor in state.items()}, "prefixed.pt")
    save({"model": state, "step": 3}, "below.pt")
    save({"a": x, "b": x}, "tied.pt")
    save(state, "s.safetensors.index.json", shard_bytes=64)
    torch.save(model, "full.pt")
    torch.save({"w": x, "args": argparse.Namespace(lr=1)}, "args.pt")
    torch.save({"v": torch.eye(3).to_sparse(), "w": x}, "sparse.pt")
    np.save("a.npy", np.zeros(3))
    for name in ("folder", "empty", "model", "of_torch"):
        os.mkdir(name)
    save(state, "model/model.safetensors")
    os.link("model/model.safetensors", "link.safetensors")
    save(state, "of_torch/m.pt")
    with CheckpointStore("single") as store:
        store.save({"w": x + 1}, step=1)
    store = CheckpointStore("store")
    store.save({"w": x}, step=5, metadata={"loss": 0.5})
    yield types.SimpleNamespace(x=x, model=model, state=state, store=store)
    store.close()
    os.chdir(before)


def same(found, wanted):
    return list(found) == list(wanted) and all(torch.equal(found[name], wanted[name]) for name in wanted)


def saved(state, path, **how):
    """What a load of it gives."""
    save(state, path, **how)
    return load(path)


def file_of(state):
    out = io.BytesIO()
    save(state, out)
    out.seek(0)
    return out


class Quiet(io.RawIOBase):
    """A raw file that takes no bytes."""

    def writable(self):
        return True

    def write(self, data):
        return None


def pinned(at):
    with CheckpointStore("closing") as store:
        store.save({"w": at.x}, step=1)
    return store


def filled(make):
    """The tensors of m.pt in the state that make() returns."""
    into = make()
    load("m.pt", into=into)
    return into


def streamed(model=None, folder="model", **how):
    with torch.device("meta"):
        made = net()
    return penstock.stream(model or made, folder, **{"memory": "1MiB"} | how)


def works(model):
    with torch.no_grad():
        return tuple(model(torch.ones(1, 4)).shape) == (1, 2)


class Looks(torch.nn.Sequential):
    """Uses a weight of its first part itself."""

    def forward(self, x):
        self[0].weight.data_ptr()
        return super().forward(x)


def looking(**how):
    with torch.device("meta"):
        model = Looks(*net())
    return works(streamed(model, **how))


def streamed_and_back():
    model = streamed()
    model.unstream()
    return model


def convert(*arguments):
    """By the program, which takes a tenth of a second to begin."""
    run = [sys.executable, "-m", "penstock", "checkpoint", "convert", "--force", *arguments]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(done.stderr)
    return True


def removed_after_another(at):
    newest = at.store.list()[-1].generation
    at.store.save({"w": at.x}, step=11)
    at.store.remove(newest)
    return newest not in [one.generation for one in at.store.list()]


def wrapped(at):
    """A model whose names begin with `inner.`."""
    return torch.nn.ModuleDict({"inner": net()})


def equal(model, at):
    return same(model.state_dict(), at.state)


def into_model(at, source, make=net, part=lambda model: model, **how):
    model = make()
    load_into(part(model), source, **how)
    return equal(part(model), at)


ROWS = {
    # ---- save
    "swapped": (lambda at: save("e.pt", at.state), "path", lambda at: same(saved(at.state, "e.pt"), at.state)),
    "a module": (
        lambda at: save(at.model, "e.pt"),
        "state_dict()",
        lambda at: same(saved(at.model.state_dict(), "e.pt"), at.state),
    ),
    "another object": (
        lambda at: save({"cfg": argparse.Namespace(lr=1)}, "e.pt"),
        "default",
        lambda at: saved({"cfg": argparse.Namespace(lr=1)}, "e.pt", default=vars) == {"cfg": {"lr": 1}},
    ),
    "a folder": (lambda at: save(at.state, "folder"), "file in it", lambda at: bool(saved(at.state, "folder/e.pt"))),
    "as a folder": (
        lambda at: save(at.state, "e.pt/"),
        "give the path of a file, 'e.pt'",
        lambda at: bool(saved(at.state, "e.pt")),
    ),
    ".json": (
        lambda at: save(at.state, "e.json"),
        "end it in .safetensors.index.json for that, in .safetensors for one file of tensors, or in .pt",
        lambda at: all(
            sorted(saved(at.state, "e" + suffix)) == sorted(at.state)
            for suffix in (".safetensors.index.json", ".safetensors", ".pt")
        ),
    ),
    "nested in .safetensors": (
        lambda at: save({"m": at.state}, "e.safetensors"),
        ".pt",
        lambda at: same(saved({"m": at.state}, "e.pt")["m"], at.state),
    ),
    "tied in .safetensors": (
        lambda at: save({"a": at.x, "b": at.x}, "e.safetensors"),
        ".pt",
        lambda at: saved({"a": at.x, "b": at.x}, "e.pt")["b"].equal(at.x),
    ),
    "metadata of a .pt": (
        lambda at: save(at.state, "e.pt", metadata={"a": "1"}),
        "put it into the state, or save to a .safetensors",
        lambda at: (
            saved({"w": at.x, "a": "1"}, "e.pt")["a"] == "1"
            and bool(saved(at.state, "e.safetensors", metadata={"a": "1"}))
        ),
    ),
    "metadata of a file object": (
        lambda at: save(at.state, io.BytesIO(), metadata={"a": "1"}),
        "put it into the state, or save to the path of a .safetensors",
        lambda at: (
            load(file_of({"a": "1"})) == {"a": "1"} and bool(saved(at.state, "e.safetensors", metadata={"a": "1"}))
        ),
    ),
    "a text file": (
        lambda at: save(at.state, open("e.pt", "w")),
        "open it with 'wb'",
        lambda at: save(at.state, open("e.pt", "wb")) is None,
    ),
    "a file that takes nothing": (
        lambda at: save(at.state, Quiet()),
        "save to an io.BytesIO and write that",
        lambda at: bool(pathlib.Path("e.pt").write_bytes(file_of(at.state).getvalue())) and bool(load("e.pt")),
    ),
    "pickle_module": (
        lambda at: save(at.state, "e.pt", pickle_module=types.ModuleType("dill")),
        "leave it out, or use torch.save",
        lambda at: bool(saved(at.state, "e.pt")) and torch.save(at.state, "e.pt") is None,
    ),
    "pickle_protocol": (
        lambda at: save(at.state, "e.pt", pickle_protocol=1),
        "expected 2 to 5",
        lambda at: all(saved(at.state, "e.pt", pickle_protocol=n) for n in (2, 5)),
    ),
    "a meta tensor": (
        lambda at: save({"w": torch.empty(2, device="meta")}, "e.pt"),
        "give one that has (load it first), or give default=",
        lambda at: saved({"w": torch.empty(2, device="meta")}, "e.pt", default=lambda t: list(t.shape))["w"] == [2],
    ),
    "any object": (
        lambda at: save({"cfg": argparse.Namespace(lr=1)}, "e.pt"),
        "default=penstock.Pickled pickles it",
        lambda at: (
            save({"cfg": argparse.Namespace(lr=1)}, "e.pt", default=penstock.Pickled) is None
            and load("e.pt", pickle=True)["cfg"].lr == 1
        ),
    ),
    "dates of NumPy": (
        lambda at: save({"t": np.array(["2026-01-01"], "datetime64[D]")}, "e.pt"),
        "save it as another type",
        lambda at: saved({"t": np.array(["2026-01-01"], "datetime64[D]").astype("i8")}, "e.pt")["t"][0] == 20454,
    ),
    "a jagged tensor": (
        lambda at: save({"n": torch.nested.nested_tensor([at.x, at.x[:2]])}, "e.safetensors"),
        "save its parts (what its unbind() gives), or a dict of it to a .pt",
        lambda at: bool(saved(dict(zip("ab", torch.nested.nested_tensor([at.x, at.x[:2]]).unbind())), "e.pt")),
    ),
    "a sparse tensor in .safetensors": (
        lambda at: save({"v": torch.eye(3).to_sparse()}, "e.safetensors"),
        "save it as .pt",
        lambda at: saved({"v": torch.eye(3).to_sparse()}, "e.pt")["v"].is_sparse,
    ),
    "a sparse tensor, one by one": (
        lambda at: save(iter([("v", torch.eye(3).to_sparse())]), "e.pt"),
        "save a dict of them",
        lambda at: saved({"v": torch.eye(3).to_sparse()}, "e.pt")["v"].is_sparse,
    ),
    "dates in .safetensors": (
        lambda at: save({"t": np.array(["2026-01-01"], "datetime64[D]")}, "e.safetensors"),
        "give another dtype",
        lambda at: saved({"t": np.array(["2026-01-01"], "datetime64[D]").astype("i8")}, "e.safetensors")["t"] == 20454,
    ),
    "a key that is a number": (
        lambda at: save({1: at.x}, "e.safetensors"),
        "save it as .pt",
        lambda at: saved({1: at.x}, "e.pt")[1].equal(at.x),
    ),
    "tensors one by one": (
        lambda at: save(iter(at.state.items()), "e.safetensors"),
        "announce them, or save as .pt, or as an index (*.safetensors.index.json)",
        lambda at: (
            save(iter(at.state.items()), "e.safetensors", like=at.state) is None
            and save(iter(at.state.items()), "e.pt") is None
            and save(iter(at.state.items()), "e.safetensors.index.json") is None
        ),
    ),
    "a name that comes twice": (
        lambda at: save(iter([("a", at.x), ("a", at.x)]), "e.pt"),
        "give each name once",
        lambda at: save(iter([("a", at.x), ("b", at.x)]), "e.pt") is None,
    ),
    "an index, in the background": (
        lambda at: save_async(at.state, "e.safetensors.index.json"),
        "give the path of one file (.safetensors, .pt), or use CheckpointStore.save_async",
        lambda at: (
            save_async(at.state, "e.safetensors").result() is None
            and bool(at.store.save_async({"w": at.x}, step=6).result())
        ),
    ),
    # ---- load
    "a folder, loaded": (lambda at: load("folder"), "give the path of a file", lambda at: bool(load("m.pt"))),
    "a store": (
        lambda at: load("store"),
        "penstock.CheckpointStore(",
        lambda at: CheckpointStore("store").load()["w"].equal(at.x),
    ),
    "a checkpoint": (
        lambda at: load("store/00000001-step-5"),
        "penstock.Checkpoint('store/00000001-step-5').load()",
        lambda at: penstock.Checkpoint("store/00000001-step-5").load()["w"].equal(at.x),
    ),
    "a .npy": (lambda at: load("a.npy"), "numpy.load", lambda at: np.load("a.npy").shape == (3,)),
    "an object": (
        lambda at: load("args.pt"),
        'load(f, unread="keep") reads the rest',
        lambda at: load("args.pt", unread="keep")["w"].equal(at.x),
    ),
    "an object, by parts": (
        lambda at: load("args.pt"),
        "names= loads parts",
        lambda at: load("args.pt", names="w").equal(at.x),
    ),
    "an object of a trusted file": (
        lambda at: load("args.pt"),
        "torch.load(weights_only=False) reads it",
        lambda at: torch.load("args.pt", weights_only=False)["args"].lr == 1,
    ),
    "a name that is nearly one": (
        lambda at: load("m.pt", names="0.wieght"),
        "did you mean '0.weight'",
        lambda at: load("m.pt", names="0.weight").equal(at.state["0.weight"]),
    ),
    "a text file, loaded": (
        lambda at: load(open("m.pt", encoding="latin-1")),
        "open it with 'rb'",
        lambda at: bool(load(open("m.pt", "rb"))),
    ),
    "mmap of a file object": (
        lambda at: load(io.BytesIO(pathlib.Path("m.pt").read_bytes()), mmap=True),
        "give its path",
        lambda at: same(load("m.pt", mmap=True), at.state),
    ),
    "pickle_module of a load": (
        lambda at: load("m.pt", pickle_module=types.ModuleType("dill")),
        "leave it out",
        lambda at: bool(load("m.pt")),
    ),
    "a device that is not here": (
        lambda at: load("m.pt", map_location="cuda:77"),
        "give map_location='cpu'",
        lambda at: same(load("m.pt", map_location="cpu"), at.state),
    ),
    "into with map_location": (
        lambda at: load("m.pt", into=net().state_dict(), map_location="cpu"),
        "leave out map_location and mmap",
        lambda at: same(filled(lambda: net().state_dict()), at.state),
    ),
    "into with slices": (
        lambda at: load("m.pt", into=net().state_dict(), names={"0.weight": slice(1)}),
        "leave out the slices in names",
        lambda at: bool(load("m.pt", into=net().state_dict(), names=["0.weight"])),
    ),
    "into a module": (
        lambda at: load("m.pt", into=net()),
        "a module's state_dict() is one",
        lambda at: same(filled(lambda: net().state_dict()), at.state),
    ),
    "into the meta device": (
        lambda at: load("m.pt", into=torch.nn.Sequential(*net()).to("meta").state_dict()),
        "give it some (to_empty())",
        lambda at: same(filled(lambda: net().to("meta").to_empty(device="cpu").state_dict()), at.state),
    ),
    "into without a name": (
        lambda at: load("m.pt", into={"0.weight": torch.empty(4, 4)}),
        "name in `names` what is wanted",
        lambda at: bool(load("m.pt", into={"0.weight": torch.empty(4, 4)}, names=["0.weight"])),
    ),
    "into other names": (
        lambda at: load("prefixed.pt", into=net().state_dict()),
        "names='module' reads what is below it",
        lambda at: bool(load("prefixed.pt", into=net().state_dict(), names="module")),
    ),
    # ---- load_into
    "a prefix in the file": (
        lambda at: load_into(net(), "prefixed.pt"),
        "names='module' reads what is below it",
        lambda at: into_model(at, "prefixed.pt", names="module"),
    ),
    "a state below a key": (
        lambda at: load_into(net(), "below.pt"),
        "names='model'",
        lambda at: into_model(at, "below.pt", names="model"),
    ),
    "a prefix in the model": (
        lambda at: load_into(wrapped(at), "m.pt"),
        "give model.inner",
        lambda at: into_model(at, "m.pt", lambda: wrapped(at), lambda model: model.inner),
    ),
    "a model without memory": (
        lambda at: load_into(net().to("meta"), "m.pt"),
        "model.to_empty(device='cpu')",
        lambda at: into_model(at, "m.pt", lambda: net().to("meta").to_empty(device="cpu")),
    ),
    # ---- update
    "an update of a tied tensor": (
        lambda at: penstock.update("tied.pt", {"a": at.x}),
        "save the state instead",
        lambda at: saved({"a": at.x, "b": at.x}, "tied.pt")["a"].equal(at.x),
    ),
    "an update of another shape": (
        lambda at: penstock.update("m.pt", {"0.bias": torch.zeros(3)}),
        "keeps type and shape",
        lambda at: penstock.update("m.pt", {"0.bias": at.state["0.bias"]}) is not False,
    ),
    "an update of a file with two names": (
        lambda at: penstock.update("model/model.safetensors", {"0.bias": torch.zeros(4)}),
        "Update a copy",
        lambda at: (
            shutil.copy("m.safetensors", "copy.safetensors") != ""
            and penstock.update("copy.safetensors", {"0.bias": torch.zeros(4)}) is not False
            and not load("copy.safetensors")["0.bias"].any()
        ),
    ),
    "an update of a shard of a store": (
        lambda at: penstock.update("single/00000001-step-1/shard-00001.safetensors", {"w": at.x}),
        "load the checkpoint and save another, or update a copy",
        lambda at: bool(at.store.save(penstock.Checkpoint("store/00000001-step-5").load(), step=7)),
    ),
    "an update of a name that is not there": (
        lambda at: penstock.update("m.safetensors", {"nope": at.x}),
        "inspect() lists its 4",
        lambda at: len(penstock.inspect("m.safetensors")) == 4,
    ),
    # ---- stores
    "a store on a file": (
        lambda at: CheckpointStore("m.pt"),
        "give the path of a folder",
        lambda at: CheckpointStore("new").close() is None,
    ),
    "keep_best alone": (
        lambda at: CheckpointStore("best", keep_best=2),
        "metric=",
        lambda at: CheckpointStore("best", keep_best=2, metric="loss").close() is None,
    ),
    "the best of no metric": (
        lambda at: at.store.best(),
        'best("loss")',
        lambda at: at.store.best("loss").step == 5,
    ),
    "swapped, in a store": (
        lambda at: at.store.save(8, {"w": at.x}),
        "state comes first",
        lambda at: bool(at.store.save({"w": at.x}, step=8)),
    ),
    "a closed store": (
        lambda at: pinned(at).save({"w": at.x}),
        "make another one",
        lambda at: bool(CheckpointStore("closing").save({"w": at.x}, step=2)),
    ),
    "large metadata": (
        lambda at: at.store.save({"w": at.x}, step=9, metadata={"text": "x" * (2 << 20)}),
        "in the state",
        lambda at: bool(at.store.save({"w": at.x, "text": "x" * (2 << 20)}, step=9)),
    ),
    "no checkpoint of a step": (
        lambda at: at.store.load(step=77),
        "list() names those that are there",
        lambda at: at.store.load(step=at.store.list()[0].step)["w"].equal(at.x),
    ),
    "the newest, removed": (
        lambda at: at.store.remove(at.store.list()[-1].generation),
        "save another first",
        lambda at: removed_after_another(at),
    ),
    "a store that is open": (
        lambda at: CheckpointStore("store").save({"w": at.x}, step=10),
        "close() that one, or save with it",
        lambda at: bool(at.store.save({"w": at.x}, step=10)),
    ),
    # ---- stream
    "a model in memory": (
        lambda at: penstock.stream(net(), "model", memory="1MiB"),
        "make the model on the meta device: `with torch.device('meta'): model = ...`",
        lambda at: works(streamed()),
    ),
    "a class of one's own": (
        lambda at: penstock.stream(torch.nn.Linear, "model", memory="1MiB"),
        "make the model on the meta device, and give it",
        lambda at: works(streamed()),
    ),
    "too little memory": (
        lambda at: streamed(memory=1),
        "the least that works for this model is 32768 bytes",
        lambda at: works(streamed(memory=32768)),
    ),
    "memory of a GPU without one": (
        lambda at: streamed(device_memory="1MiB"),
        "or leave it out",
        lambda at: works(streamed()),
    ),
    "a folder without weights": (
        lambda at: streamed(folder="empty"),
        "give the folder or the file that has the weights",
        lambda at: works(streamed(folder="model")) and works(streamed(folder="model/model.safetensors")),
    ),
    "a folder with weights of torch": (
        lambda at: streamed(folder="of_torch"),
        "`penstock checkpoint convert of_torch/m.pt of_torch/model.safetensors` makes one of it",
        lambda at: convert("of_torch/m.pt", "of_torch/model.safetensors") and works(streamed(folder="of_torch")),
    ),
    "a streamed model, again": (
        lambda at: streamed(streamed()),
        "model.unstream() comes first",
        lambda at: works(streamed(streamed_and_back().to("meta"))),
    ),
    "a streamed model, converted": (
        lambda at: streamed().half(),
        "model.unstream() loads them all",
        lambda at: streamed_and_back().half()[0].weight.dtype is torch.float16,
    ),
    "a streamed model, filled": (
        lambda at: load_into(streamed(), "m.pt"),
        "model.unstream() loads them all",
        lambda at: into_model(at, "m.pt", streamed_and_back),
    ),
    "the state of a streamed model": (
        lambda at: save(streamed().state_dict(), "e.pt"),
        "Or model.unstream() loads all weights",
        lambda at: same(saved(streamed_and_back().state_dict(), "e.pt"), at.state),
    ),
    "a weight used by another module": (
        lambda at: looking(units=["0", "1"]),
        "give stream() units= that name the module whose forward() uses it",
        lambda at: looking(units=[""]),
    ),
    # ---- others
    "a folder, inspected": (
        lambda at: penstock.inspect("model"),
        "give the path of a file, such as 'model/model.safetensors'",
        lambda at: len(penstock.inspect("model/model.safetensors")) == 4,
    ),
    "objects, converted": (
        lambda at: convert("args.pt", "e.safetensors"),
        "--tensors-only converts the tensors",
        lambda at: convert("args.pt", "e.safetensors", "--tensors-only") and load("e.safetensors")["w"].equal(at.x),
    ),
    "rows by floats": (
        lambda at: penstock.read_rows("m.safetensors", np.array([0.0]), np.empty((1, 4), "f4")),
        "give numbers of rows as int64",
        lambda at: penstock.read_rows("m.safetensors", np.array([0]), np.empty((1, 4), "f4")) is not False,
    ),
    "a sparse tensor by an index": (
        lambda at: load("sparse.pt", names={"v": slice(1)}),
        "it is loaded whole, by its name or with the state",
        lambda at: load("sparse.pt", names="v").is_sparse and load("sparse.pt")["v"].is_sparse,
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_the_advice_of_an_error_works(name, at):
    wrong, advice, right = ROWS[name]
    with pytest.raises(Exception) as caught:  # noqa: PT011  of any kind: the advice counts
        wrong(at)
    said = str(caught.value)
    assert advice in said, said
    assert right(at), said
