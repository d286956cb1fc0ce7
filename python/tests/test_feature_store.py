# SPDX-License-Identifier: Apache-2.0
"""penstock.FeatureStore: what is gathered equals indexing the table, whatever the ids and the memory."""

import asyncio
import os
import pickle
import subprocess
import sys
import threading
import tracemalloc

import numpy as np
import penstock
import pytest
import torch
from hypothesis import given, settings, strategies as st
from penstock import features

RNG = np.random.default_rng(3)
PAPER = RNG.standard_normal((700, 1024)).astype("f4")
AUTHOR = RNG.integers(0, 1000, (900, 7), dtype="i8")
YEAR = RNG.integers(0, 255, 500, dtype="u1")
TABLES = {"paper": PAPER, "author": AUTHOR, "year": YEAR}


@pytest.fixture(scope="module", params=[False, True], ids=["one_file", "striped"])
def store(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("features")
    folders = [folder / "a", folder / "b", folder / "c"] if request.param else None
    for one in folders or ():
        one.mkdir()
    penstock.FeatureStore.write(folder / "x.features", TABLES, folders=folders, progress=None)
    with penstock.FeatureStore.open(folder / "x.features", ram=None) as opened:
        yield opened


def kinds_of(ids, rng):
    """The same numbers in all forms that ids may have."""
    array = np.asarray(ids, "i8")
    yield array
    yield array.astype("i4")
    yield array.astype("u4")
    yield torch.from_numpy(array.copy())
    yield array.tolist()
    yield np.repeat(array, 2)[::2]  # strided
    yield torch.from_numpy(np.repeat(array, 3))[::3]
    yield memoryview(array.copy())
    if len(array) % 2 == 0:
        yield array.reshape(2, -1)
        yield torch.from_numpy(array.copy()).reshape(-1, 2).t()
        yield array.reshape(2, -1).tolist()


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_a_gather_equals_indexing(store, data):
    name = data.draw(st.sampled_from(sorted(TABLES)))
    table = TABLES[name]
    ids = data.draw(st.lists(st.integers(0, len(table) - 1), max_size=40))
    for kind in kinds_of(ids, RNG):
        expected = table[np.asarray(kind, "i8")]
        found = store[name].gather(kind)
        assert isinstance(found, torch.Tensor) == isinstance(kind, torch.Tensor)
        assert tuple(found.shape) == expected.shape
        assert np.array_equal(np.asarray(found), expected)
        out = np.empty(expected.shape, expected.dtype)
        assert store[name].gather(kind, out) is out and np.array_equal(out, expected)


def test_several_tables_at_once(store):
    ids = {"paper": torch.tensor([[5, 699], [5, 0]]), "author": [1, 2, 899], "year": np.array([], "i4")}
    for found in (store.gather(ids), store.gather_async(ids).result()):
        assert torch.equal(found["paper"], torch.from_numpy(PAPER)[ids["paper"]])
        assert np.array_equal(found["author"], AUTHOR[ids["author"]])
        assert found["year"].shape == (0,)
    out = {"author": np.empty((3, 7), "i8")}
    assert store.gather(ids, out)["author"] is out["author"]
    assert np.array_equal(out["author"], AUTHOR[ids["author"]])


def test_an_async_gather_is_awaited(store):
    async def both():
        return await asyncio.gather(
            store["paper"].gather_async([3, 4]).coroutine(), store["year"].gather_async([]).coroutine()
        )

    found, nothing = asyncio.run(both())
    assert np.array_equal(found, PAPER[[3, 4]]) and nothing.shape == (0,)
    for _ in range(50):  # dropped while they run
        store["paper"].gather_async(np.arange(700))
    assert np.array_equal(store["paper"].gather(np.arange(700)), PAPER)


def _by_eventfd(future):
    event = os.eventfd(0)
    future.notify(event)
    os.eventfd_read(event)
    os.close(event)


def _by_callback(future):
    event = threading.Event()
    future.add_done_callback(lambda _: event.set())
    event.wait()


def _by_asking(future):
    while not future.done():
        pass


@pytest.mark.parametrize("wait", [_by_eventfd, _by_callback, _by_asking, lambda future: future.exception()])
def test_rows_that_are_changed_after_the_end_are_not_kept(tmp_path, wait):
    penstock.FeatureStore.write(tmp_path / "x.features", TABLES, progress=None)
    with penstock.FeatureStore.open(tmp_path / "x.features", ram="16MiB", policy="s3fifo") as store:
        ids, out = np.arange(500), np.empty((500, 1024), "f4")
        for _ in range(3):
            future = store["paper"].gather_async(ids, out=out)
            wait(future)
            out[:] = -1
            future.result()
            assert np.array_equal(store["paper"].gather(ids), PAPER[:500])
        assert store.stats().rows_hit > 0


def test_wrong_arguments_name_what_is_wrong(store):
    paper = store["paper"]
    with pytest.raises(ValueError, match=r"ids\[1\]: table 'paper' has no row 700; expected 0 to 699"):
        paper.gather([0, 700])
    for index, ids in enumerate(([-1], [0, -(1 << 70)], np.array([0, 1, -1]), np.array([3, 2, 1, -1], "i1"))):
        with pytest.raises(ValueError, match=rf"ids\[{index}\]: table 'paper' has no row {ids[-1]}; expected 0 to 699"):
            paper.gather(ids)
        with pytest.raises(ValueError, match=rf"hint .*ids\[{index}\]: table 'paper' has no row {ids[-1]}; expected"):
            paper.hint(ids)
    for ids in ([1 << 64], [1 << 63], np.array([-1]).view("u8"), range(1 << 64, (1 << 64) + 1)):
        with pytest.raises(ValueError, match=rf"ids\[0\]: table 'paper' has no row {ids[0]}; expected 0 to 699"):
            paper.gather(ids)
    with pytest.raises(TypeError, match=r"ids\[1\]: got bool"):
        paper.gather([0, True])
    with pytest.raises(TypeError, match="no integers"):
        paper.gather(np.array([0.5]))
    with pytest.raises(TypeError, match="expected elements of float32, got float64"):
        paper.gather([0], np.empty((1, 1024)))
    with pytest.raises(ValueError, match=r"expected shape \(1, 1024\), got \(2, 512\)"):
        paper.gather([0], np.empty((2, 512), "f4"))
    with pytest.raises(ValueError, match="expected 1 rows of 4096 bytes"):
        paper.gather([0], bytearray(4095))
    with pytest.raises((ValueError, TypeError, BufferError)):
        paper.gather([0], np.empty((1, 2048), "f4")[:, ::2])
    with pytest.raises((ValueError, TypeError, BufferError)):
        paper.gather([0], bytes(4096))
    with pytest.raises(KeyError, match="did you mean 'paper'"):
        store["papers"]
    with pytest.raises(TypeError, match="expected a dict of tables"):
        store.gather([1, 2])
    with pytest.raises(TypeError, match="did you mean 'out'"):
        paper.gather([1], oot=None)
    with pytest.raises(TypeError, match="expected a dict, as ids is one"):
        store.gather({"paper": [1]}, np.empty((1, 1024), "f4"))


def test_what_is_written_is_checked(tmp_path):
    path = tmp_path / "x.features"
    write = penstock.FeatureStore.write
    for wrong, error in [
        ([PAPER], TypeError),
        ({"a": "nothing.npy"}, FileNotFoundError),
        ({"a": np.array(["x"])}, TypeError),
        ({"a": np.array([object()])}, TypeError),
        ({"a": np.float32(1)}, ValueError),
        ({"a": np.empty((3, 0))}, ValueError),
        ({1: PAPER}, TypeError),
        ({"": PAPER}, ValueError),
        ({"a": iter([])}, ValueError),
        ({"a": iter([PAPER, AUTHOR])}, ValueError),
        ({"a": [1, 2, 3]}, TypeError),
    ]:
        with pytest.raises(error):
            write(path, wrong, progress=None)
        assert os.listdir(tmp_path) == []
    with pytest.raises(ValueError, match="one path|named twice|folder"):
        write(path, TABLES, folders=[tmp_path, str(tmp_path)], progress=None)
    with pytest.raises(TypeError, match="one path"):
        write(path, TABLES, folders=str(tmp_path), progress=None)

    def stops(done, total):
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        write(path, TABLES, progress=stops)
    assert os.listdir(tmp_path) == []


def test_rows_come_from_iterators_memmaps_and_other_byte_orders(tmp_path):
    np.save(tmp_path / "paper.npy", PAPER)
    tables = {
        "blocks": (PAPER[i : i + 33] for i in range(0, 700, 33)),
        "mapped": np.load(tmp_path / "paper.npy", mmap_mode="r"),
        "named": tmp_path / "paper.npy",
        "strided": PAPER[::2, ::4],
        "big": PAPER.astype(">f4"),
        "tensor": torch.from_numpy(PAPER).t(),
        "half": torch.from_numpy(PAPER).to(torch.bfloat16),
        "none": PAPER[:0],
        "flags": PAPER[:, 0] > 0,
    }
    seen = []
    penstock.FeatureStore.write(tmp_path / "x.features", tables, progress=lambda *now: seen.append(now))
    assert seen[-1][0] == seen[-1][1]
    store = penstock.FeatureStore(tmp_path / "x.features")
    assert list(store) == list(tables) and len(store["none"]) == 0
    for name in ("blocks", "mapped", "named", "big"):
        assert np.array_equal(store[name].gather(np.arange(700)), PAPER)
    assert np.array_equal(store["strided"].gather([349, 0]), PAPER[::2, ::4][[349, 0]])
    assert np.array_equal(store["tensor"].gather([1023]), PAPER.T[[1023]])
    half = store["half"].gather(torch.tensor([5, 6]))
    assert torch.equal(half, torch.from_numpy(PAPER).to(torch.bfloat16)[5:7])
    assert store["flags"].gather([1]).dtype == bool
    assert features.verify(store.path, progress=None) == []


def test_an_npy_is_read_where_it_is(tmp_path):
    np.save(tmp_path / "paper.npy", PAPER)
    store = penstock.FeatureStore.open(tmp_path / "paper.npy")
    assert np.array_equal(store.gather([699, 3, 3]), PAPER[[699, 3, 3]])
    assert store["paper"].touched_4096 == 8192 and store["paper"].touched_512 == 4608
    with pytest.raises(penstock.Unsupported, match="no checksums"):
        features.verify(tmp_path / "paper.npy")
    np.save(tmp_path / "fortran.npy", np.asfortranarray(PAPER))
    with pytest.raises((penstock.Unsupported, penstock.Damaged)):
        penstock.FeatureStore(tmp_path / "fortran.npy")


def test_damage_is_found(tmp_path):
    path = tmp_path / "x.features"
    penstock.FeatureStore.write(path, TABLES, progress=None)
    with open(path, "r+b") as file:
        file.seek(4096 + 5 * 4096)
        file.write(b"\xff\xff")
    (problem,) = features.verify(path, progress=None)
    assert (problem.table, problem.offset, problem.row) == ("paper", 4096, 0)
    with pytest.raises(
        penstock.Damaged, match="of table 'paper', from row 0 on.*write or import the file again"
    ) as raised:
        penstock.FeatureStore.open(path, ram="1MiB", hot={"paper": [1]}, verify=True)
    assert (raised.value.path, raised.value.offset) == (str(path), 4096)
    penstock.FeatureStore.open(path, ram="1MiB", hot={"paper": [1]}).close()
    with open(path, "r+b") as file:
        file.truncate(10_000)
    with pytest.raises(penstock.Damaged, match="cut short"):
        penstock.FeatureStore(path)
    path.write_bytes(b"something else")
    with pytest.raises(ValueError, match="expected a feature file or a .npy"):
        penstock.FeatureStore(path)


def test_a_store_that_is_verified(tmp_path):
    path = tmp_path / "x.features"
    penstock.FeatureStore.write(path, TABLES, progress=None)
    with pytest.raises(ZeroDivisionError):
        penstock.FeatureStore(path, verify=True, progress=lambda done, total: 1 // 0)
    reported = []
    with penstock.FeatureStore.open(path, verify=True, progress=lambda *bytes_: reported.append(bytes_)) as store:
        assert np.array_equal(store["paper"].gather([5]), PAPER[[5]])
        assert reported and reported[-1][0] == reported[-1][1] > PAPER.nbytes
        with open(path, "r+b") as file:
            file.seek(4096 + 5 * 4096)
            file.write(b"\xff\xff")
        pickle.loads(pickle.dumps(store)).close()  # workers do not verify again
    with pytest.raises(TypeError, match="verify: expected True, False or None, got"):
        penstock.FeatureStore(path, verify="yes")
    np.save(tmp_path / "x.npy", PAPER)
    with pytest.raises(penstock.Unsupported, match="a .npy has no checksums"):
        penstock.FeatureStore(tmp_path / "x.npy", verify=True)


def test_threads_pickles_forks_and_closing(store, tmp_path):
    copy = pickle.loads(pickle.dumps(store))
    errors = []

    def work(seed):
        rng = np.random.default_rng(seed)
        for _ in range(20):
            ids = rng.integers(0, 700, 50)
            if not np.array_equal(copy["paper"].gather(ids), PAPER[ids]):
                errors.append(ids)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    child = os.fork()
    if child == 0:
        os._exit(0 if np.array_equal(copy["paper"].gather([7, 8]), PAPER[7:9]) else 1)
    assert os.waitpid(child, 0)[1] == 0
    futures = [copy["paper"].gather_async(np.arange(700)) for _ in range(5)]
    copy.close()
    for future in futures:
        assert np.array_equal(future.result(), PAPER)
    with pytest.raises(ValueError, match="closed"):
        copy["paper"].gather([1])


@pytest.mark.parametrize("policy", ["static", "clock", "s3fifo", "window"])
def test_rows_in_memory_are_the_same_rows(store, policy):
    rng = np.random.default_rng(1)
    kept = penstock.FeatureStore.open(store.path, "1MB", policy, {"author": torch.arange(900), "paper": [5]})
    assert 100 < kept.stats().preloaded <= 901 and kept.stats().memory_bytes < 1_100_000
    batches = [rng.integers(0, 700, 60) % (1 + rng.integers(0, 700, 60)) for _ in range(20)]
    for this, later in zip(batches, batches[2:] + [[]] * 2, strict=True):
        assert kept.hint({"paper": later, "author": []}) in (True, False)
        found = kept.gather({"paper": this, "author": torch.tensor([899, 5])})
        assert np.array_equal(found["paper"], PAPER[this])
        assert np.array_equal(found["author"], AUTHOR[[899, 5]])
        assert np.array_equal(kept["paper"].gather_async(later).result(), PAPER[np.asarray(later, "i8")])
    stats = kept.stats()
    assert stats.rows_hit >= 20 and stats.rows == stats.rows_hit + stats.rows_read
    assert (stats.hints > 0) == (policy == "window")
    again = pickle.loads(pickle.dumps(kept))
    assert np.array_equal(again["author"].gather([7]), AUTHOR[[7]]) and again.stats().rows_hit == 1
    kept.drop_hints()


def test_rows_of_a_small_file_stay_by_default(store, tmp_path):
    small = penstock.FeatureStore.open(store.path)
    for epoch in range(3):
        assert np.array_equal(small["paper"].gather(np.arange(700)), PAPER)
        stats = small.stats()
        assert (stats.rows_read, stats.rows_hit) == (700, 700 * epoch)
    assert "rows stay in memory of this process" in small.describe()
    none = penstock.FeatureStore.open(store.path, ram=None)
    assert [none["paper"].gather([1, 2]).shape for _ in range(2)] and none.stats().rows_read == 4
    assert "no row stays" in none.describe() and "up to 1 MiB" in penstock.FeatureStore(store.path, "1MiB").describe()
    np.save(tmp_path / "x.npy", PAPER)
    array = penstock.FeatureStore.open(tmp_path / "x.npy")
    assert "may change in place" in array.describe() and array.stats().slots == 0
    with pytest.raises(ValueError, match="there is no memory for these rows; give ram"):
        penstock.FeatureStore.open(store.path, hot={"paper": [1]})


def test_wrong_memory_is_refused(store):
    for wrong, error, text in [
        ({"ram": -1}, ValueError, "ram"),
        ({"ram": "much"}, ValueError, "much"),
        ({"ram": 1.5}, TypeError, "ram"),
        ({"policy": "windows"}, ValueError, "window"),
        ({"policy": None}, TypeError, "policy"),
        ({"hot": [1, 2]}, TypeError, "expected a dict"),
        ({"hot": {"papers": [1]}}, ValueError, "did you mean 'paper'"),
        ({"hot": {"paper": [700]}}, ValueError, "has no row 700"),
        ({"hot": {"paper": ["x"]}}, TypeError, "hot"),
        ({"memory": "1GiB"}, TypeError, "there is no argument 'memory'"),
    ]:
        with pytest.raises(error, match=text):
            penstock.FeatureStore.open(store.path, **wrong)
    with pytest.raises(ValueError, match="has no row 700"):
        store["paper"].hint([700])
    with pytest.raises(TypeError, match="expected a dict"):
        store.hint([1])
    assert store["paper"].hint([1]) is False  # no memory


def test_wrong_paths_folders_and_devices_are_named(store, tmp_path):
    for path in (None, 3):
        with pytest.raises(TypeError, match=r"^write: path: expected a path, got"):
            penstock.FeatureStore.write(path, {"a": PAPER})
    with pytest.raises(TypeError, match=r"^write: folders: expected a list of folders, got 3"):
        penstock.FeatureStore.write(tmp_path / "x", {"a": PAPER}, folders=3)
    for device in (99999999999, "cuda:99999999999"):
        with pytest.raises(ValueError, match=r"^FeatureStore: device: got .*; expected 'cuda:0'"):
            penstock.FeatureStore.open(store.path, device_memory="1MiB", device=device)


def test_errors_of_hints_and_hot_rows_name_what_was_called(store):
    with pytest.raises(ValueError, match=r"^hint '.*': ids\[0\]: table 'paper' has no row 700"):
        store["paper"].hint([700])
    with pytest.raises(ValueError, match=r"^open features '.*': hot\[1\]: table 'paper' has no row 700"):
        penstock.FeatureStore.open(store.path, ram="1MiB", hot={"paper": [1, 700]})
    with pytest.raises(ValueError, match=r"^open features '.*': hot: there is no table 'papers'"):
        penstock.FeatureStore.open(store.path, ram="1MiB", hot={"papers": [1]})
    with pytest.raises(TypeError, match=r"^hot: this array is a mask"):
        penstock.FeatureStore.open(store.path, ram="1MiB", hot={"paper": np.array([True])})
    for none in (None, 0):
        with pytest.raises(ValueError, match=r"hot: there is no memory for these rows; give ram"):
            penstock.FeatureStore.open(store.path, ram=none, hot={"paper": [1]})
        penstock.FeatureStore.open(store.path, ram=none, hot={"paper": []}).close()
    closed = penstock.FeatureStore.open(store.path)
    closed.close()
    with pytest.raises(ValueError, match=r"^hint '.*': this FeatureStore is closed"):
        closed["paper"].hint([1])


def test_a_program_may_end_with_gathers_under_way(store):
    code = (
        "import penstock, numpy, sys; s = penstock.FeatureStore(sys.argv[1]);"
        "k = [s['paper'].gather_async(numpy.arange(700)) for _ in range(20)]"
    )
    subprocess.run([sys.executable, "-c", code, store.path], check=True)


@pytest.mark.parametrize("dtype", ["complex64", "complex128", "bfloat16", "float8_e4m3fn", "uint16", "bool"])
def test_rows_of_any_dtype_of_torch_come_back(tmp_path, dtype):
    rows = torch.arange(12).reshape(4, 3).to(getattr(torch, dtype))
    penstock.FeatureStore.write(tmp_path / "x", {"a": rows}, progress=None)
    table = penstock.FeatureStore.open(tmp_path / "x")["a"]
    assert table.dtype == dtype
    found = table.gather(torch.tensor([3, 0]))
    assert found.dtype == rows.dtype
    assert torch.equal(found.view(torch.uint8), rows[[3, 0]].view(torch.uint8))
    if dtype.startswith("complex"):
        assert np.array_equal(table.gather([1]), rows[1:2].numpy())


@pytest.mark.parametrize(
    "rows",
    [
        torch.eye(3).to_sparse(),
        torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
        np.ma.masked_array([[1.0, 2.0]], mask=[[True, False]]),
        iter([np.ones((1, 2)), np.ma.masked_array([[1.0, 2.0]])]),
    ],
    ids=["sparse", "nested", "masked", "a masked block"],
)
def test_rows_that_are_not_their_memory_are_refused(tmp_path, rows):
    with pytest.raises(TypeError, match="expected (dense tensors|plain arrays), got a"):
        penstock.FeatureStore.write(tmp_path / "x", {"a": rows}, progress=None)
    assert os.listdir(tmp_path) == []


def test_files_that_are_no_npy_are_refused(tmp_path):
    np.savez(tmp_path / "two.npz", a=np.ones(3), b=np.ones(2))
    (tmp_path / "empty.npy").touch()
    for name in ("two.npz", "empty.npy"):
        with pytest.raises(ValueError, match="is no .npy that can be mapped"):
            penstock.FeatureStore.write(tmp_path / "x", {"a": tmp_path / name}, progress=None)


def test_files_and_matrices_that_cannot_be_rows_name_their_table(tmp_path):
    sparse = pytest.importorskip("scipy.sparse")
    matrix, out = sparse.random(8, 4, 0.5, format="csr"), tmp_path / "x"
    for rows in (matrix, sparse.csr_array(matrix), iter([matrix])):
        with pytest.raises(TypeError, match=r"table 'a': expected dense rows, got a sparse .*; give rows.toarray\(\)"):
            penstock.FeatureStore.write(out, {"a": rows}, progress=None)
    with pytest.raises(IsADirectoryError, match="table 'a': Is a directory; give the path of a .npy that can be read"):
        penstock.FeatureStore.write(out, {"a": tmp_path}, progress=None)
    assert os.listdir(tmp_path) == []


def test_tables_of_files_and_buffers_are_written(tmp_path):
    buffer = penstock.empty((5, 4), "float32")
    buffer.numpy()[:] = np.arange(20).reshape(5, 4)
    halves = torch.arange(24, dtype=torch.uint8).reshape(4, 2, 3).view(torch.float4_e2m1fn_x2)
    large = np.arange(6_000_000).reshape(-1, 2)  # several pieces
    rows = {"b": buffer, "c": iter([buffer, buffer]), "h": halves, "p": PAPER, "none": PAPER[:0], "large": large}
    penstock.FeatureStore.write(tmp_path / "one", rows, progress=None)
    one = penstock.FeatureStore.open(tmp_path / "one")
    assert np.array_equal(one["c"].gather(range(10)), np.concatenate([buffer.numpy()] * 2))
    seen = []
    penstock.FeatureStore.write(tmp_path / "two", one.tables, progress=lambda *now: seen.append(now))
    two = penstock.FeatureStore.open(tmp_path / "two", verify=True, progress=None)
    assert list(two) == list(rows) and seen[-1] == (sum(len(t) * t.row_bytes for t in one.tables.values()),) * 2
    for name, table in one.tables.items():
        assert (two[name].shape, two[name].dtype) == (table.shape, table.dtype)
        found = [t.gather(torch.arange(len(t))).view(torch.uint8) for t in (table, two[name])]
        assert torch.equal(*found), name
    with pytest.raises(ValueError, match="is a source of rows"):
        penstock.FeatureStore.write(tmp_path / "one", one.tables, progress=None)


def test_numbers_that_are_no_integers_are_no_ids(store):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    for ids in (np.zeros(2, "M8[s]"), np.zeros(2, "m8[s]"), np.zeros(2, ml_dtypes.bfloat16)):
        with pytest.raises(TypeError, match="are no integers"):
            store["paper"].gather(ids)


def test_rows_of_halves_of_a_byte_are_those_of_torch(tmp_path):
    rows = torch.arange(24, dtype=torch.uint8).reshape(4, 2, 3).view(torch.float4_e2m1fn_x2)
    penstock.FeatureStore.write(tmp_path / "x", {"a": rows}, progress=None)
    table = penstock.FeatureStore.open(tmp_path / "x")["a"]
    assert (table.shape, table.dtype, table.row_bytes) == ((4, 2, 3), "float4_e2m1fn_x2", 6)
    found = table.gather(torch.tensor([3, 0]), out=torch.empty((2, 2, 3), dtype=rows.dtype))
    assert torch.equal(found.view(torch.uint8), rows.view(torch.uint8)[[3, 0]])
    assert table.gather(torch.tensor([1])).dtype == rows.dtype


def test_a_pickled_table_is_a_table(store):
    whole, table = pickle.loads(pickle.dumps((store, store["author"])))
    assert table is whole["author"]
    alone = pickle.loads(pickle.dumps(penstock.FeatureStore.open(store.path)["author"]))  # its store is gone
    assert np.array_equal(alone.gather([5, 899]), AUTHOR[[5, 899]])


def test_what_is_unpickled_is_the_same_file_wherever_it_is(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    other = tmp_path / "other"
    other.mkdir()
    for folder, rows in ((tmp_path, PAPER), (other, PAPER + 1)):
        np.save(folder / "a.npy", rows)
        penstock.FeatureStore.write(folder / "a.f", {"paper": rows}, progress=None)
    for name in ("a.f", "a.npy"):
        store = penstock.FeatureStore.open(name)
        table = penstock.FeatureStore.open(name)[next(iter(store))]  # of a store that is gone
        pickled = pickle.dumps(store), pickle.dumps(table)
        monkeypatch.chdir(other)
        again, alone = map(pickle.loads, pickled)
        assert np.array_equal(again.gather({next(iter(again)): [3]})[next(iter(again))], PAPER[[3]])
        assert np.array_equal(alone.gather([3]), PAPER[[3]])
        monkeypatch.chdir(tmp_path)
        os.replace(other / name, name)
        for one in pickled:
            with pytest.raises(penstock.Damaged, match="the file was replaced after the store that is unpickled"):
                pickle.loads(one)
        assert np.array_equal(table.gather([3]), PAPER[[3]])  # the old file is still open


def test_a_write_replaces_none_of_its_sources(tmp_path):
    np.save(tmp_path / "n.npy", PAPER)
    PAPER.tofile(tmp_path / "raw")
    mapped = np.memmap(tmp_path / "raw", PAPER.dtype, "r", shape=PAPER.shape)
    os.symlink("raw", tmp_path / "link")
    before = (tmp_path / "n.npy").read_bytes(), (tmp_path / "raw").read_bytes()
    for path, rows in (
        (tmp_path / "n.npy", tmp_path / "n.npy"),
        (tmp_path / "raw", mapped),
        (tmp_path / "link", mapped[:5]),
    ):
        with pytest.raises(ValueError, match="is a source of rows, which the new file would replace"):
            penstock.FeatureStore.write(path, {"a": rows}, progress=None)
    with pytest.raises(ValueError, match="would replace a .npy, or be taken for one"):
        penstock.FeatureStore.write(tmp_path / "new.npy", {"a": PAPER}, progress=None)
    assert ((tmp_path / "n.npy").read_bytes(), (tmp_path / "raw").read_bytes()) == before


def test_a_list_of_rows_is_not_a_table_of_numbers(tmp_path):
    for rows in ([PAPER[0], PAPER[1]], (torch.ones(3),)):
        with pytest.raises(TypeError, match="table 'a': expected blocks of rows in the list, got arrays of one dim"):
            penstock.FeatureStore.write(tmp_path / "x", {"a": rows}, progress=None)
    penstock.FeatureStore.write(tmp_path / "x", {"a": [PAPER[:2], PAPER[2:3]]}, progress=None)
    assert len(penstock.FeatureStore.open(tmp_path / "x")["a"]) == 3


def test_a_range_of_many_ids_costs_no_list(store):
    assert np.array_equal(store["paper"].gather(range(699, -1, -1)), PAPER[::-1])
    tracemalloc.start()
    store["paper"].hint(range(5, 5))
    with pytest.raises(ValueError):
        store["year"].gather(range(10**6, 2 * 10**6))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20 << 20  # a list of ints has 36 MB


def test_ids_of_another_byte_order_and_masks(store):
    assert np.array_equal(store["paper"].gather(np.array([[5, 6]], ">i8")), PAPER[[[5, 6]]])
    for mask in (np.ones(700, bool), torch.ones(700, dtype=torch.bool)):
        for verb in (store["paper"].gather, store["paper"].hint):
            with pytest.raises(TypeError, match="is a mask; give the numbers"):
                verb(mask)
    with pytest.raises(TypeError, match="hint: ids: expected a tensor, .* got None"):
        store["paper"].hint(None)
    with pytest.raises(ValueError, match="^ids: expected lists of the same length"):
        store["paper"].gather([[1, 2], [3]])
    for wrong in (torch.empty(3, dtype=torch.int64, device="meta"), torch.ones(3, requires_grad=True)):
        with pytest.raises(TypeError, match=f"^ids: expected integers in memory, got a tensor of {wrong.dtype} on"):
            store["paper"].gather(wrong)


@pytest.mark.skipif(torch.cuda.is_available(), reason="torch has CUDA here")
def test_a_device_that_torch_has_not_is_named(store):
    with pytest.raises(ValueError, match="^gather: device='cuda:0': no GPU is here: .*; give device='cpu'"):
        store["paper"].gather([1], device="cuda:0")


def test_a_scalar_and_a_name_that_is_no_text_are_refused(tmp_path):
    np.save(tmp_path / "scalar.npy", np.float32(3))
    with pytest.raises(ValueError, match="a scalar has no rows"):
        penstock.FeatureStore.write(tmp_path / "x", {"a": tmp_path / "scalar.npy"}, progress=None)
    with pytest.raises(ValueError, match="is no text of UTF-8"):
        penstock.FeatureStore.write(tmp_path / "x", {"\ud800": PAPER}, progress=None)
    with pytest.raises(TypeError, match="expected path, ram"):
        penstock.FeatureStore.open(tmp_path / "x", zzzzzz=1)


def test_ram_auto_keeps_all_rows_where_there_is_memory(tmp_path):
    rows = np.random.default_rng(1).integers(0, 255, (500, 4096), "u1")
    penstock.FeatureStore.write(tmp_path / "n.features", {"n": rows}, progress=None)
    with penstock.FeatureStore.open(tmp_path / "n.features", ram="auto") as store:
        for _ in range(2):
            assert np.array_equal(store["n"].gather(range(500)), rows)
        assert store.stats().rows_read == 500
        again = pickle.loads(pickle.dumps(store))
        assert np.array_equal(again["n"].gather([3, 4]), rows[[3, 4]])
