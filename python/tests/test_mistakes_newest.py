# SPDX-License-Identifier: Apache-2.0
"""As test_mistakes_table.py, of what is newer: models that are streamed, plans, rows of tensors, the functions of
safetensors, and what people get wrong once they have a store."""

import argparse
import copy
import os
import pathlib
import pickle

import pytest

torch = pytest.importorskip("torch")
np = pytest.importorskip("numpy")

import penstock  # noqa: E402
import penstock.plan  # noqa: E402
import penstock.safetensors.numpy as of_numpy  # noqa: E402
import penstock.safetensors.torch as of_torch  # noqa: E402
from mistakes import check  # noqa: E402

F, T, V, K, U = OSError, TypeError, ValueError, KeyError, penstock.Unsupported
ANY = Exception


def network(meta=True):
    with torch.device("meta" if meta else "cpu"):
        return torch.nn.Sequential(torch.nn.Embedding(50, 8), *(torch.nn.Linear(8, 8) for _ in range(4)))


class WithBuffer(torch.nn.Module):
    """A buffer that no file has."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)
        self.register_buffer("mask", torch.ones(8))


@pytest.fixture(scope="module")
def at(tmp_path_factory):
    """A folder with a model, a table, a store; the working directory while its tests run."""
    folder = tmp_path_factory.mktemp("newest")
    before = os.getcwd()
    os.chdir(folder)
    state = network(meta=False).state_dict()
    penstock.save(state, "model.safetensors")
    penstock.save(state, "model.pt")
    penstock.save({"x": torch.zeros(3), "y": torch.zeros(4)}, "wrong.safetensors")
    whole = pathlib.Path("model.safetensors").read_bytes()
    pathlib.Path("cut.safetensors").write_bytes(whole[:-7])
    pathlib.Path("t.txt").write_text("hello")
    for name in ("empty", "two", "torch", "hub"):
        os.mkdir(name)
    pathlib.Path("hub/config.json").write_text('{"architectures": ["NoSuchModel"]}')
    for name in ("a", "b"):
        penstock.save(state, f"two/{name}.safetensors")
    penstock.save(state, "torch/pytorch_model.bin")
    penstock.save(state, "hub/model.safetensors")
    for i in range(3):
        np.save(f"{i}.npy", np.zeros((2, 3), np.float32))
    np.save("other.npy", np.zeros((3, 2), np.float32))
    np.save("object.npy", np.array([{}], dtype=object), allow_pickle=True)
    pathlib.Path("plain.pkl").write_bytes(pickle.dumps({"a": 1}, protocol=4))
    pathlib.Path("plain2.pkl").write_bytes(pickle.dumps({"a": 1}, protocol=2))
    pathlib.Path("object.pkl").write_bytes(pickle.dumps({"a": pathlib.Path("x")}))
    tables = {"paper": np.zeros((5, 4), np.float32), "year": np.arange(5)}
    penstock.FeatureStore.write("g.features", tables)
    store = penstock.CheckpointStore("store")
    store.save({"weight": torch.zeros(4, 4)}, step=5, metadata={"loss": 0.5})
    checkpoint = store.open(1)
    streamed = penstock.stream(network(), "model.safetensors", memory="1MiB")
    rows = penstock.TensorRows("model.safetensors", "0.weight")
    yield argparse.Namespace(state=state, store=store, checkpoint=checkpoint, streamed=streamed, rows=rows)
    rows.close()
    checkpoint.close()
    store.close()
    os.chdir(before)


def closed_rows():
    rows = penstock.TensorRows("model.safetensors", "0.weight")
    rows.close()
    return rows


def transfer():
    return penstock.read_async("0.npy", bytearray(8))


def read_only():
    array = np.zeros((1, 8), np.float32)
    array.setflags(write=False)
    return array


stream, plan, features = penstock.stream, penstock.weights.plan, penstock.FeatureStore
FILE = "model.safetensors"

MISTAKES = {
    # ---- stream(): the model
    "stream a model in memory": (lambda at: stream(network(meta=False), FILE), V, ["0.weight", "meta device"]),
    "stream a name": (lambda at: stream("gpt2", FILE), T, ["model", "'gpt2'", "torch.nn.Module"]),
    "stream a state": (lambda at: stream(at.state, FILE), T, ["model", "OrderedDict", "torch.nn.Module"]),
    "stream swapped": (lambda at: stream(FILE, network()), T, ["folder", "Sequential", "path"]),
    "stream twice": (lambda at: stream(at.streamed, FILE), V, ["streamed already", "unstream()"]),
    "stream a class of torch": (lambda at: stream(torch.nn.Linear, FILE), T, ["model", "Linear", "transformers"]),
    "stream another model": (lambda at: stream(network(), "wrong.safetensors"), K, ["wrong.safetensors", "0.weight"]),
    "stream another shape": (
        lambda at: stream(torch.nn.Sequential(torch.nn.Embedding(60, 8, device="meta")), FILE),
        V,
        ["0.weight", "[60, 8]", "[50, 8]"],
    ),
    "stream a buffer without values": (
        lambda at: stream(with_buffer(), "layer.safetensors"),
        K,
        ["mask", "model needs"],
    ),
    # ---- the folder
    "stream no folder": (lambda at: stream(network(), None), T, ["folder", "NoneType", "path"]),
    "stream folder 3": (lambda at: stream(network(), 3), T, ["folder", "3 (int)", "path"]),
    "stream folder ''": (lambda at: stream(network(), ""), V, ["folder", "''"]),
    "stream folders None": (lambda at: stream(network(), [None, FILE]), T, ["folder", "NoneType", "path"]),
    "stream a set of folders": (lambda at: stream(network(), {FILE}), T, ["folder", "set", "list of paths"]),
    "stream a URL": (lambda at: stream(network(), "s3://b/model"), F, ["s3://b/model", "only local paths"]),
    "stream a hub's name": (lambda at: stream(None, "org/model"), F, ["org/model", "no file or folder", "hf download"]),
    "stream missing": (lambda at: stream(network(), "nope"), F, ["nope"]),
    "stream an empty folder": (lambda at: stream(network(), "empty"), V, ["empty", ".safetensors"]),
    "stream two files": (lambda at: stream(network(), "two"), V, ["two", "a.safetensors", "index"]),
    "stream files of torch": (lambda at: stream(network(), "torch"), V, ["pytorch_model.bin", ".safetensors"]),
    "stream a text": (lambda at: stream(network(), "t.txt"), U, ["t.txt"]),
    "stream a cut file": (lambda at: stream(network(), "cut.safetensors"), V, ["cut.safetensors"]),
    "stream without config.json": (lambda at: stream(None, FILE), F, ["config.json", "model"]),
    "stream no such architecture": (lambda at: stream(None, "hub"), ANY, ["transformers", "give the model"]),
    # ---- the budget, units, slots
    "stream memory lots": (lambda at: stream(network(), FILE, memory="lots"), V, ["memory", "lots"]),
    "stream memory 8 gigs": (lambda at: stream(network(), FILE, memory="8 gigs"), V, ["memory", "8 gigs", "GiB"]),
    "stream memory -1": (lambda at: stream(network(), FILE, memory=-1), V, ["memory", "-1"]),
    "stream memory 1.5": (lambda at: stream(network(), FILE, memory=1.5), T, ["memory", "1.5 (float)", "bytes"]),
    "stream memory None": (lambda at: stream(network(), FILE, memory=None), T, ["memory", "None", "bytes"]),
    "stream memory 8": (lambda at: stream(network(), FILE, memory=8), MemoryError, ["memory=8", "least that works"]),
    "stream slots=1": (lambda at: stream(network(), FILE, slots=1), V, ["slots", "2 to 1024", "1"]),
    "stream slots='2'": (lambda at: stream(network(), FILE, slots="2"), T, ["slots", "'2' (str)", "integer"]),
    "stream units a str": (lambda at: stream(network(), FILE, units="1"), T, ["units", "'1' (str)", "['1']"]),
    "stream units 3": (lambda at: stream(network(), FILE, units=3), T, ["units", "3 (int)"]),
    "stream units modules": (lambda at: stream(network(), FILE, units=[torch.nn.Linear(1, 1)]), T, ["units", "Linear"]),
    "stream a unit that is not there": (lambda at: stream(network(), FILE, units=["9"]), K, ["'9'", "module"]),
    "stream a unit in another": (lambda at: stream(nested(), "n.safetensors", units=["0", "0.0"]), V, ["'0.0'", "'0'"]),
    "stream progress=3": (lambda at: stream(network(), FILE, progress=3), T, ["progress", "int"]),
    # ---- a model that is streamed
    "save a streamed model": (
        lambda at: penstock.save(at.streamed.state_dict(), "p.safetensors"),
        RuntimeError,
        ["0.weight", "unstream()"],
    ),
    "move a streamed model": (lambda at: at.streamed.to(torch.float64), RuntimeError, ["to()", "unstream()"]),
    "train a streamed model": (lambda at: at.streamed.train(), RuntimeError, ["train()", "unstream()"]),
    "save its parameters": (
        lambda at: penstock.save(dict(at.streamed.named_parameters()), "p.pt"),
        ANY,
        ["0.weight", "model.unstream() loads all weights"],
    ),
    "load_into a streamed model": (lambda at: penstock.load_into(at.streamed, FILE), RuntimeError, ["unstream()"]),
    "set_memory lots": (lambda at: at.streamed.set_memory("lots"), V, ["memory", "lots"]),
    "set_memory 8": (lambda at: at.streamed.set_memory(8), MemoryError, ["set_memory", "least that works"]),
    # ---- plan()
    "plan missing": (lambda at: plan("nope", "1GiB"), F, ["nope"]),
    "plan a text": (lambda at: plan("t.txt", "1GiB"), U, ["t.txt"]),
    "plan None": (lambda at: plan(None, "1GiB"), T, ["plan", "folder", "NoneType"]),
    "plan memory auto": (lambda at: plan(FILE, "auto"), V, ["memory", "auto"]),
    "plan memory 8": (lambda at: plan(FILE, 8), MemoryError, ["8", "least"]),
    "plan rate fast": (lambda at: plan(FILE, "1MiB", rate="fast"), V, ["rate", "fast"]),
    "plan rate 0": (lambda at: plan(FILE, "1MiB", rate=0), V, ["rate", "0"]),
    "plan rate None bytes": (lambda at: plan(FILE, "1MiB", rate=b"3"), T, ["rate", "3GB/s"]),
    "plan compute -1": (lambda at: plan(FILE, "1MiB", compute_s=-1), V, ["compute_s", "-1"]),
    "plan compute '1'": (lambda at: plan(FILE, "1MiB", compute_s="1"), V, ["compute_s", "'1' (str)", "seconds"]),
    "plan slot=": (lambda at: plan(FILE, "1MiB", slot=3), T, ["slot", "did you mean 'slots'"]),
    # ---- rows of tensors
    "rows of a typo": (lambda at: penstock.TensorRows(FILE, "0.wieght"), V, ["0.wieght", "did you mean '0.weight'"]),
    "rows of nothing": (lambda at: penstock.TensorRows(FILE, []), V, ["name"]),
    "rows of 3": (lambda at: penstock.TensorRows(FILE, 3), T, ["names", "3 (int)"]),
    "rows of [3]": (lambda at: penstock.TensorRows(FILE, [3]), T, ["names", "3 (int)"]),
    "rows of two shapes": (
        lambda at: penstock.TensorRows("wide.safetensors", ["a", "b"]),
        V,
        ["'b'", "[9]", "'a'", "[8]"],
    ),
    "rows of a missing file": (lambda at: penstock.TensorRows("nope.safetensors", "w"), F, ["nope.safetensors"]),
    "rows of no path": (lambda at: penstock.TensorRows(None, "w"), T, ["NoneType", "path"]),
    "rows of a text": (lambda at: penstock.TensorRows("t.txt", "w"), U, ["t.txt"]),
    "gather 50": (lambda at: at.rows.gather([50]), V, ["ids[0]", "50", "there are 50"]),
    "gather -1": (lambda at: at.rows.gather([-1]), V, ["ids[0]", "-1"]),
    "gather 1.5": (lambda at: at.rows.gather(np.array([1.5])), ANY, ["ids", "int64"]),
    "gather '1'": (lambda at: at.rows.gather(["1"]), ANY, ["ids"]),
    "gather None": (lambda at: at.rows.gather(None), ANY, ["ids"]),
    "gather into too little": (lambda at: at.rows.gather([1, 2], out=np.empty((1, 8), "f4")), V, ["2 rows"]),
    "gather into what is read-only": (lambda at: at.rows.gather([1], out=read_only()), V, ["read-only"]),
    "gather from closed rows": (lambda at: closed_rows().gather([1]), V, ["closed"]),
    "gather otu=": (lambda at: at.rows.gather([1], otu=None), T, ["otu", "did you mean 'out'"]),
    # ---- feature files, graphs, plans of storage
    "features of no path": (lambda at: features.open(None), T, ["path", "NoneType"]),
    "features of a text": (lambda at: features.open("t.txt"), V, ["t.txt", "FeatureStore.write()"]),
    "features ram=lots": (lambda at: features.open("g.features", ram="lots"), V, ["ram", "lots"]),
    "features policy": (lambda at: features.open("g.features", ram="1MiB", policy="lru"), V, ["lru", "s3fifo"]),
    "features rma=": (lambda at: features.open("g.features", rma=3), T, ["rma", "did you mean 'ram'"]),
    "a table's typo": (lambda at: features.open("g.features")["papre"], K, ["'papre'", "did you mean 'paper'"]),
    "gather of one of two": (lambda at: features.open("g.features").gather([1]), T, ["2 tables", "store[name]"]),
    "gather of a row that is not there": (
        lambda at: features.open("g.features")["paper"].gather([9]),
        V,
        ["ids[0]", "'paper'", "9", "0 to 4"],
    ),
    "gather of None": (lambda at: features.open("g.features")["paper"].gather(None), T, ["ids", "NoneType"]),
    "gather of 5": (lambda at: features.open("g.features")["paper"].gather(5), T, ["ids", "5 (int)"]),
    "gather into another shape": (
        lambda at: features.open("g.features")["paper"].gather([1, 2], out=np.empty((1, 4), "f4")),
        V,
        ["out", "(2, 4)", "(1, 4)"],
    ),
    "write a list": (lambda at: features.write("h.features", [np.zeros(3)]), T, ["tables", "list", "dict of names"]),
    "write a number": (lambda at: features.write("h.features", {"a": 3}), T, ["'a'", "3 (int)"]),
    "write what is missing": (lambda at: features.write("h.features", {"a": "nope.npy"}), F, ["nope.npy"]),
    "write a text": (lambda at: features.write("h.features", {"a": "t.txt"}), V, ["'a'", "t.txt", ".npy"]),
    "verify a .npy": (lambda at: penstock.features.verify("0.npy"), F, ["0.npy", "checksums"]),
    "sample a name": (lambda at: penstock.features.NeighborSampler("g", [5]), T, ["graph", "'g'"]),
    "plan of a typo": (lambda at: penstock.plan.train("resnt50"), V, ["resnt50", "did you mean 'resnet50'"]),
    "plan of 0 accelerators": (lambda at: penstock.plan.train("resnet50", accelerators=0), V, ["accelerators", "0"]),
    "plan of 90 %": (lambda at: penstock.plan.train("resnet50", utilisation=90), V, ["utilisation", "90"]),
    "plan acelerators=": (
        lambda at: penstock.plan.train("resnet50", acelerators=8),
        T,
        ["did you mean 'accelerators'"],
    ),
    "plan memory of lots": (lambda at: penstock.plan.size("unet3d", memory_bytes="lots"), V, ["memory_bytes", "lots"]),
    "mix of nothing": (lambda at: penstock.plan.mix([]), V, ["jobs", "expected"]),
    # ---- stores, once one has one
    "best of a typo": (lambda at: at.store.best("los"), V, ["'los'", "did you mean 'loss'"]),
    "load step '5'": (lambda at: at.store.load("5"), T, ["step", "'5' (str)", "integer"]),
    "load the latest": (lambda at: at.store.load("latest"), T, ["step", "'latest' (str)", "integer"]),
    "load step and generation": (lambda at: at.store.load(5, generation=1), V, ["generation", "step"]),
    "open step=": (lambda at: at.store.open(step=5), T, ["step", "generation"]),
    "open the step": (lambda at: at.store.open(5), ANY, ["5", "store", "generation 1"]),
    "pin what is not there": (lambda at: at.store.pin(99), ANY, ["99", "store"]),
    "remove '1'": (lambda at: at.store.remove("1"), T, ["generation", "'1' (str)"]),
    "wait '1'": (lambda at: at.store.wait("1"), T, ["timeout", "'1' (str)", "seconds"]),
    "lock_wait_s -1": (lambda at: penstock.CheckpointStore("s2", lock_wait_s=-1), V, ["lock_wait_s", "-1"]),
    "shard_bytes big": (lambda at: penstock.CheckpointStore("s2", shard_bytes="big"), V, ["shard_bytes", "big"]),
    "no folders": (lambda at: penstock.CheckpointStore([]), V, ["folder", "give one"]),
    "folder 3": (lambda at: penstock.CheckpointStore(3), T, ["folder", "int", "path"]),
    "folder s3": (lambda at: penstock.CheckpointStore("s3://b/ckpt"), F, ["s3://b/ckpt", "only local"]),
    "sigterm with a state": (lambda at: at.store.save_on_sigterm({"a": 1}), T, ["get_state", "dict", "function"]),
    "overlap of a folder": (lambda at: penstock.StepOverlap("store", sgd(), dict), T, ["CheckpointStore", "str"]),
    "a tensor's typo": (lambda at: at.checkpoint["wieght"], K, ["'wieght'", "did you mean 'weight'"]),
    "a tensor by number": (lambda at: at.checkpoint[0], K, ["0", "its names are 'weight'"]),
    "index of a tensor '0'": (lambda at: at.checkpoint["weight"]["0"], T, ["weight", "'0' (str)", "integer"]),
    "index of a tensor 4": (lambda at: at.checkpoint["weight"][4], IndexError, ["weight", "-4 to 3", "4"]),
    "index with a list": (lambda at: at.checkpoint["weight"][[0, 1]], T, ["weight", "list", "slice"]),
    "backwards": (lambda at: at.checkpoint["weight"][::-1], V, ["weight", "step of 1 or more", "-1"]),
    # ---- load_into(), read_npy(), the functions of safetensors
    "load_into a state": (lambda at: penstock.load_into(at.state, FILE), T, ["model", "OrderedDict"]),
    "load_into swapped": (lambda at: penstock.load_into(FILE, network(False)), T, ["model", "str", "Module"]),
    "load_into names 3": (lambda at: penstock.load_into(network(False), FILE, names=3), T, ["names", "3 (int)"]),
    "load_into a typo": (
        lambda at: penstock.load_into(network(False), FILE, names="modle"),
        K,
        ["modle", "its names are"],
    ),
    "load dtype int": (lambda at: penstock.load(FILE, dtype="int8"), V, ["dtype", "int8", "bfloat16"]),
    "load dtype half": (lambda at: penstock.load(FILE, dtype="half"), V, ["dtype", "half", "float16"]),
    "load device 99": (lambda at: penstock.load(FILE, device=99), V, ["device='cuda:99'", "GPU", "device='cpu'"]),
    "load device gpu": (lambda at: penstock.load(FILE, device="gpu"), V, ["device", "'gpu'", "'cuda:1'", "number"]),
    "map_location 99": (lambda at: penstock.load(FILE, map_location=99), V, ["cuda:99", "GPU", "map_location='cpu'"]),
    "load a plain pickle": (lambda at: penstock.load("plain.pkl"), U, ["plain.pkl", "it is a pickle", "pickle.load()"]),
    "load an old pickle": (lambda at: penstock.load("plain2.pkl"), U, ["plain2.pkl", "it is a pickle"]),
    "load an object's pickle": (lambda at: penstock.load("object.pkl"), U, ["object.pkl", "it is a pickle"]),
    "save into /proc": (lambda at: penstock.save({"a": 1}, "/proc/a.pt"), F, ["/proc/a.pt", "a folder of a disk"]),
    "rows past the end": (
        lambda at: penstock.read_rows("0.npy", [10**6], np.empty((1, 4), "f4")),
        penstock.EndOfFile,
        ["0.npy", "row 1000000", "ask for rows that the file has"],
    ),
    "pickle a store": (lambda at: pickle.dumps(at.store), T, ["penstock.CheckpointStore", "its folders", "process"]),
    "copy a store": (lambda at: copy.deepcopy(at.store), T, ["penstock.CheckpointStore", "its folders"]),
    "pickle a checkpoint": (lambda at: pickle.dumps(at.checkpoint), T, ["penstock.Checkpoint", "its path"]),
    "pickle a transfer": (lambda at: pickle.dumps(transfer()), T, ["penstock.Transfer", "its arguments", "process"]),
    "copy a transfer": (lambda at: copy.copy(transfer()), T, ["penstock.Transfer", "its arguments"]),
    "pickle a save": (
        lambda at: pickle.dumps(penstock.save_async({"a": torch.zeros(2)}, "async.pt")),
        T,
        ["penstock.PendingSave", "its arguments"],
    ),
    "npy of one path": (lambda at: penstock.read_npy("0.npy"), T, ["paths", "[path]"]),
    "npy of nothing": (lambda at: penstock.read_npy([]), V, ["paths", "empty"]),
    "npy of two shapes": (lambda at: penstock.read_npy(["0.npy", "other.npy"]), V, ["other.npy", "(3, 2)"]),
    "npy of objects": (lambda at: penstock.read_npy(["object.npy"]), F, ["object.npy", "object"]),
    "npy of a .pt": (lambda at: penstock.read_npy(["model.pt"]), V, ["model.pt", ".npy"]),
    "npy into a tensor": (lambda at: penstock.read_npy(["0.npy"], torch.zeros(1, 2, 3)), T, ["out", "Tensor"]),
    "npy into another shape": (
        lambda at: penstock.read_npy(["0.npy"], np.zeros((2, 3), "f4")),
        V,
        ["out", "(1, 2, 3)"],
    ),
    "npy of a missing file": (lambda at: penstock.read_npy(["0.npy", "nope.npy"]), F, ["nope.npy"]),
    "framework tf": (lambda at: penstock.safetensors.safe_open(FILE, "tf"), ANY, ["tf", "'pt', 'np' or 'flax'"]),
    "safe_open a .pt": (
        lambda at: penstock.safetensors.safe_open("model.pt", "pt"),
        ANY,
        ["model.pt", "penstock.load()"],
    ),
    "get_tensor of a typo": (
        lambda at: penstock.safetensors.safe_open(FILE, "pt").get_tensor("0.wieght"),
        ANY,
        ["0.wieght", "did you mean '0.weight'"],
    ),
    "load_file of a text": (lambda at: of_torch.load_file("t.txt"), ANY, ["t.txt"]),
    "save_file of a nested state": (
        lambda at: of_torch.save_file({"m": at.state}, "x.safetensors"),
        V,
        ["m", "OrderedDict"],
    ),
    "save_file of tensors as arrays": (
        lambda at: of_numpy.save_file({"m": [1, 2]}, "x.safetensors"),
        ANY,
        ["m", "list"],
    ),
}


WORKS = {
    "stream a .pt": lambda at: stream(network(), "model.pt"),
    "stream a class's object": lambda at: stream(network(), pathlib.Path(FILE), memory="1MiB", units=["1", "2"]),
    "plan a .pt": lambda at: plan("model.pt", "1GiB"),
    "plan a Path": lambda at: plan(pathlib.Path(FILE), 1 << 30, rate="3 GB/s"),
    "rows by a tuple": lambda at: penstock.TensorRows(FILE, ("0.weight",)).close(),
    "gather into a tensor": lambda at: at.rows.gather([1], out=torch.empty(1, 8)),
    "names of a checkpoint": lambda at: list(at.checkpoint),
    "step in a store": lambda at: 5 in at.store,
}


def sgd():
    return torch.optim.SGD([torch.zeros(1, requires_grad=True)])


def with_buffer():
    penstock.save({"layer.weight": torch.zeros(8, 8), "layer.bias": torch.zeros(8)}, "layer.safetensors")
    with torch.device("meta"):
        return WithBuffer()


def nested():
    with torch.device("meta"):
        model = torch.nn.Sequential(torch.nn.Sequential(torch.nn.Linear(8, 8)))
    penstock.save({"0.0.weight": torch.zeros(8, 8), "0.0.bias": torch.zeros(8)}, "n.safetensors")
    return model


@pytest.fixture(scope="module", autouse=True)
def wide(at):
    penstock.save({"a": torch.zeros(5, 8), "b": torch.zeros(5, 9)}, "wide.safetensors")


@pytest.mark.parametrize("name", MISTAKES)
def test_a_message_says_what_and_what_to_do(at, name):
    call, kind, words = MISTAKES[name]
    with pytest.raises(kind) as caught:
        call(at)
    check(str(caught.value), words)


@pytest.mark.parametrize("name", WORKS)
def test_what_people_expect_to_work(at, name):
    WORKS[name](at)
