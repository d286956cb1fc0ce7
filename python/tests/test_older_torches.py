# SPDX-License-Identifier: Apache-2.0
"""What torch 2.0 to 2.13 wrote is read, bit for bit: files that those versions made (tools/older_torches.py), and what
each value in them was, as that version saw it."""

import io
import json
import pathlib
import tarfile
import zipfile

import penstock
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("numpy")
from older_torch_files import values  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")

ARCHIVE = pathlib.Path(__file__).parent / "older_torch_files" / "files.tar.xz"


def kept():
    """{version: {name: bytes}}."""
    found = {}
    with tarfile.open(ARCHIVE) as archive:
        for member in archive:
            version, name = member.name.split("/")
            found.setdefault(version, {})[name] = archive.extractfile(member).read()
    return found


KEPT = kept()


def of_this_torch(folder):
    values.make(folder, [name for name in values.FILES if name != "training"])  # which imports for seconds
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def wanted(files):
    """What each file has: {file: {name: description}}."""
    expected = json.loads(files["expected.json"])
    for file in files:
        if file in ("expected.json", "jagged.pt"):
            continue
        stem = file.removesuffix(".pt")
        of = expected["values"][stem.split("_")[0]]
        yield stem, {name: is_ for name, is_ in of.items() if name not in expected["left out"].get(stem, ())}


def compare(found, is_, place):
    assert sorted(found) == sorted(is_), place
    for name, one in is_.items():
        assert json.loads(json.dumps(values.described(found[name]))) == one, (place, name)


def compare_by_torch(data, weights_only, is_, place):
    """torch.load() of 2.13 gives sizes of strided nested tensors that are other memory, now and then."""
    for attempt in range(8):
        try:
            compare(torch.load(io.BytesIO(data), weights_only=weights_only), is_, place)
            return
        except (AssertionError, RuntimeError):
            if attempt == 7:
                raise


def check(files):
    count = 0
    for stem, is_ in wanted(files):
        data = files[f"{stem}.pt"]
        compare(penstock.load(io.BytesIO(data)), is_, stem)
        # torch.load does so only with these: names of NumPy, defaultdict, frozenset; codes of protocols 3 and 4.
        weights_only = stem != "arrays" and "protocol" not in stem
        compare_by_torch(data, weights_only, is_, f"{stem}, by torch")
        count += 1
    return count


def test_the_versions_that_are_kept():
    assert list(KEPT) == "2.0.1 2.1.2 2.2.2 2.3.1 2.4.1 2.6.0 2.8.0 2.10.0 2.12.1".split()
    assert max(len(data) for files in KEPT.values() for name, data in files.items() if name.endswith(".pt")) < 20_000


@pytest.mark.parametrize("version", KEPT)
def test_what_an_older_torch_wrote_is_read(version):
    assert check(KEPT[version]) == 10


def test_what_this_torch_writes_is_read(tmp_path):
    assert check(of_this_torch(tmp_path)) == 9


def test_jagged_tensors_of_all_versions_that_have_them():
    files = {version: of["jagged.pt"] for version, of in KEPT.items() if "jagged.pt" in of}
    assert list(files) == list(KEPT)[2:]
    for version, data in files.items():
        found, wanted = penstock.load(io.BytesIO(data)), values.jagged()
        assert type(found["jagged"]) is type(wanted) and found["jagged"].layout is torch.jagged, version
        for one, other in zip(found["jagged"].unbind(), wanted.unbind(), strict=True):
            assert torch.equal(one, other), version
        assert found["jagged"]._get_max_seqlen() == 2 and found["jagged"]._get_min_seqlen() == 1, version
        assert torch.equal(found["beside"], values.numbers(2))


def test_what_torch_itself_reads_otherwise_than_it_was():
    """So the rest of what is expected does not depend on any reader. Torch 2.0 forgot that a tensor is coalesced."""
    changed = {version: json.loads(files["expected.json"])["changed"] for version, files in KEPT.items()}
    assert {version: names for version, names in changed.items() if names} == {
        "2.0.1": ["coo", "hybrid coo", "sparse parameter"]
    }


def test_the_records_of_each_version():
    """Those that a reader has to know: the order of bytes, a layout that offsets are computed from."""
    records = {}
    for version, files in KEPT.items():
        with zipfile.ZipFile(io.BytesIO(files["objects.pt"])) as archive:
            for name in archive.namelist():
                if "/data/" not in name:
                    records.setdefault(name.removeprefix("archive/"), version)
    since = {"byteorder": "2.1.2", ".data/serialization_id": "2.1.2"}
    since |= {".format_version": "2.8.0", ".storage_alignment": "2.8.0"}
    assert records == {"data.pkl": "2.0.1", "version": "2.0.1"} | since
