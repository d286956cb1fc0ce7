# SPDX-License-Identifier: Apache-2.0
"""A FeatureStore with odd tables, ids and memory, threads, and files that change: the rows of indexing, or an error."""

import gc
import os
import random
import signal
import threading
import time

import numpy as np
import penstock
import pytest
import torch
from penstock.features import Prefetch
from torch.utils.data import DataLoader, Dataset

RNG = np.random.default_rng(11)
TABLES = {
    "none": np.empty((0, 5), "f4"),
    "one": RNG.integers(0, 255, (1, 3), "u1"),
    "byte": RNG.integers(0, 255, (5000, 1), "u1"),
    "number": RNG.integers(0, 1 << 60, 3000),
    "large": RNG.integers(0, 255, (7, 3_000_001), "u1"),
    "odd": RNG.standard_normal((2000, 3, 5, 7)).astype("f2"),
    "block": RNG.standard_normal((1000, 1024)).astype("f4"),
}
ROWS = TABLES["block"]


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    """The same tables in one file, and striped."""
    folder = tmp_path_factory.mktemp("hostile")
    folders = [folder / name for name in "abc"]
    for one in folders:
        one.mkdir()
    penstock.FeatureStore.write(folder / "one", TABLES, progress=None)
    penstock.FeatureStore.write(folder / "striped", TABLES, folders=folders, progress=None)
    return [folder / "one", folder / "striped"]


@pytest.fixture
def path(tmp_path):
    penstock.FeatureStore.write(tmp_path / "x.features", {"block": ROWS}, progress=None)
    return tmp_path / "x.features"


def equal(found, wanted):
    found, wanted = np.asarray(found), np.asarray(wanted)
    return found.shape == wanted.shape and found.dtype == wanted.dtype and found.tobytes() == wanted.tobytes()


def forms_of(ids):
    """The same integers in the forms of NumPy and torch, and what indexing has to give for them."""
    yield from ((ids.astype(dtype), ids) for dtype in ("i8", "i4", "u4", "u8", ">i4", ">u8"))
    yield ids[::-1, ::-1], ids[::-1, ::-1]
    yield np.asfortranarray(ids), ids
    yield np.broadcast_to(ids[0], (3, 5)), np.broadcast_to(ids[0], (3, 5))
    yield torch.from_numpy(ids).t(), ids.T
    yield torch.from_numpy(ids[0].copy()).expand(3, 5), np.broadcast_to(ids[0], (3, 5))
    for dtype in ("i8", "u4"):
        memory = bytearray(1 + ids.size * 8)
        unaligned = np.frombuffer(memory, dtype, ids.size, offset=1)
        unaligned[:] = ids.ravel()
        yield unaligned, ids.ravel()
    yield [ids[0], ids[1]], ids[:2]
    yield [torch.from_numpy(ids[0]), ids[1].tolist()], ids[:2]
    yield [torch.tensor([ids[0, 0]]), torch.tensor([ids[0, 1]])], ids[0, :2, None]
    yield [torch.tensor(one) for one in ids[0]], ids[0]
    yield list(ids[0]), ids[0]


@pytest.mark.parametrize("ram", [None, 1000, "300KB", "20MB"])
def test_odd_tables_and_ids(paths, ram):
    for path, policy in zip(paths, random.Random(str(ram)).sample(["window", "clock", "s3fifo", "static"], 2)):
        with penstock.FeatureStore.open(path, ram=ram, policy=policy) as store:
            assert store.gather({}) == {} == store.gather_async({}).result()
            for name, rows in TABLES.items():
                table = store[name]
                for none in ([], np.empty((0, 5), int), torch.empty((3, 0), dtype=torch.int32), [[], []]):
                    assert equal(table.gather(none), rows[np.asarray(none, int)]), (name, none)
                if not len(rows):
                    continue
                for one in (np.array(len(rows) - 1), np.int64(len(rows) - 1), torch.tensor(len(rows) - 1), np.uint8(0)):
                    assert equal(table.gather(one), rows[int(one)]), (name, one)
                ids = RNG.integers(0, len(rows), (4, 5))
                for given, wanted in list(forms_of(ids))[:: 5 if name == "large" else 1]:
                    assert equal(table.gather(given), rows[wanted]), (name, given)
            same = np.where(RNG.random(300_000) < 0.5, 4999, 0)
            assert equal(store["byte"].gather(same), TABLES["byte"][same])
            asked = {"none": [], "one": [0, 0], "byte": [[1, 2], [1, 1]], "large": [6], "odd": np.array(5)}
            found = store.gather(asked)
            for name, ids in asked.items():
                assert equal(found[name], TABLES[name][np.asarray(ids, int)]), name


def test_a_million_times_the_same_row(paths):
    for path in paths:
        with penstock.FeatureStore.open(path) as store:
            assert equal(store["number"].gather(np.full(1_000_000, 7)), TABLES["number"][np.full(1_000_000, 7)])


@pytest.mark.parametrize("ram", [None, "1MB"])
def test_rows_that_do_not_exist_are_named(paths, ram):
    with penstock.FeatureStore.open(paths[1], ram=ram) as store:
        for name in TABLES:
            rows = len(TABLES[name])
            for wrong in (rows, -1, 2**31, 2**32 - 1, 2**32 + 1, 2**63 - 1, 2**63, 2**64 - 1):
                given = [[wrong], np.array([wrong], "u8" if wrong > 0 else "i8")]
                given += [np.array([wrong], "u4")] if 0 <= wrong < 2**32 else []
                for ids in given:
                    for verb in (store[name].gather, store[name].gather_async, store[name].hint):
                        with pytest.raises(ValueError, match=rf"ids\[0\]: .*{wrong}\b"):
                            verb(ids)


def test_what_is_no_ids_is_refused(path):
    with penstock.FeatureStore.open(path, ram="1MB") as store:
        for wrong in (
            *([True, False], [[True]], [1.0], [[0.5]], ["1"], [None], "12", 3, {1, 2}, {"block": [1]}, slice(3), ...),
            *(np.zeros(1, dtype) for dtype in ("M8[s]", "m8[s]", object, float, complex, "V8", [("a", "i8")])),
            *(np.bool_(True), [np.bool_(True)], np.array([]), (i for i in [1]), torch.tensor([1, 0]).to_sparse()),
        ):
            for verb in (store["block"].gather, store["block"].gather_async, store["block"].hint):
                with pytest.raises((TypeError, ValueError), match="ids"):
                    verb(wrong)
        assert equal(store["block"].gather([1]), ROWS[[1]])


def test_what_has_no_numbers_of_rows_is_told_what_has(path):
    with penstock.FeatureStore.open(path, ram="1MB") as store:
        for wrong in ("12", {1, 2}, {"block": [1]}):
            for verb in (store["block"].gather, store["block"].hint):
                with pytest.raises(TypeError, match="ids: got .*; give a tensor, an array, a range or a list of int"):
                    verb(wrong)


def test_ranges_beyond_64_bits_are_refused_as_lists_are(path):
    with penstock.FeatureStore.open(path, ram="1MB") as store:
        for wrong in (range(2**63, 2**63 + 3), range(2**64, 2**64 + 2), range(-(2**64), -(2**64) + 2), range(2**70)):
            for verb in (store["block"].gather, store["block"].gather_async, store["block"].hint):
                with pytest.raises(ValueError, match=rf"ids\[0\]: .*{wrong[-1] if wrong[0] == 0 else wrong[0]}\b"):
                    verb(wrong)


class OnlyDLPack:
    def __init__(self, array):
        self._array = array

    def __dlpack__(self, **keywords):
        return self._array.__dlpack__(**keywords)

    def __dlpack_device__(self):
        return self._array.__dlpack_device__()


def test_ids_with_nothing_but_dlpack(path):
    with penstock.FeatureStore.open(path, ram="1MB") as store:
        table = store["block"]
        for ids in (
            np.arange(3),
            np.array([[1], [2]], "u4"),
            np.arange(8)[::2],
            torch.tensor([[5, 6]]),
            np.zeros((0, 2), int),
        ):
            assert table.hint(OnlyDLPack(ids)) == bool(len(ids))
            found = table.gather(OnlyDLPack(ids))
            assert isinstance(found, np.ndarray) and equal(found, ROWS[np.asarray(ids)])
        with pytest.raises(TypeError, match="ids: this array is a mask"):
            table.gather(OnlyDLPack(torch.ones(1000, dtype=torch.bool)))


def test_memory_that_is_not_the_result_is_refused_and_stays_as_it_is(path):
    f4 = np.zeros((2, 1024), "f4")
    fixed = f4.copy()
    fixed.setflags(write=False)
    with penstock.FeatureStore.open(path) as store:
        for wrong in (
            *([0], "x", 5, True, {"block": f4}, bytes(8192), bytearray(8191), bytearray(8193), fixed),
            *(np.zeros((2, 2048), "f4")[:, ::2], np.asfortranarray(f4), f4[::-1], np.broadcast_to(f4[:1], (2, 1024))),
            *(torch.zeros(1, 1024).expand(2, 1024), torch.zeros(1024, 2).t(), torch.zeros(2, 1024).to_sparse()),
            *(torch.empty(2, 1024, device="meta"), f4.astype("i4"), f4.astype(">f4"), f4.astype("f8"), f4.ravel()),
            *(np.zeros((3, 1024), "f4"), np.zeros((0, 1024), "f4"), f4.astype(object)),
        ):
            for verb in (store["block"].gather, store["block"].gather_async):
                with pytest.raises((TypeError, ValueError, BufferError), match="out"):
                    verb([0, 1], wrong)
            if isinstance(wrong, np.ndarray) and wrong.dtype != object:
                assert not wrong.any()
        memory = bytearray(8193)
        store["block"].gather([1, 0], memoryview(memory)[1:])  # unaligned
        assert memory[1:] == ROWS[[1, 0]].tobytes()


def test_ids_may_change_after_the_call_and_lie_in_out(path):
    for ram in (None, "20KB"):
        with penstock.FeatureStore.open(path, ram=ram) as store:
            ids = np.arange(900)
            gather = store["block"].gather_async(ids)
            ids[:] = 7
            assert equal(gather.result(), ROWS[:900])
            out = np.zeros((64, 1024), "f4")
            inside = out.view("i8").ravel()[:64]
            inside[:] = np.arange(64)
            assert equal(store["block"].gather(inside, out), ROWS[:64])


@pytest.mark.parametrize("ram", [None, 1, 9000, "100TiB"])
def test_more_under_way_than_memory_has_rows(path, ram):
    """Each gather pins its rows until its result was taken; those that find no room are read past the memory."""
    with penstock.FeatureStore.open(path, ram=ram) as store:
        table = store["block"]
        batches = [np.arange(first, first + 20) for first in range(0, 1000, 20)]
        for ids in batches:  # a window larger than the memory
            table.hint(ids)
        under_way = [table.gather_async(ids) for ids in batches]
        for ids, gather in list(zip(batches, under_way, strict=True))[::-1]:
            assert equal(gather.result(), ROWS[ids])
        stats = store.stats()
        assert stats.rows == 1000 == stats.rows_read + stats.rows_hit
        assert stats.slots < 3 or ram == "100TiB"


def test_hints_that_never_come_true(path):
    with penstock.FeatureStore.open(path, ram="200KB") as store:
        table, some = store["block"], np.random.default_rng(2)
        for number in range(100):
            table.hint(some.integers(0, 1000, 30))
            if number % 7 == 0:
                table.hint(np.zeros(10**6, "i8"))
            ids = some.integers(0, 1000, 25)
            assert equal(table.gather(ids), ROWS[ids])
        stats = store.stats()
        assert stats.hints_used == 0 and stats.hints_dropped > 0 and stats.hints_refused > 0


@pytest.mark.parametrize("ram", [None, "1MB"])
def test_a_file_that_changes_while_it_is_open(path, ram):
    base = 4096
    with penstock.FeatureStore.open(path, ram=ram, policy="clock") as store:
        table = store["block"]
        table.gather(range(10))
        whole = path.read_bytes()
        os.truncate(path, base + 500 * 4096 + 100)
        assert equal(table.gather([5, 499]), ROWS[[5, 499]])
        for ids, row in (([500], 500), ([3, 999], 999)):
            with pytest.raises(penstock.EndOfFile, match=f"within row {row} of table 'block'.* cut while it was open"):
                table.gather(ids)
            with pytest.raises(penstock.EndOfFile, match=f"row {row} of table 'block'"):
                table.gather_async(ids).result()
        with pytest.raises(penstock.Damaged, match="cut short"):
            penstock.FeatureStore.open(path)
        with open(path, "r+b") as file:  # as it was, as far as anybody knows
            file.write(whole)
        time.sleep(0.1)
        for _ in range(2):
            with pytest.raises(penstock.Damaged, match=f"'{path}'.*another program wrote to the file"):
                table.gather([5])
    with penstock.FeatureStore.open(path, ram=ram, policy="clock") as store:
        table = store["block"]
        assert equal(table.gather([500, 999]), ROWS[[500, 999]])
        penstock.FeatureStore.write(path, {"block": ROWS[::-1]}, progress=None)  # another one, in place of this
        assert equal(table.gather([1, 700]), ROWS[[1, 700]])
        path.unlink()
        assert equal(table.gather([2, 701]), ROWS[[2, 701]])


@pytest.mark.parametrize("ram", [None, "1MB"])
def test_a_npy_that_is_written_to_gives_the_rows_of_now_or_an_error(tmp_path, ram):
    np.save(tmp_path / "n.npy", ROWS)
    with penstock.FeatureStore.open(tmp_path / "n.npy", ram=ram) as store:
        (table,) = store.tables.values()
        assert equal(table.gather([5]), ROWS[[5]])
        rows = np.lib.format.open_memmap(tmp_path / "n.npy", "r+")
        rows[5] = ROWS[6]
        rows.flush()
        time.sleep(0.1)
        if ram is None:
            assert equal(table.gather([5]), ROWS[[6]])
        else:
            with pytest.raises(penstock.Damaged, match="another program wrote to the file"):
                table.gather([5])


def test_threads_hints_dropped_and_cancelled_gathers_and_close(paths):
    names, wrong = ["byte", "number", "odd", "block"], []

    def finish(gathers):
        for name, ids, gather in gathers:
            try:
                rows = gather.result()
            except penstock.Cancelled:
                continue
            if not equal(rows, TABLES[name][ids]):
                wrong.append((name, ids))
        gathers.clear()

    def work(store, seed):
        rng, later = np.random.default_rng(seed), []
        try:
            while True:
                name = names[rng.integers(len(names))]
                rows, choice = TABLES[name], rng.random()
                ids = (rng.zipf(1.3, 200) - 1) % len(rows) if choice < 0.5 else rng.integers(0, len(rows), 100)
                if rng.random() < 0.3:
                    store[name].hint(ids)
                if choice < 0.05:
                    store.drop_hints()
                    store[name].gather_async(ids)  # dropped
                elif choice < 0.4:
                    later.append((name, ids, store[name].gather_async(ids)))
                    if choice < 0.1:
                        later[-1][2].cancel()
                elif not equal(store[name].gather(ids), rows[ids]):
                    wrong.append((name, ids))
                if len(later) > 5:
                    finish(later)
        except ValueError as error:
            if "closed" not in str(error):
                wrong.append(error)
        except BaseException as error:
            wrong.append(error)
        finish(later)

    for turn, ram in enumerate((None, 2000, "400KB", "4MB")):
        store = penstock.FeatureStore.open(paths[turn % 2], ram=ram, policy=["window", "s3fifo"][turn // 2])
        threads = [threading.Thread(target=work, args=(store, 10 * turn + one)) for one in range(4)]
        for thread in threads:
            thread.start()
        time.sleep(0.2)
        closing = [threading.Thread(target=store.close) for _ in range(2)]
        for thread in closing:
            thread.start()
        for thread in threads + closing:
            thread.join(60)
            assert not thread.is_alive()
        assert wrong == []
        stats = store.stats()
        assert stats.rows == stats.rows_hit + stats.rows_read


def test_tables_and_gathers_outlive_their_store(path):
    store = penstock.FeatureStore.open(path)
    table, gather = store["block"], store["block"].gather_async(np.arange(900))
    del store
    gc.collect()
    assert equal(gather.result(), ROWS[:900]) and equal(gather.result(), ROWS[:900])
    assert equal(table.gather([1]), ROWS[[1]])


class Dying(Dataset):
    def __len__(self):
        return 60

    def __getitem__(self, number):
        if number == 40:
            os.kill(os.getpid(), signal.SIGKILL)
        return number


def test_a_loader_whose_worker_dies(path, monkeypatch):
    # torch's handler of SIGCHLD raises wherever this thread is, several times; the next loader sets it again.
    signals = torch.utils.data._utils.signal_handling
    monkeypatch.setattr(signals, "_set_SIGCHLD_handler", lambda: None)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    with penstock.FeatureStore.open(path, ram="100KB") as store:
        loader = DataLoader(Dying(), batch_size=4, num_workers=1, multiprocessing_context="fork")
        try:
            with pytest.raises((RuntimeError, EOFError, ConnectionError)):
                for ids, rows in Prefetch(loader, store["block"], window=4):
                    assert equal(rows, ROWS[ids.numpy()])
        finally:
            signals._SIGCHLD_handler_set = False
            gc.collect()  # the loader's iterator, with which torch forgets the worker
        assert equal(store["block"].gather([7]), ROWS[[7]])
