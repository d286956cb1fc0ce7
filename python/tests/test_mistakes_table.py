# SPDX-License-Identifier: Apache-2.0
"""What people get wrong, a row a mistake: each message names the thing, what came or what is, and what to do.

A row has the call, the kind of exception, and words that its message must have. All of them are held to the same rules
below. What people expect to work, and does, is a table of its own."""

import argparse
import asyncio
import dataclasses
import datetime
import enum
import os
import pathlib

import pytest

torch = pytest.importorskip("torch")
np = pytest.importorskip("numpy")

import penstock  # noqa: E402
from mistakes import check  # noqa: E402


class Mode(enum.Enum):
    FAST = 1


@dataclasses.dataclass
class Config:
    lr: float = 0.1


@pytest.fixture(scope="module")
def at(tmp_path_factory):
    """A folder with files of each kind; the working directory while its tests run."""
    folder = tmp_path_factory.mktemp("mistakes")
    before = os.getcwd()
    os.chdir(folder)
    x = torch.arange(1000, dtype=torch.float32)
    model = torch.nn.Linear(4, 4)
    penstock.write("a.bin", x)
    penstock.save(model.state_dict(), "m.pt")
    penstock.save(model.state_dict(), "m.safetensors")
    torch.save(model, "full.pt")
    np.save("q.npy", np.zeros(3))
    pathlib.Path("t.txt").write_text("hello")
    pathlib.Path("z.pt").touch()
    os.mkdir("folder")
    whole = pathlib.Path("m.safetensors").read_bytes()
    pathlib.Path("cut.safetensors").write_bytes(whole[:-7])
    pathlib.Path("cut.pt").write_bytes(pathlib.Path("m.pt").read_bytes()[:-100])
    store = penstock.CheckpointStore("store")
    store.save({"a": x}, step=5)
    yield argparse.Namespace(x=x, model=model, state=model.state_dict(), store=store, four=torch.empty(4))
    store.close()
    penstock.default_engine().drain()  # transfers that a mistake left, before their paths mean something else
    os.chdir(before)


def closed_file():
    file = penstock.File("a.bin")
    file.close()
    return file


def closed_engine():
    engine = penstock.Engine()
    engine.close()
    return engine


def read_only():
    array = np.zeros(10, np.float32)
    array.setflags(write=False)
    return array


def noncontiguous():
    return torch.zeros(10, 10).t()[:5]


read, write, load, save, empty = penstock.read, penstock.write, penstock.load, penstock.save, penstock.empty
F, S, T, V = OSError, TypeError, TypeError, ValueError
ANY = Exception

MISTAKES = {
    # ---- the file
    "read missing": (lambda at: read("nope.bin", at.four), F, ["nope.bin", "No such file"]),
    "read a folder": (lambda at: read("folder", at.four), ANY, ["folder"]),
    "write a folder": (lambda at: write("folder", at.x), ANY, ["folder"]),
    "write below a file": (lambda at: write("a.bin/b", at.x), F, ["a.bin/b"]),
    "write into no folder": (lambda at: write("no/such/b.bin", at.x), F, ["no/such/b.bin"]),
    "empty path": (lambda at: read("", at.four), ANY, []),
    "path with a zero byte": (lambda at: read("a\0b", at.four), ANY, ["file", "null byte"]),
    "name that is too long": (lambda at: read("n" * 300, at.four), F, ["File name too long"]),
    "URL": (lambda at: read("s3://bucket/x.pt", at.four), F, ["s3://bucket/x.pt", "local"]),
    "http URL": (lambda at: load("https://example.org/m.pt"), F, ["https://example.org/m.pt", "local"]),
    "short file": (lambda at: read("a.bin", torch.empty(2000)), penstock.EndOfFile, ["a.bin", "4000", "8000"]),
    "closed file": (lambda at: read(closed_file(), at.four), V, ["a.bin", "closed"]),
    "closed engine": (lambda at: closed_engine().read("a.bin", at.four), V, ["closed"]),
    "write to a read-only File": (lambda at: write(penstock.File("a.bin"), at.x), V, ["a.bin", "reading only"]),
    "Path and File": (lambda at: read(["a.bin", penstock.File("a.bin")], [at.four, at.four]), V, ["file[1]", "mix"]),
    "open() as file": (lambda at: read_opened(at), T, ["file", "_io.BufferedReader"]),
    "descriptor as file": (lambda at: read(3, at.four), T, ["file", "int", "penstock.File"]),
    "None as file": (lambda at: read(None, at.four), T, ["file", "NoneType"]),
    "tensor as file": (lambda at: write(at.x, "e.bin"), T, ["file", "torch.Tensor"]),
    "a full device": (lambda at: write("/dev/full", at.x), ANY, ["/dev/full", "file"]),
    "File of a missing file": (lambda at: penstock.File("nono"), F, ["nono"]),
    "mode rb": (lambda at: penstock.File("a.bin", "rb"), V, ["'rb'", "expected", "'rw'"]),
    "mode w+": (lambda at: penstock.File("a.bin", "w+"), V, ["'w+'", "expected"]),
    "mode x": (lambda at: penstock.File("a.bin", "x"), V, ["'x'", "expected"]),
    "mode 1": (lambda at: penstock.File("a.bin", 1), ANY, ["mode"]),
    "File cahce=": (lambda at: penstock.File("a.bin", cahce="auto"), T, ["cahce", "did you mean 'cache'"]),
    "cache=never": (lambda at: penstock.File("a.bin", cache="never"), V, ["never", "auto", "direct"]),
    "cache=never of a path": (lambda at: read("a.bin", at.four, cache="never"), V, ["never", "auto", "direct"]),
    "truncate below zero": (lambda at: penstock.File("a.bin", "rw").truncate(-1), ANY, ["-1"]),
    # ---- memory
    "noncontiguous tensor": (lambda at: write("b.bin", noncontiguous()), V, ["contiguous", "torch"]),
    "noncontiguous array": (lambda at: read("a.bin", np.zeros((9, 9), "f4")[:, ::2]), V, ["contiguous", "numpy"]),
    "meta tensor": (lambda at: write("b.bin", torch.empty(3, device="meta")), V, ["meta", "cpu()"]),
    "sparse tensor": (lambda at: write("b.bin", torch.eye(3).to_sparse()), V, ["sparse", "to_dense"]),
    "read-only array": (lambda at: read("a.bin", read_only()), V, ["into", "read-only"]),
    "bytes as into": (lambda at: read("a.bin", b"12345678"), V, ["into", "bytes", "bytearray"]),
    "floats as data": (lambda at: write("c.bin", [1.0, 2.0], [0, 4]), T, ["data[0]", "float"]),
    "dict as data": (lambda at: write("c.bin", at.state), T, ["data", "OrderedDict"]),
    "str as data": (lambda at: write("c.bin", "hello"), T, ["data", "str"]),
    "int as into": (lambda at: read("a.bin", 4), T, ["into", "int"]),
    "None as into": (lambda at: read("a.bin", None), T, ["into", "NoneType"]),
    "generator as data": (lambda at: write("g.bin", (at.x for _ in range(2)), [0, 4000]), T, ["generator"]),
    "Python objects": (lambda at: write("o.bin", np.array([object()])), V, ["Python objects"]),
    "into forgotten": (lambda at: read("a.bin"), T, ["into"]),
    "data forgotten": (lambda at: write("a.bin"), T, ["data"]),
    # ---- offsets and options of a verb
    "offset 4.0": (lambda at: read("a.bin", at.four, 4.0), T, ["offset", "float", "int"]),
    "offset -4": (lambda at: read("a.bin", at.four, -4), V, ["offset", "-4"]),
    "offset past the end": (lambda at: read("a.bin", at.four, 10**6), penstock.EndOfFile, ["1000000", "4000"]),
    "offset 2**70": (lambda at: read("a.bin", at.four, 2**70), ANY, ["offset"]),
    "offset str": (lambda at: read("a.bin", at.four, "4"), T, ["offset", "str"]),
    "fewer offsets": (lambda at: read("a.bin", [at.four, at.four], [0]), V, ["offset", "1", "2"]),
    "one offset for two": (lambda at: write("c.bin", [at.four, at.four], 0), V, ["offset", "sequence of 2"]),
    "no offsets for one file": (lambda at: read("a.bin", [at.four, at.four]), V, ["offset", "sequence of 2"]),
    "fewer files": (lambda at: read(["a.bin"], [at.four, at.four], [0, 0]), V, ["file", "1", "2"]),
    "overlapping writes": (lambda at: write("c.bin", [at.four, at.four], [0, 8]), V, ["extents 0 and 1", "byte 8"]),
    "priority high": (lambda at: read("a.bin", at.four, priority="high"), V, ["'high'", "'urgent'"]),
    "priority 1": (lambda at: read("a.bin", at.four, priority=1), V, ["priority", "1", "'urgent'"]),
    "ofset=": (lambda at: read("a.bin", at.four, ofset=3), T, ["ofset", "offset"]),
    "snyc=": (lambda at: write("c.bin", at.four, snyc=True), T, ["snyc", "sync"]),
    "block_bytes -1": (lambda at: read("a.bin", at.four, block_bytes=-1), ANY, ["block_bytes"]),
    "depth_limit 4": (lambda at: read("a.bin", at.four, depth_limit=4), T, ["depth_limit"]),
    "DepthLimit(0)": (lambda at: penstock.DepthLimit(0), ANY, ["0"]),
    "rows out of range": (lambda at: penstock.read_rows("a.bin", [10**6], np.empty((1, 4), "f4")), ANY, ["1000000"]),
    "negative row": (lambda at: penstock.read_rows("a.bin", [-1], np.empty((1, 4), "f4")), ANY, ["-1"]),
    "float rows": (
        lambda at: penstock.read_rows("a.bin", np.array([1.5]), np.empty((1, 4), "f4")),
        ANY,
        ["ids", "int64"],
    ),
    "fewer places than rows": (
        lambda at: penstock.read_rows("a.bin", [0, 1], np.empty((1, 4), "f4")),
        V,
        ["ids[1]", "place 1"],
    ),
    "prefetch of nothing": (lambda at: penstock.prefetch("nope.bin"), F, ["nope.bin"]),
    "evict of nothing": (lambda at: penstock.evict("nope.bin"), F, ["nope.bin"]),
    # ---- the engine
    "queue_dept=": (lambda at: penstock.Engine(queue_dept=3), T, ["queue_dept", "did you mean 'queue_depth'"]),
    "backend io-uring": (lambda at: penstock.Engine(backend="io-uring"), V, ["'io-uring'", "'io_uring'"]),
    "block_bytes 1000": (lambda at: penstock.Engine(block_bytes=1000), V, ["block_bytes", "1000", "64 KiB"]),
    "queue_depth 0": (lambda at: penstock.Engine(queue_depth=-1), ANY, ["queue_depth", "-1"]),
    "options missing": (lambda at: penstock.Engine(options="no.json"), ANY, ["no.json"]),
    "options not JSON": (lambda at: penstock.Engine(options="t.txt"), V, ["t.txt"]),
    "options a tensor": (lambda at: penstock.Engine(options=at.x), ANY, ["options"]),
    # ---- buffers
    "dtype float": (lambda at: empty((3,), float), V, ["dtype", "float32"]),
    "dtype f4": (lambda at: empty((3,), "f4"), V, ["dtype", "'f4'", "float32"]),
    "dtype float31": (lambda at: empty((3,), "float31"), V, ["'float31'", "float32"]),
    "shape as two": (lambda at: empty(3, 4), V, ["dtype", "4"]),
    "shape -1": (lambda at: empty(-1), V, ["shape", "-1"]),
    "shape 2.5": (lambda at: empty(2.5), ANY, ["shape"]),
    "shape huge": (lambda at: empty(1 << 60), MemoryError, []),
    "as_bytes of a list": (lambda at: penstock.as_bytes([1, 2]), T, ["list"]),
    # ---- save
    "save swapped": (lambda at: save("e.pt", at.state), T, ["OrderedDict", "path"]),
    "save a module": (lambda at: save(at.model, "m2.pt"), T, ["Linear", "state_dict()"]),
    "save an optimizer": (lambda at: save({"opt": torch.optim.SGD([at.x], lr=1)}, "m2.pt"), T, ["state['opt']", "SGD"]),
    "save a Path": (lambda at: save({"cfg": pathlib.Path("x")}, "m2.pt"), T, ["state['cfg']", "PosixPath"]),
    "save an enum": (lambda at: save({"cfg": Mode.FAST}, "m2.pt"), T, ["state['cfg']", "Mode"]),
    "save a dataclass": (lambda at: save({"cfg": Config()}, "m2.pt"), T, ["state['cfg']", "Config"]),
    "save a Namespace": (
        lambda at: save({"args": argparse.Namespace(a=1)}, "m2.pt"),
        T,
        ["state['args']", "Namespace"],
    ),
    "save a datetime": (lambda at: save({"t": datetime.datetime.now()}, "m2.pt"), T, ["state['t']", "datetime"]),
    "save a lambda": (lambda at: save({"f": len}, "m2.pt"), T, ["state['f']"]),
    "save deep": (lambda at: save({"a": [{"b": object()}]}, "m2.pt"), T, ["state['a'][0]['b']", "object"]),
    "save defualt=": (lambda at: save(at.state, "m2.pt", defualt=str), T, ["defualt", "did you mean 'default'"]),
    "save pickle=True": (lambda at: save(at.state, "m2.pt", pickle=True), T, ["'pickle'"]),
    "save_async progres=": (lambda at: penstock.save_async({}, "m2.pt", progres=True), T, ["did you mean 'progress'"]),
    "save to a folder": (lambda at: save(at.state, "."), V, ["folder", "file in it"]),
    "save into no folder": (lambda at: save(at.state, "no/such/m.pt"), F, ["no/such"]),
    "save nested .safetensors": (lambda at: save({"m": at.state}, "n.safetensors"), T, ["state['m']", ".pt"]),
    "save tied": (lambda at: save({"a": at.x, "b": at.x}, "n.safetensors"), V, ["state['a']", "state['b']", "share"]),
    "save int in .safetensors": (lambda at: save({"a": at.x, "step": 1}, "n.safetensors"), T, ["state['step']", "int"]),
    "save meta": (lambda at: save({"a": torch.empty(2, device="meta")}, "n.pt"), ANY, ["state['a']", "meta"]),
    "save metadata int": (
        lambda at: save({"a": at.x}, "n.safetensors", metadata={"s": 1}),
        T,
        ["metadata", "'s'", "int"],
    ),
    "save metadata .pt": (lambda at: save({"a": at.x}, "n.pt", metadata={"s": "1"}), V, ["metadata", ".safetensors"]),
    "save shard_bytes 0": (lambda at: save(at.state, "n.safetensors.index.json", shard_bytes=0), ANY, ["shard_bytes"]),
    "save .json": (lambda at: save(at.state, "n.json"), V, ["n.json", ".json"]),
    "save progress 3": (lambda at: save(at.state, "n.pt", progress=3), T, ["progress", "int"]),
    "save_async to a folder": (lambda at: penstock.save_async(at.state, ".").result(), V, ["folder", "file in it"]),
    # ---- load
    "load raw": (lambda at: load("a.bin"), penstock.Unsupported, ["a.bin", "neither", "begins with"]),
    "load text": (lambda at: load("t.txt"), penstock.Unsupported, ["t.txt", "text"]),
    "load empty": (lambda at: load("z.pt"), penstock.Damaged, ["z.pt", "empty"]),
    "load .npy": (lambda at: load("q.npy"), penstock.Unsupported, ["q.npy", "numpy.load"]),
    "load cut .safetensors": (lambda at: load("cut.safetensors"), ANY, ["cut.safetensors"]),
    "load cut .pt": (lambda at: load("cut.pt"), penstock.Damaged, ["cut.pt"]),
    "load a folder": (lambda at: load("folder"), IsADirectoryError, ["folder", "give the path of a file"]),
    "load a store": (lambda at: load("store"), IsADirectoryError, ["store", "CheckpointStore"]),
    "load a checkpoint": (lambda at: load("store/00000001-step-5"), IsADirectoryError, ["penstock.Checkpoint("]),
    "load missing": (lambda at: load("nope.pt"), F, ["nope.pt"]),
    "load None": (lambda at: load(None), T, ["NoneType", "path"]),
    "load a module": (lambda at: load("full.pt"), penstock.Unsupported, ["full.pt", "Linear", "torch.load"]),
    "load weights_only=False": (lambda at: load("full.pt", weights_only=False), ANY, ["full.pt", "Linear"]),
    "load a typo": (lambda at: load("m.pt", names="wieght"), KeyError, ["wieght", "did you mean 'weight'"]),
    "load pickle=1": (lambda at: load("m.pt", pickle=1), T, ["pickle", "1", "True, False"]),
    "load mmpa=": (lambda at: load("m.pt", mmpa=True), T, ["mmpa", "did you mean 'mmap'"]),
    "load_into stirct=": (lambda at: penstock.load_into(at.model, "m.pt", stirct=False), T, ["did you mean 'strict'"]),
    "stream memroy=": (lambda at: penstock.stream(None, "folder", memroy="1GiB"), T, ["did you mean 'memory'"]),
    "inspect of nothing near": (lambda at: penstock.inspect("m.pt", xyz=1), T, ["'xyz'", "expected f"]),
    "load names 3": (lambda at: load("m.pt", names=3), T, ["names", "int"]),
    "into of another shape": (
        lambda at: load("m.pt", into={"weight": torch.zeros(5, 4), "bias": torch.zeros(4)}),
        V,
        ["[5, 4]", "[4, 4]"],
    ),
    "into of another dtype": (
        lambda at: load("m.pt", into={"weight": torch.zeros(4, 4).half(), "bias": torch.zeros(4)}),
        V,
        ["float16"],
    ),
    "into without a key": (lambda at: load("m.pt", into={"weight": torch.zeros(4, 4)}), KeyError, ["bias"]),
    "into with one too many": (lambda at: load("m.pt", into={**at.state, "c": torch.zeros(4)}), KeyError, ["'c'"]),
    "into a module": (lambda at: load("m.pt", into=at.model), T, ["into", "Linear", "state_dict()"]),
    "map_location cuda": (lambda at: on_cuda("m.pt"), V, ["m.pt", "map_location", "cuda"]),
    "map_location 3": (lambda at: load("m.pt", map_location=3.5), ANY, ["map_location"]),
    "mmap of 3": (lambda at: load("m.pt", mmap=3), T, ["mmap"]),
    "inspect text": (lambda at: penstock.inspect("t.txt"), penstock.Unsupported, ["t.txt"]),
    "inspect missing": (lambda at: penstock.inspect("nope.pt"), F, ["nope.pt"]),
    # ---- stores
    "keep=0": (lambda at: penstock.CheckpointStore("st", keep=0), V, ["keep", "0", "1 to"]),
    "keep='3'": (lambda at: penstock.CheckpointStore("st", keep="3"), T, ["keep", "'3'", "integer"]),
    "kep=3": (lambda at: penstock.CheckpointStore("st", kep=3), T, ["kep", "did you mean 'keep'"]),
    "keep_best alone": (lambda at: penstock.CheckpointStore("st", keep_best=3), V, ["keep_best", "metric="]),
    "mode least": (
        lambda at: penstock.CheckpointStore("st", metric="loss", mode="least"),
        V,
        ["mode", "'min' or 'max'"],
    ),
    "best of nothing": (lambda at: at.store.best(), V, ["metric", 'best("loss")']),
    "best k=0": (lambda at: at.store.best("loss", k=0), V, ["k", "0", "1 to"]),
    "best k='3'": (lambda at: at.store.best("loss", k="3"), T, ["k", "'3'", "integer"]),
    "metadata of tensors": (
        lambda at: at.store.save({"a": at.x}, metadata={"w": at.x}),
        T,
        ["metadata", "'w'", "Tensor"],
    ),
    "metadata that is large": (
        lambda at: at.store.save({"a": at.x}, metadata={"text": "x" * (2 << 20)}),
        V,
        ["metadata", "2097156 bytes", "1048576", "in the state"],
    ),
    "metadata of store.save_async": (lambda at: at.store.save_async({}, metadata=[1]), T, ["metadata", "dict"]),
    "store.save metadta=": (lambda at: at.store.save({}, metadta={}), T, ["metadta", "did you mean 'metadata'"]),
    "store.load genration=": (lambda at: at.store.load(genration=1), T, ["genration", "did you mean 'generation'"]),
    "store.pin pined=": (lambda at: at.store.pin(1, pined=True), T, ["pined", "did you mean 'pinned'"]),
    "Checkpoint cahce=": (lambda at: penstock.Checkpoint("store", cahce="auto"), T, ["cahce", "did you mean 'cache'"]),
    "store on a file": (lambda at: penstock.CheckpointStore("a.bin"), NotADirectoryError, ["a.bin", "folder"]),
    "nothing to load": (lambda at: penstock.CheckpointStore("st2").load(), FileNotFoundError, ["st2", "no checkpoint"]),
    "no such step": (lambda at: at.store.load(step=6), FileNotFoundError, ["step 6", "store"]),
    "no such generation": (lambda at: at.store.load(9), ANY, ["9", "store"]),
    "remove the newest": (lambda at: at.store.remove(1), ANY, ["1"]),
    "store.save swapped": (lambda at: at.store.save(5, {"a": at.x}), T, ["step", "state comes first"]),
    "step 1.5": (lambda at: at.store.save({"a": at.x}, step=1.5), T, ["step", "1.5", "integer"]),
    "step -1": (lambda at: at.store.save({"a": at.x}, step=-1), V, ["step", "-1"]),
    "store.save a module": (lambda at: at.store.save({"m": at.model}, step=1), T, ["state['m']", "Linear"]),
    "store metadata list": (lambda at: at.store.save({"a": at.x}, metadata=[1]), T, ["metadata"]),
    "closed store": (lambda at: closed_store().save({"a": at.x}), V, ["closed"]),
    "closed store, async": (lambda at: closed_store().save_async({"a": at.x}), V, ["closed"]),
    "Checkpoint of nothing": (lambda at: penstock.Checkpoint("nope"), F, ["nope"]),
    "Checkpoint of a store": (lambda at: penstock.Checkpoint("store"), ANY, ["store"]),
    # ---- transfers
    "result('1')": (lambda at: penstock.read_async("a.bin", at.four).result("1"), T, ["timeout"]),
    "await twice over a closed engine": (lambda at: asyncio.run(read_closed(at)), V, ["closed"]),
    "notify(-1)": (lambda at: penstock.read_async("a.bin", at.four).notify(-1), ANY, []),
    "notify of a file": (lambda at: notify_of_a_file(at), V, ["eventfd"]),
}

WORKS = {
    "int32 into the bytes of float32": lambda at: read("a.bin", torch.empty(1000, dtype=torch.int32)),
    "offset numpy.int64": lambda at: read("a.bin", at.four, np.int64(4)),
    "offset torch 0-d": lambda at: read("a.bin", at.four, torch.tensor(4)),
    "offsets in an array": lambda at: write("w.bin", [at.x, at.x], np.array([0, 4000])),
    "offsets in a tensor": lambda at: write("w.bin", [at.x, at.x], torch.tensor([0, 4000])),
    "pathlib": lambda at: write(pathlib.Path("w.bin"), at.x),
    "bytes as path": lambda at: write(b"w.bin", at.x),
    "unicode path": lambda at: write("ü.bin", at.x),
    "Parameter as into": lambda at: read("a.bin", torch.nn.Parameter(torch.empty(4))),
    "shape as a list": lambda at: empty([3, 4], "float32"),
    ".bin as torch has it": lambda at: save(at.state, "pytorch_model.bin"),
    "a state with itself in it": lambda at: save(cycle(), "m2.pt"),
    "any suffix": lambda at: save(at.state, "m.ckpt"),
    "repr of a transfer": lambda at: repr(penstock.read_async("a.bin", at.four)),
}


def cycle():
    found = {}
    found["me"] = found
    return found


def closed_store():
    store = penstock.CheckpointStore("closed")
    store.close()
    return store


def on_cuda(path):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    return load(path, map_location="cuda")


def read_opened(at):
    with open(os.devnull, "rb") as file:
        return read(file, at.four)


def notify_of_a_file(at):
    with open("a.bin", "rb") as file:
        return penstock.read_async("a.bin", at.four).notify(file.fileno())


async def read_closed(at):
    return await closed_engine().read_async("a.bin", at.four)


def test_there_are_as_many_as_people_made():
    assert len(MISTAKES) >= 153 - len(WORKS)


@pytest.mark.parametrize("name", MISTAKES)
def test_a_message_says_what_and_what_to_do(at, name):
    call, kind, words = MISTAKES[name]
    with pytest.raises(kind) as caught:
        call(at)
    check(str(caught.value), words)


@pytest.mark.parametrize("name", WORKS)
def test_what_people_expect_to_work(at, name):
    WORKS[name](at)
