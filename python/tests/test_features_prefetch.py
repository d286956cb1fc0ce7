# SPDX-License-Identifier: Apache-2.0
"""Prefetch: the batches of any loader with their rows, in order, however the loop and the loader end."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import penstock
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from penstock.features import Prefetch, simulate

ROWS = 500
TABLE = np.arange(ROWS * 16, dtype="int32").reshape(ROWS, 16)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("prefetch") / "rows.features"
    penstock.FeatureStore.write(path, {"a": TABLE, "b": TABLE[::-1]}, progress=None)
    return path


@pytest.fixture
def store(path):
    with penstock.FeatureStore.open(path, ram="8KiB") as store:
        yield store


@pytest.fixture(autouse=True)
def no_thread_is_left():
    yield
    for _ in range(100):
        if not any(one.name == "penstock-prefetch" for one in threading.enumerate()):
            return
        time.sleep(0.02)
    raise AssertionError("a thread is left")


def batches(count, size=20, seed=1):
    random = np.random.default_rng(seed)
    return [random.integers(0, ROWS, size) for _ in range(count)]


def check(pairs, expected):
    assert len(pairs) == len(expected)
    for (batch, rows), ids in zip(pairs, expected):
        assert batch is ids
        assert np.array_equal(rows, TABLE[ids])


ids_lists = st.lists(st.lists(st.integers(0, ROWS - 1), max_size=40), max_size=25)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ids_lists, st.integers(0, 30), st.integers(0, 20_000), st.booleans())
def test_rows_are_those_of_the_table_in_order(store, loader, window, memory, lazily):
    loader = [np.array(ids, dtype="int64") for ids in loader]
    given_loader = (batch for batch in loader) if lazily else loader
    check(list(Prefetch(given_loader, store["a"], window, memory=memory)), loader)


def test_a_second_iteration_begins_anew(store):
    loader = batches(10)
    prefetch = Prefetch(loader, store["a"])
    check(list(prefetch), loader)
    check(list(prefetch), loader)
    assert len(prefetch) == 10
    one, other = iter(prefetch), iter(prefetch)
    check([pair for pair in zip(one, other)][0], [loader[0]] * 2)
    one.close()
    other.close()


def test_a_dict_of_tables_and_a_key(store):
    loader = [{"n": ids, "label": i} for i, ids in enumerate(batches(6))]
    found = list(Prefetch(loader, store, key=lambda batch: {"a": batch["n"], "b": batch["n"][:5]}))
    for (batch, rows), given_batch in zip(found, loader):
        assert batch is given_batch
        assert np.array_equal(rows["a"], TABLE[batch["n"]])
        assert np.array_equal(rows["b"], TABLE[::-1][batch["n"][:5]])


def test_batches_are_hinted_and_the_hints_come_true(path):
    """How many rows are hits depends on which reads are over when a batch is looked up."""
    loader = batches(60, 60)
    for window in (0, 8):
        with penstock.FeatureStore.open(path, ram="8KiB") as store:
            list(Prefetch(loader, store["a"], window))
            stats = store.stats()
            assert stats.rows == 60 * 60
            assert (stats.hints_used > 0) == (window > 0)


def test_reads_are_ahead_of_the_loop(store):
    sampled = []

    def loader():
        for ids in batches(40):
            sampled.append(ids)
            yield ids

    for number, _ in enumerate(Prefetch(loader(), store["a"], 4)):
        deadline = time.monotonic() + 30
        while len(sampled) < min(number + 6, 40) and time.monotonic() < deadline:
            time.sleep(0.005)
        assert len(sampled) >= min(number + 6, 40)
    assert len(sampled) == 40


def test_memory_bounds_what_is_read_ahead(path):
    class Counting:
        """A table whose reads end when they are asked for."""

        row_bytes = 64

        def __init__(self):
            self.open = 0
            self.most = 0

        def gather_async(self, ids):
            self.open += 1
            self.most = max(self.most, self.open)
            counting = self

            class Future:
                def done(self):
                    return False

                def cancel(self):
                    pass

                def result(self):
                    counting.open -= 1
                    return TABLE[ids]

            return Future()

    for memory, most in ((0, 1), (3 * 20 * 64, 3), (10**9, 30)):
        table = Counting()
        for _ in Prefetch(batches(30), table, 8, memory=memory):
            time.sleep(0.003)
        assert table.most <= most
        assert most == 1 or table.most > 1


def test_small_batches_are_read_together(store):
    """Until the device's queue is full, not until the window is."""
    table = store["a"]
    started = []

    class Slow:
        row_bytes = table.row_bytes

        def gather_async(self, ids):
            started.append(len(ids))

            class Future:
                def done(self):
                    return False

                def cancel(self):
                    pass

                def result(self):
                    return TABLE[ids]

            return Future()

    found = iter(Prefetch(batches(200, 2), Slow(), 2))
    next(found)
    deadline = time.monotonic() + 30
    while len(started) < 60 and time.monotonic() < deadline:
        time.sleep(0.005)
    assert 60 <= len(started) <= 70  # two rows each: 128 are under way
    found.close()


# ---- loaders and loops that end otherwise


def test_what_a_loader_raises_comes_after_the_batches_before_it(store):
    loader = batches(3)

    def failing():
        yield from loader
        raise KeyError("the loader")

    found = []
    with pytest.raises(KeyError, match="the loader"):
        for pair in Prefetch(failing(), store["a"]):
            found.append(pair)
    check(found, loader)


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, StopAsyncIteration])
def test_a_loader_may_end_by_any_exception(store, error):
    def failing():
        yield batches(1)[0]
        raise error("gone")

    found = []
    with pytest.raises(error, match="gone"):
        for pair in Prefetch(failing(), store["a"]):
            found.append(pair)
    assert len(found) == 1


def test_a_row_that_is_not_there(store):
    loader = [*batches(2), np.array([1, ROWS]), *batches(2)]
    found = []
    with pytest.raises(ValueError, match=str(ROWS)):
        for pair in Prefetch(loader, store["a"]):
            found.append(pair)
    check(found, loader[:2])
    check(list(Prefetch(loader[:2], store["a"], 0)), loader[:2])


def test_an_early_break_ends_the_loader_and_drops_the_hints(store):
    ended = threading.Event()

    def endless():
        try:
            while True:
                yield from batches(5)
        finally:
            ended.set()

    for number, _ in enumerate(Prefetch(endless(), store["a"])):
        if number == 3:
            break
    assert ended.wait(5)
    assert store["a"].hint([1, 2, 3])  # hints are taken again


def test_an_iteration_that_is_dropped_before_its_first_batch(store):
    iter(Prefetch(batches(3), store["a"]))


def test_a_loader_that_stalls_gives_what_it_has(store):
    go_on = threading.Event()

    def stalling():
        yield from batches(3)
        go_on.wait(30)

    found = iter(Prefetch(stalling(), store["a"]))
    for _ in range(3):
        next(found)
    go_on.set()
    assert list(found) == []


def test_a_store_that_is_closed_meanwhile(path):
    store = penstock.FeatureStore.open(path)
    found = iter(Prefetch(batches(2000), store["a"], 2))
    next(found)
    store.close()
    with pytest.raises(ValueError, match="closed"):
        list(found)


def test_an_iteration_of_another_process(store):
    found = iter(Prefetch(batches(30), store["a"]))
    next(found)
    child = os.fork()
    if child == 0:
        try:
            next(found)
        except RuntimeError as error:
            os._exit(0 if "another process" in str(error) else 1)
        os._exit(2)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert len(list(found)) == 29


@pytest.mark.parametrize("way", ["interrupt", "exit", "unfinished"])
def test_a_program_that_ends(path, way):
    program = f"""
        import os, signal, sys, threading, numpy, penstock
        from penstock.features import Prefetch, simulate
        store = penstock.FeatureStore.open({str(path)!r}, ram="8KiB")
        def endless():
            while True:
                yield numpy.arange(50)
        found = iter(Prefetch(endless(), store["a"]))
        try:
            for number, (batch, rows) in enumerate(found):
                if number == 20 and {way!r} == "interrupt":
                    os.kill(os.getpid(), signal.SIGINT)
                if number == 20 and {way!r} == "exit":
                    sys.exit(3)
                if number == 20 and {way!r} == "unfinished":
                    break
        except KeyboardInterrupt:
            sys.exit(4)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], timeout=60, capture_output=True, text=True)
    assert done.returncode == {"interrupt": 4, "exit": 3, "unfinished": 0}[way], done.stderr
    assert done.stderr == ""


def test_ctrl_c_while_it_waits_for_the_loader(store):
    release = threading.Event()

    def stalling():
        yield batches(1)[0]
        release.wait(3)

    found = iter(Prefetch(stalling(), store["a"]))
    next(found)
    threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        next(found)
    release.set()


# ---- arguments


@pytest.mark.parametrize(
    ("arguments", "error", "reason"),
    [
        ({"loader": 5}, TypeError, "loader: expected an iterable"),
        ({"store": 5}, TypeError, "store: expected a FeatureStore"),
        ({"window": 31}, ValueError, "window: expected 0 to 30, got 31"),
        ({"window": -1}, ValueError, "window: expected 0 to 30"),
        ({"window": True}, TypeError, "window: expected a number"),
        ({"window": "8"}, TypeError, "window: expected a number"),
        ({"key": 5}, TypeError, "key: expected a function"),
        ({"memory": "many"}, ValueError, "many"),
        ({"memory": -1}, ValueError, "memory: expected 0 to"),
        ({"memory": 1.5}, TypeError, "memory: expected bytes"),
        ({"windwo": 5}, TypeError, "did you mean 'window'"),
    ],
)
def test_wrong_arguments(store, arguments, error, reason):
    with pytest.raises(error, match=reason):
        Prefetch(**{"loader": [], "store": store["a"], **arguments})


def test_a_batch_without_ids(store):
    with pytest.raises(TypeError, match="give a function as key="):
        list(Prefetch(["text"], store["a"]))
    with pytest.raises(TypeError, match="expected a dict of tables"):
        list(Prefetch(batches(1), store))


# ---- hot rows


def test_hot_rows_of_a_graph():
    from penstock.features import Graph, hot_rows

    graph = Graph.from_edges(np.array([[0, 0, 1, 3], [1, 2, 2, 2]]), 4)
    assert hot_rows(graph, 10).tolist() == [0, 1, 3]
    assert hot_rows(graph, 2, fanouts=[1, -1], batch=1, seeds=[2]).tolist() == [2, 0]
    with pytest.raises(ValueError, match="4 is no node"):
        hot_rows(graph, 2, fanouts=[1], seeds=[4])
    with pytest.raises(TypeError, match="expected a Graph"):
        hot_rows("graph", 2)
    with pytest.raises(TypeError, match="did you mean 'fanouts'"):
        hot_rows(graph, 2, fanout=[1])


def test_hot_rows_of_a_graph_of_several_types():
    """The rows that are expected to be used most are those that sampled batches of other seeds use most."""
    from penstock.features import Graph, NeighborSampler, hot_rows, zipf_rows

    counts = {"paper": 2000, "author": 1000}

    def edges(source, destination, seed):
        begins = zipf_rows(counts[source], 0.8, 12_000, seed=seed)
        ends = zipf_rows(counts[destination], 0.3, 12_000, seed=seed + 50)
        return Graph.from_edges((begins, ends), (counts[source], counts[destination]))

    graph = {
        ("author", "writes", "paper"): edges("author", "paper", 1),
        ("paper", "cites", "paper"): edges("paper", "paper", 2),
        ("paper", "written_by", "author"): edges("paper", "author", 3),
    }
    fanouts = {key: [4, 3] for key in graph} | {("paper", "cites", "paper"): [5, 2]}
    seeds = np.arange(0, 2000, 3)
    hot = hot_rows(graph, 200, fanouts=fanouts, batch=32, seeds={"paper": seeds})
    sampler = NeighborSampler(graph, fanouts, seed=5)
    used = {name: np.zeros(count) for name, count in counts.items()}
    for number in range(200):
        batch = np.random.default_rng(number).choice(seeds, 32, replace=False)
        for name, nodes in sampler.sample({"paper": batch}).nodes.items():
            used[name][nodes] += 1
    for name, rows in hot.items():
        assert rows.dtype == np.int64 and len(rows) == len(set(rows)) == 200
        assert used[name][rows].sum() > 0.95 * np.sort(used[name])[-200:].sum()
        assert used[name][rows].sum() > 1.3 * 200 * used[name].mean()
    degrees = np.bincount(np.concatenate([graph[key].indices for key in list(graph)[1:]]), minlength=2000)
    by_edges = hot_rows(graph, {"paper": 7})
    assert by_edges["paper"].tolist() == np.lexsort((np.arange(2000), -degrees))[:7].tolist()
    assert by_edges["author"].tolist() == []
    with pytest.raises(ValueError, match="seeds: expected types of .*, got 'papers'"):
        hot_rows(graph, 2, fanouts=[1], seeds={"papers": [1]})
    with pytest.raises(ValueError, match="count: expected types of .*, got 'papers'"):
        hot_rows(graph, {"papers": 1})
    with pytest.raises(TypeError, match="seeds: expected a dict"):
        hot_rows(graph, 2, fanouts=[1], seeds=[1])
    with pytest.raises(ValueError, match="2000 is no node"):
        hot_rows(graph, 2, fanouts=[1], seeds={"paper": [2000]})
    with pytest.raises(ValueError, match="expected one for each edge type"):
        hot_rows(graph, 2, fanouts={})


def test_hot_rows_of_batches():
    from penstock.features import hot_rows

    batches = [[5, 5, 5, 2], np.array([[2, 9]]), np.array([9, 2], "i4"), []]
    assert hot_rows(batches, 10).tolist() == [2, 9, 5]
    assert hot_rows(iter(batches), 1).tolist() == [2]
    assert hot_rows([], 3).tolist() == []
    with pytest.raises(TypeError, match="are for a Graph"):
        hot_rows(batches, 2, fanouts=[1])
    with pytest.raises(ValueError, match=r"batches\[0\]: -1 is no number of a row"):
        hot_rows([[-1]], 2)


def test_look_ahead_brings_hits_also_where_few_rows_fit(tmp_path):
    """Batches that are read together read the rows that they share again: eight at once had fewer hits than none."""
    some = np.random.default_rng(1)
    table = some.integers(0, 255, (3000, 512), dtype="u1")
    penstock.FeatureStore.write(tmp_path / "x.features", {"a": table}, progress=None)
    batches = [np.unique(some.integers(0, 3000, (2, 100)).min(axis=0)) for _ in range(40)]
    hits = {}
    for name, window, memory in (("none", 0, 0), ("one", 8, 0), ("default", 8, "256MiB")):
        with penstock.FeatureStore.open(tmp_path / "x.features", ram=60_000) as store:
            for ids, rows in Prefetch(batches, store["a"], window=window, memory=memory):
                assert np.array_equal(rows, table[ids])
            found = store.stats()
            hits[name] = found.rows_hit
    told = {window: simulate(batches, found.slots, ["window"], window=window)["window"] for window in (0, 8)}
    assert hits["none"] == told[0].rows - told[0].rows_read
    # On a busy machine a hint comes late now and then.
    assert hits["one"] == pytest.approx(told[8].rows - told[8].rows_read, rel=0.2)
    assert hits["one"] > 3 * hits["none"] and hits["default"] > 2 * hits["none"]
