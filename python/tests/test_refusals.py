# SPDX-License-Identifier: Apache-2.0
"""The class of each refusal of the readers: Damaged is a fact about bytes, which contradict their form or one another.
What may be just as its writer wrote it, and is not read, is Unsupported. A new refusal needs a row."""

import io
import json
import pathlib
import pickle
import re
import struct
import zipfile
import zlib

import penstock
import pytest

torch = pytest.importorskip("torch")
Damaged, Unsupported = penstock.Damaged, penstock.Unsupported

SOURCES = pathlib.Path(__file__).parents[2] / "src" / "format"
READERS = (
    "file_kind",
    "torch_file",
    "numpy/npz",
    "zip/zip_reader",
    "pickle/pickle_reader",
    "pickle/pickle_unread",
    "safetensors_reader",
    "shard_index",
)
# Refusals whose files are too large to make here: of 2^26 values, of pickles and directories of 4 GiB, of an index or a
# header of 100 MB; and checks that stand behind others.
NOT_MADE = (
    "its pickle has",
    "it has more than",  # values
    "bytes past the end of the file",
    "the header does not fit into the file",
    "the header was not given whole",
    "the header is not an object of tensors",
    "values; no more are read",
    "JSON as it seems, and no .pt",
)


class Entry:
    """A record of a zip, with other values than it should have in places."""

    def __init__(self, name, data=b"", flags=0, method=0, crc=None, size=None, packed=None, at=None, local=None,
                 extra=b"", local_method=None, name_bytes=None):  # fmt: skip
        self.name, self.data, self.flags, self.method = name.encode(), data, flags, method
        self.crc = zlib.crc32(data) if crc is None else crc
        self.size = len(data) if size is None else size
        self.packed = self.size if packed is None else packed
        self.at, self.extra, self.name_bytes = at, extra, name_bytes
        self.local = self.name if local is None else local.encode()
        self.local_method = method if local_method is None else local_method


def archive(
    *entries, records=None, directory=None, bytes_of_directory=None, disk=0, before_end=b"", signature=0x02014B50
):
    out, central = bytearray(), bytearray()
    for e in entries:
        at = len(out) if e.at is None else e.at
        out += struct.pack("<IHHHHHIIIHH", 0x04034B50, 20, 0, e.local_method, 0, 0, e.crc, len(e.data), len(e.data),
                           len(e.local), 0) + e.local + e.data  # fmt: skip
        length = len(e.name) if e.name_bytes is None else e.name_bytes
        head = signature, 20, 20, e.flags, e.method, 0, 0, e.crc, e.packed, e.size, length, len(e.extra), 0, 0, 0, 0, at
        central += struct.pack("<IHHHHHHIIIHHHHHII", *head) + e.name + e.extra
    count = len(entries) if records is None else records
    size = len(central) if bytes_of_directory is None else bytes_of_directory
    begin = len(out) if directory is None else directory
    end = struct.pack("<IHHHHIIH", 0x06054B50, disk, 0, count, count, size, begin, 0)
    return bytes(out + central) + before_end + end


def zip64(size=0, records=0, begin=0, at=None, signature=0x06064B50):
    """The end records of zip64, for the end of archive()."""
    made = struct.pack("<IQHHIIQQQQ", signature, 44, 45, 45, 0, 0, records, records, size, begin)
    return made, lambda offset: made + struct.pack("<IIQI", 0x07064B50, 0, offset if at is None else at, 1)


def of_zip64(**how):
    _, end = zip64(**how)
    return archive(before_end=b"PK\3\4" + end(4), records=0xFFFF)


def pt(data=b"\x80\x02}.", *others, **how):
    return archive(Entry("a/data.pkl", data), *others, **how)


class Row:
    def __init__(self, row):
        self.row = row


class Pickler(pickle.Pickler):
    def persistent_id(self, obj):
        return obj.row if isinstance(obj, Row) else None


class Call:
    def __init__(self, function, *arguments):
        self.made = function, arguments

    def __reduce__(self):
        return self.made


def dumped(obj):
    out = io.BytesIO()
    Pickler(out, 2).dump(obj)
    return out.getvalue()


def tensor(elements=6, key="0", offset=0, kind=torch.FloatStorage, location="cpu"):
    storage = Row(("storage", kind, key, location, elements))
    return Call(
        torch._utils._rebuild_tensor_v2, storage, offset, (2, 3), (3, 1), False, __import__("collections").OrderedDict()
    )


MAGIC = 0x1950A86A20F9469CFC6C


def legacy(state=None, keys=("0",), storages=((6, 24),), magic=MAGIC, version=1001, little=True, tail=b""):
    state = dumped({"w": tensor()}) if state is None else state
    out = (
        dumped(magic)
        + dumped(version)
        + dumped({"little_endian": little})
        + state
        + dumped(list(keys) if keys is not None else 3)
    )
    for elements, size in storages:
        out += struct.pack("<Q", elements) + bytes(size)
    return out + tail


def safetensors(header, data=b"", length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def one(dtype="F32", shape=(2,), offsets=(0, 8)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


numpy = pytest.importorskip("numpy")
NPY_TEXT = "{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }"
NPY = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(NPY_TEXT)) + NPY_TEXT.encode() + bytes(12)
PICKLE = b"\x80\x02"
ROWS = [
    # (bytes, class, a part of the message)
    (b"", Damaged, "it is empty"),
    (b"some text", Unsupported, "it is text"),
    (b"[1, 2]", Unsupported, "JSON as it seems"),
    (b"\x93NUMPY\x01\x00", Unsupported, "numpy.load()"),
    (b"\x1f\x8b\x08", Unsupported, "gzip"),
    (b"version https://git-lfs.github.com/spec/v1\n", Unsupported, "Git LFS"),
    (b"HEADER12" + pt(), Unsupported, "a zip begins at byte 8"),
    # zip
    (b"PK\3\4", Damaged, "a zip has at least"),
    (pt()[:-1], Damaged, "it has no end record"),
    (archive(records=0xFFFF, before_end=b"PK\3\4" + bytes(30)), Damaged, "zip64 record, which is missing"),
    (pt()[:-22] + pt(), Damaged, "what lies before it is not a whole"),
    (of_zip64(at=1 << 40), Damaged, "is out of place"),
    (of_zip64(signature=7), Damaged, "zip64 end record is damaged"),
    (of_zip64(size=1 << 50), Unsupported, "its directory would have"),
    (pt(disk=1), Unsupported, "several disks"),
    (pt(directory=1 << 30), Damaged, "does not fit the file"),
    (pt(records=0, bytes_of_directory=None), Damaged, "more than its end record says"),
    (pt(signature=7), Damaged, "is missing: the directory is damaged"),
    (archive(Entry("a/data.pkl", name_bytes=999)), Damaged, "past the end of the directory"),
    (archive(Entry("a/data.pkl", size=0xFFFFFFFF, extra=b"\1\0\4\0" + bytes(4))), Damaged, "field is too short"),
    (archive(Entry("../data.pkl")), Unsupported, "leads out of the archive"),
    (archive(Entry("a/data.pkl", flags=1)), Unsupported, "is encrypted"),
    (archive(Entry("a/data.pkl", method=8)), Unsupported, "is compressed"),
    (archive(Entry("a/data.pkl", b"N.", packed=1)), Damaged, "two sizes"),
    (archive(Entry("a/data.pkl", at=1 << 30)), Damaged, "header lies past the end"),
    (archive(Entry("a/data.pkl", local_method=8)), Damaged, "is another record's"),
    (archive(Entry("a/data.pkl", local="b/data.pkl")), Damaged, "names another record"),
    (archive(Entry("a/data.pkl", b"N.", size=999)), Damaged, "past the end of the data"),
    (archive(Entry("a/data.pkl", b"N.", size=40), Entry("a/b", b"x" * 60)), Damaged, "overlap"),
    (archive(Entry("a/data.pkl", b"N."), Entry("a/x"), Entry("a/x")), Unsupported, "comes twice"),
    (archive(Entry("a/data.pkl", b"N.", crc=7)), Damaged, "they were damaged"),
    # .pt
    (archive(Entry("a/data.pkl", b"N."), Entry("b/data.pkl", b"N.")), Unsupported, "data.pkl comes twice"),
    # .npz
    (archive(Entry("x.npy", b"N.")), Damaged, "it does not begin with"),
    (archive(Entry("x.npy", NPY[:-1])), Damaged, "its elements have"),
    (archive(Entry("x.npy", NPY.replace(b"<f4", b"<U1"))), Unsupported, "is text; numpy.load() reads it"),
    (archive(Entry("x.npy", NPY), Entry("y", b"")), Unsupported, "is not an array (.npy)"),
    (archive(Entry("x.npy", NPY), Entry("x", b"")), Unsupported, "or that another one has"),
    (archive(Entry("x.npy", NPY.replace(b"(3,)", b"(0,)")[:-12], crc=7)), Damaged, "its header has another CRC"),
    (archive(Entry("x.txt", b"N.")), Unsupported, "without a data.pkl"),
    (pt(PICKLE + b"}.", Entry("a/constants.pkl", b"N.")), Unsupported, "TorchScript"),
    (pt(PICKLE + b"}.", Entry("a/version", b"99\n")), Unsupported, "a later torch wrote it"),
    (pt(PICKLE + b"}.", Entry("a/version", b"x\n")), Damaged, "its version of the format is"),
    (pt(PICKLE + b"}.", Entry("a/version", b"1" * 99)), Unsupported, "no more than 64 are read"),
    (pt(PICKLE + b"}.", Entry("a/byteorder", b"middle")), Unsupported, "in the order"),
    (pt(PICKLE + b"}.N."), Damaged, "something stands behind"),
    (pt(dumped({"w": tensor()})), Damaged, "is not in the file"),
    (pt(dumped({"w": tensor()}), Entry("a/data/0", bytes(7))), Damaged, "should have 24 bytes"),
    # the pickle
    (pt(PICKLE + b"}"), Damaged, "the pickle ends too soon"),
    (pt(PICKLE + b"\xff."), Damaged, "byte 0xff is not a pickle opcode"),
    (pt(b"\x80\x06N."), Unsupported, "a pickle of protocol 6"),
    (pt(PICKLE + b"c" + b"x" * 600 + b"\nx\n."), Unsupported, "a name has more than"),
    (pt(PICKLE + b"cos\nsystem\n0N."), Unsupported, "next to the state"),
    (pt(dumped([tensor(offset=7)]), Entry("a/data/0", bytes(24))), Damaged, "does not lie in its storage"),
    (pt(dumped([tensor(offset=7)])[:-1] + b"0N.", Entry("a/data/0", bytes(24))), Damaged, "next to the state"),
    (pt(dumped([tensor(), tensor(7)]), Entry("a/data/0", bytes(24))), Damaged, "two sizes or places"),
    (pt(dumped([tensor(), tensor(3, kind=torch.DoubleStorage)]), Entry("a/data/0", bytes(24))), Damaged, "two types"),
    (pt(dumped([tensor(1 << 62)])), Damaged, "an impossible size"),
    (pt(dumped([tensor(location="")]), Entry("a/data/0", bytes(24))), Unsupported, "which is not a known device"),
    (pt(dumped({"x": Call(print, 1)})), Unsupported, "not among the names that are read"),
    (pt(dumped({"x": numpy.array([None])})), Unsupported, "a NumPy array of a type or form"),
    (pt(PICKLE + b"]" * 900 + b"a" * 899 + b"."), Unsupported, "nested deeper"),
    (pt(PICKLE + b"X\1\0\0\0\xff."), Unsupported, "not UTF-8"),
    # the legacy form
    (dumped({"a": 1}), Unsupported, "not one of torch.save"),
    (legacy(magic=3), Damaged, "neither a zip nor a legacy file"),
    (legacy(keys=None), Damaged, "list of storages is missing"),
    (legacy(keys=("0", "0"), storages=((6, 24), (6, 24))), Damaged, "a storage twice"),
    (legacy(keys=("0", "1"), storages=((6, 24), (6, 24))), Unsupported, "no tensor which is read has"),
    (legacy(keys=(), storages=(), tail=b"\0"), Damaged, "it was cut short"),
    (legacy(storages=((6, 23),)), Damaged, "runs past the end"),
    (legacy(storages=((5, 24),)), Damaged, "elements where it should have"),
    # .safetensors
    (bytes(5), Damaged, "a safetensors file has at least 10"),
    (safetensors({"a": one()}, bytes(8), length=200_000_000), Damaged, ""),
    (safetensors({"a": one()}, bytes(8), length=99_999), Damaged, ""),
    (safetensors([]), Damaged, ""),
    (safetensors(b"{]"), Damaged, "it is not JSON"),
    (safetensors(b'{"a":\0}'), Damaged, "a byte of it is 0"),
    (safetensors(b'{"a":{"x":' + b"[" * 40 + b"]" * 40 + b"}}"), Unsupported, "nested deeper than"),
    (safetensors({"a": []}), Damaged, "it is a list, not an object"),
    (safetensors({"a": 3}), Damaged, "it is not an object"),
    (safetensors({"__metadata__": {"a": {}}}), Damaged, "is not a string"),
    (safetensors({"__metadata__": {"a": 3}}), Damaged, "is not a string"),
    (safetensors({"a": one() | {"dtype": {}}}), Damaged, "has the wrong form"),
    (safetensors({"a": one() | {"shape": ["x"]}}), Damaged, "has the wrong form"),
    (safetensors({"a": {"dtype": "F32"}}), Damaged, "it lacks one of"),
    (safetensors({"a": one(offsets=(0, 8, 9))}, bytes(8)), Damaged, "more than two numbers"),
    (safetensors({"a": one(shape=(1 << 62,))}, bytes(8)), Damaged, "not a whole number of bytes"),
    (safetensors({"a": one(shape=(3,))}, bytes(8)), Damaged, "but its data_offsets"),
    (safetensors({"a": one("Q7")}, bytes(8)), Unsupported, "is unknown"),
    (safetensors({"a": one(shape=(1,) * 200)}, bytes(8)), Unsupported, "dimensions"),
    (safetensors({"a": one(offsets=(8, 16))}, bytes(16)), Damaged, "a hole"),
    (safetensors({"a": one(), "b": one(offsets=(4, 12))}, bytes(12)), Damaged, "an overlap"),
    (safetensors({"a": one()}, bytes(9)), Damaged, "bytes of data and the file has"),
    (safetensors({"a": one()}, bytes(7)), Damaged, "bytes of data and the file has"),
]  # fmt: skip
INDEXES = [
    (b"[]", Unsupported, "does not begin as an index"),
    (b"{}", Unsupported, "no weight_map"),
    (b"3", Unsupported, "does not begin as an index"),
    (b'{"weight_map": []}', Unsupported, "weight_map is not an object"),
    (b'{"weight_map": 3}', Unsupported, "not an object with a weight_map"),
    (b'{"weight_map": {"a": 3}}', Unsupported, "not the name of a file"),
    (b'{"weight_map": {"a" 3}}', Damaged, "it is not JSON"),
    (b'{"weight_map": {"a": "../x"}}', Unsupported, "not the name of a file"),
    (b'{"weight_map": {"a": "x"', Damaged, "it ends too early"),
]


def message_of(read, wanted, part):
    with pytest.raises((Damaged, Unsupported)) as caught:
        read()
    assert type(caught.value) is wanted and part in str(caught.value), caught.value
    return str(caught.value)


def messages(folder):
    for i, (data, wanted, part) in enumerate(ROWS):
        for name in (f"{i}.safetensors",) if "safetensors" in part or data[8:9] in (b"{", b"[") else (f"{i}.pt", None):
            if name is None:
                yield message_of(lambda data=data: penstock.load(io.BytesIO(data)), wanted, part)
            else:
                path = folder / name
                path.write_bytes(data)
                yield message_of(lambda path=path: penstock.load(path), wanted, part)
                if "not read" not in part and wanted is Damaged:
                    message_of(lambda path=path: penstock.inspect(path), wanted, part)
    for i, (data, wanted, part) in enumerate(INDEXES):
        path = folder / f"{i}.safetensors.index.json"
        path.write_bytes(data)
        yield message_of(lambda path=path: penstock.load(path), wanted, part)


def messages_of_updates(folder):
    """Sums that update() would change lie where torch.save puts them, or it refuses the file."""
    path = folder / "u.pt"
    state = {"w": torch.ones(6)}
    for at_descriptor, part in ((False, "another CRC"), (True, "none follows the payload")):
        torch.save(state, path)
        with zipfile.ZipFile(path) as there:
            record = next(one for one in there.infolist() if one.filename.endswith("data/0"))
        data = bytearray(path.read_bytes())
        names = sum(struct.unpack_from("<HH", data, record.header_offset + 26))
        payload = record.header_offset + 30 + names
        at = payload + record.file_size if at_descriptor else record.header_offset + 14
        data[at : at + 4] = b"none"
        path.write_bytes(data)
        yield message_of(lambda: penstock.update(path, {"w": torch.zeros(6)}), Damaged, part)
        assert path.read_bytes() == data and not list(folder.glob("*.penstock-update"))


def texts_in(name):
    """What refusals of a file say first, without what is filled in."""
    call = r"\b(?:fault|unsupported|damaged|wrong%s)\(\s*" % ("|not_read" if name == "zip/zip_reader" else "")
    call += r'(?:kReading,\s*|kSettling,\s*|"load",\s*)?(?:fmt::format\(\s*)?"((?:[^"\\]|\\.)*)"'
    for text in re.findall(call, (SOURCES / f"{name}.cpp").read_text()):
        yield max(re.split(r"\{[^}]*\}", text), key=len).strip(" :'")


def test_each_refusal_has_the_class_of_what_is_wrong(tmp_path):
    made = "\n".join([*messages(tmp_path), *messages_of_updates(tmp_path)])
    texts = {text for name in READERS for text in texts_in(name)}
    assert len(texts) > 50
    lacking = sorted(text for text in texts if text not in made and not any(one in text for one in NOT_MADE))
    assert not lacking, f"these refusals are in no row: {lacking}"
