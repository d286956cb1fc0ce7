# SPDX-License-Identifier: Apache-2.0
"""A sound file of another writer is read, or is Unsupported with the reason. It is never Damaged."""

import collections
import io
import json
import math
import pathlib
import shutil
import struct
import tarfile
import zipfile

import penstock
import pytest
from penstock import _core

torch = pytest.importorskip("torch")
np = pytest.importorskip("numpy")
safetensors = pytest.importorskip("safetensors")
of_torch = pytest.importorskip("safetensors.torch")

STATE = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones(3, dtype=torch.int64)}
READ: dict[str, object] = {}  # a function that makes the file, or (file object, path); and the state
NOT_READ: dict[str, object] = {}  # the same; and a part of the reason


def saved(name="a.pt", state=STATE, **how):
    torch.save(state, name, **how)
    return name


def packed(rename=lambda name: name, method=zipfile.ZIP_STORED, extra=(), comment=b"", streamed=False, large=False):
    """The records of a .pt, packed again by Python's zipfile."""

    class Stream(io.RawIOBase):  # which cannot seek: sizes and CRCs come behind the data
        def __init__(self):
            self.file = open("packed.pt", "wb")

        def writable(self):
            return True

        def write(self, data):
            return self.file.write(data)

        def close(self):
            self.file.close()

    to = Stream() if streamed else "packed.pt"
    with zipfile.ZipFile(saved()) as old, zipfile.ZipFile(to, "w", method) as new:
        new.comment = comment
        for record in old.namelist():
            with new.open(zipfile.ZipInfo(rename(record)), "w", force_zip64=large) as out:
                out.write(old.read(record))
        for record, data in extra:
            new.writestr(record, data)
    if streamed:
        to.close()
    return "packed.pt"


def deflated():
    with zipfile.ZipFile(saved()) as old, zipfile.ZipFile("packed.pt", "w", zipfile.ZIP_DEFLATED) as new:
        for record in old.namelist():
            new.writestr(record, old.read(record))
    return "packed.pt"


def written(data, name):
    pathlib.Path(name).write_bytes(data)
    return name


def behind(data, name="a.pt", **how):
    saved(name, **how)
    with open(name, "ab") as file:
        file.write(data)
    return name


def in_front(data, name="a.pt", **how):
    with open(name, "wb") as file:
        file.write(data)
        torch.save(STATE, file, **how)
    return name


def there(path, at):
    file = open(path, "rb")
    file.seek(at)
    return file


def numpy_file(array, name="a.npy"):
    np.save(name, array, allow_pickle=True)
    return name


def tar():
    with tarfile.open("t.tar", "w") as out:
        out.add(saved())
    return "t.tar"


def raw(header, data=bytes(8), pad=b"", name="raw.safetensors"):
    text = (header if isinstance(header, bytes) else json.dumps(header).encode()) + pad
    return written(struct.pack("<Q", len(text)) + text + data, name)


def shards(index, folder="."):
    of_torch.save_file({"a": STATE["a"], "more": torch.ones(1)}, f"{folder}/m-1.safetensors", {"format": "pt"})
    of_torch.save_file({"b": STATE["b"]}, f"{folder}/m-2.safetensors")
    text = index if isinstance(index, str) else json.dumps(index)
    return written(text.encode(), "model.safetensors.index.json")


def kept_metadata(theirs, ours=None, **metadata):
    """Of our file, taken along to a file with other tensors by the library."""
    penstock.save(ours or {"a": torch.arange(5.0)}, "ours.safetensors", metadata=metadata)
    with safetensors.safe_open("ours.safetensors", "pt") as file:
        metadata = file.metadata()
    assert "penstock.checksums" in metadata
    of_torch.save_file(theirs, "theirs.safetensors", metadata)
    return "theirs.safetensors"


def without_checksums():
    torch.serialization.set_crc32_options(False)
    try:
        return saved()
    finally:
        torch.serialization.set_crc32_options(True)


def spaced():
    from torch.utils.serialization import config

    before, config.save.storage_alignment = config.save.storage_alignment, 4096
    try:
        return saved()
    finally:
        config.save.storage_alignment = before


# ---- torch
for protocol in (1, 2, 3, 4, 5):
    READ[f"zip, protocol {protocol}"] = lambda p=protocol: saved(pickle_protocol=p), STATE
    READ[f"legacy, protocol {protocol}"] = (
        lambda p=protocol: saved(pickle_protocol=p, _use_new_zipfile_serialization=False),
        STATE,
    )
NOT_READ["zip, protocol 0"] = lambda: saved(pickle_protocol=0), "outside of the pickle"  # nor by torch
NOT_READ["legacy, protocol 0"] = (
    lambda: saved(pickle_protocol=0, _use_new_zipfile_serialization=False),
    "no tensor which is read has",
)
READ |= {
    "other names of the file": (lambda: saved("v1.2 (copy) é.pth.tar.bin"), STATE),
    "a .pt named .safetensors": (lambda: saved("a.safetensors"), STATE),
    "a .safetensors named .pt": (lambda: of_torch.save_file(STATE, "a.pt") or "a.pt", STATE),
    "without the order of bytes": (lambda: saved(_disable_byteorder_record=True), STATE),
    "without CRCs": (without_checksums, STATE),
    "large alignment": (spaced, STATE),
    "bytes behind": (lambda: behind(b"a tail"), STATE),
    "many bytes behind": (lambda: behind(bytes(200_000)), STATE),
    "an end record behind": (lambda: behind(b"PK\5\6" * 50_000), STATE),
    "bytes behind, legacy": (lambda: behind(b"a tail", _use_new_zipfile_serialization=False), STATE),
    "bytes in front, from there": (lambda: there(in_front(b"HEADER12"), 8), STATE),
    "bytes in front, from there, legacy": (
        lambda: there(in_front(b"HEADER12", _use_new_zipfile_serialization=False), 8),
        STATE,
    ),
    "packed again": (packed, STATE),
    "packed to a pipe": (lambda: packed(streamed=True), STATE),
    "packed with zip64": (lambda: packed(large=True), STATE),
    "packed to a pipe with zip64": (lambda: packed(streamed=True, large=True), STATE),
    "a comment": (lambda: packed(comment=b"by someone"), STATE),
    "a long comment": (lambda: packed(comment=b"PK\5\6" * 12_000), STATE),
    "records of others": (
        lambda: packed(extra=[("READ.me", "x"), ("__MACOSX/._a", "x"), ("a/extra.json", "{}")]),
        STATE,
    ),
    "folders": (lambda: packed(extra=[("a/", ""), ("a/data/", "")]), STATE),
    "another folder": (lambda: packed(lambda name: "my modèle (1)" + name[name.index("/") :]), STATE),
    "big-endian arrays": (
        lambda: saved(
            state={kind: np.array([1, 2.5, -3]).astype(kind) for kind in (">f8", ">f2", ">i4", ">c8", ">u2")}
        ),
        {kind: np.array([1, 2.5, -3]).astype(kind) for kind in (">f8", ">f2", ">i4", ">c8", ">u2")},
    ),
    "big-endian arrays of other forms": (
        lambda: saved(
            state={
                "u": np.array(["ab", "ß"], ">U3"),
                "0": np.array(7, ">i8"),
                "f": np.ones((2, 3), ">f4", "F"),
                "w": 1,
            },
            pickle_protocol=5,
        ),
        {"u": np.array(["ab", "ß"]), "0": np.array(7), "f": np.ones((2, 3), "f4"), "w": 1},
    ),
}
NOT_READ |= {
    "bytes in front": (lambda: in_front(b"HEADER12"), "a zip begins at byte 8"),
    "a program in front": (lambda: in_front(b"#!/bin/sh\nexit\n", "run"), "f.seek(15)"),
    "compressed": (deflated, "is compressed"),
    "no folder": (lambda: packed(lambda name: name[name.index("/") + 1 :]), "without a data.pkl in its folder"),
    "a folder too many": (lambda: packed(lambda name: "x/" + name), "without a data.pkl in its folder"),
    "an absolute name": (lambda: packed(lambda name: "/" + name), "leads out of the archive"),
    "a record twice": (lambda: packed(extra=[("a/version", "3\n")]), "comes twice"),
    "an empty zip": (lambda: zipfile.ZipFile("a.pt", "w").close() or "a.pt", "zip without a data.pkl"),
    "TorchScript": (
        lambda: torch.jit.save(torch.jit.trace(torch.nn.Linear(2, 2), torch.ones(1, 2)), "a.pt") or "a.pt",
        "TorchScript",
    ),
    "torch.export": (
        lambda: torch.export.save(torch.export.export(torch.nn.Linear(2, 2), (torch.ones(1, 2),)), "a.pt2") or "a.pt2",
        "torch.export",
    ),
    "a structured array": (lambda: saved(state={"x": np.zeros(2, "f4,i4")}), "NumPy"),
    "an array of dates": (lambda: saved(state={"x": np.zeros(2, "M8[s]")}), "of the NumPy type 'M8'"),
    "an array of objects": (lambda: saved(state={"x": np.array([None])}), "NumPy"),
    "a masked array": (lambda: saved(state={"x": np.ma.masked_array([1], [0])}), "numpy.ma"),
}
# ---- safetensors
ONE = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
ZEROS = {"a": torch.zeros(2)}
READ |= {
    "nothing": (lambda: of_torch.save_file({}, "a.safetensors") or "a.safetensors", {}),
    "empty tensors": (
        lambda: of_torch.save_file({"e": torch.zeros(0, 3), "f": torch.ones(0)}, "a.safetensors") or "a.safetensors",
        {"e": torch.zeros(0, 3), "f": torch.ones(0)},
    ),
    "odd names": (
        lambda: of_torch.save_file({"": torch.ones(1), 'é\n"\\\0': torch.ones(2)}, "a.safetensors") or "a.safetensors",
        {"": torch.ones(1), 'é\n"\\\0': torch.ones(2)},
    ),
    "odd metadata": (
        lambda: of_torch.save_file(STATE, "a.safetensors", {"": "", "penstock.checksums": "x"}) or "a.safetensors",
        STATE,
    ),
    "indented": (lambda: raw(json.dumps({"a": ONE}, indent=2).encode()), ZEROS),
    "spaces behind the header": (lambda: raw({"a": ONE}, pad=b" " * 99), ZEROS),
    "lines behind the header": (lambda: raw({"a": ONE}, pad=b"\n\t\r\n"), ZEROS),
    "a space before the header": (lambda: raw(b" " + json.dumps({"a": ONE}).encode()), ZEROS),
    "names out of order": (
        lambda: raw({"b": ONE | {"data_offsets": [8, 16]}, "a": dict(reversed(ONE.items()))}, bytes(16)),
        {"a": torch.zeros(2), "b": torch.zeros(2)},
    ),
    "metadata last, or none": (lambda: raw({"a": ONE, "__metadata__": None}), ZEROS),
    "other fields": (lambda: raw({"a": ONE | {"more": [1, {"x": 2.5}]}}), ZEROS),
    "our metadata with other values": (
        lambda: kept_metadata(
            {"a": torch.ones(5), "bb": torch.ones(3)}, {"a": torch.zeros(5), "bb": torch.zeros(3)}, x="y"
        ),
        {"a": torch.ones(5), "bb": torch.ones(3)},
    ),
}
for length in range(1, 12):  # one of them has a header as long as ours
    READ[f"our metadata with a name of {length}"] = (
        lambda n=length: kept_metadata({"n" * n: torch.ones(5)}),
        {"n" * length: torch.ones(5)},
    )
NOT_READ |= {
    "an answer of a server": (lambda: written(b"Entry not found", "model.safetensors"), "it is text"),
    "a new type": (lambda: raw({"a": ONE | {"dtype": "NEW"}}), "'NEW' is unknown"),
}
# ---- indexes
MAP = {"a": "m-1.safetensors", "b": "m-2.safetensors"}
READ |= {
    f"an index with metadata {metadata}": (lambda m=metadata: shards({"metadata": m, "weight_map": MAP}), STATE)
    for metadata in (
        *(None, [1], {}, {"total_size": 1}, {"total_size": 48.0, "x": {"y": []}}, {"total_size": "48"}),
        {"total_size": math.nan, "x": [math.inf, -math.inf]},
    )
}
READ |= {
    "an index alone": (lambda: shards({"weight_map": MAP}), STATE),
    "an index with other keys": (lambda: shards({"x": [{"weight_map": 1}], "weight_map": MAP, "y": None}), STATE),
    "an index of no tensors": (lambda: shards({"weight_map": {}}), {}),
}
NOT_READ |= {
    "an index of folders": (lambda: shards({"weight_map": {"a": "sub/m-1.safetensors"}}), "own folder"),
    "an index of numbers": (lambda: shards({"weight_map": {"a": 3}}), "own folder"),
    "a list": (lambda: shards([1, 2]), "does not begin as an index"),
    "a config": (lambda: written(b'{"hidden_size": 3}', "config.json"), "no weight_map"),
    "a .pt named .json": (lambda: saved("a.json"), "does not begin as an index"),
}
# ---- other formats
NOT_READ |= {
    "an array": (lambda: numpy_file(np.ones(3)), "numpy.load()"),
    "arrays of text": (lambda: np.savez("a.npz", x=np.array(["x"])) or "a.npz", "numpy.load()"),
    "compressed arrays": (lambda: np.savez_compressed("a.npz", x=np.ones(3)) or "a.npz", "numpy.load()"),
    "no arrays": (lambda: np.savez("a.npz") or "a.npz", "zip without a data.pkl"),
    "a tar": (tar, "tar"),
    "numbers": (lambda: np.zeros(9).tofile("a.bin") or "a.bin", "begins with the bytes"),
}
NOT_READ |= {
    f"of {name}": (lambda name=name, data=data: written(data + bytes(99), name), "neither a .pt nor a .safetensors")
    for name, data in {
        "a.gguf": b"GGUF\3\0\0\0",
        "a.ggml": b"lmgg",
        "a.h5": b"\x89HDF\r\n\x1a\n",
        "a.onnx": b"\x08\x07\x12\x07pytorch",
        "a.tflite": b"\x1c\0\0\0TFL3",
        "a.msgpack": b"\x82\xa6params\x80",
        "a.pb": b"\x0a\x10",
        "a.mat": b"MATLAB 5.0 MAT-file",
        "a.7z": b"7z\xbc\xaf\x27\x1c",
        "a.lz4": b"\x04\x22\x4d\x18",
        "a.zst": b"\x28\xb5\x2f\xfd",
        "a.sqlite": b"SQLite format 3\0",
        "a.parquet": b"PAR1",
        "a.tfrecord": b"\x0c" + bytes(7),
        "a.params": struct.pack("<Q", 0x112),
        "a.ckpt": b"\0\0\x1f\1",
        "a.exe": b"MZ\x90\0",
        "a.png": b"\x89PNG\r\n\x1a\n",
        "a": b"\xde\xad\xbe\xef",
    }.items()
}


def same(found, wanted):
    if isinstance(wanted, dict):
        return list(found) == list(wanted) and all(same(found[key], value) for key, value in wanted.items())
    if isinstance(wanted, torch.Tensor):
        return found.dtype == wanted.dtype and torch.equal(found, wanted)
    if isinstance(wanted, np.ndarray):
        return type(found) is np.ndarray and found.shape == wanted.shape and (found == wanted).all()
    return found == wanted


@pytest.mark.parametrize("case", READ)
def test_a_sound_file_is_read(case, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    make, wanted = READ[case]
    file = make()
    with file if hasattr(file, "read") else io.BytesIO():
        found = penstock.load(file)
        assert same({key: found[key] for key in wanted}, wanted) and set(found) == set(wanted)
        if hasattr(file, "read"):
            return
    tensors = {key: value for key, value in wanted.items() if isinstance(value, torch.Tensor)}
    assert {row.name: row.shape for row in penstock.inspect(file)} == {n: tuple(t.shape) for n, t in tensors.items()}
    assert _core.cli_main(["checkpoint", "verify", file]) == 0, capfd.readouterr().err
    assert _core.cli_main(["checkpoint", "convert", file, "made.pt"]) == 0, capfd.readouterr().err
    converted = penstock.load("made.pt")
    assert same({key: converted[key] for key in wanted}, wanted)


@pytest.mark.parametrize("case", NOT_READ)
def test_what_is_not_read_is_not_damaged(case, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    make, reason = NOT_READ[case]
    file = make()
    with pytest.raises(penstock.Unsupported) as caught:
        penstock.load(file)
    assert reason in str(caught.value) and file in str(caught.value)
    try:
        penstock.inspect(file)
    except penstock.Unsupported:
        assert _core.cli_main(["checkpoint", "verify", file]) != 0
        assert reason in capfd.readouterr().err
    shutil.rmtree(tmp_path)
    tmp_path.mkdir()


def test_the_advice_for_bytes_in_front_works(tmp_path):
    path = tmp_path / "a.pt"
    in_front(b"HEADER12", path)
    with open(path, "rb") as file:
        file.seek(8)
        assert same(penstock.load(file), STATE)


@pytest.mark.parametrize("name", ["a.pt", "a.pth", "a.safetensors"])
def test_bytes_that_are_not_what_the_name_says_are_damaged(name, tmp_path):
    path = tmp_path / name
    path.write_bytes(b"\xde\xad\xbe\xef" + bytes(99))
    with pytest.raises(penstock.Damaged):
        penstock.load(path)


def test_our_file_is_still_checked(tmp_path):
    """Each flipped bit of its data, and of a name or a shape in its header, is found."""
    path = tmp_path / "a.safetensors"
    penstock.save({"name": torch.arange(5.0), "other": torch.ones(2, 3)}, path, metadata={"by": "us"})
    data = path.read_bytes()
    header = 8 + struct.unpack("<Q", data[:8])[0]
    for at in [*range(header, len(data)), *range(data.index(b'"name"') + 1, data.index(b'"name"') + 5)]:
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        with pytest.raises(penstock.Damaged):
            penstock.load(path)
    moved = data.replace(b'"shape":[2,3]', b'"shape":[3,2]')
    assert moved != data
    path.write_bytes(moved)
    with pytest.raises(penstock.Damaged):
        penstock.load(path)


def test_numbers_that_only_pythons_json_has(tmp_path):
    """As in the configurations of Mamba 2."""
    import penstock.plan

    config = {"model_type": "llama", "vocab_size": 8, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1,
              "num_attention_heads": 2, "time_step_limit": [0.0, math.inf], "num_experts_per_tok": 1}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert "Infinity" in (tmp_path / "config.json").read_text()
    assert penstock.plan.model(config=tmp_path).parameters > 0
    names = [f"model.layers.{i}.mlp.experts.{k}.up.weight" for i in range(4) for k in range(8)]
    names += [f"model.layers.{i}.attention.weight" for i in range(4)]
    of_torch.save_file({name: torch.zeros(100, 100) for name in names}, tmp_path / "model.safetensors")
    assert penstock.weights.plan(tmp_path, 720_000).experts.chosen == 4


@pytest.mark.parametrize("kind", [">f4", ">i8", ">c16", ">U3", ">u2", ">f2"])
def test_big_endian_arrays_are_read(kind, tmp_path):
    arrays = [np.arange(i, i + 6).reshape(2, 3).astype(kind) for i in range(3)]
    for i, array in enumerate(arrays):
        np.save(tmp_path / f"{i}.npy", array)
    found = penstock.read_npy([tmp_path / f"{i}.npy" for i in range(3)], progress=None)
    assert found.dtype == kind and (found == np.stack(arrays)).all()


def test_a_model_is_streamed_from_a_file_of_others(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = torch.nn.Sequential(collections.OrderedDict(a=torch.nn.Linear(2, 3), b=torch.nn.Linear(3, 2)))
    x = torch.ones(1, 2)
    own = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    penstock.save(model.state_dict(), "ours.safetensors")
    with safetensors.safe_open("ours.safetensors", "pt") as file:
        metadata = file.metadata()
    changed = {name: tensor + 1 for name, tensor in own.items()}
    of_torch.save_file(changed, "theirs.safetensors", metadata)
    behind(bytes(99_000), "b.pt", state=own)
    for name, state in (("theirs.safetensors", changed), ("b.pt", own)):
        model.load_state_dict(state)
        wanted = model(x)
        with torch.device("meta"):
            empty = torch.nn.Sequential(collections.OrderedDict(a=torch.nn.Linear(2, 3), b=torch.nn.Linear(3, 2)))
        assert torch.equal(penstock.stream(empty, name, memory="16MiB")(x), wanted)
